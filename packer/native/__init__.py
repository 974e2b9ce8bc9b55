"""The C extension: loops in C, built by setup.py; without a compiler packer gives the same results, slower.

    module.c                start-up, and the table of functions
    native.h                shared by the C files: compilers, copies past the caches, arguments, the GIL
    random_permutation.c    loops of randomness.py
    gather.c                loops of read/gather.py: rows out of files, guarded against truncation
    resample.c              loops of pixels/resampling.py
    jpeg_restarts.c         loops of codecs/jpeg_parts.py: JPEG files, cut at restart markers
    csv.c                   loops of tables/reading/record_parser.py
    csv_numbers.h           decimal numbers to doubles, for csv.c
    table_sums.c            loops of tables/transform/column_sums.py
    augment.c               loops of augment/passes/native_pass.py
    augment_loops.h         included by augment.c once for each instruction set

Start with native.h. Imports: nothing.
"""

# pip reports nothing about a build without a compiler, so packer reports it when it first misses a loop: in
# the notes of a conversion, elsewhere in the log of "packer". setup.py runs this file for the same sentence.

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

# Purpose -> cost of missing loops.
COSTS = {
    "orders": "random orders of many rows take 7 to 16 times as long",
    "augment": "augmenting on the CPU takes 25 to 170 times as long",
    "csv": "reading CSV takes 27 times as long",
    "pixels": "converting images takes 2 to 3 times as long",
    "markers": "JPEG rows get no restart markers, and loading a part of a picture decodes all of it",
    "gather": "copying rows out of a pack takes 2 to 10 times as long, and truncating the pack meanwhile"
    " kills the process",
    "sums": "statistics of tables take 11 times as long",
}

_LOG = logging.getLogger("packer")


def without(*purposes: str) -> str:
    """Return a sentence with the costs of missing loops (keys of COSTS), and the remedy.

    >>> without("csv")
    'packer was installed without its C extension: reading CSV takes 27 times as long. Install a C compiler, \
then reinstall packer with pip --no-cache-dir.'
    """
    costs = "; ".join(COSTS[purpose] for purpose in purposes)
    return (
        f"packer was installed without its C extension: {costs}. "
        "Install a C compiler, then reinstall packer with pip --no-cache-dir."
    )


@functools.cache
def warn(purpose: str) -> None:
    """Log, once per process, that the loops for one of COSTS are missing."""
    _LOG.warning(without(purpose))
