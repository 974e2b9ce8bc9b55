"""Going on in the middle of an epoch: the same sequence, with nothing lost or repeated, wherever it goes on."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.packs.pack import Pack
from tests.load.conftest import ORDERS
from tests.read.conftest import ROWS, make_pack


def labels(batch) -> list[int]:
    return (np.asarray(batch.label) // 3).tolist()


def dataset_of(pack: Pack, batch_size: int = 10, **options) -> PackedBatchDataset:
    return PackedBatchDataset(
        pack, batch_size, **{"output": "numpy", "fields": ("label",), "seed": 4} | options
    )


def joined(ranks: list[list[list[int]]]) -> list[int]:
    steps = max(map(len, ranks))
    return [row for step in range(steps) for rank in ranks if step < len(rank) for row in rank[step]]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_after_every_step(pack: Pack, order: str, prefetch: int):
    whole = dataset_of(pack, order=order)
    epochs = [[labels(b) for b in whole] for _ in range(3)]
    for stop in range(1, 12):
        first = dataset_of(pack, order=order, prefetch=prefetch)
        list(first)
        for step, batch in enumerate(first, 1):
            assert labels(batch) == epochs[1][step - 1]
            if step == stop:
                break
        state = json.loads(json.dumps(first.state_dict()))
        assert (state["epoch"], state["rows"]) == (1, min(10 * stop, ROWS))
        second = dataset_of(pack, order=order, prefetch=prefetch, seed=99)
        second.load_state_dict(state)
        assert len(second) == 11
        rest = [labels(b) for b in second]
        assert rest == (epochs[1][stop:] or epochs[2])
        assert second.epoch == (1 if stop < 11 else 2)
        if stop < 11:
            assert [labels(b) for b in second] == epochs[2]


@pytest.mark.filterwarnings("ignore:.*some ranks get a batch less:UserWarning")
@pytest.mark.parametrize("ends", ["even", "uneven"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [((1, 8), (3, 4)), ((4, 2), (1, 5)), ((3, 3), (5, 1))])
def test_on_another_number_of_ranks(
    pack: Pack, order: str, ends: str, before: tuple[int, int], after: tuple[int, int]
):
    """Ranks and rows a batch of each, before and after."""
    world, size = before
    alone = [row for b in dataset_of(pack, world * size, order=order) for row in labels(b)]
    steps = 3
    heads, states = [], []
    for rank in range(world):
        dataset = dataset_of(pack, size, order=order, ends=ends, rank=rank, world_size=world)
        batches = iter(dataset)
        heads.append([labels(next(batches)) for _ in range(steps)])
        states.append(dataset.state_dict())
    assert all(state == states[0] for state in states)
    tails = []
    for rank in range(after[0]):
        dataset = dataset_of(pack, after[1], order=order, ends=ends, rank=rank, world_size=after[0])
        dataset.load_state_dict(states[0])
        tails.append([labels(b) for b in dataset])
    left = ROWS - world * size * steps
    twice = -left % (after[0] * after[1]) % after[0] if ends == "even" else 0
    assert joined(heads) + joined(tails) == alone + alone[:twice]
    assert ends == "uneven" or len({len(tail) for tail in tails}) == 1


@pytest.mark.parametrize(("order", "ends"), [("sequential", "uneven"), ("rows", "even"), ("blocks", "even")])
def test_without_a_choice_shuffled_ranks_have_equally_many_batches(pack: Pack, order: str, ends: str):
    options = {"order": order, "world_size": 2, "rank": 0}
    assert dataset_of(pack, **options).ends == ends
    assert dataset_of(pack, **options, drop_last=True).ends == "drop"
    assert dataset_of(pack, **options, ends="uneven").ends == "uneven"
    assert sorted(row for b in dataset_of(pack, order=order) for row in labels(b)) == list(range(ROWS))


def test_prefetched_batches_do_not_count(pack: Pack):
    dataset = dataset_of(pack, order="rows", prefetch=8)
    batches = iter(dataset)
    assert dataset.state_dict()["rows"] == 0
    for step in range(1, 4):
        next(batches)
        assert dataset.state_dict()["rows"] == 10 * step


def test_the_state_follows_the_latest_iterator(pack: Pack):
    dataset = dataset_of(pack, order="rows")
    old = iter(dataset)
    next(old)
    new = iter(dataset)
    next(new)
    next(old)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["rows"]) == (1, 10)


def test_set_epoch_of_the_same_epoch_goes_on_and_of_another_begins_it(pack: Pack):
    source = dataset_of(pack, order="rows")
    epoch = [labels(b) for b in source]
    state = source.state_dict() | {"rows": 50, "epoch": 0}
    for number, expected in ((0, epoch[5:]), (1, [labels(b) for b in source])):
        dataset = dataset_of(pack, order="rows")
        dataset.load_state_dict(state)
        dataset.set_epoch(number)
        assert [labels(b) for b in dataset] == expected


def test_batches_by_number_are_of_the_whole_epoch(pack: Pack):
    dataset = dataset_of(pack, order="rows")
    first = [labels(b) for b in dataset]
    dataset.load_state_dict(dataset.state_dict() | {"rows": 30, "epoch": 0})
    assert labels(dataset.batch(0)) == first[0]
    assert dataset.batches_left == 8
    assert len(dataset) == 11


def test_the_slices_length_is_kept(pack: Pack):
    first = dataset_of(pack, 8, order="slices")
    batches = iter(first)
    head = labels(next(batches))
    second = dataset_of(pack, 5, order="slices")
    second.load_state_dict(first.state_dict())
    tail = [row for b in second for row in labels(b)]
    assert head + tail == [row for b in dataset_of(pack, 8, order="slices") for row in labels(b)]


def test_a_state_of_slices_goes_on_where_shuffle_means_blocks(pack: Pack):
    first = dataset_of(pack, order="slices")
    batches = iter(first)
    head = [labels(next(batches)) for _ in range(3)]
    again = dataset_of(pack, shuffle=True)
    assert again.order.name != "slices"
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    whole = dataset_of(pack, order="slices")
    assert head + [labels(b) for b in again] == [labels(b) for b in whole]
    assert [labels(b) for b in again] == [labels(b) for b in whole]


def test_dropped_ends_are_not_gone_on_with(pack: Pack):
    dataset = dataset_of(pack, order="rows", drop_last=True)
    epochs = [[labels(b) for b in dataset] for _ in range(2)]
    again = dataset_of(pack, order="rows", drop_last=True)
    again.load_state_dict(dataset_of(pack, order="rows").state_dict() | {"rows": 100})
    assert [labels(b) for b in again] == epochs[1]


def test_padded_ends_repeat_the_epochs_first_rows(pack: Pack):
    dataset = dataset_of(pack, order="rows", ends="pad")
    epoch = [row for b in dataset for row in labels(b)]
    assert (len(epoch), epoch[ROWS:]) == (110, epoch[:7])
    assert dataset.state_dict()["rows"] == ROWS


def test_states_of_something_else_are_refused(pack: Pack, tmp_path: Path):
    state = dataset_of(pack, order="rows").state_dict()
    with pytest.raises(
        UsageError,
        match=r"^load_state_dict: the state is of 103 rows of a pack; this dataset has 50, or others\.",
    ):
        dataset_of(make_pack(tmp_path / "p.h5", 50), order="rows").load_state_dict(state)
    halves = [dataset_of(pack, order="rows", subset=range(k, ROWS - 3 + k)) for k in (0, 3)]
    with pytest.raises(UsageError, match=r"of 100 rows of a pack; this dataset has 100, or others\."):
        halves[1].load_state_dict(halves[0].state_dict())
    given = halves[0].state_dict()
    for other in (given | {"version": 2}, {name: given[name] for name in given if name != "rows"}, None):
        with pytest.raises(UsageError, match=r"^load_state_dict: is no state of a PackedBatchDataset"):
            halves[0].load_state_dict(other)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="slices"):
        dataset_of(pack, order="slices").load_state_dict(state)


def test_a_pickled_dataset_goes_on_too(pack: Pack):
    dataset = dataset_of(pack, order="rows")
    batches = iter(dataset)
    head = [labels(next(batches)) for _ in range(2)]
    state = pickle.loads(pickle.dumps(dataset)).state_dict()
    fresh = dataset_of(pack, order="rows")
    fresh.load_state_dict(state)
    assert head + [labels(b) for b in fresh] == [labels(b) for b in dataset_of(pack, order="rows")]


def test_an_iterator_that_is_only_made_begins_no_epoch(pack: Pack):
    epochs = [[labels(b) for b in whole] for whole in [dataset_of(pack, order="rows")] for _ in range(2)]
    dataset = dataset_of(pack, order="rows")
    iter(dataset)
    late = iter(dataset)
    assert [labels(b) for b in dataset] == epochs[0]
    assert [labels(b) for b in late] == epochs[1]
    dataset.load_state_dict(dataset.state_dict() | {"epoch": 0, "rows": 50})
    iter(dataset)
    dataset.set_epoch(0)
    assert [labels(b) for b in dataset] == epochs[0][5:]


def test_the_epoch_after_one_that_was_handed_out_to_its_end(pack: Pack):
    dataset = dataset_of(pack, order="rows")
    epochs = [[labels(b) for b in dataset] for _ in range(2)]
    state = dataset.state_dict()
    for number in (None, 2, 1):
        again = dataset_of(pack, order="rows")
        again.load_state_dict(state)
        assert (again.epoch, again.batches_left) == (2, 11)
        if number is not None:
            again.set_epoch(number)
            assert again.epoch == number
        found = [labels(b) for b in again]
        assert (found == epochs[1]) == (number == 1)
        assert len(found) == 11


@pytest.mark.filterwarnings("ignore:.*some ranks get a batch less:UserWarning")
def test_ranks_agree_on_the_epoch_though_some_are_left_nothing_of_it(pack: Pack):
    state = dataset_of(pack, order="rows").state_dict() | {"rows": 102}
    ranks = []
    for rank in range(3):
        dataset = dataset_of(pack, order="rows", ends="uneven", rank=rank, world_size=3)
        dataset.load_state_dict(state)
        assert dataset.epoch == 0
        ranks.append([[labels(b) for b in dataset] for _ in range(2)])
    epochs = [
        [row for b in whole for row in labels(b)]
        for whole in [dataset_of(pack, order="rows")]
        for _ in range(2)
    ]
    assert joined([rank[0] for rank in ranks]) == epochs[0][102:]
    assert joined([rank[1] for rank in ranks]) == epochs[1]


class _Stop(Exception):
    pass


def _plain(dataset: Any) -> Any:
    return dataset


def _generator(dataset: Any) -> Iterator[Any]:
    yield from (batch for batch in dataset)


def _within(dataset: Any) -> Iterator[Any]:
    with contextlib.suppress(ZeroDivisionError):
        for batch in dataset:
            try:
                yield batch
            finally:
                pass


def _loader(dataset: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=None)


WRAPPERS = [
    _plain,
    _generator,
    _within,
    _loader,
    iter,
    lambda dataset: zip(dataset, count(), strict=False),
    lambda dataset: map(list, islice(dataset, 99)),
    lambda dataset: _within(enumerate(_generator(dataset))),
]


@pytest.mark.parametrize("error", [_Stop, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_batch_whose_step_was_not_finished_does_not_count(pack: Pack, wrapper: Any, error: type):
    """An exception leaves the loop: in its handler, and afterwards, the state names the batch before."""
    if wrapper is _loader:
        pytest.importorskip("torch.utils.data")
    for inside in (contextlib.nullcontext(), contextlib.ExitStack(), contextlib.suppress(ZeroDivisionError)):
        dataset, states, given = dataset_of(pack, order="rows"), [], None
        try:
            try:
                for step, given in enumerate(wrapper(dataset), 1):  # noqa: B007 - holds the batch
                    with inside:
                        if step == 4:
                            raise error
            finally:
                states.append(dataset.state_dict())
        except error:
            states.append(dataset.state_dict())
        states.append(dataset.state_dict())
        assert [(state["epoch"], state["rows"]) for state in states] == [(0, 30)] * len(states)
        dataset.load_state_dict(states[-1])
        assert len(list(dataset)) == 8


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_batch_after_which_the_loop_was_left_counts(pack: Pack, wrapper: Any):
    def trained(dataset: PackedBatchDataset) -> None:
        for step, _ in enumerate(wrapper(dataset), 1):
            with contextlib.ExitStack():
                if step == 3:
                    return

    if wrapper is _loader:
        pytest.importorskip("torch.utils.data")
    for _ in range(3):
        dataset = dataset_of(pack, order="rows")
        trained(dataset)
        assert dataset.state_dict()["rows"] == 30
        for step, _ in enumerate(wrapper(dataset), 1):
            try:
                if step == 3:
                    break
            finally:
                pass
        assert dataset.state_dict()["rows"] == 30
        taken = wrapper(dataset)
        if hasattr(taken, "__next__"):
            assert len([next(taken), next(taken)]) == 2
            del taken
            assert dataset.state_dict()["rows"] == 20


def test_a_state_inside_the_loop_counts_the_batch_in_hand(pack: Pack):
    """Also where an exception is handled all the while, or was before."""
    dataset = dataset_of(pack, order="rows")
    found = []
    for step, _ in enumerate(dataset):
        with contextlib.suppress(_Stop):
            raise _Stop
        found.append(dataset.state_dict()["rows"])
        if step == 2:
            break
    try:
        raise _Stop
    except _Stop:
        for step, _ in enumerate(dataset):
            found.append(dataset.state_dict()["rows"])
            if step == 1:
                break
        found.append(dataset.state_dict()["rows"])
    assert found == [10, 20, 30, 10, 20, 20]


def test_a_closed_generator_around_the_loop_saves_what_was_trained(pack: Pack):
    found = []

    def batches(dataset: PackedBatchDataset) -> Iterator[Any]:
        try:
            yield from _generator(dataset)
        finally:
            found.append(dataset.state_dict()["rows"])

    dataset = dataset_of(pack, order="rows")
    for step, _ in enumerate(batches(dataset)):
        if step == 2:
            break
    with contextlib.suppress(_Stop):
        for step, _ in enumerate(batches(dataset)):
            if step == 2:
                raise _Stop
    assert found == [30, 20]


def test_an_error_of_reading_the_next_batch_leaves_the_one_before_counted(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
):
    dataset = dataset_of(pack, order="rows", prefetch=0)
    with pytest.raises(ZeroDivisionError), monkeypatch.context() as patch:
        for step, _ in enumerate(dataset, 1):
            if step == 3:
                patch.setattr("packer.read.array_store.PackStore.copy", lambda *_: 1 / 0)
    assert dataset.state_dict()["rows"] == 30
