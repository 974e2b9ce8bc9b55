"""The loops in C: one extension, compiled where there is a compiler; packer gives the same results without it, slower.

    module.c                start-up, and the table of functions
    native.h                what the C files share: compilers, copies past the caches, arguments, the GIL
    random_permutation.c    the loops of randomness.py
    mixture.c               of orders/mixture.py
    gather.c                of read/gather.py: rows out of files, guarded against files that are cut short
    resample.c              of pixels/decode_resize.py
    jpeg_restarts.c         of codecs/jpeg_parts.py: JPEG files, cut at restart markers
    csv.c                   of tables/reading/record_parser.py
    csv_numbers.h           decimal numbers to doubles, for csv.c
    table_sums.c            of tables/transform/column_sums.py
    augment.c               of augment/passes/native_pass.py
    augment_loops.h         included by augment.c once for each kind of processor

Start with native.h. Imports: nothing.
"""

# pip shows nothing of a build that goes without a compiler, so it is said where a loop is first missed: in the notes of a
# conversion, and in the log of "packer" elsewhere. setup.py runs this file for the same sentence.

from __future__ import annotations

import functools
import logging

try:
    from packer.native import _native as loops
except ImportError:
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "COSTS", "loops", "warn", "without"]

# Purpose -> what takes how long without its loops.
COSTS = {
    "orders": "random orders of many rows take 7 to 16 times as long",
    "augment": "augmenting on the CPU takes 25 to 170 times as long",
    "csv": "reading CSV takes 27 times as long",
    "pixels": "converting images takes 2 to 3 times as long",
    "markers": "JPEG rows of whole pictures get no restart markers, and all of each is decoded when a part is loaded",
    "gather": "copying rows out of a pack takes 2 to 10 times as long, and a file cut short meanwhile ends the process",
    "sums": "statistics of tables take 11 times as long",
}

_LOG = logging.getLogger("packer")


def without(*purposes: str) -> str:
    """Word what it costs that the loops for some of COSTS are missing, and the remedy.

    >>> without("csv")
    'packer was installed without its loops in C: reading CSV takes 27 times as long. Install a C compiler, then packer again with \
pip --no-cache-dir.'
    """
    costs = "; ".join(COSTS[purpose] for purpose in purposes)
    return (
        f"packer was installed without its loops in C: {costs}. "
        "Install a C compiler, then packer again with pip --no-cache-dir."
    )


@functools.cache
def warn(purpose: str) -> None:
    """Log once in a process that the loops for one of COSTS are missing."""
    _LOG.warning(without(purpose))
