"""`penstock.produce` and `penstock.outbox`: what is called, and what waits then."""

from __future__ import annotations

import datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from storage import views
from tests.storage.sql_doors.conftest import Doors, refused


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ("'t', 'k', 'v'", b"k", b"v"),
        ("'t', 'k'::text, 'v'::text", b"k", b"v"),
        ("'t', 'k'::varchar(9), 'v'::varchar", b"k", b"v"),
        ("'t', '\\x00ff'::bytea, '\\xfe'::bytea", b"\0\xff", b"\xfe"),
        ("'t', 'k', '\\xfe'::bytea", b"k", b"\xfe"),
        ("'t', '\\xff'::bytea, 'v'", b"\xff", b"v"),
        ("'t', '\\xff'::bytea, 'v'::text", b"\xff", b"v"),
        ("'t', 'k', jsonb_build_object('a', 1)", b"k", b'{"a": 1}'),
        ("'t', '\\xff'::bytea, '[1]'::jsonb", b"\xff", b"[1]"),
        ("'t', NULL, 'v'", None, b"v"),
        ("'t', 'k', NULL", b"k", None),
        ("'t', NULL, NULL", None, None),
        ("'t', NULL::bytea, NULL::bytea", None, None),
        ("'t', 'k', NULL::jsonb", b"k", None),
        ("topic => 't', value => 'v', key => NULL", None, b"v"),
        ("topic => 't', key => '\\xff'::bytea, value => NULL", b"\xff", None),
        ("topic => 't', key => 'k', value => 'v', partition => 1", b"k", b"v"),
        ("'t', '', ''", b"", b""),
        ("'t', 'ключ', 'ä𝄞'", "ключ".encode(), "ä𝄞".encode()),
    ],
)
def test_each_overload_takes_keys_and_values(
    doors18: Doors, arguments: str, key: bytes | None, value: bytes | None
) -> None:
    session = doors18.session()
    session.execute(f"SELECT penstock.produce({arguments})".encode())
    session.commit()
    assert doors18.waiting("key, value") == [(key, value)]


def test_drivers_parameters_find_their_overload(doors18: Doors) -> None:
    session = doors18.session()
    given: list[tuple[Any, Any]] = [
        ("k", "v"),
        (b"k", b"v"),
        ("k", b"v"),
        (b"k", "v"),
        ("k", Jsonb({"a": 1})),
        (None, "v"),
        (None, b"v"),
        ("k", None),
        (b"k", None),
        (None, None),
    ]
    for key, value in given:
        session.execute("SELECT penstock.produce(%s, %s, %s)", ("t", key, value))
    session.commit()

    def as_bytes(given: Any) -> bytes | None:
        if isinstance(given, Jsonb):
            return b'{"a": 1}'
        return given.encode() if isinstance(given, str) else given

    assert doors18.waiting("key, value") == [(as_bytes(k), as_bytes(v)) for k, v in given]


@pytest.mark.parametrize(
    ("headers", "names", "contents"),
    [
        ("NULL", None, None),
        ("""'{"a": "1"}'""", ["a"], [b"1"]),
        ("""'{"a": 1, "b": null, "c": true, "d": {"e": [2]}}'""", list("abcd"),
         [b"1", None, b"true", b'{"e": [2]}']),
        ("""'[["b", "1"], ["a", null], ["b", "2"], ["", ""]]'""", ["b", "a", "b", ""],
         [b"1", None, b"2", b""]),
        ("""ARRAY[('b', '\\xff'), ('a', NULL), ('b', '')]::penstock.header[]""", ["b", "a", "b"],
         [b"\xff", None, b""]),
        ("""ARRAY[('ä', '\\x00')::penstock.header]""", ["ä"], [b"\0"]),
        ("'{}'", None, None),
        ("'[]'", None, None),
        ("'{}'::penstock.header[]", None, None),
    ],
)  # fmt: skip
def test_headers_are_an_object_an_array_of_pairs_or_of_headers(
    doors18: Doors, headers: str, names: list[str] | None, contents: list[bytes | None] | None
) -> None:
    session = doors18.session()
    session.execute(f"SELECT penstock.produce('t', 'k', 'v', {headers})".encode())
    session.execute(f"SELECT penstock.produce('t', 'k', 'v', headers => {headers})".encode())
    session.commit()
    assert doors18.waiting("header_names, header_values") == [(names, contents)] * 2


def test_null_headers_leave_room_for_a_partition_and_a_time(doors: Doors) -> None:
    session = doors.session()
    at = datetime.datetime(2020, 1, 2, 3, 4, 5, 678_900, datetime.UTC)
    session.execute("SELECT penstock.produce('t', 'k', 'v', NULL, 1, %s)", [at])
    session.execute("SELECT penstock.produce('t', 'k', 'v', NULL, NULL, NULL)")
    session.commit()
    (first, second) = doors.waiting("partition, timestamp_ms")
    assert first == (1, int(at.timestamp() * 1000))
    assert second[0] is None
    now_ms = doors.value("SELECT extract(epoch FROM now())::float8 * 1000")
    assert abs(second[1] - now_ms) < 600_000


