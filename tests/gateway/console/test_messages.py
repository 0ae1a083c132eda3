"""A topic's messages: in a browser, and without its script."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

import psycopg
import pulsar
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.gateway.console.conftest import WITHIN_S, Site, StartSite
from tests.gateway.console.transacting import open_transaction

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\N{RIGHT-TO-LEFT OVERRIDE}evil \"quotes' \N{PILE OF POO} ../ {{ 7*7 }}",
    "\x00\x07\x1b[31m control",
]


def made_topic(site: Site, partitions: int = 1, **config: str) -> str:
    """A new topic, of a name of its own."""
    name = f"t-{uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    for done in admin.create_topics([NewTopic(name, partitions, config=config)]).values():
        done.result(WITHIN_S)
    return name


def produce(site: Site, topic: str, records: Sequence[dict[str, Any]], **config: Any) -> None:
    producer = Producer({"bootstrap.servers": site.bootstrap, "linger.ms": 20, **config})
    for each in records:
        producer.produce(topic, **{"partition": 0, **each})
        producer.poll(0)
    assert producer.flush(WITHIN_S) == 0


def address(topic: str, path: str = "/topic/messages", **query: object) -> str:
    return f"{path}?{urlencode({'name': topic, **query})}"


def rows_of(page: str) -> list[str]:
    """The rows of a page as the server has rendered it, as text."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.sub(r"<[^>]+>|\s+", " ", row) for row in body.split("<tr")[1:]]


def link_of(page: str, element_id: str) -> str | None:
    found = re.search(rf'id="{element_id}" href="([^"]+)"', page)
    return None if found is None else found[1].replace("&amp;", "&")


