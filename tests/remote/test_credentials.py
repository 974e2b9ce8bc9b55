"""Where endpoint, region and keys of S3 come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packer.errors import RemoteError
from packer.remote import credentials
from packer.remote.credentials import apply, aws_options


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = 1%\n"
        "[lab]\naws_access_key_id = two\naws_secret_access_key = 2\naws_session_token = t\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-west-1\n[profile lab]\nregion = us-west-2\nendpoint_url = http://lab:9000\n"
        "[profile role]\nrole_arn = arn\n"
    )
    return tmp_path


def test_the_default_profile(home: Path) -> None:
    assert aws_options("s3://b", {"HOME": str(home)}) == (
        {"region": "eu-west-1", "access_key_id": "one", "secret_access_key": "1%"},
        None,
    )


def test_a_named_profile(home: Path) -> None:
    assert aws_options("s3://b", {"HOME": str(home), "AWS_PROFILE": "lab"})[0] == {
        "endpoint": "http://lab:9000",
        "region": "us-west-2",
        "access_key_id": "two",
        "secret_access_key": "2",
        "session_token": "t",
    }


def test_variables_win(home: Path) -> None:
    given = {"HOME": str(home), "AWS_ACCESS_KEY_ID": "k", "AWS_ENDPOINT_URL": "http://x", "AWS_REGION": "r"}
    assert aws_options("s3://b", given) == ({"endpoint": "http://x", "region": "r"}, None)
    assert aws_options("s3://b", given | {"AWS_ENDPOINT_URL_S3": "http://y"})[0]["endpoint"] == "http://y"


def test_a_public_bucket_needs_no_keys(tmp_path: Path) -> None:
    found, provider = aws_options("s3://b", {"HOME": str(tmp_path), "AWS_SKIP_SIGNATURE": "true"})
    assert (found, provider) == ({"region": "us-east-1", "skip_signature": True}, None)


def test_no_keys_anywhere_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_METADATA", ("127.0.0.1", 9))
    with pytest.raises(RemoteError, match=r"s3://b: no keys were found\. Set AWS_ACCESS_KEY_ID"):
        aws_options("s3://b", {"HOME": str(tmp_path)})


def test_an_unknown_profile_is_said(home: Path) -> None:
    with pytest.raises(RemoteError, match="there is no profile 'none'"):
        aws_options("s3://b", {"HOME": str(home), "AWS_PROFILE": "none"})


def test_no_variable_of_another_request_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"AWS_REGION": "here", "PATH": "/bin"})
    apply({"AWS_PROFILE": "p"})
    assert os.environ == {"AWS_PROFILE": "p", "PATH": "/bin"}
