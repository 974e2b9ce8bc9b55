"""How fn is called, with which random numbers, and what it may return; in this process."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import numpy as np
import pytest

from packer.format.fields import Field
from packer.load.processes.calling import Outputs, TransformCall, WrongReturn, described, message_of
from packer.load.processes.transforms import PythonTransform

cv2 = pytest.importorskip("cv2")
torch = pytest.importorskip("torch")

IMAGE = Field("image", "|u1", (2, 3, 3), {"layout": "HWC", "color": "rgb"})
LABEL = Field("label", "<i8", ())
BOXES = Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4]})
INPUTS = (IMAGE, LABEL, BOXES)


def sample() -> dict[str, Any]:
    return {
        "image": np.zeros((2, 3, 3), np.uint8),
        "label": np.int64(4),
        "boxes": np.ones((2, 4), np.float32),
    }


@pytest.fixture(autouse=True)
def _as_it_was():
    """The calls seed the global generators and set the number of threads."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    threads = torch.get_num_threads(), cv2.getNumThreads()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    torch.set_num_threads(threads[0])
    cv2.setNumThreads(threads[1])


def drawn(_: object, rng: np.random.Generator) -> dict[str, Any]:
    noise = np.zeros((1, 4), np.float64)
    return {
        "rng": rng.integers(1 << 40),
        "more": rng.normal(size=3),
        "random": random.random(),
        "numpy": np.random.random(),  # noqa: NPY002
        "torch": torch.rand(()).item(),
        "cv2": cv2.randn(noise, 0, 1).tolist(),
    }


def draws(rows: list[int], seed: int = 0, epoch: int = 0) -> list[dict[str, str]]:
    call = TransformCall(PythonTransform(drawn))
    call.key(seed, epoch, np.array(rows))
    return [{name: repr(value) for name, value in call(i, {}).items()} for i in range(len(rows))]


def test_draws_are_keyed_by_seed_epoch_and_row_alone():
    reference = draws([7, 8, 1 << 40])
    assert draws([8]) == [reference[1]]
    assert draws([1 << 40, 7]) == [reference[2], reference[0]]
    everything = reference + draws([7], seed=1) + draws([7], epoch=1) + draws([7], seed=-1)
    for name in reference[0]:
        assert len({values[name] for values in everything}) == len(everything) == 6, name


class Callable:
    def __call__(self, sample: object, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": rng.random()}


@pytest.mark.parametrize(
    ("fn", "takes"),
    [
        (lambda s: {"x": 1.0}, False),
        (lambda s, size=5: {"x": 1.0 * size}, False),
        (lambda s, rng: {"x": rng.random()}, True),
        (lambda s, generator: {"x": generator.random()}, True),
        (lambda s, size=5, *, rng=None: {"x": rng.random()}, True),
        (functools.partial(lambda size, s, rng: {"x": rng.random() * size}, 5), True),
        (Callable(), True),
    ],
)
def test_rng_goes_to_whoever_takes_it(fn: Any, takes: bool):
    call = TransformCall(PythonTransform(fn))
    call.key(0, 0, np.arange(2))
    values = {call(i, sample())["x"] for i in range(2)}
    assert len(values) == 1 + takes


def test_opencv_and_torch_run_one_thread_unless_fn_says_otherwise():
    torch.set_num_threads(2)
    cv2.setNumThreads(2)
    call = TransformCall(PythonTransform(lambda s: {"x": torch.get_num_threads(), "y": cv2.getNumThreads()}))
    call.key(0, 0, np.arange(2))
    assert call(0, {}) == {"x": 1, "y": 1}
    torch.set_num_threads(2)
    assert call(1, {})["x"] == 2


def describe(fn: Any, ragged: tuple[str, ...] = ()) -> dict[str, tuple[Any, ...]]:
    transform = PythonTransform(fn, ragged=ragged)
    given = sample()
    call = TransformCall(transform)
    call.key(0, 0, np.arange(3))
    fields = described(call(0, dict(given)), given, INPUTS, transform)
    return {f.name: (f.dtype, f.shape, dict(f.about)) for f in fields}


def test_fields_are_described_by_what_is_returned():
    hwc = {"layout": "HWC"}
    assert describe(lambda s: s) == {
        "image": ("|u1", (2, 3, 3), hwc),
        "label": ("<i8", (), {}),
        "boxes": ("|u1", None, dict(BOXES.about)),
    }
    assert describe(lambda s: s["image"][:1].astype(np.float32))["image"] == ("<f4", (1, 3, 3), hwc)
    assert describe(lambda s: {"image": s["image"][0]}) == {"image": ("|u1", (3, 3), {})}
    assert describe(lambda s: {"image": torch.zeros(3, 2, 2, requires_grad=True)}) == {
        "image": ("<f4", (3, 2, 2), {})
    }
    assert describe(lambda s: {"a": 1, "b": 0.5, "c": True, "d": "text", "e": [1, 2]}) == {
        "a": ("<i8", (), {}),
        "b": ("<f8", (), {}),
        "c": ("|b1", (), {}),
        "d": ("|u1", None, {}),
        "e": ("<i8", (2,), {}),
    }
    assert describe(lambda s: {"boxes": s["boxes"] * 2})["boxes"] == ("<f4", (2, 4), {})
    assert describe(lambda s: {"boxes": s["boxes"] * 2}, ragged=("boxes",))["boxes"] == (
        "|u1",
        None,
        dict(BOXES.about),
    )


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda s: None,
            "returned a NoneType; a dict of arrays and numbers, or an array in place of the image, is allowed.",
        ),
        (lambda s: {}, "returned an empty dict; a dict of arrays and numbers is allowed. Return some"),
        (
            lambda s: {"class": 1},
            "returned a field named 'class'; only attribute names of Python are allowed. Rename it",
        ),
        (
            lambda s: {"x": object()},
            "returned 'x' as object []; texts, numbers, and arrays of numbers in this machine's byte order are allowed."
            " Leave it out, or pass PythonTransform(fn, ragged=['x'])",
        ),
        (lambda s: {"x": np.empty((0, 4))}, "returned 'x' as float64 [0, 4]; texts, numbers"),
    ],
)
def test_what_cannot_be_a_field(fn: Any, message: str):
    with pytest.raises(WrongReturn, match=re.escape(message)):
        describe(fn)


