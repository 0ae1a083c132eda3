"""One log, two brokers, producers that retry: every rule at once, with crashes cut in anywhere.

The store is a model of what the SQL does: it compares versions and applies whole flushes, or
nothing. Longer runs: PENSTOCK_LOG_MACHINE_EXAMPLES=2000 pytest tests/property/test_log_machine.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.errors import Error
from core.log.effects import LogEffects
from core.log.partition_log import (
    Appended,
    Decision,
    Duplicate,
    LogDraft,
    PartitionLog,
    PartitionState,
    Refused,
)
from core.log.producer_state import MAX_SEQUENCE, ProducerState
from core.types import RecordBatch
from tests.batches import batch, incoming, mark_of

PARTITIONS = (1, 2)
BROKERS = (0, 1)
PRODUCERS = (1000, 1001, 1002)
EXAMPLES = int(os.environ.get("PENSTOCK_LOG_MACHINE_EXAMPLES", "60"))


@dataclass
class ModelStore:
    """The rows, as the SQL keeps them: whole flushes, guarded by next_offset."""

    states: dict[int, PartitionState]
    producers: dict[tuple[int, int], ProducerState] = field(default_factory=dict)
    rows: dict[int, list[tuple[int, int, RecordBatch, int]]] = field(default_factory=dict)

    def commit(self, effects: list[LogEffects]) -> bool:
        if any(self.states[e.partition_id].next_offset != e.expected_offset for e in effects):
            return False
        for e in effects:
            self.states[e.partition_id] = replace(
                self.states[e.partition_id],
                next_offset=e.next_offset,
                max_timestamp=e.max_timestamp,
            )
            for row in e.rows:
                self.rows.setdefault(e.partition_id, []).append(
                    (row.base_offset, row.last_offset, row.incoming.batch, mark_of(row.incoming))
                )
            for producer in e.producers:
                self.producers[e.partition_id, producer.producer_id] = producer
        return True


@dataclass
class Sent:
    """A batch a client has sent: the same object however often it is sent again."""

    partition: int
    batch: RecordBatch
    acknowledged: int | None = None


@dataclass
class Client:
    """An idempotent producer on one partition: what it sends next, and what is unanswered."""

    epoch: int = 0
    next_sequence: int = 0
    unanswered: list[Sent] = field(default_factory=list)


class LogMachine(RuleBasedStateMachine):
    @initialize(first_sequence=st.sampled_from([0, 5, MAX_SEQUENCE - 3]))
    def start(self, first_sequence: int) -> None:
        self.store = ModelStore({p: PartitionState(p) for p in PARTITIONS})
        self.brokers: list[dict[int, PartitionLog]] = [{} for _ in BROKERS]
        self.clients = {
            (producer, p): Client(next_sequence=first_sequence)
            for producer in PRODUCERS
            for p in PARTITIONS
        }
        self.queued: list[list[Sent]] = [[] for _ in BROKERS]
        self.acknowledged: list[Sent] = []
        self.stale: list[PartitionState] = []
        self.highest = dict.fromkeys(PARTITIONS, 0)
        self.epochs: dict[tuple[int, int], int] = {}
        self.marks = 0

    # What clients do.

    @rule(
        broker=st.sampled_from(BROKERS),
        producer=st.sampled_from(PRODUCERS),
        p=st.sampled_from(PARTITIONS),
        records=st.integers(1, 3),
        stamp=st.integers(0, 50),
    )
    def send(self, broker: int, producer: int, p: int, records: int, stamp: int) -> None:
        client = self.clients[producer, p]
        if len(client.unanswered) >= 5:
            return
        sent = Sent(
            p,
            batch(
                records,
                producer=producer,
                epoch=client.epoch,
                sequence=client.next_sequence,
                timestamp=stamp,
            ),
        )
        client.next_sequence = (client.next_sequence + records) % (MAX_SEQUENCE + 1)
        client.unanswered.append(sent)
        self.queued[broker].append(sent)

    @rule(broker=st.sampled_from(BROKERS), p=st.sampled_from(PARTITIONS), records=st.integers(1, 3))
    def send_without_idempotence(self, broker: int, p: int, records: int) -> None:
        self.queued[broker].append(Sent(p, batch(records)))

    @rule(
        broker=st.sampled_from(BROKERS),
        producer=st.sampled_from(PRODUCERS),
        p=st.sampled_from(PARTITIONS),
    )
    def retry_all_unanswered_in_order(self, broker: int, producer: int, p: int) -> None:
        """Whatever it was answered, or not: also what another broker still has in its queue."""
        self.queued[broker] += self.clients[producer, p].unanswered

    @rule(producer=st.sampled_from(PRODUCERS), p=st.sampled_from(PARTITIONS))
    def raise_epoch(self, producer: int, p: int) -> None:
        """The client gives up what is unanswered and starts anew; old requests may still fly."""
        client = self.clients[producer, p]
        client.epoch += 1
        client.next_sequence = 0
        client.unanswered.clear()

    @precondition(lambda self: self.acknowledged)
    @rule(broker=st.sampled_from(BROKERS), which=st.integers(0, 10**6))
    def an_old_request_arrives_once_more(self, broker: int, which: int) -> None:
        self.queued[broker].append(self.acknowledged[which % len(self.acknowledged)])

    @precondition(lambda self: any(self.queued))
    @rule(broker=st.sampled_from(BROKERS), which=st.integers(0, 10))
    def a_request_is_lost(self, broker: int, which: int) -> None:
        if self.queued[broker]:
            del self.queued[broker][which % len(self.queued[broker])]

    # What brokers do.

    def load(self, broker: int, p: int, producers: set[int]) -> None:
        state = self.store.states[p]
        known = self.brokers[broker].setdefault(p, PartitionLog(state))
        known.load(state, {each: self.store.producers.get((p, each)) for each in producers})

    def decide(
        self, broker: int, group: list[Sent]
    ) -> tuple[list[tuple[Sent, Decision]], list[LogEffects], dict[int, LogDraft]]:
        for p in {sent.partition for sent in group}:
            wanted = {s.batch.producer_id for s in group if s.partition == p} - {-1}
            log = self.brokers[broker].get(p)
            missing = wanted if log is None else log.missing_producers(wanted)
            while log is None or missing:
                # A load may find that the partition moved on, and then forgets the others.
                self.load(broker, p, missing)
                log = self.brokers[broker][p]
                missing = log.missing_producers(wanted)
        drafts = {p: self.brokers[broker][p].draft() for p in {sent.partition for sent in group}}
        decided = []
        for sent in group:
            self.marks += 1
            new = incoming(sent.batch, self.marks)
            decided.append((sent, drafts[sent.partition].prepare_append(new)))
        effects = [each for draft in drafts.values() if (each := draft.effects())]
        return decided, effects, drafts

    @precondition(lambda self: any(self.queued))
    @rule(
        broker=st.sampled_from(BROKERS),
        take=st.integers(1, 6),
        ends=st.sampled_from(
            ["well"] * 4 + ["crash before persist", "crash after persist", "answers lost"]
        ),
        overtaken=st.booleans(),
    )
    def flush(self, broker: int, take: int, ends: str, overtaken: bool) -> None:
        group, self.queued[broker] = self.queued[broker][:take], self.queued[broker][take:]
        if not group:
            return
        fresh: set[int] = set()
        while True:
            decided, effects, _ = self.decide(broker, group)
            if ends == "crash before persist":
                self.crash(broker)
                return
            moved = {each.partition_id for each in effects}
            if stale := {sent.partition for sent in group} - moved - fresh:
                for p in stale:  # what has no effect is confirmed by a fresh read
                    self.load(broker, p, {s.batch.producer_id for s in group} - {-1})
                fresh |= stale
                continue
            if not effects or self.store.commit(effects):
                break
            fresh = set()
            for p in moved:  # read again, under the lock
                self.load(broker, p, {s.batch.producer_id for s in group} - {-1})
        self.check_committed(effects)
        if ends == "crash after persist":
            self.crash(broker)
            return
        for each in effects:
            known = self.brokers[broker][each.partition_id]
            if overtaken:
                # Between COMMIT and its answer others append, and their news comes in.
                self.append_elsewhere(each.partition_id)
                known.advance(self.store.states[each.partition_id])
            before = known.state
            known.replay(each)
            assert known.state.next_offset >= before.next_offset
        if ends == "answers lost":
            return
        for sent, decision in decided:
            self.answer(sent, decision)

    def append_elsewhere(self, p: int) -> None:
        draft = PartitionLog(self.store.states[p]).draft()
        self.marks += 1
        draft.prepare_append(incoming(batch(), self.marks))
        effects = draft.effects()
        assert effects is not None
        assert self.store.commit([effects])

    def crash(self, broker: int) -> None:
        self.brokers[broker].clear()
        self.queued[broker].clear()

    def check_committed(self, effects: list[LogEffects]) -> None:
        for each in effects:
            for producer in each.producers:
                key = (each.partition_id, producer.producer_id)
                assert producer.producer_epoch >= self.epochs.get(key, -1), "an epoch fell"
                self.epochs[key] = producer.producer_epoch

    def answer(self, sent: Sent, decision: Decision) -> None:
        match decision:
            case Appended(base_offset) | Duplicate(base_offset, _):
                lies = [row for row in self.store.rows[sent.partition] if row[0] == base_offset]
                assert len(lies) == 1, "acknowledged at an offset where nothing begins"
                base, last, written, _ = lies[0]
                assert last - base + 1 == sent.batch.record_count
                assert (written.producer_id, written.producer_epoch, written.base_sequence) == (
                    sent.batch.producer_id,
                    sent.batch.producer_epoch,
                    sent.batch.base_sequence,
                )
                if sent.batch.has_producer_id:
                    assert sent.acknowledged in (None, base_offset), "two offsets for one batch"
                    if sent.acknowledged is None:
                        sent.acknowledged = base_offset
                        self.acknowledged.append(sent)
                    client = self.clients[sent.batch.producer_id, sent.partition]
                    # As clients do: an answer to a later batch answers no earlier one.
                    client.unanswered = [each for each in client.unanswered if each is not sent]
            case Refused(error, _):
                assert sent.batch.has_producer_id
                assert error in (
                    Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    Error.INVALID_PRODUCER_EPOCH,
                )
                known = self.store.producers[sent.partition, sent.batch.producer_id]
                assert known.refusal(sent.batch) is not None, "refused by a stale memory"

    # News, in any order.

    @rule(p=st.sampled_from(PARTITIONS))
    def somebody_reads_a_row(self, p: int) -> None:
        self.stale.append(self.store.states[p])

    @precondition(lambda self: self.stale)
    @rule(broker=st.sampled_from(BROKERS), which=st.integers(0, 10**6))
    def news_arrives_late_and_in_any_order(self, broker: int, which: int) -> None:
        state = self.stale.pop(which % len(self.stale))
        if log := self.brokers[broker].get(state.partition_id):
            before = log.state
            log.advance(state)
            assert log.state.next_offset >= before.next_offset
            assert log.state.log_start_offset >= before.log_start_offset
        else:
            self.brokers[broker][state.partition_id] = PartitionLog(state)

    @rule(p=st.sampled_from(PARTITIONS), by=st.integers(0, 4))
    def records_are_deleted(self, p: int, by: int) -> None:
        state = self.store.states[p]
        start = min(state.log_start_offset + by, state.next_offset)
        self.store.states[p] = replace(state, log_start_offset=start)

    @rule(broker=st.sampled_from(BROKERS))
    def memory_is_lost(self, broker: int) -> None:
        self.brokers[broker].clear()

    # What must always hold.

    @invariant()
    def offsets_are_unique_gapless_and_ordered(self) -> None:
        for p, state in self.store.states.items():
            expected = 0
            for base, last, _, _ in self.store.rows.get(p, []):
                assert base == expected
                assert last >= base
                expected = last + 1
            assert state.next_offset == expected

    @invariant()
    def next_offset_never_falls(self) -> None:
        for p, state in self.store.states.items():
            assert state.next_offset >= self.highest[p]
            self.highest[p] = state.next_offset

    @invariant()
    def no_idempotent_batch_is_there_twice_nor_out_of_order(self) -> None:
        for rows in self.store.rows.values():
            last: dict[int, RecordBatch] = {}
            for _, _, each, _ in rows:
                if not each.has_producer_id:
                    continue
                before = last.get(each.producer_id)
                if before is not None and before.producer_epoch == each.producer_epoch:
                    follows = (before.base_sequence + before.record_count) % (MAX_SEQUENCE + 1)
                    assert each.base_sequence == follows
                elif before is not None:
                    assert each.producer_epoch > before.producer_epoch
                    assert each.base_sequence == 0
                last[each.producer_id] = each

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        lies = {p: {base: each for base, _, each, _ in rows} for p, rows in self.store.rows.items()}
        for sent in self.acknowledged:
            assert sent.acknowledged is not None
            assert lies[sent.partition][sent.acknowledged] == sent.batch

    @invariant()
    def memory_is_the_store_as_it_was_and_never_ahead(self) -> None:
        for logs in self.brokers:
            for p, log in logs.items():
                state = self.store.states[p]
                assert log.state.next_offset <= state.next_offset
                assert log.state.log_start_offset <= state.log_start_offset
                if log.state.next_offset != state.next_offset:
                    continue
                assert log.state.max_timestamp == state.max_timestamp
                # Reloading rebuilds memory: what is remembered is what a read would give.
                for producer in PRODUCERS:
                    if not log.missing_producers([producer]):
                        known = log.draft().producer(producer)
                        stored = self.store.producers.get((p, producer))
                        assert known == (stored or ProducerState(producer))


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, print_blob=True
)
