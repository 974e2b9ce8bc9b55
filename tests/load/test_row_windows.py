"""Windows of consecutive rows: frames, groups, ends and targets beside plain NumPy, orders, ranks, resuming, errors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import (
    PackedBatchDataset,
    PackedDataset,
    Sequences,
    Weighted,
    Windows,
    convert_images,
    convert_table,
    pack_dataset,
    split_pack,
)
from packer.errors import UsageError

GROUPS = (7, 1, 12, 3, 5)  # rows of each episode
ROWS = sum(GROUPS)
FIELDS = ("x", "label", "row")


@pytest.fixture(scope="module", params=["raw.h5", "npy", "zstd.h5", "shards"])
def episodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of episodes: x is the row's number twice, the label 10 times it."""
    out = tmp_path_factory.mktemp("episodes") / request.param
    rows = np.arange(ROWS)
    arrays = {
        "x": np.stack([rows, rows], 1).astype(np.float32),
        "label": 10 * rows,
        "episode": np.repeat(np.arange(len(GROUPS)), GROUPS),
    }
    options: dict[str, Any] = {"zstd.h5": {"store": "zstd"}, "shards": {"shards": 9}}.get(request.param, {})
    pack_dataset(arrays, out, shuffle=False, **options)
    return out


def plain_windows(
    windows: Windows, groups: tuple[int, ...] = GROUPS
) -> Iterator[tuple[list[int], list[bool]]]:
    """The rows of each window, and which are no repetitions, by a loop over the rows of each group."""
    begin = 0
    for size in groups:
        end = begin + size
        for at in range(begin, end, windows.step):
            first = at
            if windows.ends == "repeat" and windows.anchor == "last":
                first = at - (windows.length - 1) * windows.dilation
            rows = [first + k * windows.dilation for k in range(windows.length + windows.horizon)]
            inside = [begin <= row < end for row in rows]
            if windows.ends == "repeat" and all(inside[windows.length :]):
                yield [min(max(row, begin), end - 1) for row in rows], inside
            elif all(inside):
                yield rows, inside
        begin = end


FORMS = st.builds(
    Windows,
    st.integers(1, 6),
    step=st.integers(1, 4),
    dilation=st.integers(1, 3),
    group=st.just("episode"),
    anchor=st.just("last"),
    ends=st.sampled_from(["drop", "repeat"]),
    horizon=st.integers(0, 2),
) | st.builds(
    Windows, st.integers(1, 6), step=st.integers(1, 4), group=st.just("episode"), ends=st.just("repeat")
)


