"""gateway.metrics.registry: what is counted is served, under Kafka's names."""

import urllib.request

import pytest
from prometheus_client import generate_latest

from core.version import VERSION
from gateway.metrics.registry import Metrics


def test_requests_are_counted_under_kafkas_names() -> None:
    metrics = Metrics()
    observe = metrics.requests({0: "Produce"})
    observe(0, 11, 0.0021, 1000, 60)
    observe(0, 11, 0.0021, 500, 40)
    observe(99, 0, 0.1, 1, 1)
    value = metrics.registry.get_sample_value
    produce = {"request": "Produce"}
    assert value("kafka_network_requestmetrics_requests_total", produce | {"version": "11"}) == 2
    assert value("kafka_network_requestmetrics_requestbytes_total", produce) == 1500
    assert value("kafka_network_requestmetrics_responsebytes_total", produce) == 100
    assert value("kafka_network_requestmetrics_totaltimems_sum", produce) == pytest.approx(4.2)
    assert value("kafka_network_requestmetrics_totaltimems_count", {"request": "99"}) == 1


def test_times_are_counted_up_to_each_bound_in_all_versions() -> None:
    metrics = Metrics()
    observe = metrics.requests({0: "Produce"})
    for version, milliseconds in ((10, 0.2), (11, 0.25), (11, 0.26), (11, 40_000)):
        observe(0, version, milliseconds / 1000, 1, 1)
    text = generate_latest(metrics.registry).decode()
    family = "kafka_network_requestmetrics_totaltimems"
    assert f"# TYPE {family} histogram" in text
    for bound, count in (("0.25", 2), ("0.5", 3), ("30000.0", 3), ("+Inf", 4)):
        assert f'{family}_bucket{{le="{bound}",request="Produce"}} {count}.0' in text
    assert f'{family}_count{{request="Produce"}} 4.0' in text
    family = "kafka_network_requestmetrics_requests"
    assert f"# TYPE {family}_total counter" in text
    assert f'{family}_total{{request="Produce",version="10"}} 1.0' in text


def test_equal_keys_of_two_front_ends_are_told_apart() -> None:
    metrics = Metrics()
    one, other = metrics.requests({6: "One"}), metrics.requests({6: "Other"})
    one(6, 0, 0.001, 10, 1)
    other(6, 0, 0.001, 20, 2)
    value = metrics.registry.get_sample_value
    assert value("kafka_network_requestmetrics_requestbytes_total", {"request": "One"}) == 10
    assert value("kafka_network_requestmetrics_requestbytes_total", {"request": "Other"}) == 20


def test_queries_are_timed_by_name() -> None:
    metrics = Metrics()
    metrics.observe_query("flush", 0.001)
    metrics.observe_query("flush", 0.002)
    value = metrics.registry.get_sample_value
    assert value("penstock_query_seconds_count", {"query": "flush"}) == 2
    assert value("penstock_query_seconds_sum", {"query": "flush"}) == pytest.approx(0.003)


def test_processes_do_not_share_a_registry() -> None:
    one, other = Metrics(), Metrics()
    one.observe_query("flush", 1.0)
    assert (
        other.registry.get_sample_value("penstock_query_seconds_count", {"query": "flush"}) is None
    )


def test_everything_is_served_on_request() -> None:
    metrics = Metrics()
    connections = 3
    name = "kafka_server_socketservermetrics_connection_count"
    metrics.watch(name, "Connections now open.", lambda: connections)
    port, stop = metrics.serve("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        stop()
    assert f"{name} 3.0" in text
    assert f'penstock_info{{version="{VERSION}"}} 1.0' in text
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1)


def test_time_held_back_by_quotas_is_added_up() -> None:
    metrics = Metrics()
    metrics.throttled.count("producer_byte_rate", 1.5)
    metrics.throttled.count("producer_byte_rate", 0.25)
    labels = {"quota": "producer_byte_rate"}
    value = metrics.registry.get_sample_value
    assert value("penstock_throttled_seconds_total", labels) == 1.75
