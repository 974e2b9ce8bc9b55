"""Arrays as .npy files: what numpy.load reads, read in place, and damage that is seen."""

from __future__ import annotations

import io

import numpy as np
import pytest

from packer.codecs import npy

PICTURE = np.arange(60, dtype=np.uint16).reshape(4, 5, 3)


@pytest.mark.parametrize(
    "array", [PICTURE, np.float32([[1, np.nan]]), np.zeros((3, 2, 8), np.uint8)[:, ::-1]]
)
def test_numpy_reads_what_is_written(array: np.ndarray) -> None:
    data = npy.encode(array)
    assert np.array_equal(np.load(io.BytesIO(data)), array, equal_nan=array.dtype.kind == "f")
    read = npy.array(data)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert np.array_equal(read, array, equal_nan=array.dtype.kind == "f")
    assert npy.size(data) == (*array.shape[:2], array.shape[2] if array.ndim == 3 else 1)
    assert (len(data) - array.nbytes) % 64 == 0


def test_nothing_is_copied() -> None:
    data = npy.encode(PICTURE)
    assert np.shares_memory(npy.array(data), np.frombuffer(data, np.uint8))
    assert not npy.array(data).flags.writeable


@pytest.mark.parametrize("length", [0, 3, 9, 60, -1])
def test_files_that_are_cut_short_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"cut short|bytes of numbers"):
        npy.array(npy.encode(PICTURE)[:length])


def test_what_is_no_array_of_numbers_in_rows_is_refused() -> None:
    files = [io.BytesIO(), io.BytesIO(), io.BytesIO()]
    np.save(files[0], np.asfortranarray(np.ones((2, 3))))
    np.save(files[1], np.zeros(2, [("a", "<i4")]))
    np.save(files[2], np.array([None]), allow_pickle=True)
    for file in (*files, io.BytesIO(b"\x93NUMPY\x02\x00" + npy.encode(PICTURE)[8:]), io.BytesIO(b"x" * 200)):
        with pytest.raises(ValueError, match=r"order; numbers in C order|another version|cut short|magic"):
            npy.array(file.getvalue())
    with pytest.raises(ValueError, match=r"an array \[2\]"):
        npy.size(npy.encode(np.ones(2)))
