"""What the store remembers of a group: rows, and the effects that change them. Values only.

One shape for both protocols, so that a group may change its own (KIP-848's up- and downgrade).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Partitions = Mapping[str, tuple[int, ...]]
"""Topic id (UUID as text) → partitions, ascending; a topic without partitions is left out."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member as it is stored.

    protocol: 'classic' or 'consumer' (a classic member may be in a consumer group).
    protocols: what a classic member offered in JoinGroup, as it came: (name, metadata).
    assignment: a classic member's, as its leader made it; opaque.
    assigned, revoking, target: KIP-848's current assignment, partitions still to be given back, and
    target assignment. For classic members of type "consumer", `assigned` is `assignment` decoded,
    with topic names for ids, for people only.
    state: the KIP-848 member state, or "" for a classic member.
    """

    member_id: str
    protocol: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: tuple[tuple[str, bytes], ...] = ()
    assignment: bytes = b""
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    target: Partitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as it is stored.

    protocol: 'classic' or 'consumer'; 'classic' with an empty protocol_type for a group that only
    has offsets (Kafka's "simple" group).
    generation_id: the classic generation, or the group epoch. assignment_epoch: -1 for classic.
    state, state_timestamp (since when), waiting_for: for psql; a loaded classic group is Stable or
    Empty by its members, whatever its row says. state_timestamp also counts for
    `offsets.retention.minutes`. metadata_hash: of the topics the target was computed from.
    """

    group_id: str
    protocol: str
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    generation_id: int = 0
    assignment_epoch: int = -1
    state: str = "Empty"
    state_timestamp: int = -1
    waiting_for: tuple[str, ...] = ()
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group with its members, as it was read."""

    group: GroupRow
    members: tuple[MemberRow, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupEffects:
    """What an event changes in one group.

    group: the new row. deleted: deletes the group, members and offsets (then the rest is empty).
    forgotten: deletes the row if the group then has neither members nor offsets: its reader found
    none, but may have missed the latest commit.
    lazy: no answer depends on it; it is only for psql.
    """

    group_id: str
    group: GroupRow | None = None
    put_members: tuple[MemberRow, ...] = ()
    delete_members: tuple[str, ...] = ()
    deleted: bool = False
    forgotten: bool = False
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset of a group in a partition. leader_epoch: -1 if the client gave none.

    commit_timestamp, expire_timestamp: milliseconds since the epoch; expire -1: by the setting.
    """

    partition_id: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class OffsetEffects:
    """Offsets of one group to be stored or deleted. Makes the group's row if there is none.

    expired: deleted only if they are still as they were read: a later commit stays.
    """

    group_id: str
    put: tuple[CommittedOffset, ...] = ()
    delete: tuple[int, ...] = ()
    expired: tuple[CommittedOffset, ...] = ()
