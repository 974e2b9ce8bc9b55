"""Sequences of images: groups and classes of folders, order, splits, holes, and all that makes packs of packs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import (
    PackedBatchDataset,
    Report,
    Sequences,
    Split,
    append_images,
    convert_images,
    fill_pack,
    join_fields,
    merge_packs,
    merge_shards,
    open_pack,
    pack_dataset,
    repack,
    split_pack,
    verify_pack,
)
from packer.convert.image_planning import ConversionPlan
from packer.errors import PackerError, SourceError, UsageError
from packer.packs.recorded_command import convert_again

CLIPS = {"run/a": range(8, 12), "run/b": range(1, 12), "sit/a": range(98, 103), "sit/c": [7]}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write frames: folder -> numbers; grey is the number."""

    def write(clips: Any = CLIPS, name: str = "frame{}.png") -> Path:
        root = tmp_path / "clips"
        shutil.rmtree(root, ignore_errors=True)
        for clip, numbers in clips.items():
            (root / clip).mkdir(parents=True)
            for number in numbers:
                Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(root / clip / name.format(number))
        return root

    return write


def convert(source: Path, out: str = "clips.h5", **options: Any) -> Path:
    convert_images(source, source.parent / out, **{"size": 8, "sequence": True, **options})
    return source.parent / out


def windows(path: Any, length: int = 2, **options: Any) -> list[list[str]]:
    """The keys of all windows of a pack."""
    with PackedBatchDataset(path, 500, window=length, output="numpy", fields=("key",), **options) as dataset:
        return [list(keys) for batch in dataset for keys in batch.key]


def expected(
    length: int = 2, clips: Iterable[str] = CLIPS, missing: Iterable[str] = ()
) -> set[tuple[str, ...]]:
    """The windows of clips, by a loop over their frames."""
    found = set()
    for clip in clips:
        names = [f"{clip}/frame{number}.png" for number in CLIPS[clip]]
        found |= {tuple(names[at : at + length]) for at in range(len(names) - length + 1)}
    return {keys for keys in found if not set(keys) & set(missing)}


def check(path: Any, length: int = 2, **options: Any) -> None:
    """Check that a pack has exactly the windows of the clips."""
    verify_pack(path)
    found = windows(path, length, **options)
    assert len(found) == len(expected(length))
    assert set(map(tuple, found)) == expected(length)


@pytest.mark.parametrize(
    "options", [{}, {"store": "jpeg"}, {"size": "keep"}, {"shards": 3}, {"format": "npy"}]
)
def test_frames_of_a_folder_are_stored_in_order(write: Write, options: dict[str, Any]) -> None:
    out = convert(write(), "out", **{"format": "h5", **options})
    for length in (1, 2, 5, 11):
        check(out, length)
    pack = open_pack(out)
    assert pack.header.classes == ("run", "sit")
    assert pack.keys() == [
        f"{clip}/frame{number}.png" for clip, numbers in CLIPS.items() for number in numbers
    ]
    with PackedBatchDataset(out, 4, output="numpy") as dataset:
        assert dataset.batch(0)._fields == ("image", "label")
    if options != {"shards": 3}:
        assert "--sequence --size" in convert_again(pack)


def test_the_plan_and_a_note_tell_the_sequences(write: Write) -> None:
    plans: list[ConversionPlan] = []
    source = write()
    convert_images(source, source.parent / "o.h5", sequence=True, on_plan=plans.append, dry_run=True)
    assert plans[0].sequences == 4
    assert "Each folder is a sequence: 4 of 1 to 11 images, stored in their order." in plans[0].notes
    write({"a": [*range(20), *range(21, 30)], "b": range(3)})
    convert_images(source, source.parent / "o.h5", sequence=True, on_plan=plans.append, dry_run=True)
    assert plans[1].classes is None
    assert any(
        note == "1 sequence of 2 with gaps in the numbers of their frames, over which windows reach: a 1."
        for note in plans[1].notes
    )


