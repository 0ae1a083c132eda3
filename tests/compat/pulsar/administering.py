"""Pulsar's admin classes, with a face for tests: `admin.topics("getStats", topic)`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from compat.pulsar.drivers import Call


class Admin:
    """A PulsarAdmin. Its parts are methods: name of theirs, arguments; they raise `Refused`."""

    def __init__(self, call: Call, url: str, trust: Path | None = None) -> None:
        self._call = call
        trusted = {} if trust is None else {"trust": str(trust)}
        self._number = call("admin", url=url, **trusted)
        self.topics = partial(self._ask, "topics")
        self.schemas = partial(self._ask, "schemas")
        self.lookups = partial(self._ask, "lookups")
        self.brokers = partial(self._ask, "brokers")
        self.clusters = partial(self._ask, "clusters")
        self.tenants = partial(self._ask, "tenants")
        self.transactions = partial(self._ask, "transactions")
        self.namespaces = partial(self._ask, "namespaces")

    def _ask(self, part: str, method: str, *arguments: Any) -> Any:
        return self._call("ask", admin=self._number, of=part, method=method, args=list(arguments))

    def close(self) -> None:
        self._call("close", what=self._number)
