from __future__ import annotations

import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from packer.errors import PackerError
from packer.format.file_io import (
    SHARED,
    create,
    create_anew,
    foreign,
    make_folder,
    open_own,
    publish_modes,
    resident,
    usual_mode,
    write_file,
    write_synced,
)


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is emptied with a Linux call")
def test_tells_cached_from_uncached_pages(tmp_path: Path, flushed: None):
    path = tmp_path / "x"
    path.write_bytes(bytes(64 << 12))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    mapped = np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
    assert resident(mapped, [0, 63 << 12, (64 << 12) - 1])
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(mapped, [0]):
        pytest.skip("this file system keeps its pages (tmpfs)")
    assert not resident(mapped, [32 << 12])
    os.close(fd)


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    """umask(mask) sets the mask, until the test ends."""
    before = os.umask(0o022)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


PLANTED = {
    "a file": lambda path, victim: path.write_text("planted"),
    "a link": lambda path, victim: path.symlink_to(victim),
    "a dangling link": lambda path, victim: path.symlink_to(victim.parent / "new"),
    "a hard link": lambda path, victim: os.link(victim, path),
    "a pipe": lambda path, victim: os.mkfifo(path),
}


@pytest.fixture(params=PLANTED)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The path of what somebody planted; the victim's file has to stay as it is."""
    home, path = tmp_path / "home", tmp_path / "planted"
    home.mkdir()
    (home / "precious").write_text("precious")
    PLANTED[request.param](path, home / "precious")
    yield path
    assert [(file.name, file.read_text()) for file in home.iterdir()] == [("precious", "precious")]


def test_a_file_is_created_where_there_was_none(tmp_path: Path, umask: Callable[[int], None]) -> None:
    umask(0)
    os.close(create(str(tmp_path / "x")))
    assert mode_of(tmp_path / "x") == 0o600


def test_nothing_planted_is_taken_for_a_new_file(planted: Path) -> None:
    with pytest.raises(FileExistsError):
        create(str(planted))


def test_what_is_planted_is_replaced_by_a_new_file(planted: Path) -> None:
    with open(create_anew(str(planted)), "wb") as file:
        file.write(b"new")
    assert (planted.read_text(), mode_of(planted)) == ("new", 0o600)


def test_replacing_a_file_replaces_what_is_planted_aside(planted: Path) -> None:
    path = planted.with_name("x")
    planted.rename(path.with_name("x.new"))
    write_synced(str(path), (b"new",))
    assert path.read_text() == "new"


def test_an_own_file_is_opened_and_a_link_is_not_followed(planted: Path) -> None:
    if planted.is_file() and not planted.is_symlink():
        os.close(open_own(str(planted)))
        return
    with pytest.raises(OSError, match=r"symbolic links|not a regular file"):
        open_own(str(planted), mode=0o600)


def test_a_missing_file_is_created_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(FileNotFoundError):
        open_own(str(path))
    os.close(open_own(str(path), mode=0o600))
    assert mode_of(path) == 0o600


def test_a_file_of_the_user_replaces_what_is_planted(planted: Path) -> None:
    """A pipe of the user is written to; its reader is a program of the user."""
    if stat.S_ISFIFO(planted.lstat().st_mode):
        reader = os.open(planted, os.O_RDONLY | os.O_NONBLOCK)
        write_file(str(planted), b"new")
        assert os.read(reader, 9) == b"new"
        os.close(reader)
        return
    write_file(str(planted), b"new")
    assert planted.read_text() == "new"
    assert not planted.is_symlink()
    assert sorted(path.name for path in planted.parent.iterdir()) == ["home", "planted"]


def test_a_file_of_the_user_keeps_its_mode(tmp_path: Path, umask: Callable[[int], None]) -> None:
    umask(0o027)
    path = tmp_path / "out.json"
    write_file(str(path), b"{}")
    assert mode_of(path) == 0o640
    path.chmod(0o600)
    write_file(str(path), b"[]")
    assert (mode_of(path), path.read_text()) == (0o600, "[]")


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="open files have no names here")
def test_open_files_are_written_to_by_their_names(tmp_path: Path) -> None:
    """As /dev/stdout is: a pipe, a terminal, or the file that the shell opened."""
    path = tmp_path / "out"
    with path.open("wb") as file:
        write_file(f"/dev/fd/{file.fileno()}", b"new")
        assert path.read_bytes() == b"new"
    read, write = os.pipe()
    write_file(f"/dev/fd/{write}", b"piped")
    os.close(write)
    assert os.read(read, 9) == b"piped"
    os.close(read)
    with pytest.raises(PackerError, match=r"^/dev/fd/9999: cannot be written"):
        write_file("/dev/fd/9999", b"")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        PackerError, match=r"folder: cannot be written \(Is a directory\)\. Pass another name"
    ):
        write_file(str(tmp_path / "folder"), b"x")
    assert os.listdir(tmp_path) == ["folder"]


