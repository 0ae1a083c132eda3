"""COMMENT ON tables, views and their columns, for people: psql's \\d+ shows it.

Must hold no SQL except the one statement that sets the comments. A column has the same text in
every view unless the view has its own; a test checks that each has one.
"""

import json
from collections.abc import Mapping

TABLES: Mapping[str, str] = {
    "acl": "Who may do what, or may not; as Kafka's ACLs.",
    "acl_version": "One row: a number that grows whenever an ACL changes.",
    "aborted_transaction": "Stretches of partitions that readers of committed data leave out.",
    "broker": "Brokers and their last heartbeats.",
    "broker_endpoint": "Addresses that clients of each listener are told to connect to.",
    "client_quota": "How much clients may use of each broker, a second; as Kafka's quotas.",
    "client_quota_version": "One row: a number that grows whenever a quota changes.",
    "cluster": "One row: ids not yet given out, metadata version, history of this database.",
    "committed_offset": "Offsets that groups have committed.",
    "config_entry": "Settings of topics, brokers and groups that differ from the default.",
    "consumer_group": "Consumer groups, of both protocols.",
    "coordinator_lease": "Which broker decides for a shard: of groups, or of partitions.",
    "delegation_token": "Delegation tokens: whose they are, and how long they last; no secret.",
    "delegation_token_version": "One row: a number that grows whenever such a token changes.",
    "deleted_partition": "Partitions of deleted topics, whose rows are still to be deleted.",
    "group_member": "Members of groups: subscription and assignment.",
    "inbox_commit_0": "Transactions of applications that have produced, in the order of commits.",
    "inbox_commit_1": "Transactions of applications that have produced, in the order of commits.",
    "inbox_commit_2": "Transactions of applications that have produced, in the order of commits.",
    "inbox_offset_0": "Offsets that applications commit in transactions of their own.",
    "inbox_offset_1": "Offsets that applications commit in transactions of their own.",
    "inbox_offset_2": "Offsets that applications commit in transactions of their own.",
    "inbox_position": "How far what applications have produced is published; the last row counts.",
    "inbox_record_0": "Records that applications have produced in transactions of their own.",
    "inbox_record_1": "Records that applications have produced in transactions of their own.",
    "inbox_record_2": "Records that applications have produced in transactions of their own.",
    "inbox_refused": "Records of applications that could not be published.",
    "inbox_transaction_0": "Transactions of applications at their COMMIT.",
    "inbox_transaction_1": "Transactions of applications at their COMMIT.",
    "inbox_transaction_2": "Transactions of applications at their COMMIT.",
    "leader_epoch": "Where each epoch of a partition began.",
    "named_producer": "What a partition remembers of a Pulsar producer, to store messages once.",
    "namespace": "Namespaces of Pulsar's clients, and the policies that are set for them.",
    "pending_ack": "Acknowledgements that take effect if their producer's transaction commits.",
    "pending_offset": "Offsets that are committed if their producer's transaction is.",
    "producer_client": "Clients that asked for idempotent producers' ids.",
    "producer_state": "What a partition remembers of an idempotent producer.",
    "published_batch": "The highest batch that a query of the exactly-once sink has published.",
    "record_batch": "Index of the log: one row a batch; its bytes are in record_chunk_ tables.",
    "scram_credential": "Users' secrets, as PostgreSQL writes verifiers of passwords.",
    "segment": "The record_chunk_ tables, which hold the batches' bytes.",
    "sql_door": "One row: what the functions for applications have to know.",
    "staged_batch": "Batches that writers of the exactly-once sink have not published yet.",
    "staged_token": "Writers of the exactly-once sink and how much they have staged.",
    "live_consumer": "Consumers that are connected, as their brokers have seen them.",
    "subscription": "Subscriptions of partitions, and up to where each has acknowledged.",
    "subscription_range": "Acknowledged offsets above a subscription's mark-delete offset.",
    "tenant": "Tenants of Pulsar's clients.",
    "topic": "Topics.",
    "topic_partition": "Partitions; next_offset is the end of the log and guards all writes.",
    "topic_schema": "Versions of topics' schemas.",
    "transaction_participant": "Groups and subscriptions that take part in an open transaction.",
    "transaction_partition": "Partitions that take part in an open transaction.",
    "transaction_state": "Transactions by their ids: producer, epoch and state.",
}

