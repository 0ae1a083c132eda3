"""Transactions, and publishers that look and move, in any order, with cuts anywhere.

The store is a model of what the SQL does: transactions' ids, snapshots, stamps, and a position that
is moved under its version. Transactions stay open, roll back, wait for each other, come in crowds;
publishers die between look and move, and rest on looks of long ago; the database is loaded into
another cluster. Longer runs:
PENSTOCK_INBOX_MACHINE_EXAMPLES=2000 pytest tests/property/test_inbox_machine.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.inbox.position import Bite, LookAgain, TooLarge, next_step
from core.inbox.values import EVERYTHING, NOTHING, InboxPosition, Look, WaitingRecord

EXAMPLES = int(os.environ.get("PENSTOCK_INBOX_MACHINE_EXAMPLES", "100"))
CROWD = 5
BITE = 4
"""So many transactions are ordered in one look, and so many records are in one; and one more."""
WHICH = st.integers(0, 10**6)
TOPIC = bytes(16)


@dataclass
class Transaction:
    """An application's. stamps: drawn at COMMIT; is_committed: None while it is open."""

    number: int
    xid: int
    era: int
    records: int
    before: set[int] = field(default_factory=set)  # that it has waited for, or seen
    stamps: list[int] = field(default_factory=list)
    is_committed: bool | None = None


class Snapshot:
    """PostgreSQL's pg_snapshot."""

    def __init__(self, text: str) -> None:
        low, high, running = text.split(":")
        self.xmin, self.xmax = int(low), int(high)
        self.running = {int(each) for each in running.split(",") if each}

    def shows(self, xid: int) -> bool:
        """Whether a transaction of this id had ended."""
        return xid < self.xmax and xid not in self.running


@dataclass
class Publisher:
    """position: in memory. pending: a step that it has decided on and not carried out."""

    position: InboxPosition | None = None
    pending: Bite | TooLarge | None = None
    expected: int = 0


