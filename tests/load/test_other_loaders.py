"""Habits from other loaders: every word, attribute and wrapper that would go unnoticed is an error that says what to write."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from pathlib import Path
from typing import Any

import pytest

from packer.errors import UsageError
from packer.format.pack import Pack, open_pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.other_loaders import BATCHES, ROWS, arguments
from packer.load.processes.transforms import PythonTransform
from packer.load.row_dataset import PackedDataset
from tests.format.packs import write_content
from tests.read.conftest import SPLITS, content_of, make_pack

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
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("others") / "p.h5", 40)


def made(kind: type, pack: Pack, **options: Any) -> Any:
    return kind(pack, **({"batch_size": 4} if kind is PackedBatchDataset else {}) | options)


WORDS = [
    (kind, name) for kind, words in ((PackedBatchDataset, BATCHES), (PackedDataset, ROWS)) for name in words
]


@pytest.mark.parametrize(("kind", "name"), WORDS, ids=str)
def test_every_word_of_another_loader_has_ours(pack: Pack, kind: type, name: str):
    assert name not in arguments(kind)
    if (kind, name) != (PackedDataset, "batch_size"):
        start = re.escape(f"{name}=: is no argument of {kind.__name__}; ")
        with pytest.raises(UsageError, match=f"^{start}.*[.]$"):
            made(kind, pack, **{name: 2})
    words = BATCHES if kind is PackedBatchDataset else ROWS
    ours = {
        *arguments(PackedBatchDataset),
        *arguments(PackedDataset),
        *arguments(PythonTransform),
        "batch_size",
    }
    assert set(re.findall(r"(\w+)=", words[name])) - {"window"} <= ours  # the words that it names are there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_workers": 8},
            "num_workers=: is no argument of PackedBatchDataset; threads read and decode, in this process."
            " Pass threads=, or leave it out.",
        ),
        (
            {"suffle": True},
            "suffle=: is no argument of PackedBatchDataset; the nearest is shuffle=. Pass that.",
        ),
        (
            {"q": 1},
            f"q=: is no argument of PackedBatchDataset; its arguments: {', '.join(arguments(PackedBatchDataset))}. Pass some of these.",
        ),
    ],
)
def test_whole_sentences(pack: Pack, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PackedBatchDataset(pack, 4, **options)


@pytest.mark.parametrize("kind", [PackedBatchDataset, PackedDataset])
@pytest.mark.parametrize(
    "name",
    [
        *("transform", "augment", "transforms", "target_transform", "batch_size", "num_workers", "seed"),
        *("targets", "classes", "class_to_idx", "samples", "fields", "split", "subset", "order", "device"),
        *("sampler", "shuffle", "drop_last", "tranform", "fieds", "trnsforms"),
    ],
)
def test_an_attribute_that_would_change_nothing_is_refused(pack: Pack, kind: type, name: str):
    dataset = made(kind, pack)
    with pytest.raises(
        UsageError, match=rf"^{kind.__name__}\.{name}: was set on a dataset that is made, where it would"
    ):
        setattr(dataset, name, None)


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        (PackedBatchDataset, "augment", r"effect\. Pass augment= to PackedBatchDataset\(\.\.\.\)\."),
        (PackedDataset, "transform", r"effect\. Pass transform= to PackedDataset\(\.\.\.\)\."),
        (
            PackedDataset,
            "augment",
            r"effect; it works on batches\. Pass augment= to PackedBatchDataset, or transform= here\.",
        ),
        (PackedBatchDataset, "epoch", r"effect\. Call set_epoch\(e\)\."),
        (PackedBatchDataset, "rank", r"effect\. Pass rank= to PackedBatchDataset\(\.\.\.\)\."),
        (PackedBatchDataset, "batchsize", r"effect\. Pass batch_size= to PackedBatchDataset\(\.\.\.\)\."),
    ],
)
def test_it_says_what_to_write(pack: Pack, kind: type, name: str, remedy: str):
    with pytest.raises(UsageError, match=rf"^{kind.__name__}\.{name}: was set .*{remedy}$"):
        setattr(made(kind, pack), name, 3)


def test_what_takes_effect_and_notes_may_be_set(pack: Pack):
    dataset, lines = PackedBatchDataset(pack, 8), []
    dataset.report = lines.append
    list(dataset)
    assert len(lines) == 1
    dataset.note = "mine"  # type: ignore[attr-defined]
    dataset.load_state_dict(PackedBatchDataset(pack, 8, seed=5).state_dict())  # sets its own seed
    assert (dataset.seed, dataset.note) == (5, "mine")  # type: ignore[attr-defined]


class Mine(PackedDataset):
    """A user's: with attributes under names that are taken elsewhere."""

    def __init__(self, path: Any, transform: Any) -> None:
        self.classes = ["a"]
        super().__init__(path)
        self.transform = transform
        self.samples, self.dataset = [1], None

    def __getitem__(self, index: Any) -> Any:
        return self.transform(super().__getitem__(index).image)


