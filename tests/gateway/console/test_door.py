"""Who is let in to the page, and what a page of somebody else's can make a browser do."""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import psycopg
import pytest

from core.security.page_operations import PAGES
from gateway.console.rendering import HEADERS
from gateway.console.visit import READ_ONLY
from tests.gateway.console.conftest import (
    PASSWORD,
    SECRET,
    WITHIN_MS,
    WITHIN_S,
    Site,
    StartSite,
    bearer,
    log_in,
    token,
)
from tests.gateway.console.transacting import make_topic, open_transaction

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

PATHS = [path for method, path in map(str.split, PAGES) if method == "GET" and "{" not in path]
ACTIONS = [path for method, path in map(str.split, PAGES) if method == "POST"]
CHANGES = [path for path in ACTIONS if path not in ("/login", "/logout")]
OPEN = ("/login",)
CHALLENGES = ['Bearer realm="penstock"', 'Basic realm="penstock"']
# What every page may want to know; each takes what it needs.
_KEPT = {"name": "kept", "id": "kept-1", "topic": "kept", "producer_id": 1000}
NAMED = urlencode({**_KEPT, "partition": 0, "offset": 0})


def raw(port: int, request: str, host: str = "127.0.0.1") -> bytes:
    """What is answered to a request as it stands, which says that it is the last one."""
    with socket.create_connection((host, port), WITHIN_S) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65_536), b""))


# --- without login ---


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST:{}", "[::1]:{}"])
def test_without_login_it_is_opened_by_names_of_this_machine(site: Site, host: str) -> None:
    for path in ("/", "/login"):
        assert site.ask(path, headers={"host": host.format(site.port)})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example:{}", "127.0.0.1.evil.example", "localhost.evil.example:{}", "10.0.0.1"]
)
def test_without_login_no_other_name_opens_it(site: Site, host: str) -> None:
    named = {"host": host.format(site.port)}
    for path in PATHS:
        status, _, text = site.ask(path, headers=named)
        assert status == 403
        assert "only for this machine" in text
    for path in ACTIONS:
        assert site.ask(path, {}, {**named, "origin": f"http://{named['host']}"})[0] == 403
    assert b" 403 " in raw(site.port, "GET / HTTP/1.0\r\n\r\n").splitlines()[0]


def test_without_login_a_name_of_somebodys_changes_nothing_by_rest(site: Site) -> None:
    """Whoever owns a name can point it at 127.0.0.1: then his page and the broker are one site."""
    host = f"evil.example:{site.port}"
    path = "/admin/v2/persistent/public/default/rebound"

    def put(**headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=WITHIN_S)
        connection.request("PUT", path, headers={"host": host, **headers})
        status = connection.getresponse().status
        connection.close()
        return status

    assert put(origin=f"http://{host}") == 403
    assert put() == 204  # a program, and no browser


def test_without_login_only_this_machine_is_let_in(start_site: StartSite) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback's")
    site = start_site("--console-write", http_host="0.0.0.0")
    assert site.ask("/")[0] == 200
    for host in (f"{address}:{site.port}", f"127.0.0.1:{site.port}"):
        request = f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        answered = raw(site.port, request, address)
        assert b" 403 " in answered.splitlines()[0]
        assert b"only for this machine" in answered


