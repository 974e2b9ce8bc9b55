"""Draw the bar chart of the README, docs/loading.svg, from the figures in benchmarks/results.

    python tools/draw_loading.py

Each bar is a loader's images a second as a share of packer's, the median of the ratios of the same round; loaders of both files
were measured beside packer's `rows` order, which is a full permutation.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
OUT = ROOT / "docs/loading.svg"

OURS = "packer h5 rows"
# File, lane -> what the chart calls it.
LANES = {
    ("loaders-2-cores.json", "ffcv raw"): "FFCV, raw",
    ("loaders-peers-2-cores.json", "npy mm[idx]"): "NumPy memmap",
    ("loaders-peers-2-cores.json", "grain over npy"): "Grain over NumPy",
    ("loaders-peers-2-cores.json", "datasets arrow"): "Hugging Face datasets",
    ("loaders-peers-2-cores.json", "tensordict memmap"): "TensorDict memmap",
    ("loaders-peers-2-cores.json", "mosaicml MDS"): "MosaicML Streaming",
    ("loaders-peers-2-cores.json", "h5py items"): "h5py item by item, DataLoader",
    ("loaders-peers-2-cores.json", "webdataset npy"): "WebDataset",
    ("loaders-peers-2-cores.json", "litdata"): "LitData",
    ("loaders-peers-2-cores.json", "folder, DataLoader"): "folder of JPEGs, DataLoader",
}

WIDTH, LEFT, ROW, TOP = 760, 250, 26, 44
FULL = WIDTH - LEFT - 150  # pixels of a bar of 1.0
TITLE = "Shuffled images a second (256 px, in memory, 2 cores), packer = 1"
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="14"'


class Bar(NamedTuple):
    """name: of a loader; share: of packer's images a second."""

    name: str
    share: float


def bars(results: Path = RESULTS) -> list[Bar]:
    """Return the bars, the longest first."""
    lanes: dict[str, dict[str, Any]] = {
        file: json.loads((results / file).read_text())["lanes"] for file, _ in LANES
    }
    found = [
        Bar(
            name,
            median(run["images"] / run["seconds"] / run["beside"][OURS] for run in lanes[file][lane]["runs"]),
        )
        for (file, lane), name in LANES.items()
    ]
    return [Bar("packer", 1.0), *sorted(found, key=lambda bar: -bar.share)]


def draw(found: list[Bar]) -> str:
    """Return the chart as SVG."""
    height = TOP + ROW * len(found) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" fill="#222222" font-weight="bold">{TITLE}</text>',
    ]
    for number, (name, share) in enumerate(found):
        top, ours, long = TOP + ROW * number, name == "packer", f"{max(2.0, share * FULL):.0f}"
        colour = "#d9480f" if ours else "#8d99ae"
        text = "" if ours else f"1 / {1 / share:.2g}"
        lines += [
            f'<text x="{LEFT - 10}" y="{top + 15}" text-anchor="end" fill="#222222">{name}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{long}" height="{ROW - 6}" fill="{colour}"/>',
            f'<text x="{LEFT + 8 + int(long)}" y="{top + 15}" fill="#222222">{text}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    OUT.write_text(draw(bars()))
    print(f"{OUT.relative_to(ROOT)}: drawn")
