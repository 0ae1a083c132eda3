"""Writes groups' decisions: many groups and commits of offsets in one round trip.

One pipeline is one transaction: first it locks the leases and compares their generations, then come
the statements that are needed. SQL compares versions here and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from core.group.records import CommittedOffset, GroupEffects, GroupRow, MemberRow, OffsetEffects
from core.ports.groups import GuardedEffects
from storage.connection.binary import bigint_array, integer_array, text_array, uuid_array
from storage.connection.client_text import key_of, written
from storage.connection.kept_session import KeptSession
from storage.connection.pool import FLUSH_DEADLINE_S
from storage.connection.session import Statement
from storage.groups.rows import (
    GROUP,
    MEMBER,
    OFFSET,
    group_columns,
    member_columns,
    member_size,
    offset_columns,
)

if TYPE_CHECKING:
    from storage.connection.pool import Database

# Guards everything that follows: locks the leases in order, so that no broker takes one, and each
# must have the generation decided under. A flush that waited here sees the new generation.
HOLD_LEASES = """
WITH held AS MATERIALIZED (
    SELECT shard, generation FROM penstock.coordinator_lease
    WHERE shard = ANY ($1::integer[]) ORDER BY shard FOR SHARE
)
SELECT CASE WHEN (SELECT array_agg(generation ORDER BY shard) FROM held)
                 IS DISTINCT FROM $2::bigint[] THEN penstock.version_mismatch() END
"""

# Runs before a deletion of groups or offsets. Ends of transactions that commit offsets have no
# lease, nor have applications that commit them in SQL; they hold the groups' rows. So this waits
# for them, and the statements after this one see what they have committed.
LOCK_GROUPS = """
SELECT group_key FROM penstock.consumer_group WHERE group_key = ANY ($1::uuid[])
ORDER BY group_key FOR UPDATE
"""
# Runs before several groups are written, so that they are locked in one order.
HOLD_GROUPS = """
SELECT group_key FROM penstock.consumer_group WHERE group_key = ANY ($1::uuid[])
ORDER BY group_key FOR NO KEY UPDATE
"""
DELETE_GROUPS = """
WITH members AS (DELETE FROM penstock.group_member WHERE group_key = ANY ($1::uuid[])),
     offsets AS (DELETE FROM penstock.committed_offset WHERE group_key = ANY ($1::uuid[])),
     pending AS (DELETE FROM penstock.pending_offset WHERE group_key = ANY ($1::uuid[]))
DELETE FROM penstock.consumer_group WHERE group_key = ANY ($1::uuid[])
"""
PUT_GROUPS = f"""
INSERT INTO penstock.consumer_group ({GROUP.names})
SELECT {GROUP.unnested()} FROM {GROUP.unnest()} AS e ({GROUP.names})
ON CONFLICT (group_key) DO UPDATE
SET {GROUP.without("group_key", "group_id", "shard").excluded}
"""
# A group known only by its offsets: its row has GroupRow's defaults. An INSERT alone would wait for
# a transaction that is about to update the row.
MAKE_GROUPS = """
INSERT INTO penstock.consumer_group (group_key, group_id, shard, protocol, protocol_type,
    generation_id, assignment_epoch, state, state_timestamp, waiting_for, metadata_hash)
SELECT group_key, group_id, shard, 'classic', '', 0, -1, 'Empty', -1, '{}', 0
FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS e (group_key, group_id, shard)
WHERE NOT EXISTS (SELECT FROM penstock.consumer_group g WHERE g.group_key = e.group_key)
ORDER BY group_key
ON CONFLICT (group_key) DO NOTHING
"""
FORGET_GROUPS = """
DELETE FROM penstock.consumer_group g
WHERE group_key = ANY ($1::uuid[])
  AND NOT EXISTS (SELECT FROM penstock.group_member m WHERE m.group_key = g.group_key)
  AND NOT EXISTS (SELECT FROM penstock.committed_offset o WHERE o.group_key = g.group_key)
  AND NOT EXISTS (SELECT FROM penstock.pending_offset o WHERE o.group_key = g.group_key)