def own_address() -> str | None:
    """One of this machine's that is not loopback's; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        try:
            connection.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(connection.getsockname()[0])
    return None if address.startswith("127.") else address


def test_it_only_shows_unless_told_otherwise(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    make_topic(site, "kept")
    producer = open_transaction(site, "kept-1", "kept")
    for path in CHANGES:
        status, _, text = site.ask(f"{path}?{NAMED}", {})
        assert status == 403
        assert READ_ONLY in text
    tab.goto(f"{site.url}/transaction?id=kept-1")
    assert tab.get_by_text("read-only").is_visible()
    assert tab.get_by_role("link", name="Abort…").count() == 0
    producer.commit_transaction(WITHIN_S)


# --- with login ---


def test_nothing_is_shown_before_the_login(guarded: Site) -> None:
    make_topic(guarded, "private-topic")
    for path in PATHS:
        status, headers, text = guarded.ask(f"{path}?{NAMED}")
        assert status == (200 if path in OPEN else 401)
        assert "private-topic" not in text
        if status == 401:
            assert headers.get_all("www-authenticate") == CHALLENGES
    for path in CHANGES:
        assert guarded.ask(f"{path}?{NAMED}", {})[0] == 401


def test_who_has_no_rights_sees_nothing_and_changes_nothing(guarded: Site) -> None:
    make_topic(guarded, "kept")
    producer = open_transaction(guarded, "kept-1", "kept")
    for path in PATHS:
        status, _, text = guarded.ask(path, headers=bearer("nobody"))
        assert status in (200, 400, 403, 404)  # 400: it is about one thing
        assert ">kept" not in text
    for path in CHANGES:
        status, _, text = guarded.ask(f"{path}?{NAMED}", {"name": "kept"}, bearer("nobody"))
        assert status in (400, 403, 404), (path, text)
    producer.commit_transaction(WITHIN_S)


def test_a_token_is_kept_in_a_cookie_that_only_the_page_takes(guarded: Site, tab: Tab) -> None:
    log_in(tab, guarded, "admin")
    assert "User:admin" in tab.get_by_title("Logged in as").inner_text()
    (cookie,) = tab.context.cookies()
    assert cookie["httpOnly"] is True
    assert cookie["sameSite"] == "Strict"
    assert cookie["expires"] == -1  # it goes with the browser
    shown = {"cookie": f"{cookie['name']}={cookie['value']}"}
    assert guarded.ask("/", headers=shown)[0] == 200
    assert guarded.ask("/admin/v2/tenants", headers=shown)[0] == 401
    assert guarded.ask("/metrics", headers=shown)[0] == 401


@pytest.mark.parametrize(
    "bad",
    [token("admin", key=bytes(32)), token("admin", lasts_s=-60), "nonsense"],
    ids=["signed by another", "over", "no token"],
)
def test_a_bad_token_opens_nothing(guarded: Site, tab: Tab, bad: str) -> None:
    tab.goto(f"{guarded.url}/login")
    tab.get_by_label("Token").fill(bad)
    tab.get_by_role("button", name="Log in").click()
    tab.get_by_text("This token is not valid here").wait_for()
    assert tab.context.cookies() == []
    assert tab.get_by_role("button", name="Log out").count() == 0
    assert tab.get_by_role("navigation").count() == 0
    tab.get_by_label("Token").fill(token("admin"))  # and one may try again
    with tab.expect_navigation():
        tab.get_by_role("button", name="Log in").click()
    assert "User:admin" in tab.get_by_role("banner").inner_text()


def test_what_cannot_be_in_a_cookie_is_no_token(guarded: Site) -> None:
    for bad in ("", "a;b", "a\r\nset-cookie: x=y", "x" * 5000):
        status, headers, _ = guarded.ask("/login", {"token": bad})
        assert status == 400
        assert headers["set-cookie"] is None


def test_after_the_logout_nothing_is_left_to_go_back_to(guarded: Site, tab: Tab) -> None:
    log_in(tab, guarded, "admin")
    tab.goto(f"{guarded.url}/")
    tab.get_by_role("button", name="Log out").click()
    tab.wait_for_url(f"{guarded.url}/login")
    assert tab.context.cookies() == []
    with tab.expect_event("requestfailed", lambda asked: asked.url == f"{guarded.url}/"):
        tab.evaluate("history.back()")  # it asks again, and then for a password
    for word in ("Overview", "Brokers", "User:admin"):
        assert tab.get_by_text(word).count() == 0


def test_a_password_is_asked_for_by_the_browser(guarded: Site, chromium: Browser) -> None:
    credentials = {"username": "alice", "password": PASSWORD}
    with tab_of(chromium, http_credentials=credentials) as tab:
        tab.goto(f"{guarded.url}/")
        assert "User:alice" in tab.get_by_title("Logged in as").inner_text()
    with tab_of(chromium, http_credentials={**credentials, "password": "guess"}) as tab:
        answer = tab.goto(f"{guarded.url}/")
        assert answer is not None
        assert answer.status == 401


# --- pages of others ---


@contextlib.contextmanager
def tab_of(chromium: Browser, **options: object) -> Iterator[Tab]:
    """A tab whose page may fail: it is somebody else's."""
    context = chromium.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(WITHIN_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


@contextlib.contextmanager
def served(html: str) -> Iterator[int]:
    """The port of a page of somebody's on this machine: a site of its own to browsers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same site", "another site"])
def test_a_page_of_somebody_elses_changes_nothing(
    guarded: Site, chromium: Browser, host: str
) -> None:
    make_topic(guarded, f"forged-{host}")
    producer = open_transaction(guarded, f"forged-{host}", f"forged-{host}")
    rest = f"{guarded.url}/admin/v2/persistent/public/default/by-{host.replace('.', '-')}"
    abort = f"{guarded.url}/transaction/abort?id=forged-{host}"
    page = f"""<!doctype html><img src="{abort}"><iframe name="hidden"></iframe>
    <form id="form" method="post" target="hidden" action="{abort}"><input name="which" value="x">
    </form><form id="logout" method="post" target="hidden" action="{guarded.url}/logout"></form>
    <form id="rest" method="post" target="hidden" action="{guarded.url}/admin/v2/worker"></form>
    <script>
    const how = {{mode: "no-cors", credentials: "include"}};
    const ask = (url, method) => fetch(url, {{...how, method}}).then(() => "", () => "not sent");
    const askAloud = (url, method) =>
      fetch(url, {{method, credentials: "include"}}).then(() => "read", () => "not read");
    async function attack() {{
      const told = [await ask("{abort}", "POST"), await ask("{rest}", "POST"),
        await askAloud("{rest}", "PUT"), await askAloud("{guarded.url}/transactions", "GET"),
        await askAloud("{guarded.url}/admin/v2/tenants", "GET")];
      for (const each of ["form", "rest", "logout"]) document.getElementById(each).submit();
      return told;
    }}
    </script>"""
    credentials = {"username": "alice", "password": PASSWORD, "send": "always"}
    with (
        served(page) as port,
        tab_of(chromium, http_credentials={**credentials, "origin": guarded.url}) as tab,
    ):
        log_in(tab, guarded, "admin")
        answers: list[tuple[str, str, int]] = []
        tab.on(
            "response",
            lambda got: answers.append((got.request.method, got.url, got.status)),
        )
        tab.goto(f"http://{host}:{port}/")
        told = tab.evaluate("attack()")
        assert told[2:] == ["not read"] * 3
        logout = ("POST", f"{guarded.url}/logout", 403)
        while logout not in answers:
            tab.wait_for_timeout(50)
        forged = [each for each in answers if each[0] != "GET" and guarded.url in each[1]]
        assert forged
        assert all(status in (401, 403) for _, _, status in forged)
        tab.goto(f"{guarded.url}/")  # still logged in
        assert tab.get_by_role("button", name="Log out").is_visible()
    assert guarded.ask(rest.removeprefix(guarded.url) + "/stats", headers=bearer("admin"))[0] == 404
    producer.commit_transaction(WITHIN_S)  # nobody has aborted it


def test_a_change_that_says_of_no_page_is_refused(guarded: Site, site: Site) -> None:
    """A browser says where a change comes from; what does not is no page of this site."""
    for each, logged_in in ((site, {}), (guarded, bearer("admin"))):
        for path in CHANGES:
            connection = http.client.HTTPConnection("127.0.0.1", each.port, timeout=WITHIN_S)
            connection.request("POST", f"{path}?{NAMED}", b"", logged_in)
            assert connection.getresponse().status == 403
            connection.close()
        for said in ({"origin": "null"}, {"origin": "http://127.0.0.1:1"}):
            assert each.ask(CHANGES[0], {}, {**said, **logged_in})[0] == 403
        for said in ("cross-site", "same-site"):
            assert each.ask(CHANGES[0], {}, {"sec-fetch-site": said, **logged_in})[0] == 403


def test_it_is_not_shown_in_a_frame_of_somebody_elses(site: Site, chromium: Browser) -> None:
    frames = "".join(
        f'<iframe src="{site.url}{path}"></iframe>' for path in ("/", "/transactions", "/nowhere")
    )
    with served(frames) as port, tab_of(chromium) as tab:
        refused: list[str] = []
        tab.on("console", lambda line: refused.append(line.text))
        tab.goto(f"http://127.0.0.1:{port}/")
        tab.wait_for_load_state("networkidle")
        for frame in tab.frames[1:]:
            assert "Penstock" not in frame.content()
        deadline = time.monotonic() + WITHIN_S  # what the console says may come later
        while len([each for each in refused if "frame" in each.lower()]) < 3:
            assert time.monotonic() < deadline, refused
            tab.wait_for_timeout(50)


# --- what is said with every answer ---


def answers_of_all_kinds(site: Site, guarded: Site) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    browser = {"accept": "text/html"}
    for path in PATHS:
        status, headers, _ = site.ask(path, headers=browser)
        yield path, status, headers
    _, _, text = site.ask("/")
    static = text.partition('href="/static/')[2].partition('"')[0]
    asked: list[tuple[str, Callable[[], tuple[int, Mapping[str, str], str]]]] = [
        ("style", lambda: site.ask(f"/static/{static}")),
        ("no such file", lambda: site.ask("/static/x.css")),
        ("no such page", lambda: site.ask("/nowhere", headers=browser)),
        ("another host", lambda: site.ask("/", headers={"host": "evil.example"})),
        ("no login", lambda: guarded.ask("/")),
        ("login", lambda: guarded.ask("/login", {"token": "x"})),
        ("logout", lambda: guarded.ask("/logout", {})),
        ("no right", lambda: guarded.ask(CHANGES[0], {}, bearer("nobody"))),
        ("from elsewhere", lambda: site.ask(CHANGES[0], {}, {"origin": "http://evil.example"})),
    ]
    for name, ask in asked:
        status, headers, _ = ask()
        yield name, status, headers


def test_every_answer_says_what_browsers_may_do_with_it(site: Site, guarded: Site) -> None:
    for name, _, headers in answers_of_all_kinds(site, guarded):
        for each, value in HEADERS.items():
            if name == "style" and each == "cache-control":
                assert "immutable" in headers[each]
            else:
                assert headers[each] == value, (name, each)


def test_head_and_methods_that_are_not_there(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=WITHIN_S)
    for method, status in (
        ("HEAD", 200),
        ("PUT", 405),
        ("DELETE", 405),
        ("OPTIONS", 405),
        ("TRACE", 405),
        ("FOO", 405),
    ):
        connection.request(method, "/", headers={"origin": site.url})
        response = connection.getresponse()
        assert response.status == status
        body = response.read()
        assert (body == b"") == (method == "HEAD")
    connection.close()


def test_odd_and_long_queries_are_answered_or_refused(site: Site) -> None:
    names = ("name", "id", "producer_id", "page", "q")
    odd = ["%00", "%ff", "%ed%a0%80", "%E2%90%80", "%D9%A0", "-1", "9" * 30, "x" * 12_000]
    for path in PATHS:
        for each in odd:
            query = "&".join(f"{name}={each}" for name in names)
            status, _, text = site.ask(f"{path}?{query}")
            assert status < 500, (path, each)
            assert "Traceback" not in text


def test_who_sends_no_body_keeps_nobody_waiting(site: Site) -> None:
    request = (
        "POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\nsec-fetch-site: same-origin\r\n"
        "content-length: 100\r\n\r\n"
    )
    with contextlib.ExitStack() as silent:
        for _ in range(40):
            connection = socket.create_connection(("127.0.0.1", site.port), WITHIN_S)
            silent.enter_context(connection).sendall(request.encode())
        began = time.monotonic()
        assert site.ask("/login", {"token": "abc"})[0] == 400  # nobody logs in here
        assert site.ask("/topic/produce?name=nothing", {})[0] == 404
        assert time.monotonic() - began < 10  # the others would have been waited for


def test_what_is_no_number_and_no_origin_is_refused(site: Site) -> None:
    for number in ("--5", "5-", "\u0665", "1" * 30):
        assert site.ask(f"/topics?{urlencode({'page': number})}")[0] == 400
    for origin in ("http://[", "null", "", "http://"):
        assert site.ask("/login", {"token": "abc"}, {"origin": origin})[0] == 403


def test_what_is_too_long_is_refused(site: Site) -> None:
    with contextlib.suppress(ConnectionError):  # it does not wait for the rest
        assert site.ask(f"/?q={'x' * 1_000_000}")[0] == 400
    with contextlib.suppress(ConnectionError):
        assert site.ask("/login", {"token": "x" * 2_000_000})[0] == 413
    assert site.ask("/")[0] == 200


def test_what_goes_wrong_in_the_broker_is_not_told(
    start_site: StartSite, database_url: str
) -> None:
    site = start_site()
    with psycopg.connect(database_url) as connection:
        connection.execute("DROP VIEW penstock.v_broker CASCADE")
    status, headers, text = site.ask("/")
    assert status in (500, 503)
    assert headers["content-security-policy"]
    for word in ("Traceback", "psycopg", "sqlalchemy", "v_broker", "penstock."):
        assert word not in text
    assert base64.b64encode(SECRET).decode() not in text
