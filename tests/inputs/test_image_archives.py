from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import shutil
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import ImageError, PackerError, SourceError, SpaceError, UsageError
from packer.inputs import image_archives
from packer.inputs.image_archives import archive_stem, open_archive
from packer.path_text import visible
from packer.source_kinds import ARCHIVES, is_archive

Write = Callable[..., str]
FILES = {"cat/1.jpg": b"one" * 500, "cat/x/2.png": b"", "dog/3.gif": bytes(range(256)) * 6}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
KINDS = [*(kind for kind in ARCHIVES), ".stored.zip", ".TAR"]


def tar_bytes(members: dict[str, bytes | None], format: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file; None makes a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type = tarfile.DIRTYPE
            info.size = len(data or b"")
            tar.addfile(info, io.BytesIO(data or b""))
    return buffer.getvalue()


def zip_bytes(members: dict[str, bytes | None], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members.items():
            file.writestr(name if data is not None else name + "/", data or b"")
    return buffer.getvalue()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """write(members or bytes, ".tar") -> the archive's name in the working directory."""
    monkeypatch.chdir(tmp_path)

    def run(members: dict[str, bytes | None] | bytes, kind: str = ".tar") -> str:
        if isinstance(members, dict):
            if kind.endswith(".zip"):
                method = zipfile.ZIP_STORED if "stored" in kind else zipfile.ZIP_DEFLATED
                members = zip_bytes(members, method)
            else:
                members = tar_bytes(members)
                compress = next((c for end, c in COMPRESS.items() if kind.endswith(end[-2:])), None)
                members = compress(members) if compress else members
        (tmp_path / f"pets{kind}").write_bytes(members)
        return f"pets{kind}"

    return run


def refused(path: str, inside: str = "", kind: type[PackerError] = SourceError) -> str:
    with pytest.raises(kind) as error:
        open_archive(path, inside)
    return str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_back_in_any_order(write: Write, kind: str) -> None:
    path = write({"README": b"text", "cat": None, **FILES, "empty": None}, kind)
    assert is_archive(path)
    archive = open_archive(path)
    assert archive.keys == list(FILES)
    assert list(archive.sizes) == [len(data) for data in FILES.values()]
    assert archive.folders == {"cat", "cat/x", "dog", "empty"}
    for index in (2, 0, 1, 0):
        assert archive.read(index) == FILES[archive.keys[index]]
    archive.close()
    archive.close()


@pytest.mark.parametrize(
    ("path", "stem"),
    [("a/pets.tar.gz", "pets"), ("pets.v2.TAR", "pets.v2"), ("a.zip/b.tgz", "b"), ("x.tar.zip", "x.tar")],
)
def test_the_stem_is_the_name_without_folders_and_ending(path: str, stem: str) -> None:
    assert archive_stem(path) == stem


@pytest.mark.parametrize("kind", [".tar", ".tgz", ".zip"])
@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (["pets/cat/1.jpg", "pets/README"], True),
        (["./pets/1.jpg", "__MACOSX/1.jpg"], True),
        (["petshop/1.jpg"], False),
        (["pets/1.jpg", "README"], False),
        (["pets/1.jpg", "more/README"], False),
    ],
)
def test_whether_one_folder_holds_everything(write: Write, kind: str, names: list[str], answer: bool) -> None:
    archive = open_archive(write(dict.fromkeys(names, b"1"), kind))
    assert archive.base == ("pets/" if answer else "")
    archive.close()


@pytest.mark.parametrize("kind", [".tar", ".tgz", ".zip"])
def test_a_folder_inside(write: Write, kind: str) -> None:
    path = write({f"./data/{key}": value for key, value in FILES.items()} | {"database/9.jpg": b"9"}, kind)
    archive = open_archive(path, "data/cat")
    assert archive.keys == ["1.jpg", "x/2.png"]
    assert archive.folders == {"x"}
    assert archive.read(0) == FILES["cat/1.jpg"]
    archive.close()


