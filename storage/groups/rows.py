"""Converts groups, members and offsets between core's values and rows. Knows no statement.

The flush writes columns as binary arrays; reading takes psycopg's values.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from core.group.records import CommittedOffset, GroupRow, MemberRow, Partitions
from storage.connection.binary import (
    bigint_array,
    bytea_array,
    integer_array,
    jsonb_array,
    text_array,
    uuid_array,
)
from storage.connection.client_text import (
    array_literal,
    key_of,
    read,
    read_or_none,
    written,
    written_or_none,
)


def group_columns(rows: Sequence[tuple[int, GroupRow]]) -> list[bytes]:
    """Parameters of PUT_GROUPS, from shards and rows."""
    groups = [row for _, row in rows]
    return [
        uuid_array([key_of(row.group_id) for row in groups]),
        text_array([written(row.group_id) for row in groups]),
        integer_array([shard for shard, _ in rows]),
        text_array([row.protocol for row in groups]),
        text_array([written(row.protocol_type) for row in groups]),
        text_array([written_or_none(row.protocol_name) for row in groups]),
        text_array([written_or_none(row.leader) for row in groups]),
        integer_array([row.generation_id for row in groups]),
        integer_array([row.assignment_epoch for row in groups]),
        text_array([row.state for row in groups]),
        bigint_array([row.state_timestamp for row in groups]),
        text_array([array_literal(row.waiting_for) for row in groups]),
        bigint_array([row.metadata_hash for row in groups]),
    ]


def member_columns(rows: Sequence[tuple[bytes, MemberRow]]) -> list[bytes]:
    """Parameters of PUT_MEMBERS, from keys of groups and rows."""
    members = [row for _, row in rows]
    return [
        uuid_array([key for key, _ in rows]),
        uuid_array([key_of(row.member_id) for row in members]),
        text_array([written(row.member_id) for row in members]),
        text_array([row.protocol for row in members]),
        text_array([written_or_none(row.group_instance_id) for row in members]),
        text_array([written(row.client_id) for row in members]),
        text_array([written(row.client_host) for row in members]),
        text_array([written_or_none(row.rack_id) for row in members]),
        integer_array([row.session_timeout_ms for row in members]),
        integer_array([row.rebalance_timeout_ms for row in members]),
        jsonb_array([_protocols_json(row.protocols) for row in members]),
        bytea_array([row.assignment for row in members]),
        integer_array([row.member_epoch for row in members]),
        integer_array([row.previous_member_epoch for row in members]),
        text_array([row.state for row in members]),
        text_array([array_literal(row.subscribed_topic_names) for row in members]),
        text_array([written_or_none(row.subscribed_topic_regex) for row in members]),
        text_array([written_or_none(row.server_assignor) for row in members]),
        jsonb_array([_partitions_json(row.assigned) for row in members]),
        jsonb_array([_partitions_json(row.revoking) for row in members]),
        jsonb_array([_partitions_json(row.target) for row in members]),
    ]


def offset_columns(rows: Sequence[tuple[bytes, CommittedOffset]]) -> list[bytes]:
    """Parameters of PUT_OFFSETS, from keys of groups and offsets."""
    return [
        uuid_array([key for key, _ in rows]),
        bigint_array([each.partition_id for _, each in rows]),
        bigint_array([each.offset for _, each in rows]),
        integer_array([each.leader_epoch for _, each in rows]),
        text_array([written(each.metadata) for _, each in rows]),
        bigint_array([each.commit_timestamp for _, each in rows]),
        bigint_array([each.expire_timestamp for _, each in rows]),
    ]


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
