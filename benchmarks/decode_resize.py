"""How fast images become pixels, beside the bare decoder, and how faithful the pixels are.

    python benchmarks/decode_resize.py photos/                  a folder, list or archive of images
    PACKER_DATA=data python benchmarks/decode_resize.py         data/clothing.tar/train

Seen (2 cores of a Xeon, shared with other work; OpenCV 5.0.0, simplejpeg 1.9.0; 400 of 3,068 photos of about 400x533 to
256 px, 4 rounds; PSNR against a float64 triangle filter, 100 photos):

                                1 thread     PSNR mean     5 %   worst
    bare decode               1,304/s x1.00
    PixelMaker                1,274/s x0.97         53.3 dB    47.8    42.3
    decode + INTER_AREA         558/s x0.43         45.9 dB    37.5    34.7
    decode + INTER_LINEAR     1,037/s x0.80         40.4 dB    30.4    27.9

Processor time instead of wall time (80 of the photos, the best of 14 passes), which leaves the other work out, in us a
photo: bare decode 729, PixelMaker 754 (x0.97), with sums 771 (x0.95), without a compiler 1,831 (x0.40); two processes at
once 748, 777 (x0.96), 815 (x0.92) and 2,029 (x0.37).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from packer import native
from packer.errors import PackerError
from packer.inputs.sources import open_source
from packer.pixels.maker import PixelMaker, PixelSpec, decoder_versions
from packer.pixels.resize import place
from packer.pixels.scratch import Scratch
from packer.pixels.statistics import PixelSums

Pixels = NDArray[np.uint8]
TURN = 40
"""Photos that one way decodes before it is the next one's turn."""

Way = Callable[[bytes, Scratch, Pixels], None]


def decode(data: bytes, scratch: Scratch) -> Pixels:
    """Decode a whole JPEG into reused memory, as the limit and the peers do."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    pixels = scratch.array("decoded", (int(height), int(width), 3))
    simplejpeg.decode_jpeg(data, "RGB", buffer=pixels)
    return pixels


def bare(data: bytes, scratch: Scratch, out: Pixels) -> None:
    """The limit: decoding, and nothing else."""
    decode(data, scratch)


def crop_and_resize(interpolation: int) -> Way:
    """A peer: decode, crop, OpenCV's own resize."""

    def run(data: bytes, scratch: Scratch, out: Pixels) -> None:
        pixels = decode(data, scratch)
        box, _ = place("crop", (pixels.shape[0], pixels.shape[1]), (out.shape[0], out.shape[1]))
        cv2.resize(box.of(pixels), out.shape[1::-1], dst=out, interpolation=interpolation)

    return run


def ours(size: int) -> Way:
    """The subject: PixelMaker, all in."""
    maker = PixelMaker(PixelSpec((size, size)))

    def run(data: bytes, scratch: Scratch, out: Pixels) -> None:
        maker(data, out)

    return run


def with_sums(way: Way) -> Way:
    """The subject and the statistics of what it made."""

    def run(data: bytes, scratch: Scratch, out: Pixels) -> None:
        way(data, scratch, out)
        PixelSums(3).add(out[None], 1)

    return run


def triangle(source: int, result: int) -> NDArray[np.float64]:
    """Weights [result, source] of the antialiased triangle filter, as in Pillow's BILINEAR, unrounded."""
    ratio = source / result
    centres = (np.arange(result)[:, None] + 0.5) * ratio
    weights = 1 - np.abs(np.arange(source)[None] + 0.5 - centres) / max(ratio, 1.0)
    weights = np.maximum(weights, 0)
    normal: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normal


def reference(data: bytes, size: int) -> NDArray[np.float64]:
    """Decode at full quality, crop, resize in float64. Returns: [size, size, 3]."""
    pixels = simplejpeg.decode_jpeg(data, "RGB")
    box, _ = place("crop", (pixels.shape[0], pixels.shape[1]), (size, size))
    down, across = triangle(box.height, size), triangle(box.width, size)
    cut = box.of(pixels).astype(np.float64)
    small: NDArray[np.float64] = np.einsum("ij,jkc,lk->ilc", down, cut, across, optimize=True)
    return small


