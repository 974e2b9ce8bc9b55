"""Sequences of tables: rows of a group in the order of a column, ties, gaps, splits, and what follows for windows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from packer import (
    PackedBatchDataset,
    Sequences,
    Split,
    append_table,
    convert_table,
    merge_packs,
    open_pack,
    repack,
    split_pack,
)
from packer.errors import SourceError, UsageError
from packer.packs.recorded_command import convert_again

STEPS = {"a": 12, "b": 1, "c": 5, "d10": 9}
BOTH = Sequences(group="episode", order="step")


def write(path: Path, place: Any = str, *, mixed: bool = True, bad: Sequence[tuple[str, int]] = ()) -> Path:
    """Write episodes, x = 100 * episode + step. place: the text of a step; bad: steps whose x is no number."""
    rows = [
        f"{name},{place(step)},{'oops' if (name, step) in bad else 100 * number + step},{step % 2}"
        for number, (name, steps) in enumerate(STEPS.items())
        for step in range(1, steps + 1)
    ]
    rows = random.Random(1).sample(rows, len(rows)) if mixed else rows
    path.write_text("\n".join(["episode,step,x,y", *rows, ""]))
    return path


def windows(path: Any, length: int = 3, **options: Any) -> list[list[int]]:
    """The values of x in each window."""
    with PackedBatchDataset(path, 500, window=length, output="numpy", **options) as dataset:
        return [list(map(int, row)) for batch in dataset for row in batch.features[..., 0].tolist()]


def expected(length: int = 3, missing: Sequence[int] = ()) -> list[list[int]]:
    found = []
    for number, steps in enumerate(STEPS.values()):
        values = [100 * number + step for step in range(1, steps + 1)]
        found += [values[at : at + length] for at in range(steps - length + 1)]
    return [values for values in found if not set(values) & set(missing)]


@pytest.mark.parametrize(
    ("place", "types"),
    [
        (str, {}),
        ("{:03}".format, {}),
        ("step_{}".format, {}),
        ("{:.4f}".format, {}),
        (lambda step: f"{1305031102 + step / 1000:.3f}", {}),
        ("2024-01-{:02}".format, {}),
        ("{:02}/01/2024 10:00".format, {"step": "timestamp-dmy"}),
        ("2024-01-01 00:{:02}".format, {}),
        (str, {"step": "category"}),
    ],
)
@pytest.mark.parametrize("options", [{}, {"shards": 4}])
def test_rows_of_a_group_are_stored_in_the_order_of_a_column(
    tmp_path: Path, place: Any, types: dict[str, str], options: dict[str, Any]
) -> None:
    table = write(tmp_path / "t.csv", place)
    convert_table(table, tmp_path / "t", format="h5", label="y", sequence=BOTH, types=types, **options)
    for length in (1, 3, 9):
        assert sorted(windows(tmp_path / "t", length)) == expected(length)
    assert open_pack(tmp_path / "t").header.seed is None


def test_without_a_group_all_rows_are_one_series(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "day,x,y\n" + "".join(f"{day},{day},{day % 2}\n" for day in (5, 1, 3, 2, 4, 10, 9, 8, 7, 6))
    )
    convert_table(
        table, tmp_path / "o.h5", label="y", sequence=Sequences(order="day"), split="train=rest,val=last:4"
    )
    assert windows(tmp_path / "o.h5", split="val") == [[7, 8, 9], [8, 9, 10]]
    assert windows(tmp_path / "o.h5", split="all")[:2] == [[1, 2, 3], [2, 3, 4]]
    convert_table(table, tmp_path / "f.h5", label="y", sequence=True, keep="day")
    assert windows(tmp_path / "f.h5", 10) == [[5, 1, 3, 2, 4, 10, 9, 8, 7, 6]]
    (tmp_path / "u.csv").write_text(table.read_text())
    report = convert_table([table, tmp_path / "u.csv"], tmp_path / "g.h5", label="y", sequence=True)
    assert any(note.startswith("The rows of 2 files are one sequence, and windows") for note in report.notes)
    with pytest.raises(
        UsageError, match=r"is a single sequence, which shares would cut at random; positions are"
    ):
        convert_table(table, tmp_path / "n.h5", label="y", sequence=True, split="train=0.5,val=0.5")
    with pytest.raises(UsageError, match=r"^sequence=True: stores rows in order, and shuffle=True"):
        convert_table(table, tmp_path / "n.h5", label="y", sequence=True, shuffle=True)


def test_columns_that_give_no_order_are_told(tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "o.h5"

    def fails(rows: str, match: str, error: type[Exception] = SourceError, **options: Any) -> None:
        table.write_text("episode,step,x,y\n" + rows)
        with pytest.raises(error, match=match):
            convert_table(table, out, **{"label": "y", "sequence": BOTH, **options})

    rows = "a,1,1,0\na,2,2,0\nb,1,3,1\n"
    fails(
        rows + "a,2,4,1\n",
        r"t.csv, row 2 and .*t.csv, row 4: have the same place in sequence 'a'; each row has",
    )
    fails(rows + "b,,4,1\n", r"line 5, column 'step': is missing; it defines the row's split or place")
    fails(rows + ",7,4,1\n", r"line 5, column 'episode': is missing; it defines the row's split or place")
    fails(rows.replace(",1,1", ",x,1"), r"column 'step' holds texts, such as 'x', that have no known order")
    fails(rows + "A,9,4,1\n", r"names the sequences 'A' and 'a', which differ only in case")
    fails(rows, "no column is named 'no'", UsageError, sequence=Sequences(order="no"))
    fails(rows, "sequences are divided by shares", UsageError, split="train=rest,val=last:1")
    split = Split(column="y")
    fails("a,1,1,u\na,2,2,v\nb,1,3,u\n", "^sequence 'a': is in the splits u and v", split=split)


def test_windows_do_not_reach_over_rows_that_were_left_out(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", mixed=False, bad=[("a", 6), ("d10", 2)])
    convert_table(table, tmp_path / "o.h5", label="y", sequence=BOTH, on_error="skip", types={"x": "number"})
    assert windows(tmp_path / "o.h5") == expected(missing=[6, 302])
    write(table, bad=[("a", 6)])
    with pytest.raises(SourceError, match=r"in sequence 'a', so the places of 1 row left out are not known"):
        convert_table(
            table, tmp_path / "n.h5", label="y", sequence=BOTH, on_error="skip", types={"x": "number"}
        )


def test_splits_and_packs_of_packs_cut_no_sequence(tmp_path: Path) -> None:
    table, out = write(tmp_path / "t.csv"), tmp_path / "o"
    report = convert_table(table, out, label="y", sequence=BOTH, split="train=0.6,val=0.4", shards=10)
    assert any(note.startswith("Sequences in each split: train ") for note in report.notes)
    found = [windows(out, split=split) for split in ("train", "val")]
    assert all(found)
    assert sorted(found[0] + found[1]) == expected()
    with pytest.raises(UsageError, match="have groups of 'sequences', which new rows may divide"):
        append_table(out, table, duplicates="keep")
    merge_packs([out, out], tmp_path / "m.h5", duplicates="keep")
    assert sorted(windows(tmp_path / "m.h5", split="all")) == sorted(2 * expected())
    whole = tmp_path / "w"
    convert_table(table, whole, label="y", sequence=BOTH, shards=7)
    assert convert_again(open_pack(whole)).endswith(
        "--sequence --group-column episode --order-column step --shard-rows 7 --label y --no-shuffle"
    )
    append_table(whole, table, duplicates="keep")
    assert sorted(windows(whole)) == sorted(2 * expected())
    repack(whole, tmp_path / "r.h5", store="zstd")
    assert windows(tmp_path / "r.h5") == windows(whole)
    halves = [windows(report.out) for report in split_pack(tmp_path / "r.h5", "a=0.5,b=0.5").values()]
    assert sorted(halves[0] + halves[1]) == sorted(2 * expected())
    convert_table(table, tmp_path / "like.h5", like=whole, sequence=BOTH)
    assert sorted(windows(tmp_path / "like.h5")) == expected()
    plain = tmp_path / "plain.h5"
    convert_table(table, plain, label="y", drop=["episode", "step"], shuffle=False)
    with pytest.raises(UsageError, match="holds sequences, and another of these packs does not"):
        windows([tmp_path / "like.h5", plain])
