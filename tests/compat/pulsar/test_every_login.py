"""Pulsar's stock clients log in: with what is right they work as ever, else they say so.

Each client's own word for it is written down here.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jwt
import pytest

from compat.pulsar.drivers import Call, Refused
from tests.certificates import Authority
from tests.cli.test_main import penstock
from tests.compat.pulsar.administering import Admin
from tests.compat.pulsar.clients import Client, Consumer, Producer, eventually, refusal
from tests.compat.pulsar.conftest import JAVA, Both, MakeClient
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies
from tests.entrance import PASSWORD, USER

SECRET = bytes(range(32))
# As at Apache Pulsar 4.2.4: two of them take the end of the connection for the answer, and try
# again until their time is over.
UNTRUSTED = {"java": "PulsarClientException", "go": "*errors.joinError", "python": "Timeout"}
REFUSED = {"java": "AuthenticationException", "go": "*errors.joinError", "python": "Timeout"}


@dataclass(frozen=True, slots=True)
class Door:
    """A broker whose clients log in. tokens: a directory for them."""

    both: Both
    tokens: Path

    def users(self, *arguments: str, password: str = "") -> None:
        """`penstock users`, as on the database's machine."""
        url = self.both.gateway.database_url
        assert url is not None
        subprocess.run(
            [sys.executable, "-m", "penstock", "users", *arguments, "--database-url", url],
            input=f"{password}\n",
            text=True,
            check=True,
            capture_output=True,
        )

    def token(
        self, name: str, lasts_s: float = 600, key: bytes = SECRET, role: str = "alice"
    ) -> dict[str, str]:
        """A login by a token that lies in a file of this name."""
        path = self.tokens / name
        claims = {"sub": role, "exp": int(time.time() + lasts_s)}
        path.with_suffix(".new").write_text(jwt.encode(claims, key))
        path.with_suffix(".new").rename(path)
        return {"method": "token", "token_file": str(path)}


def by_password(password: str = PASSWORD, user: str = USER) -> dict[str, str]:
    return {"method": "basic", "user": user, "password": password}


