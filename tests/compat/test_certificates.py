"""Stock clients show certificates: whom these stand for, and what clients say where theirs is not
wanted. Each client's own exception is written down here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from aiokafka.helpers import create_ssl_context
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.certificates import Authority
from tests.compat import confluent
from tests.compat.clients import Client, JavaError, JavaShell, values
from tests.compat.conftest import CLIENTS, make_client
from tests.compat.groups import BROKER_SETTINGS
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies
from tests.entrance import PASSWORD, USER
from tests.variants import variants

NAME = "CN=Jörg M\\, Ops+UID=7,O=Rivers"
PRINCIPAL = "User:UID=7+CN=Jörg M\\, Ops,O=Rivers"  # DER sorts what is in a set
PROTOCOLS = "OPEN:PLAINTEXT,NEEDS:SSL,MAY:SSL,BOTH:SASL_SSL"
WRONG = ["another's", "expired", "not yet", "none", "revoked"]
ALERTS = [
    *("unknown ca", "certificate expired", "bad certificate", "certificate required"),
    "certificate revoked",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A broker with a listener that needs certificates, one that asks for them and goes by the CN
    alone, and one that wants a login as well. wrong: certificates by what is wrong."""

    gateway: Gateway
    open: str
    needs: str
    may: str
    both: str
    authority: Path
    right: Path
    wrong: Mapping[str, Path | None]
    admin: AdminClient


