"""Brokers ask brokers by HTTPS, several requests at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from core.security.principal import ANONYMOUS, Caller
from gateway.web.peers import PeerAnswer, Peers


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"path": "%b"}' % self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(certificate: Path) -> Iterator[str]:
    """Of another broker, which shows the same certificate."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Slow(ssl.SSLContext):
    """Takes its time to read what is trusted."""

    def load_verify_locations(self, *arguments: Any, **named: Any) -> None:
        time.sleep(0.1)
        super().load_verify_locations(*arguments, **named)


async def test_the_first_requests_may_come_at_once(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a thread; what is trusted is the same for all."""
    monkeypatch.setattr(ssl, "create_default_context", lambda: _Slow(ssl.PROTOCOL_TLS_CLIENT))
    caller = Caller(ANONYMOUS, "127.0.0.1")
    peers = Peers(certificate)

    async def ask(number: int) -> PeerAnswer:
        await asyncio.sleep(number * 0.02)
        return await peers.ask(url, "GET", f"/{number}", caller)

    answers = await asyncio.gather(*map(ask, range(8)))
    assert answers == [PeerAnswer(200, {"path": f"/{number}"}) for number in range(8)]
    assert (await Peers(None).ask(url, "GET", "/", caller)).status == 503


async def test_a_broker_that_hangs_leaves_other_threads_alone() -> None:
    """It takes connections, and answers none of them."""
    peers = Peers(None)
    with ThreadPoolExecutor(1) as only, socket.create_server(("127.0.0.1", 0)) as hung:
        hung.setblocking(False)
        asyncio.get_running_loop().set_default_executor(only)
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        asking = [
            asyncio.ensure_future(peers.ask(url, "POST", "/", Caller(ANONYMOUS, "127.0.0.1")))
            for _ in range(4)
        ]
        first, _ = await asyncio.get_running_loop().sock_accept(hung)
        with first:
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 10) == 7
        for _ in asking[1:]:
            (await asyncio.get_running_loop().sock_accept(hung))[0].close()
        assert [each.status for each in await asyncio.gather(*asking)] == [503] * 4
