"""What a store answered, or that it did not: one sentence, and whether it may pass."""

from __future__ import annotations

import re

from packer.errors import MissingObjectError, PackerError, RemoteError
from packer.remote.credentials import NOWHERE
from packer.remote.urls import AWS, AZURE, GOOGLE, ObjectUrl

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code:? (\d{3})|(?<=\b)(4\d\d|5\d\d) [A-Z]")
_KEYS = {
    AWS: "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
    GOOGLE: "GOOGLE_APPLICATION_CREDENTIALS",
    AZURE: "AZURE_STORAGE_ACCOUNT_NAME and its key",
}
_WORDS = 200


class EndedEarly(Exception):
    """An answer was shorter than it should be."""


def explain(url: str, error: Exception) -> tuple[PackerError, bool]:
    """Return the error to raise for an exception of a store's client, and True if the same request may succeed later."""
    if isinstance(error, PackerError):
        return error, False
    kind = type(error).__name__
    text, _, source = str(error).partition("\n\nDebug source")
    found = _CODE.search(text)
    code = found[1] if found else ""
    status = next((next(filter(None, groups)) for groups in _STATUS.findall(text)), "")
    if code == "NoSuchBucket":
        return RemoteError(f"{url}: there is no such bucket. Check the name and AWS_ENDPOINT_URL."), False
    if isinstance(error, FileNotFoundError) or status == "404":
        return MissingObjectError(f"{url}: is not there. Check the name."), False
    if kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError") or status in (
        "401",
        "403",
    ):
        return RemoteError(f"{url}: access was refused ({code or _told(text)}). Check {_keys(url)}."), False
    if kind in ("PreconditionError", "NotModifiedError") or status == "412":
        from packer.remote.object_store import replaced

        return replaced(url), False
    if kind == "NotSupportedError" or "NotPartial" in text or status in ("405", "501"):
        return RemoteError(
            f"{url}: the server does not serve this ({_told(text)}). Copy it to a store that does."
        ), False
    if status == "301" or code == "PermanentRedirect":
        return RemoteError(f"{url}: the bucket lies in another region. Set AWS_REGION."), False
    if f"{NOWHERE}," in source:
        return RemoteError(
            f"{url}: the server sends to another host, which would get the keys' session token, too; it is not asked."
            " Set AWS_ENDPOINT_URL to the host that has the objects."
        ), False
    refused = status.startswith("4") and status not in ("408", "429")
    wrong = isinstance(error, ValueError) or kind in ("UnknownConfigurationKeyError", "InvalidPathError")
    if refused or wrong:
        return RemoteError(f"{url}: the server refused the request ({code or _told(text)})."), False
    told = (
        "no connection"
        if "kind: Connect" in source
        else "it stalled"
        if "TimedOut" in source
        else _told(text)
    )
    return RemoteError(
        f"{url}: the server did not answer well ({told}). Check the network and the address."
    ), True


def _keys(url: str) -> str:
    scheme = ObjectUrl.parse(url).scheme
    return next((keys for schemes, keys in _KEYS.items() if scheme in schemes), "your permissions")


def _told(text: str) -> str:
    """Return the end of a client's message, which says what happened."""
    lines = [line.strip() for line in text.split(" - ")[-1].splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given").rstrip(".")[:_WORDS]
