"""Brokers with three listeners: one that asks nobody, one for logins, one for logins by TLS.

Penstock and Apache Kafka get the same listeners and users. Knows their settings; must not know any
case.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.brokers import Broker, started_penstock
from bench.peer.kafka import started_kafka
from bench.processes import free_port

USER, PASSWORD = "alice", "wonderland"  # no secret: everything is on this machine and soon gone
ITERATIONS = 4096
MODULE = "org.apache.kafka.common.security"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

OTHERS_ACLS = 10_000
OWN_ACLS = (
    ("ALL", "TOPIC", "bench-", "PREFIXED"),  # what all cases go by
    ("ALL", "GROUP", "bench", "PREFIXED"),
    ("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster", "LITERAL"),
    ("READ", "TOPIC", "flights", "LITERAL"),
)
TENANTS = 100
"""Whose ACLs the others are; one of them is the user itself."""

Acl = tuple[str, str, str, str, str]  # principal, operation, resource type, name, pattern type


@dataclass(frozen=True, slots=True)
class SecuredBroker(Broker):
    """asks, secure: addresses of the listeners for SASL_PLAINTEXT and SASL_SSL. certificate: what
    it shows there, in PEM. restricted: another like it, with an authorizer and ACLs; the CPU of
    its processes is in `processes`, too."""

    asks: str = ""
    secure: str = ""
    certificate: Path = Path()
    restricted: SecuredBroker | None = None

    def write_out(self) -> None:
        """See Broker; also of the restricted one."""
        Broker.write_out(self)
        if self.restricted is not None:
            Broker.write_out(self.restricted)

    def at(self, listener: str) -> dict[str, Any]:
        """What librdkafka's workers are told. listener: "open", "asks" or "secure"."""
        if listener == "open":
            return {"bootstrap": self.bootstrap}
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        if listener == "asks":
            return {"bootstrap": self.asks, "login": login}
        login |= {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.certificate)}
        return {"bootstrap": self.secure, "login": login}

    def scram(self, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """What workers of `bench.security.work` are told."""
        return {
            "bootstrap": self.asks,
            "mechanism": mechanism,
            "user": USER,
            "password": PASSWORD,
        }


@dataclass(frozen=True, slots=True)
class Listeners:
    """Ports of loopback, and settings of either broker about them."""

    open: int
    asks: int
    secure: int

    @classmethod
    def free(cls) -> Listeners:
        return cls(free_port(), free_port(), free_port())

    def settings(self) -> dict[str, str]:
        ports = {"PLAINTEXT": self.open, "ASKS": self.asks, "SECURE": self.secure}
        return {
            "listeners": ",".join(f"{each}://127.0.0.1:{port}" for each, port in ports.items()),
            # The certificate's name. It is of no use to look up that of the others.
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.open},"
            f"ASKS://127.0.0.1:{self.asks},SECURE://localhost:{self.secure}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ASKS:SASL_PLAINTEXT,"
            "SECURE:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            # Sessions end, or nobody may log in again; nobody has to while it is measured.
            "connections.max.reauth.ms": "3600000",
        }


def made_certificate(directory: Path) -> Path:
    """A key of `localhost` with its certificate, signed by itself; that alone beside it, `.crt`."""
    path = directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    alone = path.with_suffix(".crt")
    subprocess.run(
        [*command.split(), "-keyout", path, "-out", alone], capture_output=True, check=True
    )
    path.write_text(path.read_text() + alone.read_text())
    return path


def acls() -> list[Acl]:
    """10,004, half of them prefixes. Of the others' a hundredth are the user's own, and prefixes
    have many lengths: by both a broker has to look at more."""
    made = [(f"User:{USER}", *each) for each in OWN_ACLS]
    for number in range(OTHERS_ACLS):
        tenant, of_tenant = number % TENANTS, number // TENANTS
        principal = f"User:{USER}" if tenant == 0 else f"User:tenant-{tenant}"
        operation = ("READ", "WRITE", "DESCRIBE")[of_tenant % 3]
        is_prefix = of_tenant % 2 == 0
        name = f"{'t' * (1 + of_tenant % 20)}-{tenant}-{of_tenant}"
        pattern = "PREFIXED" if is_prefix else "LITERAL"
        made.append((principal, operation, "TOPIC", name, pattern))
    return made


