"""Descriptors 0 to 2 that are closed, and streams that cannot be written."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packer import convert_images, open_pack
from packer.standard_streams import Outlet, open_closed
from packer.writing.working_folder import WorkingFolder


@contextmanager
def closed(fd: int) -> Iterator[None]:
    kept = os.dup(fd)
    os.close(fd)
    try:
        yield
    finally:
        os.dup2(kept, fd)
        os.close(kept)


def is_null_device(fd: int) -> bool:
    return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_a_closed_descriptor_becomes_the_null_device(fd: int) -> None:
    with closed(fd):
        open_closed()
        assert is_null_device(fd)
        assert os.get_inheritable(fd)


def test_no_file_of_a_pack_gets_the_number_of_a_standard_stream(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photo_folder.parent)
    convert_images(photo_folder, "train.h5", size=8)
    uses: list[Callable[[], object]] = [
        lambda: WorkingFolder("made").close(keep=False),
        lambda: open_pack("train.h5"),
    ]
    for use in uses:
        with closed(2):
            use()
            assert is_null_device(2)


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        self.write("")


def test_the_first_error_is_kept_and_later_texts_are_dropped() -> None:
    full = Outlet(Full())
    assert full.write("abc") == 3
    full.flush()
    assert full.write("d") == 1
    assert full.error is not None
    assert full.error.errno == errno.ENOSPC


def test_a_stream_that_is_closed_is_none() -> None:
    gone = io.StringIO()
    gone.close()
    for stream in (None, gone):
        outlet = Outlet(stream)
        assert outlet.write("abc") == 3
        outlet.flush()
        assert not outlet.isatty()
        assert outlet.error is not None
        assert outlet.error.errno == errno.EBADF
        assert outlet.encoding == "utf-8"


def test_a_stream_that_only_writes_is_no_terminal() -> None:
    class Log:
        said = ""

        def write(self, text: str) -> None:
            self.said += text

    log = Log()
    outlet = Outlet(log)
    outlet.write("abc")
    assert (log.said, outlet.isatty(), outlet.error) == ("abc", False, None)


def test_text_and_bytes_are_told_apart() -> None:
    below = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(below))
    outlet.buffer.write(b"abc")
    assert below.getvalue() == b"abc"
    for stream in (outlet, Outlet(None)):
        with pytest.raises(TypeError):
            stream.write(b"abc")
