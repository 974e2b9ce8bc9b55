"""Output of packer convert --dry-run: what would be packed, as tables of text or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from packer import units
from packer.cli.console import SKIPPED, Output, tell_skipped
from packer.cli.option_words import in_options

if TYPE_CHECKING:
    from packer.convert.conversion_task import Report
    from packer.convert.plan_contents import PlanContents
    from packer.tables.table_conversion import TablePlan

_ROWS = 40
_WIDTH = 40


def tell_contents(output: Output, contents: PlanContents) -> None:
    """Print the images of each class and split, with examples; fields, partners, inputs left out, doubts."""
    splits = list(contents.groups)
    classes = sorted({name for of in contents.groups.values() for name in of}, key=_by_number)
    lines = [["class", *(split or "images" for split in splits), "examples"]]
    for name in classes[:_ROWS]:
        groups = [contents.groups[split].get(name) for split in splits]
        examples = next(group.examples for group in groups if group is not None)
        counts = [f"{group.rows:,}" if group is not None else "0" for group in groups]
        lines.append([_short(name), *counts, ", ".join(map(_short, examples))])
    output.say(*_columns(lines, right=range(1, len(splits) + 1)))
    if len(classes) > _ROWS:
        output.say(f"  ... and {len(classes) - _ROWS:,} classes more; --json lists all")
    output.say("fields:", *_columns([list(item) for item in contents.fields.items()]))
    for name, pairs in contents.pairs.items():
        output.say(f"{name}: " + "; ".join(f"{_short(image)} with {_short(mask)}" for image, mask in pairs))
    doubts = [in_options(finding.sentence) for finding in contents.findings if finding.error]
    output.say(*(f"error: {doubt}" for doubt in doubts[1:]))  # the first one is raised


def tell_columns(output: Output, plan: TablePlan) -> None:
    """Print the type and the role of each column of a table."""
    roles = {column: role for role, columns in plan.roles.items() for column in columns}
    rows = [[_short(column), kind, roles[column]] for column, kind in plan.types.items()]
    output.say(*_columns([["column", "type", "role"], *rows[:_ROWS]]))
    if len(rows) > _ROWS:
        output.say(f"  ... and {len(rows) - _ROWS:,} columns more; --json lists all")


def tell_dry_run(output: Output, report: Report, contents: Mapping[str, Any]) -> None:
    """Print the result of a dry run; exit with SKIPPED if inputs would be left out.

    contents: further entries of the JSON object.
    """
    skipped = report.skipped
    record = {"dry_run": True, "out": report.out, "rows": report.rows, "notes": report.notes, **contents}
    output.tell(record, f"nothing was written; without --dry-run {report.out} is")
    if skipped:
        tell_skipped(output, f"would skip {units.count(len(skipped), 'input')}", skipped, len(skipped))
        raise click.exceptions.Exit(SKIPPED)


def _columns(lines: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Yield lines of cells under each other. right: the columns of numbers."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def _short(text: str) -> str:
    """Return a long name without its middle: both ends tell it from others."""
    if len(text) <= _WIDTH:
        return text
    return f"{text[: _WIDTH // 2]}...{text[3 - _WIDTH // 2 :]}"


def _by_number(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() and len(name) < 19 else -1, name)
