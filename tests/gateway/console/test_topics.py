"""Topics: found, looked into, made, changed, emptied and deleted in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pulsar
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pulsar.schema import AvroSchema, Integer, Record

from gateway.console.rendering import NOTHING
from tests.gateway.console.conftest import (
    WITHIN_MS,
    WITHIN_S,
    Site,
    StartSite,
    bearer,
    grant,
    log_in,
)
from tests.gateway.console.transacting import make_topic, open_transaction

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

expect = pytest.importorskip("playwright.sync_api").expect

HOSTILE = "<script>alert(1)</script>\"'\u202e../␀\N{GRINNING FACE}"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def admin_of(site: Site) -> AdminClient:
    return AdminClient({"bootstrap.servers": site.bootstrap})


def partitions_of(site: Site, name: str) -> int:
    admin = admin_of(site)
    return len(admin.list_topics(name, WITHIN_S).topics[name].partitions)


def exists(site: Site, name: str) -> bool:
    admin = admin_of(site)
    return name in admin.list_topics(timeout=WITHIN_S).topics


def setting_of(site: Site, topic: str, name: str) -> tuple[str, int]:
    """Its value, and the number of its source."""
    admin, resource = admin_of(site), ConfigResource(ResourceType.TOPIC, topic)
    (described,) = admin.describe_configs([resource]).values()
    entry = described.result(WITHIN_S)[name]
    return entry.value, entry.source


def produce(site: Site, topic: str, records: int, size: int = 10, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for _ in range(records):
        producer.produce(topic, b"x" * size, partition=partition)
    assert producer.flush(WITHIN_S) == 0


def commit(site: Site, group: str, topic: str, offset: int) -> None:
    """A group that has read so far in partition 0."""
    own = {"group.id": group, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": site.bootstrap, **own})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.fixture
def pulsar_client(site: Site) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{site.pulsar_port}",
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield client
    client.close()


def names_in(tab: Tab) -> list[str]:
    """Of the list, in its order."""
    return tab.get_by_role("rowheader").get_by_role("link").all_inner_texts()


# --- the list ---


def test_topics_are_found_and_put_in_order(site: Site, tab: Tab) -> None:
    for name, partitions, records, size in (
        ("shelf-a", 3, 1, 50_000),
        ("Shelf-b", 1, 20, 10),
        ("shelf-c", 2, 0, 0),
        ("other-shelves", 1, 5, 1000),
    ):
        make_topic(site, name, partitions)
        produce(site, name, records, size)
    tab.goto(f"{site.url}/topics")
    tab.get_by_label("Part of a name").fill("SHELF-")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Search").click()
    assert names_in(tab) == ["Shelf-b", "shelf-a", "shelf-c"]
    row = tab.get_by_role("row", name="Shelf-b").get_by_role("cell").all_inner_texts()
    assert row[:2] == ["1", "20"]
    for title, order in (
        ("Partitions", ["shelf-a", "shelf-c", "Shelf-b"]),
        ("Records, at most", ["Shelf-b", "shelf-a", "shelf-c"]),
        ("Size", ["shelf-a", "Shelf-b", "shelf-c"]),
        ("Newest record", ["Shelf-b", "shelf-a", "shelf-c"]),
    ):
        tab.get_by_role("link", name=title).click()
        tab.locator("th[aria-sort=descending]", has_text=title).wait_for()
        assert names_in(tab) == order
        tab.get_by_role("link", name=title).click()
        tab.locator("th[aria-sort=ascending]", has_text=title).wait_for()
        assert names_in(tab) == order[::-1]
    tab.get_by_label("Part of a name").fill(HOSTILE)
    tab.get_by_role("button", name="Search").click()
    tab.get_by_text(f"No topic's name has “{SHOWN}” in it.").wait_for()


def test_internal_topics_are_marked_and_pulsars_names_shown(site: Site, tab: Tab) -> None:
    make_topic(site, "__inner")
    make_topic(site, "pulsar.acme.shop.orders-2Deu")
    tab.goto(f"{site.url}/topics?search=__inner")
    assert "internal" in tab.get_by_role("row", name="__inner").inner_text()
    tab.goto(f"{site.url}/topics?search=acme/shop/orders-eu")
    assert names_in(tab) == ["pulsar.acme.shop.orders-2Deu"]
    with tab.expect_navigation():
        tab.get_by_role("rowheader").get_by_role("link").click()
    heading = tab.get_by_role("heading", level=1).inner_text()
    assert heading.endswith("to Pulsar's clients persistent://acme/shop/orders-eu")


def test_long_lists_come_in_parts(site: Site, tab: Tab) -> None:
    admin = admin_of(site)
    wanted = [NewTopic(f"paged-{number:02}", 1) for number in range(50)]
    for made in admin.create_topics([*wanted, NewTopic("paged-50", 120)]).values():
        made.result(WITHIN_S)
    tab.goto(f"{site.url}/topics?search=paged-&sort=-name")
    assert names_in(tab)[0] == "paged-50"
    tab.get_by_role("link", name="Next →").click()
    tab.get_by_text("51\N{EN DASH}51 of 51").wait_for()
    assert names_in(tab) == ["paged-00"]
    tab.goto(f"{site.url}/topic?name=paged-50&page=9")
    assert tab.get_by_text("101\N{EN DASH}120 of 120").is_visible()
    assert tab.get_by_role("rowheader").all_inner_texts() == [str(n) for n in range(100, 120)]


# --- one topic ---


def test_it_shows_what_there_is_who_reads_it_and_what_holds_it_back(
    site: Site, tab: Tab, pulsar_client: pulsar.Client
) -> None:
    make_topic(site, "looked-at", 2, **{"retention.ms": "7200000"})
    produce(site, "looked-at", 5, 1000)
    commit(site, HOSTILE, "looked-at", 2)
    produce(site, "looked-at", 8, partition=1)
    earliest = pulsar.InitialPosition.Earliest
    consumer = pulsar_client.subscribe("looked-at", "audit", initial_position=earliest)
    producer = open_transaction(site, HOSTILE, "looked-at", records=2)
    tab.goto(f"{site.url}/topic?name=looked-at")
    main = tab.get_by_role("main")
    wait = main.get_by_role("listitem").inner_text()
    assert wait.startswith(f"Readers of committed records wait in partition 0: transaction {SHOWN}")
    assert wait.endswith("with 2 records behind its first.")
    tiles = main.get_by_role("definition").all_inner_texts()
    assert tiles[:2] == ["2", "15"]
    assert tiles[3] == "2 h"
    first = main.get_by_role("row").filter(has=tab.get_by_role("rowheader", name="0", exact=True))
    cells = first.get_by_role("cell").all_inner_texts()
    assert cells[:3] == ["0", "5 held back", "7"]
    broker = site.gateway
    assert cells[-1] == f"broker 1 127.0.0.1:{broker.port}"
    group = main.get_by_role("row", name=SHOWN)
    assert group.get_by_role("cell").all_inner_texts()[:3] == ["group", "1", "5"]
    subscription = main.get_by_role("row", name="audit")
    assert subscription.get_by_role("cell").all_inner_texts()[:3] == ["subscription", "2", "13"]
    to = subscription.get_by_role("link").get_attribute("href")
    assert to == "/subscription?topic=looked-at&partition=1&name=audit"
    producer.commit_transaction(WITHIN_S)
    produce(site, "looked-at", 90)
    first.get_by_role("cell", name="98", exact=True).first.wait_for()  # by itself
    assert main.get_by_text("held back").count() == 0
    main.get_by_text("Produced: ").filter(has_text="records/s").wait_for()
    consumer.close()


def record_with(*members: str) -> type[Record]:
    """All are called alike, so that they may follow each other."""
    return type(Record)(
        "Item", (Record,), {each: Integer(required_default=True) for each in members}
    )


def test_its_schemas_are_shown_version_by_version(
    site: Site, tab: Tab, pulsar_client: pulsar.Client
) -> None:
    make_topic(site, "with-schema")
    tab.goto(f"{site.url}/topic/schemas?name=with-schema")
    assert tab.get_by_text("The topic has no schema.").is_visible()
    for members in (("number",), ("number", "weight")):
        schema = AvroSchema(record_with(*members))
        pulsar_client.create_producer("with-schema", schema=schema).close()
    tab.reload()
    assert tab.get_by_role("heading", name="Version 1").is_visible()
    assert '    "name": "weight",' in tab.get_by_label("Definition").inner_text()
    tab.get_by_role("link", name="0", exact=True).click()
    tab.get_by_role("heading", name="Version 0").wait_for()
    assert "weight" not in tab.get_by_label("Definition").inner_text()
    assert site.ask("/topic/schemas?name=with-schema&version=7")[0] == 404


# --- settings ---


def test_a_setting_is_changed_in_place_and_reset(site: Site, tab: Tab) -> None:
    make_topic(site, "tuned")
    tab.goto(f"{site.url}/topic?name=tuned")
    with tab.expect_navigation():
        tab.get_by_role("link", name="Settings").click()
    row = tab.get_by_role("row", name=re.compile(r"^retention\.ms"))
    assert row.get_by_role("cell").all_inner_texts() == ["604800000 Change", "default"]
    tab.get_by_role("link", name="Change retention.ms").click()
    field = tab.get_by_role("textbox", name="retention.ms")
    expect(field).to_be_focused(timeout=WITHIN_MS)
    assert field.input_value() == "604800000"
    field.fill("soon")
    field.press("Enter")
    refused = tab.get_by_role("alert").inner_text()
    assert refused == (
        "Invalid value soon for configuration retention.ms: Not a number of type LONG"
    )
    assert field.input_value() == "soon"
    field.fill("60000")
    tab.get_by_role("button", name="Save").click()
    assert tab.get_by_role("status").inner_text() == "retention.ms is 60000 now"
    assert row.get_by_role("cell").all_inner_texts() == ["60000 Change", "this topic"]
    assert setting_of(site, "tuned", "retention.ms") == ("60000", 1)
    tab.get_by_role("link", name="Change retention.ms").click()
    with tab.expect_navigation():
        tab.get_by_role("button", name="Reset").click()
    assert row.get_by_role("cell").all_inner_texts() == ["604800000 Change", "default"]
    assert setting_of(site, "tuned", "retention.ms")[0] == "604800000"


def test_a_flag_is_chosen_and_text_stays_text(site: Site, tab: Tab) -> None:
    make_topic(site, "flagged")
    tab.goto(f"{site.url}/topic/settings?name=flagged&edit=preallocate")
    tab.get_by_role("combobox", name="preallocate").select_option("true")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Save").click()
    assert setting_of(site, "flagged", "preallocate") == ("true", 1)
    form = {"setting": HOSTILE, "value": HOSTILE}
    status, _, text = site.ask("/topic/settings?name=flagged", form)
    assert status == 400
    assert "Unknown topic config name: &lt;script&gt;" in text
    assert "<script>alert" not in text


# --- made ---


def test_a_topic_is_made(site: Site, tab: Tab) -> None:
    tab.goto(f"{site.url}/topics")
    tab.get_by_role("link", name="Create a topic").click()
    tab.get_by_label("Name").fill(HOSTILE)
    tab.get_by_label("Partitions").fill("3")
    tab.get_by_label("Settings, one a line").fill("retention.ms=1000\ncleanup.policy=compact")
    tab.get_by_role("button", name="Create").click()
    assert tab.get_by_role("alert").inner_text().startswith("Topic name is invalid")
    assert tab.get_by_label("Name").input_value() == HOSTILE
    tab.get_by_label("Name").fill("made-here")
    tab.get_by_role("button", name="Create").click()
    said = tab.get_by_role("status").inner_text()
    assert said == "Topic made-here is there, with 3 partitions"
    assert partitions_of(site, "made-here") == 3
    assert setting_of(site, "made-here", "retention.ms") == ("1000", 1)
    assert setting_of(site, "made-here", "cleanup.policy") == ("compact", 1)
    for filled, status, words in (
        ({"name": "made-here"}, 409, "already exists"),
        ({"name": "a_b", "settings": "retention.ms=soon"}, 400, "Not a number of type LONG"),
        ({"name": "m2", "partitions": "many"}, 400, "is no whole number"),
        ({"name": "m2", "partitions": "0"}, 400, "non-positive"),
        ({"name": "m2", "settings": "retention.ms"}, 400, "has no &#39;=&#39;"),
        ({"name": "m2", "settings": "no.such=1"}, 400, "no.such"),
    ):
        found, _, text = site.ask("/topics/create", filled)
        assert (found, words in text) == (status, True), (filled, text)
    assert not exists(site, "m2")


def test_partitions_are_added_and_it_is_said_that_keys_move(site: Site, tab: Tab) -> None:
    make_topic(site, "grown", 2)
    tab.goto(f"{site.url}/topic?name=grown")
    with tab.expect_navigation():
        tab.get_by_role("link", name="Add partitions").click()
    assert tab.get_by_text("Keys move:").is_visible()
    tab.get_by_label("Partitions in all").fill("1")
    tab.get_by_role("button", name="Add partitions").click()
    assert "would not be an increase" in tab.get_by_role("alert").inner_text()
    tab.get_by_label("Partitions in all").fill("5")
    tab.get_by_role("button", name="Add partitions").click()
    assert tab.get_by_role("status").inner_text() == "There are 5 partitions now"
    assert partitions_of(site, "grown") == 5


# --- emptied, deleted ---


def test_a_topic_is_emptied(site: Site, tab: Tab) -> None:
    make_topic(site, "emptied", 3)
    produce(site, "emptied", 4)
    produce(site, "emptied", 2, partition=2)
    commit(site, "skips", "emptied", 1)
    tab.goto(f"{site.url}/topic?name=emptied")
    with tab.expect_navigation():
        tab.get_by_role("link", name="Empty it").click()
    losses = " ".join(tab.get_by_role("main").get_by_role("listitem").all_inner_texts())
    for words in ("up to 6 records", "Groups skip", "skips"):
        assert words in losses
    tab.get_by_label("To confirm, write its name").fill("emptie")
    tab.get_by_role("button", name="Empty the topic").click()
    assert tab.get_by_role("alert").inner_text() == "That is not the topic's name"
    tab.get_by_label("To confirm, write its name").fill("emptied")
    tab.get_by_role("button", name="Empty the topic").click()
    assert tab.get_by_role("status").inner_text() == "2 partitions were emptied"
    main = tab.get_by_role("main")
    assert (
        "of deleted records: freed when retention looks next"
        in main.get_by_role("definition").nth(2).inner_text()
    )
    facts = main.locator(".facts").get_by_role("definition").all_inner_texts()
    assert facts[0] == NOTHING  # the newest record
    rows = main.get_by_role("row").filter(has=tab.get_by_role("rowheader"))
    assert [each.split("\t")[5] for each in rows.all_inner_texts()[-3:]] == [NOTHING] * 3
    tab.goto(f"{site.url}/topics?search=emptied")
    cells = tab.get_by_role("row", name="emptied").get_by_role("cell").all_inner_texts()
    assert (cells[1], cells[2].endswith("freed later"), cells[3]) == ("0", True, NOTHING)
    produce(site, "emptied", 1)
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": "emptied"})
    marks = [
        consumer.get_watermark_offsets(TopicPartition("emptied", each), WITHIN_S)
        for each in range(3)
    ]
    assert marks == [(4, 5), (0, 0), (2, 2)]
    consumer.close()


def test_a_topic_that_is_only_compacted_is_not_emptied(site: Site) -> None:
    make_topic(site, "compacted", **{"cleanup.policy": "compact"})
    for form in (None, {"confirmed": "compacted"}):
        status, _, text = site.ask("/topic/empty?name=compacted", form)
        assert status == 409
        assert "only compacted may not be deleted" in text


def test_a_topic_is_deleted_with_what_is_named(
    site: Site, tab: Tab, pulsar_client: pulsar.Client
) -> None:
    make_topic(site, "doomed", 2)
    produce(site, "doomed", 7)
    for number in range(22):
        commit(site, f"loser-{number:02}", "doomed", 1)
    pulsar_client.subscribe("doomed-partition-0", HOSTILE).close()
    tab.goto(f"{site.url}/topic?name=doomed")
    with tab.expect_navigation():
        tab.get_by_role("link", name="Delete it").click()
    losses = tab.get_by_role("main").get_by_role("listitem").all_inner_texts()
    assert losses[0].startswith("2 partitions, with up to 7 records, ")
    for words in ("loser-00", "loser-19", "and 2 more", SHOWN):
        assert words in losses
    assert "loser-20" not in losses
    tab.get_by_label("To confirm, write its name").fill("Doomed")
    tab.get_by_role("button", name="Delete the topic").click()
    assert tab.get_by_role("alert").inner_text() == "That is not the topic's name"
    assert exists(site, "doomed")
    tab.get_by_label("To confirm, write its name").fill("doomed")
    tab.get_by_role("button", name="Delete the topic").click()
    assert tab.get_by_role("status").inner_text() == "Topic doomed is deleted"
    assert not exists(site, "doomed")
    assert site.ask("/topic?name=doomed")[0] == 404


@pytest.mark.parametrize("change", ["Delete", "Empty"])
def test_what_was_made_again_meanwhile_is_not_lost(site: Site, tab: Tab, change: str) -> None:
    name = f"again-{change.lower()}"
    make_topic(site, name)
    tab.goto(f"{site.url}/topic/{change.lower()}?name={name}")
    admin = admin_of(site)
    for deleted in admin.delete_topics([name]).values():
        deleted.result(WITHIN_S)
    make_topic(site, name)
    produce(site, name, 3)
    tab.get_by_label("To confirm, write its name").fill(name)
    tab.get_by_role("button", name=f"{change} the topic").click()
    alert = tab.get_by_role("alert").inner_text()
    assert alert == "The topic was deleted and made again: look at what is lost now"
    assert tab.get_by_text("up to 3 records").is_visible()


# --- who may do what ---


def test_without_leave_to_change_anything_nothing_is_offered(
    start_site: StartSite, tab: Tab
) -> None:
    site = start_site()
    make_topic(site, "kept")
    tab.goto(f"{site.url}/topics")
    assert tab.get_by_role("link", name="Create a topic").count() == 0
    tab.get_by_role("link", name="kept").click()
    assert tab.get_by_role("heading", name="Change it").count() == 0
    tab.get_by_role("link", name="Settings").click()
    assert tab.get_by_role("link", name="Change retention.ms").count() == 0
    for path in ("/topic/delete", "/topic/empty", "/topic/partitions", "/topic/settings"):
        status, _, text = site.ask(f"{path}?name=kept&edit=retention.ms")
        given, _, answer = site.ask(f"{path}?name=kept", {"confirmed": "kept", "count": "2"})
        assert (status, given) == (403, 403)
        assert "--console-write" in text
        assert "--console-write" in answer
    assert site.ask("/topics/create")[0] == 403
    assert site.ask("/topics/create", {"name": "more"})[0] == 403
    assert partitions_of(site, "kept") == 1


def test_who_may_not_see_a_topic_is_told_the_same_as_where_there_is_none(guarded: Site) -> None:
    make_topic(guarded, "secret")
    for page in ("", "/settings", "/schemas", "/delete", "/empty", "/partitions"):
        answers = [
            guarded.ask(f"/topic{page}?name={name}", headers=bearer("nobody"))
            for name in ("secret", "secreT")
        ]
        assert [status for status, _, _ in answers] == [404, 404]
        assert answers[0][2] == answers[1][2].replace("secreT", "secret")
    assert ">secret<" not in guarded.ask("/topics", headers=bearer("nobody"))[2]


def test_what_one_may_not_do_is_not_offered_and_refused(guarded: Site, tab: Tab) -> None:
    make_topic(guarded, "partly")
    commit(guarded, "unseen", "partly", 0)
    grant(guarded, "dora", AclOperation.DESCRIBE, ResourceType.TOPIC, "partly")
    log_in(tab, guarded, "dora")
    tab.goto(f"{guarded.url}/topics")
    assert names_in(tab) == ["partly"]
    assert tab.get_by_role("link", name="Create a topic").count() == 0
    with tab.expect_navigation():
        tab.get_by_role("link", name="partly").click()
    main = tab.get_by_role("main")
    assert "unseen" not in main.inner_text()
    assert main.get_by_role("heading", name="Change it").count() == 0
    pages = tab.get_by_role("navigation", name="Pages of the topic")
    assert pages.get_by_role("link").all_inner_texts() == ["Topic", "Schemas"]
    steps: list[tuple[AclOperation, str, dict[str, str] | None, str]] = [
        (AclOperation.DESCRIBE_CONFIGS, "settings", None, "DESCRIBE_CONFIGS"),
        (AclOperation.ALTER_CONFIGS, "settings", {"setting": "preallocate"}, "ALTER_CONFIGS"),
        (AclOperation.ALTER, "partitions", {"count": "4"}, "ALTER"),
        (AclOperation.DELETE, "empty", {}, "DELETE"),
        (AclOperation.DELETE, "delete", {}, "DELETE"),
    ]
    for _, path, form, operation in steps:
        status, _, text = guarded.ask(f"/topic/{path}?name=partly", form, bearer("dora"))
        assert status == 403
        assert f"User:dora may not {operation} TOPIC partly" in text
    for operation in {step[0] for step in steps}:
        grant(guarded, "dora", operation, ResourceType.TOPIC, "partly")
    grant(guarded, "dora", AclOperation.READ, ResourceType.TOPIC, "partly")
    grant(guarded, "dora", AclOperation.DESCRIBE, ResourceType.GROUP, "unseen")
    tab.reload()
    assert pages.get_by_role("link").all_inner_texts() == [
        *("Topic", "Messages", "Settings", "Schemas")
    ]
    assert main.get_by_role("row", name="unseen").is_visible()
    for title in ("Add partitions", "Empty it", "Delete it"):
        assert main.get_by_role("link", name=title).is_visible()
    form = {"name": "dora-1"}
    assert guarded.ask("/topics/create", form, bearer("dora"))[0] == 403
    grant(guarded, "dora", AclOperation.CREATE, ResourceType.TOPIC, "dora-1")
    assert guarded.ask("/topics/create", form, bearer("dora"))[0] == 303
    assert guarded.ask("/topics/create", {"name": "dora-2"}, bearer("dora"))[0] == 403
    assert exists(guarded, "dora-1")


# --- hostile names ---


@pytest.mark.parametrize(
    "name",
    [HOSTILE, "", "../etc", "x" * 30_000, "\x00", "\ud800"],
    ids=["hostile", "empty", "upwards", "long", "nul", "surrogate"],
)
def test_any_name_is_answered_as_one_that_is_not_there(site: Site, name: str) -> None:
    quoted = quote(name, errors="surrogatepass")
    for page in ("", "/settings", "/schemas", "/delete"):
        status, _, text = site.ask(f"/topic{page}?name={quoted}")
        assert status == 404
        assert "There is no topic " in text
        assert "<script>alert" not in text
        assert len(text) < 10_000
