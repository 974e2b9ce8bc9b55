"""What is written is true: every command, option and public name is described, links lead somewhere, the README runs."""

from __future__ import annotations

import configparser
import doctest
import importlib
import inspect
import re
from pathlib import Path

import click
import pytest

import packer
from packer.cli import cli
from packer.errors import MissingDependencyError

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[!_]*/*.md")])


def test_every_option_has_a_help_text():
    """The site's page of options, and --help, are made of them."""
    for name, command in cli.commands.items():
        assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == [], name


def test_every_command_is_described():
    described = re.findall(r"^## packer (\w+)", (ROOT / "docs/commands.md").read_text(), flags=re.MULTILINE)
    assert sorted(described) == sorted(cli.commands)


def test_no_option_is_documented_that_does_not_exist():
    options = {option for command in cli.commands.values() for p in command.params for option in p.opts}
    named = set(re.findall(r"`(--[a-z][a-z-]+)", (ROOT / "docs/commands.md").read_text()))
    assert named <= options | {"--no-header", "--no-shuffle", "--no-cold", "--help"}


@pytest.mark.parametrize("name", packer.__all__)
def test_every_public_name_is_documented(name: str):
    """The site's reference is made of docstrings."""
    assert name.startswith("__") or inspect.getdoc(getattr(packer, name))


def test_every_augmentation_and_its_arguments_are_documented():
    augment = pytest.importorskip("packer.augment")
    rows = dict(
        re.findall(
            r"^\| `(\w+)(\(.*?\))` \|", (ROOT / "docs/augmentation.md").read_text(), flags=re.MULTILINE
        )
    )
    assert set(rows) == set(augment.__all__)
    for name, arguments in rows.items():
        documented = re.findall(r"[(,] ?(\w+)(?==|,|\))", arguments)
        assert documented == list(inspect.signature(getattr(augment, name)).parameters), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def listed(page: str) -> set[str]:
    """Pages in the lists of a page of the site, as paths below docs/ without their suffix."""
    lists = re.findall(r"^```{toctree}\n(.*?)^```", (ROOT / "docs" / page).read_text(), flags=re.M | re.S)
    lines = [line for found in lists for line in found.splitlines()]
    return {str(Path(page).parent / line) for line in lines if line and line[0] != ":"}


def test_every_page_is_reachable_from_the_readme():
    """In the lists of the site's first page, which the README names, and of its page of decisions, stand all others."""
    assert "docs/index.md" in (ROOT / "README.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    decisions = re.findall(r"\]\((.*?)\.md\)", (ROOT / "docs/decisions/index.md").read_text())
    assert listed("index.md") | {f"decisions/{page}" for page in decisions} == {
        page for page in pages if not page.startswith("_build")
    } - {"index"}


def test_a_decision_has_at_most_200_words():
    words = {page.stem: len(page.read_text().split()) for page in (ROOT / "docs/decisions").glob("*.md")}
    assert [name for name, count in words.items() if count > 200 and name != "index"] == []


def setup() -> configparser.ConfigParser:
    """setup.cfg, which says what pip is told."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def ours(text: str) -> list[str]:
    """What pip is told to install or uninstall in a text, of which the name begins as ours does."""
    lines = re.findall(r"pip3? (?:un)?install([^`\n]*)", text)
    words = [word.strip("\"'`.,();") for line in lines for word in line.partition("#")[0].split()]
    return [word for word in words if word.startswith("packer")]


def test_what_pip_is_told_to_install_is_found() -> None:
    assert ours(
        'x: run pip install -U "packer[torch]", or `pip install --no-deps packer`; pip uninstall packer.'
    ) == ["packer[torch]", "packer", "packer"]
    assert ours('pip install ".[torch]"  # packer\npacker') == []


def test_the_name_for_pip_is_one_everywhere() -> None:
    """Another project has the name packer there, and no index has this one: nothing is installed by its name."""
    name = setup()["metadata"]["name"]
    assert str(MissingDependencyError("p", "x")) == "x: p is not installed. Run: pip install p"
    assert str(MissingDependencyError("p[q]", "x")).endswith('Run: pip install "p[q]"')
    folders = ("packer", "docs", "examples", "tools", "benchmarks")
    texts = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    for path in [*texts, ROOT / "README.md", ROOT / "Makefile"]:
        text = path.read_text()
        assert re.findall(rf"(?:pip install[^`\n]*{name})|{name}\[", text) == [], path
        assert set(ours(text)) <= {name}, path
        if path.name not in ("install.md", "start.md", "index.md", "README.md", "Makefile"):
            assert re.findall(r"pip install[^`\n]*\.\[", text) == [], path
    assert f"pip uninstall {name}" in (ROOT / "docs/install.md").read_text()


def test_packages_that_messages_name_are_in_setup() -> None:
    """MissingDependencyError(package, purpose): an extra, or a dependency, brings the package."""
    options = setup()
    needed = " ".join([options["options"]["install_requires"], *options["options.extras_require"].values()])
    known = {re.split(r"[\[>=;]", line)[0] for line in needed.split()}
    named = set()
    for path in (ROOT / "packer").rglob("*.py"):
        named |= set(re.findall(r'MissingDependencyError\(\s*"([^"]+)"', path.read_text()))
    assert len(named) >= 8
    assert {name.partition("[")[0] for name in named} <= known


def test_the_license_is_apaches() -> None:
    assert setup()["metadata"]["license_expression"] == "Apache-2.0"
    text = (ROOT / setup()["metadata"]["license_files"]).read_text()
    assert "Apache License\n" in text.lstrip()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_readmes_loading_example_runs(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(photo_folder.parent)
    packer.convert_images("photos", "train.h5", size=256)
    blocks = python_blocks(ROOT / "README.md")
    assert len(blocks) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    exec(compile(blocks[0], "README.md", "exec"), {})
    shape, stats = capsys.readouterr().out.splitlines()
    assert shape.startswith("torch.Size([24, 3, 224, 224]) cpu tensor([")
    assert stats.startswith("epoch 0: 1 batch")


def test_the_readme_is_read_in_two_minutes():
    assert len((ROOT / "README.md").read_text().split()) < 450


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[0] == packer.__version__


def test_notes_of_changes_have_names_that_towncrier_reads():
    """It skips a file with another name silently."""
    config = (ROOT / "pyproject.toml").read_text().partition("[tool.towncrier.fragment]\n")[2]
    kinds = "|".join(re.findall(r"^(\w+) = {}$", config, flags=re.M))
    notes = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert [name for name in notes if not re.fullmatch(rf"(\+[\w-]+|\d+)\.({kinds})\.md", name)] == []


def test_no_placeholder_is_left():
    for page in PAGES:
        assert not re.search(r"^(TABLE|TODO|FIXME|XXX)", page.read_text(), flags=re.MULTILINE), page.name


EXAMPLES = sorted(
    path
    for path in (ROOT / "packer").rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(), flags=re.MULTILINE)
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "packer")))
def test_the_examples_in_docstrings_run(
    path: Path, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a folder with photos/ (3 classes of 8) and train.h5, made of them at 32 pixels."""
    monkeypatch.chdir(tmp_path)
    if "train.h5" in path.read_text():
        packer.convert_images(photo_folder, "train.h5", size=32)
    module = importlib.import_module(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    )
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted
    assert not results.failed