@given(
    FORMS, st.integers(1, 5), st.sampled_from(["sequential", "slices", "blocks", "rows"]), st.integers(1, 3)
)
def test_windows_hold_the_rows_that_a_plain_loop_finds(
    episodes: Path, windows: Windows, batch_size: int, order: str, ranks: int
) -> None:
    expected = list(plain_windows(windows))
    if not expected:
        with pytest.raises(UsageError, match="no group of rows is as long as Windows"):
            PackedBatchDataset(episodes, batch_size, window=windows, output="numpy")
        return
    found = []
    for rank in range(ranks):
        with PackedBatchDataset(
            episodes,
            batch_size,
            window=windows,
            order=order,
            output="numpy",
            fields=FIELDS,
            rank=rank,
            world_size=ranks,
            ends="uneven" if ranks == 1 else "even",
        ) as dataset:
            for batch in dataset:
                targets = batch.label // 10
                frames = batch.row if not windows.horizon else np.concatenate([batch.row, targets], 1)
                if not windows.horizon:
                    assert (targets == batch.row).all()
                assert (batch.x == batch.row[..., None]).all()
                masks = getattr(batch, "frame_mask", np.ones(batch.row.shape, bool))
                found += list(zip(frames.tolist(), masks.tolist(), strict=True))
    wanted = [(rows, inside[: windows.length]) for rows, inside in expected]
    assert {str(one) for one in found} == {str(one) for one in wanted}
    assert len(wanted) <= len(found) < len(wanted) + ranks
    if order == "sequential" and ranks == 1:
        assert found == wanted


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (3, 2)])
def test_another_number_of_ranks_goes_on_with_the_same_windows(
    episodes: Path, ranks: tuple[int, int]
) -> None:
    window = Windows(3, group="episode")

    def dataset(rank: int, world_size: int, batch_size: int) -> PackedBatchDataset[Any]:
        return PackedBatchDataset(
            episodes,
            batch_size,
            window=window,
            shuffle=True,
            output="numpy",
            fields=FIELDS,
            rank=rank,
            world_size=world_size,
            ends="even",
        )

    with dataset(0, 1, 6) as whole:
        everything = [rows for batch in whole for rows in batch.row.tolist()]
    before, after = ranks
    firsts, state = [], None
    for rank in range(before):
        with dataset(rank, before, 6 // before) as part:
            firsts += next(iter(part)).row.tolist()
            state = part.state_dict()
    rest = []
    for rank in range(after):
        with dataset(rank, after, 3) as part:
            part.load_state_dict(state)
            rest += [rows for batch in part for rows in batch.row.tolist()]
    assert {tuple(rows) for rows in firsts + rest} == {tuple(rows) for rows in everything}
    assert len(everything) <= len(firsts + rest) < len(everything) + after
    assert sorted(firsts) == sorted(everything[:6])
    with (
        PackedBatchDataset(episodes, 6, window=4, shuffle=True, output="numpy") as other,
        pytest.raises(UsageError, match=r"^state_dict: was taken with window="),
    ):
        other.load_state_dict(state)


def test_rows_that_windows_share_are_decoded_once(episodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PackedBatchDataset(
        episodes, 10, window=Windows(6, group="episode"), output="numpy", placement="disk"
    ) as dataset:
        read = []
        store = dataset._store
        copy = store.copy
        monkeypatch.setattr(store, "copy", lambda rows, out: (read.append(rows.total), copy(rows, out)))
        count = sum(len(batch.label) for batch in dataset)
    assert count == 2 + 7
    assert sum(read) == (7 + 12 if episodes.name == "zstd.h5" else 9 * 6)


def test_weights_and_classes_are_those_of_windows(episodes: Path) -> None:
    windows = Windows(5, group="episode", anchor="last")
    count = len(list(plain_windows(windows)))
    weights = np.zeros(count)
    weights[3] = 1
    with PackedBatchDataset(
        episodes, 4, window=windows, order=Weighted(weights), output="numpy", fields=FIELDS
    ) as dataset:
        rows = [tuple(row) for batch in dataset for row in batch.row.tolist()]
    assert set(rows) == {(8, 9, 10, 11, 12)}
    with PackedBatchDataset(
        episodes,
        6,
        window=windows,
        order=Weighted.balanced("episode"),
        output="numpy",
        fields=("row", "episode"),
    ) as dataset:
        classes = np.concatenate([batch.episode[:, -1] for batch in dataset])
    assert np.unique(classes, return_counts=True)[1].tolist() == [4, 4, 4]
    with pytest.raises(UsageError, match=r"^Weighted: has 28 weights; 12, one a row, are allowed"):
        PackedBatchDataset(episodes, 4, window=windows, order=Weighted(np.ones(ROWS)), output="numpy")


def test_a_dataset_of_windows_for_a_dataloader(episodes: Path) -> None:
    from torch.utils.data import DataLoader

    windows = Windows(4, step=2, group="episode", horizon=1)
    dataset = PackedDataset(episodes, fields=FIELDS, window=windows)
    expected = [rows for rows, _ in plain_windows(windows)]
    assert len(dataset) == len(expected)
    for index, rows in enumerate(expected):
        assert dataset[index].row.tolist() == rows[:4]
        assert dataset[index].label.tolist() == [10 * rows[4]]
    assert dataset[-1].x.shape == (4, 2)
    assert dataset[1:3].x.shape == (2, 4, 2)
    loaded = [row for batch in DataLoader(dataset, 2) for row in batch.row.tolist()]
    assert loaded == [rows[:4] for rows in expected]
    with PackedBatchDataset(episodes, 2, fields=FIELDS, window=windows) as batches:
        assert len(batches.dataset) == len(expected)
        assert batches.dataset[0].row.tolist() == expected[0][:4]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of two classes with two clips of five frames each, and one of two; grey tells clip and frame."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("clips")
    for number, (clip, frames) in enumerate({"run/a": 5, "run/b": 5, "walk/c": 5, "walk/d": 2}.items()):
        (folder / "images" / clip).mkdir(parents=True)
        for frame in range(frames):
            pixels = np.full((16, 16, 3), 40 * number + frame, np.uint8)
            Image.fromarray(pixels).save(folder / "images" / clip / f"{frame:03}.png")
    convert_images(folder / "images", folder / "clips.h5", size=16, sequence=True)
    convert_images(folder / "images", folder / "jpeg.h5", size=16, sequence=True, store="jpeg")
    convert_images(folder / "images", folder / "plain.h5", size=16, shuffle=False)
    convert_images(folder / "images", folder / "shuffled.h5", size=16)
    convert_images(folder / "images", folder / "drawn.h5", size=16, shuffle=False, split="train=0.5,val=0.5")
    return folder


def test_clips_are_the_folders_of_the_keys(clips: Path) -> None:
    for name in ("clips.h5", "jpeg.h5"):
        with PackedBatchDataset(clips / name, 4, window=3, fields=("image", "label", "key")) as dataset:
            batches = list(dataset)
        assert [list(batch.image.shape) for batch in batches] == [
            [4, 3, 3, 16, 16],
            [4, 3, 3, 16, 16],
            [1, 3, 3, 16, 16],
        ]
        keys = [keys for batch in batches for keys in batch.key]
        assert len(keys) == 9
        assert all(len({key.rpartition("/")[0] for key in each}) == 1 for each in keys)
        assert keys[0] == ["run/a/000.png", "run/a/001.png", "run/a/002.png"]
        grey = np.concatenate([batch.image[:, :, 0, 0, 0] for batch in batches])
        assert abs(np.diff(grey.astype(int), axis=1) - 1).max() <= (2 if name == "jpeg.h5" else 0)


def test_frames_of_a_window_are_augmented_alike(clips: Path) -> None:
    from packer.augment import RandomCrop, RandomHorizontalFlip

    options: dict[str, Any] = {"shuffle": True, "augment": [RandomCrop(8), RandomHorizontalFlip()]}
    out = clips / "noise.h5"
    noise = np.random.default_rng(0).integers(0, 255, (1, 16, 16, 3), np.uint8)
    arrays = {"image": np.repeat(noise, 12, 0), "label": np.zeros(12, np.int64)}  # frames are one picture
    pack_dataset(arrays, out, shuffle=False, overwrite=True)
    alike = [batch.image for batch in PackedBatchDataset(out, 4, window=3, **options)]
    assert all((images == images[:, :1]).all() for images in alike)
    assert any((images[0] != images[1]).any() for images in alike)
    each = [batch.image for batch in PackedBatchDataset(out, 4, window=Windows(3, alike=False), **options)]
    assert any((images != images[:, :1]).any() for images in each)


def test_rows_that_were_left_out_of_a_table_part_its_windows(tmp_path: Path) -> None:
    lines = [f"{i if i != 4 else 'oops'},{i}" for i in range(10)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(lines) + "\n")
    options: dict[str, Any] = {"label": "y", "sequence": True, "on_error": "skip", "types": {"x": "number"}}
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", **options)
    with PackedBatchDataset(tmp_path / "t.h5", 9, window=3, output="numpy") as dataset:
        (batch,) = dataset
    assert batch.features[..., 0].tolist() == [[0, 1, 2], [1, 2, 3], [5, 6, 7], [6, 7, 8], [7, 8, 9]]


def test_windows_end_where_splits_do(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(f"{i},{i}" for i in range(10)) + "\n")
    convert_table(
        tmp_path / "t.csv", tmp_path / "t.h5", label="y", sequence=True, split="train=rest,test=last:4"
    )
    for split, firsts in ({"train": [0, 1, 2, 3], "test": [6, 7], "all": [0, 1, 2, 3, 6, 7]}).items():
        with PackedBatchDataset(tmp_path / "t.h5", 9, window=3, split=split, output="numpy") as dataset:
            (batch,) = dataset
        assert sorted(batch.features[:, 0, 0].tolist()) == firsts


def test_packs_of_a_list_have_no_window_in_common(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((ROWS, 2), np.float32), "label": np.zeros(ROWS, int)}
    pack_dataset(arrays, tmp_path / "a.h5", shuffle=False)
    pack_dataset(
        {"x": np.zeros((4, 2), np.float32), "label": np.zeros(4, int)}, tmp_path / "b.h5", shuffle=False
    )
    with PackedBatchDataset(
        [tmp_path / "a.h5", tmp_path / "b.h5"], 50, window=4, output="numpy", fields=("x", "row")
    ) as dataset:
        rows = np.concatenate([batch.row for batch in dataset])
    assert [ROWS - 4, ROWS - 3, ROWS - 2, ROWS - 1] in rows.tolist()
    assert not any(row[0] < ROWS <= row[-1] for row in rows.tolist())


@pytest.mark.parametrize(
    ("name", "window", "options", "sentence"),
    [
        (
            "shuffled.h5",
            3,
            {},
            "{pack}: its rows were shuffled when it was made, so neighbours are no sequence. Convert it again with"
            " sequence=True, or arrays with shuffle=False.",
        ),
        (
            "drawn.h5",
            3,
            {"split": "train"},
            "{pack}: the rows of its splits were drawn one by one, so neighbours are no sequence. Convert it again"
            " with sequence=True, or arrays with split='train=rest,val=last:1000'.",
        ),
        (
            "plain.h5",
            3,
            {},
            "{pack}: does not record which rows are a sequence, so windows may reach over their ends. Convert it again"
            " with sequence=True, or pass window=Windows(..., group=FIELD).",
        ),
        (
            "clips.h5",
            Windows(8, step=2),
            {},
            "{pack}: no group of rows is as long as Windows(length=8, step=2, dilation=1, group=None,"
            " anchor='first', ends='drop', horizon=0, alike=True), which needs 8 rows in a row. Pass a shorter"
            " window, or ends='repeat'.",
        ),
        (
            "clips.h5",
            Windows(2, group="x"),
            {},
            "window: group='x' is no field of one value a row in {pack}; its fields of such are label,"
            " sequence_row, key. Pass one of them.",
        ),
        (
            "clips.h5",
            2,
            {"transform": dict},
            "transform: is for single rows, not for window=. Apply it to the batches.",
        ),
        (
            "clips.h5",
            2,
            {"augment": "MixUp(num_classes=2)"},
            "MixUp and CutMix: is for single rows, not for window=. Apply it to the batches.",
        ),
    ],
)
def test_what_has_no_windows_is_told(
    clips: Path, name: str, window: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as error:
        PackedBatchDataset(clips / name, 2, window=window, **options)
    assert str(error.value) == sentence.format(pack=clips / name)


def test_parts_of_a_pack_drawn_row_by_row_have_no_windows(tmp_path: Path) -> None:
    pack_dataset({"x": np.arange(20.0)}, tmp_path / "p.h5", shuffle=False)
    split_pack(tmp_path / "p.h5", "train=0.5,val=0.5")
    with pytest.raises(UsageError, match="the rows of its splits were drawn one by one"):
        PackedBatchDataset(tmp_path / "p.train.h5", 2, window=2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"length": 0}, "Windows: length=0: is not a whole number from 1 to 1073741824."),
        ({"length": 2, "step": 0}, "Windows: step=0: is not a whole number from 1 to 1073741824."),
        ({"length": 10**30}, f"Windows: length={10**30}: is not a whole number from 1 to 1073741824."),
        ({"length": 2, "ends": "x"}, "ends='x': is not one of 'drop', 'repeat'. Pass one of them."),
        (
            {"length": 2, "ends": "repeat", "horizon": 1},
            "Windows: horizon=1 with ends='repeat': frames of the horizon are never repeated. Pass anchor='last', or"
            " ends='drop'.",
        ),
    ],
)
def test_windows_that_are_none_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        Windows(**given)
    assert str(error.value) == sentence


