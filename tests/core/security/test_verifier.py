"""Verifiers: PostgreSQL's text, and what stands in for those that are not there."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.security.verifier import (
    ScramMechanism,
    Shape,
    Verifier,
    mock_verifier,
    read_verifier,
    usual_shape,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
# SELECT rolpassword FROM pg_authid, of PostgreSQL 18 with the password of the RFC.
POSTGRES = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)


def of(password: str, mechanism: ScramMechanism = SHA_256, salt: bytes = b"salt") -> Verifier:
    return Verifier.of_password(mechanism, salt, 4096, password)


def test_postgresqls_verifier_is_read() -> None:
    verifier = read_verifier(POSTGRES)
    assert verifier is not None
    assert verifier.text == POSTGRES
    assert verifier.is_of("pencil")
    assert not verifier.is_of("Pencil")


@given(
    st.sampled_from(list(ScramMechanism)),
    st.integers(4096, 10**9 - 1),
    st.binary(min_size=1, max_size=64),
    st.binary(min_size=64, max_size=64),
)
def test_what_is_written_is_read(
    mechanism: ScramMechanism, iterations: int, salt: bytes, keys: bytes
) -> None:
    size = mechanism.digest_size
    verifier = Verifier(mechanism, iterations, salt, keys[:size], keys[-size:])
    assert read_verifier(verifier.text) == verifier


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pencil",
        "md5" + "0" * 32,
        POSTGRES.replace("256", "1"),
        POSTGRES.replace("4096", "4095"),  # Kafka's clients refuse so few
        POSTGRES.replace("4096", "-4096"),
        POSTGRES.replace("4096", ""),
        POSTGRES.replace("SHA-256", "SHA-512"),  # of another size
        POSTGRES.replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        POSTGRES.replace("W22Z", "W22"),
        POSTGRES + "=",
        POSTGRES + "\n",
        POSTGRES[:-4],
        POSTGRES.partition(":wf")[0],
    ],
)
def test_a_text_that_nobody_could_log_in_with_is_none(text: str) -> None:
    assert read_verifier(text) is None


def test_no_secret_is_in_a_repr() -> None:
    verifier = of("pencil", salt=b"my-salt-is-here")
    secrets = [verifier.salt, verifier.stored_key, verifier.server_key]
    for shown in (repr(verifier), str(verifier), f"{(verifier,)}"):
        assert shown.strip("(,)").startswith("Verifier(SCRAM-SHA-256, 4096 iterations")
        for each in secrets:
            assert b64encode(each).decode() not in shown
            assert repr(each)[2:-1] not in shown


def test_a_salted_password_makes_the_same() -> None:
    salted = SHA_512.salted_password("pencil", b"salt", 5000)
    made = Verifier.of_salted_password(SHA_512, b"salt", 5000, salted)
    assert made == Verifier.of_password(SHA_512, b"salt", 5000, "pencil")
    assert made.is_of("pencil")


# --- mocks ---


@given(st.text(), st.text())
def test_a_mock_is_always_the_same_and_of_one_user(user: str, other: str) -> None:
    mock = mock_verifier(SHA_256, user, b"secret")
    assert mock == mock_verifier(SHA_256, user, b"secret")
    assert mock.salt != mock_verifier(SHA_256, user, b"another secret").salt
    assert mock.salt != mock_verifier(SHA_512, user, b"secret").salt
    assert (mock.salt == mock_verifier(SHA_256, other, b"secret").salt) == (user == other)
    assert read_verifier(mock.text) == mock


@pytest.mark.parametrize("password", ["", "secret", "user", "pencil"])
def test_no_password_opens_a_mock(password: str) -> None:
    assert not mock_verifier(SHA_256, "user", b"secret").is_of(password)


def test_a_mock_looks_like_most_others() -> None:
    kafkas = [of("a", salt=b"abcdefghij0123456789abcdef"[:26]), of("b", salt=b"z" * 26)]
    ours = of("c", salt=b"\xff" * 16)
    shape = usual_shape([*kafkas, ours])
    assert shape == Shape(26, 4096, is_base_36=True)
    mock = mock_verifier(SHA_256, "nobody", b"secret", shape)
    assert Shape.of(mock) == shape
    assert usual_shape([]) == Shape(16, 4096, is_base_36=False)
    assert Shape.of(mock_verifier(SHA_256, "nobody", b"secret")) == Shape()


def test_the_usual_shape_does_not_depend_on_the_order() -> None:
    some = [of("a", salt=b"a" * 16), of("b", salt=b"\xff" * 16), of("c", salt=b"b" * 20)]
    assert len({usual_shape(each) for each in (some, some[::-1], some[1:] + some[:1])}) == 1
