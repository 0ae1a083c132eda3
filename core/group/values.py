"""Requests to a group and its answers: values only.

A request that may have to wait (a join, a sync) comes with a waiter; the answer is a `Reply` to it,
from this event or a later one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from core.errors import Error
from core.group.records import GroupEffects, Partitions

NO_MEMBER_ID = ""
NO_GENERATION = -1

Waiter = int
"""Names a request that may wait for its answer; never reused within a process."""


class GroupType(Enum):
    """Kafka's GroupType, as ListGroups shows it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Instant:
    """Now, on two clocks: one for deadlines, one for what is stored.

    monotonic_ms: of the caller's monotonic clock. timestamp_ms: milliseconds since the epoch.
    """

    monotonic_ms: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A group's settings; times are in milliseconds.

    Kafka's names: group.min/max.session.timeout.ms, group.initial.rebalance.delay.ms,
    group.max.size; group.consumer.session.timeout.ms, …heartbeat.interval.ms, …max.size,
    …assignors (first is the default), …migration.policy (as upgrade/downgrade allowed). The
    consumer session and heartbeat settings may be the group's own (a group config).

    max_metadata_bytes: the most that a classic group may store. In Kafka that is one record of the
    offsets topic, 1 MB; it is not a setting here.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647
    max_metadata_bytes: int = 16_777_216
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    upgrade_allowed: bool = True
    downgrade_allowed: bool = True


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The client that sends a request. host: as Kafka shows it, "/127.0.0.1"."""

    client_id: str
    client_host: str


# --- classic protocol ---


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """An assignment strategy that a member supports, and its metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup. requires_known_member_id: from v4 on. supports_skip_assignment: from v9 on.

    new_member_id: the id for a member that has none (the caller has the randomness).
    """

    member_id: str
    group_instance_id: str | None
    client: ClientIdentity
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    new_member_id: str
    requires_known_member_id: bool = True
    supports_skip_assignment: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader's answer lists it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """JoinGroup's answer. protocol_name: None if there is none (the wire may need "")."""

    error: Error = Error.NONE
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    member_id: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup. protocol_type and protocol_name: None before v5, and then not compared."""

    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """SyncGroup's answer."""

    error: Error = Error.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member that LeaveGroup names. member_id may be "" where group_instance_id is given."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """The result for each member named, in the same order."""

    members: tuple[tuple[LeavingMember, Error], ...]
    error: Error = Error.NONE


# --- KIP-848 ---


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic as an assignor sees it."""

    topic_id: str
    name: str
    partitions: int


Topics = Mapping[str, TopicImage]
"""By name. topic_id is the UUID as text (32 hex digits and hyphens), as in `Partitions`."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None (and -1) in a field means: as before.

    owned: topic id → partitions the member says it owns.
    """

    member_id: str
    member_epoch: int
    client: ClientIdentity
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResult:
    """ConsumerGroupHeartbeat's answer. assignment: None if it has not changed."""

    error: Error = Error.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


# --- an event's outcome ---

GroupAnswer = (
    JoinResult | SyncResult | LeaveResult | ConsumerHeartbeatResult | Error
)  # Error: Heartbeat's whole answer


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to the request that waits under `waiter`."""

    waiter: Waiter
    answer: GroupAnswer


Note = tuple[str, Mapping[str, object]]
"""An event's name and its fields, for the log."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an event: answers, to be given once the effects are stored.

    effects: None if nothing has to be stored. notes: lines for the operator's log ("member x has
    left: poll timeout", with KIP-800's reasons), one event name and fields each.
    """

    replies: tuple[Reply, ...] = ()
    effects: GroupEffects | None = None
    notes: tuple[Note, ...] = ()


# --- descriptions ---


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member of a classic group, as DescribeGroups shows it."""

    member_id: str
    group_instance_id: str | None
    client: ClientIdentity
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A classic group, as DescribeGroups shows it. state: Kafka's word ("PreparingRebalance")."""

    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    """A member of a consumer group, as ConsumerGroupDescribe shows it.

    is_classic: speaks the classic protocol (member type 0 of v1).
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client: ClientIdentity
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """A consumer group, as ConsumerGroupDescribe shows it. state: Kafka's word ("Reconciling")."""

    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