@pytest.mark.parametrize(
    ("clips", "classes", "sequences"),
    [
        ({"a": range(3), "b": range(3)}, None, 2),
        ({".": range(9, 12)}, None, 1),
        ({"run/1/x": range(3), "run/2/x": range(3), "sit/1/x": range(3)}, ("run", "sit"), 3),
        ({f"{kind}/{take:03}": range(2) for kind in ("run", "sit") for take in range(3)}, ("run", "sit"), 6),
        ({f"{split}/{kind}/a": range(2) for split in ("train", "test") for kind in "xy"}, ("x", "y"), 4),
        ({"train/a": range(3), "test/a": range(3)}, None, 2),
    ],
)
def test_classes_are_the_folders_above_sequences(
    write: Write, clips: dict[str, Any], classes: tuple[str, ...] | None, sequences: int
) -> None:
    pack = open_pack(convert(write(clips)))
    assert pack.header.classes == classes
    found = windows(pack, split="all" if pack.header.splits else None)
    assert len(found) == pack.rows - sequences
    assert all(Path(one).parent == Path(other).parent for one, other in found)


def test_folders_at_two_levels_are_told(write: Write) -> None:
    source = write({"a": range(2), "run/b": range(2)})
    with pytest.raises(
        SourceError, match=r"all have classes, or none. Move some, or pass labels=Labels.unlabeled='all'"
    ):
        convert(source)
    from packer import Labels

    assert len(windows(convert(source, labels=Labels(unlabeled="all")))) == 2


def test_an_archive_and_a_list_have_sequences_too(write: Write) -> None:
    source = write()
    shutil.make_archive(str(source), "zip", source)
    check(convert(source.with_suffix(".zip")))
    listed = source / "list.txt"
    keys = [f"{clip}/frame{number}.png" for clip in CLIPS for number in CLIPS[clip]]
    listed.write_text("\n".join(keys))
    check(convert_list(listed))
    listed.write_text("\n".join(sorted(keys)))
    with pytest.raises(
        SourceError, match=r"after run/a/frame11.png in run/a/frame8.png, .* List them by their numbers"
    ):
        convert_list(listed)


def convert_list(listed: Path) -> Path:
    out = listed.parent.parent / "listed.h5"
    convert_images(listed, out, size=8, sequence=True, overwrite=True)
    return out


def test_splits_divide_sequences_and_cut_none(write: Write) -> None:
    notes = convert_images(
        source := write(), out := source.parent / "o.h5", size=8, sequence=True, split="train=0.6,val=0.4"
    ).notes
    assert any(note.startswith("Sequences in each split: train ") for note in notes)
    keys = {split: {tuple(k) for k in windows(out, split=split)} for split in ("train", "val")}
    assert keys["train"] | keys["val"] == expected()
    clips = [{Path(key).parent for key, _ in keys[split]} for split in keys]
    assert all(clips)
    assert not clips[0] & clips[1]
    with pytest.raises(
        UsageError, match=r"sequences are divided by shares, not by numbers of rows or positions"
    ):
        convert(source, split="train=rest,val=last:3", overwrite=True)
    source = write({"a": range(8, 13)})
    with pytest.raises(UsageError, match=r"is a single sequence, which shares would cut at random"):
        convert(source, split="train=0.6,val=0.4")
    out = convert(source, split="train=rest,val=last:2")
    assert windows(out, split="val") == [["a/frame11.png", "a/frame12.png"]]


