"""gateway.workers.ports: every worker's ports are looked at, and whose they are is said."""

from __future__ import annotations

import socket

import pytest

from gateway.config import Settings, SettingsError, load_settings
from gateway.workers.ports import check_free
from tests.conftest import free_port, free_ports_in_a_row

TAKEN = "(Address already in use): stop what listens there, or choose another address with"


def settings(**flags: object) -> Settings:
    others = {"listen": "127.0.0.1:0", "pulsar_listen": "none", "http_listen": "none"}
    return load_settings({"workers": "3", **others, **flags})


def refusal(of: Settings, taken: int) -> str:
    with (
        socket.create_server(("127.0.0.1", taken)),
        pytest.raises(SettingsError) as refused,
    ):
        check_free(of)
    return str(refused.value)


def test_a_port_that_is_written_is_nobodys() -> None:
    first, *_ = free_ports_in_a_row(3)
    said = refusal(settings(listen=f"127.0.0.1:{first}"), first)
    assert said == f"Cannot listen on 127.0.0.1:{first} {TAKEN} --listen."


@pytest.mark.parametrize("name", ["listen", "pulsar_listen", "http_listen"])
def test_a_port_that_is_counted_up_is_a_workers(name: str) -> None:
    first, _, last = free_ports_in_a_row(3)
    flag = f"--{name.replace('_', '-')}"
    said = refusal(settings(**{name: f"127.0.0.1:{first}"}), last)
    assert said == (
        f"Cannot listen on 127.0.0.1:{last}, worker 2's, counted up from {flag} "
        f"127.0.0.1:{first} {TAKEN} {flag}."
    )


def test_a_port_of_a_listener_with_a_name_is_looked_at() -> None:
    first, second, _ = free_ports_in_a_row(3)
    broker = {"listeners": f"PLAINTEXT://127.0.0.1:{first}"}
    named = load_settings(
        {"workers": "3", "pulsar_listen": "none", "http_listen": "none", "broker": broker}
    )
    assert "worker 1's, counted up from listeners 127.0.0.1:" in refusal(named, second)


def test_so_is_that_of_all_workers_metrics() -> None:
    port = free_port()
    said = refusal(settings(metrics_listen=f"127.0.0.1:{port}"), port)
    assert said == f"Cannot listen on 127.0.0.1:{port} {TAKEN} --metrics-listen."


def test_what_is_free_stays_free() -> None:
    first, second, third = free_ports_in_a_row(3)
    check_free(settings(listen=f"127.0.0.1:{first}"))
    for port in (first, second, third):
        socket.create_server(("127.0.0.1", port)).close()
