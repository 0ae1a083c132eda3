"""Transactions and all that can happen to them at once, with crashes cut in anywhere.

Producers of both versions, several instances of one transactional id, requests that are delayed,
doubled, reordered and lost, answers that are lost, timeouts, exhausted epochs, expired ids, markers
from outside, brokers with stale memory, a database that forgets the joins it has not yet written.
Longer runs: PENSTOCK_TXN_MACHINE_EXAMPLES=2000 pytest tests/property/test_transaction_machine.py.

A V1 producer's EndTxn and TxnOffsetCommit are never delayed into its next transaction: nothing in
them tells from which one they are (Jepsen's finding). That is the runtime's to defend, not the
coordinator's. Those of V2 are delayed at will, and the joins and batches of both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.errors import Error
from core.log.aborted_txns import AbortedTransaction
from core.log.effects import LogEffects
from core.log.partition_log import (
    Appended,
    Decision,
    LogDraft,
    PartitionLog,
    PartitionState,
    Refused,
)
from core.transaction.coordinator import (
    prepare_end,
    prepare_expiry,
    prepare_external_marker,
    prepare_init_producer_id,
    prepare_join,
    prepare_timeout,
    verify_write,
)
from core.transaction.draft import Decide, TransactionDraft
from core.transaction.values import (
    Answer,
    EndTransaction,
    InitProducerId,
    Joining,
    Marker,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    Transition,
)
from core.transaction_ports import TransactionJoin
from tests.batches import batch, control_batch, staged
from tests.property.transaction_world import (
    Broker,
    Instance,
    Kind,
    ModelStore,
    Row,
    Sent,
    Txn,
)

EXAMPLES = int(os.environ.get("PENSTOCK_TXN_MACHINE_EXAMPLES", "60"))
PARTITIONS = (1, 2, 3)
IDS = ("a", "b")
V1, V2 = TransactionVersion.V1, TransactionVersion.V2
TIMEOUT_MS, MAX_TIMEOUT_MS, EXPIRATION_MS = 1_000, 10_000, 100_000

BROKER = st.sampled_from([0, 1])
PARTITION = st.sampled_from(PARTITIONS)
ID = st.sampled_from(IDS)
VERSION = st.sampled_from([V1, V2])
WHICH = st.integers(0, 10**6)
ACT = st.sampled_from(
    ["write"] * 8 + ["offsets"] * 3 + ["commit"] * 4 + ["abort"] * 2 + ["recover"]
)
ENDS = ["answers lost", "crash before", "crash after"]
LUCK = st.sampled_from(["well"] * 8 + ["the database crashes", *ENDS])
TROUBLE = st.sampled_from(
    ["the overdue are aborted"] * 2
    + ["time passes", "the idle are forgotten", "a marker comes from outside", "a plain batch"]
    + ["a request is lost", "a broker crashes", "the database crashes"]
)


class Group:
    """The decisions of one flush, on a broker's memory or on what was read under the lock."""

    def __init__(self, store: ModelStore, broker: Broker, now: int, *, is_fresh: bool) -> None:
        self.store, self.broker, self.now, self.is_fresh = store, broker, now, is_fresh
        self.transactions: dict[str, TransactionDraft] = {}
        self.logs: dict[int, LogDraft] = {}
        self.rows: dict[int, Sent | Marker | None] = {}  # by batch id
        self.events: list[tuple[str, Sent | Marker]] = []  # writes and ends, in their order

    def known(self, transactional_id: str) -> StoredTransaction | None:
        if self.is_fresh or transactional_id not in self.broker.transactions:
            stored = self.store.rows.get(transactional_id)
            self.broker.transactions[transactional_id] = stored
        return self.broker.transactions[transactional_id]

    def transaction(self, transactional_id: str) -> TransactionDraft:
        if transactional_id not in self.transactions:
            stored = self.known(transactional_id)
            draft = TransactionDraft(transactional_id, stored, is_fresh=self.is_fresh)
            self.transactions[transactional_id] = draft
        return self.transactions[transactional_id]

    def log(self, p: int, producer_id: int) -> LogDraft:
        stored = {i: state for (of, i), state in self.store.producers.items() if of == p}
        known = self.broker.logs.setdefault(p, PartitionLog(self.store.states[p]))
        if p not in self.logs:
            if self.is_fresh or known.missing_producers([producer_id]):
                known.load(self.store.states[p], {producer_id: None, **stored})
            self.logs[p] = known.draft()
        if known.missing_producers([producer_id]):
            known.load(known.state, {producer_id: stored.get(producer_id)})
        return self.logs[p]

    def write(self, sent: Sent) -> Decision:
        assert sent.batch is not None
        log = self.log(sent.partition, sent.batch.producer_id)
        known = log.producer(sent.batch.producer_id)
        if not known.find_duplicate(sent.batch):
            joining = self.transaction(sent.instance.transactional_id).prepare_append(
                sent.partition,
                sent.producer,
                sent.instance.version,
                self.now,
                is_first=known.txn_first_offset is None,
            )
            if joining.error is not Error.NONE:
                return Refused(joining.error, joining.message or "")
        place = staged(sent.batch, batch_id=len(self.rows))
        decision = log.prepare_append(place)
        if isinstance(decision, Appended):
            self.rows[place.batch_id] = sent
            self.events.append((sent.instance.transactional_id, sent))
        return decision

    def plain(self, p: int) -> None:
        place = staged(batch(), batch_id=len(self.rows))
        self.rows[place.batch_id] = None
        self.log(p, -1).prepare_append(place)

    def transition(self, transactional_id: str, decide: Decide) -> Transition:
        """Ends and changes of the row: read under the lock, always."""
        assert self.is_fresh
        draft = self.transaction(transactional_id)
        transition, partitions = draft.prepare_transition(decide)
        marker = transition.marker
        if marker is not None:
            for p in sorted(partitions):
                place = staged(control_batch(marker), batch_id=len(self.rows))
                self.rows[place.batch_id] = marker
                self.log(p, marker.producer_id).prepare_marker(marker, place)
            self.events.append((transactional_id, marker))
        return transition

    def effects(self) -> tuple[list[LogEffects], list[TransactionEffects]]:
        return (
            [effect for each in self.logs.values() if (effect := each.effects())],
            [effect for each in self.transactions.values() if (effect := each.effects())],
        )


