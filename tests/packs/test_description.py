from __future__ import annotations

from pathlib import Path

from packer import convert_images, open_pack


def test_a_notebook_shows_what_a_pack_holds(photo_folder: Path, tmp_path: Path) -> None:
    """As packer info says it, with nothing of a file's names as HTML."""
    (photo_folder / "red").rename(photo_folder / "<b>red")
    convert_images(photo_folder, tmp_path / "p.h5", size=32, split="train=0.5,val=0.5")
    pack = open_pack(tmp_path / "p.h5")
    page = pack._repr_html_()
    assert "classes    3: &lt;b&gt;red, blue, green" in page
    assert "split      val: 12 rows (12 to 23)" in page
    lines = pack.describe()
    assert page.count("\n") + 1 == len(lines)
    assert pack.describe(["a line"]).count("a line") == 1
    assert [line for line in pack.describe(["a line"]) if line != "a line"] == lines
