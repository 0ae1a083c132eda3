"""What a dispatcher with several active consumers remembers: of a consumer, an entry, a lane.

State only; the rules are in `shared` and `key_shared`.
"""

from __future__ import annotations

from collections.abc import Hashable

from core.subscription.offset_ranges import OffsetRanges
from core.subscription.values import Entry, Joining


class SharingConsumer:
    """A consumer among others. has_more: it takes more than its permits say. unacked: messages it
    has; is_blocked: too many of them, or it is gone. lanes: a heap of (offset of the first that
    waits, lane) of lanes whose next entry it may have; claims: those that wait and are its by their
    key (KEY_SHARED), whoever has some of them.
    """

    __slots__ = (
        "claims",
        "consumer_id",
        "epoch",
        "has_more",
        "held",
        "is_blocked",
        "is_queued",
        "lanes",
        "name",
        "permits",
        "priority_level",
        "unacked",
    )

    def __init__(self, joining: Joining) -> None:
        self.consumer_id = joining.consumer_id
        self.name = joining.name
        self.priority_level = joining.priority_level
        self.epoch = joining.epoch
        self.permits = 0
        self.has_more = False
        self.unacked = 0
        self.is_blocked = False
        self.is_queued = False
        self.held: dict[int, Held] = {}
        self.lanes: list[tuple[int, Hashable]] = []
        self.claims: dict[Hashable, Lane] = {}


class Held:
    """An entry that a consumer has. unacked: its messages that are neither acknowledged, nor
    pending, nor freed. freed: those that aborts gave back, while they wait; see SharedDispatcher.
    """

    __slots__ = ("consumer", "entry", "freed", "lane", "unacked")

    def __init__(
        self, entry: Entry, consumer: SharingConsumer, unacked: int, lane: Lane | None
    ) -> None:
        self.entry = entry
        self.consumer = consumer
        self.unacked = unacked
        self.lane = lane
        self.freed: OffsetRanges | None = None


class OneEntry:
    """Names a lane of one entry. It may stand beside any other name in a heap, in any order."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __lt__


class Lane:
    """Entries that belong together. held: how many of them somebody has, or keeps; holder: who has
    them; None where it is 0.

    keepers: who had what of them is pending, and of how many entries (KEY_SHARED); None for none.
    waiting: a heap of those that wait; owner: who has a claim to them. It is kept only while there
    is something in it.
    """

    __slots__ = ("held", "holder", "keepers", "key", "owner", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.holder: SharingConsumer | None = None
        self.owner: SharingConsumer | None = None
        self.held = 0
        self.keepers: dict[SharingConsumer, int] | None = None
        self.waiting: list[Entry] = []