@pytest.fixture(scope="module")
def at(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority.made(directory)
    server = authority.write("server.pem", "CN=broker", host="localhost")
    trusted = authority.write_own()
    ports = [free_port() for _ in range(4)]
    names = ("OPEN", "NEEDS", "MAY", "BOTH")
    hosts = ("127.0.0.1", "localhost", "localhost", "localhost")
    listeners = ",".join(
        f"{name}://{host}:{port}" for name, host, port in zip(names, hosts, ports, strict=True)
    )
    revoked = authority.write("revoked.pem", NAME)
    settings = {
        **BROKER_SETTINGS,
        "penstock.ssl.crl.location": str(authority.write_list(revoked)),
        "listeners": listeners,
        "listener.security.protocol.map": PROTOCOLS,
        "ssl.client.auth": "required",
        "listener.name.may.ssl.client.auth": "requested",
        "listener.name.may.ssl.principal.mapping.rules": "RULE:^.*CN=(\\w+).*$/$1/L,DEFAULT",
        "listener.name.both.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
    }
    with copies.taken(template_database) as url, gateways(directory) as start:
        made = start(
            *("--tls-cert", server, "--tls-key", server, "--tls-client-ca", trusted),
            *(f"--override={name}={value}" for name, value in settings.items()),
            database_url=url,
            port=ports[0],
        )
        yield Place(
            made,
            made.bootstrap,
            *(f"localhost:{port}" for port in ports[1:]),
            authority=trusted,
            right=authority.write("right.pem", NAME),
            wrong={
                "another's": Authority.made(directory, "CN=Other").write("other.pem", NAME),
                "expired": authority.write("expired.pem", NAME, begins=-9, ends=-1),
                "not yet": authority.write("later.pem", NAME, begins=1),
                "none": None,
                "revoked": revoked,
            },
            admin=AdminClient({"bootstrap.servers": made.bootstrap}),
        )


def settings_of(client: str, at: Place, shown: Path | None) -> dict[str, Any]:
    """A client's, to show a certificate."""
    trusted = at.authority
    protocol = {"security.protocol": "SSL"}
    if client == "java":
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": trusted}
        key = {"ssl.keystore.type": "PEM", "ssl.keystore.location": shown} if shown else {}
    elif client == "confluent":
        trust = {"ssl.ca.location": str(trusted)}
        files = {"ssl.key.location": str(shown), "ssl.certificate.location": str(shown)}
        key = files if shown else {}
    elif client == "kafka-python":
        trust = {"ssl.cafile": str(trusted)}
        key = {"ssl.certfile": str(shown), "ssl.keyfile": str(shown)} if shown else {}
    else:
        context = create_ssl_context(cafile=str(trusted))
        if shown:
            context.load_cert_chain(shown)
        trust, key = {"ssl.context": context}, {}
    return protocol | trust | key


def allow(at: Place, principal: str, topic: str) -> None:
    """All on a topic, the group and the transactional id of its name."""
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    every = [
        AclBinding(
            kind,
            topic,
            ResourcePatternType.LITERAL,
            principal,
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for kind in kinds
    ]
    for made in at.admin.create_acls(every).values():
        made.result(20)


def make_topic(at: Place, name: str) -> str:
    at.admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    return name


def works(client: Client, topic: str, settings: dict[str, Any]) -> None:
    """A transaction is written, and read by a member of a group."""
    producer = client.producer(topic, **settings)
    producer.begin()
    producer.send(topic, "one", "two")
    producer.commit()
    found: list[Any] = []
    with contextlib.closing(client.reader(topic, None, group=topic, **settings)) as reader:
        deadline = time.monotonic() + 30
        while len(found) < 2:
            assert time.monotonic() < deadline
            found += reader.poll()
    assert values(found) == ["one", "two"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_whom_its_certificate_names(
    at: Place, name: str, request: pytest.FixtureRequest, topic_name: str
) -> None:
    """It may do what the ACLs of exactly this name say, and nothing else."""
    topic = make_topic(at, topic_name)
    allow(at, PRINCIPAL, topic)
    with contextlib.closing(make_client(name, request, at.needs)) as client:
        works(client, topic, settings_of(name, at, at.right))
    admin = AdminClient({"bootstrap.servers": at.needs, **settings_of("confluent", at, at.right)})
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([NewTopic("else", 1, 1)])["else"].result(20)
    assert "AUTHORIZATION_FAILED" in raised.value.args[0].name()


@pytest.mark.parametrize("shown", ["right", "none"])
def test_where_certificates_are_only_asked_for_one_comes_without(
    at: Place, shown: str, request: pytest.FixtureRequest, topic_name: str
) -> None:
    """Rules of the listener's own make another name of the certificate's."""
    topic = make_topic(at, topic_name)
    certificate = at.right if shown == "right" else None
    allow(at, "User:jörg" if certificate else "User:nobody", topic)
    with contextlib.closing(make_client("confluent", request, at.may)) as client:
        works(client, topic, settings_of("confluent", at, certificate))


def test_where_clients_log_in_they_have_the_name_of_the_login(at: Place, topic_name: str) -> None:
    """And show a certificate as well (KIP-684)."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    at.admin.alter_user_scram_credentials([wanted])[USER].result(20)
    login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    for shown, is_let_in in ((at.right, True), (None, False)):
        known = settings_of("confluent", at, shown) | login
        known |= {"security.protocol": "SASL_SSL", "bootstrap.servers": at.both, "log_level": 0}
        admin = AdminClient(known)
        if is_let_in:
            admin.create_topics([NewTopic(topic_name, 1, 1)])[topic_name].result(20)
        else:
            with pytest.raises(KafkaException):
                admin.list_topics(timeout=0.5)


# --- wrong ---


@pytest.mark.parametrize(("wrong", "alert"), list(zip(WRONG, ALERTS, strict=True)))
def test_librdkafka_says_what_is_wrong(at: Place, wrong: str, alert: str) -> None:
    """By TLS 1.3 the handshake is over for it before the broker has seen its certificate."""
    errors: list[KafkaError] = []
    settings = settings_of("confluent", at, at.wrong[wrong])
    admin = AdminClient(
        {"bootstrap.servers": at.needs, "error_cb": errors.append, "log_level": 0, **settings}
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    confluent.wait_for_errors(admin, errors)
    assert errors[0].code() == KafkaError._TRANSPORT
    assert f"alert {alert}" in errors[0].str()


@pytest.mark.java
@pytest.mark.parametrize("wrong", WRONG)
def test_java_says_that_the_handshake_failed(
    at: Place, java_clients: JavaShell, wrong: str
) -> None:
    name = java_clients.new_name()
    settings = settings_of("java", at, at.wrong[wrong])
    settings |= {"bootstrap.servers": at.needs, "transactional.id": f"t-{wrong}"}
    settings |= {"max.block.ms": 20_000}
    java_clients.call("producer", name, *(f"{key}={value}" for key, value in settings.items()))
    with pytest.raises(JavaError) as raised:
        java_clients.call("init", name)
    java_clients.call("abandon", name)
    assert "SslAuthenticationException" in (raised.value.name, raised.value.cause)


@pytest.mark.parametrize("wrong", variants(*WRONG))
def test_aiokafka_says_that_it_cannot_connect(at: Place, wrong: str) -> None:
    async def start() -> None:
        settings = settings_of("aiokafka", at, at.wrong[wrong])
        producer = AIOKafkaProducer(
            bootstrap_servers=at.needs, **{k.replace(".", "_"): v for k, v in settings.items()}
        )
        try:
            await asyncio.wait_for(producer.start(), 30)
        finally:
            await producer.stop()

    with pytest.raises(KafkaConnectionError):
        asyncio.run(start())


@pytest.mark.parametrize("wrong", variants(*WRONG))
def test_kafka_python_gives_up_in_the_time_that_it_is_given(at: Place, wrong: str) -> None:
    """In a process of its own: a client that could not be made leaves sockets open."""
    settings = settings_of("kafka-python", at, at.wrong[wrong])
    known = {"bootstrap_servers": at.needs, "bootstrap_timeout_ms": 1000}
    known |= {name.replace(".", "_"): value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", f"from kafka import KafkaProducer; KafkaProducer(**{known!r})"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "kafka.errors.KafkaTimeoutError" in done.stderr


def test_the_log_says_what_is_wrong(at: Place) -> None:
    for wrong, reason in (
        ("another's", "unable to get local issuer certificate"),
        ("expired", "certificate has expired"),
        ("not yet", "certificate is not yet valid"),
        ("none", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("revoked", "certificate revoked"),
    ):
        host, port = at.needs.split(":")
        context = ssl.create_default_context(cafile=str(at.authority))
        if certificate := at.wrong[wrong]:
            context.load_cert_chain(certificate)
        before = at.gateway.log().count(reason)
        with (
            pytest.raises(ssl.SSLError, match="alert"),
            socket.create_connection((host, int(port))) as bare,
            context.wrap_socket(bare, server_hostname=host) as shaken,
        ):
            shaken.settimeout(30)
            shaken.recv(1)
        deadline = time.monotonic() + 30
        while at.gateway.log().count(reason) == before:
            assert time.monotonic() < deadline, wrong
            time.sleep(0.02)