def test_rows_are_inserted_in_bulk(doors18: Doors) -> None:
    session = doors18.session()
    session.execute(
        "INSERT INTO penstock.outbox (topic, key, value, headers, partition)"
        " SELECT 't', n::text, repeat('x', 100), jsonb_build_object('n', n), n % 2"
        " FROM generate_series(1, 20000) AS n"
    )
    assert doors18.records() == []
    session.commit()
    assert doors18.commits() == 1
    records = doors18.records()
    assert [int(key or "") for _, _, key, _ in records] == list(range(1, 20_001))
    assert {partition for _, partition, _, _ in records} == {0, 1}


def test_rows_are_copied(doors: Doors) -> None:
    session = doors.session()
    columns = "(topic, key, value, headers, partition, value_bytes)"
    with session.cursor().copy(f"COPY penstock.outbox {columns} FROM STDIN".encode()) as copy:
        copy.write_row(("t", "a", "1", '{"h": "1"}', 1, None))
        copy.write_row(("t", None, None, None, None, b"\xff"))
    session.commit()
    assert doors.waiting("key, value, partition, header_names") == [
        (b"a", b"1", 1, ["h"]),
        (None, b"\xff", None, None),
    ]
    with (
        pytest.raises(psycopg.Error, match="no topic") as caught,
        session.cursor().copy(f"COPY penstock.outbox {columns} FROM STDIN".encode()) as copy,
    ):
        copy.write_row(("t", "a", "1", None, None, None))
        copy.write_row(("other", "a", "1", None, None, None))
    assert caught.value.sqlstate == "PS101"
    session.rollback()
    assert len(doors.waiting("key")) == 2


def test_a_record_has_its_bytes_once(doors18: Doors) -> None:
    session = doors18.session()
    for columns in ("key, key_bytes", "value, value_bytes"):
        query = f"INSERT INTO penstock.outbox (topic, {columns}) VALUES ('t', 'a', 'b')"
        assert refused(session, query).sqlstate == "PS103"


def test_the_outbox_is_always_empty(doors18: Doors) -> None:
    session = doors18.session()
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    assert session.execute("SELECT * FROM penstock.outbox").fetchall() == []
    session.commit()
    assert session.execute("SELECT * FROM penstock.outbox").fetchall() == []


@pytest.mark.parametrize("name", ["a\"b'c", "Zoë-ö$ \\%s", "x" * 249, "t.partition"])
def test_names_are_taken_literally(doors: Doors, name: str) -> None:
    doors.make_topic(name)
    session = doors.session()
    session.execute("SELECT penstock.produce(%s, %s, 'v')", [name, name])
    session.execute(sql.SQL("SELECT penstock.produce({}, 'k', 'v')").format(name))
    session.commit()
    assert [topic for topic, *_ in doors.records()] == [name, name]


def test_calls_are_in_order_within_a_transaction(doors: Doors) -> None:
    one, two = doors.session(), doors.session()
    for turn in range(120):  # more than a session's share of the sequence
        session = (one, two)[turn % 2]
        session.execute("SELECT penstock.produce('t', 'k', %s)", [f"{turn % 2} {turn:03}"])
    two.commit()
    one.commit()
    values = [value or "" for value in doors.values()]
    assert values == sorted(values[:60]) + sorted(values[60:])
    assert [value[0] for value in values] == ["1"] * 60 + ["0"] * 60


def test_a_statement_by_itself_is_a_transaction(doors: Doors) -> None:
    session = doors.session(autocommit=True)
    session.execute("SELECT penstock.produce('t', 'k', '1')")
    session.execute("SELECT penstock.produce('t', 'k', '2'), penstock.produce('t', 'k', '3')")
    assert (doors.values(), doors.commits()) == (["1", "2", "3"], 2)


def test_what_is_rolled_back_was_never_there(doors: Doors) -> None:
    session = doors.session()
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    session.rollback()
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    session.close()
    assert (doors.waiting("key"), doors.commits()) == ([], 0)


def test_savepoints_take_back_what_came_after_them(doors: Doors) -> None:
    session = doors.session()

    def produce(value: str) -> None:
        session.execute("SELECT penstock.produce('t', 'k', %s)", [value])

    produce("1")
    session.execute("SAVEPOINT a")
    produce("rolled back")
    session.execute("SAVEPOINT b")
    produce("rolled back, nested")
    session.execute("RELEASE b")
    session.execute("ROLLBACK TO a")
    produce("2")
    session.execute("SAVEPOINT c")
    produce("3")
    session.execute("RELEASE c")
    session.execute(
        "DO $$ BEGIN BEGIN PERFORM penstock.produce('t', 'k', 'lost'); PERFORM 1 / 0;"
        " EXCEPTION WHEN division_by_zero THEN PERFORM penstock.produce('t', 'k', '4'); END; END $$"
    )
    session.commit()
    assert (doors.values(), doors.commits()) == (["1", "2", "3", "4"], 1)