class InboxMachine(RuleBasedStateMachine):
    @initialize(first_id=st.integers(1, 50))
    def start(self, first_id: int) -> None:
        self.next_id = first_id
        self.era = 0
        self.stamp = 0
        self.transactions: list[Transaction] = []
        self.position = InboxPosition(0, 0, NOTHING)
        self.published: list[int] = []  # numbers of transactions, in order, for each record
        self.publishers = [Publisher(), Publisher()]

    # --- applications ---

    @property
    def open(self) -> list[Transaction]:
        return [each for each in self.transactions if each.is_committed is None]

    @rule(records=st.sampled_from([0, 1, 1, 1, 2, 3, 9]))
    def a_transaction_begins(self, records: int) -> None:
        number = len(self.transactions)
        self.transactions.append(Transaction(number, self.next_id, self.era, records))
        self.next_id += 1

    @rule(count=st.integers(1, 9))
    def others_use_ids_up(self, count: int) -> None:
        self.next_id += count

    @precondition(lambda self: self.open)
    @rule(which=WHICH, stamps=st.integers(1, 2))
    def one_draws_its_stamp(self, which: int, stamps: int) -> None:
        """It holds its locks: whoever waits for it draws later. It has not committed yet."""
        one = self.open[which % len(self.open)]
        # Whatever has ended by now, it may have waited for.
        one.before |= {each.number for each in self.transactions if each.is_committed}
        for _ in range(stamps):
            self.stamp += 1
            one.stamps.append(self.stamp)

    @precondition(lambda self: self.open)
    @rule(which=WHICH, commits=st.sampled_from([True, True, True, False]))
    def one_ends(self, which: int, commits: bool) -> None:
        one = self.open[which % len(self.open)]
        if commits and not one.stamps:
            self.one_draws_its_stamp(which, 1)
        one.is_committed = commits

    @rule(count=st.integers(1, 3 * CROWD), which=WHICH)
    def a_crowd_commits(self, count: int, which: int) -> None:
        """In another order than it has begun."""
        first = len(self.transactions)
        for place in range(count):
            self.a_transaction_begins((which >> place) % 3)
        for place in range(count):
            number = first + (place * 7 + which) % count
            ready = [at for at, each in enumerate(self.open) if each.number == number]
            for at in ready:
                self.one_ends(at, True)
        for one in self.transactions[first:]:
            if one.is_committed is None:
                self.one_ends(self.open.index(one), True)

    # --- publishers ---

    def snapshot(self) -> str:
        running = [each.xid for each in self.open if each.era == self.era]
        # An id is given out, and its transaction ends, in any order.
        xmax = self.next_id
        return f"{min([*running, xmax])}:{xmax}:{','.join(map(str, sorted(running)))}"

    def look(self, position: InboxPosition) -> Look:
        """As `storage/inbox.py` does."""
        published = Snapshot(position.published)
        new = [
            each
            for each in self.transactions
            if each.is_committed and each.era == position.era and not published.shows(each.xid)
        ]
        snapshot = self.snapshot()
        if position.target is None:
            if len(new) > CROWD:
                return Look(snapshot, self.era, (), False, True, 0.0)
            ordered = sorted(new, key=lambda each: each.stamps[-1])
        else:
            target = Snapshot(position.target)
            ordered = sorted(
                (
                    each
                    for each in new
                    if target.shows(each.xid) and each.stamps[-1] > position.after_stamp
                ),
                key=lambda each: each.stamps[-1],
            )[: CROWD + 1]
        rows: list[tuple[Transaction, int | None]] = []
        is_cut = False
        for rank, each in enumerate(ordered, 1):
            numbers: list[int | None] = [*range(each.records)] or [None]
            for number in numbers:
                is_over = len(rows) >= BITE or (position.target is not None and rank > CROWD)
                if rows and is_over:
                    is_cut = True
                    break
                rows.append((each, number))
            if is_cut:
                break
        records = tuple(
            WaitingRecord(
                each.stamps[-1],
                number,
                each.xid,
                TOPIC,
                "t",
                None,
                0,
                str(each.number).encode(),
                None,
            )
            for each, number in rows
            if number is not None
        )
        last = rows[-1][0].stamps[-1] if rows else 0
        return Look(snapshot, self.era, records, is_cut, False, 0.0, last)

    @rule(which=st.integers(0, 1))
    def a_publisher_looks(self, which: int) -> None:
        """And decides; whether it comes to carry that out is another matter."""
        self.decide(self.publishers[which])

    def decide(self, one: Publisher) -> bool:
        """Whether there is something to do."""
        if one.position is None:
            one.position = self.position
        step = next_step(one.position, self.look(one.position))
        one.pending = None
        if step is None:
            return False
        if isinstance(step, LookAgain):
            assert step.position.version == one.position.version
            one.position = step.position
        else:
            one.pending, one.expected = step, one.position.version
        return True

    @rule(which=st.integers(0, 1), is_told=st.booleans())
    def a_publisher_moves(self, which: int, is_told: bool) -> None:
        """Or it is cut off, before or behind the commit, and reads again."""
        self.move(self.publishers[which], is_told=is_told)

    def move(self, one: Publisher, *, is_told: bool) -> None:
        step, one.pending = one.pending, None
        if step is None:
            return
        if self.position.version != one.expected:
            one.position = None
            return
        assert step.position.version == one.expected + 1
        if isinstance(step, Bite):
            self.published += [int(each.key or b"") for each in step.records]
        else:
            whole = [
                each
                for each in self.transactions
                if each.era == self.position.era
                and each.xid == step.transaction
                and each.is_committed
            ]
            assert len(whole) == 1
            self.published += [whole[0].number] * whole[0].records
        self.position = step.position
        one.position = step.position if is_told else None

    @rule(which=st.integers(0, 1), commits=st.lists(st.integers(0, 4), min_size=1, max_size=6))
    def a_publisher_works_while_others_commit(self, which: int, commits: list[int]) -> None:
        for count in commits:
            self.decide(self.publishers[which])
            if count:
                self.a_crowd_commits(count, which)
            self.move(self.publishers[which], is_told=True)

    @rule(which=st.integers(0, 1))
    def a_publisher_begins_again(self, which: int) -> None:
        self.publishers[which] = Publisher()

    @rule(first_id=st.integers(1, 50))
    def the_database_is_loaded_into_another_cluster(self, first_id: int) -> None:
        """All that was open is gone; ids begin anew, and some are used before a broker comes."""
        for each in self.open:
            each.is_committed = False
        self.era += 1
        self.next_id = first_id
        self.publishers = [Publisher(), Publisher()]

    # --- what must hold ---

    @invariant()
    def nothing_is_published_before_its_commit_or_twice(self) -> None:
        seen: set[int] = set()
        last = -1
        for number in self.published:
            assert number == last or number not in seen, "in two pieces, or twice"
            seen.add(number)
            last = number
            one = self.transactions[number]
            assert one.is_committed
        for number in seen:
            assert self.published.count(number) == self.transactions[number].records, "torn"

    @invariant()
    def whoever_waited_comes_later(self) -> None:
        place = {number: at for at, number in enumerate(self.published)}
        for number, at in place.items():
            for earlier in self.transactions[number].before:
                if self.transactions[earlier].records:
                    assert place.get(earlier, len(self.published)) < at

    @invariant()
    def all_of_it_can_be_published(self) -> None:
        """From here on, by one that begins now; then this is undone."""
        kept, position = list(self.published), self.position
        one = Publisher()
        for _ in range(3 * len(self.transactions) + 4 * self.era + 20):
            if not self.decide(one):
                break
            self.move(one, is_told=True)
        else:
            raise AssertionError("no end")
        wanted = {each.number for each in self.transactions if each.is_committed and each.records}
        assert set(self.published) == wanted
        self.nothing_is_published_before_its_commit_or_twice()
        self.whoever_waited_comes_later()
        assert self.position.era == self.era
        assert self.position.target != EVERYTHING
        self.published, self.position = kept, position


TestInbox = InboxMachine.TestCase
TestInbox.settings = settings(
    settings.get_profile("tests"), max_examples=EXAMPLES, stateful_step_count=50
)
