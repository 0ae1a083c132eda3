"""The flights demo, with fewer flights: it passes, and it notices what it exists to notice."""

from __future__ import annotations

import io
import logging
import multiprocessing
import uuid
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer
from rich.console import Console

from demo import flights, group
from tests.compat.pulsar.conftest import Both, both

__all__ = ["both"]

LIMIT = 20_000


def run(*arguments: str) -> tuple[int, str]:
    output = io.StringIO()
    code = flights.main(arguments, console=Console(file=output, width=160))
    return code, output.getvalue()


def test_twenty_thousand_flights_come_back_as_they_were_sent(both: Both) -> None:
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    gateway = both.gateway
    assert gateway.database_url is not None
    at = ("--bootstrap-server", gateway.bootstrap, "--database-url", gateway.database_url)
    where = (*at, "--service-url", both.service_url)
    code, shown = run(*where, "--topic", topic, "--limit", str(LIMIT))
    assert code == 0, shown
    assert shown.count(f"{LIMIT:,}") >= 6  # produced, read four times, counted
    assert "order kept" in shown
    assert "offsets exact" in shown
    assert "carriers exact" in shown
    assert "killed after" in shown
    assert "nothing unread" in shown
    again, shown = run(*at, "--topic", topic, "--limit", "10")
    assert again == 1
    assert "--recreate" in shown


def test_a_record_too_many_is_noticed_by_the_count(gateway: Any, monkeypatch: Any) -> None:
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    honest = flights.read_with_kafka_python

    def stray_record_then_read(bootstrap: str, topic: str, advance: flights.Advance) -> Any:
        stray = Producer({"bootstrap.servers": bootstrap})
        stray.produce(topic, b"not a flight")
        assert stray.flush(20) == 0
        return honest(bootstrap, topic, advance)

    monkeypatch.setattr(flights, "read_with_kafka_python", stray_record_then_read)
    code, shown = run(
        *("--bootstrap-server", gateway.bootstrap, "--database-url", gateway.database_url),
        *("--topic", topic, "--limit", "100"),
    )
    assert code == 1
    assert "1 records too many" in shown
    assert "100 expected" in shown


def test_flights_have_null_keys_where_the_tail_number_is_missing() -> None:
    records = flights.flights(None)
    assert len(records) == 336_776
    assert sum(key is None for key, _ in records) == 2_512
    assert records[0][0] == b"N14228"
    assert records[0][1].startswith(b'{"year":2013,"month":1,"day":1,"dep_time":517')


def test_differences_names_missing_surplus_and_disorder() -> None:
    sent: list[flights.Record] = [(b"a", b"1"), (b"a", b"2"), (None, b"3"), (None, b"4")]
    assert list(flights.differences(sent, [sent[3], sent[0], sent[2], sent[1]])) == []
    assert list(flights.differences(sent, [sent[1], sent[0], *sent[2:]])) == ["1 keys out of order"]
    assert list(flights.differences(sent, sent[:3])) == ["1 records missing"]
    assert list(flights.differences(sent, [*sent, sent[2]])) == ["1 records too many"]


def processed(places: dict[group.Place, group.Record], **offsets: int) -> group.Processed:
    """Two partitions, everything committed once, up to the offsets given (p0=…, p1=…)."""
    return group.Processed(
        places,
        killed=("aiokafka", 1),
        commits=Counter(list(places)),
        offsets={int(name[1:]): offset for name, offset in offsets.items()},
    )


def test_wrong_offsets_of_the_group_are_noticed() -> None:
    sent: list[flights.Record] = [(b"a", b"1"), (b"a", b"2"), (None, b"3")]
    places = {(0, 0): sent[0], (0, 1): sent[1], (1, 0): sent[2]}
    done = processed(places, p0=2, p1=1)
    assert list(flights.processed_in_group(sent, done)) == []
    done.commits[0, 1] += 1
    done.killed = None
    assert list(done.problems()) == ["1 records committed twice", "nobody was killed"]
    behind = processed(places, p0=1)
    assert list(behind.problems()) == [
        "partition 0 is committed up to 1, not 2",
        "partition 1 is committed up to None, not 1",
    ]
    first, *_ = flights.processed_in_group([*sent, sent[2]], done)
    assert first == "1 records missing"


def test_a_member_that_ends_by_itself_fails_the_demo() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.close()
    readers = group.Readers([group.Running("aiokafka", None, ours)], total=1)
    with pytest.raises(group.GroupFailed, match="aiokafka ended by itself"):
        readers.process_all(lambda _: None)


def test_a_member_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: group.Member) -> None:
        raise OSError("no such host")

    monkeypatch.setitem(group.CLIENTS, "kafka-python", fails)
    monkeypatch.setattr(logging, "disable", lambda _: None)  # it is this process here
    ours, theirs = multiprocessing.Pipe(duplex=False)
    group.run_member("kafka-python", group.Member("", "", "", theirs, None))
    readers = group.Readers([group.Running("kafka-python", None, ours)], total=1)
    with pytest.raises(group.GroupFailed, match=r"kafka-python: OSError: no such host"):
        readers.process_all(lambda _: None)
