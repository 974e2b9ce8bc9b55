from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from packer.errors import PackerError, SpaceError, UsageError
from packer.format import safe_folders
from packer.format.file_io import exchange
from packer.format.plan_differences import difference
from packer.packs.pack_opening import open_pack
from packer.writing import working_folder
from packer.writing.working_folder import WorkingFolder, locked
from tests.format.packs import FORMATS, Content, files_of, out_path, write_content, write_pack, write_shards

PLAN = {"options": {"size": [8, 8], "crop": None}, "inputs": "abc"}
OTHER = {"options": {"size": [16, 8], "crop": None}, "inputs": "abc"}


def interrupted(out: Path, plan: dict[str, object] | None = PLAN) -> None:
    """What a maker leaves that had recorded two blocks, and a pack."""
    place = WorkingFolder(str(out), plan=plan)
    Path(place.pack).write_text("rows")
    place.record([0, [1]])
    place.record([1, [2]])
    place.close(keep=True)


def test_the_same_plan_goes_on(tmp_path: Path):
    interrupted(tmp_path / "p")
    place = WorkingFolder(str(tmp_path / "p"), plan=PLAN | {"options": {"size": (8, 8)}}, resume=True)
    assert (place.resumed, place.cleared) == ([[0, [1]], [1, [2]]], "")
    assert Path(place.pack).read_text() == "rows"
    place.record([2, [3]])
    place.close(keep=True)
    again = WorkingFolder(str(tmp_path / "p"), plan=PLAN)
    assert again.resumed == [[0, [1]], [1, [2]], [2, [3]]]
    again.close(keep=False)
    assert os.listdir(tmp_path) == []


def test_another_plan_is_cleared_and_said(tmp_path: Path):
    interrupted(tmp_path / "p")
    place = WorkingFolder(str(tmp_path / "p"), plan=OTHER)
    assert (place.resumed, place.cleared) == ([], "options size was 8x8, now it is 16x8")
    assert sorted(os.listdir(place.path)) == ["blocks", "journal"]
    place.close(keep=True)
    assert WorkingFolder(str(tmp_path / "p"), plan=OTHER, resume=True).cleared == ""


def test_resume_refuses_another_plan_and_leaves_it(tmp_path: Path):
    interrupted(tmp_path / "p")
    before = files_of(tmp_path)
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(tmp_path / "p"), plan=OTHER, resume=True)
    assert str(error.value) == (
        f"{tmp_path}/p: resume=True cannot continue the work in {tmp_path}/p.packing: options size was 8x8, now it is 16x8."
        " Undo that, or start over without resume=True."
    )
    assert files_of(tmp_path) == before
    WorkingFolder(str(tmp_path / "p"), plan=PLAN, resume=True).close(keep=False)


def test_resume_with_nothing_to_resume_starts_anew(tmp_path: Path):
    place = WorkingFolder(str(tmp_path / "p"), plan=PLAN, resume=True)
    assert (place.resumed, place.cleared) == ([], "")


@pytest.mark.parametrize("before", [None, PLAN])
def test_without_a_plan_all_is_cleared(tmp_path: Path, before: dict[str, object] | None):
    interrupted(tmp_path / "p", before)
    place = WorkingFolder(str(tmp_path / "p"), resume=True)
    assert (place.resumed, place.cleared, os.listdir(place.path)) == ([], "", ["blocks"])


@pytest.mark.parametrize("resume", [False, True])
def test_a_journal_whose_plan_is_damaged_is_cleared(tmp_path: Path, resume: bool):
    interrupted(tmp_path / "p")
    journal = tmp_path / "p.packing" / "journal"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])
    place = WorkingFolder(str(tmp_path / "p"), plan=PLAN, resume=resume)
    assert (place.resumed, place.cleared) == ([], "")
    assert not os.path.exists(place.pack)


@pytest.mark.parametrize("plan", [None, PLAN])
def test_a_second_maker_is_refused_until_the_first_ends(
    tmp_path: Path, plan: dict[str, object] | None, impatient: None
):
    out = str(tmp_path / "p")
    first = WorkingFolder(out, plan=plan)
    with pytest.raises(PackerError) as error:
        WorkingFolder(out, plan=plan)
    sentence = (
        f"{out}: another packer is writing it ({out}.packing is locked). Wait for it, or pass another name."
    )
    assert str(error.value) == sentence
    with pytest.raises(PackerError) as error, locked(first.path, out):
        pass
    assert str(error.value) == sentence
    first.close(keep=False)
    WorkingFolder(out, plan=plan).close(keep=False)


