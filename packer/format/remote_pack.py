"""Packs in stores: opened by their URL, and with their rows, which remote_rows.py brings."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.header import HEADER_FILE, INDEX_FILE, MAX_INDEX_BYTES
from packer.format.pack import Pack, PackFiles
from packer.format.remote_file import RemoteFile, read_object
from packer.format.remote_rows import RemoteRows
from packer.format.shards import index_of, merge_headers
from packer.format.stretch_cache import StretchCache
from packer.format.stretch_window import CONNECTIONS, STRETCH_BYTES, StretchWindow
from packer.remote import access
from packer.remote.urls import join


@dataclass(frozen=True)
class RemotePack(Pack):
    """A pack in a store. path: its URL; files: by the names that extents have."""

    files: Mapping[str, RemoteFile] = field(kw_only=True)

    def own(self) -> RemotePack:
        """See Pack; of a shard, too."""
        return replace(self, units=(self.units or RemoteRows(self, self.files)).own())

    def check_same(self) -> None:
        """Do nothing: each read asks for the version that was opened."""

    def confirm(self) -> None:
        """See Pack."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(RemoteFile.confirm, self.files.values()):
                pass

    def read_bytes(self, file: str, offset: int, nbytes: int) -> bytes:
        """See Pack."""
        return bytes(self.files[file].read(offset, nbytes))

    def open_files(self) -> PackFiles:
        """See Pack."""
        return _StoredFiles(self)

    def kept_in(self, cache: str, most: int) -> RemotePack:
        """Return the pack with its rows in a cache, which may take so many bytes. Raises PackerError."""
        rows = RemoteRows(self, self.files, StretchCache(self, self.files, cache, most))
        rows.own().check()  # now: a folder that cannot be one is no matter of the first batch
        return replace(self, units=rows)


class _StoredFiles(PackFiles):
    """The files of a pack in a store, read in pieces, each once."""

    def __init__(self, pack: RemotePack) -> None:
        self._files = pack.files
        self._window = StretchWindow(self._fetch)

    def __exit__(self, *exc: object) -> None:
        self._window.close()

    def read_into(self, file: str, out: memoryview, offset: int) -> int:
        """See PackFiles. Raises RemoteError."""
        done = 0
        while done < len(out):
            number, at = divmod(offset + done, STRETCH_BYTES)
            piece = self._window.get([(file, number)])[file, number][at : at + len(out) - done]
            if not piece:
                break
            out[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def willneed(self, file: str, offset: int, nbytes: int) -> None:
        """See PackFiles."""
        last = (offset + nbytes - 1) // STRETCH_BYTES
        self._window.ahead((file, number) for number in range(offset // STRETCH_BYTES, last + 1))

    def _fetch(self, place: tuple[str, int]) -> memoryview:
        file, begin = self._files[place[0]], place[1] * STRETCH_BYTES
        return memoryview(file.read(begin, max(0, min(STRETCH_BYTES, file.info.size - begin))))


def open_remote(url: str) -> RemotePack:
    """Open a pack by its URL: a file, or a folder of shards. Raises FormatError, RemoteError."""
    openers = [open_object, open_shards]
    if url.endswith("/") or not url.lower().endswith((".h5", ".hdf5")):
        openers.reverse()
    for opener in openers:
        try:
            pack = opener(url.rstrip("/"))
            return replace(pack, units=RemoteRows(pack, pack.files))
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
    pack, file = read_object(url)
    return RemotePack(url, pack.header, pack.seal, files={"": file})


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
