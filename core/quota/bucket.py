"""How a rate is kept to: a bucket of tokens, filled at the rate, that may be in debt.

Why a bucket, and not Kafka's sampled windows: docs/decisions/0011-quotas.md. For
`controller_mutation_rate` Kafka has a bucket as well (KIP-599, TokenBucket). Knows no clock: times
are handed in, in seconds of one that never goes back.
"""

from __future__ import annotations

from math import inf


class TokenBucket:
    """rate: tokens a second, greater than 0. burst_s: it holds what comes in so many seconds.
    debt_s: what would take longer than so many seconds to repay is forgotten. is_full: at first, or
    empty.
    """

    __slots__ = ("_at", "_burst_s", "_debt_s", "_rate", "_tokens")

    def __init__(
        self,
        rate: float,
        burst_s: float,
        now: float,
        *,
        debt_s: float = inf,
        is_full: bool = True,
    ) -> None:
        self._rate = rate
        self._burst_s = burst_s
        self._debt_s = debt_s
        self._tokens = rate * burst_s if is_full else 0.0
        self._at = now

    @property
    def rate(self) -> float:
        return self._rate

    def change_rate(self, rate: float, now: float) -> None:
        """From now on. What is owed is owed still; it is repaid at the new rate."""
        self._fill(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def take(self, amount: float, now: float) -> None:
        """Takes tokens, though they may not be there: they are owed then."""
        self._fill(now)
        self._tokens = max(self._tokens - amount, -self._debt_s * self._rate)

    def give_back(self, amount: float, now: float) -> None:
        """What was taken and not used."""
        self._fill(now)
        self._tokens = min(self._tokens + amount, self._rate * self._burst_s)

    def owed_s(self, now: float) -> float:
        """Seconds until nothing is owed."""
        self._fill(now)
        return max(0.0, -self._tokens / self._rate)

    def is_full(self, now: float) -> bool:
        """Whether nothing was taken for long."""
        self._fill(now)
        return self._tokens >= self._rate * self._burst_s

    def _fill(self, now: float) -> None:
        if now > self._at:
            most = self._rate * self._burst_s
            self._tokens = min(most, self._tokens + (now - self._at) * self._rate)
            self._at = now
