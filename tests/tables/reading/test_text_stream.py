"""Names and globs; streams of text, compressed or not, in UTF-8 or not."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import lzma
import os
import shlex
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from packer.cli.option_words import in_options
from packer.errors import PackerError, SourceError, UsageError
from packer.tables.reading.table_source import expand
from packer.tables.reading.text_stream import TextStream

TEXT = b"".join(b"%d,%d.5\n" % (n, n * n) for n in range(50_000))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": functools.partial(lzma.compress, preset=0),
}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, data: bytes) -> str:
    Path(name).write_bytes(data)
    return name


@functools.cache
def packed(suffix: str, text: bytes = TEXT) -> bytes:
    return PACKERS[suffix](text)


def read(name: str, encoding: str = "utf-8", step: int = 10_000, offset: int = 0) -> bytes:
    stream = TextStream(name, encoding)
    try:
        if offset:
            stream.seek(offset)
        buffer = memoryview(bytearray(step))
        parts = []
        while have := stream.fill(buffer):
            parts.append(bytes(buffer[:have]))
            if have < step:
                assert not stream.fill(buffer)
        assert stream.consumed == os.path.getsize(name)
        return b"".join(parts)
    finally:
        stream.close()


def refused(name: str, encoding: str = "utf-8") -> str:
    with pytest.raises(PackerError) as error:
        read(name, encoding)
    return in_options(str(error.value))


# Names


def test_globs_are_sorted_where_they_stand() -> None:
    for name in ("b2.csv", "b10.csv", "a.csv", "c.tsv"):
        write(name, b"x")
    os.mkdir("b.csv")
    assert expand(["c.tsv", "b*.csv", "a.csv"]) == ["c.tsv", "b10.csv", "b2.csv", "a.csv"]


def test_a_file_with_the_name_of_a_pattern_is_a_file() -> None:
    write("a[1].csv", b"x")
    write("a1.csv", b"x")
    assert expand(["a[1].csv"]) == ["a[1].csv"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("*.csv", "*.csv: matches no file; at least one is needed. Check the pattern."),
        (
            "no.csv",
            "no.csv: cannot be read (No such file or directory); readable files are needed. Check it.",
        ),
        (
            "folder",
            "folder: holds other files than tables, or none; a folder of a table holds nothing else. Pass the files,"
            " for example as 'folder/*.csv'.",
        ),
        (
            "pipe.tsv",
            "pipe.tsv: is not a regular file; files are read. Pass a file.",
        ),
    ],
)
def test_what_is_no_file_is_refused(source: str, sentence: str) -> None:
    os.mkdir("folder")
    os.mkfifo("pipe.tsv")
    with pytest.raises(SourceError) as error:
        expand([source])
    assert in_options(str(error.value)) == sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_must_not_be_read_is_refused() -> None:
    os.chmod(write("a.csv", b"x"), 0)
    with pytest.raises(SourceError, match=r"^a\.csv: cannot be read \(Permission denied\)"):
        expand(["a.csv"])


def test_a_file_is_read_once() -> None:
    write("a.csv", b"x")
    os.symlink("a.csv", "b.csv")
    for sources in (["a.csv", "*.csv"], ["a.csv", "./a.csv"]):
        with pytest.raises(
            SourceError, match=r"is the same file as a\.csv; each file is read once\. Pass one of them\.$"
        ):
            expand(sources)


# Compression


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("step", [7, 1000, 1 << 20])
def test_what_was_compressed_comes_back(suffix: str, step: int) -> None:
    text = TEXT[:20_000] if step == 7 else TEXT
    assert read(write("a.csv" + suffix, packed(suffix, text)), step=step) == text


@pytest.mark.parametrize("suffix", [s for s in PACKERS if s])
def test_members_and_frames_follow_each_other(suffix: str) -> None:
    pack = PACKERS[suffix]
    assert read(write("a.CSV" + suffix.upper(), pack(TEXT) + pack(b"") + pack(b"end"))) == TEXT + b"end"


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("offset", [1, 4, 5000, len(TEXT), len(TEXT) + 9])
def test_reading_goes_on_from_anywhere(suffix: str, offset: int) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        name = write("a.csv" + suffix, packed(suffix, mark + TEXT))
        stream = TextStream(name)
        stream.fill(memoryview(bytearray(100)))
        for _ in range(2):
            stream.seek(offset)
            buffer = bytearray(100)
            have = stream.fill(memoryview(buffer))
            assert buffer[:have] == TEXT[offset : offset + 100]
        stream.close()


@pytest.mark.parametrize("suffix", [s for s in PACKERS if s])
@pytest.mark.parametrize("cut", [1, 3, 8, 1000, -9])
def test_a_file_that_was_cut_off_is_refused(suffix: str, cut: int) -> None:
    data = packed(suffix)
    name = write("a.csv" + suffix, data[:-cut])
    said = refused(name)
    assert said.startswith(f"{name}: its compressed data are damaged or truncated (")
    assert said.endswith(
        f"); complete {suffix} files are read. Copy it again, or rename it if it is not compressed."
    )


def test_a_cut_frame_behind_a_whole_one_is_refused() -> None:
    write("a.csv.zst", zstandard.compress(TEXT) + zstandard.compress(TEXT)[:-5])
    assert "damaged or truncated" in refused("a.csv.zst")


def test_a_frame_that_becomes_much_is_read_in_little_memory() -> None:
    with open("x.csv.zst", "wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        for _ in range(256):
            writer.write(b"1.0,0.0\n" * (1 << 17))
    tracemalloc.start()
    with contextlib.closing(TextStream("x.csv.zst")) as stream:
        buffer, read = memoryview(bytearray(1 << 20)), 0
        while have := stream.fill(buffer):
            read += have
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == 1 << 28
    assert most < 1 << 28


def test_frames_of_all_kinds_are_walked_over() -> None:
    data = os.urandom(300_000) + b"a" * 300_000
    frames = [
        zstandard.ZstdCompressor(write_content_size=size, write_checksum=check).compress(data)
        for size in (False, True)
        for check in (False, True)
    ]
    stream = zstandard.ZstdCompressor().compressobj()
    frames.append(stream.compress(data) + stream.flush())
    skipped = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    small = zstandard.compress(b"x" * 100)
    whole = skipped.join([small, *frames])
    assert read(write("a.csv.zst", whole)) == b"x" * 100 + data * 5
    for cut in (1, 2, 4, 5):
        assert "damaged or truncated" in refused(write("a.csv.zst", whole[:-cut]))


@pytest.mark.parametrize("suffix", [s for s in PACKERS if s])
def test_damaged_data_are_refused(suffix: str) -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True).compress
    data = bytearray(checked(TEXT) if suffix == ".zst" else packed(suffix))
    for at in range(len(data) // 2, len(data) // 2 + 40):
        data[at] ^= 0xA5
    message = refused(write("a.csv" + suffix, bytes(data)))
    assert message.startswith(f"a.csv{suffix}: its compressed data are damaged or ")


@pytest.mark.parametrize("suffix", [s for s in PACKERS if s])
def test_a_suffix_that_lies_is_refused(suffix: str) -> None:
    said = refused(write("a.csv" + suffix, b"a,b\n1,2\n"))
    assert said.startswith(f"a.csv{suffix}: its compressed data are damaged ")
    assert said.endswith("or rename it if it is not compressed.")


def test_zeros_behind_gzip_are_passed_over_other_bytes_are_not() -> None:
    assert read(write("a.csv.gz", gzip.compress(TEXT) + b"\0" * 512)) == TEXT
    for junk in (b"n", b"not gzip at all", b"\0" * 700_000 + b"x"):
        said = refused(write("a.csv.gz", gzip.compress(TEXT) * 2 + junk))
        assert said.startswith("a.csv.gz: its compressed data are damaged or truncated")


def test_without_isal_gzip_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "isal", None)
    data = gzip.compress(TEXT)
    assert read(write("a.csv.gz", data + data)) == TEXT * 2
    assert "damaged or truncated" in refused(write("a.csv.gz", data[:-3]))
    assert "its compressed data are damaged" in refused(write("a.csv.gz", data + b"junk"))
    with contextlib.closing(TextStream("a.csv.gz")) as stream:
        assert isinstance(stream._bytes, gzip.GzipFile)


def test_without_zstandard_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    assert refused(write("a.csv.zst", zstandard.compress(TEXT))) == (
        "reading .zst files: zstandard is not installed. Run: pip install zstandard"
    )


# Encodings


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "cp1252", "latin-1", "shift_jis"])
def test_other_encodings_become_utf8(encoding: str, suffix: str) -> None:
    text = ("naïve,¼\n" if encoding != "shift_jis" else "日本,語\n") * 30_000
    name = write("a.csv" + suffix, PACKERS[suffix](text.encode(encoding)))
    assert read(name, encoding, step=50_001).decode() == text
    assert read(name, encoding, offset=100_003) == text.encode()[100_003:]


def test_marks_are_dropped() -> None:
    assert read(write("a.csv", b"\xef\xbb\xbfa,b")) == b"a,b"
    assert read("a.csv", "UTF-8-SIG") == b"a,b"
    assert read(write("a.csv", "\ufeffa,b".encode("utf-16-le")), "utf-16-le") == b"a,b"


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-16-le", "FF FE"),
        ("utf-16-be", "FE FF"),
        ("utf-32-le", "FF FE 00 00"),
        ("utf-32-be", "00 00 FE FF"),
    ],
)
def test_utf16_must_be_said(encoding: str, mark: str) -> None:
    kind = encoding[:6]
    assert refused(write("a.csv", "\ufeffa,b".encode(encoding))) == (
        f"a.csv: begins like {kind.upper()} text ({mark}); UTF-8 is expected. Pass --encoding {kind}."
    )


def test_bytes_of_another_encoding_are_named() -> None:
    write("a.csv", b"a" * 3_000_001 + b"\x81" + b"b" * 10)
    assert refused("a.csv", "cp1252") == (
        "a.csv: holds bytes that are not CP1252; all of them must be. Pass another --encoding."
    )
    write("a.csv", "ab".encode("utf-16")[:-1])
    assert (
        refused("a.csv", "utf-16")
        == "a.csv: holds bytes that are not UTF-16; all of them must be. Pass another --encoding."
    )


@pytest.mark.parametrize("encoding", ["klingon", "hex", "", "a\0b"])
def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(UsageError) as error:
        TextStream(write("a.csv", b"a"), encoding)
    assert in_options(str(error.value)) == (
        f"--encoding {shlex.quote(encoding)}: is not an encoding; those that Python knows are allowed,"
        " such as utf-16, cp1252 or latin-1. Pass one of them."
    )


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_empty_file_holds_nothing(suffix: str) -> None:
    assert read(write("a.csv" + suffix, b"")) == b""
    assert read(write("a.csv" + suffix, PACKERS[suffix](b""))) == b""
