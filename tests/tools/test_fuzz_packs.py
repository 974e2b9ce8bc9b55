"""The fuzzer: its cases are the same every time, and it tells every kind of defect from a good end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from packer.packs.pack_opening import open_pack
from tests.format.packs import write_pack

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the workers
    import fuzz_packs

    return fuzz_packs


@pytest.fixture(params=["pack.h5", "pack"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    write_pack(tmp_path / request.param, rows=12)
    return tmp_path / request.param


def whole(fuzz: Any, path: Path) -> Any:
    return fuzz.contents(path), fuzz.contents(path, verify="blocks")


def test_a_case_is_the_same_every_time(path: Path, fuzz: Any) -> None:
    cases = [fuzz.case_of([path], list(fuzz.KINDS), 3, case) for case in range(40)]
    assert cases == [fuzz.case_of([path], list(fuzz.KINDS), 3, case) for case in range(40)]
    assert len({kind for _, kind, _ in cases}) > 10
    assert len({mutation.what for _, _, mutation in cases}) > 30


def test_a_run_counts_every_case(
    path: Path, fuzz: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--count", "30", "--jobs", "2", "--kinds", "flip,header", "--out", str(tmp_path / "defects")]
    assert fuzz.main([str(path), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    header, flips, headers, total = (line.split() for line in lines[:4])
    assert header == ["cases", *fuzz.ENDS, *fuzz.DEFECTS]
    assert [flips[0], headers[0], total[0]] == ["flip", "header", "all"]
    assert total[1] == "30"
    assert sum(map(int, total[2:])) == 30
    assert lines[4].startswith("30 cases in ")
    assert not (tmp_path / "defects").exists()


def test_unknown_kinds_are_refused(path: Path, fuzz: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fuzz.main([str(path), "--kinds", "flip,flop"])
    assert "--kinds: flip, overwrite, " in capsys.readouterr().err


# --- judging ----------------------------------------------------------------------------------------------------------


def changed_row(fuzz: Any, path: Path) -> Any:
    """The files with another label in row 3, and checksums that fit."""
    original = fuzz.Original.read(path)
    extent = original.header.extents["label"][0]
    data = bytearray(original.files[extent.file])
    data[extent.offset + 3 * 8] = 99
    import pack_mutations

    return pack_mutations.fit(original, original.files | {extent.file: bytes(data)}, rows=True)


def test_rows_under_fitting_checksums_are_forged_or_undetected(path: Path, fuzz: Any) -> None:
    expected = whole(fuzz, path)
    fuzz.write(changed_row(fuzz, path), path)
    assert open_pack(path).read("label")[3] == 99
    assert fuzz.judge(path, expected, fitted=True).how == "forged"
    assert fuzz.judge(path, expected, fitted=False).how == "undetected"


def test_reading_that_lets_damage_pass_is_undetected(
    path: Path, fuzz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mutation = fuzz.mutation(fuzz.Original.read(path), ["swap"], 0, 2)
    expected = whole(fuzz, path)
    fuzz.write(mutation.files, path)
    assert fuzz.judge(path, expected, fitted=False).how == "found"
    contents = fuzz.contents
    monkeypatch.setattr(fuzz, "contents", lambda path, *, verify: contents(path))
    assert fuzz.judge(path, expected, fitted=False) == fuzz.End(
        "undetected", "verify='blocks' let other rows pass"
    )


@pytest.mark.parametrize(("error", "how"), [(KeyError("x"), "exception"), (MemoryError(), "memory")])
def test_other_errors_are_defects(
    path: Path, fuzz: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, how: str
) -> None:
    def failing(path: Path, *, verify: str | None) -> None:
        raise error

    expected = whole(fuzz, path)
    monkeypatch.setattr(fuzz, "contents", failing)
    assert fuzz.judge(path, expected, fitted=False).how == how


# --- workers ----------------------------------------------------------------------------------------------------------

STUB = """
import os, signal, sys, time
print(flush=True)
for line in sys.stdin:
    if line.startswith("1"): time.sleep(60)
    if line.startswith("2"): os.kill(os.getpid(), signal.SIGSEGV)
    if line.startswith("3"): sys.exit(7)
    print('{"how": "found", "detail": "%d"}' % os.getpid(), flush=True)
"""


def test_a_worker_that_hangs_or_dies_is_told_and_started_anew(fuzz: Any) -> None:
    worker = fuzz.Worker([sys.executable, "-c", STUB], seconds=3)
    try:
        first = worker.ask("0")
        assert first.how == "found"
        assert worker.ask("0") == first
        assert worker.ask("1") == fuzz.End("hang", "no answer within 3 s")
        assert worker.ask("2") == fuzz.End("crash", "SIGSEGV")
        assert worker.ask("3") == fuzz.End("crash", "exit code 7")
        assert worker.ask("0").how == "found"
        assert worker.ask("0") != first
    finally:
        worker.close()


def test_a_worker_that_cannot_start_is_an_error(fuzz: Any) -> None:
    worker = fuzz.Worker([sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(RuntimeError, match="a worker ended before its first case"):
        worker.ask("0")


def test_a_kept_defect_can_be_replayed(
    path: Path, fuzz: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutation = fuzz.Mutation(changed_row(fuzz, path), "a label changed", False)
    kept = tmp_path / "defects" / "0-1"
    fuzz.keep(kept, path, mutation, fuzz.End("undetected", "verify found nothing", "rows"))
    assert json.loads((kept / "case.json").read_text())["what"] == "a label changed"
    assert fuzz.main(["--replay", str(kept)]) == 1
    assert capsys.readouterr().out == (
        "a label changed\nthen: undetected: verify found nothing\nnow: undetected: verify found nothing\n"
    )
