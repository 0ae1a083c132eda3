"""tests.faults.pulsar_ledger: each broken promise is found, and none where there is none."""

from __future__ import annotations

import pytest

from tests.faults.pulsar_ledger import (
    Cursor,
    Delivery,
    Ledger,
    Name,
    Pause,
    Sent,
    Session,
    Told,
    check_cursor,
    check_deliveries,
    check_keys,
    check_log,
    check_readers,
    name_in,
)


def names(*sequences: int) -> dict[int, bytes]:
    """A log with these messages, in this order."""
    return {at: Name("p", each).value for at, each in enumerate(sequences)}


@pytest.mark.parametrize(
    ("log", "flaw"),
    [
        (names(0, 1, 2), None),
        (names(0, 1), "lost"),
        (names(0, 2, 1), "reordered"),
        (names(0, 1, 2, 1), "twice"),
        ({**names(0, 1), 5: Name("p", 2).value}, "misplaced"),
        ({**names(0, 1, 2), 3: b"q|0|"}, "invented"),
        ({**names(0, 1, 2), 3: b"?"}, "invented"),
    ],
)
def test_the_log(log: dict[int, bytes], flaw: str | None) -> None:
    ledger = Ledger({Name("p", n): Sent("t", has_receipt=True, offset=n) for n in range(3)})
    found = {each.partition(":")[0] for each in check_log(ledger, "t", log, is_deduplicated=True)}
    # What lies elsewhere than it was told is misplaced, too.
    assert found - {"misplaced"} == {flaw} - {None, "misplaced"}
    assert flaw != "misplaced" or found == {"misplaced"}


def test_what_may_be_there_twice() -> None:
    ledger = Ledger({Name("p", 0): Sent("t", has_receipt=True, offset=1)})
    assert not check_log(ledger, "t", names(0, 0), is_deduplicated=False)


def test_readers() -> None:
    assert not check_readers("t", {"a": names(0, 1), "b": names(0, 1)})
    assert len(check_readers("t", {"a": names(0, 1), "b": names(0), "c": names(1, 1)})) == 2


def delivery(at: float, session: int, offset: int, key: str = "k", again: int = 0) -> Delivery:
    return Delivery(at, session, offset, None, key, again)


def told(at: float, session: int, *offsets: int, below: int = 0) -> Told:
    return Told(at, session, offsets, below)


def with_sessions(**changes: list[object]) -> Ledger:
    """Two sessions at broker 1, one later at 2."""
    sessions = [Session("s", "t", broker, True, at) for broker, at in ((1, 0), (1, 0), (2, 50))]
    return Ledger(sessions=sessions, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ledger", "flaw"),
    [
        (with_sessions(deliveries=[delivery(1, 0, 5)], receipts=[told(2, 0, 5)]), None),
        (
            with_sessions(deliveries=[delivery(3, 0, 5)], receipts=[told(2, 0, 5)]),
            "after its receipt",
        ),
        # It may have been on its way to the other one.
        (with_sessions(deliveries=[delivery(2.1, 1, 5)], receipts=[told(2, 0, 5)]), None),
        (
            with_sessions(deliveries=[delivery(9, 1, 5)], receipts=[told(2, 0, below=6)]),
            "after its receipt",
        ),
        (
            with_sessions(deliveries=[delivery(50.1, 2, 5)], receipts=[told(49.9, 0, below=6)]),
            "after its receipt",
        ),
        (with_sessions(deliveries=[delivery(51, 2, 6)], receipts=[told(2, 0, below=6)]), None),
        (with_sessions(deliveries=[delivery(1, 0, 5), delivery(2, 0, 5)]), "twice in a session"),
        (
            with_sessions(
                deliveries=[delivery(1, 0, 5), delivery(2, 0, 5)], given_back=[told(1.5, 0, 5)]
            ),
            None,
        ),
        (
            with_sessions(deliveries=[delivery(1, 0, 5), delivery(2, 0, 5)], turns=[(1.5, 0)]),
            None,
        ),
        (
            with_sessions(deliveries=[delivery(9, 0, 5)], pauses=[Pause(1, 2, 8)]),
            "of a former owner",
        ),
        (with_sessions(deliveries=[delivery(51, 2, 5)], pauses=[Pause(2, 2, 8)]), None),
    ],
)
def test_deliveries(ledger: Ledger, flaw: str | None) -> None:
    found = [each.partition(":")[0] for each in check_deliveries(ledger)]
    assert found == ([] if flaw is None else [flaw])


@pytest.mark.parametrize(
    ("deliveries", "acknowledged", "flaw"),
    [
        ([delivery(1, 0, 5), delivery(2, 0, 6)], [], None),
        ([delivery(1, 0, 5), delivery(2, 1, 6)], [], "two have a key"),
        ([delivery(1, 0, 5), delivery(2, 1, 6)], [told(1.5, 0, 5)], None),
        ([delivery(1, 0, 5), delivery(2, 1, 6, "other")], [], None),
        ([delivery(1, 0, 5), delivery(60, 2, 5)], [], None),  # of the next owner
        ([delivery(1, 0, 6), delivery(2, 0, 5)], [], "a key out of order"),
        ([delivery(1, 0, 6), delivery(2, 0, 5, again=1)], [], None),
    ],
)
def test_keys(deliveries: list[Delivery], acknowledged: list[Told], flaw: str | None) -> None:
    ledger = with_sessions(deliveries=[*deliveries], acknowledged=[*acknowledged])
    found = [each.partition(":")[0] for each in check_keys(ledger, "s")]
    assert found == ([] if flaw is None else [flaw])


def test_cursors() -> None:
    ledger = with_sessions(receipts=[told(1, 0, 7, 9), told(2, 0, below=4)])
    assert not check_cursor(ledger, "s", "t", Cursor(4, ((7, 10),)))
    assert len(check_cursor(ledger, "s", "t", Cursor(3, ((7, 8),)))) == 2


def test_names() -> None:
    assert name_in(Name("a/b", 7).value + b"anything") == Name("a/b", 7)
    assert name_in(b"nothing") is None
