"""The columns that the sink looks at, as Spark's Kafka sink has them.

Knows names and types; must not know Arrow. `timestamp` is one that the Kafka sink does not look at;
the other columns of a frame are left alone, as there.
"""

from __future__ import annotations

from typing import Final

_TEXT_OR_BYTES: Final = ("string", "binary")
_HEADERS: Final = ("array<struct<key:string,value:binary>>",)
TYPES: Final = {
    "topic": ("string",),
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "headers": _HEADERS,
    "partition": ("int",),
    "timestamp": ("timestamp",),
}


class ColumnError(ValueError):
    """A column is missing, or of another type, or holds what cannot be written; a sentence."""


def check_schema(types: dict[str, str], *, has_topic: bool) -> None:
    """Refuses frames that have no value, or no topic, or a column of another type.

    types: Spark's simple strings by the column's name. has_topic: there is an option for it.
    """
    if "value" not in types:
        raise ColumnError("There is no column 'value'.")
    if not has_topic and "topic" not in types:
        raise ColumnError("There is neither an option 'topic' nor a column 'topic'.")
    for name, wanted in TYPES.items():
        if name in types and types[name] not in wanted:
            raise ColumnError(
                f"Column '{name}' is of type {' or '.join(wanted)}, not {types[name]}."
            )
