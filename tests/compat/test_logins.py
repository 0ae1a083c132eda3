"""Stock clients log in: with the right password they work as ever, with a wrong one they say so.

Each client's own exception is written down here. aiokafka says why in its log alone; kafka-python
mostly takes the end of the connection for the answer, and tries again until its time is over. So
they do with Apache Kafka 4.1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from compat.java import tools
from tests.compat import confluent
from tests.compat.clients import Client, JavaError, JavaShell, read_to_end, values
from tests.compat.conftest import CLIENTS, make_client
from tests.compat.groups import BROKER_SETTINGS
from tests.conftest import free_port, gateways
from tests.databases import Copies
from tests.entrance import MECHANISMS, PASSWORD, USER, Entrance, own_entrance

CONFIGS = "kafka.admin.ConfigCommand"
NAMED = {"alice,=bö": "x"}


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    quick = [f"{name}={value}" for name, value in BROKER_SETTINGS.items()]
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory, *quick) as found:
        yield found


def settings_of(
    client: str, mechanism: str, password: str, user: str = USER, tls: Path | None = None
) -> dict[str, Any]:
    """A client's settings to log in. tls: what it is to trust."""
    protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    if client == "java":
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        module = f"org.apache.kafka.common.security.{kind}LoginModule"
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": tls} if tls else {}
        return {
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
            **trust,
        }
    if client == "confluent":
        names = {"sasl.username": user, "sasl.password": password}
        trust = {"ssl.ca.location": str(tls)} if tls else {}
    else:
        names = {"sasl.plain.username": user, "sasl.plain.password": password}
        trust = {"ssl.cafile": str(tls)} if tls else {}
        if client == "aiokafka" and tls:
            from aiokafka.helpers import create_ssl_context

            trust = {"ssl.context": create_ssl_context(cafile=str(tls))}
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, **names, **trust}


@pytest.fixture(params=CLIENTS)
def of(request: pytest.FixtureRequest) -> Callable[[str], Client]:
    """Makes a client for an address."""
    name = request.param
    made: list[Client] = []

    def make(bootstrap: str) -> Client:
        made.append(make_client(name, request, bootstrap))
        return made[-1]

    request.addfinalizer(lambda: [each.close() for each in made])
    return make


def make_topic(at: Entrance, name: str) -> str:
    at.admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    return name


# --- right ---


def works(at: Entrance, client: Client, topic: str, settings: dict[str, Any]) -> None:
    """A transaction is written, and read by a member of a group, on connections that logged in."""
    producer = client.producer(f"txn-{topic}", **settings)
    producer.begin()
    producer.send(topic, "one", "two")
    producer.commit()
    with contextlib.closing(
        client.reader(topic, None, group=f"group-{topic}", **settings)
    ) as reader:
        found: list[Any] = []
        deadline = time.monotonic() + 30
        while len(found) < 2:
            assert time.monotonic() < deadline
            found += reader.poll()
    assert values(found) == ["one", "two"]
    url = at.gateway.database_url
    assert url is not None
    with psycopg.connect(url) as connection:
        query = "SELECT owner FROM v_transaction WHERE transactional_id = %s"
        assert connection.execute(query, [f"txn-{topic}"]).fetchone() == (f"User:{USER}",)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_that_logs_in_works(
    at: Entrance, of: Callable[[str], Client], mechanism: str, topic_name: str
) -> None:
    client = of(at.plain)
    topic = make_topic(at, topic_name)
    works(at, client, topic, settings_of(client.name, mechanism, PASSWORD))


def test_a_client_that_logs_in_by_tls_works(
    at: Entrance, of: Callable[[str], Client], topic_name: str
) -> None:
    """It is told the address of its own listener, whose name the certificate has."""
    client = of(at.secure)
    topic = make_topic(at, topic_name)
    settings = settings_of(client.name, "SCRAM-SHA-512", PASSWORD, tls=at.certificate)
    works(at, client, topic, settings)


