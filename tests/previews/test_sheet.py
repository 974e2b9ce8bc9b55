"""The sheet against the loader and the pipeline, pixel by pixel, for packs of every kind; errors; what is imported."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

import packer
from packer import PackedBatchDataset, convert_images, open_pack, preview
from packer.errors import PackerError, UsageError
from packer.previews.contact_sheet import augmented
from packer.previews.drawing import class_color
from packer.previews.preview_batch import read_batch
from tests.previews.conftest import ROWS, Make, Pixels, tiles

torch = pytest.importorskip("torch")
from packer.augment import (  # noqa: E402
    ColorJitter,
    Pipeline,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
)

MASK = {"sampling": "nearest"}
KINDS: dict[str, dict[str, Any]] = {
    "p.h5": {},
    "p": {},
    "shards": {"shards": 7},
    "jpeg.h5": {"store": "jpeg"},
    "gzip.h5": {"store": "gzip"},
    "gray.h5": {"channels": "gray"},
    "plain.h5": {"shuffle": False},
}


def piped(images: Pixels, augment: list[Any], rows: Any, seed: int, epoch: int) -> Any:
    """What a pipeline makes of images [N, H, W, C]: [N, h, w, C]."""
    tensor = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)
    pipeline = Pipeline(augment, tuple(tensor.shape[1:]), seed=seed)
    return pipeline(tensor, np.asarray(rows), epoch).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("order", "seed", "epoch"), [("sequential", 0, 0), ("rows", 3, 2), ("blocks", 1, 0)])
def test_as_stored_it_shows_the_loaders_first_batch(
    photo_folder: Path, tmp_path: Path, name: str, order: str, seed: int, epoch: int
) -> None:
    convert_images(photo_folder, tmp_path / name, size=32, **KINDS[name])
    made = preview(tmp_path / name, tmp_path / "sheet.png", rows=10, order=order, seed=seed, epoch=epoch)
    with PackedBatchDataset(tmp_path / name, 10, order=order, seed=seed, output="numpy") as loader:
        loader.set_epoch(epoch)
        batch = next(iter(loader))
        expected = np.broadcast_to(batch.image, (10, 32, 32, 3))
    assert np.array_equal(tiles(made, (32, 32))[:, 0], expected)
    assert (made.rows, made.repeat, made.transforms, made.text) == (10, 1, (), "images as stored")
    assert made.overlaid == ()
    assert made.nbytes == (tmp_path / "sheet.png").stat().st_size


@pytest.mark.parametrize("text", [True, False])
def test_draws_are_the_loaders_of_seed_epoch_and_row(
    make: Make, images: Pixels, tmp_path: Path, text: bool
) -> None:
    pack = make(images)
    operations = [RandomCrop(32, padding=6), RandomHorizontalFlip()]
    augment: Any = "RandomCrop(32, padding=6), RandomHorizontalFlip()" if text else operations
    made = preview(pack, tmp_path / "a.png", augment=augment, order="rows", seed=5, epoch=3)
    with PackedBatchDataset(pack, ROWS, order="rows", seed=5, output="numpy") as loader:
        loader.set_epoch(3)
        batch = next(iter(loader)).image
    rows = [next(i for i, image in enumerate(images) if np.array_equal(image, one)) for one in batch]
    assert rows != sorted(rows)
    assert np.array_equal(tiles(made, (32, 32))[:, 0], piped(batch, operations, rows, 5, 3))
    assert made.transforms == ("RandomCrop", "RandomHorizontalFlip")


def test_a_pipeline_is_taken_too(make: Make, images: Pixels, tmp_path: Path) -> None:
    augment = Pipeline([RandomHorizontalFlip(p=1)], seed=77)
    made = preview(make(images), tmp_path / "a.png", augment=augment)
    assert np.array_equal(tiles(made, (32, 32))[:, 0], images[:, :, ::-1])


def test_settings_of_pillow_change_no_sheet_and_no_report(
    make: Make, images: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw() -> list[bytes]:
        names = [tmp_path / "a.png", tmp_path / "a.jpg", tmp_path / "a.html"]
        for name in names[:2]:
            preview(pack, name, overwrite=True)
        packer.report(pack, names[2], overwrite=True)
        return [name.read_bytes() for name in names]

    pack = make(images)
    clean = draw()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 16)
    assert draw() == clean


def test_its_seed_is_added_as_the_loader_adds_it(make: Make, images: Pixels, tmp_path: Path) -> None:
    augment = Pipeline([RandomCrop(32, padding=6)], seed=77)
    pack = make(images)
    made = preview(pack, tmp_path / "a.png", augment=augment, seed=5)
    batch = PackedBatchDataset(pack, ROWS, seed=5, augment=augment).batch(0)
    assert np.array_equal(tiles(made, (32, 32))[:, 0], batch.image.permute(0, 2, 3, 1).numpy())
    assert np.array_equal(
        tiles(made, (32, 32))[:, 0], piped(images, [*augment.transforms], range(ROWS), 82, 0)
    )


def test_epochs_stand_side_by_side(make: Make, images: Pixels, tmp_path: Path) -> None:
    operations = [RandomCrop(32, padding=6)]
    made = preview(make(images), tmp_path / "a.png", augment=operations, repeat=4, epoch=2, rows=5)
    shown = tiles(made, (32, 32))
    for k in range(4):
        assert np.array_equal(shown[:, k], piped(images[:5], operations, range(5), 0, 2 + k))
    assert not np.array_equal(shown[:, 0], shown[:, 1])
    assert (made.rows, made.repeat) == (5, 4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalisation_with_the_packs_statistics_is_undone(
    photo_folder: Path, tmp_path: Path, dtype: str
) -> None:
    pack = tmp_path / "p.h5"
    convert_images(photo_folder, pack, size=32)
    text = f"RandomResizedCrop(24), ColorJitter(0.4), Normalize(dtype={dtype})"
    made = preview(pack, tmp_path / "a.png", augment=text)
    plain = [RandomResizedCrop(24), ColorJitter(0.4)]
    expected = piped(open_pack(pack).read("image"), plain, range(24), 0, 0)
    shown = tiles(made, (24, 24))[:, 0]
    assert np.abs(shown.astype(int) - expected).max() <= 1
    assert made.text == "Normalize undone"


def test_masks_follow_and_lie_over_the_images(make: Make, images: Pixels, tmp_path: Path) -> None:
    mask = np.zeros((ROWS, 32, 32), np.uint8)
    mask[:, 8:20, 4:30] = np.arange(ROWS)[:, None, None]
    pack = make(images, mask=mask, about={"mask": MASK})
    made = preview(pack, tmp_path / "a.png", augment="RandomCrop(32, padding=6)")
    moved = piped(images, [RandomCrop(32, padding=6)], range(ROWS), 0, 0)
    where = piped(mask[..., None], [RandomCrop(32, padding=6)], range(ROWS), 0, 0)[..., 0]
    colours = np.array([class_color(value) for value in range(ROWS)])
    expected = np.where(where[..., None] > 0, (moved.astype(int) + colours[where]) // 2, moved)
    assert np.array_equal(tiles(made, (32, 32))[:, 0], expected)
    assert made.overlaid == ("mask",)


@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i8", "|b1"])
def test_masks_of_any_whole_numbers(make: Make, images: Pixels, tmp_path: Path, dtype: str) -> None:
    mask = (np.arange(ROWS * 32 * 32).reshape(ROWS, 32, 32, 1) % 3 == 1).astype(dtype)
    pack = make(images, mask=mask, about={"mask": MASK | {"layout": "HWC"}})
    made = preview(pack, tmp_path / "a.png", augment="RandomHorizontalFlip(1)")
    flipped, where = images[:, :, ::-1], mask[:, :, ::-1, 0].astype(bool)
    expected = np.where(where[..., None], (flipped.astype(int) + class_color(1)) // 2, flipped)
    assert np.array_equal(tiles(made, (32, 32))[:, 0], expected)


def test_fields_that_are_no_masks_are_left_out(make: Make, images: Pixels, tmp_path: Path) -> None:
    depth = np.ones((ROWS, 32, 32), np.float32)
    other = np.ones((ROWS, 16, 16), np.uint8)
    partner = np.ones((ROWS, 32, 32, 3), np.uint8)
    about = {"depth": MASK, "other": MASK, "partner": MASK | {"layout": "HWC"}}
    plain = np.ones((ROWS, 32, 32), np.uint8)
    pack = make(images, about=about, depth=depth, other=other, partner=partner, plain=plain)
    made = preview(pack, tmp_path / "a.png")
    assert made.overlaid == ()
    assert np.array_equal(tiles(made, (32, 32))[:, 0], images)


def test_boxes_and_keypoints_are_drawn(make: Make, tmp_path: Path) -> None:
    boxes = [np.array([[2, 3, 30, 28]] * (i == 1), np.float32).reshape(-1, 4) for i in range(ROWS)]
    labels = [np.arange(int(i == 1)) + 5 for i in range(ROWS)]
    points = np.full((ROWS, 2, 2), np.nan, np.float32)
    points[4] = (8, 4), (np.nan, np.nan)
    ragged = {"boxes": ([4], boxes), "box_label": ([], labels)}
    sides = {"points": ["left", "right"], "flip_pairs": [["left", "right"]]}
    images = np.zeros((ROWS, 128, 128, 3), np.uint8)
    pack = make(images, ragged=ragged, keypoints=points, about={"keypoints": sides})
    made = preview(pack, tmp_path / "a.png", augment="RandomHorizontalFlip(1)")
    assert made.overlaid == ("boxes", "keypoints")
    shown = tiles(made, (128, 128))[:, 0]
    assert [row for row in range(ROWS) if shown[row].any()] == [1, 4]
    rows, columns = np.nonzero((shown[1] == class_color(5)).all(-1))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (3, 27, 98, 125)  # 128 - 30 to 128 - 2
    assert np.abs(np.argwhere(shown[4].any(-1)).mean(0) - (4, 120)).max() < 1
    assert (shown[4] == class_color(1)).all(-1).any()  # the left one has the number of the right one


def test_what_cannot_be_mixed_is_left_out(make: Make, images: Pixels, tmp_path: Path) -> None:
    mask = np.ones((ROWS, 32, 32), np.uint8)
    points = np.full((ROWS, 1, 2), 5, np.float32)
    boxes = {"boxes": ([4], [np.array([[2, 3, 30, 28]], np.float32)] * ROWS)}
    pack = make(images, mask=mask, keypoints=points, ragged=boxes, about={"mask": MASK})
    assert preview(pack, tmp_path / "a.png").overlaid == ("mask", "boxes", "keypoints")
    assert preview(pack, tmp_path / "a.png", augment="CutMix()").overlaid == ("mask",)
    made = preview(pack, tmp_path / "a.png", augment="RandomHorizontalFlip(), GaussianBlur(3), MixUp()")
    assert (made.overlaid, made.transforms) == ((), ("RandomHorizontalFlip", "GaussianBlur", "MixUp"))


def test_labels_stand_under_their_images(make: Make, images: Pixels, tmp_path: Path) -> None:
    classes = ("cat", "dog")
    sheets = []
    for label in ([0] * ROWS, [1] + [0] * (ROWS - 1)):
        pack = make(images, f"{label[0]}.h5", label=np.array(label), members={"classes": classes})
        sheets.append(np.asarray(Image.open(preview(pack, tmp_path / "a.png", columns=4).path)))
    changed = np.argwhere((sheets[0] != sheets[1]).any(-1))
    (top, left), (bottom, right) = changed.min(0), changed.max(0)
    assert 20 + 96 < top < bottom < 20 + 96 + 30
    assert 20 <= left < right < 20 + 96


def test_mixed_labels_are_shares(make: Make, images: Pixels, tmp_path: Path) -> None:
    mix = pytest.importorskip("packer.augment.mixing")
    from packer.previews.preview_batch import captions

    pack = open_pack(make(images, label=np.arange(ROWS) % 2, members={"classes": ("cat", "dog")}))
    ((batch,), *_) = augmented([mix.MixUp()], pack, np.arange(ROWS), 0, [0])
    lam = Pipeline([mix.MixUp()], (3, 32, 32)).sample(np.arange(ROWS), 0)[0]["lam"].numpy()
    texts = captions(batch, ("cat", "dog"), None)
    shown = 0
    for i, lines in enumerate(texts):
        own, share = ("cat", "dog")[i % 2], lam[i]
        if lines != [own] and 0.01 < share < 0.99:  # its partner is of the other class
            found = dict(line.split(" ") for line in lines)
            assert set(found) == {"cat", "dog"}
            assert float(found[own]) == pytest.approx(share, abs=0.006)
            shown += 1
    assert shown


def test_boxes_that_leave_the_image_go_with_their_labels(make: Make, images: Pixels) -> None:
    boxes = [np.array([[0, 0, 4, 4], [12, 12, 20, 20], [28, 28, 32, 32]], np.float32)] * ROWS
    labels = [np.array([5, 6, 7])] * ROWS
    pack = open_pack(make(images, ragged={"boxes": ([4], boxes), "box_label": ([], labels)}))
    ((batch,), *_) = augmented("CenterCrop(16)", pack, np.arange(ROWS), 0, [0])
    assert batch.boxes is not None
    assert batch.box_label is not None
    assert [box.tolist() for box in batch.boxes] == [[[4, 4, 12, 12]]] * ROWS
    assert [label.tolist() for label in batch.box_label] == [[6]] * ROWS


@pytest.mark.parametrize("size", ["keep", "max=32"])
def test_images_of_their_own_size(photo_folder: Path, tmp_path: Path, size: str) -> None:
    Image.new("RGB", (300, 90), (255, 0, 0)).save(photo_folder / "red" / "wide.jpg")
    convert_images(photo_folder, tmp_path / "k.h5", size=size, store="jpeg")
    made = preview(tmp_path / "k.h5", tmp_path / "a.png")
    assert made.rows == 25
    with pytest.raises(UsageError, match=r"the images differ in size, .* make them alike"):
        preview(tmp_path / "k.h5", tmp_path / "a.png", augment="RandomHorizontalFlip()")


def test_whole_pictures_and_their_masks_are_augmented(tmp_path: Path) -> None:
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for number, (width, height) in enumerate([(40, 30), (64, 20), (24, 70)]):
        left = Image.new("L", (width, height))
        left.paste(7, (0, 0, width // 2, height))
        left.save(tmp_path / "masks" / f"{number}.png")
        left.point(lambda v: 30 * v).convert("RGB").save(tmp_path / "images" / f"{number}.png")
    pairs = {"mask": tmp_path / "masks"}
    convert_images(tmp_path / "images", tmp_path / "p.h5", size="max=64", pairs=pairs, quality=100)
    pack = open_pack(tmp_path / "p.h5")
    plain = read_batch(pack, np.arange(3))
    assert [mask.shape for mask in plain.masks["mask"]] == [image.shape[:2] for image in plain.images]
    augment = "RandomHorizontalFlip(), Resize((16, 16), 'nearest'), Normalize()"
    ((batch,), *_) = augmented(augment, pack, np.arange(3), 3, [1])
    ((same,), *_) = augmented(Pipeline(augment), pack, np.arange(3), 3, [1])
    assert np.array_equal(same.images, batch.images)
    sides = set()
    for image, mask in zip(batch.images, batch.masks["mask"], strict=True):
        assert image.shape == (16, 16, 3)
        assert ((image[..., 0] > 105) == (mask == 7)).all()
        sides.add(int(mask[0, 0]))
    assert sides == {0, 7}  # some are flipped
    made = preview(pack, tmp_path / "a.png", augment="RandomResizedCrop(20)")
    assert (made.rows, made.overlaid) == (3, ("mask",))


def test_splits_rows_and_columns(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32, split="train=0.75,val=0.25")
    made = preview(tmp_path / "p.h5", tmp_path / "a.png", split="val", columns=3)
    pack = open_pack(tmp_path / "p.h5")
    ((first, stop),) = pack.header.splits["val"]
    assert (made.rows, made.columns) == (6, 3)
    assert np.array_equal(tiles(made, (32, 32))[:, 0], pack.read("image", first, stop))


def test_jpeg_sheets_and_wide_ones(make: Make, images: Pixels, tmp_path: Path) -> None:
    large = np.zeros((ROWS, 300, 900, 3), np.uint8)
    made = preview(make(large), tmp_path / "a.JPG", columns=8)
    with Image.open(tmp_path / "a.JPG") as picture:
        assert (picture.format, picture.size) == ("JPEG", made.size)
    assert 2300 < made.size[0] <= 2400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"out": "a.gif"},
            "a.gif: its ending is no picture's; .png, .jpg and .jpeg are allowed. Pass another name.",
        ),
        ({"rows": 0}, "rows=0: is not a whole number from 1 to 5000."),
        ({"columns": 0}, "columns=0: is not a whole number from 1 to 5000."),
        ({"epoch": -1}, "epoch=-1: is not a whole number from 0 to 5000."),
        ({"repeat": 1.5}, "repeat=1.5: is not a whole number from 1 to 5000."),
        ({"repeat": 2}, "repeat: it is 2, and without augment all draws are alike. Pass augment too."),
        (
            {"augment": "RandomCorp(8)"},
            "augment: 'RandomCorp(8)' is no transform of packer.augment. The nearest is RandomCrop.",
        ),
        (
            {"augment": "Normalize()"},
            "Normalize(): has no mean and std here; a dataset fills in those of its pack, where the pack has them. Write for"
            " example Normalize(0.5, 0.25).",
        ),
        (
            {"augment": ""},
            "augment: the text names no transform; transforms with their arguments are allowed. Write for example "
            "RandomCrop(32), or leave it out.",
        ),
        (
            {"augment": {"a": [], "b": []}},
            "augment: dict is no transform of packer.augment. Pass a list of these, or one text; a function of the sample is passed as"
            " transform=.",
        ),
        (
            {"augment": Pipeline([], (3, 16, 16))},
            "augment: the pipeline is for torch.uint8 [3, 16, 16] and the images of pack.h5 are torch.uint8 [3, 32, 32]. Make it without a"
            " shape: Pipeline([...], dtype=torch.uint8).",
        ),
        (
            {"augment": "CenterCrop(64)"},
            "CenterCrop: size is 64x64 and the images are 32x32; up to 32x32 is allowed. Pass a smaller size, or Resize first.",
        ),
    ],
)
def test_errors_are_sentences_and_leave_nothing(
    make: Make,
    images: Pixels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    message: str,
) -> None:
    make(images)
    pack = "pack.h5"
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError) as error:
        preview(pack, **({"out": "a.png"} | arguments))
    assert str(error.value) == message
    assert sorted(tmp_path.iterdir()) == before


def test_a_pack_without_images_and_a_place_without_permission(
    make: Make, images: Pixels, tmp_path: Path
) -> None:
    table = make(None, "table.h5", x=np.arange(8.0), label=np.arange(8))
    with pytest.raises(
        UsageError, match=r"table\.h5: has no images; .* and it has x, label\. Pass a pack of images\.$"
    ):
        preview(table, tmp_path / "a.png")
    with pytest.raises(
        PackerError, match=r"a\.png: cannot be written \(No such file or directory\)\. Pass another name\.$"
    ):
        preview(make(images), tmp_path / "missing" / "a.png")


def run(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_torch_is_loaded_for_augmentation_alone(make: Make, images: Pixels, tmp_path: Path) -> None:
    code = """
