"""Packs in stores: opened by their URL, and with their rows, which remote_rows.py brings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.header import HEADER_FILE, INDEX_FILE, MAX_INDEX_BYTES
from packer.format.pack import Arrival, Pack
from packer.format.remote_file import RemoteFile, StoredPack, read_object
from packer.format.remote_rows import RemoteRows
from packer.format.shards import index_of, merge_headers
from packer.format.stretch_window import CONNECTIONS
from packer.remote import access
from packer.remote.urls import join

AHEAD_BYTES = 256 << 20  # two stretches for each connection


@dataclass(frozen=True)
class RemotePack(StoredPack):
    """A pack in a store. rows_from: None: its rows pass through memory."""

    rows_from: RemoteRows | None = field(default=None, kw_only=True)

    @property
    def ahead_bytes(self) -> int | None:
        """See Pack."""
        return AHEAD_BYTES

    def check_same(self) -> None:
        """Do nothing: each read asks for the version that was opened."""

    def confirm(self) -> None:
        """See Pack."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(RemoteFile.confirm, self.files.values()):
                pass

    def close(self) -> None:
        """See Pack."""
        if self.rows_from is not None:
            self.rows_from.close()

    def own(self) -> Pack:
        """See Pack."""
        return replace(self, rows_from=self.rows_from and self.rows_from.own())

    def arrival(self, array: str) -> Arrival | None:
        """See Pack."""
        return self._rows().arrival(array)

    def _path(self, file: str) -> str:
        return self._rows().path(file)

    def _rows(self) -> RemoteRows:
        if self.rows_from is None:
            object.__setattr__(self, "rows_from", RemoteRows(replace(self)))
        assert self.rows_from is not None
        return self.rows_from


def open_remote(url: str) -> RemotePack:
    """Open a pack by its URL: a file, or a folder of shards. Raises FormatError, RemoteError."""
    openers = [open_object, open_shards]
    if url.endswith("/") or not url.lower().endswith((".h5", ".hdf5")):
        openers.reverse()
    for opener in openers:
        try:
            return opener(url.rstrip("/"))
        except MissingObjectError:
            continue
    try:
        access.stat(join(url, HEADER_FILE))
    except MissingObjectError:
        raise MissingObjectError(f"{url}: there is no pack. Check the name.") from None
    raise _of_arrays(url)


def put_pack(url: str, path: str) -> None:
    """Write a file of a pack as an object, which may replace one. Raises UsageError if what has that name is no pack; RemoteError."""
    try:
        with suppress(MissingObjectError):
            open_object(url)
    except FormatError:
        raise UsageError(
            f"{url}: is there, and is no pack; only packs are replaced. Pass another name, or remove it."
        ) from None
    access.put_file(url, path, patience=access.ROWS_PATIENCE)


def open_object(url: str) -> RemotePack:
    """Open a pack of one file. Raises FormatError, RemoteError."""
    found = read_object(url)
    return RemotePack(url, found.header, found.seal, files=found.files)


def open_shards(url: str) -> RemotePack:
    """Open a pack of shards. Raises FormatError, RemoteError."""
    data, _ = access.read_all(join(url, INDEX_FILE), MAX_INDEX_BYTES)
    index = index_of(bytes(data), join(url, INDEX_FILE))
    for shard in index.shards:
        if shard.format == "npy":
            raise _of_arrays(shard.path)
    shards = tuple(
        RemotePack(shard.path, shard.header, shard.seal, files={"": RemoteFile.of_listed(shard)})
        for shard in index.shards
    )
    files = {str(number): shard.files[""] for number, shard in enumerate(shards)}
    header = merge_headers([shard.header for shard in shards], index.skipped)
    return RemotePack(url, header, index.digest, shards, files=files)


def _of_arrays(url: str) -> FormatError:
    return FormatError(
        f"{url}: is a folder of .npy files; of stores HDF5 packs are read. Repack it: packer repack."
    )
