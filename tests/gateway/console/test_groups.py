"""The pages of groups, in a browser, over groups of stock clients."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from core.security.verifier import ScramMechanism, Verifier
from gateway.console.rendering import NOTHING
from gateway.web.introductions import HEADER
from storage.users import put_user
from tests.gateway.console.conftest import WITHIN_S, Site, StartSite

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

RECORDS = 10  # in each partition
TIME = "1970-01-01T00:16:40.008"
"""Of the ninth of them."""
TURNS_AROUND = "\N{RIGHT-TO-LEFT OVERRIDE}"
HOSTILE = f"<script>alert(1)</script>\"'../\N{SMILING FACE WITH OPEN MOUTH}{TURNS_AROUND}"


class Cluster:
    """A broker's Kafka, by stock clients."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.common = {"bootstrap.servers": site.bootstrap}
        self.admin = AdminClient(self.common)

    def topic(self, partitions: int = 2) -> str:
        """A topic with ten records in each partition."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, partitions)])[name].result(WITHIN_S)
        producer = Producer(self.common)
        for number in range(partitions):
            for n in range(RECORDS):
                producer.produce(name, b"x", partition=number, timestamp=1_000_000 + n)
        assert producer.flush(WITHIN_S) == 0
        return name

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        wanted = [ConsumerGroupTopicPartitions(group, places)]
        self.admin.alter_consumer_group_offsets(wanted)[group].result(WITHIN_S)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        wanted = [ConsumerGroupTopicPartitions(group)]
        found = self.admin.list_consumer_group_offsets(wanted)[group].result(WITHIN_S)
        return {(each.topic, each.partition): each.offset for each in found.topic_partitions}

    def groups(self) -> set[str]:
        found = self.admin.list_consumer_groups().result(WITHIN_S)
        return {each.group_id for each in found.valid}

    @contextmanager
    def member(self, group: str, topic: str, **settings: object) -> Iterator[Consumer]:
        """A member that has a partition, and beats while it does not poll."""
        own = {"group.id": group, "client.id": "reader", "enable.auto.commit": False}
        with closing(Consumer({**self.common, **own, **settings})) as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + WITHIN_S
            while not consumer.assignment():
                assert time.monotonic() < deadline
                consumer.poll(0.1)
            yield consumer


@pytest.fixture(scope="module")
def cluster(site: Site) -> Cluster:
    return Cluster(site)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def page_of(site: Site, group: str, path: str = "/group") -> str:
    return f"{site.url}{path}?{urlencode({'id': group})}"


@contextmanager
def joining(cluster: Cluster, group: str, topic: str) -> Iterator[None]:
    """A member that wants to join all the while."""
    ends = threading.Event()

    def join() -> None:
        where = {"bootstrap_servers": cluster.site.bootstrap, "group_id": group}
        with closing(KafkaConsumer(topic, client_id="newcomer", **where)) as consumer:
            while not ends.is_set():
                consumer.poll(timeout_ms=200)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(60)


# --- what is shown ---


def test_the_list_finds_groups_by_name_and_by_lag(cluster: Cluster, tab: Tab, group: str) -> None:
    topic = cluster.topic()
    cluster.commit(f"{group}-a", topic, {0: 9, 1: 9})
    cluster.commit(f"{group}-b", topic, {0: 2})
    tab.goto(f"{cluster.site.url}/groups")
    tab.get_by_label("Search").fill(group.upper())
    tab.get_by_label("Order").select_option("most behind first")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Show").click()
    rows = tab.get_by_role("row").filter(has_text=group)
    assert rows.all_inner_texts() == [
        f"{group}-b\tEmpty\tclassic\t0\t8",
        f"{group}-a\tEmpty\tclassic\t0\t2",
    ]
    with tab.expect_navigation():
        rows.get_by_role("link", name=f"{group}-a").click()
    assert tab.get_by_role("heading", level=1).inner_text().split() == ["Group", f"{group}-a"]
    row = tab.get_by_role("row").filter(has_text=topic).first.inner_text().split("\t")
    assert row[:7] == [f"{topic} 0", "9", "1", "1", "0", "10", "10"]


def test_long_lists_come_in_parts(cluster: Cluster, tab: Tab, group: str) -> None:
    topic = cluster.topic(1)
    for n in range(51):
        cluster.commit(f"{group}-{n:02}", topic, {0: 1})
    tab.goto(f"{cluster.site.url}/groups?search={group}")
    assert tab.get_by_role("link", name=f"{group}-").count() == 50
    with tab.expect_navigation():
        tab.get_by_role("link", name="Next").click()
    assert tab.get_by_role("link", name=f"{group}-").all_inner_texts() == [f"{group}-50"]


def test_a_member_that_does_not_poll_is_named(cluster: Cluster, tab: Tab, group: str) -> None:
    topic = cluster.topic()
    with cluster.member(group, topic) as member, joining(cluster, group, topic):
        tab.goto(page_of(cluster.site, group))
        tab.get_by_text("waits for reader at 127.0.0.1 to join again").wait_for()
        assert tab.get_by_role("row").filter(has_text="waited for").count() == 1
        assert "PreparingRebalance" in tab.locator("#group").inner_text()
        member.poll(5)  # so that both come to an end at once


def test_a_transaction_that_holds_a_group_back_is_named(
    cluster: Cluster, tab: Tab, group: str
) -> None:
    """A group of KIP-848's protocol, and a transaction of somebody else."""
    topic = cluster.topic(1)
    own = {"transactional.id": f"tx-{group}", "transaction.timeout.ms": 600_000}
    producer = Producer({**cluster.common, **own})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce(topic, b"held", partition=0)
    assert producer.flush(WITHIN_S) == 0
    protocol = {"group.protocol": "consumer", "isolation.level": "read_committed"}
    with cluster.member(group, topic, **protocol) as member:
        member.commit(offsets=[TopicPartition(topic, 0, RECORDS)], asynchronous=False)
        tab.goto(page_of(cluster.site, group))
        found = tab.get_by_role("listitem").filter(has_text=f"transaction tx-{group}")
        assert f"They get nothing from offset {RECORDS} on" in found.inner_text()
        way = found.get_by_role("link", name="Look at the transaction")
        assert way.get_attribute("href") == f"/transaction?id=tx-{group}"
        row = tab.get_by_role("row").filter(has_text=topic).last.inner_text().split("\t")
        # Behind the end as Kafka counts, and nothing that it is given.
        assert row[1:7] == [str(RECORDS), "1", "0", "0", str(RECORDS), str(RECORDS + 1)]
        assert row[8:10] == ["reader", f"tx-{group}"]
        assert tab.get_by_text("Epoch", exact=True).is_visible()
    producer.abort_transaction(WITHIN_S)
    tab.get_by_text("It has no members").wait_for()  # the page looks again by itself


