"""What clients use, where quotas limit them; what was made and deleted; any number of clients."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator

import pytest

from core.errors import Error
from core.quota.changes import QuotaChanges
from core.quota.entities import DEFAULT, QuotaEntity, QuotaKey
from gateway.compose import configs_of
from gateway.runtime.quotas import Quotas
from gateway.runtime.throttling import ClientLimits, Mutations, Throttles, to_ms
from storage.connection.pool import Database
from storage.quotas import QuotaStore

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
MUTATE = QuotaKey.CONTROLLER_MUTATION_RATE


class Place:
    """Quotas of a database, and who has used how much of them."""

    def __init__(self, database: Database) -> None:
        self.store = QuotaStore(database)
        self.quotas = Quotas(self.store)
        self.throttles = Throttles(self.quotas, configs_of(database, {}))

    async def put(self, entity: QuotaEntity, key: QuotaKey, rate: float) -> None:
        await self.store.alter(QuotaChanges({(entity, key): rate}))
        await self.quotas.refresh()

    async def drop(self, entity: QuotaEntity, key: QuotaKey) -> None:
        await self.store.alter(QuotaChanges({}, [(entity, key)]))
        await self.quotas.refresh()

    def limits(self, user: str = "alice", client_id: str = "app") -> ClientLimits:
        found = self.throttles.limits_of(user, client_id)
        assert found is not None
        return found

    def take(self, amount: float, user: str = "alice", client_id: str = "app") -> float:
        limit = self.limits(user, client_id).produce
        assert limit is not None
        return self.throttles.take(limit, amount)


@pytest.fixture
async def place(database_url: str) -> AsyncIterator[Place]:
    database = Database(database_url)
    yield Place(database)
    await database.close()


async def test_without_quotas_there_is_nothing_to_ask(place: Place) -> None:
    await place.put(QuotaEntity(ip=DEFAULT), QuotaKey.CONNECTION_CREATION_RATE, 5)
    assert place.throttles.rules is None
    assert place.throttles.limits_of("alice", "app") is None
    await place.put(QuotaEntity("bob"), PRODUCE, 5)
    assert place.throttles.rules is not None
    assert place.throttles.limits_of("alice", "app") is None


async def test_who_shares_a_rate_and_who_has_one_of_his_own(place: Place) -> None:
    await place.put(QuotaEntity("alice"), PRODUCE, 100)
    await place.put(QuotaEntity(DEFAULT), PRODUCE, 100)
    assert place.take(100, client_id="one") == pytest.approx(1, abs=0.1)
    assert place.take(100, client_id="two") == pytest.approx(2, abs=0.5)
    assert place.take(100, user="bob") == pytest.approx(1, abs=0.1)


async def test_a_changed_quota_counts_for_who_waits(place: Place) -> None:
    class Waiting:
        looked = 0

        def look_again(self) -> None:
            self.looked += 1

    waiting = Waiting()
    place.throttles.waiting.add(waiting)
    await place.put(QuotaEntity("alice"), PRODUCE, 1)
    place.take(1000)
    await place.put(QuotaEntity("alice"), PRODUCE, 1000)
    limit = place.limits().produce
    assert limit is not None
    assert place.throttles.owed_s(limit) == pytest.approx(1, abs=0.1)
    await place.drop(QuotaEntity("alice"), PRODUCE)
    assert place.throttles.limits_of("alice", "app") is None
    assert waiting.looked == 3


async def test_time_of_the_broker_is_waited_for_a_window_at_most(place: Place) -> None:
    await place.put(QuotaEntity("alice"), QuotaKey.REQUEST_PERCENTAGE, 0.5)
    limit = place.limits().request
    assert limit is not None
    assert place.throttles.take(limit, 0.4) == 0  # a window of it is there
    assert place.throttles.take(limit, 50) == 1.0


async def test_any_number_of_clients_is_forgotten_in_time(place: Place) -> None:
    """Those only that owe nothing."""
    await place.put(QuotaEntity(client_id=DEFAULT), PRODUCE, 1e9)
    await place.put(QuotaEntity(client_id="slow"), PRODUCE, 1)
    place.take(1000, client_id="slow")
    limit = place.limits().mutation
    assert limit is None
    await place.put(QuotaEntity(client_id=DEFAULT), QuotaKey.REQUEST_PERCENTAGE, 100)
    for number in range(5_000):
        request = place.limits(client_id=f"client-{number}").request
        assert request is not None
        place.throttles.take(request, 0)
    assert len(place.throttles._buckets) < 2_100
    assert place.take(0, client_id="slow") == pytest.approx(1000, abs=10)


async def test_long_names_of_clients_take_no_memory(place: Place) -> None:
    """What each has used counts all the same."""
    await place.put(QuotaEntity(client_id=DEFAULT), PRODUCE, 1)
    tracemalloc.start()
    try:
        for number in range(200):
            place.take(1000, client_id="😀" * 30_000 + str(number))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2_000_000, "of 24 MB"
    for number in range(200):
        assert place.take(0, client_id="😀" * 30_000 + str(number)) == pytest.approx(1000, abs=30)
    assert place.take(0, client_id="😀" * 30_000) == 0


def mutations(place: Place, *, is_strict: bool) -> Mutations:
    return Mutations(place.throttles, place.limits().mutation, is_strict)


async def test_above_the_rate_of_changes(place: Place) -> None:
    """Ten seconds and one are saved up; what goes beyond is done, and the next one is refused."""
    await place.put(QuotaEntity("alice"), MUTATE, 1)
    first = mutations(place, is_strict=True)
    refused = first.refused({"a": 6, "b": 6, "c": 1})
    assert [(name, each.error) for name, each in refused.items()] == [
        ("c", Error.THROTTLING_QUOTA_EXCEEDED)
    ]
    assert first.throttle_time_ms == pytest.approx(1000, abs=100)
    first.settle(["b"])  # was refused for another reason
    second = mutations(place, is_strict=True)
    assert second.refused({"c": 10}) == {}
    assert second.throttle_time_ms == 0  # it was not refused
    third = mutations(place, is_strict=False)
    assert third.refused({"d": 1}) == {}
    assert third.throttle_time_ms == pytest.approx(6000, abs=200)


def test_milliseconds_are_never_short_of_the_time() -> None:
    assert [to_ms(each) for each in (0.0, 0.0001, 1.0, 1.0001)] == [0, 1, 1000, 1001]
    assert to_ms(1e12) == to_ms(1e306) == to_ms(float("inf")) == 2**31 - 1