# The same in every view.
_COLUMNS: Mapping[str, str] = {
    "age": "For how long it has been there.",
    "batches": "How many batches.",
    "bytes": "Size in bytes.",
    "client_host": "Where the client connects from.",
    "client_id": "client.id of the client.",
    "coordinator": "Address of the broker that coordinates it; empty if no live one does.",
    "coordinator_epoch": "Rises whenever another broker takes the transaction over.",
    "created_at": "When it was made.",
    "first_offset": "Offset of its first record.",
    "generation": "Rises with each change; what an older one has decided is refused.",
    "group_id": "The group's name (group.id).",
    "high_watermark": "Offset after the last record; the next record gets it.",
    "last_offset": "Offset of its last record.",
    "last_stable_offset": "Readers of committed data see the records before this offset.",
    "leader_epoch": "Rises when the database's history changes (failover, restore).",
    "log_start_offset": "Offset of the first record that is not deleted.",
    "newest_record": "Greatest timestamp of its records.",
    "offsets": "How many offsets; compaction apart, that is records and transaction markers.",
    "partition": "Number of the partition in its topic.",
    "partition_id": "The partition's key in Penstock's tables.",
    "payload_table": "Table that holds the bytes.",
    "producer_epoch": "Epoch of the producer; one with an older epoch is fenced.",
    "producer_id": "Id that the broker gave to the producer.",
    "records": "How many records.",
    "shard": "Groups with the same shard have the same coordinator.",
    "since": "Since when it has been so.",
    "size": "Size, for people.",
    "size_bytes": "Size in bytes.",
    "started_at": "When it began.",
    "state": "Kafka's name of its state.",
    "timeout_left": "Time until the broker aborts it; negative if that is due.",
    "topic": "Name of the topic.",
    "transactional_id": "transactional.id of the producer, or Pulsar's TxnID.",
}

