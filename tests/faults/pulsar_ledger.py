"""What Pulsar's clients were told, against the log and the cursors: every broken promise, by name.

Producers note what they send and the receipts they get; consumers note every delivery, every
acknowledgement, and its receipt. A *session* is one SUBSCRIBE that was answered. Times are
`time.monotonic()`. Must not know any client, broker or database.

Not broken promises, as in Pulsar: what has no receipt is delivered again after a fault, however it
was acknowledged; a message on its way to one session may be acknowledged by another meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NOT_TOLD = -1
"""Where a message lies, of a receipt for a duplicate."""
IN_TRANSIT_S = 0.5
"""How long what a broker has written may take until a client notes it, which is not busy."""


class Name(NamedTuple):
    """A message: sequences count from 0 for each producer, which writes to one partition."""

    producer: str
    sequence: int

    @property
    def value(self) -> bytes:
        """What it contains, at its beginning."""
        return f"{self.producer}|{self.sequence}|".encode()


def name_in(value: bytes) -> Name | None:
    """The message that a value says it is."""
    try:
        producer, sequence, _ = value[:100].split(b"|", 2)
        return Name(producer.decode(), int(sequence))
    except ValueError:
        return None


@dataclass(slots=True)
class Sent:
    """A message that was handed to a client. offset: as its receipt has it. trouble: what was said
    instead."""

    partition: str
    has_receipt: bool = False
    offset: int = NOT_TOLD
    trouble: str = ""


@dataclass(slots=True)
class Session:
    """A consumer that was taken in. is_traced: whether all that it was given is noted as it comes
    off the wire, and its acknowledgements have receipts."""

    subscription: str
    partition: str
    broker: int
    is_traced: bool
    opened_at: float
    ended_at: float = float("inf")


class Delivery(NamedTuple):
    """A message that came."""

    at: float
    session: int
    offset: int
    name: Name | None
    key: str
    redeliveries: int


class Told(NamedTuple):
    """An acknowledgement (or the opposite) was said, or its receipt has come."""

    at: float
    session: int
    offsets: tuple[int, ...]
    below: int  # all offsets below, too


class Pause(NamedTuple):
    """A broker stood still, for longer than its session lasts."""

    broker: int
    since: float
    until: float


@dataclass(slots=True)
class Ledger:
    """Everything that was said. Written to by any thread."""

    sent: dict[Name, Sent] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acknowledged: list[Told] = field(default_factory=list)
    receipts: list[Told] = field(default_factory=list)
    given_back: list[Told] = field(default_factory=list)
    lag_s: float = 0.0  # how late the notes were, at most
    turns: list[tuple[float, int]] = field(
        default_factory=list
    )  # it is the active one, from now on
    pauses: list[Pause] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __getstate__(self) -> dict[str, object]:
        """All but the lock, for a pickle."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._lock = threading.Lock()

    @property
    def in_transit_s(self) -> float:
        """How long what a broker has written may take until it is noted."""
        return IN_TRANSIT_S + 2 * self.lag_s

    def send(self, name: Name, partition: str) -> None:
        """It is about to be sent."""
        with self._lock:
            self.sent[name] = Sent(partition)

    def open(self, subscription: str, partition: str, broker: int, *, is_traced: bool) -> int:
        """A consumer was taken in; gives the session's number."""
        with self._lock:
            opened = Session(subscription, partition, broker, is_traced, time.monotonic())
            self.sessions.append(opened)
            return len(self.sessions) - 1

    def end(self, session: int) -> None:
        """It is over, as its client knows now."""
        ended = self.sessions[session]
        ended.ended_at = min(ended.ended_at, time.monotonic())

    def with_receipts(self) -> dict[str, set[Name]]:
        """Messages that have one, by partition."""
        found: dict[str, set[Name]] = defaultdict(set)
        with self._lock:
            for name, each in self.sent.items():
                if each.has_receipt:
                    found[each.partition].add(name)
        return found

    def done(self, subscription: str, partition: str) -> set[Name]:
        """Messages that a subscription was given."""
        with self._lock:
            return {
                each.name
                for each in self.deliveries
                if each.name is not None
                and self.sessions[each.session].subscription == subscription
                and self.sessions[each.session].partition == partition
            }


@dataclass(frozen=True, slots=True)
class Cursor:
    """A subscription in a partition, as its rows have it. ranges: half-open."""

    mark_delete: int
    ranges: tuple[tuple[int, int], ...] = ()

    def has(self, offset: int) -> bool:
        """Whether it is acknowledged."""
        return offset < self.mark_delete or any(start <= offset < end for start, end in self.ranges)


Log = Mapping[int, bytes]
"""Values by offset."""


def check_log(ledger: Ledger, partition: str, log: Log, *, is_deduplicated: bool) -> list[str]:
    """Every message with a receipt is there, at the place that its receipt named, in its producer's
    order; and only once where they are deduplicated."""
    broken = []
    places: dict[Name, list[int]] = defaultdict(list)
    for offset, value in sorted(log.items()):
        name = name_in(value)
        if name is None or name not in ledger.sent or ledger.sent[name].partition != partition:
            broken.append(f"invented: {partition} {offset}: {value[:40]!r}")
        else:
            places[name].append(offset)
    newest: dict[str, tuple[int, int]] = {}
    for name in sorted(name for name, each in ledger.sent.items() if each.partition == partition):
        sent, found = ledger.sent[name], places.get(name, [])
        if sent.has_receipt and not found:
            broken.append(f"lost: {partition} {name}, receipt for {sent.offset}")
        elif sent.has_receipt and sent.offset not in (NOT_TOLD, *found):
            broken.append(f"misplaced: {partition} {name} at {found}, receipt for {sent.offset}")
        if is_deduplicated and len(found) > 1:
            broken.append(f"twice: {partition} {name} at {found}")
        if found:
            before, at = newest.get(name.producer, (-1, -1))
            if found[0] < at:
                broken.append(f"reordered: {partition} {name} at {found[0]}, {before} at {at}")
            newest[name.producer] = (name.sequence, found[0])
    return broken


