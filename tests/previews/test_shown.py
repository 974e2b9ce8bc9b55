"""packer.show: batches, datasets and packs as pictures for a notebook."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import convert_images, pack_dataset, preview, show
from packer.errors import PackerError, UsageError
from packer.previews.contact_sheet import Shown
from packer.previews.preview_batch import batch_of, captions

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset  # noqa: E402

SIZE = 120  # not enlarged
LEFT, TOP = 20, 20  # of the first tile


def pixels(sheet: Shown) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(sheet.png)).convert("RGB"))


def middle(sheet: Shown) -> NDArray[np.uint8]:
    """The colour in the middle of the first tile."""
    return pixels(sheet)[TOP + SIZE // 2, LEFT + SIZE // 2]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images of one colour, (200, 100, 50), classes a and b, and a mask that is 1 in the left half."""
    folder = tmp_path_factory.mktemp("shown")
    for label in "ab":
        for number in range(2):
            image, mask = folder / f"photos/{label}/{number}.png", folder / f"masks/{label}/{number}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (SIZE, SIZE), (200, 100, 50)).save(image)
            Image.fromarray(np.repeat(np.uint8([[1, 0]]), SIZE // 2, 1).repeat(SIZE, 0)).save(mask)
    convert_images(folder / "photos", folder / "p.h5", size=SIZE, pairs={"mask": folder / "masks"})
    return folder / "p.h5"


def test_the_effect_of_normalize_is_undone(pack: Path) -> None:
    with PackedBatchDataset(pack, 4, augment="Normalize([0.2, 0.3, 0.4], 0.5)", fields=["image"]) as dataset:
        (batch,) = dataset
        sheet = show(batch, dataset)
        assert sheet.text == f"4 images {SIZE}x{SIZE}x3 float32; Normalize undone"
        assert middle(sheet).tolist() == [200, 100, 50]
        assert middle(show(dataset)).tolist() == [200, 100, 50]
        unknown = show(batch)
    low, high = 50 / 255 - 0.4, 200 / 255 - 0.2
    assert unknown.text.endswith(f"{low / 0.5:.3g} is black, {high / 0.5:.3g} white")
    assert middle(unknown).tolist() == [255, round(255 * (100 / 255 - 0.3 - low) / (high - low)), 0]


def test_masks_are_laid_over_images(pack: Path) -> None:
    with PackedBatchDataset(pack, 4, augment="RandomHorizontalFlip(1)") as dataset:
        sheet = pixels(show(next(iter(dataset)), dataset, columns=1))
    tile = sheet[TOP : TOP + SIZE, LEFT : LEFT + SIZE]
    assert (tile[:, : SIZE // 2] == [200, 100, 50]).all()
    assert not (tile[:, SIZE // 2 :] == [200, 100, 50]).all(-1).any()


@pytest.mark.parametrize("augment", ["Normalize()", "ToDtype()", "RandomHorizontalFlip()"])
def test_images_of_twelve_bits_are_not_dark(tmp_path: Path, augment: str) -> None:
    """The largest number is white, after Normalize too, whose full scale is 65,535."""
    image = np.full((SIZE, SIZE, 3), (4095, 0, 2048), np.uint16)
    pack_dataset([{"image": image, "label": 0}] * 2, tmp_path / "p.h5")
    with PackedBatchDataset(tmp_path / "p.h5", 2, augment=augment) as dataset:
        assert middle(show(dataset)).tolist() == [255, 0, 128]
    preview(tmp_path / "p.h5", tmp_path / "sheet.png", augment=augment)
    sheet = Shown((tmp_path / "sheet.png").read_bytes(), "")
    assert middle(sheet).tolist() == [255, 0, 128]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_arrays_and_lists_of_any_kind(kind: type) -> None:
    most = {np.uint8: 255, np.uint16: 40_000, np.float32: 1}[kind]
    image = np.full((SIZE, SIZE, 3), most, kind)
    image[..., 1] = 0
    for images in (
        [image, image[:90]],
        np.stack([image, image]),
        torch.from_numpy(image).permute(2, 0, 1)[None],
    ):
        assert middle(show({"image": images}, columns=1)).tolist() == [255, 0, 255]


def test_packs_are_shown_as_they_are_stored_and_saved(pack: Path, tmp_path: Path) -> None:
    sheet = show(pack, rows=2)
    assert sheet.text == f"2 images {SIZE}x{SIZE}x3 uint8; images as stored"
    sheet.save(tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").read_bytes() == sheet.png
    with pytest.raises(PackerError, match=r"cannot be written \(No such file or directory\)"):
        sheet.save(tmp_path / "none" / "sheet.png")


def test_a_notebook_shows_it(pack: Path) -> None:
    page = show(pack)._repr_html_()
    found = re.search(r'src="data:image/png;base64,([^"]+)"', page)
    assert found is not None
    assert base64.b64decode(found[1]) == show(pack).png
    assert "images as stored" in page


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (7, r"it is a int\); it is needed\. Pass a batch of a PackedBatchDataset"),
        ({"label": [1]}, r"\(label\)"),
        ({"image": np.zeros((0, 4, 4, 3))}, "has no rows"),
        ({"image": np.zeros((2, 4))}, r"images of shape \[4\]"),
    ],
)
def test_what_is_no_batch_is_a_sentence(what: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        show(what)
    with pytest.raises(UsageError, match="rows=0: is not a whole number of at least 1"):
        show(what, rows=0)


def test_predicted_labels_stand_below_the_true_ones(pack: Path) -> None:
    with PackedBatchDataset(str(pack), 3) as dataset:
        batch = next(iter(dataset))
        predicted = torch.zeros(3, dtype=torch.int64)
        told = batch_of(batch, dataset, 2, predicted)
        classes = dataset.classes
        assert [lines[-1] for lines in captions(told, classes, None)] == [f"predicted {classes[0]}"] * 2
        assert show(batch, dataset, predicted=predicted).png != show(batch, dataset).png
        with pytest.raises(UsageError, match="predicted has 2 entries and the batch 3 rows"):
            show(batch, dataset, predicted=predicted[:2])
        said = [batch_of(batch, dataset, 2, given).predicted for given in (predicted, predicted[:, None])]
        assert [one.tolist() for one in said if one is not None] == [[0, 0]] * 2
        for given, found in (
            (3, "has 0 entries"),
            (torch.tensor(3), "has 0 entries"),
            (["a"] * 3, "numbers"),
        ):
            with pytest.raises(UsageError, match=found):
                show(batch, dataset, predicted=given)
        with pytest.raises(UsageError, match="about a batch"):
            show(dataset, predicted=predicted)
