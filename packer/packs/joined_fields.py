"""Packs joined by fields: embeddings or masks beside images, without rewriting the images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.format.fields import (
    Field,
    beside_images,
    find_field,
    is_field_name,
)
from packer.format.header import Header
from packer.orders.runs import Subset, one_run, pieces
from packer.packs.description import describe
from packer.packs.joined_pack import CLASS_FIELDS, PacksAsOne, table_of
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.row_keys import RowKeys
from packer.packs.shards import extents_of

PackToJoin: TypeAlias = str | os.PathLike[str] | Pack
MATCHES = ("rows", "keys")
_KEYS_AT_ONCE = 1 << 16  # keys that are compared or looked up at once


@dataclass(frozen=True)
class FieldsPack(PacksAsOne):
    """Packs that are loaded as one, with the fields of all. Parts and splits are those of the first pack.

    sources: field -> (number of its pack, its name there);
    places: for each pack, its row for each row of the first pack; None where row numbers are equal.
    """

    sources: Mapping[str, tuple[int, str]] = field(kw_only=True)
    places: tuple[Subset | None, ...] = field(kw_only=True, compare=False)

    @property
    def parts(self) -> tuple[Pack, ...]:
        """See Pack."""
        return self.shards[0].parts

    def source(self, name: str) -> tuple[Pack, str, Subset | None]:
        """Return the pack that a field comes from, its name there, and its rows there (see `places`)."""
        number, own = self.sources[name]
        return self.shards[number], own, self.places[number]

    def origin(self, name: str) -> object:
        """See Pack."""
        pack, own, places = self.source(name)
        return self.sources[name], places and places.fingerprint, pack.origin(own)

    def exclusive(self) -> Pack:
        """See Pack."""
        return replace(self, shards=tuple(pack.exclusive() for pack in self.shards))

    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[Pack, str, int, int]]:
        """See Pack."""
        pack, own, places = self.source(name)
        runs = one_run(min(start, stop, self.rows), min(stop, self.rows))
        starts, lengths = runs if places is None else places.place(runs)
        for row, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True):
            yield pack, own, row, end

    def describe(self, columns: Sequence[str] = ()) -> list[str]:
        """See Pack."""
        lines = describe(self.path, self.header, (), columns)
        for number, pack in enumerate(self.shards):
            names = ", ".join(name for name, (of, _) in self.sources.items() if of == number)
            lines.append(f"joined     {pack.path}: {names}")
        return lines


@checks_arguments
def join_fields(
    packs: Sequence[PackToJoin | tuple[PackToJoin, Sequence[str] | Mapping[str, str]]],
    match: str | None = None,
) -> Pack:
    """Return one pack whose rows have the fields of several packs, for the datasets; nothing is written.

    Parameters
    ----------
    packs : list of paths, URLs or Packs
        The first pack determines rows, their order, keys, splits and seed. In place of a pack,
        ``(pack, fields)`` takes some of its fields: a list of names, or a mapping
        ``{name there: name here}``.
    match : "keys" or "rows", optional
        How rows of the other packs are matched with those of the first. Default: row i with row i, after
        comparing all keys. "keys": the row of the same key, wherever it is; the others may have more rows.
        "rows": row i with row i, whatever the keys.

    Returns
    -------
    Pack
        PackedBatchDataset and PackedDataset take it, also in a list of packs.

    Raises
    ------
    UsageError
        Rows do not match, or two packs have a field of the same name.
    FormatError
        A path is not a complete pack.

    Notes
    -----
    Class names come from the pack of ``label``, if it has any. Statistics of a field come from its pack;
    Normalize() without numbers uses those of the images' pack. A field with a value for each pixel of the
    images becomes a mask, like one that was converted with them.

    Comparing keys takes 0.1 us per row, in blocks. match="keys" takes 2 us per row, and needs a table like
    that of Pack.rows_of while it runs. Rows in another order than the first pack's take 8 bytes each and are
    read one by one.

    Examples
    --------
    >>> import numpy as np
    >>> from packer import PackedDataset, create, join_fields
    >>> keys = PackedDataset("train.h5").keys
    >>> with create("brightness.h5", shuffle=False) as out:
    ...     for image, key in zip(PackedDataset("train.h5", fields=["image"]), keys, strict=True):
    ...         out.write(brightness=np.float32(image.image.float().mean()), key=key)
    >>> joined = join_fields(["train.h5", "brightness.h5"])
    >>> [field.name for field in joined.fields]
    ['image', 'label', 'key', 'brightness']
    """
    if isinstance(packs, (str, os.PathLike, Pack)) or not isinstance(packs, Sequence) or not packs:
        raise UsageError(
            f"packs={packs!r}: is no list of packs. Pass one such as ['train.h5', 'embeddings.h5']."
        )
    if match not in (None, *MATCHES):
        raise UsageError(f"match={match!r}: is not one of None, 'keys', 'rows'. Pass one of them.")
    chosen: list[Any] = [one if isinstance(one, tuple) and len(one) == 2 else (one, None) for one in packs]
    opened = [_open_complete(given) for given, _ in chosen]
    sources: dict[str, tuple[int, str]] = {}
    for number, (pack, (_, names)) in enumerate(zip(opened, chosen, strict=True)):
        for own, name in _name_map(pack, names).items():
            if name not in sources:
                sources[name] = number, own
            # fields that describe the row may be in several packs
            elif name != own or not (name == "key" or pack.header.field(own).measures):
                raise _field_taken(pack, opened[sources[name][0]], name)
    places = tuple(_places(opened[0], pack, match) if number else None for number, pack in enumerate(opened))
    made = FieldsPack(
        " + ".join(pack.path for pack in opened),
        _header(opened, sources),
        b"",
        tuple(opened),
        verify=any(pack.verify for pack in opened),
        # then Normalize() is that of the images' pack
        filled=opened[sources.get("image", (0, ""))[0]].filled,
        sources=sources,
        places=places,
    )
    _check_pictures(made)
    return made


def _open_complete(given: Any) -> Pack:
    """Open a complete pack. Raises UsageError, FormatError."""
    if not isinstance(given, (str, os.PathLike, Pack)):
        raise UsageError(f"packs: {given!r} is no path of a pack. Pass paths, or (path, fields) for each.")
    pack = given.settled() if isinstance(given, Pack) else open_pack(given)
    if pack.pending:
        raise UsageError(f"{pack.path}: its rows are still being converted. Join it once it is complete.")
    return pack


def _name_map(pack: Pack, chosen: Any) -> Mapping[str, str]:
    """Return {name in the pack: name here} of the chosen fields. Raises UsageError."""
    own = [f.name for f in pack.fields]
    if chosen is None:
        return dict(zip(own, own, strict=True))
    if isinstance(chosen, str) or not isinstance(chosen, (Sequence, Mapping)) or not chosen:
        raise UsageError(
            f"{pack.path}: its fields are chosen by {chosen!r}. Pass a list of names, or a mapping such as"
            f" {{{own[0]!r}: 'other'}}."
        )
    for name in chosen:
        if name not in own:
            raise UsageError(
                f"{pack.path}: has no field {name!r}; it has {', '.join(own)}. Pass some of these."
            )
    names = dict(chosen) if isinstance(chosen, Mapping) else dict(zip(chosen, chosen, strict=True))
    for name, new in names.items():
        if not is_field_name(new) or new == "key" != name:  # rows are found by keys, which are texts
            raise UsageError(
                f"{pack.path}: {new!r} is not a valid field name. Pass one such as {name + '_2'!r}."
            )
    return names


def _field_taken(pack: Pack, other: Pack, name: str) -> UsageError:
    return UsageError(
        f"{pack.path}: has a field {name!r}, as {other.path} has; each field comes from one pack."
        f" Pass ({pack.path!r}, [...]) with the names of the others, or a mapping that renames it, such as"
        f" {{{name!r}: {name + '_2'!r}}}."
    )


def _places(first: Pack, pack: Pack, match: str | None) -> Subset | None:
    """Return a pack's rows for the rows of the first pack, None if numbers are equal. Raises UsageError."""
    if match != "rows":
        for one, other in ((pack, first), (first, pack)):
            if one.header.find("key") is None:
                raise UsageError(
                    f"{one.path}: its rows have no keys to match with those of {other.path}."
                    " Pass match='rows' if row i of both is the same sample."
                )
    if match == "keys":
        return _places_of_keys(first, pack)
    if pack.rows != first.rows:
        raise UsageError(
            f"{pack.path}: has {pack.rows:,} rows, and {first.path} {first.rows:,}; packs are joined row by"
            " row. Pass match='keys' to find rows by their keys."
        )
    for start, stop in pieces(0 if match else first.rows, _KEYS_AT_ONCE):
        sizes, blob = first.read_blob("key", start, stop)
        its_sizes, its_blob = pack.read_blob("key", start, stop)
        if blob != its_blob or (sizes != its_sizes).any():
            row = next(r for r in range(start, first.rows) if first.keys(r, r + 1) != pack.keys(r, r + 1))
            own, its = (one.keys(row, row + 1)[0] for one in (first, pack))
            raise UsageError(
                f"{pack.path}: row {row:,} has the key {its!r}, and {own!r} in {first.path}; joined rows have"
                " equal keys. Pass match='keys' to find rows by their keys, or match='rows' if row i of both"
                " is the same sample nevertheless."
            )
    return None


