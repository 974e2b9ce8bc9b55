"""Costs and benefits of each way to store rows: raw, JPEG, and every codec of compressed blocks.

    python benchmarks/stores.py photos.h5          a pack of raw images, as `packer convert` writes it

Rows are packed in memory, and threads unpack them into a reused buffer, as loading does; disk reads, which
smaller rows shorten, are not included. The limit is a copy of raw rows. Lossless stores are compared with the
source byte by byte, JPEG by PSNR.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.bench.bench_report import MeasuredLane
from packer.bench.hardware_limits import machine, versions
from packer.bench.lanes import Lane, run_rounds
from packer.codecs import NAMES, jpeg
from packer.codecs.block_codecs import BlockCodec, block_codec
from packer.errors import PackerError
from packer.packs.pack_opening import open_pack

Images = NDArray[np.uint8]
THREADS = (1, 2)


@dataclass
class Store:
    """Rows in one form. units: packed pieces; load(unit, out): unpack it into out, as large as a block."""

    units: list[bytes]
    seconds: float
    """Processor time that packing took."""
    load: Callable[[bytes, Images], None]


def copy(unit: bytes, out: Images) -> None:
    """Copy raw rows: the limit."""
    np.copyto(out.reshape(-1), np.frombuffer(unit, np.uint8))


def unpack(codec: BlockCodec, unit: bytes, out: Images) -> None:
    """Unpack one block."""
    codec.decompress_into(unit, out.reshape(-1))


def stores(blocks: Sequence[Images], quality: int) -> dict[str, Store]:
    """Pack the blocks, each uint8 [rows, H, W, C], in every way whose package is installed."""
    packed = {"raw": Store([block.tobytes() for block in blocks], 0.0, copy)}
    started = time.process_time()
    rows = [jpeg.encode(row, quality) for block in blocks for row in block]
    packed["jpeg"] = Store(
        rows, time.process_time() - started, lambda row, out: jpeg.decode_into(row, out[0])
    )
    for name in NAMES:
        codec = block_codec(name, blocks[0].shape[1:], blocks[0].dtype)
        try:
            codec.versions()
        except PackerError as error:
            print(error)
            continue
        started = time.process_time()
        units = [codec.compress(block) for block in blocks]
        packed[name] = Store(units, time.process_time() - started, partial(unpack, codec))
    return packed


def rate(store: Store, images: int, outs: Sequence[Images], pool: ThreadPoolExecutor) -> float:
    """Return images a second of unpacking everything once, split among a thread for each buffer.

    A single thread is measured by processor time, which other work on the machine affects least; several by
    wall time.
    """
    clock = time.perf_counter if len(outs) > 1 else time.process_time

    def part(first: int) -> None:
        for unit in store.units[first :: len(outs)]:
            store.load(unit, outs[first])

    started = clock()
    list(pool.map(part, range(len(outs))))
    return images / (clock() - started)


def fidelity(name: str, store: Store, blocks: Sequence[Images]) -> str:
    """Return the fidelity of the unpacked rows. Raises AssertionError if a lossless store differs."""
    out = np.empty_like(blocks[0])
    if name != "jpeg":
        for unit, block in zip(store.units, blocks, strict=True):
            store.load(unit, out)
            assert np.array_equal(out, block), f"{name} changed the rows"
        return "lossless"
    errors = []
    for unit, row in zip(store.units, (row for block in blocks for row in block), strict=True):
        store.load(unit, out)
        errors.append(float(np.mean((out[0].astype(np.float64) - row) ** 2)))
    return f"{np.mean(10 * np.log10(255**2 / np.maximum(errors, 1e-9))):.1f} dB"


def read_blocks(path: str, count: int, block_bytes: float) -> list[Images]:
    """Return blocks of consecutive rows, evenly spread over a pack. Raises PackerError, ValueError."""
    pack = open_pack(path)
    field = next((f for f in pack.fields if f.name == "image"), None)
    if field is None or field.shape is None or field.dtype != "|u1" or len(field.shape) != 3:
        raise ValueError(
            f"{path}: holds no images of one size, stored raw; this benchmark needs them. Pass another."
        )
    rows = max(1, min(pack.rows, round(block_bytes / field.row_bytes)))
    blocks = max(1, min(count, pack.rows) // rows)
    firsts = np.linspace(0, pack.rows - rows, blocks).astype(int)
    return [np.asarray(pack.read("image", int(first), int(first) + rows), np.uint8) for first in firsts]


def report(packed: dict[str, Store], blocks: Sequence[Images], rounds: int) -> str:
    """Measure in turns. Returns the table."""
    images = sum(map(len, blocks))
    raw = sum(block.nbytes for block in blocks)
    buffers = [np.ones_like(blocks[0]) for _ in range(max(THREADS))]
    with ThreadPoolExecutor(max(THREADS)) as pool:
        lanes = {
            (name, n): Lane(name, partial(rate, packed[name], images, buffers[:n], pool))
            for name in packed
            for n in THREADS
        }
        for lane in lanes.values():
            lane.measure()
        run_rounds({"": list(lanes.values())}, rounds, lambda _: None)
    head = f"{'':8}{'bytes/image':>12}{'smaller':>9}{'fidelity':>10}{'pack/s':>9}"
    head += "".join(f"{title:>15}{'x copy':>8}" for title in ("load/s, a core", "2 threads"))
    lines = [head]
    for name, store in packed.items():
        size = sum(map(len, store.units))
        line = f"{name:8}{size / images:12,.0f}{raw / size:8.2f}x{fidelity(name, store, blocks):>10}"
        line += f"{images / store.seconds:9,.0f}" if store.seconds else f"{'':9}"
        for threads in THREADS:
            lane = lanes[name, threads]
            found = MeasuredLane(name, tuple(lane.rates), tuple(lanes["raw", threads].rates))
            line += f"{found.rate:15,.0f}{found.times_baseline:8.3f}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", help="raw images of one size")
    parser.add_argument("--count", type=int, default=512, help="images to sample")
    parser.add_argument("--quality", type=int, default=90, help="quality of the JPEGs")
    parser.add_argument("--block", type=float, default=1.0, help="MiB of a compressed block")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    try:
        blocks = read_blocks(options.pack, options.count, options.block * 2**20)
    except (PackerError, ValueError) as error:
        parser.error(str(error))
    packed = stores(blocks, options.quality)
    height, width, channels = blocks[0].shape[1:]
    about = machine() | versions() | {"h5py": h5py.__version__}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    made_by = jpeg.versions()
    for name in packed:
        if name in NAMES:
            made_by |= block_codec(name, (), np.dtype(np.uint8)).versions()
    print(" ".join(f"{package} {version}" for package, version in made_by.items()))
    print(
        f"{sum(map(len, blocks))} images of {height}x{width}x{channels} from {options.pack},"
        f" JPEG quality {options.quality}, blocks of {len(blocks[0])} rows;"
        f" {options.rounds} rounds, interleaved, 1 warm-up; processor time, of 2 threads wall time\n"
    )
    print(report(packed, blocks, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
