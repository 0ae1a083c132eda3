"""Whose right is asked for when topics are read in SQL, and that nobody can lie about it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg import errors

from storage.migrate import upgrade
from tests.storage.conftest import Log, open_log
from tests.storage.sql_doors.storing import put, record, records

READ = "SELECT value FROM penstock.read('flights', 0)"
SECRET = "SELECT * FROM penstock.read('secrets', 0)"


@dataclass
class Roles:
    """Roles of the test's own: `reader` may read flights, `other` nothing, both are readers."""

    log: Log
    suffix: str = field(default_factory=lambda: secrets.token_hex(4))

    def __post_init__(self) -> None:
        self.reader, self.other = f"reader-{self.suffix}", f"other-{self.suffix}"
        for role in (self.reader, self.other):
            self.log.rows(f'CREATE ROLE "{role}"')
            self.log.rows(f'GRANT penstock_reader TO "{role}"')
        # A stand-in for the rules, which have tests of their own.
        self.log.rows(
            "CREATE OR REPLACE FUNCTION penstock.may(role name, operation text,"
            " resource_type text, resource_name text) RETURNS boolean LANGUAGE sql"
            f" RETURN role = '{self.reader}' AND (operation, resource_type, resource_name)"
            " = ('READ', 'TOPIC', 'flights')"
        )

    def become(self, role: str) -> None:
        self.log.rows(f'SET ROLE "{role}"')

    def drop(self) -> None:
        self.log.rows("RESET SESSION AUTHORIZATION")
        self.log.rows("RESET ROLE")
        for role in (self.reader, self.other):
            self.log.rows(f'DROP OWNED BY "{role}" CASCADE')
            self.log.rows(f'DROP ROLE "{role}"')


@pytest.fixture
async def roles(log: Log) -> AsyncIterator[Roles]:
    p, q = log.new_partitions(1, "flights") + log.new_partitions(1, "secrets")
    await put(log, p, records(record(b"v")))
    await put(log, q, records(record(b"secret")))
    roles = Roles(log)
    yield roles
    roles.drop()


def is_refused(log: Log, query: str) -> bool:
    """By the rules, not by PostgreSQL."""
    with pytest.raises(psycopg.Error) as caught:
        log.rows(query)
    message = caught.value.diag.message_primary or ""
    return caught.value.sqlstate == "PS101" and message.startswith("TOPIC_AUTHORIZATION_FAILED: ")


def test_the_current_role_is_asked_for(roles: Roles) -> None:
    log = roles.log
    assert is_refused(log, READ)  # who logged in has no right of his own
    roles.become(roles.reader)
    assert log.rows(READ) == [(b"v",)]
    assert is_refused(log, SECRET)
    assert is_refused(log, SECRET.replace("secrets", "not there"))  # nor learns what there is
    roles.become(roles.other)
    assert is_refused(log, READ)
    for name in ("read_text('flights', 0)", "read_between('flights', NULL)"):
        assert is_refused(log, f"SELECT * FROM penstock.{name}")
    log.rows("RESET ROLE")
    log.rows(f'SET SESSION AUTHORIZATION "{roles.reader}"')
    assert log.rows(READ) == [(b"v",)]


