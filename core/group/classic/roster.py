"""The members of a classic group, their leader, and the protocols that all of them support.

Knows no states, clocks or answers (`rebalance` is the other half of Kafka's ClassicGroup).
"""

from collections.abc import Iterable

from core.errors import Error
from core.group.classic.member import ClassicMember
from core.group.consumer.protocol import PROTOCOL_TYPE, Malformed, parse_subscribed_topics
from core.group.values import GroupProtocol, JoinedMember, JoinRequest, Waiter


class ClassicRoster:
    """The members, by id and by instance id, and ids given to clients that have not joined yet.

    pending_join_members: such a member id → when it is forgotten (Kafka's pendingJoinMembers).
    """

    def __init__(self, protocol_type: str, leader: str | None) -> None:
        self.protocol_type = protocol_type
        self.leader = leader
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_join_members: dict[str, int] = {}
        self.awaiting_join_count = 0
        self._supporters: dict[str, int] = {}

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Adds a member whose protocols `supports` accepts; the first one sets the group's type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1
        self._count(member, 1)
        self.pending_join_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> ClassicMember | None:
        """Removes the member, or forgets the id given out; a leader's successor is chosen."""
        self.pending_join_members.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        if member.awaiting_join is not None:
            self.awaiting_join_count -= 1
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Gives a static member a new id; it keeps its place."""
        if self.leader == member.member_id:
            self.leader = member_id
        self.members = {
            member_id if known is member else known_id: known
            for known_id, known in self.members.items()
        }
        member.member_id = member_id
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = member_id

    def update(self, member: ClassicMember, request: JoinRequest) -> None:
        """The member has joined again, perhaps with other protocols and timeouts."""
        self._count(member, -1)
        member.protocols = request.protocols
        self._count(member, 1)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def await_join(self, member: ClassicMember, waiter: Waiter | None) -> Waiter | None:
        """The member's join now waits under `waiter`, or not at all; returns the waiter before."""
        before, member.awaiting_join = member.awaiting_join, waiter
        self.awaiting_join_count += (waiter is not None) - (before is not None)
        return before

    def _count(self, member: ClassicMember, by: int) -> None:
        for name in member.protocol_names:
            self._supporters[name] = supporters = self._supporters.get(name, 0) + by
            if not supporters:
                del self._supporters[name]

    def supports(self, protocol_type: str, protocols: Iterable[GroupProtocol]) -> bool:
        """Whether every member supports at least one of these protocols."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supporters.get(protocol.name) == count for protocol in protocols
        )

    def select_protocol(self) -> str | None:
        """Of the protocols that all members support, the one that most of them prefer."""
        count = len(self.members)
        candidates = {name for name, number in self._supporters.items() if number == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            if vote is not None:
                votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__, default=None)

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is a member that has joined; False if none has."""
        if self.leader is None or self.members[self.leader].awaiting_join is None:
            joined = (m.member_id for m in self.members.values() if m.awaiting_join is not None)
            self.leader = next(joined, self.leader)
        return self.leader is not None and self.members[self.leader].awaiting_join is not None

    def all_joined(self) -> bool:
        """Whether all members have joined, and every id given out is used."""
        return self.awaiting_join_count == len(self.members) and not self.pending_join_members

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max([0, *[member.rebalance_timeout_ms for member in self.members.values()]])

    def refusal(self, member_id: str, group_instance_id: str | None) -> Error:
        """NONE if this is a member, under the present id of its instance (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return Error.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Error.FENCED_INSTANCE_ID
        return Error.NONE if member_id in self.members else Error.UNKNOWN_MEMBER_ID

    def joined(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """The members as the leader's answer lists them."""
        return tuple(
            [
                JoinedMember(
                    member.member_id, member.group_instance_id, member.metadata(protocol_name)
                )
                for member in self.members.values()
            ]
        )

    @property
    def is_for_consumers(self) -> bool:
        """Whether the members' bytes are those of the consumer protocol."""
        return self.protocol_type == PROTOCOL_TYPE

    def subscribed_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """The topics that consumers subscribe to; None if a subscription is unreadable."""
        if not self.is_for_consumers:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = parse_subscribed_topics(member.metadata(protocol_name))
            if isinstance(topics, Malformed):
                return None
            found.update(topics)
        return frozenset(found)
