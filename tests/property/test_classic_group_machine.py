"""One classic group: members that join, sync, crash, come back and leave; a coordinator that dies.

Held to: one owner per partition and generation; each stored generation covers every partition
exactly once; no commit accepted from a fenced member or of an older generation; every request
answered once, and none left waiting without a deadline; what is stored is what memory says.

The store is a model of what the database does with effects. Answers leave when all effects decided
before them are stored, as the runtime has it. Longer runs:
PENSTOCK_GROUP_MACHINE_EXAMPLES=2000 pytest tests/property/test_classic_group_machine.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.errors import Error
from core.group.classic.event import NOTHING
from core.group.classic.group import ClassicGroup
from core.group.classic.state import EMPTY, STABLE
from core.group.consumer.protocol import Assignment, parse_assignment
from core.group.records import StoredGroup
from core.group.values import (
    ClientIdentity,
    GroupAnswer,
    GroupSettings,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Outcome,
    SyncRequest,
    SyncResult,
)
from tests.core.group.classic.driver import BEGIN, ModelStore, assignment, protocols

PARTITIONS = frozenset(range(4))
DYNAMIC, INSTANCES = range(3), ("i", "j")
CLIENTS = st.integers(0, len(DYNAMIC) + len(INSTANCES) - 1)
OFFERS = (protocols("range"), protocols("range", "sticky"), protocols("sticky", "range"))
EXAMPLES = int(os.environ.get("PENSTOCK_GROUP_MACHINE_EXAMPLES", "150"))
CLIENT = ClientIdentity("c", "/127.0.0.1")


@dataclass(eq=False)
class Member:
    """A consumer's process. A stopped one may still send what it was about to send."""

    instance: str | None
    name: str
    offers: int = 0
    member_id: str = ""
    generation: int = -1
    owned: frozenset[int] = frozenset()
    waiter: int | None = None
    told: JoinResult | None = None
    is_fenced: bool = False
    is_stuck: bool = False


@dataclass
class Queued:
    """What an event brought about, until its effects are stored."""

    outcome: Outcome
    then: Callable[[], None] = field(default=lambda: None)


