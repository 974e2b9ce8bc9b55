"""Who may import whom inside packer, and what each half must never load."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "packer"

# What everybody may import; they import nothing but each other.
LEAVES = {
    "packer.arguments",
    "packer.cell_names",
    "packer.channels",
    "packer.declared_types",
    "packer.foreign_words",
    "packer.errors",
    "packer.given_values",
    "packer.machine",
    "packer.opencv",
    "packer.garbage",
    "packer.parquet",
    "packer.path_text",
    "packer.pillow_settings",
    "packer.pytorch",
    "packer.starting",
    "packer.native",
    "packer.natural_order",
    "packer.service",
    "packer.source_kinds",
    "packer.split_names",
    "packer.standard_streams",
    "packer.units",
    "packer.version",
    "packer.workbooks",
}

# Unit -> the units it imports. A unit is a folder, or a file that has its own row; inside a unit imports are free.
# A row or an entry that no longer occurs is an error too: delete it.
UNITS: dict[str, set[str]] = {
    "packer": set(),
    "packer.__main__": {"packer.cli"},
    "packer.cli": {
        "packer.bench",
        "packer.codecs",
        "packer.convert",
        "packer.convert.export",
        "packer.convert.image_conversion",
        "packer.doctor",
        "packer.format",
        "packer.inputs",
        "packer.packs",
        "packer.previews",
        "packer.reports",
        "packer.samples",
        "packer.tables",
        "packer.tables.transform",
    },
    "packer.randomness": set(),
    "packer.progress": set(),
    "packer.codecs": set(),
    "packer.remote": set(),
    "packer.format": {"packer.codecs"},
    "packer.packs": {"packer", "packer.format", "packer.orders", "packer.progress", "packer.remote"},
    "packer.writing": {"packer.format", "packer.packs"},
    "packer.pixels": {"packer.codecs"},
    "packer.inputs": {"packer.format", "packer.packs", "packer.pixels", "packer.remote"},
    "packer.tables.transform": {"packer.format"},
    "packer.tables.reading": {"packer.format", "packer.tables.transform"},
    "packer.tables": {
        "packer.convert",
        "packer.format",
        "packer.packs",
        "packer.randomness",
        "packer.tables.reading",
        "packer.tables.transform",
        "packer.writing",
    },
    "packer.convert": {
        "packer.codecs",
        "packer.format",
        "packer.inputs",
        "packer.orders",
        "packer.packs",
        "packer.pixels",
        "packer.progress",
        "packer.randomness",
        "packer.read",
        "packer.remote",
        "packer.writing",
    },
    "packer.samples": {
        "packer.convert",
        "packer.format",
        "packer.inputs",
        "packer.orders",
        "packer.packs",
        "packer.pixels",
        "packer.randomness",
        "packer.read",
        "packer.writing",
    },
    "packer.convert.image_conversion": {"packer.convert", "packer.inputs", "packer.pixels"},
    "packer.convert.export": {
        "packer.convert",
        "packer.format",
        "packer.inputs",
        "packer.orders",
        "packer.packs",
        "packer.progress",
        "packer.writing",
    },
    # It starts the process by that name, and so loads nothing of what converts.
    "packer.filling": {
        "packer",  # the public names of value objects
        "packer.filling.filling_process",
        "packer.format",
        "packer.packs",
        "packer.progress",
        "packer.remote",
    },
    "packer.filling.filling_process": {
        "packer.convert",
        "packer.convert.image_conversion",
        "packer.filling",
        "packer.format",
        "packer.inputs",
        "packer.packs",
        "packer.tables",
        "packer.writing",
    },
    "packer.orders": {"packer.randomness"},
    "packer.read": {"packer.codecs", "packer.format", "packer.orders", "packer.packs"},
    "packer.load": {
        "packer.augment",
        "packer.format",
        "packer.orders",
        "packer.packs",
        "packer.progress",
        "packer.randomness",
        "packer.read",
        "packer.remote",
    },
    "packer.load.batch_dataset": {"packer.augment", "packer.load", "packer.orders"},
    "packer.integrations": {"packer.augment", "packer.load", "packer.load.batch_dataset"},
    "packer.integrations.huggingface": {
        "packer.convert",
        "packer.format",
        "packer.orders",
        "packer.packs",
        "packer.read",
        "packer.samples",
    },
    "packer.augment": {"packer.randomness"},
    "packer.previews": {
        "packer.augment",
        "packer.format",
        "packer.load",
        "packer.load.batch_dataset",
        "packer.orders",
        "packer.packs",
        "packer.previews.source_rows",
        "packer.read",
    },
    # Loaded for sources alone, which the convert half packs and the load half draws.
    "packer.previews.source_rows": {
        "packer.convert",
        "packer.convert.image_conversion",
        "packer.format",
        "packer.inputs",
        "packer.packs",
        "packer.previews",
        "packer.samples",
    },
    # Both halves: images become rows as they are converted, and batches as they are loaded.
    "packer.serving": {
        "packer.augment",
        "packer.codecs",
        "packer.convert",
        "packer.format",
        "packer.inputs",
        "packer.load",
        "packer.orders",
        "packer.packs",
        "packer.pixels",
        "packer.read",
    },
    "packer.doctor": {"packer.augment", "packer.format", "packer.load.batch_dataset", "packer.packs"},
    "packer.reports": {
        "packer.codecs",
        "packer.format",
        "packer.orders",
        "packer.packs",
        "packer.previews",
        "packer.progress",
        "packer.read",
        "packer.tables.transform",
    },
    "packer.bench": {
        "packer.augment",
        "packer.codecs",
        "packer.format",
        "packer.inputs",
        "packer.load.batch_dataset",
        "packer.orders",
        "packer.packs",
        "packer.pixels",
        "packer.progress",
        "packer.read",
        "packer.serving",
        "packer.tables.reading",
    },
}

# Packages that are heavy, or belong to one half alone -> the units that may import them, wherever in the file.
PACKAGES: dict[str, set[str]] = {
    "PIL": {"packer.pillow_settings", "packer.pixels", "packer.previews", "packer.serving"},
    "click": {"packer.cli"},
    "cv2": {"packer.opencv"},
    "h5py": {"packer.format", "packer.packs"},
    "fsspec": {"packer.remote"},
    "isal": {"packer.codecs", "packer.tables.reading"},
    "jinja2": {"packer.reports"},
    "obstore": {"packer.remote"},
    "pyarrow": {"packer.parquet", "packer.tables.reading"},
    "simplejpeg": {"packer.codecs", "packer.pixels"},
    "torch": {
        "packer.augment",
        "packer.bench",
        "packer.doctor",
        "packer.integrations",
        "packer.load",
        "packer.load.batch_dataset",
        "packer.pytorch",
        "packer.serving",
    },
    "tqdm": {"packer.progress"},
    "xxhash": {"packer.format", "packer.packs", "packer.writing"},
    "zstandard": {"packer.codecs", "packer.tables.reading"},
}


# Who may open a file for writing by other means than format/file_io.py.
WRITERS = {
    "packer.packs.row_keys": "an unnamed temporary file",
    "packer.load.caches.row_memory": "memory without a name, by a descriptor of this user's process",
    "packer.pixels.quiet_stderr": "the null device",
    "packer.standard_streams": "the null device",
    "packer.remote.object_store": "an existing file of a cache; it imports nothing of format",
}
# What creates or changes files by their names, by the last part of a call's name.
_MAKE = {
    *("mkdir", "makedirs", "mknod", "mkfifo", "symlink", "link", "hardlink_to", "symlink_to", "touch"),
    *("write_text", "write_bytes", "copyfile", "copy2", "copytree", "mkstemp", "mkdtemp", "mktemp"),
    *("savez", "savez_compressed", "savetxt", "open_memmap", "extract", "extractall"),
}
# What opens files, for reading too: the mode or the flags tell.
_OPEN = {"open", "File", "memmap", "fdopen", "ZipFile", "TarFile"}
_OURS = {"create", "create_anew", "open_own"}  # of file_io.py


def modules(root: Path) -> dict[str, Path]:
    """Every module below root under its dotted name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Parse a file, once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The dotted names that a file imports, inside functions and TYPE_CHECKING too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
        elif isinstance(node, ast.Constant) and node.value in known and "." in str(node.value):
            # a lazy import by name: "packer.load.batch_dataset" handed to importlib
            yield str(node.value)


