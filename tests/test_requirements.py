"""The versions that `make test-oldest` installs are the lowest that setup.cfg allows."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = {"datasets": "requirements-oldest-datasets.txt"}  # needs a newer pyarrow than the lowest


def bounds() -> dict[str, set[str]]:
    """Package -> what install_requires and all extras say of its versions."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lists = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    found: dict[str, set[str]] = {}
    for line in filter(None, "\n".join(lists).split("\n")):
        name, versions = re.fullmatch(r"([\w.-]+(?:\[\w+\])?)([^;]*)(?:;.*)?", line).groups()
        found.setdefault(name, set()).add(versions.strip())
    return found


def pins(file: str) -> dict[str, str]:
    text = (ROOT / "tests" / file).read_text()
    return dict(re.findall(r"^([\w.\[\]-]+)==(\S+)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", bounds())
def test_the_lowest_version_is_the_one_that_is_tested(name: str) -> None:
    """It may have more digits than the bound: 4.11.0.86 is the lowest of >=4.11."""
    (versions,) = bounds()[name]
    assert versions.startswith(">="), f"{name} has no lower bound"
    pin = pins(EXTRAS.get(name, "requirements-oldest.txt"))[name]
    assert f"{pin}.".startswith(f"{versions.removeprefix('>=')}.")


def test_nothing_is_pinned_that_setup_does_not_name() -> None:
    assert set(pins("requirements-oldest.txt")) | set(EXTRAS) == set(bounds())
    assert "pyarrow" in pins(EXTRAS["datasets"])
