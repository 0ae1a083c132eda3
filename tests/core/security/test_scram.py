"""SCRAM's server: every message in every state, and everything that may be wrong with one."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.security.scram import (
    Challenge,
    ClientFirst,
    Disproved,
    Proved,
    ScramServer,
    ScramState,
    read_client_final,
    read_client_first,
)
from core.security.verifier import ScramMechanism, Verifier, mock_verifier
from tests.core.security.exchanges import Client

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
VERIFIERS = {each: Verifier.of_password(each, SALT, 4096, "pencil") for each in ScramMechanism}


def server(
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    verifier_of: Callable[[ClientFirst], Verifier] | None = None,
) -> ScramServer:
    return ScramServer(mechanism, SERVER_NONCE, verifier_of or (lambda _: VERIFIERS[mechanism]))


def client(mechanism: ScramMechanism = ScramMechanism.SHA_256, password: str = "pencil") -> Client:
    return Client(mechanism.value, "user", password)


def test_the_exchange_of_rfc_7677() -> None:
    one = server()
    assert one.receive(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert one.receive(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == Proved(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


# --- (state, event) ---


def in_state(state: ScramState) -> tuple[ScramServer, Client]:
    """A server in this state, and the client that has brought it there."""
    one, other = server(), client()
    if state is ScramState.CLIENT_FIRST:
        return one, other
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    if state is ScramState.COMPLETE:
        one.receive(other.final(challenge.message))
    elif state is ScramState.FAILED:
        one.receive(b"")
    else:
        other.final(challenge.message)
    assert one.state is state
    return one, other


EVENTS: dict[str, Callable[[Client], bytes]] = {
    "first": lambda one: one.first(),
    "final": lambda one: one.final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    ),
    "wrong proof": lambda one: Client("SCRAM-SHA-256", "user", "wrong").final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    ),
    "nothing": lambda _: b"",
    "garbage": lambda _: b"\xff\0garbage",
}
GOOD = {
    (ScramState.CLIENT_FIRST, "first"): (Challenge, ScramState.CLIENT_FINAL),
    (ScramState.CLIENT_FINAL, "final"): (Proved, ScramState.COMPLETE),
}


@pytest.mark.parametrize("state", ScramState)
@pytest.mark.parametrize("event", EVENTS)
def test_every_message_in_every_state(state: ScramState, event: str) -> None:
    one, other = in_state(state)
    answer = one.receive(EVENTS[event](other))
    kind, after = GOOD.get((state, event), (Disproved, ScramState.FAILED))
    assert isinstance(answer, kind)
    assert one.state is after


# --- who is let in ---


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_both_sides_prove_what_they_know(mechanism: ScramMechanism) -> None:
    one, other = server(mechanism), client(mechanism)
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    assert (one.user, one.verifier) == ("user", VERIFIERS[mechanism])
    proved = one.receive(other.final(challenge.message))
    assert isinstance(proved, Proved)
    assert proved.user == "user"
    assert other.believes(proved.message)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_wrong_password_and_a_user_that_is_not_there_end_alike(
    mechanism: ScramMechanism,
) -> None:
    answers = []
    for verifier_of in (
        lambda _: VERIFIERS[mechanism],
        lambda first: mock_verifier(mechanism, first.user, b"secret"),
    ):
        one, other = server(mechanism, verifier_of), client(mechanism, "wrong")
        challenge = one.receive(other.first())
        assert isinstance(challenge, Challenge)
        answers.append(one.receive(other.final(challenge.message)))
    assert answers[0] == answers[1] == Disproved("wrong password, or no such user")


def test_the_verifier_alone_lets_nobody_in() -> None:
    """What a thief of the table has: StoredKey, and the signature made from it."""
    one, other = server(), client()
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    final = other.final(challenge.message)
    without_proof = final.rpartition(b",p=")[0]
    verifier = VERIFIERS[ScramMechanism.SHA_256]
    stolen = b64encode(verifier.mechanism.hmac(verifier.stored_key, other.auth_message))
    assert isinstance(one.receive(without_proof + b",p=" + stolen), Disproved)


def test_a_final_message_of_another_exchange_is_refused() -> None:
    """CVE-2024-56128: the nonce has to be this exchange's."""
    one, other = server(), client()
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    replayed = other.final(challenge.message)
    again = ScramServer(
        ScramMechanism.SHA_256, "another", lambda _: VERIFIERS[ScramMechanism.SHA_256]
    )
    again.receive(other.first())
    assert again.receive(replayed) == Disproved("the nonce is another one")


