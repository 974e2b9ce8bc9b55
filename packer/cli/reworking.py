"""packer append, merge, split, repack, export, verify, seal: packs made of packs, images of a pack, and packs made whole."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from packer import units
from packer.cli.console import COMPRESS, Output, announce_plan, cli, in_options, say, tell_report
from packer.cli.options import FIT, FORMAT, OUTPUT, PATH, STORE, Word, merge_values, option, options
from packer.errors import PackerError, UsageError

if TYPE_CHECKING:
    from packer.format.verify import Verdict

_PROBLEMS = 50  # printed; --json has them all


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("source", metavar="MORE", type=PATH)
@options(
    "--labels",
    "--pair",
    "--duplicates",
    "--on-error",
    "--workers",
    OUTPUT,
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
    from packer.format.pack_opening import open_pack

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
    tell_report(output, report, noun, "added", skipping=True)


@cli.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@click.pass_context
@options(
    option("-o --out", "OUT", "The pack to make."),
    option("--index", None, "List the shards of one PACK that convert --only-shards has made."),
    "--duplicates",
    "--shuffle",
    "--seed",
    "--overwrite",
    "--workers",
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
        tell_report(output, report, _noun(report.out), skipping=True)
        return
    if out is None:
        raise UsageError("-o: is missing. Pass the pack to make.")
    report = merge_packs(packs, out, progress=not output.quiet, **given)
    tell_report(output, report, _noun(out))


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("shares", metavar="NAME=SHARE,...", type=Word())
@options(
    option("-o --out", "DIR", "Folder of the new packs; default: beside PACK."),
    "--seed",
    "--overwrite",
    "--workers",
    OUTPUT,
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


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option("--size", "N|HxW|max=N|min=N", "Smaller images; as for convert."),
    option("--fit", FIT, "How images of another shape are brought to --size.", "crop"),
    option("--format", FORMAT, "As for convert."),
    option("--store", STORE, "As for convert; default: as PACK has it."),
    option("--quality", "N", "Of JPEG rows; default: as PACK has it."),
    option("--compress", COMPRESS, "As for convert; default: as PACK has it."),
    "--shard-rows",
    "--shard-size",
    option("--shuffle/--no-shuffle", None, "Mix the rows, or those of each split.", False),
    "--seed",
    option("--resume", None, "Go on only with an interrupted run of the same pack and options."),
    "--overwrite",
    "--workers",
    OUTPUT,
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


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@options(
    option(
        "--as encoding", ("png", "jpeg"), "png: exactly the pixels; jpeg: smaller, or the rows' own.", "png"
    ),
    option("--quality", "N", "Of JPEG files.", 95),
    "--split",
    "--workers",
    OUTPUT,
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


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("--repair source", "SRC", "Make damaged blocks anew from what PACK was converted from."),
    "--labels",
    "--pair",
    "--workers",
    OUTPUT,
)
def verify(pack: str, *, source: str | None, output: Output, **given: Any) -> None:
    """Compare every byte of a pack with its checksums.

    Names the damaged blocks and their rows, and exits with 1 if there are any. With --repair SRC it makes them anew.

    \b
    packer verify train.h5
    packer verify train.h5 --repair images/
    """
    from packer.format.verify import verify_pack

    verdict = verify_pack(pack, progress=not output.quiet)
    record = {"pack": pack, "ok": verdict.ok, "problems": [vars(problem) for problem in verdict.problems]}
    record |= {"bytes": verdict.nbytes, "seconds": verdict.seconds, "repaired": None}
    if verdict.ok:
        speed = units.size(verdict.nbytes / max(verdict.seconds, 1e-9))
        took = units.duration(verdict.seconds)
        output.tell(record, f"{pack}: whole; {units.size(verdict.nbytes)} checked in {took} ({speed}/s)")
        return
    if not output.as_json:
        for problem in verdict.problems[:_PROBLEMS]:
            say(in_options(problem.text), err=True)
        if len(verdict.problems) > _PROBLEMS:
            say(f"and {len(verdict.problems) - _PROBLEMS} more problems; --json lists them all", err=True)
    if source is None:
        output.tell(record)
        if not output.as_json and (remedy := _how_to_repair(pack, verdict)):
            say(remedy, err=True)
        raise click.exceptions.Exit(1)
    from packer.convert.repair import repair_pack

    repair = repair_pack(pack, source, progress=not output.quiet, **given)
    blocks = f" ({units.count(repair.blocks, 'damaged block')})" if repair.blocks else ""
    output.tell(
        record | {"ok": True, "repaired": vars(repair)},
        f"{pack}: repaired{blocks}, and whole again",
    )


@cli.command()
@click.argument("pack", metavar="PACK", type=PATH)
@OUTPUT
def seal(pack: str, *, output: Output) -> None:
    """Seal a pack that was edited in place.

    Its blocks are hashed, mean and std of its images computed again, its labels and arrays compared with its header. Loading an HDF5
    file that was opened for writing, as by h5py.File("train.h5", "r+"), is an error until then.

    \b
    packer seal train.h5
    """
    from packer.convert.sealing import seal_pack

    sealed = seal_pack(pack, progress=not output.quiet)
    output.tell(
        {"pack": pack, "rows": sealed.rows, "statistics": sealed.header.statistics},
        f"{pack}: sealed; {units.count(sealed.rows, 'row')}, {units.size(sealed.nbytes)}",
    )


def _how_to_repair(path: str, verdict: Verdict) -> str:
    """Return the command that repairs a damaged pack; "" where none does, and the problems say what does."""
    if any(problem.kind == "index" or "packer seal" in problem.text for problem in verdict.problems):
        return ""
    try:
        from packer.convert.repair import check_converted
        from packer.format.pack_opening import open_damaged

        pack = open_damaged(path)
        for part in pack.parts:
            if any(problem.file.startswith(part.path) for problem in verdict.problems):
                check_converted(part)
    except PackerError:
        return ""
    made_of = "images" if pack.parts[0].header.table is None else "table"
    edited = f". If you edited the arrays yourself: packer seal {path}" if pack.format == "npy" else ""
    return f"To make damaged blocks anew from the {made_of}: packer verify {path} --repair SRC{edited}"


def _noun(path: str) -> str:
    """Return what the rows of a pack are."""
    from packer.format.pack_opening import open_pack

    return "image" if any(field.name == "image" for field in open_pack(path).fields) else "row"
