"""packer convert: images, or a table, into one pack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from packer.cli.console import say
from packer.cli.conversion_output import (
    announce_plan,
    announce_table_plan,
    tell_conversion,
    tell_left_out,
    tell_notes,
    tell_skipped,
)
from packer.cli.options import ARRAYS, CONVERT, IMAGES, PATH, TABLES, InputOption, merge_values
from packer.errors import UsageError
from packer.path_text import as_text
from packer.source_kinds import PARQUET, is_array_file, is_table

if TYPE_CHECKING:
    from packer.convert.image_conversion import ConversionPlan
    from packer.inputs.image_pairs import Soft
    from packer.inputs.label_options import Labels
    from packer.tables.table_conversion import TablePlan


@click.command()
@click.argument("sources", metavar="SRC...", nargs=-1, type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
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
    .tar.gz or .zip of such a folder (name a folder inside it by path: photos.tar/train). Or it is WebDataset's tars
    or Parquet files of images (a folder of them, or several), or a folder with COCO's annotations. Or it is a table: .csv,
    .tsv, each also .gz, .zst, .bz2 or .xz, .parquet, .arrow, .feather; several files, or globs in quotes, follow each other. Or it
    is arrays: an .h5 file of datasets, a .npz, one .npy file a field. OUT ends in .h5 for one HDF5 file; else it is a directory of
    .npy files.

    An interrupted conversion goes on where it stopped when the same command is run again.

    \b
    packer convert images/ train.h5 --size 256
    packer convert cifar.tar.gz/train train.h5 --size 32
    packer convert photos/ train.h5 --labels labels.csv --on-error skip
    packer convert test/ test.h5 --like train.h5
    packer convert images/ train.h5 --pair mask=masks/ --store jpeg
    packer convert images/ train --split train=0.9,val=0.1 --shard-size 2GB
    packer convert flights.csv flights.h5 --label arr_delay --missing median --on-error skip
    packer convert images.npy labels.npy train.h5
    """
    if not sources:  # of a single path click makes the last argument
        raise UsageError(
            f"{out}: OUT is missing, the pack to make. Pass for example packer convert {out} train.h5."
        )
    kind, run = _kind_of(sources[0])
    for parameter in context.command.params:
        name = str(parameter.name)
        if isinstance(parameter, InputOption) and not parameter.is_about(kind):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                about = parameter.about[-1] if kind == IMAGES else parameter.about[0]
                found = {
                    TABLES: "a table",
                    ARRAYS: "a file of arrays",
                    IMAGES: f"none ({_otherwise(sources[0], about)})",
                }
                raise UsageError(
                    f"{parameter.opts[0]}: is about {about}; {sources[0]} is {found[kind]}. Leave it out."
                )
            del options[name]
    run(sources, out, as_json=as_json, quiet=quiet, **merge_values(options))


_ENDINGS = {TABLES: "neither .csv nor .parquet ...", ARRAYS: "neither .h5 nor .npy ..."}


def _otherwise(source: str, kind: str) -> str:
    """Return why a source of images is not of another kind."""
    if _is_parquet(source):
        return "it holds images"
    return f"its name ends in {_ENDINGS.get(kind, '')}"


def _is_parquet(source: str) -> bool:
    return source.lower().endswith(PARQUET)


def _kind_of(source: str) -> tuple[str, Callable[..., None]]:
    """Return the kind of input that a source is, and the function that converts it."""
    if is_array_file(source):
        return ARRAYS, _convert_arrays
    if not is_table(source):
        return IMAGES, _convert_images
    if _is_parquet(source):
        from packer.inputs.dataset_layouts import holds_images

        if holds_images(source):
            return IMAGES, _convert_images
    return TABLES, _convert_tables


