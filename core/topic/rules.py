"""Rules for a topic's name, its number of partitions, and their replicas.

Values in, a decision or a refusal out; knows no store, no broker's clock and no wire.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.errors import Error, Refusal

MAX_TOPIC_NAME_LENGTH = 249
"""Kafka's `Topic.MAX_NAME_LENGTH`: a name, a dash and a partition had to fit a file name."""

MAX_STORED_NAME_BYTES = 2_000
"""Of a name in UTF-8, in any protocol: it must fit a row of an index."""

MAX_NEW_PARTITIONS = 10_000
"""Partitions one request may add (Kafka's `QuorumController.MAX_RECORDS_PER_USER_OP`)."""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

NOT_SPECIFIED = -1

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Where a client wants a new partition to be. Checked as Kafka does, then ignored: the log is
    in the database, and leadership follows the live brokers (`core.leadership`)."""

    partition: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that a client wants to create. -1 means the broker's default."""

    name: str
    partition_count: int = NOT_SPECIFIED
    replication_factor: int = NOT_SPECIFIED
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The values for -1 (Kafka's `num.partitions`, `default.replication.factor`)."""

    partition_count: int
    replication_factor: int


def is_storable_name(name: str) -> bool:
    """Whether the database can hold the name; if not, no such topic exists.

    Each protocol has its own rules for names, for instance `check_topic_name`.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return 0 < size <= MAX_STORED_NAME_BYTES and "\0" not in name


def check_topic_name(name: str) -> Refusal | None:
    """Kafka's `Topic.validate`: INVALID_TOPIC_EXCEPTION with the reason, or None if it is legal."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = (
            f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
        )
    elif not _LEGAL_NAME.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    else:
        return None
    return Refusal(Error.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def unknown_topic(name: str) -> Refusal:
    """Why there is no topic of this name: the name is illegal, or the topic just does not exist."""
    return check_topic_name(name) or Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION)


def is_internal(name: str) -> bool:
    """Whether the name is one of Kafka's own topics (`Topic.isInternal`)."""
    return name in INTERNAL_TOPICS


def collision_key(name: str) -> str:
    """Names with equal keys cannot coexist: metrics spell both '.' and '_' as '_'."""
    return name.replace(".", "_")


def names_by_key(names: Iterable[str]) -> dict[str, str]:
    """Names by `collision_key`, for `check_new_name`; no two of them collide."""
    return {collision_key(name): name for name in names}