@pytest.fixture(scope="module")
def door(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    directory = tmp_path_factory.mktemp("door")
    key = directory / "secret.key"
    key.write_bytes(SECRET)
    port, http_port = free_port(), free_port()
    with copies.taken(template_database) as url, gateways(directory) as start:
        gateway = start(
            *("--pulsar-listen", f"127.0.0.1:{port}"),
            *("--http-listen", f"127.0.0.1:{http_port}"),
            "--override=authenticationEnabled=true",
            "--override=authenticationProviders=token,basic",
            "--override=authenticationRefreshCheckSeconds=1",
            f"--override=tokenSecretKey={key.as_uri()}",
            "--log-level=debug",
            database_url=url,
        )
        door = Door(Both(gateway, port, http_port), directory)
        door.users("add", USER, "--mechanism", "SCRAM-SHA-256", password=PASSWORD)
        yield door
        assert base64.b64encode(SECRET).decode() not in gateway.log()
        assert PASSWORD not in gateway.log()
        for token in directory.glob("*token*"):
            assert token.read_text() not in gateway.log()


@pytest.fixture(params=[JAVA, "go", "python"])
def of(
    request: pytest.FixtureRequest, make_client: MakeClient, door: Door
) -> Callable[..., Client]:
    """Makes clients of one kind that log in so."""

    def make(login: dict[str, str] | None, **settings: Any) -> Client:
        given = {} if login is None else {"login": login}
        return make_client(request.param, door.both.service_url, **given, **settings)

    return make


@pytest.fixture
def of_each(
    make_client: MakeClient, door: Door, java_driver: Call, go_driver: Call
) -> Callable[[Callable[[str], dict[str, str]]], list[Client]]:
    """Makes one of each kind, each with a login of its own. Their drivers have begun before."""
    url = door.both.service_url
    for name in ("java", "go", "python"):
        make_client(name, url, login=door.token("first.token")).producer("first")

    def make(login: Callable[[str], dict[str, str]]) -> list[Client]:
        return [make_client(name, url, login=login(name)) for name in ("java", "go", "python")]

    return make


def works(client: Client, topic: str) -> None:
    consumer = client.consumer(topic, is_earliest=True)
    client.send(topic, b"one", b"two")
    assert [each.value for each in consumer.take(2)] == [b"one", b"two"]
    consumer.close()


Of = Callable[..., Client]
OfEach = Callable[[Callable[[str], dict[str, str]]], list[Client]]


def test_a_client_with_a_good_token_works(door: Door, of: Of, topic: str) -> None:
    works(of(door.token("good.token")), topic)


def test_a_client_with_the_right_password_works(of: Of, topic: str) -> None:
    works(of(by_password()), topic)


def test_a_client_that_is_refused_says_so(door: Door, of: Of, topic: str) -> None:
    logins = [door.token("forged.token", key=bytes(32)), by_password("guess"), None]
    for login in logins:
        client = of(login, operation_timeout_ms=1_000)
        assert refusal(lambda client=client: client.producer(topic)) == REFUSED[client.name]
        if client.name != "java":
            break  # they try again for a second


def closed(door: Door, why: str) -> int:
    lines = door.both.gateway.log().splitlines()
    return sum("connection closed" in line and why in line for line in lines)


SHORT_S = 6
"""A token lasts so long that a client on a busy machine logs in with it."""


@pytest.mark.java
def test_clients_are_asked_for_another_token_and_those_that_have_none_are_sent_away(
    door: Door, of_each: OfEach, topic: str
) -> None:
    """Those that have one stay on their connections. The others come back once they have one."""
    count = closed(door, "run out")
    staying: list[tuple[Producer, Consumer]] = []

    def renewing(name: str) -> dict[str, str]:
        return door.token(f"{name}.token", SHORT_S, role=f"{name}-{topic}")

    for client in of_each(renewing):
        own = f"{topic}-{client.name}"
        staying.append((client.producer(own), client.consumer(own, is_earliest=True)))
        door.token(f"{client.name}.token", role=f"{client.name}-{topic}")
    leaving = of_each(lambda name: door.token("last.token", SHORT_S))
    others = [client.producer(topic) for client in leaving]
    sent: list[bytes] = []

    def are_all_renewed() -> bool:
        sent.append(b"%d" % len(sent))
        for producer, _ in staying:
            producer.send(sent[-1])
        lines = [each for each in door.both.gateway.log().splitlines() if "logged_in" in each]
        return all(
            sum(f"user={name}-{topic}" in each for each in lines) == 2
            for name in ("java", "go", "python")
        )

    assert eventually(are_all_renewed)
    assert eventually(lambda: closed(door, "run out") == count + len(leaving))
    door.token("last.token")
    for producer in others:
        producer.send(b"one")
    assert len(leaving[0].consumer(topic, is_earliest=True).take(3)) == 3
    for producer, consumer in staying:
        producer.send(b"last")
        found = [each.value for each in consumer.take(len(sent) + 1)]
        assert found == [*sent, b"last"], "once, and in order"
    assert closed(door, "run out") == count + len(leaving)


# --- certificates ---


@dataclass(frozen=True, slots=True)
class Secure:
    """Two brokers whose clients log in by certificate. trust: their authority's."""

    gateways: tuple[Gateway, Gateway]
    url: str
    http_urls: list[str]
    trust: Path
    authority: Authority

    def login(self, name: str, authority: Authority | None = None) -> dict[str, str]:
        """By a certificate of this CN, signed by the brokers' authority or by another."""
        path = (authority or self.authority).write(f"{name}.pem", f"CN={name},O=Flights")
        return {"method": "tls", "certificate": str(path.with_suffix(".crt")), "key": str(path)}


@pytest.fixture(scope="module")
def secure(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("secure")
    authority = Authority.made(directory)
    server = authority.write("server.pem", "CN=localhost", host="localhost")
    trust = authority.write_own()
    with copies.taken(template_database) as database, gateways(directory) as start:

        def started() -> tuple[Gateway, int, int]:
            kafka, port, http_port = free_port(), free_port(), free_port()
            gateway = start(
                *("--pulsar-listen", f"127.0.0.1:{port}"),
                *("--pulsar-advertise", f"localhost:{port}"),
                *("--http-listen", f"127.0.0.1:{http_port}"),
                *("--http-advertise", f"localhost:{http_port}"),
                *("--tls-cert", server, "--tls-key", server, "--tls-client-ca", trust),
                f"--override=listeners=PLAINTEXT://127.0.0.1:{kafka}",
                "--override=authenticationEnabled=true",
                "--override=authenticationProviders=tls,token",
                f"--override=tokenSecretKey={base64.b64encode(SECRET).decode()}",
                "--log-level=debug",
                database_url=database,
                port=kafka,
            )
            return gateway, port, http_port

        (gateway, port, http_port), (other, _, other_http) = started(), started()
        urls = [f"https://localhost:{each}" for each in (http_port, other_http)]
        found = Secure((gateway, other), f"pulsar+ssl://localhost:{port}", urls, trust, authority)
        yield found


@pytest.mark.parametrize("name", [JAVA, "go", "python"])
def test_a_client_with_a_good_certificate_works_and_others_say_so(
    secure: Secure, make_client: MakeClient, topic: str, name: str, tmp_path: Path
) -> None:
    def client(login: dict[str, str] | None, **settings: Any) -> Client:
        given = {} if login is None else {"login": login}
        return make_client(name, secure.url, trust=str(secure.trust), **given, **settings)

    works(client(secure.login(f"{name}-{topic}")), topic)
    log = "".join(each.log() for each in secure.gateways).splitlines()
    assert any("logged_in" in each and f"user={name}-{topic}" in each for each in log)
    stranger = secure.login("stranger", Authority.made(tmp_path))
    for login, said in ((stranger, UNTRUSTED[name]), (None, REFUSED[name])):
        other = client(login, operation_timeout_ms=1_000)
        assert refusal(lambda other=other: other.producer(topic)) == said


PLUGIN = "org.apache.pulsar.client.impl.auth.Authentication"
NOT_AUTHORIZED = "NotAuthorizedException"


@pytest.mark.java
def test_pulsar_admin_logs_in(door: Door, java: Call) -> None:
    file = Path(door.token("admin.token")["token_file"])
    for plugin, params in (
        ("Token", f"token:{file.read_text()}"),
        ("Token", file.as_uri()),
        ("Basic", json.dumps({"userId": USER, "password": PASSWORD})),
    ):
        admin = Admin(java, door.both.http_url, login=(PLUGIN + plugin, params))
        assert admin.tenants("getTenants") == ["public", "pulsar"]
        admin.close()
    for login in (
        None,
        (f"{PLUGIN}Token", f"token:{jwt.encode({'sub': 'alice'}, bytes(32))}"),
        (f"{PLUGIN}Basic", json.dumps({"userId": USER, "password": "guess"})),
    ):
        admin = Admin(java, door.both.http_url, login=login)
        with pytest.raises(Refused) as raised:
            admin.tenants("getTenants")
        assert (raised.value.name, raised.value.status) == (NOT_AUTHORIZED, 401)
        admin.close()


@pytest.mark.java
def test_clients_that_look_up_by_http_log_in(door: Door, java_driver: Call, topic: str) -> None:
    client = Client("java", java_driver, door.both.http_url, login=by_password())
    works(client, topic)
    client.close()


@pytest.mark.java
def test_tools_log_in_by_certificate(secure: Secure, java: Call, topic: str) -> None:
    """Also where a broker has to ask the other: that one sees no certificate of the tool's."""
    login = secure.login("admin")
    params = f"tlsCertFile:{login['certificate']},tlsKeyFile:{login['key']}"
    by_token = f"token:{jwt.encode({'sub': 'admin'}, SECRET)}"
    logins = [(f"{PLUGIN}Tls", params), (f"{PLUGIN}Token", by_token)]
    admins = [Admin(java, url, secure.trust, each) for url in secure.http_urls for each in logins]
    admins[0].topics("createPartitionedTopic", topic, 8)
    owners = set(admins[0].lookups("lookupPartitionedTopic", topic).values())
    assert len(owners) == 2, "both have some of eight"
    for number, admin in enumerate(admins):
        admin.topics("createSubscription", topic, f"s{number}", "earliest")
        assert len(admin.topics("getPartitionedStats", topic, True)["partitions"]) == 8
        for partition in range(2):  # sent to the other broker, if it has it
            found = admin.topics("getStats", f"{topic}-partition-{partition}")
            assert f"s{number}" in found["subscriptions"]
    for each in admins:
        each.close()
    for url in secure.http_urls:
        other = Admin(java, url, secure.trust)
        with pytest.raises(Refused) as raised:
            other.tenants("getTenants")
        assert (raised.value.name, raised.value.status) == (NOT_AUTHORIZED, 401)
        other.close()
    words = ("subscriptions", "skip", "s0", "--topic", topic, "--all")
    file = secure.authority.directory / "client.conf"
    file.write_text(
        f"authPlugin={PLUGIN}Tls\nauthParams={params}\ntlsTrustCertsFilePath={secure.trust}\n"
    )
    where = ("--admin-url", secure.http_urls[1], "--command-config")
    done = penstock(*words, *where, str(file))
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text(f"tlsTrustCertsFilePath={secure.trust}\n")
    done = penstock(*words, *where, str(file))
    assert (done.returncode, done.stderr) == (1, "Authentication required.\n")


def test_penstocks_own_tools_log_in(door: Door, topic: str, make_client: MakeClient) -> None:
    login = door.token("tool.token")
    client = make_client("python", door.both.service_url, login=login)
    client.send(topic, b"one")
    client.consumer(topic, is_earliest=True).close()
    conf, kafka, none = (door.tokens / name for name in ("client.conf", "kafka.conf", "none.conf"))
    conf.write_text(f"authPlugin={PLUGIN}Token\nauthParams=file://{login['token_file']}\n")
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    kafka.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={jaas} username="{USER}" password="{PASSWORD}";\n'
    )
    none.write_text("")
    words = ("subscriptions", "skip", "s", "--topic", topic, "--all")
    where = ("--admin-url", door.both.http_url)
    for file in (conf, kafka):
        done = penstock(*words, *where, "--command-config", str(file))
        assert (done.returncode, done.stderr) == (0, "")
    for given in ((), ("--command-config", str(none))):
        done = penstock(*words, *where, *given)
        assert (done.returncode, done.stderr) == (1, "Authentication required.\n")


@pytest.mark.java
def test_clients_whose_user_goes_go_too(door: Door, of_each: OfEach, topic: str) -> None:
    user = f"of-{topic}"
    login = by_password(user=user)
    door.users("add", user, "--mechanism", "SCRAM-SHA-256", password=PASSWORD)
    text = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    request = Request(f"{door.both.http_url}/metrics", headers={"authorization": f"Basic {text}"})

    def is_known() -> bool:
        try:
            with urlopen(request, timeout=30):
                return True
        except HTTPError:
            return False

    assert eventually(is_known)
    clients = of_each(lambda name: login)
    for client in clients:
        client.producer(topic)
    door.users("delete", user)
    why = f"user {user} was deleted"
    assert eventually(lambda: closed(door, why) >= len(clients))