def test_offsets_that_a_transaction_will_commit_are_shown(
    cluster: Cluster, tab: Tab, group: str
) -> None:
    topic = cluster.topic(1)
    producer = Producer({**cluster.common, "transactional.id": f"tx-{group}"})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    with cluster.member(group, topic) as member:
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 7)], member.consumer_group_metadata(), WITHIN_S
        )
        tab.goto(page_of(cluster.site, group))
        row = tab.get_by_role("row").filter(has_text=topic).last
        assert f"tx-{group} will commit 7" in " ".join(row.inner_text().split())
    producer.abort_transaction(WITHIN_S)


def test_how_far_it_is_behind_is_drawn(cluster: Cluster, tab: Tab, group: str) -> None:
    topic = cluster.topic()
    cluster.commit(group, topic, {0: 4, 1: 10})
    tab.goto(page_of(cluster.site, group))
    tab.get_by_text(f"{topic}-0: 6, {topic}-1: 0").wait_for()
    assert tab.locator("svg polyline").count() == 2


@pytest.mark.parametrize("name", [HOSTILE, "x" * 8_000], ids=["script", "long"])
def test_hostile_ids_are_text(cluster: Cluster, tab: Tab, name: str) -> None:
    topic = cluster.topic(1)
    cluster.commit(name, topic, {0: 1})
    tab.goto(f"{cluster.site.url}/groups?{urlencode({'search': name[:500]})}")
    shown = name.replace(TURNS_AROUND, "\\u202e")
    with tab.expect_navigation():
        tab.get_by_role("link", name=shown, exact=True).click()
    assert shown in tab.get_by_role("heading", level=1).inner_text()
    with tab.expect_navigation():
        tab.get_by_role("link", name="Delete the group").click()
    assert tab.get_by_role("heading", level=1).inner_text() == f"Delete the group {shown}"
    with tab.expect_navigation():
        tab.get_by_role("button", name="Delete the group").click()
    tab.get_by_role("status").wait_for()
    said = tab.get_by_role("status").inner_text()
    assert said == f"Group {shown} was deleted."[: len(said)]
    assert len(said) > 50
    assert name not in cluster.groups()


