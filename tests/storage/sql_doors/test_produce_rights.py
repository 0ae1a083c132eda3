"""Who may produce, in whose name, and what a hostile session can reach: nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage.sql_doors.conftest import Doors, refused

DENIED = "42501"
PRODUCE = "SELECT penstock.produce('t', 'k', 'v')"


def test_a_producer_needs_no_more_than_the_role(doors: Doors) -> None:
    session = doors.session(doors.make_role("penstock_producer"))
    session.execute(PRODUCE.encode())
    session.execute(
        "SELECT penstock.produce('t', 'k', '{}'::jsonb, ARRAY[('a', '')]::penstock.header[])"
    )
    session.execute("INSERT INTO penstock.outbox VALUES ('t', 'k', 'v')")
    with session.cursor().copy("COPY penstock.outbox (topic, value) FROM STDIN") as copy:
        copy.write_row(("t", "v"))
    session.commit()
    assert len(doors.values()) == 4


@pytest.mark.parametrize("group", [None, "penstock_consumer", "penstock_reader"])
def test_nobody_else_produces(doors: Doors, group: str | None) -> None:
    session = doors.session(doors.make_role(*[group] if group else []))
    for statement in (PRODUCE, "INSERT INTO penstock.outbox (topic, value) VALUES ('t', 'v')"):
        assert refused(session, statement).sqlstate == DENIED


def statements_of_the_curious(doors: Doors) -> list[str]:
    """All that there is in the schema, read, written and called."""
    doors.rows("SET search_path = pg_catalog")  # so that types are named with their schema
    tables = [
        f"penstock.{name}"
        for (name,) in doors.rows(
            "SELECT relname FROM pg_class WHERE relnamespace = 'penstock'::regnamespace"
            " AND relkind IN ('r', 'p')"
        )
    ]
    views = [
        f"penstock.{name}"
        for (name,) in doors.rows(
            "SELECT relname FROM pg_class WHERE relnamespace = 'penstock'::regnamespace"
            " AND relkind = 'v' AND relname <> 'outbox'"
        )
    ]
    functions = [
        name
        for (name,) in doors.rows(
            "SELECT format('penstock.%I(%s)', proname, (SELECT string_agg('NULL::' ||"
            " format_type(a, NULL), ', ' ORDER BY n) FROM unnest(proargtypes) WITH ORDINALITY AS"
            " x (a, n))) FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace"
            " AND proname NOT IN ('produce', 'headers_as_json', 'take_record_unasked')"
            # Strict ones are not called with NULL.
            " AND prorettype <> 'trigger'::regtype AND NOT proisstrict"
        )
    ]
    assert len(tables) > 20
    assert len(functions) >= 6
    return [
        *(f"SELECT FROM {relation}" for relation in (*tables, *views)),
        *(f"DELETE FROM {table}" for table in tables),
        *(f"INSERT INTO {table} DEFAULT VALUES" for table in tables),
        *(f"TRUNCATE {table}" for table in tables),
        *(f"LOCK TABLE {table}" for table in tables),
        *(f"SELECT {function}" for function in functions),
        "SELECT * FROM penstock.outbox",
        "UPDATE penstock.outbox SET topic = 't'",
        "DELETE FROM penstock.outbox",
        "INSERT INTO penstock.outbox (topic, value) VALUES ('t', 'v') RETURNING topic",
        "SELECT nextval('penstock.inbox_stamp_seq')",
        "SELECT setval('penstock.inbox_stamp_seq', 1)",
        "CREATE TABLE penstock.mine ()",
        "CREATE FUNCTION penstock.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "DROP TRIGGER take_row ON penstock.outbox",
        "ALTER TABLE penstock.inbox_record_0 DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
    ]


def test_a_producer_reaches_no_table_and_no_other_function(doors: Doors) -> None:
    session = doors.session(doors.make_role("penstock_producer"))
    for statement in statements_of_the_curious(doors):
        assert refused(session, statement).sqlstate in {DENIED, "55000"}, statement


def test_trigger_functions_are_nobodys_to_use(doors: Doors) -> None:
    role = doors.make_role("penstock_producer")
    doors.rows(f"GRANT CREATE ON SCHEMA public TO {role}")
    session = doors.session(role)
    session.execute("CREATE TABLE public.mine (xid xid8)")
    session.commit()
    for function in ("take_row", "begin_commit_0", "stamp_commit_0"):
        error = refused(
            session,
            f"CREATE TRIGGER a AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION"
            f" penstock.{function}()",
        )
        assert error.sqlstate == DENIED


def test_whose_rights_count_is_not_for_the_caller_to_say(doors: Doors) -> None:
    session = doors.session(doors.make_role("penstock_producer"))
    for statement in (
        "INSERT INTO penstock.outbox (topic, value, role) VALUES ('t', 'v', 'postgres')",
        "INSERT INTO penstock.outbox (topic, value, role) VALUES ('t', 'v', DEFAULT)",
        "INSERT INTO penstock.outbox VALUES ('t', 'k', 'v', NULL, NULL, NULL, NULL, NULL, 'a')",
        "COPY penstock.outbox FROM STDIN",
    ):
        assert refused(session, statement).sqlstate == DENIED


@pytest.fixture
def told(doors: Doors) -> Doors:
    """The doors, which ask for rights: of topics by the role's name."""
    doors.rows("UPDATE penstock.sql_door SET asks_rights = true")
    doors.rows(
        "CREATE OR REPLACE FUNCTION penstock.may(role name, operation text, resource_type text,"
        " resource_name text) RETURNS boolean LANGUAGE sql STABLE AS"
        " $$ SELECT role = resource_name AND operation = 'WRITE' AND resource_type = 'TOPIC' $$"
    )
    return doors


