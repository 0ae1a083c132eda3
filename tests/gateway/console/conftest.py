"""A broker whose page is looked at, and Chromium to look at it with."""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

WITHIN_S = 30.0
WITHIN_MS = WITHIN_S * 1000


@dataclass(frozen=True, slots=True)
class Site:
    """A broker and its page."""

    gateway: Gateway
    port: int

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
        yield lambda *options, url=database_url: _site(start, *options, url=url)


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
        yield _site(start, "--console-write", at_once, url=url)


def _site(start: Callable[..., Gateway], *options: str, url: str) -> Site:
    port = free_port()
    gateway = start(
        *("--pulsar-listen", f"127.0.0.1:{free_port()}"),
        *("--http-listen", f"127.0.0.1:{port}"),
        *options,
        database_url=url,
    )
    return Site(gateway, port)


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