def test_a_users_subclass_has_attributes_of_its_own(pack: Pack):
    mine = Mine(pack, lambda image: image.float() / 255)
    assert (mine[3].dtype, mine.classes, mine.samples) == (torch.float32, ["a"], [1])
    with pytest.raises(UsageError, match=r"^PackedDataset\.augment: was set"):
        mine.augment = []


def test_setting_an_attribute_keeps_nothing_alive(pack: Pack):
    class Held:
        pass

    dataset, held = PackedBatchDataset(pack, 8), Held()
    gone = weakref.ref(held)
    dataset.note = 1  # type: ignore[attr-defined]
    next(iter(dataset))
    assert len(dataset[0]) == 2
    del held
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (
            lambda ds: random_split(ds, [0.8, 0.2]),
            "random_split over PackedBatchDataset: it would pick whole batches,",
        ),
        (
            lambda ds: random_split(ds, [8, 2]),
            "random_split over PackedBatchDataset: it would pick whole batches,",
        ),
        (lambda ds: Subset(ds, [0, 1])[0], "Subset over PackedBatchDataset: it would pick whole batches,"),
        (
            lambda ds: list(DataLoader(Subset(ds, [0, 1]), batch_size=None)),
            "Subset over PackedBatchDataset: ",
        ),
        (lambda ds: list(DataLoader(Subset(ds, [0, 1]), batch_size=2)), "Subset over PackedBatchDataset: "),
        (
            lambda ds: StackDataset(ds, ds),
            "StackDataset over PackedBatchDataset: it would pick batches by number,",
        ),
        (
            lambda ds: next(iter(DataLoader(ds))),
            "DataLoader over PackedBatchDataset: its items are batches already,",
        ),
        (lambda ds: next(iter(DataLoader(ds, batch_size=4))), "DataLoader over PackedBatchDataset: "),
    ],
    ids=range(8),
)
def test_wrappers_around_batches_say_what_to_write(pack: Pack, wrap: Any, message: str):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}") as error:
        wrap(PackedBatchDataset(pack, 4, shuffle=True))
    assert "PackedDataset, whose items are rows." in str(error.value)


def test_torch_itself_refuses_what_an_iterable_dataset_cannot_be(pack: Pack):
    dataset = PackedBatchDataset(pack, 4)
    with pytest.raises(AssertionError, match="ConcatDataset does not support IterableDataset"):
        ConcatDataset([dataset, dataset])
    with pytest.raises(
        UsageError, match=r"^ConcatDataset over PackedBatchDataset: it would pick batches by number"
    ):
        ConcatDataset.cumsum([dataset, dataset])  # where Python leaves assertions out
    with pytest.raises(ValueError, match="expected unspecified shuffle option"):
        DataLoader(dataset, batch_size=4, shuffle=True)
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        DataLoader(dataset, batch_size=None, sampler=range(3))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_in_a_worker_process_too(pack: Pack):
    with pytest.raises(UsageError, match="DataLoader over PackedBatchDataset: its items are batches already"):
        next(iter(DataLoader(PackedBatchDataset(pack, 4), batch_size=2, num_workers=1)))


