"""Functions and views, for psql. Each migration replaces all of them: they hold no data.

Plain words, plain times; a view must be quick, since a snapshot held open makes hot rows bloat.
"""

import hashlib

from core.shard import SHARDS
from storage import comments, sql_doors
from storage.schema import INBOX_SLOTS

FUNCTIONS = {
    "version_mismatch": """
CREATE OR REPLACE FUNCTION version_mismatch() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row has another version than the one decided on' USING ERRCODE = 'PS001';
END $$
""",
    "inbox_overtaken": """
CREATE OR REPLACE FUNCTION inbox_overtaken() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the inbox has moved' USING ERRCODE = 'PS002';
END $$
""",
    # pg_control_checkpoint() shows a new timeline only after its next checkpoint; the name of the
    # present WAL file begins with it at once.
    "current_history": """
CREATE OR REPLACE FUNCTION current_history(OUT system_identifier bigint, OUT timeline integer)
LANGUAGE sql AS $$
    SELECT s.system_identifier,
           ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer
    FROM pg_control_system() AS s
$$
""",
    "from_unix_ms": """
CREATE OR REPLACE FUNCTION from_unix_ms(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ms >= 0 AND ms < 253402300800000 THEN to_timestamp(ms / 1000.0) END
$$
""",
    # An assignment by topic id (or by name, as classic members have it): "flights 0-3,7; taxis 0".
    "partitions_text": """
CREATE OR REPLACE FUNCTION partitions_text(assigned jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT string_agg(coalesce(t.name, a.key) || ' ' || (
        SELECT string_agg(concat_ws('-', first, nullif(last, first)), ',' ORDER BY first)
        FROM (SELECT min(partition) AS first, max(partition) AS last
              FROM (SELECT n::integer AS partition,
                           n::integer - row_number() OVER (ORDER BY n::integer) AS stretch
                    FROM jsonb_array_elements_text(a.value) AS n) AS numbered
              GROUP BY stretch) AS stretches
    ), '; ' ORDER BY coalesce(t.name, a.key))
    FROM jsonb_each(assigned) AS a
    LEFT JOIN penstock.topic t ON t.topic_id =
        CASE WHEN a.key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN a.key::uuid END
$$
""",
    # A schema's data, if it is text; of a KEY_VALUE the key's and the value's, each with its length
    # before it. Pulsar's clients may write anything there.
    "schema_text": """
CREATE OR REPLACE FUNCTION schema_text(type text, data bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    key_length integer;
BEGIN
    IF type <> 'KEY_VALUE' THEN
        RETURN nullif(convert_from(data, 'UTF8'), '');
    END IF;
    key_length := greatest(('x' || encode(substr(data, 1, 4), 'hex'))::bit(32)::integer, 0);
    RETURN 'key: ' || convert_from(substr(data, 5, key_length), 'UTF8')
        || E'\\nvalue: ' || convert_from(substr(data, 9 + key_length), 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$
""",
}

# What readers of committed data may see ends here (PartitionState.last_stable_offset).
_LAST_STABLE_OFFSET = """greatest(p.log_start_offset, least(p.next_offset, (
    SELECT min(open.txn_first_offset) FROM producer_state open
    WHERE open.partition_id = p.partition_id AND open.txn_first_offset IS NOT NULL)))"""


def _of_slots(table: str) -> str:
    return " UNION ALL ".join(f"SELECT * FROM {table}_{slot}" for slot in range(INBOX_SLOTS))


