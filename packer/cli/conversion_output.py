"""How a conversion is told: what it is about to do, what it did, which inputs it left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packer import units
from packer.cli.console import Output, in_options, say

if TYPE_CHECKING:
    from packer.convert.conversion_run import Report
    from packer.convert.image_conversion import ConversionPlan
    from packer.tables.table_conversion import TablePlan, TableReport

SKIPPED = 3
SHOWN = 20  # skipped inputs printed; all are in the pack's header
_LISTED = 8  # columns named in a sentence


def announce_plan(output: Output, source: str, out: str, plan: ConversionPlan) -> None:
    """Print what is about to be done to images."""
    classes = "" if plan.classes is None else f" of {units.count(plan.classes, 'class')}"
    shape = plan.sizes if plan.shape is None else "x".join(map(str, plan.shape))
    images = units.count(plan.rows, "image") + classes
    output.say(f"{source}: {images} -> {out}: {shape} each, about {units.size(plan.bytes)}")
    if plan.splits:
        output.say("splits: " + ", ".join(f"{name} {rows:,}" for name, rows in plan.splits.items()))
    output.note(plan.notes)


def announce_table_plan(output: Output, sources: tuple[str, ...], out: str, plan: TablePlan) -> None:
    """Print what is about to be done to a table."""
    name = sources[0] if len(sources) == 1 else units.count(len(sources), "file")
    parts = [
        f"{role} {', '.join(columns[:_LISTED])}{', ...' if len(columns) > _LISTED else ''}"
        for role, columns in plan.roles.items()
    ]
    rows = "" if plan.rows is None else f"{units.count(plan.rows, 'row')}, "
    table = f"{rows}{units.count(plan.columns, 'column')}, {units.size(plan.bytes)}"
    output.say(f"{name}: {table} -> {out}: {'; '.join(parts)}")
    output.note(plan.notes)


def tell_report(
    output: Output, report: Report | TableReport, noun: str, verb: str = "packed", where: str = ""
) -> None:
    """Print what a report says. noun: "image" or "row"; verb: what was done; where: the pack, of several."""
    rows = units.count(report.rows, noun)
    if report.cleared:
        output.note([f"an interrupted conversion was cleared, since it differed ({report.cleared})"])
    if report.already:
        output.tell(report.to_dict(), f"{report.out}: holds all {rows} already")
        return
    output.note(report.notes)
    resumed = f", {report.resumed:,} of them read before it was interrupted" if report.resumed else ""
    read = f"{units.size(report.bytes_read)} -> " if report.bytes_read else ""
    output.tell(
        report.to_dict(),
        f"{verb} {rows}{where}{resumed}, {read}{units.size(report.bytes_written)},"
        f" in {units.duration(report.seconds)} ({report.rows_per_second:,.0f} {noun}s/s,"
        f" {units.count(report.workers, 'worker')})",
    )


def tell_skipped(output: Output, report: Report | TableReport, out: str) -> None:
    """List what was left out on stderr, and exit with the code for that; do nothing if nothing was."""
    if report.already or not report.skipped:
        return
    count, listed = len(report.skipped), "them all"
    title = f"skipped {units.count(count, 'input')}"
    if reasons := vars(report).get("reasons"):
        count, listed = sum(reasons.values()), f"the first {count:,}"
        why = ", ".join(f"{rows:,} {reason}" for reason, rows in reasons.items())
        title = f"left out {units.count(count, 'row')} ({why})"
    if not output.as_json:
        say(f"{title}:", err=True)
        for item in report.skipped[:SHOWN]:
            say(f"  {item['key']}: {in_options(item['reason'])}", err=True)
        if count > SHOWN:
            say(f"  and {count - SHOWN:,} more; packer info {out} --json lists {listed}", err=True)
    raise click.exceptions.Exit(SKIPPED)
