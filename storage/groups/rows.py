"""Converts groups, members and offsets between core's values and rows. Knows no statement.

The flush writes rows as binary arrays; reading takes psycopg's values.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from core.group.records import CommittedOffset, GroupRow, MemberRow, Partitions
from storage import schema
from storage.connection.client_text import key_of, read, read_or_none, written, written_or_none
from storage.connection.rows import Row

GROUP = Row.of(schema.consumer_group)
MEMBER = Row.of(schema.group_member)
# A sequence of the database's numbers the commits.
OFFSET = Row.of(schema.committed_offset, omit=["commit_order"])


def group_columns(rows: Sequence[tuple[int, GroupRow]]) -> list[bytes]:
    """GROUP, from shards and rows."""
    return GROUP.encode(
        [
            (
                key_of(row.group_id),
                written(row.group_id),
                shard,
                row.protocol,
                written(row.protocol_type),
                written_or_none(row.protocol_name),
                written_or_none(row.leader),
                row.generation_id,
                row.assignment_epoch,
                row.state,
                row.state_timestamp,
                row.waiting_for,
                row.metadata_hash,
            )
            for shard, row in rows
        ]
    )


def member_columns(rows: Sequence[tuple[bytes, MemberRow]]) -> list[bytes]:
    """MEMBER, from keys of groups and rows."""
    return MEMBER.encode(
        [
            (
                group_key,
                key_of(row.member_id),
                written(row.member_id),
                row.protocol,
                written_or_none(row.group_instance_id),
                written(row.client_id),
                written(row.client_host),
                written_or_none(row.rack_id),
                row.session_timeout_ms,
                row.rebalance_timeout_ms,
                _protocols_json(row.protocols),
                row.assignment,
                row.member_epoch,
                row.previous_member_epoch,
                row.state,
                row.subscribed_topic_names,
                written_or_none(row.subscribed_topic_regex),
                written_or_none(row.server_assignor),
                _partitions_json(row.assigned),
                _partitions_json(row.revoking),
                _partitions_json(row.target),
            )
            for group_key, row in rows
        ]
    )


def offset_columns(rows: Sequence[tuple[bytes, CommittedOffset]]) -> list[bytes]:
    """OFFSET, from keys of groups and offsets."""
    return OFFSET.encode(
        [
            (
                group_key,
                each.partition_id,
                each.offset,
                each.leader_epoch,
                written(each.metadata),
                each.commit_timestamp,
                each.expire_timestamp,
            )
            for group_key, each in rows
        ]
    )


def member_size(row: MemberRow) -> int:
    """About how many bytes are sent for a member."""
    return len(row.assignment) + sum(len(metadata) * 4 // 3 for _, metadata in row.protocols) + 1024


def group_from(columns: Sequence[Any]) -> GroupRow:
    """A group from its columns, in the order of GroupRow's fields."""
    group_id, protocol, protocol_type, protocol_name, leader, *plain, waiting_for, hash_ = columns
    generation_id, assignment_epoch, state, state_timestamp = plain
    return GroupRow(
        read(group_id),
        protocol,
        read(protocol_type),
        read_or_none(protocol_name),
        read_or_none(leader),
        generation_id,
        assignment_epoch,
        state,
        state_timestamp,
        tuple(map(read, waiting_for)),
        hash_,
    )


def member_from(columns: Sequence[Any]) -> MemberRow:
    """A member from its columns, in the order of MemberRow's fields."""
    member_id, protocol, group_instance_id, client_id, client_host, rack_id, *rest = columns
    session_timeout_ms, rebalance_timeout_ms, protocols, assignment, *rest = rest
    member_epoch, previous_member_epoch, state, topic_names, topic_regex, assignor, *rest = rest
    assigned, revoking, target = map(_partitions_from, rest)
    return MemberRow(
        member_id=read(member_id),
        protocol=protocol,
        group_instance_id=read_or_none(group_instance_id),
        client_id=read(client_id),
        client_host=read(client_host),
        rack_id=read_or_none(rack_id),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocols=tuple((read(each["name"]), b64decode(each["metadata"])) for each in protocols),
        assignment=assignment,
        member_epoch=member_epoch,
        previous_member_epoch=previous_member_epoch,
        state=state,
        subscribed_topic_names=tuple(map(read, topic_names)),
        subscribed_topic_regex=read_or_none(topic_regex),
        server_assignor=read_or_none(assignor),
        assigned=assigned,
        revoking=revoking,
        target=target,
    )


def offset_from(columns: Sequence[Any]) -> CommittedOffset:
    """An offset from its columns, in the order of CommittedOffset's fields."""
    partition_id, offset, leader_epoch, metadata, commit_timestamp, expire_timestamp = columns
    return CommittedOffset(
        partition_id, offset, leader_epoch, read(metadata), commit_timestamp, expire_timestamp
    )


def _protocols_json(protocols: Sequence[tuple[str, bytes]]) -> str:
    return json.dumps(
        [
            {"name": written(name), "metadata": b64encode(metadata).decode()}
            for name, metadata in protocols
        ],
        ensure_ascii=False,
    )


def _partitions_json(partitions: Partitions) -> str:
    if not partitions:
        return "{}"
    return json.dumps(
        {written(topic): list(numbers) for topic, numbers in partitions.items()},
        ensure_ascii=False,
    )


def _partitions_from(columns: Mapping[str, Sequence[int]]) -> Partitions:
    return {read(topic): tuple(numbers) for topic, numbers in columns.items()}
