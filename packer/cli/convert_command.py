"""packer convert: images, or a table, into one pack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from packer.cli.conversion_output import (
    announce_plan,
    announce_table_plan,
    tell_conversion,
    tell_left_out,
    tell_skipped,
)
from packer.cli.options import CONVERT, IMAGES, TABLES, InputOption
from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.convert.image_conversion import ConversionPlan
    from packer.tables.table_conversion import TablePlan


@click.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("out", metavar="OUT")
@CONVERT
@click.pass_context
def convert(
    context: click.Context,
    /,
    sources: tuple[str, ...],
    out: str,
    *,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Pack images, or a table, into one file.

    SRC is a folder with one sub-folder a class, a flat folder, a folder of train/, val/ and test/, a text list of paths, or a .tar,
    .tar.gz or .zip of such a folder (name a folder inside it by path: photos.tar/train). Or it is CIFAR's pickles, WebDataset's tars or
    Parquet files of images (a folder of them, or several). Or it is a table: .csv, .tsv, each also .gz,
    .zst, .bz2 or .xz, .parquet, .arrow, .feather; several files, or globs in quotes, follow each other. OUT ends in .h5 for one HDF5
    file; else it is a directory of .npy files.

    An interrupted conversion goes on where it stopped when the same command is run again.

    \b
    packer convert images/ train.h5 --size 256
    packer convert cifar.tar.gz/train train.h5 --size 32
    packer convert cifar-10-python.tar.gz cifar.h5 --size 32
    packer convert photos/ train.h5 --labels labels.csv --on-error skip
    packer convert test/ test.h5 --like train.h5
    packer convert images/ train.h5 --pair mask=masks/ --store jpeg
    packer convert images/ train --split train=0.9,val=0.1 --shard-size 2GB
    packer convert flights.csv flights.h5 --label arr_delay --missing median --on-error skip
    """
    from packer.tables.reading.table_source import is_table

    table = is_table(sources[0])
    pictured = False
    if table and sources[0].lower().endswith((".parquet", ".pq")):
        from packer.inputs.dataset_layouts import holds_images

        pictured = holds_images(sources[0])
        table = not pictured
    other, run = (IMAGES, _convert_tables) if table else (TABLES, _convert_images)
    for parameter in context.command.params:
        name = str(parameter.name)
        if isinstance(parameter, InputOption) and parameter.about == other:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                found = (
                    "a table"
                    if table
                    else "none (it holds images)"
                    if pictured
                    else "none (its name ends in neither .csv nor .parquet ...)"
                )
                raise UsageError(
                    f"{parameter.opts[0]}: is about {other}; {sources[0]} is {found}. Leave it out."
                )
            del options[name]
    run(sources, out, as_json=as_json, quiet=quiet, **options)


def _convert_images(
    sources: tuple[str, ...], out: str, *, pairs: tuple[str, ...], as_json: bool, quiet: bool, **options: Any
) -> None:
    """Run packer.convert_images and tell of it."""
    from packer.convert.image_conversion import convert_images

    source, *others = sources
    if options["max_pixels"] is None:
        del options["max_pixels"]
    said: list[str] = []

    def announce(plan: ConversionPlan) -> None:
        if not (quiet or as_json):
            said.extend(plan.notes)
            announce_plan(source if not others else f"{source} and {len(others):,} more", out, plan)

    report = convert_images(
        sources if others else source,
        out,
        pairs=parse_pairs(pairs),
        progress=not quiet,
        on_plan=announce,
        **options,
    )
    tell_conversion(report, said, "image", as_json=as_json, quiet=quiet)
    if not report.already:
        tell_skipped(report.skipped, out, listed=not as_json)


def _convert_tables(
    sources: tuple[str, ...], out: str, *, types: tuple[str, ...], as_json: bool, quiet: bool, **options: Any
) -> None:
    """Run packer.convert_table and tell of it."""
    from packer.tables.table_conversion import convert_table

    for name in ("label", "features"):
        options[name] = _names(options[name])
    for name in ("keep", "drop", "log1p", "one_hot"):
        options[name] = "all" if (name, options[name]) == ("one_hot", "all") else _names(options[name]) or ()
    options["quote"] = "" if options["quote"] == "none" else options["quote"]
    options["delimiter"] = {"tab": "\t", "\\t": "\t"}.get(options["delimiter"], options["delimiter"])
    said: list[str] = []

    def announce(plan: TablePlan) -> None:
        said.extend(plan.notes)
        if not (quiet or as_json):
            announce_table_plan(sources, out, plan)

    report = convert_table(sources, out, types=_types(types), progress=not quiet, on_plan=announce, **options)
    tell_conversion(report, said, "row", as_json=as_json, quiet=quiet)
    tell_left_out(report, out, listed=not as_json)


def parse_pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return {"mask": "masks/"} from ("mask=masks/",)."""
    pairs = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in pairs:
            raise UsageError(f"--pair {text}: is not NAME=DIR, each name once. Pass for example mask=masks/.")
        pairs[name] = folder
    return pairs


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