def test_a_group_that_is_not_there(site: Site) -> None:
    status, _, text = site.ask("/group?id=none")
    assert (status, "There is no group none" in text) == (404, True)


# --- what is changed ---


@pytest.mark.parametrize(
    ("way", "field", "value", "goes_to", "said"),
    [
        ("to a time", "Which time", TIME, {0: 8, 1: 8}, "6 offsets are skipped"),
        ("by a number of offsets", "By how many", "-3", {0: 1, 1: 3}, "6 offsets are read again."),
    ],
)
def test_offsets_go_where_the_preview_says(
    cluster: Cluster,
    tab: Tab,
    group: str,
    way: str,
    field: str,
    value: str,
    goes_to: dict[int, int],
    said: str,
) -> None:
    topic = cluster.topic()
    cluster.commit(group, topic, {0: 4, 1: 6})
    tab.goto(page_of(cluster.site, group))
    tab.get_by_role("link", name="Reset offsets").click()
    tab.get_by_label("Where to").select_option(way)
    tab.get_by_label(field).fill(value)
    tab.get_by_role("button", name="Show what that does").click()
    tab.get_by_text(said).wait_for()
    assert cluster.committed(group) == {(topic, 0): 4, (topic, 1): 6}  # nothing is done yet
    tab.get_by_role("button", name="Reset the offsets").click()
    tab.get_by_text("The offsets of 2 partitions were reset.").wait_for()
    assert cluster.committed(group) == {(topic, n): offset for n, offset in goes_to.items()}


def test_one_partition_of_a_topic_that_it_has_never_read(
    cluster: Cluster, tab: Tab, group: str
) -> None:
    read, other = cluster.topic(1), cluster.topic(3)
    cluster.commit(group, read, {0: 4})
    tab.goto(page_of(cluster.site, group, "/group/reset"))
    tab.get_by_label("Topic").fill(other)
    tab.get_by_label("Partitions").fill("1-2")
    tab.get_by_label("Where to").select_option("to an offset")
    tab.get_by_label("Which offset").fill("99")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Show what that does").click()
    assert tab.get_by_text("99 is after the end").count() == 2
    tab.get_by_role("button", name="Reset the offsets").click()
    tab.get_by_text("The offsets of 2 partitions were reset.").wait_for()
    assert cluster.committed(group) == {(read, 0): 4, (other, 1): 10, (other, 2): 10}


