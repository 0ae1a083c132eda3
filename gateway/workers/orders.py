"""What the supervisor and a worker tell each other, in lines of JSON.

By standard input a worker gets its orders, one line, and the end of that is the order to stop,
however it came to its end. By standard output it says that it is loaded, and then where it serves,
or why it will not. Settings may hold passwords, so they are neither in the command line nor in the
environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gateway.config import Settings
from gateway.workers.plan import as_json


@dataclass(frozen=True, slots=True)
class Orders:
    """settings: the worker's own. reader: uid and gid of the embedded PostgreSQL that
    settings.database_url leads to; None if it is another."""

    settings: Settings
    reader: tuple[int, int] | None

    def line(self) -> bytes:
        text = json.dumps({"settings": as_json(self.settings), "reader": self.reader})
        return f"{text}\n".encode()

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Raises ValueError where the settings are not this version's."""
        value = json.loads(line)
        reader = value["reader"]
        return cls(Settings(**value["settings"]), None if reader is None else tuple(reader))


@dataclass(frozen=True, slots=True)
class Answer:
    """Neither: it is loaded, and waits for orders. ports: what it listens on, by address, now that
    it serves. refusal: why it will not, a sentence."""

    ports: Mapping[str, int] | None = None
    refusal: str | None = None

    def line(self) -> bytes:
        return f"{json.dumps({'ports': self.ports, 'refusal': self.refusal})}\n".encode()

    @classmethod
    def read(cls, line: bytes) -> Self:
        return cls(**json.loads(line))
