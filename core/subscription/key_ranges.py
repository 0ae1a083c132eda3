"""Which consumer of a KEY_SHARED subscription owns which hashes of keys.

Two ways, as in Pulsar: a ring of hashes that splits them (ConsistentHashingStickyKeyConsumer-
Selector) and ranges that consumers bring (HashRangeExclusiveStickyKeyConsumerSelector). Knows
nothing of entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from core.subscription.murmur3 import murmur3_32
from core.subscription.values import HASH_SLOTS, HashRange, Joining, Reason, Refused

POINTS_PER_CONSUMER = 100
"""Pulsar's subscriptionKeySharedConsistentHashingReplicaPoints."""

_Owner = TypeVar("_Owner")


def slot_of_split(key: bytes) -> int:
    """The hash by which a key is split; slot 0 is left out, as in Pulsar 4."""
    return murmur3_32(key) % (HASH_SLOTS - 1) + 1


def slot_of_sticky(key: bytes) -> int:
    """The hash of a key on a sticky subscription; slot 0 stays empty there too."""
    return murmur3_32(key) % HASH_SLOTS or 1


class KeyOwners(Protocol[_Owner]):
    """Who owns which hashes."""

    def add(self, owner: _Owner, joining: Joining) -> Refused | list[_Owner]:
        """A consumer comes; those whose hashes it gets, in part."""

    def remove(self, owner: _Owner) -> None:
        """A consumer goes; its hashes go to others, or to nobody."""

    def owner_of(self, key_hash: int) -> _Owner | None:
        """Who gets entries with this hash."""

    def ranges(self) -> list[tuple[HashRange, _Owner]]:
        """All that is owned, in order."""


class SplitKeys(Generic[_Owner]):
    """A ring with a hundred points a consumer. A hash is owned by the next point at or above it.

    Points come from the consumer's name and, where several have it, from the lowest number that is
    free among them: who leaves and comes again gets the same hashes.
    """

    def __init__(self, points: int = POINTS_PER_CONSUMER) -> None:
        self._points = points
        self._ring: list[int] = []
        self._owners: dict[int, list[_Owner]] = {}  # of a point; the first to come has it
        self._numbers: dict[str, dict[int, _Owner]] = {}
        self._placed: dict[int, tuple[str, int, list[int]]] = {}  # id(owner) → name, number, points

    def add(self, owner: _Owner, joining: Joining) -> Refused | list[_Owner]:
        """See KeyOwners; never refuses."""
        numbers = self._numbers.setdefault(joining.name, {})
        number = next(each for each in range(len(numbers) + 1) if each not in numbers)
        numbers[number] = owner
        points = [
            slot_of_split(f"{joining.name}\0{number}\0{point}".encode())
            for point in range(self._points)
        ]
        self._placed[id(owner)] = (joining.name, number, points)
        losers: dict[int, _Owner] = {}
        for point in points:
            if point in self._owners:
                self._owners[point].append(owner)
                continue
            loser = self.owner_of(point)
            if loser is not None and loser is not owner:
                losers[id(loser)] = loser
            self._owners[point] = [owner]
            insort(self._ring, point)
        return list(losers.values())

    def remove(self, owner: _Owner) -> None:
        """See KeyOwners."""
        name, number, points = self._placed.pop(id(owner))
        numbers = self._numbers[name]
        del numbers[number]
        if not numbers:
            del self._numbers[name]
        for point in points:
            owners = self._owners[point]
            owners.remove(owner)
            if not owners:
                del self._owners[point]
                del self._ring[bisect_left(self._ring, point)]

    def owner_of(self, key_hash: int) -> _Owner | None:
        """See KeyOwners."""
        ring = self._ring
        if not ring:
            return None
        at = bisect_left(ring, key_hash)
        return self._owners[ring[at if at < len(ring) else 0]][0]

    def ranges(self) -> list[tuple[HashRange, _Owner]]:
        """See KeyOwners. The last one goes round to the first point's owner."""
        found: list[tuple[HashRange, _Owner]] = []
        first = 0
        for last in [*self._ring, HASH_SLOTS - 1] if self._ring else []:
            owner = self.owner_of(last)
            if first > last or owner is None:
                continue
            if found and found[-1][1] is owner:
                found[-1] = (HashRange(found[-1][0].first, last), owner)
            else:
                found.append((HashRange(first, last), owner))
            first = last + 1
        return found


class StickyKeys(Generic[_Owner]):
    """Ranges that consumers bring. What is in nobody's range waits for somebody who has it."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int]] = []  # first, last, id(owner)
        self._owners: dict[int, _Owner] = {}

    def add(self, owner: _Owner, joining: Joining) -> Refused | list[_Owner]:
        """See KeyOwners. Refuses ranges that overlap, others' or each other."""
        known = [HashRange(first, last) for first, last, _ in self._ranges]
        if refusal := refusal_of_ranges(joining.hash_ranges, known):
            return refusal
        self._owners[id(owner)] = owner
        for first, last in joining.hash_ranges:
            insort(self._ranges, (first, last, id(owner)))
        return []

    def remove(self, owner: _Owner) -> None:
        """See KeyOwners."""
        del self._owners[id(owner)]
        self._ranges = [each for each in self._ranges if each[2] != id(owner)]

    def owner_of(self, key_hash: int) -> _Owner | None:
        """See KeyOwners."""
        at = bisect_right(self._ranges, (key_hash, HASH_SLOTS, 0)) - 1
        if at < 0 or self._ranges[at][1] < key_hash:
            return None
        return self._owners[self._ranges[at][2]]

    def ranges(self) -> list[tuple[HashRange, _Owner]]:
        """See KeyOwners."""
        return [(HashRange(first, last), self._owners[who]) for first, last, who in self._ranges]


def refusal_of_ranges(wanted: tuple[HashRange, ...], known: Iterable[HashRange]) -> Refused | None:
    """Why a consumer may not have these ranges beside the known ones; None where it may."""
    if not wanted:
        return Refused(Reason.RANGE_CONFLICT, "Ranges for KeyShared policy must not be empty.")
    taken = sorted([*known, *wanted])
    for first, last in wanted:
        if not 0 <= first <= last < HASH_SLOTS:
            return Refused(
                Reason.RANGE_CONFLICT,
                f"Hash range [{first}, {last}] is not within [0, {HASH_SLOTS - 1}]",
            )
    for one, other in pairwise(taken):
        if other.first <= one.last:
            return Refused(
                Reason.RANGE_CONFLICT,
                f"Range conflict: [{one.first}, {one.last}] and [{other.first}, {other.last}]",
            )
    return None
