"""The map of the house: each folder's docstring lists its files, says where to start and what it imports, as things are."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import LEAVES, imports, modules, parsed

ROOT = Path(__file__).parents[1] / "packer"
FOLDERS = sorted(path.parent for path in ROOT.rglob("__init__.py"))
SOURCES = {".py", ".c", ".h"}


def listed(docstring: str) -> list[str]:
    """The names in the indented list of a docstring: ``    name.py   what it is for``; several may share a line."""
    names: list[str] = []
    for line in docstring.splitlines():
        if found := re.match(r"    ((?:\S+(?:\.py|\.c|\.h|/)(?:, )?)+)(?:\s|$)", line):
            names += found[1].rstrip(",").split(", ")
    return names


def present(folder: Path) -> list[str]:
    files = [path.name for path in folder.iterdir() if path.suffix in SOURCES and path.name != "__init__.py"]
    return sorted(files + [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")])


def imported(folder: Path) -> set[str]:
    """What the files of a folder import of the package, as folders and top-level modules, without its own."""
    known = modules(ROOT)
    own = ".".join((ROOT.name, *folder.relative_to(ROOT).parts))
    found = set()
    for module, path in known.items():
        if path.parent == folder:
            for name in imports(module, path, known):
                home = name if known.get(name, path).name == "__init__.py" else name.rpartition(".")[0]
                target = name if home == ROOT.name else home
                if target.startswith(f"{ROOT.name}.") and target not in LEAVES:
                    found.add(target)
    return {
        name.removeprefix(f"{ROOT.name}.") for name in found if name != own and not name.startswith(f"{own}.")
    }


@pytest.mark.parametrize("folder", FOLDERS[1:], ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_tells_of_its_files_and_imports(folder: Path) -> None:
    docstring = ast.get_docstring(parsed(folder / "__init__.py")) or ""
    assert sorted(listed(docstring)) == present(folder)
    said = re.search(r"Start with (\S+)\. Imports: ([^.]+(?:\.\w[^.]*)*)\.", docstring)
    assert said, "it says where to start and what it imports: 'Start with a.py. Imports: b, c.'"
    assert said[1] in present(folder)
    names = set() if said[2] == "nothing" else set(re.split(r",\s+", said[2]))
    assert names == imported(folder)


def names() -> Iterator[tuple[str, str]]:
    """Yield every class and module of the package as (name, where it stands)."""
    for module, path in modules(ROOT).items():
        if path.name != "__init__.py":
            yield path.name, module
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                yield node.name.lstrip("_"), module


def test_no_class_and_no_module_is_called_like_another() -> None:
    places = defaultdict(list)
    for name, place in names():
        places[name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


RIDDLES = {"As", "How", "Of", "That", "There", "Those", "What", "Where", "Whether", "Which", "Who"}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = []
    for module, path in modules(ROOT).items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split()
                found += [
                    f"{module}.{node.name}: {' '.join(words[:5])}" for first in words[:1] if first in RIDDLES
                ]
    assert found == []


# Other projects' files, named as sources.
ELSEWHERE = {"_geometry.py", "format.py", "json.py", "splitmix64.c", "train.py"}


def test_files_named_in_the_text_are_there() -> None:
    """In docstrings, comments and the map; file names go stale when modules are renamed."""
    sources = [path for path in ROOT.rglob("*") if path.suffix in SOURCES]
    texts = [path for path in sources if path.suffix == ".py"] + [ROOT.parent / "CONTRIBUTING.md"]
    known = (
        {path.name for path in sources}
        | {path.name for path in ROOT.parent.glob("t*/**/*.py")}
        | {"setup.py"}
    )
    stale = [
        f"{path.relative_to(ROOT.parent)}: {name}"
        for path in texts
        for name in re.findall(r"\b[a-z_0-9]+\.(?:py|c|h)\b", path.read_text(encoding="utf-8"))
        if name not in known | ELSEWHERE
    ]
    assert stale == []


def test_the_package_tells_of_its_folders() -> None:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    missing = [name for name in present(ROOT) if f"`{name}`" not in text]
    assert missing == [], "CONTRIBUTING.md, The map: one line each"