def whole(site: Site, path: str) -> str:
    """The page when the server has rendered all that is asked for: it does so with what it finds
    in a moment, and the page's script asks for the rest."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        status, _, page = site.ask(path)
        assert status == 200, page
        if "data-stream=" not in page:
            return page
        assert time.monotonic() < deadline, page


def shown(site: Site, topic: str, **query: object) -> list[str]:
    return rows_of(whole(site, address(topic, **query)))


def lines_of(site: Site, path: str) -> list[dict[str, Any]]:
    status, _, text = site.ask(path)
    assert status == 200, text
    return [json.loads(line) for line in text.splitlines()]


def streams(site: Site) -> int:
    _, _, text = site.ask("/metrics")
    found = re.search(r"^penstock_console_streams (\d+)", text, re.MULTILINE)
    return 0 if found is None else int(found[1])


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(tab: Tab) -> Any:
    return tab.locator("#messages tbody tr")


def words_are(tab: Tab, text: str) -> None:
    tab.get_by_text(re.compile(text)).first.wait_for()


# --- from where ---


def test_a_part_after_the_other_without_script(site: Site) -> None:
    topic = made_topic(site)
    produce(site, topic, [{"value": f"v{i}."} for i in range(100)])
    seen: list[str] = []
    at: str | None = address(topic, **{"from": "start", "limit": 20})
    while at is not None:
        _, _, page = site.ask(at)
        seen += rows_of(page)
        at = link_of(page, "newer") if len(seen) < 100 else None
    assert [re.findall(r"v\d+\.", row) for row in seen] == [[f"v{i}."] for i in range(100)]
    page = whole(site, address(topic, limit=20))
    assert [re.findall(r"v\d+\.", row)[0] for row in rows_of(page)] == [
        f"v{i}." for i in range(99, 79, -1)
    ]
    older = link_of(page, "older")
    assert older is not None
    page = whole(site, older)
    assert "v79." in rows_of(page)[0]
    newer = link_of(page, "newer")
    assert newer is not None
    assert "v80." in rows_of(whole(site, newer))[0]


def test_from_an_offset_and_from_a_time(site: Site) -> None:
    topic = made_topic(site, 2)
    at = START
    produce(
        site,
        topic,
        [
            {"value": f"p{i % 2}-{i}.", "partition": i % 2, "timestamp": at + i * 1000}
            for i in range(40)
        ],
    )
    found = shown(site, topic, **{"from": "offset", "offset": 15, "partition": 1})
    assert [re.findall(r"p\d-\d+\.", row)[0] for row in found] == [
        f"p1-{i}." for i in range(31, 40, 2)
    ]
    for time_ in ("2023-11-14T22:13:50", "2023-11-14T23:13:50+01:00", str(at + 30_000)):
        found = shown(site, topic, **{"from": "time", "time": time_})
        assert [re.findall(r"p\d-\d+\.", row)[0] for row in found] == [
            f"p{i % 2}-{i}." for i in range(30, 40)
        ]
    assert shown(site, topic, **{"from": "time", "time": "2100-01-01"}) == []
    assert site.ask(address(topic, **{"from": "time", "time": "soon"}))[0] == 400


def test_partitions_are_put_in_order_and_none_is_lost(site: Site) -> None:
    topic = made_topic(site, 3)
    # All of partition 0 is newer than what is in the others.
    produce(
        site,
        topic,
        [
            {"value": f"v{p}-{i}.", "partition": p, "timestamp": (3 - p) * 100_000 + i}
            for p in range(3)
            for i in range(30)
        ],
    )
    seen: list[str] = []
    at: str | None = address(topic, limit=20)
    while at is not None and len(seen) < 90:
        _, _, page = site.ask(at)
        seen += rows_of(page)
        at = link_of(page, "older")
    assert [re.findall(r"v\d-\d+\.", row)[0] for row in seen] == [
        f"v{p}-{i}." for p in range(3) for i in range(29, -1, -1)
    ]


def test_a_late_record_keeps_its_place_in_its_partition(site: Site) -> None:
    topic = made_topic(site, 2)
    late = {29: -500_000, 12: 900_000}
    produce(
        site,
        topic,
        [
            {"value": f"v{p}-{i}.", "partition": p, "timestamp": START + i * 1_000 + late.get(i, 0)}
            for p in range(2)
            for i in range(30)
        ],
    )
    for way, link, numbers in (
        ("end", "older", range(29, -1, -1)),
        ("start", "newer", range(30)),
    ):
        seen: list[str] = []
        at: str | None = address(topic, limit=20, **{"from": way})
        while at is not None and len(seen) < 60:
            _, _, page = site.ask(at)
            seen += rows_of(page)
            at = link_of(page, link)
        found = [re.findall(r"v\d-\d+\.", row)[0] for row in seen]
        for p in range(2):
            assert [each for each in found if each.startswith(f"v{p}")] == [
                f"v{p}-{i}." for i in numbers
            ]


def test_what_opens_to_much_is_read_little_by_little(site: Site) -> None:
    topic = made_topic(site)
    for i in range(24):
        produce(site, topic, [{"value": "z" * 900_000 + f"v{i}."}], **{"compression.type": "zstd"})
    for way in ("start", "end"):
        path = address(topic, "/topic/messages/download", **{"from": way})
        found = [each["value"][900_000:] for each in lines_of(site, path)]
        wanted = [f"v{i}." for i in range(24)]
        assert found == (wanted if way == "start" else wanted[::-1])


def test_deleted_records_are_passed_over(site: Site) -> None:
    topic = made_topic(site)
    produce(site, topic, [{"value": f"v{i}."} for i in range(10)])
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        done.result(WITHIN_S)
    assert len(shown(site, topic)) == 3
    assert len(shown(site, topic, **{"from": "start", "at": "0:0-9"})) == 2
    assert site.ask(address(topic, at="x"))[0] == 400


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_each_codec_is_read(site: Site, codec: str) -> None:
    topic = made_topic(site)
    produce(
        site,
        topic,
        [{"value": f"v{i}." + "x" * 100} for i in range(30)],
        **{"compression.type": codec},
    )
    assert len(shown(site, topic, text="v29.X")) == 1


# --- what ---


def test_the_last_message_of_a_key(site: Site, tab: Tab) -> None:
    topic = made_topic(site, 3)
    produce(
        site,
        topic,
        [{"key": f"k{i % 7}", "value": f"v{i}.", "partition": -1} for i in range(700)],
    )
    tab.goto(site.url + address(topic))
    tab.get_by_label("Key, all of it").fill("k3")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Show", exact=True).click()
    tab.get_by_role("button", name="Stop").wait_for(state="hidden")
    assert "v696." in rows(tab).first.inner_text()
    assert "key=k3" in tab.url
    assert "jsonpath" not in tab.url
    rows(tab).first.get_by_role("link").first.click()
    with tab.expect_navigation():
        tab.get_by_role("link", name="All messages with this key, newest first").click()
    tab.get_by_role("button", name="Stop").wait_for(state="hidden")
    assert "v696." in rows(tab).first.inner_text()


def test_filters_by_text_and_by_a_path(site: Site) -> None:
    topic = made_topic(site)
    produce(
        site,
        topic,
        [
            {"key": "a", "value": json.dumps({"n": i, "status": "open" if i % 5 else "paid"})}
            for i in range(50)
        ]
        + [{"value": "no JSON"}, {"value": None}, {"value": b"\xff"}],
    )
    assert len(shown(site, topic, jsonpath="@.status == 'paid'")) == 10
    assert len(shown(site, topic, jsonpath="$[?@ == 'paid']", key="a")) == 10
    assert len(shown(site, topic, text="NO json")) == 1
    assert len(shown(site, topic, text="paid", jsonpath="@.n > 40", format="hex")) == 1
    status, _, page = site.ask(address(topic, jsonpath="@.status =="))
    assert status == 400
    assert "This is no JSONPath" in page


def test_what_cannot_be_asked_is_said_in_the_form(site: Site, tab: Tab) -> None:
    topic = made_topic(site)
    wrong = {"from": "offset", "offset": "abc", "key": "k", "jsonpath": "@.n >> 5"}
    tab.goto(site.url + address(topic, **wrong))
    alert = tab.get_by_role("alert")
    assert "'abc' is no whole number" in alert.inner_text()
    assert tab.locator("[name=offset]").input_value() == "abc"
    assert tab.locator("[name=key]").input_value() == "k"
    tab.locator("[name=offset]").fill("0")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Show").click()
    assert "This is no JSONPath" in alert.inner_text()
    assert tab.locator("[name=jsonpath]").input_value() == "@.n >> 5"
    assert site.ask(address(topic, partition=99))[0] == 404
    assert site.ask(address(topic, **{"from": "time", "time": "soon"}))[0] == 400


def test_where_a_transaction_is_open_the_page_says_what_is_left_out(site: Site, tab: Tab) -> None:
    topic = made_topic(site, 2)
    produce(site, topic, [{"key": "k", "value": "before"}])
    producer = open_transaction(site, f"{topic}-writer", topic)
    produce(site, topic, [{"key": "k", "value": "behind"}])
    produce(site, topic, [{"key": "other", "value": "elsewhere", "partition": 1}])
    tab.goto(site.url + address(topic, key="k"))
    words_are(tab, "Searched all")
    (row,) = tab.locator("#messages tbody tr").all()
    assert "before" in row.inner_text()
    left_out = tab.get_by_label("What is not shown").get_by_role("listitem")
    assert f"Partition 0 is shown up to offset 1, where transaction {topic}-writer is open" in (
        left_out.inner_text()
    )
    assert "4 offsets from there on are left out" in left_out.inner_text()
    with tab.expect_navigation():
        left_out.get_by_role("link", name="Show all").click()
    words_are(tab, "Searched all")
    assert "behind" in tab.locator("#messages tbody tr").first.inner_text()
    assert tab.get_by_label("What is not shown").count() == 0
    # What is asked of another partition has nothing left out.
    assert "What is not shown" not in site.ask(address(topic, partition=1))[2]
    tab.goto(site.url + address(topic, **{"from": "live"}))
    tab.get_by_text("In 1 partition an open transaction holds up").wait_for()
    producer.abort_transaction(WITHIN_S)
    assert "What is not shown" not in site.ask(address(topic))[2]


def test_hostile_values_are_only_text(site: Site, tab: Tab) -> None:
    topic = made_topic(site)
    produce(
        site,
        topic,
        [{"key": each, "value": each, "headers": [(each, each.encode())]} for each in HOSTILE]
        + [{"key": b"\xff\xfe", "value": b"\x80\x81", "headers": [("h", None)]}]
        + [{"key": "big", "value": "<b>" + "y" * 900_000}],
    )
    tab.goto(site.url + address(topic))
    words_are(tab, "Searched all")
    said = tab.locator("#messages").inner_text()
    assert "<script>alert(1)</script>" in said
    assert "\\u202eevil" in said
    assert "\\u0000\\u0007\\u001b[31m" in said
    assert "80 81" in said
    assert "879 KiB" in said
    assert len(tab.content()) < 60_000
    with tab.expect_navigation():
        tab.get_by_role("link", name=re.compile("all 879 KiB")).click()
    assert "Cut off" in tab.locator("main").inner_text()
    assert len(tab.content()) < 400_000


def test_what_became_of_a_transaction(site: Site, tab: Tab) -> None:
    topic, name = made_topic(site), f"payments-{uuid4().hex[:6]}"
    producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": name})
    producer.init_transactions(WITHIN_S)
    for end in (producer.commit_transaction, producer.abort_transaction, None):
        producer.begin_transaction()
        producer.produce(topic, "in it", partition=0)
        assert producer.flush(WITHIN_S) == 0
        if end is not None:
            end(WITHIN_S)
    produce(site, topic, [{"value": "outside"}])
    assert len(shown(site, topic)) == 1  # what is behind an open one is not stable, too
    tab.goto(site.url + address(topic, read="all", **{"from": "start"}))
    words_are(tab, "Searched all")
    found = [row.inner_text().split("\t") for row in rows(tab).all()]
    assert [row[-1].removesuffix("Copy").strip() for row in found] == [
        *("committed", "committed", "aborted", "aborted", "open", "")
    ]
    assert [row[3] for row in found if "transaction" in row[3]] == [
        "transaction committed",
        "transaction aborted",
    ]
    assert rows(tab).nth(2).get_by_role("link", name="aborted").get_attribute("href") == (
        f"/transaction?id={name}"
    )
    tab.goto(site.url + address(topic, "/topic/record", partition=0, offset=2))
    assert tab.get_by_role("alert").inner_text().startswith("Its transaction was aborted")
    said = tab.locator("main").inner_text()
    assert name in said
    assert "rdkafka" in said  # its client's id
    producer.abort_transaction(WITHIN_S)


def pulsar_client(site: Site) -> pulsar.Client:
    assert site.gateway.database_url is not None
    with psycopg.connect(site.gateway.database_url) as connection:
        row = connection.execute(
            "SELECT port FROM penstock.broker_endpoint WHERE listener = 'pulsar'"
        ).fetchone()
    assert row is not None
    return pulsar.Client(
        f"pulsar://127.0.0.1:{row[0]}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )


class Order(pulsar.schema.Record):  # type: ignore[misc] # pulsar-client has no types
    sku = pulsar.schema.String()
    amount = pulsar.schema.Integer()


def test_records_of_pulsars_producers_by_their_schema(site: Site, tab: Tab) -> None:
    topic = f"persistent://public/default/t-{uuid4().hex[:10]}"
    with closing(pulsar_client(site)) as client:
        producer = client.create_producer(
            topic, schema=pulsar.schema.AvroSchema(Order), producer_name="shop-1"
        )
        for amount in range(5):
            producer.send(
                Order(sku=f"A{amount}", amount=amount),
                partition_key="k",
                properties={"p": "q"},
                event_timestamp=1_700_000_000_000,
            )
    name = topic.removeprefix("persistent://public/default/")
    if site.ask(address(name))[0] == 404:
        name = topic
    found = shown(site, name, jsonpath="@.amount == 3")
    assert len(found) == 1
    assert "A3" in found[0]
    tab.goto(site.url + address(name))
    words_are(tab, "Searched all")
    with tab.expect_navigation():
        rows(tab).first.get_by_role("link").first.click()
    said = tab.locator("main").inner_text()
    assert "shop-1" in said
    assert '"amount": 4' in said
    for each in ("Avro", "Event time", "Published", "version 0", "Pulsar"):
        assert each in said


def test_times_that_only_seem_to_be_there_are_not_looked_for_in_all_of_the_log(site: Site) -> None:
    topic = f"persistent://public/default/t-{uuid4().hex[:10]}"
    with closing(pulsar_client(site)) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for _ in range(30):  # published later than the time of their event
            producer.send(b"x", event_timestamp=START)
    name = topic.removeprefix("persistent://public/default/")
    if site.ask(address(name))[0] == 404:
        name = topic
    assert len(shown(site, name, **{"from": "time", "time": str(START + 1)})) == 10
    assert len(shown(site, name, **{"from": "time", "time": str(START)})) == 30


# --- as a stream ---

MANY = 100_000
START = 1_700_000_000_000


@pytest.fixture(scope="module")
def big(site: Site) -> str:
    """A topic of 100,000 small records, in two partitions."""
    topic = made_topic(site, 2)
    producer = Producer({"bootstrap.servers": site.bootstrap, "linger.ms": 20})
    for i in range(MANY):
        while True:
            try:
                producer.produce(
                    topic, f"number {i}.", f"k{i % 1000}", partition=i % 2, timestamp=START + i
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WITHIN_S) == 0
    return topic


def test_a_filter_goes_to_the_end(site: Site, big: str, tab: Tab) -> None:
    tab.goto(site.url + address(big, text="number 1."))
    words_are(tab, r"Searched [\d,]+ of 100,000 offsets of 2 partitions: .* offsets/s")
    words_are(tab, r"Searched all 100,000 offsets of 2 partitions: 1 found\.$")
    assert rows(tab).count() == 1
    assert "number 1." in rows(tab).first.inner_text()
    assert not tab.get_by_role("button", name="Stop").is_visible()


def test_a_search_can_be_stopped_and_goes_on(site: Site, big: str, tab: Tab) -> None:
    tab.goto(site.url + address(big, text="number 99999.", **{"from": "start"}))
    tab.get_by_role("button", name="Stop").click()
    tab.get_by_role("button", name="Go on").wait_for()
    wait_for(lambda: streams(site) == 0)
    assert rows(tab).count() == 0
    tab.get_by_role("button", name="Go on").click()
    words_are(tab, r"Searched all 100,000 offsets of 2 partitions: 1 found\.$")
    assert rows(tab).count() == 1


def test_the_rows_are_those_of_all_partitions_in_order(site: Site, big: str, tab: Tab) -> None:
    tab.goto(site.url + address(big, text="77", **{"from": "start", "limit": 20}))
    words_are(tab, "20 found")
    tab.get_by_role("button", name="Stop").wait_for(state="hidden")
    wanted = [i for i in range(MANY) if "77" in f"{i} k{i % 1000}"][:20]
    found = [int(re.findall(r"number (\d+)", row.inner_text())[0]) for row in rows(tab).all()]
    assert found == wanted
    with tab.expect_navigation():
        tab.get_by_role("link", name="Newer").click()
    tab.get_by_role("button", name="Stop").wait_for(state="hidden")
    assert f"number {[i for i in range(MANY) if '77' in f'{i} k{i % 1000}'][20]}." in (
        rows(tab).first.inner_text()
    )


def test_all_that_is_found_is_downloaded(site: Site, big: str) -> None:
    path = address(big, "/topic/messages/download", text="number 99", **{"from": "start"})
    status, headers, text = site.ask(path)
    assert status == 200
    assert headers["content-disposition"] == f'attachment; filename="{big}.jsonl"'
    found = [json.loads(line) for line in text.splitlines()]
    wanted = {f"number {i}." for i in range(MANY) if str(i).startswith("99")}
    assert {each["value"] for each in found} == wanted
    assert len(found) == len(wanted)
    assert {each["topic"] for each in found} == {big}
    assert site.ask(address(big, "/topic/messages/download", **{"from": "live"}))[0] == 400


def test_what_comes_is_shown_as_it_comes(site: Site, tab: Tab) -> None:
    topic = made_topic(site, 2)
    produce(site, topic, [{"value": "before"}])
    tab.goto(site.url + address(topic, **{"from": "live"}))
    words_are(tab, "Live: 0 found")
    for i in range(3):
        produce(site, topic, [{"value": f"new {i} <b>", "partition": i % 2}])
        rows(tab).first.get_by_text(f"new {i} <b>").wait_for()
    assert rows(tab).count() == 3
    tab.get_by_role("button", name="Pause").click()
    wait_for(lambda: streams(site) == 0)
    produce(site, topic, [{"value": "meanwhile"}])
    assert rows(tab).count() == 3
    tab.get_by_role("button", name="Go on").click()
    rows(tab).first.get_by_text("meanwhile").wait_for()
    produce(site, topic, [{"value": f"many {i}."} for i in range(400)])
    rows(tab).first.get_by_text("many 399.").wait_for()
    assert rows(tab).count() == 300


def test_live_ends_with_its_broker(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    topic = made_topic(site)
    tab.goto(site.url + address(topic, **{"from": "live"}))
    words_are(tab, "Live: 0 found")
    began = time.monotonic()
    assert site.gateway.stop() == 0
    assert time.monotonic() - began < 10
    tab.get_by_role("button", name="Go on").wait_for()
    words_are(tab, "The broker stops|does not answer")


@contextmanager
def asking(
    site: Site, path: str, headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=WITHIN_S)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        yield connection.getresponse()
    finally:
        connection.close()


def test_a_client_that_goes_ends_the_reading(site: Site, big: str) -> None:
    wait_for(lambda: streams(site) == 0)
    path = address(big, "/topic/messages/stream", text="not there")
    with asking(site, path) as response:
        assert response.status == 200
        assert json.loads(response.readline())["words"].startswith("Searched")
        assert streams(site) == 1
        assert response.fp is not None
        response.close()
    wait_for(lambda: streams(site) == 0)


def test_a_client_that_reads_nothing_holds_no_memory(site: Site) -> None:
    topic = made_topic(site)
    for _ in range(12):
        produce(site, topic, [{"value": "z" * 900_000}])
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        path = address(topic, "/topic/messages/download", **{"from": "start"})
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        wait_for(lambda: streams(site) == 1)
        assert site.ask(address(topic))[0] == 200  # others are served
    wait_for(lambda: streams(site) == 0)


def test_twenty_look_at_once(site: Site) -> None:
    wait_for(lambda: streams(site) == 0)
    topic = made_topic(site)
    live = [http.client.HTTPConnection("127.0.0.1", site.port, timeout=WITHIN_S) for _ in range(20)]
    try:
        responses = []
        for each in live:
            each.request("GET", address(topic, "/topic/messages/stream", **{"from": "live"}))
            response = each.getresponse()
            assert "Live: 0 found" in json.loads(response.readline())["words"]
            responses.append(response)
        assert streams(site) == 20
        produce(site, topic, [{"value": "for all of you"}])
        for response in responses:
            assert "for all of you" in json.loads(response.readline())["rows"]
    finally:
        for each in live:
            each.close()
    wait_for(lambda: streams(site) == 0)


def test_one_has_no_more_streams_than_a_few(site: Site) -> None:
    wait_for(lambda: streams(site) == 0)
    topic = made_topic(site)
    path = address(topic, "/topic/messages/stream", **{"from": "live"})
    with ExitStack() as stack:
        for _ in range(20):
            assert stack.enter_context(asking(site, path)).readline()
        status, _, said = site.ask(path)
        assert (status, "20 searches and live tails of yours" in said) == (503, True)
    wait_for(lambda: streams(site) == 0)


def test_of_what_comes_too_fast_the_last_is_shown(site: Site) -> None:
    topic = made_topic(site)
    produce(site, topic, [{"value": f"v{i}."} for i in range(1_000)])
    path = address(topic, "/topic/messages/stream", at="0:0-", **{"from": "live"})
    shown, said = "", ""
    with asking(site, path) as response:
        while "Live: 1,000 found" not in said:
            line = json.loads(response.readline())
            shown += line.get("rows", "")
            said = line.get("words", "")
    assert "v999." in shown
    assert "v0." not in shown
    assert f"{1_000 - shown.count('<tr ')} of them came too fast" in said


def test_a_path_that_takes_too_long_is_given_up(site: Site) -> None:
    topic = made_topic(site)
    value = "[" * 60 + "]" * 60
    produce(site, topic, [{"value": value}] * 1_000)
    path = "$..[?@..[?@..[?@..[?@==1]]]]"
    query = {"jsonpath": path, "from": "start"}
    *_, last = lines_of(site, address(topic, "/topic/messages/stream", **query))
    assert last["is_done"]
    assert last["looked"] < 50
    assert "The search has ended" in last["words"]
    assert last["newer"]


def test_a_topic_that_is_deleted_ends_its_streams(site: Site) -> None:
    topic = made_topic(site)
    with asking(site, address(topic, "/topic/messages/stream", **{"from": "live"})) as response:
        assert "Live" in json.loads(response.readline())["words"]
        admin = AdminClient({"bootstrap.servers": site.bootstrap})
        for done in admin.delete_topics([topic]).values():
            done.result(WITHIN_S)
        assert "not there any more" in response.read().decode()


def test_what_is_not_there_or_makes_no_sense(site: Site) -> None:
    topic = made_topic(site)
    for query, status in (
        ({"name": "not-there"}, 404),
        ({"name": topic, "partition": "9"}, 404),
        ({"name": topic, "partition": "x"}, 400),
        ({"name": topic, "from": "nowhere"}, 400),
        ({"name": topic, "format": "xml"}, 400),
        ({"name": topic, "key_hex": "zz"}, 400),
        ({"name": topic, "looked": "abc"}, 400),
        ({"name": topic, "found": "abc", "from": "live"}, 400),
        ({}, 400),
    ):
        for path in ("/topic/messages", "/topic/messages/stream"):
            if path == "/topic/messages" and not query.keys().isdisjoint({"looked", "found"}):
                continue
            assert site.ask(f"{path}?{urlencode(query)}")[0] == status