@pytest.mark.parametrize(("kind", "inside"), [(".tar", "dat"), (".zip", "data/cow"), (".tgz", "README")])
def test_a_folder_that_is_not_inside(write: Write, kind: str, inside: str) -> None:
    path = write({"README": b"", "data/cat/1.jpg": b"1", "more": None}, kind)
    assert refused(path, inside, UsageError) == (
        f"{path}/{inside}: no such folder in the archive; its top holds data, more. Pass one of its folders."
    )


def test_hidden_members_and_what_macos_adds_are_skipped(write: Write) -> None:
    path = write(
        {"cat/1.jpg": b"1", "cat/._1.jpg": b"x", "__MACOSX/cat/1.jpg": b"x", ".git/2.jpg": b"x"}, ".zip"
    )
    archive = open_archive(path)
    assert archive.keys == ["cat/1.jpg"]
    assert archive.folders == {"cat"}
    archive.close()


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_names_that_are_not_utf_8(write: Write, format: int) -> None:
    keys = ["a" * 90 + "/" + "b" * 90 + ".jpg", "caf\udce9/1.jpg"]
    archive = open_archive(write(tar_bytes(dict.fromkeys(keys, b"data"), format)))
    assert archive.keys == keys
    assert archive.read(1) == b"data"
    archive.close()


@pytest.mark.parametrize("name", ["/cat/1.jpg", "../1.jpg", "cat/../../1.jpg"])
@pytest.mark.parametrize("kind", [".tar", ".tgz", ".zip"])
def test_names_that_lead_out_are_refused_for_images_only(write: Write, name: str, kind: str) -> None:
    path = write({name: b"1"}, kind)
    assert refused(path) == (
        f"{path}: {name} leads out of the archive; images must be ordinary members. Create the archive without it."
    )
    path = write({name.replace("jpg", "txt"): b"1", "cat/2.jpg": b"2"}, kind)
    archive = open_archive(path)
    assert archive.keys == ["cat/2.jpg"]
    archive.close()


@pytest.mark.parametrize(
    ("type", "reason"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.FIFOTYPE, "is not an ordinary file"),
        (tarfile.CHRTYPE, "is not an ordinary file"),
    ],
)
def test_links_and_devices_are_refused_for_images_only(write: Write, type: bytes, reason: str) -> None:
    def archive_of(name: str) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = type, "elsewhere"
            tar.addfile(info)
        return buffer.getvalue()

    assert refused(write(archive_of("cat/1.jpg"))) == (
        f"pets.tar: cat/1.jpg {reason}; images must be ordinary members. Create the archive without it."
    )
    open_archive(write(archive_of("cat/latest"))).close()


