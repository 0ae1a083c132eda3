"""The first page, in a browser: what there is, and what is wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.gateway.console.conftest import WITHIN_S, Site, StartSite

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab


def test_it_shows_what_there_is(site: Site, tab: Tab) -> None:
    tab.goto(site.url)
    assert tab.title() == "Overview · Penstock"
    assert tab.get_by_role("heading", name="Brokers").is_visible()
    row = tab.get_by_role("row", name="live")
    assert f"127.0.0.1:{site.gateway.port}" in row.inner_text()
    tab.get_by_text("Produced: 0 records/s").wait_for()  # two samples have been taken


def test_it_says_that_the_broker_has_gone(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    tab.goto(site.url)
    assert not tab.locator("#away").is_visible()
    site.gateway.kill()
    tab.get_by_text("does not answer since").wait_for()


def later(site: Site, seconds: int) -> None:
    """So much time passes for what has been stored."""
    assert site.gateway.database_url is not None
    with psycopg.connect(site.gateway.database_url) as connection:
        for table, column in (
            ("committed_offset", "commit_timestamp"),
            ("record_batch", "max_timestamp"),
            ("transaction_state", "started_at"),
        ):
            connection.execute(
                f"UPDATE penstock.{table} SET {column} = {column} - %s WHERE {column} > 0",
                [seconds * 1000],
            )


@pytest.fixture
def stuck(start_site: StartSite) -> Site:
    """A broker with a group that has read all there is, up to an open transaction."""
    site = start_site()
    common = {"bootstrap.servers": site.bootstrap}
    admin = AdminClient(common)
    for made in admin.create_topics([NewTopic("orders", 1)]).values():
        made.result(WITHIN_S)
    own = {"transactional.id": "payments-7", "transaction.timeout.ms": 600_000}
    producer = Producer({**common, **own})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce("orders", b"first")
    producer.commit_transaction(WITHIN_S)
    producer.begin_transaction()
    producer.produce("orders", b"second")
    producer.flush(WITHIN_S)
    own = {"group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**common, **own})
    consumer.subscribe(["orders"])
    assert consumer.poll(WITHIN_S) is not None
    consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    # A client polls, or its group thinks that it is gone.
    threading.Thread(target=_poll, args=(consumer, producer), daemon=True).start()
    return site


def _poll(consumer: Consumer, producer: Producer) -> None:
    while True:
        consumer.poll(1)
        producer.poll(0)


def test_it_says_who_is_stuck_and_why(stuck: Site, tab: Tab) -> None:
    tab.goto(stuck.url)
    assert tab.get_by_text("Nothing that is seen from here.").is_visible()
    later(stuck, 250)
    finding = tab.get_by_role("listitem").filter(has_text="billing")
    finding.wait_for()
    said = finding.inner_text()
    assert "billing has read nothing of orders-0 for 4 min" in said
    assert "transaction payments-7 of 127.0.0.1 has held its offset 2 open for 4 min" in said
    assert "1 offsets wait there" in said
    link = finding.get_by_role("link", name="Look at the transaction")
    assert link.get_attribute("href") == "/transaction?id=payments-7"
    assert tab.get_by_text("Transaction payments-7 of 127.0.0.1 is open for 4 min").is_visible()
