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
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
highlight_language = "default"  # Python where it can be, else none
html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"  # as the light one, which is furo's
html_static_path = ["_static"]
html_css_files = ["site.css"]
# The orange of the charts and of the report, dark enough, or light enough, to be read.
html_theme_options = {
    scheme: dict.fromkeys(("color-brand-primary", "color-brand-content", "color-brand-visited"), colour)
    for scheme, colour in (("light_css_variables", "#c2410c"), ("dark_css_variables", "#f0743a"))
}
html_title = "packer"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
autodoc_typehints = "none"
smartquotes = False  # of the options in helps they would make dashes

# Pages whose text lies elsewhere, where GitHub's readers look for it.
_ELSEWHERE = {"benchmarks": "benchmarks/results/README.md", "changelog": "CHANGELOG.md"}
_ANCHOR = re.compile(r'^(#+ |)<a name="([\w-]+)"></a>', re.MULTILINE)
_ANCHORS = {
    found[2]
    for page in Path(__file__).parent.glob("*.md")
    for found in _ANCHOR.finditer(page.read_text(encoding="utf-8"))
}


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
    """Make links that GitHub follows lead to pages and places of the site, and files of figures be downloads."""
    text = source[0]
    if name in _ELSEWHERE:
        text = (ROOT / _ELSEWHERE[name]).read_text(encoding="utf-8")
        text = re.sub(r"\((?:\.\./\.\./)?docs/", "(", text)
        text = re.sub(
            r"\[([^]]+)\]\(([\w-]+\.(?:json|txt))\)", r"{download}`\1 <../benchmarks/results/\2>`", text
        )
    text = _ANCHOR.sub(r"(\2)=\n\1", text)
    text = re.sub(
        r"\([\w./]+\.md#([\w-]+)\)", lambda link: f"(#{link[1]})" if link[1] in _ANCHORS else link[0], text
    )
    source[0] = re.sub(r"\((?:\.\./)+benchmarks/results/README\.md", "(/benchmarks.md", text)


def mark_up(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring: what is said of each argument becomes a list, and what stands in backticks code."""
    text: list[str] = []
    for line in lines:
        item = bool(text) and text[-1].startswith("* ")
        argument = re.match(r"([a-z]\w*(?:, \w+)*): (.+)", line)
        if argument:
            text += ["", f"* `{argument[1]}`: {argument[2]}"]
        elif item and re.match("(Raises|Returns):? ", line):
            text += ["", line]
        elif item and line and not line.startswith(("-", ">>>")):
            text[-1] += " " + line.strip()
        else:
            text.append(line)
    text = [line if ">>>" in line else re.sub(r"\*(?=\w|\*)", r"\\*", line) for line in text]
    lines[:] = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", "\n".join(text)).split("\n")


def mark_up_help(app: Any, context: Any, lines: list[str]) -> None:
    """Make code of the examples in a command's help."""
    text: list[str] = []
    for line in lines:
        if not line.startswith("| packer"):
            text.append(line)
            continue
        if not text or not text[-1].startswith("   "):
            text += ["", ".. code-block:: sh", ""]
        text.append("   " + line.removeprefix("| "))
    lines[:] = text


def mark_up_options(app: Any, context: Any, lines: list[str]) -> None:
    """Keep the asterisks of an option's help: no emphasis."""
    lines[:] = [line.replace("*", "\\*") for line in lines]


def sign(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> Any:
    """Leave out arguments whose names begin with an underscore: they are nobody's to give."""
    return signature and re.sub(r"(, )?\b_\w+=[^,)]*", "", signature), returned


def color_code(app: Any, page: nodes.document) -> None:
    """Colour blocks without a language, which MyST leaves black, as all others without one."""
    for block in page.findall(nodes.literal_block):
        if block.get("language") == "none":
            block["language"] = app.config.highlight_language


def write_llms(app: Any, error: Exception | None) -> None:
    """Write llms.txt, the site in a page for language models: what packer is, its pages, calls, commands and errors."""
    if error is None:
        (Path(app.outdir) / "llms.txt").write_text(llms_text(), encoding="utf-8")


def llms_text() -> str:
    """Return the text of llms.txt, in the form of llmstxt.org."""
    import packer
    from packer import augment, errors
    from packer.cli import cli

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    about = " ".join(readme.split("\n\n")[1].split())
    code = readme[readme.index("```python") : readme.index("```\n\n**Prove it**")]
    lists = re.findall(
        r"```{toctree}\n(.*?)```", (ROOT / "docs/index.md").read_text(encoding="utf-8"), re.DOTALL
    )
    pages = [name for found in lists for name in found.split() if (ROOT / f"docs/{name}.md").is_file()]
    titles = {
        name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8").partition("\n")[0] for name in pages
    }
    commands = [
        f"* `packer {name}`: {_first_sentences(command.callback)}" for name, command in cli.commands.items()
    ]
    public = [(f"packer.{name}", getattr(packer, name)) for name in packer.__all__ if name[0] != "_"]
    calls = [f"* `{name}`: {_first_sentences(one)}" for name, one in public]
    raised = [
        one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, packer.PackerError)
    ]
    sections = {
        "Docs": [f"* [{title.lstrip('# ')}]({name}.html)" for name, title in titles.items()],
        "Commands": commands,
        "Python": [*calls, f"* `packer.augment`: {', '.join(augment.__all__)}"],
        "Errors": [f"* `packer.errors.{one.__name__}`: {_first_sentences(one)}" for one in raised],
    }
    text = "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items())
    return f"# packer\n\n> {about}\n\n{code}```\n\n{text}\n"


def _first_sentences(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def setup(app: Any) -> None:
    """See Sphinx."""
    app.connect("doctree-read", color_code)
    app.add_directive("public-names", PublicNames)
    app.connect("source-read", prepare_page)
    app.connect("autodoc-process-docstring", mark_up, priority=100)
    app.connect("autodoc-process-signature", sign)
    app.connect("sphinx-click-process-description", mark_up_help)
    app.connect("sphinx-click-process-options", mark_up_options)
    app.connect("build-finished", write_llms)
