"""A member of a classic group: what it offers, what it got, and whether it is waiting.

Knows neither the group's state nor other members (Kafka's ClassicGroupMember).
"""

from collections.abc import Container
from dataclasses import dataclass

from core.group.consumer.protocol import (
    PROTOCOL_TYPE,
    Malformed,
    parse_assignment,
    parse_subscribed_topics,
)
from core.group.records import MemberRow, Partitions
from core.group.values import ClientIdentity, DescribedMember, GroupProtocol, JoinRequest, Waiter


@dataclass(slots=True, eq=False)
class ClassicMember:
    """One member. deadline_ms: when its session ends, while it `is_watched`.

    is_new: it does not know its first generation yet, so it cannot send heartbeats.
    """

    member_id: str
    group_instance_id: str | None
    client: ClientIdentity
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    awaiting_join: Waiter | None = None
    awaiting_sync: Waiter | None = None
    deadline_ms: int = 0

    @classmethod
    def joining(cls, member_id: str, request: JoinRequest) -> "ClassicMember":
        """A new member."""
        return cls(
            member_id,
            request.group_instance_id,
            request.client,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )

    @classmethod
    def load(cls, row: MemberRow) -> "ClassicMember":
        """A member as it was stored."""
        return cls(
            row.member_id,
            row.group_instance_id,
            ClientIdentity(row.client_id, row.client_host),
            row.session_timeout_ms,
            row.rebalance_timeout_ms,
            tuple([GroupProtocol(name, metadata) for name, metadata in row.protocols]),
            row.assignment,
        )

    @property
    def is_watched(self) -> bool:
        """Whether its session can end: a member that waits for an answer sends no heartbeats.

        A new member is watched even while it waits: its client may have given up and joined again
        under another id (Kafka's hasSatisfiedHeartbeat).
        """
        return self.is_new or (self.awaiting_join is None and self.awaiting_sync is None)

    @property
    def protocol_names(self) -> frozenset[str]:
        """The protocols it supports."""
        return frozenset([protocol.name for protocol in self.protocols])

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for a protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: Container[str]) -> str | None:
        """The candidate it prefers."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        return None

    @property
    def metadata_size(self) -> int:
        """How many bytes the group keeps and stores for it."""
        return sum([len(protocol.name) + len(protocol.metadata) for protocol in self.protocols])

    def describe(self, protocol_name: str | None) -> DescribedMember:
        """As DescribeGroups shows it; without a protocol there is no metadata."""
        return DescribedMember(
            self.member_id,
            self.group_instance_id,
            self.client,
            self.metadata(protocol_name),
            self.assignment,
        )

    def row(
        self, protocol_type: str, protocol_name: str | None, before: MemberRow | None
    ) -> MemberRow:
        """Its row. before: the row stored last; unchanged bytes are not parsed again."""
        protocols = tuple([(protocol.name, protocol.metadata) for protocol in self.protocols])
        if before is not None and before.protocols == protocols:
            protocols = before.protocols
        topics: tuple[str, ...] = ()
        assigned: Partitions = {}
        if protocol_type == PROTOCOL_TYPE:
            topics = readable_topics(self.metadata(protocol_name))
            same = before is not None and before.assignment == self.assignment
            assigned = before.assigned if same and before else readable_assignment(self.assignment)
        return MemberRow(
            self.member_id,
            "classic",
            group_instance_id=self.group_instance_id,
            client_id=self.client.client_id,
            client_host=self.client.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=protocols,
            assignment=self.assignment,
            subscribed_topic_names=topics,
            assigned=assigned,
        )


def readable_topics(metadata: bytes) -> tuple[str, ...]:
    """The topics a consumer subscribes to, for people; none if the bytes are unreadable."""
    topics = parse_subscribed_topics(metadata)
    return () if isinstance(topics, Malformed) else topics


def readable_assignment(assignment: bytes) -> Partitions:
    """A consumer's partitions, for people; none if the leader's bytes are unreadable."""
    parsed = parse_assignment(assignment)
    if isinstance(parsed, Malformed):
        return {}
    return {
        topic: tuple(sorted(set(partitions)))
        for topic, partitions in parsed.partitions.items()
        if partitions
    }
