"""PLAIN's message."""

import pytest

from core.security.plain import PlainCredentials, read_plain


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"\0user\0password", ("", "user", "password")),
        (b"user\0user\0password", ("user", "user", "password")),
        ("ä\0ü,=\0ß 𝄞".encode(), ("ä", "ü,=", "ß 𝄞")),
    ],
)
def test_what_is_read(message: bytes, found: tuple[str, str, str]) -> None:
    assert read_plain(message) == PlainCredentials(*found)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"user",
        b"user\0password",
        b"\0\0password",
        b"\0user\0",
        b"\0u\0p\0",
        b"\0u\0p\0x",
        b"\0u\0\xff",
    ],
)
def test_what_is_none(message: bytes) -> None:
    assert read_plain(message) is None


def test_no_password_is_in_a_repr() -> None:
    assert "swordfish" not in repr(read_plain(b"\0user\0swordfish"))
