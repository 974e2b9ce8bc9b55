"""packer.declared_types: every argument of every public function, given what it is not for."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packer
from packer.declared_types import checks_arguments, kinds_of
from packer.errors import PackerError, UsageError

BIG = np.arange(100_000).reshape(1000, 100)
PIXELS = np.zeros((6, 4, 4, 3), np.uint8)
GIVEN: dict[str, Callable[[], Any]] = {
    "array": lambda: BIG,
    "scalar": lambda: np.zeros(()),
    "pair": lambda: (BIG, np.arange(1000)),
    "columns": lambda: {f"c{number}": list(range(1000)) for number in range(20)},
    "nested": lambda: {"a": {"b": BIG}},
    "names": lambda: ["n" * 300 + str(number) for number in range(50)],
    "text": lambda: "x" * 50_000,
    "words": lambda: "wor d, " * 9000,
    "object": object,
    "bytes": lambda: b"abc",
    "nan": lambda: math.nan,
    "0": lambda: 0,
    "-1": lambda: -1,
    "true": lambda: True,
    "null": lambda: "a\0b",
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "convert_images": {"source": "photos", "out": "?.h5", "size": 8, "workers": 1},
    "convert_table": {"source": "t.csv", "out": "?.h5", "workers": 1},
    "pack_dataset": {"dataset": (PIXELS, np.arange(6) % 2), "out": "?.h5", "workers": 1},
    "create": {"out": "?.h5"},
    "append_images": {"path": "shards", "source": "photos", "workers": 1},
    "append_table": {"path": "tables", "source": "t.csv", "workers": 1},
    "merge_packs": {"packs": ["p.h5"], "out": "?.h5"},
    "merge_shards": {"out": "shards"},
    "repack": {"path": "p.h5", "out": "?.h5", "workers": 1},
    "split_pack": {"path": "p.h5", "shares": "a=0.5,b=0.5", "out": "?", "overwrite": True, "workers": 1},
    "export_images": {"pack": "p.h5", "folder": "?", "workers": 1},
    "verify_pack": {"path": "p.h5"},
    "seal_pack": {"path": "p.h5"},
    "fill_pack": {"source": "photos", "out": "filled.h5", "size": 8},
    "open_pack": {"path": "p.h5"},
    "join_fields": {"packs": ["p.h5"]},
    "preview": {"path": "p.h5", "out": "?.png"},
    "report": {"path": "p.h5", "out": "?.html", "workers": 1},
    "show": {"what": "p.h5"},
    "PackedBatchDataset": {"path": "p.h5", "batch_size": 2, "output": "numpy"},
    "PackedDataset": {"path": "p.h5"},
    "Preprocess": {"pack": "p.h5"},
    "PythonTransform": {"fn": len},
    "Labels": {"file": "t.csv"},
    "Sequences": {},
    "Split": {"shares": "a=0.5,b=0.5"},
    "Soft": {"folder": "masks"},
    "Weighted": {"weights": [1, 2]},
    "open_arrays": {"x": np.arange(4)},
    "Windows": {"length": 2},
    **{name: {} for name in ["Csv", "Encode", "Fields", "Padding", "Blocks", "Slices", "Regions", "Mixture"]},
}
HELD = {"Pack", "PackBuilder", "PackerError", "Report"}
"""Made by packer, not by users."""


@pytest.fixture(scope="module", autouse=True)
def _inputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before, folder = os.getcwd(), tmp_path_factory.mktemp("given")
    for number in range(6):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    (folder / "t.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(12)))
    os.chdir(folder)
    packer.convert_images("photos", "p.h5", size=8, workers=1)
    packer.convert_images("photos", "shards", size=8, shards=3, workers=1)
    packer.convert_table("t.csv", "tables", shards=5, workers=1)
    yield
    os.chdir(before)


def test_every_public_callable_is_tried():
    assert {name for name in packer.__all__ if callable(getattr(packer, name))} - HELD >= set(FUNCTIONS)
    without_arguments = {"Buckets", "Rows", "Sequential"}
    assert set(packer.__all__) - HELD - set(FUNCTIONS) == {"__version__", *without_arguments}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_an_argument_is_not_for_is_one_short_sentence(name: str):
    pytest.importorskip("torch")
    function, wrong, tried = getattr(packer, name), [], 0
    for word, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or (name, word) == ("pack_dataset", "dataset"):
            continue  # samples may be anything
        for kind, make in GIVEN.items():
            tried += 1
            given = {
                key: value.replace("?", f"o{tried}") if isinstance(value, str) else value
                for key, value in FUNCTIONS[name].items()
            }
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(**{**given, word: make()})
            except PackerError as error:
                text = str(error)
                shows = any(shown in text for shown in ("array(", "x" * 401, " at 0x"))
                if shows or len(text) > 1000 or "\n" in text or not text.endswith((".", ")", "'")):
                    wrong.append(f"{word}={kind}: {text[:200]}")
            except Exception as error:
                wrong.append(f"{word}={kind}: {error!r:.200}")
    assert wrong == []


@pytest.mark.parametrize(
    "name", ["PackedBatchDataset", "PackedDataset", "open_pack", "verify_pack", "repack", "report"]
)
def test_data_in_place_of_a_pack_names_what_packs_it(name: str):
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2))
    pack = "Pack it, pack_dataset(data, 'train.h5'), and pass 'train.h5'."
    frame = (
        "Write it, frame.to_parquet('table.parquet'), pack that, convert_table('table.parquet', 'train.h5'), and"
        " pass 'train.h5'."
    )
    function = getattr(packer, name)
    first, *others = FUNCTIONS[name].items()
    for value, said, remedy in (
        (PIXELS, "<ndarray uint8 [6, 4, 4, 3]>", pack),
        ((PIXELS, np.arange(6)), "(<ndarray uint8 [6, 4, 4, 3]>, <ndarray int64 [6]>)", pack),
        (torch.zeros(3), "<Tensor float32 [3]>", pack),
        ({"a": [1, 2]}, "{'a': [1, 2]}", pack),
        (data, "<TensorDataset object>", pack),
        (pandas.DataFrame({"a": [1]}), "<DataFrame [1, 1]>", frame),
        (
            torch.utils.data.DataLoader(data),
            "<DataLoader object>",
            "Pack its data set, pack_dataset(loader.dataset, 'train.h5'), and pass 'train.h5'.",
        ),
        (None, "None", "Pass a name, such as 'train.h5'."),
    ):
        with pytest.raises(UsageError) as error:
            function(**{first[0]: value}, **dict(others))
        text = (
            str(error.value)
            .replace("torch.utils.data.dataset.", "")
            .replace("torch.utils.data.dataloader.", "")
        )
        assert text == f"{first[0]}={said}: is not the path of a pack. {remedy}"


def test_a_data_set_of_packer_and_an_open_file_name_their_paths():
    import h5py

    with packer.PackedBatchDataset("p.h5", 2, output="numpy") as batches, h5py.File("p.h5") as file:
        for value, remedy in (
            (batches, "Pass its pack: dataset.pack.path."),
            (file, "Pass its name: file.filename."),
        ):
            with pytest.raises(UsageError, match=r"^path=.*: is not the path of a pack\. ") as error:
                packer.verify_pack(value)
            assert str(error.value).endswith(remedy)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"size": True}, "size=True: is not a whole number or text or a pair. Pass a whole number or text or a pair, or leave it out."),
        ({"channels": 0}, "channels 0: unknown; rgb, gray, rgba and 1 to 1024 are allowed. Pass one of them."),
        ({"channels": False}, "channels=False: is not text or a whole number. Pass text or a whole number, or leave it out."),
        ({"fit": ""}, "fit='': is not one of 'crop', 'pad', 'stretch'. Pass one of them."),
        ({"dtype": ""}, "dtype='': is not one of 'uint8', 'uint16'. Pass one of them."),
        ({"overwrite": "no"}, "overwrite='no': is neither True nor False. Pass one of them."),
        ({"seed": 1.5}, "seed=1.5: is not a whole number."),
        ({"classes": {"a", }}, "classes={'a'}: has no order, which numbers the classes. Pass a list."),
    ],
)  # fmt: skip
def test_values_of_options(option: dict[str, Any], said: str):
    with pytest.raises(UsageError) as error:
        packer.convert_images("photos", "values.h5", **option)
    assert str(error.value) == said


def test_arguments_reach_the_function_as_they_were_given():
    @checks_arguments
    def tried(source: str | os.PathLike[str] | list[str], count: int = 1, *, names: str | None = None) -> Any:
        return source, count, names

    assert tried("a", 2, names="b") == ("a", 2, "b")
    for wrong in (lambda: tried("a", 1, "c"), lambda: tried("a", source="b"), lambda: tried()):
        with pytest.raises(TypeError):
            wrong()
    assert packer.convert_table(iter(["t.csv"]), "iterated.h5", workers=1).rows == 12
    assert kinds_of("Unknown | None") is None


def test_paths_given_one_by_one(tmp_path: Path):
    with pytest.raises(
        UsageError, match=r"^source=\[<ndarray int64 \[3\]>\]: is not the path of images or tables\."
    ):
        packer.convert_images(iter([np.arange(3)]), tmp_path / "p.h5")


def test_what_a_parameter_of_a_transform_is_not_for_is_short():
    pytest.importorskip("torch")
    import packer.augment

    said: list[str] = []
    for name in packer.augment.__all__:
        transform = getattr(packer.augment, name)
        if not isinstance(transform, type):
            continue
        for word, parameter in inspect.signature(transform).parameters.items():
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                continue
            for make in (lambda: BIG, lambda: (BIG, BIG), lambda: {"a": BIG}, lambda: "x" * 50_000, object):
                needed = [p for p in inspect.signature(transform).parameters.values() if p.default is p.empty]
                try:
                    transform(
                        **{**{p.name: 1 for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD}, word: make()}
                    )
                except PackerError as error:
                    said.append(str(error))
    assert max(map(len, said)) <= 1000
    assert not [text for text in said if any(shown in text for shown in ("array(", "x" * 401, " at 0x"))]