VIEWS = {
    "v_topic": """
SELECT t.name AS topic, count(p.partition_id) AS partitions,
       coalesce(sum(p.next_offset - p.log_start_offset), 0)::bigint AS offsets,
       coalesce(sum(p.batch_count), 0)::bigint AS batches,
       pg_size_pretty(coalesce(sum(p.size_bytes), 0)) AS size,
       from_unix_ms(max(p.max_timestamp)) AS newest_record,
       (SELECT string_agg(c.name || '=' || c.value, ', ' ORDER BY c.name) FROM config_entry c
        WHERE c.resource_type = 'topic' AND c.resource_name = t.topic_id::text) AS settings,
       t.created_at, t.topic_id
FROM topic t LEFT JOIN topic_partition p USING (topic_id)
GROUP BY t.topic_id ORDER BY t.name
""",
    "v_topic_partition": f"""
SELECT t.name AS topic, p.partition, p.log_start_offset,
       {_LAST_STABLE_OFFSET} AS last_stable_offset, p.next_offset AS high_watermark,
       p.next_offset - p.log_start_offset AS offsets, p.batch_count AS batches,
       pg_size_pretty(p.size_bytes) AS size, from_unix_ms(p.max_timestamp) AS newest_record,
       p.leader_epoch, nullif(p.terminated_offset, -1) AS terminated_offset,
       nullif(p.topic_epoch, -1) AS topic_epoch, p.size_bytes, p.partition_id
FROM topic_partition p JOIN topic t USING (topic_id)
ORDER BY t.name, p.partition
""",
    "v_record_batch": """
SELECT t.name AS topic, p.partition, b.base_offset, b.last_offset,
       b.last_offset - b.base_offset + 1 AS offsets, b.size AS bytes,
       from_unix_ms(b.max_timestamp) AS newest_record,
       nullif(b.producer_id, -1) AS producer_id, nullif(b.producer_epoch, -1) AS producer_epoch,
       nullif(b.base_sequence, -1) AS base_sequence,
       CASE b.format WHEN 2 THEN 'kafka v2' WHEN 16 THEN 'pulsar' ELSE b.format::text END AS format,
       CASE WHEN b.is_control THEN 'control' WHEN b.is_transactional THEN 'transactional'
            ELSE 'plain' END AS kind,
       'penstock.record_chunk_' || b.segment_id AS payload_table, b.payload_id, b.position
FROM record_batch b JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
WHERE b.last_offset >= p.log_start_offset
""",
    "v_broker": """
SELECT broker_id,
       (SELECT string_agg(CASE listener WHEN 'kafka' THEN '' ELSE listener || ' ' END
                          || host || ':' || port, ', ' ORDER BY listener)
        FROM broker_endpoint e WHERE e.broker_id = broker.broker_id) AS address, rack,
       CASE WHEN clock_timestamp() - heartbeat_at < make_interval(secs => session_timeout_s)
            THEN 'live' ELSE 'gone' END AS state,
       started_at, heartbeat_at,
       round(extract(epoch FROM clock_timestamp() - heartbeat_at)::numeric, 1) AS silent_s, version
FROM broker ORDER BY broker_id
""",
    "v_producer_state": """
SELECT t.name AS topic, p.partition, s.producer_id, s.producer_epoch,
       s.last_sequences[cardinality(s.last_sequences)] AS last_sequence,
       s.last_offsets[cardinality(s.last_offsets)] AS last_offset,
       cardinality(s.last_sequences) AS batches_remembered,
       from_unix_ms(s.last_timestamp) AS last_record, s.updated_at, x.transactional_id,
       s.txn_first_offset AS open_from_offset,
       nullif(s.coordinator_epoch, -1) AS coordinator_epoch,
       nullif(coalesce(x.client_id, c.client_id), '') AS client_id,
       nullif(coalesce(x.client_host, c.client_host), '') AS client_host,
       nullif(coalesce(x.owner, c.owner), '') AS owner
FROM producer_state s JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
LEFT JOIN transaction_state x USING (producer_id)
LEFT JOIN producer_client c USING (producer_id)
""",
    # Of a transactional producer, who uses its transactional id now; of an idempotent one, who
    # asked for its id (those of librdkafka that are neither have none).
    "v_producer_client": """
SELECT producer_id, transactional_id, nullif(client_id, '') AS client_id,
       nullif(client_host, '') AS client_host, nullif(owner, '') AS owner, since
FROM (
    SELECT producer_id, transactional_id, client_id, client_host, owner,
           from_unix_ms(updated_at) AS since
    FROM transaction_state
    UNION ALL
    SELECT producer_id, NULL, client_id, client_host, owner, begun_at
    FROM producer_client c
    WHERE NOT EXISTS (SELECT FROM transaction_state x WHERE x.producer_id = c.producer_id)
) AS clients
""",
    "v_named_producer": """
SELECT t.name AS topic, p.partition, n.name AS producer_name,
       n.highest_sequence_id AS last_sequence_id,
       nullif(n.chunk_id + 1, 0) AS chunks, n.updated_at, n.partition_id
FROM named_producer n JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
ORDER BY t.name, p.partition, n.name
""",
    # age, timeout_left: of the open transaction. groups: with the number of their pending offsets.
    "v_transaction": """
SELECT x.transactional_id, x.state, x.producer_id, x.producer_epoch,
       'V' || x.transaction_version AS version,
       date_trunc('milliseconds', clock_timestamp() - from_unix_ms(x.started_at)) AS age,
       date_trunc('milliseconds', from_unix_ms(x.started_at) - clock_timestamp())
           + make_interval(secs => x.timeout_ms / 1000.0) AS timeout_left,
       make_interval(secs => x.timeout_ms / 1000.0) AS timeout,
       (SELECT partitions_text(jsonb_object_agg(topic_id, numbers))
        FROM (SELECT p.topic_id, jsonb_agg(p.partition) AS numbers
              FROM transaction_partition j JOIN topic_partition p USING (partition_id)
              WHERE j.txn_key = x.txn_key GROUP BY p.topic_id) AS by_topic) AS partitions,
       (SELECT string_agg(j.name || ' (' || (
            SELECT count(*) FROM pending_offset o
            WHERE o.group_key = j.participant_key AND o.producer_id = x.producer_id
        ) || ')', '; ' ORDER BY j.name)
        FROM transaction_participant j
        WHERE j.txn_key = x.txn_key AND j.kind = 0) AS groups,
       (SELECT string_agg(t.name || '-' || p.partition || '/' || s.name, '; '
                          ORDER BY t.name, p.partition, s.name)
        FROM transaction_participant j
        JOIN subscription s ON s.subscription_id = j.name::bigint
        JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
        WHERE j.txn_key = x.txn_key AND j.kind = 1) AS subscriptions,
       nullif(x.client_id, '') AS client_id, nullif(x.client_host, '') AS client_host,
       nullif(x.owner, '') AS owner,
       from_unix_ms(x.started_at) AS started_at, from_unix_ms(x.updated_at) AS changed_at,
       x.coordinator_epoch, CASE x.kind WHEN 0 THEN 'Kafka' ELSE 'Pulsar' END AS protocol
FROM transaction_state x ORDER BY x.transactional_id
""",
    # A committed one whose transaction is forgotten, since no cursor has taken it in for so long,
    # has no id any more.
    "v_pending_ack": """
SELECT t.name AS topic, p.partition, s.name AS subscription, x.transactional_id,
       CASE WHEN a.is_committed THEN 'committed' ELSE 'pending' END AS state,
       CASE WHEN NOT a.is_cumulative THEN a.start_offset END AS start_offset, a.end_offset,
       a.is_cumulative, a.producer_id,
       CASE WHEN NOT a.is_committed
            THEN date_trunc('milliseconds', clock_timestamp() - from_unix_ms(x.started_at))
            END AS age
FROM pending_ack a
JOIN subscription s USING (subscription_id)
JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
LEFT JOIN transaction_state x USING (producer_id)
ORDER BY t.name, p.partition, s.name, a.start_offset
""",
    # Per partition the oldest open transaction, which holds back the last stable offset. hanging:
    # no coordinator will end it (it should never happen).
    "v_open_transaction_blocking": f"""
SELECT t.name AS topic, p.partition, x.transactional_id, coalesce(x.state, 'hanging') AS state,
       s.producer_id, s.producer_epoch, r.last_stable_offset, p.next_offset AS high_watermark,
       p.next_offset - r.last_stable_offset - (
           SELECT count(*) FROM record_batch b
           WHERE b.partition_id = p.partition_id AND b.last_offset >= r.last_stable_offset
             AND b.is_control
       ) AS records_waiting,
       s.transactions - 1 AS transactions_behind, r.since,
       date_trunc('milliseconds', clock_timestamp() - r.since) AS age,
       date_trunc('milliseconds', from_unix_ms(x.started_at) - clock_timestamp())
           + make_interval(secs => x.timeout_ms / 1000.0) AS timeout_left,
       nullif(x.client_id, '') AS client_id, nullif(x.client_host, '') AS client_host,
       CASE x.kind WHEN 0 THEN 'Kafka' WHEN 1 THEN 'Pulsar' END AS protocol
FROM (
    SELECT DISTINCT ON (partition_id) partition_id, producer_id, producer_epoch, updated_at,
           count(*) OVER (PARTITION BY partition_id) AS transactions
    FROM producer_state WHERE txn_first_offset IS NOT NULL
    ORDER BY partition_id, txn_first_offset
) AS s
JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
LEFT JOIN transaction_state x ON x.producer_id = s.producer_id AND x.started_at >= 0
    AND EXISTS (SELECT FROM transaction_partition j
                WHERE j.txn_key = x.txn_key AND j.partition_id = s.partition_id)
CROSS JOIN LATERAL (
    SELECT {_LAST_STABLE_OFFSET} AS last_stable_offset,
           coalesce(from_unix_ms(x.started_at), s.updated_at) AS since
) AS r
ORDER BY r.since, t.name, p.partition
""",
    "v_aborted_transaction": """
SELECT t.name AS topic, p.partition, a.producer_id, a.first_offset, a.last_offset,
       from_unix_ms(b.max_timestamp) AS aborted_at, x.transactional_id
FROM aborted_transaction a
JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
LEFT JOIN record_batch b ON b.partition_id = a.partition_id AND b.last_offset = a.last_offset
LEFT JOIN transaction_state x ON x.producer_id = a.producer_id
WHERE a.last_offset >= p.log_start_offset
""",
    "v_coordinator_lease": f"""
SELECT l.shard, CASE WHEN l.shard < {SHARDS} THEN 'groups' ELSE 'partitions' END AS kind,
       CASE WHEN b.broker_id IS NULL THEN 'free' ELSE 'held' END AS state,
       l.broker_id AS last_holder, e.host || ':' || e.port AS coordinator, l.generation,
       l.acquired_at, (SELECT count(*) FROM consumer_group g WHERE g.shard = l.shard) AS groups
FROM coordinator_lease l
LEFT JOIN broker b ON b.broker_id = l.broker_id AND b.incarnation = l.incarnation
    AND clock_timestamp() < b.heartbeat_at + make_interval(secs => b.session_timeout_s)
LEFT JOIN broker_endpoint e ON e.broker_id = b.broker_id AND e.listener = 'kafka'
ORDER BY l.shard
""",
    "v_group": """
SELECT g.group_id, g.protocol, g.state, from_unix_ms(g.state_timestamp) AS since,
       (SELECT count(*) FROM group_member m WHERE m.group_key = g.group_key) AS members,
       nullif(array_to_string(g.waiting_for, ', '), '') AS waiting_for,
       g.generation_id AS generation, nullif(g.assignment_epoch, -1) AS assignment_epoch,
       nullif(g.protocol_type, '') AS protocol_type, g.protocol_name AS assignor, g.leader,
       e.host || ':' || e.port AS coordinator, g.shard
FROM consumer_group g
LEFT JOIN coordinator_lease l USING (shard)
LEFT JOIN broker b ON b.broker_id = l.broker_id AND b.incarnation = l.incarnation
    AND clock_timestamp() < b.heartbeat_at + make_interval(secs => b.session_timeout_s)
LEFT JOIN broker_endpoint e ON e.broker_id = b.broker_id AND e.listener = 'kafka'
ORDER BY g.group_id
""",
    # assigned: partitions that the member may read now. revoking: those it must still give back.
    # target: its target assignment (the new protocol only).
    "v_group_member": """
SELECT g.group_id, m.member_id, m.group_instance_id, m.protocol, nullif(m.state, '') AS state,
       CASE g.protocol WHEN 'consumer' THEN m.member_epoch ELSE g.generation_id END AS epoch,
       g.leader IS NOT DISTINCT FROM m.member_id AS is_leader,
       partitions_text(m.assigned) AS assigned, partitions_text(m.revoking) AS revoking,
       partitions_text(m.target) AS target,
       nullif(concat_ws(', ', nullif(array_to_string(m.subscribed_topic_names, ', '), ''),
                        regexp_replace(m.subscribed_topic_regex,
                                       '^(\\u001F[^\\u001F]*){3}\\u001F', '')), '')
           AS subscribed,
       (SELECT string_agg(p ->> 'name', ', ') FROM jsonb_array_elements(m.protocols) AS p)
           AS offers,
       m.client_id, m.client_host, m.rack_id,
       make_interval(secs => m.session_timeout_ms / 1000.0) AS session_timeout
FROM group_member m JOIN consumer_group g USING (group_key)
ORDER BY g.group_id, m.member_id
""",
    # lag: records after the committed offset that a reader of committed data can see: up to the
    # last stable offset, without control batches, deleted and aborted records. Aborted ones are
    # counted batch by batch, so only if aborted transactions extend over 20,000 offsets at most;
    # else they count as unread. Partitions without a committed offset are not listed.
    "v_group_lag": f"""
SELECT g.group_id, t.name AS topic, p.partition, o.committed_offset, p.log_start_offset,
       r.last_stable_offset, p.next_offset AS high_watermark,
       greatest(r.last_stable_offset - r.next_read, 0) - c.control_records - a.aborted_records
           AS lag,
       from_unix_ms(o.commit_timestamp) AS committed_at, nullif(o.metadata, '') AS metadata
FROM committed_offset o
JOIN consumer_group g USING (group_key)
JOIN topic_partition p USING (partition_id)
JOIN topic t USING (topic_id)
CROSS JOIN LATERAL (
    SELECT greatest(o.committed_offset, p.log_start_offset) AS next_read,
           {_LAST_STABLE_OFFSET} AS last_stable_offset
) AS r
CROSS JOIN LATERAL (
    SELECT coalesce(sum(b.last_offset - greatest(b.base_offset, r.next_read) + 1), 0)::bigint
               AS control_records
    FROM record_batch b
    WHERE b.partition_id = p.partition_id AND b.last_offset >= r.next_read
      AND b.last_offset < r.last_stable_offset AND b.is_control
) AS c
CROSS JOIN LATERAL (
    SELECT coalesce(sum(last_offset - greatest(first_offset, r.next_read)), 0) AS offsets
    FROM (SELECT w.first_offset, w.last_offset FROM aborted_transaction w
          WHERE w.partition_id = p.partition_id AND w.last_offset >= r.next_read
            AND w.first_offset < r.last_stable_offset
          ORDER BY w.last_offset LIMIT 20001) AS w
) AS extent
CROSS JOIN LATERAL (
    SELECT coalesce(sum(b.last_offset - greatest(b.base_offset, r.next_read) + 1), 0)::bigint
               AS aborted_records
    FROM aborted_transaction w
    JOIN record_batch b ON b.partition_id = w.partition_id AND b.producer_id = w.producer_id
        AND b.last_offset >= greatest(w.first_offset, r.next_read)
        AND b.last_offset < least(w.last_offset, r.last_stable_offset) AND b.is_transactional
    WHERE w.partition_id = p.partition_id AND w.last_offset >= r.next_read
      AND w.first_offset < r.last_stable_offset AND extent.offsets BETWEEN 1 AND 20000
) AS a
ORDER BY g.group_id, t.name, p.partition
""",
    # owner: who dispatches it, by its address for Pulsar's clients. Live consumers are in its
    # memory, and not here.
    "v_subscription": f"""
SELECT t.name AS topic, p.partition, s.name AS subscription, initcap(s.type) AS type,
       s.mark_delete,
       (SELECT count(*) FROM subscription_range r
        WHERE r.subscription_id = s.subscription_id) AS ranges,
       e.host || ':' || e.port AS owner, s.properties, s.created_at
FROM subscription s
JOIN topic_partition p USING (partition_id)
JOIN topic t USING (topic_id)
LEFT JOIN coordinator_lease l ON l.shard = {SHARDS} + p.partition_id % {SHARDS}
LEFT JOIN broker b ON b.broker_id = l.broker_id AND b.incarnation = l.incarnation
    AND clock_timestamp() < b.heartbeat_at + make_interval(secs => b.session_timeout_s)
LEFT JOIN broker_endpoint e ON e.broker_id = b.broker_id AND e.listener = 'pulsar'
ORDER BY t.name, p.partition, s.name
""",
    "v_consumer": """
SELECT t.name AS topic, p.partition, c.subscription, c.consumer, initcap(c.type) AS type,
       c.permits, c.unacknowledged, c.is_active, c.is_blocked, c.priority_level,
       c.address, c.client, c.broker_id AS broker, c.connected_at, c.seen_at
FROM live_consumer c
JOIN broker b ON b.broker_id = c.broker_id AND b.incarnation = c.incarnation
    AND clock_timestamp() < b.heartbeat_at + make_interval(secs => b.session_timeout_s)
JOIN topic_partition p USING (partition_id)
JOIN topic t USING (topic_id)
ORDER BY t.name, p.partition, c.subscription, c.consumer
""",
    # backlog: messages that the subscription has not acknowledged and can be given: up to the last
    # stable offset, without control batches and what was aborted. The latter as in v_group_lag.
    # pending: of them, those that an open transaction has acknowledged, which nobody is given.
    "v_subscription_backlog": f"""
SELECT t.name AS topic, p.partition, s.name AS subscription, s.mark_delete, p.log_start_offset,
       r.last_stable_offset, p.next_offset AS high_watermark,
       (SELECT coalesce(sum(upper(e) - lower(e)), 0)::bigint
        FROM unnest(left_over.ranges) AS e) AS backlog,
       (SELECT coalesce(sum(upper(e) - lower(e)), 0)::bigint
        FROM unnest(left_over.ranges * coalesce(pending.ranges, '{{}}')) AS e) AS pending
FROM subscription s
JOIN topic_partition p USING (partition_id)
JOIN topic t USING (topic_id)
CROSS JOIN LATERAL (
    SELECT greatest(s.mark_delete, p.log_start_offset) AS next_read,
           {_LAST_STABLE_OFFSET} AS last_stable_offset
) AS r
CROSS JOIN LATERAL (
    SELECT range_agg(int8range(a.start_offset, a.end_offset)) AS ranges
    FROM (SELECT w.start_offset, w.end_offset FROM subscription_range w
          WHERE w.subscription_id = s.subscription_id
          UNION ALL
          SELECT greatest(w.start_offset, 0), w.end_offset FROM pending_ack w
          WHERE w.subscription_id = s.subscription_id AND w.is_committed) AS a
) AS acknowledged
CROSS JOIN LATERAL (
    SELECT range_agg(int8range(greatest(w.start_offset, 0), w.end_offset)) AS ranges
    FROM pending_ack w WHERE w.subscription_id = s.subscription_id AND NOT w.is_committed
) AS pending
CROSS JOIN LATERAL (
    SELECT range_agg(int8range(b.base_offset, b.last_offset + 1)) AS ranges
    FROM record_batch b
    WHERE b.partition_id = p.partition_id AND b.last_offset >= r.next_read
      AND b.last_offset < r.last_stable_offset AND b.is_control
) AS control
CROSS JOIN LATERAL (
    SELECT coalesce(sum(last_offset - greatest(first_offset, r.next_read)), 0) AS offsets
    FROM (SELECT w.first_offset, w.last_offset FROM aborted_transaction w
          WHERE w.partition_id = p.partition_id AND w.last_offset >= r.next_read
            AND w.first_offset < r.last_stable_offset
          ORDER BY w.last_offset LIMIT 20001) AS w
) AS extent
CROSS JOIN LATERAL (
    SELECT range_agg(int8range(b.base_offset, b.last_offset + 1)) AS ranges
    FROM aborted_transaction w
    JOIN record_batch b ON b.partition_id = w.partition_id AND b.producer_id = w.producer_id
        AND b.last_offset >= greatest(w.first_offset, r.next_read)
        AND b.last_offset < least(w.last_offset, r.last_stable_offset) AND b.is_transactional
    WHERE w.partition_id = p.partition_id AND w.last_offset >= r.next_read
      AND w.first_offset < r.last_stable_offset AND extent.offsets BETWEEN 1 AND 20000
) AS aborted
CROSS JOIN LATERAL (
    SELECT int8multirange(int8range(r.next_read, greatest(r.next_read, r.last_stable_offset)))
           - coalesce(acknowledged.ranges, '{{}}') - coalesce(control.ranges, '{{}}')
           - coalesce(aborted.ranges, '{{}}') AS ranges
) AS left_over
ORDER BY t.name, p.partition, s.name
""",
    "v_schema": """
SELECT t.name AS topic, s.version, s.type, s.name,
       CASE WHEN s.version > coalesce(d.version, -1) THEN 'live' ELSE 'deleted' END AS state,
       s.version > coalesce(d.version, -1)
           AND s.version = max(s.version) OVER (PARTITION BY s.topic_id) AS is_latest,
       schema_text(s.type, s.data) AS definition, s.properties, s.created_at AS registered_at
FROM topic_schema s
JOIN topic t USING (topic_id)
LEFT JOIN LATERAL (
    SELECT max(x.version) AS version FROM topic_schema x
    WHERE x.topic_id = s.topic_id AND x.is_deletion
) AS d ON true
WHERE NOT s.is_deletion
ORDER BY t.name, s.version
""",
    # One column a policy. Retention: -1 is without limit.
    "v_namespace": """
SELECT n.tenant, n.name AS namespace,
       make_interval(secs => (n.policies ->> 'message_ttl_in_seconds')::double precision)
           AS message_ttl,
       CASE WHEN (r ->> 'retentionTimeInMinutes')::integer < 0 THEN 'unlimited'
            ELSE make_interval(mins => (r ->> 'retentionTimeInMinutes')::integer)::text
       END AS retention_time,
       CASE WHEN (r ->> 'retentionSizeInMB')::bigint < 0 THEN 'unlimited'
            ELSE pg_size_pretty((r ->> 'retentionSizeInMB')::bigint * 1048576)
       END AS retention_size,
       pg_size_pretty((q -> 'destination_storage' ->> 'limitSize')::bigint) || ', '
           || (q -> 'destination_storage' ->> 'policy') AS backlog_quota_size,
       make_interval(secs => (q -> 'message_age' ->> 'limitTime')::double precision) || ', '
           || (q -> 'message_age' ->> 'policy') AS backlog_quota_age,
       (n.policies ->> 'deduplicationEnabled')::boolean AS deduplication,
       n.policies ->> 'schema_compatibility_strategy' AS schema_compatibility_strategy,
       (n.policies ->> 'is_allow_auto_update_schema')::boolean AS schema_auto_update,
       (n.policies ->> 'schema_validation_enforced')::boolean AS schema_validation_enforced,
       CASE WHEN (a ->> 'allowAutoTopicCreation')::boolean
            THEN concat_ws(', ', a ->> 'topicType', (a ->> 'defaultNumPartitions') || ' partitions')
            WHEN a IS NOT NULL THEN 'no'
       END AS auto_topic_creation,
       (n.policies -> 'autoSubscriptionCreationOverride' ->> 'allowAutoSubscriptionCreation')
           ::boolean AS auto_subscription_creation,
       (n.policies ->> 'max_unacked_messages_per_consumer')::integer AS max_unacked_per_consumer,
       (n.policies ->> 'max_unacked_messages_per_subscription')::integer
           AS max_unacked_per_subscription,
       t.admin_roles, n.created_at
FROM namespace n
JOIN tenant t ON t.name = n.tenant
CROSS JOIN LATERAL (
    SELECT n.policies -> 'retention_policies' AS r, n.policies -> 'backlog_quota_map' AS q,
           n.policies -> 'autoTopicCreationOverride' AS a
) AS p
ORDER BY n.tenant, n.name
""",
    # Without the secrets.
    "v_user": """
SELECT user_name, mechanism,
       split_part(split_part(verifier, '$', 2), ':', 1)::numeric AS iterations, changed_at
FROM scram_credential ORDER BY user_name, mechanism
""",
    "v_delegation_token": """
SELECT token_id, owner, nullif(requester, owner) AS requester,
       array_to_string(renewers, ', ') AS renewers,
       date_trunc('milliseconds', least(expires_at, max_at) - clock_timestamp()) AS expires_in,
       date_trunc('milliseconds', max_at - clock_timestamp()) AS lasts_in_all, issued_at
FROM delegation_token
WHERE least(expires_at, max_at) >= clock_timestamp() ORDER BY issued_at, token_id
""",
    "v_acl": """
SELECT principal, permission, operation,
       lower(replace(resource_type, '_', ' ')) || ' ' || resource_name
       || CASE pattern_type WHEN 'PREFIXED' THEN '…' ELSE '' END AS resource,
       host, created_at
FROM acl ORDER BY principal, resource_type, resource_name, permission DESC, operation, host
""",
    "v_quota": """
SELECT CASE user_name WHEN '' THEN '<default>' ELSE user_name END AS user_name,
       CASE client_id WHEN '' THEN '<default>' ELSE client_id END AS client_id,
       CASE ip WHEN '' THEN '<default>' ELSE ip END AS ip,
       quota_key AS quota, value,
       CASE WHEN quota_key LIKE '%_byte_rate' THEN pg_size_pretty(value::numeric)
            WHEN quota_key = 'request_percentage' THEN value || ' % of a thread'
            WHEN quota_key = 'controller_mutation_rate' THEN value || ' partitions'
            WHEN quota_key = 'connection_creation_rate' THEN value || ' connections'
       END AS per_second,
       changed_at
FROM client_quota ORDER BY client_quota.user_name, client_quota.client_id, client_quota.ip, quota
""",
    # topics: with the number of records staged for each.
    "v_staged_token": """
SELECT s.token, date_trunc('milliseconds', clock_timestamp() - s.created_at) AS age,
       date_trunc('milliseconds', s.expires_at - clock_timestamp()) AS expires_in,
       s.batches, s.records, s.bytes, pg_size_pretty(s.bytes) AS size,
       (SELECT string_agg(topic || ' (' || records || ')', '; ' ORDER BY topic)
        FROM (SELECT b.topic, sum(b.record_count) AS records FROM staged_batch b
              WHERE b.token = s.token GROUP BY b.topic) AS by_topic) AS topics,
       s.created_at, s.staged_at
FROM staged_token s ORDER BY s.created_at
""",
    # transactions: with records of the topic. What is published is told by the position.
    "v_inbox": f"""
SELECT r.topic, count(DISTINCT r.xid) AS transactions, count(*) AS records,
       sum(coalesce(octet_length(r.key), 0) + coalesce(octet_length(r.value), 0))::bigint AS bytes,
       date_trunc('milliseconds', clock_timestamp() - min(c.committed_at)) AS age
FROM (SELECT * FROM inbox_position ORDER BY version DESC LIMIT 1) AS p
JOIN (SELECT xid, era, max(stamp) AS stamp, max(committed_at) AS committed_at
      FROM ({_of_slots("inbox_commit")}) AS of_slots GROUP BY xid, era) AS c
    ON c.era > p.era OR (c.era = p.era AND NOT pg_visible_in_snapshot(c.xid, p.published)
        AND NOT coalesce(pg_visible_in_snapshot(c.xid, p.target)
                         AND c.stamp <= p.after_stamp, false))
JOIN ({_of_slots("inbox_record")}) AS r ON r.xid = c.xid AND r.era = c.era
GROUP BY r.topic ORDER BY r.topic
""",
    "v_inbox_refused": """
SELECT topic, partition, records, bytes, reason, refused_at
FROM inbox_refused ORDER BY refused_at, refused_id
""",
    # batch_id: the highest published; -1 for a job that is not a stream.
    "v_published_batch": """
SELECT query_id, nullif(sink, '') AS sink, batch_id, published_at
FROM published_batch ORDER BY published_at
""",
    "v_segment": """
SELECT segment_id, retention_class,
       CASE WHEN sealed_at IS NULL THEN 'open' ELSE 'sealed' END AS state,
       pg_size_pretty(pg_total_relation_size(to_regclass('penstock.record_chunk_' || segment_id)))
           AS size,
       created_at, sealed_at, 'penstock.record_chunk_' || segment_id AS payload_table
FROM segment ORDER BY segment_id
""",
}


def digest() -> str:
    """A digest of these functions and views: shows whether a database has exactly these."""
    functions = (sorted(FUNCTIONS.items()), sql_doors.statements())
    text = repr((functions, sorted(VIEWS.items()), comments.statement()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def replace_statements() -> list[str]:
    """DDL that makes the functions and views, and replaces older ones."""
    return [
        *FUNCTIONS.values(),
        *sql_doors.statements(),
        *(f"DROP VIEW IF EXISTS {name}" for name in VIEWS),
        *(f"CREATE VIEW {name} AS {body}" for name, body in VIEWS.items()),
        comments.statement(),
    ]
