"""tools/make_higgs_like.py: the layout, the physics in it, and that rows depend on nothing but the seed."""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "tools"


@pytest.fixture
def higgs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    made: ModuleType = pytest.importorskip("make_higgs_like")
    monkeypatch.setattr(made, "BLOCK", 2_000)
    return made


@pytest.fixture
def in_process(higgs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks made here: processes that are started would not know the small BLOCK."""

    def pieces(seed: int, rows: int, form: str, packed: bool, with_table: bool, workers: int) -> object:
        for first in range(0, rows, higgs.BLOCK):
            count = min(higgs.BLOCK, rows - first)
            yield higgs.piece(seed, first // higgs.BLOCK, count, form, packed, with_table)

    monkeypatch.setattr(higgs, "pieces", pieces)


def masses(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(vectors[0] ** 2 - (vectors[1:] ** 2).sum(axis=0), 0.0))


def test_the_layout_is_that_of_uci(higgs: ModuleType, in_process: None, tmp_path: Path) -> None:
    out, array = tmp_path / "h.csv", tmp_path / "h.npy"
    higgs.main([str(out), "--rows", "4100", "--npy", str(array)])
    lines = out.read_text().splitlines()
    assert len(lines) == 4100
    cells = [line.split(",") for line in lines]
    assert {len(row) for row in cells} == {29}
    assert {row[0] for row in cells} == {"1.000000000000000000e+00", "0.000000000000000000e+00"}
    assert len(cells[0]) == 1 + len(higgs.LOW_LEVEL) + len(higgs.HIGH_LEVEL)
    rows = np.load(array)
    assert rows.dtype == np.float32
    assert np.array_equal(np.array(cells, np.float64), rows.astype(np.float64))
    assert abs(rows[:, 0].mean() - higgs.SIGNAL_SHARE) < 0.03
    angles = [k for k, name in enumerate(higgs.LOW_LEVEL) if "eta" in name or "phi" in name]
    for column in range(28):
        middle, value = (
            (rows[:, 1 + column].std(), 1.0) if column in angles else (rows[:, 1 + column].mean(), 1.0)
        )
        assert abs(middle - value) < 0.1, (higgs.LOW_LEVEL + higgs.HIGH_LEVEL)[column]
    tags = rows[:, 1 + higgs.LOW_LEVEL.index("jet 1 b-tag")]
    assert len(np.unique(tags)) == 3
    jets = rows[:, [1 + higgs.LOW_LEVEL.index(f"jet {k} pt") for k in (1, 2, 3, 4)]]
    jets = jets * [higgs.SCALES[higgs.LOW_LEVEL.index(f"jet {k} pt")] for k in (1, 2, 3, 4)]
    assert (np.diff(jets, axis=1) <= 1e-3).all()
    assert not (tmp_path / "h.csv.part").exists()


def test_rows_depend_on_the_seed_alone(higgs: ModuleType, in_process: None, tmp_path: Path) -> None:
    texts = {}
    for name, more in {
        "short": ["--rows", "2500"],
        "long": ["--rows", "4000"],
        "other": ["--rows", "2500", "--seed", "1"],
    }.items():
        higgs.main([str(tmp_path / name), "--format", "%.7g", *more])
        texts[name] = (tmp_path / name).read_bytes()
    assert texts["long"].startswith(texts["short"])
    assert texts["other"] != texts["short"]


def test_processes_write_the_same_file_one_gzip_member(tmp_path: Path) -> None:
    import subprocess

    script = str(FOLDER / "make_higgs_like.py")
    for name, workers in (("1.csv", "1"), ("2.csv.gz", "2")):
        command = [sys.executable, script, str(tmp_path / name), "--rows", "50001", "--format", "%.3g"]
        subprocess.run([*command, "--workers", workers], check=True, capture_output=True)
    text = (tmp_path / "1.csv").read_bytes()
    assert text.count(b"\n") == 50_001
    data = (tmp_path / "2.csv.gz").read_bytes()
    assert gzip.decompress(data) == text
    one = zlib.decompressobj(wbits=31)
    assert one.decompress(data) == text
    assert one.eof
    assert one.unused_data == b""


def test_crcs_are_joined_as_zlib_would(higgs: ModuleType) -> None:
    data = bytes(range(256)) * 40
    for cut in (0, 1, 37, 5000, len(data)):
        first, second = data[:cut], data[cut:]
        joined = higgs.crc32_joined(zlib.crc32(first), zlib.crc32(second), len(second))
        assert joined == zlib.crc32(data)


def test_decays_conserve_momentum_and_have_their_masses(higgs: ModuleType) -> None:
    draws = np.random.default_rng(0)
    n = 500
    mass = draws.uniform(170, 180, n)
    parent = higgs.moving(mass, draws.uniform(0, 200, n), draws.normal(0, 1, n), draws.uniform(-3, 3, n))
    assert np.allclose(masses(parent), mass)
    first, second = higgs.decay(parent, mass, 80.4, 4.7, draws)
    assert np.allclose(first + second, parent)
    assert np.allclose(masses(first), 80.4, atol=1e-3)
    assert np.allclose(masses(second), 4.7, atol=0.02)


@pytest.mark.parametrize("kind", ["signal", "background"])
def test_the_true_particles_come_from_what_was_asked_for(higgs: ModuleType, kind: str) -> None:
    draws = np.random.default_rng(0)
    event = getattr(higgs, kind)(2000, draws)
    bottoms = [vectors for name, vectors in event.quarks if name == "b"]
    jets = [vectors for name, vectors in event.quarks[:4] if name != "b"]
    assert abs(np.median(higgs.mass_of(event.lepton, event.neutrino)) - 80.4) < 0.5
    assert abs(np.median(higgs.mass_of(*jets)) - 80.4) < 0.5
    pair = higgs.mass_of(*bottoms)
    ways = [
        (higgs.mass_of(event.lepton, event.neutrino, mine), higgs.mass_of(*jets, other))
        for mine, other in (bottoms, bottoms[::-1])
    ]
    tops = np.min([np.abs(a - 172.5) + np.abs(b - 172.5) for a, b in ways], axis=0)
    if kind == "signal":
        assert (np.abs(pair - 125.0) < 0.1).all()
        whole = higgs.mass_of(event.lepton, event.neutrino, *jets, *bottoms)
        assert abs(np.median(whole) - 425.0) < 1.0
        assert np.median(tops) > 10
    else:
        assert (np.abs(pair - 125.0) < 1.0).mean() < 0.05
        assert np.median(tops) < 3


def test_a_neutrino_makes_a_w_again(higgs: ModuleType) -> None:
    draws = np.random.default_rng(0)
    event = higgs.background(2000, draws)
    found = higgs.neutrino_of(event.lepton, *event.neutrino[1:3])
    whole = higgs.mass_of(event.lepton, found)
    real = whole < 80.41  # a W heavier than that can leave no solution
    assert real.mean() > 0.4
    assert np.allclose(whole[real], 80.4, atol=0.02)


def test_the_signal_is_there_and_no_line_separates_it(
    higgs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(higgs, "BLOCK", 20_000)
    table = higgs.block(0, 0)
    label, bb = table[:, 0] > 0.5, table[:, 1 + 21 + higgs.HIGH_LEVEL.index("m_bb")]
    near = np.abs(bb * higgs.SCALES[21 + higgs.HIGH_LEVEL.index("m_bb")] - 120) < 15
    assert near[label].mean() > 1.7 * near[~label].mean()
    low = np.column_stack([table[:, 1:22], np.ones(len(table))])
    scores = low @ np.linalg.lstsq(low[:10_000], table[:10_000, 0], rcond=None)[0]
    positive, negative = np.sort(scores[10_000:][label[10_000:]]), scores[10_000:][~label[10_000:]]
    auc = 1 - np.searchsorted(positive, negative).mean() / len(positive)
    assert 0.58 < auc < 0.70


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows 0: is below 1. Pass a whole number from 1 on."),
        (["--format", "%d%d"], '--format \'%d%d\': formats no number. Pass one like "%.18e" or "%.7g".'),
    ],
)
def test_wrong_usage_is_a_sentence(
    higgs: ModuleType, tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as exit:
        higgs.main([str(tmp_path / "h.csv"), *arguments])
    assert exit.value.code == message
    assert not list(tmp_path.iterdir())
