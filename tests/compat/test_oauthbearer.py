"""Stock clients log in by OAUTHBEARER: with a token of the issuer's they work as ever, with another
one they say so. Each client's own exception is written down here. confluent-kafka and Java get
their tokens of the issuer by HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AIOTokenProvider
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.compat import confluent
from tests.compat.clients import JavaError, JavaShell, read_to_end, values
from tests.compat.conftest import CLIENTS, make_client
from tests.compat.groups import BROKER_SETTINGS
from tests.compat.test_logins import make_topic, works
from tests.databases import Copies
from tests.entrance import MECHANISMS, Entrance, own_entrance
from tests.issuer import AUDIENCE, ISSUER, SECRET, Issuer, serving
from tests.variants import variants

WRONG = {"expired": {"exp": int(time.time()) - 3600}, "others": {"aud": "others"}}
KAFKA = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving(Issuer(of_clients=WRONG)) as made:
        yield made


@pytest.fixture(scope="module")
def at(
    issuer: Issuer,
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    settings = {
        **BROKER_SETTINGS,
        "sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/jwks",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        # The other listener has its own.
        "listener.name.secure.oauthbearer.sasl.oauthbearer.expected.audience": "secure,more",
        "listener.name.secure.sasl.oauthbearer.sub.claim.name": "azp",
    }
    listed = [f"{name}={value}" for name, value in settings.items()]
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory, *listed) as found:
        yield found


class Given(AbstractTokenProvider, AIOTokenProvider):
    """Hands kafka-python a token; for aiokafka see below."""

    def __init__(self, make: Callable[[], str]) -> None:
        super().__init__()
        self.make = make

    def token(self) -> str:
        return self.make()


class GivenLater(AIOTokenProvider):
    """Hands aiokafka a token."""

    def __init__(self, make: Callable[[], str]) -> None:
        super().__init__()
        self.make = make

    async def token(self) -> str:
        return self.make()


def settings_of(client: str, issuer: Issuer, user: str) -> dict[str, Any]:
    """A client's settings to log in as whom the issuer has for this user."""
    known: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
    }
    oidc = {
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.client.id": user,
        "sasl.oauthbearer.client.secret": SECRET,
    }
    if client == "java":
        module = f"{KAFKA}.OAuthBearerLoginModule"
        options = f'clientId="{user}" clientSecret="{SECRET}"'
        return known | {
            "sasl.oauthbearer.token.endpoint.url": oidc["sasl.oauthbearer.token.endpoint.url"],
            "sasl.login.callback.handler.class": f"{KAFKA}.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": f"{module} required {options};",
        }
    if client == "confluent":
        return known | oidc | {"sasl.oauthbearer.method": "oidc"}

    def make() -> str:
        return issuer.token(user, **issuer.of_clients.get(user, {}))

    provider = GivenLater(make) if client == "aiokafka" else Given(make)
    return known | {"sasl.oauth.token.provider": provider}


@pytest.fixture
def java(java_clients: JavaShell, issuer: Issuer) -> JavaShell:
    """Java's clients fetch tokens only where they are told that they may."""
    allowed = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    java_clients.call("property", allowed, f"{issuer.url}/token")
    return java_clients


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_has_a_token_works(
    at: Entrance, issuer: Issuer, name: str, request: pytest.FixtureRequest, topic_name: str
) -> None:
    if name == "java":
        request.getfixturevalue("java")
    topic = make_topic(at, topic_name)
    with contextlib.closing(make_client(name, request, at.plain)) as client:
        works(at, client, topic, settings_of(name, issuer, "alice"))