def test_within_a_function_that_runs_as_its_owner_he_is_asked_for(roles: Roles) -> None:
    log = roles.log
    schema = f'"s-{roles.suffix}"'
    log.rows(f'CREATE SCHEMA {schema} AUTHORIZATION "{roles.reader}"')
    log.rows(f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC")
    roles.become(roles.reader)
    for name, topic in (("mine", "flights"), ("not_mine", "secrets")):
        log.rows(
            f"CREATE FUNCTION {schema}.{name}() RETURNS SETOF bytea LANGUAGE sql SECURITY DEFINER"
            f" AS $$ SELECT value FROM penstock.read('{topic}', 0) $$"
        )
    log.rows(f"CREATE VIEW {schema}.view AS {READ}")
    log.rows(f"GRANT SELECT ON {schema}.view TO PUBLIC")
    roles.become(roles.other)
    assert log.rows(f"SELECT {schema}.mine()") == [(b"v",)]
    assert is_refused(log, f"SELECT {schema}.not_mine()")
    assert is_refused(log, f"SELECT * FROM {schema}.view")  # runs as whoever looks


def test_nobody_can_say_that_he_is_somebody_else(roles: Roles) -> None:
    log = roles.log
    roles.become(roles.reader)
    stolen = log.value("SELECT proof FROM penstock.caller")
    assert log.value("SELECT role FROM penstock.caller") == roles.reader
    assert log.value("SELECT proof FROM penstock.caller") != stolen
    roles.become(roles.other)
    mine = log.value("SELECT proof FROM penstock.caller")
    guess = "penstock.proof('00000000-0000-0000-0000-000000000000', '{}')"
    for proof in (
        *(f"'\\x{each.hex()}'::bytea" for each in (stolen, mine, b"")),
        *("NULL", "(SELECT proof FROM penstock.caller)", guess.format(roles.reader)),
    ):
        arguments = f"'{roles.reader}', {proof}, 'flights', 0, 0, 9, true, NULL, NULL, NULL"
        assert is_refused(log, f"SELECT * FROM penstock.records({arguments})")
    assert is_refused(
        log, "SELECT * FROM penstock.records(NULL, NULL, NULL, 0, 0, 9, true, NULL, NULL, NULL)"
    )


def test_a_reader_may_do_nothing_else(roles: Roles) -> None:
    log = roles.log
    roles.become(roles.reader)
    for what in (
        "SELECT * FROM penstock.topic",
        "SELECT * FROM penstock.cluster",
        "SELECT * FROM penstock.v_topic",
        "SELECT * FROM penstock.record_chunk_1",
        "SELECT penstock.batch_payload(1, 1, 0, 1)",
        "SELECT penstock.is_caller('x', NULL)",
        "SELECT penstock.may('x', 'READ', 'TOPIC', 'flights')",
        "SELECT penstock.kafka_records(NULL, 0, 1)",
        "SELECT penstock.first_offset_at(1, 0, 1, 1)",
        "CREATE TABLE penstock.mine (n integer)",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            log.rows(what)


def test_who_is_no_reader_may_not_even_call(roles: Roles) -> None:
    log = roles.log
    log.rows(f'REVOKE penstock_reader FROM "{roles.reader}"')
    log.rows(f'GRANT USAGE ON SCHEMA penstock TO "{roles.reader}"')
    roles.become(roles.reader)
    for query in (READ, "SELECT * FROM penstock.caller", "SELECT penstock.text_of('x')"):
        with pytest.raises(errors.InsufficientPrivilege):
            log.rows(query)


def test_what_a_user_has_put_in_the_way_does_not_matter(roles: Roles) -> None:
    log = roles.log
    log.rows(f'CREATE SCHEMA evil AUTHORIZATION "{roles.reader}"')
    log.rows(f'GRANT TEMPORARY ON DATABASE {log.psql.info.dbname} TO "{roles.reader}"')
    roles.become(roles.reader)
    log.rows("SET search_path = evil, pg_temp, pg_catalog")
    for table in (
        "topic",
        "topic_partition",
        "record_batch",
        "record_chunk_1",
        "cluster",
        "caller",
    ):
        log.rows(f"CREATE TEMP TABLE {table} (name text, value bytea)")
    log.rows("CREATE TABLE evil.record_batch (last_offset bigint)")
    for kind in ("integer", "bigint", "name", "text", "bytea"):
        log.rows(
            f"CREATE FUNCTION evil.no(a {kind}, b {kind}) RETURNS boolean LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE 'the trap has sprung'; END $$"
        )
        for operator in ("=", "<>", "<", ">=", "+", "&", "|", "||"):
            log.rows(
                f"CREATE OPERATOR evil.{operator} (FUNCTION = evil.no, LEFTARG = {kind},"
                f" RIGHTARG = {kind})"
            )
    for name, arguments in (
        ("get_byte", "bytea, integer"),
        ("format", "text, integer"),
        ("octet_length", "bytea"),
        ("sha256", "bytea"),
        ("pg_backend_pid", ""),
        ("encode", "bytea, text"),
    ):
        log.rows(
            f"CREATE FUNCTION evil.{name}({arguments}) RETURNS integer LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE 'the trap has sprung'; END $$"
        )
    try:
        with pytest.raises(errors.RaiseException, match="sprung"):
            log.rows("SELECT 1 = 1")
        assert log.rows(READ) == [(b"v",)]
        assert is_refused(log, SECRET)
        between = "SELECT value FROM penstock.read_between_text('flights', NULL)"
        assert log.rows(between) == [("v",)]
    finally:
        log.rows("SET search_path = penstock, public")
        log.rows("DISCARD TEMP")
        log.rows("DROP SCHEMA evil CASCADE")


async def test_the_schemas_owner_needs_not_be_a_superuser(empty_database_url: str) -> None:
    owner = f"owner_{secrets.token_hex(4)}"
    scheme, _, rest = empty_database_url.partition("://")
    url = f"{scheme}://{owner}@{rest.partition('@')[2]}"
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {owner} LOGIN")
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {owner}")
        try:
            upgrade(url)
            async with asynccontextmanager(open_log)(url) as log:
                (p,) = log.new_partitions(1, "flights")
                await put(log, p, records(record(b"v")))
                assert log.rows(READ) == [(b"v",)]
                admin.execute("SET ROLE penstock_reader")
                assert admin.execute(READ).fetchall() == [(b"v",)]
                log.rows("UPDATE penstock.sql_door SET asks_rights = true")
                assert is_refused(log, READ)
        finally:
            admin.execute("RESET ROLE")
            admin.execute(f"DROP OWNED BY {owner} CASCADE")
            admin.execute(f"DROP ROLE {owner}")
