"""Statistics of an epoch: time spent in each stage, rows and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from packer import units

_NOTICEABLE = 0.1  # share of the time below which waiting is no bottleneck


@dataclass
class Stats:
    """Statistics of the batches handed out since an epoch's iteration began. Times in seconds.

    seconds: from the start of the iteration until the last batch was requested or handed out.
    wait_seconds: time that the loop waited for batches. step_seconds: time of the loop between batches.
    read_seconds, transform_seconds: sums over the `readers` threads that read (and decode), and over the
        `processes` that transform, all in parallel. copy_seconds: copies to a GPU. augment_seconds:
        augmentation on a CPU (on a GPU: launching its kernels).
    nbytes: bytes of the rows as they are read.
    """

    epoch: int = 0
    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    read_seconds: float = 0.0
    transform_seconds: float = 0.0
    copy_seconds: float = 0.0
    augment_seconds: float = 0.0
    readers: int = 1
    processes: int = 1

    @property
    def rows_per_second(self) -> float:
        """Rows handed out a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes handed out a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def limit(self) -> str:
        """The stage that bounds the loop: "training", "reading", "transform", "copy" or "augmenting"."""
        if self.wait_seconds + self.augment_seconds <= _NOTICEABLE * self.seconds:
            return "training"
        stages = {
            "reading": self.read_seconds / self.readers,
            "transform": self.transform_seconds / self.processes,
            "copy": self.copy_seconds,
            "augmenting": self.augment_seconds,
        }
        return max(stages, key=lambda name: stages[name])

    def __str__(self) -> str:
        waited = self.wait_seconds / self.batches * 1e3 if self.batches else 0.0
        share = self.wait_seconds / self.seconds if self.seconds else 0.0
        return (
            f"epoch {self.epoch}: {units.count(self.batches, 'batch')}, {self.rows:,} rows in"
            f" {units.duration(self.seconds)} ({self.rows_per_second:,.0f} rows/s,"
            f" {units.size(self.bytes_per_second)}/s); waited {waited:.2f} ms a batch, {share:.0%} of the"
            f" time; limited by {self.limit}"
        )
