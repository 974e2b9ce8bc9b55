"""Rows of a batch that were not gathered: a cached field on the device, and the row numbers in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class IndexedRows(NamedTuple):
    """Rows of a cached field, not gathered. field: [M, *shape]. rows: int64 [N], on the same device."""

    field: torch.Tensor
    rows: torch.Tensor

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Tell the allocator that the stream uses both tensors."""
        self.field.record_stream(stream)
        self.rows.record_stream(stream)
