"""packer info and packer verify: what a pack holds, and whether it is whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from packer import units
from packer.cli.console import in_options, print_json, say
from packer.cli.convert_command import parse_pairs
from packer.cli.options import JSON, option, options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer.format.header import Field
    from packer.format.pack import Pack
    from packer.orders.shuffle_quality import Quality

_PROBLEMS = 50  # printed; --json has them all


@click.command()
@click.argument("pack", metavar="PACK", type=click.Path())
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
    from packer.format.pack import open_pack

    opened, figures = open_pack(pack), None
    if order is not None:
        from packer.load.order_quality import order_quality

        figures = order_quality(opened, order, batch_size)
    if as_json:
        record = json.loads(opened.header.to_bytes()) | {
            "path": pack,
            "sealed": opened.sealed,
            "bytes": opened.nbytes,
        }
        if figures is not None:
            orders = {name: quality._asdict() for name, quality in figures.items()}
            record["shuffle"] = {"batch_size": batch_size, "orders": orders}
        print_json("info", record)
        return
    for line in _describe(opened) + ([] if figures is None else _compare(figures, batch_size)):
        say(line)


@click.command()
@click.argument("pack", metavar="PACK", type=click.Path())
@options(
    option("--repair source", "SRC", "Make damaged blocks anew from what PACK was converted from."),
    option("--labels", "FILE", "The CSV that PACK was converted with, for --repair."),
    option("--pair pairs", "NAME=DIR", "The masks it was converted with, for --repair.", multiple=True),
    option("--workers", "N", "Parallel workers of --repair; default: the cores at hand."),
    JSON,
    option("--quiet", None, "Print nothing but problems."),
)
def verify(
    pack: str,
    *,
    source: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compare every byte of a pack with its checksums.

    Names the damaged blocks and their rows, and exits with 1 if there are any. With --repair SRC it makes them anew.

    \b
    packer verify train.h5
    packer verify train.h5 --repair images/
    """
    from packer.format.verify import verify_pack

    verdict = verify_pack(pack, progress=not quiet)
    record = {"pack": pack, "ok": verdict.ok, "problems": [vars(problem) for problem in verdict.problems]}
    record |= {"bytes": verdict.nbytes, "seconds": verdict.seconds, "repaired": None}
    if as_json and (verdict.ok or source is None):
        print_json("verify", record)
    if not as_json:
        for problem in verdict.problems[:_PROBLEMS]:
            say(in_options(problem.text), err=True)
        if len(verdict.problems) > _PROBLEMS:
            say(f"and {len(verdict.problems) - _PROBLEMS} more problems; --json lists them all", err=True)
    if verdict.ok:
        if not (quiet or as_json):
            speed = units.size(verdict.nbytes / max(verdict.seconds, 1e-9))
            took = units.duration(verdict.seconds)
            say(f"{pack}: whole; {units.size(verdict.nbytes)} checked in {took} ({speed}/s)")
        return
    if source is None:
        if not as_json:
            made_of = _made_of(pack)
            remedy = f"To make damaged blocks anew from the {made_of}: packer verify {pack} --repair SRC"
            if made_of == "samples":
                remedy = "It was made of samples from Python or of arrays: pack them again to replace it"
            say(remedy, err=True)
        raise click.exceptions.Exit(1)
    from packer.convert.repair import repair_pack

    repair = repair_pack(pack, source, pairs=parse_pairs(pairs), progress=not quiet, **given)
    if as_json:
        print_json("verify", record | {"ok": True, "repaired": vars(repair)})
    elif not quiet:
        said = ([units.count(repair.blocks, "block")] if repair.blocks else []) + list(repair.mended)
        say(f"{pack}: repaired ({', '.join(said)}), and whole again")


def _made_of(path: str) -> str:
    """Return what a pack, which may be damaged, was made of, in a word; "samples" are arrays and what pack_dataset takes."""
    from packer.errors import FormatError
    from packer.format.pack import open_pack

    try:
        header = open_pack(path).header
        if "fields" in header.provenance.get("options", {}):
            return "samples"
        return "images" if header.table is None else "table"
    except FormatError:
        return "source"


