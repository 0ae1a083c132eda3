"""Transactions at brokers without a wire: begin, write, end, read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.errors import Error
from core.transaction.values import (
    EndTransaction,
    InitProducerId,
    ProducerIdAndEpoch,
    TransactionVersion,
    TransitionAnswer,
)
from core.types import IsolationLevel, RecordBatch
from gateway.runtime.flush.work import AppendResult
from gateway.runtime.log.partitions import Found, Want
from gateway.runtime.transactions.coordinator import Transactions
from gateway.runtime.transactions.producer_ids import ProducerIds
from storage.transactions import PostgresTransactionStore
from tests.batches import batch, payload_of
from tests.gateway.runtime.conftest import WEEK, Broker, MakeBroker
from tests.keys import named

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
KEY = named("the id")


@dataclass
class Coordinator:
    """A broker with its transactions. version: how its producers write."""

    broker: Broker
    transactions: Transactions

    async def init(
        self, current: ProducerIdAndEpoch | None = None, timeout_ms: int = 60_000
    ) -> ProducerIdAndEpoch:
        answer = await self.transactions.init_producer_id(
            InitProducerId(KEY, timeout_ms, current or ProducerIdAndEpoch(), "client", "/host")
        )
        assert answer.error is Error.NONE, answer
        return answer.producer

    async def write(
        self,
        partition_id: int,
        producer: ProducerIdAndEpoch,
        sequence: int = 0,
        version: TransactionVersion = V1,
        records: int = 1,
    ) -> AppendResult:
        of = transactional(producer, sequence, records)
        return await self.broker.partitions.append(
            partition_id, WEEK, of, payload_of(of, sequence), version
        )

    async def end(
        self, producer: ProducerIdAndEpoch, version: TransactionVersion = V1, *, commit: bool = True
    ) -> TransitionAnswer:
        return await self.transactions.end(KEY, EndTransaction(producer, commit, version))

    async def read(self, partition_id: int, offset: int = 0, *, committed: bool = True) -> Found:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        (found,) = await self.broker.partitions.read(
            [Want(partition_id, offset, 10**6, level)], 10**6
        )
        return found


def transactional(producer: ProducerIdAndEpoch, sequence: int, records: int = 1) -> RecordBatch:
    return batch(
        records,
        producer=producer.producer_id,
        epoch=producer.producer_epoch,
        sequence=sequence,
        transactional=True,
    )


def offsets(found: Found) -> list[int]:
    return [each.base_offset for each in found.batches]


MakeCoordinator = Callable[..., Coordinator]


def coordinators(make_broker: MakeBroker) -> MakeCoordinator:
    """Makes brokers with their transactions."""

    def make(*, is_alone: bool = False, **options: int) -> Coordinator:
        broker = make_broker(**options)
        transactions = Transactions(
            PostgresTransactionStore(broker.database),
            broker.store,
            broker.flusher,
            ProducerIds(broker.store),
            max_timeout_ms=lambda: 900_000,
            expiration_ms=lambda: 604_800_000,
            expiration_interval_ms=lambda: 3_600_000,
            is_alone=lambda: is_alone,
        )
        return Coordinator(broker, transactions)

    return make