"""

DELETE_MEMBERS = """
DELETE FROM penstock.group_member m
USING unnest($1::uuid[], $2::uuid[]) AS e (group_key, member_key)
WHERE m.group_key = e.group_key AND m.member_key = e.member_key
"""
PUT_MEMBERS = f"""
INSERT INTO penstock.group_member ({MEMBER.names})
SELECT {MEMBER.unnested()} FROM {MEMBER.unnest()} AS e ({MEMBER.names})
ON CONFLICT (group_key, member_key) DO UPDATE
SET {MEMBER.without("group_key", "member_key", "member_id").excluded}
"""

DELETE_OFFSETS = """
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS e (group_key, partition_id)
), pending AS (
    DELETE FROM penstock.pending_offset o USING e
    WHERE o.group_key = e.group_key AND o.partition_id = e.partition_id
)
DELETE FROM penstock.committed_offset o USING e
WHERE o.group_key = e.group_key AND o.partition_id = e.partition_id
"""
# Guarded by what was read: an offset that was committed again has not expired. Nor has one that a
# transaction is about to commit again (Kafka's cleanupExpiredOffsets).
EXPIRE_OFFSETS = """
DELETE FROM penstock.committed_offset o
USING unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[])
    AS e (group_key, partition_id, committed_offset, commit_timestamp)
WHERE o.group_key = e.group_key AND o.partition_id = e.partition_id
  AND o.committed_offset = e.committed_offset AND o.commit_timestamp = e.commit_timestamp
  AND NOT EXISTS (SELECT FROM penstock.pending_offset p
                  WHERE p.group_key = o.group_key AND p.partition_id = o.partition_id)
