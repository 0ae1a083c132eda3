"""The pages of Pulsar's subscriptions, in a browser, over consumers of stock clients."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import psycopg
import pulsar
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.gateway.console.conftest import WITHIN_S, Site, StartSite
from tests.gateway.console.test_groups import Cluster, allow, as_user, guarded

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

MESSAGES = 10
QUIET = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
HOSTILE = "<script>alert(1)</script>\"' \N{RIGHT-TO-LEFT OVERRIDE}"


def address_of(site: Site) -> str:
    """Where Pulsar's clients find this broker."""
    assert site.gateway.database_url is not None
    with psycopg.connect(site.gateway.database_url) as connection:
        row = connection.execute(
            "SELECT p.host || ':' || p.port FROM penstock.broker_endpoint p"
            " JOIN penstock.broker_endpoint k USING (broker_id)"
            " WHERE p.listener = 'pulsar' AND k.listener = 'kafka' AND k.port = %s",
            [site.gateway.port],
        ).fetchone()
    assert row is not None
    return f"pulsar://{row[0]}"


@contextmanager
def connected(site: Site) -> Iterator[pulsar.Client]:
    with closing(pulsar.Client(address_of(site), **QUIET)) as client:
        yield client


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[pulsar.Client]:
    with connected(site) as client:
        yield client


@pytest.fixture
def topic(site: Site) -> str:
    return made(site)


def made(site: Site, partitions: int = 1) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.create_topics([NewTopic(name, partitions)])[name].result(WITHIN_S)
    return name


def filled(client: pulsar.Client, topic: str, name: str) -> None:
    """A subscription that has ten messages to read, and no consumer."""
    client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(MESSAGES):
        producer.send(b"%d" % n)
    producer.close()


