"""report(): writes the data card of packs, an HTML page about their contents and about doubtful rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from packer import units
from packer.arguments import check_workers, whole
from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.format.file_io import write_file
from packer.packs.output_names import check_name
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.path_text import as_text
from packer.previews.preview_batch import image_of
from packer.progress import Progress
from packer.reports.card_content import measure_card
from packer.reports.page import load_template, render

MARK = b"<!doctype html><!-- packer report -->"
"""Beginning of a report; overwrite=True replaces only files that begin so."""
MOST_SHOWN = 5000
"""Limit for rows on the contact sheet; each takes about 5 kB of the page."""

PackPath = str | os.PathLike[str] | Pack


class DataCard(NamedTuple):
    """The result of report(). Rows of tables are compared by their bytes alone.

    rows: rows of all packs.
    exact: rows whose bytes equal those of an earlier row.
    near: rows with an equal or similar row.
    leaked: name of a split or pack -> its rows with an equal or similar row in another split or pack.
    suspects: rows with an equal or similar row that has another label.
    """

    path: str
    packs: tuple[str, ...]
    rows: int
    nbytes: int
    exact: int
    near: int
    leaked: dict[str, int]
    suspects: int
    seconds: float

    def __str__(self) -> str:
        alike = f"{self.near:,} (nearly) the same as others" if self.near else "none the same as another"
        counts = [units.count(self.rows, "row"), alike]
        counts += [f"{n:,} of {name} also elsewhere" for name, n in self.leaked.items() if n]
        counts += [f"{self.suspects:,} with another label than a row like them"] if self.suspects else []
        return (
            f"{self.path}: {', '.join(counts)}; {units.size(self.nbytes)}, in {units.duration(self.seconds)}"
        )


@checks_arguments
def report(
    path: PackPath | Sequence[PackPath],
    out: str | os.PathLike[str] = "report.html",
    *,
    rows: int = 200,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> DataCard:
    """Write the data card of packs: an HTML page that loads nothing and runs no script.

    For images it shows fields, classes and splits, a contact sheet, sizes, skipped inputs, and equal or
    similar rows in different splits or packs, or with different labels. For tables it shows the columns
    and their distributions.

    Parameters
    ----------
    path : path or list of paths
        A pack, or packs that belong together, such as one for training and one for testing.
    out : path, default "report.html"
        The page, .html or .htm.
    rows : int, default 200
        Rows on the contact sheet, at most, spread evenly over the classes.
    workers : int, optional
        Threads that read and decode; default: the available cores.
    overwrite : bool, default False
        Replace an earlier report.
    progress : bool, default False
        Show the progress.
    on_progress : callable, optional
        Called with the rows read so far.

    Returns
    -------
    DataCard

    Raises
    ------
    UsageError
        The page exists, an argument is wrong, or the packs do not go together.
    FormatError
        A pack is damaged.
    PackerError
        The page cannot be written.

    Notes
    -----
    Each row is read once, and 100 bytes of it are kept: a million rows take 100 MB in addition to the rows
    being decoded. Equal packs give equal pages.
    """
    began = time.perf_counter()
    target = os.fspath(out)
    if not target.lower().endswith((".html", ".htm")):
        raise UsageError(f"{target}: is not named as a page; .html and .htm are allowed. Pass another name.")
    check_name(target, overwrite=overwrite, ours=_is_report, other="is no report", kinds="reports")
    most = whole("rows", rows, 0, MOST_SHOWN)
    workers = check_workers(workers)
    given = [path] if isinstance(path, (str, os.PathLike, Pack)) else list(path)
    if not given:
        raise UsageError("path=[]: names no pack; at least one is needed. Pass their paths.")
    packs = [one if isinstance(one, Pack) else open_pack(one) for one in given]
    _check_shareable(packs)
    template = load_template()
    with Progress(progress, "rows", on_progress) as bar:
        card = measure_card(packs, _names(packs), most, workers, bar)
        data = render(template, card).encode("utf-8")
    write_file(target, data)
    found = card.duplicates
    leaked = () if found is None or len(card.parts) < 2 else found.leaked
    return DataCard(
        path=target,
        packs=tuple(pack.path for pack in packs),
        rows=card.rows,
        nbytes=len(data),
        exact=found.repeats if found else 0,
        near=found.near_rows if found else 0,
        leaked={part.name: n for part, n in zip(card.parts, leaked, strict=False)},
        suspects=found.suspects if found else 0,
        seconds=time.perf_counter() - began,
    )


def _names(packs: Sequence[Pack]) -> list[str]:
    """Return a short name for each pack: its file name, or its path if two packs share the file name."""
    paths = [as_text(pack.path) for pack in packs]
    names = [os.path.basename(path.rstrip("/")) or path for path in paths]
    return [path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]


def _check_shareable(packs: Sequence[Pack]) -> None:
    """Raise UsageError for packs that cannot share a page."""
    first, paths = packs[0], [os.path.realpath(pack.path) for pack in packs]
    for pack in packs:
        if not pack.rows:
            raise UsageError(f"{pack.path}: has no rows. Pass a pack with some.")
        if paths.count(os.path.realpath(pack.path)) > 1:
            raise UsageError(f"{pack.path}: is given twice; each pack once is allowed. Leave it out.")
        if pack.header.find("image") is not None:
            image_of(pack)
        if _kind(pack) != _kind(first):
            raise UsageError(
                f"{pack.path}: cannot share a report with {first.path}; a report shows packs of images, or"
                " packs of tables with the same columns. Write a report of each."
            )


def _kind(pack: Pack) -> tuple[object, ...]:
    table = pack.parts[0].header.table
    columns = () if table is None else (table.get("features"), table.get("categories"))
    return pack.header.find("image") is None, table is None, *columns


def _is_report(path: str) -> bool:
    """Return True for a file that begins with the mark of a report."""
    if os.path.isfile(path) and not os.path.islink(path):
        with suppress(OSError), open(path, "rb") as file:
            return file.read(len(MARK)) == MARK
    return False
