"""Which files' data come from another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.format import file_systems


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/p.h5", None),
        ("/data/net/p.h5", "nfs4"),
        ("/data/network/p.h5", None),
        ("/data/net/scratch/p.h5", None),
        ("/mnt/a b/p.h5", "fuse.sshfs"),
        ("/mnt/disk/p.h5", None),
        ("/twice/p.h5", "lustre"),
        ("/mnt/données/p.h5", "nfs"),
        ("/mnt/\udcff\\040/p.h5", "cifs"),
    ],
)
def test_network_file_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, kind: str | None):
    mounts = """\
/dev/sda / ext4 rw 0 0
server:/x /data/net nfs4 rw 0 0
/dev/sdb /data/net/scratch xfs rw 0 0
me@there: /mnt/a\\040b fuse.sshfs rw 0 0
/dev/sdc1 /mnt/disk fuseblk rw 0 0
/dev/sdd /twice ext4 rw 0 0
mgs@tcp:/l /twice lustre rw 0 0
server:/y /mnt/données nfs rw 0 0
none /mnt/in\x0btwo\u2028lines tmpfs rw 0 0
//server/z /mnt/\udcff\\134040 cifs rw 0 0
"""
    (tmp_path / "mounts").write_bytes(mounts.encode("utf-8", "surrogateescape"))
    lines = file_systems.lines_of
    monkeypatch.setattr(file_systems, "lines_of", lambda _: lines(str(tmp_path / "mounts")))
    monkeypatch.setattr(file_systems.sys, "platform", "linux")
    assert file_systems.remote_file_system(path) == kind
