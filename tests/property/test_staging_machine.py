"""Tokens and publications and all that can happen to them, with crashes cut in anywhere.

Writers whose requests are lost, doubled, late and cut off, drivers and their zombies, replays,
tokens dropped and expired, deleted topics, brokers with stale memory, and a database that forgets
the staging it has not yet written. The store is a model of what the SQL does: it compares versions
and applies whole flushes, or nothing. Longer runs:
PENSTOCK_STAGING_MACHINE_EXAMPLES=2000 pytest tests/property/test_staging_machine.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.errors import Error
from core.log.effects import IncomingBatch, LogEffects
from core.log.partition_log import LogDraft, PartitionState, Refused
from core.staging.publication import PublicationDraft
from core.staging.token import Staged, StageDecision, TokenDraft
from core.staging.values import (
    Guard,
    Outcome,
    Publication,
    PublicationAnswer,
    PublicationEffects,
    TokenBatch,
    TokenEffects,
    WantedToken,
)
from tests.batches import batch, incoming, mark_of

EXAMPLES = int(os.environ.get("PENSTOCK_STAGING_MACHINE_EXAMPLES", "100"))
PARTITIONS = (1, 2)
GUARDS = (Guard("q", "a"), Guard("q", "b"))
WHICH = st.integers(0, 10**6)
BROKER = st.sampled_from([0, 1])
LUCK = st.sampled_from(
    ["well"] * 6 + ["request lost", "answer lost", "crash before", "crash after"]
)


@dataclass(frozen=True)
class State:
    """What is in the database. log: every batch published, with its offset, in order."""

    tokens: dict[UUID, tuple[TokenBatch, ...]] = field(default_factory=dict)
    guards: dict[Guard, int] = field(default_factory=dict)
    partitions: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    log: tuple[tuple[int, int, IncomingBatch], ...] = ()


class ModelStore:
    """Commits that have reached the disk, and those that have not, in one order."""

    def __init__(self) -> None:
        self.state = State()
        self.not_durable: list[State] = []  # before each commit that waits for no disk

    def stage(self, effects: list[TokenEffects]) -> bool:
        tokens = dict(self.state.tokens)
        for each in effects:
            if len(tokens.get(each.token, ())) != each.expected_batches:
                return False
            tokens[each.token] = (*tokens.get(each.token, ()), *each.added)
        self._commit_lazily(replace(self.state, tokens=tokens))
        return True

    def publish(self, logs: list[LogEffects], effects: PublicationEffects) -> None:
        state = self.state
        guards, partitions, log = dict(state.guards), dict(state.partitions), list(state.log)
        for move in effects.moves:
            assert guards.get(move.guard) == move.expected
            guards[move.guard] = move.batch_id
        for each in logs:
            assert partitions[each.partition_id] == each.expected_offset
            partitions[each.partition_id] = each.next_offset
            log += [(each.partition_id, row.base_offset, row.incoming) for row in each.rows]
        tokens = {token: held for token, held in state.tokens.items() if token not in effects.gone}
        self.commit(State(tokens, guards, partitions, tuple(log)))

    def drop(self, token: UUID) -> None:
        tokens = {each: held for each, held in self.state.tokens.items() if each != token}
        self.commit(replace(self.state, tokens=tokens))

    def commit(self, state: State) -> None:
        """Makes durable whatever came before it, too."""
        self.state = state
        self.not_durable.clear()

    def _commit_lazily(self, state: State) -> None:
        self.not_durable.append(self.state)
        self.state = state

    def crash(self, which: int) -> None:
        """The end of what has not reached the disk is gone."""
        if self.not_durable:
            self.commit(self.not_durable[which % len(self.not_durable)])


@dataclass
class Request:
    """What a writer sends in one piece, the same however often."""

    token: UUID
    first: int
    batches: tuple[TokenBatch, ...]


@dataclass
class Writer:
    """A task: what it has to stage, how much is acknowledged, and whether it has given up."""

    requests: list[Request]
    answered: int = 0
    is_lost: bool = False

    @property
    def token(self) -> UUID:
        return self.requests[0].token

    @property
    def batches(self) -> tuple[TokenBatch, ...]:
        return tuple(each for request in self.requests for each in request.batches)

    @property
    def is_done(self) -> bool:
        return self.answered == len(self.requests) and not self.is_lost


@dataclass
class Attempt:
    """What a driver wants published as a batch."""

    publication: Publication
    writers: list[Writer]
    told: PublicationAnswer | None = None


class StagingMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.store = ModelStore()
        self.memory: list[dict[UUID, int]] = [{}, {}]  # of each broker: batches by token
        self.writers: list[Writer] = []
        self.free: list[Writer] = []  # no driver has heard of them yet
        self.attempts: list[Attempt] = []
        self.contents = 0

    # Staging.

    @rule(cuts=st.lists(st.integers(1, 3), min_size=1, max_size=4), which=WHICH)
    def a_task_begins(self, cuts: list[int], which: int) -> None:
        token = UUID(int=len(self.writers) + 1)
        requests: list[Request] = []
        first = 0
        for cut in cuts:
            batches = []
            for _ in range(cut):
                self.contents += 1
                partition = PARTITIONS[(which + self.contents) % 2]
                new = incoming(batch(1 + which % 3), self.contents)
                batches.append(TokenBatch("t", partition, partition, new))
            requests.append(Request(token, first, tuple(batches)))
            first += cut
        writer = Writer(requests)
        self.writers.append(writer)
        self.free.append(writer)

    @rule(tasks=st.lists(st.lists(st.integers(1, 3), max_size=3), max_size=3), broker=BROKER)
    def tasks_run_well(self, tasks: list[list[int]], broker: int) -> None:
        for cuts in tasks:
            self.a_task_begins([*cuts, 1], len(self.writers))
            writer = self.writers[-1]
            for request in writer.requests:
                self.arrive([request], broker, "well")
            writer.answered = len(writer.requests)

    @precondition(lambda self: any(not (each.is_done or each.is_lost) for each in self.writers))
    @rule(which=WHICH, window=st.integers(1, 3), broker=BROKER, luck=LUCK)
    def a_task_sends(self, which: int, window: int, broker: int, luck: str) -> None:
        """Several requests at once; of those, the first may be lost and the others arrive."""
        able = [each for each in self.writers if not (each.is_done or each.is_lost)]
        writer = able[which % len(able)]
        sent = writer.requests[writer.answered : writer.answered + window]
        arriving = sent[1:] if luck == "request lost" else sent
        results = self.arrive(arriving, broker, luck)
        if luck == "request lost" or results is None:
            return  # the connection is lost with it: all of it is sent again
        for decision in results:
            acknowledged = sum(len(each.batches) for each in writer.requests[: writer.answered])
            if not isinstance(decision, Refused):
                writer.answered += 1
                continue
            assert decision.error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER, decision
            held = len(self.store.state.tokens.get(writer.token, ()))
            writer.is_lost = held < acknowledged
            return

    @precondition(lambda self: self.writers)
    @rule(which=WHICH, request=WHICH, broker=BROKER)
    def a_request_arrives_late(self, which: int, request: int, broker: int) -> None:
        """Of anybody, also of a task whose token has long been published or dropped."""
        writer = self.writers[which % len(self.writers)]
        sent = writer.requests[: writer.answered + 1]
        self.arrive([sent[request % len(sent)]], broker, "well")

    def arrive(self, requests: list[Request], broker: int, luck: str) -> list[StageDecision] | None:
        """As `runtime/staging.py` goes about it. None: nobody hears of it."""
        if luck == "crash before":
            self.memory[broker] = {}
            return None
        known = {each.token: self.memory[broker].get(each.token) for each in requests}
        fresh: set[UUID] = set()
        while True:
            for token in known:
                if known[token] is None:
                    known[token] = len(self.store.state.tokens.get(token, ()))
            drafts = {token: TokenDraft(token, known[token] or 0) for token in known}
            decisions = [
                drafts[each.token].prepare_stage(each.first, each.batches, has_room=True)
                for each in requests
            ]
            doubtful = {
                each.token
                for each, decision in zip(requests, decisions, strict=True)
                if not isinstance(decision, Staged)
            } - fresh
            if doubtful:
                known |= dict.fromkeys(doubtful)
                fresh |= doubtful
                continue
            if self.store.stage([e for draft in drafts.values() if (e := draft.effects())]):
                break
            known, fresh = dict.fromkeys(known), set()
        self.memory[broker] |= {token: draft.batches for token, draft in drafts.items()}
        if luck == "crash after":
            self.memory[broker] = {}
        return decisions if luck in ("well", "request lost") else None

    # Publishing.

    @precondition(lambda self: any(each.is_done for each in self.free))
    @rule(which=WHICH, count=st.integers(1, 3), batch_id=st.integers(0, 3))
    def a_driver_hears_of_its_tasks(self, which: int, count: int, batch_id: int) -> None:
        """Drivers of one query may be several, and have batches of one number."""
        self.hear(which, count, batch_id)

    @precondition(lambda self: any(each.is_done for each in self.free))
    @rule(which=WHICH, count=st.integers(1, 3), batch_id=st.integers(0, 3), crashes=st.booleans())
    def a_driver_hears_and_publishes(
        self, which: int, count: int, batch_id: int, crashes: bool
    ) -> None:
        if crashes:
            self.store.crash(which)
        self.hear(which, count, batch_id)
        self.drivers_publish([len(self.attempts) - 1], 0, "well")

    def hear(self, which: int, count: int, batch_id: int) -> None:
        done = [each for each in self.free if each.is_done][:count]
        self.free = [each for each in self.free if each not in done]
        tokens = tuple(WantedToken(each.token, len(each.batches)) for each in done)
        publication = Publication(GUARDS[which % 2], batch_id, tokens)
        self.attempts.append(Attempt(publication, done))

    @precondition(lambda self: self.attempts)
    @rule(which=st.lists(WHICH, min_size=1, max_size=3), broker=BROKER, luck=LUCK)
    def drivers_publish(self, which: list[int], broker: int, luck: str) -> None:
        """Some at once, in one flush; again and again, whatever they were told."""
        if luck in ("crash before", "request lost"):
            self.memory[broker] = {}
            return
        asked = [self.attempts[each % len(self.attempts)] for each in which]
        state = self.store.state
        logs = {p: LogDraft(PartitionState(p, end), {}) for p, end in state.partitions.items()}
        draft = PublicationDraft(state.guards, state.tokens)
        answers = [draft.prepare_publish(each.publication, logs.get) for each in asked]
        if effects := draft.effects():
            found = [effect for log in logs.values() if (effect := log.effects())]
            self.store.publish(found, effects)
        if luck == "well":
            for attempt, answer in zip(asked, answers, strict=True):
                if attempt.told is None or attempt.told.outcome is not Outcome.PUBLISHED:
                    attempt.told = answer
                else:
                    assert answer.outcome is Outcome.ALREADY_PUBLISHED

    # What else happens.

    @precondition(lambda self: len(self.writers) > 3)
    @rule(which=WHICH)
    def a_token_is_dropped_or_expires(self, which: int) -> None:
        """Of the older ones, as a rule."""
        self.store.drop(self.writers[which % (len(self.writers) - 2)].token)

    @precondition(lambda self: len(self.store.state.partitions) == 2 and len(self.attempts) > 3)
    @rule()
    def a_topic_is_deleted(self) -> None:
        partitions = {1: self.store.state.partitions[1]}
        self.store.commit(replace(self.store.state, partitions=partitions))

    @rule(which=WHICH)
    def the_database_crashes(self, which: int) -> None:
        self.store.crash(which)

    @rule(broker=BROKER)
    def a_broker_crashes(self, broker: int) -> None:
        self.memory[broker] = {}

    # What must hold.

    @invariant()
    def offsets_follow_each_other(self) -> None:
        ends = dict.fromkeys(PARTITIONS, 0)
        for partition, base_offset, staged in self.store.state.log:
            assert base_offset == ends[partition]
            ends[partition] += staged.batch.record_count
        for partition, end in self.store.state.partitions.items():
            assert ends[partition] == end

    @invariant()
    def each_batch_is_published_once_and_whole(self) -> None:
        published = [mark_of(each) for _, _, each in self.store.state.log]
        assert len(published) == len(set(published)), "something is there twice"
        there = set(published)
        visible: dict[tuple[Guard, int], Attempt] = {}
        for attempt in self.attempts:
            contents = [mark_of(b.incoming) for w in attempt.writers for b in w.batches]
            if there.isdisjoint(contents):
                continue
            for partition in PARTITIONS:
                in_order = [
                    mark_of(b.incoming)
                    for w in attempt.writers
                    for b in w.batches
                    if b.partition_id == partition
                ]
                found = [
                    mark_of(s)
                    for p, _, s in self.store.state.log
                    if p == partition and mark_of(s) in set(contents)
                ]
                assert found == in_order, "a part of a publication"
            there -= set(contents)
            key = (attempt.publication.guard, attempt.publication.batch_id)
            assert key not in visible, "a batch was published by two drivers"
            visible[key] = attempt
        assert not there, "what nobody has asked for is published"
        self.what_was_told_is_true(visible)

    def what_was_told_is_true(self, visible: dict[tuple[Guard, int], Attempt]) -> None:
        for attempt in self.attempts:
            publication, told = attempt.publication, attempt.told
            if told is None:
                continue
            key = (publication.guard, publication.batch_id)
            if told.outcome is Outcome.PUBLISHED:
                assert visible.get(key) is attempt
            elif told.outcome is Outcome.ALREADY_PUBLISHED:
                assert self.store.state.guards[publication.guard] >= publication.batch_id
            else:
                assert told.error in (Error.RESOURCE_NOT_FOUND, Error.UNKNOWN_TOPIC_OR_PARTITION)

    @invariant()
    def tokens_hold_what_their_writers_sent(self) -> None:
        by_token = {each.token: each.batches for each in self.writers}
        for token, held in self.store.state.tokens.items():
            assert held == by_token[token][: len(held)]


TestStaging = StagingMachine.TestCase
TestStaging.settings = settings(
    settings.get_profile("tests"), max_examples=EXAMPLES, stateful_step_count=60
)
