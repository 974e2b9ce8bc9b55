"""A server of objects for tests: plain HTTP with ranges and tags, and as much of S3 as clients need, with faults on demand."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

Fault = Callable[["Handler", bytes], bool]
"""Sees an answer to a GET before it is sent: its body. True: it has sent something itself, or nothing."""


@lru_cache(maxsize=16)
def digest(data: bytes) -> str:
    """Return the tag of an object; computed once, as ranges of it are asked for many times."""
    return hashlib.md5(data).hexdigest()


class ObjectServer(ThreadingHTTPServer):
    """objects: key ("bucket/name") -> bytes. requests: (method, key) -> how many. ranges: (key, start, stop) that were sent.

    fault: asked before each GET of rows is answered, None for none. tags: False leaves entity tags out. writable: False
    refuses what is written; written: keys, in order.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.ranges: list[tuple[str, int, int]] = []
        self.fault: Fault | None = None
        self.tags = True
        self.writable = True
        self.written: list[str] = []
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are expected."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ObjectServer

    def log_message(self, *_: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    @property
    def query(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server, key = self.server, self.key
        with server.lock:
            server.requests[self.command, key] += 1
        if "list-type" in self.query:
            self.list()
            return
        data = server.objects.get(key)
        if data is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        tag = f'"{digest(data)}"'
        headers = {"Last-Modified": "Sun, 01 Nov 2026 10:00:00 GMT"} | ({"ETag": tag} if server.tags else {})
        if "If-Match" in self.headers and self.headers["If-Match"] != tag:
            self.answer(412)
            return
        start, stop, status = 0, len(data), 200
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            first, _, last = asked[6:].partition("-")
            start, stop = (max(0, len(data) - int(last)), len(data)) if not first else (int(first), len(data))
            if first and last:
                stop = min(stop, int(last) + 1)
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        body = data[start:stop]
        if self.command == "HEAD":
            self.send_response(200)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            return
        with server.lock:
            server.ranges.append((key, start, stop))
        self.extra, self.status = headers, status
        if server.fault is None or not server.fault(self, body):
            self.answer(status, body, headers)

    def list(self) -> None:
        bucket, prefix = self.key, self.query.get("prefix", "")
        names = sorted(
            k[len(bucket) + 1 :] for k in self.server.objects if k.startswith(f"{bucket}/{prefix}")
        )
        after = self.query.get("continuation-token", "")
        rest = [name for name in names if name > after]
        page, more = rest[:1000], len(rest) > 1000
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-01T10:00:00.000Z</LastModified>"
            f"<Size>{len(data)}</Size><ETag>&quot;{digest(data)}&quot;</ETag></Contents>"
            for name in page
            for data in [self.server.objects[f"{bucket}/{name}"]]
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self.answer(
            200,
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}"
            "</ListBucketResult>".encode(),
        )

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        data, query = self.body(), self.query
        if not self.server.writable:
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        with self.server.lock:
            self.server.requests["PUT", self.key] += 1
            if "uploadId" in query:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = data
            else:
                self.server.objects[self.key] = data
                self.server.written.append(self.key)
        self.answer(200, headers={"ETag": f'"{digest(data)}"'})

    def do_POST(self) -> None:
        body = self.body()
        with self.server.lock:
            if "delete" in self.query:
                gone = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
                for key in gone:
                    self.server.objects.pop(f"{self.key}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in gone)
                answer = f"<DeleteResult>{deleted}</DeleteResult>"
            elif "uploads" in self.query:
                number = uuid.uuid4().hex
                self.server.uploads[number] = {}
                answer = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            else:
                parts = self.server.uploads.pop(self.query["uploadId"])
                self.server.objects[self.key] = b"".join(data for _, data in sorted(parts.items()))
                answer = "<CompleteMultipartUploadResult><ETag>&quot;whole&quot;</ETag></CompleteMultipartUploadResult>"
        self.answer(200, answer.encode())

    def do_DELETE(self) -> None:
        if "uploadId" in self.query:
            self.server.uploads.pop(self.query["uploadId"], None)
        else:
            self.server.objects.pop(self.key, None)
        self.answer(204)

    def cut(self, body: bytes) -> bool:
        """Send half of an answer and hang up."""
        self.send_response(self.status)
        for name, value in {"Content-Length": str(len(body)), **self.extra}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return True

    def refuse(self, body: bytes) -> bool:
        """Answer 503."""
        self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        return True

    def stall(self, body: bytes) -> bool:
        """Send half of an answer, then nothing for longer than a client waits."""
        self.send_response(self.status)
        for name, value in {"Content-Length": str(len(body)), **self.extra}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        time.sleep(60)
        return True

    def pour(self, body: bytes) -> bool:
        """Send an answer and a hundred times as much again, as its length says."""
        much = body * 100
        self.answer(self.status, much, self.extra)
        return True

    def flip(self, body: bytes) -> bool:
        """Send an answer with one byte changed."""
        self.answer(self.status, body[:-1] + bytes([body[-1] ^ 1]) if body else body, self.extra)
        return True


def once_each(fault: Fault) -> Fault:
    """Let a fault befall the first answer of each range only."""
    seen: set[Any] = set()

    def first(handler: Handler, body: bytes) -> bool:
        place = handler.path, handler.headers.get("Range")
        if place in seen:
            return False
        seen.add(place)
        return fault(handler, body)

    return first


@contextmanager
def serving() -> Iterator[ObjectServer]:
    """A server on a thread of its own, ended afterwards."""
    server = ObjectServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
