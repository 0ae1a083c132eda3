"""Transactions and producers, in a browser; what is done there, as stock clients see it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from tests.gateway.console.conftest import WITHIN_S, Site, StartSite, bearer, grant, log_in
from tests.gateway.console.transacting import (
    make_topic,
    open_pulsar_transaction,
    open_transaction,
    stand_at,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

HOSTILE = "<script>alert(1)</script>\"'\u202e../␀\N{GRINNING FACE}"


def test_an_open_transaction_shows_whom_it_holds_back_and_why(site: Site, tab: Tab) -> None:
    make_topic(site, "held")
    plain = Producer({"bootstrap.servers": site.bootstrap})
    plain.produce("held", b"before", partition=0)
    assert plain.flush(WITHIN_S) == 0
    producer = open_transaction(site, "payments-7", "held")
    plain.produce("held", b"behind", partition=0)
    assert plain.flush(WITHIN_S) == 0
    consumer = stand_at(site, "billing", "held", 1)
    tab.goto(f"{site.url}/transactions")
    row = tab.get_by_role("row", name="payments-7")
    for words in ("Kafka", "Ongoing", "payer", "127.0.0.1", "held-0", "4 records in 1 partition"):
        assert words in row.inner_text()
    with tab.expect_navigation():
        tab.get_by_role("link", name="payments-7").click()
    assert tab.get_by_role("heading", name="payments-7").is_visible()
    facts = tab.locator(".facts").inner_text()
    assert "Host\n127.0.0.1\nOwner\nno login" in facts
    told = tab.get_by_role("alert").filter(has_text="holds back").inner_text()
    assert "4 records in 1 partition wait for its end. 1 cursor stands exactly there." in told
    assert "held-0 at 1" in tab.get_by_role("row", name="billing").inner_text()
    written = tab.get_by_role("row", name=re.compile("held-0.*3.*4 records"))
    href = written.get_by_role("link", name="1", exact=True).get_attribute("href")
    assert href == "/topic/messages?name=held&partition=0&offset=1"
    producer.commit_transaction(WITHIN_S)
    tab.get_by_text("CompleteCommit").wait_for()  # it is live
    assert tab.get_by_role("link", name="Abort…").count() == 0
    consumer.close()


def test_an_abort_names_what_is_lost_and_fences_the_producer(site: Site, tab: Tab) -> None:
    make_topic(site, "aborted")
    producer = open_transaction(site, HOSTILE, "aborted", client_id='"><img src=x onerror=x()>')
    tab.goto(f"{site.url}/transactions?q=onerror")
    tab.get_by_role("link", name="<script>").click()
    with tab.expect_navigation():
        tab.get_by_role("link", name="Abort…").click()
    losses = tab.get_by_role("listitem").all_inner_texts()
    assert "3 records of aborted-0 are lost to readers of committed data." in losses
    assert any("Its producer is fenced" in each for each in losses)
    tab.get_by_role("button", name="Abort").click()
    said = tab.get_by_role("status").inner_text()
    assert said.startswith("Aborted <script>alert(1)</script>\"'\\u202e../␀\N{GRINNING FACE}.")
    assert tab.get_by_role("heading", name="Aborted before").is_visible()
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(WITHIN_S)
    assert refused.value.args[0].fatal()
    consumer = stand_at(site, "reader", "aborted", 0)
    consumer.subscribe(["aborted"])
    plain = Producer({"bootstrap.servers": site.bootstrap})
    plain.produce("aborted", b"after", partition=0)
    assert plain.flush(WITHIN_S) == 0
    deadline = time.monotonic() + WITHIN_S
    while (message := consumer.poll(1)) is None:
        assert time.monotonic() < deadline
    assert message.value() == b"after"
    consumer.close()


def test_an_abort_is_of_the_transaction_that_was_shown(site: Site, tab: Tab) -> None:
    make_topic(site, "next")
    producer = open_transaction(site, "one-after-the-other", "next")
    tab.goto(f"{site.url}/transaction/abort?id=one-after-the-other")
    producer.commit_transaction(WITHIN_S)
    producer.begin_transaction()
    producer.produce("next", b"of the next one", partition=0)
    assert producer.flush(WITHIN_S) == 0
    tab.get_by_role("button", name="Abort").click()
    assert "has ended meanwhile: nothing was aborted" in tab.get_by_role("alert").inner_text()
    producer.commit_transaction(WITHIN_S)


def test_a_transaction_of_pulsars_is_shown_and_aborted(site: Site, tab: Tab) -> None:
    sequence = open_pulsar_transaction(site, "of-pulsar")
    name = f"pulsar:(3,{sequence})"
    tab.goto(f"{site.url}/transactions?q=pulsar:")
    row = tab.get_by_role("row", name=name)
    assert "Pulsar" in row.inner_text()
    with tab.expect_navigation():
        row.get_by_role("link", name=name).click()
    assert tab.url.endswith(f"/transaction?producer_id={sequence}")
    for its_id in (name, f"(3,{sequence})"):
        assert name in site.ask(f"/transaction?id={its_id}")[2]
    with tab.expect_navigation():
        tab.get_by_role("link", name="Abort…").click()
    assert "Its client's commit fails" in tab.locator("main").inner_text()
    tab.get_by_role("button", name="Abort").click()
    tab.get_by_text("CompleteAbort").wait_for()
    status, _, text = site.ask(f"/admin/v3/transactions/transactionMetadata/3/{sequence}")
    assert status == 200
    assert '"ABORTED"' in text


def test_a_hanging_transaction_is_marked(
    start_site: StartSite, database_url: str, tab: Tab
) -> None:
    site = start_site("--console-write")
    make_topic(site, "hanging")
    open_transaction(site, "hanging-1", "hanging")
    with psycopg.connect(database_url) as connection:  # nothing but a hand can make one
        connection.execute("DELETE FROM penstock.transaction_partition")
        (producer_id,) = connection.execute(
            "UPDATE penstock.transaction_state SET started_at = -1, state = 'Empty'"
            " RETURNING producer_id"
        ).fetchone() or (None,)
    tab.goto(f"{site.url}/transactions")
    assert tab.get_by_role("heading", name="Hanging 1").is_visible()
    row = tab.get_by_role("row", name="hanging-0")
    assert str(producer_id) in row.inner_text()


# --- rights ---


def test_who_may_not_describe_a_transaction_is_not_told_of_it(guarded: Site) -> None:
    make_topic(guarded, "hidden")
    open_transaction(guarded, "hidden-1", "hidden")
    for path in ("/transactions", "/producers", "/transaction?id=hidden-1", "/producer?id=1000"):
        _, _, text = guarded.ask(path, headers=bearer("nobody"))
        assert ">hidden" not in text
    hidden = guarded.ask("/transaction?id=hidden-1", headers=bearer("nobody"))
    not_there = guarded.ask("/transaction?id=hidden-2", headers=bearer("nobody"))
    assert hidden[0] == not_there[0] == 404
    assert hidden[2] == not_there[2]


def test_who_may_describe_it_is_not_offered_its_abort(guarded: Site, tab: Tab) -> None:
    make_topic(guarded, "seen")
    producer = open_transaction(guarded, "seen-1", "seen")
    grant(guarded, "carol", AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "seen-1")
    log_in(tab, guarded, "carol")
    tab.goto(f"{guarded.url}/transaction?id=seen-1")
    assert tab.get_by_role("heading", name="seen-1").is_visible()
    assert "seen-0" not in tab.locator("main").inner_text()  # the topic may not be described
    assert tab.get_by_role("link", name="Abort…").count() == 0
    form = {"which": "guessed"}
    status, _, text = guarded.ask("/transaction/abort?id=seen-1", form, bearer("carol"))
    assert status == 403
    assert "User:carol may not WRITE" in text
    grant(guarded, "carol", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "seen-1")
    tab.reload()
    tab.get_by_role("link", name="Abort…").click()
    tab.get_by_role("button", name="Abort").click()
    assert "Aborted seen-1" in tab.get_by_role("status").inner_text()
    with pytest.raises(KafkaException):
        producer.commit_transaction(WITHIN_S)


# --- producers ---


def test_producers_are_found_and_one_shows_who_it_is(site: Site, tab: Tab) -> None:
    make_topic(site, "written", 2)
    first = open_transaction(site, "writer-1", "written", client_id="ledger-job")
    first.commit_transaction(WITHIN_S)
    second = open_transaction(site, "writer-1", "written", records=0, client_id="ledger-job")
    tab.goto(f"{site.url}/producers")
    tab.get_by_label("Topic").fill("written")
    tab.get_by_role("button", name="Search").click()
    row = tab.get_by_role("row", name="writer-1")
    assert row.get_by_role("cell").nth(3).inner_text() == "ledger-job\n127.0.0.1"
    assert "written-0" in row.inner_text()
    assert "now 1" in row.inner_text()  # fenced: the second one has a newer epoch
    tab.get_by_label("Producer id").fill("ledger-")
    tab.get_by_role("button", name="Search").click()
    with tab.expect_navigation():
        tab.get_by_role("row", name="writer-1").get_by_role("link").first.click()
    main = tab.locator("main").inner_text()
    for words in ("writer-1", "ledger-job", "127.0.0.1", "fenced by 1", "written-0"):
        assert words in main
    second.abort_transaction(WITHIN_S)


def test_whose_transaction_may_not_be_seen_is_not_told_in_the_list(guarded: Site) -> None:
    make_topic(guarded, "veiled")
    producer = open_transaction(guarded, "veiled-1", "veiled", client_id="veiled-job")
    grant(guarded, "erin", AclOperation.READ, ResourceType.TOPIC, "veiled")
    grant(guarded, "erin", AclOperation.DESCRIBE, ResourceType.TOPIC, "veiled")
    text = guarded.ask("/producers?topic=veiled", headers=bearer("erin"))[2]
    assert ("veiled-0" in text, "veiled-job" in text) == (True, False)
    grant(guarded, "erin", AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "veiled-1")
    assert "veiled-job" in guarded.ask("/producers?topic=veiled", headers=bearer("erin"))[2]
    producer.abort_transaction(WITHIN_S)


def test_an_idempotent_producer_is_told_by_its_client(site: Site, tab: Tab) -> None:
    make_topic(site, "idempotent")
    producer = Producer(
        {
            "bootstrap.servers": site.bootstrap,
            "enable.idempotence": True,
            "client.id": "<i>meter</i>",
        }
    )
    producer.produce("idempotent", b"x", partition=0)
    assert producer.flush(WITHIN_S) == 0
    tab.goto(f"{site.url}/producers?topic=idempotent")
    row = tab.get_by_role("row", name="idempotent-0")
    row.filter(has_text="<i>meter</i>").filter(has_text="127.0.0.1").wait_for()
    tab.get_by_label("Producer id").fill("I>METER")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Search").click()
    row.get_by_role("link").first.click()
    tab.get_by_text("<i>meter</i>").wait_for()  # it is written a second later
    assert "127.0.0.1" in tab.locator("main").inner_text()


def test_a_producer_that_nobody_remembers_is_said_to_be_unknown(site: Site) -> None:
    status, _, text = site.ask("/producer?id=999999999")
    assert status == 404
    assert "Nothing is known of producer 999999999" in text
    assert site.ask("/producer?id=x")[0] == 400
