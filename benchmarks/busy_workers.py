"""The share of time in which many simulated workers make rows, for small shards and for one file.

    python benchmarks/busy_workers.py                              64 workers, shards of 8 blocks
    python benchmarks/busy_workers.py --workers 16 --seconds 1

A row is a wait instead of a picture, so that a few cores run many workers: what is measured is whether the
process that opens, journals and seals shards keeps them supplied. Rows take --wait ms (5: a photo of a few
megapixels) and a block 42 rows, as of 256 px in 8 MiB; the shards of 64 MB of 64 such workers come 38 times a
second. The limit is 1; starting the workers and writing the first and last blocks costs a part.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from packer.bench.hardware_limits import machine
from packer.convert.conversion_task import ConversionTask, RunOptions
from packer.convert.pack_run import write_pack
from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage
from packer.convert.sample_order import SampleOrder
from packer.format.fields import Field
from packer.format.part_files import Rows
from packer.packs.pack_opening import open_pack

BLOCK_ROWS = 42
SHARD_BLOCKS = 8


class WaitingRows(RowMaker):
    """Rows that take their time. wait: seconds a row."""

    fields = (Field("number", "<i8", ()),)

    def __init__(self, wait: float) -> None:
        self._wait = wait

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the numbers of the samples, after the wait for all of them."""
        time.sleep(self._wait * len(samples))
        return {"number": samples}


def busy_share(workers: int, wait: float, rows: int, *, sharded: bool) -> float:
    """Return the share of the workers' time in which they made rows."""
    storing = RowStorage("h5", shard_rows=BLOCK_ROWS * SHARD_BLOCKS if sharded else None)
    order = SampleOrder(np.arange(rows), {})
    task = ConversionTask("rows", WaitingRows(wait), order, storing, {}, {}, keyed=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("packer.convert.row_storage.block_rows", lambda rows, *_: min(rows, BLOCK_ROWS)),
    ):
        began = time.perf_counter()
        write_pack(task, str(Path(folder) / "pack"), RunOptions(workers))
        seconds = time.perf_counter() - began
        assert open_pack(Path(folder) / "pack").rows == rows
    return rows * wait / seconds / workers


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--wait", type=float, default=5.0, help="milliseconds a row")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run, about")
    given = parser.parse_args()
    wait = given.wait / 1000
    rows = max(1, round(given.seconds / wait / BLOCK_ROWS)) * BLOCK_ROWS * given.workers
    print(f"{machine()}\n{given.workers} workers, {given.wait:g} ms a row, {rows:,} rows")
    for name, sharded in (("one file", False), (f"{-(-rows // (BLOCK_ROWS * SHARD_BLOCKS))} shards", True)):
        print(f"busy share, {name:12} {busy_share(given.workers, wait, rows, sharded=sharded):.3f}")


if __name__ == "__main__":
    main()
