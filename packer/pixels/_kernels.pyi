import numpy as np
from numpy.typing import NDArray

def resample(
    source: NDArray[np.uint8],
    result: NDArray[np.uint8],
    down_first: NDArray[np.int32],
    down_weights: NDArray[np.uint16],
    down_bits: int,
    across_first: NDArray[np.int32],
    across_weights: NDArray[np.uint16],
    across_bits: int,
    /,
) -> None: ...
def channel_sums(pixels: NDArray[np.uint8], /) -> tuple[list[int], list[int]]: ...