def test_the_lock_of_a_dying_maker_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = WorkingFolder(str(tmp_path / "p"), plan=PLAN)
    first.record([0, [1]])
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.close(keep=True)

    monkeypatch.setattr("packer.writing.working_folder.time.sleep", sleep)
    assert WorkingFolder(str(tmp_path / "p"), plan=PLAN).resumed == [[0, [1]]]
    assert len(waits) == 3


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_vanishes_while_it_is_locked_is_another_makers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import fcntl

    flock = fcntl.flock

    def vanish(fd: int, how: int) -> None:
        shutil.rmtree(tmp_path / "p.packing")
        flock(fd, how)

    monkeypatch.setattr("packer.writing.working_folder.fcntl.flock", vanish)
    with pytest.raises(PackerError, match="another packer is writing it"):
        WorkingFolder(str(tmp_path / "p"))


def test_file_systems_without_locks_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("packer.writing.working_folder.fcntl.flock", no)
    WorkingFolder(str(tmp_path / "p")).close(keep=False)


def test_locking_what_is_not_there_is_a_sentence(tmp_path: Path):
    with pytest.raises(PackerError) as error, locked(str(tmp_path / "no"), "out"):
        pass
    assert str(error.value) == (
        "out: cannot be written (No such file or directory). Check the name and the permissions."
    )


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "makedirs", full)
    with pytest.raises(PackerError) as error:
        WorkingFolder(str(tmp_path / "p"))
    assert (
        str(error.value) == f"{tmp_path}/p: cannot be written (No space left on device). Pass another name."
    )


def test_a_full_disk_while_recording_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = WorkingFolder(str(tmp_path / "p"), plan=PLAN)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpaceError) as error:
        place.record([0, [1]])
    assert (
        str(error.value)
        == f"{tmp_path}/p: writing failed (No space left on device). Free some space, or pass another disk."
    )
    with pytest.raises(SpaceError):
        WorkingFolder(str(tmp_path / "q"), plan=PLAN)
    monkeypatch.undo()
    WorkingFolder(str(tmp_path / "q"), plan=PLAN).close(keep=False)  # not locked any more


@pytest.mark.parametrize("old", FORMATS)
@pytest.mark.parametrize("new", FORMATS)
def test_publish_replaces_any_pack_by_any(tmp_path: Path, old: str, new: str):
    write_pack(out_path(tmp_path, old, "old"))
    os.rename(out_path(tmp_path, old, "old"), tmp_path / "p")
    write_pack(out_path(tmp_path, new, "new"), rows=9)
    place = WorkingFolder(str(tmp_path / "p"), overwrite=True)
    os.rename(out_path(tmp_path, new, "new"), place.pack)
    place.publish()
    assert open_pack(tmp_path / "p").rows == 9
    assert os.listdir(tmp_path) == ["p"]


def test_publish_refuses_a_name_that_was_taken_meanwhile(tmp_path: Path):
    place = WorkingFolder(str(tmp_path / "p"))
    Path(place.pack).write_text("pack")
    (tmp_path / "p").write_text("somebody else's")
    with pytest.raises(UsageError) as error:
        place.publish()
    assert str(error.value) == (
        f"{tmp_path}/p: has appeared meanwhile; nothing is overwritten unasked. Pass overwrite=True, or another name."
    )
    assert (tmp_path / "p").read_text() == "somebody else's"


def crash_between_the_renames(out: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, object]) -> None:
    """Replace a directory pack; the process dies when the old one has been put aside."""
    rename = os.rename

    class Died(BaseException):
        pass

    def die(origin: str, target: str) -> None:
        if origin == str(out) or target == str(out):
            if target == str(out):
                raise Died
            rename(origin, target)

    content = Content.random("raw", 9)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        patch.setattr("packer.writing.working_folder.exchange", lambda *_: False)  # as on macOS
        patch.setattr(
            "packer.writing.working_folder.WorkingFolder.close", lambda self, keep: os.close(self._lock)
        )
        with pytest.raises(Died):
            write_content(out, content, plan=plan, overwrite=True)


@pytest.mark.parametrize(
    ("plan", "resume"), [(PLAN, True), (PLAN, False), (OTHER, False)], ids=["resumed", "same", "other"]
)
def test_a_crash_between_two_renames_loses_neither_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, object], resume: bool
):
    out = tmp_path / "p"
    write_pack(out)
    before = files_of(out)
    crash_between_the_renames(out, monkeypatch, PLAN)
    assert os.listdir(tmp_path) == ["p.packing"]
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(out), plan=plan, resume=resume)
    assert (
        str(error.value)
        == f"{out}: exists; nothing is overwritten unasked. Pass overwrite=True, or another name."
    )
    assert files_of(out) == before
    done = []
    content = Content.random("raw", 9)
    write_content(
        out, content, plan=plan, resume=resume, overwrite=True, inspect=lambda w: done.append(sorted(w.done))
    )
    assert done == [[0, 1] if plan == PLAN else []]
    assert (open_pack(out).read("image") == content.images).all()
    assert os.listdir(tmp_path) == ["p"]


