"""Staging records in a broker and publishing them, through whatever fails meanwhile.

Knows which answers mean "once more" and how long to go on; must not know Spark or Arrow. What is
staged lies in the database under a token, without an offset, seen by nobody. Publishing gives all
of some tokens their offsets at once. A request may be repeated whenever its answer is lost: what is
staged already is not staged twice, what is published already is not published twice.
"""

from __future__ import annotations

import random
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from penstock.connecting import PropertyError
from penstock.connection import (
    METADATA,
    Address,
    Buffer,
    Connection,
    ConnectionLost,
    LoginRefused,
    Refused,
    metadata_request,
    shown,
)
from penstock.spark import wire
from penstock.spark.options import OptionError

if TYPE_CHECKING:
    from penstock.connecting import Login
    from penstock.spark.batches import Batch
    from penstock.spark.options import SinkOptions

# A request is sent when it has this many bytes; so many bytes may be unanswered.
REQUEST_BYTES: Final = 2 * 1024 * 1024
WINDOW_BYTES: Final = 8 * 1024 * 1024

_ANSWER_WITHIN_S: Final = 30.0
_PUBLISHED_WITHIN_MS: Final = 20_000  # told to the broker, which then answers before that
_DROPPED_WITHIN_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
# How long a topic may be unknown: one just made has not reached every broker.
_TOPIC_UNKNOWN_S: Final = 10.0
# Refused for what the request says, always, or by who held the guard: nothing of it is published.
_NOT_PUBLISHED: Final = frozenset(
    {
        wire.UNKNOWN_TOPIC_OR_PARTITION,
        wire.INVALID_REQUEST,
        wire.POLICY_VIOLATION,
        wire.RESOURCE_NOT_FOUND,
    }
)
# Connections that end before anything is staged, until it is asked what kind of broker that is.
_HANG_UPS: Final = 3


class SinkError(Exception):
    """The records cannot be written; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a task has staged. token: None for nothing at all."""

    token: UUID | None
    batches: int
    rows: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster has it. max_batch_bytes: the greatest batch it takes."""

    name: str
    partitions: int
    max_batch_bytes: int


@dataclass(slots=True)
class Attempts:
    """How often something was tried since it last went on, and when it is enough.

    timeout_s: how long to go on after the last progress.
    """

    timeout_s: float
    since: float | None = None
    pause_s: float = _FIRST_PAUSE_S

    def progress(self) -> None:
        """It works."""
        self.since = None
        self.pause_s = _FIRST_PAUSE_S

    def failed(self, cause: Exception, *, within_s: float | None = None) -> None:
        """Waits a little before the next attempt. Raises the cause if there shall be none."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        limit = self.timeout_s if within_s is None else min(within_s, self.timeout_s)
        if now - self.since + self.pause_s > limit:
            raise cause
        time.sleep(self.pause_s * random.uniform(0.5, 1))  # not all writers at once
        self.pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)


