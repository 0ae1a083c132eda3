-- Topics read in SQL: `penstock.read` and what is like it. Described in docs/sql.md.
--
-- The functions that people call are single statements that run as their caller, so that the view
-- `caller` tells who that is; they are parsed when they are made (BEGIN ATOMIC), so that nobody's
-- search_path matters. `penstock.records` asks whether he may, and reads as the owner. All is seen
-- by the snapshot of the statement that calls (STABLE).
--
-- PS101: refused; the message begins with Kafka's error. PS110: SQL cannot open it. PS111: it is
-- damaged. 40001: deleted since the snapshot was taken.

-- A batch's bytes, put together once: to have each byte looked for in a row costs thirty times as
-- much. The only text that is executed is made of a number.
CREATE OR REPLACE FUNCTION penstock.batch_payload(
    segment_id integer, payload_id bigint, pos integer, size integer
) RETURNS bytea LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    chunk_bytes CONSTANT integer := 8000;
    payload bytea;
BEGIN
    EXECUTE format(
        'SELECT string_agg(c.data, '''' ORDER BY c.seq) FROM penstock.record_chunk_%s AS c'
        ' WHERE c.payload_id = $1 AND c.seq BETWEEN $2 AND $3', segment_id
    ) INTO payload USING payload_id, pos / chunk_bytes, (pos + size - 1) / chunk_bytes;
    payload := substring(payload, pos % chunk_bytes + 1, size);
    IF octet_length(payload) IS DISTINCT FROM size THEN
        RAISE undefined_table;
    END IF;
    RETURN payload;
END $$;

-- An offset below which all batches are older than `ms`: a binary search over offsets, since the
-- running maximum never falls (docs/decisions/0002).
CREATE OR REPLACE FUNCTION penstock.first_offset_at(
    of_partition bigint, low bigint, high bigint, ms bigint
) RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    middle bigint;
    batch record;
BEGIN
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT b.last_offset, b.running_max_timestamp INTO batch FROM penstock.record_batch AS b
        WHERE b.partition_id = of_partition AND b.last_offset >= middle
        ORDER BY b.last_offset LIMIT 1;
        IF batch.running_max_timestamp < ms THEN
            low := batch.last_offset + 1;
        ELSE
            high := middle;
        END IF;
    END LOOP;
    RETURN low;
END $$;

-- The next batches of a partition, by offset. is_left_out: of a transaction that was aborted, for
-- readers of committed data, or a marker.
CREATE OR REPLACE FUNCTION penstock.batches_of(
    of_partition bigint, low bigint, stop bigint, committed boolean, most integer
) RETURNS TABLE (
    base_offset bigint, last_offset bigint, payload_id bigint, "position" integer,
    segment_id integer, size integer, format smallint, max_timestamp bigint,
    running_max_timestamp bigint, is_left_out boolean
) LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH slice AS MATERIALIZED (
        SELECT * FROM penstock.record_batch AS b
        WHERE b.partition_id = $1 AND b.last_offset >= $2 AND b.last_offset < $3
        ORDER BY b.last_offset LIMIT $5
    ), extent AS (
        SELECT min(base_offset) AS low, max(last_offset) AS high FROM slice WHERE is_transactional
    ), aborted AS MATERIALIZED (
        SELECT a.producer_id, a.first_offset, a.last_offset
        FROM extent AS e JOIN penstock.aborted_transaction AS a
          ON a.partition_id = $1 AND a.last_offset >= e.low AND a.first_offset <= e.high
        WHERE $4
    )
    SELECT b.base_offset, b.last_offset, b.payload_id, b.position, b.segment_id, b.size, b.format,
           b.max_timestamp, b.running_max_timestamp,
           b.is_control OR b.is_transactional AND EXISTS (
               SELECT FROM aborted AS a
               WHERE a.producer_id = b.producer_id
                 AND b.base_offset >= a.first_offset AND b.last_offset <= a.last_offset)
    FROM slice AS b ORDER BY b.last_offset
$$;

-- Up to max_records of one partition or, by time, where that is NULL, of each. from_time, to_time:
-- only with timestamps from the one up to before the other; NULL: whatever they are. late: stops
-- where records are more than that later than to_time.
CREATE OR REPLACE FUNCTION penstock.records(
    role name, proof bytea, topic text, partition integer, from_offset bigint, max_records integer,
    committed boolean, from_time timestamptz, to_time timestamptz, late interval
) RETURNS TABLE (
    number integer, at bigint, stamp timestamptz, key bytea, value bytea, headers jsonb
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    log record;
    batch record;
    low bigint;
    payload bytea;
    left_over integer;
    taken integer;
    is_there boolean := false;
    batches_at_once CONSTANT integer := 500;
    year_10000_ms CONSTANT bigint := 253402300800000;
    from_ms CONSTANT bigint := CASE WHEN from_time IS NOT NULL THEN
        greatest(0, least(year_10000_ms, ceil(extract(epoch FROM from_time) * 1000))) END;
    to_ms CONSTANT bigint := CASE WHEN to_time IS NOT NULL THEN
        greatest(0, least(year_10000_ms, ceil(extract(epoch FROM to_time) * 1000))) END;
    late_ms CONSTANT numeric := extract(epoch FROM late) * 1000;
BEGIN
    IF NOT penstock.is_caller(role, proof) THEN
        RAISE 'TOPIC_AUTHORIZATION_FAILED: call penstock.read, which tells who calls'
            USING ERRCODE = 'PS101';
    ELSIF topic IS NULL OR from_offset IS NULL OR max_records IS NULL OR committed IS NULL
        OR partition IS NULL AND from_time IS NULL
    THEN
        RAISE 'INVALID_REQUEST: what to read must not be NULL' USING ERRCODE = 'PS101';
    ELSIF max_records < 0 THEN
        RAISE 'INVALID_REQUEST: max_records must not be negative, and is %', max_records
            USING ERRCODE = 'PS101';
    ELSIF from_offset < 0 THEN
        RAISE 'OFFSET_OUT_OF_RANGE: offsets begin at 0, and from_offset is %', from_offset
            USING ERRCODE = 'PS101';
    ELSIF late < interval '0' THEN
        RAISE 'INVALID_REQUEST: late must not be negative, and is %', late USING ERRCODE = 'PS101';
    ELSIF penstock.may(role, 'READ', 'TOPIC', topic) IS NOT TRUE THEN
        RAISE 'TOPIC_AUTHORIZATION_FAILED: role "%" may not READ topic "%"', role, topic
            USING ERRCODE = 'PS101';
    END IF;
    FOR log IN
        SELECT p.partition_id, p.partition AS number, p.log_start_offset, CASE
            WHEN records.committed THEN least(p.next_offset, (
                SELECT min(s.txn_first_offset) FROM penstock.producer_state AS s
                WHERE s.partition_id = p.partition_id AND s.txn_first_offset IS NOT NULL))
            ELSE p.next_offset END AS stop
        FROM penstock.topic AS t JOIN penstock.topic_partition AS p ON p.topic_id = t.topic_id
        WHERE t.name = records.topic
          AND (records.partition IS NULL OR p.partition = records.partition)
        ORDER BY p.partition
    LOOP
        left_over := max_records;
        low := greatest(from_offset, log.log_start_offset);
        IF from_ms IS NOT NULL THEN
            low := penstock.first_offset_at(log.partition_id, low, log.stop, from_ms);
        END IF;
        <<batches>>
        WHILE low < log.stop AND left_over > 0 LOOP
            FOR batch IN
                SELECT * FROM penstock.batches_of(log.partition_id, low, log.stop, committed,
                    greatest(16, least(batches_at_once, left_over)))
            LOOP
                EXIT batches WHEN batch.running_max_timestamp > to_ms + late_ms;
                taken := greatest(low - batch.base_offset, 0);  -- where in the batch to begin
                low := batch.last_offset + 1;
                CONTINUE WHEN batch.is_left_out OR batch.max_timestamp < from_ms;
                payload := penstock.batch_payload(
                    batch.segment_id, batch.payload_id, batch.position, batch.size);
                RETURN QUERY
                SELECT log.number, batch.base_offset + r.delta, penstock.from_unix_ms(r.ms),
                       r.key, r.value, r.headers
                FROM penstock.records_in(batch.format, payload, taken,
                    CASE WHEN from_ms IS NULL THEN left_over END) AS r
                WHERE from_ms IS NULL OR r.ms >= from_ms AND r.ms < to_ms LIMIT left_over;
                GET DIAGNOSTICS taken = ROW_COUNT;
                left_over := left_over - taken;
                EXIT batches WHEN left_over = 0;
            END LOOP;
            EXIT WHEN NOT FOUND;
        END LOOP;
        is_there := true;
    END LOOP;
    IF NOT is_there THEN
        RAISE 'UNKNOWN_TOPIC_OR_PARTITION: %', CASE
            WHEN EXISTS (SELECT FROM penstock.topic AS t WHERE t.name = records.topic)
            THEN format('topic "%s" has no partition %s', topic, partition)
            ELSE format('there is no topic "%s"', topic) END USING ERRCODE = 'PS101';
    END IF;
EXCEPTION
    WHEN undefined_table THEN
        RAISE 'OFFSET_OUT_OF_RANGE: offset % of partition % of topic "%" was deleted meanwhile',
            batch.base_offset, log.number, topic
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction.';
    WHEN feature_not_supported THEN
        RAISE 'UNSUPPORTED_COMPRESSION_TYPE: the records at offsets % to % of partition % of topic'
            ' "%" are %, which SQL cannot open',
            batch.base_offset, batch.last_offset, log.number, topic, SQLERRM
            USING ERRCODE = 'PS110', HINT = CASE batch.format
                WHEN 2 THEN 'Set compression.type=uncompressed for the topic: what is written from'
                    ' then on can be read.'
                ELSE 'Its producers have to send without compression, encryption and chunks.'
            END || format(' Read from offset %s on to leave these out.', batch.last_offset + 1);
    WHEN data_corrupted OR array_subscript_error OR numeric_value_out_of_range THEN
        RAISE 'CORRUPT_MESSAGE: the batch at offset % of partition % of topic "%" does not hold'
            ' what its header says', batch.base_offset, log.number, topic
            USING ERRCODE = 'PS111',
                HINT = format('Read from offset %s on to leave it out.', batch.last_offset + 1);
END $$;

-- Records of a partition, by offset, from an offset on: where the log begins later, from there on.
-- committed: up to the last stable offset, without what was aborted.
CREATE OR REPLACE FUNCTION penstock.read(
    topic text, partition integer, from_offset bigint DEFAULT 0, max_records integer DEFAULT 1000,
    committed boolean DEFAULT true
) RETURNS TABLE (
    "offset" bigint, "timestamp" timestamptz, key bytea, value bytea, headers jsonb
) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.at, r.stamp, r.key, r.value, r.headers
    FROM penstock.caller AS c CROSS JOIN LATERAL penstock.records(
        c.role, c.proof, topic, partition, from_offset, max_records, committed,
        NULL, NULL, NULL
    ) AS r;
END;

-- The same, with key and value as text.
CREATE OR REPLACE FUNCTION penstock.read_text(
    topic text, partition integer, from_offset bigint DEFAULT 0, max_records integer DEFAULT 1000,
    committed boolean DEFAULT true
) RETURNS TABLE (
    "offset" bigint, "timestamp" timestamptz, key text, value text, headers jsonb
) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r."offset", r."timestamp", penstock.text_of(r.key), penstock.text_of(r.value), r.headers
    FROM penstock.read(topic, partition, from_offset, max_records, committed) AS r;
END;

-- Records of all partitions, by time, from a time up to before another.
CREATE OR REPLACE FUNCTION penstock.read_between(
    topic text, from_time timestamptz, to_time timestamptz DEFAULT 'infinity',
    max_records integer DEFAULT 1000, committed boolean DEFAULT true, late interval DEFAULT NULL
) RETURNS TABLE (
    partition integer, "offset" bigint, "timestamp" timestamptz, key bytea, value bytea,
    headers jsonb
) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.number, r.at, r.stamp, r.key, r.value, r.headers
    FROM penstock.caller AS c CROSS JOIN LATERAL penstock.records(
        c.role, c.proof, topic, NULL, 0, max_records, committed,
        coalesce(from_time, '-infinity'), coalesce(to_time, 'infinity'), late
    ) AS r
    ORDER BY r.stamp, r.number, r.at LIMIT max_records;
END;

CREATE OR REPLACE FUNCTION penstock.read_between_text(
    topic text, from_time timestamptz, to_time timestamptz DEFAULT 'infinity',
    max_records integer DEFAULT 1000, committed boolean DEFAULT true, late interval DEFAULT NULL
) RETURNS TABLE (
    partition integer, "offset" bigint, "timestamp" timestamptz, key text, value text,
    headers jsonb
) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.partition, r."offset", r."timestamp", penstock.text_of(r.key),
           penstock.text_of(r.value), r.headers
    FROM penstock.read_between(topic, from_time, to_time, max_records, committed, late) AS r;
END;

COMMENT ON FUNCTION penstock.read IS 'Records of a partition from an offset on.';
COMMENT ON FUNCTION penstock.read_text IS 'Records of a partition, with key and value as text.';
COMMENT ON FUNCTION penstock.read_between IS 'Records of a topic by time.';
COMMENT ON FUNCTION penstock.read_between_text IS 'Records of a topic by time, as text.';
