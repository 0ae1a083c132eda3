"""The members of a consumer group, and all counts over them.

Keeps the counts up to date, and knows which rows have changed since the store last took them.
Decides nothing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from core.group.consumer.member import is_reconciled, speaks_classic
from core.group.records import MemberRow, Partitions
from core.group.subscribed_topics import SubscribedTopics


class Roster:
    """Members by id; static ones by instance id too; partitions by owner."""

    def __init__(
        self, rows: Iterable[MemberRow], epoch: int, in_store: Iterable[MemberRow] = ()
    ) -> None:
        """epoch: of the target assignment. in_store: the store's rows, which may differ."""
        self.members: dict[str, MemberRow] = {}
        self.subscribed = SubscribedTopics()
        self.votes: Counter[str] = Counter()
        self.unreconciled = 0
        self.classic_members = 0
        self._epoch = epoch
        self._static: dict[str, str] = {}
        self._protocols: Counter[str] = Counter()
        self._owner: dict[str, dict[int, str]] = {}
        self._stored = {row.member_id: row for row in in_store}
        self._touched: dict[str, None] = dict.fromkeys(self._stored)
        for row in rows:
            self.put(row)

    def static_member(self, instance_id: str) -> MemberRow | None:
        """The member with this instance id."""
        member_id = self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def owner(self, topic_id: str, partition: int) -> str | None:
        """The member that owns a partition, or still has to give it back."""
        return self._owner.get(topic_id, {}).get(partition)

    def supports(self, protocols: Iterable[str]) -> bool:
        """Whether there are classic members, and all support one of these protocols."""
        return any(self._protocols[name] == self.classic_members for name in protocols)

    def put(self, row: MemberRow) -> None:
        """Adds a member, or replaces its row."""
        old = self.members.get(row.member_id)
        if old is row:
            return
        if old is not None:
            self._count(old, -1, row)
        self.members[row.member_id] = row
        self._count(row, 1, old)
        self._touched[row.member_id] = None

    def remove(self, member_id: str) -> MemberRow:
        """Removes a member."""
        row = self.members.pop(member_id)
        self._count(row, -1, None)
        self._touched[member_id] = None
        return row

    def aim(self, targets: dict[str, Partitions], epoch: int) -> None:
        """Sets the target assignment and its epoch; members it does not name get nothing."""
        for row in list(self.members.values()):
            target = targets.get(row.member_id, {})
            if target != row.target:
                self.put(replace(row, target=target))
        self._epoch = epoch
        self.unreconciled = sum(not is_reconciled(row, epoch) for row in self.members.values())

    def take_changes(self) -> tuple[tuple[MemberRow, ...], tuple[str, ...]]:
        """Rows put and members removed since the last call, for the store."""
        put, removed = [], []
        for member_id in self._touched:
            row, stored = self.members.get(member_id), self._stored.get(member_id)
            if row is None:
                if stored is not None:
                    removed.append(member_id)
                    del self._stored[member_id]
            elif row != stored:
                put.append(row)
                self._stored[member_id] = row
        self._touched.clear()
        return tuple(put), tuple(removed)

    def _count(self, row: MemberRow, sign: int, other: MemberRow | None) -> None:
        """Counts a row in or out. other: the row of the same member that it replaces or that
        replaces it."""
        self.unreconciled += sign * (not is_reconciled(row, self._epoch))
        if other is None or not _counts_alike(row, other):
            self._count_subscription(row, sign)
            self._count_protocols(row, sign)
            if row.group_instance_id is not None:
                self._count_instance(row.group_instance_id, row.member_id, sign)
        if (
            other is None
            or row.assigned is not other.assigned
            or row.revoking is not other.revoking
        ):
            self._count_partitions(row, sign)

    def _count_subscription(self, row: MemberRow, sign: int) -> None:
        if sign > 0:
            self.subscribed.add(row)
        else:
            self.subscribed.remove(row)
        if row.server_assignor is not None:
            self.votes[row.server_assignor] += sign

    def _count_protocols(self, row: MemberRow, sign: int) -> None:
        if speaks_classic(row):
            self.classic_members += sign
            for name in {name for name, _metadata in row.protocols}:
                self._protocols[name] += sign

    def _count_instance(self, instance_id: str, member_id: str, sign: int) -> None:
        if sign > 0:
            self._static[instance_id] = member_id
        elif self._static.get(instance_id) == member_id:
            del self._static[instance_id]

    def _count_partitions(self, row: MemberRow, sign: int) -> None:
        for partitions in (row.assigned, row.revoking):
            for topic_id, held in partitions.items():
                owners = self._owner.setdefault(topic_id, {})
                for partition in held:
                    if sign > 0:
                        owners.setdefault(partition, row.member_id)
                    elif owners.get(partition) == row.member_id:
                        del owners[partition]
                if not owners:
                    del self._owner[topic_id]


def _counts_alike(one: MemberRow, other: MemberRow) -> bool:
    """Whether only epochs, states or partitions differ, as at every step of a rebalance."""
    return (
        one.subscribed_topic_names is other.subscribed_topic_names
        and one.subscribed_topic_regex == other.subscribed_topic_regex
        and one.server_assignor == other.server_assignor
        and one.protocols is other.protocols
        and one.protocol == other.protocol
        and one.group_instance_id == other.group_instance_id
    )
