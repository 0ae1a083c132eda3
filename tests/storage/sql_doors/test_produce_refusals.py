"""What `penstock.produce` refuses at the call, since a broker would have to refuse it later."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from core.config.values import topic_config
from core.inbox.values import WaitingRecord
from gateway.kafka.inbox_batches import inbox_batch
from tests.storage.sql_doors.conftest import Doors, refused

PLAIN = topic_config({}, {})


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("'other', 'k', 'v'", "PS101"),
        ("NULL, 'k', 'v'", "PS101"),
        ("'', 'k', 'v'", "PS101"),
        ("'T', 'k', 'v'", "PS101"),
        ("repeat('t', 100000), 'k', 'v'", "PS101"),
        ("'__consumer_offsets', 'k', 'v'", "PS101"),
        ("'t', 'k', 'v', NULL, 2", "PS101"),
        ("'t', 'k', 'v', NULL, -1", "PS101"),
        ("'t', 'k', 'v', NULL, 2147483647", "PS101"),
        ("'compacted', NULL, 'v'", "PS103"),
        ("'compacted', NULL::bytea, NULL", "PS103"),
        ("'both', NULL, 'v'", "PS103"),
        *(
            (f"'t', 'k', 'v', '{headers}'", "PS103")
            for headers in (
                "1", '"a"', "null", "true", '["a"]', '[["a"]]', '[["a", "b", "c"]]', '[[1, "b"]]',
                '[[null, "b"]]', '[{"name": "a"}]', '[{"name": 1, "hex": "00"}]', "[null]",
                '[{"name": "a", "hex": "0"}]', '[{"name": "a", "hex": "xx"}]', "[{}]", "[[]]",
                '[{"name": "a", "hex": 12.5}]', '[["a", "b"], 1]',
            )
        ),
        ("'t', 'k', 'v', ARRAY[(NULL, '')]::penstock.header[]", "PS103"),
        ("'t', 'k', 'v', ARRAY[NULL]::penstock.header[]", "PS103"),
        ("'t', 'k', 'v', \"timestamp\" => 'infinity'", "PS103"),
        ("'t', 'k', 'v', \"timestamp\" => '-infinity'", "PS103"),
        ("'t', 'k', 'v', \"timestamp\" => '1969-12-31 23:59:59Z'", "PS103"),
        ("'t', 'k', 'v', \"timestamp\" => '4713-01-01 BC'", "PS103"),
        ("'t', 'k', 'v', \"timestamp\" => now() + interval '2 hours'", "PS103"),
        ("'t', 'k', 'v', \"timestamp\" => '294276-01-01'", "PS103"),
        ("'old', 'k', 'v', \"timestamp\" => now() - interval '3 minutes'", "PS103"),
    ],
)  # fmt: skip
def test_it_is_refused_by_a_code(doors18: Doors, arguments: str, code: str) -> None:
    doors18.make_topic("compacted", cleanup_policy="compact")
    doors18.make_topic("both", cleanup_policy="compact,delete")
    doors18.make_topic("old", message_timestamp_before_max_ms="60000")
    doors18.make_topic("__consumer_offsets")
    doors18.rows("UPDATE penstock.topic SET is_internal = true WHERE name LIKE '\\_\\_%'")
    session = doors18.session()
    assert refused(session, f"SELECT penstock.produce({arguments})").sqlstate == code
    assert doors18.waiting("key") == []


def test_a_refusal_says_what_is_wrong(doors: Doors) -> None:
    session = doors.session()
    assert 'no topic "o""' in str(refused(session, "SELECT penstock.produce('o\"', 'k', 'v')"))
    error = refused(session, "SELECT penstock.produce('t', 'k', 'v', NULL, 9)")
    assert 'topic "t" has no partition 9' in str(error)


def test_a_topic_takes_the_times_it_says(doors18: Doors) -> None:
    doors18.make_topic("own", message_timestamp_after_max_ms="86400000")
    doors18.make_topic("stamped", message_timestamp_type="LogAppendTime")
    session = doors18.session()
    for topic, when in [
        ("t", "now() + interval '59 minutes'"),
        ("t", "'epoch'"),
        ("own", "now() + interval '23 hours'"),
        ("stamped", "now() + interval '9 years'"),
    ]:
        session.execute(f"SELECT penstock.produce('{topic}', 'k', 'v', NULL, 0, {when})".encode())
    session.commit()
    assert len(doors18.values()) == 4


def test_brokers_settings_hold_where_a_topic_has_none(doors18: Doors) -> None:
    doors18.make_topic("deleting", cleanup_policy="delete", max_message_bytes="2000")
    doors18.rows("UPDATE penstock.sql_door SET is_compacted = true, max_message_bytes = 1000")
    session = doors18.session()
    assert refused(session, "SELECT penstock.produce('t', NULL, 'v')").sqlstate == "PS103"
    long = "SELECT penstock.produce('{}', NULL, repeat('x', 1500))"
    assert refused(session, long.format("t").replace("NULL", "'k'")).sqlstate == "PS102"
    session.execute(long.format("deleting").encode())
    session.commit()


Headers = list[tuple[str, bytes | None]]


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a batch with this record alone, as a broker makes it."""
    names, values = [name for name, _ in headers], [content for _, content in headers]
    record = WaitingRecord(1, 1, 1, bytes(16), "t", 0, 0, key, value, names, values)
    return len(inbox_batch([record], PLAIN, 0)[1])


