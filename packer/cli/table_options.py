"""The options of packer convert that are about tables, and how a table's conversion is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packer import units
from packer.cli.console import say
from packer.cli.conversion_output import tell_conversion, tell_left_out, tell_notes
from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.tables.table_conversion import TablePlan

Command = TypeVar("Command", bound=Callable[..., Any])

_LISTED = 8  # columns named in a sentence
_OPTIONS = (
    click.option(
        "--features", metavar="COLUMN,...", help="Tables: only these columns are features; default: all."
    ),
    click.option("--drop", metavar="COLUMN,...", help="Tables: leave columns out."),
    click.option("--keep", metavar="COLUMN,...", help="Tables: fields of their own instead of features."),
    click.option(
        "--type",
        "types",
        multiple=True,
        metavar="COLUMN=TYPE",
        help="Tables: number, integer, boolean, date, time, timestamp, category or text; currency, percent, date-mdy, date-dmy,"
        " timestamp-mdy or timestamp-dmy; default: as the first rows look.",
    ),
    click.option(
        "--label-as",
        type=click.Choice(["auto", "classes", "float", "number"]),
        default="auto",
        show_default=True,
        help="Labels that are numbers as classes, or as float (number is the same); auto: whole ones int64, others float.",
    ),
    click.option(
        "--missing",
        type=click.Choice(["nan", "error", "mean", "median", "zero"]),
        default="nan",
        show_default=True,
        help="Tables: what a missing feature becomes.",
    ),
    click.option(
        "--indicators", is_flag=True, help="Tables: a 0/1 feature for each column with missing values."
    ),
    click.option(
        "--one-hot", metavar="COLUMN,...|all", help="Tables: categories as 0/1 features instead of codes."
    ),
    click.option("--standardize", is_flag=True, help="Tables: numbers to mean 0 and standard deviation 1."),
    click.option(
        "--log1p", metavar="COLUMN,...", help="Tables: log(1 + x) of these columns, before all else."
    ),
    click.option(
        "--dtype",
        default="float32",
        show_default=True,
        metavar="NAME",
        help="Tables: of the features: float32, float16, float64, or an integer type.",
    ),
    click.option(
        "--max-categories",
        type=int,
        default=100_000,
        show_default=True,
        metavar="N",
        help="Tables: more different texts in a column are an error.",
    ),
    click.option(
        "--like",
        metavar="PACK",
        help="Images: the classes, size, fit, channels, and mean and std for Normalize(), of PACK. "
        "Tables: its columns, categories and statistics.",
    ),
    click.option(
        "--header/--no-header",
        default=True,
        show_default=True,
        help="CSV: the first line holds names; without, columns are called 0, 1, 2 ...",
    ),
    click.option(
        "--delimiter", metavar="CHAR", help="CSV: between cells; default: found out. tab for a tab."
    ),
    click.option(
        "--quote", default='"', show_default=True, metavar="CHAR", help="CSV: around cells; none for none."
    ),
    click.option("--decimal", default=".", show_default=True, metavar="CHAR", help="CSV: the decimal point."),
    click.option("--thousands", default="", metavar="CHAR", help="CSV: between thousands, passed over."),
    click.option(
        "--na", multiple=True, metavar="TEXT", help="CSV: also means missing, beside NA, null, nan ..."
    ),
    click.option("--encoding", default="utf-8", show_default=True, metavar="NAME", help="CSV: of the file."),
)
TABLES = frozenset(
    (
        "decimal",
        "delimiter",
        "drop",
        "dtype",
        "encoding",
        "features",
        "header",
        "indicators",
        "keep",
        "log1p",
        "max_categories",
        "missing",
        "na",
        "one_hot",
        "quote",
        "standardize",
        "thousands",
        "types",
    )
)
"""Parameters about tables alone."""
IMAGES = frozenset(
    (
        "any_size",
        "boxes",
        "channels",
        "classes",
        "fit",
        "keypoints",
        "label_file_column",
        "label_separator",
        "labels",
        "max_pixels",
        "multi_label",
        "pairs",
        "quality",
        "size",
        "store",
    )
)
"""Parameters about images alone."""


def table_options(command: Command) -> Command:
    """Add them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def convert_tables(sources: tuple[str, ...], out: str, *, as_json: bool, quiet: bool, **options: Any) -> None:
    """Run packer.convert_table and tell of it."""
    from packer.tables.table_conversion import convert_table

    lists = {name: _names(options.pop(name)) for name in ("label", "keep", "drop", "log1p", "features")}
    one_hot = options.pop("one_hot")
    quote, delimiter = options.pop("quote"), options.pop("delimiter")
    said: list[str] = []

    def announce(plan: TablePlan) -> None:
        said.extend(plan.notes)
        if not (quiet or as_json):
            _announce(sources, out, plan)

    report = convert_table(
        sources,
        out,
        label=lists["label"],
        features=lists["features"],
        keep=lists["keep"] or (),
        drop=lists["drop"] or (),
        log1p=lists["log1p"] or (),
        one_hot="all" if one_hot == "all" else _names(one_hot) or (),
        types=_types(options.pop("types")),
        quote="" if quote == "none" else quote,
        delimiter={"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter),
        progress=not quiet,
        on_plan=announce,
        **options,
    )
    tell_conversion(report, said, "row", as_json=as_json, quiet=quiet)
    tell_left_out(report, out, listed=not as_json)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _types(given: Iterable[str]) -> dict[str, str]:
    types = {}
    for text in given:
        name, equals, kind = text.rpartition("=")
        if not (name and equals and kind):
            raise UsageError(f"--type {text}: is not COLUMN=TYPE. Pass for example --type zip=category.")
        types[name] = kind
    return types


def _announce(sources: tuple[str, ...], out: str, plan: TablePlan) -> None:
    """Print what is about to be done."""
    name = sources[0] if len(sources) == 1 else units.count(len(sources), "file")
    parts = [f"{role} {_some(columns)}" for role, columns in plan.roles.items()]
    rows = "" if plan.rows is None else f"{units.count(plan.rows, 'row')}, "
    say(
        f"{name}: {rows}{units.count(plan.columns, 'column')}, {units.size(plan.bytes)} -> {out}: {'; '.join(parts)}"
    )
    tell_notes(plan.notes)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def about_other(given: Mapping[str, str], table: bool, source: str) -> None:
    """Refuse options that are about the other kind of input. given: parameter -> the option as it was written."""
    for name, option in given.items():
        if table and name in IMAGES:
            raise UsageError(f"{option}: is about images; {source} is a table. Leave it out.")
        if not table and name in TABLES:
            raise UsageError(
                f"{option}: is about tables; {source} is none (its name ends in neither .csv nor .parquet ...). Leave it out."
            )
