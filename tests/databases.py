"""Copies of template databases, one a test, dropped some tests later.

A drop waits a tenth of a second for a client's backend that is still on its way out, which with
thousands of tests was a quarter of their time. Nothing is done behind a running test's back: a
transaction in any database delays the pruning of dead rows in all. Must not know what is in one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import psycopg

KEPT = 4


class Server(Protocol):
    """A PostgreSQL that is running."""

    @property
    def url(self) -> str: ...

    def url_of(self, database: str) -> str: ...


class Copies:
    """The copies on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._used: deque[str] = deque()

    @contextlib.contextmanager
    def taken(self, template: str) -> Iterator[str]:
        """The URL of a new copy; whoever is connected to it later loses it."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            while len(self._used) > KEPT:
                connection.execute(f"DROP DATABASE {self._used.popleft()} WITH (FORCE)".encode())
            # A copy by the WAL takes twice the CPU of one by files, which are in memory.
            copy = f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy"
            connection.execute(copy.encode())
        try:
            yield self._server.url_of(name)
        finally:
            self._used.append(name)
