"""Names and values are attackers' text: a browser goes to all pages, and none of it comes alive.

Follows every link of the site, a few of each kind, so that pages to come are looked at as well.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from core.security.page_operations import PAGES
from tests.gateway.console.conftest import WITHIN_S, Site, log_in, token
from tests.gateway.console.transacting import make_topic

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

HOSTILE = (
    "<script>alert(1)</script>",
    '"><i class=hostile></i><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='<i class=hostile>",
    "javascript:alert(1)//{{7*7}}${7*7}<!--",
    "../../\u202e\u200b\N{GRINNING FACE}␀</title><i class=hostile>",
    "x" * 2000 + "<i class=hostile>",
)
# What a browser does not show as a page.
FILES = ("/topic/messages/download", "/topic/record/value")
_OF_EACH_KIND = 4
_MOST = 120


def test_nothing_of_them_comes_alive_on_any_page(guarded: Site, tab: Tab) -> None:
    make_topic(guarded, "hostile", penstock_deduplication_enabled="true")
    open_ones = [write_all(guarded, each) for each in HOSTILE]
    dialogs: list[str] = []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    log_in(tab, guarded, "admin")
    seen: set[str] = set()
    kinds: Counter[tuple[str, tuple[str, ...]]] = Counter()
    waiting = ["/"]
    while waiting and len(seen) < _MOST:
        path = waiting.pop(0)
        answer = tab.goto(guarded.url + path, wait_until="load")
        assert answer is not None
        assert answer.status < 500, path
        if f"GET {urlsplit(path).path}" in PAGES:
            assert answer.status == 200, path
        assert not dialogs, path
        assert tab.locator(".hostile, img, script:not([src]), [onmouseover]").count() == 0, path
        assert "49" not in tab.title()
        seen.add(path)
        hrefs = tab.evaluate("[...document.links].map((each) => each.getAttribute('href'))")
        for href in hrefs:
            assert href.startswith(("/", "#", "?")), (path, href)
            href, _, _ = href.partition("#")
            parts = urlsplit(href)
            kind = (parts.path, tuple(sorted(parse_qs(parts.query))))
            if parts.path in ("", *FILES) or href in (*seen, *waiting):
                continue
            if kinds[kind] >= _OF_EACH_KIND:
                continue
            kinds[kind] += 1
            waiting.append(href)
    shown = {urlsplit(path).path for path in seen}
    lists = {"/transactions", "/producers", "/security/users", "/security/acls", "/security/quotas"}
    assert {"/", "/transaction", "/producer", "/security/may", *lists} <= shown
    for producer in open_ones:
        producer.abort_transaction(WITHIN_S)


def write_all(site: Site, name: str) -> Producer:
    """The name wherever stock clients can put it; the producer of a transaction that stays open."""
    kafka = {"bootstrap.servers": site.bootstrap, "client.id": name}
    own = {"transactional.id": name, "transaction.timeout.ms": 600_000}
    producer = Producer({**kafka, **own})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    headers = [(name, name.encode())]
    producer.produce("hostile", name.encode(), name.encode(), 0, headers=headers)
    group = Consumer({**kafka, "group.id": name, "enable.auto.commit": False})
    place = TopicPartition("hostile", 0, 0, metadata=name[:1000])
    group.commit(offsets=[place], asynchronous=False)
    if name.isascii():  # librdkafka sends no others
        producer.send_offsets_to_transaction([place], group.consumer_group_metadata(), WITHIN_S)
    assert producer.flush(WITHIN_S) == 0
    group.close()
    plain = Producer(kafka)
    plain.produce("hostile", name.encode(), name.encode(), 0, headers=headers)
    assert plain.flush(WITHIN_S) == 0
    acl = AclBinding(
        ResourceType.GROUP,
        name,
        ResourcePatternType.PREFIXED,
        f"User:{name}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient(kafka)
    for made in admin.create_acls([acl]).values():
        made.result(WITHIN_S)
    of_pulsar(site, name)
    return producer


def of_pulsar(site: Site, name: str) -> None:
    """As a producer's and a subscription's name, a key and a property."""
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{site.pulsar_port}",
        authentication=pulsar.AuthenticationToken(token("admin")),
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    topic = "persistent://public/default/hostile"
    consumer = client.subscribe(topic, name, consumer_name=name, properties={name: name})
    producer = client.create_producer(topic, producer_name=name[-100:], properties={name: name})
    producer.send(name.encode(), properties={name: name}, partition_key=name)
    producer.close()
    consumer.close()
    client.close()
