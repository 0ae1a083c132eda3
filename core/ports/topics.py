"""What the runtime asks of the store for topics, settings and brokers, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from core.namespace.values import FullName, Namespace, Tenant
from core.ports.leases import Lease
from core.ports.namespaces import StoredNamespaces
from core.types import Endpoint, LiveBroker


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic's rows.

    partition_ids, leader_epochs: index is Kafka's partition number.
    overrides: settings made on the topic, as text.
    """

    topic_id: UUID
    name: str
    is_internal: bool
    partition_ids: tuple[int, ...]
    leader_epochs: tuple[int, ...]
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicListing:
    """Every topic, at a metadata version or later."""

    version: int
    topics: tuple[StoredTopic, ...]


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic to be inserted, already decided on."""

    topic_id: UUID
    name: str
    is_internal: bool
    partition_count: int
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """Bytes of payload a partition holds."""

    topic_name: str
    partition: int
    partition_id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers. last_timestamp in ms; -1 is none, or not known.

    coordinator_epoch: of its last marker here. txn_first_offset: where its open transaction began.
    """

    partition_id: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int = -1
    txn_first_offset: int = -1


class MetadataChange(Protocol):
    """A change of topics and settings: reads and writes under the lock that orders all changes.

    Whatever it reads stays true until the change commits, so decisions on it are safe.
    """

    async def topic_names(self) -> set[str]:
        """The names of all topics."""

    async def find_topics(self, names: Collection[str]) -> dict[str, StoredTopic]:
        """Topics by name; missing ones are omitted."""

    async def find_topics_by_id(self, topic_ids: Collection[UUID]) -> dict[UUID, StoredTopic]:
        """Topics by id; missing ones are omitted."""

    async def create_topics(self, rows: Sequence[TopicRow]) -> None:
        """Inserts topics with their partitions, leader epochs and settings."""

    async def add_partitions(self, topic_id: UUID, first: int, count: int) -> None:
        """Adds partitions `first` to `first + count - 1` to a topic."""

    async def delete_topics(self, topic_ids: Collection[UUID]) -> None:
        """Deletes topics; their partitions are deleted in the background."""

    async def read_broker_configs(self, resource_name: str) -> dict[str, str]:
        """Settings in the database for a broker id, or for all brokers ("")."""

    async def write_topic_configs(self, topic_id: UUID, changes: Mapping[str, str | None]) -> None:
        """Sets or (None) deletes settings of a topic."""

    async def write_broker_configs(
        self, resource_name: str, changes: Mapping[str, str | None]
    ) -> None:
        """Sets or (None) deletes settings of a broker id, or of all brokers ("")."""

    async def read_group_configs(self, group_ids: Collection[str]) -> dict[str, dict[str, str]]:
        """Settings in the database for groups that have any, by group id."""

    async def write_group_configs(self, group_id: str, changes: Mapping[str, str | None]) -> None:
        """Sets or (None) deletes settings of a group."""

    async def read_namespaces(self) -> StoredNamespaces:
        """All tenants and namespaces."""

    async def put_tenant(self, tenant: Tenant) -> None:
        """Inserts a tenant, or gives it these roles and clusters."""

    async def delete_tenant(self, name: str) -> None:
        """Deletes a tenant that has no namespaces."""

    async def put_namespace(self, namespace: Namespace) -> None:
        """Inserts a namespace, or gives it these policies."""

    async def delete_namespace(self, full_name: FullName) -> None:
        """Deletes a namespace; not its topics."""


class TopicStore(Protocol):
    """Topics, and facts about their partitions for Describe*."""

    def change(self, name: str) -> AbstractAsyncContextManager[MetadataChange]:
        """A change of topics or settings; commits, and tells all brokers, when the block ends well.

        name: the query's name in metrics.
        """

    async def find_topics(self, names: Collection[str]) -> dict[str, StoredTopic]:
        """Topics by name; missing ones are omitted."""

    async def find_topics_by_id(self, topic_ids: Collection[UUID]) -> dict[UUID, StoredTopic]:
        """Topics by id; missing ones are omitted."""

    async def list_topics(self, known_version: int | None) -> TopicListing | None:
        """Every topic, or None if nothing has changed since `known_version`."""

    async def partition_sizes(self) -> tuple[PartitionSize, ...]:
        """The size of every partition."""

    async def active_producers(self, partition_ids: Collection[int]) -> tuple[ActiveProducer, ...]:
        """The producers that these partitions remember."""


@dataclass(frozen=True, slots=True)
class StoredConfigs:
    """Settings in the database: for all brokers, for one broker, and of groups by group id."""

    all_brokers: Mapping[str, str]
    broker: Mapping[str, str]
    groups: Mapping[str, Mapping[str, str]]


class ConfigStore(Protocol):
    """Settings of brokers and groups."""

    async def read_configs(self, broker_id: int) -> StoredConfigs:
        """Everything set for this broker, for all brokers, and for groups."""


class BrokerIdTaken(Exception):
    """Another process runs with this broker id.

    seconds_left: until its session runs out, unless it renews it.
    """

    def __init__(self, message: str, seconds_left: float) -> None:
        super().__init__(message)
        self.seconds_left = seconds_left


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker that wants to join. incarnation: a fresh id of the process.

    broker_id: None to be given one. endpoints: how clients reach it, one per listener; a broker
    that comes back is recognised by the first one.
    """

    broker_id: int | None
    incarnation: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    version: str
    session_timeout_s: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a heartbeat found.

    is_registered: False if the row is gone or belongs to another incarnation.
    live: by id, every broker with a session that lasts, by the database's clock.
    leases: what the caller's incarnation holds, read after the renewal in the same transaction.
    last_stamp: of the inbox; it rises whenever an application commits records. last_number: the
    same, now and then, whenever one writes there at all, offsets as well.
    """

    is_registered: bool
    live: tuple[LiveBroker, ...]
    leases: tuple[Lease, ...] = ()
    last_stamp: int = 0
    last_number: int = 0


class ClusterStore(Protocol):
    """The brokers over this database."""

    async def cluster_id(self) -> str:
        """The cluster's id, as Metadata shows it."""

    async def register(self, registration: BrokerRegistration, *, starts: bool = True) -> int:
        """Claims or allocates a broker id; raises BrokerIdTaken if another process has it.

        starts: this process has just begun to listen at its address, so the broker registered at
        this address before has ended, or is about to end; its id is taken over at once.
        """

    async def heartbeat(self, broker_id: int, incarnation: UUID) -> Heartbeat:
        """Renews the session and reads the live brokers."""

    async def leave(self, broker_id: int, incarnation: UUID) -> None:
        """Ends the session at once."""
