from __future__ import annotations

import pytest

from tests.format.packs import FORMATS


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    """A format of packs."""
    return str(request.param)
