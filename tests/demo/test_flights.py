"""The flights demo, with fewer flights: it passes, and it notices what it exists to notice."""

from __future__ import annotations

import io
import uuid
from typing import Any

from confluent_kafka import Producer
from rich.console import Console

from demo import flights

LIMIT = 20_000


def run(*arguments: str) -> tuple[int, str]:
    output = io.StringIO()
    code = flights.main(arguments, console=Console(file=output, width=160))
    return code, output.getvalue()


def test_twenty_thousand_flights_come_back_as_they_were_sent(gateway: Any) -> None:
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    at = ("--bootstrap", gateway.bootstrap, "--database-url", gateway.database_url)
    code, shown = run(*at, "--topic", topic, "--limit", str(LIMIT))
    assert code == 0, shown
    assert shown.count(f"{LIMIT:,}") >= 4  # produced, read twice, counted
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
        *("--bootstrap", gateway.bootstrap, "--database-url", gateway.database_url),
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
