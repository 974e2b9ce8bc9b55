"""All stores and lanes, by name."""

from __future__ import annotations

from collections.abc import Mapping

from lanes import lance_tables, lane, limits, ours, peers, photos, plain, spdl_pipelines

STORES: Mapping[str, lane.Store] = {
    store.name: store for store in (*photos.STORES, *peers.STORES, *lance_tables.STORES)
}
PIP = {"streaming": "mosaicml-streaming", "cv2": "opencv-python-headless", "lance": "pylance"}


def lanes(threads: int) -> dict[str, lane.Lane]:
    """Return the lanes in the order of the table."""
    every = (
        *limits.lanes(threads),
        *ours.LANES,
        *plain.LANES,
        *peers.LANES,
        *lance_tables.LANES,
        *spdl_pipelines.LANES,
    )
    return {one.name: one for one in every}
