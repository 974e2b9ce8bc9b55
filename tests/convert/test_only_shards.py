"""Parts of a pack made by machines that know nothing of each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from packer import convert_images, merge_shards, open_pack, pack_dataset
from packer.cli import cli
from packer.errors import BusyError, SourceError, UsageError
from packer.inputs.image_pairs import Soft
from packer.progress import Progress
from tests.convert.test_engines import content

OPTIONS: dict[str, Any] = {"size": 32, "shards": 5, "split": "train=0.7,val=0.3"}


def convert(source: Path, out: Path, part: str | None = None, **options: Any) -> Any:
    return convert_images(source, out, only_shards=part, **OPTIONS | options)


def test_parts_in_any_order_make_the_same_pack(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "one")
    done: list[int] = []
    made = [convert(photo_folder, tmp_path / "out", f"{k}/3", on_progress=done.append) for k in (3, 1, 2)]
    assert [report.rows for report in made] == [5, 10, 9]
    assert max(done) == 10
    assert "index them: merge_shards(" in made[0].notes[-2]
    assert not (tmp_path / "out").exists()
    report = merge_shards(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "one")
    with pytest.raises(UsageError, match="out: exists already, and no shards wait to be listed"):
        merge_shards(tmp_path / "out")
    assert (report.rows, report.bytes_written) == (24, convert(photo_folder, tmp_path / "two").bytes_written)
    assert not (tmp_path / "out.packing").exists()


def test_a_conversion_of_all_makes_what_is_missing(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "one")
    convert(photo_folder, tmp_path / "out", "2/2")
    with pytest.raises(
        UsageError, match=r"3 of its 5 shards are missing, the first is 00000\.h5\. Run the unfinished"
    ):
        merge_shards(tmp_path / "out")
    assert convert(photo_folder, tmp_path / "out", "2/2").resumed == 10
    assert convert(photo_folder, tmp_path / "out", resume=True).resumed == 10
    assert content(tmp_path / "out") == content(tmp_path / "one")


@pytest.mark.parametrize("lost", ["removed", "changed", "cut short"])
@pytest.mark.parametrize("merged", [False, True])
def test_a_part_makes_again_what_is_lost(photo_folder: Path, tmp_path: Path, lost: str, merged: bool) -> None:
    """The shards of parts that were merged too early are those of the pack; a part is then made again."""
    for part in ("1/2", "2/2"):
        convert(photo_folder, tmp_path / "out", part)
    shard = tmp_path / "out.part-2-of-2.packing/pack/00003.h5"
    if lost == "removed":
        shard.unlink()
    elif lost == "cut short":
        shard.write_bytes(shard.read_bytes()[-4000:])
    else:
        shutil.copy(shard.with_name("00001.h5"), shard)
    if merged:
        with pytest.raises(
            UsageError, match=r"1 of its 5 shards are missing, the first is 00003\.h5\. Run the unfinished"
        ):
            merge_shards(tmp_path / "out")
    assert convert(photo_folder, tmp_path / "out", "2/2").resumed == (0 if merged else 5)
    merge_shards(tmp_path / "out")
    convert(photo_folder, tmp_path / "one")
    assert content(tmp_path / "out") == content(tmp_path / "one")


def test_shards_whose_images_are_all_skipped(photo_folder: Path, tmp_path: Path) -> None:
    for image in sorted((photo_folder / "blue").iterdir())[:7]:
        image.write_bytes(b"no image")
    options = {"split": None, "shuffle": False, "on_error": "skip"}
    one = convert(photo_folder, tmp_path / "one", **options)
    made = [
        convert(photo_folder, tmp_path / "out", part, **options)
        for part in ("1/5", "2/5", "3/5", "4/5", "5/5")
    ]
    assert [report.rows for report in made] == [0, 3, 5, 5, 4]
    assert [len(report.skipped) for report in made] == [5, 2, 0, 0, 0]
    report = merge_shards(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert report.skipped == one.skipped
    assert open_pack(tmp_path / "out").header.skipped == one.skipped


def test_parts_of_another_conversion_are_refused(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "out", "1/2")
    for part in ("1/2", "2/2", None):  # and not cleared
        with pytest.raises(
            UsageError,
            match=r"out\.part-1-of-2\.packing holds a part of another conversion: options size was 32x32, now it is"
            r" 16x16\. Remove that folder, or pass another name\.",
        ):
            convert(photo_folder, tmp_path / "out", part, size=16)
    convert(photo_folder, tmp_path / "out", "2/2")
    assert merge_shards(tmp_path / "out").rows == 24


def test_a_pack_without_identity_takes_no_shards_of_parts(photo_folder: Path, tmp_path: Path) -> None:
    """Nothing tells whether the rows of samples in memory are those of parts that wait under its name."""
    samples = [{"image": np.full((32, 32, 3), k, np.uint8), "label": k % 3} for k in range(24)]
    convert(photo_folder, tmp_path / "out", "1/2")
    pack_dataset(samples, tmp_path / "out", shards=5, classes=["a", "b", "c"])
    pack = open_pack(tmp_path / "out")
    pixels = {int(pack.read("image", row, row + 1).max()) for row in range(pack.rows)}
    assert (pack.rows, pixels) == (24, set(range(24)))
    assert convert(photo_folder, tmp_path / "out", "1/2", overwrite=True).resumed == 14


@pytest.mark.usefixtures("impatient")
def test_parts_are_made_at_once_but_not_beside_a_whole(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "out", "1/2")
    held = os.open(tmp_path / "out.part-1-of-2.packing", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as its process holds it
    convert(photo_folder, tmp_path / "out", "2/2")
    with pytest.raises(
        BusyError, match=r"out: another packer is writing it \(.*part-1-of-2\.packing is locked\)"
    ):
        convert(photo_folder, tmp_path / "out", "1/2")
    for whole in (lambda: merge_shards(tmp_path / "out"), lambda: convert(photo_folder, tmp_path / "out")):
        with pytest.raises(BusyError):
            whole()
    os.close(held)
    assert merge_shards(tmp_path / "out").rows == 24


def test_a_bad_image_leaves_the_others_parts(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "out", "1/2", split=None, shuffle=False)
    bad = sorted(photo_folder.rglob("*.jpg"))[6]
    good, times = bad.read_bytes(), os.stat(bad)
    bad.write_bytes(b"x" * len(good))
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(SourceError, match=r"6\.jpg: not an image"):
        convert(photo_folder, tmp_path / "out", "2/2", split=None, shuffle=False)
    bad.write_bytes(good)
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    convert(photo_folder, tmp_path / "out", "2/2", split=None, shuffle=False)
    assert merge_shards(tmp_path / "out").rows == 24


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "-1/2", ""])
def test_what_is_no_part(photo_folder: Path, tmp_path: Path, part: str) -> None:
    with pytest.raises(UsageError, match=r"is not K/N with K from 1 to N"):
        convert(photo_folder, tmp_path / "out", part)


def test_what_has_no_parts(photo_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Pass shards='1GB'"):
        convert_images(photo_folder, tmp_path / "out", size=32, only_shards="1/2")
    with pytest.raises(UsageError, match="out: no shards wait to be listed"):
        merge_shards(tmp_path / "out")
    with pytest.raises(UsageError, match="stores get complete HDF5 packs"):
        convert(photo_folder, "s3://bucket/out", "1/2")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", range(1, 13))
def test_an_index_that_is_killed_at_any_moment_is_written_by_the_next(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Between two records or moves of shards, before a part's folder is removed, and before the pack gets its name."""
    convert(photo_folder, tmp_path / "one")
    for part in ("1/2", "2/2"):
        convert(photo_folder, tmp_path / "out", part)
    calls: list[str] = []

    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        target = resolve_name(name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == count:
                raise Killed
            return target(*arguments, **options)

        monkeypatch.setattr(name.replace(":", "."), call)

    with monkeypatch.context(), contextlib.suppress(Killed):
        kill("packer.writing.working_folder:WorkingFolder.record")
        kill("os:rename")
        kill("packer.convert.recorded_shards:remove")
        kill("packer.convert.recorded_shards:write_index")
        kill("os:replace")
        merge_shards(tmp_path / "out")
    monkeypatch.undo()
    if not (tmp_path / "out").exists():
        merge_shards(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "photos"]


def test_a_shard_that_was_named_and_not_recorded(photo_folder: Path, tmp_path: Path) -> None:
    """A part was killed between the two; what has its name is complete, and no row of it is read again."""
    for part in ("1/2", "2/2"):
        convert(photo_folder, tmp_path / "out", part)
    journal = tmp_path / "out.part-2-of-2.packing/journal"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert convert(photo_folder, tmp_path / "out", "2/2").resumed == 10
    assert merge_shards(tmp_path / "out").rows == 24


def test_the_rows_of_a_part_are_announced(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[int] = []
    monkeypatch.setattr(Progress, "start", lambda bar, rows: announced.append(rows))
    made = [convert(photo_folder, tmp_path / "out", f"{k}/7").rows for k in range(1, 8)]
    assert announced == made == [5, 5, 5, 5, 4, 0, 0]


def test_parts_of_two_conversions_that_began_at_once(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "out", "1/2")
    (tmp_path / "out.part-1-of-2.packing").rename(tmp_path / "aside")
    convert(photo_folder, tmp_path / "out", "2/2", size=16)
    (tmp_path / "aside").rename(tmp_path / "out.part-1-of-2.packing")
    for _ in range(2):  # nothing is cleared
        with pytest.raises(
            UsageError,
            match=r"part-2-of-2.packing holds a part of another .* size was 16x16, now it is 32x32",
        ):
            merge_shards(tmp_path / "out")


def test_parts_replace_a_pack(photo_folder: Path, tmp_path: Path) -> None:
    convert(photo_folder, tmp_path / "out", size=16)
    for part in ("1/2", "2/2"):
        convert(photo_folder, tmp_path / "out", part, overwrite=True)
    with pytest.raises(UsageError, match="out: exists; nothing is overwritten unasked"):
        merge_shards(tmp_path / "out")
    merge_shards(tmp_path / "out", overwrite=True)
    convert(photo_folder, tmp_path / "one")
    assert content(tmp_path / "out") == content(tmp_path / "one")


def test_the_command_tells_of_skipped_images(photo_folder: Path, tmp_path: Path) -> None:
    (photo_folder / "blue/0.jpg").write_bytes(b"no image")
    convert(photo_folder, tmp_path / "out", "1/1", on_error="skip")
    result = CliRunner().invoke(cli, ["merge", "--index", str(tmp_path / "out")])
    assert result.exit_code == 3
    assert "skipped 1 input:\n  blue/0.jpg: not an image" in result.output


MARKED: dict[str, Any] = {"size": "max=512", "store": "jpeg", "shards": 5}


def test_parts_without_restart_markers_are_refused(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C extension writes them into JPEG rows that keep their pixels: a cluster of both would mix the bytes."""
    convert_images(photo_folder, tmp_path / "out", only_shards="1/2", **MARKED)
    monkeypatch.setattr("packer.native.COMPILED", False)
    with pytest.raises(UsageError) as error:
        convert_images(photo_folder, tmp_path / "out", only_shards="2/2", **MARKED)
    assert str(error.value) == (
        f"{tmp_path}/out: {tmp_path}/out.part-1-of-2.packing holds a part of another conversion: versions restart markers was not"
        " given, now it is none, without the C extension. Install the same, or pass another name."
    )
    monkeypatch.undo()
    convert_images(photo_folder, tmp_path / "out", only_shards="2/2", **MARKED)
    merge_shards(tmp_path / "out")
    monkeypatch.setattr("packer.native.COMPILED", False)
    with pytest.raises(UsageError, match="versions restart markers was not given, now it is none"):
        convert_images(photo_folder, tmp_path / "out", resume=True, **MARKED)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 16},
        {"size": 64, "fit": "pad", "channels": "gray"},
        {"size": 24, "store": "jpeg"},
        {"size": "max=24"},
        {"size": "keep"},
        {"size": 24, "dtype": "uint16"},
        {"size": 24, "pairs": {"mask": "masks"}},
        {"size": 24, "pairs": {"matte": Soft("masks")}},
    ],
    ids=str,
)
def test_rows_do_not_depend_on_the_extension(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """But for restart markers; the provenance says so where there could be any."""
    monkeypatch.chdir(tmp_path)
    for path in photo_folder.rglob("*.jpg"):
        mask = Path("masks") / path.relative_to(photo_folder).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("L").save(mask)
    convert_images("photos", "here.h5", workers=1, **options)
    monkeypatch.setattr("packer.native.COMPILED", False)
    convert_images("photos", "plain.h5", workers=1, **options)
    packs = [open_pack(name) for name in ("here.h5", "plain.h5")]
    rows = [[bytes(np.asarray(pack.read(name)).data) for name in pack.header.columns] for pack in packs]
    assert rows[0] == rows[1]
    limited = str(options["size"]).startswith("max")
    versions = [pack.header.provenance["versions"] for pack in packs]
    marked = {"restart markers": "none, without the C extension"} if limited else {}
    assert versions[1] == versions[0] | marked
