"""Detection of file systems whose data come from another machine or from a program."""

from __future__ import annotations

import os
import re
import sys

from packer.machine import lines_of

# File systems whose pages the kernel may have to request from another machine or from a program.
_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse(\..*)?|gfs2|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
)
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")


def remote_file_system(path: str) -> str | None:
    """Return a path's file system type if its data come from another machine or a program, else None."""
    if not sys.platform.startswith("linux"):
        return None
    path, best = os.path.realpath(path), ("", "")
    for line in lines_of("/proc/self/mounts"):
        _, folder, kind = line.split(" ")[:3]
        # Blanks are written as \040; all other bytes are literal.
        folder = os.fsdecode(_ESCAPED.sub(lambda m: bytes([int(m[1], 8)]), os.fsencode(folder)))
        inside = path == folder or path.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best[0]):  # a later mount at the same place covers the earlier
            best = folder, kind
    return best[1] if _REMOTE.fullmatch(best[1]) else None
