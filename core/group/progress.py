"""A group and how far it has come, as one who looks at it knows it: values only.

Told by a coordinator to an admin client, or read from the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DEAD: Final = "Dead"
EMPTY: Final = "Empty"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. partitions: topic → what it has now; target: where it is going, if told.

    epoch: of a member that speaks KIP-848's protocol, else None.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Mapping[str, list[int]]
    epoch: int | None = None
    target: Mapping[str, list[int]] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its coordinator describes it.

    error: why it could not be described, and then the rest is empty. epoch: of a KIP-848 group.
    """

    group_id: str
    error: str | None = None
    type: str = ""
    state: str = DEAD
    protocol_type: str = ""
    assignor: str = ""
    epoch: int | None = None
    coordinator: str = ""
    members: tuple[Member, ...] = ()

    @property
    def is_inactive(self) -> bool:
        """Whether its offsets may be set by somebody else: no member would notice."""
        return self.state in {EMPTY, DEAD}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group has come in a partition; None is not known: no commit, or no such partition.

    lag counts offsets, so that it includes the control batches of transactions. committed_age_s: of
    the last commit; clients of Kafka are not told it.
    """

    topic: str
    partition: int
    committed_offset: int | None
    start_offset: int | None
    end_offset: int | None
    lag: int | None
    member_id: str | None = None
    client_id: str | None = None
    host: str | None = None
    committed_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with its progress in every partition it has committed or been assigned."""

    group: Group
    progress: tuple[Progress, ...] = field(default=())

    @property
    def lag(self) -> int | None:
        """Of all partitions together; None where none is known."""
        known = [each.lag for each in self.progress if each.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whom a group waits for. leader, waiting_for: ids of members; the latter only the first ones,
    if there are many."""

    state: str
    leader: str | None
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """Where an open transaction holds up readers of committed data: from first_offset on, behind
    which `waiting` offsets lie.

    transactional_id: None where no coordinator knows the transaction. host: of its client, where
    that is known. age_s, timeout_left_s: None where they are not.
    """

    topic: str
    partition: int
    transactional_id: str | None
    producer_id: int
    first_offset: int
    waiting: int
    age_s: float | None = None
    timeout_left_s: float | None = None
    host: str | None = None
