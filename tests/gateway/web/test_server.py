"""gateway.web.server: bad input, slow clients, many of them; bugs of endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import Response

from gateway.listener import ConnectionLimits, Listener
from gateway.web.api import Refused, Registry
from gateway.web.call import MAX_BODY_BYTES, Call
from gateway.web.server import Part, WebServer
from tests.gateway.web.conftest import RECEIVE_MS, WITHIN_S, Web, heard, statuses

TOPICS = "/admin/v2/persistent/public/default"


def resident(web: Web) -> int:
    """Bytes of memory that the broker uses."""
    text = Path(f"/proc/{web.gateway.process.pid}/statm").read_text()
    return int(text.split()[1]) * resource.getpagesize()


@pytest.fixture
def undisturbed(web: Web) -> Iterator[None]:
    """A second client is served all the time; nothing that is not foreseen happens."""
    is_over = threading.Event()
    seen: list[object] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=WITHIN_S)
        try:
            while not is_over.is_set():
                connection.request("GET", "/admin/v2/clusters")
                seen.append(json.load(connection.getresponse()))
                is_over.wait(0.02)
        except OSError as failed:
            seen.append(failed)
        finally:
            connection.close()

    web.ask("GET", "/health")
    before = len(web.gateway.log())
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(WITHIN_S)
    assert seen
    assert all(each == ["standalone"] for each in seen), seen[-1]
    log = web.gateway.log()[before:]
    assert "Traceback" not in log
    for line in log.splitlines():
        assert line[:4].isdigit(), f"not a line of the log: {line}"


@pytest.mark.usefixtures("undisturbed")
def test_random_bytes_end_a_connection(web: Web, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        said = web.say(chance.randbytes(chance.randrange(1, 3000)) + b"\r\n\r\n")
        assert statuses(said) in ([], [400])


GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /h\xc3\xa4 HTTP/1.1\r\nhost: x\r\n\r\n",
        GET + b"content-length: minus\r\n\r\n",
        GET + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        GET + b"transfer-encoding: gzip\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b"name: va\x00lue\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # without a host
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS
        b"GET " + b"/x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=range(10),
)
def test_what_is_no_request_is_refused(web: Web, request_: bytes) -> None:
    assert statuses(web.say(request_)) == [400]


@pytest.mark.usefixtures("undisturbed")
def test_headers_of_megabytes_are_refused(web: Web) -> None:
    web.ask("GET", "/health")
    before = resident(web)
    for _ in range(5):
        header = b"x" * (1024 * 1024)
        assert statuses(web.say(GET, *[b"h%d: " % n + header + b"\r\n" for n in range(8)])) in (
            [400],
            [],  # reset while it was sending
        )
    assert resident(web) - before < 32 * 1024 * 1024


@pytest.mark.usefixtures("undisturbed")
def test_a_body_that_is_too_large_is_refused(web: Web) -> None:
    path = f"{TOPICS}/large/partitions"
    assert web.ask("PUT", path, b"1" * (MAX_BODY_BYTES + 1))[0] == 413
    assert web.ask("PUT", path, b" " * (MAX_BODY_BYTES - 1) + b"0")[0] == 406
    # Endless, in chunks, to a path that wants none: it is cut, or read and forgotten.
    before = resident(web)
    with web.connect() as connection:
        connection.sendall(b"PUT /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(500):
                connection.sendall(chunk)
        assert connection.recv(12) == b"HTTP/1.1 405"
    assert resident(web) - before < 16 * 1024 * 1024


CHUNKED = b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"ffffffffffffffffffffffff\r\n",
        b"2\r\n1\r\n0\r\n\r\n",
        b"1\r\n1XX0\r\n",
    ],
)
@pytest.mark.parametrize("path", [f"{TOPICS}/t/partitions", "/health"])
def test_chunks_that_lie_end_a_connection(web: Web, path: str, chunks: bytes) -> None:
    for parts in (
        (b"PUT " + path.encode() + CHUNKED, chunks),
        (b"PUT " + path.encode() + CHUNKED + chunks,),
    ):
        with web.connect() as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.05)
            assert statuses(heard(connection)) in ([400], [405])


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nhost: x\r\n",
        b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\nGET /",  # the second of two
        b"PUT /health HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1",
    ],
    ids=["nothing", "line", "headers", "second", "unwanted body"],
)
def test_who_does_not_go_on_is_sent_away(web: Web, begun: bytes) -> None:
    start = time.monotonic()
    with web.connect() as connection:
        connection.sendall(begun)
        connection.settimeout(0.2)
        is_closed = False
        while not is_closed and time.monotonic() < start + WITHIN_S:
            try:
                is_closed = not connection.recv(4096)
            except TimeoutError:
                if begun.endswith((b"\n", b"a")):  # a byte now and then changes nothing
                    connection.sendall(b"x")
            except OSError:
                is_closed = True
        took = time.monotonic() - start
    assert took > RECEIVE_MS / 1000 - 0.5
    assert took < RECEIVE_MS / 1000 + 8


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    "name",
    [
        "a%2Fb",
        "a%2fb%2F",
        "a%00b",
        "%ff%fe",
        "%e2%82",
        "%",
        "%zz",
        "a%0ab",
        "%20",
        "..%2f..",
        "%2e",
    ],
)
def test_names_of_all_kinds(web: Web, name: str) -> None:
    """A topic of that name is made, found and deleted, or refused."""
    status, said = web.ask("PUT", f"{TOPICS}/{name}")
    assert status in (204, 412), said
    if status == 204:
        assert web.ask("GET", f"{TOPICS}/{name}/partitions") == (
            200,
            {"partitions": 0, "deleted": False},
        )
        status, said = web.ask("PUT", f"{TOPICS}/{name}/subscription/{name}", b'"latest"')
        assert status in (204, 400, 412), said
        if status == 204:
            status, found = web.ask("GET", f"{TOPICS}/{name}/stats")
            assert (status, len(found["subscriptions"])) == (200, 1)
        assert web.ask("DELETE", f"{TOPICS}/{name}?force=true")[0] == 204
    assert web.ask("GET", f"{TOPICS}/{name}/partitions")[0] in (404, 412)


REFUSED = ("x/partitions", "there/subscription/n", "there/partitions", "many/")
"""Paths that do nothing with what they are given in the next test."""


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "x/partitions", b"{"),
        ("PUT", "x/partitions", b"[" * 100_000),
        ("PUT", "x/partitions", b"\xff\xfe"),
        ("PUT", "x/partitions", b"1e999"),
        ("PUT", "x/partitions", b"9" * 5000),
        ("PUT", "x/partitions", b"NaN"),
        ("PUT", "x/partitions", b'{"partitions": {}}'),
        ("PUT", "there/subscription/n", b'{"ledgerId": "x"}'),
        ("PUT", "there/subscription/n", b'{"ledgerId": 1e999, "entryId": 1}'),
        ("PUT", "there/subscription/n", b'{"ledgerId": 1, "entryId": [1]}'),
        ("PUT", "there/subscription/n", b"7"),
        (
            "PUT",
            "there/subscription/n",
            b'{"ledgerId": -1, "entryId": -1, "properties": {"a": [1]}}',
        ),
        ("PUT", "there/subscription/n", b'{"ledgerId": -1, "entryId": -1, "properties": [1]}'),
        (
            "PUT",
            "there/subscription/s",
            b'{"ledgerId": -1, "entryId": -1, "properties": {"a\\u0000": "\\u0000"}}',
        ),
        ("PUT", "there/subscription/n" + "s" * 5000, b'"latest"'),
        ("PUT", "there/subscription/", b'"latest"'),
        ("POST", "there/subscription/s/resetcursor", b'{"ledgerId": 1}'),
        ("POST", "there/subscription/s/resetcursor/" + "9" * 30, None),
        ("POST", "there/subscription/s/resetcursor/-" + "9" * 30, None),
        ("POST", "there/subscription/s/skip/" + "9" * 30, None),
        ("POST", "there/subscription/s/expireMessages/" + "9" * 30, None),
        ("GET", "there/messageid/" + "9" * 30, None),
        ("GET", "there/ledger/" + "9" * 30 + "/entry/" + "9" * 30, None),
        ("GET", "there/ledger/1/entry/" + "9" * 30, None),
        ("GET", "there/examinemessage?messagePosition=" + "9" * 30, None),
        ("GET", "there/examinemessage?messagePosition=" + "9" * 5000, None),
        ("GET", "there/subscription/s/position/" + "9" * 30, None),
        ("POST", "there/subscription/s/skip/" + "9" * 5000, None),
        ("POST", "there/partitions", b"99999999999"),
        ("PUT", "many/partitions", b"2000000000"),
    ],
)
def test_bodies_and_numbers_of_all_kinds(
    web: Web, method: str, path: str, body: bytes | None
) -> None:
    web.ask("PUT", f"{TOPICS}/there")
    web.ask("PUT", f"{TOPICS}/there/subscription/s", b'"latest"')
    status, said = web.ask(method, f"{TOPICS}/{path}", body)
    assert status < 500 or status == 501, said
    assert status >= 400 or not path.startswith(REFUSED), said
    web.ask("DELETE", f"{TOPICS}/there/subscription/s?force=true")


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("host", [b"[", b"a b", b"\xff", b"//x:y", b"]:99999999"])
def test_the_host_header_is_not_believed(web: Web, host: bytes) -> None:
    for path in ("/health", f"{TOPICS}/none/stats"):
        asked = b"GET %s HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % (path.encode(), host)
        assert statuses(web.say(asked))[0] in (200, 400, 404)


@pytest.mark.usefixtures("undisturbed")
def test_a_thousand_connections(web: Web) -> None:
    before = resident(web)
    resource_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = min(1000, resource_limit - 200)
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            connections.append(web.connect())  # who asks for nothing is sent away
            connections[-1].sendall(b"GET /admin/v2/clusters HTTP/1.1\r\nhost: x\r\n\r\n")
        for each in connections:
            assert each.recv(4096).startswith(b"HTTP/1.1 200")
        assert resident(web) - before < 100 * 1024 * 1024
    finally:
        for each in connections:
            each.close()


def test_who_asks_for_another_protocol_is_answered_in_this_one(web: Web) -> None:
    before = len(web.gateway.log())
    asked = GET + b"connection: upgrade, close\r\nupgrade: websocket\r\n\r\n"
    assert statuses(web.say(asked)) == [200]
    for line in web.gateway.log()[before:].splitlines():
        assert line[:4].isdigit(), f"not a line of the log: {line}"


# --- an endpoint's bug ---

BOOM = Registry()


@BOOM.endpoint("GET", "/boom")
async def boom(_: Call[None]) -> None:
    """Fails."""
    secret = "s3cr3t"
    raise RuntimeError("a bug" + secret[:0])


@BOOM.endpoint("GET", "/refused")
async def refused(_: Call[None]) -> Refused:
    """Refuses."""
    return Refused(418, "tea")


async def serve() -> None:
    """Serves BOOM on a port of its own, which it prints, until stdin ends."""
    part = Part(BOOM, None)
    server = WebServer([part], ConnectionLimits(), lambda _: lambda *_: None)
    listener = Listener(server, "127.0.0.1", 0, ConnectionLimits())
    await listener.start()
    print(listener.port, flush=True)  # noqa: T201 - for who has started it
    await asyncio.to_thread(sys.stdin.read)
    await listener.shutdown(1.0)


async def test_a_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.web.server._TAKEN_WITHIN_S", 1.5)
    registry: Registry = Registry()

    @registry.endpoint("GET", "/much")
    async def much(_: Call[None]) -> Response:
        return Response(b"x" * 50_000_000)

    lost = asyncio.Event()
    part = Part(registry, None)
    server = WebServer([part], ConnectionLimits(), lambda _: lambda *_: None)
    loop = asyncio.get_running_loop()
    made = await loop.create_server(lambda: server.connection(lost.set), "127.0.0.1", 0)
    async with made:
        reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname(), limit=1_000)
        writer.write(b"GET /much HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(10):  # slowly is not nothing
            assert await reader.readexactly(1_000_000)
            await asyncio.sleep(0.3)
            assert not lost.is_set()
        async with asyncio.timeout(WITHIN_S):
            await lost.wait()
        writer.close()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_bug_is_answered_and_told_once_without_secrets(log_format: str) -> None:
    program = f"import asyncio; from gateway import logs; logs.configure('{log_format}', 'info')\n"
    program += "from tests.gateway.web.test_server import serve; asyncio.run(serve())"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()))
        for path, wanted in (("/boom", 500), ("/refused", 418)):
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == wanted
            assert set(json.load(response)) == {"reason"}
        connection.close()
        _, log = process.communicate("")
    assert log.count("http_request_failed") == 1
    assert "RuntimeError" in log
    assert "s3cr3t" not in log
    if log_format == "json":
        (line,) = log.splitlines()
        assert json.loads(line)["path"] == "/boom"
