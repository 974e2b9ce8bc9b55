"""All stores and lanes, by name."""

from __future__ import annotations

from collections.abc import Mapping

from lanes import lane, limits, ours, peers, photos, plain

STORES: Mapping[str, lane.Store] = {store.name: store for store in (*photos.STORES, *peers.STORES)}
PIP = {"streaming": "mosaicml-streaming", "cv2": "opencv-python-headless"}


def lanes(threads: int) -> dict[str, lane.Lane]:
    """Return the lanes in the order of the table."""
    every = (*limits.lanes(threads), *ours.LANES, *plain.LANES, *peers.LANES)
    return {one.name: one for one in every}
