"""The checker of transactions finds each anomaly it is fed, and nothing where all is well."""

from __future__ import annotations

import pytest

from tests.faults.txn_history import (
    Ending,
    TxnFlaw,
    TxnHistory,
    Value,
    check_transactions,
    parse,
)

A1 = [Value("a", 1, index).encode() for index in range(3)]
A2 = [Value("a", 2, index).encode() for index in range(2)]
A3 = [Value("a", 3, index).encode() for index in range(1)]


def history(second: Ending = Ending.ABORTED) -> TxnHistory:
    """Three transactions of one producer: over two partitions, over two, over one."""
    made = TxnHistory()
    made.begin("a", 1, [0, 1, 0], True)
    made.end("a", 1, Ending.COMMITTED)
    made.begin("a", 2, [0, 1], True)
    made.end("a", 2, second)
    made.begin("a", 3, [0], True)
    made.end("a", 3, Ending.COMMITTED)
    return made


WELL = {0: [A1[0], A1[2], A3[0]], 1: [A1[1]]}
EVERYTHING = {0: [A1[0], A1[2], A2[0], A3[0]], 1: [A1[1], A2[1]]}


def flaws(
    committed: dict[int, list[bytes]],
    everything: dict[int, list[bytes]] = EVERYTHING,
    offsets: int = 4,
    second: Ending = Ending.ABORTED,
) -> set[TxnFlaw]:
    found = check_transactions(history(second), committed, everything, {"a": offsets})
    return {each.flaw for each in found}


def test_flawless_history_has_no_anomaly() -> None:
    assert flaws(WELL) == set()


@pytest.mark.parametrize("is_there", [True, False])
def test_an_unknown_end_may_be_either(is_there: bool) -> None:
    committed = {0: [A1[0], A1[2], A2[0], A3[0]], 1: [A1[1], A2[1]]} if is_there else WELL
    assert flaws(committed, second=Ending.UNKNOWN) == set()


@pytest.mark.parametrize(
    ("committed", "flaw"),
    [
        ({0: [A1[0], A3[0]], 1: [A1[1]]}, TxnFlaw.TORN),
        ({0: [A3[0]], 1: []}, TxnFlaw.LOST),
        ({0: [A1[0], A1[2], A2[0], A3[0]], 1: [A1[1], A2[1]]}, TxnFlaw.DIRTY),
        ({0: [A1[0], A1[2], A1[2], A3[0]], 1: [A1[1]]}, TxnFlaw.DUPLICATED),
        ({0: [A3[0], A1[0], A1[2]], 1: [A1[1]]}, TxnFlaw.REORDERED),
        ({0: [A1[0], A1[2], A3[0], b"b|1|0"], 1: [A1[1]]}, TxnFlaw.INVENTED),
        ({0: [A1[0], A1[2], A3[0], b"nonsense"], 1: [A1[1]]}, TxnFlaw.INVENTED),
        ({0: [A1[0], A1[2], A3[0]], 1: [A1[1], A3[0]]}, TxnFlaw.INVENTED),
    ],
)
def test_each_anomaly_is_found(committed: dict[int, list[bytes]], flaw: TxnFlaw) -> None:
    assert flaw in flaws(committed)


def test_an_open_one_must_not_be_seen() -> None:
    committed = {0: [A1[0], A1[2], A2[0], A3[0]], 1: [A1[1], A2[1]]}
    assert TxnFlaw.DIRTY in flaws(committed, second=Ending.OPEN)


def test_a_torn_unknown_one_is_found() -> None:
    committed = {0: [A1[0], A1[2], A2[0], A3[0]], 1: [A1[1]]}
    assert flaws(committed, second=Ending.UNKNOWN) >= {TxnFlaw.TORN}


def test_a_zombie_is_found_in_what_nobody_committed() -> None:
    everything = {0: [A1[0], A1[2], A3[0], A2[0]], 1: [A1[1], A2[1]]}
    assert flaws(WELL, everything) == {TxnFlaw.ZOMBIE}


@pytest.mark.parametrize("offset", [0, 2, 3, 5])
def test_offsets_apart_from_their_records_are_found(offset: int) -> None:
    assert flaws(WELL, offsets=offset) == {TxnFlaw.OFFSETS_APART}


def test_values_name_themselves() -> None:
    assert parse(Value("a", 7, 3).encode()) == Value("a", 7, 3)
    assert parse(b"a|b|c") is None
    assert parse(b"\xff") is None
