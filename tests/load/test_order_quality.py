"""packer.load.order_quality: figures of a pack's orders, of a split's rows, with its labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack, open_pack
from packer.format.pack_writer import PackWriter
from packer.load import order_quality as module
from packer.load.order_quality import order_quality
from packer.orders.row_orders import BY_NAME, Blocks
from packer.orders.sampling import Weighted
from tests.read.conftest import make_pack

ROWS = 600
LABELS = {"one": np.arange(ROWS) // 60, "several": np.zeros((ROWS, 3), np.uint8), "fraction": np.zeros(ROWS)}


def make(out: Path, labels: np.ndarray) -> Pack:
    """Rows sorted by class; in the split "mixed" classes take turns, "none" is empty."""
    values = labels.astype(labels.dtype.newbyteorder("<"))
    field = Field("label", values.dtype.str, values.shape[1:])
    with PackWriter(str(out), fields=(field,), rows=ROWS, block_rows=20, format="h5") as writer:
        for block in range(ROWS // 20):
            writer.write_block(block, {"label": values[20 * block : 20 * block + 20]})
        turns = tuple((60 * k, 60 * k + 1) for k in range(10))
        writer.finish(rows=ROWS, ragged={}, splits={"mixed": turns, "none": ((7, 7),)})
    return open_pack(out)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make(tmp_path_factory.mktemp("packs") / "p.h5", LABELS["one"])


def test_every_order_and_the_uniform_shuffle(pack: Pack):
    found = order_quality(pack.path, batch_size=30)
    assert list(found) == [*BY_NAME, "shuffle=True", "uniform"]
    assert found["sequential"].label_mix == pytest.approx(30 * 599 / 570)
    assert found["sequential"].score == 0
    assert found["rows"].score > 0.9
    assert found["uniform"] == (1.0, 29 / 600, 29 / 599, 1.0)


def test_one_order_with_its_lengths(pack: Pack):
    narrow = order_quality(pack, Blocks(window=40, block=20), 30)
    wide = order_quality(pack, Blocks(window=600, block=20), 30)
    assert list(narrow) == ["blocks", "uniform"]
    assert narrow["blocks"].score < wide["blocks"].score


def test_the_rows_of_a_split(pack: Pack):
    found = order_quality(pack, "sequential", 10, split="mixed")
    assert found["uniform"].neighbours == 0.9  # ten rows in all
    with pytest.raises(UsageError) as error:
        order_quality(pack, "sequential", 10, split="none")
    assert (
        str(error.value)
        == f"{pack.path}: none of its 600 rows is left by split='none'. Pass another choice of rows."
    )


@pytest.mark.parametrize("kind", ["several", "fraction"])
def test_without_one_class_a_row_there_is_no_label_mix(tmp_path: Path, kind: str):
    found = order_quality(
        make(tmp_path / "p.h5", LABELS[kind].astype(LABELS[kind].dtype.str.replace("f8", "f4")))
    )
    assert {figures.label_mix for figures in found.values()} == {None}


def test_the_labels_of_a_vast_pack_are_not_read(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_LABELS", ROWS - 1)
    assert order_quality(pack, "rows", 30)["rows"].label_mix is None


def test_samplers_are_refused(pack: Pack):
    with pytest.raises(UsageError) as error:
        order_quality(pack, Weighted(np.ones(ROWS)), 30)
    assert str(error.value) == (
        "order 'weighted': gives rows more than once; only shuffles are measured. "
        "Pass one of sequential, slices, blocks, rows, regions."
    )


@pytest.mark.parametrize("batch_size", [0, 2.5])
def test_a_batch_has_rows(pack: Pack, batch_size: int):
    with pytest.raises(UsageError, match=r"^batch_size=.*: is not a whole number of at least 1\.$"):
        order_quality(pack, "rows", batch_size)


def test_several_packs_are_measured_as_one(tmp_path: Path):
    packs = [make_pack(tmp_path / f"{name}.h5", rows) for name, rows in (("a", 60), ("b", 40))]
    found = order_quality(packs, "all", 10)
    assert {"rows", "shuffle=True", "uniform"} <= found.keys()
    assert found["shuffle=True"].score > 0.9
    with pytest.raises(
        UsageError, match=r"path: packs with weights give rows more than once; only shuffles are measured."
    ):
        order_quality([(pack, 1) for pack in packs])
