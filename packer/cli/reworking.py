"""packer append, merge, split, repack, export: packs made of packs, and the images of a pack."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from packer import units
from packer.cli.console import COMPRESS, Output
from packer.cli.conversion_output import announce_plan, tell_report, tell_skipped
from packer.cli.options import (
    DUPLICATES,
    FIT,
    FORMAT,
    LABELS,
    ON_ERROR,
    OVERWRITE,
    PAIRS,
    PATH,
    REWORKING,
    SEED,
    SHARDS,
    SHUFFLE,
    SPLIT,
    STORE,
    Word,
    merge_values,
    option,
    options,
)
from packer.errors import UsageError


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("source", metavar="MORE", type=PATH)
@options(
    LABELS,
    PAIRS,
    DUPLICATES,
    ON_ERROR,
    REWORKING,
)
def append(
    pack: str, source: str, *, labels: str | None, pairs: dict[str, str], output: Output, **given: Any
) -> None:
    """Convert MORE images with the options of PACK, or map MORE rows of a table as PACK's were, and add them to it.

    PACK is a directory of shards (convert --shard-rows or --shard-size); the new rows become further shards.

    \b
    packer append train/ more-images/
    packer append flights/ december.csv
    """
    from packer.format.pack import open_pack

    given["progress"] = not output.quiet
    if open_pack(pack).parts[0].header.table is None:
        from packer.convert.repacking import append_images

        announce = partial(announce_plan, output, source, pack)
        report = append_images(pack, source, labels=labels, pairs=pairs, on_plan=announce, **given)
        noun = "image"
    else:
        from packer.tables.table_conversion import append_table

        for name, value in (("--labels", labels), ("--pair", pairs)):
            if value:
                raise UsageError(f"{name}: is about images; {pack} was made of a table. Leave it out.")
        report, noun = append_table(pack, source, **given), "row"
    tell_report(output, report, noun, "added")
    tell_skipped(output, report, pack)


@click.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@click.pass_context
@options(
    option("-o --out", "OUT", "The pack to make."),
    option("--index", None, "List the shards of one PACK that convert --only-shards has made."),
    DUPLICATES,
    SHUFFLE,
    SEED,
    OVERWRITE,
    REWORKING,
)
def merge(
    context: click.Context,
    packs: tuple[str, ...],
    out: str | None,
    *,
    index: bool,
    output: Output,
    **given: Any,
) -> None:
    """Put packs with equal fields together into one; or, with --index, list the shards of one that several machines have made.

    \b
    packer merge cats.h5 dogs.h5 -o animals.h5
    packer merge --index train/
    """
    from packer.convert.repacking import merge_packs, merge_shards

    if index:
        typed = map(context.get_parameter_source, ("out", "duplicates", "shuffle", "seed", "workers"))
        if len(packs) != 1 or ParameterSource.COMMANDLINE in typed:
            raise UsageError(
                "--index: lists the shards of one PACK as they are. Leave other packs and options out."
            )
        report = merge_shards(packs[0], overwrite=given["overwrite"])
        tell_report(output, report, _noun(report.out))
        tell_skipped(output, report, packs[0])
        return
    if out is None:
        raise UsageError("-o: is missing. Pass the pack to make.")
    report = merge_packs(packs, out, progress=not output.quiet, **given)
    tell_report(output, report, _noun(out))


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("shares", metavar="NAME=SHARE,...", type=Word())
@options(
    option("-o --out", "DIR", "Folder of the new packs; default: beside PACK."),
    SEED,
    OVERWRITE,
    REWORKING,
)
def split(pack: str, shares: str, *, output: Output, **given: Any) -> None:
    """Deal the rows of PACK out to new packs, each with equal shares of each class.

    The new packs are called like PACK, with the split's name: photos.train.h5 and photos.val.h5.

    \b
    packer split photos.h5 train=0.9,val=0.1
    """
    from packer.convert.repacking import split_pack

    reports = split_pack(pack, shares, progress=not output.quiet, **given)
    if output.as_json:
        output.tell({"packs": {name: report.to_dict() for name, report in reports.items()}})
        return
    for report in reports.values():
        tell_report(output, report, _noun(report.out), where=f" -> {report.out}")


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option("--size", "N|HxW|max=N|min=N", "Smaller images; as for convert."),
    option("--fit", FIT, "How images of another shape are brought to --size.", "crop"),
    option("--format", FORMAT, "As for convert."),
    option("--store", STORE, "As for convert; default: as PACK has it."),
    option("--quality", "N", "Of JPEG rows; default: as PACK has it."),
    option("--compress", COMPRESS, "As for convert; default: as PACK has it."),
    SHARDS,
    option("--shuffle/--no-shuffle", None, "Mix the rows, or those of each split.", False),
    SEED,
    option("--resume", None, "Go on only with an interrupted run of the same pack and options."),
    OVERWRITE,
    REWORKING,
)
def repack(pack: str, out: str, *, output: Output, **given: Any) -> None:
    """Write PACK anew: smaller, stored another way, in another format or number of files. Rows keep their order, but for --shuffle.

    \b
    packer repack train.h5 train-128.h5 --size 128
    packer repack train.h5 train/ --shard-size 2GB
    packer repack train.h5 small.h5 --store jpeg
    """
    from packer.convert.repacking import repack as run

    report = run(pack, out, progress=not output.quiet, **merge_values(given))
    tell_report(output, report, _noun(out))


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option(
        "--as encoding", ("png", "jpeg"), "png: exactly the pixels; jpeg: smaller, or the rows' own.", "png"
    ),
    option("--quality", "N", "Of JPEG files.", 95),
    SPLIT,
    REWORKING,
)
def export(pack: str, out: str, *, output: Output, **given: Any) -> None:
    """Write the rows of PACK as image files in the folder OUT.

    Images lie in class folders, with masks, labels and boxes beside them.

    \b
    packer export train.h5 images/
    packer export train.h5 photos/ --as jpeg --split val
    """
    from packer.convert.export import export_images

    report = export_images(pack, out, progress=not output.quiet, **given)
    record = {"out": out, "files": report.files, "nbytes": report.nbytes, "seconds": report.seconds}
    output.note(report.notes)
    files, took = units.count(report.files, "file"), units.duration(report.seconds)
    output.tell(
        record | {"notes": list(report.notes)}, f"wrote {files}, {units.size(report.nbytes)}, in {took}"
    )


def _noun(path: str) -> str:
    """Return what the rows of a pack are."""
    from packer.format.pack import open_pack

    return "image" if any(field.name == "image" for field in open_pack(path).fields) else "row"