def test_what_cannot_be_done_is_said_beside_the_form(
    cluster: Cluster, tab: Tab, group: str
) -> None:
    topic = cluster.topic(1)
    cluster.commit(group, topic, {0: 4})
    for query, said in {
        "way=to-offset&offset=x": "'x' is no whole number",
        "way=to-offset&offset=": "Which offset?",
        "way=shift-by&shift=+": "By how many offsets?",
        "way=to-datetime&time=soon": "'soon' is no time",
        "way=to-datetime": "Which time?",
        f"way=to-latest&topic={topic}&partitions=7": f"There is no partition 7 of {topic}",
        "way=to-latest&topic=none": "There is no topic none",
        "way=to-latest&partitions=0": "say which",
    }.items():
        tab.goto(f"{page_of(cluster.site, group, '/group/reset')}&{query}")
        assert said in tab.get_by_role("alert").inner_text()
        way = query.partition("&")[0].removeprefix("way=")
        assert tab.get_by_label("Where to").input_value() == way
        assert not tab.get_by_role("button", name="Reset the offsets").is_visible()


def test_only_what_the_way_needs_is_asked_and_a_time_is_the_viewers(
    cluster: Cluster, chromium: Browser, group: str
) -> None:
    topic = cluster.topic(1)
    cluster.commit(group, topic, {0: 4})
    for has_scripts, asked, zone, typed in (
        (True, ["Which time"], "Asia/Tokyo", "1970-01-01T09:16:40.008"),
        (False, ["Which offset", "Which time", "By how many offsets"], "UTC", TIME),
    ):
        with closing(
            chromium.new_context(timezone_id="Asia/Tokyo", java_script_enabled=has_scripts)
        ) as context:
            tab = context.new_page()
            tab.goto(page_of(cluster.site, group, "/group/reset"))
            tab.get_by_label("Where to").select_option("to a time")
            labels = tab.locator("label:has(input)").filter(visible=True).all_inner_texts()[2:]
            assert [each.partition(",")[0].strip() for each in labels] == asked
            time_ = tab.get_by_label(f"Which time, in {zone}")
            time_.fill(typed)
            tab.get_by_role("button", name="Show what that does").click()
            tab.get_by_text("4 offsets are skipped").wait_for()
            assert time_.input_value() == typed
            sent = dict(parse_qsl(urlsplit(tab.url).query))
            assert sent["time"] == (f"{TIME}Z" if has_scripts else TIME)
            assert "offset" not in sent


def test_a_group_with_members_is_left_alone(cluster: Cluster, tab: Tab, group: str) -> None:
    topic = cluster.topic(1)
    with cluster.member(group, topic) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        for path, why in (
            ("/group/reset", "reader at 127.0.0.1 would not notice, and commit their own offsets"),
            ("/group/delete", "deleted without members only. It has reader at 127.0.0.1. Stop"),
        ):
            tab.goto(page_of(cluster.site, group, path))
            assert why in tab.get_by_role("alert").inner_text()
        ask = {"moves": json.dumps([[topic, 0, 3, 0]])}
        for path, form in (("reset", ask), ("delete", {})):
            status, _, text = cluster.site.ask(f"/group/{path}?id={group}", form)
            assert (status, "The group has members now" in text) == (409, True)
        status, _, text = cluster.site.ask(f"/group/delete-offsets?id={group}&topic={topic}", {})
        assert (status, "Members of the group read this topic" in text) == (409, True)
        assert cluster.committed(group) == {(topic, 0): 3}


