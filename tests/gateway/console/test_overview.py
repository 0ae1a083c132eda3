"""The first page, in a browser: what there is, and what is wrong."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from tests.gateway.console.conftest import WITHIN_S, Site, StartSite, bearer, grant
from tests.gateway.console.scene import later, shop
from tests.gateway.console.transacting import make_topic

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab


def test_it_shows_what_there_is(site: Site, tab: Tab) -> None:
    tab.goto(site.url)
    assert tab.title() == "Overview · Penstock"
    assert tab.get_by_role("heading", name="Brokers").is_visible()
    row = tab.get_by_role("row", name="live")
    assert f"127.0.0.1:{site.gateway.port}" in row.inner_text()
    # Two samples have been taken, since another test has written the last record.
    tab.get_by_text("Produced: 0 records/s").wait_for(timeout=120_000)


def test_it_says_that_the_broker_has_gone(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    tab.goto(site.url)
    assert not tab.locator("#away").is_visible()
    site.gateway.kill()
    tab.get_by_text("does not answer since").wait_for()


def test_it_says_who_is_stuck_and_why(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    with shop(site):
        tab.goto(site.url)
        assert tab.get_by_text("Nothing that is seen from here.").is_visible()
        oldest = tab.locator(".tile").filter(has_text="Oldest open transaction")
        assert "payments-7" in oldest.inner_text()  # which nobody has to do anything about yet
        later(site, 250)
        finding = tab.get_by_role("listitem").filter(has_text="billing")
        finding.wait_for(timeout=120_000)
        said = finding.inner_text()
        assert re.search("billing has read nothing of orders-3 for [4-6] min", said)
        held = r"transaction payments-7 of 127\.0\.0\.1 has held its offset 60 open for [4-6] min"
        assert re.search(held, said)
        assert "5 offsets wait there" in said
        link = finding.get_by_role("link", name="Look at the transaction")
        assert link.get_attribute("href") == "/transaction?id=payments-7"
        also = finding.get_by_role("link", name="Look at group billing")
        assert also.get_attribute("href") == "/group?id=billing"
        # One cause is one finding.
        assert tab.get_by_text("Transaction payments-7 of 127.0.0.1 is open").count() == 0


def test_a_subscription_of_several_partitions_is_counted_once(
    start_site: StartSite, tab: Tab
) -> None:
    site = start_site()
    make_topic(site, "parted", 3)
    make_topic(site, "whole")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(f"pulsar://127.0.0.1:{site.pulsar_port}", logger=quiet)) as client:
        for topic, name in (("parted", "a"), ("parted", "b"), ("whole", "a")):
            client.subscribe(topic, name).close()
    tab.goto(site.url)
    link = tab.locator(".tile").filter(has_text="Subscriptions").get_by_role("link")
    assert link.inner_text() == "3"
    link.click()
    tab.get_by_text("1\N{EN DASH}3 of 3").wait_for()


def test_only_who_may_see_the_cluster_is_told_how_far_a_group_is_behind(guarded: Site) -> None:
    make_topic(guarded, "unseen")
    common = {"bootstrap.servers": guarded.bootstrap}
    producer = Producer(common)
    producer.produce("unseen", b"x", partition=0)
    assert producer.flush(WITHIN_S) == 0
    consumer = Consumer({**common, "group.id": "behind-unseen"})
    consumer.commit(offsets=[TopicPartition("unseen", 0, 0)], asynchronous=False)
    consumer.close()
    grant(guarded, "seer", AclOperation.DESCRIBE, ResourceType.GROUP, "behind-unseen")
    assert "behind-unseen" in guarded.ask("/groups", headers=bearer("seer"))[2]
    deadline = time.monotonic() + WITHIN_S
    while "behind</small>" not in guarded.ask("/", headers=bearer("admin"))[2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "behind</small>" not in guarded.ask("/", headers=bearer("seer"))[2]
