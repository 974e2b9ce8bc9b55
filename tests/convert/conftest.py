"""The fixtures of the converting tests."""

import pytest

from tests.filling.conftest import images, whole  # noqa: F401


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows: several blocks and a short last one from a few images."""
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 3)
    )
