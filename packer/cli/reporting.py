"""packer report: the data card of packs, one HTML page."""

from __future__ import annotations

from typing import Any

import click

from packer.cli.console import Output
from packer.cli.options import OUTPUT, PATH, option, options


@click.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PATH)
@options(
    option("-o --out", "FILE", "The page, .html.", "report.html"),
    option("--rows", "N", "Rows on the contact sheet, at most; spread evenly over the classes.", 200),
    option("--workers", "N", "Threads that read and decode; default: the cores at hand."),
    option("--overwrite", None, "Replace FILE if it is an earlier report."),
    OUTPUT,
)
def report(packs: tuple[str, ...], out: str, *, output: Output, **given: Any) -> None:
    """Write the data card of PACK, or of several together: one HTML page that loads nothing and runs no script.

    Classes, a contact sheet, sizes, what was left out; rows that are (nearly) the same, in several splits or packs or with
    different labels. Of tables: the columns.

    \b
    packer report train.h5 -o train.html
    packer report train.h5 test.h5 -o both.html
    """
    from packer.reports.data_card import report as run

    made = run(packs, out, progress=not output.quiet, **given)
    output.tell(made._asdict(), str(made))
