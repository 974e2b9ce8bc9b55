"""packer convert of arrays: files, what was found in them, options that are about something else."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from packer import open_pack
from packer.cli import cli
from packer.errors import UsageError

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 3


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and labels in every form, in the current folder."""
    monkeypatch.chdir(tmp_path)
    np.save("photos.npy", IMAGES)
    np.save("labels.npy", LABELS)
    np.savez("data.npz", x=IMAGES, y=LABELS)
    with h5py.File("data.h5", "w") as file:
        file["x_train"], file["y_train"], file["x_test"], file["y_test"] = (
            IMAGES,
            LABELS,
            IMAGES[:5],
            LABELS[:5],
        )


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["convert", *arguments], catch_exceptions=False, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["photos.npy", "labels.npy", "out.h5", "--rename", "photos=image"],
        ["data.npz", "out.h5"],
        ["data.h5", "out.h5", "--rename", "x_train=image", "--rename", "y_train=label"],
    ],
    ids=str,
)
def test_arrays(arguments: list[str]) -> None:
    assert "packed 20 rows" in run(*arguments)
    pack = open_pack("out.h5")
    keys = [int(key) for key in pack.keys()]
    np.testing.assert_array_equal(pack.read("image"), IMAGES[keys])
    np.testing.assert_array_equal(pack.read("label"), LABELS[keys])


def test_arrays_are_resized() -> None:
    run("data.npz", "out.h5", "--size", "4", "--fit", "stretch")
    assert open_pack("out.h5").header.field("image").shape == (4, 4, 3)


def test_what_was_found_is_said() -> None:
    assert (
        "note: found x uint8[20, 8, 8, 3], y int64[20]: x is 'image', y is 'label'. To choose differently, pass --rename.\n"
        in run("data.npz", "out.h5")
    )
    report = json.loads(run("data.npz", "out2.h5", "--json", "--quiet"))
    assert report["notes"][0].endswith("To choose differently, pass --rename.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["photos.npy", "labels.npy", "out.h5"],
            "none is called image. Name the fields: fields=Fields(rename={'photos': 'image'}).",
        ),
        (["data.h5", "out.h5", "--rename", "z=image"], "rename: data.h5 has no 'z'; it holds"),
        (["data.h5", "out.h5", "--rename", "image"], "--rename image: is not NAME=FIELD"),
        (
            ["data.npz", "out.h5", "--labels", "x"],
            "--labels: is about images; data.npz is read as arrays. Leave it out.",
        ),
        (
            ["data.npz", "out.h5", "--label", "y"],
            "--label: is about images and tables; data.npz is read as arrays. Pass --rename y=label.",
        ),
        (
            ["data.npz", "out.h5", "--header"],
            "--header: is about tables; data.npz is read as arrays. Leave it out.",
        ),
        (
            ["data.npz", "out.h5", "--like", "x.h5"],
            "--like: is about images and tables; data.npz is read as arrays. Leave it out.",
        ),
        (["photos.npy", "photos.jpg", "out.h5"], "photos.jpg: is not a file of arrays"),
        (["photos", "out.h5", "--rename", "a=b"], "--rename: is about arrays; photos is read as images."),
    ],
    ids=str,
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*arguments)
    assert said in str(caught.value)
    assert not Path("out.h5").exists()
