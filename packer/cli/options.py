"""The options of the commands, a line each: those that several commands have, and those of packer convert."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from packer.cli.console import COMPRESS, Output
from packer.errors import UsageError
from packer.format.table_record import KINDS
from packer.path_text import as_text

_Command = TypeVar("_Command", bound=Callable[..., Any])
Decorator = Callable[[_Command], _Command]

IMAGES, TABLES, ARRAYS = _ALL = ("images", "tables", "arrays")
_IMAGES, _TABLES, _ARRAYS = (IMAGES,), (TABLES,), (ARRAYS,)
_PICTURES, _NAMED = (IMAGES, ARRAYS), (IMAGES, TABLES)
UNITS = ("relative", "pixels")
FIT, FORMAT, STORE = ("crop", "pad", "stretch"), ("h5", "npy"), ("raw", "jpeg")

PATH = click.Path(readable=False)
"""A path, which shells complete; whether it can be read is said elsewhere."""


class Word(click.ParamType):  # type: ignore[type-arg]
    """A word of the command line that is no path: UTF-8, by whichever locale Python decoded it.

    file: it may be the name of a file, which then stays as it is.
    """

    name = "text"

    def __init__(self, *, file: bool = False) -> None:
        self._file = file

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word as text."""
        return value if self._file and os.path.isfile(value) else as_text(value)


