"""Pulsar's admin classes, with a face for tests: `admin.topics("getStats", topic)`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from compat.pulsar.drivers import Call


class Admin:
    """A PulsarAdmin. Its parts are methods: name of theirs, arguments; they raise `Refused`."""

    def __init__(
        self, call: Call, url: str, trust: Path | None = None, login: tuple[str, str] | None = None
    ) -> None:
        """login: a plug-in and its parameters, as pulsar-admin has them."""
        self._call = call
        settings = {} if trust is None else {"trust": str(trust)}
        if login is not None:
            settings |= {"plugin": login[0], "params": login[1]}
        self._number = call("admin", url=url, **settings)
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
