"""Deduplication in the flush, over the real database: claims, two brokers, lost connections."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import psycopg
import pytest

from core.errors import Error
from core.log.named_sequences import SequencedBatch
from core.ports.log import CommitUnknown, ReadRange, StoreUnavailable
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from gateway.runtime.flush.work import AppendResult
from storage.flush.log import FlushSession
from tests.batches import batch, payload_of
from tests.gateway.runtime.conftest import WEEK, Broker, MakeBroker
from tests.storage.conftest import Log

FENCED = Error.PRODUCER_FENCED
BLOCK = 10**9


class Named:
    """A producer of a name at a broker, with the claim that it has made."""

    def __init__(self, broker: Broker, partition_id: int, name: str) -> None:
        self.broker, self.partition_id, self.name = broker, partition_id, name
        self.claim = 0
        self.told = -1

    async def claimed(self) -> Named:
        found = await self.broker.partitions.claim_name(self.partition_id, self.name)
        assert found is not None
        self.claim, self.told = found.claim, found.highest_sequence_id
        return self

    def submit(self, sequence_id: int, mark: int = 0) -> asyncio.Future[AppendResult | Unconfirmed]:
        """A batch of one record, whose bytes tell the sequence id, or `mark`."""
        one = batch(size=40)
        return self.broker.partitions.append(
            self.partition_id,
            WEEK,
            one,
            payload_of(one, mark or sequence_id),
            sequenced=SequencedBatch(self.name, sequence_id, claim=self.claim),
        )

    async def send(self, sequence_id: int) -> tuple[Error | Reason, int]:
        async with asyncio.timeout(60):
            return outcome(await self.submit(sequence_id))


def outcome(result: AppendResult | Unconfirmed) -> tuple[Error | Reason, int]:
    if isinstance(result, Unconfirmed):
        return result.reason, -1
    return result.error, result.base_offset


async def marks(broker: Broker, partition_id: int) -> list[int]:
    """What the log has, by what `submit` has put into it."""
    (batches,) = await broker.store.read([ReadRange(partition_id, 0, 2**62, 2**30)], 2**40)
    return [int.from_bytes(bytes(each.payload[:8]), "big") for each in batches]


async def test_what_is_sent_again_is_stored_once(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    one = await Named(broker, p, "a").claimed()
    assert one.told == -1
    sent = [one.submit(n) for n in (0, 1, 1, 5, 4, 5, 6)]
    answers = [outcome(each) for each in await asyncio.gather(*sent)]
    assert [offset for _, offset in answers] == [0, 1, -1, 2, -1, -1, 3]
    assert {error for error, _ in answers} == {Error.NONE}
    assert await one.send(6) == (Error.NONE, -1)  # alone in its flush
    other = await Named(broker, p, "b").claimed()
    assert await other.send(0) == (Error.NONE, 4)
    assert await marks(broker, p) == [0, 1, 5, 6, 0]
    assert (await one.claimed()).told == 6


async def test_it_holds_at_another_broker_and_after_a_restart(
    make_broker: MakeBroker, log: Log
) -> None:
    (p,) = log.new_partitions()
    here, there = make_broker(), make_broker()
    one = await Named(here, p, "a").claimed()
    assert await one.send(3) == (Error.NONE, 0)
    again = await Named(there, p, "a").claimed()
    assert again.told == 3
    assert await again.send(3) == (Error.NONE, -1)
    # Who was there before is out, whether what it sends would be new or not.
    assert [await one.send(n) for n in (3, 4)] == [(FENCED, -1)] * 2
    assert await again.send(4) == (Error.NONE, 1)
    assert await one.send(5) == (FENCED, -1)
    assert await (await Named(make_broker(), p, "a").claimed()).send(4) == (Error.NONE, -1)
    assert await marks(here, p) == [3, 4]


async def test_a_claim_fences_what_still_waits_for_its_row(broker: Broker, log: Log) -> None:
    """An application that died numbers on from what it is told: nothing may come in between."""
    (p,) = log.new_partitions()
    one = await Named(broker, p, "a").claimed()
    assert await one.send(0) == (Error.NONE, 0)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM topic_partition FOR UPDATE")
        late = one.submit(1)
        await asyncio.sleep(1.3)  # it is parked
        claiming = asyncio.create_task(Named(broker, p, "a").claimed())
        await asyncio.sleep(0.1)
    again = await claiming
    answer = outcome(await late)
    assert (again.told, answer) in [(0, (FENCED, -1)), (1, (Error.NONE, 1))]
    assert await again.send(again.told + 1) == (Error.NONE, again.told + 1)
    assert await marks(broker, p) == list(range(again.told + 2))


async def test_other_batches_of_the_flush_are_stored_beside_a_fenced_one(
    broker: Broker, log: Log
) -> None:
    p, q = log.new_partitions(2)
    one, two = [await Named(broker, p, name).claimed() for name in ("a", "b")]
    assert await one.send(0) == (Error.NONE, 0)
    log.rows("UPDATE named_producer SET claim = claim + 1 WHERE name = 'a'")  # elsewhere
    answers = [one.submit(1), two.submit(7), broker.submit(p, batch()), broker.submit(q, batch())]
    assert [outcome(each) for each in await asyncio.gather(*answers)] == [
        (FENCED, -1),
        (Error.NONE, 1),
        (Error.NONE, 2),
        (Error.NONE, 0),
    ]


async def test_a_name_that_was_forgotten_is_claimed_anew(broker: Broker, log: Log) -> None:
    (p,) = log.new_partitions()
    one = await Named(broker, p, "a").claimed()
    assert await one.send(5) == (Error.NONE, 0)
    log.rows("DELETE FROM named_producer")
    assert (await one.claimed()).told == -1
    # What memory had of it is not what was told.
    answers = [broker.submit(p, batch()), one.submit(2), one.submit(2)]
    assert [outcome(each)[1] for each in await asyncio.gather(*answers)] == [1, 2, -1]
    assert log.value("SELECT highest_sequence_id FROM named_producer") == 2


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_commit_of_unknown_outcome_is_known_to_the_next_claim(
    broker: Broker, log: Log, is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (p,) = log.new_partitions()
    one = await Named(broker, p, "a").claimed()
    assert await one.send(0) == (Error.NONE, 0)
    commit = FlushSession.commit

    async def lost(self: FlushSession, *effects: Any) -> None:
        if is_stored:
            await commit(self, *effects)
        raise CommitUnknown("the connection was lost")

    monkeypatch.setattr(FlushSession, "commit", lost)
    assert await one.send(1) == (Reason.UNKNOWN, -1)
    monkeypatch.setattr(FlushSession, "commit", commit)
    again = await Named(broker, p, "a").claimed()
    assert again.told == int(is_stored)
    assert await again.send(1) == (Error.NONE, -1 if is_stored else 1)
    assert await marks(broker, p) == [0, 1]


async def test_what_has_no_name_costs_no_statement(
    broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage.connection.session import HotSession

    (p,) = log.new_partitions()
    await broker.append(p, batch())
    ran: list[bytes] = []
    run = HotSession.run

    async def noted(self: HotSession, statements: Any, **options: Any) -> Any:
        ran.extend(name for name, _ in statements)
        return await run(self, statements, **options)

    monkeypatch.setattr(HotSession, "run", noted)
    await broker.append(p, batch())
    await broker.append(p, batch(producer=5, epoch=0, sequence=0))
    assert not [name for name in ran if b"name" in name]
    one = await Named(broker, p, "a").claimed()
    ran.clear()
    await one.send(0)
    await one.send(1)
    assert [name for name in ran if b"name" in name] == [b"put_names"] * 2


@pytest.mark.parametrize("is_cut", [False, True])
async def test_brokers_that_take_a_name_from_each_other_lose_and_double_nothing(
    make_broker: MakeBroker, log: Log, is_cut: bool
) -> None:
    """Each application sends 0, 1, 2, … under a name, from one broker and then the other, and sends
    again what it has no answer to. Others write to the same partition.

    is_cut: connections to the database are cut all the while.
    """
    (p,) = log.new_partitions()
    brokers = [make_broker(), make_broker()]
    rng = random.Random(11)
    is_over = False

    async def others() -> None:
        while not is_over:
            await brokers[rng.randrange(2)].append(p, batch(size=90))
            await asyncio.sleep(rng.random() / 100)
            if is_cut and rng.random() < 0.15:
                log.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name = 'penstock'"
                )

    async def application(number: int) -> None:
        following = confirmed = 0
        while following < 120:
            producer = Named(brokers[rng.randrange(2)], p, f"name-{number}")
            try:
                await producer.claimed()
            except StoreUnavailable:
                continue
            assert producer.told >= confirmed - 1, "what was confirmed is not there"
            following = producer.told + 1  # as one that was restarted
            many = range(following, following + rng.randint(1, 25))
            waiting = [producer.submit(n, BLOCK * (number + 1) + n) for n in many]
            if rng.random() < 0.5:  # dies: the answers are for nobody
                await asyncio.sleep(rng.random() / 50)
                continue
            for n, each in zip(many, waiting, strict=True):
                error, _ = outcome(await each)
                if error is not Error.NONE:
                    assert is_cut, (n, error)
                    break
                confirmed = n + 1
        ends[number] = confirmed

    ends: dict[int, int] = {}
    writing = asyncio.create_task(others())
    async with asyncio.timeout(100):
        await asyncio.gather(*(application(number) for number in range(3)))
    is_over = True
    await writing
    for each in brokers:
        await each.flusher.close()
    reader = make_broker()  # the others have connections that were cut when nobody used them
    found = [mark for mark in await marks(reader, p) if mark >= BLOCK]
    assert max(Counter(found).values()) == 1
    for number in range(3):
        own = [mark % BLOCK for mark in found if mark // BLOCK == number + 1]
        assert own == list(range(len(own)))
        assert len(own) >= ends[number]


@pytest.mark.parametrize("error", [CommitUnknown, StoreUnavailable, RuntimeError])
async def test_behind_what_is_turned_away_nothing_is_stored(
    broker: Broker, log: Log, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be sent again, found below what is stored, confirmed, and be nowhere."""
    (p,) = log.new_partitions()
    one = await Named(broker, p, "a").claimed()
    assert await one.send(0) == (Error.NONE, 0)
    commit = FlushSession.commit
    behind: list[asyncio.Future[AppendResult | Unconfirmed]] = []

    async def failing(self: FlushSession, *effects: Any) -> None:
        monkeypatch.setattr(FlushSession, "commit", commit)
        behind.append(one.submit(2))  # before anybody is told
        raise error("gone")

    monkeypatch.setattr(FlushSession, "commit", failing)
    assert isinstance(await one.submit(1), Unconfirmed)
    assert outcome(await behind[0]) == (Reason.TOO_EARLY, -1)
    assert await one.send(3) == (Reason.TOO_EARLY, -1)
    again = await Named(broker, p, "a").claimed()
    assert again.told == 0
    assert [await again.send(n) for n in (1, 2, 3)] == [(Error.NONE, n) for n in (1, 2, 3)]
    assert await marks(broker, p) == [0, 1, 2, 3]
