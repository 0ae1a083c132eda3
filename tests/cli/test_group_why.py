"""`penstock groups why`: what it finds, over groups of stock clients."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient, KafkaConsumer
from typer.testing import CliRunner

from cli.main import app
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
        assert "add --data or --database-url" in found["findings"][0]["text"]
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
