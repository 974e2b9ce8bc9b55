"""Draw the bar charts of the documentation, docs/charts/*.svg, from the figures in benchmarks/results.

    python tools/draw_results.py

Each bar is a median of rounds. Text is a grey that is legible on white and black, since pages are either. A
chart is narrow enough for a phone.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
OUT = ROOT / "docs/charts"

OURS = "packer h5 rows"
# File, lane -> its name in the chart. The reference is packer's `rows` order, a full permutation.
LOADERS = {
    ("loaders-2-cores.json", "ffcv raw"): "FFCV, raw",
    ("loaders-2-cores.json", "npy mm[idx]"): "NumPy memmap",
    ("loaders-2-cores.json", "grain over npy"): "Grain over NumPy",
    ("loaders-2-cores.json", "spdl over npy"): "SPDL over NumPy",
    ("loaders-2-cores.json", "lance, lists of rows"): "Lance",
    ("loaders-2-cores.json", "datasets arrow"): "Hugging Face datasets",
    ("loaders-2-cores.json", "tensordict memmap"): "TensorDict memmap",
    ("loaders-peers-2-cores.json", "mosaicml MDS"): "MosaicML Streaming",
    ("loaders-peers-2-cores.json", "h5py items"): "h5py item by item, DataLoader",
    ("loaders-peers-2-cores.json", "webdataset npy"): "WebDataset",
    ("loaders-peers-2-cores.json", "litdata"): "LitData",
    ("loaders-peers-2-cores.json", "folder, DataLoader"): "folder of JPEGs, DataLoader",
}
WHOLE = {
    "packer": "packer",
    "ffcv": "FFCV",
    "SPDL": "SPDL",
    "Lance": "Lance, DataLoader",
    "DataLoader": "folder, DataLoader",
}
# File, its lanes and their names in the chart; packer's first.
COMPLAINTS = (
    (
        "hdf5-windows-2-cores.json",
        {
            "packer, raw, shuffled": "packer, windows of frames",
            "Lance, shuffled": "Lance",
            "h5py, shuffled": "h5py, as they used it",
        },
    ),
    (
        "hdf5-tiny-images-2-cores.json",
        {
            "packer, two": "packer, images of 64 px",
            "LMDB, two": "LMDB",
            "folder, two": "folder",
            "h5py, two": "h5py, as they used it",
        },
    ),
    (
        "hdf5-tensors-2-cores.json",
        {
            "packer, batches": "packer, images in memory",
            "TensorDataset, batches": "TensorDataset",
            "h5py, batches": "h5py",
            "datasets, Array3D, batches": "Hugging Face datasets",
        },
    ),
)
HEADROOM = {
    ("small", "packer"): "packer, small network",
    ("small", "folder"): "folder, small network",
    ("large", "packer"): "packer, large network",
    ("large", "folder"): "folder, large network",
}
PARSERS = {
    "packer": "packer, to a shuffled pack",
    "polars": "polars, parsing alone",
    "pandas": "pandas, parsing alone",
    "pyarrow": "pyarrow, parsing alone",
    "duckdb": "duckdb, parsing alone",
}
TABLES = {
    "packer rows": "packer, rows",
    "packer slices": "packer, slices",
    "index_select shuffled": "index_select, all in memory",
    "slices shuffled": "slices of a copied permutation",
    "DataLoader batches shuffled": "DataLoader, BatchSampler",
    "DataLoader shuffled": "DataLoader",
}

# Text fits in DejaVu Sans, too, which browsers take where there is no Helvetica: it is a fifth wider.
WIDTH, LEFT, ROW = 480, 216, 24
FULL = WIDTH - LEFT - 126  # pixels of the longest bar
LETTERS = 52  # in a line of the title
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#757d88"'
COLOURS = {"packer": "#d9480f", "limit": "#c3cad3"}
OTHERS = "#8d99ae"


class Bar(NamedTuple):
    """name: the measured thing; value: its length; text: the figure beside the bar."""

    name: str
    value: float
    text: str


class Chart(NamedTuple):
    """title: over the bars; bars: in this order."""

    title: str
    bars: list[Bar]


def figures(file: str) -> Any:
    """Return the record of a benchmark."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def by_value(bars: Iterable[Bar], *, least_first: bool = False) -> list[Bar]:
    """Return packer's bar, then the others, best first."""
    return sorted(
        bars, key=lambda bar: (not bar.name.startswith("packer"), bar.value if least_first else -bar.value)
    )


def loading() -> Chart:
    """Return the chart of loaders, as shares of packer's rate: medians of ratios within rounds."""
    lanes = {file: figures(file)["lanes"] for file, _ in LOADERS}
    ours = median(run["images"] / run["seconds"] for run in lanes["loaders-2-cores.json"][OURS]["runs"])
    bars = [Bar("packer", 1.0, f"{ours:,.0f} images/s")]
    for (file, lane), name in LOADERS.items():
        share = median(
            run["images"] / run["seconds"] / run["beside"][OURS] for run in lanes[file][lane]["runs"]
        )
        bars.append(Bar(name, share, f"1 / {1 / share:.2g}"))
    return Chart("Shuffled images a second (256 px, in memory, 2 cores), packer = 1", by_value(bars))


