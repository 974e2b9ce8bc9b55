"""packer info, preview, report, bench and doctor: what a pack holds, how fast it is, and what this machine offers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from packer import units
from packer.cli.console import Output, cli, in_options, json_text, say, say_lines
from packer.cli.options import OUTPUT, PATH, option, options
from packer.errors import MissingDependencyError, UsageError
from packer.progress import Progress

if TYPE_CHECKING:
    from packer.format.pack import Pack


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@options("--json")
def info(pack: str, *, as_json: bool) -> None:
    """Show what a pack holds.

    \b
    packer info train.h5
    packer info train.h5 --json | jq .statistics
    """
    from packer.format.pack_opening import open_pack

    opened = open_pack(pack)
    if as_json:
        record = json.loads(opened.header.to_bytes()) | {"path": pack, "bytes": opened.nbytes}
        say_lines(json_text("info", record))
        return
    for line in opened.describe(_columns(opened)):
        say(line)


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("-o --out", "FILE", "The sheet, .png or .jpg.", "preview.png"),
    option("--augment", "TEXT",
           "Transforms of packer.augment; Normalize() means the pack's mean and std. Default: images as stored."),
    option("--rows", "N", "Images on the sheet, at most.", 64),
    option("--columns", "N", "Images side by side; default: so that it is about square."),
    option("--repeat", "K", "Show each image as K epochs draw it.", 1),
    option("--seed", "N", "Of the draws, and of the order.", 0),
    option("--epoch", "N", "Whose draws, the first of --repeat.", 0),
    option("--order", "NAME", "Which rows: the first that this order of the loader gives.", "sequential"),
    "--split",
    option("--overwrite", None, "Replace FILE even if it is no earlier sheet."),
    OUTPUT,
)  # fmt: skip
def preview(pack: str, out: str, *, output: Output, **given: Any) -> None:
    """Draw a contact sheet of one batch, as the network will see it.

    Labels stand under the images; masks, boxes and keypoints are drawn over them.

    \b
    packer preview train.h5 -o sheet.png
    packer preview train.h5 --augment "RandomResizedCrop(224), RandomHorizontalFlip(), Normalize()"
    packer preview train.h5 --augment "RandomCrop(224), ColorJitter(0.4, 0.4, 0.4)" --rows 8 --repeat 6
    """
    from packer.previews.contact_sheet import preview as run

    made = run(pack, out, **given)
    times = f" as {made.repeat} epochs draw them" if made.repeat > 1 else ""
    over = f" with {', '.join(made.overlaid)}" if made.overlaid else ""
    width, height = made.size
    output.tell(
        made._asdict(),
        f"{made.path}: {units.count(made.rows, 'image')}{over}{times}, {width:,}x{height:,} pixels,"
        f" {units.size(made.nbytes)}; {', '.join((*made.transforms, made.text))}",
    )


@cli.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@options(
    option("-o --out", "FILE", "The page, .html.", "report.html"),
    option("--rows", "N", "Rows on the contact sheet, at most; spread evenly over the classes.", 200),
    option("--workers", "N", "Threads that read and decode; default: the cores at hand."),
    option("--overwrite", None, "Replace FILE if it is an earlier report."),
    OUTPUT,
)
def report(packs: tuple[str, ...], out: str, *, output: Output, **given: Any) -> None:
    """Write the data card of PACK, or of several together: one HTML page that loads nothing and runs no script.

    Classes, a contact sheet, sizes, what was left out; rows that are (nearly) the same, in several splits or packs or with
    different labels. Of tables: the columns.

    \b
    packer report train.h5 -o train.html
    packer report train.h5 test.h5 -o both.html
    """
    from packer.reports.data_card import report as run

    made = run(packs, out, progress=not output.quiet, **given)
    output.tell(made._asdict(), str(made))


@cli.command()
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
        from packer.format.file_io import write_file
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
    with Progress(not quiet) as status:
        report = measure(
            source[0] if len(source) == 1 else source, pack, workers=counts, progress=status.say, **given
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
@options("--json")
def doctor(folder: str, *, as_json: bool) -> None:
    """Look at this machine: versions, cores, memory, disk, GPU, and what is in the way of loading, with its remedy.

    FOLDER is where your data lie, by default the current one.

    \b
    packer doctor /data
    packer doctor --json | jq .traps
    """
    from packer.doctor.examination import examine

    with Progress(not as_json) as status:
        found = examine(folder, progress=status.say)
    say_lines(json_text("doctor", found.to_dict()) if as_json else str(found))


def _columns(pack: Pack) -> list[str]:
    """Return what a pack's header says of the columns of a table."""
    table = pack.header.table
    if table is None:
        return []
    from packer.tables.transform.table_summary import describe, measured_on

    measured = measured_on(table, pack.rows)
    said = f"measured   {measured}: ranges and shares of the columns are theirs"
    return [*describe(table), *([said] if measured else [])]


def _check_file(path: str, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, or would take the place of something else, before anything is measured."""
    if not path.lower().endswith(endings) or os.path.isdir(path):
        raise UsageError(f"{path}: must be a file that ends in {' or '.join(endings)}. Pass another name.")
    if not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise UsageError(f"{path}: its folder {folder} does not exist. Make it, or pass another name.")
