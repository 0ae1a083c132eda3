"""scramp, written by others, logs in at our server, and its server takes our verifiers."""

import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from core.security.scram import Challenge, Proved, ScramServer
from core.security.verifier import ScramMechanism, Verifier
from tests.core.security.exchanges import Client

# Where SASLprep, which scramp does and Kafka does not, changes nothing.
words = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=30)
mechanisms = st.sampled_from(list(ScramMechanism))


@settings(max_examples=25)  # each takes a few times PBKDF2
@given(mechanisms, words, words, words, st.binary(min_size=12, max_size=40))
def test_its_client_logs_in(
    mechanism: ScramMechanism, user: str, password: str, other: str, salt: bytes
) -> None:
    for typed in (password, other):
        client = scramp.ScramClient([mechanism.value], user, typed)
        stored = Verifier.of_password(mechanism, salt, 4096, password)
        server = ScramServer(mechanism, "a-servers-nonce", lambda _, stored=stored: stored)
        challenge = server.receive(client.get_client_first().encode())
        assert isinstance(challenge, Challenge)
        client.set_server_first(challenge.message.decode())
        answer = server.receive(client.get_client_final().encode())
        assert isinstance(answer, Proved) == (typed == password)
        if isinstance(answer, Proved):
            assert answer.user == user
            client.set_server_final(answer.message.decode())


@settings(max_examples=25)  # each takes a few times PBKDF2
@given(mechanisms, words, words, st.binary(min_size=12, max_size=40))
def test_its_server_takes_our_verifier(
    mechanism: ScramMechanism, user: str, password: str, salt: bytes
) -> None:
    stored = Verifier.of_password(mechanism, salt, 4096, password)
    theirs = scramp.ScramMechanism(mechanism.value)
    assert theirs.make_auth_info(password, 4096, salt) == (
        *(stored.salt, stored.stored_key, stored.server_key, stored.iterations),
    )
    server = theirs.make_server(lambda _: theirs.make_auth_info(password, 4096, salt))
    client = Client(mechanism.value, user, password)
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    assert client.believes(server.get_server_final().encode())