def test_a_csv_names_sequences_and_order(write: Write) -> None:
    source = write({"a": range(12)}, "{:02}.png")
    labels, keys = source.parent / "l.csv", [f"a/{number:02}.png" for number in range(12)]
    rows = [f"{key},cam{number % 2},{20 - number},{number % 3}" for number, key in enumerate(keys)]
    options: dict[str, Any] = {
        "labels": labels,
        "sequence": Sequences(group="clip", order="frame"),
        "overwrite": True,
    }
    for columns, drop in (("file,clip,frame,label", 4), ("file,clip,frame", 3)):
        labels.write_text("\n".join([columns, *(",".join(row.split(",")[:drop]) for row in rows)]))
        out = convert(source, **options)
        cameras = [[key for key in keys[::-1] if int(key[2:4]) % 2 == camera] for camera in (0, 1)]
        assert windows(out, 6) == cameras
        assert (open_pack(out).header.find("label") is None) is (drop == 3)
    labels.write_text("\n".join(["file,clip,frame,label", *rows[:-1], f"{keys[-1]},cam1,11,0"]))
    with pytest.raises(
        SourceError, match=r"a/09.png and a/11.png: have the same place in sequence 'cam1'; each"
    ):
        convert(source, **options)
    labels.write_text("\n".join(["file,clip,frame,label", *rows[:-1], f"{keys[-1]},cam1,,0"]))
    with pytest.raises(SourceError, match=r"l.csv line 13: frame is empty; each image has one"):
        convert(source, **options)
    assert len(windows(convert(source, on_error="skip", **options))) == 9
    mixed = [f"{key},cam0,{number * 5 % 12},0" for number, key in enumerate(keys)]
    labels.write_text("\n".join(["file,clip,frame,label", *mixed[:-1], f"{keys[-1]},cam0,,0"]))
    with pytest.raises(
        SourceError,
        match=r"a/03.png: is before a/10.png in the source and behind it in sequence 'cam0', so the places of 1",
    ):
        convert(source, on_error="skip", **options)
    labels.write_text("\n".join(["file,clip,frame,label", *rows[:5], f"{keys[5]},,{5},0", *rows[6:]]))
    out = convert(source, on_error="skip", **options)
    assert not any(one > keys[5] > other for one, other in windows(out))
    labels.write_text("\n".join(["file,clip,frame,label", *rows[:5], *rows[6:]]))  # not listed: in no clip
    assert [keys[7], keys[3]] in windows(convert(source, on_error="skip", **options))
    labels.write_text(
        "\n".join(["file,clip,frame,label", *(f"{key},a,{k + 1:02}/01/2024,0" for k, key in enumerate(keys))])
    )
    with pytest.raises(UsageError, match=r"texts such as '01/01/2024' have no known order"):
        convert(source, **options)
    split = Split(column="split")
    labels.write_text(
        "\n".join(["file,clip,frame,split", *(f"{key},a,{k},{'ab'[k > 5]}" for k, key in enumerate(keys))])
    )
    assert len(windows(convert(source, split=split, **options), split="all")) == 10  # a single series
    labels.write_text(
        "\n".join(
            ["file,clip,frame,split", *(f"{key},{k // 4},{k},{'ab'[k > 5]}" for k, key in enumerate(keys))]
        )
    )
    with pytest.raises(
        SourceError, match=r"^sequence '1': is in the splits a and b; a sequence has to be in one split"
    ):
        convert(source, split=split, **options)


@pytest.mark.parametrize("options", [{}, {"shards": 5}, {"store": "jpeg"}, {"split": "train=0.5,val=0.5"}])
def test_windows_do_not_reach_over_skipped_frames(write: Write, options: dict[str, Any]) -> None:
    missing = ["run/a/frame8.png", "run/b/frame6.png", "sit/a/frame102.png"]
    source = write()
    for key in missing:
        (source / key).write_bytes(b"none")
    out = source.parent / "skipped"
    report = convert_images(source, out, size=8, sequence=True, on_error="skip", **options)
    assert report.rows == 18
    assert any(note.startswith("Windows do not reach over skipped images") for note in report.notes)
    for length in (2, 3):
        found = windows(out, length, split="all" if "split" in options else None)
        assert set(map(tuple, found)) <= expected(length, missing=missing)
        assert len(found) >= len(expected(length, missing=missing)) - 3 * length


