"""The dashboard and the alert rules: whatever they name is on a running broker's /metrics."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import StartGateway, free_port, free_ports_in_a_row, gateways
from tests.databases import Copies

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana" / "penstock.json"
ALERTS = DOCS / "prometheus" / "alerts.yml"

# Set by Prometheus when it scrapes, not by what is scraped.
PROMETHEUS_LABELS = {"instance", "job"}
PROMETHEUS_METRICS = {"up"}

METRIC = re.compile(r"\b([a-z]+(?:_[a-z0-9]+)+|up)\b(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")
MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')
FUNCTIONS = {"histogram_quantile"}


def expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


@pytest.fixture(scope="module")
def served(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, set[str]]]:
    """The labels of each series, with their values, of brokers that have done a bit of all."""
    port = free_port()
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("metrics")) as start,
    ):
        work(start, url, port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    labels: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            known = labels.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                known.setdefault(name, set()).add(value)
    return labels


def work(start: StartGateway, url: str, metrics_port: int) -> None:
    gateway = start(
        *("--workers", "2", "--metrics-listen", f"127.0.0.1:{metrics_port}"),
        database_url=url,
        port=free_ports_in_a_row(2)[0],
    )
    where = {"bootstrap.servers": gateway.bootstrap}
    producer = Producer({**where, "transactional.id": "one"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"x")
    producer.commit_transaction(30)
    consumer = Consumer({**where, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert consumer.poll(30) is not None
    consumer.commit(asynchronous=False)
    consumer.close()


def metrics_of(expression: str) -> list[re.Match[str]]:
    """What it reads of a broker: name, matchers of labels."""
    return [
        each
        for each in METRIC.finditer(BY.sub("", expression))
        if each[1] not in FUNCTIONS | PROMETHEUS_METRICS
    ]


def test_every_metric_and_label_is_served(served: dict[str, dict[str, set[str]]]) -> None:
    named = set()
    for expression in expressions():
        metrics = metrics_of(expression)
        for metric in metrics:
            assert metric[1] in served, expression
            wanted = set(re.findall(r"(\w+)=", metric[2] or ""))
            assert wanted <= served[metric[1]].keys() | PROMETHEUS_LABELS, expression
        grouped = {label.strip() for group in BY.findall(expression) for label in group.split(",")}
        known = PROMETHEUS_LABELS.union(*(served[metric[1]] for metric in metrics))
        assert grouped <= known, expression
        named |= {metric[1] for metric in metrics}
    assert len(named) > 20


def test_values_that_are_asked_for_are_values_there_are(
    served: dict[str, dict[str, set[str]]],
) -> None:
    """A query, a request or an outcome that is renamed would leave a panel empty, and an alert
    silent."""
    asked = set()
    for expression in expressions():
        for metric in metrics_of(expression):
            for label, text in MATCHER.findall(metric[2] or ""):
                if label in PROMETHEUS_LABELS:
                    continue
                values = set(text.split("|"))
                assert values <= served[metric[1]][label], expression
                asked.add(label)
    assert asked == {"query", "request", "outcome", "by"}


def test_panels_and_rules_have_names_of_their_own() -> None:
    titles = [each["title"] for each in json.loads(DASHBOARD.read_text())["panels"]]
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert len(set(titles)) == len(titles)
    assert len(set(alerts)) == len(alerts)
    assert all(rule["annotations"]["summary"] for rule in group["rules"])
