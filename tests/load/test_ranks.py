from __future__ import annotations

import pickle
import sys
import types
import warnings

import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.ranks import check_ranks, found_ranks, ignored_ranks, local_rank
from packer.packs.pack import Pack


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


class Distributed(types.ModuleType):
    """torch.distributed as far as it is looked at."""

    rank, world_size, initialised = 3, 8, True

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialised

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world_size


def ray_train(rank: int | None) -> types.ModuleType:
    def get_context() -> object:
        if rank is None:
            raise RuntimeError("not in a worker")
        return types.SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: 5)

    module = types.ModuleType("ray.train")
    module.get_context = get_context  # type: ignore[attr-defined]
    return module


def torchrun(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """The environment of one of its processes."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def test_who_is_asked_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed("torch.distributed"))
    monkeypatch.setattr(Distributed, "initialised", False)
    assert found_ranks()[:2] == (0, 1)
    monkeypatch.setenv("RANK", "1")
    assert found_ranks()[:2] == (0, 1)  # half of it is nothing
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (found_ranks()[:2], ignored_ranks()) == ((0, 1), (1, 2))  # nothing vouches for it
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun's, without a rendezvous id
    assert (found_ranks(), ignored_ranks()) == ((1, 2, "torchrun"), None)
    monkeypatch.setitem(sys.modules, "ray.train", ray_train(None))
    assert found_ranks()[:2] == (1, 2)
    monkeypatch.setitem(sys.modules, "ray.train", ray_train(4))
    assert found_ranks() == (4, 5, "Ray Train")
    monkeypatch.setattr(Distributed, "initialised", True)
    assert found_ranks() == (3, 8, "torch.distributed")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert ignored_ranks() is None  # RANK is that of the process group, or a launcher's: the group counts


@pytest.mark.parametrize(("rank", "world_size"), [("7", "7"), ("-1", "2"), ("a", "2")])
def test_an_environment_that_makes_no_sense_counts_for_nothing(
    rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    assert (found_ranks()[:2], ignored_ranks()) == ((0, 1), None)


def test_wrong_ranks_are_sentences():
    with pytest.raises(UsageError, match=r"^rank=0, world_size=None: are not two whole numbers"):
        check_ranks(0, None)
    with pytest.raises(
        UsageError, match=r"^rank=2, world_size=2: are not two whole numbers, rank from 0 to world_size - 1"
    ):
        check_ranks(2, 2)


def test_a_dataset_made_before_the_process_group_follows_it(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    dataset = PackedBatchDataset(pack, 5, output="numpy", fields=("label",))
    assert (len(dataset), dataset.rank, dataset.world_size) == (21, 0, 1)
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)  # of other tests in this process
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed("torch.distributed"))
    assert (len(dataset), dataset.rank, dataset.world_size) == (3, 3, 8)
    assert [batch.label[0] // 3 for batch in dataset][:2] == [15, 55]


def test_an_accelerate_without_the_hooks_is_warned_of(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    """They are private: another version may lack some. The loop goes on."""
    module = types.ModuleType("accelerate.state")
    module.GradientState = type("GradientState", (), {"_shared_state": {1: 1}})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    dataset = PackedBatchDataset(pack, 50, output="numpy", fields=("label",))
    with pytest.warns(UserWarning, match=r"has no hooks for loops of others; gather_for_metrics does not"):
        assert len(list(dataset)) == 3


def test_another_process_keeps_the_ranks(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed("torch.distributed"))
    state = PackedBatchDataset(pack, 5, output="numpy").__getstate__()
    monkeypatch.delitem(sys.modules, "torch.distributed")
    there = object.__new__(PackedBatchDataset)
    there.__dict__.update(state)
    assert (there.rank, there.world_size) == (3, 8)


def test_ranks_that_would_differ_are_warned_of_once(pack: Pack):
    with pytest.warns(UserWarning, match=r"of 103 rows the last 3 are fewer than the 5 ranks") as said:
        dataset = PackedBatchDataset(pack, 4, rank=0, world_size=5, output="numpy")
    assert [one.filename for one in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(dataset)
        for ends in ("drop", "pad"):
            list(PackedBatchDataset(pack, 4, rank=0, world_size=5, ends=ends, output="numpy"))
        list(PackedBatchDataset(pack, 4, rank=0, world_size=2, output="numpy"))


def test_a_process_that_is_alone_gives_no_ranks_along(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    pickled = pickle.dumps(PackedBatchDataset(pack, 5, output="numpy"))
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed("torch.distributed"))
    there = pickle.loads(pickled)
    assert (there.rank, there.world_size) == (3, 8)


def test_ray_outside_of_a_worker_warns_nobody(monkeypatch: pytest.MonkeyPatch):
    """Ray Train V1 answers 0 of 1 there, with a warning; torchrun's ranks count."""

    def alone(value: int) -> int:
        warnings.warn("only inside a function", stacklevel=1)
        return value

    module = types.ModuleType("ray.train")
    context = types.SimpleNamespace(get_world_rank=lambda: alone(0), get_world_size=lambda: alone(1))
    module.get_context = lambda: context  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray.train", module)
    torchrun(monkeypatch, 1, 2)
    assert found_ranks()[:2] == (1, 2)


def test_a_bare_environment_shares_nothing_out_and_warns_once(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    """RANK and WORLD_SIZE of a batch system, and a process that evaluates alone: it reads every row."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    dataset = PackedBatchDataset(
        pack, 5, output="numpy", fields=("label",)
    )  # a group may come later: no warning yet
    sentence = (
        f"{pack.path}: the environment has RANK=0 and WORLD_SIZE=4, but there is no process group, Ray Train or torchrun, so this"
        " process reads all 103 rows. Pass rank=0, world_size=4 to read a share of them, or rank=0, world_size=1 for all."
    )
    with pytest.warns(UserWarning, match="WORLD_SIZE") as said:
        rows = [row for batch in dataset for row in batch.label // 3]
    assert rows == list(range(103))
    assert [(str(one.message), one.filename) for one in said] == [(sentence, __file__)]
    assert "ranks: rank 0 of 1: RANK=0 and WORLD_SIZE=4 are ignored" in repr(dataset)
    list(dataset)  # said once
    pickle.loads(pickle.dumps(dataset)).batch(0)
    with pytest.warns(UserWarning, match=r"RANK=0 and WORLD_SIZE=4") as said:
        PackedBatchDataset(pack, 5, output="numpy").batch(0)
    assert [one.filename for one in said] == [__file__]
    assert len(list(PackedBatchDataset(pack, 5, output="numpy", rank=0, world_size=1))) == 21
    assert len(list(PackedBatchDataset(pack, 5, output="numpy", rank=0, world_size=4, ends="pad"))) == 6


def test_ranks_that_are_found_are_told(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    torchrun(monkeypatch, 1, 4)
    dataset = PackedBatchDataset(pack, 5, output="numpy", ends="pad")
    assert "\n    ranks: rank 1 of 4, found in torchrun" in repr(dataset)
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed("torch.distributed"))
    next(iter(dataset))
    assert "rank 3 of 8, found by the process that it came from" in repr(pickle.loads(pickle.dumps(dataset)))
    given = PackedBatchDataset(pack, 5, output="numpy", rank=0, world_size=1)
    assert "ranks: rank 0 of 1, as given" in repr(pickle.loads(pickle.dumps(given)))


def test_the_local_rank_is_torchruns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert local_rank() is None
    torchrun(monkeypatch, 2, 4)
    assert local_rank() == 2
