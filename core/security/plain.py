"""PLAIN's one message (RFC 4616): who, as whom, and the password. Does not check it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class PlainCredentials:
    """What a client has sent. authorization_id: as whom it wants to act; "" as itself."""

    authorization_id: str
    user: str
    password: str


def read_plain(message: bytes) -> PlainCredentials | None:
    """None for what is no such message, or lacks a name or a password."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        return None
    if len(parts) != 3 or not parts[1] or not parts[2]:
        return None
    return PlainCredentials(*parts)