def insert_acls(database_url: str) -> None:
    """In one statement: each raises the number by which brokers see a change."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO penstock.acl"
            " (principal, operation, resource_type, resource_name, pattern_type) "
            "SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[])",
            [list(column) for column in zip(*acls(), strict=True)],
        )


def make_user(broker: SecuredBroker) -> None:
    """Verifiers of both mechanisms; returns when a client of each listener has been let in."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, ITERATIONS)
        made = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        admin.alter_user_scram_credentials([made])[USER].result(30)
    for listener in ("asks", "secure"):
        told = broker.at(listener)
        client = AdminClient(
            {"bootstrap.servers": told["bootstrap"], "log_level": 2} | told["login"]
        )
        client.list_topics(timeout=30)


def secured(
    broker: Broker, listeners: Listeners, certificate: Path, **beside: Any
) -> SecuredBroker:
    """The broker with its listeners. beside: other values of its fields."""
    known = {each.name: getattr(broker, each.name) for each in fields(Broker)} | beside
    return SecuredBroker(
        **known,
        asks=f"127.0.0.1:{listeners.asks}",
        secure=f"localhost:{listeners.secure}",
        certificate=certificate.with_suffix(".crt"),
    )


@contextlib.contextmanager
def penstock(
    data: Path, certificate: Path, settings: Mapping[str, str] | None = None
) -> Iterator[SecuredBroker]:
    """settings: beside those of the listeners."""
    listeners = Listeners.free()
    every = listeners.settings() | dict(settings or {})
    further = [f"--override={name}={value}" for name, value in every.items()]
    tls = ["--tls-cert", certificate, "--tls-key", certificate]
    with started_penstock(data, port=listeners.open, further=[*tls, *further]) as (broker, _):
        made = secured(broker, listeners, certificate)
        make_user(made)
        yield made


@contextlib.contextmanager
def penstocks(home: Path, certificate: Path, *, acls: bool) -> Iterator[SecuredBroker]:
    """One without an authorizer; acls: with another beside it that has one, and many ACLs."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(penstock(home / "penstock", certificate))
        if acls:
            settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
            beside = penstock(home / "restricted", certificate, settings)
            restricted = stack.enter_context(beside)
            assert restricted.database_url is not None
            insert_acls(restricted.database_url)
            processes = dict(broker.processes)
            processes |= {f"restricted_{name}": each for name, each in restricted.processes.items()}
            known = {each.name: getattr(broker, each.name) for each in fields(SecuredBroker)}
            broker = SecuredBroker(**known | {"processes": processes, "restricted": restricted})
        yield broker


@contextlib.contextmanager
def kafka(home: Path, certificate: Path) -> Iterator[SecuredBroker]:
    """An Apache Kafka that does not sync. Raises JavaUnavailable."""
    listeners, controller = Listeners.free(), free_port()
    settings = listeners.settings()
    settings["listeners"] += f",CONTROLLER://127.0.0.1:{controller}"
    settings["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    jaas = "listener.name.asks.{}.sasl.jaas.config", "listener.name.secure.{}.sasl.jaas.config"
    for name in jaas:
        settings[name.format("plain")] = (
            f'{MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[name.format(mechanism)] = f"{MODULE}.scram.ScramLoginModule required;"
    settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate)}
    started = started_kafka(
        home,
        ["nosync"],
        settings_beside=settings,
        port=listeners.open,
        controller_port=controller,
    )
    with started as ([broker], _):
        made = secured(broker, listeners, certificate, serves=("security/[!a]*",))
        make_user(made)
        yield made
