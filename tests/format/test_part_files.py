from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from packer.errors import PackerError
from packer.writing.pack_writer import PackWriter
from tests.format.packs import FIELDS, FORMATS, files_of, keys_of, out_path, rows_of, write_pack


@pytest.mark.parametrize("format", FORMATS)
def test_another_process_writes_the_same_blocks(tmp_path: Path, format: str) -> None:
    """From what is pickled, with files of its own; the writer journals the checksums that it returns."""
    out, rows = out_path(tmp_path, format), rows_of(23)
    with PackWriter(str(out), fields=FIELDS, rows=23, block_rows=5, format=format) as writer:
        files = pickle.loads(pickle.dumps(writer.files))
        for number in (4, 0, 2, 1, 3):
            block, (start, stop) = files.open_block(number), files.span(number)
            block.write({name: array[start:stop] for name, array in rows.items()})
            writer.record(number, None, block.close())
        files.close()
        writer.finish(rows=23, ragged={"key": keys_of(23)})
    write_pack(out_path(tmp_path, format, "one"))
    assert files_of(out) == files_of(out_path(tmp_path, format, "one"))


def test_files_that_were_removed_meanwhile_are_a_sentence(tmp_path: Path) -> None:
    with PackWriter(str(tmp_path / "p"), fields=FIELDS, rows=23, block_rows=5, format="npy") as writer:
        files = pickle.loads(pickle.dumps(writer.files))
        os.remove(tmp_path / "p.packing" / "pack" / "image.npy")
        with pytest.raises(PackerError, match="writing failed, because its folder was removed meanwhile"):
            files.open_block(0).write({"image": rows_of(5)["image"]})
