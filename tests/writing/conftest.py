"""The fixtures of tests/format."""

from tests.format.conftest import format  # noqa: F401
