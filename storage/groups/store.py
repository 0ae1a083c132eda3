"""Reads groups and their offsets. Implements GroupStore; `storage/flush/groups.py` writes.

Knows no rule of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from core.group.records import CommittedOffset, GroupRow, MemberRow, StoredGroup
from core.ports.groups import AgedOffset, ListedGroup
from storage.connection.client_text import key_of, read
from storage.flush.groups import GroupFlush
from storage.groups.rows import GROUP, MEMBER, OFFSET, group_from, member_from, offset_from

if TYPE_CHECKING:
    from storage.connection.pool import Database

_GROUP = GROUP.without("group_key", "shard")  # what `group_from` takes
_MEMBER = MEMBER.without("group_key", "member_key")  # what `member_from` takes
_OFFSET = OFFSET.without("group_key")  # what `offset_from` takes

# A group with its members, one row each, in one snapshot.
LOAD_GROUP = f"""
SELECT {_GROUP.of_table("g")}, {_MEMBER.of_table("m")}
FROM penstock.consumer_group g LEFT JOIN penstock.group_member m USING (group_key)
WHERE g.group_key = %(group_key)s ORDER BY m.member_key
"""
LOAD_SHARD = f"""
SELECT {_GROUP.of_table("g")}, {_MEMBER.of_table("m")}
FROM penstock.consumer_group g JOIN penstock.group_member m USING (group_key)
WHERE g.shard = %(shard)s ORDER BY g.group_key, m.member_key
"""
GROUP_COLUMNS = len(_GROUP.columns)

LIST_GROUPS = f"""
SELECT {_GROUP.names}, EXISTS (SELECT FROM penstock.group_member m WHERE m.group_key = g.group_key)
FROM penstock.consumer_group g WHERE shard = ANY (%(shards)s::integer[])
"""

# Partitions of deleted topics have no row in topic_partition. n: the request's number.
FETCH_OFFSETS = f"""
SELECT w.n, {_OFFSET.of_table("o")}
FROM unnest(%(some_n)s::integer[], %(some_keys)s::uuid[], %(partition_ids)s::bigint[])
     AS w (n, group_key, partition_id)
JOIN penstock.committed_offset o USING (group_key, partition_id)
JOIN penstock.topic_partition p USING (partition_id)
UNION ALL
SELECT w.n, {_OFFSET.of_table("o")}
FROM unnest(%(all_n)s::integer[], %(all_keys)s::uuid[]) AS w (n, group_key)
JOIN penstock.committed_offset o USING (group_key)
JOIN penstock.topic_partition p USING (partition_id)
"""

AGED_OFFSETS = f"""
SELECT g.group_id, t.name, {_OFFSET.of_table("o")}
FROM penstock.committed_offset o
JOIN penstock.consumer_group g USING (group_key)
LEFT JOIN penstock.topic_partition p USING (partition_id)
LEFT JOIN penstock.topic t USING (topic_id)
WHERE g.shard = ANY (%(shards)s::integer[])
  AND (o.commit_timestamp < %(older_than)s OR o.expire_timestamp >= 0 OR p.partition_id IS NULL)
  AND NOT EXISTS (SELECT FROM penstock.pending_offset w
                  WHERE w.group_key = o.group_key AND w.partition_id = o.partition_id)
  AND (o.group_key, o.partition_id) > (%(after_key)s, %(after_partition_id)s)
ORDER BY o.group_key, o.partition_id LIMIT %(limit)s
"""
GROUPS_WITHOUT_OFFSETS = """
SELECT group_id FROM penstock.consumer_group g
WHERE shard = ANY (%(shards)s::integer[])
  AND NOT EXISTS (SELECT FROM penstock.group_member m WHERE m.group_key = g.group_key)
  AND NOT EXISTS (SELECT FROM penstock.committed_offset o WHERE o.group_key = g.group_key)
  AND NOT EXISTS (SELECT FROM penstock.pending_offset o WHERE o.group_key = g.group_key)