def test_each_listener_tells_its_own_addresses(at: Entrance) -> None:
    common = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    secure = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(at.certificate), **common}
    asking = {"security.protocol": "SASL_PLAINTEXT", **common}
    for bootstrap, settings in ((at.open, {}), (at.plain, asking), (at.secure, secure)):
        admin = AdminClient({"bootstrap.servers": bootstrap, **settings})
        [broker] = admin.list_topics(timeout=20).brokers.values()
        [node] = admin.describe_cluster(request_timeout=20).result(20).nodes
        group = admin.describe_consumer_groups(["g"], request_timeout=20)["g"].result(20)
        told = {f"{each.host}:{each.port}" for each in (broker, node, group.coordinator)}
        assert told == {bootstrap}


def test_names_may_have_anything_in_them(at: Entrance) -> None:
    for user, password in (("a,b=c", "p=,"), ("bö 𝄞", "ü"), ("x" * 900, "y" * 900)):
        at.put(user, password)
        for mechanism in MECHANISMS[:2]:
            settings = settings_of("confluent", mechanism, password, user)
            admin = AdminClient({"bootstrap.servers": at.plain, **settings})
            assert admin.list_topics(timeout=20).brokers


# --- wrong ---


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_says_that_the_login_failed(at: Entrance, mechanism: str) -> None:
    errors: list[KafkaError] = []
    settings = settings_of("confluent", mechanism, "wrong")
    admin = AdminClient(
        {"bootstrap.servers": at.plain, "error_cb": errors.append, "log_level": 0, **settings}
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    confluent.wait_for_errors(admin, errors)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "Authentication failed" in errors[0].str()


@pytest.mark.java
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [USER, "nobody"])
def test_java_says_that_the_login_failed(
    at: Entrance, java_clients: JavaShell, mechanism: str, user: str
) -> None:
    name = java_clients.new_name()
    settings = settings_of("java", mechanism, "wrong", user)
    settings |= {"bootstrap.servers": at.plain, "transactional.id": f"t-{mechanism}-{user}"}
    settings |= {"max.block.ms": 20_000}
    java_clients.call("producer", name, *(f"{key}={value}" for key, value in settings.items()))
    with pytest.raises(JavaError) as raised:
        java_clients.call("init", name)
    java_clients.call("abandon", name)
    assert "SaslAuthenticationException" in (raised.value.name, raised.value.cause)
    assert "Authentication failed" in str(raised.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_says_that_it_cannot_connect(
    at: Entrance, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def start() -> None:
        settings = settings_of("aiokafka", mechanism, "wrong")
        producer = AIOKafkaProducer(
            bootstrap_servers=at.plain, **{k.replace(".", "_"): v for k, v in settings.items()}
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(KafkaConnectionError):
        asyncio.run(start())
    assert "SaslAuthenticationFailed: Authentication failed" in caplog.text


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_gives_up_in_the_time_that_it_is_given(at: Entrance, mechanism: str) -> None:
    """In a process of its own: a client that could not be made leaves sockets open."""
    settings = settings_of("kafka-python", mechanism, "wrong")
    known = {"bootstrap_servers": at.plain, "bootstrap_timeout_ms": 1000}
    known |= {name.replace(".", "_"): value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", f"from kafka import KafkaProducer; KafkaProducer(**{known!r})"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "kafka.errors.KafkaTimeoutError" in done.stderr


def test_who_logs_in_where_nobody_is_asked_is_told(at: Entrance) -> None:
    errors: list[KafkaError] = []
    settings = settings_of("confluent", "PLAIN", PASSWORD)
    admin = AdminClient(
        {"bootstrap.servers": at.open, "error_cb": errors.append, "log_level": 0, **settings}
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    confluent.wait_for_errors(admin, errors)


# --- sessions and changes ---


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-512"])
def short(
    request: pytest.FixtureRequest, copies: Copies, template_database: str, tmp_path: Path
) -> Iterator[tuple[Entrance, str]]:
    """A broker whose sessions last two seconds, and the mechanism that it offers."""
    opened, asks = free_port(), free_port()
    with copies.taken(template_database) as url, gateways(tmp_path) as start:
        made = start(
            f"--override=listeners=PLAINTEXT://127.0.0.1:{opened},SASL_PLAINTEXT://127.0.0.1:{asks}",
            f"--override=sasl.enabled.mechanisms={request.param}",
            "--override=connections.max.reauth.ms=2000",
            *("--log-level", "debug"),
            database_url=url,
            port=opened,
        )
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        place = Entrance(made, made.bootstrap, f"127.0.0.1:{asks}", "", tmp_path, admin)
        place.put(USER, PASSWORD, "SCRAM-SHA-512")
        yield place, request.param


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_go_on_when_their_sessions_end(
    short: tuple[Entrance, str], name: str, request: pytest.FixtureRequest
) -> None:
    """Java's log in again on the same connection (KIP-368), the others on another one."""
    at, mechanism = short
    topic = make_topic(at, "again")
    with contextlib.closing(make_client(name, request, at.plain)) as client:
        producer = client.producer("again", **settings_of(name, mechanism, PASSWORD))
        for number in range(12):
            producer.begin()
            producer.send(topic, str(number))
            producer.commit()
            time.sleep(0.5)
        with contextlib.closing(make_client("confluent", request, at.open)) as reading:
            found = read_to_end(reading, topic)
    assert values(found) == [str(number) for number in range(12)]
    log = at.gateway.log()
    assert log.count("logged_in ") >= 4
    assert "login_refused" not in log
    if name == "java":
        # It logs in again for its next request after 85 to 95 % of a session; one that waits for
        # the processor there for 0.1 s comes too late. Without KIP-368 each session ends so.
        assert log.count("its session is over") <= 1


def test_a_user_that_is_deleted_is_disconnected_and_may_not_come_back(
    at: Entrance, topic_name: str
) -> None:
    topic = make_topic(at, topic_name)
    at.put("leaving", PASSWORD)
    errors: list[KafkaError] = []
    settings = settings_of("confluent", "SCRAM-SHA-256", PASSWORD, "leaving")
    producer = Producer(
        {"bootstrap.servers": at.plain, "error_cb": errors.append, "log_level": 0, **settings}
    )
    producer.produce(topic, b"x")
    assert producer.flush(20) == 0
    gone = UserScramCredentialDeletion("leaving", ScramMechanism.SCRAM_SHA_256)
    at.admin.alter_user_scram_credentials([gone])["leaving"].result(20)
    deadline = time.monotonic() + 30
    while not any(each.code() == KafkaError._AUTHENTICATION for each in errors):
        assert time.monotonic() < deadline
        producer.poll(0.2)
    assert "user leaving was deleted, or its password was changed" in at.gateway.log()
    producer.produce(topic, b"y")
    assert producer.flush(1) == 1
    producer.purge()


# --- tools ---


@pytest.mark.java
def test_kafka_configs_makes_shows_and_deletes_users(at: Entrance, shell: tools.RunTool) -> None:
    def configs(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return shell(CONFIGS, "--bootstrap-server", at.open, *arguments, check=check)

    entity = ("--entity-type", "users", "--entity-name", "carol")
    add = "SCRAM-SHA-256=[iterations=8192,password=swordfish],SCRAM-SHA-512=[password=swordfish]"
    twice = configs("--alter", "--add-config", add, *entity, check=False)
    assert "A user credential cannot be altered twice in the same request" in twice.stdout
    for each in add.split("],"):
        configs("--alter", "--add-config", each.rstrip("]") + "]", *entity)
    described = configs("--describe", *entity).stdout
    assert "SCRAM credential configs for user-principal 'carol' are" in described
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert "swordfish" not in described
    for mechanism in MECHANISMS:
        settings = settings_of("confluent", mechanism, "swordfish", "carol")
        assert AdminClient({"bootstrap.servers": at.plain, **settings}).list_topics(timeout=20)
    for mechanism in MECHANISMS[1:]:
        configs("--alter", "--delete-config", mechanism, *entity)
    assert "SCRAM" not in configs("--describe", *entity).stdout
    few = configs(
        *("--alter", "--add-config", "SCRAM-SHA-256=[iterations=100,password=x]", *entity),
        check=False,
    )
    assert few.returncode != 0


def test_librdkafkas_admin_lists_users(at: Entrance) -> None:
    at.put("dave", "x")
    found = at.admin.describe_user_scram_credentials(["dave"])["dave"].result(20)
    assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    with pytest.raises(KafkaException) as raised:
        at.admin.describe_user_scram_credentials(["erin"])["erin"].result(20)
    assert raised.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
