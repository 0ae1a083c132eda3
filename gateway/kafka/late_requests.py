"""Requests of a transaction that arrive on a connection their producer has left.

V1 of transactions keeps a producer's epoch from one transaction to the next, so a request says of
itself neither which of them it belongs to nor that it is late. A client that waits too long gives
its connection up and asks again on a new one; the first request may arrive all the same, when the
next transaction is open, and would end it or write into it (Jepsen's finding on Kafka; V2, KIP-890,
raises the epoch instead and needs none of this). So: what a producer asks on an older connection
than the one which has carried a newer request of the same API is refused, by closing it. That knows
this process's connections only. So EndTxn, which does most harm, is believed at once only on a
connection on which the producer has asked in this very transaction: else it has to ask again, which
nobody does on a connection that he has left (`LateRequests.has_asked`). See `when_lapsed` as well.
"""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

import structlog

from core.transaction.key import TransactionKey
from core.transaction.values import OpenTransaction, ProducerIdAndEpoch, TransactionVersion
from gateway.kafka.api import CLOSE_CONNECTION, Handler, Unavailable
from gateway.kafka.context import RequestContext

log = structlog.get_logger(__name__)

_KEPT: Final = 100_000  # places remembered; 20 to 60 MB, by the length of names
_LONGEST_NAME: Final = 100


Asked = tuple[ProducerIdAndEpoch, Hashable]
"""Whose request it is, and its place."""


def refuse_late(
    about: Callable[[Any], Asked],
    is_granted: Callable[[Any], bool],
    *,
    when_lapsed: Unavailable | None = None,
) -> Callable[[Handler], Handler]:
    """Stands around a handler: a request of V1 that is late closes its connection.

    is_granted: whether the answer says so. when_lapsed: answers where this process has stood still,
    so that the client may have asked another broker meanwhile and begun its next transaction, which
    V1 does not tell from this one.
    """
    return refuse_late_parts(
        lambda request: (about(request),),
        lambda answer, asked: asked if is_granted(answer) else (),
        when_lapsed=when_lapsed,
    )


def refuse_late_parts(
    about: Callable[[Any], Sequence[Asked]],
    granted: Callable[[Any, Sequence[Asked]], Iterable[Asked]],
    *,
    when_lapsed: Unavailable | None = None,
) -> Callable[[Handler], Handler]:
    """The same for a request of several parts: one that is late makes all of it late.

    about: the parts that are of a transaction. granted: those that the answer grants.
    """

    def around(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def ordered(request: Any, ctx: RequestContext) -> Any:
            if ctx.transaction_version is TransactionVersion.V2 or not (asked := about(request)):
                return await handler(request, ctx)
            late = ctx.late_requests
            if any(late.is_late(producer, place, ctx.connection) for producer, place in asked):
                return CLOSE_CONNECTION
            if when_lapsed is not None and ctx.cluster.has_lapsed:
                return when_lapsed(request, ctx)
            answer = await handler(request, ctx)
            for producer, place in granted(answer, asked):
                late.carried(producer, place, ctx.connection)
            return answer

        return ordered

    return around


def kept_name(name: str) -> str:
    """What stands for a client's name in a place: itself, or a digest where it is long (32 kB)."""
    if len(name) <= _LONGEST_NAME:
        return name
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


class LateRequests:
    """Which connection, numbered as they were accepted, has carried a producer's newest requests.

    A place is what is compared: an API and, where several requests of one producer are under way in
    it side by side, what each is about (Produce: the partition; TxnOffsetCommit: the group).
    Clients send what belongs to one place on one connection at a time.
    """

    __slots__ = ("_asked", "_kept", "_newest", "refused")

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._asked: OrderedDict[int, tuple[int, set[int]]] = OrderedDict()
        self._newest: OrderedDict[tuple[int, Hashable], tuple[int, int]] = OrderedDict()
        self.refused = 0
        """Requests refused so far."""

    def is_late(self, producer: ProducerIdAndEpoch, place: Hashable, connection: int) -> bool:
        """Whether the same producer, with the same epoch, has gone on on a newer connection."""
        newest = self._newest.get((producer.producer_id, place))
        if newest is None or newest[0] != producer.producer_epoch or newest[1] <= connection:
            return False
        self.refused += 1
        log.warning(
            "a late request of a producer that has gone on on another connection is refused",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            place=place,
        )
        return True

    def carried(self, producer: ProducerIdAndEpoch, place: Hashable, connection: int) -> None:
        """The connection has carried a request that was granted."""
        key = (producer.producer_id, place)
        newest = self._newest.get(key)
        latest = (producer.producer_epoch, connection)
        if newest is None or newest < latest:
            self._newest[key] = latest
            if len(self._newest) > self._kept:
                self._newest.popitem(last=False)
        self._newest.move_to_end(key)

    def has_asked(self, transaction: OpenTransaction, connection: int) -> bool:
        """Whether the connection has carried a request in this open transaction."""
        version, connections = self._asked.get(transaction.producer_id, (None, ()))
        return version == transaction.version and connection in connections

    def note_asked(self, transaction: OpenTransaction, connection: int) -> None:
        """It carries one."""
        version, connections = self._asked.get(transaction.producer_id, (None, set()))
        if version != transaction.version:
            connections = set()
        connections.add(connection)
        self._asked[transaction.producer_id] = transaction.version, connections
        self._asked.move_to_end(transaction.producer_id)
        if len(self._asked) > self._kept:
            self._asked.popitem(last=False)


def note_asked(key: TransactionKey, producer: ProducerIdAndEpoch, ctx: RequestContext) -> None:
    """A request in the producer's open transaction was granted; see `LateRequests.has_asked`."""
    transaction = ctx.transactions.known_open(key, producer)
    if transaction is not None:
        ctx.late_requests.note_asked(transaction, ctx.connection)