ORDER BY group_key LIMIT %(limit)s
"""

_BEFORE_ALL = UUID(int=0)


class GroupStore:
    """`core.ports.groups.GroupStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_flush(self) -> GroupFlush:
        """See GroupStore."""
        return GroupFlush(self._database)

    async def load_shard(self, shard: int) -> list[StoredGroup]:
        """See GroupStore."""
        async with self._database.reader("load_shard") as cursor:
            await cursor.execute(LOAD_SHARD, {"shard": shard})
            return _groups_from(await cursor.fetchall())

    async def load_group(self, group_id: str) -> StoredGroup | None:
        """See GroupStore."""
        async with self._database.reader("load_group") as cursor:
            await cursor.execute(LOAD_GROUP, {"group_key": _uuid_of(group_id)})
            found = _groups_from(await cursor.fetchall())
            return found[0] if found else None

    async def list_groups(self, shards: Sequence[int]) -> list[ListedGroup]:
        """See GroupStore."""
        async with self._database.reader("list_groups") as cursor:
            await cursor.execute(LIST_GROUPS, {"shards": list(shards)})
            return [ListedGroup(group_from(row[:-1]), row[-1]) for row in await cursor.fetchall()]

    async def fetch_offsets(
        self, requests: Sequence[tuple[str, Sequence[int] | None]]
    ) -> list[Mapping[int, CommittedOffset]]:
        """See GroupStore."""
        parameters: dict[str, list[Any]] = {
            name: [] for name in ("some_n", "some_keys", "partition_ids", "all_n", "all_keys")
        }
        for n, (group_id, partition_ids) in enumerate(requests):
            key = _uuid_of(group_id)
            if partition_ids is None:
                parameters["all_n"].append(n)
                parameters["all_keys"].append(key)
            else:
                parameters["some_n"] += [n] * len(partition_ids)
                parameters["some_keys"] += [key] * len(partition_ids)
                parameters["partition_ids"] += partition_ids
        found: list[dict[int, CommittedOffset]] = [{} for _ in requests]
        async with self._database.reader("fetch_offsets") as cursor:
            await cursor.execute(FETCH_OFFSETS, parameters)
            for n, *columns in await cursor.fetchall():
                found[n][columns[0]] = offset_from(columns)
        return list(found)

    async def aged_offsets(
        self, shards: Sequence[int], older_than: int, limit: int, after: AgedOffset | None = None
    ) -> list[AgedOffset]:
        """See GroupStore."""
        parameters = {
            "shards": list(shards),
            "older_than": older_than,
            "after_key": _uuid_of(after.group_id) if after else _BEFORE_ALL,
            "after_partition_id": after.offset.partition_id if after else -1,
            "limit": limit,
        }
        async with self._database.reader("aged_offsets") as cursor:
            await cursor.execute(AGED_OFFSETS, parameters)
            return [
                AgedOffset(read(group_id), topic_name, offset_from(columns))
                for group_id, topic_name, *columns in await cursor.fetchall()
            ]

    async def groups_without_offsets(self, shards: Sequence[int], limit: int) -> list[str]:
        """See GroupStore."""
        async with self._database.reader("groups_without_offsets") as cursor:
            await cursor.execute(GROUPS_WITHOUT_OFFSETS, {"shards": list(shards), "limit": limit})
            return [read(group_id) for (group_id,) in await cursor.fetchall()]


def _uuid_of(group_id: str) -> UUID:
    return UUID(bytes=key_of(group_id))


def _groups_from(rows: Iterable[Sequence[Any]]) -> list[StoredGroup]:
    """Groups from rows of LOAD_GROUP or LOAD_SHARD; a group's rows are adjacent."""
    found: list[tuple[GroupRow, list[MemberRow]]] = []
    last: str | None = None
    for row in rows:
        if row[0] != last:
            last = row[0]
            found.append((group_from(row[:GROUP_COLUMNS]), []))
        if row[GROUP_COLUMNS] is not None:
            found[-1][1].append(member_from(row[GROUP_COLUMNS:]))
    return [StoredGroup(group, tuple(members)) for group, members in found]
