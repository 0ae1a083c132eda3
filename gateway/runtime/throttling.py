"""How much of this broker clients have used, where quotas limit them: one bucket a rate.

A connection is told for how long it is to be left unread. Buckets are this broker's own, as quotas
are. Knows the rates (`quotas.py`), no wire, and no connection but as what waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from core.errors import Error, Refusal
from core.quota.bucket import TokenBucket
from core.quota.entities import QuotaKey
from core.quota.rules import Limit, QuotaRules, SharedBy

if TYPE_CHECKING:
    from gateway.runtime.quotas import Quotas
    from gateway.runtime.topics.configs import Configs

SHORTEST_S: Final = 0.001
"""A client cannot be told of less, and to stop and begin again would cost more."""
_LIMITS_REMEMBERED: Final = 10_000
_LONGEST_REMEMBERED: Final = 512
"""Characters of a name. A client chooses its id, and may send 32,767 of them."""
_BUCKETS_BEFORE_A_LOOK: Final = 1_000

_EXCEEDED: Final = Refusal(
    Error.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
)
Name = TypeVar("Name", bound=Hashable)
_BucketKey: TypeAlias = tuple[QuotaKey, str | bytes | None, str | bytes | None]

ThrottleObserver = Callable[[str, float], None]
"""Called with a quota's key and the seconds for which a connection is left unread because of it."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What limits a client: its rates, as far as there are any."""

    produce: Limit | None
    consume: Limit | None
    request: Limit | None
    mutation: Limit | None


class Waiting(Protocol):
    """A connection that is left unread."""

    def look_again(self) -> None:
        """Quotas have changed: it may have to wait no longer, or not at all."""


class Throttles:
    """One per process. observe: counts; set by whoever has metrics."""

    def __init__(self, quotas: Quotas, configs: Configs) -> None:
        self._quotas = quotas
        window_s = configs.broker_int("quota.window.size.seconds")
        self._window_s: Final = float(window_s)
        self._windows_s: Final = float(window_s * configs.broker_int("quota.window.num"))
        self._mutation_burst_s: Final = float(
            configs.broker_int("controller.quota.window.size.seconds")
            * configs.broker_int("controller.quota.window.num")
        )
        self.rules: QuotaRules | None = None
        """Those in force; None where no client has a quota."""
        self.waiting: set[Waiting] = set()
        self.observe: ThrottleObserver = lambda key, seconds: None
        self._limits: dict[tuple[str, str | None], ClientLimits | None] = {}
        self._buckets: dict[_BucketKey, TokenBucket] = {}
        self._look_at = _BUCKETS_BEFORE_A_LOOK
        quotas.watch(self._on_change)

    def _on_change(self) -> None:
        rules = self._quotas.rules
        self.rules = rules if rules.limits_clients else None
        self._limits.clear()
        for each in list(self.waiting):
            each.look_again()

    def limits_of(self, user: str, client_id: str | None) -> ClientLimits | None:
        """None for a client without limits. client_id: None in a protocol that has none."""
        if self.rules is None:
            return None
        key = (user, client_id)
        if key in self._limits:
            return self._limits[key]
        find = self.rules.find
        limits = ClientLimits(
            find(QuotaKey.PRODUCER_BYTE_RATE, *key),
            find(QuotaKey.CONSUMER_BYTE_RATE, *key),
            find(QuotaKey.REQUEST_PERCENTAGE, *key),
            find(QuotaKey.CONTROLLER_MUTATION_RATE, *key),
        )
        is_limited = any((limits.produce, limits.consume, limits.request, limits.mutation))
        found = limits if is_limited else None
        if max(len(user), len(client_id or "")) <= _LONGEST_REMEMBERED:
            if len(self._limits) >= _LIMITS_REMEMBERED:
                self._limits.clear()
            self._limits[key] = found
        return found

    def piece(self, limit: Limit) -> int:
        """What is used at once at most, where that can be chosen: a quarter of a window."""
        return max(1, int(limit.rate * self._window_s / 4))

    def take(self, limit: Limit, amount: float) -> float:
        """Uses so much of it; seconds to wait before more is used."""
        now = _now()
        bucket = self._bucket(limit, now)
        bucket.take(amount, now)
        return self._hold(limit, bucket.owed_s(now))

    def owed_s(self, limit: Limit) -> float:
        """Seconds to wait before more is used."""
        now = _now()
        return self._hold(limit, self._bucket(limit, now).owed_s(now))

    def _hold(self, limit: Limit, owed_s: float) -> float:
        """Who has used up its part of the broker's time waits a window at most, as in Kafka
        (ClientRequestQuotaManager.maxThrottleTimeMs)."""
        is_time = limit.shared_by.key is QuotaKey.REQUEST_PERCENTAGE
        return min(owed_s, self._window_s) if is_time else owed_s

    def give_back(self, limit: Limit, amount: float) -> None:
        """What was not used after all."""
        now = _now()
        self._bucket(limit, now).give_back(amount, now)

    def _bucket(self, limit: Limit, now: float) -> TokenBucket:
        key = _bucket_key(limit.shared_by)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._look_at:
                self._drop_full(now)
            bucket = self._buckets[key] = self._new_bucket(limit, now)
        elif bucket.rate != limit.rate:
            bucket.change_rate(limit.rate, now)
        return bucket

    def _new_bucket(self, limit: Limit, now: float) -> TokenBucket:
        match limit.shared_by.key:
            case QuotaKey.CONTROLLER_MUTATION_RATE:
                return TokenBucket(limit.rate, self._mutation_burst_s, now)
            case QuotaKey.REQUEST_PERCENTAGE:
                return TokenBucket(limit.rate, self._window_s, now, debt_s=self._windows_s)
            case _:
                # Who writes at full speed from the start has his quota, not a window more.
                return TokenBucket(limit.rate, self._window_s, now, is_full=False)

    def _drop_full(self, now: float) -> None:
        """Clients choose their ids: there may be any number."""
        self._buckets = {key: each for key, each in self._buckets.items() if not each.is_full(now)}
        self._look_at = max(_BUCKETS_BEFORE_A_LOOK, 2 * len(self._buckets))