FOREIGN = {
    "": lambda inside: inside.write_text("x"),
    "is a link": lambda inside: inside.symlink_to("nowhere"),
    "others can write to it (mode 606)": lambda inside: (inside.touch(), inside.chmod(0o606)),
    "others can write to it (mode 777)": lambda inside: (inside.mkdir(), inside.chmod(0o777)),
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("private", [True, False])
def test_what_others_could_have_put_there_is_found(tmp_path: Path, what: str, private: bool) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    inside = tmp_path / "a" / "b" / "inside"
    FOREIGN[what](inside)
    assert foreign(str(tmp_path / "a"), private=private) == (what and f"{inside}: {what}")
    assert foreign(str(tmp_path / "a"), private=private, inside=False) == ""
    assert foreign(str(tmp_path / "a"), shared=True) == (f"{inside}: {what}" if "link" in what else "")
    assert os.listdir(tmp_path / "a") == ["b"]


def test_what_the_group_may_write_to_is_refused_in_private_folders(
    tmp_path: Path, umask: Callable[[int], None]
) -> None:
    """A pack that was made at umask 002 is group-writable, and stays its owner's."""
    umask(0o002)
    path = tmp_path / "pack"
    path.mkdir()
    assert foreign(str(path), private=False) == ""
    assert foreign(str(path)) == f"{path}: others can write to it (mode 775)"


def test_a_pack_made_at_umask_000_is_written_at_it(tmp_path: Path, umask: Callable[[int], None]) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack").chmod(0o777)
    assert "others can write to it (mode 777)" in foreign(str(tmp_path / "pack"), private=False)
    umask(0)
    assert foreign(str(tmp_path / "pack"), private=False) == ""


def test_in_a_folder_that_nobody_else_enters_modes_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.mkdir(mode=0o700)
    (path / "old").mkdir()
    (path / "old").chmod(0o777)
    assert foreign(str(path)) == ""
    path.chmod(0o711)
    assert foreign(str(path)) == f"{path}/old: others can write to it (mode 777)"


def test_a_second_name_is_refused_in_private_folders(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "x").touch()
    os.link(tmp_path / "x", tmp_path / "work" / "state")
    assert foreign(str(tmp_path / "work")).endswith("state: has a second name elsewhere (a hard link)")
    assert foreign(str(tmp_path / "work"), private=False) == ""


def pretend(monkeypatch: pytest.MonkeyPatch, seen: Callable[[str], dict[str, int]]) -> None:
    """Have lstat answer with other members for some paths."""
    real = os.lstat
    names = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid")

    def lstat(path: str) -> os.stat_result:
        found = real(path)
        changed = seen(os.fspath(path))
        return os.stat_result((*(changed.get(n, getattr(found, n)) for n in names), 0, 0, 0, 0))

    monkeypatch.setattr(os, "lstat", lstat)


@pytest.mark.parametrize("private", [True, False])
def test_files_of_another_user_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    path = tmp_path / "a"
    (path / "b").mkdir(parents=True)
    pretend(monkeypatch, lambda name: {"st_uid": 4242} if name.endswith("/b") else {})
    found = f"{path}/b: belongs to user 4242, and you are user {os.geteuid()}"
    assert foreign(str(path), private=private) == found


def test_the_folder_itself_may_be_a_link_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to("disk")
    assert foreign(str(tmp_path / "cache")) == ""
    pretend(monkeypatch, lambda name: {"st_uid": 4242} if name.endswith("/cache") else {})
    assert foreign(str(tmp_path / "cache")) == f"{tmp_path}/cache: is a link"


@pytest.mark.parametrize("all_files", [{"st_uid": 65534}, {"st_mode": stat.S_IFDIR | 0o777}])
def test_file_systems_that_give_all_files_one_owner_or_mode_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_files: dict[str, int]
) -> None:
    """Root on a server that squashes it; FAT, and NTFS by WSL."""
    pretend(monkeypatch, lambda name: all_files)
    assert foreign(str(tmp_path)) == ""


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_what_is_published_has_the_modes_of_new_files(
    tmp_path: Path, umask: Callable[[int], None], mask: int
) -> None:
    umask(mask)
    path = tmp_path / "pack"
    make_folder(str(path))
    os.close(create(str(path / "file")))
    os.close(create(str(tmp_path / "alone")))
    for made in (path, tmp_path / "alone"):
        publish_modes(str(made), usual_mode(str(tmp_path)))
    assert mode_of(path) == 0o777 & ~mask
    assert mode_of(path / "file") == mode_of(tmp_path / "alone") == 0o666 & ~mask


def test_what_a_group_shares_is_open_to_it_whatever_the_umask(
    tmp_path: Path, umask: Callable[[int], None]
) -> None:
    umask(0o077)
    make_folder(str(tmp_path / "cache"), 0o770)
    os.close(create(str(tmp_path / "cache" / "state"), SHARED))
    assert (mode_of(tmp_path / "cache"), mode_of(tmp_path / "cache" / "state")) == (0o770, 0o660)