def _describe(pack: Pack) -> list[str]:
    """Return a pack in lines for people."""
    from packer.format.header import NORMALIZE, VERSION

    header = pack.header
    lines = [
        f"{pack.path}: {units.count(pack.rows, 'row')}, {units.size(pack.nbytes)}, {pack.format}, format {VERSION}"
    ]
    for f in header.fields:
        about = ", ".join(f"{key} {_plain(value)}" for key, value in f.about.items())
        lines.append(f"  {f.name:<8} {f.dtype.lstrip('<|'):<3} {_stored(f)}{f' ({about})' if about else ''}")
    if header.classes is not None:
        shown = ", ".join(header.classes[:12]) + (", ..." if len(header.classes) > 12 else "")
        lines.append(f"classes    {len(header.classes)}: {shown}")
    for name, values in header.statistics.items():
        lines.append(
            f"{name:<10} " + "  ".join(f"{k} {' '.join(f'{x:.4f}' for x in v)}" for k, v in values.items())
        )
    if NORMALIZE in header.provenance.get("options", {}):
        numbers = "  ".join(f"{k} {' '.join(f'{x:.4f}' for x in v)}" for k, v in header.normalization.items())
        lines.append(f"normalize  {numbers}: what Normalize() as text means, taken with --like")
    if header.table is not None:
        from packer.tables.transform.table_summary import describe

        lines += describe(header.table)
        measured = next(
            (c["statistics"]["rows"] for c in header.table["columns"] if c["statistics"]), pack.rows
        )
        if measured != pack.rows:
            fit = "" if header.table["fit"] == "all" else f" of {header.table['fit']}"
            lines.append(
                f"measured   {units.count(measured, 'row')}{fit}: ranges and shares of the columns are theirs"
            )
    for name, spans in sorted(header.splits.items(), key=lambda item: item[1]):
        count = units.count(sum(b - a for a, b in spans), "row")
        lines.append(f"split      {name}: {count} ({', '.join(f'{a:,} to {b - 1:,}' for a, b in spans)})")
    order = "of the source" if header.seed is None else f"shuffled, seed {header.seed}"
    lines.append(f"order      {order}; blocks of {units.count(header.block_rows, 'row')}")
    lines.append(
        "made by    "
        + ", ".join(f"{k} {v}" for k, v in dict(header.provenance.get("versions") or {}).items())
    )
    left_out = (header.table or {}).get("skipped", {}).get("reasons", {})
    if left_out:
        lines.append("left out   " + ", ".join(f"{count:,} rows: {why}" for why, count in left_out.items()))
    if header.skipped:
        lines.append(
            f"skipped    {units.count(len(header.skipped), 'input')}; --json lists them with their reasons"
        )
    if pack.shards:
        lines.append(f"shards     {len(pack.shards)}: {pack.shards[0].rows:,} rows in the first")
    if not pack.sealed:
        lines.append(
            "unsealed   another program has opened the file for writing since it was made: packer cannot vouch for it"
        )
    return lines


def _compare(figures: Mapping[str, Quality], batch_size: int) -> list[str]:
    """Return how well orders shuffle, as a table."""
    lines = [f"shuffle    in batches of {batch_size:,}  label mix  neighbours  repeats  score"]
    for name, (mix, neighbours, repeats, score) in figures.items():
        mixed = "-" if mix is None else f"{mix:.2f}"
        lines.append(
            f"  {name:<{len(lines[0]) - 41}} {mixed:>10}  {neighbours:>10.2%}  {repeats:>7.2%}  {score:>5.2f}"
        )
    lines.append(
        "  label mix: spread of class counts over batches; neighbours: rows batched with the next row of the file; "
        "repeats: pairs that meet again in the next epoch; score: 1 is as good as a uniform shuffle"
    )
    return lines


def _stored(f: Field) -> str:
    """Return the shape of a field's rows, and how they are stored."""
    codec = dict(f.codec or {})
    how = f", {codec.pop('name')}" if codec else ""
    if f.loaded is not f or not f.ragged:
        return ("x".join(map(str, f.loaded.shape or ())) or "one a row") + how
    if {"row_shape", "dtype"} <= set(f.about):
        return f"{f.about['dtype'].lstrip('<|')} [{', '.join(['n', *map(str, f.about['row_shape'])])}]"
    if f.own_size is not None and not how:
        return "of any size, raw"
    return ("of any size" if how else "bytes of any length") + how


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
