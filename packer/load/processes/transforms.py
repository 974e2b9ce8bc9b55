"""PythonTransform: a Python function, or a transform of torchvision, for the argument ``transform=``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import one_of, whole
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.machine import cores

THREAD = "thread"
CONTEXTS = ("fork", "spawn", "forkserver", THREAD)
MAX_PROCESSES = 512  # each has eight bytes of one shared page (see workers.py)
_DEFAULT_PROCESSES = 8
_PARAMETERS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
V1, V2 = "torchvision.transforms", "torchvision.transforms.v2"


@checked_class
@dataclass(frozen=True)
class PythonTransform:
    """A Python function from rows of a pack to rows of a batch, run in processes or threads.

    ``transform=fn`` is short for ``transform=PythonTransform(fn)``.

    fn: ``fn(sample)`` or ``fn(sample, rng)``. sample: a dict of the row's fields: ``image`` uint8 [H, W, C],
        ``label`` an int64 scalar, ``key`` a str, others as NumPy batches have them. The next rows overwrite
        their memory: modify them in place, but copy what you keep. Returns a dict of arrays, torch tensors
        and numbers, with the same names, shapes and dtypes for every row; or an array alone, which replaces
        the image. Arrays of ``image`` stay [H, W, C] and torch batches hold them as [C, H, W]; tensors keep
        their shape. Pass transforms of torchvision.transforms.v2, and nn.Sequential of them, directly: they
        get tv_tensors, and all fields of the image move with it: ``image`` is an Image [C, H, W], masks and
        soft maps are Mask, ``boxes`` BoundingBoxes (XYXY), ``keypoints`` KeyPoints (torchvision 0.23),
        ``box_label`` is called ``labels`` there, where SanitizeBoundingBoxes looks for it; other arrays are
        plain tensors. Call transforms of other libraries in a function. The processes divide a batch's rows.
    ragged: names of the fields that fn returns in a different shape for each row, such as boxes: batches hold
        them as lists. Texts, and ragged fields of the pack that fn passes on unchanged, need not be named.
    processes: default: the available cores, at most 8.
    context: start method: "fork" (the default on Linux: fn may be a lambda or defined in a notebook), "spawn"
        or "forkserver" (fn must be importable from a module). "thread": threads of this process instead, for
        functions that release the GIL and for free-threaded Python: fn must take rng and draw from nothing
        else, what it shares between calls must be thread-safe, and OpenCV and torch keep their threads.

    rng is a numpy.random.Generator keyed by (seed, epoch, row), row being the row's number in the pack, or,
    if an order repeats rows, the position in the epoch.
    The generators of ``random``, ``numpy.random``, torch's CPU and OpenCV are seeded in the same way before
    each call, so that the draws of fn do not depend on the batch, the number of processes or a restart. A
    Compose of albumentations has its own generators: ``compose.set_random_state(rng,
    random.Random(int(rng.integers(2**32))))`` ties them to the row.

    OpenCV and torch run one thread a process; if a call of fn imports one of them, fn is called again for
    that row, since the library could not be seeded before. In a forked child of the training process the
    parent's batches are the same memory, not a copy: a batch held across a fork may change. Raises UsageError
    for arguments out of range.
    """

    fn: Callable[..., Any]
    ragged: Sequence[str] = ()
    processes: int | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise UsageError(
                f"transform: {shown(self.fn)} is no function. Pass a function of a sample, or a "
                "PythonTransform."
            )
        if self.processes is not None:
            whole("transform: processes", self.processes, 1, MAX_PROCESSES)
        if self.context is not None:
            one_of("transform: context", self.context, CONTEXTS)
        if self.context == THREAD and with_rng(self.fn) is None:
            raise UsageError(
                f"transform: {name_of(self.fn)} takes no rng; with context='thread' only functions of"
                " (sample, rng) are allowed, because threads share all other generators. Add the argument"
                " rng and draw from it, or leave context= out."
            )

    @property
    def count(self) -> int:
        """Number of processes that run the function."""
        return self.processes or min(cores(), _DEFAULT_PROCESSES)


def with_rng(fn: Any) -> Callable[[dict[str, Any], np.random.Generator], Any] | None:
    """Return fn as a function of a sample and a generator; None if it takes no generator.

    fn takes the generator as its second required argument, or as `rng`.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some functions in C
        parameters = []
    required = [p for p in parameters if p.kind in _PARAMETERS and p.default is p.empty]
    if len(required) >= 2:
        return fn  # type: ignore[no-any-return]
    if any(p.name == "rng" for p in parameters):
        return lambda sample, rng: fn(sample, rng=rng)
    return None


