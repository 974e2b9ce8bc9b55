"""packer append, merge, split, repack, export: packs made of packs, and the images or the table of a pack."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from packer import units
from packer.cli.console import in_options, json_option, print_json, say
from packer.cli.conversion_output import announce_plan, tell_left_out, tell_notes, tell_skipped
from packer.cli.convert_command import parse_pairs
from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.convert.image_conversion import ConversionPlan, Report


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that all of them have."""
    for option in (
        click.option("--quiet", is_flag=True, help="Print nothing but errors."),
        json_option,
        click.option(
            "--workers", type=int, metavar="N", help="Parallel workers; default: the cores at hand."
        ),
    ):
        command = option(command)
    return command


_overwrite = click.option("--overwrite", is_flag=True, help="Replace the output if it is a pack.")


@click.command()
@click.argument("pack", metavar="PACK")
@click.argument("source", metavar="MORE")
@click.option("--labels", metavar="FILE", help="CSV of files and labels, as for convert.")
@click.option(
    "--pair", "pairs", multiple=True, metavar="NAME=DIR", help="Masks of the new images, as for convert."
)
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
              help="At an input that cannot be packed: stop, or leave it out and list it (exit code 3).")  # fmt: skip
@_common
def append(
    pack: str, source: str, *, pairs: tuple[str, ...], as_json: bool, quiet: bool, **options: Any
) -> None:
    """Convert MORE images with the options of PACK, or map MORE rows of a table as PACK's were, and add them to it.

    PACK is a directory of shards (convert --shard-rows or --shard-size); the new rows become further shards.

    \b
    packer append train/ more-images/
    packer append flights/ december.csv
    """
    if _is_table(pack):
        _append_table(pack, source, pairs=pairs, as_json=as_json, quiet=quiet, **options)
        return
    from packer.convert.repacking import append_images

    said: list[str] = []

    def announce(plan: ConversionPlan) -> None:
        if not (quiet or as_json):
            said.extend(plan.notes)
            announce_plan(source, pack, plan)

    report = append_images(
        pack, source, pairs=parse_pairs(pairs), progress=not quiet, on_plan=announce, **options
    )
    if as_json:
        print_json("append", report.to_dict())
    elif not quiet:
        tell_notes(report.notes, said)
        _tell(report, "added")
    tell_skipped(report.skipped, pack, listed=not as_json)


@click.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True)
@click.option("-o", "--out", required=True, metavar="OUT", help="The pack to make.")
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Mix the rows of all packs.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of the shuffle.")
@_overwrite
@_common
def merge(packs: tuple[str, ...], out: str, *, as_json: bool, quiet: bool, **options: Any) -> None:
    """Put packs with equal fields together into one.

    \b
    packer merge cats.h5 dogs.h5 -o animals.h5
    """
    from packer.convert.repacking import merge_packs

    report = merge_packs(packs, out, progress=not quiet, **options)
    if as_json:
        print_json("merge", report.to_dict())
    elif not quiet:
        _tell(report, "packed")


@click.command()
@click.argument("pack", metavar="PACK")
@click.argument("shares", metavar="NAME=SHARE,...")
@click.option("-o", "--out", metavar="DIR", help="Folder of the new packs; default: beside PACK.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of the draw.")
@_overwrite
@_common
def split(pack: str, shares: str, *, as_json: bool, quiet: bool, **options: Any) -> None:
    """Deal the rows of PACK out to new packs, each with equal shares of each class.

    The new packs are called like PACK, with the split's name: photos.train.h5 and photos.val.h5.

    \b
    packer split photos.h5 train=0.9,val=0.1
    """
    from packer.convert.repacking import split_pack

    reports = split_pack(pack, shares, progress=not quiet, **options)
    if as_json:
        print_json("split", {"packs": {name: report.to_dict() for name, report in reports.items()}})
    elif not quiet:
        for report in reports.values():
            _tell(report, "packed", f" -> {report.out}")


