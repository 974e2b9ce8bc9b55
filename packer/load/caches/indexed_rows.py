"""Rows of a batch that have not been put together: they lie in a field that is held on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class IndexedRows(NamedTuple):
    """field: [M, *shape]; rows: int64 [N], on the same device."""

    field: torch.Tensor
    rows: torch.Tensor

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Tell the allocator that the stream uses both."""
        self.field.record_stream(stream)
        self.rows.record_stream(stream)
