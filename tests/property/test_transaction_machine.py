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

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.log.aborted_txns import AbortedTransaction
from core.transaction.key import TransactionKey
from core.transaction.values import TransactionState, TransactionVersion
from tests.property.transaction_brokers import (
    EXPIRATION_MS,
    IDS,
    MAX_TIMEOUT_MS,
    PARTITIONS,
    TIMEOUT_MS,
    V1,
    V2,
    Group,
)
from tests.property.transaction_clients import Clients
from tests.property.transaction_world import (
    MESSAGES,
    Broker,
    Instance,
    Kind,
    Sent,
    Txn,
    as_the_consumer_filters,
    is_committed,
)

EXAMPLES = int(os.environ.get("PENSTOCK_TXN_MACHINE_EXAMPLES", "60"))

BROKER = st.sampled_from([0, 1])
PARTITION = st.sampled_from(PARTITIONS)
ID = st.sampled_from(IDS)
VERSION = st.sampled_from([V1, V2])
WHICH = st.integers(0, 10**6)
OFFSETS = st.lists(st.integers(0, MESSAGES - 1), min_size=1, max_size=3, unique=True).map(tuple)
ACT = st.sampled_from(
    ["write"] * 8 + ["acks"] * 4 + ["offsets"] * 3 + ["commit"] * 4 + ["abort"] * 2 + ["recover"]
)
ENDS = ["answers lost", "crash before", "crash after"]
LUCK = st.sampled_from(["well"] * 8 + ["the database crashes", *ENDS])
TROUBLE = st.sampled_from(
    ["the overdue are aborted"] * 2
    + ["time passes", "the idle are forgotten", "a marker comes from outside", "a plain batch"]
    + ["a request is lost", "a broker crashes", "the database crashes"]
    + ["the subscription moves", "the ended are forgotten"]
)


