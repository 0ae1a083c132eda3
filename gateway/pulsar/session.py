"""What a handler is given beside its command: its client's session, and the services it may ask.

A session is what lives as long as a connection: what the client has said of itself, its producers
and consumers. It writes through an `Outlet` and knows neither sockets nor SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from core.security.principal import ANONYMOUS, Caller
from gateway.pulsar.framing import encode_frame
from gateway.pulsar.ids import NO_ID

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from core.security.operations import Requirement
    from gateway.pulsar.commands import Buffer
    from gateway.pulsar.commands_pb2 import FeatureFlags
    from gateway.pulsar.consumers import Consumer
    from gateway.pulsar.producers import Producer, Producers
    from gateway.pulsar.topic_lists import TopicLists, TopicListWatcher
    from gateway.runtime.acls import Acls
    from gateway.runtime.cluster.membership import Cluster
    from gateway.runtime.log.partitions import Partitions
    from gateway.runtime.log.translation import Translator
    from gateway.runtime.namespaces import Namespaces
    from gateway.runtime.rights import Rights
    from gateway.runtime.schemas import Schemas
    from gateway.runtime.subscriptions.subscriptions import Subscriptions
    from gateway.runtime.subscriptions.upkeep import Upkeep
    from gateway.runtime.topics.configs import Configs
    from gateway.runtime.topics.topics import Topics
    from gateway.runtime.transactions.coordinator import Transactions

LISTENER: Final = "pulsar"
"""The name under which brokers tell each other of the address for Pulsar's clients."""

UNASKED: Final = NO_ID
"""The request id of what the broker sends by itself, as CLOSE_PRODUCER."""

_MOST_CLOSED: Final = 10_000  # ids remembered of a connection


@dataclass(frozen=True, slots=True)
class Services:
    """The runtime, as handlers see it. One a listener.

    translator: gives stored batches as entries, whoever stored them. producers, topic_lists: of all
    sessions.
    is_tls: whether clients come by TLS. clock: milliseconds since the epoch, now.
    """

    topics: Topics
    partitions: Partitions
    translator: Translator
    cluster: Cluster
    configs: Configs
    producers: Producers
    subscriptions: Subscriptions
    topic_lists: TopicLists
    schemas: Schemas
    namespaces: Namespaces
    upkeep: Upkeep
    transactions: Transactions
    acls: Acls
    is_tls: bool
    clock: Callable[[], int]


class Outlet(Protocol):
    """The connection, as its session sees it."""

    @property
    def is_writable(self) -> bool:
        """Whether what was written before has gone, more or less: else wait for `on_writable`."""

    def write(self, *pieces: Buffer) -> None:
        """Sends a frame, in pieces, after all that was sent before."""

    def deliver(self, *pieces: Buffer) -> None:
        """The same of a MESSAGE: it goes out only if the broker's session lasts until then."""

    def probe(self) -> None:
        """Make sure that the client is still there, and soon."""

    def hold(self, count: int) -> None:
        """`count` more bytes wait for something (fewer, where negative)."""

    def begin(self, count: int) -> None:
        """So many more things are unanswered (fewer, where negative)."""

    def observe(self, command_type: int, received: float, request_bytes: int, sent: int) -> None:
        """A command was answered with so many bytes. received: the loop's seconds."""

    def close_for(self, reason: str) -> None:
        """Close, with one line in the log; what was written is still sent."""


class Attached(Protocol):
    """A producer or a consumer, as its session sees it: what it holds ends with the connection."""

    def detach(self) -> None:
        """The connection has gone, or the broker closes it: let go of everything. Says nothing."""

    def closing(self) -> Message:
        """What tells its client that the broker has closed it, so that it comes again."""


class Session:
    """One client's. `number` rises with each connection of a process."""

    def __init__(self, services: Services, outlet: Outlet, number: int) -> None:
        self.services = services
        self.outlet = outlet
        self.number = number
        self.peer = "?"
        self.caller = Caller(ANONYMOUS, "?")
        # Its own and its proxy's; None where everybody may do everything.
        self.rights: tuple[Rights, ...] | None = None
        self.client_version = ""
        self.protocol_version = 0
        self.features: FeatureFlags | None = None
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.opening: set[int] = set()  # ids of producers that are being made
        # Closed by the broker: what their clients had sent before they heard of it is dropped.
        self.closed_producers: set[int] = set()
        self.closed_consumers: set[int] = set()
        self.opening_consumers: set[int] = set()  # ids of consumers that are being made
        self.coordinators: set[int] = set()  # of transactions, which it was given here
        self.is_lost = False
        self.on_writable: set[Callable[[], None]] = set()

    def send(self, message: Message) -> int:
        """Sends a command without an entry; gives its size in bytes."""
        frame = encode_frame(message)
        self.outlet.write(frame)
        return len(frame)

    def may(self, requirement: Requirement, name: str, command: str) -> bool:
        """Whether the client may do it. name: of the resource. A refusal has a line in the log."""
        return all(each.may(requirement, name, command) for each in self.rights or ())

    def still_may(self, requirement: Requirement, name: str) -> bool:
        """The same of what is going on."""
        return all(each.still_may(requirement, name) for each in self.rights or ())

    @property
    def attached(self) -> Sequence[Attached]:
        """Its producers and consumers."""
        return [*self.producers.values(), *self.consumers.values()]

    def close_producer(self, producer: Producer) -> None:
        """The broker closes it; its client comes again, and sends again what was not confirmed."""
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            if len(self.closed_producers) >= _MOST_CLOSED:
                self.closed_producers.pop()
            self.closed_producers.add(producer.producer_id)
            producer.detach()
            self.send(producer.closing())

    def watch(self, watcher: TopicListWatcher) -> None:
        """Takes a watcher of a list of topics in, in place of one with the same id."""
        if (former := self.watchers.get(watcher.watcher_id)) is not None:
            self.services.topic_lists.remove(former)
        self.watchers[watcher.watcher_id] = watcher
        self.services.topic_lists.add(watcher)

    def stop_watching(self, watcher: TopicListWatcher) -> None:
        """The opposite."""
        self.services.topic_lists.remove(watcher)
        if self.watchers.get(watcher.watcher_id) is watcher:
            del self.watchers[watcher.watcher_id]

    def end(self) -> None:
        """The connection has gone."""
        self.is_lost = True
        self.on_writable.clear()
        for each in self.attached:
            each.detach()
        self.producers.clear()
        self.consumers.clear()
        for watcher in list(self.watchers.values()):
            self.stop_watching(watcher)
