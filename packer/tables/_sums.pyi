from collections.abc import Buffer

import numpy as np
from numpy.typing import NDArray

def block_sums(
    records: Buffer,
    itemsize: int,
    block: int,
    mask: NDArray[np.uint8] | None,
    offsets: NDArray[np.int64],
    single: NDArray[np.uint8],
    figures: NDArray[np.float64],
    whole: NDArray[np.uint8],
    /,
) -> None: ...
