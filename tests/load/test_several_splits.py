"""Several splits at once: folds of a cross-validation, in both datasets and in to_hf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packer import PackedBatchDataset, PackedDataset, open_pack, pack_dataset
from packer.errors import UsageError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images, the number of each as its label, in train and four folds, shards of 12 rows."""
    out = tmp_path_factory.mktemp("folds") / "folds"
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), np.uint8)
    shares = {"train": 0.2, **{f"fold{number}": 0.2 for number in range(4)}}
    pack_dataset((images, np.arange(40)), out, split=shares, shards=12, workers=1)
    return out


def test_the_rows_of_folds_are_those_of_the_pack_in_order(folds: Path):
    pack = open_pack(folds)
    chosen = ["fold3", "fold0", "fold1"]
    spans = sorted(span for name in chosen for span in pack.header.splits[name])
    labels = [label for a, b in spans for label in pack.read("label", a, b).tolist()]
    rows = PackedDataset(folds, split=chosen)
    assert (rows.targets, len(rows)) == (labels, 24)
    assert "split=['fold3', 'fold0', 'fold1']" in repr(rows)
    with PackedBatchDataset(folds, 7, split=chosen) as batches:
        assert [label for batch in batches for label in batch.label.tolist()] == labels
    with PackedBatchDataset(folds, 7, split=chosen, shuffle=True) as batches:
        epoch = [label for batch in batches for label in batch.label.tolist()]
        assert (sorted(epoch), epoch != labels) == (sorted(labels), True)
    other = PackedDataset(folds, split=["fold2", "train"])
    assert sorted([*other.targets, *labels]) == list(range(40))


def test_normalize_takes_the_statistics_of_train(folds: Path):
    found = open_pack(folds).header.normalization
    rows = PackedDataset(folds, split=["fold0", "fold1"])
    stored = rows[: len(rows)].image.float() / 255
    mean, std = (torch.tensor(found[name]).view(3, 1, 1) for name in ("mean", "std"))
    with PackedBatchDataset(folds, 16, split=["fold0", "fold1"], augment="Normalize()") as batches:
        torch.testing.assert_close(next(iter(batches)).image, (stored - mean) / std, atol=1e-4, rtol=1e-4)


def test_each_of_several_packs_needs_the_splits(folds: Path):
    assert len(PackedDataset([folds], split=["fold0", "fold1"])) == 16
    with pytest.raises(
        UsageError, match="has no split 'fold9'; its splits: fold0, fold1, fold2, fold3, train"
    ):
        PackedDataset([folds], split=["fold0", "fold9"])


def test_a_resumed_epoch_is_that_of_the_same_splits(folds: Path):
    with PackedBatchDataset(folds, 4, split=["fold0", "fold2"], shuffle=True) as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = [label for batch in batches for label in batch.label.tolist()]
    with PackedBatchDataset(folds, 4, split=("fold2", "fold0"), shuffle=True) as again:
        again.load_state_dict(state)
        assert [label for batch in again for label in batch.label.tolist()] == rest


def test_to_hf_takes_several(folds: Path, tmp_path: Path):
    pytest.importorskip("datasets")
    from packer.integrations.huggingface import to_hf

    found = to_hf(folds, split=["fold0", "fold1"], cache_dir=tmp_path)
    assert found["label"] == PackedDataset(folds, split=["fold0", "fold1"]).targets
