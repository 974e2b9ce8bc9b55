"""packer bench: a pack against the images, or the table, it was made of."""

from __future__ import annotations

import os
from typing import Any

import click

from packer.cli.console import in_options, json_text, say_lines
from packer.cli.options import PATH, QUIET, option, options
from packer.errors import MissingDependencyError, PackerError, UsageError
from packer.progress import Status


@click.command()
@click.argument("source", metavar="SRC...", nargs=-1, required=True, type=PATH)
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("--batch-size", "N", "Rows a batch; default: 256, of tables 1,024."),
    option("--rounds", "N", "Measurements of each way; medians are shown.", 3),
    option("--seconds", "S", "Length of each measurement.", 1.0),
    option("--workers", "N,N", "DataLoader workers to try; default: 0, 1, 2, 4 ... the cores."),
    option("--cold/--no-cold", None, "Images: measure with an empty page cache too.", True),
    option("--script", "'CMD'", "Measure the loop of your training script too: 'train.py --epochs 9'."),
    option("--model-rate", "RATE", "Rows/s that your model takes, instead of --script.", type=float),
    option("--json json_file", "FILE", "Write all figures there as one JSON object; - for stdout."),
    option("--plot", "FILE", "Draw the rates as bars there: .png, .svg or .pdf."),
    QUIET,
)
def bench(
    source: tuple[str, ...],
    pack: str,
    *,
    workers: str | None,
    json_file: str | None,
    plot: str | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Compare a pack with reading its images, or with loading its table, and both with the machine's limit.

    SRC is what PACK was converted from.

    \b
    packer bench images/ train.h5
    packer bench images/ train.h5 --json bench.json
    packer bench images/ train.h5 --script 'train.py --epochs 9' --plot bench.png
    packer bench flights.csv flights.h5
    """
    try:
        from packer.bench import bench_report as pictures
        from packer.bench.bench import bench as measure
    except ImportError:
        raise MissingDependencyError("torch", "packer bench") from None

    try:
        counts = [int(n) for n in workers.split(",")] if workers else None
    except ValueError:
        raise UsageError(
            f"--workers {workers}: is no list of whole numbers. Pass for example 0,2,4."
        ) from None
    if json_file not in (None, "-"):
        _check_file(json_file, (".json",))
    if plot is not None:
        _check_file(plot, pictures.PICTURES)
        pictures.check_matplotlib()
    with Status(not quiet) as status:
        report = measure(
            source[0] if len(source) == 1 else source, pack, workers=counts, progress=status.say, **given
        )
    if json_file == "-":
        say_lines(json_text("bench", report.to_dict()))
    elif json_file:
        _write(json_file, json_text("bench", report.to_dict()) + "\n")
    if plot:
        pictures.draw(report, plot)
    if json_file != "-" and not quiet:
        say_lines(in_options(report.table()))


def _check_file(path: str, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, or would take the place of something else, before anything is measured."""
    if not path.lower().endswith(endings) or os.path.isdir(path):
        raise UsageError(f"{path}: must be a file that ends in {' or '.join(endings)}. Pass another name.")
    if not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise UsageError(f"{path}: its folder {folder} does not exist. Make it, or pass another name.")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise PackerError(f"{path}: cannot be written ({error.strerror}). Pass another name.") from error
