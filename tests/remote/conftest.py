"""Servers of objects, as plain HTTP and as S3."""

from tests.remote.server_fixtures import bucket, server

__all__ = ["bucket", "server"]