class Cluster:
    """The gateways of a cluster: those that were named, and those that they named.

    timeout_s: how long what fails is tried again (`delivery.timeout.ms`). tls: None for plain text.
    login: None where nobody asks.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        self._addresses = list(bootstrap)
        self._tls = tls
        self._login = login
        self._topics: dict[str, Topic] = {}
        self.timeout_s = timeout_s

    def connect(self, timeout_s: float | None = None) -> Connection:
        """A connection to any of them. Raises ConnectionLost; SinkError where it is not let in."""
        reasons = []
        timeout_s = _ANSWER_WITHIN_S if timeout_s is None else timeout_s
        for _ in range(len(self._addresses)):
            try:
                return Connection(
                    self._addresses[0],
                    timeout_s,
                    self._tls,
                    self._login,
                    client_id=wire.CLIENT_ID,
                )
            except LoginRefused as refused:
                raise SinkError(f"{refused}.") from refused
            except ConnectionLost as lost:
                reasons.append(str(lost))
                self.avoid(self._addresses[0])
        raise ConnectionLost("; ".join(reasons))

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection for a question. Where it is lost, the next one goes elsewhere first."""
        with self.connect() as connection:
            try:
                yield connection
            except ConnectionLost:
                self.avoid(connection.address)
                raise

    def avoid(self, address: Address) -> None:
        """This one has failed: the others come first."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    def topic(self, name: str) -> Topic:
        """A topic, as it was when first asked for; made now if the cluster makes topics by itself.

        Raises SinkError.
        """
        if name not in self._topics:
            self._topics[name] = self._ask_for(name)
        return self._topics[name]

    def check_that_it_stages(self) -> None:
        """Raises SinkError if it answers Kafka's requests, but ends connections at ours, always."""
        for _ in range(_HANG_UPS):
            try:
                with self.connect() as connection:
                    connection.ask(METADATA, metadata_request([], may_create=False))
                    try:
                        wire.read_drop(connection.ask(wire.DROP_STAGED, wire.drop_request([])))
                    except ConnectionLost:
                        continue
            except (ConnectionLost, Refused):
                pass
            return
        raise SinkError(
            f"{shown(connection.address)} ends the connection whenever records are to be "
            f"staged. A Penstock broker does not; Apache Kafka cannot stage."
        )

    def _ask_for(self, name: str) -> Topic:
        attempts = Attempts(self.timeout_s)
        while True:
            within_s = None
            try:
                with self.connected() as connection:
                    return self._look_up(connection, name)
            except ConnectionLost as lost:
                cause: Exception = SinkError(f"The cluster cannot be reached: {lost}.")
                cause.__cause__ = lost
            except Refused as refused:
                cause = SinkError(f"Topic '{name}' cannot be written to: {refused}.")
                if refused.code == wire.UNKNOWN_TOPIC_OR_PARTITION:
                    cause = SinkError(
                        f"Topic '{name}' does not exist, and the cluster does not make topics by "
                        f"itself (auto.create.topics.enable)."
                    )
                    within_s = 2.0
                elif not refused.is_retriable:
                    raise cause from refused
                cause.__cause__ = refused
            attempts.failed(cause, within_s=within_s)

    def _look_up(self, connection: Connection, name: str) -> Topic:
        request = metadata_request([name], may_create=True)
        cluster = wire.read_metadata(connection.ask(METADATA, request))
        self._addresses += [each for each in cluster.brokers if each not in self._addresses]
        partitions = cluster.partitions.get(name, Refused(wire.UNKNOWN_TOPIC_OR_PARTITION))
        if isinstance(partitions, Refused):
            raise partitions
        asked = wire.describe_configs_request([name], "max.message.bytes")
        configs = wire.read_configs(connection.ask(wire.DESCRIBE_CONFIGS, asked))
        return Topic(name, partitions, int(configs.get(name) or 1_048_588))


