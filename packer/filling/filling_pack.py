"""A pack whose rows arrive while it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.filling.filling_client import FillingClient, inodes
from packer.format.header import PARTIAL_SUFFIX, Header
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.remote.urls import is_url

MODULE = "packer.filling.filling_process"


@dataclass(frozen=True)
class FillingPack(Pack):
    """A pack in the making: its header, and its rows as they come. path: that it will have."""

    units: FillingClient = field(kw_only=True)

    @property
    def pending(self) -> bool:
        """See Pack."""
        return not self.units.sealed

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """See Pack; waits until the rows have been made."""
        if self.arrival(name) is not None:
            self.units.wait(np.arange(self.rows)[start:stop])
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

    def settled(self) -> Pack:
        """See Pack."""
        if not self.units.sealed and (
            os.path.lexists(os.path.join(self.units.folder, "pack")) or not os.path.lexists(self.path)
        ):
            return self
        pack = replace(open_pack(self.path), filled=self.filled)
        self.check_same()
        return pack

    def check_same(self) -> None:
        """See Pack."""
        files = self.units.ready["place"]["files"]
        if inodes(self._path(""), dict(files)) != files and inodes(self.path, dict(files)) != files:
            raise FormatError(
                f"{self.path}: was replaced, or begun anew, after it was opened. Open it again."
            )


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
    header = client.open(progress)
    return FillingPack(out, Header.from_bytes(header, out), b"", units=client) if header else open_pack(out)