def unit_of(module: str, units: dict[str, set[str]]) -> str:
    """The row that a module belongs to: the longest one that names it or a folder above it, else its own name."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in units and (length > 1 or len(parts) == 1):
            return name
    return module


def edges(root: Path, units: dict[str, set[str]]) -> dict[tuple[str, str], set[str]]:
    """(importing unit, imported unit or package) -> the modules that do it."""
    known = modules(root)
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, path in known.items():
        unit = unit_of(module, units)
        for name in imports(module, path, known):
            ours = name in known or name.split(".")[0] == root.name
            target = unit_of(name, units) if ours else name.split(".")[0]
            if target != unit and target not in LEAVES:
                found[unit, target].add(module)
    return found


def complaints(root: Path, units: dict[str, set[str]], packages: dict[str, set[str]]) -> list[str]:
    """What the tables forbid and the code does, and what they allow and the code does not."""
    found = edges(root, units)
    allowed = {(unit, target) for unit, targets in units.items() for target in targets}
    allowed |= {(unit, package) for package, importers in packages.items() for unit in importers}
    judged = {edge for edge in found if edge[1].split(".")[0] == root.name or edge[1] in packages}
    present = {unit_of(module, units) for module in modules(root)}
    return sorted(
        [f"{', '.join(sorted(found[edge]))} must not import {edge[1]}" for edge in judged - allowed]
        + [f"the table lets {unit} import {target}, but it does not" for unit, target in allowed - judged]
        + [
            f"the table has a row for {unit}, but there is no such file or folder"
            for unit in set(units) - present
        ]
        + [f"the table has no row for {unit}" for unit in present - set(units)]
    )


def test_every_import_is_in_the_table_and_every_entry_is_used() -> None:
    assert complaints(ROOT, UNITS | {leaf: set() for leaf in LEAVES}, PACKAGES) == []


def test_no_import_circle() -> None:
    """Not even a lazy or a type-only one; a package may be named in its own modules."""
    known = modules(ROOT)
    graph = {
        name: {
            one for one in imports(name, path, known) if one in known and not f"{name}.".startswith(f"{one}.")
        }
        for name, path in known.items()
    }
    while leaves := {name for name, targets in graph.items() if not targets}:
        graph = {name: targets - leaves for name, targets in graph.items() if name not in leaves}
    assert graph == {}


def writes(call: ast.Call) -> bool:
    """Return True if a call creates a file or folder, or opens a file for writing, by its name."""
    last = ast.unparse(call.func).rpartition(".")[2]
    words = [*call.args, *(word.value for word in call.keywords)]
    if last in _MAKE or (last in ("save", "tofile", "savefig") and _named(call)):
        return True
    if last not in _OPEN or (call.args and _called(call.args[0]) in _OURS):
        return False
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    flags = " ".join(map(ast.unparse, words))
    written = any(set(mode) & set("wax+") and set(mode) <= set("rwaxbt+") for mode in modes)
    return written or any(flag in flags for flag in ("O_CREAT", "O_WRONLY", "O_RDWR"))


def _called(node: ast.expr) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _named(call: ast.Call) -> bool:
    """Return True if the first argument looks like a path."""
    given = ast.unparse(call.args[0]) if call.args else ""
    return given in ("path", "out", "target") or given.startswith(("'", "f'", "os.path.join("))


def writers(root: Path) -> dict[str, list[str]]:
    """Module -> its calls that create files or folders, or open files for writing."""
    found = {
        module: [
            ast.unparse(node)
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Call) and writes(node)
        ]
        for module, path in modules(root).items()
        if module != f"{root.name}.format.file_io"
    }
    return {module: calls for module, calls in found.items() if calls}


def test_every_file_is_created_in_one_place() -> None:
    """Others follow links that somebody planted, or create what everybody may read."""
    found = writers(ROOT)
    assert {module: calls for module, calls in found.items() if module not in WRITERS} == {}
    assert found.keys() == WRITERS.keys()  # a row that is not needed is deleted


@pytest.mark.parametrize(
    "line",
    [
        "open(path, 'w')",
        "open(path, mode='r+b')",
        "open(path, 'x', encoding='utf-8')",
        "os.open(path, os.O_RDWR | os.O_CREAT)",
        "os.open(path, os.O_WRONLY)",
        "os.mkdir(path)",
        "os.makedirs(path, exist_ok=True)",
        "Path(path).write_text('')",
        "Path(path).open('w')",
        "np.save(path, array)",
        "np.memmap(path, np.uint8, 'r+')",
        "np.lib.format.open_memmap(path)",
        "h5py.File(path, 'w')",
        "shutil.copyfile(path, other)",
        "image.save(os.path.join(folder, name))",
        "array.tofile(path)",
        "tempfile.mkdtemp()",
    ],
)
def test_other_ways_of_writing_are_found(tmp_path: Path, line: str) -> None:
    root = tree(tmp_path / "house", {"__init__.py": "", "hall.py": f"def f():\n    {line}"})
    assert writers(root) == {"house.hall": [line]}


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "open(path, 'rb')",
        "open(create(path), 'wb')",
        "os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
        "np.memmap(path, np.uint8, 'r')",
        "image.save(memory, 'PNG')",
        "state.copy()",
    ],
)
def test_reading_is_no_writing(tmp_path: Path, line: str) -> None:
    root = tree(tmp_path / "house", {"__init__.py": "", "hall.py": f"def f():\n    {line}"})
    assert writers(root) == {}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "line",
    [
        "import house.attic",
        "from house import attic",
        "from house.attic import thing",
        "from ..attic import thing",
        "from .. import attic",
        "def f():\n    from house.attic import thing",
        'lazily = "house.attic"',
        "import torch.nn",
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, line: str) -> None:
    root = tree(
        tmp_path / "house",
        {"__init__.py": "", "cellar/__init__.py": "", "cellar/wine.py": line, "attic.py": ""},
    )
    units: dict[str, set[str]] = {"house": set(), "house.cellar": set(), "house.attic": set()}
    target = "torch" if "torch" in line else "house.attic"
    assert complaints(root, units, {"torch": set()}) == [f"house.cellar.wine must not import {target}"]


def test_stale_and_missing_rows_are_found(tmp_path: Path) -> None:
    root = tree(tmp_path / "house", {"__init__.py": "", "attic.py": "", "hall.py": ""})
    units = {"house": set(), "house.attic": {"house.cellar"}, "house.cellar": set()}
    assert complaints(root, units, {"torch": {"house.attic"}}) == [
        "the table has a row for house.cellar, but there is no such file or folder",
        "the table has no row for house.hall",
        "the table lets house.attic import house.cellar, but it does not",
        "the table lets house.attic import torch, but it does not",
    ]


def loaded(code: str, *arguments: str) -> set[str]:
    """The heavy packages that a fresh interpreter holds after running code."""
    names = {
        "torch",
        "cv2",
        "h5py",
        "PIL",
        "click",
        "numpy.ma",
        "simplejpeg",
        "packer.samples",
        "packer.tables",
    }
    report = f"import sys; print(*sorted({names} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", f"{textwrap.dedent(code)}\n{report}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.splitlines()[-1].split())


def test_the_subprocess_check_sees_what_is_loaded() -> None:
    assert "click" in loaded("import click")


def test_import_packer_loads_nothing_heavy() -> None:
    assert loaded("import packer; packer.__version__") == set()


IMPORT_ALL = """
    import importlib, pkgutil
    for folder in {folders}:
        for module in pkgutil.walk_packages(importlib.import_module(folder).__path__, folder + "."):
            importlib.import_module(module.name)