class TransactionMachine(RuleBasedStateMachine):
    @initialize(epoch=st.sampled_from([0, 32763, 32765]), versions=st.tuples(VERSION, VERSION))
    def start(self, epoch: int, versions: tuple[TransactionVersion, ...]) -> None:
        self.now, self.next_pid, self.steps = 1_000, 7_000, 0
        self.store = ModelStore(
            {p: PartitionState(p) for p in PARTITIONS},
            {p: [] for p in PARTITIONS},
            {p: [] for p in PARTITIONS},
        )
        if epoch:
            for each in IDS:
                old = TransactionMetadata(each, self.fresh(), epoch, TransactionState.EMPTY)
                old = replace(old, updated_at=self.now, version=1)
                self.store.rows[each] = StoredTransaction(old)
        self.durable = self.store.copy()
        self.brokers = [Broker(), Broker()]
        self.instances: list[Instance] = []
        self.network: list[Sent] = []
        self.txns: list[Txn] = []
        self.open: dict[str, list[Txn]] = {each: [] for each in IDS}
        self.owner: dict[str, Instance | None] = dict.fromkeys(IDS)
        self.epochs: dict[tuple[int, int], int] = {}
        for transactional_id, version in zip(IDS, versions, strict=True):
            self.an_instance_starts(transactional_id, version, 0)
        self.all_requests_arrive(0)

    def fresh(self) -> int:
        self.next_pid += 1
        return self.next_pid

    # What clients do.

    @rule(transactional_id=ID, version=VERSION, more=st.integers(0, 4))
    def an_instance_starts(
        self, transactional_id: str, version: TransactionVersion, more: int
    ) -> None:
        alive = [each.transactional_id for each in self.instances if not each.is_dead]
        if alive.count(transactional_id) < 1 + more // 4:
            instance = Instance(transactional_id, version)
            self.instances.append(instance)
            self.initialise(instance)

    @rule(
        which=WHICH,
        acts=st.lists(st.tuples(ACT, PARTITION, BROKER, LUCK), min_size=1, max_size=6),
        records=st.integers(1, 2),
        at_once=st.sampled_from([True, True, False]),
    )
    def a_client_acts(
        self, which: int, acts: list[tuple[str, int, int, str]], records: int, at_once: bool
    ) -> None:
        """at_once: each request is answered before the next, or sent again until it is."""
        for act, p, broker, luck in acts:
            while True:
                able = [each for each in self.instances if each.may_send]
                if not able:
                    return
                before = len(self.network)
                self.act(able[which % len(able)], act, p, records)
                if not at_once or len(self.network) == before:
                    break
                sent = self.network.pop()
                self.deliver(sent, broker, luck)
                if sent.kind not in (Kind.JOIN, Kind.JOIN_GROUP):
                    break  # else what it was for comes now

    def deliver(self, sent: Sent, broker: int, luck: str) -> None:
        if luck in ENDS:
            self.arrive(self.brokers[broker], [sent], luck)
            if luck.startswith("crash"):
                self.brokers[broker] = Broker()
            broker = 1 - broker
        self.arrive(self.brokers[broker], [sent], "well")
        if luck == "the database crashes":
            self.crash_database()

    def act(self, instance: Instance, act: str, p: int, records: int) -> None:
        match act:
            case "write":
                self.write(instance, p, records)
            case "offsets":
                self.commit_offsets(instance)
            case "commit" | "abort" if instance.txn:
                self.end(instance, is_commit=act == "commit")
            case "recover":  # KIP-360, in the middle of a transaction or between two
                self.initialise(instance)

    @rule(which=WHICH)
    def a_request_is_sent_once_more(self, which: int) -> None:
        waiting = [
            sent
            for each in self.instances
            for sent in ([each.init] if each.init else each.txn.sent if each.txn else [])
            if each.awaits(sent)
        ]
        if waiting:
            self.network.append(waiting[which % len(waiting)])

    def send(self, kind: Kind, instance: Instance, p: int = 0) -> Sent:
        if kind is Kind.INIT:
            sent = Sent(kind, instance, instance.producer)
        else:
            if instance.txn is None:
                instance.txn = Txn()
                self.txns.append(instance.txn)
            sent = Sent(kind, instance, instance.producer, instance.txn, p)
            instance.txn.sent.append(sent)
        self.network.append(sent)
        return sent

    def initialise(self, instance: Instance) -> None:
        instance.txn = None
        instance.needs_bump = False
        instance.init = self.send(Kind.INIT, instance)

    def write(self, instance: Instance, p: int, records: int) -> None:
        txn = instance.txn
        if txn and (txn.is_failed or any(o.partition == p for o in txn.unanswered(Kind.WRITE))):
            return  # later batches travel behind it
        if instance.version is V1 and not (txn and p in txn.joined):
            self.send(Kind.JOIN, instance, p)
            return
        sequence = instance.sequences.get(p, 0)
        instance.sequences[p] = sequence + records
        self.send(Kind.WRITE, instance, p).batch = batch(
            records,
            producer=instance.producer.producer_id,
            epoch=instance.producer.producer_epoch,
            sequence=sequence,
            transactional=True,
        )

    def commit_offsets(self, instance: Instance) -> None:
        txn = instance.txn
        if txn and (txn.is_failed or any(each.kind is Kind.OFFSETS for each in txn.sent)):
            return
        is_ready = instance.version is V2 or (txn and txn.has_group)
        self.send(Kind.OFFSETS if is_ready else Kind.JOIN_GROUP, instance)

    def end(self, instance: Instance, *, is_commit: bool) -> None:
        txn = instance.txn
        assert txn is not None
        asked = (Kind.WRITE, Kind.OFFSETS, Kind.JOIN, Kind.JOIN_GROUP)
        if instance.version is V1 and txn.unanswered(Kind.WRITE):
            instance.needs_bump = True  # their sequences are lost
        is_whole = not (txn.is_failed or txn.unanswered(*asked))
        txn.end = self.send(Kind.END, instance)
        txn.end.is_commit = is_commit and is_whole

    # What brokers do.

    @precondition(lambda self: self.network)
    @rule(
        broker=BROKER,
        picks=st.lists(WHICH, min_size=1, max_size=4),
        stays=st.sampled_from([False, False, True]),
        ends=st.sampled_from(["well"] * 4 + ENDS),
    )
    def some_requests_arrive(self, broker: int, picks: list[int], stays: bool, ends: str) -> None:
        """Any of those on their way, in any order; some of them will arrive again."""
        chosen = list(dict.fromkeys(self.network[pick % len(self.network)] for pick in picks))
        if not stays:
            for sent in chosen:
                self.network.remove(sent)
        self.arrive(self.brokers[broker], chosen, ends)
        if ends.startswith("crash"):
            self.brokers[broker] = Broker()

    @precondition(lambda self: self.network)
    @rule(broker=BROKER)
    def all_requests_arrive(self, broker: int) -> None:
        arriving, self.network = self.network, []
        for sent in arriving:
            self.arrive(self.brokers[broker], [sent], "well")

    def arrive(self, broker: Broker, chosen: list[Sent], ends: str) -> None:
        flushed = [each for each in chosen if each.kind in (Kind.INIT, Kind.WRITE, Kind.END)]
        answers: list[tuple[Sent, Answer]] = []
        if flushed:
            answers += self.flush(broker, flushed, crashes=ends == "crash before")
        for sent in chosen:
            if sent not in flushed and ends != "crash before":
                answers.append((sent, self.take_part(broker, sent)))
        if ends == "well":
            for sent, answer in answers:
                self.answer(sent, answer)

    def flush(
        self, broker: Broker, chosen: list[Sent], *, crashes: bool
    ) -> list[tuple[Sent, Answer]]:
        is_fresh = any(each.kind is not Kind.WRITE for each in chosen)
        while True:
            group = Group(self.store, broker, self.now, is_fresh=is_fresh)
            answers = [(sent, self.decide(group, sent)) for sent in chosen]
            if crashes:
                return []
            # A refusal is confirmed by a fresh read before anybody is told, a mismatch read again.
            is_refused = any(answer.error is not Error.NONE for _, answer in answers)
            if (is_refused and not is_fresh) or not self.commit(group):
                assert not is_fresh, "decided on what was read under the lock, and yet it differs"
                is_fresh = True
                continue
            for sent, answer in answers:
                self.check_decided(sent, answer)
            ends = [
                sent.instance.transactional_id for sent in chosen if sent.kind is not Kind.WRITE
            ]
            for sent, answer in answers:
                if sent.kind is Kind.END and ends.count(sent.instance.transactional_id) == 1:
                    self.check_end(sent, answer)
            return answers

    def decide(self, group: Group, sent: Sent) -> Answer:
        transactional_id = sent.instance.transactional_id
        if sent.kind is Kind.WRITE:
            decision = group.write(sent)
            if isinstance(decision, Refused):
                return Answer(decision.error)
            return Answer()
        if sent.kind is Kind.INIT:
            asked = InitProducerId(transactional_id, TIMEOUT_MS, sent.producer, "client", "host")
            return group.transition(
                transactional_id,
                lambda stored: prepare_init_producer_id(
                    stored and stored.metadata, asked, self.fresh(), self.now, MAX_TIMEOUT_MS
                ),
            ).answer
        request = EndTransaction(sent.producer, sent.is_commit, sent.instance.version)
        return group.transition(
            transactional_id,
            lambda stored: prepare_end(stored and stored.metadata, request, self.fresh(), self.now),
        ).answer

    def commit(self, group: Group) -> bool:
        """The whole flush, or nothing; then memory takes it over."""
        effects, transactions = group.effects()
        if not all(self.store.holds(each) for each in transactions):
            return False
        for each in effects:
            if self.store.states[each.partition_id].next_offset != each.expected_offset:
                return False
        for change in transactions:
            self.store.put(change, self.now)
        for each in effects:
            rows = [
                Row(row.base_offset, row.last_offset, row.staged.batch, of, None)
                if not isinstance(of := group.rows[row.staged.batch_id], Marker)
                else Row(row.base_offset, row.last_offset, row.staged.batch, None, of)
                for row in each.rows
            ]
            self.store.append(each, rows)
        self.follow(group.events)
        if effects or transactions:
            self.durable = self.store.copy()
        for each in effects:
            group.broker.logs[each.partition_id].replay(each)
        for name, draft in group.transactions.items():
            group.broker.transactions[name] = draft.committed()
            if stored := self.store.rows.get(name):
                known = draft.committed()
                assert known is not None
                assert known.metadata.version == stored.metadata.version
                assert known.partitions == stored.partitions or not group.is_fresh
        return True

    def follow(self, events: list[tuple[str, Sent | Marker]]) -> None:
        """What was stored, in order: nobody who was fenced, nothing that has ended."""
        for transactional_id, event in events:
            if isinstance(event, Marker):
                self.ended(transactional_id, is_commit=event.is_commit)
                continue
            assert event.txn is not None
            assert event.instance is self.owner[transactional_id], "a zombie has written"
            assert event.txn.fate is None or event.instance.version is V1, "written after the end"
            assert event.txn.fate is not True
            event.is_stored = True
            if event.txn not in self.open[transactional_id]:
                self.open[transactional_id].append(event.txn)

    def ended(self, transactional_id: str, *, is_commit: bool) -> None:
        closed, self.open[transactional_id] = self.open[transactional_id], []
        for txn in closed:
            assert txn.fate in (None, is_commit), "a transaction has ended twice, and differently"
            txn.fate = is_commit
        if is_commit:
            assert len(closed) <= 1, "two transactions have become one"
            for txn in closed:
                assert txn.end is not None, "nobody has asked for this"
                assert txn.end.is_commit
                for sent in txn.sent:
                    if sent.kind in (Kind.WRITE, Kind.OFFSETS):
                        assert sent.is_stored, "something that was acknowledged is missing"
                    if sent.kind is Kind.OFFSETS:
                        assert sent in self.store.committed_offsets

    def check_decided(self, sent: Sent, answer: Answer) -> None:
        """Once it is committed, whoever comes to hear of it."""
        instance = sent.instance
        transactional_id = instance.transactional_id
        if sent.kind is Kind.INIT and answer.error is Error.NONE:
            for other in self.instances:
                if other is not instance and other.transactional_id == transactional_id:
                    other.is_disturbed = True
            if not instance.awaits(sent):
                instance.is_disturbed = True
            self.owner[transactional_id] = instance

    def check_end(self, sent: Sent, answer: Answer) -> None:
        """A retry is told what was told first, unless something has come in between."""
        stored = self.store.rows.get(sent.instance.transactional_id)
        if stored is None:
            return
        version = stored.metadata.version
        if sent.first_end and sent.first_end[1] == version and sent.instance.awaits(sent):
            assert answer == sent.first_end[0], "a retried EndTxn has got another answer"
        elif not sent.first_end and answer.error is Error.NONE:
            sent.first_end = (answer, version)

    def take_part(self, broker: Broker, sent: Sent) -> Answer:
        """Joins, which nobody waits for to reach the disk, and offsets, which are durable."""
        is_fresh = False
        while True:
            group = Group(self.store, broker, self.now, is_fresh=is_fresh)
            stored = group.known(sent.instance.transactional_id)
            joining = self.joining(stored, sent)
            if joining.error is not Error.NONE:
                if is_fresh:
                    return Answer(joining.error)
            else:
                assert stored is not None
                join = TransactionJoin(
                    sent.instance.transactional_id,
                    stored.metadata.version,
                    joining.put,
                    (sent.partition,) if sent.kind is Kind.JOIN else (),
                    ("group",) if sent.kind is not Kind.JOIN else (),
                )
                if self.store.holds(join):
                    self.steps += 1_000
                    is_durable = sent.kind is Kind.OFFSETS
                    self.store.join(join, self.now, 1 if is_durable else self.steps)
                    if sent.kind is Kind.OFFSETS:
                        self.store.pending[sent.producer.producer_id] = sent
                        self.follow([(join.transactional_id, sent)])
                        self.durable = self.store.copy()
                    broker.transactions[join.transactional_id] = self.store.rows[
                        join.transactional_id
                    ]
                    return Answer()
                assert not is_fresh
            is_fresh = True

    def joining(self, stored: StoredTransaction | None, sent: Sent) -> Joining:
        known = stored.metadata if stored else None
        if sent.kind is Kind.JOIN:
            is_joined = bool(stored and sent.partition in stored.partitions)
            return prepare_join(known, sent.producer, V1, self.now, is_joined=is_joined)
        is_joined = bool(stored and stored.groups)
        if sent.kind is Kind.JOIN_GROUP:
            return prepare_join(known, sent.producer, V1, self.now, is_joined=is_joined)
        version = sent.instance.version
        return verify_write(known, sent.producer, version, self.now, is_joined=is_joined)

    # What clients hear.

    def answer(self, sent: Sent, answer: Answer) -> None:
        instance, txn = sent.instance, sent.txn
        if not instance.awaits(sent):
            return
        sent.is_answered = True
        if answer.error is not Error.NONE:
            self.check_refusal(sent, answer.error)
            if sent.kind in (Kind.INIT, Kind.END):
                instance.is_dead = True
            elif txn:
                txn.is_failed = True
                instance.needs_bump |= sent.kind is Kind.WRITE
            return
        assert answer.producer.producer_epoch < 32767, "that one is kept for fencing"
        if sent.kind is Kind.INIT:
            instance.init = None
            instance.become(answer.producer)
        elif sent.kind is Kind.JOIN and txn:
            txn.joined.add(sent.partition)
        elif sent.kind is Kind.JOIN_GROUP and txn:
            txn.has_group = True
        elif sent.kind is Kind.END and txn:
            txn.told = sent.is_commit
            instance.txn = None
            instance.become(answer.producer)
            if instance.version is V1:
                late = (Kind.END, Kind.OFFSETS)
                self.network = [
                    each for each in self.network if each.txn is not txn or each.kind not in late
                ]
                if instance.needs_bump:
                    self.initialise(instance)

    def check_refusal(self, sent: Sent, error: Error) -> None:
        """Whoever has done nothing wrong is not refused."""
        if sent.instance.is_disturbed:
            return
        if sent.txn and sent.txn.end and sent is not sent.txn.end:
            assert not sent.txn.end.is_commit
            return  # its abort has overtaken it
        # An abort that has overtaken its joins, after a commit: see _repeated_end.
        assert sent.kind is Kind.END
        assert error is Error.INVALID_TXN_STATE
        assert (sent.instance.version, sent.is_commit) == (V1, False)
        assert sent.txn is not None
        assert not sent.txn.joined
        assert not sent.txn.has_group

    # What nobody asks for.

    @rule(what=TROUBLE, by=WHICH, broker=BROKER, transactional_id=ID, p=PARTITION)
    def something_happens(
        self, what: str, by: int, broker: int, transactional_id: str, p: int
    ) -> None:
        match what:
            case "time passes":
                self.now += (1, TIMEOUT_MS // 2, TIMEOUT_MS)[by % 3]
            case "the overdue are aborted":
                self.now += TIMEOUT_MS * 2 * (by % 3 == 0)
                self.abort_overdue(broker, transactional_id)
            case "the idle are forgotten":
                self.now += EXPIRATION_MS * (by % 4 == 0)
                self.forget_idle(broker, transactional_id)
            case "a marker comes from outside":
                self.mark_from_outside(broker, transactional_id, p, is_commit=by % 3 == 0)
            case "a plain batch":
                group = Group(self.store, self.brokers[broker], self.now, is_fresh=True)
                group.plain(p)
                assert self.commit(group)
            case "a request is lost" if self.network:
                del self.network[by % len(self.network)]
            case "a broker crashes":
                self.brokers[broker] = Broker()
            case "the database crashes":
                self.crash_database()

    def crash_database(self) -> None:
        """What was committed without waiting is lost; what brokers remember of it is not."""
        self.store = self.durable.copy()
        for each in self.instances:
            each.is_disturbed = True

    def change(
        self, broker: int, transactional_id: str, decide: Callable[[Group], Decide | None]
    ) -> Transition | None:
        group = Group(self.store, self.brokers[broker], self.now, is_fresh=True)
        wanted = decide(group)
        if wanted is None:
            return None
        transition = group.transition(transactional_id, wanted)
        assert self.commit(group)
        if transition.put or transition.is_deleted:
            for each in self.instances:
                if each.transactional_id == transactional_id:
                    each.is_disturbed = True
        return transition

    def abort_overdue(self, broker: int, transactional_id: str) -> None:
        def decide(stored: StoredTransaction | None) -> Transition:
            due = prepare_timeout(stored and stored.metadata, self.fresh(), self.now)
            return due or Transition(Answer())

        self.change(broker, transactional_id, lambda _: decide)

    def forget_idle(self, broker: int, transactional_id: str) -> None:
        def decide(stored: StoredTransaction | None) -> Transition:
            idle = prepare_expiry(stored and stored.metadata, self.now, EXPIRATION_MS)
            return idle or Transition(Answer())

        self.change(broker, transactional_id, lambda _: decide)

    def mark_from_outside(
        self, broker: int, transactional_id: str, p: int, *, is_commit: bool
    ) -> None:
        known = self.store.rows.get(transactional_id)
        if known is None:
            return
        marker = Marker(known.metadata.producer_id, known.metadata.producer_epoch, is_commit, 0)

        def decide(stored: StoredTransaction | None) -> Transition:
            return prepare_external_marker(
                stored and stored.metadata,
                marker,
                self.fresh(),
                self.now,
                has_joined=bool(stored and p in stored.partitions),
            )

        def unless_refused(group: Group) -> Decide | None:
            return None if group.log(p, marker.producer_id).marker_refusal(marker) else decide

        self.change(broker, transactional_id, unless_refused)

    # What must always hold.

    @rule(broker=BROKER, p=PARTITION, from_offset=st.integers(0, 30), size=st.integers(1, 12))
    def somebody_reads_what_is_committed(
        self, broker: int, p: int, from_offset: int, size: int
    ) -> None:
        state, log = self.store.states[p], self.brokers[broker].logs.get(p)
        told = [each for each in self.store.aborted[p] if each.last_offset >= from_offset]
        if log is not None:
            state = log.state
            in_memory = log.aborted.overlapping(from_offset, from_offset + size)
            told = told if in_memory is None else list(in_memory)
        end = min(from_offset + size, state.last_stable_offset)
        read = [
            row
            for row in self.store.log[p]
            if row.last_offset >= from_offset and row.last_offset < end
        ]
        told = [each for each in told if each.first_offset < end]
        shown = as_the_consumer_filters(read, told)
        expected = [row for row in read if not row.marker and (not row.sent or is_committed(row))]
        assert shown == expected

    @invariant()
    def the_log_and_what_is_known_of_it_agree(self) -> None:
        for p, state in self.store.states.items():
            opened: dict[int, int] = {}
            aborted = []
            for row in self.store.log[p]:
                if row.marker:
                    first = opened.pop(row.marker.producer_id, None)
                    if first is not None and not row.marker.is_commit:
                        aborted.append(
                            AbortedTransaction(row.marker.producer_id, first, row.base_offset)
                        )
                elif row.sent:
                    opened.setdefault(row.batch.producer_id, row.base_offset)
            assert self.store.aborted[p] == aborted
            assert state.last_stable_offset == min(opened.values(), default=state.next_offset)
            assert state.last_stable_offset <= state.high_watermark
            for broker in self.brokers:
                if log := broker.logs.get(p):
                    assert log.state.next_offset <= state.next_offset
                    if log.state.next_offset == state.next_offset:
                        assert log.state.open_transactions == state.open_transactions
                    known = log.aborted.overlapping(log.aborted.known_from, 10**9)
                    until = log.state.next_offset
                    assert known == [
                        each
                        for each in aborted
                        if log.aborted.known_from <= each.last_offset < until
                    ]

    @invariant()
    def a_transaction_is_whole(self) -> None:
        for txn in self.txns:
            written = [sent for sent in txn.sent if sent.is_stored]
            if txn.told is not None and written:
                assert txn.fate is txn.told, "it has ended otherwise than its client was told"
        assert all(each.txn and each.txn.fate is True for each in self.store.committed_offsets)

    @invariant()
    def what_is_open_has_a_transaction_that_will_end_it(self) -> None:
        for p, state in self.store.states.items():
            for open_ in state.open_transactions:
                (row,) = (
                    each
                    for each in self.store.rows.values()
                    if each.metadata.producer_id == open_.producer_id
                )
                assert row.metadata.state is TransactionState.ONGOING, "a hanging transaction"
                assert p in row.partitions, "a hanging transaction"

    @invariant()
    def no_epoch_falls(self) -> None:
        found = {
            (0, each.metadata.producer_id): each.metadata.producer_epoch
            for each in self.store.rows.values()
        }
        found |= {key: each.producer_epoch for key, each in self.store.producers.items()}
        for key, epoch in found.items():
            assert epoch >= self.epochs.get(key, -1)
            self.epochs[key] = epoch

    def teardown(self) -> None:
        """When all timeouts have been applied, nothing hangs."""
        if not hasattr(self, "store"):
            return
        self.now += MAX_TIMEOUT_MS
        for transactional_id in IDS:
            self.abort_overdue(0, transactional_id)
        for state in self.store.states.values():
            assert state.open_transactions == ()
            assert state.last_stable_offset == state.high_watermark
        assert not self.store.pending
        for row in self.store.rows.values():
            assert not (row.partitions or row.groups)
        assert all(not each for each in self.open.values())
        self.the_log_and_what_is_known_of_it_agree()
        self.a_transaction_is_whole()


def is_committed(row: Row) -> bool:
    assert row.sent is not None
    assert row.sent.txn is not None
    return row.sent.txn.fate is True


def as_the_consumer_filters(rows: list[Row], told: list[AbortedTransaction]) -> list[Row]:
    """What a read_committed consumer shows of an answer (Java's CompletedFetch)."""
    told = sorted(told, key=lambda each: each.first_offset)
    aborted: set[int] = set()
    shown = []
    for row in rows:
        while told and told[0].first_offset <= row.last_offset:
            aborted.add(told.pop(0).producer_id)
        if row.marker:
            if not row.marker.is_commit:
                aborted.discard(row.marker.producer_id)
        elif not (row.batch.is_transactional and row.batch.producer_id in aborted):
            shown.append(row)
    return shown


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, print_blob=True
)