def _convert_images(
    sources: tuple[str, ...],
    out: str,
    *,
    pairs: tuple[str, ...],
    soft: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run packer.convert_images and tell of it."""
    from packer.convert.image_conversion import convert_images

    source, *others = sources
    if options["max_pixels"] is None:
        del options["max_pixels"]
    said: list[str] = []

    def announce(plan: ConversionPlan) -> None:
        said.extend(plan.notes)
        announce_plan(source if not others else f"{source} and {len(others):,} more", out, plan)

    report = convert_images(
        sources if others else source,
        out,
        labels=_labels(options),
        pairs=_with_soft(parse_pairs(pairs), _names(soft) or ()),
        progress=not quiet,
        on_plan=None if quiet or as_json else announce,
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
    from packer.tables.table_options import Csv, Encode

    if options["dtype"] is None:
        del options["dtype"]
    for name in ("label", "features"):
        options[name] = _names(options[name])
    for name in ("keep", "drop", "log1p", "one_hot"):
        options[name] = "all" if (name, options[name]) == ("one_hot", "all") else _names(options[name]) or ()
    csv, encode = ({f.name: options.pop(f.name) for f in fields(kind)} for kind in (Csv, Encode))
    csv["quote"] = "" if csv["quote"] == "none" else csv["quote"]
    csv["delimiter"] = _mark(csv["delimiter"])
    said: list[str] = []

    def announce(plan: TablePlan) -> None:
        said.extend(plan.notes)
        if not (quiet or as_json):
            announce_table_plan(sources, out, plan)

    report = convert_table(
        sources,
        out,
        types=_types(types),
        csv=Csv(**csv),
        encode=Encode(**encode),
        progress=not quiet,
        on_plan=announce,
        **options,
    )
    tell_conversion(report, said, "row", as_json=as_json, quiet=quiet)
    tell_left_out(report, out, listed=not as_json)


def _convert_arrays(
    sources: tuple[str, ...],
    out: str,
    *,
    rename: tuple[str, ...],
    on_error: str,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run packer.pack_dataset on files of arrays and tell of it."""
    from packer.samples.pack_dataset import pack_dataset
    from packer.samples.packing import Fields

    for source in sources:
        if not is_array_file(source):
            raise UsageError(
                f"{source}: is no file of arrays (.h5, .npy, .npz), as the first SRC is; all are. Leave it out."
            )
    said: list[str] = []

    def announce(notes: Sequence[str]) -> None:
        if not (quiet or as_json):
            said.extend(notes)
            say(notes[0])
            tell_notes(notes[1:])

    names = {}
    for text in rename:
        name, equals, field = text.rpartition("=")
        if not (name and equals and field) or name in names:
            raise UsageError(
                f"--rename {text}: is not NAME=FIELD, each name once. Pass for example X_train=image."
            )
        names[name] = field
    options["fit"] = options["fit"] or "crop"
    report = pack_dataset(
        list(sources),
        out,
        fields=Fields(rename=names, boxes_unit=options.pop("boxes_unit")),
        on_error=on_error,
        progress=not quiet,
        on_plan=announce,
        **options,
    )
    tell_conversion(report, said, "row", as_json=as_json, quiet=quiet)


def parse_pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return {"mask": "masks/"} from ("mask=masks/",)."""
    pairs = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in pairs:
            raise UsageError(f"--pair {text}: is not NAME=DIR, each name once. Pass for example mask=masks/.")
        pairs[as_text(name)] = folder
    return pairs


def _labels(options: dict[str, Any]) -> Labels | None:
    """Return the value of `labels`, made of the options about labels, which are removed."""
    from packer.inputs.label_options import Labels
    from packer.inputs.label_values import BARS

    multi, separator = options.pop("multi_label"), options.pop("label_separator")
    return Labels(
        options.pop("labels"),
        options.pop("label"),
        BARS if multi and separator is None else separator,
        options.pop("label_file_column"),
        options.pop("label_as"),
        options.pop("boxes"),
        options.pop("keypoints"),
        options.pop("boxes_unit"),
    )


def _with_soft(pairs: dict[str, str], names: Iterable[str]) -> dict[str, str | Soft]:
    """Return the pairs, those of these names as soft maps."""
    from packer.inputs.image_pairs import Soft

    for name in names:
        if name not in pairs:
            raise UsageError(
                f"--soft {name}: is none of the pairs ({', '.join(pairs) or 'there are none'}); their names are allowed. Pass such, or"
                f" --pair {name}=DIR, too."
            )
    return {name: Soft(folder) if name in names else folder for name, folder in pairs.items()}


def _mark(text: str | None) -> str | None:
    """Return the character that a delimiter names: itself, tab, or an escape as messages show it."""
    if text is not None and re.fullmatch(r"\\(t|x[0-9a-f]{2})", text):
        return text.encode().decode("unicode_escape")
    return "\t" if text == "tab" else text


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
