from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import re
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packer import PackedBatchDataset, convert_images
from packer.bench import hardware_limits, image_baseline, lanes
from packer.bench.bench import bench
from packer.errors import PackerError, UsageError
from packer.inputs.label_options import Labels

pytestmark = [
    pytest.mark.usefixtures("flushed"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a machine of one core
    pytest.mark.filterwarnings(
        "ignore:.*use of fork.*:DeprecationWarning"
    ),  # Python 3.12; the workers only load
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_bar_for_the_whole_which_moves_between_measurements_only(
    photo_folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal()
    measured: list[bool] = []

    def watched(owner: Any, name: str) -> None:
        measure = getattr(owner, name)

        def watch(*given: Any, **options: Any) -> Any:
            before = stderr.getvalue()
            result = measure(*given, **options)
            measured.append(stderr.getvalue() == before)
            return result

        monkeypatch.setattr(owner, name, watch)

    monkeypatch.setattr(sys, "stderr", stderr)
    for owner, name in (
        (lanes, "loader_rate"),
        (hardware_limits.CopyLimit, "rate"),
        (lanes.Packed, "rate"),
        (lanes.Packed, "first_epoch"),
    ):
        watched(owner, name)
    bench(photo_folder, pack, rounds=1, seconds=0.02, workers=[0, 1], progress=True)
    shown = stderr.getvalue()
    text, bar = shown[shown.index("takes") :].split("\n")
    assert text == "takes about 1 s: 20 measurements of 0.02 s"
    shares = [int(share) for share in re.findall(r"(\d+)%\|", bar)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 95)
    for name in (
        "decoding alone",
        "DataLoader, 1 worker",
        "warm page cache: limit",
        "cold page cache: packed, slices",
    ):
        assert f"{name}: " in bar
    assert len(measured) == 13
    assert all(measured)


def test_every_way_is_measured_beside_its_limit(photo_folder: Path, pack: Path) -> None:
    threads = threading.active_count()
    report = bench(photo_folder, pack, rounds=2, seconds=0.02, workers=[0, 1])
    warm, cold = report.sections.values()
    assert [re.sub(r"\d workers?", "N workers", way.name) for way in warm] == [
        "folder, DataLoader, N workers",
        "packed, sequential",
        "packed, slices",
        "packed, blocks",
        "packed, rows",
        warm[-1].name,
    ]
    assert re.fullmatch(r"limit: memcpy, \d threads?", warm[-1].name)
    assert [way.name for way in cold[1:4]] == ["packed, sequential", "packed, slices", "packed, blocks"]
    assert re.fullmatch(r"limit: plain reads, \d threads?", cold[4].name)
    for way in (*warm[1:5], *cold[1:4]):
        assert way.baseline is not None
        assert way.limit is not None
        assert len(way.rates) == len(way.baseline) == len(way.limit) == 2
        assert min(way.rates) > 0
    assert report.batch_size == 6  # four batches of the 24 images
    assert report.conditions["rows_compared"] == 24
    assert report.conditions["images_sampled"] == 24
    assert json.loads(json.dumps(report.to_dict()))["rows"] == 24
    assert multiprocessing.active_children() == []
    assert threading.active_count() == threads


def test_jpeg_rows_are_measured_beside_their_decoder(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "j.h5", size=32, store="jpeg")
    report = bench(photo_folder, tmp_path / "j.h5", rounds=1, seconds=0.02, workers=[0])
    warm, cold = report.sections.values()
    assert [way.name for way in warm[:-1]] == [
        "folder, DataLoader, 0 workers",
        "packed, sequential",
        "packed, slices",
        "packed, blocks",
        "packed, rows",
    ]
    assert re.fullmatch(r"limit: decode, \d threads?", warm[-1].name)
    assert re.fullmatch(r"limit: plain reads, \d threads?", cold[-1].name)
    assert all(way.of_limit is not None and way.of_limit > 0 for way in (*warm[1:5], *cold[1:4]))
    assert report.heading.endswith(": 24 images of 32x32x3 (JPEG), batches of 6")
    assert report.notes[0] == "compared: pixels of 24 rows, each equal to its image converted again."


@pytest.mark.parametrize(
    ("size", "side", "stored"),
    [("max=40", 40, "JPEG, longest side at most 40"), ("keep", 224, "JPEG, their own size")],
)
def test_whole_pictures_are_cut_on_both_sides(
    photo_folder: Path, tmp_path: Path, size: str, side: int, stored: str
) -> None:
    threads = threading.active_count()
    convert_images(photo_folder, tmp_path / "w", size=size)
    report = bench(photo_folder, tmp_path / "w", rounds=2, seconds=0.02, workers=[0, 1])
    assert list(report.sections) == ["warm page cache", "cold page cache"]
    warm, cold = report.sections.values()
    assert [re.sub(r"\d (worker|thread)s?", r"N \1s", way.name) for way in warm] == [
        "folder, DataLoader, N workers",
        "packed, sequential",
        "packed, slices",
        "packed, blocks",
        "packed, rows",
        "limit: whole decode, N threads",
    ]
    assert [way.name for way in cold[1:4]] == ["packed, sequential", "packed, slices", "packed, blocks"]
    for way in (*warm[1:5], *cold[1:4]):
        assert way.times_baseline is not None
        assert way.of_limit is not None
        assert len(way.rates) == 2
        assert min(way.rates) > 0
    assert report.heading.endswith(
        f": 24 whole pictures ({stored}) cut to {side}x{side}x3 by RandomResizedCrop and flip, batches of 6"
    )
    assert multiprocessing.active_children() == []
    assert threading.active_count() == threads


@pytest.mark.parametrize("size", ["max=40", 32])
def test_masks_beside_images_are_not_loaded(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str | int
) -> None:
    """Nor are they on the other side."""
    for path in photo_folder.glob("*/*.jpg"):
        (tmp_path / "masks" / path.parent.name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (48, 40)).save(tmp_path / "masks" / path.parent.name / f"{path.stem}.png")
    out = tmp_path / "w.h5"
    convert_images(photo_folder, out, size=size, store="jpeg", pairs={"mask": tmp_path / "masks"})
    loaded: list[list[str]] = []

    class Noted(PackedBatchDataset):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            loaded.append(options["fields"])

    monkeypatch.setattr(lanes, "PackedBatchDataset", Noted)
    bench(photo_folder, out, rounds=1, seconds=0.01, workers=[0])
    assert loaded == [["label"], *[["image", "label"]] * 7]


def test_a_directory_of_npy_without_labels(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder / "red", tmp_path / "red", size=32)
    report = bench(photo_folder / "red", tmp_path / "red", rounds=1, seconds=0.01, workers=[0], cold=False)
    (warm,) = report.sections.values()
    assert [way.name for way in warm[:2]] == ["folder, DataLoader, 0 workers", "packed, sequential"]
    assert (report.source, report.pack) == (str(photo_folder / "red"), str(tmp_path / "red"))


def test_of_many_images_some_are_read(
    photo_folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_baseline, "SAMPLED_IMAGES", 8)
    report = bench(photo_folder, pack, batch_size=2, rounds=1, seconds=0.01, workers=[0])
    assert report.conditions["images_sampled"] == 8
    assert report.rows == 24


def test_an_archive_can_be_cold_but_not_one_that_is_compressed_whole(
    photo_folder: Path, pack: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photo_folder, "photos")
    (tmp_path / "photos.tar.gz").write_bytes(gzip.compress((tmp_path / "photos.tar").read_bytes()))
    report = bench(tmp_path / "photos.tar" / "photos", pack, rounds=1, seconds=0.01, workers=[0])
    assert report.sections["cold page cache"][0].name == "source, DataLoader, 0 workers"
    source = tmp_path / "photos.tar.gz" / "photos"
    report = bench(source, pack, rounds=1, seconds=0.01, workers=[0])
    assert "cold page cache" not in report.sections
    assert report.notes == (
        "compared: pixels of 24 rows, each equal to its image converted again.",
        "batches of 6 instead of 256: a quarter of the pack's rows, at most.",
        f"cold page cache: {source} is not read file by file; not measured.",
    )


def test_tars_of_webdataset_with_another_label(photo_folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, path in enumerate(sorted(photo_folder.rglob("*.jpg"))):
            told = json.dumps({"name": f"class {path.parent.name}"}).encode()
            for ending, data in (("jpg", path.read_bytes()), ("cls", b"0"), ("json", told)):
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    convert_images(tmp_path / "a.tar", tmp_path / "a.h5", size=32, labels=Labels(column="name"))
    report = bench(tmp_path / "a.tar", tmp_path / "a.h5", rounds=1, seconds=0.01, workers=[0])
    assert report.conditions["rows_compared"] == 24
    assert "cold page cache" in report.sections


def test_a_list_can_be_cold_wherever_its_images_lie(photo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    listed = tmp_path / "lists" / "red.txt"
    listed.write_text("".join(f"{path} {path.stem}\n" for path in sorted((photo_folder / "red").iterdir())))
    convert_images(listed, tmp_path / "red.h5", size=32)
    report = bench(listed, tmp_path / "red.h5", rounds=1, seconds=0.01, workers=[0])
    assert "cold page cache" in report.sections


def test_labels_from_a_csv(photo_folder: Path, tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "pack.h5"
    labels.write_text(
        "".join(f"{path.relative_to(photo_folder)},7\n" for path in sorted(photo_folder.glob("*/*")))
    )
    convert_images(photo_folder, out, labels=labels, size=32)
    report = bench(photo_folder, out, rounds=1, seconds=0.01, workers=[0], cold=False)
    assert report.conditions["rows_compared"] == 24


def test_a_system_without_linuxs_calls_is_measured_warm(
    photo_folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "posix_fadvise")
    monkeypatch.setattr(hardware_limits, "CAN_DROP", False)
    report = bench(photo_folder, pack, rounds=1, seconds=0.01, workers=[0])
    assert list(report.sections) == ["warm page cache"]
    assert report.notes[2] == "cold page cache: this system cannot empty it; not measured."
    assert report.conditions["cores"] == os.cpu_count()


def test_other_images_are_refused(photo_folder: Path, stored: Path, pack: Path) -> None:
    for path in (pack, stored):
        with pytest.raises(PackerError, match="bench needs the images that the pack was converted from"):
            bench(photo_folder / "red", path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0: is not a number above 0. Pass another one."),
        ({"workers": [2, -1]}, "workers=[2, -1]: counts below 0 are not allowed. Pass other numbers."),
        ({"seconds": 0.0}, "seconds=0.0: is not a number above 0. Pass another one."),
        ({"batch_size": 0}, "batch_size=0: is not a number above 0. Pass another one."),
        ({"model_rate": -1.0}, "model_rate=-1.0: is not a number above 0. Pass another one."),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        bench(tmp_path, tmp_path / "none.h5", **options)  # type: ignore[arg-type]


def test_a_pack_in_the_place_of_images_is_refused(pack: Path) -> None:
    with pytest.raises(UsageError, match=r"photos\.h5: is a pack; images are files"):
        bench(pack, pack)


def test_a_pack_with_a_class_list_is_compared_with_its_images(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "q.h5", size=16, classes="red,violet,green", on_error="skip")
    assert bench(photo_folder, tmp_path / "q.h5", rounds=1, seconds=0.02, workers=[0], cold=False).rows == 16
