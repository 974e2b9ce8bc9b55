"""Options of the commands, one line each: shared options, and the options of packer convert."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import click

from packer.cli.console import Output
from packer.cli.option_words import COMPRESS
from packer.errors import UsageError
from packer.format.table_record import KINDS
from packer.path_text import as_text

_Command = TypeVar("_Command", bound=Callable[..., Any])
Decorator = Callable[[_Command], _Command]

IMAGES, TABLES, ARRAYS = _ALL = ("images", "tables", "arrays")
UNITS, FRAMES, UNLISTED = ("relative", "pixels"), ("upright", "stored"), ("error", "empty")
BOXES = ("xyxy", "xywh", "cxcywh")
FIT, FORMAT, STORE = ("crop", "pad", "stretch"), ("h5", "npy"), ("raw", "jpeg")

PATH = click.Path(readable=False)
"""A path, which shells can complete; the library reports unreadable paths."""


class Word(click.ParamType):  # type: ignore[type-arg]
    """An argument that is not a path: decoded as UTF-8, independent of Python's locale.

    file: leave an argument that names an existing file unchanged.
    """

    name = "text"

    def __init__(self, *, file: bool = False) -> None:
        self._file = file

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the argument as text."""
        return value if self._file and os.path.isfile(value) else as_text(value)


