"""A broker whose page is looked at, and Chromium to look at it with."""

from __future__ import annotations

import base64
import http.client
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import jwt
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from core.security.verifier import ScramMechanism, Verifier
from storage.users import put_user
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

WITHIN_S = 30.0
WITHIN_MS = WITHIN_S * 1000
# Some tests' records are of long ago; the brokers live for longer than the time between two looks.
NO_RETENTION = "log.retention.check.interval.ms=86400000"
SECRET = bytes(range(32))
PASSWORD = "wonder:land,ß"
GUARDED = (
    "authenticationEnabled=true",
    "authenticationProviders=token,basic",
    f"tokenSecretKey={base64.b64encode(SECRET).decode()}",
    "connection.failed.authentication.delay.ms=50",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS;User:admin",
)
"""Who comes by HTTP logs in; Kafka's clients need not, and may do everything."""


@dataclass(frozen=True, slots=True)
class Site:
    """A broker and its page."""

    gateway: Gateway
    port: int
    pulsar_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bootstrap(self) -> str:
        return self.gateway.bootstrap

    def ask(
        self,
        path: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, http.client.HTTPMessage, str]:
        """Status, headers and text of one request. form: sent by POST, as this site's own page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        try:
            if form is None:
                connection.request("GET", path, headers=dict(headers or {}))
            else:
                sent = {"content-type": "application/x-www-form-urlencoded", "origin": self.url}
                connection.request("POST", path, urlencode(form), {**sent, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()


StartSite = Callable[..., Site]


@pytest.fixture
def start_site(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSite]:
    """Starts brokers with a page, all over the test's database: `start_site("--console-write")`."""
    with gateways(tmp_path_factory.mktemp("site")) as start:
        yield lambda *options, **more: _site(start, *options, url=database_url, **more)


@pytest.fixture(scope="session")
def site(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The session's broker whose page may change things. Tests use names of their own there."""
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("site")) as start,
    ):
        at_once = "--override=group.initial.rebalance.delay.ms=0"
        yield _site(start, "--console-write", at_once, f"--override={NO_RETENTION}", url=url)


@pytest.fixture(scope="session")
def guarded(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The session's broker whose page asks for a login, and goes by ACLs: `User:admin` may do
    everything, others what a test grants them. `alice` has a password."""
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("guarded")) as start,
    ):
        verifier = Verifier.of_password(ScramMechanism.SHA_256, b"salt", 4096, PASSWORD)
        put_user(url, "alice", [verifier])
        options = (f"--override={each}" for each in (*GUARDED, NO_RETENTION))
        yield _site(start, *options, url=url)


def token(role: str, lasts_s: float = 600, key: bytes = SECRET) -> str:
    """What logs a role in at `guarded`."""
    return jwt.encode({"sub": role, "exp": int(time.time() + lasts_s)}, key)


def bearer(role: str) -> dict[str, str]:
    """The same as a header."""
    return {"authorization": f"Bearer {token(role)}"}


def log_in(tab: Tab, site: Site, role: str) -> None:
    """Brings the tab to the first page, as the role."""
    tab.goto(f"{site.url}/login")
    tab.get_by_label("Token").fill(token(role))
    tab.get_by_role("button", name="Log in").click()
    tab.get_by_role("button", name="Log out").wait_for()


def grant(site: Site, role: str, operation: AclOperation, kind: ResourceType, name: str) -> None:
    """By an ACL, which counts when it returns."""
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    acl = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{role}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for made in admin.create_acls([acl]).values():
        made.result(WITHIN_S)


def _site(
    start: Callable[..., Gateway], *options: str, url: str, http_host: str = "127.0.0.1"
) -> Site:
    port, pulsar_port = free_port(), free_port()
    gateway = start(
        *("--pulsar-listen", f"127.0.0.1:{pulsar_port}"),
        *("--http-listen", f"{http_host}:{port}"),
        *options,
        database_url=url,
    )
    return Site(gateway, port, pulsar_port)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser of the system's: Debian's package `chromium`, or Chrome.

    A module's, since Playwright keeps an event loop running meanwhile: no test beside it is async.
    """
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("needs Chromium on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Tab]:
    """A tab of a browser that knows nothing yet. The test fails where a page's script does."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, timezone_id="UTC")
    context.set_default_timeout(WITHIN_MS)
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on(
        "console",
        lambda line: wrong.append(line.text) if _is_wrong(line.type, line.text) else None,
    )
    yield tab
    context.close()
    assert not wrong


def _is_wrong(kind: str, text: str) -> bool:
    """What the Content-Security-Policy refuses is an error of the page's. Statuses are not: tests
    ask for pages that are refused."""
    return kind == "error" and "Failed to load resource" not in text
