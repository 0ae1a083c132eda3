"""Who is connected to the process, and how fast connections come: one account for all listeners.

As Kafka's ConnectionQuotas. Knows no socket, and not what the connections are for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from core.config.types import INT_MAX
from core.quota.bucket import TokenBucket
from core.quota.rules import read_address

_BUCKETS_BEFORE_A_LOOK: Final = 1_000
_LONGEST_WAIT_S: Final = 1.0
_SLOWEST: Final = 0.001  # a bucket has to be filled

RateOfAddress = Callable[[str], float | None]
"""Connections a second that an address may make; None without a limit."""


@dataclass(frozen=True, slots=True)
class Most:
    """Of the process, or of one listener. creation_rate: a second."""

    connections: int = INT_MAX
    creation_rate: int = INT_MAX


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """Names are Kafka's properties. by_listener: what listeners have of their own, by name."""

    of_all: Most = Most()
    max_connections_per_ip: int = INT_MAX
    max_connections_per_ip_overrides: Mapping[IPv4Address | IPv6Address, int] = field(
        default_factory=dict
    )
    by_listener: Mapping[str, Most] = field(default_factory=dict)


class ConnectionAccount:
    """burst_s: what an address may make at once, as seconds of its rate; see KIP-612.

    rate_of: what quotas say of an address; set once quotas are known.
    """

    def __init__(self, limits: AccountLimits, burst_s: float = 10.0) -> None:
        self.limits = limits
        self.rate_of: RateOfAddress = lambda ip: None
        self.observe: Callable[[float], None] = lambda seconds: None
        self._burst_s = burst_s
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}  # of addresses
        self._look_at = _BUCKETS_BEFORE_A_LOOK
        self._rates: dict[str, TokenBucket] = {}  # of listeners, and of all under ""

    def refusal(self, listener: str, ip: str) -> str | None:
        """Why there is no place for one more connection from this address."""
        limits = self.limits
        own = limits.by_listener.get(listener)
        if self._per_listener.total() >= limits.of_all.connections:
            return f"there are {limits.of_all.connections} connections (max.connections)"
        if own is not None and self._per_listener[listener] >= own.connections:
            return f"there are {own.connections} connections at its listener (max.connections)"
        most = limits.max_connections_per_ip
        if limits.max_connections_per_ip_overrides and (address := read_address(ip)) is not None:
            most = limits.max_connections_per_ip_overrides.get(address, most)
        if self._per_ip[ip] >= most:
            return f"there are {most} connections from its address (max.connections.per.ip)"
        return None

    def enter(self, listener: str, ip: str) -> None:
        """A connection is there; `leave` once it is not."""
        self._per_ip[ip] += 1
        self._per_listener[listener] += 1

    def leave(self, listener: str, ip: str) -> None:
        """It is gone."""
        self._per_listener[listener] -= 1
        self._per_ip[ip] -= 1
        if not self._per_ip[ip]:
            del self._per_ip[ip]

    def hold_s(self, ip: str) -> float:
        """For how long a connection of an address that makes too many is held before it is closed;
        0 for one that is let in, which then counts."""
        rate = self.rate_of(ip)
        if rate is None:
            return 0.0
        now = _now()
        bucket = self._buckets.get(ip)
        if bucket is None:
            if len(self._buckets) >= self._look_at:
                self._buckets = {
                    each: kept for each, kept in self._buckets.items() if not kept.is_full(now)
                }
                self._look_at = max(_BUCKETS_BEFORE_A_LOOK, 2 * len(self._buckets))
            bucket = self._buckets[ip] = TokenBucket(rate, self._burst_s, now)
        elif bucket.rate != rate:
            bucket.change_rate(rate, now)
        bucket.take(1, now)
        owed_s = bucket.owed_s(now)
        if owed_s > 0:
            bucket.give_back(1, now)
        held_s = min(owed_s, _LONGEST_WAIT_S)
        if held_s > 0:
            self.observe(held_s)
        return held_s

    def pause_s(self, listener: str) -> float:
        """A connection was let in: for how long its listener is not to accept another one."""
        own = self.limits.by_listener.get(listener, Most())
        return max(
            self._use("", self.limits.of_all.creation_rate), self._use(listener, own.creation_rate)
        )

    def _use(self, name: str, rate: int) -> float:
        if rate == INT_MAX:
            return 0.0
        now = _now()
        bucket = self._rates.get(name)
        if bucket is None or bucket.rate != max(rate, _SLOWEST):
            bucket = self._rates[name] = TokenBucket(max(rate, _SLOWEST), 1.0, now)
        bucket.take(1, now)
        return min(bucket.owed_s(now), _LONGEST_WAIT_S)


def _now() -> float:
    return asyncio.get_running_loop().time()
