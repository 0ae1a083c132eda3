"""A rate is kept to, whatever is taken, and whenever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.quota.bucket import TokenBucket


@given(
    st.lists(st.floats(0.001, 5_000), min_size=1, max_size=60),
    st.lists(st.floats(0, 3), min_size=60, max_size=60),
)
def test_who_waits_until_nothing_is_owed_keeps_to_the_rate(
    amounts: list[float], pauses: list[float]
) -> None:
    rate, now, used = 1_000.0, 100.0, 0.0
    bucket = TokenBucket(rate, 1.0, now)
    for amount, pause in zip(amounts, pauses, strict=False):
        bucket.take(amount, now)
        used += amount
        now += bucket.owed_s(now)
        assert bucket.owed_s(now) < 1e-6
        # A window of it may have been saved up, and never more.
        assert used <= (now - 100.0 + 1.0) * rate + 1e-3
        now += pause


def test_what_is_more_than_it_holds_is_owed() -> None:
    bucket = TokenBucket(100.0, 1.0, 0.0)
    bucket.take(100.0, 0.0)
    assert bucket.owed_s(0.0) == 0.0
    bucket.take(1_000.0, 0.0)
    assert bucket.owed_s(0.0) == 10.0
    assert bucket.owed_s(4.0) == 6.0
    assert bucket.owed_s(20.0) == 0.0
    assert bucket.is_full(20.0)
    bucket.take(100.0, 20.0)
    assert not bucket.is_full(20.5)
    assert bucket.is_full(21.0)


def test_it_may_be_empty_at_first() -> None:
    bucket = TokenBucket(100.0, 1.0, 5.0, is_full=False)
    bucket.take(50.0, 5.0)
    assert bucket.owed_s(5.0) == 0.5


def test_old_debts_are_forgotten_if_so_wanted() -> None:
    bucket = TokenBucket(1.0, 1.0, 0.0, debt_s=11.0)
    bucket.take(10_000.0, 0.0)
    assert bucket.owed_s(0.0) == 11.0


def test_another_rate_counts_from_now_on() -> None:
    bucket = TokenBucket(1.0, 1.0, 0.0, is_full=False)
    bucket.take(100.0, 0.0)
    bucket.change_rate(1_000.0, 10.0)
    assert bucket.owed_s(10.0) == pytest.approx(0.09)
    bucket.change_rate(1.0, 1_000.0)
    bucket.take(2.0, 1_000.0)
    assert bucket.owed_s(1_000.0) == 1.0


def test_what_is_given_back_was_never_taken() -> None:
    bucket = TokenBucket(1.0, 11.0, 0.0)
    bucket.take(20.0, 0.0)
    bucket.give_back(20.0, 0.0)
    assert bucket.is_full(0.0)


def test_a_clock_that_stands_still_gives_nothing() -> None:
    bucket = TokenBucket(1.0, 1.0, 5.0, is_full=False)
    bucket.take(1.0, 5.0)
    bucket.take(1.0, 4.0)
    assert bucket.owed_s(4.0) == 2.0
