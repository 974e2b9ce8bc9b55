"""The loops in C, which packer works without: what the lack of each costs, and the sentence that says so.

They are compiled when packer is installed, where there is a compiler. pip shows nothing of a build that goes without, so it is said
where a loop is first missed: in the notes of a conversion, and in the log of ``packer`` elsewhere. ``setup.py`` reads this file.
"""

from __future__ import annotations

import functools
import logging

# Module -> what takes how long without it: measured beside the compiled form, of which every module has the figures.
LOOPS = {
    "packer._random": "random orders of many rows take 7 to 16 times as long",
    "packer.augment.passes._pass": "augmenting on the CPU takes 25 to 170 times as long",
    "packer.inputs.tables._parse": "reading CSV takes 27 times as long",
    "packer.pixels._kernels": "converting images takes 2 to 3 times as long",
    "packer.read._gather": "copying rows out of a pack takes 2 to 10 times as long, and a file cut short meanwhile ends the process",
    "packer.tables._sums": "statistics of tables take 11 times as long",
}

_LOG = logging.getLogger("packer")


def without(*loops: str) -> str:
    """Say what it costs that some of LOOPS are missing, and the remedy.

    >>> without("packer.inputs.tables._parse")
    'packer was installed without its loops in C: reading CSV takes 27 times as long. Install a C compiler, then packer again with \
pip --no-cache-dir.'
    """
    costs = "; ".join(LOOPS[name] for name in loops)
    return (
        f"packer was installed without its loops in C: {costs}. "
        "Install a C compiler, then packer again with pip --no-cache-dir."
    )


@functools.cache
def warn(loop: str) -> None:
    """Say in the log, once in a process, that one of LOOPS is missing."""
    _LOG.warning(without(loop))
