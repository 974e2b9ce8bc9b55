"""packer.errors: messages, and their way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from packer import errors
from packer.errors import FormatError, MissingDependencyError, PackerError

ERRORS = {
    cls: cls("a: is cut short.")
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, PackerError) and cls is not MissingDependencyError
}
ERRORS[FormatError] = FormatError("a: is cut short.", part="rows")
ERRORS[MissingDependencyError] = MissingDependencyError("zstandard", "store='zstd'")


@pytest.mark.parametrize("error", ERRORS.values(), ids=lambda error: type(error).__name__)
def test_errors_survive_pickling_and_copying(error: PackerError) -> None:
    """As from a process of a pool; what was said later and known beside the text too."""
    error.extend(" Then try again.")
    vars(error)["row"] = 3
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
            assert type(other) is type(error)
            assert (other.args, vars(other), str(other)) == (error.args, vars(error), str(error))


def test_a_missing_package_is_named() -> None:
    for cause, end in (
        (None, "is not installed. Run: pip install zstandard"),
        (ImportError("half"), "cannot be imported (half). Run: pip install --force-reinstall zstandard"),
    ):
        assert str(MissingDependencyError("zstandard", "Reading", cause)) == f"Reading: zstandard {end}"
