"""One pack for all integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.rows import ROWS
from tests.read.conftest import make_pack


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack whose labels are 3 * row; not to be changed."""
    path = tmp_path_factory.mktemp("numbers") / "p.h5"
    make_pack(path, ROWS)
    return path