@click.command()
@click.argument("pack", metavar="PACK")
@click.argument("out", metavar="OUT")
@click.option("--size", metavar="N|HxW", help="Smaller images: side, or height x width; powers of two.")
@click.option("--any-size", is_flag=True, help="Allow sizes that are not powers of two.")
@click.option("--fit", type=click.Choice(["crop", "pad", "stretch"]), default="crop", show_default=True,
              help="How images of another shape are brought to --size.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["h5", "npy"]), help="As for convert.")
@click.option("--store", type=click.Choice(["raw", "jpeg"]), help="As for convert; default: as PACK has it.")
@click.option("--quality", type=int, metavar="N", help="Of JPEG rows; default: as PACK has it.")
@click.option("--compress", metavar="NAME", help="As for convert; default: as PACK has it.")
@click.option("--shard-rows", type=int, metavar="N", help="Begin another file every N rows.")
@click.option("--shard-size", metavar="SIZE", help="Begin another file about every SIZE, for example 2GB.")
@click.option(
    "--shuffle/--no-shuffle", default=False, show_default=True, help="Mix the rows, or those of each split."
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of the shuffle.")
@click.option(
    "--resume", is_flag=True, help="Go on only with an interrupted run of the same pack and options."
)
@_overwrite
@_common
def repack(pack: str, out: str, *, format_: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Write PACK anew: smaller, stored another way, in another format or number of files. Rows keep their order, but for --shuffle.

    \b
    packer repack train.h5 train-128.h5 --size 128
    packer repack train.h5 train/ --shard-size 2GB
    packer repack train.h5 small.h5 --store jpeg
    """
    from packer.convert.repacking import repack as run

    report = run(pack, out, format=format_, progress=not quiet, **options)
    if as_json:
        print_json("repack", report.to_dict())
    elif not quiet:
        _tell(report, "packed")


@click.command()
@click.argument("pack", metavar="PACK")
@click.argument("folder", metavar="OUT")
@click.option("--as", "format_", type=click.Choice(["png", "jpeg"]),
              help="png (default): exactly the pixels; jpeg: smaller, or the stored files if rows are JPEG.")  # fmt: skip
@click.option("--quality", type=int, metavar="N", help="Of JPEG files; default 95.")
@click.option("--split", metavar="NAME", help="Only the rows of one split.")
@_common
def export(
    pack: str,
    folder: str,
    *,
    format_: str | None,
    quality: int | None,
    split: str | None,
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the rows of PACK as image files in the folder OUT, or of a table as OUT.csv, .tsv or .parquet.

    Images lie in class folders, with masks, labels and boxes beside them.

    \b
    packer export train.h5 images/
    packer export flights.h5 flights.csv --split val
    """
    if _is_table(pack):
        for option, given in (("--as", format_), ("--quality", quality), ("--workers", workers)):
            if given is not None:
                raise UsageError(
                    f"{option} {given}: is about images; {pack} was made of a table. Leave it out."
                )
        _export_table(pack, folder, split=split, as_json=as_json, quiet=quiet)
        return
    from packer.convert.export import export_images

    report = export_images(
        pack,
        folder,
        format=format_ or "png",
        quality=95 if quality is None else quality,
        split=split,
        workers=workers,
        progress=not quiet,
    )
    if as_json:
        record = {"out": folder, "files": report.files, "nbytes": report.nbytes, "seconds": report.seconds}
        record |= {"notes": [in_options(note) for note in report.notes], "convert_command": report.command}
        print_json("export", record)
    elif not quiet:
        tell_notes(report.notes)
        say(
            f"wrote {units.count(report.files, 'file')}, {units.size(report.nbytes)}, in {units.duration(report.seconds)}"
        )
        say(f"to bring the pack back: {report.command}")


def _append_table(
    pack: str,
    source: str,
    *,
    pairs: tuple[str, ...],
    labels: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    for option, given in (("--labels", labels), ("--pair", pairs)):
        if given:
            raise UsageError(f"{option}: is about images; {pack} was made of a table. Leave it out.")
    from packer.tables.table_conversion import append_table

    report = append_table(pack, source, progress=not quiet, **options)
    if as_json:
        print_json("append", report.to_dict())
    elif not quiet:
        tell_notes(report.notes)
        say(
            f"added {units.count(report.rows, 'row')}, {units.size(report.bytes_written)},"
            f" in {units.duration(report.seconds)} ({report.rows_per_second:,.0f} rows/s)"
        )
    tell_left_out(report, pack, listed=not as_json)


def _export_table(pack: str, out: str, *, split: str | None, as_json: bool, quiet: bool) -> None:
    from packer.tables.table_export import export_table

    report = export_table(pack, out, split=split, progress=not quiet)
    if as_json:
        print_json("export", report.to_dict())
    elif not quiet:
        say(
            f"wrote {units.count(report.rows, 'row')}, {units.size(report.nbytes)}, in {units.duration(report.seconds)} -> {report.out}"
        )


def _is_table(path: str) -> bool:
    """Return True if a pack was made of a table."""
    from packer.format.pack import open_pack

    return open_pack(path).parts[0].header.table is not None


def _tell(report: Report, verb: str, where: str = "") -> None:
    unit = "row" if _is_table(report.out) else "image"
    if report.already:
        say(f"{report.out}: holds all {units.count(report.rows, unit)} already")
    else:
        say(
            f"{verb} {units.count(report.rows, unit)}{where}, {units.size(report.bytes_written)},"
            f" in {units.duration(report.seconds)} ({report.rows_per_second:,.0f} {unit}s/s)"
        )
