"""All stores and lanes, by name."""

from __future__ import annotations

from collections.abc import Mapping

from lanes import beton, lane, limits, ours, photos, plain, streams, tables

STORES: Mapping[str, lane.Store] = {
    store.name: store for store in (*photos.STORES, *tables.STORES, *streams.STORES, *beton.STORES)
}
PIP = {"streaming": "mosaicml-streaming", "cv2": "opencv-python-headless"}


def lanes(threads: int) -> dict[str, lane.Lane]:
    """Return the lanes in the order of the table."""
    every = (*limits.lanes(threads), *ours.LANES, *plain.LANES, *tables.LANES, *streams.LANES, *beton.LANES)
    return {one.name: one for one in every}
