"""gateway.workers.plan: each worker's ports, addresses and id, and what it is told of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.config import (
    HTTP,
    KAFKA,
    METRICS,
    PULSAR,
    Endpoint,
    Settings,
    SettingsError,
    load_settings,
)
from gateway.workers.orders import Answer, Orders
from gateway.workers.plan import settings_of

NAMED = {
    "listeners": "IN://:9092,OUT://127.0.0.1:0",
    "advertised.listeners": "OUT://localhost:9192,IN://broker.example:9392",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
}


def settings(**flags: object) -> Settings:
    return load_settings({"workers": "3", **flags})


def addresses(of: Settings, listener: str, ports: dict[str, int] | None = None) -> list[str]:
    """Where it listens, and what clients are told."""
    return [
        f"{each.listen} {each.advertised((ports or {}).get(each.key, each.listen.port))}"
        for each in of.listen_addresses(listener)
    ]


def test_ports_are_counted_up_from_those_that_are_set() -> None:
    every = settings(advertise="broker.example:9192", broker_id=7, metrics_listen="0.0.0.0:9404")
    own = settings_of(every, 2, {})
    assert addresses(own, KAFKA) == ["127.0.0.1:9094 broker.example:9194"]
    assert addresses(own, PULSAR) == ["127.0.0.1:6652 127.0.0.1:6652"]
    assert addresses(own, HTTP) == ["127.0.0.1:8082 127.0.0.1:8082"]
    assert (own.broker_id, own.workers) == (9, 1)
    assert own.metrics_listen == Endpoint("127.0.0.1", 0), "the supervisor serves the one set"
    first = settings_of(every, 0, {})
    assert addresses(first, KAFKA) == ["127.0.0.1:9092 broker.example:9192"]


def test_where_nothing_listens_no_worker_does() -> None:
    own = settings_of(settings(pulsar_listen="none"), 1, {})
    assert addresses(own, PULSAR) == []
    assert own.metrics_listen is None
    assert own.broker_id is None


def test_any_free_port_is_taken_again() -> None:
    free = settings(listen="127.0.0.1:0", advertise="broker.example:0")
    assert settings_of(free, 1, {}).listen == Endpoint("127.0.0.1", 0)
    own = settings_of(free, 1, {KAFKA: 4711, PULSAR: 6651, METRICS: 5})
    assert addresses(own, KAFKA) == ["127.0.0.1:4711 broker.example:4711"]
    assert addresses(own, PULSAR) == ["127.0.0.1:6651 127.0.0.1:6651"], "it is set"


def test_listeners_with_names_are_counted_up_too() -> None:
    own = settings_of(settings(broker=NAMED), 2, {})
    assert addresses(own, KAFKA, {"kafka:OUT": 5}) == [
        ":9094 broker.example:9394",
        "127.0.0.1:0 localhost:9194",
    ]
    assert "listen" not in own.model_fields_set
    again = settings_of(settings(broker=NAMED), 2, {KAFKA: 9094, "kafka:OUT": 4711})
    assert addresses(again, KAFKA)[1] == "127.0.0.1:4711 localhost:9194"


@pytest.mark.parametrize("flags", [{}, {"pulsar_listen": "none"}, {"broker": NAMED}])
def test_orders_are_read_as_they_were_written(flags: dict[str, object]) -> None:
    every = settings(database_url="postgresql://me:secret@db/penstock", tls_key=None, **flags)
    orders = Orders(settings_of(every, 1, {}), (1, 2))
    read = Orders.read(orders.line())
    assert read.settings.model_dump() == orders.settings.model_dump()
    assert read.settings.model_fields_set == orders.settings.model_fields_set
    assert read.reader == orders.reader
    assert orders.line().count(b"\n") == 1


def test_orders_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="new_setting"):
        Orders.read(json.dumps({"settings": {"new_setting": 1}, "reader": None}).encode())


def test_answers_are_read_as_they_were_written() -> None:
    for answer in (Answer(), Answer(ports={KAFKA: 9092}), Answer(refusal="It cannot.")):
        assert Answer.read(answer.line()) == answer


# --- what is refused before anything starts ---


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"listen": "127.0.0.1:9092", "pulsar_listen": "127.0.0.1:9094"},
            "3 workers count their ports up, and those from --listen 127.0.0.1:9092 on meet "
            "--pulsar-listen 127.0.0.1:9094; set addresses further apart.",
        ),
        (
            {"http_listen": "0.0.0.0:8080", "metrics_listen": "127.0.0.1:8082"},
            "3 workers count their ports up, and those from --http-listen 0.0.0.0:8080 on meet "
            "--metrics-listen 127.0.0.1:8082; set addresses further apart.",
        ),
        (
            {"listen": "127.0.0.1:65534"},
            "3 workers listen on ports from --listen 127.0.0.1:65534 on, up to 65535; set a lower "
            "one.",
        ),
        (
            {"broker_id": 2**31 - 2},
            "3 workers have ids from --broker-id on, up to 2147483647; set a lower one.",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(**flags)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("text", ["x", "1.5", "0", "-1", "1001", "", "true", "9" * 5000])
def test_workers_are_a_number_of_brokers(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(workers=text)
    assert str(refused.value) == (
        f"--workers: '{text}' is not a number of brokers; write one from 1 to 1000, or auto."
    )


@pytest.mark.parametrize("text", ["x", "1.5", "0"])
def test_they_are_wherever_they_are_written(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "is not a number of brokers; write one from 1 to 1000, or auto."
    config = tmp_path / "penstock.toml"
    config.write_text(f"workers = {text.replace('x', 'true')}")
    with pytest.raises(SettingsError, match=f"^workers in {config}: .* {wrong}$"):
        load_settings({}, config)
    monkeypatch.setenv("PENSTOCK_WORKERS", text)
    with pytest.raises(SettingsError, match=f"^PENSTOCK_WORKERS: '{text}' {wrong}$"):
        load_settings({})


def test_named_listeners_may_not_meet() -> None:
    with pytest.raises(SettingsError, match=r"from listeners :9092 on meet listeners :9093;"):
        settings(broker=NAMED | {"listeners": "IN://:9092,OUT://:9093"})


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": "127.0.0.1:9092", "pulsar_listen": "127.0.0.1:9095"},
        {"listen": "127.0.0.1:9092", "pulsar_listen": "127.0.0.2:9092"},
        {"listen": "127.0.0.1:0", "pulsar_listen": "127.0.0.1:0"},
        {"http_listen": "127.0.0.1:8080", "metrics_listen": "127.0.0.1:8083"},
        {"workers": "1", "listen": "127.0.0.1:9092", "pulsar_listen": "127.0.0.1:9092"},
    ],
)
def test_what_may_be_is_not_refused(flags: dict[str, object]) -> None:
    settings(**flags)


def test_auto_is_a_worker_on_each_core() -> None:
    assert load_settings({"workers": "auto"}).workers == len(os.sched_getaffinity(0))
    assert load_settings({}).workers == 1
