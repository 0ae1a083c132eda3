"""Producing a record by a form; who may."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from core.security.verifier import ScramMechanism, Verifier
from storage.users import put_user
from tests.gateway.console.conftest import WITHIN_S, Site, StartSite
from tests.gateway.console.test_messages import (
    address,
    asking,
    made_topic,
    produce,
    wait_for,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

FORM = "/topic/produce"
PASSWORD = "wonder"
GUARDED = (
    "authenticationEnabled=true",
    "authenticationProviders=basic",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "connection.failed.authentication.delay.ms=50",
    "super.users=User:ANONYMOUS",  # clients of Kafka's, who do not log in
)


def only_record(site: Site, topic: str, partition: int = 0) -> Message:
    """What a stock consumer reads first."""
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": uuid4().hex})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        message = consumer.poll(WITHIN_S)
    finally:
        consumer.close()
    assert message is not None
    assert message.error() is None
    return message


def test_a_stock_consumer_reads_it(site: Site, tab: Tab) -> None:
    topic = made_topic(site, 3)
    tab.goto(site.url + address(topic))
    tab.get_by_role("link", name="Produce one").click()
    tab.get_by_label("Key", exact=True).fill("customer-1")
    tab.get_by_label("Value as").select_option("JSON")
    tab.get_by_role("textbox", name="Value", exact=True).fill('{"a": <b>}')
    tab.get_by_label("Headers").fill("trace: 1\nempty:")
    tab.get_by_role("button", name="Produce").click()
    assert "The value is no JSON" in tab.get_by_role("alert").inner_text()
    tab.get_by_role("textbox", name="Value", exact=True).fill('{"a": "<b>"}\n')
    tab.get_by_role("button", name="Produce").click()
    said = tab.get_by_role("status").first.inner_text()
    assert said.startswith("It is stored at offset 0 of partition")
    number = int(said.split()[-1])
    found = only_record(site, topic, number)
    assert (found.key(), found.value()) == (b"customer-1", b'{"a": "<b>"}\n')
    assert found.headers() == [("trace", b"1"), ("empty", b"")]
    # Where Kafka's own producer sends the key, too.
    from kafka.partitioner.default import murmur2

    assert number == (murmur2(b"customer-1") & 0x7FFFFFFF) % 3


@pytest.mark.parametrize("codec", ["producer", "zstd", "gzip"])
def test_it_is_as_the_topic_takes_it(site: Site, codec: str) -> None:
    topic = made_topic(
        site,
        **{"compression.type": codec, "message.timestamp.type": "LogAppendTime"},
    )
    form = {"key": "ff00", "key_form": "hex", "value": "C0ffee", "value_form": "hex"}
    status, headers, _ = site.ask(address(topic, FORM), form)
    assert status == 303
    assert headers["location"].startswith(f"/topic/record?name={topic}&partition=0&offset=0")
    found = only_record(site, topic)
    assert (found.key(), found.value()) == (b"\xff\x00", b"\xc0\xff\xee")
    assert found.timestamp()[0] == 2  # LogAppendTime


@pytest.mark.parametrize(
    ("config", "form", "why"),
    [
        ({"max.message.bytes": "500"}, {"value": "x" * 600}, "It was not stored: "),
        (
            {"cleanup.policy": "compact"},
            {"value": "v"},
            "Compacted topic cannot accept message without key.",
        ),
        ({}, {"value": "xyz", "value_form": "hex"}, "The value is no hexadecimal</"),
        ({}, {"value": "v", "headers": "no colon"}, "A header is a line"),
        ({}, {"value": "v", "headers": "penstock.chunk: 1"}, "are the broker&#39;s"),
        ({}, {"value": "v", "partition": "7"}, "The topic has no partition 7"),
        ({}, {"value": "v", "partition": "x"}, "is no whole number"),
    ],
)
def test_what_the_topic_does_not_take(
    site: Site, config: dict[str, str], form: dict[str, str], why: str
) -> None:
    topic = made_topic(site, **config)
    status, _, page = site.ask(address(topic, FORM), form)
    assert status in (400, 409)
    assert why in page
    assert "There is nothing there." in site.ask(address(topic))[2]


def test_a_tombstone(site: Site) -> None:
    topic = made_topic(site)
    assert site.ask(address(topic, FORM), {"key": "k", "value_form": "null"})[0] == 303
    found = only_record(site, topic)
    assert (found.key(), found.value()) == (b"k", None)


def test_read_only_without_the_switch(start_site: StartSite) -> None:
    site = start_site()
    topic = made_topic(site)
    produce(site, topic, [{"value": "v"}])
    _, _, page = site.ask(address(topic))
    assert "Produce one" not in page
    status, _, page = site.ask(address(topic, FORM), {"value": "v"})
    assert status == 403
    assert "--console-write" in page


class Guarded:
    """A site whose users log in, and may do what ACLs say."""

    def __init__(self, start_site: StartSite, url: str) -> None:
        self.url = url
        self.site = start_site(*(f"--override={each}" for each in GUARDED))
        verifier = Verifier.of_password(ScramMechanism.SHA_256, b"salt", 4096, PASSWORD)
        put_user(url, "alice", [verifier])

    def grant(self, operation: str, topic: str) -> None:
        self._run(
            "INSERT INTO penstock.acl (principal, operation, resource_type, resource_name)"
            " VALUES ('User:alice', %s, 'TOPIC', %s)",
            operation,
            topic,
        )

    def take_all(self) -> None:
        self._run("DELETE FROM penstock.acl")

    def _run(self, statement: str, *values: Any) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(statement, values)

    @property
    def login(self) -> dict[str, str]:
        said = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        return {"authorization": f"Basic {said}"}

    def status(self, path: str, form: dict[str, str] | None = None) -> int:
        return self.site.ask(path, form, self.login)[0]

    def becomes(self, status: int, path: str) -> None:
        wait_for(lambda: self.status(path) == status)


def test_only_who_may(start_site: StartSite, database_url: str) -> None:
    guarded = Guarded(start_site, database_url)
    site = guarded.site
    topic = made_topic(site)
    produce(site, topic, [{"value": "secret"}])
    assert site.ask(address(topic))[0] == 401
    # What may not be seen is not told to be there.
    guarded.becomes(403, address(topic))
    assert guarded.status(address("not-there")) == 403
    for path in ("/topic/record", "/topic/record/json", "/topic/messages/stream"):
        assert guarded.status(address(topic, path, partition=0, offset=0)) == 403
    guarded.grant("READ", topic)
    guarded.becomes(200, address(topic))
    _, _, page = site.ask(address(topic), headers=guarded.login)
    assert "secret" in page
    assert "Produce one" not in page
    assert guarded.status(address(topic, FORM), {"value": "v"}) == 403
    guarded.grant("WRITE", topic)
    guarded.becomes(200, address(topic, FORM))
    assert "Produce one" in site.ask(address(topic), headers=guarded.login)[2]
    assert guarded.status(address(topic, FORM), {"value": "v"}) == 303


def test_a_right_that_is_taken_away_ends_a_stream(start_site: StartSite, database_url: str) -> None:
    guarded = Guarded(start_site, database_url)
    topic = made_topic(guarded.site)
    guarded.grant("READ", topic)
    guarded.becomes(200, address(topic))
    path = address(topic, "/topic/messages/stream", **{"from": "live"})
    with asking(guarded.site, path, guarded.login) as response:
        assert "Live" in json.loads(response.readline())["words"]
        guarded.take_all()
        *_, last = response.read().splitlines()
        assert json.loads(last)["words"] == "You may not read this topic any more."
