"""What stands in the guides runs, as it stands there, in a folder such as they speak of."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from packer.cli import cli
from tests.remote.server_fixtures import server as server  # the store that s3:// means

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parent.parent / "docs"
FRAMEWORKS = DOCS / "guides" / "frameworks.md"
GUIDES = [DOCS / "start.md", *sorted({*(DOCS / "guides").glob("*.md")} - {FRAMEWORKS})]
NEEDS = {"lightning.md": "lightning", "object-stores.md": "obstore"}
SCRIPTS = "clusters.md"  # shows parts of examples/, which have tests of their own


class Block:
    """language, text: of what stands between two fences."""

    def __init__(self, language: str, text: str) -> None:
        self.language, self.text = language, text

    def run(self, page: str, names: dict[str, Any]) -> None:
        """Run it in this process; commands, too."""
        if self.language == "python":
            exec(compile(self.text, page, "exec"), names)
            return
        for line in self.text.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(line, comments=True)
            assert program == "packer"
            done = CliRunner().invoke(cli, arguments)
            assert done.exit_code in (0, 3 if "--on-error" in arguments else 0), (
                line,
                done.output,
                done.exception,
            )


def blocks(text: str) -> list[Block]:
    found = re.findall(r"^```(python|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(language, code) for language, code in found]


@pytest.fixture
def folder(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without a GPU: photos/, clips/, masks/, coco/, episodes.csv, flights.csv, new.csv, test.csv."""
    parent = photo_folder.parent
    monkeypatch.chdir(parent)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for kind in photo_folder.iterdir():
        shutil.copytree(kind, f"clips/{kind.name}/a")
    steps = [f"{n % 3},{n},{n / 2},{n % 5}" for n in range(60)]
    Path("episodes.csv").write_text("\n".join(["episode,step,speed,reward", *steps, ""]))
    photos = sorted(photo_folder.rglob("*.jpg"))
    for photo in photos:
        mask = (parent / "masks" / photo.relative_to(photo_folder)).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.tri(40, 48, dtype=np.uint8)).save(mask)
    for split, some in (("val", photos[::4]), ("train", [p for n, p in enumerate(photos) if n % 4])):
        Path("coco", split).mkdir(parents=True)
        for number, photo in enumerate(some):
            shutil.copy(photo, f"coco/{split}/{number}.jpg")
        coco = {
            "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(len(some))],
            "annotations": [
                {"id": n, "image_id": n, "category_id": 7 - n % 2, "bbox": [4, 5, 20, 10]}
                for n in range(len(some))
            ],
            "categories": [{"id": 7, "name": "car"}, {"id": 6, "name": "bird"}],
        }
        Path("coco/annotations").mkdir(exist_ok=True)
        Path(f"coco/annotations/instances_{split}.json").write_text(json.dumps(coco))
    draws = np.random.default_rng(0)
    for name, rows in (("flights.csv", 100), ("new.csv", 20)):
        lines = [
            f"{draws.normal():.3f},{'' if n % 9 == 0 else n},{n},{n},{'AB'[n % 2]},{'' if n % 50 == 7 else n % 7 - 3}"
            for n in range(rows)
        ]
        Path(name).write_text(
            "\n".join(["dep_delay,distance,arr_time,air_time,carrier,arr_delay", *lines, ""])
        )
    rows = [line.rpartition(",")[0] for line in Path("new.csv").read_text().splitlines()]
    Path("test.csv").write_text(
        "\n".join(f"{n + 500 if n else 'id'},{row}" for n, row in enumerate(rows)) + "\n"
    )
    return parent


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_runs(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    if "s3://" in page.read_text():
        request.getfixturevalue("server")
    found = blocks(page.read_text())
    assert bool(found) != (page.name == SCRIPTS)
    if "packer convert" not in page.read_text():
        Block("sh", "packer convert photos/ train.h5 --size 64 --quiet").run(page.name, {})
    names: dict[str, Any] = {"__name__": "guide"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        for block in found:
            block.run(page.name, names)


@pytest.mark.parametrize(
    "page", sorted((DOCS.parent / "examples").glob("*.ipynb")), ids=lambda page: page.stem
)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg")
def test_a_notebook_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells one after the other, one epoch instead of all, as they stand; what they showed when they were written is in it."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [cell for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]
    assert "image/png" in page.read_text()
    for cell in cells:
        Block("python", re.sub("epochs = [0-9]+", "epochs = 1", "".join(cell["source"]))).run(
            page.name, names
        )


class Photos:
    """(PIL image, number) of photos/, as torchvision's ImageFolder gives them."""

    def __init__(self, root: str) -> None:
        self._paths = sorted(Path(root).rglob("*.jpg"))
        self._classes = sorted({path.parent.name for path in self._paths})

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        path = self._paths[row]
        return Image.open(path).convert("RGB"), self._classes.index(path.parent.name)


def sections(page: Path) -> dict[str, str]:
    """Heading -> what stands below it."""
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page.read_text(), flags=re.MULTILINE | re.DOTALL))


def need_imports(text: str) -> None:
    """Skip the test unless all that the code imports is installed, or beside the environment."""
    for package in re.findall(r"^(?:from|import) ([\w.]+)", text, flags=re.MULTILINE):
        if package.startswith(("torchvision", "timm", "fastai", "streaming")):
            from tests.torchvision_here import REASON, ready

            if not ready(package):
                pytest.skip(f"{package} is not installed" if "vision" not in package else REASON)
        else:
            pytest.importorskip(package)


@pytest.fixture
def _forgotten() -> Iterator[None]:
    """What accelerate keeps for the process would decide for later tests."""
    yield
    if "accelerate.state" in sys.modules:
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.filterwarnings("ignore")  # the frameworks' own
@pytest.mark.usefixtures("one_thread", "_forgotten")
@pytest.mark.parametrize("name", sections(FRAMEWORKS))
def test_a_framework_judges_each_row_once(name: str, folder: Path) -> None:
    text = FRAMEWORKS.read_text()
    preparing, own = blocks(text.partition("\n## ")[0]), blocks(sections(FRAMEWORKS)[name])
    need_imports(own[0].text)
    names: dict[str, Any] = {"__name__": "guide"}
    for block in (*preparing, *own):
        block.run(FRAMEWORKS.name, names)
    assert sorted(int(label) for label in names["labels"]) == [0, 0, 1, 1, 2, 2]
    assert names["scores"][0].shape[-1] == 3


MOVES = {name: text for name, text in sections(DOCS / "coming-from.md").items() if blocks(text)}
TRAINING = blocks((DOCS / "coming-from.md").read_text())[0]


@pytest.mark.filterwarnings("ignore")  # what other libraries leave open is theirs
@pytest.mark.parametrize("name", MOVES)
def test_who_moves_over_goes_on_training(name: str, folder: Path) -> None:
    """Their code, ours, and the training at the top of the page."""
    found = blocks(MOVES[name])
    need_imports(found[0].text)
    with h5py.File("data.h5", "w") as file:
        file["images"] = np.stack([np.asarray(photo) for photo, _ in Photos("photos")])
        file["labels"] = [label for _, label in Photos("photos")]
    names = {"torch": torch, "np": np, "device": "cpu", "photos": Photos("photos")}
    for block in found:
        block.run("coming-from.md", names)
    TRAINING.run("coming-from.md", names)
    assert sorted(names["train"].targets) == [0] * 8 + [1] * 8 + [2] * 8
    assert names["images"].shape == (8, 3, 32, 32)