def check_readers(partition: str, readers: Mapping[str, Log]) -> list[str]:
    """All of them have found the same."""
    (first, log), *others = readers.items()
    return [
        f"readers differ: {partition} {first} and {other} at offset {offset}"
        for other, found in others
        for offset in sorted(log.keys() | found.keys())
        if log.get(offset) != found.get(offset)
    ][:10]


def check_deliveries(ledger: Ledger) -> list[str]:
    """Nothing comes again after the receipt of its acknowledgement, nor twice to a session that has
    not given it back, nor from a broker that is not the owner any more."""
    broken = []
    stored: dict[tuple[str, str, int], tuple[float, int]] = {}
    below: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
    for receipt in ledger.receipts:
        of = ledger.sessions[receipt.session]
        where = (of.subscription, of.partition)
        for offset in receipt.offsets:
            stored.setdefault((*where, offset), (receipt.at, receipt.session))
        if receipt.below:
            below[where].append((receipt.at, receipt.session, receipt.below))
    given_back = defaultdict(list)
    for each in ledger.given_back:
        for offset in each.offsets:
            given_back[each.session, offset].append(each.at)
    turns: dict[int, list[float]] = defaultdict(list)
    for at, number in ledger.turns:
        turns[number].append(at)
    seen: dict[tuple[int, int], float] = {}
    for each in ledger.deliveries:
        session = ledger.sessions[each.session]
        if not session.is_traced:
            continue
        where = (session.subscription, session.partition)
        receipts = [found] if (found := stored.get((*where, each.offset))) else []
        receipts += [(at, by) for at, by, end in below[where] if each.offset < end]
        for at, by in receipts:
            is_after = (
                at < each.at
                if by == each.session
                else (at < session.opened_at or at + ledger.in_transit_s < each.at)
            )
            if is_after:
                broken.append(
                    f"after its receipt: {where} {each.offset}, {each.at - at:.3f} s later, "
                    f"sessions {by} and {each.session} {session}"
                )
                break
        before = seen.get((each.session, each.offset))
        # A Failover's active consumer begins at what is not acknowledged, each time it is its turn.
        backs = given_back[each.session, each.offset] + turns[each.session]
        if before is not None and not any(before <= at <= each.at for at in backs):
            broken.append(f"twice in a session: {where} {each.offset} of {each.session}")
        seen[each.session, each.offset] = each.at
        if any(
            pause.broker == session.broker
            and session.opened_at < pause.since
            and pause.until < each.at
            for pause in ledger.pauses
        ):
            broken.append(f"of a former owner: {where} {each.offset} of {each.session}")
    return broken


def check_keys(ledger: Ledger, subscription: str) -> list[str]:
    """Of a key no two consumers have messages at once, and each gets them in order."""
    broken = []
    events: list[tuple[float, int, Delivery | Told]] = []
    sessions = ledger.sessions
    ours = {at for at, each in enumerate(sessions) if each.subscription == subscription}
    told = [*ledger.acknowledged, *ledger.given_back]
    events += [(each.at, 0, each) for each in told if each.session in ours]
    events += [(each.at, 1, each) for each in ledger.deliveries if each.session in ours]
    held: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    keys: dict[tuple[str, int], str] = {}
    newest: dict[tuple[int, str], int] = {}
    for _, _, event in sorted(events, key=lambda each: each[:2]):
        partition = sessions[event.session].partition
        if isinstance(event, Told):
            for offset in event.offsets:
                held[partition, keys[partition, offset]].pop(offset, None)
            continue
        keys[partition, event.offset] = event.key
        if not event.key:
            continue
        holding = held[partition, event.key]
        for offset, holder in list(holding.items()):
            over = sessions[holder].ended_at
            if over < event.at + ledger.in_transit_s:
                del holding[offset]
            elif (
                holder != event.session
                and sessions[holder].broker == sessions[event.session].broker
            ):
                broken.append(
                    f"two have a key: {partition} {event.key!r}: {offset} at session {holder}, "
                    f"{event.offset} to session {event.session}"
                )
        holding[event.offset] = event.session
        if event.redeliveries == 0:
            last = newest.get((event.session, event.key), -1)
            if event.offset < last:
                broken.append(
                    f"a key out of order: {partition} {event.key!r}: {event.offset} after {last}"
                )
            newest[event.session, event.key] = max(last, event.offset)
    return broken


def check_cursor(ledger: Ledger, subscription: str, partition: str, cursor: Cursor) -> list[str]:
    """What has a receipt is acknowledged in the rows."""
    lost: set[int] = set()
    for each in ledger.receipts:
        session = ledger.sessions[each.session]
        if (session.subscription, session.partition) == (subscription, partition):
            lost |= {offset for offset in each.offsets if not cursor.has(offset)}
            if each.below > cursor.mark_delete:
                lost.add(each.below - 1)
    return [f"receipt without a row: {subscription} {partition} {at}" for at in sorted(lost)[:10]]
