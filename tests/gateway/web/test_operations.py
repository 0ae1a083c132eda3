"""gateway.web: what it serves of its own, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, StartGateway, free_port
from tests.gateway.web.conftest import WITHIN_S, Web, heard, statuses


def test_metrics_are_prometheus_text(web: Web) -> None:
    web.ask("GET", "/health")
    with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        families = list(text_string_to_metric_families(answer.read().decode()))
    asked = [
        sample.value
        for family in families
        for sample in family.samples
        if "HTTP GET /health" in sample.labels.values() and sample.name.endswith("_count")
    ]
    assert asked, "requests by HTTP are counted"
    assert asked[0] >= 1


def test_health_tells_of_the_broker(web: Web) -> None:
    status, found = web.ask("GET", "/health")
    assert status == 200
    assert found["status"] == "ok"
    assert found["brokers"] == [found["broker"]]


def test_head_has_no_body(web: Web) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=WITHIN_S)
    for path in ("/metrics", "/health", "/admin/v2/clusters"):
        connection.request("HEAD", path)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
        assert int(response.headers["content-length"]) > 0
    connection.close()


def test_what_there_is_not(web: Web) -> None:
    assert web.ask("GET", "/nothing")[0] == 404
    assert web.ask("DELETE", "/health")[0] == 405
    assert web.ask("POST", "/metrics")[0] == 405
    for method, path in (
        ("GET", "/admin/v2/functions"),
        ("GET", "/admin/v3/sinks"),
        ("PATCH", "/admin/v2/clusters"),
    ):
        status, said = web.ask(method, path)
        assert status == 501
        assert "does not serve" in said["reason"]


def test_a_connection_is_kept(web: Web) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=WITHIN_S)
    connection.connect()
    first = connection.sock
    for _ in range(20):
        connection.request("GET", "/admin/v2/clusters")
        assert json.load(connection.getresponse()) == ["standalone"]
        assert connection.sock is first
    connection.close()


def test_pipelined_requests_are_answered_in_order(web: Web) -> None:
    paths = [b"/admin/v2/clusters", b"/nothing", b"/health", b"/admin/v2/brokers/version"] * 5
    asked = b"".join(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path for path in paths)
    last = b"GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert statuses(web.say(asked + last)) == [200, 404, 200, 200] * 5 + [404]


def test_a_port_that_is_taken_is_one_sentence(
    web: Web, start_gateway: StartGateway, database_url: str
) -> None:
    gateway = start_gateway(
        "--http-listen", f"127.0.0.1:{web.port}", database_url=database_url, wait=False
    )
    assert gateway.process.wait(WITHIN_S) != 0
    said = gateway.log().strip()
    assert f"127.0.0.1:{web.port}" in said
    assert "--http-listen" in said
    assert "Traceback" not in said


def test_https_shows_the_certificate_of_kafkas_listener(
    start_gateway: StartGateway, database_url: str, certificate: Path
) -> None:
    port = free_port()
    start_gateway(
        *("--http-listen", f"127.0.0.1:{port}", "--tls-cert", certificate),
        *("--tls-key", certificate),
        database_url=database_url,
        wait=False,
    )
    trusted = ssl.create_default_context(cafile=certificate.with_suffix(".crt"))
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    assert _health(f"https://localhost:{port}", trusted)[0] == 200
    with contextlib.suppress(OSError, http.client.HTTPException):
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        plain.request("GET", "/health")
        raise AssertionError(f"without TLS it answered {plain.getresponse().status}")


def _health(url: str, context: ssl.SSLContext | None = None) -> tuple[int, Any]:
    """Once it listens."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", context=context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)
        except (ConnectionError, urllib.error.URLError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_health_while_the_database_is_away(start_gateway: StartGateway, data_dir: Path) -> None:
    port = free_port()
    server = EmbeddedPostgres(data_dir, settings=SMALL_POSTGRES)
    server.start()
    try:
        gateway = start_gateway(
            *("--http-listen", f"127.0.0.1:{port}"),
            *("--pulsar-listen", f"127.0.0.1:{free_port()}"),
            database_url=server.url,
        )
        url = f"http://127.0.0.1:{port}"
        assert _health(url)[0] == 200
        server.stop()
        status, said = _health(url)
        assert status == 503
        assert "database" in said["reason"].lower()
        away = Web(gateway, port).ask("GET", "/admin/v2/persistent/public/default/t/partitions")
        assert away[0] == 503
        server.start()
        deadline = time.monotonic() + WITHIN_S
        while _health(url)[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        server.stop()


def test_a_request_that_runs_is_answered_before_the_broker_stops(
    start_gateway: StartGateway, database_url: str
) -> None:
    port = free_port()
    gateway = start_gateway(
        *("--http-listen", f"127.0.0.1:{port}"),
        *("--pulsar-listen", f"127.0.0.1:{free_port()}"),
        database_url=database_url,
    )
    web = Web(gateway, port)
    with web.connect() as running, web.connect() as idle:
        path = b"/admin/v2/persistent/public/default/t/partitions"
        running.sendall(b"PUT %s HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n1" % path)
        time.sleep(0.3)  # its handler waits for the rest of its body
        gateway.terminate()
        assert heard(idle) == b""
        running.sendall(b"2")
        assert statuses(heard(running)) == [204]
    # A second SIGTERM would find it at its very end, where nobody catches it any more.
    assert gateway.process.wait(WITHIN_S) == 0


def test_the_web_server_is_not_loaded_before_somebody_comes() -> None:
    program = "import sys, gateway.app, cli.main\n"
    program += "print([name for name in ('uvicorn', 'starlette', 'h11') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
