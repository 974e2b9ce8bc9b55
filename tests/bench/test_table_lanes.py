from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from packer.bench.table_lanes import ContiguousSlices, batch_sampled, epochs_rate

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
