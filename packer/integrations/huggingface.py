"""to_hf, from_hf: convert a pack to a Dataset of Hugging Face's `datasets`, and back, value by value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.convert.export_files import fits_png, png
from packer.errors import MissingDependencyError, PackerError, UsageError
from packer.format.checksums import digest
from packer.machine import cores
from packer.orders.runs import Subset, one_run, pieces
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.read.row_selection import ALL, select, select_fields, stored
from packer.samples.field_plan import IMAGE, LABEL
from packer.samples.pack_dataset import pack_dataset
from packer.samples.packing import Fields
from packer.version import __version__

try:
    import datasets
except ImportError:
    raise MissingDependencyError("datasets", "packer.integrations.huggingface") from None

if TYPE_CHECKING:
    from packer.convert.conversion_task import Report
    from packer.format.fields import Field

_ARRAYS: dict[int, Any] = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D, 5: datasets.Array5D}
_TEXTS = {"string": "text", "large_string": "text", "binary": "bytes", "large_binary": "bytes"}
_NUMBERS = (
    *("bool", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_PIECE_BYTES = 16 << 20
_GROUP_ROWS = 100
"""Rows that `datasets` writes at once; its own number for images."""


def to_hf(
    pack: str | os.PathLike[str] | Pack,
    *,
    fields: Sequence[str] | None = None,
    split: str | Sequence[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Any:
    """Return the rows of a pack as a Dataset of Hugging Face's `datasets`.

    Parameters
    ----------
    pack : str, path or Pack
        The pack, or its URL.
    fields : sequence of str, optional
        Names; default: all fields, texts too.
    split : str or sequence of str, optional
        Name of a split, or of several, or "all" for every row. Default: a DatasetDict of all splits, if the
        pack has splits.
    cache_dir : str or path, optional
        Folder for the Arrow files; default: the cache of `datasets`, which identifies the pack by its
        checksums and writes it once.

    Returns
    -------
    datasets.Dataset or datasets.DatasetDict
        Rows in the order of the pack. 8-bit images are ``Image``, losslessly as PNG files, or as stored if
        they are JPEG; labels with class names ``ClassLabel``; masks and other arrays ``Array2D`` to
        ``Array5D``; vectors and ragged fields ``List``; text and numbers ``Value``.

    Raises
    ------
    MissingDependencyError
        `datasets` is not installed (when this module is imported).
    FormatError
        The pack is incomplete or damaged.
    UsageError
        A field or split does not exist, or a field has more axes than `datasets` supports.

    Notes
    -----
    Rows pass through memory in parts; the Dataset maps its files.

    Examples
    --------
    ::

        from packer.integrations.huggingface import to_hf

        photos = to_hf("train.h5")
        photos[0]["image"], photos.features["label"].names
    """
    opened = pack if isinstance(pack, Pack) else open_pack(pack)
    if split is None and opened.header.splits:
        found = {
            name: to_hf(opened, fields=fields, split=name, cache_dir=cache_dir)
            for name in opened.header.splits
        }
        return datasets.DatasetDict(found)
    chosen = stored(select_fields(opened, [f.name for f in opened.fields] if fields is None else fields))
    own = [opened.header.field(field.name) for field in chosen]
    features = datasets.Features({field.name: _feature(opened, field) for field in own})
    named = split if isinstance(split, str) else ""
    told = repr(([field.name for field in own], split, __version__)).encode()
    try:
        return datasets.Dataset.from_generator(
            partial(_rows, opened, own, select(opened, split=split)),
            features=features,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            fingerprint=digest([opened.seal or os.urandom(16), told]).hex(),
            split=datasets.NamedSplit(named if named.isidentifier() and named != ALL else "train"),
            writer_batch_size=_GROUP_ROWS,
        )
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, PackerError):
            raise error.__cause__ from None
        raise PackerError(
            f"{opened.path}: datasets cannot hold its rows ({error.__cause__ or error}). Leave the field out"
            " by fields."
        ) from error


def _feature(pack: Pack, field: Field) -> Any:
    """Return the feature for a field. Raises UsageError."""
    about = field.about
    if _is_image(field):
        return datasets.Image()
    if field.ragged and "row_shape" not in about:
        return datasets.Value("string" if "encoding" in about else "binary")
    if field.name == LABEL and field.shape == () and pack.header.classes:
        return datasets.ClassLabel(names=list(pack.header.classes))
    shape = (-1, *about["row_shape"]) if field.shape is None else field.shape
    value = datasets.Value(np.dtype(about["dtype"] if field.ragged else field.dtype).name)
    if len(shape) < 2:
        return datasets.List(value, length=shape[0]) if shape else value
    if len(shape) not in _ARRAYS:
        raise UsageError(
            f"{pack.path}: rows of {field.name!r} have {len(shape)} axes; datasets has arrays of 2 to 5."
            " Leave it out by fields."
        )
    return _ARRAYS[len(shape)]((None if field.ragged else shape[0], *shape[1:]), value.dtype)


def _is_image(field: Field) -> bool:
    """Return True for a field with rows that are, or become, image files."""
    if field.ragged:
        return (field.codec or {}).get("name") == "jpeg"
    return field.about.get("layout") == "HWC" and fits_png(field)


def _rows(pack: Pack, fields: Sequence[Field], subset: Subset) -> Iterator[dict[str, Any]]:
    """Yield rows as `datasets` encodes them, read and encoded in parts."""
    row_bytes = sum(field.row_bytes for field in fields if not field.ragged)
    step = max(1, min(_GROUP_ROWS, _PIECE_BYTES // max(1, row_bytes)))
    with (
        closing(PackStore(pack, fields, subset, verify=True)) as store,
        ThreadPoolExecutor(cores(), thread_name_prefix="packer-to-hf") as threads,
    ):
        for start, stop in pieces(subset.rows, step):
            runs = one_run(start, stop)
            columns = {}
            for field in fields:
                name, ragged = field.name, field.ragged
                rows: Any
                if _is_image(field):
                    files = (
                        store.ragged(name, runs)
                        if ragged
                        else map(bytes, threads.map(png, store.array(name, runs)))
                    )
                    rows = [{"bytes": file, "path": None} for file in files]
                else:
                    rows = list(store.decoded(name, runs)) if ragged else store.array(name, runs)
                columns[name] = rows
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))


def from_hf(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    image: str | None = None,
    label: str | None = None,
    fields: Sequence[str] | None = None,
    **options: Any,
) -> Report:
    """Pack a Dataset of Hugging Face's `datasets`: `pack_dataset`, with fields from its features.

    Parameters
    ----------
    dataset : datasets.Dataset, DatasetDict or IterableDataset
        A DatasetDict becomes a pack with its splits, under their names.
    out : str or path
        As in convert_images.
    image, label : str, optional
        Columns for the fields ``image`` and ``label``; default: the columns of these names, else the only
        Image column and the only ClassLabel column. The class names of that label become the pack's.
    fields : sequence of str, optional
        Columns to pack; default: all.
    **options
        Other arguments of pack_dataset: size, fit, store, shuffle, seed, shards, workers, on_error,
        overwrite, resume, ...

    Returns
    -------
    Report
        Rows, seconds, bytes, skipped samples and notes.

    Raises
    ------
    MissingDependencyError
        `datasets` is not installed (when this module is imported).
    UsageError
        A column does not exist or cannot be packed, several could be the image or the label, or see
        pack_dataset.
    SourceError
        A sample does not fit, or holds None.

    Notes
    -----
    Values are stored exactly. Images are turned upright as `datasets` does; images that differ in size need
    size=. Another column of images or arrays of the size of the image is a mask, which augmentation moves
    with it.

    Examples
    --------
    ::

        from datasets import load_dataset
        from packer.integrations.huggingface import from_hf

        from_hf(load_dataset("uoft-cs/cifar10"), "cifar10.h5")
        PackedBatchDataset("cifar10.h5", 256, split="train", shuffle=True)
    """
    if isinstance(dataset, datasets.DatasetDict):
        if "split" in options:
            raise UsageError(
                f"split: the dataset already has splits ({', '.join(dataset)}). Leave it out, or pass one."
            )
        options["split"], first = {}, 0
        for name, part in dataset.items():
            options["split"][str(name)] = range(first, first := first + len(part))
        dataset = datasets.concatenate_datasets(list(dataset.values()))
    features = getattr(dataset, "features", None)
    if features is None:  # also for an IterableDatasetDict
        raise UsageError(
            f"{type(dataset).__name__}: has no known features. Pass dataset.cast(features), one of its"
            " splits, or use pack_dataset."
        )
    names = [*features] if fields is None else list(fields)
    if missing := [name for name in (*names, image, label) if name is not None and name not in features]:
        raise UsageError(
            f"{missing[0]}: is no column of the dataset, which has {', '.join(features)}. Pass some of these."
        )
    roles = {
        IMAGE: image or _only(features, names, IMAGE, datasets.Image),
        LABEL: label or _only(features, names, LABEL, datasets.ClassLabel),
    }
    others = [name for name in names if isinstance(features[name], datasets.Image) and name != roles[IMAGE]]
    if others and options.get("size") is not None:
        raise UsageError(
            f"size: {others[0]} holds images too, and only {roles[IMAGE]} would be resized. Resize both in"
            f" the dataset, by map, or leave {others[0]} out by fields."
        )
    renamed = {column: role for role, column in roles.items() if column is not None and column != role}
    forms = {renamed.get(name, name): _form(name, features[name]) for name in names}
    for name in names:
        if isinstance(features[name], datasets.Image) and not features[name].decode:
            dataset = dataset.cast_column(name, datasets.Image())
    dataset = dataset.with_format(None).select_columns(names)
    return pack_dataset(dataset, out, fields=Fields(forms, renamed), **options)


def _only(features: Mapping[str, Any], names: Sequence[str], role: str, kind: type) -> str | None:
    """Return the column for the field `role`: of that name, or the only column of its kind.

    Raises UsageError.
    """
    if role in names:
        return role
    found = [name for name in names if isinstance(features[name], kind)]
    if len(found) > 1:
        raise UsageError(f"{role}: {' and '.join(found)} could be it. Pass {role}={found[0]!r}, or another.")
    return found[0] if found else None


def _form(name: str, feature: Any) -> str | None:
    """Return pack_dataset's declaration of a feature's values; None to infer it from the first.

    Raises UsageError.
    """
    if isinstance(feature, datasets.Image):
        return None
    if isinstance(feature, datasets.ClassLabel):
        return "int64"
    inner = feature
    sides: tuple[int | None, ...] = ()
    if type(feature) in _ARRAYS.values():
        sides, inner = tuple(feature.shape), datasets.Value(feature.dtype)
    while isinstance(inner, datasets.List):
        sides, inner = (*sides, None if inner.length == -1 else inner.length), inner.feature
    dtype = inner.dtype if isinstance(inner, datasets.Value) else ""
    if not sides and dtype in _TEXTS:
        return _TEXTS[dtype]
    if dtype in _NUMBERS and None not in sides[1:]:
        return (
            f"{dtype}[{','.join('*' if side is None else str(side) for side in sides)}]" if sides else dtype
        )
    raise UsageError(
        f"{name}: is {feature}, which a pack cannot store; images, numbers, text, bytes, arrays and lists"
        " of one kind of number are allowed. Leave it out by fields, or map it to such columns."
    )