def test_overwrite_replaces_a_pack_of_shards_and_nothing_more(tmp_path: Path, format: str):
    content = Content.random("raw", 9)
    out = write_shards(tmp_path / "p", content, (4, 5), format=format)
    precious = (out / "00001" if format == "npy" else out) / "thesis.txt"
    precious.write_text("years of work")
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(out), overwrite=True)
    assert str(error.value) == (
        f"{out}: is not a pack, or holds other files; overwrite=True replaces only packs. Pass another name."
    )
    precious.unlink()
    write_pack(out, rows=7, overwrite=True)
    assert open_pack(out).rows == 7
    assert os.listdir(tmp_path) == ["p"]


def test_begin_anew_forgets_all_but_the_plan(tmp_path: Path):
    interrupted(tmp_path / "p")
    place = WorkingFolder(str(tmp_path / "p"), plan=PLAN)
    place.begin_anew()
    assert (place.resumed, os.listdir(place.path)) == ([], ["journal"])


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {}, ""),
        ({"a": 1, "b": [1, 2]}, {"b": (1, 2), "a": 1}, ""),
        ({"a": None}, {}, ""),
        ({"a": [[1, 2], [3]]}, {"a": [(1, 2), (3,)]}, ""),
        ({"a": np.array([1, 2])}, {"a": [1, 2]}, ""),
        ({"a": None}, {"a": np.array(["cat", "dog"])}, "a was not given, now it is cat, dog"),
        ({"size": 8}, {"size": 16}, "size was 8, now it is 16"),
        ({"options": {"size": [8, 8]}}, {"options": {"size": (8, 9)}}, "options size was 8x8, now it is 8x9"),
        ({"options": {"fit": "pad"}}, {"options": {}}, "options fit was pad, now it is not given"),
        ({}, {"limit": 5}, "limit was not given, now it is 5"),
        ({"folders": []}, {"folders": ["a"]}, "folders was none, now it is a"),
        ({"a": 1, "b": 1}, {"a": 2, "b": 2}, "a was 1, now it is 2"),
        ({"a": "x" * 99}, {"a": "y"}, f"a was {'x' * 77}..., now it is y"),
        ({"a": {"b": 1}}, {"a": 3}, "a was {'b': 1}, now it is 3"),
    ],
)
def test_differences_in_words(before: object, now: object, words: str):
    assert difference(before, now) == words