"""
PUT_OFFSETS = f"""
INSERT INTO penstock.committed_offset ({OFFSET.names}, commit_order)
SELECT e.*, (SELECT nextval('penstock.offset_commit_seq')) FROM {OFFSET.unnest()} AS e
ON CONFLICT (group_key, partition_id) DO UPDATE
SET {OFFSET.without("group_key", "partition_id").excluded}, commit_order = excluded.commit_order
"""

STATEMENTS: Mapping[bytes, str] = {
    b"hold_leases": HOLD_LEASES,
    b"lock_groups": LOCK_GROUPS,
    b"hold_groups": HOLD_GROUPS,
    b"delete_groups": DELETE_GROUPS,
    b"put_groups": PUT_GROUPS,
    b"make_groups": MAKE_GROUPS,
    b"forget_groups": FORGET_GROUPS,
    b"delete_members": DELETE_MEMBERS,
    b"put_members": PUT_MEMBERS,
    b"delete_offsets": DELETE_OFFSETS,
    b"expire_offsets": EXPIRE_OFFSETS,
    b"put_offsets": PUT_OFFSETS,
}

MAX_STATEMENT_BYTES = 64 << 20
"""Above this, several statements write the members: an array is limited to 1 GB."""


class GroupFlush:
    """`core.ports.groups.GroupFlush`."""

    def __init__(self, database: Database) -> None:
        self._session = KeptSession(database, STATEMENTS, deadline_s=FLUSH_DEADLINE_S)

    async def commit(self, effects: Sequence[GuardedEffects]) -> None:
        """See GroupFlush."""
        changes: dict[str, _Changes] = {}
        for guarded in effects:
            shard = guarded.lease.shard
            for decided in guarded.groups:
                _changes_of(decided.group_id, shard, changes).add_group(decided)
            for committed in guarded.offsets:
                _changes_of(committed.group_id, shard, changes).add_offsets(committed)
        leases = sorted({(each.lease.shard, each.lease.generation) for each in effects})
        if not leases:
            return
        statements: list[Statement] = [
            (
                b"hold_leases",
                (
                    integer_array([shard for shard, _ in leases]),
                    bigint_array([generation for _, generation in leases]),
                ),
            )
        ]
        statements += _statements(list(changes.values()))
        await self._session.run("group_flush", statements)

    async def close(self) -> None:
        """See GroupFlush."""
        await self._session.close()


@dataclass(slots=True)
class _Changes:
    """One group's changes: each row's last state in this flush. None: the row is deleted."""

    group_id: str
    shard: int
    key: bytes = field(init=False)
    is_deleted: bool = False
    is_forgotten: bool = False
    group: GroupRow | None = None
    members: dict[str, MemberRow | None] = field(default_factory=dict)
    offsets: dict[int, CommittedOffset | None] = field(default_factory=dict)
    expired: dict[int, CommittedOffset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key = key_of(self.group_id)

    def add_group(self, effects: GroupEffects) -> None:
        """Adds effects; they come after those added before."""
        if effects.deleted:
            self.is_deleted = True
            self.group = None
            for rows in (self.members, self.offsets, self.expired):
                rows.clear()
        self.group = effects.group or self.group
        # A later write to a group that was to be forgotten means to keep it.
        self.is_forgotten = effects.forgotten
        for member_id in effects.delete_members:
            self.members[member_id] = None
        for member in effects.put_members:
            self.members[member.member_id] = member

    def add_offsets(self, effects: OffsetEffects) -> None:
        """As `add_group`."""
        for expired in effects.expired:
            if expired.partition_id not in self.offsets:
                self.expired[expired.partition_id] = expired
            elif self.offsets[expired.partition_id] == expired:
                self.offsets[expired.partition_id] = None
        for partition_id in effects.delete:
            self.offsets[partition_id] = None
        for offset in effects.put:
            self.offsets[offset.partition_id] = offset

    @property
    def takes_away(self) -> bool:
        """Whether the group, or offsets of it, are deleted."""
        return (
            self.is_deleted
            or self.is_forgotten
            or bool(self.expired)
            or any(each is None for each in self.offsets.values())
        )

    @property
    def has_offsets(self) -> bool:
        """Whether offsets are put, so that the group must have a row."""
        return any(each is not None for each in self.offsets.values())


def _changes_of(group_id: str, shard: int, changes: dict[str, _Changes]) -> _Changes:
    known = changes.get(group_id)
    if known is None:
        known = changes[group_id] = _Changes(group_id, shard)
    return known


def _statements(changes: Sequence[_Changes]) -> Iterator[Statement]:
    """The statements for the changes, in an order that is safe.

    Rows are locked in order of keys, groups before offsets: ends of transactions write them too,
    and applications hold them in SQL. Where there are several, new ones are made before any is
    locked. A member is never written without its group.
    """
    changes = sorted(changes, key=lambda each: each.key)
    groups = [(each.shard, each.group) for each in changes if each.group is not None]
    locked = [each.key for each in changes if each.takes_away or each.group is not None]
    made = [each for each in changes if each.group is not None or each.has_offsets]
    if len(made) > len(groups) or (groups and len(locked) > 1):
        yield b"make_groups", _made_columns(made)
    if any(each.takes_away for each in changes):
        yield b"lock_groups", (uuid_array(locked),)
    elif len(made) > 1 and locked:
        yield b"hold_groups", (uuid_array(locked),)
    if deleted := [each for each in changes if each.is_deleted]:
        yield b"delete_groups", (uuid_array([each.key for each in deleted]),)
        if again := [each for each in deleted if each.group is None and each.has_offsets]:
            yield b"make_groups", _made_columns(again)
    if groups:
        yield b"put_groups", group_columns(groups)
    yield from _member_statements(changes)
    yield from _offset_statements(changes)
    if forgotten := [each.key for each in changes if each.is_forgotten]:
        yield b"forget_groups", (uuid_array(forgotten),)


def _made_columns(made: Sequence[_Changes]) -> tuple[bytes, ...]:
    return (
        uuid_array([each.key for each in made]),
        text_array([written(each.group_id) for each in made]),
        integer_array([each.shard for each in made]),
    )


def _member_statements(changes: Sequence[_Changes]) -> Iterator[Statement]:
    gone: list[tuple[bytes, bytes]] = []
    put: list[tuple[bytes, MemberRow]] = []
    for each in changes:
        for member_id, member in each.members.items():
            if member is not None:
                put.append((each.key, member))
            elif not each.is_deleted:
                gone.append((each.key, key_of(member_id)))
    if gone:
        yield (
            b"delete_members",
            (uuid_array([key for key, _ in gone]), uuid_array([key for _, key in gone])),
        )
    for part in _parts(put):
        yield b"put_members", member_columns(part)


def _parts(members: Sequence[tuple[bytes, MemberRow]]) -> Iterator[list[tuple[bytes, MemberRow]]]:
    part: list[tuple[bytes, MemberRow]] = []
    size = 0
    for each in members:
        if part and size + member_size(each[1]) > MAX_STATEMENT_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += member_size(each[1])
    if part:
        yield part


def _offset_statements(changes: Sequence[_Changes]) -> Iterator[Statement]:
    """In order of keys, as `changes` are."""
    gone: list[tuple[bytes, int]] = []
    put: list[tuple[bytes, CommittedOffset]] = []
    for each in changes:
        for partition_id, offset in sorted(each.offsets.items(), key=itemgetter(0)):
            if offset is not None:
                put.append((each.key, offset))
            elif not each.is_deleted:
                gone.append((each.key, partition_id))
    if gone:
        yield (
            b"delete_offsets",
            (uuid_array([key for key, _ in gone]), bigint_array([each for _, each in gone])),
        )
    expired = [(each.key, offset) for each in changes for offset in each.expired.values()]
    if expired:
        yield (
            b"expire_offsets",
            (
                uuid_array([key for key, _ in expired]),
                bigint_array([offset.partition_id for _, offset in expired]),
                bigint_array([offset.offset for _, offset in expired]),
                bigint_array([offset.commit_timestamp for _, offset in expired]),
            ),
        )
    if put:
        yield b"put_offsets", offset_columns(put)