def test_an_iterable_around_batches_is_not_collated(pack: Pack):
    class Batches(IterableDataset):
        def __iter__(self) -> Any:
            return iter(PackedBatchDataset(pack, 4))

    with pytest.raises(UsageError, match="DataLoader over PackedBatchDataset: its items are batches already"):
        next(iter(DataLoader(Batches(), batch_size=2)))
    assert len(list(DataLoader(Batches(), batch_size=None))) == 10


def test_datasets_of_batches_may_be_chained(pack: Pack):
    chain = ChainDataset([PackedBatchDataset(pack, 4), PackedBatchDataset(pack, 20)])
    loader = DataLoader(chain, batch_size=None)
    assert len(loader) == 12
    assert [row for batch in loader for row in (batch.label // 3).tolist()] == 2 * list(range(40))


def test_torchs_wrappers_take_rows(tmp_path: Path, pack: Pack):
    train, val = random_split(PackedDataset(pack), [30, 10])
    rows = [
        row for part in (train, val) for batch in DataLoader(part, 7) for row in (batch.label // 3).tolist()
    ]
    assert sorted(rows) == list(range(40))
    both = ConcatDataset([PackedDataset(pack), PackedDataset(pack, subset=[5])])
    assert (len(both), int(both[40].label)) == (41, 15)


@pytest.mark.parametrize(
    ("kind", "given", "named", "message"),
    [
        (
            PackedBatchDataset,
            ("p.h5",),
            {"batchsize": 32},
            "batchsize=: is no argument of PackedBatchDataset; the nearest is batch_size=. Pass that.",
        ),
        (
            PackedBatchDataset,
            ("p.h5",),
            {"shuffle": True},
            "batch_size=: is missing; PackedBatchDataset(path, batch_size) needs it."
            " Pass batch_size=, the rows of a batch, or take PackedDataset(path), whose items are rows.",
        ),
        (
            PackedBatchDataset,
            (),
            {"batch_size": 32},
            "path=: is missing; PackedBatchDataset(path, batch_size) needs it. Pass the pack's path first.",
        ),
        (
            PackedDataset,
            (),
            {"root": "p.h5"},
            "root=: is no argument of PackedDataset; the pack is the first argument. Pass its path.",
        ),
        (
            type("Mine", (PackedBatchDataset,), {}),
            ("p.h5",),
            {},
            "batch_size=: is missing; PackedBatchDataset(path, batch_size) needs it."
            " Pass batch_size=, the rows of a batch, or take PackedDataset(path), whose items are rows.",
        ),
    ],
)
def test_what_is_missing_is_told(kind: type, given: tuple[str, ...], named: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        kind(*given, **named)


def test_missing_arguments_leave_the_signature_alone():
    assert str(inspect.signature(PackedBatchDataset)).startswith(
        "(path: 'PackPaths', batch_size: 'int', *, shuffle: 'bool' = False,"
    )


@pytest.mark.parametrize("kind", [PackedBatchDataset, PackedDataset])
def test_a_warning_of_a_new_dataset_names_the_line_that_made_it(kind: type, tmp_path: Path):
    write_content(tmp_path / "s.h5", content_of("raw"), block_rows=16, splits=SPLITS)
    with pytest.warns(UserWarning, match="split") as caught:
        made(kind, open_pack(tmp_path / "s.h5"))
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("kind", [PackedBatchDataset, PackedDataset])
@pytest.mark.parametrize(
    ("name", "ours"), [("imgs", "Ask for keys"), ("samples", "Ask for keys"), ("num_workers", "Ask ")]
)
def test_attributes_of_other_datasets_name_ours(pack: Pack, kind: type, name: str, ours: str):
    dataset = made(kind, pack)
    with pytest.raises(
        AttributeError, match=rf"^{kind.__name__}[.]{name}: there is no such attribute; .*{ours}"
    ):
        getattr(dataset, name)
    assert not hasattr(dataset, name)

    class Mine(kind):  # type: ignore[misc, valid-type]
        def keep(self) -> None:
            setattr(self, name, 3)

    mine = Mine(pack, **({"batch_size": 4} if kind is PackedBatchDataset else {}))
    mine.keep()
    assert getattr(mine, name) == 3
