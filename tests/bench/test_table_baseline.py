from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from packer import convert_table
from packer.bench.lanes import epochs_rate, held_tensors
from packer.bench.table_baseline import ContiguousSlices, batch_sampled, check_source
from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.packs.pack_opening import open_pack

ROWS = 100


@pytest.mark.parametrize("kind", ["slices", "sampled"])
def test_an_epoch_is_every_row_once_shuffled_anew(kind: str) -> None:
    x, y = torch.arange(ROWS * 2).reshape(ROWS, 2), torch.arange(ROWS)
    loader = (
        ContiguousSlices(x, y, batch_size=16) if kind == "slices" else batch_sampled(TensorDataset(x, y), 16)
    )
    orders = []
    for _ in range(2):
        batches = list(loader)
        assert [len(batch[1]) for batch in batches] == [16] * 6 + [4]
        rows = torch.cat([batch[1] for batch in batches])
        assert torch.equal(torch.cat([batch[0] for batch in batches]), x[rows])
        assert rows.sort().values.tolist() == list(range(ROWS))
        orders.append(rows.tolist())
    assert orders[0] != orders[1]
    assert list(range(ROWS)) not in orders


def test_a_rate_counts_whole_epochs() -> None:
    asked = []

    class Epoch:
        def __iter__(self):
            asked.append(0)
            yield from range(5)

    assert epochs_rate(Epoch(), 1000, 0.02) == pytest.approx(1000 * len(asked) / 0.02, rel=1)
    assert len(asked) > 1
    before = len(asked)
    epochs_rate(Epoch(), 1000, 1e-9)
    assert len(asked) == before + 1


def test_held_rows_are_the_packs_first_ones(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("a,b\n" + "".join(f"{i},{i / 7}\n" for i in range(300)))
    convert_table(tmp_path / "n.csv", tmp_path / "n.h5", label="a")
    pack = open_pack(tmp_path / "n.h5")
    held = held_tensors(pack, [f.name for f in pack.fields if f.by_default], 120, threads=1)
    with PackedBatchDataset(pack, 300) as batches:
        (batch,) = batches
        for tensor, expected in zip(held, batch, strict=True):
            assert torch.equal(tensor, expected[:120])


def test_a_pack_that_was_made_from_a_pack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("a,b\n1,2\n3,4\n")
    convert_table(tmp_path / "n.csv", tmp_path / "n.h5")
    pack = open_pack(tmp_path / "n.h5")
    check_source([str(tmp_path / "n.csv")], "n.csv", pack)
    del pack.header.provenance["source"]["digests"]
    with pytest.raises(
        UsageError, match=r"n\.h5: was written from another pack; .* Pass one that packer convert wrote\.$"
    ):
        check_source([str(tmp_path / "n.csv")], "n.csv", pack)
