"""packer.load.batch: named tuples, and buffers that come back when nobody holds them."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytest

from packer.errors import PackerError, UsageError
from packer.format.fields import Field
from packer.load.batch import ALIGNMENT, Batched, SlotLayout, Slots, allocate, batch_type, make_batch


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_comes_back_when_the_last_view_is_gone():
    slots = Slots(256, allocate, spare=9)
    first = slots.lend()
    place = address(first)
    view = first[64:128].view("<f4").reshape(4, 4)[1:]
    del first
    gc.collect()
    assert address(slots.lend()) != place  # still in use through the view
    del view
    gc.collect()
    assert address(slots.lend()) == place


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t[3:],
        lambda t: t.view(2, -1).permute(1, 0),
        lambda t: t.untyped_storage(),
        lambda t: np.from_dlpack(t),
        lambda t: t.float().requires_grad_().mul(t),  # autograd saves t
    ],
    ids=["slice", "permute", "storage", "dlpack", "autograd"],
)
def test_anything_made_from_a_tensor_keeps_the_memory(keep):
    torch = pytest.importorskip("torch")
    slots = Slots(256, allocate, spare=9)
    tensor = torch.from_numpy(slots.lend())
    place = tensor.data_ptr()
    kept = keep(tensor)
    del tensor
    gc.collect()
    assert address(slots.lend()) != place
    del kept
    gc.collect()
    assert place in {address(slots.lend()), address(slots.lend())}


def test_the_ring_grows_only_while_batches_are_held():
    slots = Slots(64, allocate, spare=9)
    held = [slots.lend() for _ in range(5)]
    assert slots.allocated == len({address(a) for a in held}) == 5
    del held
    for _ in range(50):
        slots.lend()
    assert slots.allocated == 5


def test_layout_gives_each_field_an_aligned_section():
    fields = (
        Field("image", "|u1", (3, 3, 1)),
        Field("x", "<f4", (5,)),
        Field("key", "|u1", None),
        Field("y", "<i8", ()),
    )
    layout = SlotLayout(fields, rows=7)
    slot = allocate(layout.nbytes)
    typed, raw = layout.typed(slot, 4), layout.raw(slot, 4)
    assert {n: (a.dtype.str, a.shape) for n, a in typed.items()} == {
        "image": ("|u1", (4, 3, 3, 1)),
        "x": ("<f4", (4, 5)),
        "y": ("<i8", (4,)),
    }
    for number, name in enumerate(typed):
        raw[name][:] = number + 1
    assert (typed["image"] == 1).all()
    assert (typed["y"] == 0x0303030303030303).all()
    assert all((address(a) - address(slot)) % ALIGNMENT == 0 for a in typed.values())


def test_of_memory_that_nobody_holds_any_more_a_few_slots_are_kept():
    slots = Slots(64, allocate, spare=2)
    held = [slots.lend() for _ in range(9)]
    alive = [weakref.ref(array.base.obj) for array in held]
    del held
    slots.lend()
    gc.collect()
    assert sum(ref() is not None for ref in alive) == 2
    slots.lend()
    assert slots.allocated == 9


def test_large_slots_are_writable_to_their_ends():
    for nbytes in (2 << 20, (2 << 20) + 1, 5 << 20):
        memory = allocate(nbytes)
        memory[:] = 7
        assert (memory.nbytes, int(memory[-1])) == (nbytes, 7)


def test_small_fields_are_known():
    fields = (
        Field("image", "|u1", (16, 16, 3)),
        Field("label", "<i8", ()),
        Field("weights", "<f4", (40,)),
        Field("key", "|u1", None),
    )
    assert SlotLayout(fields, 3).small == {"label"}
    assert SlotLayout(fields[1:2], 3).small == set()


def test_memory_that_cannot_be_had_is_a_sentence():
    for nbytes in (1 << 60, 1 << 80):
        with pytest.raises(PackerError) as error:
            allocate(nbytes)
        assert str(error.value).startswith("batch: takes ")
        assert str(error.value).endswith("Pass a smaller batch_size, or fewer fields.")


def test_a_batch_is_a_named_tuple():
    batch = make_batch(("image", "label"), [1, 2])
    assert (batch.image, batch.label) == (1, 2)
    image, label = batch
    assert (image, label) == (1, 2)
    assert repr(batch) == "Batch(image=1, label=2)"


def test_it_can_be_rebuilt_from_an_iterable_as_a_tuple_can():
    """As fastai's collate does (from a list), and the Trainer of transformers (from a generator)."""
    batch = make_batch(("image", "label"), (1, 2), Batched)
    for again in (type(batch)([3, 4]), type(batch)(value + 2 for value in batch), type(batch)(3, label=4)):
        assert type(again) is type(batch)
        assert (again.image, again.label) == (3, 4)
    with pytest.raises(TypeError, match="argument"):
        type(batch)([1, 2, 3])
    alone = make_batch(("key",), (["a"],), lists=True)  # its one value is a list
    assert type(alone)(["b"]).key == type(alone)([["b"]]).key == ["b"]
    assert type(alone)(value for value in alone).key == ["a"]
    rows = [np.ones(2)]
    assert type(alone)(rows).key is type(alone)([rows]).key is rows
    image = np.ones((1, 2))
    single = pickle.loads(pickle.dumps(make_batch(("image",), (image,), Batched)))
    for given in ([image], (image,), iter([image]), image):
        assert type(single)(given).image is image
    assert type(single)([5]).image == [5]  # the numbers of a row


