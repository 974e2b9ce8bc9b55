"""The fixtures of the converting tests."""

from tests.filling.conftest import images, whole  # noqa: F401