def test_a_ragged_field_that_is_not_returned():
    with pytest.raises(WrongReturn, match=re.escape("returned 'x', but not 'boxes' of ragged=. Return it")):
        describe(lambda s: {"x": 1}, ragged=("boxes",))


FIELDS = (Field("x", "<f4", (2,)), Field("n", "<i8", ()), Field("t", "|u1", None))


def stored(results: list[dict[str, Any]]) -> tuple[Any, ...]:
    arrays: dict[str, Any] = {"x": np.zeros((4, 2), np.float32), "n": np.zeros(4, np.int64)}
    store = Outputs(FIELDS, arrays)
    for i, result in enumerate(results):
        store.put(i, result)
    return arrays["x"].tolist(), arrays["n"].tolist(), store.ragged


def test_rows_are_stored_where_they_belong():
    x = np.array([1, 2], np.float32)
    assert stored([{"x": x, "n": 7, "t": "a"}, {"x": torch.from_numpy(x), "n": np.int64(8), "t": x}])[:2] == (
        [[1, 2], [1, 2], [0, 0], [0, 0]],
        [7, 8, 0, 0],
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": np.ones(3, np.float32)},
            "returned 'x' as float32 [3]; float32 [2], as for the first row, is allowed. Return one dtype and shape, or"
            " pass PythonTransform(fn, ragged=['x'])",
        ),
        ({"n": 0.5}, "returned 'n' as float64 []; int64 [], as for the first row, is allowed."),
        (
            {"y": 1},
            "returned 'n', 't', 'x', 'y'; for the first row it returned 'n', 't', 'x', and only these are allowed."
            " Return the same names for every row",
        ),
    ],
)
def test_later_rows_must_be_like_the_first(change: dict[str, Any], message: str):
    good: dict[str, Any] = {"x": np.ones(2, np.float32), "n": 1, "t": "a"}
    with pytest.raises(WrongReturn, match=re.escape(message)):
        stored([good | change])


def test_rows_of_ragged_fields_are_copies_throughout():
    """What fn was given is overwritten by the rows that follow."""
    given = np.zeros((2, 3), np.uint8)

    class Own:
        def __reduce__(self) -> tuple[Any, ...]:
            return dict, (), None, None, iter([("own", given[0])])

    entries = np.empty(1, object)
    entries[0] = given[1]
    shapes = [
        given[:1],
        [given[0], "a"],
        ({"x": [given[1]]}, 5),
        torch.from_numpy(given),
        [torch.from_numpy(given)[0]],
        entries,
        Own(),
    ]
    store = Outputs((Field("t", "|u1", None),), {})
    for i, value in enumerate(shapes):
        store.put(i, {"t": value})
    given[:] = 9
    rows = store.ragged["t"]
    assert [type(row) for row in rows] == [np.ndarray, list, tuple, np.ndarray, list, np.ndarray, dict]
    held = [rows[0], rows[1][0], rows[2][0]["x"][0], rows[3], rows[4][0], rows[5][0], rows[6]["own"]]
    assert not any(np.asarray(array).any() for array in held)
    assert rows[1][1] == "a"
    assert rows[2][1] == 5


def test_what_cannot_travel_is_named():
    store = Outputs((Field("boxes", "|u1", None),), {})
    message = r"returned 'boxes' as a list that cannot be pickled \(.*\); arrays, numbers, texts, and lists and dicts of"
    with pytest.raises(WrongReturn, match=message):
        store.put(0, {"boxes": [lambda: 0]})


def test_an_error_that_cannot_say_what_it_is():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert message_of(Mute()) == "it cannot be printed"
    assert message_of(KeyError("a")) == "'a'"


def test_other_attributes_that_are_missing_are_told_as_they_are():
    with pytest.raises(AttributeError, match=r"^'dict' object has no attribute 'float'$"):
        called(lambda x: {}.float(), sample())  # type: ignore[attr-defined]


def called(fn: Any, given: dict[str, Any]) -> Any:
    call = TransformCall(PythonTransform(fn), INPUTS)
    call.key(0, 0, np.array([0]))
    return call(0, given)