def cluster_of(options: SinkOptions) -> Cluster:
    """The one that options name. Raises OptionError where a file cannot be read."""
    tls, login = options.connecting.tls, options.connecting.login
    try:
        context = None if tls is None else tls.context()
    except PropertyError as wrong:
        raise OptionError(str(wrong)) from wrong
    return Cluster(options.servers, options.delivery_timeout_s, context, login)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request as it goes over the wire, to be sent again."""

    pieces: list[Buffer]
    batches: int
    size: int


class Stager:
    """Stages batches under one token, in order. Several requests are under way at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.token = uuid4()
        self._cluster = cluster
        self._connection: Connection | None = None
        self._attempts = Attempts(cluster.timeout_s)
        self._hang_ups = 0
        self._gathered: list[tuple[str, int, Batch]] = []
        self._gathered_bytes = 0
        self._unanswered: deque[_Request] = deque()
        self._unanswered_bytes = 0
        self._sent = 0  # batches given to requests
        self._staged = 0  # batches acknowledged

    def add(self, topic: str, index: int, batch: Batch) -> None:
        """Stages a batch, soon. Raises SinkError: this token is of no use then."""
        self._gathered.append((topic, index, batch))
        self._gathered_bytes += batch.size
        if self._gathered_bytes >= REQUEST_BYTES:
            self._post()

    def flush(self) -> None:
        """Waits until everything is staged. Raises SinkError."""
        if self._gathered:
            self._post()
        while self._unanswered:
            self._take_answer()

    def finish(self) -> int:
        """The last call: how many batches are staged, all of them. Raises SinkError."""
        self.flush()
        self.close()
        return self._staged

    def close(self) -> None:
        """Lets go of the connection, whatever is under way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self) -> None:
        pieces = wire.stage_request(self.token, self._sent, self._gathered)
        request = _Request(pieces, len(self._gathered), self._gathered_bytes)
        self._sent += request.batches
        self._gathered, self._gathered_bytes = [], 0
        while self._unanswered and self._unanswered_bytes + request.size > WINDOW_BYTES:
            self._take_answer()
        self._unanswered.append(request)
        self._unanswered_bytes += request.size
        try:
            if self._connection is not None:
                self._connection.send(wire.STAGE_RECORDS, pieces)
            else:
                self._begin_again()
        except ConnectionLost as lost:
            self._recover(lost)

    def _take_answer(self) -> None:
        """Takes the next answer."""
        try:
            if self._connection is None:
                self._begin_again()
            assert self._connection is not None
            answer = wire.read_stage(self._connection.receive())
        except ConnectionLost as lost:
            self._recover(lost)
            return
        if answer.refusal is not None:
            self._refused(answer.refusal, answer.staged)
            return
        self._attempts.progress()
        request = self._unanswered.popleft()
        self._unanswered_bytes -= request.size
        self._staged += request.batches

    def _refused(self, refusal: Refused, staged: int) -> None:
        """What is to be done depends on why; the requests after this one were refused with it."""
        if refusal.code == wire.OUT_OF_ORDER_SEQUENCE_NUMBER and 0 <= staged < self._staged:
            raise SinkError(
                f"The cluster has lost {self._staged - staged} of the {self._staged} batches that "
                f"this task had staged (its database was restarted, or they have expired)."
            ) from refusal
        if refusal.code == wire.UNKNOWN_TOPIC_OR_PARTITION:
            self._recover(refusal, within_s=_TOPIC_UNKNOWN_S)
        elif refusal.is_retriable or refusal.code == wire.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._recover(refusal)
        elif refusal.code == wire.MESSAGE_TOO_LARGE:  # it is alone in its batch
            raise SinkError(
                f"A record is too large for its topic: raise the topic's max.message.bytes, or"
                f" compress (kafka.compression.type). {refusal}"
            ) from refusal
        else:
            raise SinkError(f"The records were refused. {refusal}.") from refusal

    def _recover(self, cause: Exception, *, within_s: float | None = None) -> None:
        """Leaves the connection; the next step sends what is unanswered on another one."""
        if self._connection is not None and isinstance(cause, ConnectionLost):
            self._cluster.avoid(self._connection.address)
            self._hang_ups += 1
            if self._hang_ups == _HANG_UPS and not self._staged:
                self._cluster.check_that_it_stages()
        self.close()
        failure = SinkError(f"The records could not be staged: {cause}.")
        failure.__cause__ = cause
        self._attempts.failed(failure, within_s=within_s)

    def _begin_again(self) -> None:
        self._connection = self._cluster.connect()
        for request in self._unanswered:
            self._connection.send(wire.STAGE_RECORDS, request.pieces)


def publish(
    cluster: Cluster, query_id: str, sink: str, batch_id: int, tokens: Sequence[tuple[UUID, int]]
) -> wire.PublishAnswer:
    """Makes what these tokens hold visible, once. tokens: each with its number of batches.

    Goes on until it is known. Raises SinkError.
    """
    try:
        return _publish(cluster, query_id, sink, batch_id, tokens)
    except Refused as refused:
        raise SinkError(f"The batch was not published. {refused}.") from refused


def is_published(cluster: Cluster, query_id: str, sink: str, batch_id: int) -> bool:
    """Whether this batch, or a later one, has been published. Raises SinkError.

    What is asked for is to publish a token that holds nothing: that is refused, or done already.
    """
    cluster.check_that_it_stages()
    try:
        return not _publish(cluster, query_id, sink, batch_id, [(uuid4(), 1)]).is_new
    except Refused as refused:
        if refused.code == wire.RESOURCE_NOT_FOUND:
            return False
        raise SinkError(f"Whether it was published is not told. {refused}.") from refused


def _publish(
    cluster: Cluster, query_id: str, sink: str, batch_id: int, tokens: Sequence[tuple[UUID, int]]
) -> wire.PublishAnswer:
    request = wire.publish_request(query_id, sink, batch_id, tokens, _PUBLISHED_WITHIN_MS)
    attempts = Attempts(cluster.timeout_s)
    while True:
        try:
            with cluster.connected() as connection:
                return wire.read_publish(connection.ask(wire.PUBLISH_STAGED, request))
        except ConnectionLost as lost:
            cause: ConnectionLost | Refused = lost
        except Refused as refused:
            if refused.code in _NOT_PUBLISHED:
                raise
            cause = refused
        failure = SinkError(
            f"Whether the batch was published is not known: {cause}. "
            f"If this is a stream, start it again: what is published is not published twice."
        )
        failure.__cause__ = cause
        if isinstance(cause, Refused) and not cause.is_retriable:
            raise failure
        attempts.failed(failure)


def drop(cluster: Cluster, tokens: Sequence[UUID]) -> None:
    """Tells the cluster, once, that these tokens are not needed; else they expire."""
    with suppress(ConnectionLost, Refused), cluster.connect(_DROPPED_WITHIN_S) as connection:
        wire.read_drop(connection.ask(wire.DROP_STAGED, wire.drop_request(tokens)))