def test_a_pack_is_replaced_in_one_step_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither name is ever gone: nothing is renamed but by the exchange."""
    write_pack(tmp_path / "p")
    if not exchange(str(tmp_path / "p"), str(tmp_path / "p")):
        pytest.skip("this file system cannot exchange names")

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "rename", fail)
    write_pack(tmp_path / "p", rows=9, overwrite=True)
    assert open_pack(tmp_path / "p").rows == 9
    assert os.listdir(tmp_path) == ["p"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "file"])
def test_what_was_planted_in_the_place_of_the_work_is_refused(tmp_path: Path, kind: str) -> None:
    """A link to a folder of another project must not have that folder cleared, nor its `old` taken for a pack."""
    victim, path = tmp_path / "victim", tmp_path / "p.h5.packing"
    (victim / "old").mkdir(parents=True)
    (victim / "old" / "precious").write_text("1")
    {
        "link": lambda: path.symlink_to(victim),
        "dangling link": lambda: path.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(path),
        "file": path.touch,
    }[kind]()
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(tmp_path / "p.h5"))
    assert str(error.value) == (
        f"{path}: is needed as the working folder, but is not a folder. Move it away, or pass another output."
    )
    assert (victim / "old" / "precious").read_text() == "1"
    assert not (tmp_path / "p.h5").exists()


@pytest.mark.parametrize("name", ["journal", "pack", "blocks", "old"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_among_the_work_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "p.h5.packing"
    victim.write_text("1")
    path.mkdir()
    (path / name).symlink_to(victim) if kind == "link" else os.mkfifo(path / name)
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(tmp_path / "p.h5"), plan={"a": 1})
    assert str(error.value) == (
        f"{path}: is needed as the working folder, but holds {name}, which is not packer's. "
        "Move it away, or pass another output."
    )
    assert victim.read_text() == "1"


def test_an_interruption_after_the_pack_got_its_name_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.h5"
    place = WorkingFolder(str(out), plan=PLAN)
    Path(place.pack).write_text("rows")
    place.record([0])

    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("packer.writing.working_folder.fsync_path", interrupt)
    with pytest.raises(KeyboardInterrupt):
        place.publish()
    place.close(keep=True)
    assert os.listdir(tmp_path) == ["p.h5"]


def test_a_pack_that_was_finished_while_its_lock_was_waited_for_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p"
    lock = working_folder._lock

    def finish(folder: str, name: str, **how: bool) -> int:
        out.write_text("whole")
        return lock(folder, name, **how)

    monkeypatch.setattr(working_folder, "_lock", finish)
    with pytest.raises(UsageError, match="p: exists"):
        WorkingFolder(str(out), plan=PLAN)
    assert os.listdir(tmp_path) == ["p"]


def test_publish_names_nothing_that_another_has_begun_after_the_folder_was_removed(tmp_path: Path) -> None:
    place = WorkingFolder(str(tmp_path / "p"), plan=PLAN)
    shutil.rmtree(place.path)
    other = WorkingFolder(str(tmp_path / "p"), plan=PLAN)
    Path(other.pack).write_text("begun")
    with pytest.raises(PackerError, match=r"p\.packing was removed or replaced meanwhile"):
        place.publish()
    assert not (tmp_path / "p").exists()
    place.close(keep=False)
    assert Path(other.pack).read_text() == "begun"
    other.publish()
    assert (tmp_path / "p").read_text() == "begun"


PLANTED = {
    "is a link": lambda path, victim: path.symlink_to(victim),
    "has a second name elsewhere (a hard link)": lambda path, victim: os.link(victim, path),
    "others can write to it (mode 666)": lambda path, victim: (path.touch(), path.chmod(0o666)),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("name", ["journal", "pack/image.npy", "blocks/key.0", "staging/records"])
def test_a_folder_in_which_others_wrote_is_refused_before_its_journal_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """The journal is that of the same conversion, so the work would be continued."""
    out, victim = tmp_path / "p", tmp_path / "victim"
    interrupted(out)
    victim.write_text("precious")
    folder = tmp_path / "p.packing"
    folder.chmod(0o755)
    path = folder / name
    if path.parent == folder / "pack":
        os.remove(folder / "pack")
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o755)
    path.unlink(missing_ok=True)
    PLANTED[what](path, victim)
    monkeypatch.setattr(working_folder, "read_journal", lambda path: pytest.fail("read"))
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(out), plan=PLAN)
    told = f"{path}: {what}; a working folder is used only if nobody else can have written there."
    if (name, what) == ("journal", "is a link"):
        told = f"{folder}: is needed as the working folder, but holds journal, which is not packer's."
    assert str(error.value).startswith(told)
    assert (victim.read_text(), path.exists()) == ("precious", True)


@pytest.mark.parametrize("plan", [PLAN, None])
@pytest.mark.parametrize("found", [{"st_uid": 4242}, {"st_mode": 0o775}])
def test_the_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, int], plan: dict[str, object] | None
) -> None:
    interrupted(tmp_path / "p")
    folder, real = f"{tmp_path}/p.packing", safe_folders.foreign

    def told(path: str, **how: bool) -> str:
        return f"{path}: belongs to user 4242, and you are user 1" if "st_uid" in found else real(path, **how)

    os.chmod(folder, found.get("st_mode", 0o700))
    monkeypatch.setattr(safe_folders, "foreign", told)
    with pytest.raises(UsageError) as error:
        WorkingFolder(str(tmp_path / "p"), plan=plan)
    what = (
        "belongs to user 4242, and you are user 1"
        if "st_uid" in found
        else "others can write to it (mode 775)"
    )
    assert str(error.value) == (
        f"{folder}: {what}; a working folder is used only if nobody else can have written there."
        f" Remove {folder}, or pass another output."
    )
    os.rename(folder, f"{tmp_path}/p.part-1-of-2.packing")
    with pytest.raises(UsageError, match="a working folder is used only if"):
        working_folder.parts_of(str(tmp_path / "p"))
    os.rename(f"{tmp_path}/p.part-1-of-2.packing", folder)
    assert not working_folder.clear_idle(str(tmp_path / "p"))


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
@pytest.mark.parametrize("format", FORMATS)
def test_work_is_private_and_a_pack_as_the_umask_says(tmp_path: Path, format: str, mask: int) -> None:
    out, before = out_path(tmp_path, format), os.umask(mask)
    try:
        place = WorkingFolder(str(out), plan=PLAN)
        place.record([0])
        write_pack(Path(place.pack) if format == "npy" else Path(place.pack + ".h5"))
        if format == "h5":
            os.rename(place.pack + ".h5", place.pack)
        modes = {
            name: os.lstat(os.path.join(where, name)).st_mode & 0o777
            for where, folders, files in os.walk(place.path)
            for name in (*folders, *files)
        }
        folders = {"blocks", *(["pack"] if format == "npy" else [])}
        assert modes == {name: 0o700 if name in folders else 0o600 for name in modes}
        assert os.stat(place.path).st_mode & 0o777 == 0o700
        place.publish()
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == (0o777 if format == "npy" else 0o666) & ~mask
    assert {file.stat().st_mode & 0o777 for file in out.glob("*")} <= {0o666 & ~mask}