class Roles:
    """Fields that torchvision moves with an image, by the rules of ``augment=``, and fields it cannot move.

    masks: fields with a value for each pixel; True for layers [H, W, K]. Soft maps count too: as images,
    torchvision would recolour them. unplaced: fields of the image's size that are no masks of ``pairs=``.
    lists: ragged arrays, boxes among them.
    """

    names: tuple[str, ...]
    keypoints: bool

    def __init__(self, fields: Sequence[Field]) -> None:
        named = {f.name: f for f in fields}
        image, points = named.get("image"), named.get("keypoints")
        size = (image.shape or ())[:2] if image else ()
        self.names, self.image = tuple(named), image is not None and image.about.get("layout") == "HWC"
        self.masks: dict[str, bool] = {}
        self.unplaced: list[str] = []
        for f in fields:
            shape = f.shape or ()
            layered = (len(shape) == 3 or f.ragged) and f.about.get("layout") == "HWC"
            if f.name in ("image", "keypoints"):
                continue
            if f.own_size is not None or ("sampling" in f.about and (len(shape) == 2 or layered)):
                self.masks[f.name] = layered
            elif size and len(shape) == 2 and shape == size:  # a file that packer did not write
                self.masks[f.name] = False
            elif size and len(shape) == 3 and shape[:2] == size:
                self.unplaced.append(f.name)
        self.lists: frozenset[str] = frozenset(f.name for f in fields if f.ragged and "row_shape" in f.about)
        self.boxes = "boxes" in self.lists and named["boxes"].about["row_shape"] == [4]
        self.box_label: bool = self.boxes and "box_label" in self.lists
        self.keypoints = points is not None and (points.shape or ())[1:] == (2,) and points.dtype[1] == "f"


def library_of(one: Any) -> str | None:
    """Return the torchvision module, V2 or V1, of a transform's class or base class; None for others."""
    modules = [f"{cls.__module__}." for cls in type(one).__mro__]
    return next((name for name in (V2, V1) if any(m.startswith(f"{name}.") for m in modules)), None)


def leaves(one: Any) -> Iterator[Any]:
    """Return the transforms of a Compose, Sequential or similar container; a single transform as itself."""
    torch = sys.modules.get("torch")
    members = getattr(one, "transforms", None)
    if torch is not None and isinstance(one, (torch.nn.Sequential, torch.nn.ModuleList)):
        members = list(one)
    elif torch is not None and isinstance(members, torch.nn.ModuleList):
        members = list(members)
    if not isinstance(members, (list, tuple)):
        yield one
        return
    for member in members:
        yield from leaves(member)


def adapted(transform: PythonTransform, fields: Sequence[Field]) -> SampleCall | None:
    """Return the call of a v2 transform of torchvision; None for any other function.

    fields: the fields of a sample. Raises UsageError if the transform could not move all fields that belong
    to the image, or belongs to albumentations.
    """
    fn, name = transform.fn, name_of(transform.fn)
    if any(cls.__module__.partition(".")[0] == "albumentations" for cls in type(fn).__mro__):
        raise UsageError(
            f"transform: {name} of albumentations takes named arrays; functions of a sample are allowed."
            " Pass a function that calls it: docs/loading.md#albumentations has one."
        )
    torch = sys.modules.get("torch")
    if library_of(fn) is None and not (torch and isinstance(fn, torch.nn.Sequential)):
        return None
    found = {library_of(leaf): name_of(leaf) for leaf in leaves(fn)}
    if V1 in found:
        raise UsageError(
            f"transform: {found[V1]} is one of torchvision's v1 transforms, which take only an image. Take"
            " the one of torchvision.transforms.v2, or call it in a function of the sample."
        )
    if V2 not in found:  # a Compose of a user's functions is a function as well
        return None
    known = Roles(fields)
    if known.unplaced:
        raise UsageError(
            f"transform: {name} would leave {', '.join(map(repr, known.unplaced))} where it is; only the"
            " image and masks, boxes and keypoints of packer convert can move."
            f" {leave_out(known.unplaced, known)}"
        )
    return SampleCall(fn, known)


def flip_of(fn: Any, fields: Sequence[Field]) -> str | None:
    """Return the name of torchvision's flip in a transform of points that have sides, else None."""
    if not any(f.about.get("flip_pairs") for f in fields if f.name == "keypoints"):
        return None
    names = (name_of(leaf) for leaf in leaves(fn) if library_of(leaf) == V2)
    return next((name for name in names if name.endswith("Flip")), None)