def _places_of_keys(first: Pack, pack: Pack) -> Subset | None:
    """Return the row of `pack` that has the key of each row of `first`. Raises UsageError."""
    index = RowKeys(pack.path, pack.rows, partial(pack.read_ragged, "key"))  # used by this call alone
    rows = np.empty(first.rows, np.int64)
    for start, stop in pieces(first.rows, _KEYS_AT_ONCE):
        rows[start:stop] = index.find(first.read_ragged("key", start, stop))
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        row = int(missing[0])
        raise UsageError(
            f"{pack.path}: has no row for {len(missing):,} of the {first.rows:,} keys of {first.path}, such"
            f" as {first.keys(row, row + 1)[0]!r}; each needs one. Add the rows, or put {pack.path} first:"
            " the first pack determines the rows."
        )
    return None if (rows == np.arange(first.rows)).all() else Subset.from_rows(rows)


def _header(packs: Sequence[Pack], sources: Mapping[str, tuple[int, str]]) -> Header:
    """Return the first pack's header with the fields of all. Raises UsageError for classes that differ."""
    fields: list[Field] = []
    extents, statistics, train_statistics, blocks = {}, {}, {}, []
    for name, (number, own) in sources.items():
        header = packs[number].header
        f = replace(header.field(own), name=name)
        fields.append(f)
        for array, there in zip(f.arrays, header.field(own).arrays, strict=True):
            extents[array] = tuple(extents_of(str(number), header.extents[there]))
        if own in header.statistics:
            statistics[name] = header.statistics[own]
        if own in header.train_statistics:
            train_statistics[name] = header.train_statistics[own]
        if f.compressed:
            blocks.append(header.block_rows)
    named: Pack | None = None  # pack whose class names apply to the labels
    for pack in (packs[sources[name][0]] for name in CLASS_FIELDS if name in sources):
        if pack.header.classes is not None:
            named = named or pack
            named.check_classes(pack)
    return replace(
        packs[0].header,
        block_rows=max(blocks, default=packs[0].header.block_rows),
        fields=tuple(beside_images(f, find_field(fields, "image")) for f in fields),
        extents=extents,
        classes=(named or packs[0]).header.classes,
        statistics=statistics,
        train_statistics=train_statistics,
        provenance=packs[sources.get("image", (0, ""))[0]].header.provenance,
        table=table_of(packs[sources.get("features", sources.get("categories", (0, "")))[0]]),
    )


def _check_pictures(made: FieldsPack) -> None:
    """Check that masks from other packs fit the images, and that raw pictures have height and width."""
    fields = {f.name: f for f in made.fields}
    image = fields.get("image")
    for f in made.fields:
        pack, own, _ = made.source(f.name)
        if f.own_size is not None and f.own_size.codec is None and not {"height", "width"} <= fields.keys():
            raise UsageError(
                f"{pack.path}: pictures of its field {own!r} need the fields 'height' and 'width'."
                " Take them too."
            )
        if image is None or f is image or "sampling" not in f.about or pack is made.source("image")[0]:
            continue
        sizes = [(one.loaded.shape or ("any",))[:2] for one in (f, image)]
        fits = [one.about.get("fit") for one in (f, image)]
        if sizes[0] != sizes[1] or (None not in fits and fits[0] != fits[1]):
            kinds = [
                "x".join(map(str, size)) + (f" ({fit})" if fit else "")
                for size, fit in zip(sizes, fits, strict=True)
            ]
            raise UsageError(
                f"{pack.path}: its field {own!r} is {kinds[0]}, and images of"
                f" {made.source('image')[0].path} are {kinds[1]}; masks have the size and fit of their"
                " images. Convert one of them again, or name the other fields."
            )