def test_it_can_be_pickled_and_keeps_its_type():
    batch = pickle.loads(pickle.dumps(make_batch(("image", "key"), [[1], ["a"]])))
    assert batch == ([1], ["a"])
    assert type(batch) is batch_type(("image", "key"), object)
    whole = batch_type(("image",), Batched)(1)
    assert type(pickle.loads(pickle.dumps(whole))) is type(whole)


def test_its_repr_names_shapes_not_numbers():
    torch = pytest.importorskip("torch")
    names = ("image", "label", "boxes", "key", "none", "number")
    values = [
        torch.zeros(2, 3, 8, 8),
        np.zeros(2, "<i8"),
        [torch.zeros(1, 4)] * 2,
        ["a" * 99, "b"],
        [],
        np.int64(7),
    ]
    assert repr(make_batch(names, values)) == (
        "Batch(image=float32[2, 3, 8, 8], label=int64[2], boxes=list of 2, first float32[1, 4], "
        "key=list of 2, first 'aaaaaaaaaaaa...aaaaaaaaaaaaa', none=[], number=np.int64(7))"
    )
    meta = make_batch(("x",), [torch.zeros(2, device="meta")])
    assert repr(meta) == "Batch(x=float32[2] on meta)"


def test_fields_have_names_as_items_too():
    batch = make_batch(("image", "to"), [1, 2])
    assert (batch["image"], batch[1], batch["to"], batch[-2:], batch.to) == (1, 2, 2, (1, 2), 2)
    with pytest.raises(KeyError, match="'_fields' is no field; the fields are image, to"):
        batch["_fields"]


def test_it_moves_to_a_device():
    """On the CPU already: the same memory, which is valid as long as either is held."""
    torch = pytest.importorskip("torch")
    batch = make_batch(("image", "boxes", "key"), [torch.ones(2), [torch.ones(4)], ["a"]], Batched)
    moved = batch.to(torch.device("meta"), non_blocking=True)
    assert (type(moved), moved.key) == (type(batch), ["a"])
    assert {x.device.type for x in (moved.image, *moved.boxes)} == {"meta"}
    slots = Slots(64, allocate, spare=9)
    kept = make_batch(("image",), [torch.from_numpy(slots.lend())], Batched).to("cpu")
    gc.collect()
    assert address(slots.lend()) != kept.image.data_ptr()
    with pytest.raises(TypeError, match="dtype"):
        batch.to(torch.float16)
    with pytest.raises(UsageError, match=r"^to: the batch holds NumPy arrays; .* Pass output='torch'\.$"):
        make_batch(("image",), [np.ones(2)]).to("cpu")


def test_buffers_grow():
    """By a quarter at least, so that few sizes are allocated; smaller ones are not lent again."""
    asked: list[int] = []
    slots = Slots(0, lambda nbytes: asked.append(nbytes) or np.empty(nbytes, np.uint8), spare=2)  # type: ignore[func-returns-value]
    small = slots.lend(100)
    del small
    assert len(slots.lend(110)) == 125
    assert len(slots.lend(90)) == 125
    assert len(slots.lend(400)) == 400
    assert asked == [100, 125, 400]
