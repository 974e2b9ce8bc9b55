"""packer convert: images, or a table, into one pack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from packer.cli.console import (
    Output,
    announce_arrays,
    announce_plan,
    announce_table_plan,
    cli,
    tell_report,
    tell_splits,
)
from packer.cli.dry_run import tell_columns, tell_contents, tell_dry_run
from packer.cli.help_sections import SectionedCommand
from packer.cli.option_words import OPTIONS
from packer.cli.options import ARRAYS, CONVERT, IMAGES, PATH, TABLES, InputOption, merge_values
from packer.errors import UsageError
from packer.source_kinds import is_array_file, is_table

if TYPE_CHECKING:
    from packer.convert.conversion_task import Report
    from packer.convert.image_planning import ConversionPlan
    from packer.convert.row_sequence import Sequences
    from packer.convert.splits import Split
    from packer.inputs.image_pairs import Soft
    from packer.tables.table_conversion import TablePlan


@cli.command(cls=SectionedCommand)
@click.argument("sources", metavar="SRC...", nargs=-1, type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@CONVERT
@click.pass_context
def convert(
    context: click.Context, /, sources: tuple[str, ...], out: str, *, output: Output, **options: Any
) -> None:
    """Pack images, or a table, into one file.

    SRC can be images: a folder with one sub-folder per class, a flat folder, a folder of train/, val/ and
    test/, a text file that lists paths, an archive of these as .tar or .zip (photos.tar/train names a folder
    in it), WebDataset tars or Parquet files of images (a folder of them, or several SRC), a folder of COCO,
    YOLO or Pascal VOC annotations, YOLO's data.yaml. SRC can be a table: .csv, .tsv, .xlsx, .jsonl, each also
    as .gz, .zst, .bz2, .xz or .zip, .parquet, .arrow, .feather, a folder of nothing else; rows of several
    files, or quoted globs, are appended in that order. SRC can be arrays: an .h5 or .mat file of datasets, a
    .npz file, or one .npy file per field. OUT becomes one HDF5 file if it ends in .h5, else a directory of
    .npy files.

    To continue an interrupted conversion, run the same command again. --help WORD shows only the options
    about a word: masks, boxes, labels, splits, disk, tables, CSV.

    \b
    packer convert images/ train.h5 --size 256
    packer convert cifar.tar.gz/train train.h5 --size 32
    packer convert photos/ train.h5 --labels labels.csv --on-error skip
    packer convert test/ test.h5 --like train.h5
    packer convert photos/ train.h5 --dry-run
    packer convert yolo/ boxes.h5 --size max=640 --store jpeg
    packer convert flights.csv flights.h5 --label arr_delay
    packer convert images.npy labels.npy train.h5
    """
    if not sources:  # click assigns a single path to the last argument
        raise UsageError(
            f"{out}: OUT, the pack to write, is missing. Pass for example packer convert {out} train.h5."
        )
    kind = kind_of(sources[0])
    given = take_options(context, kind, sources[0], out, options)
    run = {IMAGES: _convert_images, TABLES: _convert_tables, ARRAYS: _convert_arrays}[kind]
    contents: dict[str, Any] = {}
    report = run(sources, out, output, contents, progress=not output.quiet, **given)
    if given["dry_run"]:
        tell_dry_run(output, report, contents)
        return
    if kind == TABLES:
        tell_splits(output, report.splits)
    tell_report(output, report, "image" if kind == IMAGES else "row", skipping=True)


def take_options(
    context: click.Context, kind: str, source: str, out: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options that apply to a kind of source, as arguments of the library, if they have a value.

    out: for messages. Raises UsageError if an option was given that does not apply.
    """
    for parameter in context.command.params:
        name = str(parameter.name)
        if isinstance(parameter, InputOption) and kind not in parameter.about and name in options:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                read_as = "a table" if kind == TABLES else kind
                raise UsageError(
                    f"{parameter.opts[0]}: is about {' and '.join(parameter.about)};"
                    f" {source} is read as {read_as}. {_remedy(name, kind, options[name], out)}"
                )
            del options[name]
    return {name: value for name, value in merge_values(options).items() if value is not None}


def _remedy(name: str, kind: str, value: Any, out: str) -> str:
    """Return the remedy for an option that does not apply to a kind of source."""
    if (name, kind) == ("label", ARRAYS):
        return f"Pass --rename {value}=label."
    if (name, kind) == ("labels", TABLES):
        return f"Pass the folder of the images as SRC: packer convert FOLDER {out} --labels {value}."
    return "Leave it out."


def kind_of(source: str) -> str:
    """Return the kind of a source: IMAGES, TABLES or ARRAYS."""
    if is_array_file(source):
        return ARRAYS
    if not is_table(source):
        return IMAGES
    from packer.inputs.image_sources import holds_images

    return IMAGES if holds_images(source) else TABLES


