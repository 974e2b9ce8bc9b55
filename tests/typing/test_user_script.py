"""The typed script has every call of packer that the documentation shows; the package's symbols have known types."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import packer

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "user_script.py"
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
OTHERS = {
    "from_hf",
    "to_hf",
    "PackedDataModule",
}  # of packer.integrations, whose frameworks are seldom installed


def calls(code: str) -> Iterator[str]:
    """Yield ``name`` and ``name(keyword=)`` of calls of packer's public names."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("packer.")
            if name in packer.__all__ or name in OTHERS:
                yield name
                yield from (f"{name}({word.arg}=)" for word in node.keywords if word.arg)


def documented() -> set[str]:
    """Calls in the blocks of code of all pages, those that are not whole programs too."""
    found: set[str] = set()
    for page in PAGES:
        text = page.read_text()
        fenced = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        indented = re.findall(r"(?:^    .*\n)+", text, flags=re.MULTILINE)
        for block in (*fenced, *(line.strip() for lines in indented for line in lines.splitlines())):
            try:
                found |= set(calls(block))
            except SyntaxError:  # a command, or a line of a longer statement
                assert block not in fenced, page
    return found


def test_every_documented_call_is_in_the_script() -> None:
    found = documented()
    assert {"PackedBatchDataset(augment=)", "Preprocess", "join_fields", "open_pack(cache=)"} <= found
    assert found - set(calls(SCRIPT.read_text())) == set()


def test_the_typed_options_are_those_of_the_dataset() -> None:
    """batch_types.py repeats the keywords of PackedBatchDataset for its overloads."""
    tree = ast.parse((ROOT / "packer" / "load" / "batch_types.py").read_text())
    (options,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "Options")
    named = {
        n.target.id for n in options.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    (init,) = (
        node
        for node in ast.walk(ast.parse((ROOT / "packer" / "load" / "batch_dataset.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and len(node.args.kwonlyargs) > 2
    )
    assert named | {"output", "fields"} == {argument.arg for argument in init.args.kwonlyargs}


@pytest.mark.soak
def test_nearly_all_symbols_have_known_types(tmp_path: Path) -> None:
    """20 s of pyright. It finds packer by the path of the first python."""
    pyright = Path(sys.executable).parent / "pyright"
    done = subprocess.run(
        [pyright, "--verifytypes", "packer", "--ignoreexternal", "--outputjson"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{pyright.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert json.loads(done.stdout)["typeCompleteness"]["completenessScore"] >= 0.95
