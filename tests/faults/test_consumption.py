"""The checker of acknowledgements finds each anomaly it is fed, and nothing where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.consumption import (
    AckAnomaly,
    AckFlaw,
    Consumed,
    Consumption,
    Delivery,
    Place,
    check_consumption,
    fates,
    written_late,
)
from tests.faults.txn_history import Ending, TxnHistory, Value

SHARED = Place("s", 0)
ALONE = Place("alone", 0)
VALUES = [Value("a", 1, index).encode() for index in range(6)]
LOG = {0: dict(enumerate(VALUES))}
"""One committed transaction wrote all of it."""


def history(second: Ending = Ending.COMMITTED, third: Ending = Ending.ABORTED) -> TxnHistory:
    """The second and the third transaction acknowledge."""
    made = TxnHistory()
    for number, ending in ((1, Ending.COMMITTED), (2, second), (3, third)):
        made.begin("a", number, [0] * 6 if number == 1 else [], False)
        made.end("a", number, ending)
    return made


def delivered(place: Place, offsets: range | list[int], at: float) -> list[Delivery]:
    return [Delivery(at, place, each, VALUES[each]) for each in offsets]


def well() -> Consumption:
    """Of one subscription 0 and 1 were acknowledged in a transaction that committed and 2 in one
    that was aborted after 5 s; of the other all below 3 was, cumulatively."""
    second, third = ("a", 2), ("a", 3)
    return Consumption(
        [
            Consumed(second, SHARED, 0, 1, 2.0, 9.0),
            Consumed(second, SHARED, 1, 2, 2.0, 9.0),
            Consumed(third, SHARED, 2, 3, 2.0, 5.0),
            Consumed(second, ALONE, 0, 3, 2.0, 9.0, is_cumulative=True),
        ],
        [
            *delivered(SHARED, range(6), 1.0),
            *delivered(ALONE, range(6), 1.0),
            *delivered(SHARED, range(2, 6), 10.0),
            *delivered(ALONE, range(3, 6), 10.0),
        ],
    )


DRAINED = {SHARED: range(2, 6), ALONE: range(3, 6)}


def flaws(
    consumption: Consumption,
    of: TxnHistory | None = None,
    log: dict[int, dict[int, bytes]] | None = None,
    drained: dict[Place, range] | None = None,
) -> set[AckFlaw]:
    found = check_consumption(of or history(), consumption, log or LOG, drained or DRAINED)
    return {each.flaw for each in found}


def test_where_all_is_well_there_is_no_anomaly() -> None:
    assert flaws(well()) == set()


@pytest.mark.parametrize("place", [SHARED, ALONE])
@pytest.mark.parametrize("at", [3.0, 8.0, 100.0])
def test_what_was_committed_never_comes_again(place: Place, at: float) -> None:
    made = well()
    made.deliveries += delivered(place, [1], at)
    assert flaws(made) == {AckFlaw.LOST}


def test_what_is_pending_comes_to_nobody() -> None:
    made = well()
    made.deliveries += delivered(SHARED, [2], 4.0)
    assert flaws(made) == {AckFlaw.NOT_WITHHELD}
    made = well()
    made.deliveries += delivered(SHARED, [2], 5.5)  # it has been aborted
    assert flaws(made) == set()


def test_what_was_aborted_comes_again() -> None:
    assert flaws(well(), drained=DRAINED | {SHARED: range(3, 6)}) == {AckFlaw.OUTLIVES}
    assert flaws(well(), drained=DRAINED | {ALONE: range(4, 6)}) == {AckFlaw.OUTLIVES}


def test_what_nobody_acknowledged_comes() -> None:
    assert flaws(well(), drained=DRAINED | {SHARED: range(2, 5)}) == {AckFlaw.OUTLIVES}


def test_two_transactions_consume_nothing_together() -> None:
    made = well()
    made.consumed.append(replace(made.consumed[0], of=("a", 3)))
    assert flaws(made) == set()  # one of them was aborted
    both = history(third=Ending.COMMITTED)
    assert flaws(made, both, drained=DRAINED | {SHARED: range(3, 6)}) >= {AckFlaw.TWICE}


def test_what_is_not_committed_does_not_come() -> None:
    shorter = {0: {offset: VALUES[offset] for offset in range(5)}}
    assert AckFlaw.DIRTY in flaws(well(), log=shorter)
    other = {0: LOG[0] | {5: b"other"}}
    assert AckFlaw.OTHER in flaws(well(), log=other)


@pytest.mark.parametrize("drained", [range(2, 6), range(6)])
def test_of_an_unknown_end_without_records_both_is_well(drained: range) -> None:
    of = history(second=Ending.UNKNOWN)
    made = well()
    made.deliveries += delivered(SHARED, range(2), 11.0) if 0 in drained else []
    assert flaws(made, of, drained=DRAINED | {SHARED: drained}) == set()


def test_an_unknown_end_is_the_same_for_records_and_acknowledgements() -> None:
    """Its records tell how it ended; its acknowledgements must agree."""
    of = history()
    of.attempts["a", 2].ending = Ending.UNKNOWN
    of.attempts["a", 2].partitions = [0]
    written = {0: LOG[0] | {6: Value("a", 2, 0).encode()}}
    assert fates(of, written)["a", 2] is True
    assert fates(of, LOG)["a", 2] is False
    drained = {SHARED: range(2, 7), ALONE: range(3, 7)}
    assert flaws(well(), of, written, drained) == set()
    assert AckFlaw.OUTLIVES in flaws(well(), of, LOG)
    made = well()
    made.deliveries += delivered(SHARED, [0], 11.0)
    assert flaws(made, of, written, drained) == {AckFlaw.LOST}


def test_wrong_answers_are_told() -> None:
    made = well()
    made.wrong.append(AckAnomaly(AckFlaw.CONTRADICTED, "here"))
    assert flaws(made) == {AckFlaw.CONTRADICTED}


def test_what_was_sent_after_the_end_is_found() -> None:
    late = Value("a", 1, 1000)
    assert written_late(history(), LOG) == []
    assert written_late(history(), {0: LOG[0] | {7: late.encode()}}) == [late]