def left(client: pulsar.Client, topic: str, name: str, count: int) -> list[bytes]:
    """What a consumer is given that comes now: so many messages, and no more."""
    with closing(client.subscribe(topic, name)) as consumer:
        found = [consumer.receive(int(WITHIN_S * 1000)).data() for _ in range(count)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(700)
    return found


def page_of(site: Site, topic: str, name: str, path: str = "/subscription") -> str:
    return f"{site.url}{path}?{urlencode({'topic': topic, 'name': name})}"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- what is shown ---


def test_the_list_finds_them(site: Site, client: pulsar.Client, topic: str, tab: Tab) -> None:
    filled(client, topic, "jobs")
    tab.goto(f"{site.url}/subscriptions?search={topic}/JO")
    row = tab.get_by_role("row").filter(has_text=topic)
    # Consumers are counted every 2 s: for a moment that one may be among them that has gone.
    wanted = ["jobs", topic, "Exclusive", "1", "0", "10"]
    wait_for(lambda: row.inner_text().split("\t") == wanted)
    row.get_by_role("link", name="jobs").click()
    tab.get_by_text("No consumer is connected. 10 messages wait for one.").wait_for()


def test_a_consumer_that_does_not_acknowledge_is_named(
    site: Site, client: pulsar.Client, topic: str, tab: Tab
) -> None:
    filled(client, topic, "jobs")
    with closing(
        client.subscribe(
            topic,
            "jobs",
            consumer_type=pulsar.ConsumerType.Shared,
            consumer_name="worker-1",
            receiver_queue_size=4,
        )
    ) as consumer:
        for _ in range(2):
            consumer.receive(int(WITHIN_S * 1000))
        tab.goto(page_of(site, topic, "jobs"))
        tab.get_by_text("messages that it has not acknowledged").wait_for()
        assert tab.get_by_role("table", name="up to 2 s ago").is_visible()
        assert tab.get_by_text("worker-1 at 127.0.0.1").first.is_visible()
        row = tab.get_by_role("row").filter(has_text="worker-1").inner_text().split("\t")
        assert (row[3], row[4], int(row[5]) >= 4) == ("active", "0", True)


def test_what_transactions_hold_and_have_acknowledged(
    site: Site, client: pulsar.Client, topic: str, tab: Tab
) -> None:
    """One of Kafka's transactional producer: it writes to the topic, and acknowledges."""
    filled(client, topic, "jobs")
    common = {"bootstrap.servers": site.bootstrap}
    producer = Producer({**common, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce(topic, b"held", partition=0)
    group = f"pulsar-subscription:{topic}:0:jobs"
    with closing(Consumer({**common, "group.id": group})) as named:
        where = TopicPartition(topic, 0, 8, "5,7")
        producer.send_offsets_to_transaction([where], named.consumer_group_metadata(), WITHIN_S)
    assert producer.flush(WITHIN_S) == 0
    tab.goto(page_of(site, topic, "jobs"))
    acks = tab.get_by_role("row").filter(has_text="pending")
    assert [each.split("\t")[:3] for each in acks.all_inner_texts()] == [
        ["0", "5", f"tx-{topic}"],
        ["0", "7", f"tx-{topic}"],
    ]
    found = tab.get_by_role("listitem").filter(has_text=f"tx-{topic}")
    assert "consumers get nothing from offset 10 on" in found.nth(0).inner_text()
    assert "nobody is given them before it ends" in found.nth(1).inner_text()
    for link in found.get_by_role("link").all():
        assert link.get_attribute("href") == f"/transaction?id=tx-{topic}"
    producer.commit_transaction(WITHIN_S)
    tab.get_by_text("9 messages wait for one").wait_for()  # with what it has written
    assert acks.count() == 0


def test_hostile_names_are_text(site: Site, client: pulsar.Client, topic: str, tab: Tab) -> None:
    filled(client, topic, HOSTILE)
    tab.goto(f"{site.url}/subscriptions?search={topic}")
    shown = HOSTILE.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\\u202e")
    tab.get_by_role("link", name=shown).click()
    tab.get_by_role("link", name="Delete the subscription").click()
    tab.get_by_role("button", name="Delete the subscription").click()
    tab.get_by_text("The subscription was deleted in 1 partition.").wait_for()
    assert site.ask(f"/subscription?{urlencode({'topic': topic, 'name': HOSTILE})}")[0] == 404


def test_its_backlog_is_drawn(site: Site, client: pulsar.Client, tab: Tab) -> None:
    topic = made(site, 2)
    filled(client, topic, "jobs")
    tab.goto(page_of(site, topic, "jobs"))
    tab.get_by_text("Messages in its backlog in all 2 partitions").wait_for()
    words = tab.locator("figcaption").inner_text()
    assert words.endswith(": 10. Partition 0: 5, 1: 5")
    assert tab.locator("svg polyline").count() == 2


# --- what is changed ---


def test_the_cursor_goes_where_the_preview_says(
    site: Site, client: pulsar.Client, topic: str, tab: Tab
) -> None:
    filled(client, topic, "jobs")
    tab.goto(page_of(site, topic, "jobs"))
    tab.get_by_role("link", name="Reset the cursor").click()
    tab.get_by_label("Where to").select_option("to an offset")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Show what that does").click()
    assert tab.get_by_role("alert").inner_text() == "Which offset?"
    tab.get_by_label("Which offset").fill("7")
    tab.get_by_role("button", name="Show what that does").click()
    tab.get_by_text("7 offsets are skipped").wait_for()
    tab.get_by_role("button", name="Reset the offsets").click()
    tab.get_by_text("The cursor was put elsewhere in 1 partition").wait_for()
    assert left(client, topic, "jobs", 3) == [b"7", b"8", b"9"]
    tab.goto(
        f"{page_of(site, topic, 'jobs', '/subscription/reset')}&way=to-datetime&time=2020-01-01"
    )
    tab.get_by_role("button", name="Reset the offsets").click()
    tab.get_by_role("status").wait_for()
    assert left(client, topic, "jobs", MESSAGES)[0] == b"0"


def test_what_has_gone_on_since_the_preview_is_not_undone(
    site: Site, client: pulsar.Client
) -> None:
    """The second partition has; the first is done by then, which is said."""
    topic = made(site, 2)
    client.subscribe(topic, "jobs").close()
    form = {"moves": json.dumps([[topic, 0, 0, 0], [topic, 1, 1, 0]])}
    target = page_of(site, topic, "jobs", "/subscription/reset")[len(site.url) :]
    status, _, text = site.ask(target, form)
    assert (status, "it is at offset 0, not 1" in text) == (409, True)
    assert "Changed before that, and left so: 1 partition (0)." in text


def test_consumers_come_again_where_the_cursor_is_put(
    site: Site, client: pulsar.Client, topic: str
) -> None:
    filled(client, topic, "jobs")
    with closing(client.subscribe(topic, "jobs")) as consumer:
        for n in range(MESSAGES):
            assert consumer.receive(int(WITHIN_S * 1000)).data() == b"%d" % n
        target = page_of(site, topic, "jobs", "/subscription/reset")[len(site.url) :]
        assert site.ask(target, {"moves": json.dumps([[topic, 0, 0, 7]])})[0] == 303
        assert consumer.receive(int(WITHIN_S * 1000)).data() == b"7"


def test_a_time_is_looked_for_in_some_batches_only(
    site: Site, client: pulsar.Client, topic: str
) -> None:
    """Each was published after it, and has a time of its own long before."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for _ in range(30):
            producer.send(b"x", event_timestamp=1_000)
    Cluster(site).commit(topic, topic, {0: 5})
    query = urlencode({"id": topic, "way": "to-datetime", "time": "2020-01-01"})
    _, _, text = site.ask(f"/group/reset?{query}")
    assert "15 offsets</strong> are skipped" in text


def test_some_messages_are_skipped_and_then_all(
    site: Site, client: pulsar.Client, topic: str, tab: Tab
) -> None:
    filled(client, topic, "jobs")
    tab.goto(page_of(site, topic, "jobs"))
    tab.get_by_role("link", name="Skip", exact=True).click()
    tab.get_by_text("10 messages in 1 partition are acknowledged").wait_for()
    tab.get_by_label("How many of them, or all").fill("4")
    tab.get_by_role("button", name="Skip the messages").click()
    tab.get_by_text("Messages were skipped in 1 partition.").wait_for()
    assert left(client, topic, "jobs", 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    tab.get_by_role("link", name="Clear the backlog").click()
    tab.get_by_role("button", name="Skip the messages").click()
    tab.get_by_text("Nothing waits for one.").wait_for()
    assert left(client, topic, "jobs", 0) == []


def test_one_with_consumers_is_deleted_only_on_purpose(
    site: Site, client: pulsar.Client, topic: str, tab: Tab
) -> None:
    with closing(client.subscribe(topic, "jobs")):
        wait_for(lambda: "Pulsar-CPP" in site.ask(page_of(site, topic, "jobs")[len(site.url) :])[2])
        tab.goto(page_of(site, topic, "jobs", "/subscription/delete"))
        tab.get_by_role("button", name="Delete the subscription").click()
        assert "has active connected consumers" in tab.get_by_role("alert").inner_text()
        tab.go_back()
        tab.get_by_label("Disconnect its 1 consumer").check()
        tab.get_by_role("button", name="Delete the subscription").click()
        tab.get_by_text("The subscription was deleted in 1 partition.").wait_for()


def test_each_partition_is_changed_by_its_broker(start_site: StartSite, tab: Tab) -> None:
    """Eight partitions over two brokers: whichever broker's page is used, all are changed."""
    first, second = start_site("--console-write"), start_site("--console-write")
    topic = made(first, 8)
    with connected(second) as client:
        client.subscribe(topic, "jobs").close()
        owners = set()
        assert first.gateway.database_url is not None
        with psycopg.connect(first.gateway.database_url) as connection:
            query = "SELECT owner FROM penstock.v_subscription WHERE topic = %s"
            owners = {owner for (owner,) in connection.execute(query, [topic])}
        assert len(owners) == 2
        producer = client.create_producer(topic, batching_enabled=False)
        for n in range(16):
            producer.send(b"%d" % n)
        tab.goto(page_of(first, topic, "jobs", "/subscription/skip"))
        assert tab.get_by_text("16 messages in 8 partitions").is_visible()
        tab.get_by_role("button", name="Skip the messages").click()
        tab.get_by_text("Messages were skipped in 8 partitions.").wait_for()
        assert left(client, topic, "jobs", 0) == []
        tab.goto(f"{page_of(first, topic, 'jobs', '/subscription/reset')}&way=to-earliest")
        assert tab.get_by_text("16 offsets are read again.").is_visible()
        tab.get_by_role("button", name="Reset the offsets").click()
        tab.get_by_text("The cursor was put elsewhere in 8 partitions").wait_for()
        assert len(set(left(client, topic, "jobs", 16))) == 16
        tab.goto(page_of(first, topic, "jobs", "/subscription/delete"))
        tab.get_by_role("button", name="Delete the subscription").click()
        tab.get_by_text("The subscription was deleted in 8 partitions.").wait_for()


def test_a_page_that_only_shows_offers_nothing(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    topic = made(site)
    with connected(site) as client:
        filled(client, topic, "jobs")
        tab.goto(page_of(site, topic, "jobs"))
        assert tab.get_by_role("heading", name="Partitions").is_visible()
        assert not tab.get_by_role("heading", name="Change it").is_visible()
        assert tab.get_by_role("link", name="Skip", exact=True).count() == 0
        for path in ("reset", "skip", "delete"):
            target = page_of(site, topic, "jobs", f"/subscription/{path}")[len(site.url) :]
            assert site.ask(f"{target}&partitions=0", {"moves": "[]"})[0] == 403
        assert left(client, topic, "jobs", MESSAGES)[0] == b"0"


def test_rights_are_those_of_pulsars_rest(start_site: StartSite, tab: Tab) -> None:
    """alice may see one topic, and then read it, and then its subscription is somebody else's."""
    site = guarded(start_site)
    cluster, seen, unseen = Cluster(site), made(site), made(site)
    login = pulsar.AuthenticationBasic("root", "pw")
    with closing(pulsar.Client(address_of(site), authentication=login, **QUIET)) as client:
        for topic in (seen, unseen):
            client.subscribe(topic, "jobs").close()
    headers, skipped = as_user("alice"), {"count": ""}
    one = page_of(site, seen, "jobs")[len(site.url) :]
    skip = f"{page_of(site, seen, 'jobs', '/subscription/skip')[len(site.url) :]}&partitions=0"
    allow(cluster, ("TOPIC", seen, "DESCRIBE"))
    wait_for(lambda: site.ask(one, headers=headers)[0] == 200)
    tab.set_extra_http_headers(headers)
    tab.goto(f"{site.url}/subscriptions")
    assert tab.get_by_role("link", name="jobs").count() == 1
    with tab.expect_navigation():
        tab.get_by_role("link", name="jobs").click()
    assert not tab.get_by_role("heading", name="Change it").is_visible()
    hidden = page_of(site, unseen, "jobs")[len(site.url) :]
    none = page_of(site, "none", "jobs")[len(site.url) :]
    assert [site.ask(each, headers=headers)[0] for each in (hidden, none)] == [403, 403]
    assert site.ask(skip, skipped, headers)[0] == 403
    for path in ("reset", "skip", "delete"):  # rights come before what else is wrong
        wrong = page_of(site, seen, "jobs", f"/subscription/{path}")[len(site.url) :]
        assert site.ask(f"{wrong}&partitions=x", {"moves": "x"}, headers)[0] == 403
    allow(cluster, ("TOPIC", seen, "READ"))
    wait_for(lambda: "Change it" in site.ask(one, headers=headers)[2])
    assert site.ask(skip, skipped, headers)[0] == 303
    allow(cluster, ("GROUP", f"pulsar-subscription:{seen}:0:jobs", "READ"), user="bob")
    wait_for(lambda: "Change it" not in site.ask(one, headers=headers)[2])
    assert site.ask(skip, skipped, headers)[0] == 403
