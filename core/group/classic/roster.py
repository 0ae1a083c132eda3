"""Who is in a classic group, who leads it, and which protocol they have in common.

Knows no states, clocks or answers (the other half of Kafka's ClassicGroup is `classic`).
"""

from collections.abc import Iterable

from core.errors import Error
from core.group.classic.member import ClassicMember
from core.group.consumer.protocol import PROTOCOL_TYPE, Malformed, parse_subscribed_topics
from core.group.values import GroupProtocol, JoinedMember, JoinRequest, Token


class ClassicRoster:
    """The members, by id and by instance id, and those that were only given an id so far.

    pending: member id → when the id is forgotten.
    """

    def __init__(self, protocol_type: str, leader: str | None) -> None:
        self.protocol_type = protocol_type
        self.leader = leader
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending: dict[str, int] = {}
        self.awaiting_join_count = 0
        self._supporters: dict[str, int] = {}

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """A member that `supports` said may come; the first one says what the group is for."""
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
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> ClassicMember | None:
        """The member goes, or the id that was given out is forgotten; a leader has a successor."""
        self.pending.pop(member_id, None)
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
        """A static member goes on under a new id, in its old place."""
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

    def await_join(self, member: ClassicMember, token: Token | None) -> Token | None:
        """The member waits for its join's answer under `token`, or for none; who waited before."""
        before, member.awaiting_join = member.awaiting_join, token
        self.awaiting_join_count += (token is not None) - (before is not None)
        return before

    def _count(self, member: ClassicMember, by: int) -> None:
        for name in member.protocol_names:
            self._supporters[name] = supporters = self._supporters.get(name, 0) + by
            if not supporters:
                del self._supporters[name]

    def supports(self, protocol_type: str, protocols: Iterable[GroupProtocol]) -> bool:
        """Whether one of these protocols is one that every member can take part in."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supporters.get(protocol.name) == count for protocol in protocols
        )

    def select_protocol(self) -> str | None:
        """The protocol most members like best, of those that all can take part in."""
        count = len(self.members)
        candidates = {name for name, number in self._supporters.items() if number == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            if vote is not None:
                votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__, default=None)

    def elect_joined_leader(self) -> bool:
        """Sees to it that the leader is somebody who has joined; False where nobody has."""
        if self.leader is None or self.members[self.leader].awaiting_join is None:
            joined = (m.member_id for m in self.members.values() if m.awaiting_join is not None)
            self.leader = next(joined, self.leader)
        return self.leader is not None and self.members[self.leader].awaiting_join is not None

    def all_joined(self) -> bool:
        """Whether everybody who may come has come."""
        return self.awaiting_join_count == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        """The patience of the most patient."""
        return max([0, *[member.rebalance_timeout_ms for member in self.members.values()]])

    def refusal(self, member_id: str, group_instance_id: str | None) -> Error:
        """Whether this is a member, under the id its instance has now (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return Error.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Error.FENCED_INSTANCE_ID
        return Error.NONE if member_id in self.members else Error.UNKNOWN_MEMBER_ID

    def joined(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """The members as the leader is told of them."""
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
        """Whether the members' bytes are the consumer protocol's."""
        return self.protocol_type == PROTOCOL_TYPE

    def subscribed_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """What consumers are subscribed to; None where it cannot be known."""
        if not self.is_for_consumers:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = parse_subscribed_topics(member.metadata(protocol_name))
            if isinstance(topics, Malformed):
                return None
            found.update(topics)
        return frozenset(found)