class InputOption(click.Option):
    """An option of packer convert. about: kinds of input that it applies to (IMAGES, TABLES, ARRAYS)."""

    def __init__(self, *names: Any, about: tuple[str, ...] = _ALL, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.about = about


def option(
    names: str, kind: str | tuple[str, ...] | None, text: str, default: object = None, **settings: Any
) -> Decorator[Any]:
    """Return a decorator that adds an option to a command.

    names: option names, then the parameter name if it differs; kind: placeholder of the value in the help
    ("N": an integer), a tuple of choices, or None for a flag; default: shown in the help unless None;
    settings: further arguments of click.option.
    """
    if default is not None:
        settings = {"default": default, "show_default": True, **settings}
    if isinstance(kind, tuple):
        settings["type"] = click.Choice(kind)
    elif kind is None:
        settings["is_flag"] = True
        if "/" in names:
            settings.setdefault("default", None)  # neither, so that the library decides
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
    """Parse NAME=VALUE arguments: --pair mask=masks/ -> {"mask": "masks/"}."""
    given = {}
    for text in texts:
        folder = option.metavar == "NAME=DIR"
        name, equals, value = text.partition("=") if folder else text.rpartition("=")
        name = as_text(name) if folder else name
        if not (name and equals and value) or name in given:
            raise UsageError(
                f"{option.opts[0]} {text}: is not {option.metavar}, each name once."
                f" Pass {option.opts[0]} {option.metavar}."
            )
        given[name] = value
    return given


def options(*given: str | Decorator[Any]) -> Decorator[Any]:
    """Return a decorator that adds options in this order; a text names some of the shared options."""
    each = [one for item in given for one in (item.split() if isinstance(item, str) else [item])]

    def add(command: _Command) -> _Command:
        for item in reversed(each):
            command = (_SHARED[item] if isinstance(item, str) else item)(command)
        return command

    return add


def _with_output(command: _Command, names: str) -> Any:
    """Add --json, and --quiet, to a command, which receives them as `output` (an Output)."""

    @wraps(command)
    def run(*args: Any, as_json: bool, quiet: bool = False, **given: Any) -> None:
        command(*args, output=Output(command.__name__, as_json=as_json, quiet=quiet), **given)

    return options(names)(run)


OUTPUT, JSON = partial(_with_output, names="--json --quiet"), partial(_with_output, names="--json")


# fmt: off
_SHARED = {
    "--json": option("--json as_json", None, "Print one JSON object on stdout instead of text."),
    "--quiet": option("--quiet", None, "Print nothing but errors."),
    "--workers": option("--workers", "N",
        "Parallel workers; the result does not depend on it. Default: available cores."),
    "--duplicates": option("--duplicates", ("error", "skip", "keep"),
        "Rows whose key (path below the source; tables: file) the pack has already: fail, leave them out, or"
        " store both.", "error"),
    "--overwrite": option("--overwrite", None, "Replace the output if it is a pack."),
    "--split": option("--split", "NAME,...", "Only the rows of this split, or of these."),
    "--shard-rows": option("--shard-rows", "N", "Start a new file every N rows; the pack is a directory."),
    "--shard-size": option("--shard-size", "SIZE", "Start a new file about every SIZE, for example 2GB."),
    "--seed": option("--seed", "N", "Seed of the shuffle and the splits.", 0),
    "--shuffle": option("--shuffle/--no-shuffle", None, "Shuffle the rows (default, but for sequences)."),
    "--labels": option("--labels", "FILE", "CSV of file names and labels, as for convert."),
    "--pair": option("--pair pairs", "NAME=DIR", "Masks of the images, as for convert.", multiple=True),
    "--on-error": option("--on-error", ("stop", "skip"),
        "For an input that cannot be packed: stop, or leave it out and list it (exit code 3).", "stop"),
}
"""Options that several commands share, by name."""
# fmt: on


def splits_of(pack: str, names: str | None) -> str | list[str] | None:
    """Return the splits of --split: one, or several separated by commas, unless a split has that name."""
    if names is None or "," not in names:
        return names
    from packer.packs.pack_opening import open_pack

    return names if names in open_pack(pack).header.splits else [name.strip() for name in names.split(",")]


def merge_values(given: dict[str, Any]) -> dict[str, Any]:
    """Return options as arguments of the library: --compress as `store`, --shard-rows as `shards`, etc."""
    if (address := given.pop("address", None)) is not None:
        if given["engine"] != "ray":
            raise UsageError("--address: is of a Ray cluster. Pass --engine ray, or leave it out.")
        given["engine"] = f"ray:{address}"
    compress, rows, size = (given.pop(name, None) for name in ("compress", "shard_rows", "shard_size"))
    if rows is not None and size is not None:
        raise UsageError("--shard-rows, --shard-size: both are given; only one is allowed. Drop one.")
    if compress not in (None, "none"):
        if given.get("store") == "jpeg":
            raise UsageError(
                f"--compress {compress}: JPEG rows are compressed already."
                " Pass --store raw, or no --compress."
            )
        given["store"] = compress
    elif compress == "none" and given.get("store") is None:
        given["store"] = "raw"
    return given | {"shards": rows if size is None else size}


_picture, _named = partial(option, about=(IMAGES, ARRAYS)), partial(option, about=(IMAGES, TABLES))
_image, _table, _array = (partial(option, about=(kind,)) for kind in _ALL)
# The help lists the options in this order.
# fmt: off
CONVERT = options(
    _picture("--size", "N|HxW|max=N|min=N|keep",
        "Side, or height x width; default: 256, arrays unchanged. Images of different sizes: longest side"
        " max=N, shortest side min=N, or keep."),
    _picture("--fit", FIT,
        "crop (default): resize the shortest side, then centre crop; pad: fit inside, black bars; stretch:"
        " resize both sides."),
    _image("--channels", "rgb|gray|rgba|N|auto",
        "Channels of a pixel; default: rgb. N: that many bands (TIFF, .npy); auto: as in the first image."),
    _image("--icc", ("ignore", "srgb"),
        "Color profiles of the files: ignore (default), or convert other colors to sRGB."),
    _named("--format", FORMAT,
        "One HDF5 file, or a directory of .npy files; default: HDF5 if OUT ends in .h5, .hdf5, .hdf or"
        " .he5."),
    _picture("--store", STORE,
        "Store rows as pixels (default) or as JPEG files: a tenth of the size, decoded at loading."),
    _picture("--quality", "N", "Quality of JPEG rows, 1 to 100; default: 90."),
    option("--compress", COMPRESS, "Lossless compression of blocks of raw rows (HDF5 only); default: none."),
    _image("--labels", "FILE",
        "File names and labels, if folders are not the classes: CSV or other text, JSON, .xlsx, Parquet; or"
        " COCO's JSON of boxes."),
    _named("--label", "COLUMN,...",
        "Images: label columns of --labels (0, 1, 2 ... without a header); default: the only one besides the"
        " file names, or of boxes and keypoints the one of classes. Tables: columns to predict."),
    _image("--label-file-column", "COLUMN",
        "Column of --labels that holds the file names; default: the one that names images."),
    _named("--label-separator", "TEXT",
        "Separator of several class names in a label; also space, tab, comma, bar."),
    _image("--unlabeled", "NAME,...",
        "Splits without labels, beside splits with labels: their images get the label -1; all: no labels."),
    option("--classes", "FILE|A,B,C",
        "The classes, in order: names, or a file with one per line. Other classes are errors; a class may"
        " have no images."),
    _image("--boxes", "X1,Y1,X2,Y2",
        "Columns of --labels that hold boxes, in pixels of the image; names such as ymin,xmin,ymax,xmax and"
        " cx,cy,w,h tell the order. Or one column of lists, [12, 5, 40, 30]."),
    _image("--keypoints", "X,Y,...", "Columns of --labels that hold points, in pixels of the image."),
    _image("--flip-pairs", "LEFT:RIGHT,...|none",
        "Points that exchange their numbers in mirrored images; default: names with left and right."),
    _image("--boxes-unit", UNITS,
        "Unit of boxes and keypoints: pixels (default), or relative to the image's width and height."),
    _image("--boxes-format", BOXES,
        "Format of boxes: the columns of --boxes in this order (cx, cy: centre); default: by their names,"
        " else by their values; COCO: xywh."),
    _image("--boxes-frame", FRAMES,
        "Boxes and keypoints are those of the image turned upright by EXIF, or of the picture as stored;"
        " default: by the sizes in --labels, else upright."),
    _image("--unlisted", UNLISTED,
        "Images that the file of boxes or keypoints does not list: an error (default), or without any."),
    _image("--pair pairs", "NAME=DIR",
        "A field of masks: DIR/cat/1.png belongs to cat/1.jpg; also 'DIR/*_mask.png', or of both names"
        " 'DIR/*_mask.png from *_sat.jpg'. Can be given several times.", multiple=True),
    _image("--mask-values", "VALUE,...",
        "Values of the masks in the order of their classes: 0,255 stores 0 and 1; or colors:"
        " '#000000,#ff0000'. For one pair: NAME=VALUE,...", multiple=True),
    _image("--soft", "NAME,...",
        "Pairs of continuous values (mattes, depth) instead of classes: resampled linearly."),
    option("--split", "NAME=SHARE,...",
        "Random splits: train=0.9,val=0.1 (or 90, 10), train=rest,val=500; by position: test=last:500,"
        " first:N."),
    _named("--split-column", "COLUMN",
        "Instead of --split: column of --labels or of the table that names each row's split."),
    _named("--group-column", "COLUMN",
        "With --split: keep rows with equal values in this column (a patient, a video) in the same split."
        " With --sequence: they are a sequence."),
    _named("--sequence", None,
        "Store frames of a folder, or rows of a table, in order and undivided, for windows of consecutive"
        " rows: images by the numbers in their names."),
    _named("--order-column", "COLUMN",
        "Implies --sequence: column by which the rows of a sequence are sorted."),
    option("--shuffle/--no-shuffle", None,
        "Store the rows in a random order (default), or in that of the source (default for tables without"
        " --label, or with --like)."),
    "--seed --shard-rows --shard-size --workers --on-error",
    _image("--engine", ("local", "ray"),
        "Processes that write the shards: on this machine, or on a Ray cluster.", "local"),
    _image("--address", "ADDRESS",
        "Address of the Ray cluster; default: RAY_ADDRESS, else Ray on this machine's cores."),
    _image("--only-shards", "K/N",
        "Write every N-th shard from the K-th on, as in a SLURM array; then run packer merge --index OUT."),
    _image("--max-pixels", "N", "Refuse larger images before decoding them; default: 178,956,970."),
    "--overwrite",
    option("--resume", None,
        "The same command continues an interrupted conversion anyhow. With --resume, changed inputs or"
        " options are an error, and a complete OUT is left as it is."),
    option("--dry-run", None,
        "Write nothing; print what would be packed: splits, classes, fields, doubts, with examples."),
    OUTPUT,
    _table("--features", "COLUMN,...", "Use only these columns as features; default: all."),
    _table("--drop", "COLUMN,...", "Leave these columns out."),
    _table("--keep", "COLUMN,...", "Store these columns as separate fields, not as features."),
    _table("--type types", "COLUMN=TYPE",
        f"Type: {', '.join(KINDS)}, currency, percent, date-name, date-ymd, date-mdy, date-dmy, time-12h,"
        " timestamp-offset, timestamp-mdy, timestamp-dmy, verbatim (only empty cells are missing); default:"
        " guessed from the first rows.", multiple=True),
    _named("--label-as", ("auto", "classes", "float", "number"),
        "Read labels as classes, also numbers and texts that differ in each row, or as float (or number);"
        " auto: integers as int64.", "auto"),
    _table("--missing", ("nan", "error", "mean", "median", "zero"),
        "Tables: replacement of a missing feature.", "nan"),
    _table("--indicators", None, "Add a 0/1 feature for each column with missing values."),
    _table("--one-hot", "COLUMN,...|all", "Encode categories as 0/1 features, not as codes."),
    _table("--standardize", None, "Scale numbers to mean 0 and standard deviation 1."),
    _table("--log1p", "COLUMN,...", "Apply log(1 + x) to these columns before other steps."),
    _named("--dtype", "NAME",
        "Images: uint8 (default; the high byte of 16 bits), uint16. Tables: float32 (default), float16,"
        " float64, integers."),
    _table("--max-categories", "N", "Most distinct texts in a column; more are an error.", 100_000),
    _named("--like", "PACK",
        "Images: take classes, size, fit, channels, mean, std from PACK. Tables: columns, categories,"
        " statistics. Both: store, shards."),
    _array("--rename", "NAME=FIELD",
        "Field name of an array or .npy file, where x, images, y, labels and the like do not tell"
        " it.", multiple=True),
    _table("--header/--no-header", None,
        "The first line holds the column names; without it columns are called 0, 1, 2 ...", True),
    _table("--delimiter", "CHAR", "Delimiter of cells, tab for a tab; default: detected."),
    _table("--skip-rows", "N", "Lines to skip at the beginning of each file.", 0),
    _table("--comment", "CHAR", "Skip lines that begin with this character."),
    _table("--escape", "CHAR",
        "Character before a literal quote or delimiter, as \\; with --delimiter."),
    _table("--quote", "CHAR", "Quote character; none: cells are not quoted.", '"'),
    _table("--decimal", "CHAR", "Decimal point.", "."),
    _table("--thousands", "CHAR",
        "Separator of groups of three digits, removed from numbers.", "", show_default=False),
    _table("--na", "TEXT",
        'A further text for missing values, beside NA, null, nan ...; --na "": in place of'
        " them.", multiple=True),
    _table("--keep-spaces", None, "Texts keep the spaces around them."),
    _table("--encoding", "NAME", "Encoding of the file.", "utf-8"),
)
# fmt: on