def test_what_has_gone_on_since_the_preview_is_not_undone(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(1)
    cluster.commit(group, topic, {0: 5})
    form = {"moves": json.dumps([[topic, 0, 4, 0]])}
    status, _, text = cluster.site.ask(f"/group/reset?id={group}", form)
    assert (status, f"it is at offset 5 of {topic} 0, not 4" in text) == (409, True)
    for bad in ("", "[1]", '[["t",0,0]]', '[["t",-1,0,0]]', '[["t",0,0,true]]', "[" * 9_000):
        assert cluster.site.ask(f"/group/reset?id={group}", {"moves": bad})[0] == 400
    assert cluster.committed(group) == {(topic, 0): 5}


def test_offsets_of_one_topic_are_deleted(cluster: Cluster, tab: Tab, group: str) -> None:
    kept, lost = sorted([cluster.topic(1), cluster.topic(2)])
    cluster.commit(group, kept, {0: 1})
    cluster.commit(group, lost, {0: 1})
    tab.goto(page_of(cluster.site, group))
    with tab.expect_navigation():
        tab.get_by_role("link", name="Delete offsets of a topic").click()
    heading = tab.get_by_role("heading", level=1)
    assert heading.inner_text() == f"Delete a topic's offsets of group {group}"
    tab.get_by_label("Topic").select_option(lost)
    tab.get_by_role("button", name="Show what is lost").click()
    tab.get_by_text(f"forgets how far it has read {lost}, in 1 partition.").wait_for()
    tab.get_by_role("button", name="Delete these offsets").click()
    tab.get_by_text(f"The group's offsets of {lost} were deleted.").wait_for()
    assert cluster.committed(group) == {(kept, 0): 1}


# --- where another broker has the group ---


def elsewhere(site: Site, cluster: Cluster, topic: str) -> str:
    """A group that another broker coordinates."""
    names = [f"far-{n}" for n in range(30)]
    for name in names:
        cluster.commit(name, topic, {0: 4})
    assert site.gateway.database_url is not None
    with psycopg.connect(site.gateway.database_url) as connection:
        row = connection.execute(
            "SELECT group_id FROM penstock.v_group WHERE group_id = ANY (%s) AND coordinator <> %s",
            [names, site.bootstrap],
        ).fetchone()
    assert row is not None
    return str(row[0])


def test_another_broker_does_what_only_it_can(start_site: StartSite, tab: Tab) -> None:
    first, second = start_site("--console-write"), start_site("--console-write")
    cluster = Cluster(second)
    topic = cluster.topic(1)
    group = elsewhere(first, cluster, topic)
    tab.goto(f"{page_of(first, group, '/group/reset')}&way=to-earliest")
    tab.get_by_role("button", name="Reset the offsets").click()
    tab.get_by_text("The offsets of 1 partition were reset.").wait_for()
    assert cluster.committed(group) == {(topic, 0): 0}
    moves = {"moves": json.dumps([[topic, 0, 9, 0]])}
    status, _, text = first.ask(f"/group/reset?id={group}", moves)
    assert (status, "it is at offset 0" in text) == (409, True)  # as that one says it
    tab.goto(page_of(first, group, "/group/delete"))
    tab.get_by_role("button", name="Delete the group").click()
    tab.get_by_text(f"Group {group} was deleted.").wait_for()
    assert group not in cluster.groups()


def test_a_broker_that_may_not_change_anything_says_so(start_site: StartSite) -> None:
    first, second = start_site("--console-write"), start_site()
    cluster = Cluster(second)
    group = elsewhere(first, cluster, cluster.topic(1))
    status, _, text = first.ask(f"/group/delete?id={group}", {})
    assert (status, "start the broker with --console-write" in text) == (403, True)
    assert group in cluster.groups()


def test_nobody_else_can_say_that_he_is_a_broker(cluster: Cluster, group: str) -> None:
    cluster.commit(group, cluster.topic(1), {0: 4})
    text = base64.urlsafe_b64encode(json.dumps(["x", "h", None, time.time(), "POST", ""]).encode())
    for said in ("", "x.y", f"{text.decode()}.00"):
        status, _, told = cluster.site.ask(f"/group/delete?id={group}", {}, {HEADER: said})
        assert (status, json.loads(told)) == (403, {"reason": "No broker has said so"})
    assert group in cluster.groups()


# --- who may do what ---


def test_a_page_that_only_shows_offers_nothing(start_site: StartSite, tab: Tab) -> None:
    cluster = Cluster(start_site())
    topic = cluster.topic(1)
    cluster.commit("idle", topic, {0: 4})
    tab.goto(page_of(cluster.site, "idle"))
    assert tab.get_by_role("heading", name="Partitions").is_visible()
    assert not tab.get_by_role("heading", name="Change it").is_visible()
    moves = {"moves": json.dumps([[topic, 0, 4, 0]])}
    for path, form in (("reset", moves), ("delete", {}), (f"delete-offsets?topic={topic}", {})):
        target = f"/group/{path}{'&' if '?' in path else '?'}id=idle"
        assert cluster.site.ask(target, form)[0] == 403
    assert cluster.committed("idle") == {(topic, 0): 4}


def test_rights_are_those_of_the_same_by_kafka(start_site: StartSite, tab: Tab) -> None:
    """alice may describe her group, and read one of its two topics; all else is closed."""
    site = guarded(start_site)
    cluster = Cluster(site)
    seen, unseen = cluster.topic(1), cluster.topic(1)
    for name in ("mine", "theirs"):
        cluster.commit(name, seen, {0: 4})
        cluster.commit(name, unseen, {0: 4})
    allow(cluster, ("GROUP", "mine", "DESCRIBE"), ("TOPIC", seen, "READ"))
    login, deadline = as_user("alice"), time.monotonic() + WITHIN_S
    while site.ask("/group?id=mine", headers=login)[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tab.set_extra_http_headers(login)
    tab.goto(f"{site.url}/groups")
    assert tab.get_by_role("cell").filter(has=tab.get_by_role("link")).all_inner_texts() == ["mine"]
    tab.goto(page_of(site, "mine"))
    text = tab.locator("main").inner_text()
    assert (seen in text, unseen in text, "Change it" in text) == (True, False, False)
    told = [site.ask(f"/group?id={name}", headers=login)[0] for name in ("theirs", "none")]
    assert told == [403, 403]
    moves = {"moves": json.dumps([[seen, 0, 4, 0]])}
    for path in ("reset?", "delete?", f"delete-offsets?topic={seen}&"):
        assert site.ask(f"/group/{path}id=mine", moves, login)[0] == 403
    assert cluster.committed("mine")[seen, 0] == 4
    allow(cluster, ("GROUP", "mine", "READ"))
    while "Reset offsets" not in site.ask("/group?id=mine", headers=login)[2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tab.goto(f"{page_of(site, 'mine', '/group/reset')}&way=to-earliest")
    tab.get_by_role("button", name="Reset the offsets").click()
    tab.get_by_text("The offsets of 1 partition were reset.").wait_for()
    assert cluster.committed("mine") == {(seen, 0): 0, (unseen, 0): 4}
    # Who may only list a group sees nothing of how far it is; and of no topic that is not shown.
    allow(cluster, ("BROKER", "kafka-cluster", "DESCRIBE"))
    while "theirs" not in site.ask("/groups", headers=login)[2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tab.goto(f"{site.url}/groups?sort=lag")
    assert tab.get_by_role("row").all_inner_texts()[1:] == [
        f"mine\tEmpty\tclassic\t0\t{RECORDS}",
        f"theirs\tEmpty\tclassic\t{NOTHING}\t{NOTHING}",
    ]


def guarded(start_site: StartSite) -> Site:
    """A broker where alice may do what ACLs let her, and root and who comes by Kafka anything."""
    site = start_site(
        "--override=authenticationEnabled=true",
        "--override=authenticationProviders=basic",
        "--override=connection.failed.authentication.delay.ms=50",
        "--override=authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "--override=super.users=User:ANONYMOUS;User:root",
    )
    url = site.gateway.database_url
    assert url is not None
    for user in ("alice", "root"):
        put_user(url, user, [Verifier.of_password(ScramMechanism.SHA_256, b"salt", 4096, "pw")])
    return site


def as_user(name: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:pw'.encode()).decode()}"}


def allow(cluster: Cluster, *bindings: tuple[str, str, str], user: str = "alice") -> None:
    """Gives a user these rights: on what, of which name, to do what."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    made = cluster.admin.create_acls(
        [
            AclBinding(
                ResourceType[kind],
                name,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in bindings
        ]
    )
    for each in made.values():
        each.result(WITHIN_S)
