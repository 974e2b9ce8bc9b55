"""torch's DataLoader and its other wrappers around datasets, and the keywords of other libraries."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.row_dataset import PackedDataset
from packer.packs.pack_opening import open_pack
from tests.format.packs import write_content
from tests.integrations.rows import dataset_of, epochs_of, rows_of
from tests.read.conftest import ROWS, SPLITS, content_of, make_pack

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    ChainDataset,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    StackDataset,
    Subset,
    random_split,
)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack whose labels are 3 * row; not to be changed."""
    path = tmp_path_factory.mktemp("numbered") / "p.h5"
    make_pack(path, ROWS)
    return path


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in rows_of(batch)]


def test_passes_of_a_dataloader_are_epochs(numbered: Path):
    epochs = epochs_of(numbered, 5)
    dataset = dataset_of(numbered)
    loader = DataLoader(dataset, batch_size=None)
    assert len(loader) == 11
    assert [rows(loader) for _ in range(2)] == epochs[:2]
    next(iter(loader))  # a pass that is left early is one, too
    assert rows(loader) == epochs[3]
    assert dataset.epoch == 3
    for _ in range(2):  # twice the same
        dataset.set_epoch(1)
        assert rows(loader) == epochs[1]
    assert rows(loader) == epochs[2]
    assert rows(dataset) == epochs[3]
    assert rows(loader) == epochs[4]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:This DataLoader will create")
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_workers_of_a_dataloader_are_refused(numbered: Path, context: str):
    loader = DataLoader(dataset_of(numbered), batch_size=None, num_workers=2, multiprocessing_context=context)
    with pytest.raises(
        UsageError,
        match=r"PackedBatchDataset: is iterated in a worker of a DataLoader; it reads ahead with threads in the main process\."
        r" Pass num_workers=0 with batch_size=None, or take PackedDataset, whose items are rows\.",
    ):
        next(iter(loader))


