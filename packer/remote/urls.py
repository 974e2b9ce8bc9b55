"""URLs of objects and folders: ``s3://bucket/key``, ``gs://``, ``az://``, ``https://``, ``file://`` and
others.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote

from packer.errors import UsageError

# At least two letters: a drive letter is not a scheme.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
WEB = ("http", "https")
AWS = ("s3", "s3a")
GOOGLE = ("gs", "gcs")
AZURE = ("az", "azure", "abfs", "abfss", "adl")
FILE = ("file",)
OBSTORE = (*WEB, *AWS, *GOOGLE, *AZURE, *FILE)
"""Schemes of obstore, which reads, lists and writes; fsspec reads the others."""


class ObjectUrl(NamedTuple):
    """A parsed URL. scheme: in lower case; root: bucket, container or host; key: without slashes at its ends.

    >>> ObjectUrl.parse("s3://bucket/a/b.h5")
    ObjectUrl(scheme='s3', root='bucket', key='a/b.h5')
    >>> ObjectUrl.parse("https://example.org/a%20b.h5").key
    'a b.h5'
    >>> ObjectUrl.parse("github://owner:repository@main/b.h5").root
    'owner:repository@main'
    """

    scheme: str
    root: str
    key: str

    @classmethod
    def parse(cls, url: str) -> ObjectUrl:
        """Parse a URL. Raises UsageError."""
        found = _URL.fullmatch(url)
        if found is None:
            raise UsageError(f"{masked(url)}: is not a URL. Pass one such as s3://bucket/train.h5.")
        scheme, rest = found[1].lower(), found[2]
        root, _, key = rest.partition("/")
        if not root and scheme in OBSTORE and scheme not in FILE:
            raise UsageError(
                f"{masked(url)}: names no bucket or host. Pass one such as s3://bucket/train.h5."
            )
        user, at, _ = root.rpartition("@")
        if at and ":" in user and scheme != "github":  # github://owner:repository@reference
            raise UsageError(
                f"{masked(url)}: holds a password, which would appear in messages and process lists. Set it"
                " as for the store's tools: in environment variables, or in files in your home folder."
            )
        if scheme in WEB:
            if "?" in rest or "#" in rest or "@" in root:
                raise UsageError(
                    f"{masked(url)}: holds a user, a query or a fragment; only plain addresses are read."
                    " Pass one such as https://example.org/train.h5."
                )
            key = unquote(key)
        key = key.strip("/")
        if any(part in ("", ".", "..") for part in key.split("/")) and key:
            raise UsageError(f"{masked(url)}: has an empty part, '.' or '..'. Pass the plain name.")
        return cls(scheme, root, key)


def masked(url: str) -> str:
    """Return a URL without possible secrets: a user's name and password, and the values of a query.

    >>> masked("https://me:secret@example.org/a.h5?token=secret")
    'https://***@example.org/a.h5?***'
    """
    return re.sub(
        r"[?#].*", lambda found: f"{found[0][0]}***", re.sub(r"(?<=://)[^/]*@", "***@", url), flags=re.DOTALL
    )


def is_url(path: object) -> bool:
    """Return True for a str that is a URL of any scheme.

    >>> is_url("s3://bucket/train.h5"), is_url("train.h5"), is_url("C:/train.h5")
    (True, False, False)
    """
    return isinstance(path, str) and _URL.fullmatch(path) is not None


def join_url(url: str, name: str) -> str:
    """Return the URL of an object in a folder.

    >>> join_url("s3://bucket/train/", "00000.h5")
    's3://bucket/train/00000.h5'
    """
    return f"{url.rstrip('/')}/{name}"


def name_of(url: str) -> str:
    """Return the last part of a URL.

    >>> name_of("s3://bucket/train/"), name_of("s3://bucket")
    ('train', 'bucket')
    """
    return os.path.basename(url.rstrip("/"))


def check_local(*names: str | os.PathLike[str]) -> None:
    """Raise UsageError for a remote pack where a local one is needed."""
    for name in names:
        if is_url(name):
            raise UsageError(
                f"{os.fspath(name)}: is a remote pack; a local one is needed. Download it, or pass another."
            )
