"""A pack whose rows arrive while it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.filling.filling_client import FillingClient, inodes
from packer.filling.filling_messages import HEADER
from packer.format.header import PARTIAL_SUFFIX, Header
from packer.format.pack import Arrival, Pack
from packer.format.pack_opening import open_pack
from packer.remote.urls import is_url

MODULE = "packer.filling.filling_process"
KEYS = "keys"  # the files of the keys, beside the pack: the pack gets them when it is sealed


@dataclass(frozen=True)
class FillingPack(Pack):
    """A pack in the making: its header, and its rows as they come. path: that it will have.

    client: asks for rows. made: arrays whose rows are made one by one; the others are there.
    """

    client: FillingClient = field(kw_only=True)
    made: frozenset[str] = field(kw_only=True)

    @property
    def pending(self) -> bool:
        """See Pack."""
        return not self.client.sealed

    @property
    def ahead_bytes(self) -> int | None:
        """See Pack."""
        return 0 if self.pending else None

    def arrival(self, array: str) -> Arrival | None:
        """See Pack."""
        return self.client if array in self.made else None

    def own(self) -> Pack:
        """See Pack."""
        return replace(self, client=self.client.own())

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """See Pack; waits until the rows have been made."""
        if name in self.made and not self.client.sealed:
            self.client.wait(np.arange(self.rows)[start:stop])
        return super().read(name, start, stop)

    def read_blob(self, name: str, start: int, stop: int) -> tuple[NDArray[np.int64], bytes]:
        """See Pack; from the whole pack once it is there: the files of the keys are gone then."""
        try:
            return super().read_blob(name, start, stop)
        except FileNotFoundError:
            if self._whole is self:
                raise
            return self._whole.read_blob(name, start, stop)

    @cached_property
    def _whole(self) -> Pack:
        return self.settled()

    def close(self) -> None:
        """See Pack."""
        self.client.close()

    def closing(self) -> AbstractContextManager[None]:
        """See Pack."""
        return self.client.closing()

    def settled(self) -> Pack:
        """See Pack."""
        if not self.client.sealed and (
            os.path.lexists(os.path.join(self.client.folder, "pack")) or not os.path.lexists(self.path)
        ):
            return self
        pack = replace(open_pack(self.path), filled=self.filled)
        self.check_same()
        return pack

    def check_same(self) -> None:
        """See Pack."""
        files = self.client.ready["place"]["files"]
        if inodes(self._path(""), dict(files)) != files and inodes(self.path, dict(files)) != files:
            raise FormatError(
                f"{self.path}: was replaced, or begun anew, after it was opened. Open it again."
            )

    def _path(self, file: str) -> str:
        folder = self.client.folder
        if file.startswith(KEYS):
            return os.path.join(folder, file)
        pack = os.path.join(folder, "pack")
        if not os.path.lexists(pack):  # it has got its name, and is the same file
            pack = self.path
        return os.path.join(pack, file) if file else pack


def open_filling(
    source: str,
    out: str,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Pack:
    """Open the pack `out` of a source: whole if it is there, else one that is filled while it is read.

    source: images or a table, as convert_images and convert_table take them; options: theirs, as plain JSON values.
    progress: called with rows done and rows in all where the pack has to be made before anything can be read from it.
    Raises PackerError: the source cannot be packed so, or `out` is another pack.
    """
    out = os.path.abspath(out.rstrip("/"))
    job = {
        "source": source if is_url(source) else os.path.abspath(source),
        "out": out,
        "options": dict(options),
    }
    client = FillingClient(out + PARTIAL_SUFFIX, job, MODULE)
    while True:
        ready = client.open(progress)
        if ready is None:
            return open_pack(out)
        try:
            with open(os.path.join(client.folder, HEADER), "rb") as file:
                header = Header.from_bytes(file.read(), out)
        except FileNotFoundError:  # sealed in this moment
            client.close()
            client = FillingClient(client.folder, job, MODULE)
            continue
        return FillingPack(out, header, b"", client=client, made=frozenset(ready["made"]))
