"""The brokers of the transaction machine: they put core's decisions together and store them.

What the runtime does with a flush, without its loops and waits; and, each time something has been
stored, what must be true of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.errors import Error
from core.log.effects import IncomingBatch, LogEffects
from core.log.partition_log import (
    Appended,
    Decision,
    LogDraft,
    PartitionLog,
    PartitionState,
    Refused,
)
from core.ports.transactions import TransactionJoin
from core.transaction import single_use
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
from core.transaction.key import TransactionKey
from core.transaction.values import (
    EndTransaction,
    InitProducerId,
    Joining,
    Marker,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    Transition,
    TransitionAnswer,
)
from tests.batches import batch, control_batch, incoming
from tests.keys import named
from tests.property.transaction_world import (
    MESSAGES,
    SUBSCRIPTION,
    Broker,
    Dispatched,
    Instance,
    Kind,
    ModelStore,
    Row,
    Sent,
    Txn,
)

PARTITIONS = (1, 2, 3)
IDS = (named("a"), named("b"))
V1, V2 = TransactionVersion.V1, TransactionVersion.V2
TIMEOUT_MS, MAX_TIMEOUT_MS, EXPIRATION_MS = 1_000, 10_000, 100_000


class Group:
    """The decisions of one flush, on a broker's memory or on what was read under the lock."""

    def __init__(self, store: ModelStore, broker: Broker, now: int, *, is_fresh: bool) -> None:
        self.store, self.broker, self.now, self.is_fresh = store, broker, now, is_fresh
        self.transactions: dict[str, TransactionDraft] = {}
        self.logs: dict[int, LogDraft] = {}
        self.needs_lock = False  # something asked changes nothing, as far as memory knows
        self.rows: dict[IncomingBatch, Sent | Marker | None] = {}
        self.events: list[tuple[str, Sent | Marker]] = []  # writes and ends, in their order

    def known(self, key: TransactionKey) -> StoredTransaction | None:
        if self.is_fresh or key not in self.broker.transactions:
            stored = self.store.rows.get(key)
            self.broker.transactions[key] = stored
        return self.broker.transactions[key]

    def transaction(self, key: TransactionKey) -> TransactionDraft:
        if key not in self.transactions:
            stored = self.known(key)
            draft = TransactionDraft(key, stored, is_fresh=self.is_fresh)
            self.transactions[key] = draft
        return self.transactions[key]

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
            joining = self.transaction(sent.instance.key).prepare_append(
                sent.partition,
                sent.producer,
                sent.instance.version,
                self.now,
                is_first=known.txn_first_offset is None,
            )
            if joining.error is not Error.NONE:
                return Refused(joining.error, joining.message or "")
        new = incoming(sent.batch)
        decision = log.prepare_append(new)
        if isinstance(decision, Appended):
            self.rows[new] = sent
            self.events.append((sent.instance.key, sent))
        return decision

    def plain(self, p: int) -> None:
        new = incoming(batch())
        self.rows[new] = None
        self.log(p, -1).prepare_append(new)

    def transition(self, key: TransactionKey, decide: Decide) -> Transition:
        """Ends and changes of the row."""
        draft = self.transaction(key)
        transition, partitions = draft.prepare_transition(decide)
        self.needs_lock |= not self.is_fresh and transition.put is None
        marker = transition.marker
        if marker is not None:
            for p in sorted(partitions):
                new = incoming(control_batch(marker))
                self.rows[new] = marker
                self.log(p, marker.producer_id).prepare_marker(marker, new)
            self.events.append((key, marker))
        return transition

    def effects(self) -> tuple[list[LogEffects], list[TransactionEffects]]:
        return (
            [effect for each in self.logs.values() if (effect := each.effects())],
            [effect for each in self.transactions.values() if (effect := each.effects())],
        )