def test_packs_of_sequences_become_others(write: Write, tmp_path: Path) -> None:
    out = convert(source := write())
    repack(out, tmp_path / "r", shards=4, store="jpeg")
    check(tmp_path / "r")
    with pytest.raises(UsageError, match=r"holds sequences, whose rows stay in order. Pass shuffle=False"):
        repack(out, tmp_path / "n.h5", shuffle=True)
    with pytest.raises(UsageError, match=r"holds sequences, whose rows stay in order. Pass shuffle=False"):
        merge_packs([out, out], tmp_path / "n.h5", duplicates="keep", shuffle=True)
    merge_packs([out, out], tmp_path / "m.h5", duplicates="keep")
    found = windows(tmp_path / "m.h5")
    assert len(found) == 2 * len(expected())
    assert set(map(tuple, found)) == expected()
    parts = split_pack(out, "a=0.5,b=0.5")
    halves = [windows(report.out) for report in parts.values()]
    assert all(halves)
    assert sorted(halves[0] + halves[1]) == sorted(map(list, expected()))
    with pytest.raises(UsageError, match=r"sequences are divided by shares"):
        split_pack(out, "a=rest,b=last:3")
    append_images(tmp_path / "r", source, duplicates="keep")
    assert len(windows(tmp_path / "r")) == 2 * len(expected())
    with pytest.raises(UsageError, match=r"packs with equal fields"):
        merge_packs([out, convert(source, "plain.h5", sequence=False)], tmp_path / "n.h5", duplicates="keep")
    with pytest.raises(UsageError, match=r"holds sequences, and another of these packs does not"):
        windows([out, tmp_path / "plain.h5"])
    assert len(windows([out, tmp_path / "r"])) == 3 * len(expected())
    pack_dataset({"gain": np.arange(open_pack(out).rows)}, tmp_path / "gain.h5", shuffle=False)
    joined = [
        join_fields([tmp_path / "gain.h5", (out, names)], "rows")
        for names in (["image"], ["image", "sequence_row"])
    ]
    with pytest.raises(UsageError, match=r"or join_fields left sequence_row out"):
        PackedBatchDataset(joined[0], 4, window=2)
    shuffled = convert(source, "shuffled.h5", sequence=False)
    with pytest.raises(UsageError, match=r"shuffled.h5: its rows were shuffled when it was made"):
        PackedBatchDataset(join_fields([tmp_path / "gain.h5", shuffled], "rows"), 4, window=2)
    with PackedBatchDataset(joined[1], 500, window=2, output="numpy") as dataset:
        assert sum(len(batch.gain) for batch in dataset) == len(expected())


def test_parts_and_a_filled_pack_are_those_of_one_run(write: Write, tmp_path: Path) -> None:
    source = write()
    for part in ("1/3", "2/3", "3/3"):
        convert(source, "parts", shards=4, only_shards=part)
    merge_shards(tmp_path / "parts")
    check(tmp_path / "parts")
    one = convert(source, "one", shards=4)
    assert all(path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes() for path in one.iterdir())
    filled = windows(fill_pack(source, tmp_path / "filled.h5", size=8, sequence=True))
    assert set(map(tuple, filled)) == expected()


def test_packs_with_shares_of_sequences_do_not_grow(write: Write) -> None:
    out = convert(source := write(), "shards", shards=4, split="train=0.5,val=0.5")
    with pytest.raises(UsageError, match=r"have groups of 'sequences', which new rows may divide"):
        append_images(out, source, duplicates="keep")


def test_a_pack_without_sequences_names_the_remedy(write: Write) -> None:
    out = convert(source := write(), sequence=False, shuffle=False)
    with pytest.raises(
        UsageError,
        match=r"does not record which rows are a sequence, so .*. Convert it again with sequence=True, or pass",
    ):
        windows(out)
    check(convert(source, overwrite=True))


@pytest.mark.parametrize("sequence", [True, Sequences(group="clip")])
def test_sequences_are_not_shuffled(write: Write, sequence: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^sequence=True: stores rows in order, and shuffle=True in a random one"
    ):
        convert(write(), sequence=sequence, shuffle=True)
    assert isinstance(convert_images(write(), "o.h5", sequence=False, shuffle=True, dry_run=True), Report)


@pytest.mark.parametrize("source", ["a.mp4", "videos"])
def test_videos_are_answered_with_the_way_to_frames(tmp_path: Path, source: str) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("a.mp4", "videos/b.MOV"):
        (tmp_path / name).write_bytes(b"none")
    with pytest.raises(
        PackerError, match=r"make frames of each first, as mkdir -p clips/a && ffmpeg -i a.mp4"
    ):
        convert_images(tmp_path / source, tmp_path / "o.h5")
