"""The totals of delays: what is wrong with them is noticed."""

from __future__ import annotations

from demo import delays

FLIGHTS = [
    (b"N1", b'{"carrier": "UA", "arr_delay": 12.0}'),
    (None, b'{"carrier": "UA", "arr_delay": null}'),
    (b"N2", b'{"carrier": "B6", "arr_delay": -7.0}'),
]


def added_up(values: list[bytes]) -> delays.Totals:
    """Through the records that a process writes."""
    once, again = delays.Totals(), delays.Totals()
    for value in values:
        once.add(value)
    for carrier, value in once.records():
        again.take(carrier, value)
    return again


def test_totals_are_those_of_the_flights() -> None:
    totals = added_up([value for _, value in FLIGHTS])
    assert totals.flights == {"UA": 2, "B6": 1}
    assert totals.minutes == {"UA": 12, "B6": -7}
    assert list(delays.Delays(totals, delays.KILLS, 0).problems(FLIGHTS)) == []


def test_a_flight_too_few_and_one_that_is_none_are_noticed() -> None:
    totals = added_up([FLIGHTS[0][1], FLIGHTS[2][1], b"not a flight"])
    assert list(delays.Delays(totals, delays.KILLS - 1, 0).problems(FLIGHTS)) == [
        "flights of UA, no carrier are wrong",
        "killed only 4 times",
    ]


def test_a_batch_counted_twice_is_noticed() -> None:
    totals = added_up([value for _, value in [*FLIGHTS, FLIGHTS[2]]])
    assert list(delays.Delays(totals, delays.KILLS, 0).problems(FLIGHTS)) == [
        "flights of B6 are wrong",
        "minutes of B6 are wrong",
    ]
