"""`penstock groups why`: what it finds, over groups of stock clients and of values."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient, KafkaConsumer
from typer.testing import CliRunner

from cli.group_reads import Group, GroupView, Member, Progress
from cli.group_why import findings
from cli.main import app
from storage.groups.waiting import Waiting
from storage.server.embedded import EmbeddedPostgres
from tests.cli.test_groups import (  # noqa: F401 - fixtures
    Shell,
    admin,
    broker,
    classic_member,
    commit,
    filled,
    idle,
    name,
    shell,
    started_ms,
    topic,
)
from tests.conftest import Gateway


def member(client_id: str, has: list[int], target: list[int] | None = None) -> Member:
    return Member(
        *(f"{client_id}-1", None, client_id, "/10.0.0.1", {"t": has} if has else {}),
        epoch=None if target is None else 3,
        target=None if target is None else {"t": target},
    )


def progress(partition: int, committed: int | None, end: int = 10, **others: Any) -> Progress:
    lag = None if committed is None else end - committed
    return Progress("t", partition, committed, others.pop("start", 0), end, lag, **others)


def said(
    state: str,
    members: Sequence[Member] = (),
    rows: Sequence[Progress] = (),
    blocking: Sequence[dict[str, Any]] = (),
    waiting: Waiting | None = None,
) -> list[tuple[str, str]]:
    group = Group("g", None, "classic", state, coordinator="here:9092", members=tuple(members))
    found = findings(GroupView(group, tuple(rows)), blocking, waiting)
    return [(each.kind, each.text) for each in found]


def test_nothing_holds_it_back() -> None:
    found = said("Stable", [member("a", [0])], [progress(0, 10, member_id="a-1", client_id="a")])
    assert [kind for kind, _ in found] == ["up_to_date"]


def test_a_classic_rebalance_names_members_and_what_is_not_told() -> None:
    ((kind, text),) = said("PreparingRebalance", [member("a", []), member("b", [])], [])
    assert kind == "rebalance"
    assert "here:9092, waits until every member has joined again: a at 10.0.0.1, b at" in text
    assert "does not tell clients which member is late: add --data or --database-url" in text
    assert said("CompletingRebalance")[0][1].endswith("If it lasts, restart it.")


def test_the_database_knows_who_is_waited_for_and_who_leads() -> None:
    members = [member("a", []), member("b", [])]
    waiting = Waiting("PreparingRebalance", "a-1", ("b-1", "pending-7"))
    ((_, text),) = said("PreparingRebalance", members, waiting=waiting)
    assert "waits for b at 10.0.0.1, pending-7 to join again. These have joined: a at" in text
    waiting = Waiting("CompletingRebalance", "a-1", ("a-1", "b-1"))
    ((_, text),) = said("CompletingRebalance", members, waiting=waiting)
    assert "until their leader, a at 10.0.0.1, has made the assignment." in text
    # The group has moved on between the two questions.
    ((_, text),) = said("PreparingRebalance", members, waiting=waiting)
    assert "does not tell clients which member is late" in text


@contextmanager
def joining(broker: Gateway, topic: str, group: str) -> Iterator[None]:  # noqa: F811
    """A member that wants to join all the while."""
    ends = threading.Event()

    def join() -> None:
        where = {"bootstrap_servers": broker.bootstrap, "group_id": group}
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


def test_a_stuck_member_is_named_with_the_database(
    shell: Shell,  # noqa: F811
    broker: Gateway,  # noqa: F811
    topic: str,  # noqa: F811
    name: str,  # noqa: F811
    classic_member: Consumer,  # noqa: F811
) -> None:
    """It beats and does not poll, as one that works on a record for too long."""
    assert broker.database_url is not None
    with joining(broker, topic, name):
        deadline = time.monotonic() + 60
        while (found := shell.json("why", name))["state"] != "PreparingRebalance":
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        assert "does not tell clients which member is late" in found["findings"][0]["text"]
        text = ""
        while "waits for reader at 127.0.0.1 to join again." not in text:
            assert time.monotonic() < deadline, text
            found = shell.json("why", name, "--database-url", broker.database_url)
            text = found["findings"][0]["text"]
        assert "These have joined: newcomer at 127.0.0.1." in text
        classic_member.poll(5)  # so that both come to an end at once


def test_a_database_that_cannot_be_asked_is_told_in_words(
    shell: Shell,  # noqa: F811
    broker: Gateway,  # noqa: F811
    idle: str,  # noqa: F811
    postgres: EmbeddedPostgres,
    tmp_path: Path,
) -> None:
    assert shell("why", idle, "--database-url", broker.database_url or "")[0] == 0
    code, _, complained = shell("why", idle, "--data", tmp_path)
    assert (code, complained.partition(":")[0]) == (2, f"No embedded PostgreSQL runs in {tmp_path}")
    code, _, complained = shell("why", idle, "--data", postgres.data_dir)  # another's
    assert (code, complained.partition(" (")[0]) == (2, "The database cannot be used")
    wrong = "postgresql://me:cret%zz@here/penstock"
    code, _, complained = shell("why", idle, "--database-url", wrong)
    assert (code, "cret" in complained) == (2, False)


def test_a_member_that_does_not_give_back_is_named() -> None:
    slow, new = member("slow", [0, 1], [0]), member("new", [], [1])
    found = said("Reconciling", [slow, new], [])
    assert [text.split(":")[0] for _, text in found[:2]] == [
        "slow at 10.0.0.1 has to give back t 1",
        "new at 10.0.0.1 waits for t 1, which slow at 10.0.0.1 still has.",
    ]


def test_what_retention_has_passed_and_what_was_made_anew() -> None:
    rows = [
        progress(0, 2, start=5, member_id="a-1", client_id="a", host="/h"),
        progress(1, 12),
        Progress("gone", 0, 4, None, None, None),
    ]
    found = dict(said("Stable", [member("a", [0])], rows))
    assert found["retention"].startswith("t 0: the group is at offset 2, and the log begins at 5:")
    assert found["beyond_end"].startswith("t 1: the group is at offset 12, beyond the log's end 10")
    assert found["no_partition"].startswith("gone 0 does not exist any more")


def test_partition_without_a_member_is_named() -> None:
    found = dict(said("Stable", [member("a", [0])], [progress(1, 4), progress(2, 10)]))
    assert found.keys() == {"no_member"}
    assert found["no_member"].startswith("t 1 belongs to no member, and is 6 behind")


def test_many_partitions_are_counted() -> None:
    rows = [progress(n, 4, member_id="a-1", client_id="a", host="/h") for n in range(9)]
    found = said("Stable", [member("a", list(range(9)))], rows)
    assert len(found) == 6
    assert found[-1] == ("lag", "The same of 4 more partitions.")


def test_an_open_transaction_is_named(
    shell: Shell,  # noqa: F811
    broker: Gateway,  # noqa: F811
    admin: KafkaAdminClient,  # noqa: F811
    name: str,  # noqa: F811
) -> None:
    place = filled(broker, admin, f"held-{name}")
    commit(admin, name, place, {0: 10})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"tx-{name}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(place, b"x", partition=0)
    assert producer.flush(20) == 0
    try:
        found = shell.json("why", name)["findings"]
        assert [each["kind"] for each in found] == ["empty", "transaction"]
        assert found[1]["text"].startswith(f"{place} 0: transaction tx-{name}, open for ")
        assert "nothing from offset 10 on; 1 offsets wait so far" in found[1]["text"]
        assert f"'penstock txn abort tx-{name}'" in found[1]["text"]
    finally:
        producer.abort_transaction(20)


def test_a_member_that_is_behind_is_named(
    shell: Shell,  # noqa: F811
    topic: str,  # noqa: F811
    name: str,  # noqa: F811
    classic_member: Consumer,  # noqa: F811
) -> None:
    code, printed, _ = shell("why", name)
    assert code == 0
    first, second = printed.splitlines()
    assert first.startswith(f"{name}  (classic group, Stable, ")
    assert second.startswith(f"- {topic} 1 belongs to reader at 127.0.0.1, and is 7 behind, at")


def test_empty_group_is_told_from_a_missing_one(shell: Shell, idle: str) -> None:  # noqa: F811
    assert shell.json("why", idle)["findings"][0]["kind"] == "empty"
    wrong = idle[:-1] + "_"
    for command in ("why", "describe", "lag"):
        code, _, complained = shell(command, wrong)
        assert code == 1
        # The nearest comes first; another test's group may be named behind it.
        assert complained.startswith(f"{wrong}: there is no such group. Did you mean {idle}")


@pytest.mark.parametrize(("no_color", "has_colour"), [(None, True), ("1", False)])
def test_states_are_coloured_on_a_terminal(
    shell: Shell,  # noqa: F811
    idle: str,  # noqa: F811
    no_color: str | None,
    has_colour: bool,
) -> None:
    words = ["groups", "list", "--bootstrap-server", shell.bootstrap]
    env = {"COLUMNS": "200", "TERM": "xterm", "TTY_COMPATIBLE": "1", "FORCE_COLOR": "1"}
    environment: dict[str, str | None] = {**env, "NO_COLOR": no_color}
    done = CliRunner().invoke(app, words, env=environment, color=True)
    (line,) = [line for line in done.stdout.splitlines() if idle in line]
    assert ("\x1b[36mEmpty" in line) is has_colour
    assert "\x1b" not in json.dumps(shell("list")[1])