class TransactionMachine(Clients, RuleBasedStateMachine):
    @initialize(epoch=st.sampled_from([0, 32763, 32765]), versions=st.tuples(VERSION, VERSION))
    def start(self, epoch: int, versions: tuple[TransactionVersion, ...]) -> None:
        self.begin(epoch)
        for key, version in zip(IDS, versions, strict=True):
            self.an_instance_starts(key, version, 0)
        self.all_requests_arrive(0)
        self.take_over(0)

    # What clients do.

    @rule(key=ID, version=VERSION, more=st.integers(0, 4))
    def an_instance_starts(
        self, key: TransactionKey, version: TransactionVersion, more: int
    ) -> None:
        alive = [each.key for each in self.instances if not each.is_dead]
        if alive.count(key) < 1 + more // 4:
            instance = Instance(key, version)
            self.instances.append(instance)
            self.initialise(instance)

    @rule(
        which=WHICH,
        acts=st.lists(st.tuples(ACT, PARTITION, BROKER, LUCK), min_size=1, max_size=6),
        records=st.integers(1, 2),
        offsets=OFFSETS,
        at_once=st.sampled_from([True, True, False]),
    )
    def a_client_acts(
        self,
        which: int,
        acts: list[tuple[str, int, int, str]],
        records: int,
        offsets: tuple[int, ...],
        at_once: bool,
    ) -> None:
        """at_once: each request is answered before the next, or sent again until it is."""
        for act, p, broker, luck in acts:
            while True:
                able = [each for each in self.instances if each.may_send]
                if not able:
                    return
                before = len(self.network)
                self.act(able[which % len(able)], act, p, records, offsets)
                if not at_once or len(self.network) == before:
                    break
                sent = self.network.pop()
                self.deliver(sent, broker, luck)
                if sent.kind not in (Kind.JOIN, Kind.JOIN_GROUP):
                    break  # else what it was for comes now

    def deliver(self, sent: Sent, broker: int, luck: str) -> None:
        """With bad luck, sent again, to the other broker."""
        if luck in ENDS:
            self.arrive(self.brokers[broker], [sent], luck)
            if luck.startswith("crash"):
                self.brokers[broker] = Broker()
            broker = 1 - broker
        self.arrive(self.brokers[broker], [sent], "well")
        if luck == "the database crashes":
            self.crash_database()

    @rule(broker=BROKER, timeout_ms=st.sampled_from([1, TIMEOUT_MS, MAX_TIMEOUT_MS]))
    def a_transaction_begins(self, broker: int, timeout_ms: int) -> None:
        """One of Pulsar's."""
        if sum(each.is_single and not each.is_dead for each in self.instances) < 3:
            self.begin_single(self.brokers[broker], timeout_ms)

    @rule(
        broker=BROKER,
        p=PARTITION,
        offsets=OFFSETS,
        end=st.sampled_from(["commit", "commit", "abort"]),
        meanwhile=st.sampled_from(["nothing"] * 3 + ["time's over", "crash", "the lease moves"]),
        luck=LUCK,
    )
    def a_transaction_goes_its_way(
        self, broker: int, p: int, offsets: tuple[int, ...], end: str, meanwhile: str, luck: str
    ) -> None:
        """One of Pulsar's, from its beginning to its end, which comes once more later on."""
        instance = self.begin_single(self.brokers[broker], TIMEOUT_MS)
        for act in ("acks", "write", "write", end):
            if act == end and meanwhile == "time's over":
                self.now += 2 * TIMEOUT_MS
                self.abort_overdue(1 - broker, instance.key)
            elif act == end and meanwhile == "crash":
                self.crash_database()
            elif act == end and meanwhile == "the lease moves":
                self.take_over(1 - broker)
            if not instance.may_send:
                return
            before = len(self.network)
            self.act(instance, act, p, 1, offsets)
            if len(self.network) > before:
                self.deliver(sent := self.network.pop(), broker, luck if act == end else "well")
                if act in ("acks", end):
                    self.network.append(sent)

    @rule(broker=BROKER)
    def somebody_looks_at_pending_acknowledgements(self, broker: int) -> None:
        self.look(broker)

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

    # What nobody asks for.

    @rule(what=TROUBLE, by=WHICH, broker=BROKER, key=ID, p=PARTITION)
    def something_happens(
        self, what: str, by: int, broker: int, key: TransactionKey, p: int
    ) -> None:
        match what:
            case "time passes":
                self.now += (1, TIMEOUT_MS // 2, TIMEOUT_MS)[by % 3]
            case "the overdue are aborted":
                self.now += TIMEOUT_MS * 2 * (by % 3 == 0)
                for each in (key, *self.singles):
                    self.abort_overdue(broker, each)
            case "the ended are forgotten":
                for each in self.singles[: by % 3]:
                    self.forget_ended(each)
            case "the subscription moves":
                self.take_over(broker)
            case "the idle are forgotten":
                self.now += EXPIRATION_MS * (by % 4 == 0)
                self.forget_idle(broker, key)
            case "a marker comes from outside":
                self.mark_from_outside(broker, key, p, is_commit=by % 3 == 0)
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

    @property
    def singles(self) -> list[TransactionKey]:
        """Keys that are used once, and are there."""
        return [each for each in self.store.rows if each.kind.is_used_once]

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
    def what_is_used_once_has_one_end(self) -> None:
        for each in self.instances:
            if each.is_single and each.txn and each.txn.told is not None:
                assert each.txn.fate is each.txn.told, "it has ended otherwise than was told"

    @invariant()
    def acknowledgements_are_as_their_transactions(self) -> None:
        """Each message is acknowledged by one committed transaction, and those of others are not,
        whoever dispatches the subscription and whatever it knows."""
        committed: dict[int, Txn] = {}
        for txn in self.txns:
            if txn.fate is True:
                for sent in txn.sent:
                    for offset in sent.acks if sent.is_stored else ():
                        assert committed.setdefault(offset, txn) is txn, "acknowledged twice"
        stored = {offset for (_, offset), is_committed in self.store.acks.items() if is_committed}
        assert stored | self.store.cursor == set(committed)
        for broker in self.brokers:
            subscription = broker.subscription
            if subscription is None or subscription.lease != self.store.lease:
                continue
            held = {
                offset
                for owner in subscription.core.pending_owners
                for start, end in subscription.core.pending_of(owner)[0]
                for offset in range(start, end)
            }
            assert subscription.acknowledged <= set(committed), "acknowledged, and not committed"
            # Nobody else gets what is acknowledged, or may be.
            assert {offset for _, offset in self.store.acks} <= held | subscription.acknowledged

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
        self.now += MAX_TIMEOUT_MS + 1
        for key in (*IDS, *self.singles):
            self.abort_overdue(0, key)
        self.take_over(0)
        self.look(0)
        assert not self.store.acks
        for state in self.store.states.values():
            assert state.open_transactions == ()
            assert state.last_stable_offset == state.high_watermark
        assert not self.store.pending
        for row in self.store.rows.values():
            assert not (row.partitions or row.participants)
        assert all(not each for each in self.open.values())
        self.the_log_and_what_is_known_of_it_agree()
        self.a_transaction_is_whole()
        self.acknowledgements_are_as_their_transactions()


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, print_blob=True
)


def scripted(version: TransactionVersion) -> tuple[TransactionMachine, Instance]:
    """A producer that broker 0 has initialised, for what chance comes upon too rarely."""
    machine = TransactionMachine()
    machine.start(0, (version, version))
    return machine, machine.instances[0]


def successor(machine: TransactionMachine) -> None:
    """A second instance of the same id begins, at the other broker."""
    machine.an_instance_starts(IDS[0], V2, 4)
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
    machine.forget_idle(1, IDS[0])
    successor(machine)
    before = machine.store.rows[IDS[0]]
    machine.write(zombie, 1, 1)
    machine.arrive(machine.brokers[0], [machine.network.pop()], "well")
    assert machine.store.states[1].next_offset == 0
    assert machine.store.rows[IDS[0]] == before
