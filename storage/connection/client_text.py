"""Text that clients choose, in PostgreSQL: of any length up to 32 kB, and with any character.

Kafka's strings may hold NUL and PostgreSQL's text may not: NUL is written as `␀0` and `␀` (U+2400)
as `␀␀`; all other text is unchanged. Knows no table.
"""

import hashlib
import re
from collections.abc import Sequence

_ESCAPED = re.compile("␀(.)", re.DOTALL)


def key_of(text: str) -> bytes:
    """A hash of a text for keys, 16 bytes, a `uuid`: no btree takes 32 kB."""
    return hashlib.sha256(text.encode()).digest()[:16]


def key_of_kind(kind: int, text: str) -> bytes:
    """The same for names of several kinds in one table; `key_of` for kind 0."""
    if not kind:
        return key_of(text)
    # No text begins with this byte, so that no name of kind 0 has the same key.
    return hashlib.sha256(b"\xff%d:%b" % (kind, text.encode())).digest()[:16]


def written(text: str) -> str:
    """The text as it is in the database."""
    if "\0" not in text and "␀" not in text:
        return text
    return text.replace("␀", "␀␀").replace("\0", "␀0")


def written_or_none(text: str | None) -> str | None:
    """As `written`, for text that may be null."""
    return None if text is None else written(text)


def read(text: str) -> str:
    """The text that was `written`."""
    if "␀" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)


def read_or_none(text: str | None) -> str | None:
    """As `read`, for text that may be null."""
    return None if text is None else read(text)


def array_literal(texts: Sequence[str]) -> str:
    """A `text[]` as text, each element as `written`, so that a `text[]` can carry arrays."""
    elements = (
        '"' + written(text).replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts
    )
    return "{" + ",".join(elements) + "}"
