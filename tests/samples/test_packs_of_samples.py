"""Packs of any fields: loaded, described, split, put together, stored another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from packer import PackedBatchDataset, create, merge_packs, open_pack, pack_dataset, repack, split_pack
from packer.cli import cli
from packer.errors import UsageError
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.pixels.decode_resize import decoder_versions
from packer.read.array_store import PackStore
from packer.version import __version__

ROWS = 40
draws = np.random.default_rng(0)
ROW_NUMBERS = np.arange(ROWS)
FIELDS: dict[str, Any] = {
    "label": ROW_NUMBERS,
    "embedding": draws.normal(size=(ROWS, 64)).astype(np.float16),
    "volume": draws.integers(0, 256, (ROWS, 4, 5, 6), dtype=np.uint8),
    "tokens": [draws.integers(0, 99, n).astype(np.int32) for n in draws.integers(0, 9, ROWS)],
    "text": [f"row {i}" for i in range(ROWS)],
}
WITH_IMAGE = {**FIELDS, "image": draws.integers(0, 65536, (ROWS, 8, 6), dtype=np.uint16)}


@pytest.fixture(params=["without images", "with images of 16 bits"])
def fields(request: pytest.FixtureRequest) -> dict[str, Any]:
    return FIELDS if request.param == "without images" else WITH_IMAGE


@pytest.fixture
def path(fields: dict[str, Any], tmp_path: Path) -> Path:
    pack_dataset(fields, tmp_path / "made.h5")
    return tmp_path / "made.h5"


def columns(pack: Pack) -> dict[str, Any]:
    """All rows of a pack by field."""
    reader, found = PackStore(pack, pack.fields), {}
    for f in pack.fields:
        if f.ragged:
            found[f.name] = list(reader.decoded(f.name, one_run(0, pack.rows)))
        else:
            found[f.name] = reader.array(f.name, one_run(0, pack.rows))
    return found


def check(fields: dict[str, Any], *packs: Path) -> None:
    """Packs hold the samples together, each once; the label is a sample's number."""
    seen: list[int] = []
    for pack in map(open_pack, packs):
        found = columns(pack)
        seen += (numbers := found["label"].tolist())
        for name, values in fields.items():
            for row, number in enumerate(numbers):
                expected = values[number][..., None] if name == "image" else values[number]
                np.testing.assert_array_equal(found[name][row], expected)
    assert sorted(seen) == list(range(ROWS))


def test_split_and_merge(fields: dict[str, Any], path: Path, tmp_path: Path) -> None:
    split_pack(path, "a=0.5,b=0.5")
    parts = [tmp_path / "made.a.h5", tmp_path / "made.b.h5"]
    check(fields, *parts)
    merge_packs(parts, tmp_path / "merged.h5")
    check(fields, tmp_path / "merged.h5")