import sys, packer
pack, out = sys.argv[1:]
packer.preview(pack, out)
print('torch' in sys.modules, 'cv2' in sys.modules)
sys.modules['torch'] = None
try:
    packer.preview(pack, out, augment='x')
except packer.PackerError as error:
    print(error)
del sys.modules['torch']
packer.preview(pack, out, augment='RandomHorizontalFlip()')
print('torch' in sys.modules, 'cv2' in sys.modules)
"""
    assert run(code, make(images, label=np.arange(ROWS)), tmp_path / "a.png").splitlines() == [
        "False False",
        "augment: torch is not installed. Run: pip install torch",
        "True False",
    ]


def test_no_module_stands_in_the_functions_way() -> None:
    code = "import packer.previews.contact_sheet, packer.cli, packer; print(callable(packer.preview))"
    assert run(code) == "True\n"
    assert packer.preview is preview


@pytest.mark.parametrize("name", ["s.png", "s.jpg"])
def test_only_a_sheet_is_replaced_unasked(photo_folder: Path, tmp_path: Path, name: str) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=8)
    out = tmp_path / name
    out.write_bytes(next(photo_folder.rglob("*.jpg")).read_bytes())
    with pytest.raises(UsageError) as error:
        preview(tmp_path / "p.h5", out, rows=1)
    assert str(error.value) == (
        f"{out}: exists, and is not a contact sheet by packer; only those are replaced by default."
        " Pass overwrite=True, or another name."
    )
    preview(tmp_path / "p.h5", out, rows=1, overwrite=True)
    made = preview(tmp_path / "p.h5", out, rows=2)
    mime = {"s.png": "image/png", "s.jpg": "image/jpeg"}[name]
    assert base64.b64decode(made._repr_mimebundle_()[mime]) == out.read_bytes()
    out.unlink()
    assert list(made._repr_mimebundle_()) == ["text/plain"]