VIEWS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "v_topic": (
        "Topics, with the sums of their partitions.",
        {
            "partitions": "How many partitions.",
            "settings": "Settings that differ from the broker's default.",
            "topic_id": "The topic's id; another topic of this name has another one.",
        },
    ),
    "v_topic_partition": (
        "Partitions: where their logs begin and end.",
        {
            "terminated_offset": "No record is appended from here on, if it is terminated.",
            "topic_epoch": "Rises when one of Pulsar's producers has it for itself; fences others.",
        },
    ),
    "v_record_batch": (
        "The log's index: one row a batch. Ask for one topic and partition.",
        {
            "base_offset": "Offset of its first record.",
            "base_sequence": "Sequence number of its first record, of an idempotent producer.",
            "format": "How its bytes are to be read.",
            "kind": "plain, transactional, or control (a marker of commit or abort).",
            "payload_id": "The rows of payload_table in which its bytes are.",
            "position": "Where in that payload they begin.",
        },
    ),
    "v_broker": (
        "Brokers that use this database.",
        {
            "address": "What clients are told to connect to.",
            "broker_id": "The broker's id.",
            "heartbeat_at": "Its last heartbeat.",
            "rack": "The broker's rack, if it has one.",
            "silent_s": "Seconds since its last heartbeat.",
            "state": "live, or gone: silent for longer than its session.",
            "version": "Version of Penstock that it runs.",
        },
    ),
    "v_producer_state": (
        "What partitions remember of idempotent and transactional producers.",
        {
            "batches_remembered": "How many batches back a duplicate is recognized.",
            "last_offset": "Offset of its last record here.",
            "last_record": "Timestamp of its last record here.",
            "last_sequence": "Sequence number of its last record here.",
            "open_from_offset": "Where its open transaction begins here; empty if none is open.",
            "owner": "As whom its client has logged in, if it had to.",
            "updated_at": "When it last wrote here.",
        },
    ),
    "v_producer_client": (
        "Who is behind a producer id: its transactional id, or who asked for the id.",
        {
            "owner": "As whom the client has logged in, if it had to.",
            "since": "When it asked for the id, or changed its transaction last.",
        },
    ),
    "v_named_producer": (
        "Producers of Pulsar's clients whose messages are stored once, by partition and name.",
        {
            "chunks": "How many chunks have come of a message whose last one has not.",
            "last_sequence_id": "Its highest sequence id here; -1: none. Up to it nothing is new.",
            "producer_name": "Its name, given by its application or by a broker.",
            "updated_at": "When it last wrote here, connected, or was seen to be connected.",
        },
    ),
    "v_transaction": (
        "Transactions of both protocols by their ids, and what takes part while they are open.",
        {
            "age": "For how long the open transaction has been there.",
            "changed_at": "When its state last changed.",
            "groups": "Groups whose offsets take part, with their number.",
            "owner": "Who has begun it, or has its producer; empty where nobody was asked.",
            "partitions": "Partitions that take part.",
            "protocol": "Whose transaction: Kafka, whose ids serve again, or Pulsar.",
            "started_at": "When the open transaction began.",
            "subscriptions": "Subscriptions with acknowledgements that take part.",
            "timeout": "How long a transaction of its may take (transaction.timeout.ms).",
            "version": "V1, or V2 (KIP-890) in which each transaction has its own epoch.",
        },
    ),
    "v_pending_ack": (
        "Acknowledgements in transactions that are open, or that a cursor has still to take in.",
        {
            "age": "For how long the open transaction has been there.",
            "end_offset": "First offset that is not acknowledged with it.",
            "is_cumulative": "Whether it is of all below end_offset.",
            "start_offset": "First offset; empty where it is of all below end_offset.",
            "state": "pending, or committed and not yet in the cursor.",
            "subscription": "The subscription.",
        },
    ),
    "v_open_transaction_blocking": (
        "Per partition the oldest open transaction: readers of committed data wait for it.",
        {
            "age": "For how long it has been open.",
            "protocol": "Whose transaction: Kafka or Pulsar.",
            "records_waiting": "Records that such readers do not see yet.",
            "since": "When the transaction began.",
            "state": "Kafka's name of its state; hanging: nobody will end it.",
            "transactions_behind": "Other open transactions in this partition.",
        },
    ),
    "v_aborted_transaction": (
        "Aborted stretches of partitions, which readers of committed data leave out.",
        {
            "aborted_at": "When it was aborted.",
            "last_offset": "Offset of the marker that ended it.",
        },
    ),
    "v_coordinator_lease": (
        "Which broker decides for a shard.",
        {
            "kind": "groups; or partitions, with their subscriptions and Pulsar's producers.",
            "acquired_at": "When the lease last changed hands.",
            "groups": "How many groups the shard has.",
            "last_holder": "Broker that holds the lease, or held it last.",
            "state": "held by a live broker, or free: the next one that is asked takes it.",
        },
    ),
    "v_group": (
        "Consumer groups, of both protocols.",
        {
            "assignment_epoch": "Epoch of the assignment (KIP-848).",
            "assignor": "What assigns partitions to members.",
            "generation": "Generation, or group epoch (KIP-848): rises with each rebalance.",
            "leader": "Member that assigns, in the classic protocol.",
            "members": "How many members.",
            "protocol": "classic, or consumer (KIP-848).",
            "protocol_type": "What kind of clients it has: consumer, connect, …",
            "waiting_for": "Members without which its rebalance does not go on.",
        },
    ),
    "v_group_member": (
        "Members of groups: what they read, and will read.",
        {
            "assigned": "Partitions that the member may read now.",
            "epoch": "Generation (classic) or epoch of the member (KIP-848).",
            "group_instance_id": "group.instance.id of a static member.",
            "is_leader": "Whether it assigns for the group, in the classic protocol.",
            "member_id": "Id that it has in the group.",
            "offers": "Assignors that it offers, in the classic protocol.",
            "protocol": "classic, or consumer (KIP-848).",
            "rack_id": "client.rack of the member.",
            "revoking": "Partitions that it still has to give back.",
            "session_timeout": "It is out if it is silent for so long.",
            "state": "Whether it follows the assignment (KIP-848).",
            "subscribed": "Topics that it subscribes to, or a pattern of them.",
            "target": "Partitions that it will have in the end (KIP-848).",
        },
    ),
    "v_group_lag": (
        "How far groups are behind. Partitions without a committed offset are not listed.",
        {
            "committed_at": "When the offset was committed.",
            "committed_offset": "Offset of the next record that the group will read.",
            "lag": "Records after it that a reader of committed data can see.",
            "metadata": "What the client has committed with the offset.",
        },
    ),
    "v_subscription": (
        "Subscriptions of Pulsar's clients that are stored, one row a partition.",
        {
            "mark_delete": "All messages before this offset are acknowledged.",
            "owner": "Address of the broker that dispatches it; empty if no live one does.",
            "properties": "What the client that made it has told of it.",
            "ranges": "How many ranges of messages above mark_delete are acknowledged.",
            "subscription": "The subscription's name.",
            "type": "Type of its consumers, or of the last ones.",
        },
    ),
    "v_consumer": (
        "Pulsar's consumers that are connected now, as their brokers saw them seconds ago.",
        {
            "address": "Where its client is.",
            "broker": "Id of the broker that it is connected to.",
            "client": "What its client calls itself.",
            "connected_at": "When it subscribed.",
            "consumer": "Its name.",
            "is_active": "Whether it is given messages: of several on Failover, one is.",
            "is_blocked": "Whether it is given nothing until it has acknowledged more.",
            "permits": "How many more messages it takes; with 0 it does not ask for any.",
            "priority_level": "The lowest number is served first.",
            "seen_at": "When its broker last had something to tell of it, or looked through all.",
            "subscription": "The subscription's name.",
            "type": "Exclusive, Failover, Shared or Key_Shared.",
            "unacknowledged": "Messages that it was given and has not acknowledged.",
        },
    ),
    "v_subscription_backlog": (
        "How many messages each subscription has not acknowledged.",
        {
            "backlog": "Messages to be acknowledged, without markers and what was aborted.",
            "pending": "Of them, those that open transactions have acknowledged.",
            "mark_delete": "All messages before this offset are acknowledged.",
            "subscription": "The subscription's name.",
        },
    ),
    "v_schema": (
        "Versions of topics' schemas that clients of Pulsar have registered; latest last.",
        {
            "definition": "What it says, as text: an Avro schema in JSON, of most types.",
            "is_latest": "Whether it is the version that clients get who name none.",
            "name": "What the client that brought it calls it.",
            "properties": "What else that client has told of it.",
            "registered_at": "When it was registered.",
            "state": "live, or deleted: clients do not get it any more.",
            "type": "Pulsar's name of what it is a schema of.",
            "version": "Number of the version, which messages refer to.",
        },
    ),
    "v_namespace": (
        "Namespaces of Pulsar's clients. A policy that is empty is not set.",
        {
            "admin_roles": "Roles that its tenant names; nothing asks for them.",
            "auto_subscription_creation": "Whether clients make subscriptions by using them.",
            "auto_topic_creation": "Whether clients make topics by using them, and which.",
            "backlog_quota_size": "Limit of the backlog's size, and what is done beyond it.",
            "backlog_quota_age": "Limit of the backlog's age, and what is done beyond it.",
            "deduplication": "Whether messages are stored once, however often they are sent.",
            "max_unacked_per_consumer": "Messages that a consumer may have unacknowledged.",
            "max_unacked_per_subscription": "Messages that all of its consumers may have so.",
            "message_ttl": "Older messages are acknowledged for everybody.",
            "namespace": "Name of the namespace.",
            "retention_size": "How much of what everybody has acknowledged is kept.",
            "retention_time": "For how long what everybody has acknowledged is kept.",
            "schema_auto_update": "Whether clients register schemas by using them.",
            "schema_compatibility_strategy": "Which schema may follow which.",
            "schema_validation_enforced": "Whether producers need a schema where there is one.",
            "tenant": "Name of its tenant.",
        },
    ),
    "v_user": (
        "Who may log in at a listener that asks, one row a mechanism; PLAIN goes by either.",
        {
            "changed_at": "When the password was set.",
            "iterations": "Rounds of PBKDF2 that a guess costs.",
            "mechanism": "SASL's name of it.",
            "user_name": "The user's name.",
        },
    ),
    "v_delegation_token": (
        "Delegation tokens that are good at the moment.",
        {
            "expires_in": "How long it lasts unless it is renewed.",
            "issued_at": "When it was made.",
            "lasts_in_all": "How long it may still be renewed.",
            "owner": "As whom one acts with it.",
            "renewers": "Who may renew and expire it, beside its owner.",
            "requester": "Who has asked for it.",
            "token_id": "Its id, the name to log in with; the secret is not in the database.",
        },
    ),
    "v_acl": (
        "Who may do what, and who may not, in words.",
        {
            "created_at": "When it was made.",
            "host": "Address that they come from; * is any.",
            "operation": "What is done; ALL is everything.",
            "permission": "ALLOW or DENY; any DENY goes before each ALLOW.",
            "principal": "Who: Type:name, for example User:alice; User:* is everybody.",
            "resource": "What it is done to; a name that ends in … stands for all that begin so.",
        },
    ),
    "v_quota": (
        "How much clients may use of each broker, in words.",
        {
            "changed_at": "When it was set.",
            "client_id": "Of clients with this id; <default>: of each without one by its own.",
            "ip": "Of an address, or of each.",
            "per_second": "The value, as people read it.",
            "quota": "What is limited, in Kafka's words.",
            "user_name": "Of a user; <default>: of each without one by its own.",
            "value": "How much of it a second; of request_percentage: 100 is one thread.",
        },
    ),
    "v_staged_token": (
        "What writers of the exactly-once sink have staged and not published yet.",
        {
            "expires_in": "Time until it is deleted.",
            "staged_at": "When it last grew.",
            "token": "Names the writer's task.",
            "topics": "Topics, with the number of records staged for each.",
        },
    ),
    "v_published_batch": (
        "How far the queries of the exactly-once sink have come.",
        {
            "batch_id": "The highest batch published; -1 of a job that is not a stream.",
            "published_at": "When it was published.",
            "query_id": "Id of the query, from its checkpoint.",
            "sink": "Name of the sink, if the query has several.",
        },
    ),
    "v_inbox": (
        "Records that applications have committed, and that are not published yet.",
        {
            "age": "Since when the oldest of them waits.",
            "transactions": "How many transactions they are of.",
        },
    ),
    "v_inbox_refused": (
        "Records that applications have committed and that could not be published.",
        {"reason": "Why.", "refused_at": "When."},
    ),
    "v_segment": (
        "Tables that hold the batches' bytes.",
        {
            "retention_class": "Topics of similar retention share a table.",
            "sealed_at": "Since when nothing has been written into it.",
            "segment_id": "Number of the table.",
            "state": "open, or sealed: dropped once nothing in it is used.",
        },
    ),
}

