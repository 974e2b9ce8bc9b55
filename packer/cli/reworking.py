"""packer append, merge, split, repack, export: packs made of packs, and the images of a pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from packer import units
from packer.cli.console import print_json, say
from packer.cli.conversion_output import announce_plan, tell_cleared, tell_left_out, tell_notes, tell_skipped
from packer.cli.convert_command import parse_pairs
from packer.cli.options import (
    COMPRESS,
    DUPLICATES,
    FIT,
    FORMAT,
    ON_ERROR,
    OVERWRITE,
    PATH,
    REWORKING,
    SHARD_SIZE,
    SPLIT,
    STORE,
    Word,
    merge_values,
    option,
    options,
)
from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.convert.conversion_run import Report
    from packer.convert.image_conversion import ConversionPlan
    from packer.tables.table_conversion import TableReport


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("source", metavar="MORE", type=PATH)
@options(
    option("--labels", "FILE", "CSV of files and labels, as for convert."),
    option("--pair pairs", "NAME=DIR", "Masks of the new images, as for convert.", multiple=True),
    DUPLICATES,
    ON_ERROR,
    REWORKING,
)
def append(
    pack: str,
    source: str,
    *,
    labels: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Convert MORE images with the options of PACK, or map MORE rows of a table as PACK's were, and add them to it.

    PACK is a directory of shards (convert --shard-rows or --shard-size); the new rows become further shards.

    \b
    packer append train/ more-images/
    packer append flights/ december.csv
    """
    said: list[str] = []
    if _is_table(pack):
        for name, value in (("--labels", labels), ("--pair", pairs)):
            if value:
                raise UsageError(f"{name}: is about images; {pack} was made of a table. Leave it out.")
        from packer.tables.table_conversion import append_table

        report = append_table(pack, source, progress=not quiet, **given)
        _tell("append", report, said, as_json=as_json, quiet=quiet)
        tell_left_out(report, pack, listed=not as_json)
        return
    from packer.convert.repacking import append_images

    def announce(plan: ConversionPlan) -> None:
        if not (quiet or as_json):
            said.extend(plan.notes)
            announce_plan(source, pack, plan)

    given |= {"labels": labels, "pairs": parse_pairs(pairs)}
    appended = append_images(pack, source, progress=not quiet, on_plan=announce, **given)
    _tell("append", appended, said, as_json=as_json, quiet=quiet)
    tell_skipped(appended.skipped, pack, listed=not as_json)