def psnr(pixels: Pixels, target: NDArray[np.float64]) -> float:
    """Peak signal-to-noise ratio in dB."""
    return float(10 * np.log10(255**2 / max(float(np.mean((pixels - target) ** 2)), 1e-9)))


def seconds(
    way: Way, files: list[bytes], pool: ThreadPoolExecutor, memory: list[tuple[Scratch, Pixels]]
) -> float:
    """Wall time of one pass over the files, shared out among as many threads as there are pieces of memory."""

    def part(first: int) -> None:
        cv2.ipp.setUseIPP(False)
        for data in files[first :: len(memory)]:
            way(data, *memory[first])

    began = time.perf_counter()
    list(pool.map(part, range(len(memory))))
    return time.perf_counter() - began


def load(source: str, count: int) -> list[bytes]:
    """Read up to ``count`` JPEGs, evenly spread over the source."""
    with open_source(source) as opened:
        chosen = np.linspace(0, len(opened.keys) - 1, min(count, len(opened.keys))).astype(int)
        files = [opened.read(int(index)) for index in chosen]
    return [data for data in files if simplejpeg.is_jpeg(data)]


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", help="JPEG photos; default: $PACKER_DATA/clothing.tar/train")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--count", type=int, default=500, help="photos to sample")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(argv)
    source = options.source or os.environ.get("PACKER_DATA")
    if source is None:
        parser.error(
            "no photos: pass a folder or archive of JPEGs, or set PACKER_DATA to where clothing.tar lies"
        )
    if options.source is None:
        source = os.path.join(source, "clothing.tar", "train")
    try:
        files = load(source, options.count)
    except PackerError as error:
        parser.error(str(error))
    if not files:
        parser.error(f"{source}: holds no JPEGs")

    ways = {
        "bare decode": bare,
        "PixelMaker": ours(options.size),
        "PixelMaker + sums": with_sums(ours(options.size)),
        "decode + INTER_AREA": crop_and_resize(cv2.INTER_AREA),
        "decode + INTER_LINEAR": crop_and_resize(cv2.INTER_LINEAR),
    }
    versions = " ".join(f"{name} {version}" for name, version in decoder_versions().items())
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    loops = "compiled" if native.COMPILED else "in NumPy: packer was installed without a compiler"
    print(f"{versions} numpy {np.__version__}; loops {loops}")
    print(f"{len(files)} photos from {source} to {options.size} px; {options.rounds} rounds, 1 warm-up")

    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)
    speeds = {threads: measure(ways, files, options.size, options.rounds, threads) for threads in (1, 2)}
    cv2.setNumThreads(previous)
    print(f"\n{'':22}{'1 thread':>18}{'2 threads':>18}{'PSNR mean':>14}{'5 %':>8}{'worst':>8}")
    targets = [reference(data, options.size) for data in files[:100]]
    for name, way in ways.items():
        row = f"{name:22}" + "".join(
            f"{rate:9,.0f}/s x{share:.2f}" + " " * 2
            for rate, share in (speeds[threads][name] for threads in (1, 2))
        )
        if way is not bare:
            scratch, out = Scratch(), np.empty((options.size, options.size, 3), np.uint8)
            values = []
            for data, target in zip(files, targets, strict=False):
                way(data, scratch, out)
                values.append(psnr(out, target))
            row += f"{np.mean(values):11.1f} dB{np.percentile(values, 5):8.1f}{min(values):8.1f}"
        print(row)
    return 0


def measure(
    ways: dict[str, Way], files: list[bytes], size: int, rounds: int, threads: int
) -> dict[str, tuple[float, float]]:
    """Time each way in turn. Returns: images/s and share of the bare decode, medians over all turns."""
    # Short turns, so that what else the machine does falls on all ways alike.
    turns = [files[first :: -(-len(files) // TURN)] for first in range(-(-len(files) // TURN))]
    memory = [(Scratch(), np.empty((size, size, 3), np.uint8)) for _ in range(threads)]
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
