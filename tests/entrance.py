"""A broker with three doors: one that asks nobody, one for logins, one for logins by TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.conftest import Gateway, StartGateway, free_port, gateways
from tests.databases import Copies

MECHANISMS: Final = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USER: Final = "alice"
PASSWORD: Final = "wonder=land,ß"


@dataclass(frozen=True, slots=True)
class Entrance:
    """A broker with three listeners. open: asks nobody."""

    gateway: Gateway
    open: str
    plain: str
    secure: str
    certificate: Path
    admin: AdminClient

    def put(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
        kind = ScramMechanism[mechanism.replace("-", "_")]
        info = ScramCredentialInfo(kind, 4096)
        wanted = UserScramCredentialUpsertion(user, info, password.encode())
        self.admin.alter_user_scram_credentials([wanted])[user].result(20)


@contextmanager
def entrance(
    start: StartGateway, certificate: Path, url: str, *settings: str
) -> Iterator[Entrance]:
    """Of a database. settings: of the broker's, NAME=VALUE. USER is there, with both SCRAMs."""
    ports = [free_port() for _ in range(3)]
    names = ("OPEN", "ASKS", "SECURE")
    listeners = ",".join(f"{n}://127.0.0.1:{p}" for n, p in zip(names, ports, strict=True))
    made = start(
        f"--override=listeners={listeners}",
        f"--override=advertised.listeners=SECURE://localhost:{ports[2]}",
        "--override=listener.security.protocol.map="
        "OPEN:PLAINTEXT,ASKS:SASL_PLAINTEXT,SECURE:SASL_SSL",
        f"--override=sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        *("--tls-cert", certificate, "--tls-key", certificate),
        *(f"--override={each}" for each in settings),
        database_url=url,
        port=ports[0],
    )
    found = Entrance(
        made,
        made.bootstrap,
        f"127.0.0.1:{ports[1]}",
        f"localhost:{ports[2]}",
        certificate.with_suffix(".crt"),
        AdminClient({"bootstrap.servers": made.bootstrap}),
    )
    for mechanism in MECHANISMS[1:]:
        found.put(USER, PASSWORD, mechanism)
    yield found
    assert PASSWORD not in made.log()


@contextmanager
def own_entrance(
    copies: Copies, template: str, certificate: Path, directory: Path, *settings: str
) -> Iterator[Entrance]:
    """The same over a new database. directory: for logs."""
    with (
        copies.taken(template) as url,
        gateways(directory) as start,
        entrance(start, certificate, url, *settings) as found,
    ):
        yield found


def java_properties(
    at: Entrance, mechanism: str, password: str = PASSWORD, user: str = USER, *, tls: bool = False
) -> dict[str, Any]:
    """As Kafka's Java clients and Penstock's own take them."""
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"org.apache.kafka.common.security.{kind}LoginModule"
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(at.certificate)}
    return {
        "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        **(trust if tls else {}),
    }
