"""How good a shuffle a pack gives in some order; the figures themselves are those of ``packer.orders.shuffle_quality``."""

from __future__ import annotations

from packer.arguments import whole
from packer.errors import UsageError
from packer.load.order_choice import context, parse_order
from packer.load.pack_list import PackPaths, open_packs
from packer.orders import shuffle_quality
from packer.orders.epochs import RowOrder
from packer.orders.row_orders import BY_NAME
from packer.orders.shuffle_quality import Quality
from packer.read.row_reader import RowReader
from packer.read.row_selection import read_column, select, select_fields

SHUFFLE = "shuffle=True"
"""The name that stands for the order that a dataset chooses for this."""
MOST_LABELS = 100_000_000
"""Rows whose labels are read; in larger packs the label mix is left out."""


def order_quality(
    path: PackPaths,
    order: str | RowOrder = "all",
    batch_size: int = 256,
    *,
    split: str | None = None,
    seed: int = 0,
) -> dict[str, Quality]:
    """Measure how far the batches of an order are from those of a uniform shuffle.

    order: the name of one, an object such as Blocks(window="256MB"), or "all": each that has a name, and
        what shuffle=True means for this pack, as "shuffle=True".
    batch_size: rows of a batch on all ranks together. split: the rows of one split only.
    Returns: figures by the order's name, and those of a uniform shuffle as "uniform". Their `label_mix` is None in a pack
    without one class a row, and in one of more than 100 million rows; its labels are all read, 10 ms a million.
    Raises UsageError for an order that gives rows more than once, a split without rows, and a batch of none.
    """
    pack, weights = open_packs(path, None, split)
    if weights:
        raise UsageError(
            "path: packs with weights give rows more than once; only shuffles are measured. Pass a list without weights."
        )
    batch_size = whole("batch_size", batch_size, 1)
    fields, subset = select_fields(pack, None), select(pack, split=split)
    reader = RowReader(pack, fields)
    label = next((f for f in fields if f.name == "label" and f.shape == () and f.dtype[1] in "iu"), None)
    labels = read_column(pack, "label", subset) if label and subset.rows <= MOST_LABELS else None
    about = context(reader, subset, batch_size)
    if order == "all":
        orders = {name: parse_order(name, False, about) for name in BY_NAME}
        orders[SHUFFLE] = parse_order(None, True, about)
    else:
        bound = parse_order(order, False, about)
        orders = {bound.name: bound}
        if bound.repeats:
            raise UsageError(
                f"order {bound.name!r}: gives rows more than once; only shuffles are measured. Pass one of {', '.join(BY_NAME)}."
            )
    measured = {
        bound: shuffle_quality.measure(bound, subset.rows, batch_size, labels=labels, seed=seed)
        for bound in {*orders.values()}
    }
    found = {name: measured[bound] for name, bound in orders.items()}
    return found | {"uniform": shuffle_quality.uniform(subset.rows, batch_size, labels=labels)}