@pytest.mark.parametrize(
    "options", [{"store": "gzip"}, {"format": "npy"}, {"shards": 15}, {"shuffle": True}], ids=str
)
def test_repack(options: dict[str, Any], fields: dict[str, Any], path: Path, tmp_path: Path) -> None:
    out = tmp_path / ("again" if {"format", "shards"} & set(options) else "again.h5")
    repack(path, out, **options)
    check(fields, out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 4}, "size 4: is about images of 8 or 16 bits;"),
        ({"store": "jpeg"}, "store jpeg: (is about images of 8 or 16 bits;|needs images of 8 bits)"),
    ],
)
def test_what_is_about_images_of_8_bits(
    options: dict[str, Any], said: str, path: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    if fields is WITH_IMAGE and "size" in options:
        repack(path, tmp_path / "again.h5", **options)
        assert open_pack(tmp_path / "again.h5").header.field("image").shape == (4, 4, 1)
        return
    with pytest.raises(UsageError, match=said):
        repack(path, tmp_path / "again.h5", **options)


@pytest.mark.parametrize("placement", ["disk", "ram"])
def test_loading(placement: str, fields: dict[str, Any], path: Path) -> None:
    pytest.importorskip("torch")
    from packer import PackedBatchDataset

    dataset = PackedBatchDataset(path, batch_size=16, shuffle=True, placement=placement, fields=[*fields])
    seen = []
    for batch in dataset:
        for row, number in enumerate(batch.label.tolist()):
            seen.append(number)
            for name, values in fields.items():
                found = getattr(batch, name)[row]
                expected = values[number][None] if name == "image" else values[number]
                np.testing.assert_array_equal(found if isinstance(found, str) else found.numpy(), expected)
    assert sorted(seen) == list(range(ROWS))
    dataset.close()


def test_text_is_loaded_where_it_is_named(tmp_path: Path) -> None:
    from packer import PackedBatchDataset

    pack_dataset({"text": FIELDS["text"]}, tmp_path / "text.h5", shuffle=False)
    with pytest.raises(UsageError, match=r"text\.h5: holds only text, .* Pass fields=\['text'\]\."):
        PackedBatchDataset(tmp_path / "text.h5", batch_size=8, output="numpy")
    with PackedBatchDataset(tmp_path / "text.h5", batch_size=40, output="numpy", fields=["text"]) as dataset:
        assert next(iter(dataset)).text == FIELDS["text"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["info"], "tokens   u1  i4 [n]"),
        (["verify"], ": intact; "),
        (["preview", "-o", "sheet.png"], ": has no images; a field 'image' of uint8 or uint16 [H, W, C]"),
        (["export", "out"], ": holds no images with keys that image files hold"),
    ],
    ids=str,
)
def test_commands(
    command: list[str], said: str, path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    if fields is WITH_IMAGE:
        said = {"preview": f"{ROWS} images", "export": f"wrote {ROWS + 1} files"}.get(command[0], said)
    result = CliRunner().invoke(cli, [command[0], str(path), *command[1:]])
    assert said in result.output + str(result.exception)


def test_a_damaged_pack_is_packed_again(path: Path) -> None:
    data = bytearray(path.read_bytes())
    extent = open_pack(path).header.extents["embedding"][0]
    data[extent.offset] ^= 1
    path.write_bytes(data)
    result = CliRunner().invoke(cli, ["verify", str(path)])
    assert result.exit_code == 1
    assert result.output.endswith("Pack the samples again.\n")


@pytest.mark.parametrize("given", ["arrays", "dataset", "generator", "create"])
def test_masks_move_with_their_images(given: str, tmp_path: Path) -> None:
    """A field with a value for each pixel; one of another size stays, and so does an array of other axes."""
    torch = pytest.importorskip("torch")
    images = draws.integers(0, 256, (6, 8, 10, 3), dtype=np.uint8)
    columns = {"image": images, "mask": images[..., 0].astype(np.int32), "grid": images[:, :4, :5, 1].copy()}
    layered = Image.fromarray(images[0, ..., 2])
    numbers = [{name: column[i] for name, column in columns.items()} for i in range(6)]
    if given in ("dataset", "generator"):
        numbers = [sample | {"second": layered} for sample in numbers]
    if given == "create":
        with create(tmp_path / "p.h5") as builder:
            for sample in numbers:
                builder.write(**sample)
    else:
        source: Any = {"arrays": columns, "dataset": numbers, "generator": iter(numbers)}[given]
        pack_dataset(source, tmp_path / "p.h5", workers=1)
    (plain,) = PackedBatchDataset(tmp_path / "p.h5", 6)
    (moved,) = PackedBatchDataset(tmp_path / "p.h5", 6, augment="RandomHorizontalFlip(1.0)")
    assert torch.equal(moved.image, plain.image.flip(3))
    assert torch.equal(moved.mask, plain.mask.flip(2))
    assert torch.equal(moved.mask, moved.image[:, 0].int())
    assert torch.equal(moved.grid, plain.grid)
    if given in ("dataset", "generator"):
        assert torch.equal(moved.second.flip(-1), plain.second)
        assert not torch.equal(moved.second, plain.second)


def test_the_library_that_resizes_is_recorded(tmp_path: Path) -> None:
    images = np.zeros((4, 9, 9, 3), np.uint8)
    for size, versions in ((None, {}), (4, decoder_versions())):
        pack_dataset({"image": images}, tmp_path / "p.h5", size=size, overwrite=True)
        found = open_pack(tmp_path / "p.h5").header.provenance["versions"]
        assert found == {"packer": __version__} | versions