def test_links_encryption_and_rare_methods_in_a_zip(write: Write) -> None:
    link = zipfile.ZipInfo("cat/1.jpg")
    link.external_attr = 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(link, "elsewhere")
    ending = "; images must be ordinary members. Create the archive without it."
    assert refused(write(buffer.getvalue(), ".zip")) == f"pets.zip: cat/1.jpg is a link{ending}"

    encrypted = bytearray(zip_bytes({"cat/1.jpg": b"1"}))
    encrypted[encrypted.index(b"PK\1\2") + 8] |= 1
    assert refused(write(bytes(encrypted), ".zip")) == f"pets.zip: cat/1.jpg is encrypted{ending}"

    rare = zip_bytes({"cat/1.jpg": b"1"}, zipfile.ZIP_LZMA)
    assert refused(write(rare, ".zip")) == (
        f"pets.zip: cat/1.jpg is compressed by method 14, not stored or deflated{ending}"
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", [".tar", ".zip"])
def test_a_name_that_occurs_twice_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"pets{kind}"
    if kind == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("1.jpg", "a")
            file.writestr("1.jpg", "b")
    else:
        with tarfile.open(path, "w") as tar:
            tar.addfile(tarfile.TarInfo("1.jpg"))
            tar.addfile(tarfile.TarInfo("./1.jpg"))
    assert refused(str(path)).endswith(
        "1.jpg occurs twice; names in an archive are unique. Create the archive again."
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.85])
def test_truncated_archives_are_refused(write: Write, kind: str, share: float) -> None:
    path = write({f"cat/{n}.jpg": os.urandom(700) for n in range(30)}, kind)
    whole = Path(path).read_bytes()
    write(whole[: int(len(whole) * share)], kind)
    assert (
        refused(path)
        == f"{path}: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )


def test_a_tar_that_ends_between_two_members_is_refused(write: Write) -> None:
    whole = tar_bytes({"cat/1.jpg": b"1", "cat/2.jpg": b"2"})
    assert refused(write(whole[:1024])) == (
        "pets.tar: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )


def test_a_damaged_header_in_the_middle_is_refused(write: Write) -> None:
    damaged = bytearray(tar_bytes({"cat/1.jpg": b"1", "cat/2.jpg": b"2", "cat/3.jpg": b"3"}))
    damaged[1024 + 3] ^= 1
    assert refused(write(bytes(damaged))) == (
        "pets.tar: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )


def test_damage_that_only_the_compressors_checksum_shows_is_refused(write: Write) -> None:
    damaged = bytearray(gzip.compress(tar_bytes({"cat/1.jpg": b"1"})))
    damaged[-6] ^= 1
    assert refused(write(bytes(damaged), ".tgz")) == (
        "pets.tgz: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )


def test_damage_inside_a_zip_is_an_image_error(write: Write) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        damaged = bytearray(zip_bytes({"cat/1.jpg": bytes(range(250))}, method))
        damaged[60] ^= 1
        archive = open_archive(write(bytes(damaged), ".zip"))
        with pytest.raises(ImageError) as error:
            archive.read(0)
        assert str(error.value) == "damaged inside the archive."
        archive.close()


@pytest.mark.parametrize("kind", [".tar", ".zip"])
def test_an_archive_that_shrinks_while_it_is_read(write: Write, kind: str) -> None:
    path = write({"cat/1.jpg": os.urandom(5000)}, kind)
    archive = open_archive(path)
    os.truncate(path, 1000)
    with pytest.raises(SourceError) as error:
        archive.read(0)
    assert str(error.value) == (
        f"{path}: was changed while it was read. Run the same command again once it is complete."
    )
    archive.close()


def test_a_member_of_a_zip_whose_name_begins_with_a_zero_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/1.jpg", b"one")
        file.writestr("note.txt", b"two")
    path.write_bytes(path.read_bytes().replace(b"note.txt", b"\0ote.txt"))
    assert open_archive(str(path)).keys == ["a/1.jpg"]


def test_an_empty_archive_lists_nothing(write: Write) -> None:
    for kind in (".tar", ".tar.xz", ".zip"):
        archive = open_archive(write({}, kind))
        assert archive.keys == []
        archive.close()


def test_a_compressed_tar_is_spooled_where_asked_and_leaves_nothing(write: Write, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    archive = open_archive(write({"cat/1.jpg": b"1" * 9000}, ".tgz"), "", str(spool))
    assert list(spool.iterdir()) == []
    assert archive.read(0) == b"1" * 9000
    archive.close()


def test_no_room_to_spool_is_a_space_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write({"cat/1.jpg": b"1"}, ".tgz")
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(SpaceError) as error:
        open_archive(path, "", "/tmp")
    assert str(error.value) == (
        "pets.tgz: no space left in /tmp for a temporary copy of its images; the file itself "
        "has no random access. Free space there."
    )


@pytest.mark.parametrize("kind", [".tar", ".tgz", ".zip"])
def test_an_unreadable_archive(write: Write, kind: str) -> None:
    path = f"none{kind}"
    assert refused(path) == f"{path}: cannot be read (No such file or directory); an archive is needed."


@pytest.mark.parametrize("kind", [".tar", ".tar.gz", ".zip"])
def test_many_threads_read_at_once(write: Write, kind: str) -> None:
    files = {f"cat/{n}.jpg": bytes([n]) * (100 + 997 * n) for n in range(40)}
    archive = open_archive(write(files, kind))
    wrong = []

    def work(first: int) -> None:
        for step in range(200):
            index = (first + 7 * step) % 40
            if archive.read(index) != files[archive.keys[index]]:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    archive.close()
    assert not wrong


def zip_of(entries: list[tuple[bytes, bytes, int, int | None]], data: bytes = b"data") -> bytes:
    """A zip of stored entries: name in the directory, name where it lies, size as told, offset (None: where it lies)."""
    body, directory, crc = b"", b"", zlib.crc32(data)
    for told, own, size, offset in entries:
        at = len(body) if offset is None else offset
        wide = struct.pack("<HHQQQ", 1, 24, size, size, at)
        wanting = 0xFFFFFFFF
        directory += struct.pack("<4s6H3I", b"PK\1\2", 45, 45, 0, 0, 0, 33, crc, wanting, wanting)
        directory += struct.pack("<5H2I", len(told), len(wide), 0, 0, 0, 0, wanting)
        directory += told + wide
        body += struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 33, crc, len(data), len(data), len(own), 0)
        body += own + data
    count = len(entries)
    return (
        body
        + directory
        + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)
    )


def test_a_zip_whose_directory_names_another_member_is_an_image_error(write: Write) -> None:
    path = write(
        zip_of([(b"cat/1.jpg", b"cat/1.jpg", 4, None), (b"cat/2.jpg", b"dog/2.jpg", 4, None)]), ".zip"
    )
    archive = open_archive(path)
    assert archive.read(0) == b"data"
    with pytest.raises(ImageError) as error:
        archive.read(1)
    assert str(error.value) == "has a local header that differs from the archive's directory."
    archive.close()


def test_members_of_a_zip_that_share_bytes_are_refused(write: Write) -> None:
    twice = [(b"a/1.jpg", b"a/1.jpg", 4, None), (b"a/2.jpg", b"a/2.jpg", 4, 0)]
    assert refused(write(zip_of(twice), ".zip")) == (
        "pets.zip: a/1.jpg and a/2.jpg overlap; members of an archive may not. Create the archive again."
    )


@pytest.mark.parametrize(("size", "offset"), [(1 << 62, None), (4, 1 << 62), ((1 << 63) + 5, None)])
def test_members_of_a_zip_that_would_lie_behind_its_end_are_refused(
    write: Write, size: int, offset: int | None
) -> None:
    assert refused(write(zip_of([(b"a/1.jpg", b"a/1.jpg", size, offset)]), ".zip")) == (
        "pets.zip: a/1.jpg lies beyond its end; an intact archive is needed. Fetch it again."
    )


@pytest.mark.parametrize("name", [b"cat\\1.jpg", b"cat/1.txt\0.jpg", b"C:\\1.jpg"])
def test_zero_bytes_and_backslashes_in_names_of_a_zip(write: Write, name: bytes) -> None:
    assert refused(write(zip_of([(name, name, 4, None)]), ".zip")) == (
        f"pets.zip: {visible(name.decode())} has a zero byte or a backslash in its name; images must be ordinary members. "
        "Create the archive without it."
    )


@pytest.mark.parametrize("kind", [".tar", ".zip"])
def test_names_that_no_system_has_are_refused_for_images_only(write: Write, kind: str) -> None:
    deep = "a/" * 2044 + "b/c"
    archive = open_archive(write({f"{deep}.jpg": b"1", deep * 9: b"2"}, kind))
    assert archive.folders == {"a", "a/a", "a/a/a"}  # not each of 2,000 levels: that would be 4 MB a name
    archive.close()
    message = refused(write({f"{deep * 2}.jpg": b"1"}, kind))
    assert message.startswith("pets" + kind + ": a/a/")
    assert len(message) < 300
    assert message.endswith(
        "is longer than 4,096 bytes; images must be ordinary members. Create the archive without it."
    )


def tar_header(name: bytes, size: int, type: bytes = b"0", told: bytes = b"") -> bytes:
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = told or b"%011o\0" % size
    block[156:157], block[257:265], block[148:156] = type, b"ustar\x0000", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "header",
    [
        tar_header(b"pax", 1 << 30, b"x") + b"\0" * 512,
        tar_header(b"long", 1 << 30, b"L") + b"\0" * 512,
        tar_header(b"global", 44 * 512, b"g") + b"".join(b"11 k%04d=v\n" % n for n in range(2048)),
        (tar_header(b"long", 4, b"L") + b"name" + b"\0" * 508) * 2000,
        tar_header(b"a/1.jpg", 0, b"0", b"\xff" * 11 + b"\0"),
        tar_header(b"a/1.bin", 0, b"0", b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7),
    ],
    ids=["PAX of 1 GB", "name of 1 GB", "PAX for all", "chain", "negative", "huge"],
)
@pytest.mark.parametrize("kind", [".tar", ".tgz"])
def test_tar_headers_that_would_exhaust_memory_or_time(write: Write, header: bytes, kind: str) -> None:
    data = header + tar_bytes({"a/2.jpg": b"1"})
    path = write(gzip.compress(data, 1) if kind == ".tgz" else data, kind)
    assert (
        refused(path)
        == f"{path}: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )


@pytest.mark.parametrize("kind", [".tar", ".tgz"])
def test_what_lies_behind_the_end_of_a_tar_is_not_left_out_silently(write: Write, kind: str) -> None:
    def archive_of(data: bytes) -> str:
        return write(gzip.compress(data, 1) if kind == ".tgz" else data, kind)

    one = tar_bytes({"a/1.jpg": b"1"})
    open_archive(archive_of(one + b"\0" * 9000)).close()
    path = archive_of(one + tar_bytes({"a/2.jpg": b"1"}))
    sentence = (
        f"{path}: has data after its end marker, as concatenated archives have; only the first would be read. "
        "Unpack it with tar --ignore-zeros, or create it again."
    )
    assert refused(path) == sentence


@pytest.mark.parametrize("kind", [".tar", ".zip", ".tgz"])
def test_an_archive_that_is_written_anew_in_its_place_gives_no_image(write: Write, kind: str) -> None:
    path = write({"cat/1.jpg": b"cat", "dog/1.jpg": b"dog"}, kind)
    archive = open_archive(path)
    write({"dog/1.jpg": b"dog", "cat/1.jpg": b"cat"}, kind)
    os.utime(path, ns=(1, 1))
    if kind == ".tgz":  # its images have been decompressed
        assert archive.read(0) == b"cat"
    else:
        with pytest.raises(SourceError) as error:
            archive.read(0)
        assert str(error.value) == (
            f"{path}: was changed while it was read. Run the same command again once it is complete."
        )
    archive.close()


@settings(max_examples=80)
@given(
    kind=st.sampled_from([".tar", ".tgz", ".zip"]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_raises_nothing_but_packers_errors(
    tmp_path_factory: pytest.TempPathFactory, kind: str, flips: list[tuple[float, int]]
) -> None:
    data = zip_bytes(dict(FILES)) if kind == ".zip" else tar_bytes(dict(FILES))
    damaged = bytearray(gzip.compress(data) if kind == ".tgz" else data)
    for place, flip in flips:
        damaged[int(place * len(damaged))] ^= flip
    folder = tmp_path_factory.mktemp("damaged")
    (folder / f"pets{kind}").write_bytes(damaged)
    try:
        archive = open_archive(str(folder / f"pets{kind}"))
        for index in range(len(archive.keys)):
            archive.read(index)
        archive.close()
    except PackerError:
        pass
    finally:
        shutil.rmtree(folder)


def test_a_member_that_grows_a_hundredfold_is_not_inflated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_archives, "_LARGE", 10_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.bmp", bytes(1 << 20))
        archive.writestr("2.bmp", bytes(9_000))
        packed = archive.getinfo("1.bmp").compress_size
    opened = open_archive(str(tmp_path / "bomb.zip"))
    with pytest.raises(ImageError) as caught:
        opened.read(0)
    assert str(caught.value) == (
        f"expands from {packed:,} to 1,048,576 bytes; files above 10,000 bytes may expand at most 100 times."
        " Unpack the archive if the file is genuine."
    )
    assert opened.read(1) == bytes(9_000)
    opened.close()
