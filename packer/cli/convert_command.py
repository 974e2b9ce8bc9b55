"""packer convert: images, or a table, into one pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from packer.cli.console import json_option
from packer.cli.conversion_output import announce_plan, tell_conversion, tell_skipped
from packer.cli.table_options import IMAGES, TABLES, about_other, convert_tables, table_options
from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.convert.image_conversion import ConversionPlan


@click.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("out", metavar="OUT")
@click.option(
    "--size",
    metavar="N|HxW|keep",
    help="Side, or height x width, in pixels; powers of two; default: 256. keep, with --store jpeg: the files as they are.",
)
@click.option("--any-size", is_flag=True, help="Allow sizes that are not powers of two.")
@click.option("--fit", type=click.Choice(["crop", "pad", "stretch"]),
              help="crop (default): shortest side to the size, centre crop; pad: fit inside, black bars; stretch: just that.")  # fmt: skip
@click.option("--channels", type=click.Choice(["rgb", "gray", "rgba"]),
              help="What a pixel holds; default: rgb. Alpha is composited on white for rgb and gray.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["h5", "npy"]),
              help="One HDF5 file, or a directory of .npy files; by default OUT's ending decides (.h5, .hdf5: HDF5).")  # fmt: skip
@click.option("--store", type=click.Choice(["raw", "jpeg"]), default="raw", show_default=True,
              help="Rows as pixels, or each as a JPEG file: a tenth of the size, decoded while loading.")  # fmt: skip
@click.option("--quality", default=90, show_default=True, metavar="N", help="Of JPEG rows, 1 to 100.")
@click.option("--compress", default="none", show_default=True, metavar="NAME",
              help="Compress blocks of raw rows without loss (HDF5 only); docs/commands.md lists the names.")  # fmt: skip
@click.option("--labels", metavar="FILE",
              help="CSV of files (first column) and labels, for folders that do not say the class.")  # fmt: skip
@click.option("--label", metavar="COLUMN,...",
              help="Columns of --labels to take; default: the second. Of a table: what is to be predicted.")  # fmt: skip
@click.option("--label-file-column", metavar="COLUMN",
              help="The column of --labels that names files; default: the first that has a name.")  # fmt: skip
@click.option("--multi-label", is_flag=True, help="Cells of the label column hold several class names.")
@click.option("--label-separator", metavar="TEXT",
              help="What stands between these names, also space, tab, comma ...; default: found out (| or ;, comma, space).")  # fmt: skip
@click.option("--classes", metavar="FILE|A,B,C",
              help="The classes, in order: a file with one a line, or names. Others are errors; some may have no images.")  # fmt: skip
@click.option(
    "--boxes", metavar="X1,Y1,X2,Y2", help="Columns of --labels that hold boxes, in pixels of the image."
)
@click.option(
    "--keypoints", metavar="X,Y,...", help="Columns of --labels that hold points, in pixels of the image."
)
@click.option("--pair", "pairs", multiple=True, metavar="NAME=DIR",
              help="A field of masks: DIR/cat/1.png belongs to cat/1.jpg. May be given several times.")  # fmt: skip
@click.option("--split", metavar="NAME=SHARE,...", help="Draw splits, for example train=0.9,val=0.1.")
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Store the rows in a random order."
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of the shuffle and the splits.")
@click.option(
    "--shard-rows", type=int, metavar="N", help="Begin another file every N rows; OUT is a directory."
)
@click.option("--shard-size", metavar="SIZE", help="Begin another file about every SIZE, for example 2GB.")
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Parallel workers; default: the cores at hand. The result does not depend on it.",
)
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
              help="At an input that cannot be packed: stop, or leave it out and list it (exit code 3).")  # fmt: skip
@click.option(
    "--max-pixels", type=int, metavar="N", help="Refuse larger inputs undecoded; default: 178,956,970."
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a pack.")
@click.option("--resume", is_flag=True,
              help="Go on only with a conversion of the same inputs and options; done already, it is left as it is.")  # fmt: skip
@json_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@table_options
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
    .tar.gz or .zip of such a folder (name a folder inside it by path: photos.tar/train). Or it is a table: .csv, .tsv, each also .gz,
    .zst, .bz2 or .xz, .parquet, .arrow, .feather; several files, or globs in quotes, follow each other. OUT ends in .h5 for one HDF5
    file; else it is a directory of .npy files.

    An interrupted conversion goes on where it stopped when the same command is run again.

    \b
    packer convert images/ train.h5 --size 256
    packer convert cifar.tar.gz/train train.h5 --size 32
    packer convert photos/ train.h5 --labels labels.csv --on-error skip
    packer convert test/ test.h5 --like train.h5
    packer convert images/ train.h5 --pair mask=masks/ --store jpeg
    packer convert images/ train --split train=0.9,val=0.1 --shard-size 2GB
    packer convert flights.csv flights.h5 --label arr_delay --missing median --on-error skip
    """
    from packer.tables.reading.table_source import is_table

    table = is_table(sources[0])
    given = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    about_other(given, table, sources[0])
    if table:
        kept = {name: value for name, value in options.items() if name not in IMAGES}
        convert_tables(sources, out, as_json=as_json, quiet=quiet, format=kept.pop("format_"), **kept)
    elif len(sources) > 1:
        raise UsageError(
            f"{sources[1]}: is a second SRC; images come from one. Put the folders into one, or run packer merge."
        )
    else:
        kept = {name: value for name, value in options.items() if name not in TABLES}
        _convert_images(sources[0], out, as_json=as_json, quiet=quiet, **kept)


def _convert_images(
    source: str,
    out: str,
    *,
    format_: str | None,
    max_pixels: int | None,
    pairs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run packer.convert_images and tell of it."""
    from packer.convert.image_conversion import convert_images
    from packer.pixels.decode_resize import MAX_PIXELS

    said: list[str] = []

    def announce(plan: ConversionPlan) -> None:
        if not (quiet or as_json):
            said.extend(plan.notes)
            announce_plan(source, out, plan)

    report = convert_images(
        source,
        out,
        format=format_,
        max_pixels=MAX_PIXELS if max_pixels is None else max_pixels,
        pairs=parse_pairs(pairs),
        progress=not quiet,
        on_plan=announce,
        **options,
    )
    tell_conversion(report, said, "image", as_json=as_json, quiet=quiet)
    if not report.already:
        tell_skipped(report.skipped, out, listed=not as_json)


def parse_pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return {"mask": "masks/"} from ("mask=masks/",)."""
    pairs = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in pairs:
            raise UsageError(f"--pair {text}: is not NAME=DIR, each name once. Pass for example mask=masks/.")
        pairs[name] = folder
    return pairs
