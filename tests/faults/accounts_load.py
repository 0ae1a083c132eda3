"""Sessions that move money between accounts under row locks, and produce each movement.

They wait for each other in all ways: in statements, in deferred triggers, and in deferred triggers
that those call up. They go back to savepoints, roll back, stay open, run into deadlocks, and are
killed. Must not know what else is being broken.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg
from psycopg import errors

from tests.faults.accounts import Account
from tests.faults.workers import Workers

ACCOUNTS = 6
"""Beside them there are one for each dawdler and two that only triggers move."""
FEES, TAXES = 1_001, 1_002
TOPIC = "movements"

SCHEMA = f"""
CREATE SCHEMA bank;
CREATE TABLE bank.account (
    account integer PRIMARY KEY,
    sequence bigint NOT NULL DEFAULT 0,
    balance bigint NOT NULL DEFAULT 0
);
-- Whether a session's COMMIT took place, should it not hear of it; and how many records it has.
CREATE TABLE bank.movement (movement text PRIMARY KEY, records integer NOT NULL);
CREATE TABLE bank.fee (movement text NOT NULL);
CREATE TABLE bank.tax (movement text NOT NULL);

-- The row's lock orders the movements of an account.
CREATE FUNCTION bank.move(of_movement text, of_account integer, delta bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moved bank.account%ROWTYPE;
BEGIN
    UPDATE bank.account a SET sequence = a.sequence + 1, balance = a.balance + delta
    WHERE a.account = of_account RETURNING * INTO STRICT moved;
    PERFORM penstock.produce('{TOPIC}', of_account::text, jsonb_build_object(
        'm', of_movement, 'a', of_account, 's', moved.sequence, 'd', delta, 'b', moved.balance));
END $$;

-- At COMMIT: waits there for whoever pays a fee, too.
CREATE FUNCTION bank.take_fee() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bank.move(NEW.movement, {FEES}, 1);
    INSERT INTO bank.tax VALUES (NEW.movement);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER take_fee AFTER INSERT ON bank.fee
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bank.take_fee();
-- And once more behind that.
CREATE FUNCTION bank.take_tax() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bank.move(NEW.movement, {TAXES}, 1);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER take_tax AFTER INSERT ON bank.tax
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bank.take_tax();
"""

# Another session's deadlock, or that it was first; and what ends a session.
_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


def prepare(url: str, dawdlers: int = 1) -> None:
    """Makes the tables."""
    numbers = [*range(1, ACCOUNTS + 1), FEES, TAXES, *range(101, 101 + dawdlers)]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
        for each in numbers:
            connection.execute("INSERT INTO bank.account (account) VALUES (%s)", [each])


def told(url: str) -> tuple[dict[int, Account], dict[str, int]]:
    """What the tables say: accounts, and committed movements with their numbers of records."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT account, sequence, balance FROM bank.account").fetchall()
        movements = connection.execute("SELECT movement, records FROM bank.movement").fetchall()
    return {row[0]: Account(*row[1:]) for row in rows}, dict(movements)


class Sessions(Workers):
    """Each mover is a session that begins anew when it is lost; a dawdler's transactions stay open
    for as long as dawdle_s, and hold up nobody's account but its own."""

    progress = 5
    progress_s = 60.0

    def __init__(
        self, url: str, seed: int, movers: int = 6, dawdlers: int = 1, dawdle_s: float = 1.5
    ) -> None:
        super().__init__()
        self._url = url
        self._done: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self._dawdle_s = dawdle_s
        self.acknowledged: set[str] = set()
        for number in range(movers):
            self._add_session(f"mover-{number}", seed * 1_000 + number, self._move)
        for number in range(dawdlers):
            dawdle = partial(self._dawdle, account=101 + number)
            self._add_session(f"dawdler-{number}", seed * 1_000 + 500 + number, dawdle)

    def _add_session(self, name: str, seed: int, work: Any) -> None:
        if name.startswith("mover"):
            self._done[name] = 0
        self._add(name, partial(self._run, name, random.Random(seed), work))

    def done(self) -> Mapping[str, int]:
        """Committed movements, as far as sessions were told."""
        return dict(self._done)

    def told(self) -> object:
        return dict(self._said)

    def _run(self, name: str, chance: random.Random, work: Any) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._url, application_name="bank") as session:
                    session.execute("SET lock_timeout = '5s'")
                    session.commit()
                    while not self._stop.is_set():
                        number += 1
                        movement = f"{name}-{number}"
                        with contextlib.suppress(*_AGAIN):
                            if work(session, chance, movement):
                                self.acknowledged.add(movement)
                                self._done[name] = self._done.get(name, 0) + 1
                        session.rollback()
            except _LOST as error:
                said = type(error).__name__
                self._said[said] = self._said.get(said, 0) + 1
                self._stop.wait(0.05)

    def _move(self, session: psycopg.Connection[Any], chance: random.Random, movement: str) -> bool:
        """One transaction; whether it was committed."""
        level = chance.choice(["READ COMMITTED"] * 3 + ["REPEATABLE READ", "SERIALIZABLE"])
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        accounts = chance.sample(range(1, ACCOUNTS + 1), 2)
        records = 2
        fee = chance.random() < 0.3
        if fee and chance.random() < 0.5:  # its trigger runs before those of what is produced
            session.execute("INSERT INTO bank.fee VALUES (%s)", [movement])
        if chance.random() < 0.3:  # all locks first; else each when it is needed
            session.execute(
                "SELECT FROM bank.account WHERE account = ANY (%s) ORDER BY random() FOR UPDATE",
                [accounts],
            )
        for account, delta in zip(accounts, (-7, 7), strict=True):
            session.execute("SELECT bank.move(%s, %s, %s)", [movement, account, delta])
            self._pause(chance)
            if chance.random() < 0.2:
                session.execute("SAVEPOINT here")
                other = chance.randint(1, ACCOUNTS)
                session.execute("SELECT bank.move(%s, %s, 1000)", [f"{movement}-no", other])
                if chance.random() < 0.3:
                    with contextlib.suppress(errors.RaiseException, errors.DivisionByZero):
                        session.execute("SELECT 1 / 0")
                session.execute("ROLLBACK TO here")
        fees = session.execute("SELECT count(*) FROM bank.fee WHERE movement = %s", [movement])
        if fee and fees.fetchone() == (0,):
            session.execute("INSERT INTO bank.fee VALUES (%s)", [movement])
        records += 2 * fee
        session.execute("INSERT INTO bank.movement VALUES (%s, %s)", [movement, records])
        if chance.random() < 0.1:
            session.rollback()
            return False
        session.commit()
        return True

    def _dawdle(
        self,
        session: psycopg.Connection[Any],
        chance: random.Random,
        movement: str,
        *,
        account: int,
    ) -> bool:
        session.execute("SELECT bank.move(%s, %s, 3)", [movement, account])
        session.execute("INSERT INTO bank.movement VALUES (%s, 1)", [movement])
        self._stop.wait(chance.uniform(0, self._dawdle_s))
        session.commit()
        return True

    def _pause(self, chance: random.Random) -> None:
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0, 0.01))