@click.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@click.pass_context
@options(
    option("-o --out", "OUT", "The pack to make."),
    option(
        "--index",
        None,
        "List the shards that convert --only-shards has made of one PACK, and give it its name.",
    ),
    DUPLICATES,
    option("--shuffle/--no-shuffle", None, "Mix the rows of all packs.", True),
    option("--seed", "N", "Of the shuffle.", 0),
    OVERWRITE,
    REWORKING,
)
def merge(
    context: click.Context,
    packs: tuple[str, ...],
    out: str | None,
    *,
    index: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Put packs with equal fields together into one; or, with --index, list the shards of one that several machines have made.

    \b
    packer merge cats.h5 dogs.h5 -o animals.h5
    packer merge --index train/
    """
    from packer.convert.repacking import merge_packs, merge_shards

    if index:
        if len(packs) != 1 or out is not None:
            raise UsageError("--index: is about one PACK, and needs no -o. Leave the others out.")
        for name in ("duplicates", "shuffle", "seed", "workers"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise UsageError(
                    f"--{name}: is of the packs that are merged; --index lists shards as they are. Leave it out."
                )
        listed = merge_shards(packs[0], overwrite=given["overwrite"])
        _tell("merge", listed, as_json=as_json, quiet=quiet)
        tell_skipped(listed.skipped, packs[0], listed=not as_json)
        return
    if out is None:
        raise UsageError("-o: is missing. Pass the pack to make.")
    report = merge_packs(packs, out, progress=not quiet, **given)
    _tell("merge", report, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("shares", metavar="NAME=SHARE,...", type=Word())
@options(
    option("-o --out", "DIR", "Folder of the new packs; default: beside PACK."),
    option("--seed", "N", "Of the draw.", 0),
    OVERWRITE,
    REWORKING,
)
def split(pack: str, shares: str, *, as_json: bool, quiet: bool, **given: Any) -> None:
    """Deal the rows of PACK out to new packs, each with equal shares of each class.

    The new packs are called like PACK, with the split's name: photos.train.h5 and photos.val.h5.

    \b
    packer split photos.h5 train=0.9,val=0.1
    """
    from packer.convert.repacking import split_pack

    reports = split_pack(pack, shares, progress=not quiet, **given)
    if as_json:
        print_json("split", {"packs": {name: report.to_dict() for name, report in reports.items()}})
    elif not quiet:
        for report in reports.values():
            tell_cleared(report)
            _tell_rows("packed", report, f" -> {report.out}")


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option(
        "--size",
        "N|HxW|max=N|min=N",
        "Smaller images: side, or height x width. Whole pictures: their longest or shortest side.",
    ),
    option("--fit", FIT, "How images of another shape are brought to --size.", "crop"),
    option("--format", FORMAT, "As for convert."),
    option("--store", STORE, "As for convert; default: as PACK has it."),
    option("--quality", "N", "Of JPEG rows; default: as PACK has it."),
    option("--compress", COMPRESS, "As for convert; default: as PACK has it."),
    option("--shard-rows", "N", "Begin another file every N rows."),
    SHARD_SIZE,
    option("--shuffle/--no-shuffle", None, "Mix the rows, or those of each split.", False),
    option("--seed", "N", "Of the shuffle.", 0),
    option("--resume", None, "Go on only with an interrupted run of the same pack and options."),
    OVERWRITE,
    REWORKING,
)
def repack(pack: str, out: str, *, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write PACK anew: smaller, stored another way, in another format or number of files. Rows keep their order, but for --shuffle.

    \b
    packer repack train.h5 train-128.h5 --size 128
    packer repack train.h5 train/ --shard-size 2GB
    packer repack train.h5 small.h5 --store jpeg
    """
    from packer.convert.repacking import repack as run

    report = run(pack, out, progress=not quiet, **merge_values(given))
    _tell("repack", report, as_json=as_json, quiet=quiet)


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option(
        "--as encoding",
        ("png", "jpeg"),
        "png: exactly the pixels; jpeg: smaller, or the stored files if rows are JPEG.",
        "png",
    ),
    option("--quality", "N", "Of JPEG files.", 95),
    SPLIT,
    REWORKING,
)
def export(pack: str, out: str, *, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write the rows of PACK as image files in the folder OUT.

    Images lie in class folders, with masks, labels and boxes beside them.

    \b
    packer export train.h5 images/
    packer export train.h5 photos/ --as jpeg --split val
    """
    from packer.convert.export import export_images

    report = export_images(pack, out, progress=not quiet, **given)
    if as_json:
        record = {"out": out, "files": report.files, "nbytes": report.nbytes, "seconds": report.seconds}
        print_json("export", record | {"notes": list(report.notes)})
    elif not quiet:
        tell_notes(report.notes)
        files, took = units.count(report.files, "file"), units.duration(report.seconds)
        say(f"wrote {files}, {units.size(report.nbytes)}, in {took}")


def _is_table(path: str) -> bool:
    """Return True if a pack was made of a table."""
    from packer.format.pack import open_pack

    return open_pack(path).parts[0].header.table is not None


def _tell(
    command: str, report: Report | TableReport, said: Sequence[str] = (), *, as_json: bool, quiet: bool
) -> None:
    """Print what a command did. said: of append, the notes that were printed before."""
    if as_json:
        print_json(command, report.to_dict())
    elif not quiet:
        tell_cleared(report)
        tell_notes(report.notes, said)
        _tell_rows("added" if command == "append" else "packed", report)


def _tell_rows(verb: str, report: Report | TableReport, where: str = "") -> None:
    from packer.format.pack import open_pack

    unit = "image" if any(f.name == "image" for f in open_pack(report.out).fields) else "row"
    if report.already:
        say(f"{report.out}: holds all {units.count(report.rows, unit)} already")
    else:
        say(
            f"{verb} {units.count(report.rows, unit)}{where}, {units.size(report.bytes_written)},"
            f" in {units.duration(report.seconds)} ({report.rows_per_second:,.0f} {unit}s/s)"
        )