def test_groups_that_come_again_are_told(tmp_path: Path) -> None:
    episode = np.array([0, 0, 1, 1, 0, 0])
    pack_dataset({"x": np.arange(6.0), "episode": episode}, tmp_path / "e.h5", shuffle=False)
    with pytest.raises(UsageError, match=r"the rows of the group of row 0 \('episode'\) do not lie together"):
        PackedBatchDataset(tmp_path / "e.h5", 2, window=Windows(2, group="episode"), output="numpy")


def test_every_epoch_has_other_batches_of_the_same_windows(episodes: Path) -> None:
    with PackedBatchDataset(
        episodes, 5, window=Windows(3, group="episode"), shuffle=True, output="numpy", fields=FIELDS
    ) as dataset:
        epochs = [[tuple(row) for batch in dataset for row in batch.row.tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert set(epochs[0]) == set(epochs[1])
    assert set(itertools.chain(*epochs)) == {tuple(rows) for rows, _ in plain_windows(Windows(3))}


PACKS = (
    "arrays.h5",
    "table.h5",
    "table",
    "table-npy",
    "table-zstd.h5",
    "frames.h5",
    "jpeg.h5",
    "kept.h5",
    "frames",
    "splits.h5",
)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs of the same episodes, each row with its number, as --sequence makes them, but for arrays.h5."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("sequences")
    owners = np.repeat(np.arange(len(GROUPS)), GROUPS).tolist()
    arrays = {"x": np.arange(ROWS), "label": 10 * np.arange(ROWS), "episode": np.array(owners)}
    pack_dataset(arrays, folder / "arrays.h5", shuffle=False)
    lines = [f"{owner},{row % 10 + row // 10 * 100},{row},{10 * row}" for row, owner in enumerate(owners)]
    (folder / "t.csv").write_text("\n".join(["episode,step,x,label", *random.Random(0).sample(lines, ROWS)]))
    named: dict[str, dict[str, Any]] = {
        "table": {"format": "h5", "shards": 5},
        "table-zstd.h5": {"store": "zstd"},
    }
    for name in PACKS[1:5]:
        order = Sequences(group="episode", order="step")
        convert_table(folder / "t.csv", folder / name, label="label", sequence=order, **named.get(name, {}))
    for row, owner in enumerate(owners):
        for clip in (
            f"clips/{owner % 2}/{owner}",
            f"splits/{'train' if owner in (0, 2, 3) else 'test'}/{owner}",
        ):
            (folder / clip).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((16, 16, 3), 8 * row, np.uint8)).save(folder / clip / f"frame{row}.png")
    named = {
        "jpeg.h5": {"store": "jpeg"},
        "kept.h5": {"size": "keep"},
        "frames": {"format": "h5", "shards": 5},
    }
    for name in PACKS[5:]:
        source = folder / ("splits" if name == "splits.h5" else "clips")
        convert_images(source, folder / name, **{"size": 16, "sequence": True, **named.get(name, {})})
    return folder


def frames_of(batch: Any, length: int) -> list[tuple[list[int], list[bool]]]:
    """The row number of each frame, and of targets if there are labels that tell it, and the masks."""
    if not hasattr(batch, "image"):
        rows = (batch.features[..., 0] if hasattr(batch, "features") else batch.x).astype(int)
        targets = batch.label // 10
        if targets.shape[1] == length and (targets == rows).all():
            frames = rows.tolist()
        else:
            frames = np.concatenate([rows, targets], 1).tolist()
    else:
        frames = [[round(float(np.mean(frame)) / 8) for frame in window] for window in batch.image]
    masks = batch.frame_mask.tolist() if hasattr(batch, "frame_mask") else [[True] * length for _ in frames]
    return list(zip(frames, masks, strict=True))


def check_configuration(folder: Path, seed: int) -> None:
    """Compare the windows of a random configuration, which is resumed on other ranks, with a plain loop."""
    draw = random.Random(seed)
    name, anchor, ends = draw.choice(PACKS), draw.choice(["first", "last"]), draw.choice(["drop", "repeat"])
    horizon = draw.choice([0, 0, 1, 2]) if (anchor, ends) != ("first", "repeat") else 0
    windows = Windows(
        draw.randint(1, 7),
        step=draw.randint(1, 4),
        dilation=draw.randint(1, 3),
        group="episode" if name == "arrays.h5" else None,
        anchor=anchor,
        ends=ends,
        horizon=horizon,
    )
    split = draw.choice([None, "train", "test"]) if name == "splits.h5" else None
    split = "all" if (split, name) == (None, "splits.h5") else split
    groups = [(first, size) for first, size in zip(np.cumsum([0, *GROUPS]).tolist(), GROUPS, strict=False)]
    if split in ("train", "test"):
        groups = [one for number, one in enumerate(groups) if (number in (0, 2, 3)) is (split == "train")]
    expected = [
        ([first + row for row in rows], inside)
        for first, size in groups
        for rows, inside in plain_windows(windows, (size,))
    ]
    before, after, order = (
        draw.randint(1, 4),
        draw.randint(1, 4),
        draw.choice(["sequential", "slices", "blocks", "rows"]),
    )
    steps = draw.randint(1, 3)

    def dataset(rank: int, world_size: int) -> PackedBatchDataset[Any]:
        return PackedBatchDataset(
            folder / name,
            12 // world_size,
            window=windows,
            split=split,
            order=order,
            seed=seed,
            output="numpy",
            rank=rank,
            world_size=world_size,
            ends="even",
        )

    if not expected:
        with pytest.raises(UsageError, match="no group of rows is as long as Windows"):
            dataset(0, 1)
        return
    steps = min(steps, (len(expected) - 1) // (12 // before * before))
    found, state = [], None
    for rank in range(before if steps else 0):
        with dataset(rank, before) as part:
            for batch in itertools.islice(part, steps):
                found += frames_of(batch, windows.length)
            state = part.state_dict()
    for rank in range(after):
        with dataset(rank, after) as part:
            if state is not None:
                part.load_state_dict(state)
            for batch in part:
                found += frames_of(batch, windows.length)
    pictures = name in PACKS[5:]  # their labels are classes
    wanted = [
        (rows[: windows.length] if pictures else rows, inside[: windows.length]) for rows, inside in expected
    ]
    assert {str(one) for one in found} == {str(one) for one in wanted}, (seed, name, windows, split, order)
    assert len(wanted) <= len(found) < len(wanted) + before + after


@pytest.mark.parametrize("seed", range(40))
def test_windows_of_sequences_are_those_of_a_plain_loop(sequences: Path, seed: int) -> None:
    check_configuration(sequences, seed)


@pytest.mark.soak
def test_a_thousand_configurations_of_windows(sequences: Path) -> None:
    for seed in range(1000, 2000):
        check_configuration(sequences, seed)
