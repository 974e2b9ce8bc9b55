"""torch's DataLoader(ds, batch_size=None): each pass is the next epoch, with any number of workers, and every row comes once."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packer.errors import UsageError
from packer.load import epoch_progress
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.epoch_progress import DataLoaderWorker, Passes
from tests.integrations.rows import dataset_of, epochs_of, rows_of
from tests.read.conftest import ROWS, make_pack

torch = pytest.importorskip("torch")
DataLoader = torch.utils.data.DataLoader
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning", "ignore:This DataLoader will create"
)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack whose labels are 3 * row; not to be changed."""
    path = tmp_path_factory.mktemp("numbered") / "p.h5"
    make_pack(path, ROWS)
    return path


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in rows_of(batch)]


WAYS: list[Any] = [
    pytest.param({}, id="0 workers"),
    *(
        pytest.param(
            {"num_workers": 2, "persistent_workers": kept, "multiprocessing_context": context},
            id=f"{context}, {'persistent' if kept else 'new'}",
            marks=[] if context == "fork" else pytest.mark.soak,
        )
        for context in ("fork", "spawn", "forkserver")
        for kept in (False, True)
    ),
]


@pytest.mark.parametrize("workers", WAYS)
def test_passes_are_epochs(numbered: Path, workers: dict[str, Any]):
    epochs = epochs_of(numbered, 5)
    dataset = dataset_of(numbered)
    loader = DataLoader(dataset, batch_size=None, **workers)
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


def test_workers_go_on_with_the_rest_of_an_epoch(numbered: Path):
    epochs = epochs_of(numbered, 2)
    dataset = dataset_of(numbered)
    state = dataset.state_dict() | {"rows": 35}
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    dataset.load_state_dict(state)
    assert rows(loader) == epochs[0][35:]
    assert rows(loader) == epochs[1]
    dataset.load_state_dict(state)
    with pytest.raises(
        UsageError, match=r"^Caught UsageError in DataLoader worker(.|\n)*Call it before the first pass"
    ):
        rows(loader)
    again = dataset_of(numbered)
    again.load_state_dict(state | {"rows": ROWS})
    assert rows(DataLoader(again, batch_size=None, num_workers=2)) == epochs[1]


def test_the_place_of_workers_is_not_known_here(numbered: Path):
    dataset = dataset_of(numbered)
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(UsageError) as error:
        dataset.state_dict()
    assert str(error.value) == (
        "state_dict: batches are read by workers of a DataLoader, and only they know how far they are."
        " Pass num_workers=0 (the dataset has threads), or take the state_dict() of torchdata's StatefulDataLoader."
    )
    assert dataset.epoch == 0
    del batches
    dataset.set_epoch(4)
    assert dataset.state_dict()["epoch"] == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 4, 10, 11])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_loader_goes_on_without_set_epoch(numbered: Path, workers: int, stop: int):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    epochs = epochs_of(numbered, 3)

    def loader_of(seed: int) -> Any:
        return stateful.StatefulDataLoader(
            dataset_of(numbered, seed=seed), batch_size=None, num_workers=workers
        )

    loader = loader_of(4)
    assert rows(loader) == epochs[0]
    batches = iter(loader)
    head = [row for _ in range(stop) for row in rows_of(next(batches))]
    state = json.loads(json.dumps(loader.state_dict()))
    again = loader_of(4 if workers else 99)  # of workers only the rest of an epoch has the state's seed
    again.load_state_dict(state)
    if workers or stop < 11:  # else nothing is left, and the next epoch begins
        assert head + rows(again) == epochs[1]
    assert rows(again) == epochs[2]


def test_a_worker_s_state_is_for_such_a_worker(numbered: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = dataset_of(numbered)
    state = dataset.state_dict() | {"worker": [1, 2]}
    with pytest.raises(
        UsageError, match=r"a DataLoader's worker, \[1, 2\] \(number, of how many\); this is none\."
    ):
        dataset.load_state_dict(state)
    monkeypatch.setattr("packer.load.epoch_progress.this_worker", lambda: DataLoaderWorker(1, 3, 5))
    with pytest.raises(UsageError, match=r"; this is worker 1 of 3\. Load it into a StatefulDataLoader"):
        dataset.load_state_dict(state)


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
    assert rows(DataLoader(pickle.loads(pickle.dumps(dataset)), batch_size=None, num_workers=2)) == epochs[1]


def test_a_dataset_that_came_to_another_process_is_iterable_there(numbered: Path, tmp_path: Path):
    (tmp_path / "p.pickle").write_bytes(pickle.dumps(dataset_of(numbered)))
    code = (
        "import pickle, sys; ds = pickle.load(open(sys.argv[1], 'rb'))\n"
        "from torch.utils.data import IterableDataset; assert isinstance(ds, IterableDataset)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "p.pickle"], check=True, timeout=120)


def _train(dataset: PackedBatchDataset, queue: Any) -> None:
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    queue.put([rows(loader) for _ in range(2)])


def test_without_memory_in_common_workers_are_refused(monkeypatch: pytest.MonkeyPatch):
    passes = Passes()
    with pytest.raises(UsageError, match=r"its workers have no memory in common, to agree on the epoch\."):
        passes.begin(DataLoaderWorker(0, 1, 7), 0)

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("multiprocessing.sharedctypes.RawArray", full)
    passes.set(1)
    assert passes.latest is None


def test_epochs_beyond_what_workers_can_count_are_refused(monkeypatch: pytest.MonkeyPatch):
    passes = Passes()
    passes.set((1 << 20) - 2)
    monkeypatch.setattr(Passes, "_slot_of_starter", lambda self: self._slot(epoch_progress.os.getpid()))
    assert passes.begin(DataLoaderWorker(0, 1, 7), 0) == (1 << 20) - 2
    assert passes.latest == (1 << 20) - 2
    passes.set(1 << 20)
    with pytest.raises(UsageError, match=r"its workers count epochs below 1,048,576\. Pass num_workers=0"):
        passes.begin(DataLoaderWorker(0, 1, 7), 0)


def test_torch_is_not_imported_for_it():
    code = "import packer.load.epoch_progress, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- batches by number -------------------------------------------------------------------------------------


def picked(dataset: PackedBatchDataset) -> list[Any]:
    return [dataset[number] for number in range(len(dataset))]


def test_a_second_pass_by_number_warns_once(numbered: Path):
    dataset = dataset_of(numbered)
    picked(dataset)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        picked(dataset)
        picked(dataset)
    assert [str(one.message) for one in said] == [
        f"{numbered}: all batches of epoch 0 were picked by number, and now they are picked again: ds[i] stays in one epoch."
        " Iterate over the dataset, whose passes are epochs, or call set_epoch(e) before each pass."
    ]
    assert [one.filename for one in said] == [__file__]


def _set_epoch(dataset: PackedBatchDataset) -> None:
    dataset.set_epoch(1)


@pytest.mark.parametrize(
    ("options", "between"),
    [({}, _set_epoch), ({"order": "sequential"}, len), ({}, lambda dataset: dataset[3])],
    ids=["set_epoch", "sequence", "one batch"],
)
def test_other_passes_by_number_do_not(
    numbered: Path, options: dict[str, Any], between: Callable[[PackedBatchDataset], object]
):
    dataset = dataset_of(numbered, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picked(dataset)
        between(dataset)
        picked(dataset)
        list(dataset_of(numbered).replay(20))
