"""Copies of template databases, one a test: made ahead, and dropped when nobody waits for it.

A copy takes a tenth of a second, and so does a drop as long as a client's backend is still on its
way out; with thousands of tests that was half of their time. Must not know what is in a database.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import psycopg

KEPT = 4  # given back and not yet dropped: their backends have time to leave


class Server(Protocol):
    """A PostgreSQL that is running."""

    @property
    def url(self) -> str: ...

    def url_of(self, database: str) -> str: ...


class Copies:
    """The copies on one server; everything is done by one thread of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._thread = ThreadPoolExecutor(1, "copies of databases")
        self._ahead: dict[str, Future[str]] = {}
        self._given_back: deque[str] = deque()
        self._drops: list[Future[None]] = []

    @contextlib.contextmanager
    def taken(self, template: str) -> Iterator[str]:
        """The URL of a copy that nobody else has had."""
        name = (
            self._ahead.pop(template, None) or self._thread.submit(self._make, template)
        ).result()
        self._ahead[template] = self._thread.submit(self._make, template)
        try:
            yield self._server.url_of(name)
        finally:
            self._given_back.append(name)
            if len(self._given_back) > KEPT:
                self._drops.append(self._thread.submit(self._drop, self._given_back.popleft()))

    def close(self) -> None:
        """Waits for what is under way. Raises what went wrong behind the tests' backs."""
        self._thread.shutdown()
        for drop in self._drops:
            drop.result()

    def _make(self, template: str) -> str:
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return name

    def _drop(self, name: str) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