def check_new_name(name: str, taken: Mapping[str, str]) -> Refusal | None:
    """Whether a topic of this name may be created beside the existing ones.

    taken: their `names_by_key`. Answers INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS,
    INVALID_REQUEST or None (`ReplicationControlManager.validateNewTopicNames`, `createTopics`).
    """
    if name == CLUSTER_METADATA_TOPIC:
        message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        return Refusal(Error.INVALID_REQUEST, message)
    if refusal := check_topic_name(name):
        return refusal
    other = taken.get(collision_key(name))
    if other == name:
        return Refusal(Error.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if other is not None:
        message = f"Topic '{name}' collides with existing topic: {other}"
        return Refusal(Error.INVALID_TOPIC_EXCEPTION, message)
    return None


def decide_partition_count(
    new: NewTopic, defaults: TopicDefaults, live_broker_ids: Collection[int]
) -> int | Refusal:
    """How many partitions a new topic gets (`ReplicationControlManager.createTopic`).

    The replication factor is compared with the number of live brokers, so that a request that fails
    in Kafka fails here; PostgreSQL replicates the log itself.
    """
    if new.assignments:
        return _count_assigned(new, live_broker_ids)
    if new.replication_factor < NOT_SPECIFIED or new.replication_factor == 0:
        message = "Replication factor must be larger than 0, or -1 to use the default value."
        return Refusal(Error.INVALID_REPLICATION_FACTOR, message)
    if new.partition_count < NOT_SPECIFIED or new.partition_count == 0:
        message = "Number of partitions was set to an invalid non-positive value."
        return Refusal(Error.INVALID_PARTITIONS, message)
    factor = new.replication_factor
    if factor == NOT_SPECIFIED:
        factor = defaults.replication_factor
    if factor > len(live_broker_ids):
        message = (
            f"Unable to replicate the partition {factor} time(s): The target replication factor "
            f"of {factor} cannot be reached because only {len(live_broker_ids)} broker(s) are "
            "registered."
        )
        return Refusal(Error.INVALID_REPLICATION_FACTOR, message)
    if new.partition_count == NOT_SPECIFIED:
        return defaults.partition_count
    return new.partition_count


def _count_assigned(new: NewTopic, live_broker_ids: Collection[int]) -> int | Refusal:
    for given, what in (
        (new.replication_factor, "replication factor"),
        (new.partition_count, "numPartitions"),
    ):
        if given != NOT_SPECIFIED:
            message = f"A manual partition assignment was specified, but {what} was not set to -1."
            return Refusal(Error.INVALID_REQUEST, message)
    seen: set[int] = set()
    factor: int | None = None
    for assignment in new.assignments:
        if assignment.partition in seen:
            message = (
                f"Found multiple manual partition assignments for partition {assignment.partition}"
            )
            return Refusal(Error.INVALID_REPLICA_ASSIGNMENT, message)
        seen.add(assignment.partition)
        if refusal := _check_replicas(assignment.broker_ids, factor, live_broker_ids):
            return refusal
        factor = len(assignment.broker_ids)
    if seen != set(range(len(seen))):
        message = "partitions should be a consecutive 0-based integer sequence"
        return Refusal(Error.INVALID_REPLICA_ASSIGNMENT, message)
    return len(seen)


def decide_added_partitions(
    name: str,
    current: int,
    wanted: int,
    assignments: Sequence[Sequence[int]] | None,
    live_broker_ids: Collection[int],
) -> int | Refusal:
    """How many partitions to add to a topic (`ReplicationControlManager.createPartitions`).

    current, wanted: counts of partitions. assignments: one list of brokers per added partition.
    """
    if wanted == current:
        return Refusal(Error.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if wanted < current:
        message = (
            f"The topic {name} currently has {current} partition(s); {wanted} would not be "
            "an increase."
        )
        return Refusal(Error.INVALID_PARTITIONS, message)
    added = wanted - current
    if assignments is None:
        return added
    if len(assignments) != added:
        message = (
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} "
            "assignment(s) were specified."
        )
        return Refusal(Error.INVALID_REPLICA_ASSIGNMENT, message)
    for broker_ids in assignments:
        # Metadata shows one replica, the leader; an assignment must be consistent with that.
        if refusal := _check_replicas(broker_ids, 1, live_broker_ids):
            return refusal
    return added


def check_reassignment(
    broker_ids: Sequence[int] | None, leader: int, live_broker_ids: Collection[int]
) -> Refusal | None:
    """Whether a partition may have these replicas (`ReplicationControlManager`).

    broker_ids: None cancels. leader: the present leader. There is nothing to move, since every
    broker can serve every partition: only the present state is accepted.
    """
    if broker_ids is None:
        return Refusal(Error.NO_REASSIGNMENT_IN_PROGRESS)
    if refusal := _check_replicas(broker_ids, None, live_broker_ids):
        return refusal
    if len(broker_ids) > 1:
        message = (
            "A partition has one replica here, the broker that leads it: "
            "copies of the data are PostgreSQL's replication."
        )
        return Refusal(Error.INVALID_REPLICATION_FACTOR, message)
    if broker_ids[0] != leader:
        message = (
            f"Broker {leader} leads this partition, chosen by a hash over the live brokers: "
            "the data is in PostgreSQL, any broker can serve it, and nothing can be moved."
        )
        return Refusal(Error.INVALID_REPLICA_ASSIGNMENT, message)
    return None


def _check_replicas(
    broker_ids: Sequence[int], factor: int | None, live_broker_ids: Collection[int]
) -> Refusal | None:
    """`ReplicationControlManager.validateManualPartitionAssignment`."""
    prefix = "The manual partition assignment includes "
    message = None
    ordered = sorted(broker_ids)
    unknown = [broker_id for broker_id in ordered if broker_id not in live_broker_ids]
    repeated = [a for a, b in itertools.pairwise(ordered) if a == b]
    if not ordered:
        message = prefix + "an empty replica list."
    elif unknown:
        message = prefix + f"broker {unknown[0]}, but no such broker is registered."
    elif repeated:
        message = prefix + f"the broker {repeated[0]} more than once."
    elif factor is not None and len(ordered) != factor:
        message = prefix + (
            f"a partition with {len(ordered)} replica(s), but this is not consistent with "
            f"previous partitions, which have {factor} replica(s)."
        )
    return Refusal(Error.INVALID_REPLICA_ASSIGNMENT, message) if message else None


def check_total_added(counts: Iterable[int]) -> Refusal | None:
    """POLICY_VIOLATION if one request would add more partitions than one commit should."""
    if sum(counts) <= MAX_NEW_PARTITIONS:
        return None
    return Refusal(Error.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


Key = TypeVar("Key", bound=Hashable)


def find_repeated(names: Iterable[Key]) -> set[Key]:
    """The names (or ids) that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}
