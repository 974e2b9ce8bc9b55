import numpy as np
from numpy.typing import NDArray

def copy(
    extents: NDArray[np.int64],
    files: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    row_bytes: int,
    out: NDArray[np.uint8],
    /,
) -> int: ...
def read(
    extents: NDArray[np.int64],
    files: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    row_bytes: int,
    out: NDArray[np.uint8],
    /,
) -> tuple[int, int]: ...
def willneed(
    extents: NDArray[np.int64],
    files: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    row_bytes: int,
    /,
) -> None: ...
