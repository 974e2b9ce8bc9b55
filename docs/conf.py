"""The documentation site: `make site` writes it to docs/_build/html, where it works from a file path."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "packer"
author = "the packer authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
highlight_language = "text"
html_theme = "furo"
html_title = "packer"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
autodoc_typehints = "none"

_ANCHORED_HEADING = re.compile(r'^(#+) <a name="([\w-]+)"></a>', re.MULTILINE)
_ANCHOR = re.compile(r'^<a name="([\w-]+)"></a>', re.MULTILINE)


class PublicNames(SphinxDirective):
    """All public names of a module, each with its docstring."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """See docutils."""
        module = import_module(self.arguments[0])
        lines = []
        for name in module.__all__:
            kind = "class" if inspect.isclass(getattr(module, name)) else "function"
            if not name.startswith("__"):
                lines += [f".. auto{kind}:: {module.__name__}.{name}", ""]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(["```{eval-rst}", *lines, "```"], source=module.__name__), 0, node)
        return node.children


def prepare_page(app: Any, name: str, source: list[str]) -> None:
    """Make links that GitHub follows lead to pages and places of the site."""
    text = _ANCHOR.sub(r"(\1)=\n", _ANCHORED_HEADING.sub(r"(\2)=\n\1 ", source[0]))
    source[0] = re.sub(r"\((?:\.\./)+benchmarks/results/README\.md", "(/benchmarks.md", text)


def plain_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep the lines of a docstring as they are, which is no reStructuredText: code in it is marked by backticks only."""
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Any) -> None:
    """See Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.connect("source-read", prepare_page)
    app.connect("autodoc-process-docstring", plain_docstring, priority=100)
