"""packer.load.order_choice: the order that an argument means, and what is chosen where none is given, and why."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks import order_quality
from benchmarks.order_quality import measure
from packer.errors import UsageError
from packer.load.order_choice import _CHOSEN as CHOSEN
from packer.load.order_choice import parse_order, shuffled_order
from packer.orders.blocks import BLOCK_BYTES, WINDOW_BYTES, Blocks
from packer.orders.epochs import Context, RowOrder
from packer.orders.regions import Regions
from packer.orders.row_orders import Rows, Sequential, Slices
from packer.orders.runs import Subset
from packer.orders.sampling import Weighted

PHOTO, TABLE = 196_608, 112


def context(n: int = 10_000, row_bytes: int = PHOTO, **more: Any) -> Context:
    return Context(Subset([(0, n)]), row_bytes, **({"block_rows": 43, "global_batch": 256} | more))


# --- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "shuffle", "expected"),
    [
        (None, False, Sequential()),
        (None, True, Blocks(WINDOW_BYTES // PHOTO, BLOCK_BYTES // PHOTO)),
        ("sequential", False, Sequential()),
        ("slices", True, Slices(256)),
        ("blocks", False, Blocks(WINDOW_BYTES // PHOTO, BLOCK_BYTES // PHOTO)),
        ("rows", True, Rows()),
        (Slices(9), False, Slices(9)),
        (Blocks("1GB"), True, Blocks(10**9 // PHOTO, BLOCK_BYTES // PHOTO)),
    ],
)
def test_arguments_mean_bound_orders(order: str | RowOrder | None, shuffle: bool, expected: RowOrder) -> None:
    assert parse_order(order, shuffle, context()) == expected


def test_samplers_are_orders() -> None:
    about = context(3, labels=lambda _: [0, 1, 1])
    for order in (Weighted([1, 2, 3]), Weighted.balanced()):
        assert parse_order(order, True, about).record() == order.bind(about).record()


@pytest.mark.parametrize("order", ["random", "", 3, Slices, "weighted", "auto"])
def test_what_is_no_order_is_refused(order: Any) -> None:
    with pytest.raises(UsageError) as error:
        parse_order(order, False, context())
    assert str(error.value) == (
        f"order={order!r}: is not one of 'sequential', 'slices', 'blocks', 'rows', 'regions'. Pass one of them,"
        " an order such as packer.Blocks(window='1GB'), or shuffle=True, which chooses by the pack."
    )


@pytest.mark.parametrize("order", ["sequential", Sequential()])
def test_shuffling_in_sequence_is_refused(order: str | RowOrder) -> None:
    with pytest.raises(UsageError) as error:
        parse_order(order, True, context())
    assert str(error.value) == (
        "shuffle=True with order='sequential': they contradict each other. Pass one of them."
    )


# --- the choice --------------------------------------------------------------------------------------------


def test_shuffle_depends_on_the_pack_alone() -> None:
    assert shuffled_order(context()) == Blocks()
    assert shuffled_order(context(coded=True)) == Blocks()
    assert (
        shuffled_order(context(shuffled=False))
        == shuffled_order(context(shuffled=False, coded=True))
        == Rows()
    )
    assert shuffled_order(context(10**8, TABLE, shuffled=False, global_batch=4096)) == Blocks(
        32 * 4096 * 146, 146
    )


KINDS = {  # bytes of a row, rows of a block that is decoded whole
    "photos": (PHOTO, 43),
    "JPEG": (17_500, 480),
    "compressed photos": (PHOTO, 6),
    "thumbnails": (3072, 2731),
    "compressed thumbnails": (3072, 342),
    "table": (TABLE, 74_898),
    "compressed masks": (32_768, 33),
    "compressed table": (TABLE, 9_363),
    "volumes": (1_500_000, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", ["shuffled", "sorted"])
@pytest.mark.parametrize(("n", "batch"), [(3_068, 256), (50_000, 64)])
def test_shuffle_is_as_good_as_a_uniform_one(kind: str, made: str, n: int, batch: int) -> None:
    row_bytes, block = KINDS[kind]
    about = context(
        n,
        row_bytes,
        block_rows=block,
        global_batch=batch,
        coded=kind.startswith("compressed"),
        shuffled=made == "shuffled",
    )
    assert score(shuffled_order(about).bind(about), made, n, batch) >= 0.95


@cache
def score(order: RowOrder, made: str, n: int, batch: int) -> float:
    """The score of an order; several kinds of packs have the same."""
    labels = np.arange(n) * 10 // n
    if made == "shuffled":
        labels = np.random.default_rng(0).permutation(labels)
    with pytest.MonkeyPatch.context() as patch:  # a quarter of the batches and epochs says as much here
        patch.setattr(order_quality, "_ROWS", 1 << 18)
        patch.setattr(order_quality, "_PLACED", 1 << 20)
        return measure(order, n, batch, labels=labels).score


def test_slices_were_not() -> None:
    labels = np.random.default_rng(0).permutation(np.arange(3_068) * 10 // 3_068)
    assert measure(Slices(256), 3_068, 256, labels=labels).score < 0.5


# --- resuming ----------------------------------------------------------------------------------------------


def having(order: RowOrder, chosen: Any) -> RowOrder:
    return order.over(9).having(chosen=chosen)


def test_a_chosen_order_gives_way_to_the_state_s() -> None:
    for there in (Slices(77), Blocks(500, 5), Blocks(64, 8), Rows()):
        for here in (Slices(256), Blocks(900, 9), Rows()):
            assert having(here, CHOSEN).resumed(there.record(), 0) == there


@pytest.mark.parametrize(
    ("here", "there", "chosen"),
    [(Slices(256), Rows(), False), (Slices(256), Sequential(), True), (Sequential(), Rows(), False)],
)
def test_an_order_that_was_named_does_not(here: RowOrder, there: RowOrder, chosen: bool) -> None:
    with pytest.raises(UsageError) as error:
        having(here, CHOSEN if chosen else {}).resumed(there.record(), 0)
    assert str(error.value) == (
        f"state_dict: was taken in the order {there.name!r}; this dataset has {here.name!r}."
        " Pass the order of the state."
    )
    assert Slices(256).over(9).resumed(Slices(7).record(), 0) == Slices(7)


@pytest.mark.parametrize("record", [None, {}, {"name": ["slices"]}])
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^state_dict: the order in it is .*; a name and lengths are allowed\."
    ):
        having(Slices(8), CHOSEN).resumed(record, 0)


# --- packs at a URL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [{}, {"shuffled": False}, {"coded": True}, {"row_bytes": TABLE}])
def test_packs_at_a_url_are_read_in_regions(facts: dict[str, Any]) -> None:
    about = context(400_000, **({"remote": True, "global_batch": 2048} | facts))
    assert isinstance(shuffled_order(about), Regions)
    assert parse_order(None, True, about) == Regions().bind(about)
    assert parse_order("regions", True, context()) == Regions().bind(context())
    assert having(Rows(), CHOSEN).resumed(Regions().bind(about).record(), 0) == Regions().bind(about)


def test_sequence_stays_the_default_of_packs_at_a_url() -> None:
    assert parse_order(None, False, context(remote=True)) == Sequential()