"""


def test_the_convert_half_never_loads_torch() -> None:
    folders = ["packer.convert", "packer.inputs", "packer.pixels", "packer.tables"]
    assert "torch" not in loaded(IMPORT_ALL.format(folders=folders))


def test_a_conversion_of_images_loads_neither_torch_nor_what_others_need(
    photo_folder: Path, tmp_path: Path
) -> None:
    convert = """
        import sys; from packer.cli import cli
        cli.main(["convert", *sys.argv[1:], "--size", "16", "--quiet"], standalone_mode=False)
    """
    heavy = loaded(convert, str(photo_folder), str(tmp_path / "out.h5"))
    assert "cv2" in heavy
    assert heavy.isdisjoint({"torch", "numpy.ma", "packer.samples", "packer.tables"})


def test_converting_a_table_never_loads_the_decoders(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,5\n")
    convert = "import sys; from packer import convert_table; convert_table(sys.argv[1], sys.argv[2])"
    heavy = loaded(convert, str(tmp_path / "t.csv"), str(tmp_path / "out.h5"))
    assert "h5py" in heavy
    assert heavy.isdisjoint({"torch", "cv2", "PIL"})


def test_reading_a_pack_loads_no_hdf5_and_no_module_of_the_load_half_the_decoders(
    photo_folder: Path, tmp_path: Path
) -> None:
    from packer import convert_images

    convert_images(photo_folder, tmp_path / "out.h5", size=16)
    read = (
        "import sys; from packer import PackedBatchDataset; next(iter(PackedBatchDataset(sys.argv[1], 4)))\n"
    )
    everything = textwrap.dedent(IMPORT_ALL.format(folders=["packer.load", "packer.augment"]))
    raw = "assert not {'h5py', 'simplejpeg'} & set(sys.modules)  # which Python without the GIL has no wheels of"
    heavy = loaded(f"{read}{raw}{everything}", str(tmp_path / "out.h5"))
    assert "torch" in heavy
    assert heavy.isdisjoint({"cv2", "PIL"})
