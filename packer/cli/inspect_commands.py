"""packer info, report, bench and doctor: inspect a pack, measure its speed, examine this machine."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from packer.cli.console import Output, cli, json_text, say_lines
from packer.cli.option_words import in_options
from packer.cli.options import JSON, OUTPUT, PATH, option, options
from packer.errors import UsageError
from packer.pytorch import import_torch

if TYPE_CHECKING:
    from packer.packs.pack import Pack


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@JSON
def info(pack: str, *, output: Output) -> None:
    """Print the contents of a pack: rows, fields, classes, splits, sizes, options.

    \b
    packer info train.h5
    packer info train.h5 --json | jq .statistics
    """
    from packer.packs.pack_opening import open_pack

    opened = open_pack(pack)
    record = json.loads(opened.header.to_bytes()) | {"path": pack, "bytes": opened.nbytes}
    output.tell(record, *opened.describe(_columns(opened)))


@cli.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@options(
    option("-o --out", "FILE", "Output page, .html.", "report.html"),
    option("--rows", "N", "Most rows on the contact sheet; spread evenly over the classes.", 200),
    option("--workers", "N", "Threads that read and decode; default: the available cores."),
    option("--overwrite", None, "Replace FILE if it is an earlier report."),
    OUTPUT,
)
def report(packs: tuple[str, ...], out: str, *, output: Output, **given: Any) -> None:
    """Write a data card of one or several packs: one HTML page without scripts or external files.

    It shows classes, a contact sheet, sizes, skipped inputs, and equal or nearly equal rows that are in
    several splits or packs or have different labels. Tables: the columns.

    \b
    packer report train.h5 -o train.html
    packer report train.h5 test.h5 -o both.html
    """
    from packer.reports.data_card import report as run

    card = run(packs, out, progress=not output.quiet, **given)
    output.tell(card._asdict(), str(card))


@cli.command()
@click.argument("source", metavar="SRC...", nargs=-1, required=True, type=PATH)
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("--batch-size", "N", "Rows per batch; default: 256, tables 1,024; at most a quarter of the pack."),
    option("--rounds", "N", "Measurements of each loader; the table shows medians.", 3),
    option("--seconds", "S", "Duration of each measurement in seconds.", 1.0),
    option("--workers", "N,N", "DataLoader worker counts to try; default: 0, 1, 2, 4 ... up to the cores."),
    option("--cold/--no-cold", None, "Images: also measure with an empty page cache.", True),
    option("--model-rate", "RATE", "Rows/s that your model trains when it never waits.", type=float),
    option("--json json_file", "FILE", "Write all figures to FILE as one JSON object; - for stdout."),
    option("--plot", "FILE", "Write a bar chart of the rates to FILE: .png, .svg or .pdf."),
    "--quiet",
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
    """Compare loading a pack with loading its source files, and both with the machine's limit.

    SRC is the input that PACK was converted from.

    \b
    packer bench images/ train.h5
    packer bench images/ train.h5 --json bench.json
    packer bench images/ train.h5 --model-rate 1200 --plot bench.png
    packer bench flights.csv flights.h5
    """
    import_torch("packer bench")
    from packer.bench import bench_report as pictures
    from packer.bench.bench import bench as measure
    from packer.format.file_io import write_file

    try:
        counts = [int(n) for n in workers.split(",")] if workers else None
    except ValueError:
        raise UsageError(f"--workers {workers}: is not a list of integers. Pass for example 0,2,4.") from None
    if json_file not in (None, "-"):
        _check_file(json_file, (".json",))
    if plot is not None:
        _check_file(plot, pictures.PICTURES)
        pictures.check_matplotlib()
    report = measure(
        source[0] if len(source) == 1 else source, pack, workers=counts, progress=not quiet, **given
    )
    if json_file == "-":
        say_lines(json_text("bench", report.to_dict()))
    elif json_file:
        write_file(json_file, f"{json_text('bench', report.to_dict())}\n".encode())
    if plot:
        pictures.draw(report, plot)
    if json_file != "-" and not quiet:
        say_lines(in_options(report.table()))


@cli.command()
@click.argument("folder", metavar="[FOLDER]", type=PATH, default=".")
@option("--gpu", None, "Check and measure loading and augmenting on the GPU instead: a minute.")
@JSON
def doctor(folder: str, *, gpu: bool, output: Output) -> None:
    """Examine this machine: versions, cores, memory, disk, GPU; list what slows loading down, with remedies.

    FOLDER holds your data; default: the current folder. With --gpu, the exit code is 1 if a check fails.

    \b
    packer doctor /data
    packer doctor --json | jq .traps
    packer doctor --gpu
    """
    from packer.doctor.examination import examine

    if not gpu:
        examination = examine(folder)
        output.tell(examination.to_dict(), *str(examination).split("\n"))
        return
    import_torch("--gpu")
    from packer.doctor.gpu_checks import examine_gpu

    checked = examine_gpu()
    output.tell(checked.to_dict(), *str(checked).split("\n"))
    if not checked.passed:
        raise click.exceptions.Exit(1)


def _columns(pack: Pack) -> list[str]:
    """Return lines that describe the columns of a table, from the pack's header; [] for other packs."""
    table = pack.header.table
    if table is None:
        return []
    from packer.tables.transform.table_summary import describe, measured_on

    measured = measured_on(table, pack.rows)
    note = f"measured   {measured}: ranges and shares of the columns are theirs"
    return [*describe(table), *([note] if measured else [])]


def _check_file(path: str, endings: tuple[str, ...]) -> None:
    """Raise UsageError for a path that cannot be an output file, before the measurements begin."""
    if not path.lower().endswith(endings) or os.path.isdir(path):
        raise UsageError(f"{path}: must be a file that ends in {' or '.join(endings)}. Pass another name.")
    if not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise UsageError(f"{path}: its folder {folder} does not exist. Create it, or pass another name.")
