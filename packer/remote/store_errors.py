"""Errors of stores as sentences, and whether each is transient."""

from __future__ import annotations

import asyncio
import re

from packer.errors import FormatError, MissingObjectError, PackerError, RemoteError
from packer.remote.credentials import NOWHERE
from packer.remote.urls import AWS, AZURE, GOOGLE, ObjectUrl

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code:? (\d{3})|(?<=\b)(4\d\d|5\d\d) [A-Z]")
_KEYS = {
    **dict.fromkeys(AWS, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE"),
    **dict.fromkeys(GOOGLE, "GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(AZURE, "AZURE_STORAGE_ACCOUNT_NAME and its key"),
}
_REFUSALS = ("PermissionDeniedError", "UnauthenticatedError", "PermissionError")
_WORDS = 200
_MOST_TEXT = 1 << 16  # of a message, which includes the body of the answer


class EndedEarly(Exception):
    """An answer was shorter than it should be."""


def explain(url: str, error: Exception) -> tuple[PackerError, bool]:
    """Return the error to raise for an exception of a store's client, and True if it is transient."""
    if isinstance(error, PackerError):
        return error, False
    kind = type(error).__name__
    text, _, source = str(error).partition("\n\nDebug source")
    text, source = text[:_MOST_TEXT], source[:_MOST_TEXT]
    found = _CODE.search(text)
    code = found[1] if found else ""
    status = next((next(filter(None, groups)) for groups in _STATUS.findall(text)), "")
    if code != "NoSuchBucket" and (isinstance(error, FileNotFoundError) or status == "404"):
        return MissingObjectError(f"{url}: is not there. Check the name."), False
    if kind in ("PreconditionError", "NotModifiedError") or status == "412":
        return replaced(url), False
    cause = _cause(text)
    keys = _KEYS.get(ObjectUrl.parse(url).scheme, "your permissions")
    refused = status.startswith("4") and status not in ("408", "429")
    wrong = isinstance(error, ValueError) or kind in ("UnknownConfigurationKeyError", "InvalidPathError")
    for applies, what in (
        (code == "NoSuchBucket", "there is no such bucket. Check the name and AWS_ENDPOINT_URL."),
        (
            kind in _REFUSALS or status in ("401", "403"),
            f"access was refused ({code or cause}). Check {keys}.",
        ),
        (
            kind == "NotSupportedError" or "NotPartial" in text or status in ("405", "501"),
            f"the server does not support this request ({cause}). Copy the object to a store that does.",
        ),
        (
            status == "301" or code == "PermanentRedirect",
            "the bucket lies in another region. Set AWS_REGION.",
        ),
        (
            f"{NOWHERE}," in source,
            "the server redirects to another host, which would receive the session token; packer does not"
            " follow. Set AWS_ENDPOINT_URL to the host that has the objects.",
        ),
        (
            "following redirect" in text,
            "the server redirects again and again. Pass the address at which the object is.",
        ),
        (isinstance(error, MemoryError), "the server sent more than the helper process has memory for."),
        (refused or wrong, f"the server refused the request ({code or cause})."),
    ):
        if applies:
            return RemoteError(f"{url}: {what}"), False
    if "kind: Connect" in source:
        cause = "no connection"
    elif "TimedOut" in source or isinstance(error, TimeoutError | asyncio.TimeoutError):
        cause = "it stalled"
    return RemoteError(
        f"{url}: the request to the server failed ({cause}). Check the network and the address."
    ), True


def replaced(url: str) -> FormatError:
    """Return the error for an object that was replaced."""
    return FormatError(f"{url}: was replaced or changed after it was opened. Open it again.")


def _cause(text: str) -> str:
    """Return the last part of a client's message, which has the cause."""
    lines = [line.strip() for line in text.split(" - ")[-1].splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given").rstrip(".")[:_WORDS]