def image_keywords(
    *, pairs: Mapping[str, str], soft: str = "", mask_values: tuple[str, ...] = (), **options: Any
) -> dict[str, Any]:
    """Return the options of an image conversion as keywords of convert_images."""
    from packer.inputs.label_options import Labels

    keywords = {"labels": _value(Labels, options), "sequence": _sequence(options), "split": _split(options)}
    keywords |= {"pairs": _with_soft(pairs, _comma_list(soft)), "mask_values": _by_pair(mask_values)}
    return keywords | options


def array_keywords(**options: Any) -> dict[str, Any]:
    """Return the options of a conversion of files of arrays as keywords of pack_dataset."""
    from packer.samples.packing import Fields

    return {"fields": _value(Fields, options), **options}


def _convert_images(
    sources: tuple[str, ...], out: str, output: Output, contents: dict[str, Any], **options: Any
) -> Report:
    """Run packer.convert_images. contents: gets what a dry run would pack."""
    from packer.convert.image_conversion import convert_images

    def announce(plan: ConversionPlan) -> None:
        announce_plan(output, sources, out, plan)
        if options["dry_run"]:
            tell_contents(output, plan.contents)
            contents.update(plan.contents.to_dict())

    source = sources if len(sources) > 1 else sources[0]
    return convert_images(source, out, on_plan=announce, **image_keywords(**options))


def _convert_tables(
    sources: tuple[str, ...], out: str, output: Output, contents: dict[str, Any], **options: Any
) -> Report:
    """Run packer.convert_table. contents: gets what a dry run would pack."""
    from packer.tables.table_conversion import convert_table
    from packer.tables.table_options import Csv, Encode

    def announce(plan: TablePlan) -> None:
        announce_table_plan(output, sources, out, plan)
        if options["dry_run"]:
            tell_columns(output, plan)
            contents.update(roles=plan.roles, types=plan.types)

    for name in {"label", "features", "keep", "drop", "log1p", "one_hot"} & set(options):
        if (name, options[name]) != ("one_hot", "all"):
            options[name] = _comma_list(options[name])
    options["quote"] = "" if options["quote"] == "none" else options["quote"]
    options["delimiter"] = _mark(options.get("delimiter"))
    options |= {"csv": _value(Csv, options), "encode": _value(Encode, options)}
    options |= {"sequence": _sequence(options), "split": _split(options)}
    return convert_table(sources, out, on_plan=announce, **options)


def _convert_arrays(
    sources: tuple[str, ...], out: str, output: Output, contents: dict[str, Any], **options: Any
) -> Report:
    """Run packer.pack_dataset on files of arrays."""
    from packer.samples.pack_dataset import pack_dataset

    announce = partial(announce_arrays, output)
    return pack_dataset(list(sources), out, on_plan=announce, **array_keywords(**options))


def _value(kind: Any, options: dict[str, Any]) -> Any:
    """Remove the options that are members of a value object, and return the object."""
    typed = {one.name: OPTIONS.get(f"{kind.__name__}.{one.name}", one.name) for one in fields(kind)}
    names = {member: name.replace("-", "_") for member, name in typed.items()}
    return kind(**{member: options.pop(name) for member, name in names.items() if name in options})


def _split(options: dict[str, Any]) -> Split | None:
    """Remove the options about splits, and return the value of `split`."""
    from packer.convert.splits import Split

    given = {"split", "split_column", "group_column"} & options.keys()
    return _value(Split, options) if given else None


def _sequence(options: dict[str, Any]) -> Sequences | bool:
    """Remove the options about sequences, and return the value of `sequence`."""
    from packer.convert.row_sequence import Sequences

    given, order = options.pop("sequence", None), options.pop("order_column", None)
    # Splits do not divide sequences, so the column is theirs alone.
    return Sequences(options.pop("group_column", None), order) if given or order is not None else False


def _with_soft(pairs: Mapping[str, str], names: Iterable[str]) -> dict[str, str | Soft]:
    """Return the pairs; folders of the given names become soft maps."""
    from packer.inputs.image_pairs import Soft

    for name in names:
        if name not in pairs:
            raise UsageError(
                f"--soft {name}: is not the name of a --pair ({', '.join(pairs) or 'there are none'})."
                f" Pass --pair {name}=DIR too, or another name."
            )
    return {name: Soft(folder) if name in names else folder for name, folder in pairs.items()}


def _by_pair(texts: tuple[str, ...]) -> str | dict[str, str] | None:
    """Return the value of `mask_values`: ("0,255",) -> "0,255", ("mask=0,255",) -> {"mask": "0,255"}."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    given = {name: values for name, equals, values in (text.partition("=") for text in texts) if equals}
    if len(given) < len(texts):
        raise UsageError(
            "--mask-values: is given several times; each is NAME=VALUE,..., for another --pair. Pass it once "
            "for"
            " all masks."
        )
    return given or None


def _mark(text: str | None) -> str | None:
    """Return the character of --delimiter: itself, "tab", or an escape as in messages (\\t, \\x1f)."""
    if text is not None and re.fullmatch(r"\\(t|x[0-9a-f]{2})", text):
        return text.encode().decode("unicode_escape")
    return "\t" if text == "tab" else text


def _comma_list(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
