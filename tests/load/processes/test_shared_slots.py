from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from packer.errors import UsageError
from packer.load.processes import shared_slots
from packer.load.processes.shared_slots import SharedSlots
from tests.open_files import open_files


def resident(memory: SharedSlots) -> int:
    """Bytes of the file that take memory."""
    return os.fstat(memory._descriptor).st_blocks * 512


def test_pieces_are_apart_and_keep_what_is_written():
    memory = SharedSlots()
    pieces = [memory.allocate(n) for n in (1, 4096, 5000)]
    for k, piece in enumerate(pieces):
        piece[:] = k + 1
    assert [len(piece) for piece in pieces] == [1, 4096, 5000]
    assert all((piece == k + 1).all() for k, piece in enumerate(pieces))
    assert all(piece.ctypes.data % 4096 == 0 for piece in pieces)
    assert (memory.at(memory.offset(pieces[2]), 5000) == 3).all()


def test_what_is_let_go_is_freed_and_given_out_again():
    memory = SharedSlots()
    before = resident(memory)
    piece = memory.allocate(1 << 20)
    piece[:] = 1
    view = piece[5:10].reshape(1, 5)[0]
    offset = memory.offset(piece)
    assert resident(memory) >= before + (1 << 20)
    del piece
    gc.collect()
    assert (view == 1).all()
    assert resident(memory) >= before + (1 << 20)
    del view
    assert resident(memory) == before
    assert memory.offset(memory.allocate(1 << 20)) == offset


def test_a_forked_child_that_drops_a_piece_leaves_it_alone():
    memory = SharedSlots()
    piece = memory.allocate(1 << 16)
    piece[:] = 7
    child = os.fork()
    if child == 0:
        del piece
        os._exit(0)
    os.waitpid(child, 0)
    assert (piece == 7).all()


def test_more_than_there_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_slots, "memory", lambda: 1 << 16)
    memory = SharedSlots()
    held = memory.allocate(1 << 15)
    with pytest.raises(
        MemoryError, match="the batches held take 36,864 bytes of shared memory, all there is"
    ):
        memory.allocate(1 << 15)
    del held
    memory.allocate(1 << 15)


def test_foreign_memory_is_not_taken_for_a_piece():
    with pytest.raises(ValueError, match="not a piece of this shared memory"):
        SharedSlots().offset(np.empty(10, np.uint8))


def test_descriptors_are_closed():
    before = open_files()
    memory = SharedSlots()
    piece = memory.allocate(10)
    del memory
    piece[:] = 1  # still mapped
    del piece
    gc.collect()
    assert open_files() <= before


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """limited(nbytes): this process may map so many bytes more."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit(nbytes: int) -> None:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (mapped + nbytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures with /proc")
def test_a_limit_of_the_address_space_makes_it_smaller(
    limited: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_slots, "memory", lambda: 1 << 40)
    limited(1 << 30)
    memory = SharedSlots()
    pieces = [memory.allocate(32 << 20) for _ in range(4)]
    pieces[3][-1] = 1
    assert len(np.ones(256 << 20, np.uint8)) == 256 << 20  # others have their part


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures with /proc")
def test_next_to_no_address_space(limited: Callable[[int], None]):
    message = r"transform: this process cannot map even 2\.1 MB of shared memory.*ulimit -v"
    before = open_files()
    with pytest.raises(UsageError, match=message):
        limited(1 << 20)
        SharedSlots()
    assert open_files() <= before
