"""Which records somebody looks for: by key, by text, by a JSONPath. Knows no log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.log.records import Record
from gateway.console.records.values import NO_VALUE

if TYPE_CHECKING:
    from gateway.console.records.paths import Path


class BadPath(Exception):
    """No JSONPath; the sentence says why."""


class TooLong(Exception):
    """A path takes too long with a record."""


@dataclass(frozen=True, slots=True)
class Filter:
    """All of it has to be true. text: anywhere in key, value or headers, in whatever case."""

    key: bytes | None = None
    text: str = ""
    path: Path | None = None

    @property
    def is_there(self) -> bool:
        """Whether it leaves anything out."""
        return self.key is not None or bool(self.text) or self.path is not None

    def may_match(self, record: Record | None) -> bool:
        """As far as its bytes tell. None: a marker, in which nothing can be looked for."""
        if record is None:
            return not self.is_there
        if self.key is not None and record.key != self.key:
            return False
        return not self.text or any(_holds(each, self.text) for each in _texts(record))

    def matches_value(self, value: Any) -> bool:
        """What is left: value: as JSON says it, or NO_VALUE. Raises TooLong."""
        return self.path is None or (value is not NO_VALUE and self.path.matches(value))


def _texts(record: Record) -> Iterable[bytes]:
    yield record.key or b""
    yield record.value or b""
    for name, value in record.headers:
        yield name.encode(errors="surrogateescape")
        yield value or b""


def _holds(data: bytes, text: str) -> bool:
    if text.isascii():
        return text.lower().encode() in data.lower()
    return text.casefold() in data.decode(errors="replace").casefold()
