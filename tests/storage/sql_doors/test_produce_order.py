"""The order of COMMITs, and what would change it: SET CONSTRAINTS, prepared transactions."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from storage.schema import INBOX_SLOTS
from tests.storage.sql_doors.conftest import Doors, refused

WAIT_S = 30.0


def commit_behind(
    doors: Doors, first: psycopg.Connection[Any], second: psycopg.Connection[Any], *statements: str
) -> None:
    """Runs statements in `second`, and its COMMIT; once it waits for a lock, commits `first`."""

    def finish() -> None:
        for each in statements:
            second.execute(each.encode())
        second.commit()

    thread = threading.Thread(target=finish)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while not doors.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", second.info.backend_pid):
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.01)
    first.commit()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.fixture
def accounts(doors: Doors) -> Doors:
    """An application's tables: accounts; movements of them, by a deferred foreign key; and audits,
    whose deferred trigger touches the account."""
    doors.rows("CREATE TABLE public.account (id int PRIMARY KEY, balance int NOT NULL DEFAULT 0)")
    doors.rows("INSERT INTO public.account VALUES (1), (2)")
    doors.rows(
        "CREATE TABLE public.movement (account int CONSTRAINT of_account REFERENCES public.account"
        " DEFERRABLE INITIALLY DEFERRED)"
    )
    doors.rows("CREATE TABLE public.audit (account int)")
    doors.rows(
        "CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE"
        " public.account SET balance = balance + 1 WHERE id = NEW.account; RETURN NULL; END $$"
    )
    doors.rows(
        "CREATE CONSTRAINT TRIGGER audited AFTER INSERT ON public.audit DEFERRABLE INITIALLY"
        " DEFERRED FOR EACH ROW EXECUTE FUNCTION public.audit()"
    )
    return doors


WAITS = {
    "row": "UPDATE account SET balance = balance + 1 WHERE id = 1",
    "deferred trigger": "INSERT INTO audit VALUES (1)",
    "deferred foreign key": "INSERT INTO movement VALUES (1)",
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("slots", [1, 2])
def test_whoever_waited_for_another_comes_behind_it(accounts: Doors, wait: str, slots: int) -> None:
    first, second = accounts.session(), accounts.session()
    second.execute("SELECT penstock.produce('t', 'k', 'second, early')")
    if slots == 2:
        accounts.rows("UPDATE penstock.sql_door SET slot = 1")
    first.execute("SELECT FROM account WHERE id = 1 FOR UPDATE")
    first.execute("SELECT penstock.produce('t', 'k', 'first')")
    late = "SELECT penstock.produce('t', 'k', 'second, late')"
    commit_behind(accounts, first, second, WAITS[wait], late)
    assert accounts.values() == ["first", "second, early", "second, late"]


def test_whoever_saw_another_comes_behind_it(accounts: Doors) -> None:
    first, second = accounts.session(), accounts.session()
    second.execute("SELECT penstock.produce('t', 'k', 'second')")
    first.execute("SELECT penstock.produce('t', 'k', 'first')")
    first.execute("UPDATE account SET balance = 7 WHERE id = 1")
    first.commit()
    assert second.execute("SELECT balance FROM account WHERE id = 1").fetchall() == [(7,)]
    second.commit()
    assert accounts.values() == ["first", "second"]


CONSTRAINTS = ("ALL", "penstock.begin_commit", "penstock.stamp_commit")


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_place_is_not_taken_too_early(doors: Doors, constraints: str, when: str) -> None:
    session = doors.session()
    make_immediate = f"SET CONSTRAINTS {constraints} IMMEDIATE"
    produce = "SELECT penstock.produce('t', 'k', 'v')"
    both = (make_immediate, produce) if when == "before" else (produce, make_immediate)
    session.execute(both[0].encode())
    assert refused(session, both[1]).sqlstate == "PS104"
    session.execute(produce.encode())
    session.commit()
    assert doors.values() == ["v"]


@pytest.mark.parametrize(
    "statement",
    [
        "set  constraints all immediate",
        "-- why\n /* so\n */ SET\nCONSTRAINTS ALL IMMEDIATE",
        "DO $$ BEGIN SET CONSTRAINTS ALL IMMEDIATE; END $$",
        "DO $$ BEGIN EXECUTE 'set constraints all immediate'; END $$",
        "SELECT public.at_once()",
        "DO $$ BEGIN PERFORM public.at_once(); END $$",
    ],
)
def test_making_constraints_immediate_is_noticed_wherever_it_is(
    doors: Doors, statement: str
) -> None:
    doors.rows(
        "CREATE FUNCTION public.at_once() RETURNS void LANGUAGE sql AS"
        " 'SET CONSTRAINTS ALL IMMEDIATE'"
    )
    session = doors.session()
    session.execute("SELECT penstock.produce('t', 'k', 'v')")
    session.execute("SAVEPOINT before")
    with pytest.raises(psycopg.Error) as caught:
        session.execute(statement.encode())
    assert caught.value.sqlstate == "PS104"
    session.execute("ROLLBACK TO before")
    session.commit()
    assert doors.values() == ["v"]


def test_constraints_of_the_applications_own_may_be_immediate(accounts: Doors) -> None:
    session = accounts.session()
    session.execute("SELECT penstock.produce('t', 'k', '1')")
    session.execute("INSERT INTO movement VALUES (1)")
    session.execute("SET CONSTRAINTS of_account, audited IMMEDIATE")
    session.execute("SELECT penstock.produce('t', 'k', '2')")
    session.execute("SET CONSTRAINTS ALL DEFERRED")
    session.execute("SELECT penstock.produce('t', 'k', 'set constraints all immediate')")
    session.commit()
    session.autocommit = True
    session.execute("SELECT penstock.produce('t', 'k', 'SET CONSTRAINTS')")
    assert accounts.values() == ["1", "2", "set constraints all immediate", "SET CONSTRAINTS"]


def test_prepared_transactions_do_not_produce(doors18: Doors) -> None:
    """By default PostgreSQL does not take them at all; the doors refuse before that is noticed."""
    for looks in (False, True):
        session = doors18.session()
        if looks:
            doors18.rows("SELECT pg_advisory_lock(5784113066287911025)")
        session.execute("SELECT penstock.produce('t', 'k', 'v')")
        assert refused(session, "PREPARE TRANSACTION 'a'").sqlstate in {"PS104", "55000"}
    assert doors18.values() == []


def test_a_transaction_has_one_stamp(doors: Doors) -> None:
    session = doors.session()
    for slot in range(INBOX_SLOTS):
        doors.rows("UPDATE penstock.sql_door SET slot = %s", slot)
        session.execute("SELECT penstock.produce('t', 'k', 'v') FROM generate_series(1, 3)")
    session.commit()
    assert (len(doors.values()), doors.commits()) == (9, 1)
