"""Some hundred mutations of small packs: refused, found, or without effect; tools/fuzz_packs.py does the same at length.

Deterministic, in this process: an exception other than FormatError fails, and so does damage that nothing finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from packer.codecs.block_codecs import block_codec, codec_record
from packer.format.fields import Field
from packer.packs import unsealed_hdf5 as unsealed
from packer.writing.pack_writer import PackWriter
from tests.format.packs import keys_of, write_pack

TOOLS = Path(__file__).parents[2] / "tools"
CASES = 8  # of each kind of mutation and each pack
MEMBERS: dict[str, Any] = {
    "classes": tuple(f"class {i}" for i in range(23)),
    "splits": {"train": ((0, 9),), "test": ((9, 12),)},
    "seed": 7,
    "statistics": {"image": {"mean": [0.5, 0.25, 0.125], "std": [1.0, 0.5, 0.25]}},
    "skipped": ({"key": "bad.jpg", "reason": "is empty"},),
}


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    import fuzz_packs

    monkeypatch.setattr(unsealed, "_ask", unsealed._ask)  # put back afterwards
    fuzz_packs.ask_hdf5_here()
    return fuzz_packs


def make(out: Path, kind: str) -> Path:
    """A small pack of a kind."""
    if kind in ("h5", "npy"):
        write_pack(out, keep=21, **MEMBERS)
        return out
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    if kind == "jpeg":
        field = Field("image", "|u1", None, {"layout": "HWC"}, {"name": "jpeg", "shape": [8, 8, 3]})
        rows: Any = [simplejpeg.encode_jpeg(image) for image in images]
    else:
        record = codec_record(block_codec(kind, images.shape[1:], images.dtype))
        field, rows = Field("image", "|u1", (8, 8, 3), {"layout": "HWC"}, record), images
    fields = (field, Field("label", "<i8", ()), Field("key", "|u1", None, {"encoding": "utf-8"}))
    with PackWriter(str(out), fields=fields, rows=12, block_rows=5, format="h5") as writer:
        for block, start in enumerate(range(0, 12, 5)):
            part = slice(start, min(12, start + 5))
            writer.write_block(block, {"image": rows[part], "label": np.arange(12)[part]})
        writer.finish(rows=12, ragged={"key": keys_of(12)}, **MEMBERS)
    return out


@pytest.mark.parametrize("kind", ["h5", "npy", "gzip", "zstd", "blosc2", "jpeg"])
def test_mutations_end_well(tmp_path: Path, fuzz: Any, kind: str) -> None:
    path = make(tmp_path / ("pack" if kind == "npy" else "pack.h5"), kind)
    original = fuzz.Original.read(path)
    whole = fuzz.contents(path), fuzz.contents(path, verify="blocks")
    mutant = tmp_path / f"mutant{path.suffix}"
    for name in fuzz.KINDS:
        for case in range(CASES if kind in ("h5", "npy") else CASES // 4):
            _, mutation = fuzz.mutation(original, [name], 0, case)
            if mutation.files != original.files:
                fuzz.write(mutation.files, mutant)
                end = fuzz.judge(mutant, whole, fitted=mutation.fitted)
                assert end.how in fuzz.ENDS, f"{name} {case}: {mutation.what}\n{end.detail}"