def whole_pictures() -> Chart:
    """Return the chart of whole JPEG photos, cut by RandomResizedCrop(224), flipped and normalized."""
    record = figures("whole-pictures-2-cores.json")
    rates = {name: median(record["images/s"][lane]) for lane, name in WHOLE.items()}
    bars = [Bar(name, rate, f"{rate:,.0f}") for name, rate in rates.items()]
    beside = record["limit"]["images/s"]  # a run of its own
    faster = median(a / b for a, b in zip(beside["packer"], beside["decode"], strict=True))
    bars.append(Bar("limit: decoding alone", rates["packer"] / faster, f"packer / {faster:.3g}"))
    return Chart("RandomResizedCrop(224) of whole JPEG photos, images/s, 2 cores", by_value(bars))


def hdf5() -> Chart:
    """Return the chart of three complaints about HDF5, as shares of packer's rate (paired medians)."""
    bars = []
    for file, names in COMPLAINTS:
        lanes = figures(file)["lanes"]
        rates = {
            name: [run["samples"] / run["seconds"] for run in lanes[lane]["runs"]]
            for lane, name in names.items()
        }
        ours = next(iter(rates.values()))
        for name, own in rates.items():
            share = median(a / b for a, b in zip(own, ours, strict=True))
            bars.append(Bar(name, share, "" if own is ours else f"1 / {1 / share:.2g}"))
    return Chart("Three complaints, shuffled, in memory, 2 cores; packer = 1", bars)


def headroom() -> Chart:
    """Return rates of training as shares of those with batches in memory; medians of paired ratios."""
    networks = figures("headroom-2-cores.json")["networks"]
    rates = {
        (network, lane): [run["rows"] / (sum(run["waits"]) + sum(run["steps"])) for run in runs]
        for network, lanes in networks.items()
        for lane, runs in lanes.items()
    }
    bars = []
    for (network, lane), name in HEADROOM.items():
        own, limits = rates[network, lane], rates[network, "replay"]
        share = median(rate / limit for rate, limit in zip(own, limits, strict=True))
        bars.append(Bar(name, share, f"{median(own):,.0f} of {median(limits):,.0f}/s"))
    return Chart(
        "Training: share of the rate with batches in memory",
        [*bars, Bar("limit: batches in memory", 1.0, "")],
    )


def parsing() -> Chart:
    """Return the chart of parsers of a CSV file."""
    lanes = figures("tables-2-cores.json")["1m"]["lanes"]
    bars = [
        Bar(name, lanes[lane]["seconds"], f"{lanes[lane]['seconds']:.2f} s") for lane, name in PARSERS.items()
    ]
    return Chart(
        "Seconds for a million rows of CSV, 29 numbers (731 MB), 2 cores", by_value(bars, least_first=True)
    )


def tables() -> Chart:
    """Return the chart of loaders of a table."""
    rates = figures("tables-loading-2-cores.json")["batches"]["1024"]["rates"]
    values = {name: median(rates[lane]) / 1e6 for lane, name in TABLES.items()}
    return Chart(
        "Million shuffled rows a second (28 float32, batches of 1,024), 2 cores",
        by_value(Bar(name, value, f"{value:.3g}") for name, value in values.items()),
    )


def augmenting() -> Chart:
    """Return the chart of libraries that crop, flip and normalize."""
    case = "resized crop, flip, normalize, 256 to 224 px"
    found = [one for one in figures("augment-1-core.json")["results"] if one["case"] == case]
    bars = [Bar(one["subject"], one["images_a_second"], f"{one['images_a_second']:,.0f}") for one in found]
    return Chart(
        "RandomResizedCrop(224), flip, normalize to float32, images/s a core",
        by_value(bar for bar in bars if bar.name != "copy"),
    )


CHARTS: dict[str, Callable[[], Chart]] = {
    "loading.svg": loading,
    "whole-pictures.svg": whole_pictures,
    "augmenting.svg": augmenting,
    "hdf5.svg": hdf5,
    "headroom.svg": headroom,
    "parsing.svg": parsing,
    "tables.svg": tables,
}


def draw(chart: Chart) -> str:
    """Return a chart as SVG."""
    titles = textwrap.wrap(chart.title, LETTERS)
    first = 20 * len(titles) + 14
    height = first + ROW * len(chart.bars)
    longest = max(bar.value for bar in chart.bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" {FONT}>',
    ]
    lines += [
        f'<text x="0" y="{16 + 20 * number}" font-weight="bold">{line}</text>'
        for number, line in enumerate(titles)
    ]
    for number, (name, value, text) in enumerate(chart.bars):
        top, long = first + ROW * number, f"{max(2.0, value / longest * FULL):.0f}"
        colour = next((COLOURS[kind] for kind in COLOURS if name.startswith(kind)), OTHERS)
        lines += [
            f'<text x="{LEFT - 10}" y="{top + 15}" text-anchor="end">{name}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{long}" height="{ROW - 6}" fill="{colour}"/>',
            f'<text x="{LEFT + 8 + int(long)}" y="{top + 15}">{text}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    for name, make in CHARTS.items():
        (OUT / name).write_text(draw(make()), encoding="utf-8")
        print(f"{(OUT / name).relative_to(ROOT)}: drawn")
