"""packer info and packer verify: what a pack holds, and whether it is whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from packer import units
from packer.cli.console import Output, in_options, json_text, say, say_lines
from packer.cli.options import JSON, LABELS, OUTPUT, PAIRS, PATH, WORKERS, option, options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer.format.pack import Pack
    from packer.format.verdict import Verdict
    from packer.orders.shuffle_quality import Quality

_PROBLEMS = 50  # printed; --json has them all


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("--order", "NAME", "How well this order shuffles the rows; all: every order."),
    option("--batch-size", "N", "Rows a batch, for --order; default 256.", 256, show_default=False),
    JSON,
)
def info(pack: str, *, order: str | None, batch_size: int, as_json: bool) -> None:
    """Show what a pack holds, and with --order how well an order shuffles it.

    \b
    packer info train.h5
    packer info train.h5 --json | jq .statistics
    packer info train.h5 --order all
    """
    from packer.format.description import describe
    from packer.format.pack import open_pack

    opened, figures = open_pack(pack), None
    if order is not None:
        from packer.load.order_quality import order_quality

        figures = order_quality(opened, order, batch_size)
    if as_json:
        record = json.loads(opened.header.to_bytes()) | {"path": pack, "bytes": opened.nbytes}
        if figures is not None:
            orders = {name: quality._asdict() for name, quality in figures.items()}
            record["shuffle"] = {"batch_size": batch_size, "orders": orders}
        say_lines(json_text("info", record))
        return
    for line in describe(opened, _columns(opened)) + (_compare(figures, batch_size) if figures else []):
        say(line)


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("--repair source", "SRC", "Make damaged blocks anew from what PACK was converted from."),
    LABELS,
    PAIRS,
    WORKERS,
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
    output.tell(
        record | {"ok": True, "repaired": vars(repair)},
        f"{pack}: repaired ({units.count(repair.blocks, 'damaged block')}), and whole again",
    )


@click.command()
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
    from packer.errors import FormatError
    from packer.format.header import PACK_OPTIONS
    from packer.format.pack import open_damaged

    if any(problem.kind == "index" or "packer seal" in problem.text for problem in verdict.problems):
        return ""
    try:
        pack = open_damaged(path)
    except FormatError:
        return ""
    files = [problem.file for problem in verdict.problems]
    parts = [part for part in pack.parts if any(file.startswith(part.path) for file in files)]
    options = {name for part in parts for name in part.header.provenance.get("options", {})}
    if options & {*PACK_OPTIONS, "fields", "append", "like", "duplicates"}:
        return ""
    made_of = "images" if pack.parts[0].header.table is None else "table"
    edited = f". If you edited the arrays yourself: packer seal {path}" if pack.format == "npy" else ""
    return f"To make damaged blocks anew from the {made_of}: packer verify {path} --repair SRC{edited}"


def _columns(pack: Pack) -> list[str]:
    """Return what a pack's header says of the columns of a table."""
    table = pack.header.table
    if table is None:
        return []
    from packer.tables.transform.table_summary import describe, measured_on

    measured = measured_on(table, pack.rows)
    said = f"measured   {measured}: ranges and shares of the columns are theirs"
    return [*describe(table), *([said] if measured else [])]


def _compare(figures: Mapping[str, Quality], batch_size: int) -> list[str]:
    """Return how well orders shuffle, as a table."""
    head = f"shuffle    in batches of {batch_size:,}  label mix  neighbours  repeats  score"
    lines = [
        f"  {name:<{len(head) - 41}} {'-' if mix is None else f'{mix:.2f}':>10}"
        f"  {neighbours:>10.2%}  {repeats:>7.2%}  {score:>5.2f}"
        for name, (mix, neighbours, repeats, score) in figures.items()
    ]
    legend = (
        "  label mix: spread of class counts over batches; neighbours: rows batched with the next row of the file; "
        "repeats: pairs that meet again in the next epoch; score: 1 is as good as a uniform shuffle"
    )
    return [head, *lines, legend]