def _bucket_key(shared_by: SharedBy) -> _BucketKey:
    return shared_by.key, _short(shared_by.user), _short(shared_by.client_id)


def _short(name: str | None) -> str | bytes | None:
    """What stands for a name, and is never long: no other name has it."""
    if name is None or len(name) <= _LONGEST_REMEMBERED:
        return name
    return sha256(name.encode(errors="surrogatepass")).digest()


class Hold:
    """One connection, as far as quotas hold it back. resume: called when it may go on. most_s: the
    longest that it is held at a time; what is owed beyond is owed still."""

    def __init__(
        self, throttles: Throttles, resume: Callable[[], None], most_s: float = inf
    ) -> None:
        self.throttles = throttles
        self._resume = resume
        self._most_s = most_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self._client: tuple[str, str | None] = ("", None)

    @property
    def is_on(self) -> bool:
        """Whether the connection is to be left unread, and nothing of it to be started."""
        return self._timer is not None

    @property
    def left_s(self) -> float:
        """For how long."""
        return max(0.0, self._until - self._loop.time())

    def limits_of(self, user: str, client_id: str | None) -> ClientLimits | None:
        """Those of its client; None for one without limits."""
        limits = self.throttles.limits_of(user, client_id)
        if limits is not None:
            self._client = (user, client_id)
        return limits

    def use(self, limit: Limit, amount: float) -> bool:
        """Its client uses so much: whether that is more than the quota, and it is held now."""
        return self.hold(limit, self.throttles.take(limit, amount))

    def hold(self, limit: Limit, wait_s: float) -> bool:
        """Holds it for so long, unless that is too little to matter: whether it is held."""
        if wait_s < SHORTEST_S:
            return False
        now = self._loop.time()
        before, until = max(self._until, now), now + min(wait_s, self._most_s)
        if until > before:
            self.throttles.observe(limit.shared_by.key.value, until - before)
            self._hold_until(until)
        return True

    def _hold_until(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._until = until
        self._timer = self._loop.call_at(until, self._end)
        self.throttles.waiting.add(self)

    def look_again(self) -> None:
        """See Waiting."""
        limits = self.throttles.limits_of(*self._client)
        found = (limits.produce, limits.consume, limits.request, limits.mutation) if limits else ()
        owed_s = [self.throttles.owed_s(each) for each in found if each is not None]
        self._hold_until(min(self._until, self._loop.time() + max(owed_s, default=0.0)))

    def _end(self) -> None:
        self.drop()
        self._resume()

    def drop(self) -> None:
        """The connection is lost, or may go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.throttles.waiting.discard(self)


class Mutations:
    """What one request makes and deletes, held against `controller_mutation_rate` (KIP-599).

    is_strict: what is above the rate is refused; else it is done, and the client waits.
    """

    def __init__(self, throttles: Throttles, limit: Limit | None, is_strict: bool) -> None:
        self._throttles = throttles
        self._limit = limit
        self._is_strict = is_strict
        self._wait_s = 0.0
        self._taken: dict[Hashable, int] = {}

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    def refused(self, partitions: Mapping[Name, int]) -> Mapping[Name, Refusal]:
        """Of topics, and how many partitions each of them would make or delete: those that may not
        now, in order."""
        if self._limit is None:
            return {}
        refused = {}
        for name, count in partitions.items():
            owed_s = self._throttles.owed_s(self._limit)
            if self._is_strict and owed_s > 0:
                self._wait_s = owed_s
                refused[name] = _EXCEEDED
            else:
                wait_s = self._throttles.take(self._limit, count)
                self._taken[name] = count
                self._wait_s = 0.0 if self._is_strict else wait_s
        return refused

    def settle(self, undone: Collection[Hashable]) -> None:
        """The request is done but for these topics, which were refused for other reasons."""
        if self._limit is not None:
            count = sum(self._taken[name] for name in undone if name in self._taken)
            self._throttles.give_back(self._limit, count)

    @property
    def throttle_time_ms(self) -> int:
        """How long the client is to wait."""
        return to_ms(self._wait_s)


def to_ms(seconds: float) -> int:
    """As requests' answers have it: an int32, never short of the time."""
    most_ms = 2**31 - 1
    # First of all: what is longer may be infinite, or become so when it is multiplied.
    return -int(-min(seconds, most_ms / 1000) * 1000 // 1)


def _now() -> float:
    return asyncio.get_running_loop().time()
