"""Functions and views: what psql shows. Replaced whole by each migration: they hold no data.

Plain words, plain times; a view must be quick, since a snapshot held open makes hot rows bloat.
"""

import hashlib

FUNCTIONS = {
    "version_mismatch": """
CREATE OR REPLACE FUNCTION version_mismatch() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row has another version than the one decided on' USING ERRCODE = 'PS001';
END $$
""",
    # pg_control_checkpoint() learns of a new timeline only at its next checkpoint; the name of the
    # WAL file being written begins with it at once.
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
}

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
    "v_topic_partition": """
SELECT t.name AS topic, p.partition, p.log_start_offset, p.next_offset AS high_watermark,
       p.next_offset - p.log_start_offset AS offsets, p.batch_count AS batches,
       pg_size_pretty(p.size_bytes) AS size, from_unix_ms(p.max_timestamp) AS newest_record,
       p.leader_epoch, p.size_bytes, p.partition_id
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
       'record_chunk_' || b.segment_id AS payload_table, b.payload_id, b.position
FROM record_batch b JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
WHERE b.last_offset >= p.log_start_offset
""",
    "v_broker": """
SELECT broker_id, host || ':' || port AS address, rack,
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
       from_unix_ms(s.last_timestamp) AS last_record, s.updated_at
FROM producer_state s JOIN topic_partition p USING (partition_id) JOIN topic t USING (topic_id)
""",
    "v_segment": """
SELECT segment_id, retention_class,
       CASE WHEN sealed_at IS NULL THEN 'open' ELSE 'sealed' END AS state,
       pg_size_pretty(pg_total_relation_size(to_regclass('record_chunk_' || segment_id))) AS size,
       created_at, sealed_at, 'record_chunk_' || segment_id AS payload_table
FROM segment ORDER BY segment_id
""",
}


def digest() -> str:
    """Tells whether a database has these very functions and views."""
    text = repr((sorted(FUNCTIONS.items()), sorted(VIEWS.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def replace_statements() -> list[str]:
    """DDL that puts the functions and views in place, whatever was there before."""
    return [
        *FUNCTIONS.values(),
        *(f"DROP VIEW IF EXISTS {name}" for name in VIEWS),
        *(f"CREATE VIEW {name} AS {body}" for name, body in VIEWS.items()),
    ]
