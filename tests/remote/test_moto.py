"""Against moto, whose S3 is another's: signatures, tags, conditions, pages and parts as it understands them."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from packer.errors import FormatError, MissingObjectError, RemoteError
from packer.remote import access


@pytest.mark.soak
def test_moto_understands_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    moto = pytest.importorskip("moto.server", reason="moto is not installed: make soak")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        data = bytes(range(256)) * 200_000
        for name, content in {"small": b"small", "large": data, "turned": data[::-1]}.items():
            (tmp_path / name).write_bytes(content)
        with pytest.raises(RemoteError, match="there is no such bucket"):
            access.put_file("s3://bucket/x", str(tmp_path / "small"))
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
        access.put_file("s3://bucket/a/large", str(tmp_path / "large"))
        access.put_file("s3://bucket/a/ä b+c", str(tmp_path / "small"))
        listed = dict(access.list_objects("s3://bucket/a"))
        assert {name: info.size for name, info in listed.items()} == {"large": len(data), "ä b+c": 5}
        assert access.read_all("s3://bucket/a/ä b+c")[0] == b"small"
        end, info = access.read_end("s3://bucket/a/large", 1000)
        assert (end, info) == (data[-1000:], listed["large"])
        assert access.read_range("s3://bucket/a/large", 77, 30_000_000, info) == data[77:30_000_000]
        access.put_file("s3://bucket/a/large", str(tmp_path / "turned"))
        with pytest.raises(FormatError, match="was replaced or changed"):
            access.read_range("s3://bucket/a/large", 0, 10, info)
        with pytest.raises(MissingObjectError, match="is not there"):
            access.stat("s3://bucket/none")
    finally:
        server.stop()