class Brokers:
    """Two of them, with one store, and the network that leads to them."""

    def begin(self, epoch: int) -> None:
        """epoch: of producers that have been there before, so that epochs run out."""
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
        self.open: dict[TransactionKey, list[Txn]] = {each: [] for each in IDS}
        self.owner: dict[TransactionKey, Instance | None] = dict.fromkeys(IDS)
        self.epochs: dict[tuple[int, int], int] = {}

    def answer(self, sent: Sent, answer: TransitionAnswer) -> None:
        """Tells whoever asked."""
        raise NotImplementedError

    def fresh(self) -> int:
        self.next_pid += 1
        return self.next_pid

    def arrive(self, broker: Broker, chosen: list[Sent], ends: str) -> None:
        flushed = [each for each in chosen if each.kind in (Kind.INIT, Kind.WRITE, Kind.END)]
        answers: list[tuple[Sent, TransitionAnswer]] = []
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
    ) -> list[tuple[Sent, TransitionAnswer]]:
        is_fresh = any(each.kind is Kind.INIT for each in chosen)
        while True:
            group = Group(self.store, broker, self.now, is_fresh=is_fresh)
            answers = [(sent, self.decide(group, sent)) for sent in chosen]
            if crashes:
                return []
            # A refusal is confirmed by a fresh read before anybody is told, a mismatch read again.
            is_refused = any(answer.error is not Error.NONE for _, answer in answers)
            if (is_refused and not is_fresh) or group.needs_lock or not self.commit(group):
                assert not is_fresh, "decided on what was read under the lock, and yet it differs"
                is_fresh = True
                continue
            for sent, answer in answers:
                self.check_decided(sent, answer)
            ends = [sent.instance.key for sent in chosen if sent.kind is not Kind.WRITE]
            for sent, answer in answers:
                if sent.kind is Kind.END and ends.count(sent.instance.key) == 1:
                    self.check_end(sent, answer)
            return answers

    def decide(self, group: Group, sent: Sent) -> TransitionAnswer:
        key = sent.instance.key
        if sent.kind is Kind.WRITE:
            decision = group.write(sent)
            if isinstance(decision, Refused):
                return TransitionAnswer(decision.error)
            return TransitionAnswer()
        if sent.kind is Kind.INIT:
            asked = InitProducerId(key, TIMEOUT_MS, sent.producer, "client", "host")
            return group.transition(
                key,
                lambda stored: prepare_init_producer_id(
                    stored and stored.metadata, asked, self.fresh(), self.now, MAX_TIMEOUT_MS
                ),
            ).answer
        if sent.instance.is_single:
            return group.transition(
                key,
                lambda stored: single_use.prepare_end(
                    stored and stored.metadata, is_commit=sent.is_commit, now=self.now
                ),
            ).answer
        request = EndTransaction(sent.producer, sent.is_commit, sent.instance.version)
        return group.transition(
            key,
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
                Row(row.base_offset, row.last_offset, row.incoming.batch, of, None)
                if not isinstance(of := group.rows[row.incoming], Marker)
                else Row(row.base_offset, row.last_offset, row.incoming.batch, None, of)
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
        for key, event in events:
            if isinstance(event, Marker):
                self.ended(key, is_commit=event.is_commit)
                continue
            assert event.txn is not None
            assert event.instance is self.owner[key], "a zombie has written"
            may_be_late = event.instance.version is V1 and not event.instance.is_single
            assert event.txn.fate is None or may_be_late, "written after the end"
            assert event.txn.fate is not True
            event.is_stored = True
            if event.txn not in self.open[key]:
                self.open[key].append(event.txn)

    def ended(self, key: TransactionKey, *, is_commit: bool) -> None:
        closed, self.open[key] = self.open[key], []
        for txn in closed:
            assert txn.fate in (None, is_commit), "a transaction has ended twice, and differently"
            txn.fate = is_commit
        if is_commit:
            assert len(closed) <= 1, "two transactions have become one"
            for txn in closed:
                assert txn.end is not None, "nobody has asked for this"
                assert txn.end.is_commit
                for sent in txn.sent:
                    if sent.kind in (Kind.WRITE, Kind.OFFSETS, Kind.ACK):
                        assert sent.is_stored, "something that was acknowledged is missing"
                    if sent.kind is Kind.OFFSETS:
                        assert sent in self.store.committed_offsets

    def check_decided(self, sent: Sent, answer: TransitionAnswer) -> None:
        """Once it is committed, whoever comes to hear of it."""
        instance = sent.instance
        key = instance.key
        if sent.kind is Kind.INIT and answer.error is Error.NONE:
            for other in self.instances:
                if other is not instance and other.key == key:
                    other.is_disturbed = True
            if not instance.awaits(sent):
                instance.is_disturbed = True
            self.owner[key] = instance

    def check_end(self, sent: Sent, answer: TransitionAnswer) -> None:
        """A retry is told what was told first, unless something has come in between."""
        stored = self.store.rows.get(sent.instance.key)
        if stored is None:
            return
        version = stored.metadata.version
        if sent.first_end and sent.first_end[1] == version and sent.instance.awaits(sent):
            assert answer == sent.first_end[0], "a retried EndTxn has got another answer"
        elif not sent.first_end and answer.error is Error.NONE:
            sent.first_end = (answer, version)

    def take_part(self, broker: Broker, sent: Sent) -> TransitionAnswer:
        """Joins, which nobody waits for to reach the disk, and offsets, which are durable."""
        if sent.kind is Kind.ACK:
            return self.acknowledge(broker, sent)
        is_fresh = False
        while True:
            group = Group(self.store, broker, self.now, is_fresh=is_fresh)
            stored = group.known(sent.instance.key)
            joining = self.joining(stored, sent)
            if joining.error is not Error.NONE:
                if is_fresh:
                    return TransitionAnswer(joining.error)
            else:
                assert stored is not None
                join = TransactionJoin(
                    sent.instance.key,
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
                        self.follow([(join.key, sent)])
                        self.durable = self.store.copy()
                    broker.transactions[join.key] = self.store.rows[join.key]
                    return TransitionAnswer()
                assert not is_fresh
            is_fresh = True

    def acknowledge(self, broker: Broker, sent: Sent) -> TransitionAnswer:
        """At the broker that believes to dispatch the subscription: first its memory decides."""
        if broker.subscription is None:
            broker = next((each for each in self.brokers if each.subscription), broker)
        subscription = broker.subscription
        if subscription is None:
            return TransitionAnswer(Error.NOT_LEADER_OR_FOLLOWER)
        owner = sent.producer.producer_id
        if not subscription.core.pend(owner, [[(n, n + 1)] for n in sent.acks], MESSAGES):
            return TransitionAnswer(Error.CONCURRENT_TRANSACTIONS)
        answer = self.put_acks(broker, subscription, sent)
        if answer.error is Error.NOT_LEADER_OR_FOLLOWER:
            broker.subscription = None
        elif answer.error is not Error.NONE:
            subscription.load(self.store)  # what of it is stored?
        return answer

    def put_acks(self, broker: Broker, subscription: Dispatched, sent: Sent) -> TransitionAnswer:
        is_fresh = False
        while True:
            group = Group(self.store, broker, self.now, is_fresh=is_fresh)
            stored = group.known(sent.instance.key)
            joined = stored.participants if stored else frozenset()
            joining = verify_write(
                stored and stored.metadata,
                sent.producer,
                V2,
                self.now,
                is_joined=SUBSCRIPTION in joined,
            )
            if joining.error is Error.NONE:
                assert stored is not None
                assert joining.put is None, "an ended one has begun again"
                version = stored.metadata.version
                of = (SUBSCRIPTION,)
                join = TransactionJoin(sent.instance.key, version, None, participants=of)
                if self.store.holds(join):
                    owner = sent.producer.producer_id
                    if not self.store.put_acks(owner, sent.acks, subscription.lease):
                        return TransitionAnswer(Error.NOT_LEADER_OR_FOLLOWER)
                    self.store.join(join, self.now)
                    self.follow([(join.key, sent)])
                    self.durable = self.store.copy()
                    broker.transactions[join.key] = self.store.rows[join.key]
                    return TransitionAnswer()
                assert not is_fresh
            elif is_fresh:
                return TransitionAnswer(joining.error)
            is_fresh = True

    # Transactions whose key is used once.

    def begin_single(self, broker: Broker, timeout_ms: int) -> Instance:
        """NEW_TXN, which does not wait for the disk."""
        producer_id = self.fresh()
        key = TransactionKey.of_pulsar(0, producer_id)
        request = single_use.Begin(key, producer_id, timeout_ms, "client", "host")
        put = single_use.prepare_begin(request, self.now, MAX_TIMEOUT_MS).put
        assert put is not None
        join = TransactionJoin(key, 0, put)
        assert self.store.holds(join)
        self.store.join(join, self.now)
        broker.transactions[key] = self.store.rows[key]
        instance = Instance(key, V1, ProducerIdAndEpoch(producer_id, 0), txn=Txn())
        assert instance.txn is not None
        self.instances.append(instance)
        self.txns.append(instance.txn)
        self.owner[key], self.open[key] = instance, [instance.txn]
        return instance

    def forget_ended(self, key: TransactionKey) -> None:
        """Nothing is left of it but its row."""
        stored = self.store.rows.get(key)
        if stored is None or stored.metadata.started_at >= 0:
            return
        assert not (stored.partitions or stored.participants)
        del self.store.rows[key]
        self.durable = self.store.copy()
        for each in self.instances:
            if each.key == key:
                each.is_disturbed = True

    # The subscription.

    def take_over(self, broker: int) -> None:
        """The lease changes hands, or is taken again; the last holder need not know."""
        self.store.lease += 1
        self.durable = self.store.copy()
        self.brokers[broker].subscription = Dispatched(self.store)

    def look(self, broker: int) -> None:
        """At the rows of what is pending; then the cursor is written, unless the lease is
        another's by now."""
        subscription = self.brokers[broker].subscription
        if subscription is None:
            return
        if subscription.lease != self.store.lease:
            self.brokers[broker].subscription = None
            return
        subscription.load(self.store)
        self.store.cursor = subscription.acknowledged
        for place, is_committed in list(self.store.acks.items()):
            if is_committed:
                del self.store.acks[place]
        self.durable = self.store.copy()

    def joining(self, stored: StoredTransaction | None, sent: Sent) -> Joining:
        known = stored.metadata if stored else None
        if sent.kind is Kind.JOIN:
            is_joined = bool(stored and sent.partition in stored.partitions)
            return prepare_join(known, sent.producer, V1, self.now, is_joined=is_joined)
        is_joined = bool(stored and stored.participants)
        if sent.kind is Kind.JOIN_GROUP:
            return prepare_join(known, sent.producer, V1, self.now, is_joined=is_joined)
        version = sent.instance.version
        return verify_write(known, sent.producer, version, self.now, is_joined=is_joined)

    def crash_database(self) -> None:
        """What was committed without waiting is lost; what brokers remember of it is not."""
        self.store = self.durable.copy()
        for each in self.instances:
            each.is_disturbed = True
            if each.is_single and each.key not in self.store.rows:
                self.open[each.key] = []

    def change(
        self, broker: int, key: TransactionKey, decide: Callable[[Group], Decide | None]
    ) -> Transition | None:
        group = Group(self.store, self.brokers[broker], self.now, is_fresh=True)
        wanted = decide(group)
        if wanted is None:
            return None
        transition = group.transition(key, wanted)
        assert self.commit(group)
        if transition.put or transition.is_deleted:
            for each in self.instances:
                if each.key == key:
                    each.is_disturbed = True
        return transition

    def abort_overdue(self, broker: int, key: TransactionKey) -> None:
        def decide(stored: StoredTransaction | None) -> Transition:
            due = prepare_timeout(stored and stored.metadata, self.fresh(), self.now)
            return due or Transition(TransitionAnswer())

        self.change(broker, key, lambda _: decide)

    def forget_idle(self, broker: int, key: TransactionKey) -> None:
        def decide(stored: StoredTransaction | None) -> Transition:
            idle = prepare_expiry(stored and stored.metadata, self.now, EXPIRATION_MS)
            return idle or Transition(TransitionAnswer())

        self.change(broker, key, lambda _: decide)

    def mark_from_outside(
        self, broker: int, key: TransactionKey, p: int, *, is_commit: bool
    ) -> None:
        known = self.store.rows.get(key)
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
            producer = group.log(p, marker.producer_id).producer(marker.producer_id)
            return None if producer.marker_refusal(marker) else decide

        self.change(broker, key, unless_refused)
