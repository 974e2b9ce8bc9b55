"""some_packed: a few rows of a source, packed into a temporary folder as a conversion would pack them.

The one file of this folder that imports the convert half; loaded only for sources.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from packer.convert.conversion_task import Report
from packer.convert.image_conversion import convert_images
from packer.convert.some_rows import SomeRows
from packer.errors import UsageError
from packer.format.file_io import own_folder
from packer.inputs.image_sources import holds_images
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.previews.preview_batch import image_of
from packer.source_kinds import is_array_file, is_table

_ABOUT_OUTPUT = frozenset(("format", "shards", "engine", "only_shards", "resume"))
"""Options of a conversion that change no row."""


@contextmanager
def some_packed(
    source: Any,
    sheet: str,
    rows: int,
    split: Any,
    options: Mapping[str, Any],
) -> Iterator[tuple[Pack, Report]]:
    """Yield a temporary pack of up to `rows` rows, from all splits and classes, and the conversion's report.

    source: the path or paths; sheet: path of the sheet, outside them; split: as in the conversion, or the
    name of one of the source's splits; options: the conversion's others. Raises UsageError, SourceError,
    PackerError.
    """
    paths = list(source) if isinstance(source, list | tuple) else [source]
    if not paths:
        raise UsageError("path=[]: names no file; at least one is needed. Pass their paths.")
    first = os.fspath(paths[0])
    if is_table(first) and not holds_images(first):
        raise UsageError(
            f"{first}: is a table; sheets are drawn of images. To see how its columns would be read, convert "
            "it "
            "with dry_run=True."
        )
    for path in map(os.path.realpath, paths):
        if os.path.realpath(sheet).startswith(os.path.join(path, "")):
            raise UsageError(f"{sheet}: lies in the source, and would be packed with it. Pass another name.")
    if options.get("dry_run"):
        raise UsageError("dry_run=True: writes nothing, but a sheet is written. Leave it out.")
    own = {name: value for name, value in options.items() if name not in _ABOUT_OUTPUT}
    named = isinstance(split, str) and "=" not in split
    some = SomeRows(rows, split if named else "")
    own |= {"split": None if named else split, "engine": some}
    with tempfile.TemporaryDirectory(prefix="preview-", dir=own_folder()) as folder:
        out = os.path.join(folder, "rows.h5")
        if is_array_file(first):
            from packer.samples.pack_dataset import pack_dataset

            report = pack_dataset(paths, out, **own)
        else:
            report = convert_images(source, out, **own)
        pack = open_pack(out)
        image_of(pack, first)
        yield pack, report
