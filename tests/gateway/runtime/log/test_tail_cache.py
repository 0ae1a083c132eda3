"""The tail cache against a model without a limit: never a wrong batch, nor beyond its budget."""

from __future__ import annotations

import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.ports.log import StoredBatch
from core.types import BatchFormat
from gateway.runtime.log.tail_cache import TailCache


def stored(base: int, count: int = 1, size: int = 10) -> StoredBatch:
    return StoredBatch(base, base + count - 1, bytes(size), BatchFormat.KAFKA_V2)


PARTITIONS = st.integers(1, 3)


class TailCacheMachine(RuleBasedStateMachine):
    """Appends with and without gaps, drops, reads; a model that keeps everything."""

    @initialize(budget=st.sampled_from([0, 25, 60, 10_000]))
    def start(self, budget: int) -> None:
        self.budget = budget
        self.cache = TailCache(budget)
        self.model: dict[int, list[StoredBatch]] = {}
        self.ends = {1: 0, 2: 0, 3: 0}

    @rule(
        p=PARTITIONS, gap=st.sampled_from([0, 0, 0, 3]), n=st.integers(1, 4), s=st.integers(1, 30)
    )
    def append(self, p: int, gap: int, n: int, s: int) -> None:
        batch = stored(self.ends[p] + gap, n, s)
        self.ends[p] = batch.last_offset + 1
        if gap:
            self.model[p] = []
        self.model.setdefault(p, []).append(batch)
        self.cache.append(p, batch)

    @rule(p=PARTITIONS)
    def drop(self, p: int) -> None:
        self.model[p] = []
        self.cache.drop(p)

    @rule()
    def clear(self) -> None:
        self.model.clear()
        self.cache.clear()

    @rule(p=PARTITIONS, back=st.integers(0, 20), cut=st.integers(0, 6), limit=st.integers(0, 90))
    def read(self, p: int, back: int, cut: int, limit: int) -> None:
        start, end = max(0, self.ends[p] - back), self.ends[p] - cut
        found = self.cache.read(p, start, end, limit)
        touching = [
            each
            for each in self.model.get(p, [])
            if each.last_offset >= start and each.last_offset < end
        ]
        if found is None:
            return
        assert found, "an empty answer would be taken for the truth"
        assert found == touching[: len(found)]
        assert found[0].base_offset <= start
        size = sum(len(each.payload) for each in found)
        assert size <= limit or len(found) == 1
        if len(found) < len(touching):
            assert size + len(touching[len(found)].payload) > limit

    @rule(p=PARTITIONS, back=st.integers(1, 20))
    def everything_is_there_while_it_fits(self, p: int, back: int) -> None:
        if self.budget < 10_000:
            return
        start = max(0, self.ends[p] - back)
        known = self.model.get(p, [])
        if known and known[0].base_offset <= start < self.ends[p]:
            found = self.cache.read(p, start, self.ends[p], 10**9)
            assert found == [each for each in known if each.last_offset >= start]

    @invariant()
    def the_budget_holds(self) -> None:
        assert 0 <= self.cache.size_bytes <= self.budget


TestTailCache = TailCacheMachine.TestCase
TestTailCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_oldest_of_all_goes_first() -> None:
    cache = TailCache(30)
    cache.append(1, stored(0))
    cache.append(2, stored(0))
    cache.append(1, stored(1))
    cache.append(2, stored(1))
    assert cache.read(1, 0, 9, 99) is None
    assert cache.read(1, 1, 9, 99) == [stored(1)]
    assert cache.read(2, 0, 9, 99) == [stored(0), stored(1)]


def test_a_partition_that_others_write_to_as_well_costs_no_memory() -> None:
    """Every append then leaves a gap, and what was there is forgotten: all of it."""
    cache = TailCache(10**6)
    for offset in range(0, 2_000, 2):
        cache.append(1, stored(offset))
    tracemalloc.start()
    try:
        for offset in range(2_000, 42_000, 2):
            cache.append(1, stored(offset))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size_bytes == 10
    assert grown < 100_000
