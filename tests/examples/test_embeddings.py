from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

from packer import convert_images, open_pack
from tests.conftest import Script

EPOCH = re.compile(r"epoch (\d+): loss (\d\.\d{4}), [\d,]+ rows/s, accuracy (\d\.\d{3})")


def test_it_learns_from_embeddings_beside_the_images(script: Script, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    y, x = np.mgrid[0:32, 0:32]
    for name, wave in (("coarse", np.sin(x / 3)), ("fine", np.sin(y * 1.5)), ("mixed", np.sin(x + y))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(30):
            noise = draws.normal(128 + 60 * wave[..., None], 30, (32, 32, 3))
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(
                tmp_path / "photos" / name / f"{number}.png"
            )
    pack, out = tmp_path / "pack.h5", tmp_path / "embeddings.h5"
    convert_images(tmp_path / "photos", pack, size=32, split="train=0.8,val=0.2")
    arguments = ("--epochs", "4", "--device", "cpu")
    run = script("examples/embeddings.py", pack, out, *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    first, *lines = run.stdout.splitlines()
    assert re.fullmatch(r"90 images embedded, [\d,]+ images/s", first)
    epochs = [EPOCH.fullmatch(line) for line in lines]
    assert [match[1] for match in epochs if match] == list("1234")
    assert epochs[-1]
    assert float(epochs[-1][3]) > 0.8  # of three classes
    assert open_pack(out).keys() == open_pack(pack).keys()
    bare = tmp_path / "bare.h5"
    convert_images(tmp_path / "photos", bare, size=32)
    run = script("examples/embeddings.py", bare, out)
    assert run.returncode == 1
    assert "needs the splits train and val" in run.stderr
    before = pack.read_bytes()
    run = script("examples/embeddings.py", pack, pack)  # the images must not be lost
    assert run.returncode == 1
    assert re.fullmatch(r".*pack\.h5: exists; nothing is overwritten unasked\. .*\n", run.stderr)
    assert pack.read_bytes() == before