_COMMENT_ON = """
DO $do$
DECLARE
    texts CONSTANT jsonb := $texts${}$texts$;
    each record;
BEGIN
    FOR each IN
        SELECT format('%s %I', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, t.key)
                   AS thing, t.value ->> 'text' AS text
        FROM jsonb_each(texts) AS t JOIN pg_class c ON c.oid = to_regclass(t.key)
    UNION ALL
        SELECT format('COLUMN %I.%I', t.key, a.attname), t.value -> 'columns' ->> a.attname
        FROM jsonb_each(texts) AS t JOIN pg_attribute a ON a.attrelid = to_regclass(t.key)
        WHERE a.attnum > 0 AND NOT a.attisdropped AND (t.value -> 'columns') ? a.attname
    LOOP
        EXECUTE format('COMMENT ON %s IS %L', each.thing, each.text);
    END LOOP;
END $do$
"""


def statement() -> str:
    """DDL that sets every comment; tables, views and columns that do not exist are skipped."""
    texts: dict[str, dict[str, object]] = {
        name: {"text": text, "columns": {}} for name, text in TABLES.items()
    }
    for name, (text, columns) in VIEWS.items():
        texts[name] = {"text": text, "columns": {**_COLUMNS, **columns}}
    return _COMMENT_ON.replace("{}", json.dumps(texts, ensure_ascii=False), 1)