def test_a_transaction_whose_records_are_all_taken_back_has_no_place(doors: Doors) -> None:
    session = doors.session()
    session.execute("SAVEPOINT a")
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    session.execute("ROLLBACK TO a")
    session.commit()
    assert (doors.waiting("key"), doors.commits()) == ([], 0)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_each_isolation_level_produces(doors: Doors, level: str) -> None:
    """Two at once: neither is refused because of what the doors read and write."""
    sessions = doors.session(), doors.session()
    for session in sessions:
        session.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        session.execute("SELECT 1")
    for value in "12":
        for session in sessions:
            session.execute("SELECT penstock.produce('t', 'k', %s, NULL, 0)", [value])
    for session in sessions:
        session.commit()
    assert (doors.values(), doors.commits()) == (["1", "2", "1", "2"], 2)


def test_a_transaction_may_write_into_two_slots(doors: Doors) -> None:
    session, other = doors.session(), doors.session()
    session.execute("SELECT penstock.produce('t', 'k', '1')")
    doors.rows("UPDATE penstock.sql_door SET slot = 1")
    other.execute("SELECT penstock.produce('t', 'k', 'other')")
    session.execute("SELECT penstock.produce('t', 'k', '2')")
    other.commit()
    session.commit()
    assert doors.values() == ["other", "1", "2"]
    assert doors.commits() == 2


def test_triggers_and_functions_produce(doors: Doors) -> None:
    doors.rows("CREATE TABLE public.account (id int PRIMARY KEY, balance int)")
    doors.rows(
        "CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM penstock.produce('t', NEW.id::text, to_jsonb(NEW)); RETURN NULL; END $$"
    )
    doors.rows(
        "CREATE TRIGGER tell AFTER INSERT OR UPDATE ON public.account"
        " FOR EACH ROW EXECUTE FUNCTION public.tell()"
    )
    doors.rows(
        "CREATE CONSTRAINT TRIGGER tell_late AFTER INSERT ON public.account DEFERRABLE INITIALLY"
        " DEFERRED FOR EACH ROW EXECUTE FUNCTION public.tell()"
    )
    session = doors.session()
    session.execute("INSERT INTO account VALUES (1, 10), (2, 20)")
    session.execute("UPDATE account SET balance = 11 WHERE id = 1")
    session.commit()
    assert doors.values() == [
        '{"id": 1, "balance": 10}',
        '{"id": 2, "balance": 20}',
        '{"id": 1, "balance": 11}',
        '{"id": 1, "balance": 10}',
        '{"id": 2, "balance": 20}',
    ]
    assert doors.commits() == 1


def test_procedures_commit_what_they_produce(doors: Doors) -> None:
    doors.rows(
        "CREATE PROCEDURE public.twice() LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM penstock.produce('t', 'k', '1'); COMMIT;"
        " PERFORM penstock.produce('t', 'k', '2'); COMMIT; END $$"
    )
    session = doors.session(autocommit=True)
    session.execute("CALL twice()")
    session.execute(
        "DO $$ BEGIN PERFORM penstock.produce('t', 'k', '0'); COMMIT; CALL twice(); END $$"
    )
    assert (doors.values(), doors.commits()) == (["1", "2", "0", "1", "2"], 5)


def test_a_broker_is_woken_only_while_none_is_looking(doors: Doors) -> None:
    listener, session = doors.session(autocommit=True), doors.session(autocommit=True)
    listener.execute("LISTEN penstock_inbox")
    session.execute("SELECT penstock.produce('t', 'k', 'v'), penstock.produce('t', 'k', 'v')")
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    doors.rows("SELECT pg_advisory_lock(5784113066287911025)")
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    doors.rows("SELECT pg_advisory_unlock(5784113066287911025)")
    assert list(listener.notifies(timeout=0.2)) == []
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1


def test_functions_are_replaced_while_transactions_are_open(doors: Doors) -> None:
    """As when a broker of the next version starts."""
    dawdler, session = doors.session(), doors.session()
    dawdler.execute("SELECT penstock.produce('t', 'k', '1')")
    doors.rows("SET search_path = penstock")
    doors.rows("SET lock_timeout = '2s'")
    with doors.psql.transaction():
        for statement in views.replace_statements():
            doors.psql.execute(statement.encode())
    session.execute("SELECT penstock.produce('t', 'k', '2')")
    session.commit()
    dawdler.execute("SELECT penstock.produce('t', 'k', '3')")
    dawdler.commit()
    assert doors.values() == ["2", "1", "3"]
