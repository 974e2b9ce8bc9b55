"""Is a part of a mapped file in the page cache? Asked before touching it: a page that is not costs a trip to the disk."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

# PyDLL keeps the GIL: the call takes a microsecond, handing the GIL over and back takes tens.
_LIBRARY = ctypes.PyDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


def resident(mapped: NDArray[np.uint8], starts: list[int]) -> bool:
    """Return True if the pages that hold these byte offsets of a mapped array (uint8, 1-D) are all in the page cache.

    True where the system cannot tell. Source: mincore(2).
    """
    if not hasattr(_LIBRARY, "mincore"):
        return True
    base, flag = mapped.ctypes.data, ctypes.c_ubyte()
    for start in starts:
        page = (base + start) // _PAGE * _PAGE
        if (
            _LIBRARY.mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(flag)) == 0
            and not flag.value & 1
        ):
            return False
    return True
