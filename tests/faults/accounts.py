"""Accounts whose movements are records: what the table says, against what a topic holds of it.

Each movement of an account is a record under its number, with a sequence that rises by one and the
balance after it: so the records of an account, in order, are its history. Must not know what is
broken, nor any client or broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Flaw(Enum):
    """A broken promise."""

    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "out of order"
    TORN = "torn"
    INVENTED = "invented"
    WRONG = "wrong balance"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise and where."""

    flaw: Flaw
    where: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A record: a movement of an account. commit: of whatever has appended it."""

    movement: str
    account: int
    sequence: int
    delta: int
    balance: int
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """A row of the table."""

    sequence: int
    balance: int


def parse(value: bytes, commit: int) -> Entry:
    """The entry that a record's value is."""
    fields = json.loads(value)
    return Entry(
        fields["m"], int(fields["a"]), int(fields["s"]), int(fields["d"]), int(fields["b"]), commit
    )


def check_accounts(
    entries: Iterable[Entry], accounts: Mapping[int, Account], movements: Mapping[str, int]
) -> list[Anomaly]:
    """Every anomaly. entries: in the order of the log, all of an account lie in one partition.
    movements: what was committed, and how many records each has."""
    anomalies: list[Anomaly] = []
    by_account: dict[int, list[Entry]] = {number: [] for number in accounts}
    by_movement: dict[str, list[Entry]] = {}
    for each in entries:
        by_account.setdefault(each.account, []).append(each)
        by_movement.setdefault(each.movement, []).append(each)
    for number, found in sorted(by_account.items()):
        anomalies += _check_account(number, found, accounts.get(number, Account(0, 0)))
    for movement, found in sorted(by_movement.items()):
        if movement not in movements:
            anomalies.append(Anomaly(Flaw.INVENTED, f"{movement}: {found}"))
        elif len({(e.account, e.sequence) for e in found}) != movements[movement]:
            where = f"{movement}: {len(found)} records of {movements[movement]}"
            anomalies.append(Anomaly(Flaw.TORN, where))
        elif len({each.commit for each in found}) > 1:
            anomalies.append(Anomaly(Flaw.TORN, f"{movement}: several commits, {found}"))
    anomalies += [
        Anomaly(Flaw.LOST, f"{movement}, whole") for movement in movements.keys() - by_movement
    ]
    return anomalies


def _check_account(number: int, found: list[Entry], account: Account) -> list[Anomaly]:
    anomalies = []
    seen: set[int] = set()
    last = 0
    for each in found:
        where = f"account {number}, sequence {each.sequence} behind {last} ({each.movement})"
        if each.sequence in seen:
            anomalies.append(Anomaly(Flaw.DOUBLED, where))
            continue
        if each.sequence < last:
            anomalies.append(Anomaly(Flaw.REORDERED, where))
        seen.add(each.sequence)
        last = max(last, each.sequence)
    missing = sorted(set(range(1, account.sequence + 1)) - seen)
    if missing:
        where = f"account {number}: {len(missing)} of {account.sequence}, {missing[:10]} …"
        anomalies.append(Anomaly(Flaw.LOST, where))
    if last > account.sequence:
        where = f"account {number}: {last}, beyond {account.sequence}"
        anomalies.append(Anomaly(Flaw.INVENTED, where))
    if not anomalies:
        balance = 0
        for each in found:
            balance += each.delta
            if balance != each.balance:
                anomalies.append(Anomaly(Flaw.WRONG, f"account {number} at {each.sequence}"))
                break
        if balance != account.balance:
            where = f"account {number}: {balance}, not {account.balance}"
            anomalies.append(Anomaly(Flaw.WRONG, where))
    return anomalies


def summary(anomalies: Iterable[Anomaly], limit: int = 20) -> str:
    """For an assertion's message: how many of each, and the first ones."""
    listed = list(anomalies)
    counts: dict[str, int] = {}
    for each in listed:
        counts[each.flaw.value] = counts.get(each.flaw.value, 0) + 1
    return "\n".join([str(counts), *(f"{e.flaw.value}: {e.where}" for e in listed[:limit])])
