"""The fixtures of the reading tests."""

from tests.filling.conftest import images, whole  # noqa: F401
from tests.read.conftest import expected, pack, stored, way  # noqa: F401

ORDERS = ("sequential", "slices", "blocks", "rows", "regions")