class ClassicGroupMachine(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        max_size=st.sampled_from([3, 100]),
        first=st.sets(CLIENTS),
    )
    def start(self, delay_ms: int, max_size: int, first: set[int]) -> None:
        self.settings = GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.now = BEGIN
        self.group = ClassicGroup.create("g", self.settings, self.now)
        self.store = ModelStore()
        self.queue: list[Queued] = []
        self.asked: dict[int, Member] = {}
        self.waiters = 0
        self.ids = 0
        self.members = [Member(None, f"d{n}") for n in DYNAMIC]
        self.members += [Member(instance, instance) for instance in INSTANCES]
        self.ghosts: list[Member] = []
        self.owners: dict[tuple[int, int], str] = {}
        self.ids_of: dict[str, str] = {}
        self.fenced: set[str] = set()
        self.latest_generation = 0
        self.all_is_well(first, 10)

    # --- the coordinator's side ---

    def take(self, outcome: Outcome, then: Callable[[], None] = lambda: None) -> None:
        self.queue.append(Queued(outcome, then))

    @rule(count=st.integers(1, 4))
    def flush(self, count: int) -> None:
        for _ in range(min(count, len(self.queue))):
            queued = self.queue.pop(0)
            self.apply(queued.outcome)
            for reply in queued.outcome.replies:
                self.deliver(reply.waiter, reply.answer)
            queued.then()

    def flush_all(self) -> None:
        self.flush(len(self.queue))

    def apply(self, outcome: Outcome) -> None:
        self.store.apply(outcome.effects)
        stored = self.store.members.values()
        instances = [row.group_instance_id for row in stored if row.group_instance_id]
        assert len(instances) == len(set(instances))
        if stored:
            owned = [p for row in stored for p in row.assigned.get("orders", ())]
            assert sorted(owned) == sorted(PARTITIONS), "not every partition exactly once"

    @rule(stored=st.integers(0, 3), unlikely=st.integers(0, 2))
    def crash(self, stored: int, unlikely: int) -> None:
        """Some effects were stored and nobody was told; the rest never happened."""
        if unlikely:
            return
        for queued in self.queue[:stored]:
            self.apply(queued.outcome)
        self.queue.clear()
        if self.store.group is None:
            self.group = ClassicGroup.create("g", self.settings, self.now)
        else:
            self.group = ClassicGroup.load(self.store.stored(), self.settings, self.now)
        assert not self.fenced & self.group.members.keys(), "fenced once, and back"
        for waiter in list(self.asked):
            member = self.asked[waiter]
            wants_join = member.told is None or member.waiter != waiter
            error = Error.NOT_COORDINATOR
            self.deliver(waiter, JoinResult(error) if wants_join else SyncResult(error))

    @rule(ms=st.sampled_from([1, 700, 2_999, 3_000, 5_000, 6_000, 10_000, 30_000]))
    def advance(self, ms: int) -> None:
        end = self.now.monotonic_ms + ms
        while self.group.deadline_ms is not None and self.group.deadline_ms <= end:
            self.sleep(max(self.group.deadline_ms - self.now.monotonic_ms, 0))
            self.take(self.group.expire(self.now))
            deadline_ms = self.group.deadline_ms
            assert deadline_ms is None or deadline_ms > self.now.monotonic_ms
        self.sleep(end - self.now.monotonic_ms)

    def sleep(self, ms: int) -> None:
        self.now = Instant(self.now.monotonic_ms + ms, self.now.timestamp_ms + ms)

    @rule()
    def look_too_early(self) -> None:
        """What asked to be looked after later has nothing to do before."""
        deadline_ms = self.group.deadline_ms
        if deadline_ms is None or deadline_ms > self.now.monotonic_ms:
            before = self.group.stored()
            assert self.group.expire(self.now) is NOTHING
            assert self.group.stored() == before

    # --- the members' side ---

    def ask(self, member: Member, send: Callable[[int], Outcome]) -> None:
        self.waiters += 1
        member.waiter = self.waiters
        self.asked[self.waiters] = member
        self.take(send(self.waiters))

    def deliver(self, waiter: int, answer: GroupAnswer) -> None:
        member = self.asked.pop(waiter)  # a KeyError: answered twice
        if member.waiter != waiter:
            return  # the client has given it up
        member.waiter = None
        if isinstance(answer, JoinResult):
            self.on_joined(member, answer)
        else:
            assert isinstance(answer, SyncResult)
            self.on_synced(member, answer)

    def on_joined(self, member: Member, result: JoinResult) -> None:
        if result.error is Error.MEMBER_ID_REQUIRED:
            member.member_id = result.member_id
        elif result.error is not Error.NONE:
            self.on_error(member, result.error)
        else:
            assert result.generation_id >= self.latest_generation
            assert result.member_id not in self.fenced
            if member.instance is not None:
                before = self.ids_of.get(member.instance, result.member_id)
                if before != result.member_id:
                    self.fenced.add(before)
                self.ids_of[member.instance] = result.member_id
            member.member_id, member.told = result.member_id, result

    def on_synced(self, member: Member, result: SyncResult) -> None:
        told, member.told = member.told, None
        if result.error is not Error.NONE:
            self.on_error(member, result.error)
            return
        assert told is not None
        parsed = parse_assignment(result.assignment)
        assert isinstance(parsed, Assignment)
        member.generation = told.generation_id
        member.owned = frozenset(parsed.partitions.get("orders", ()))
        self.latest_generation = max(self.latest_generation, member.generation)
        for partition in member.owned:
            owner = member.instance or member.member_id
            assert self.owners.setdefault((member.generation, partition), owner) == owner

    def on_error(self, member: Member, error: Error) -> None:
        """As stock clients do: all but a plain rebalance loses what the member had."""
        member.told = None
        if error is Error.FENCED_INSTANCE_ID:
            member.is_fenced = True
        elif error is Error.UNKNOWN_MEMBER_ID:
            member.member_id, member.generation = "", -1
        if error is not Error.REBALANCE_IN_PROGRESS:
            member.owned = frozenset()

    def join(self, member: Member) -> None:
        self.ids += 1
        request = JoinRequest(
            member.member_id,
            member.instance,
            CLIENT,
            6_000,
            10_000,
            "consumer",
            OFFERS[member.offers],
            f"{member.name}-{self.ids}",
            supports_skip_assignment=True,
        )
        member.told = None
        member.owned = frozenset()  # revoked before it joins again
        self.ask(member, lambda waiter: self.group.join(request, waiter, self.now))

    def sync(self, member: Member) -> None:
        told = member.told
        assert told is not None
        assignments: dict[str, bytes] = {}
        if told.leader == told.member_id and not told.skip_assignment:
            ids = sorted(each.member_id for each in told.members)
            assignments = {
                member_id: assignment("orders", *sorted(PARTITIONS)[n :: len(ids)])
                for n, member_id in enumerate(ids)
            }
        request = SyncRequest(
            member.member_id,
            member.instance,
            told.generation_id,
            told.protocol_type,
            told.protocol_name,
            assignments,
        )
        self.ask(member, lambda waiter: self.group.sync(request, waiter, self.now))

    def heartbeat(self, member: Member) -> None:
        generation = member.told.generation_id if member.told else member.generation
        error, outcome = self.group.heartbeat(
            member.member_id, member.instance, generation, self.now
        )

        def answered() -> None:
            if error is Error.REBALANCE_IN_PROGRESS and member.waiter is None:
                self.join(member)
            elif error is not Error.NONE and member.waiter is None:
                self.on_error(member, error)

        self.take(outcome, answered)

    def act(self, member: Member) -> None:
        """What a healthy consumer does next."""
        if member.is_fenced or member.waiter is not None:
            return
        if member.told is not None and member.is_stuck:
            self.heartbeat(member)
        elif member.told is not None:
            self.sync(member)
        elif member.owned or member.generation >= self.latest_generation > 0:
            self.heartbeat(member)
        else:
            self.join(member)

    @rule(who=st.sets(CLIENTS, min_size=1), seconds=st.integers(1, 20))
    def all_is_well(self, who: set[int], seconds: int) -> None:
        """These live and are answered; the others are silent."""
        for _ in range(seconds):
            for each in sorted(who):
                self.act(self.members[each])
            self.flush_all()
            self.advance(1_000)
            self.flush_all()
            self.no_commit_is_accepted_from_who_is_fenced()

    @rule(who=st.sets(CLIENTS, min_size=1))
    def some_act_and_nobody_is_answered(self, who: set[int]) -> None:
        for each in sorted(who):
            self.act(self.members[each])

    @rule()
    def everybody_is_well(self) -> None:
        self.all_is_well(set(range(len(self.members))), 15)

    @rule(who=CLIENTS, offers=st.integers(0, len(OFFERS) - 1))
    def joins_whatever_it_was_about(self, who: int, offers: int) -> None:
        """Other metadata, a lost connection, or a second request for the first."""
        member = self.members[who]
        member.offers = offers
        if not member.is_fenced:
            self.join(member)

    @rule(who=CLIENTS)
    def gets_stuck_or_goes_on(self, who: int) -> None:
        """Its heartbeats come; it computes an assignment for ever, or does not ask for its own."""
        self.members[who].is_stuck = not self.members[who].is_stuck

    @rule(who=CLIENTS)
    def syncs_again(self, who: int) -> None:
        member = self.members[who]
        if member.told is not None:
            self.sync(member)

    @rule(who=CLIENTS, unlikely=st.booleans())
    def restarts(self, who: int, unlikely: bool) -> None:
        """A new process; the old one is a ghost that does not know it yet."""
        if unlikely:
            return
        old = self.members[who]
        self.ghosts.append(old)
        self.members[who] = Member(old.instance, old.name, old.offers)

    @rule(which=st.integers(0, 20), what=st.sampled_from(["heartbeat", "sync", "join", "act"]))
    def a_ghost_acts(self, which: int, what: str) -> None:
        if not self.ghosts:
            return
        ghost = self.ghosts[which % len(self.ghosts)]
        if what == "act":
            self.act(ghost)
        elif what == "heartbeat":
            self.heartbeat(ghost)
        elif what == "join" and ghost.member_id:
            self.join(ghost)
        elif what == "sync" and ghost.told is not None:
            self.sync(ghost)

    @rule(who=CLIENTS, by_instance=st.booleans())
    def leaves(self, who: int, by_instance: bool) -> None:
        member = self.members[who]
        named = LeavingMember(member.member_id, member.instance)
        if by_instance:
            named = replace(named, member_id="")
        result, outcome = self.group.leave([named], self.now)
        assert len(result.members) == 1
        self.take(outcome)
        if not by_instance:
            member.owned, member.generation = frozenset(), -1

    @rule(who=CLIENTS)
    def commits(self, who: int) -> None:
        """Renews the session."""
        member = self.members[who]
        self.group.commit_refusal(member.member_id, member.instance, member.generation, self.now)

    # --- what must hold ---

    @invariant()
    def no_commit_is_accepted_from_who_is_fenced(self) -> None:
        """Everybody tries, ghosts too, as they remember their membership."""
        for member in (*self.members, *self.ghosts):
            for instance in {member.instance, None}:
                refusal = self.try_to_commit(member, instance)
                if refusal is Error.NONE and member.generation >= 0:
                    assert member.member_id not in self.fenced
                    assert member.generation >= self.latest_generation
                elif refusal is Error.NONE:
                    assert self.group.state == EMPTY

    def try_to_commit(self, member: Member, instance: str | None) -> Error:
        """Without renewing the session: else nobody who remembers anything would ever expire."""
        known = self.group.members.get(member.member_id)
        deadline_ms = known.deadline_ms if known else 0
        refusal = self.group.commit_refusal(member.member_id, instance, member.generation, self.now)
        if known is not None:
            known.deadline_ms = deadline_ms
        return refusal

    @invariant()
    def who_waits_has_a_deadline(self) -> None:
        on_their_way = {reply.waiter for each in self.queue for reply in each.outcome.replies}
        if self.asked.keys() - on_their_way:
            assert self.group.deadline_ms is not None

    @invariant()
    def memory_and_store_agree(self) -> None:
        if self.queue or self.group.state not in (STABLE, EMPTY) or self.store.group is None:
            return
        now = self.group.stored()
        assert {row.member_id: row for row in now.members} == self.store.members
        if self.group.state == STABLE:
            loaded = ClassicGroup.load(self.store.stored(), self.settings, self.now)
            assert replace(loaded.stored().group, state_timestamp=0) == replace(
                now.group, state_timestamp=0
            )
            assert loaded.describe().members == self.in_order(now)

    def in_order(self, now: StoredGroup) -> tuple[object, ...]:
        described = {each.member_id: each for each in self.group.describe().members}
        return tuple(described[member_id] for member_id in self.store.members)

    def teardown(self) -> None:
        """Everybody falls silent: all are answered, and the group is empty."""
        if not hasattr(self, "group"):
            return
        self.members.clear()
        for _ in range(8):
            self.advance(300_000)
            self.flush_all()
        assert not self.asked, "somebody waits for ever"
        assert self.group.state == EMPTY
        assert self.group.is_idle
        assert self.group.deadline_ms is None
        assert not self.store.members


TestClassicGroupMachine = ClassicGroupMachine.TestCase
TestClassicGroupMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=60, deadline=None, print_blob=True
)
