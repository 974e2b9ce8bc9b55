"""Images a second from encoded bytes to resized pixels: packer, the bare decoder and OpenCV.

python benchmarks/decode_resize.py photos/                  a folder, list or archive of images
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from packer import native
from packer.bench.hardware_limits import machine, versions
from packer.convert.pixel_sums import PixelSums
from packer.errors import PackerError
from packer.inputs.image_sources import open_source
from packer.pixels.decode_resize import (
    DecodeResize,
    PixelSpec,
    decoder_versions,
)
from packer.pixels.image_decoder import ScratchBuffers
from packer.pixels.row_placement import place

Pixels = NDArray[np.uint8]
TURN = 40
"""Photos that one way decodes before it is the next one's turn."""

Way = Callable[[bytes, ScratchBuffers, Pixels], None]


def decode(data: bytes, scratch: ScratchBuffers) -> Pixels:
    """Decode a complete JPEG into reused memory, as the limit and the peers do."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    pixels = scratch.array("decoded", (int(height), int(width), 3))
    simplejpeg.decode_jpeg(data, "RGB", buffer=pixels)
    return pixels


def bare(data: bytes, scratch: ScratchBuffers, out: Pixels) -> None:
    """Decode only: the limit."""
    decode(data, scratch)


def crop_and_resize(interpolation: int) -> Way:
    """Decode, crop and resize with OpenCV: a peer."""

    def run(data: bytes, scratch: ScratchBuffers, out: Pixels) -> None:
        pixels = decode(data, scratch)
        box, _ = place("crop", (pixels.shape[0], pixels.shape[1]), (out.shape[0], out.shape[1]))
        cv2.resize(box.cut_view(pixels), out.shape[1::-1], dst=out, interpolation=interpolation)

    return run


def ours(size: int, sums: bool) -> Way:
    """Run DecodeResize completely: the subject. sums: also compute the statistics of its output."""
    maker = DecodeResize(PixelSpec((size, size)))

    def run(data: bytes, scratch: ScratchBuffers, out: Pixels) -> None:
        maker(data, out)
        if sums:
            PixelSums(3).add(out[None], 1)

    return run


def seconds(
    way: Way, files: list[bytes], pool: ThreadPoolExecutor, memory: list[tuple[ScratchBuffers, Pixels]]
) -> float:
    """Return wall time of a pass over the files, split among a thread for each buffer."""

    def part(first: int) -> None:
        cv2.ipp.setUseIPP(False)
        for data in files[first :: len(memory)]:
            way(data, *memory[first])

    began = time.perf_counter()
    list(pool.map(part, range(len(memory))))
    return time.perf_counter() - began


def load(source: str, count: int) -> list[bytes]:
    """Read up to `count` JPEGs, evenly spread over the source."""
    with open_source(source) as opened:
        chosen = np.linspace(0, len(opened.keys) - 1, min(count, len(opened.keys))).astype(int)
        files = [opened.read(int(index)) for index in chosen]
    return [data for data in files if simplejpeg.is_jpeg(data)]


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="JPEG photos")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--count", type=int, default=500, help="photos to sample")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(argv)
    try:
        files = load(options.source, options.count)
    except PackerError as error:
        parser.error(str(error))
    if not files:
        parser.error(f"{options.source}: holds no JPEGs")

    ways = {
        "bare decode": bare,
        "DecodeResize": ours(options.size, False),
        "DecodeResize + sums": ours(options.size, True),
        "decode + INTER_AREA": crop_and_resize(cv2.INTER_AREA),
        "decode + INTER_LINEAR": crop_and_resize(cv2.INTER_LINEAR),
    }
    print(
        ", ".join(f"{name} {value}" for name, value in (machine() | versions() | decoder_versions()).items())
    )
    print("loops", "compiled" if native.COMPILED else "in NumPy: packer was installed without a compiler")
    print(
        f"{len(files)} photos from {options.source} to {options.size} px; {options.rounds} rounds, 1 warm-up"
    )

    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)
    speeds = {threads: measure(ways, files, options.size, options.rounds, threads) for threads in (1, 2)}
    cv2.setNumThreads(previous)
    print(f"\n{'':22}{'1 thread':>18}{'2 threads':>18}")
    for name in ways:
        found = (speeds[threads][name] for threads in (1, 2))
        print(f"{name:22}" + "".join(f"{rate:9,.0f}/s x{share:.2f}  " for rate, share in found))
    return 0


def measure(
    ways: dict[str, Way], files: list[bytes], size: int, rounds: int, threads: int
) -> dict[str, tuple[float, float]]:
    """Time each way in turn. Returns images/s and the share of bare decoding, medians over all turns."""
    # Short turns spread other work of the machine evenly over all ways.
    turns = [files[first :: -(-len(files) // TURN)] for first in range(-(-len(files) // TURN))]
    memory = [(ScratchBuffers(), np.empty((size, size, 3), np.uint8)) for _ in range(threads)]
    times: dict[str, list[float]] = {name: [] for name in ways}
    with ThreadPoolExecutor(threads) as pool:
        for number in range(rounds + 1):
            for turn in turns:
                for name, way in ways.items():
                    took = seconds(way, turn, pool, memory) / len(turn)
                    if number:
                        times[name].append(took)
    limit = times["bare decode"]
    return {
        name: (1 / float(np.median(took)), float(np.median(np.divide(limit, took))))
        for name, took in times.items()
    }


if __name__ == "__main__":
    sys.exit(main())