class InputOption(click.Option):
    """An option. about: the kinds of input that it is about, of IMAGES, TABLES and ARRAYS."""

    def __init__(self, *names: Any, about: tuple[str, ...] = _ALL, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.about = about


def option(
    names: str, kind: str | tuple[str, ...] | None, text: str, default: object = None, **settings: Any
) -> Decorator[Any]:
    """Return the decorator that adds an option to a command.

    names: as typed, then the parameter if it has another name; kind: what stands for its value in the help ("N" is a whole number), the
    choices, or None for a switch; default: shown in the help unless None; settings: as click.option has them.
    """
    if default is not None:
        settings = {"default": default, "show_default": True, **settings}
    if isinstance(kind, tuple):
        settings["type"] = click.Choice(kind)
    elif kind is None:
        settings["is_flag"] = True
    else:
        settings["metavar"] = kind
        if "=" in kind and settings.get("multiple"):
            settings["callback"] = _mapping
        if kind == "N":
            settings["type"] = int
        elif kind in ("FILE", "DIR", "PACK", "OUT", "SRC"):
            settings["type"] = PATH
        elif not isinstance(default, (int, float)) and kind not in ("NAME=DIR", "'CMD'"):
            settings.setdefault("type", Word(file=kind.startswith("FILE|")))
    return click.option(*names.split(), cls=InputOption, help=text, **settings)


def _mapping(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Return {"mask": "masks/"} for --pair mask=masks/."""
    given = {}
    for text in texts:
        folder = option.metavar == "NAME=DIR"
        name, equals, value = text.partition("=") if folder else text.rpartition("=")
        name = as_text(name) if folder else name
        if not (name and equals and value) or name in given:
            raise UsageError(
                f"{option.opts[0]} {text}: is not {option.metavar}, each name once. Pass {option.opts[0]} {option.metavar}."
            )
        given[name] = value
    return given


def options(*given: str | Decorator[Any]) -> Decorator[Any]:
    """Return the decorator that adds options in this order; text names one of those that several commands have."""

    def add(command: _Command) -> _Command:
        for one in reversed(given):
            command = (_SHARED[one] if isinstance(one, str) else one)(command)
        return command

    return add


def OUTPUT(command: _Command) -> Any:
    """Give a command --json and --quiet, which it takes as `output`."""

    @wraps(command)
    def run(*args: Any, as_json: bool, quiet: bool, **given: Any) -> None:
        command(*args, output=Output(command.__name__, as_json=as_json, quiet=quiet), **given)

    return options("--json", "--quiet")(run)


# fmt: off
_SHARED = {
    "--json": option("--json as_json", None, "Print one JSON object on stdout instead of text."),
    "--quiet": option("--quiet", None, "Print nothing but errors."),
    "--workers": option("--workers", "N", "Parallel workers, which change no result; default: the cores at hand."),
    "--duplicates": option(
        "--duplicates", ("error", "skip", "keep"),
        "Rows that are there already, of the same key and the same bytes (of tables: files): refuse them, leave them out, or have them"
        " twice.", "error"),
    "--overwrite": option("--overwrite", None, "Replace the output if it is a pack."),
    "--split": option("--split", "NAME", "Only the rows of one split."),
    "--shard-rows": option("--shard-rows", "N", "Begin another file every N rows; the pack is a directory."),
    "--shard-size": option("--shard-size", "SIZE", "Begin another file about every SIZE, for example 2GB."),
    "--seed": option("--seed", "N", "Of the shuffle and the splits.", 0),
    "--shuffle": option("--shuffle/--no-shuffle", None, "Store the rows in a random order.", True),
    "--labels": option("--labels", "FILE", "CSV of files and labels, as for convert."),
    "--pair": option("--pair pairs", "NAME=DIR", "Masks of the images, as for convert.", multiple=True),
    "--on-error": option(
        "--on-error", ("stop", "skip"),
        "At an input that cannot be packed: stop, or leave it out and list it (exit code 3).", "stop"),
}
"""Options that several commands have, by what is typed."""
# fmt: on


def merge_values(given: dict[str, Any]) -> dict[str, Any]:
    """Return options with the library's values: `store` for --compress, `shards` for --shard-rows, and the like."""
    if (address := given.pop("address", None)) is not None:
        if given["engine"] != "ray":
            raise UsageError("--address: is of a Ray cluster. Pass --engine ray, or leave it out.")
        given["engine"] = f"ray:{address}"
    compress, rows, size = (given.pop(name, None) for name in ("compress", "shard_rows", "shard_size"))
    if rows is not None and size is not None:
        raise UsageError("--shard-rows, --shard-size: both are given; one of them is used. Drop one.")
    if compress not in (None, "none"):
        if given.get("store") == "jpeg":
            raise UsageError(
                f"--compress {compress}: JPEG rows are compressed already. Pass --store raw, or no --compress."
            )
        given["store"] = compress
    elif compress == "none" and given.get("store") is None:
        given["store"] = "raw"
    return given | {"shards": rows if size is None else size}


# The lines are a table. Their order is that of the help.
# fmt: off
CONVERT = options(
    option("--size", "N|HxW|max=N|min=N|keep",
           "Side, or height x width; default: 256, arrays as they are. Whole pictures: longest side max=N, shortest min=N, or keep.",
           about=_PICTURES),
    option("--fit", FIT,
           "crop (default): shortest side to the size, centre crop; pad: fit inside, black bars; stretch: just that.", about=_PICTURES),
    option("--channels", "rgb|gray|rgba|N|auto",
           "What a pixel holds; default: rgb. N: that many bands (TIFF files, .npy); auto: as the first image.", about=_IMAGES),
    option("--format", FORMAT,
           "One HDF5 file, or a directory of .npy files; by default OUT's ending decides (.h5, .hdf5: HDF5).", about=_NAMED),
    option("--store", STORE,
           "Rows as pixels (default), or each as a JPEG file: a tenth of the size, decoded while loading.", about=_PICTURES),
    option("--quality", "N", "Of JPEG rows, 1 to 100; default: 90.", about=_PICTURES),
    option("--compress", COMPRESS, "Compress blocks of raw rows without loss (HDF5 only); default: none."),
    option("--labels", "FILE",
           "CSV of files (first column) and labels, for folders that do not say the class; or COCO's JSON of boxes.", about=_IMAGES),
    option("--label", "COLUMN,...",
           "Columns of --labels to take; default: the second. Of a table: what is to be predicted.", about=_NAMED),
    option("--label-file-column", "COLUMN",
           "The column of --labels that names files; default: the first.", about=_IMAGES),
    option("--label-separator", "TEXT",
           "Cells of the label column hold several class names with this between them, also space, tab, comma, bar.", about=_IMAGES),
    option("--unlabeled", "NAME,...",
           "Splits without class folders beside others that have them: their images get the label -1.", about=_IMAGES),
    option("--classes", "FILE|A,B,C",
           "The classes, in order: a file with one a line, or names. Others are errors; some may have no images.", about=_PICTURES),
    option("--boxes", "X1,Y1,X2,Y2", "Columns of --labels that hold boxes, in pixels of the image.", about=_IMAGES),
    option("--keypoints", "X,Y,...", "Columns of --labels that hold points, in pixels of the image.", about=_IMAGES),
    option("--boxes-unit", UNITS,
           "Boxes and keypoints are in pixels (default), or relative: shares of the image's width and height.", about=_IMAGES),
    option("--pair pairs", "NAME=DIR",
           "A field of masks: DIR/cat/1.png belongs to cat/1.jpg. May be given several times.", multiple=True, about=_IMAGES),
    option("--soft", "NAME,...", "Pairs that are no classes but mattes or depth: resampled linearly.", about=_IMAGES),
    option("--split", "NAME=SHARE,...",
           "Draw splits: train=0.9,val=0.1 (or 90, 10), train=rest,val=500; by place: test=last:500, first:N."),
    option("--split-column", "COLUMN", "Instead: the column, of --labels or of a table, that names the split of each row.",
           about=_NAMED),
    option("--group-column", "COLUMN",
           "With --split: rows of one value in this column, such as a patient or a video, are in one split.", about=_NAMED),
    "--shuffle",
    "--seed",
    "--shard-rows", "--shard-size",
    "--workers",
    "--on-error",
    option("--engine", ("local", "ray"), "Who makes the shards: this machine, or a Ray cluster, some each.", "local", about=_IMAGES),
    option("--address", "ADDRESS", "Of the Ray cluster; default: RAY_ADDRESS, or else Ray on this machine's cores.", about=_IMAGES),
    option("--only-shards", "K/N",
           "Each N-th of the shards from the K-th on, as in a SLURM array; then packer merge --index OUT.", about=_IMAGES),
    option("--max-pixels", "N", "Refuse larger inputs undecoded; default: 178,956,970.", about=_IMAGES),
    "--overwrite",
    option("--resume", None,
           "Go on only with a conversion of the same inputs and options; done already, it is left as it is."),
    OUTPUT,
    option("--features", "COLUMN,...", "Tables: only these columns are features; default: all.", about=_TABLES),
    option("--drop", "COLUMN,...", "Tables: leave columns out.", about=_TABLES),
    option("--keep", "COLUMN,...", "Tables: fields of their own instead of features.", about=_TABLES),
    option("--type types", "COLUMN=TYPE",
           f"Tables: {', '.join(KINDS)}, currency, percent, date-mdy, date-dmy, timestamp-mdy, timestamp-dmy;"
           " default: as the first rows look.", multiple=True, about=_TABLES),
    option("--label-as", ("auto", "classes", "float", "number"),
           "Labels that are numbers as classes, or as float (or number); auto: whole ones int64.", "auto", about=_NAMED),
    option("--missing", ("nan", "error", "mean", "median", "zero"),
           "Tables: what a missing feature becomes.", "nan", about=_TABLES),
    option("--indicators", None, "Tables: a 0/1 feature for each column with missing values.", about=_TABLES),
    option("--one-hot", "COLUMN,...|all", "Tables: categories as 0/1 features instead of codes.", about=_TABLES),
    option("--standardize", None, "Tables: numbers to mean 0 and standard deviation 1.", about=_TABLES),
    option("--log1p", "COLUMN,...", "Tables: log(1 + x) of these columns, before all else.", about=_TABLES),
    option("--dtype", "NAME",
           "Images: uint8 (default; the high byte of 16 bits), uint16. Tables: float32 (default), float16, float64, integers.",
           about=_NAMED),
    option("--max-categories", "N", "Tables: more different texts in a column are an error.", 100_000, about=_TABLES),
    option("--like", "PACK",
           "Images: classes, size, fit, channels, mean, std of PACK. Tables: columns, categories, statistics. Both: store, shards.",
           about=_NAMED),
    option("--rename", "NAME=FIELD",
           "Arrays: what an array, or a .npy file, is called in the pack; others are left out.", multiple=True, about=_ARRAYS),
    option("--header/--no-header", None,
           "CSV: the first line holds names; without, columns are called 0, 1, 2 ...", True, about=_TABLES),
    option("--delimiter", "CHAR", "CSV: between cells; default: found out. tab for a tab.", about=_TABLES),
    option("--skip-rows", "N", "CSV: lines passed over at the beginning of each file.", 0, about=_TABLES),
    option("--comment", "CHAR", "CSV: lines that begin with it are passed over.", about=_TABLES),
    option("--quote", "CHAR", "CSV: around cells; none for none.", '"', about=_TABLES),
    option("--decimal", "CHAR", "CSV: the decimal point.", ".", about=_TABLES),
    option("--thousands", "CHAR", "CSV: between thousands, passed over.", "", show_default=False, about=_TABLES),
    option("--na", "TEXT", "CSV: also means missing, beside NA, null, nan ...", multiple=True, about=_TABLES),
    option("--encoding", "NAME", "CSV: of the file.", "utf-8", about=_TABLES),
)
# fmt: on
