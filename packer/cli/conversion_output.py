"""How a conversion is told: what it is about to do, what it did, which inputs it left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import click

from packer import units
from packer.cli.console import in_options, print_json, say

if TYPE_CHECKING:
    from packer.convert.conversion_run import Report
    from packer.convert.image_conversion import ConversionPlan
    from packer.tables.table_conversion import TablePlan, TableReport

SKIPPED = 3
SHOWN = 20  # skipped inputs printed; all are in the pack's header
_LISTED = 8  # columns named in a sentence


def announce_plan(source: str, out: str, plan: ConversionPlan) -> None:
    """Print what is about to be done to images."""
    classes = "" if plan.classes is None else f" of {units.count(plan.classes, 'class')}"
    shape = plan.sizes if plan.shape is None else "x".join(map(str, plan.shape))
    say(
        f"{source}: {units.count(plan.rows, 'image')}{classes} -> {out}: {shape} each, about {units.size(plan.bytes)}"
    )
    if plan.splits:
        say("splits: " + ", ".join(f"{name} {rows:,}" for name, rows in plan.splits.items()))
    tell_notes(plan.notes)


def announce_table_plan(sources: tuple[str, ...], out: str, plan: TablePlan) -> None:
    """Print what is about to be done to a table."""
    name = sources[0] if len(sources) == 1 else units.count(len(sources), "file")
    parts = [
        f"{role} {', '.join(columns[:_LISTED])}{', ...' if len(columns) > _LISTED else ''}"
        for role, columns in plan.roles.items()
    ]
    rows = "" if plan.rows is None else f"{units.count(plan.rows, 'row')}, "
    say(
        f"{name}: {rows}{units.count(plan.columns, 'column')}, {units.size(plan.bytes)} -> {out}: {'; '.join(parts)}"
    )
    tell_notes(plan.notes)


def tell_cleared(report: Report | TableReport) -> None:
    """Print that what an interrupted run had done was cleared, if it was."""
    if report.cleared:
        say(f"note: an interrupted conversion was cleared, since it differed ({report.cleared})")


def tell_notes(notes: Iterable[str], said: Collection[str] = ()) -> None:
    """Print the notes that were not printed before."""
    for note in notes:
        if note not in said:
            say(f"note: {in_options(note)}")


def tell_conversion(
    report: Report | TableReport, said: Collection[str], noun: str, *, as_json: bool, quiet: bool
) -> None:
    """Print what packer convert did. said: the notes that were printed before; noun: "image" or "row"."""
    if as_json:
        print_json("convert", report.to_dict())
    if as_json or quiet:
        return
    tell_cleared(report)
    rows = units.count(report.rows, noun)
    if report.already:
        say(f"{report.out}: holds all {rows} already")
        return
    tell_notes(report.notes, said)
    read, speed = "", f"{report.rows_per_second:,.0f} {noun}s/s, {units.count(report.workers, 'worker')}"
    if noun == "row":
        read = "read "
        speed = (f"{units.size(report.bytes_read / report.seconds)}/s, " if report.bytes_read else "") + speed
    resumed = f", {report.resumed:,} of them {read}before it was interrupted" if report.resumed else ""
    say(
        f"packed {rows}{resumed}, {units.size(report.bytes_read)} -> {units.size(report.bytes_written)},"
        f" in {units.duration(report.seconds)} ({speed})"
    )


def tell_skipped(skipped: tuple[dict[str, str], ...], out: str, *, listed: bool) -> None:
    """List images that were left out, and exit with the code for that; do nothing if there are none. listed: print them."""
    if skipped:
        title = f"skipped {units.count(len(skipped), 'input')}:"
        _list_skipped(title, skipped, len(skipped), f"packer info {out} --json lists them all", listed)


def tell_left_out(report: TableReport, out: str, *, listed: bool) -> None:
    """List rows of a table that were left out, and exit with the code for that; do nothing if there are none."""
    if report.skipped_rows and not report.already:
        why = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
        title = f"left out {units.count(report.skipped_rows, 'row')} ({why}):"
        remedy = f"packer info {out} --json lists the first {len(report.skipped):,}"
        _list_skipped(title, report.skipped, report.skipped_rows, remedy, listed)


def _list_skipped(
    title: str, skipped: tuple[dict[str, str], ...], count: int, remedy: str, listed: bool
) -> None:
    if listed:
        say(title, err=True)
        for item in skipped[:SHOWN]:
            say(f"  {item['key']}: {in_options(item['reason'])}", err=True)
        if count > SHOWN:
            say(f"  and {count - SHOWN:,} more; {remedy}", err=True)
    raise click.exceptions.Exit(SKIPPED)
