"""Servers of objects, as plain HTTP and as S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from packer.remote import access
from tests.remote.object_server import ObjectServer, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A server, which s3:// URLs mean, too; clients wait for it for half a second."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(access, "STALL_SECONDS", 0.5)
    with serving() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


@pytest.fixture(params=["s3", "http"])
def bucket(request: pytest.FixtureRequest, server: ObjectServer) -> str:
    """The URL of the server's bucket, by each scheme."""
    return "s3://bucket" if request.param == "s3" else f"{server.url}/bucket"
