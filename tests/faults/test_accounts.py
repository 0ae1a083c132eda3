"""The checker of accounts: what is right passes, and each broken promise is found by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.accounts import Account, Entry, Flaw, check_accounts, parse

LOG = [
    Entry("a", 1, 1, -7, -7, 10),
    Entry("a", 2, 1, 7, 7, 10),
    Entry("b", 2, 2, -7, 0, 11),
    Entry("b", 1, 2, 7, 0, 11),
    Entry("c", 1, 3, 3, 3, 12),
]
ACCOUNTS = {1: Account(3, 3), 2: Account(2, 0), 3: Account(0, 0)}
MOVEMENTS = {"a": 2, "b": 2, "c": 1}


def flaws(log: list[Entry]) -> set[Flaw]:
    return {each.flaw for each in check_accounts(log, ACCOUNTS, MOVEMENTS)}


def test_what_is_right_passes() -> None:
    assert flaws(LOG) == set()
    assert flaws([LOG[1], LOG[0], *LOG[2:]]) == set(), "only an account's own order counts"


@pytest.mark.parametrize(
    ("log", "flaw"),
    [
        (LOG[:4], Flaw.LOST),
        ([*LOG[:2], *LOG[4:]], Flaw.LOST),
        ([*LOG[:1], *LOG[2:]], Flaw.TORN),
        ([*LOG, LOG[4]], Flaw.DOUBLED),
        ([*LOG[2:4], *LOG[:2], LOG[4]], Flaw.REORDERED),
        ([replace(LOG[0], commit=9), *LOG[1:]], Flaw.TORN),
        ([*LOG, Entry("d", 1, 4, 1, 4, 13)], Flaw.INVENTED),
        ([*LOG, Entry("d", 9, 1, 1, 1, 13)], Flaw.INVENTED),
        ([*LOG[:4], replace(LOG[4], delta=4)], Flaw.WRONG),
        ([*LOG[:4], replace(LOG[4], delta=4, balance=4)], Flaw.WRONG),
    ],
)
def test_a_broken_promise_is_found(log: list[Entry], flaw: Flaw) -> None:
    assert flaw in flaws(log)


def test_a_value_is_read() -> None:
    value = b'{"a": 1, "b": -7, "d": -7, "m": "a", "s": 1}'
    assert parse(value, 10) == LOG[0]
