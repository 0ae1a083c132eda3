"""A subscription, its consumers and its log as the dispatch machines play them.

The model knows of each message who has it, whether it is acknowledged, or pending in which
transaction, and of each entry how often some of it was delivered, and who had what of it is
pending; it checks every delivery. It plays honest clients, and a broker that crashes.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import groupby

from core.subscription.cursor import Cursor, StoredCursor
from core.subscription.key_shared import KeySharedDispatcher
from core.subscription.offset_ranges import OffsetRange
from core.subscription.shared import SharedDispatcher
from core.subscription.subscription import Subscription
from core.subscription.values import (
    Delivery,
    DispatchSettings,
    Entry,
    HashRange,
    Joining,
    KeySharing,
    Refused,
    SubscriptionType,
)

PARTITION = 1


def ranges_of(offsets: set[int]) -> list[OffsetRange]:
    """Offsets as ranges."""
    numbered = [(offset - i, offset) for i, offset in enumerate(sorted(offsets))]
    grouped = [[offset for _, offset in run] for _, run in groupby(numbered, lambda x: x[0])]
    return [OffsetRange(run[0], run[-1] + 1) for run in grouped]


@dataclass
class Client:
    """A consumer. has: messages delivered to it and neither acknowledged, nor pending, nor given
    back, by the offset of their entry. has_more: it takes more than its permits say; is_expected:
    it has none now, but will."""

    name: str
    level: int
    came: int
    permits: int = 0
    is_blocked: bool = False
    has_more: bool = False
    is_expected: bool = False
    has: dict[int, set[int]] = field(default_factory=dict)


@dataclass
class Transaction:
    """An open one: single offsets that it has acknowledged, and all below `up_to`."""

    single: set[int] = field(default_factory=set)
    up_to: int = 0
    unanswered: set[int] = field(default_factory=set)

    @property
    def held(self) -> set[int]:
        return self.single | set(range(self.up_to))


class World:
    """per_read: entries that a read finds; flushes take effects, a crash loads the last ones."""

    def __init__(
        self,
        type: SubscriptionType,  # noqa: A002 - the subscription's word
        settings: DispatchSettings,
        sharing: KeySharing,
        per_read: int,
    ) -> None:
        self.type = type
        self.settings = settings
        self.sharing = sharing
        self.per_read = per_read
        self.log: list[Entry] = []
        self.by_base: dict[int, Entry] = {}
        self.log_end = 0
        self.messages: set[int] = set()
        self.now_ms = 0
        self.store = StoredCursor()
        self.stored_transactions: dict[str, Transaction] = {}
        self.came = 0
        self.start()

    def start(self) -> None:
        """The broker starts with what is stored; nobody is connected."""
        self.subscription = Subscription(
            Cursor.load(self.store, max_stored_ranges=3), self.settings, partition=PARTITION
        )
        self.clients: dict[str, Client] = {}
        self.is_blocked = False
        self.acked = set(range(self.store.mark_delete))
        for row in self.store.ranges:
            self.acked |= set(range(*row))
        self.times: dict[int, int] = {}  # an entry was somebody's before
        self.veiled: set[int] = set()  # entries of which nothing was left but what was pending
        # Of entries of which something is pending: whose that was; None: nobody's, as far as known.
        self.keepers: dict[int, Client | None] = {}
        self.transactions: dict[str, Transaction] = deepcopy(self.stored_transactions)
        for owner, each in self.transactions.items():
            each.unanswered.clear()  # nobody knows any more
            self.subscription.load_pending(owner, ranges_of(each.single), each.up_to or None)
        self.catch_up()

    @property
    def has_one_active(self) -> bool:
        return self.type.has_one_active

    @property
    def hidden(self) -> set[int]:
        return {offset for each in self.transactions.values() for offset in each.held}

    def undone_of(self, entry: Entry) -> list[int]:
        """What is not acknowledged."""
        offsets = range(entry.base_offset, entry.last_offset + 1)
        return [each for each in offsets if each not in self.acked]

    def left_of(self, entry: Entry) -> list[int]:
        """What somebody may get."""
        undone = self.undone_of(entry)
        if not self.transactions:
            return undone
        hidden = self.hidden
        return [each for each in undone if each not in hidden]

    # --- events ---

    def append(
        self, count: int, gap: int, key: int | None, delay: int | None, chunk: str | None
    ) -> None:
        base = self.log_end + gap
        at = None if delay is None else self.now_ms + delay
        entry = self.by_base[base] = Entry(base, base + count - 1, key, at, chunk)
        self.log.append(entry)
        self.log_end = base + count
        self.messages |= set(range(base, self.log_end))

    def join(self, name: str, level: int, ranges: tuple[HashRange, ...] = ()) -> None:
        if name in self.clients:
            return
        answer = self.subscription.add_consumer(
            Joining(name, self.type, name, level, 0, ranges, self.sharing)
        )
        is_alone = self.type is SubscriptionType.EXCLUSIVE
        assert isinstance(answer, Refused) == (is_alone and bool(self.clients))
        if isinstance(answer, Refused):
            return
        self.came += 1
        before = self.active() if self.has_one_active and self.clients else None
        self.clients[name] = Client(name, level, self.came)
        self.told(before, answer)

    def leave(self, name: str) -> None:
        before = self.active() if self.has_one_active else None
        client = self.clients.pop(name)
        assert self.subscription.dispatcher is not None
        answer = self.subscription.dispatcher.remove_consumer(name)
        self.told(before, answer)
        if not self.has_one_active:
            self.given_back(client, list(client.has))
            self.unblock(client)

    def told(self, before: str | None, changes: tuple[tuple[object, bool], ...]) -> None:
        """Who is active is what the rule says, and everybody knows it."""
        if not self.has_one_active:
            assert changes == ()
            return
        now = self.active() if self.clients else None
        if before != now:
            for client in [*self.clients.values()]:
                client.has.clear()
        if self.clients and before != now:
            assert dict(changes) == {name: name == now for name in self.clients}

    def active(self) -> str:
        """Failover's rule: of the best level, by name, the one whose turn the partition is."""
        best = min(each.level for each in self.clients.values())
        names = sorted(each.name for each in self.clients.values() if each.level == best)
        return names[PARTITION % len(names)]

    def flow(self, name: str, permits: int, *, has_more: bool = False) -> None:
        client = self.clients[name]
        client.permits += permits
        client.has_more = has_more
        client.is_expected &= has_more and client.permits <= 0
        assert self.subscription.dispatcher is not None
        self.subscription.dispatcher.flow(name, permits, has_more=has_more)

    def given_back(self, client: Client, bases: list[int]) -> None:
        for base in bases:
            del client.has[base]

    def redeliver(self, name: str, bases: list[int] | None) -> None:
        client = self.clients[name]
        assert self.subscription.dispatcher is not None
        self.subscription.dispatcher.redeliver(name, bases)
        if self.has_one_active:
            client.has.clear()
        else:
            self.given_back(client, [each for each in bases or client.has if each in client.has])
        self.unblock(client)

    def acknowledge(self, start: int, end: int) -> None:
        new = self.subscription.acknowledge(start, end, self.log_end)
        wanted = set(range(start, min(end, self.log_end)))
        assert new <= len(wanted - self.acked)  # a gap that was passed is not new
        assert new >= len((wanted & self.messages) - self.acked)
        self.acked |= wanted
        self.catch_up()

    def acknowledge_up_to(self, end: int) -> None:
        self.subscription.acknowledge_up_to(end, self.log_end)
        self.acked |= set(range(min(end, self.log_end)))
        self.catch_up()

    # --- transactions ---

    def pend(self, owner: str, ranges: list[tuple[int, int]]) -> bool:
        """Each range is what one id names."""
        mine = self.transactions.get(owner, Transaction())
        others = [each for name, each in self.transactions.items() if name != owner]
        fresh: set[int] = set()
        again: set[int] = set()
        conflicts = False
        for start, end in ranges:
            named = set(range(start, min(end, self.log_end)))
            new = named - mine.held - fresh
            conflicts = (
                conflicts or bool(new & self.acked) or any(new & each.held for each in others)
            )
            if named and not new:
                conflicts = conflicts or bool(named & fresh) or not named <= mine.unanswered
                again |= named
            fresh |= new
        ids = [[each] for each in ranges]
        assert self.subscription.pend(owner, ids, self.log_end) is not conflicts
        if not conflicts and (fresh or again):
            mine.unanswered -= again
            mine.single |= fresh
            self.transactions[owner] = mine
        self.catch_up()
        return not conflicts

    def leave_unanswered(
        self, owner: str, ranges: list[tuple[int, int]], up_to: int | None = None
    ) -> None:
        """The client was not told of what it has acknowledged."""
        self.subscription.leave_unanswered(owner, ranges, up_to)
        unanswered = self.transactions[owner].unanswered
        unanswered.update(range(up_to or 0), *(range(*each) for each in ranges))

    def pend_up_to(self, owner: str, end: int) -> bool:
        end = min(end, self.log_end)
        mine = self.transactions.get(owner, Transaction())
        others = [each for name, each in self.transactions.items() if name != owner]
        mark_delete = self.subscription.cursor.mark_delete
        wanted = set(range(mark_delete, end))
        conflicts = any(each.up_to or wanted & each.single for each in others) or not wanted
        if not end:
            conflicts = False
        elif end <= mine.up_to:
            conflicts = end - 1 not in mine.unanswered
        assert self.subscription.pend_up_to(owner, end, self.log_end) is not conflicts
        if not conflicts and end:
            mine.unanswered -= set(range(end))
            mine.up_to = max(end, mine.up_to)
            self.transactions[owner] = mine
        self.catch_up()
        return not conflicts

    def commit(self, owner: str) -> None:
        ended = self.transactions.pop(owner, Transaction())
        new = self.subscription.commit_pending(owner)
        assert new <= len(ended.held - self.acked)
        assert new >= len((ended.held & self.messages) - self.acked)
        self.acked |= ended.held
        self.catch_up()

    def abort(self, owner: str) -> None:
        """Who has others of an entry keeps them. EXCLUSIVE and FAILOVER go back to the first."""
        ended = self.transactions.pop(owner, Transaction())
        dispatcher = self.subscription.dispatcher
        position = dispatcher.read_position if dispatcher is not None else 0
        shown = (ended.held & self.messages) - self.hidden - self.acked
        self.subscription.abort_pending(owner)
        if self.has_one_active and any(each < position for each in shown):
            for client in self.clients.values():
                client.has.clear()
        self.catch_up()

    def catch_up(self) -> None:
        """What is acknowledged or pending is nobody's any more; what is acknowledged is
        forgotten."""
        for entry in self.log:
            base = entry.base_offset
            if not self.pending_of(entry):
                self.keepers.pop(base, None)
            elif base not in self.keepers:
                self.keepers[base] = self.having(base)
        for client in self.clients.values():
            for base, has in list(client.has.items()):
                has.intersection_update(self.left_of(self.by_base[base]))
                if not has:
                    del client.has[base]
            self.unblock(client)
        for entry in self.log:
            if not self.undone_of(entry):
                self.times.pop(entry.base_offset, None)
                self.veiled.discard(entry.base_offset)
            elif self.transactions and not self.left_of(entry):
                self.veiled.add(entry.base_offset)

    def pending_of(self, entry: Entry) -> set[int]:
        return set(self.undone_of(entry)) - set(self.left_of(entry))

    def having(self, base: int) -> Client | None:
        """Who has some of the entry."""
        return next((each for each in self.clients.values() if base in each.has), None)

    def waiting_of(self, entry: Entry) -> set[int]:
        """What somebody may get and nobody has."""
        client = self.having(entry.base_offset)
        has = client.has[entry.base_offset] if client is not None else set()
        return set(self.left_of(entry)) - has

    def unacked(self, client: Client) -> int:
        return sum(map(len, client.has.values()))

    def all_unacked(self) -> int:
        return sum(map(self.unacked, self.clients.values()))

    def unblock(self, client: Client) -> None:
        if self.all_unacked() <= self.settings.max_unacked // 2:
            self.is_blocked = False
        if self.unacked(client) <= self.settings.max_unacked_per_consumer // 2:
            client.is_blocked = False

    def limit(self, per_consumer: int, of_all: int) -> None:
        """Other limits of what is unacknowledged hold at once; the same change nothing."""
        changed = replace(self.settings, max_unacked_per_consumer=per_consumer, max_unacked=of_all)
        self.subscription.limit(changed)
        if changed == self.settings:
            return
        self.settings = changed
        if self.has_one_active:
            return
        self.is_blocked = 0 < of_all <= self.all_unacked()
        for client in self.clients.values():
            client.is_blocked = 0 < per_consumer <= self.unacked(client)

    def seek(self, offset: int) -> None:
        self.subscription.seek(offset)
        self.acked = set(range(offset))
        self.times.clear()
        self.veiled.clear()
        self.keepers.clear()
        self.is_blocked = False
        for client in self.clients.values():
            client.has.clear()
            self.unblock(client)
        self.catch_up()

    def flush(self) -> None:
        self.stored_transactions = deepcopy(self.transactions)
        effects = self.subscription.cursor.take_effects()
        if effects is not None:
            self.store = self.store.replay(effects)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        dispatcher = self.subscription.dispatcher
        if dispatcher is not None:
            dispatcher.expire(self.now_ms)
            assert dispatcher.deadline_ms is None or dispatcher.deadline_ms > self.now_ms

    # --- deliveries ---

    def run(self, limit: int = 2, unread: int = 0) -> None:
        """What a runtime does after any event. unread: so many of what is delivered once more
        cannot be read just then."""
        dispatcher = self.subscription.dispatcher
        if dispatcher is None:
            return
        while True:
            deliveries = dispatcher.dispatch(limit)
            assert len(deliveries) <= limit
            if not deliveries:
                position = dispatcher.read_position
                if not dispatcher.wanted or position >= self.log_end:
                    break
                found = [each for each in self.log if each.last_offset >= position]
                end = self.log_end
                if len(found) > self.per_read:
                    found = found[: self.per_read]
                    end = found[-1].last_offset + 1
                deliveries = dispatcher.offer(position, found, end, self.now_ms)
                assert deliveries or dispatcher.read_position > position, "wanted and not taken"
                is_again = False
            else:
                is_again = True
            for each in deliveries:
                self.delivered(each)
            if is_again and unread > 0:
                for each in deliveries:
                    self.take_back(each)
                unread -= 1
        self.check()

    def take_back(self, delivery: Delivery) -> None:
        dispatcher = self.subscription.dispatcher
        assert dispatcher is not None
        client, base = self.clients[str(delivery.consumer_id)], delivery.entry.base_offset
        given = self.given(delivery)
        assert self.offsets_of(dispatcher.left_of(delivery)[0], delivery.entry) == sorted(given)
        dispatcher.take_back(delivery)
        assert dispatcher.left_of(delivery) == ((), 0)
        client.has[base] -= given
        if not client.has[base]:
            del client.has[base]
        self.unblock(client)
        self.flow(client.name, len(given), has_more=client.has_more)

    def given(self, delivery: Delivery) -> set[int]:
        return set(self.offsets_of(delivery.remaining, delivery.entry))

    def offsets_of(self, ranges: tuple[OffsetRange, ...] | None, entry: Entry) -> list[int]:
        ranges = (entry.offsets,) if ranges is None else ranges
        return [each for row in ranges for each in range(*row)]

    def delivered(self, delivery: Delivery) -> None:
        entry = delivery.entry
        base = entry.base_offset
        client = self.clients[str(delivery.consumer_id)]
        given = self.given(delivery)
        assert given, "delivered nothing"
        assert given <= set(self.left_of(entry)), "delivered what is acknowledged"
        having = self.having(base)
        if having is not None:
            assert not given & having.has[base], "delivered what a consumer has"
            assert having is client, "an entry is with two"
            assert not self.has_one_active
        assert given == self.waiting_of(entry), "not delivered with the rest that waits"
        assert self.offsets_of(delivery.remaining, entry) == sorted(given)
        assert client.permits > 0, "delivered without permits"
        assert self.has_one_active or not (client.is_blocked or self.is_blocked)
        self.counted(delivery)
        if self.has_one_active:
            assert client.name == self.active()
            before = [each for each in self.log if each.base_offset < base and self.left_of(each)]
            assert all(each.base_offset in client.has for each in before), "out of order"
        else:
            assert entry.deliver_at_ms is None or entry.deliver_at_ms <= self.now_ms
            self.in_lane(client, entry)
            if having is None:
                self.in_turn(client, entry)
        client.permits -= len(given)
        client.is_expected |= client.has_more and client.permits <= 0
        client.has.setdefault(base, set()).update(given)
        limit = self.settings.max_unacked_per_consumer
        if limit and not self.has_one_active and self.unacked(client) >= limit:
            client.is_blocked = True
        if self.settings.max_unacked and self.all_unacked() >= self.settings.max_unacked:
            self.is_blocked = True

    def counted(self, delivery: Delivery) -> None:
        """How often some of the entry was delivered before. Of what was pending it is not always
        known: somebody had it, perhaps before a crash; and EXCLUSIVE and FAILOVER count how often
        reading went back over it."""
        base, count = delivery.entry.base_offset, delivery.redelivery_count
        times = self.times.get(base, 0)
        if base not in self.veiled:
            assert count == times
        elif self.has_one_active:
            assert count >= times
        else:
            assert count in (times, max(times, 1))
        self.times[base] = count + 1

    def in_turn(self, client: Client, entry: Entry) -> None:
        """No better level takes what belongs to nobody, now or soon."""
        if self.raw_lane(entry) is not None:
            return
        for other in self.clients.values():
            if other.level < client.level:
                assert other.is_blocked or other.permits <= 0, "a better level takes it"
                assert other.is_blocked or not other.is_expected, "a better level will take it"

    def lane_of(self, entry: Entry) -> object:
        if self.type is SubscriptionType.KEY_SHARED and entry.key_hash is not None:
            return entry.key_hash if self.sharing.is_ordered else None
        return entry.chunk_group

    def in_lane(self, client: Client, entry: Entry) -> None:
        """Nobody else has, or keeps, anything of the lane, and nothing earlier of it waits."""
        lane = self.lane_of(entry)
        if lane is None:
            return
        for other in self.clients.values():
            for base in other.has:
                assert other is client or self.lane_of(self.by_base[base]) != lane, (
                    "a lane is with two"
                )
        for each in self.log:
            if self.lane_of(each) != lane:
                continue
            base, late = each.base_offset, each.deliver_at_ms is not None
            if isinstance(lane, int) and base in self.keepers:
                keeper = self.keepers[base]
                if keeper is not None:
                    assert keeper is client, "a lane with something pending has moved"
                else:  # not known before it is read, or due
                    assert base > entry.base_offset or late, "a pending one is overtaken"
            if base < entry.base_offset and not late:  # it may have come due after others went
                assert not self.waiting_of(each), "overtaken in its lane"

    def outstanding(self) -> set[int]:
        return {base for each in self.clients.values() for base in each.has}

    def batches(self) -> list[int]:
        """Entries of which a consumer has several messages."""
        having = [has for each in self.clients.values() for has in each.has.items()]
        return sorted(base for base, has in having if len(has) > 1)

    def check(self) -> None:
        """Numbers agree, and nobody waits who need not."""
        self.check_pending()
        dispatcher = self.subscription.dispatcher
        assert dispatcher is not None
        statuses = {str(each.consumer_id): each for each in dispatcher.consumers()}
        assert set(statuses) == set(self.clients)
        for name, client in self.clients.items():
            assert statuses[name].permits == client.permits
            if not self.has_one_active:
                assert statuses[name].unacked == self.unacked(client)
                assert statuses[name].is_blocked == client.is_blocked
            else:
                assert statuses[name].is_active == (name == self.active())
        if self.has_one_active:
            takes = bool(self.clients) and self.clients[self.active()].permits > 0
            assert not takes or dispatcher.read_position >= self.log_end, "nobody reads on"
        elif not self.is_blocked:
            self.check_nobody_waits()

    def check_pending(self) -> None:
        subscription, hidden = self.subscription, self.hidden
        assert set(subscription.pending_owners) == set(self.transactions)
        for owner, each in self.transactions.items():
            assert subscription.pending_of(owner) == (
                tuple(ranges_of(each.single)),
                each.up_to or None,
            )
        # Also where it is acknowledged, which a seek may undo.
        assert list(subscription.cursor._hidden or ()) == ranges_of(hidden)
        pending = hidden - self.acked
        assert len(pending & self.messages) <= subscription.pending_count <= len(pending)
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, SharedDispatcher):
            for entry in dispatcher._stash.entries.values():
                assert self.undone_of(entry), "stashed, and acknowledged"
                assert not self.left_of(entry), "stashed, and somebody could have it"

    def takes(self, name: str) -> bool:
        return self.clients[name].permits > 0 and not self.clients[name].is_blocked

    def check_nobody_waits(self) -> None:
        """Whatever could go has gone: it has no taker, or its lane is held up."""
        dispatcher = self.subscription.dispatcher
        assert dispatcher is not None
        takers = [self.clients[name].level for name in self.clients if self.takes(name)]
        expected = [
            each.level for each in self.clients.values() if each.is_expected and not each.is_blocked
        ]
        if not takers or min(expected, default=99) < min(takers):
            return
        if not self.settings.look_ahead:  # there is nothing else that could stop reading
            assert dispatcher.read_position >= self.log_end, "nobody reads on"
        held_up: set[object] = set()
        for entry in self.log:
            base = entry.base_offset
            is_waiting = (
                entry.last_offset < dispatcher.read_position
                and self.waiting_of(entry)
                and (entry.deliver_at_ms or 0) <= self.now_ms
            )
            if not is_waiting:
                continue
            lane = self.raw_lane(entry)
            holders = {
                name
                for name, each in self.clients.items()
                if lane is not None
                and any(lane == self.raw_lane(self.by_base[having]) for having in each.has)
            }
            having = self.having(base)
            if having is not None and self.lane_of(entry) is None:
                assert not self.takes(having.name), f"{entry} waits for who takes it"
                continue
            if lane in held_up:
                continue
            if isinstance(lane, int):
                owner = self.owner_of(lane)
                stuck = owner is None or not self.takes(owner)
                if self.sharing.is_ordered:
                    stuck = stuck or bool(holders - {owner}) or self.is_kept_from(owner, lane)
            else:
                stuck = lane is not None and any(not self.takes(each) for each in holders)
            assert stuck, f"{entry} waits and need not"
            held_up.add(lane)

    def is_kept_from(self, name: str | None, lane: int) -> bool:
        """Whether somebody else keeps something of the lane, or somebody who is not known."""
        return any(
            keeper is None or name is None or keeper is not self.clients[name]
            for base, keeper in self.keepers.items()
            if self.raw_lane(self.by_base[base]) == lane
        )

    def raw_lane(self, entry: Entry) -> object:
        if self.type is SubscriptionType.KEY_SHARED and entry.key_hash is not None:
            return entry.key_hash
        return entry.chunk_group

    def owner_of(self, key_hash: int) -> str | None:
        dispatcher = self.subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        for (first, last), consumer_id in dispatcher.hash_ranges():
            if first <= key_hash <= last:
                return str(consumer_id)
        return None

    def drain(self) -> None:
        """Transactions end, all take and acknowledge whatever comes, time passes: then nothing is
        left."""
        for i, owner in enumerate(list(self.transactions)):
            self.abort(owner) if i % 2 else self.commit(owner)
            self.run()
        for i in range(2 * len(self.log) + 3):
            if i and not self.messages - self.acked:
                break
            self.pass_time(1_000)
            for name, client in self.clients.items():
                self.flow(name, max(200 - client.permits, 0))
            self.run()
            for client in list(self.clients.values()):
                for base, has in list(client.has.items()):
                    if i % 2:
                        for offset in list(has):
                            self.acknowledge(offset, offset + 1)
                    else:
                        self.acknowledge(*self.by_base[base].offsets)
        assert not self.messages - self.acked, "lost"
        assert self.subscription.cursor.mark_delete == self.log_end
        assert self.subscription.cursor.backlog(self.log_end) == 0
