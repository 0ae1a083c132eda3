"""gateway.workers.backoff: it grows, ends growing, and is forgotten."""

from __future__ import annotations

from gateway.workers.backoff import FIRST_S, FORGOTTEN_AFTER_S, LONGEST_S, Backoff


def test_it_doubles_up_to_a_limit_and_is_forgotten_after_a_good_while() -> None:
    backoff = Backoff()
    waits = [backoff.after(0.1) for _ in range(12)]
    assert waits[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert waits[-2:] == [LONGEST_S, LONGEST_S]
    assert backoff.after(FORGOTTEN_AFTER_S - 1) == LONGEST_S
    assert backoff.after(FORGOTTEN_AFTER_S) == FIRST_S
    assert backoff.after(1) == 2 * FIRST_S
