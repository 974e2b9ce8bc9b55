"""How damaged bytes are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect a ValueError of exactly that message."""
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}\Z"):
        yield


def complaint(call: Callable[[], object]) -> str | None:
    """The message of the ValueError that a call raises, None if it raises none."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None
