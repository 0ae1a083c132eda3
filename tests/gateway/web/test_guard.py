"""gateway.web.guard: who is let in by HTTP, and what is said to others."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from core.security.verifier import ScramMechanism, Verifier
from storage.users import delete_user, put_user
from tests.conftest import Gateway, StartGateway, free_port, gateways
from tests.databases import Copies
from tests.gateway.web.conftest import WITHIN_S

SECRET = bytes(range(32))
PASSWORD = "wonder:land,ß"
SETTINGS = (
    "authenticationEnabled=true",
    "authenticationProviders=token,basic",
    f"tokenSecretKey={base64.b64encode(SECRET).decode()}",
    "proxyRoles=proxy",
    "connection.failed.authentication.delay.ms=50",
)
REQUIRED = (401, {"reason": "Authentication required"})
TENANTS = "/admin/v2/tenants"


class Guarded:
    """A broker whose clients log in."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.port = port

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
        """Status and JSON; text where it is none."""
        response, whole = self.answer(path, method, **headers)
        try:
            return response.status, json.loads(whole) if whole else None
        except ValueError:
            return response.status, whole.decode()

    def becomes(self, status: int, headers: dict[str, str]) -> None:
        """Waits until these are answered so: users are looked at again each half second."""
        deadline = time.monotonic() + WITHIN_S
        while self.ask(TENANTS, **headers)[0] != status:
            assert time.monotonic() < deadline

    def answer(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()


def start(start_gateway: StartGateway, url: str, *settings: str) -> Guarded:
    port = free_port()
    gateway = start_gateway(
        *("--pulsar-listen", f"127.0.0.1:{free_port()}", "--http-listen", f"127.0.0.1:{port}"),
        *(f"--override={each}" for each in (*SETTINGS, *settings)),
        database_url=url,
    )
    put(url, "alice", PASSWORD)
    return Guarded(gateway, port)


def put(url: str, user: str, password: str) -> None:
    put_user(url, user, [Verifier.of_password(ScramMechanism.SHA_256, b"salt", 4096, password)])


@pytest.fixture(scope="module")
def guarded(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    with copies.taken(template_database) as url, gateways(directory) as start_gateway:
        found = start(start_gateway, url)
        found.becomes(200, basic())
        yield found
        log = found.gateway.log()
        assert "failed" not in log
        for secret in (PASSWORD, token(), base64.b64encode(SECRET).decode()):
            assert secret not in log


def token(role: str = "alice", lasts_s: float = 60, key: bytes = SECRET) -> str:
    return jwt.encode({"sub": role, "exp": int(time.time() + lasts_s)}, key)


def bearer(role: str = "alice", **how: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(role, **how)}"}


def basic(user: str = "alice", password: str = PASSWORD) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {text}"}


@pytest.mark.parametrize("path", [TENANTS, "/metrics"])
def test_who_logs_in_is_answered(guarded: Guarded, path: str) -> None:
    for headers in (bearer(), basic(), {"Authorization": f"bearer  {token()}"}):
        status, found = guarded.ask(path, **headers)
        assert status == 200
        assert found != REQUIRED[1]


def test_every_failure_looks_the_same(guarded: Guarded) -> None:
    for headers in (
        {},
        bearer(key=bytes(32)),
        bearer(lasts_s=-5),
        {"authorization": "Bearer"},
        {"authorization": "Bearer bad"},
        {"authorization": f"Bearer {'x' * 20_000}"},
        basic(password="guess"),
        basic("nobody"),
        {"authorization": "Basic *"},
        {"authorization": "Basic YWxpY2U="},
        {"authorization": "Negotiate abc"},
        {"authorization": token()},
        {"x_pulsar_auth_method_name": "token"},
        {"x_penstock_caller": "WyJhZG1pbiJd.00", **bearer()},  # nobody but a broker writes it
    ):
        began = time.monotonic()
        assert guarded.ask(TENANTS, **headers) == REQUIRED
        assert time.monotonic() - began >= 0.05
    response, _ = guarded.answer(TENANTS)
    challenges = response.headers.get_all("www-authenticate")
    assert challenges == ['Bearer realm="penstock"', 'Basic realm="penstock"']


def test_a_method_that_is_not_there_is_named_as_pulsar_does(guarded: Guarded) -> None:
    told = guarded.ask(TENANTS, x_pulsar_auth_method_name="athenz", **bearer())
    assert told == (401, {"reason": "Unsupported authentication method: [athenz]."})
    assert guarded.ask(TENANTS, x_pulsar_auth_method_name="token", **bearer())[0] == 200


def test_nobody_is_asked_for_his_health_and_everybody_for_all_else(guarded: Guarded) -> None:
    assert guarded.ask("/health")[0] == 200
    assert guarded.ask("/nothing")[0] == 404
    for method, path in (
        ("GET", "/metrics"),
        ("HEAD", "/metrics"),
        ("GET", "/admin/v2/brokers/health"),
        ("GET", "/admin/v2/functions"),  # what is not served
        ("DELETE", TENANTS),
        ("PUT", "/admin/v2/persistent/public/default/made"),
        ("GET", "/lookup/v2/topic/persistent/public/default/t"),
    ):
        assert guarded.ask(path, method)[0] == 401, path
    # A body is not waited for.
    response, _ = guarded.answer(f"{TENANTS}/t", "PUT", b"x" * 2**20)
    assert response.status == 401
    assert guarded.ask("/admin/v2/persistent/public/default", **bearer()) == (200, [])


def test_who_asks_is_said_once(guarded: Guarded) -> None:
    """A proxy adds its headers to those that its client has sent."""
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=WITHIN_S)
    for names in (["alice", "alice"], ["alice", "bob"], ["alice"]):
        connection.putrequest("GET", TENANTS)
        connection.putheader("Authorization", f"Bearer {token('proxy')}")
        for name in names:
            connection.putheader("X-Original-Principal", name)
        connection.endheaders()
        response = connection.getresponse()
        response.read()
        assert response.status == (200 if len(names) == 1 else 401)
    connection.close()


def test_nobody_logs_in_as_nobody(guarded: Guarded) -> None:
    """Who has not logged in may have rights, on the machine itself."""
    assert guarded.ask(TENANTS, **bearer("ANONYMOUS")) == REQUIRED
    assert guarded.ask(TENANTS, **bearer("proxy"), x_original_principal="ANONYMOUS")[0] == 401


@pytest.mark.parametrize(
    ("role", "original", "status"),
    [
        ("proxy", "alice", 200),
        ("proxy", None, 401),
        ("proxy", "proxy", 401),
        ("alice", "alice", 200),
        ("alice", "admin", 401),
    ],
)
def test_only_a_proxy_says_for_whom_it_asks(
    guarded: Guarded, role: str, original: str | None, status: int
) -> None:
    """As at Apache Pulsar 4.2.4."""
    given = {} if original is None else {"x_original_principal": original}
    assert guarded.ask(TENANTS, **bearer(role), **given)[0] == status


def test_users_may_come_and_go(guarded: Guarded) -> None:
    url = guarded.gateway.database_url
    assert url is not None
    put(url, "bob", "first")
    guarded.becomes(200, basic("bob", "first"))
    delete_user(url, "bob")
    guarded.becomes(401, basic("bob", "first"))


def test_logins_are_counted_and_refusals_in_the_log(guarded: Guarded) -> None:
    guarded.ask(TENANTS, **basic("mallory", "guess"))
    guarded.ask(TENANTS, **bearer())
    metrics = guarded.ask("/metrics", **bearer())[1]
    for labels in (
        'listener="http",mechanism="basic",outcome="failure"',
        'listener="http",mechanism="token",outcome="success"',
    ):
        assert f"penstock_logins_total{{{labels}}}" in metrics
    [line] = [each for each in guarded.gateway.log().splitlines() if "user=mallory" in each]
    assert "login_refused" in line
    assert "listener=http" in line
    assert "127.0.0.1" in line


def test_metrics_may_be_open(start_gateway: StartGateway, database_url: str) -> None:
    found = start(start_gateway, database_url, "authenticateMetricsEndpoint=false")
    assert found.ask("/metrics")[0] == 200
    assert found.ask(TENANTS)[0] == 401
