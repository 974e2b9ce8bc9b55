"""The fixtures of the reading tests."""

from tests.read.conftest import expected, pack, stored, way  # noqa: F401

ORDERS = ("sequential", "slices", "blocks", "rows")
