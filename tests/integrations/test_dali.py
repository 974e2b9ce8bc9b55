"""packer.integrations.dali: a pack's batches as the nodes of a DALI pipeline, value by value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from packer import PackedBatchDataset, convert_images, pack_dataset
from packer.errors import UsageError

FIELDS = ("image", "label", "mask", "boxes", "text", "half", "row")
ROWS, BATCH = 23, 5


@pytest.fixture(scope="module")
def dali() -> ModuleType:
    return pytest.importorskip("nvidia.dali", reason="pip install nvidia-dali-cuda120 (424 MB)")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draws = np.random.default_rng(0)

    def samples() -> Iterator[dict[str, Any]]:
        for i in range(ROWS):
            yield {
                "image": draws.integers(0, 256, (8, 9, 3), dtype=np.uint8),
                "label": i % 3,
                "mask": draws.integers(0, 3, (8, 9), dtype=np.uint8),
                "boxes": np.full((i % 4, 4), i, np.float32),
                "text": f"tö {i}",
                "half": np.float16(i),
            }

    path = tmp_path_factory.mktemp("dali") / "mixed.h5"
    pack_dataset(
        samples(), path, fields={"boxes": "float32[*,4]"} | dict.fromkeys(set(FIELDS) - {"boxes", "row"})
    )
    return path


def pipeline_of(dali: ModuleType, *given: Any, batch: int = BATCH, **options: Any) -> Any:
    """A pipeline that gives what external_source gives."""
    from packer.integrations.dali import external_source

    @dali.pipeline_def(batch_size=batch, num_threads=2, device_id=None)
    def pipeline() -> Any:
        return tuple(external_source(*given, **options))

    made = pipeline()
    made.build()
    return made


def epoch(pipeline: Any) -> Iterator[list[Any]]:
    """The outputs of an epoch, each a list of arrays; ready for the next one afterwards."""
    while True:
        try:
            outputs = pipeline.run()
        except StopIteration:
            pipeline.reset()
            return
        yield [[np.array(output.at(i)) for i in range(len(output))] for output in outputs]


def test_every_value_of_every_epoch_is_the_packs(dali: ModuleType, pack: Path):
    pipeline = pipeline_of(dali, pack, BATCH, shuffle=True, fields=FIELDS)
    expected = PackedBatchDataset(pack, BATCH, shuffle=True, fields=FIELDS, output="numpy")
    orders = []
    for _ in range(3):
        rows: list[int] = []
        for got, wanted in zip(epoch(pipeline), expected, strict=True):
            rows += map(int, got[FIELDS.index("row")])
            wanted = wanted._replace(mask=wanted.mask[..., None])
            for name, values, batch in zip(FIELDS, got, wanted, strict=True):
                coded = [
                    np.frombuffer(v.encode(), np.uint8) if name == "text" else np.asarray(v) for v in batch
                ]
                assert [(v.dtype, v.shape) for v in values] == [(v.dtype, v.shape) for v in coded]
                assert all((a == b).all() for a, b in zip(values, coded, strict=True))
        assert sorted(rows) == list(range(ROWS))
        orders.append(tuple(rows))
    assert len(set(orders)) == 3


def test_images_have_a_layout_that_operators_know(dali: ModuleType, pack: Path):
    from packer.integrations.dali import external_source

    @dali.pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
    def flipped() -> Any:
        batch = external_source(pack, BATCH, fields=["image", "mask"])
        assert batch._fields == ("image", "mask")
        return dali.fn.flip(batch.image), dali.fn.crop(batch.mask, crop=(8, 4)), batch.image

    pipeline = flipped()
    pipeline.build()
    for images, masks, given in epoch(pipeline):
        assert all((a == b[:, ::-1]).all() for a, b in zip(images, given, strict=True))
        assert {mask.shape for mask in masks} == {(8, 4, 1)}


def test_ranks_share_an_epoch_and_dalis_iterators_end_it(dali: ModuleType, pack: Path):
    torch_plugin = pytest.importorskip("nvidia.dali.plugin.pytorch", reason="needs torch")
    given: list[int] = []
    for rank in range(2):
        pipeline = pipeline_of(
            dali, pack, BATCH, fields=["label", "row"], shuffle=True, rank=rank, world_size=2, ends="uneven"
        )
        batches = torch_plugin.DALIGenericIterator(
            pipeline,
            ["label", "row"],
            auto_reset=True,
            last_batch_policy=torch_plugin.LastBatchPolicy.PARTIAL,
        )
        passes = [[int(row) for (batch,) in batches for row in batch["row"]] for _ in range(2)]
        assert sorted(passes[0]) != sorted(passes[1])
        given += passes[1]
    assert sorted(given) == list(range(ROWS))


def test_a_dataset_of_ones_own_goes_on_where_it_was(dali: ModuleType, pack: Path):
    dataset = PackedBatchDataset(pack, BATCH, shuffle=True, output="numpy", fields=["label", "row"])
    before = [int(row) for row in next(iter(dataset)).row]
    state = dataset.state_dict()
    again = PackedBatchDataset(pack, BATCH, shuffle=True, output="numpy", fields=["label", "row"])
    again.load_state_dict(state)
    rest = [int(row) for _, rows in epoch(pipeline_of(dali, again)) for row in rows]
    assert sorted(before + rest) == list(range(ROWS))


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        (
            (6,),
            {},
            "batch_size 6: the pipeline takes batches of at most 5 rows. Pass such, or @pipeline_def(batch_size=6).",
        ),
        ((), {}, "batch_size: is missing. Pass the rows of a batch, at most the pipeline's."),
        ((5,), {"cycle": "yes"}, "cycle 'yes': is not one of raise, quiet, no. Pass one of them."),
        (
            (5,),
            {"output": "torch"},
            "output='torch': DALI's CPU operators take NumPy arrays. Pass output='numpy'.",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence(
    dali: ModuleType, pack: Path, given: tuple[int, ...], options: dict[str, Any], sentence: str
):
    with pytest.raises(UsageError) as error:
        pipeline_of(dali, pack, *given, **options)
    assert str(error.value) == sentence


def test_a_dataset_that_is_made_takes_no_options(dali: ModuleType, pack: Path):
    with pytest.raises(UsageError, match=r"^batch_size, shuffle: of a dataset that is made already\. Pass "):
        pipeline_of(dali, PackedBatchDataset(pack, 5, output="numpy"), 5, shuffle=True)


def test_the_code_on_the_page_runs(dali: ModuleType, photo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(photo_folder.parent)
    convert_images("photos", "train.h5", size=256)
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    (block,) = re.findall(r"^```python\n(from nvidia.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "python.md", "exec"), names)
    assert names["images"].shape() == [(3, 224, 224)] * 8
