"""Packs in stores whose rows are kept in a cache: a folder on a disk of this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from packer.arguments import as_bytes
from packer.errors import UsageError
from packer.filling.cache_folder import FILES, check_cache, folder_of
from packer.filling.filling_client import FillingClient
from packer.format.remote_pack import RemotePack
from packer.format.remote_rows import RemoteRows

MODULE = "packer.filling.remote_process"
CACHE_BYTES = "100GB"


def cached(pack: RemotePack, cache: Any = None, cache_size: Any = None) -> RemotePack:
    """Return a pack in a store whose rows are kept in a cache, if one is given.

    cache: folder for packs on a disk of this machine, shared by its processes and kept; None: rows pass through memory, and are
    fetched again in each epoch. cache_size: bytes, or text such as "200GB", that all packs in that folder take together.
    Raises UsageError, RemoteError, FormatError.
    """
    if cache is None:
        if cache_size is not None:
            raise UsageError(f"cache_size={cache_size!r}: is about a cache. Pass cache=, a folder, too.")
        return pack
    most = as_bytes(CACHE_BYTES if cache_size is None else cache_size)
    if most is None:
        raise UsageError(f"cache_size={cache_size!r}: is no size. Pass bytes, or text such as '200GB'.")
    folder = folder_of(check_cache(cache), pack)
    job = {"out": pack.path, "folder": folder, "seal": pack.seal.hex(), "cache_size": most}
    client = FillingClient(folder, job, MODULE, seals=False)
    client.open()
    return replace(pack, rows_from=RemoteRows(pack, client, os.path.join(folder, FILES)))