def produce(session: psycopg.Connection[Any], *of: Any) -> str | None:
    """The code of a refusal, or None; the session is rolled back."""
    key, value, headers = of
    given_headers = Jsonb(
        [{"name": name, "hex": None if v is None else v.hex()} for name, v in headers]
    )
    try:
        session.execute(
            "SELECT penstock.produce('t', %s::bytea, %s::bytea, %s)", [key, value, given_headers]
        )
    except psycopg.Error as error:
        return error.sqlstate
    finally:
        session.rollback()
    return None


def bytes_up_to(most: int) -> st.SearchStrategy[bytes]:
    """Bytes of any length, also around those where a varint takes one more."""
    lengths = st.one_of(
        st.integers(0, most), st.sampled_from([n for n in (62, 63, 64, 65, 8190, 8191, 8192, 8193)
                                               if n <= most])
    )  # fmt: skip
    return lengths.map(lambda length: b"x" * length)


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=70)


@pytest.fixture(scope="module")
def sized(copies: Any, template_database: str) -> Any:
    """A session of a database that takes no topic's changes from another test."""
    with copies.taken(template_database) as url, psycopg.connect(url, autocommit=True) as psql:
        doors = Doors(url, psql)
        doors.make_topic("t", max_message_bytes="1")
        with psycopg.connect(url) as session:
            yield doors, session


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
          max_examples=60)  # fmt: skip
@given(
    st.none() | bytes_up_to(9000),
    st.none() | bytes_up_to(20_000),
    st.lists(st.tuples(NAMES, st.none() | bytes_up_to(9000)), max_size=70),
)
def test_a_record_is_too_large_exactly_where_its_batch_is(
    sized: tuple[Doors, psycopg.Connection[Any]],
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> None:
    doors, session = sized
    size = size_of(key, value, headers)
    for limit, code in ((size, None), (size - 1, "PS102")):
        doors.rows(
            "UPDATE penstock.config_entry SET value = %s WHERE name = 'max.message.bytes'",
            str(limit),
        )
        assert produce(session, key, value, headers) == code


def test_the_largest_record_of_the_default_is_the_largest_batch(doors18: Doors) -> None:
    session = doors18.session()
    limit = doors18.value("SELECT max_message_bytes FROM penstock.sql_door")
    length = limit - (size_of(b"", b"x" * 1_000_000, []) - 1_000_000)
    assert produce(session, b"", b"x" * length, []) is None
    assert produce(session, b"", b"x" * (length + 1), []) == "PS102"


def test_a_transaction_produces_so_much_and_no_more(doors: Doors) -> None:
    doors.rows("UPDATE penstock.sql_door SET max_transaction_bytes = 2500")
    session = doors.session()
    thousand = "SELECT penstock.produce('t', 'k', repeat('x', 1000))"
    session.execute(thousand.encode())
    session.execute("SAVEPOINT a")
    session.execute(thousand.encode())
    session.execute("ROLLBACK TO a")
    session.execute(thousand.encode())
    error = refused(session, thousand)
    assert (error.sqlstate, "Commit more often" in str(error)) == ("PS102", True)
    for _ in range(3):  # each transaction begins anew
        session.execute(thousand.encode())
        session.commit()
    rows = "INSERT INTO penstock.outbox (topic, value) SELECT 't', repeat('x', 1000)"
    assert refused(session, f"{rows} FROM generate_series(1, 3)").sqlstate == "PS102"
    assert len(doors.values()) == 3


def test_a_read_only_transaction_does_not_produce(doors: Doors) -> None:
    session = doors.session()
    session.execute("SET TRANSACTION READ ONLY")
    assert refused(session, "SELECT penstock.produce('t', 'k', 'v')").sqlstate == "25006"