@pytest.mark.parametrize(
    "name",
    variants(pytest.param("java", marks=pytest.mark.java), "confluent", "aiokafka", "kafka-python"),
)
def test_clients_go_on_when_their_tokens_expire(
    at: Entrance, issuer: Issuer, name: str, request: pytest.FixtureRequest, topic_name: str
) -> None:
    """They get new ones: Java on the same connection (KIP-368), the others on another one."""
    if name == "java":
        request.getfixturevalue("java")
    topic = make_topic(at, topic_name)
    user = f"short-{name}"
    before, asked = at.gateway.log(), issuer.asked.count("/token")
    # Java logs in again after 85 to 95 % of a session: with long ones, it is seldom late on a busy
    # machine. Two of its tokens end here.
    issuer.tokens_for_s, pause_s = (6, 2.0) if name == "java" else (3, 0.7)
    try:
        with contextlib.closing(make_client(name, request, at.plain)) as client:
            producer = client.producer(topic, **settings_of(name, issuer, user))
            for number in range(7):
                producer.begin()
                producer.send(topic, str(number))
                producer.commit()
                time.sleep(pause_s)
    finally:
        issuer.tokens_for_s = 300
    with contextlib.closing(make_client("confluent", request, at.open)) as reading:
        assert values(read_to_end(reading, topic)) == [str(number) for number in range(7)]
    said = at.gateway.log().removeprefix(before)
    assert "login_refused" not in said
    if name == "java":
        assert issuer.asked.count("/token") - asked >= 2
        assert said.count("its session is over") <= 1  # with each token, if not for KIP-368


def test_a_listener_may_have_rules_of_its_own(at: Entrance, issuer: Issuer) -> None:
    known = settings_of("confluent", issuer, "robot") | {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(at.certificate),
        "log_level": 0,
    }
    issuer.of_clients["robot"] = {"aud": ["x", "more"], "azp": "azp's name"}
    AdminClient({"bootstrap.servers": at.secure, **known}).list_topics(timeout=20)
    plain = known | {"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": at.plain}
    with pytest.raises(KafkaException):
        AdminClient(plain).list_topics(timeout=0.5)


# --- wrong ---


@pytest.mark.parametrize("user", WRONG)
def test_librdkafka_says_that_the_login_failed(at: Entrance, issuer: Issuer, user: str) -> None:
    errors: list[KafkaError] = []
    known = settings_of("confluent", issuer, user)
    admin = AdminClient(
        {"bootstrap.servers": at.plain, "error_cb": errors.append, "log_level": 0, **known}
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    confluent.wait_for_errors(admin, errors)
    assert errors[0].code() == KafkaError._AUTHENTICATION


@pytest.mark.java
@pytest.mark.parametrize("user", WRONG)
def test_java_says_that_the_login_failed(
    at: Entrance, issuer: Issuer, java: JavaShell, user: str
) -> None:
    name = java.new_name()
    known = settings_of("java", issuer, user)
    known |= {"bootstrap.servers": at.plain, "transactional.id": user, "max.block.ms": 20_000}
    java.call("producer", name, *(f"{key}={value}" for key, value in known.items()))
    with pytest.raises(JavaError) as raised:
        java.call("init", name)
    java.call("abandon", name)
    assert "SaslAuthenticationException" in (raised.value.name, raised.value.cause)


@pytest.mark.parametrize("user", variants(*WRONG))
def test_aiokafka_says_that_it_cannot_connect(at: Entrance, issuer: Issuer, user: str) -> None:
    async def start() -> None:
        known = settings_of("aiokafka", issuer, user)
        producer = AIOKafkaProducer(
            bootstrap_servers=at.plain, **{k.replace(".", "_"): v for k, v in known.items()}
        )
        try:
            await asyncio.wait_for(producer.start(), 30)
        finally:
            await producer.stop()

    with pytest.raises(KafkaConnectionError):
        asyncio.run(start())


IN_A_PROCESS = """
import json, sys
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
known = json.loads(sys.stdin.read())

class Given(AbstractTokenProvider):
    def token(self):
        return known["token"]

KafkaProducer(sasl_oauth_token_provider=Given(), **known["options"])
"""


@pytest.mark.parametrize("user", variants(*WRONG))
def test_kafka_python_gives_up_in_the_time_that_it_is_given(
    at: Entrance, issuer: Issuer, user: str
) -> None:
    """In a process of its own: a client that could not be made leaves sockets open."""
    options = {"bootstrap_servers": at.plain, "bootstrap_timeout_ms": 1000}
    options |= {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    token = issuer.token(user, **WRONG[user])
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS],
        input=json.dumps({"token": token, "options": options}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "kafka.errors.KafkaTimeoutError" in done.stderr