def test_the_current_role_counts(told: Doors) -> None:
    one, other = (told.make_role("penstock_producer") for _ in range(2))
    login = told.make_role(one, other)
    told.make_topic(one)
    told.make_topic(other)
    session = told.session(login)

    def produce(topic: str) -> str:
        return f"SELECT penstock.produce('{topic}', 'k', 'v')"

    assert refused(session, produce(one)).sqlstate == DENIED  # it is a member, and not the role
    session.execute(f"SET ROLE {one}".encode())
    session.execute(produce(one).encode())
    session.execute(f"INSERT INTO penstock.outbox (topic, value) VALUES ('{one}', 'v')".encode())
    session.commit()
    assert refused(session, produce(other)).sqlstate == DENIED
    unknown = refused(session, produce("unknown"))
    assert unknown.sqlstate == DENIED  # nor is told whether there is such a topic
    assert f'role "{one}" may not WRITE topic "unknown"' in str(unknown)
    session.execute(f"SET LOCAL ROLE {other}".encode())
    session.execute(produce(other).encode())
    session.commit()
    assert [topic for topic, *_ in told.records()] == [one, one, other]


def test_functions_that_define_their_rights_lend_them(told: Doors) -> None:
    owner, caller = told.make_role("penstock_producer"), told.make_role()
    told.make_topic(owner)
    told.rows(
        "CREATE FUNCTION public.tell(topic text) RETURNS void LANGUAGE sql SECURITY DEFINER AS"
        " $$ SELECT penstock.produce(topic, 'k', 'v') $$"
    )
    told.rows(f"ALTER FUNCTION public.tell OWNER TO {owner}")
    session = told.session(caller)
    assert refused(session, f"SELECT penstock.produce('{owner}', 'k', 'v')").sqlstate == DENIED
    session.execute("SELECT public.tell(%s)", [owner])
    session.commit()
    assert refused(session, "SELECT public.tell('t')").sqlstate == DENIED
    assert len(told.values()) == 1


