"""One record's page: who wrote it, and all that is known of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.gateway.console.conftest import WITHIN_S, Site
from tests.gateway.console.test_messages import address, made_topic, produce, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab


def record(topic: str, offset: int, path: str = "", partition: int = 0) -> str:
    return address(topic, f"/topic/record{path}", partition=partition, offset=offset)


def test_who_wrote_it(site: Site, tab: Tab) -> None:
    topic, client_id = made_topic(site), f"shop-{uuid4().hex[:8]}"
    produce(site, topic, [{"value": "by nobody"}])
    produce(
        site, topic, [{"value": "by one"}], **{"enable.idempotence": True, "client.id": client_id}
    )
    # It is written a moment after its producer had its id.
    wait_for(lambda: client_id in site.ask(record(topic, 1))[2])
    tab.goto(site.url + address(topic, **{"from": "start"}))
    with tab.expect_navigation():
        tab.get_by_role("link", name="0", exact=True).click()
    assert "Its producer left no name" in tab.locator("main").inner_text()
    with tab.expect_navigation():
        tab.get_by_role("link", name="Next offset").click()
    said = tab.locator("main").inner_text()
    for each in (client_id, "127.0.0.1", "epoch 0", "The client wrote it that had asked"):
        assert each in said
    assert "/127.0.0.1" not in said
    assert not tab.get_by_role("link", name="Next offset").is_visible()


def test_a_value_in_each_format_that_fits(site: Site, tab: Tab) -> None:
    topic = made_topic(site, **{"message.timestamp.type": "LogAppendTime"})
    value = json.dumps({"a": ["ü", 1.5], "b": {"c": None}})
    headers = [("trace", b"abc"), ("raw", b"\xff"), ("none", None)]
    produce(site, topic, [{"key": "k", "value": value, "headers": headers}])
    tab.goto(site.url + record(topic, 0))
    said = tab.locator("main").inner_text()
    assert '"b": {\n    "c": null\n  }' in said
    for each in ("trace", "abc", "ff", "Appended, by the broker's clock", "key 1 B"):
        assert each in said
    tab.get_by_text("Hex").click()
    assert tab.get_by_text("00000000  7b 22 61 22").is_visible()
    assert site.ask(record(topic, 0, "/value"))[2] == value
    line = json.loads(site.ask(record(topic, 0, "/json"))[2])
    assert line["value"] == {"a": ["ü", 1.5], "b": {"c": None}}
    assert line["headers"] == [
        {"name": "trace", "value": "abc"},
        {"name": "raw", "value_base64": "/w=="},
        {"name": "none", "value": None},
    ]


def test_a_record_can_be_copied_and_sent_as_a_link(site: Site, tab: Tab) -> None:
    topic = made_topic(site)
    produce(site, topic, [{"key": "k", "value": "v"}])
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.url)

    def copied() -> str:
        return str(tab.evaluate("navigator.clipboard.readText()"))

    tab.goto(site.url + address(topic))
    tab.get_by_role("button", name="Copy record 0 of partition 0 as JSON").click()
    tab.get_by_text("Copied").wait_for()
    assert json.loads(copied())["value"] == "v"
    tab.get_by_role("link", name="0", exact=True).click()
    tab.get_by_role("button", name="Copy link").click()
    tab.get_by_text("Copied").wait_for()
    assert copied() == site.url + record(topic, 0)


def test_what_is_gone_says_what_the_log_has(site: Site) -> None:
    topic = made_topic(site)
    produce(site, topic, [{"value": f"{i}"} for i in range(10)])
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        done.result(WITHIN_S)
    status, _, page = site.ask(record(topic, 2))
    assert status == 404
    assert "The record at offset 2 is deleted: the log begins at 4 now." in page
    status, _, page = site.ask(record(topic, 10))
    assert status == 404
    assert "There is no record yet at offset 10: the log ends at 10." in page
    assert site.ask(record(topic, 2, "/json"))[0] == 404
    assert site.ask(record(topic, 2, "/value"))[0] == 404
    assert site.ask(record(topic, 5, partition=1))[0] == 404
    assert site.ask(record("not-there", 0))[0] == 404
