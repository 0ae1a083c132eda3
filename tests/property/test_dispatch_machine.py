"""Consumers that come, leave, crash, take, acknowledge and give back, on each type of subscription.

Longer runs: PENSTOCK_DISPATCH_MACHINE_EXAMPLES=2000 pytest tests/property/test_dispatch_machine.py.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from core.subscription.values import DispatchSettings, HashRange, KeySharing, SubscriptionType
from tests.property.subscription_world import World

EXAMPLES = int(os.environ.get("PENSTOCK_DISPATCH_MACHINE_EXAMPLES", "100"))
NAMES = st.sampled_from("abcd")
OWNERS = st.sampled_from(["t1", "t2", "t3"])
WHICH = st.integers(0, 10**6)
KEYS = (1, 20_000, 40_000, 60_000, 65_535)

SETTINGS = st.sampled_from(
    [
        DispatchSettings(0, 0, 0, 0, 0),
        DispatchSettings(4, 9, 2, 5, 3),
        DispatchSettings(1, 1, 1, 1, 1),
        DispatchSettings(),
    ]
)


class DispatchMachine(RuleBasedStateMachine):
    """Invariants (subscription_world.py checks them at each delivery and after each step):

    - a delivered entry has permits, its time has come, and something of it is unacknowledged;
    - nobody is given a message that a connected consumer has: it has what was delivered to it and
      is neither acknowledged, nor pending, nor given back; and an entry is with one at a time;
    - an entry's redelivery count is how often some of it was delivered before;
    - limits of unacknowledged messages stop a consumer, and half of them lets it go on; other ones
      hold at once;
    - what is pending in a transaction is nobody's else; conflicts are exactly those of the rules;
      what was committed is not delivered again, and what was aborted is: alone, to who has others
      of its entry, or with these, if nobody has them any more;
    - nobody gets what a better level takes, or will take as soon as it has got what it was given;
    - nothing is lost: in the end all is delivered and acknowledged, whatever happened before.
    """

    type = SubscriptionType.SHARED
    sharings: tuple[KeySharing, ...] = (KeySharing(),)

    @initialize(limits=SETTINGS, per_read=st.integers(1, 4), data=st.data())
    def start(self, limits: DispatchSettings, per_read: int, data: st.DataObject) -> None:
        sharing = data.draw(st.sampled_from(self.sharings))
        self.world = World(self.type, limits, sharing, per_read)
        for name in data.draw(st.lists(NAMES, min_size=2, max_size=3, unique=True)):
            self.join(name, 0, data.draw(st.sampled_from([1, 3, 50])))
        chunk = None if self.type is SubscriptionType.KEY_SHARED else "x"
        counts = st.sampled_from([1, 1, 4])
        for key, count in data.draw(
            st.lists(st.tuples(st.sampled_from(KEYS[:3]), counts), max_size=10)
        ):
            self.world.append(count, 0, key, None, chunk if key == KEYS[0] else None)
        self.world.run()

    @property
    def clients(self) -> list[str]:
        return list(self.world.clients)

    # The log.

    @rule(
        count=st.sampled_from([1, 1, 2, 5]),
        gap=st.sampled_from([0, 0, 0, 1, 3]),
        key=st.sampled_from([None, KEYS[0], *KEYS]),
        delay=st.sampled_from([None] * 5 + [0, 5, 20]),
        chunk=st.sampled_from([None, None, None, "x", "y"]),
    )
    def append(
        self, count: int, gap: int, key: int | None, delay: int | None, chunk: str | None
    ) -> None:
        if len(self.world.log) < 40:
            self.world.append(count, gap, key, delay, chunk)
            self.world.run()

    @rule(count=st.integers(2, 8), key=st.sampled_from(KEYS))
    def append_several(self, count: int, key: int) -> None:
        for each in range(count):
            if len(self.world.log) < 40:
                self.world.append(1, 0, key if each % 2 else KEYS[0], None, None)
        self.world.run()

    # Consumers.

    @rule(name=NAMES, level=st.sampled_from([0, 0, 1]), permits=st.sampled_from([0, 3, 20]))
    def join(self, name: str, level: int, permits: int) -> None:
        if name in self.world.clients:
            return
        ranges = ()
        if self.world.sharing.is_sticky:
            index = "abcd".index(name)
            ranges = (HashRange(index * 16_384, index * 16_384 + 16_383),)
        self.world.join(name, level, ranges)
        if permits and name in self.world.clients:
            self.world.flow(name, permits)
        self.world.run()

    @precondition(lambda self: self.world.clients)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        """Or crash: the broker sees no difference."""
        self.world.leave(self.clients[which % len(self.clients)])
        self.world.run()

    @precondition(lambda self: self.world.clients)
    @rule(
        which=WHICH,
        permits=st.sampled_from([1, 2, 5, 20]),
        has_more=st.sampled_from([False, False, True]),
    )
    def flow(self, which: int, permits: int, has_more: bool) -> None:
        name = self.clients[which % len(self.clients)]
        if has_more and self.world.clients[name].has_more:
            permits = 0  # it cannot take more now
        self.world.flow(name, permits, has_more=has_more and permits > 0)
        self.world.run()

    @precondition(lambda self: self.world.outstanding())
    @rule(which=WHICH, whole=st.booleans(), index=st.integers(0, 4))
    def acknowledge_one(self, which: int, whole: bool, index: int) -> None:
        bases = sorted(self.world.outstanding())
        base = bases[which % len(bases)]
        entry = next(each for each in self.world.log if each.base_offset == base)
        if whole:
            self.world.acknowledge(base, entry.last_offset + 1)
        else:
            offset = min(base + index, entry.last_offset)
            self.world.acknowledge(offset, offset + 1)
        self.world.run()

    @precondition(lambda self: self.world.outstanding())
    @rule(which=WHICH, some=st.one_of(st.none(), st.sets(st.integers(0, 10), min_size=1)))
    def redeliver(self, which: int, some: set[int] | None) -> None:
        having = [name for name, each in self.world.clients.items() if each.has]
        name = having[which % len(having)]
        bases = sorted(self.world.outstanding())
        chosen = None if some is None else [bases[i] for i in some if i < len(bases)]
        if chosen is None or chosen:
            self.world.redeliver(name, chosen)
        self.world.run()

    # Transactions.

    @precondition(lambda self: self.world.log)
    @rule(
        owner=OWNERS,
        parts=st.lists(
            st.tuples(st.booleans(), WHICH, st.sampled_from([0, 0, 1, 3]), st.integers(1, 5)),
            min_size=1,
            max_size=3,
        ),
        repeat=st.booleans(),
    )
    def pend(self, owner: str, parts: list[tuple[bool, int, int, int]], repeat: bool) -> None:
        """Of what somebody has, or of anything; and again, whether the answer was lost or not."""
        outstanding = self.world.outstanding()
        ranges = []
        for is_had, which, index, count in parts:
            entries = [each for each in self.world.log if each.base_offset in outstanding]
            entries = entries if is_had and entries else self.world.log
            entry = entries[which % len(entries)]
            start = min(entry.base_offset + index, entry.last_offset)
            ranges.append((start, min(start + count, entry.last_offset + 1)))
        is_taken = self.world.pend(owner, ranges)
        if repeat and is_taken:
            self.world.leave_unanswered(owner, ranges)
            assert self.world.pend(owner, ranges[:1])
        if is_taken:
            self.world.pend(owner, ranges)
        self.world.run()

    @precondition(lambda self: self.world.clients)
    @rule(
        owner=OWNERS,
        which=WHICH,
        key=st.sampled_from([None, *KEYS]),
        some=st.sets(st.integers(0, 4), min_size=1, max_size=3),
        event=st.sampled_from(["", "", "abort", "abort", "redeliver", "rest", "whole"]),
    )
    def pend_part(
        self, owner: str, which: int, key: int | None, some: set[int], event: str
    ) -> None:
        """Of a batch, while its consumer has the others: and what may come right then."""
        world = self.world
        if not world.batches() and len(world.log) < 40:
            world.append(4, 0, key, None, None)
            for each in world.clients:
                world.flow(each, 3)
            world.run()
        batches = world.batches()
        if not batches:
            return
        base = batches[which % len(batches)]
        client = world.having(base)
        assert client is not None
        had = sorted(client.has[base])
        chosen = [had[each] for each in some if each < len(had) - 1]
        world.pend(owner, [(each, each + 1) for each in chosen])
        match event:
            case "abort":
                world.abort(owner)
            case "redeliver":
                world.redeliver(client.name, [base])
            case "rest":
                for each in set(had) - set(chosen):
                    world.acknowledge(each, each + 1)
            case "whole":
                world.acknowledge(*world.by_base[base].offsets)
        world.run()

    @rule(owner=OWNERS, count=st.integers(0, 12), skipped=st.sampled_from([0, 0, 4]))
    def pend_up_to(self, owner: str, count: int, skipped: int) -> None:
        """Below the mark-delete offset there may be what others hold."""
        mark_delete = self.world.subscription.cursor.mark_delete
        self.world.acknowledge_up_to(mark_delete + skipped)
        end = min(mark_delete + skipped + count, self.world.log_end)
        if self.world.pend_up_to(owner, end) and end:
            assert not self.world.pend_up_to(owner, end)
            self.world.leave_unanswered(owner, [], end)
            assert self.world.pend_up_to(owner, end)
        self.world.run()

    @precondition(lambda self: self.world.transactions)
    @rule(which=WHICH, is_commit=st.booleans(), unread=st.sampled_from([0, 0, 1]))
    def end_transaction(self, which: int, is_commit: bool, unread: int) -> None:
        """A second end changes nothing. unread: what comes back can be read later only."""
        owners = list(self.world.transactions)
        owner = owners[which % len(owners)]
        for _ in range(2):
            (self.world.commit if is_commit else self.world.abort)(owner)
            self.world.run(unread=unread)

    # The broker. One rule for all, so that there is something to forget when it forgets.

    @rule(
        event=st.sampled_from(
            ["time", "time", "flush", "skip", "others", "seek", "crash", "limit", "unread"]
        ),
        number=st.integers(0, 60),
    )
    def something_else(self, event: str, number: int) -> None:
        world = self.world
        match event:
            case "time":
                world.pass_time(number)
            case "flush":
                world.flush()
            case "skip":
                world.acknowledge_up_to(world.subscription.cursor.mark_delete + number % 8)
            case "others":  # who acknowledges what it does not have, or what is not there yet
                world.acknowledge(number, number + 3)
            case "seek":
                world.seek(min(number, world.log_end))
            case "crash":
                world.start()
            case "limit" if world.settings.look_ahead:  # else that follows from the limits
                world.limit(number % 5, number % 11)
            case "unread" if world.clients:  # what comes back can be read later only
                name = self.clients[number % len(self.clients)]
                world.redeliver(name, None if number % 2 else sorted(world.clients[name].has)[:2])
                world.run(unread=number % 3 + 1)
        world.run()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for name in "abcd" if self.world.sharing.is_sticky else "a":
            self.join(name, 0, 0)
        self.world.drain()


class SharedMachine(DispatchMachine):
    """Also: chunks of one message are with one consumer at a time, in order."""


class KeySharedMachine(DispatchMachine):
    """Also: entries of a hash are with one consumer at a time, who had what of them is pending if
    there is such; and none overtakes another that waits, while consumers join, leave, crash and
    give back, and transactions abort."""

    type = SubscriptionType.KEY_SHARED
    sharings = (KeySharing(), KeySharing(is_sticky=True), KeySharing(is_ordered=False))


class FailoverMachine(DispatchMachine):
    """Also: only the active one gets anything, it is who the rule says, all are told; entries come
    in order, from the mark-delete offset on after each change."""

    type = SubscriptionType.FAILOVER


class ExclusiveMachine(DispatchMachine):
    """Also: whoever comes second is refused; the rest as Failover."""

    type = SubscriptionType.EXCLUSIVE


SETTINGS_OF_ALL = settings(
    max_examples=EXAMPLES, stateful_step_count=60, deadline=None, print_blob=True
)
TestSharedMachine = SharedMachine.TestCase
TestSharedMachine.settings = SETTINGS_OF_ALL
TestKeySharedMachine = KeySharedMachine.TestCase
TestKeySharedMachine.settings = SETTINGS_OF_ALL
TestFailoverMachine = FailoverMachine.TestCase
TestFailoverMachine.settings = SETTINGS_OF_ALL
TestExclusiveMachine = ExclusiveMachine.TestCase
TestExclusiveMachine.settings = settings(SETTINGS_OF_ALL, max_examples=max(EXAMPLES // 4, 1))