def scripted(version: TransactionVersion) -> tuple[TransactionMachine, Instance]:
    """A producer of id "a" that broker 0 has initialised, for what chance comes upon too rarely."""
    machine = TransactionMachine()
    machine.start(0, (version, version))
    return machine, machine.instances[0]


def successor(machine: TransactionMachine) -> None:
    """A second instance of the same id begins, at the other broker."""
    machine.an_instance_starts("a", V2, 4)
    machine.arrive(machine.brokers[1], [machine.network.pop()], "well")


def test_memory_of_a_join_that_was_lost_does_not_let_a_zombie_write() -> None:
    machine, zombie = scripted(V1)
    machine.write(zombie, 1, 1)  # the join, which opens the transaction
    machine.arrive(machine.brokers[0], [machine.network.pop()], "well")
    machine.crash_database()
    successor(machine)
    machine.write(zombie, 1, 1)
    machine.arrive(machine.brokers[0], [machine.network.pop()], "well")
    assert machine.store.states[1].next_offset == 0
    assert zombie.txn is not None
    assert zombie.txn.is_failed


def test_memory_of_an_expired_id_does_not_let_a_zombie_write() -> None:
    machine, zombie = scripted(V2)
    machine.now += EXPIRATION_MS
    machine.forget_idle(1, "a")
    successor(machine)
    before = machine.store.rows["a"]
    machine.write(zombie, 1, 1)
    machine.arrive(machine.brokers[0], [machine.network.pop()], "well")
    assert machine.store.states[1].next_offset == 0
    assert machine.store.rows["a"] == before
