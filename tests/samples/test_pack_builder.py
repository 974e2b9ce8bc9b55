"""create and PackBuilder: samples appended; whole or not there, whatever ends it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import create, open_pack, pack_dataset, verify_pack
from packer.errors import BusyError, FormatError, PackerError, SourceError, UsageError
from packer.samples.pack_builder import PackBuilder

ROWS = 50
draws = np.random.default_rng(0)
IMAGES = draws.integers(0, 256, (ROWS, 8, 6, 3), dtype=np.uint8)
TOKENS = [draws.integers(0, 99, n).astype(np.int32) for n in draws.integers(0, 9, ROWS)]
FORMS = {"image": "uint8[8,6,3]", "tokens": "int32[*]", "label": "int64"}


def write(pack: PackBuilder, first: int, last: int) -> None:
    for number in range(first, last):
        pack.write(image=IMAGES[number], tokens=TOKENS[number].tolist(), label=number)


def check(out: Path) -> None:
    """The pack holds the samples, each once; the label is its number."""
    assert verify_pack(out).ok
    pack = open_pack(out)
    labels = pack.read("label").tolist()
    assert sorted(labels) == list(range(ROWS))
    np.testing.assert_array_equal(pack.read("image"), IMAGES[labels])
    for number, row in zip(labels, pack.read_ragged("tokens"), strict=True):
        np.testing.assert_array_equal(np.frombuffer(row, "<i4"), TOKENS[number])
    np.testing.assert_allclose(pack.header.statistics["image"]["mean"], IMAGES.mean((0, 1, 2)) / 255)


def test_rows_one_by_one_and_several_at_once(tmp_path: Path) -> None:
    with create(tmp_path / "out.h5", fields=FORMS) as pack:
        write(pack, 0, 20)
        pack.write_rows(image=IMAGES[20:45], tokens=TOKENS[20:45], label=np.arange(20, 45))
        assert pack.rows == 45
        assert not (tmp_path / "out.h5").exists()
        write(pack, 45, ROWS)
    check(tmp_path / "out.h5")
    assert pack.report is not None
    assert pack.report.rows == ROWS
    assert os.listdir(tmp_path) == ["out.h5"]
    assert open_pack(tmp_path / "out.h5").read("label").tolist() != list(range(ROWS))


@pytest.mark.skipif(sys.platform != "linux", reason="lists what is open by /proc")
def test_a_finished_builder_holds_no_files(tmp_path: Path) -> None:
    pack = create(tmp_path / "out.h5", fields=FORMS)
    write(pack, 0, ROWS)
    pack.finish()
    opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    assert not [path for path in opened if str(tmp_path) in path]
    with pytest.raises(SourceError, match="no samples were written"):
        create(tmp_path / "none.h5").finish()


def test_the_bytes_are_those_of_a_generator_and_of_any_workers(tmp_path: Path) -> None:
    for name, workers in (("1", 1), ("2", 2)):
        with create(tmp_path / f"{name}.h5", fields=FORMS, workers=workers) as pack:
            write(pack, 0, ROWS)
    samples = ({"image": IMAGES[i], "tokens": TOKENS[i], "label": i} for i in range(ROWS))
    pack_dataset(samples, tmp_path / "3.h5", fields=FORMS)
    first = (tmp_path / "1.h5").read_bytes()
    assert first == (tmp_path / "2.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out", {"shards": 20}),
        ("out.h5", {"split": "a=0.5,b=0.5"}),
        ("out.h5", {"store": "gzip"}),
        ("out", {}),
        ("out.h5", {"store": "jpeg"}),
    ],
    ids=str,
)
def test_options(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    with create(tmp_path / name, fields=FORMS, **options) as pack:
        write(pack, 0, ROWS)
    assert verify_pack(tmp_path / name).ok
    assert open_pack(tmp_path / name).rows == ROWS


def test_what_the_first_sample_shows(tmp_path: Path) -> None:
    with create(tmp_path / "out.h5") as pack:
        pack.write(image=Image.fromarray(IMAGES[0]), label=1, name="a")
        pack.write(image=Image.fromarray(IMAGES[1]), label=2, name="b")
    about = [(f.name, f.dtype, f.shape) for f in open_pack(tmp_path / "out.h5").fields]
    assert about == [
        ("image", "|u1", (8, 6, 3)),
        ("label", "<i8", ()),
        ("name", "|u1", None),
        ("key", "|u1", None),
    ]


def test_a_refused_sample_is_left_out_and_the_pack_goes_on(tmp_path: Path) -> None:
    with create(tmp_path / "out.h5", fields=FORMS) as pack:
        write(pack, 0, 3)
        for values, said in [
            ({"label": 3}, r"sample 3: 'image' is missing; every sample has image, label, tokens"),
            (
                {"image": IMAGES[3], "tokens": [], "label": 3, "x": 1},
                r"sample 3: 'x' is not a field of this pack",
            ),
            (
                {"image": IMAGES[3][:7], "tokens": [], "label": 3},
                r"sample 3: field 'image' has the shape \[7, 6, 3\], but the field is uint8\[8,6,3\]",
            ),
            (
                {"image": IMAGES[3], "tokens": [], "label": 1.5},
                r"field 'label' has the value 1.5, but the field is int64",
            ),
            (
                {"image": IMAGES[3], "tokens": [1 << 40], "label": 3},
                r"has the value 1099511627776, but the field is int32",
            ),
        ]:
            with pytest.raises(SourceError, match=said):
                pack.write(**values)
        with pytest.raises(
            SourceError, match=r"samples from 3 on: image has 2, tokens has 1, label has 2 values"
        ):
            pack.write_rows(image=IMAGES[3:5], tokens=TOKENS[3:4], label=[3, 4])
        with pytest.raises(SourceError, match=r"sample 4: field 'tokens' has the shape \[1, 1\]"):
            pack.write_rows(image=IMAGES[3:5], tokens=[[1], [[2]]], label=[3, 4])
        with pytest.raises(SourceError, match="label: is a masked array, whose mask cannot be stored"):
            pack.write_rows(image=IMAGES[3:4], tokens=[[1]], label=np.ma.masked_array([3], [True]))
        assert pack.rows == 3
        write(pack, 3, ROWS)
    check(tmp_path / "out.h5")


@pytest.mark.parametrize(
    ("form", "values", "said"),
    [
        ("uint8", [0, 1, 300], "300, but the field is uint8"),
        ("int64", [0.0, 1.0, 2.5], "2.5, but the field is int64"),
        ("int32", [0.0, 1.0, np.nan], "nan, but the field is int32"),
        ("float32", [0.0, 1.0, 1e300], "1e+300, but the field is float32"),
        ("uint8[2]", [[0, 1], [1, 2], [3, -1]], "-1, but the field is uint8"),
    ],
)
def test_an_array_of_samples_is_refused_for_the_sample_that_does_not_fit(
    tmp_path: Path, form: str, values: list[Any], said: str
) -> None:
    with create(tmp_path / "out.h5", fields={"x": form}) as pack:
        pack.write_rows(x=np.array(values[:2]))
        with pytest.raises(SourceError) as error:
            pack.write_rows(x=np.array(values))
        assert str(error.value).startswith(f"sample 4: field 'x' has the value {said}. ")
        assert pack.rows == 2


def test_rows_of_many_axes(tmp_path: Path) -> None:
    """HDF5 holds 32 axes, the header of an .npy file the text of 21."""
    for axes, out in ((31, "a.h5"), (20, "a")):
        assert pack_dataset({"x": np.zeros((3,) + (1,) * axes, np.uint8)}, tmp_path / out).rows == 3
    for axes, out, error in (
        (32, "b.h5", "x: has 32 axes; at most 31 are stored. Reshape it."),
        (
            21,
            "b",
            "x: rows have 21 axes, too many for the header of a .npy file. Pass an output that ends in .h5, or"
            " reshape them.",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            pack_dataset({"x": np.zeros((3,) + (1,) * axes, np.uint8)}, tmp_path / out)
        assert str(refused.value) == error
        with pytest.raises(PackerError, match="axes"), create(tmp_path / out) as pack:
            pack.write(x=np.zeros((1,) * axes, np.uint8))
        assert not list(tmp_path.glob("b*"))


class UsersError(Exception):
    """Raised in a with block."""


def test_an_exception_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsersError, match="mine"), create(tmp_path / "out.h5", fields=FORMS) as pack:
        write(pack, 0, 10)
        raise UsersError("mine")
    assert os.listdir(tmp_path) == []


def test_no_samples(tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match=r"no samples were written; a pack has at least one"),
        create(tmp_path / "out.h5"),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_finished_it_takes_no_more(tmp_path: Path) -> None:
    pack = create(tmp_path / "out.h5", fields=FORMS)
    write(pack, 0, ROWS)
    pack.finish()
    with pytest.raises(UsageError, match="is finished or discarded; no samples can be added to it"):
        write(pack, 0, 1)
    pack.discard()
    check(tmp_path / "out.h5")


def test_without_a_block_it_is_begun_anew(tmp_path: Path) -> None:
    pack = create(tmp_path / "out.h5", fields=FORMS)
    write(pack, 0, 5)
    with pytest.raises(SourceError):
        pack.write(label=1)  # the cell of a notebook ends here, and is run again
    before = pack
    pack = create(tmp_path / "out.h5", fields=FORMS)
    with pytest.raises(UsageError, match="is finished or discarded; no samples can be added to it"):
        write(before, 5, 6)
    write(pack, 0, ROWS)
    del before
    pack.finish()
    check(tmp_path / "out.h5")
    create(tmp_path / "dropped.h5").write(label=1)
    gc.collect()
    assert os.listdir(tmp_path) == ["out.h5"]
    with create(tmp_path / "b.h5") as first, pytest.raises(BusyError, match="another packer is writing it"):
        first.write(label=1)
        create(tmp_path / "b.h5")


def test_what_exists_is_replaced_only_if_asked_and_only_when_whole(tmp_path: Path) -> None:
    with create(tmp_path / "out.h5", fields=FORMS) as pack:
        write(pack, 0, ROWS)
    with pytest.raises(UsageError, match="exists; nothing is overwritten unasked"):
        create(tmp_path / "out.h5")
    with pytest.raises(UsersError), create(tmp_path / "out.h5", overwrite=True) as pack:
        pack.write(label=1)
        raise UsersError
    check(tmp_path / "out.h5")
    with create(tmp_path / "out.h5", overwrite=True) as pack:
        pack.write(label=1)
    assert open_pack(tmp_path / "out.h5").rows == 1


def test_labels_of_no_class_leave_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match="its label is 2; the 2 classes are numbered from 0"),
        create(tmp_path / "out.h5", classes=["a", "b"]) as pack,
    ):
        pack.write_rows(label=[0, 1, 2])
    assert os.listdir(tmp_path) == []


KILLED = """
    import sys, numpy as np
    from packer import create
    with create("out.h5", fields={"image": "uint8[64,64,3]"}) as pack:
        for number in range(1000):
            pack.write(image=np.full((64, 64, 3), number % 256, np.uint8))
            if number == 700:
                print("here", flush=True)
                sys.stdin.read()
"""


def test_killed_it_leaves_no_pack_and_the_next_run_begins_anew(tmp_path: Path) -> None:
    program = [sys.executable, "-c", textwrap.dedent(KILLED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        program, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"here\n"
        running.send_signal(signal.SIGKILL)
    assert os.listdir(tmp_path) == ["out.h5.packing"]
    with pytest.raises(
        FormatError,
        match=r"Its conversion did not finish \(.*out\.h5\.packing\): run it again; it starts over",
    ):
        open_pack(tmp_path / "out.h5")
    with create(tmp_path / "out.h5", fields=FORMS) as pack:
        write(pack, 0, ROWS)
    check(tmp_path / "out.h5")
    assert os.listdir(tmp_path) == ["out.h5"]
