"""packer append, merge, split, repack, export, verify, seal: commands that read or change packs."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from packer import units
from packer.cli.console import Output, announce_plan, cli, say, tell_report
from packer.cli.option_words import COMPRESS, in_options
from packer.cli.options import (
    FIT,
    FORMAT,
    OUTPUT,
    PATH,
    STORE,
    Word,
    merge_values,
    option,
    options,
    splits_of,
)
from packer.errors import UsageError

_PROBLEMS = 50  # most problems printed; --json lists all


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("source", metavar="MORE", type=PATH)
@options("--labels --pair --duplicates --on-error --workers", OUTPUT)
def append(
    pack: str, source: str, *, labels: str | None, pairs: dict[str, str], output: Output, **given: Any
) -> None:
    """Convert MORE images or table rows with the options of PACK and add them to PACK.

    PACK is a directory of shards (convert --shard-rows or --shard-size); the new rows become further shards.

    \b
    packer append train/ more-images/
    packer append flights/ december.csv
    """
    from packer.packs.pack_opening import is_pack, open_pack

    given["progress"] = not output.quiet
    if not is_pack(pack) or open_pack(pack).parts[0].header.table is None:
        from packer.convert.image_appending import append_images

        announce = partial(announce_plan, output, (source,), pack)
        report = append_images(pack, source, labels=labels, pairs=pairs, on_plan=announce, **given)
        noun = "image"
    else:
        from packer.tables.table_conversion import append_table

        for name, value in (("--labels", labels), ("--pair", pairs)):
            if value:
                raise UsageError(f"{name}: is about images; {pack} was made from a table. Leave it out.")
        report, noun = append_table(pack, source, **given), "row"
    tell_report(output, report, noun, "added", skipping=True)


@cli.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@click.pass_context
@options(
    option("-o --out", "OUT", "Pack to write."),
    option("--index", None, "Write the index of PACK, whose shards convert --only-shards wrote."),
    "--duplicates --shuffle --seed --overwrite --workers",
    OUTPUT,
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
    """Merge packs with equal fields into one pack.

    With --index, write the index of PACK, whose shards several machines wrote.

    \b
    packer merge cats.h5 dogs.h5 -o animals.h5
    packer merge --index train/
    """
    from packer.convert.repacking import merge_packs, merge_shards

    if index:
        typed = map(context.get_parameter_source, ("out", "duplicates", "shuffle", "seed", "workers"))
        if len(packs) != 1 or ParameterSource.COMMANDLINE in typed:
            raise UsageError(
                "--index: indexes the shards of a single PACK. Leave other packs and options out."
            )
        report = merge_shards(packs[0], overwrite=given["overwrite"])
        tell_report(output, report, skipping=True)
        return
    if out is None:
        raise UsageError("-o: is missing. Pass the pack to write.")
    report = merge_packs(packs, out, progress=not output.quiet, **given)
    tell_report(output, report)


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("shares", metavar="NAME=SHARE,...", type=Word())
@options(
    option("-o --out", "DIR", "Folder of the new packs; default: the folder of PACK."),
    "--seed --overwrite --workers",
    OUTPUT,
)
def split(pack: str, shares: str, *, output: Output, **given: Any) -> None:
    """Split the rows of PACK into new packs, with equal shares of each class.

    The names of the new packs are that of PACK plus the split's name: photos.train.h5 and photos.val.h5.

    \b
    packer split photos.h5 train=0.9,val=0.1
    """
    from packer.convert.repacking import split_pack

    reports = split_pack(pack, shares, progress=not output.quiet, **given)
    if output.as_json:
        output.tell({"packs": {name: report.to_dict() for name, report in reports.items()}})
        return
    for report in reports.values():
        tell_report(output, report, where=f" -> {report.out}")


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option("--size", "N|HxW|max=N|min=N", "Size of the new, smaller images; as for convert."),
    option("--fit", FIT, "How images of another shape are fitted to --size.", "crop"),
    option("--format", FORMAT, "As for convert."),
    option("--store", STORE, "As for convert; default: as in PACK."),
    option("--quality", "N", "Quality of JPEG rows; default: as in PACK."),
    option("--compress", COMPRESS, "As for convert; default: as in PACK."),
    "--shard-rows --shard-size",
    option("--shuffle/--no-shuffle", None, "Shuffle the rows, within each split.", False),
    "--seed",
    option("--resume", None, "Continue only an interrupted run with the same pack and options."),
    "--overwrite --workers",
    OUTPUT,
)
def repack(pack: str, out: str, *, output: Output, **given: Any) -> None:
    """Write PACK again: smaller images, another storage, another format or number of files.

    Rows keep their order unless --shuffle is given.

    \b
    packer repack train.h5 train-128.h5 --size 128
    packer repack train.h5 train/ --shard-size 2GB
    packer repack train.h5 small.h5 --store jpeg
    """
    from packer.convert.repacking import repack as run

    report = run(pack, out, progress=not output.quiet, **merge_values(given))
    tell_report(output, report)


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    "--split --workers",
    OUTPUT,
)
def export(pack: str, out: str, *, split: str | None, workers: int | None, output: Output) -> None:
    """Write the rows of PACK as image files in the folder OUT.

    JPEG rows are written as the files that they are, other images and masks as PNG files, and labels, splits,
    boxes and points as labels.csv.

    \b
    packer export train.h5 images/
    packer export train.h5 photos/val --split val
    """
    from packer.convert.export import export_images

    chosen = splits_of(pack, split)
    report = export_images(pack, out, split=chosen, workers=workers, progress=not output.quiet)
    record = {"out": out, "files": report.files, "nbytes": report.nbytes, "seconds": report.seconds}
    output.note(report.notes)
    files, took = units.count(report.files, "file"), units.duration(report.seconds)
    output.tell(
        record | {"notes": list(report.notes)}, f"wrote {files}, {units.size(report.nbytes)}, in {took}"
    )


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@OUTPUT
def verify(pack: str, *, output: Output) -> None:
    """Compare every byte of a pack with its checksums.

    List damaged blocks and their rows, and the command that converts the pack again; the exit code is 1 if
    there are any.

    \b
    packer verify train.h5
    """
    from packer.packs.recorded_command import how_to_convert_again
    from packer.packs.verify import verify_pack

    verdict = verify_pack(pack, progress=not output.quiet)
    record = {"pack": pack, "ok": verdict.ok, "problems": [vars(problem) for problem in verdict.problems]}
    record |= {"bytes": verdict.nbytes, "seconds": verdict.seconds}
    if verdict.ok:
        speed = units.size(verdict.nbytes / max(verdict.seconds, 1e-9))
        took = units.duration(verdict.seconds)
        output.tell(record, f"{pack}: intact; {units.size(verdict.nbytes)} checked in {took} ({speed}/s)")
        return
    if not output.as_json:
        for problem in verdict.problems[:_PROBLEMS]:
            say(in_options(problem.text), err=True)
        if len(verdict.problems) > _PROBLEMS:
            say(f"and {len(verdict.problems) - _PROBLEMS} more problems; --json lists them all", err=True)
    output.tell(record)
    beyond = any(problem.kind == "index" or "packer seal" in problem.text for problem in verdict.problems)
    if not output.as_json and not beyond and (remedy := how_to_convert_again(pack)):
        say(remedy, err=True)
    raise click.exceptions.Exit(1)


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@OUTPUT
def seal(pack: str, *, output: Output) -> None:
    """Seal a pack that was edited in place.

    The command compares labels and arrays with the header, computes mean and std of the images again, and
    writes the pack again beside itself, which then takes its name. An HDF5 pack that was opened for writing,
    as by h5py.File("train.h5", "r+"), cannot be loaded before.

    \b
    packer seal train.h5
    """
    from packer.convert.sealing import seal_pack

    sealed = seal_pack(pack, progress=not output.quiet)
    output.tell(
        {"pack": pack, "rows": sealed.rows, "statistics": sealed.header.statistics},
        f"{pack}: sealed; {units.count(sealed.rows, 'row')}, {units.size(sealed.nbytes)}",
    )