def name_of(fn: Any) -> str:
    """Return the name of a function, or of its class."""
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def leave_out(names: Sequence[str], known: Roles) -> str:
    """Return the remedy of an error message: `fields=` with the other names."""
    rest = [name for name in known.names if name not in names]
    return f"Leave it out: fields={rest!r}." if len(names) == 1 else f"Leave them out: fields={rest!r}."


class SampleCall:
    """A v2 transform, called with a sample of tv_tensors: Image [C, H, W], Mask, BoundingBoxes (XYXY),
    KeyPoints.

    Labels are ``label``, and ``labels`` for those of boxes, as SanitizeBoundingBoxes expects them; other
    arrays are plain tensors, which v2 ignores if there is an image. Results get the pack's names and [H, W,
    C] again.
    """

    ragged: frozenset[str]

    def __init__(self, fn: Any, known: Roles) -> None:
        self._fn, self._known, self.ragged = fn, known, known.lists
        self._torch: Any = sys.modules["torch"]
        self._labels = "labels" if known.box_label and "labels" not in known.names else "box_label"
        name = name_of(fn)
        self._tv: Any = importlib.import_module("torchvision.tv_tensors")
        if not known.image and (known.boxes or known.keypoints or not known.masks):
            raise UsageError(
                f"transform: {name} works on images, and moves boxes and keypoints within one; there is no"
                f" image among {', '.join(known.names)}. Pass fields with 'image'."
            )
        if known.keypoints and not hasattr(self._tv, "KeyPoints"):
            version = getattr(sys.modules["torchvision"], "__version__", "")
            raise UsageError(
                f"transform: torchvision {version} has no KeyPoints, so {name} would leave 'keypoints' where"
                f" they are; 0.23 or newer is allowed. Upgrade torchvision. {leave_out(['keypoints'], known)}"
            )

    def __call__(self, sample: dict[str, Any]) -> Any:
        """Return the transformed sample: arrays, field names as in the pack."""
        given = self._wrapped(sample)
        result = self._fn(given)
        if not isinstance(result, dict):
            return result

        def ours(name: str) -> str:
            return "box_label" if name == self._labels else name

        made = {ours(name): self._array(ours(name), value) for name, value in result.items()}
        names = {ours(name) for name in given}
        # In the pack's order, with the fields that v2 did not get.
        order = [name for name in sample if name in made or name not in names]
        return {name: made.get(name, sample.get(name)) for name in order} | made

    def _wrapped(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Convert the sample to tv_tensors, without lists, and without arrays that v2 would take for
        images.
        """
        tv, known = self._tv, self._known
        wrapped: dict[str, Any] = {}
        size: tuple[int, ...] = ()
        if known.image:
            size = sample["image"].shape[:2]
        for name, value in sample.items():
            key = name
            if name == "image" and known.image:
                value = tv.Image(self._channels_first(value))
            elif name in known.masks:
                value = tv.Mask(self._channels_first(value) if known.masks[name] else self._tensor(value))
            elif name == "boxes" and known.boxes:
                value = tv.BoundingBoxes(self._tensor(value), format="XYXY", canvas_size=size)
            elif name == "keypoints" and known.keypoints:
                value = tv.KeyPoints(self._tensor(value), canvas_size=size)
            elif isinstance(value, np.ndarray) and known.image:
                value = self._tensor(value)
                key = self._labels if name == "box_label" and known.box_label else name
            elif not isinstance(value, (str, np.generic)):
                continue
            wrapped[key] = value
        return wrapped

    def _tensor(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())

    def _channels_first(self, array: NDArray[Any]) -> Any:
        return self._tensor(array).permute(2, 0, 1)

    def _array(self, name: str, value: Any) -> Any:
        """Convert a value back to NumPy."""
        if isinstance(value, self._torch.Tensor):
            value = value.as_subclass(self._torch.Tensor).detach().numpy()
            if value.ndim == 3 and (name == "image" or self._known.masks.get(name)):
                value = np.moveaxis(value, -3, -1)
            return value
        return _pixels(value)


def _pixels(value: Any) -> Any:
    """Return a PIL image as an array [H, W, C]; anything else as it is."""
    pil = sys.modules.get("PIL.Image")
    if pil is None or not isinstance(value, pil.Image):
        return value
    pixels = np.array(value)
    return pixels[..., None] if pixels.ndim == 2 else pixels
