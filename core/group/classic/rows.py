"""A classic group's rows once all decisions are stored, and the changes still to be stored.

A change that a client's answer depends on is durable; the rest is lazy, for people to look at.
Knows rows only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from core.group.records import GroupEffects, GroupRow, MemberRow, StoredGroup
from core.group.values import ClientIdentity


class ClassicRows:
    """The rows. Each `take` returns what has changed since the last one."""

    def __init__(self, stored: StoredGroup) -> None:
        self.group = stored.group
        self.members = {row.member_id: row for row in stored.members}
        self._static_members = _static_members(self.members)
        self._put: dict[str, MemberRow] = {}
        self._delete: set[str] = set()
        self._is_changed = False
        self._is_durable = False

    def store(self, group: GroupRow, members: Iterable[MemberRow]) -> None:
        """A generation as a whole (Kafka's GroupMetadata record)."""
        rows = {row.member_id: row for row in members}
        for row in rows.values():
            if self.members.get(row.member_id) != row:
                self._put_member(row)
        for member_id in self.members.keys() - rows.keys():
            self._delete_member(member_id)
        self.members = rows
        self._static_members = _static_members(rows)
        self._change(group)

    def rename(self, group_instance_id: str, new: str, client: ClientIdentity) -> None:
        """Gives an instance another id, if the last stored generation has the instance.

        Kafka writes that only while the group is stable: after a crash during a rebalance the old
        id is valid again, and the new one is fenced.
        """
        old = self._static_members.get(group_instance_id)
        if old is None:
            return
        row = replace(
            self.members.pop(old),
            member_id=new,
            client_id=client.client_id,
            client_host=client.client_host,
        )
        self._delete_member(old)
        self._put_member(row)
        self.members[new] = row
        self._static_members[group_instance_id] = new
        leader = new if self.group.leader == old else self.group.leader
        self._change(replace(self.group, leader=leader))

    def show(self, state: str, state_timestamp: int, waiting_for: tuple[str, ...]) -> None:
        """Shows the group's state, beside the generation last stored."""
        if (self.group.state, self.group.waiting_for) != (state, waiting_for):
            self.group = replace(
                self.group, state=state, state_timestamp=state_timestamp, waiting_for=waiting_for
            )
            self._is_changed = True

    def take(self) -> GroupEffects | None:
        """The changes to be stored, or None."""
        if not self._is_changed:
            return None
        effects = GroupEffects(
            self.group.group_id,
            self.group,
            tuple(self._put.values()),
            tuple(sorted(self._delete)),
            lazy=not self._is_durable,
        )
        self._put, self._delete = {}, set()
        self._is_changed = self._is_durable = False
        return effects

    def _put_member(self, row: MemberRow) -> None:
        self._put[row.member_id] = row
        self._delete.discard(row.member_id)

    def _delete_member(self, member_id: str) -> None:
        self._put.pop(member_id, None)
        self._delete.add(member_id)

    def _change(self, group: GroupRow) -> None:
        self.group = group
        self._is_changed = self._is_durable = True


def _static_members(rows: Mapping[str, MemberRow]) -> dict[str, str]:
    """Ids of members by their instances'."""
    return {
        row.group_instance_id: row.member_id
        for row in rows.values()
        if row.group_instance_id is not None
    }