HOSTILE = """
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.bad() RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the hostile one was called by %', current_user; END $$;
CREATE TABLE hostile.topic AS SELECT gen_random_uuid() AS topic_id, 'mine'::text AS name;
CREATE TABLE hostile.outbox (topic text, key text, value text);
CREATE TABLE hostile.sql_door (slot int);
CREATE DOMAIN hostile.text AS pg_catalog.int4;
CREATE DOMAIN hostile.bytea AS pg_catalog.int4;
CREATE DOMAIN hostile.jsonb AS pg_catalog.int4;
CREATE DOMAIN hostile.bigint AS pg_catalog.int4;
CREATE FUNCTION hostile.eq(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN true; END $$;
CREATE OPERATOR hostile.= (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text,
    FUNCTION = hostile.eq);
CREATE OPERATOR hostile.~ (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text,
    FUNCTION = hostile.eq);
CREATE OPERATOR hostile.~* (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text,
    FUNCTION = hostile.eq);
CREATE FUNCTION hostile.nextval(text pg_catalog.text) RETURNS bigint LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN 1; END $$;
CREATE FUNCTION hostile.convert_to(pg_catalog.text, name) RETURNS pg_catalog.bytea
    LANGUAGE plpgsql AS $$ BEGIN PERFORM hostile.bad(); RETURN ''; END $$;
CREATE FUNCTION hostile.octet_length(pg_catalog.bytea) RETURNS integer LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN 1; END $$;
CREATE FUNCTION hostile.jsonb_typeof(pg_catalog.jsonb) RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN ''; END $$;
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN now(); END $$;
CREATE FUNCTION hostile.current_query() RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN ''; END $$;
CREATE FUNCTION hostile.pg_trigger_depth() RETURNS integer LANGUAGE plpgsql AS
    $$ BEGIN PERFORM hostile.bad(); RETURN 0; END $$;
GRANT ALL ON SCHEMA hostile TO PUBLIC;
GRANT ALL ON ALL TABLES IN SCHEMA hostile TO PUBLIC;
"""


@pytest.mark.parametrize("path", ["hostile, pg_catalog", "pg_temp, hostile, pg_catalog, penstock"])
def test_nothing_is_looked_for_by_the_callers_search_path(doors: Doors, path: str) -> None:
    for statement in HOSTILE.strip().split(";\n"):
        doors.rows(statement)
    session = doors.session(doors.make_role("penstock_producer"))
    session.execute("CREATE TEMPORARY TABLE outbox (topic text, key text, value text)")
    session.execute("CREATE TEMPORARY TABLE sql_door (slot int)")
    session.execute("CREATE TEMPORARY TABLE config_entry (name text, value text)")
    session.execute("CREATE TEMPORARY TABLE inbox_record_0 (xid xid8)")
    session.execute("CREATE TYPE pg_temp.header AS (name int)")
    session.commit()
    session.execute(f"SET search_path = {path}".encode())
    session.commit()
    calls: list[tuple[str, Any]] = [
        ("SELECT penstock.produce('t', 'k', 'v')", None),
        ("SELECT penstock.produce('t', '\\x01'::pg_catalog.bytea, '{}'::pg_catalog.jsonb)", None),
        ("SELECT penstock.produce('t', 'k', 'v', '{\"a\": \"b\"}', 1, pg_catalog.now())", None),
        ("SELECT penstock.produce('t', 'k', 'v', ARRAY[('a', '\\x01')]::penstock.header[])", None),
        ("INSERT INTO penstock.outbox (topic, key, value) VALUES ('t', 'k', 'v')", None),
    ]
    for call, parameters in calls:
        session.execute(call.encode(), parameters)
    session.commit()
    assert refused(session, "SELECT penstock.produce('mine', 'k', 'v')").sqlstate == "PS101"
    assert len(doors.values()) == 5
    assert doors.waiting("header_names")[2:4] == [(["a"],), (["a"],)]