@pytest.mark.parametrize(
    ("said", "repeated"),
    [("n,,", "y,,"), ("y,,", "n,,"), ("n,a=user,", "n,,"), ("n,,", "n,a=root,")],
)
def test_what_the_first_message_said_is_to_be_repeated(said: str, repeated: str) -> None:
    one, other = server(), Client("SCRAM-SHA-256", "user", "pencil", gs2_header=said)
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    other.gs2_header = repeated
    assert one.receive(other.final(challenge.message)) == Disproved(
        "the channel binding is another one"
    )


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=user,", "n,a=a=2Cb=3Dc,"])
def test_headers_that_are_understood(header: str) -> None:
    one, other = server(), Client("SCRAM-SHA-256", "user", "pencil", gs2_header=header)
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    assert isinstance(one.receive(other.final(challenge.message)), Proved)
    assert one.authorization_id in {"", "user", "a,b=c"}


@pytest.mark.parametrize(
    "proof",
    ["", "AAAA", "%", "A" * 43, b64encode(bytes(31)).decode(), b64encode(bytes(64)).decode()],
)
def test_a_proof_of_another_size_is_refused(proof: str) -> None:
    one, other = server(), client()
    challenge = one.receive(other.first())
    assert isinstance(challenge, Challenge)
    without_proof = other.final(challenge.message).rpartition(b",p=")[0]
    assert isinstance(one.receive(without_proof + f",p={proof}".encode()), Disproved)


# --- the grammar ---


@pytest.mark.parametrize("name", ["a", "a,b", "a=b", "=2C", "=3D=2C", "üß𝄞", "a b", "x" * 32_000])
def test_any_name_may_be_said(name: str) -> None:
    first = read_client_first(Client("SCRAM-SHA-256", name, "").first())
    assert first is not None
    assert (first.user, first.authorization_id, dict(first.extensions)) == (name, "", {})


def test_extensions_are_handed_on() -> None:
    said = Client("SCRAM-SHA-256", "id", "", extensions=",tokenauth=true,x=y=z")
    first = read_client_first(said.first())
    assert first is not None
    assert dict(first.extensions) == {"tokenauth": "true", "x": "y=z"}
    assert first.bare.endswith(",tokenauth=true,x=y=z")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=,r=a",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=a,",
        b"n,,n=us=er,r=a",
        b"n,,n=us\0er,r=a",
        b"n,,n=\xff,r=a",
        b"n,,m=must,n=user,r=a",  # a mandatory extension that is not known
        b"p=tls-unique,,n=user,r=a",  # channel binding is not offered
        b"x,,n=user,r=a",
        b"n,a=,n=user,r=a",
        b"n,b=c,n=user,r=a",
        b"n,,r=a,n=user",
        b" n,,n=user,r=a",
        b"n,,n=user,r=a\n",
        b"\0user\0password",
    ],
)
def test_first_messages_that_are_none(message: bytes) -> None:
    assert read_client_first(message) is None
    assert server().receive(message) == Disproved("the client's first message is malformed")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws,r=a",
        b"c=biws,p=AAAA",
        b"r=a,c=biws,p=AAAA",
        b"c=biws,r=a,p=",
        b"c=bi ws,r=a,p=AAAA",
        b"c=b=iw,r=a,p=AAAA",
        b"c=biws,r=a,p=A",
        b"c=biws,r=a,p=AAAA,x=y",
        b"c=biws,r=\xff,p=AAAA",
    ],
)
def test_last_messages_that_are_none(message: bytes) -> None:
    assert read_client_final(message) is None
    one, _ = in_state(ScramState.CLIENT_FINAL)
    assert one.receive(message) == Disproved("the client's last message is malformed")


pieces = st.sampled_from(
    [
        b"n",
        b"y",
        b"p=",
        b",",
        b"=",
        b"a=",
        b"n=",
        b"r=",
        b"c=",
        b"biws",
        b"=2C",
        b"user",
        b"\0",
        b"AAAA",
    ]
)


@given(st.lists(st.one_of(pieces, st.binary(max_size=4)), max_size=12).map(b"".join))
def test_any_bytes_are_answered(message: bytes) -> None:
    for state in (ScramState.CLIENT_FIRST, ScramState.CLIENT_FINAL):
        one, _ = in_state(state)
        answer = one.receive(message)
        assert isinstance(answer, Disproved | Challenge)
        assert not isinstance(answer, Challenge) or state is ScramState.CLIENT_FIRST