def test_copies_count_for_themselves(numbered: Path):
    """A process that trains, started by one that has a dataset: its passes and those of its siblings are apart."""
    epochs = epochs_of(numbered, 2)
    dataset = dataset_of(numbered)
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    ranks = [context.Process(target=_train, args=(dataset, queue)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    assert [queue.get() for _ in ranks] == [epochs] * 2
    for rank in ranks:
        rank.join()
    assert rows(dataset) == epochs[0]
    assert rows(DataLoader(pickle.loads(pickle.dumps(dataset)), batch_size=None)) == epochs[1]


def _train(dataset: PackedBatchDataset, queue: Any) -> None:
    loader = DataLoader(dataset, batch_size=None)
    queue.put([rows(loader) for _ in range(2)])


def test_a_dataset_that_came_to_another_process_is_iterable_there(numbered: Path, tmp_path: Path):
    (tmp_path / "p.pickle").write_bytes(pickle.dumps(dataset_of(numbered)))
    code = (
        "import pickle, sys; ds = pickle.load(open(sys.argv[1], 'rb'))\n"
        "from torch.utils.data import IterableDataset; assert isinstance(ds, IterableDataset)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "p.pickle"], check=True, timeout=120)


def test_torch_is_not_imported_for_it():
    code = "import packer.load.epoch_progress, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("size", [{}, {"batch_size": 4}])
def test_batches_are_not_collated(numbered: Path, output: str, size: dict[str, int]):
    class Batches(IterableDataset):
        def __iter__(self) -> Any:
            return iter(PackedBatchDataset(numbered, 4, output=output))

    for dataset in (PackedBatchDataset(numbered, 4, output=output), Batches()):
        with pytest.raises(UsageError, match="DataLoader over PackedBatchDataset: its items are batches"):
            next(iter(DataLoader(dataset, **size)))  # type: ignore[arg-type]
    assert len(list(DataLoader(Batches(), batch_size=None))) == 26


def test_what_picks_items_by_number_fails(numbered: Path):
    dataset = PackedBatchDataset(numbered, 4, shuffle=True)
    for pick in (
        lambda: random_split(dataset, [0.8, 0.2])[0][0],
        lambda: Subset(dataset, [0, 1])[0],
        lambda: list(DataLoader(Subset(dataset, [0, 1]), batch_size=2)),
        lambda: StackDataset(dataset, dataset)[0],
    ):
        with pytest.raises(UsageError, match=r"PackedBatchDataset: yields batches and has no ds\[i\], which"):
            pick()
    with pytest.raises(AssertionError, match="ConcatDataset does not support IterableDataset"):
        ConcatDataset([dataset, dataset])
    with pytest.raises(ValueError, match="expected unspecified shuffle option"):
        DataLoader(dataset, batch_size=4, shuffle=True)
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        DataLoader(dataset, batch_size=None, sampler=range(3))


def test_datasets_of_batches_may_be_chained(numbered: Path):
    chain = ChainDataset([PackedBatchDataset(numbered, 4), PackedBatchDataset(numbered, 20)])
    loader = DataLoader(chain, batch_size=None)
    assert len(loader) == 32
    assert rows(loader) == 2 * list(range(ROWS))


def test_torchs_wrappers_take_rows(numbered: Path):
    train, val = random_split(PackedDataset(numbered), [ROWS - 10, 10])
    assert sorted(rows(batch for part in (train, val) for batch in DataLoader(part, 7))) == list(range(ROWS))
    both = ConcatDataset([PackedDataset(numbered), PackedDataset(numbered, subset=[5])])
    assert (len(both), int(both[ROWS].label)) == (ROWS + 1, 15)


def test_batches_are_no_lists_of_row_numbers(numbered: Path):
    labels = PackedBatchDataset(numbered, 4, fields=("label",))
    with pytest.raises(
        IndexError, match=r"rows are picked by a list of whole numbers, not by an array \[1, 4\]"
    ):
        labels.dataset.__getitems__(next(iter(labels)))


@pytest.mark.parametrize(
    ("kind", "word", "sentence"),
    [
        (PackedBatchDataset, "num_workers", "pass threads=, or leave it out."),
        (PackedBatchDataset, "prefetch_factor", "pass prefetch=."),
        (PackedBatchDataset, "mask_fill", "pass collate=Padding(mask_fill=...)."),
        (PackedBatchDataset, "suffle", "pass shuffle=."),
        (PackedBatchDataset, "transforms", "pass transform=."),
        (PackedBatchDataset, "worldSize", "pass world_size=."),
        (PackedDataset, "transforms", "pass transform= and target_transform=."),
        (PackedDataset, "clases", "pass classes=."),
        (PackedBatchDataset, "root", "pass the pack's path as the first argument."),
        (
            PackedDataset,
            "num_workers",
            "pass it to torch's DataLoader, or take PackedBatchDataset, which loads batches.",
        ),
        (PackedDataset, "augment", "PackedBatchDataset has it."),
    ],
)
def test_words_of_other_libraries_name_ours(numbered: Path, kind: type, word: str, sentence: str):
    given = {} if kind is PackedDataset else {"batch_size": 4}
    with pytest.raises(
        UsageError, match=f"^{re.escape(f'{word}=: is not an argument of {kind.__name__}; {sentence}')}$"
    ):
        kind(numbered, **given, **{word: 2})
    with pytest.raises(TypeError, match="unexpected keyword argument 'zoom'"):
        kind(numbered, **given, zoom=True)


@pytest.mark.parametrize("kind", [PackedBatchDataset, PackedDataset])
def test_a_warning_of_a_new_dataset_names_the_line_that_made_it(kind: type, tmp_path: Path):
    write_content(tmp_path / "s.h5", content_of("raw"), block_rows=16, splits=SPLITS)
    with pytest.warns(UserWarning, match="split") as caught:
        kind(open_pack(tmp_path / "s.h5"), **({} if kind is PackedDataset else {"batch_size": 4}))
    assert [w.filename for w in caught] == [__file__]
