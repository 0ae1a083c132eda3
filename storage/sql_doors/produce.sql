-- Records that an application produces in a transaction of its own.
--
-- They wait in the inbox until a broker publishes them, in the order of COMMITs. That order is a
-- stamp: a number from a sequence, drawn by a deferred trigger, while the transaction holds all of
-- its locks. Whoever waited for this transaction, or saw what it did, draws a later one. It is drawn
-- in a *second* pass of deferred triggers, so behind what the application's own deferred triggers
-- and foreign keys wait for.

DO $do$ BEGIN
    CREATE TYPE penstock.header AS (name text, value bytea);
EXCEPTION WHEN duplicate_object THEN NULL;
END $do$;

-- An array of headers as JSON: so one function takes both.
CREATE OR REPLACE FUNCTION penstock.headers_as_json(headers penstock.header[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_agg(jsonb_build_object('name', h.name, 'hex', encode(h.value, 'hex'))
                     ORDER BY h.number)
    FROM unnest(headers) WITH ORDINALITY AS h (name, value, number)
$$;
DO $do$ BEGIN
    CREATE CAST (penstock.header[] AS jsonb) WITH FUNCTION penstock.headers_as_json AS IMPLICIT;
EXCEPTION WHEN duplicate_object THEN NULL;
END $do$;

-- Headers' names and values, in order, of an object {"name": "text"}, or an array of pairs
-- ["name", "text"] and of {"name": …, "hex": …}; null values as JSON's. Refuses anything else.
CREATE OR REPLACE FUNCTION penstock.read_headers(
    headers jsonb, OUT names text[], OUT contents bytea[]
) LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(headers) = 'object' THEN
        SELECT array_agg(h.key), array_agg(convert_to(h.value, 'UTF8')) INTO names, contents
        FROM jsonb_each_text(headers) AS h;
        RETURN;
    END IF;
    IF jsonb_typeof(headers) = 'array' AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(headers) AS h
        WHERE NOT coalesce(CASE jsonb_typeof(h)
            WHEN 'array' THEN jsonb_array_length(h) = 2 AND jsonb_typeof(h -> 0) = 'string'
            WHEN 'object' THEN jsonb_typeof(h -> 'name') = 'string' AND h ? 'hex'
        END, false)
    ) THEN
        SELECT array_agg(coalesce(h.value ->> 'name', h.value ->> 0) ORDER BY h.number),
               array_agg(CASE jsonb_typeof(h.value)
                         WHEN 'array' THEN convert_to(h.value ->> 1, 'UTF8')
                         ELSE decode(h.value ->> 'hex', 'hex') END ORDER BY h.number)
        INTO names, contents
        FROM jsonb_array_elements(headers) WITH ORDINALITY AS h (value, number);
        RETURN;
    END IF;
    RAISE EXCEPTION 'INVALID_RECORD: headers are an object, {"name": "value"}, or an array of '
        '["name", "value"], or of type penstock.header[]' USING ERRCODE = 'PS103';
END $$;

-- How many bytes a number takes as a varint (Kafka's ByteUtils.sizeOfVarint), if it is a size.
CREATE OR REPLACE FUNCTION penstock.varint_size(size integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN size < 64 THEN 1 WHEN size < 8192 THEN 2 WHEN size < 1048576 THEN 3
                WHEN size < 134217728 THEN 4 ELSE 5 END
$$;

-- How many bytes headers take in a record (DefaultRecord).
CREATE OR REPLACE FUNCTION penstock.headers_size(names text[], contents bytea[]) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sum(penstock.varint_size(octet_length(h.name)) + octet_length(h.name)
               + penstock.varint_size(coalesce(octet_length(h.content), 0))
               + coalesce(octet_length(h.content), 0))::integer
    FROM unnest(names, contents) AS h (name, content)
$$;

-- Takes a row in, or refuses what a broker would refuse later.
CREATE OR REPLACE FUNCTION penstock.take_record() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    door penstock.sql_door%ROWTYPE;
    found_topic record;
    key_bytes bytea := coalesce(NEW.key_bytes, convert_to(NEW.key, 'UTF8'));
    value_bytes bytea := coalesce(NEW.value_bytes, convert_to(NEW.value, 'UTF8'));
    header_names text[];
    header_values bytea[];
    now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
    stamp_ms bigint := now_ms;
    size integer;
    total bigint;
BEGIN
    SELECT * INTO STRICT door FROM penstock.sql_door;
    SELECT t.topic_id, t.is_internal,
           (SELECT c.value FROM penstock.config_entry c
            WHERE c.resource_type = 'topic' AND c.resource_name = t.topic_id::text
              AND c.name = 'max.message.bytes')::integer AS max_message_bytes,
           (SELECT c.value FROM penstock.config_entry c
            WHERE c.resource_type = 'topic' AND c.resource_name = t.topic_id::text
              AND c.name = 'cleanup.policy') AS cleanup_policy
    INTO found_topic FROM penstock.topic t WHERE t.name = NEW.topic;
    IF door.asks_rights THEN
        -- Before it is told whether there is such a topic.
        PERFORM penstock.refuse_unless(NEW.role, 'WRITE', 'TOPIC', NEW.topic);
    END IF;
    IF found_topic.topic_id IS NULL OR found_topic.is_internal THEN
        RAISE EXCEPTION 'UNKNOWN_TOPIC_OR_PARTITION: there is no topic "%" that one may write to',
            NEW.topic USING ERRCODE = 'PS101';
    END IF;
    IF NEW.partition IS NOT NULL AND NOT EXISTS (
        SELECT FROM penstock.topic_partition p
        WHERE p.topic_id = found_topic.topic_id AND p.partition = NEW.partition
    ) THEN
        RAISE EXCEPTION 'UNKNOWN_TOPIC_OR_PARTITION: topic "%" has no partition %',
            NEW.topic, NEW.partition USING ERRCODE = 'PS101';
    END IF;
    IF key_bytes IS NULL
       AND coalesce(found_topic.cleanup_policy ~ 'compact', door.is_compacted) THEN
        RAISE EXCEPTION 'INVALID_RECORD: topic "%" is compacted, and a record of it has a key',
            NEW.topic USING ERRCODE = 'PS103';
    END IF;
    IF NEW.headers IS NOT NULL THEN
        SELECT h.names, h.contents INTO header_names, header_values
        FROM penstock.read_headers(NEW.headers) AS h;
    END IF;
    IF NEW."timestamp" IS NOT NULL THEN
        stamp_ms := penstock.stamp_ms(found_topic.topic_id, NEW."timestamp", now_ms, door);
    END IF;
    -- Alone in its batch, without compression.
    size := 3 + penstock.varint_size(coalesce(octet_length(key_bytes), 0))
        + coalesce(octet_length(key_bytes), 0)
        + penstock.varint_size(coalesce(octet_length(value_bytes), 0))
        + coalesce(octet_length(value_bytes), 0)
        + penstock.varint_size(coalesce(cardinality(header_names), 0))
        + CASE WHEN header_names IS NULL THEN 0
               ELSE penstock.headers_size(header_names, header_values) END;
    size := 61 + size + penstock.varint_size(size);
    IF size > coalesce(found_topic.max_message_bytes, door.max_message_bytes) THEN
        RAISE EXCEPTION 'MESSAGE_TOO_LARGE: the record has % bytes, topic "%" takes %', size,
            NEW.topic, coalesce(found_topic.max_message_bytes, door.max_message_bytes)
            USING ERRCODE = 'PS102', HINT = 'Set the topic''s max.message.bytes.';
    END IF;
    -- The setting ends with the transaction, and goes back with a savepoint.
    total := size + coalesce(nullif(current_setting('penstock.bytes_in_transaction', true), ''),
                             '0')::bigint;
    IF total > door.max_transaction_bytes THEN
        RAISE EXCEPTION 'MESSAGE_TOO_LARGE: the transaction has produced % bytes, % are the limit',
            total, door.max_transaction_bytes USING ERRCODE = 'PS102',
            HINT = 'Commit more often, or raise penstock.sql.transaction.max.bytes.';
    END IF;
    PERFORM set_config('penstock.bytes_in_transaction', total::text, true);
    CASE door.slot
        WHEN 0 THEN
            INSERT INTO penstock.inbox_record_0 (xid, era, number, topic_id, topic, partition,
                timestamp_ms, key, value, header_names, header_values)
            VALUES (pg_current_xact_id(), door.era, nextval('penstock.inbox_number_seq'),
                found_topic.topic_id, NEW.topic, NEW.partition, stamp_ms, key_bytes, value_bytes,
                header_names, header_values);
        WHEN 1 THEN
            INSERT INTO penstock.inbox_record_1 (xid, era, number, topic_id, topic, partition,
                timestamp_ms, key, value, header_names, header_values)
            VALUES (pg_current_xact_id(), door.era, nextval('penstock.inbox_number_seq'),
                found_topic.topic_id, NEW.topic, NEW.partition, stamp_ms, key_bytes, value_bytes,
                header_names, header_values);
        WHEN 2 THEN
            INSERT INTO penstock.inbox_record_2 (xid, era, number, topic_id, topic, partition,
                timestamp_ms, key, value, header_names, header_values)
            VALUES (pg_current_xact_id(), door.era, nextval('penstock.inbox_number_seq'),
                found_topic.topic_id, NEW.topic, NEW.partition, stamp_ms, key_bytes, value_bytes,
                header_names, header_values);
    END CASE;
    RETURN NEW;
END $$;

-- A time that the application gives, in milliseconds; refuses what the topic does not take.
CREATE OR REPLACE FUNCTION penstock.stamp_ms(
    of_topic uuid, given timestamptz, now_ms bigint, door penstock.sql_door
) RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings jsonb;
    stamp_ms bigint;
BEGIN
    IF NOT isfinite(given) OR given < 'epoch' THEN
        RAISE EXCEPTION 'INVALID_TIMESTAMP: % is no time that a record has', given
            USING ERRCODE = 'PS103';
    END IF;
    stamp_ms := floor(extract(epoch FROM given) * 1000);
    SELECT coalesce(jsonb_object_agg(c.name, c.value), '{}') INTO settings
    FROM penstock.config_entry c
    WHERE c.resource_type = 'topic' AND c.resource_name = of_topic::text
      AND c.name LIKE 'message.timestamp.%';
    IF settings ->> 'message.timestamp.type' = 'LogAppendTime' THEN
        RETURN stamp_ms;  -- it gets another
    END IF;
    IF now_ms - stamp_ms > coalesce((settings ->> 'message.timestamp.before.max.ms')::bigint,
                                    door.timestamp_before_max_ms)
       OR stamp_ms - now_ms > coalesce((settings ->> 'message.timestamp.after.max.ms')::bigint,
                                       door.timestamp_after_max_ms) THEN
        RAISE EXCEPTION 'INVALID_TIMESTAMP: % is further from now than the topic takes', given
            USING ERRCODE = 'PS103',
                  HINT = 'See message.timestamp.before.max.ms and message.timestamp.after.max.ms.';
    END IF;
    RETURN stamp_ms;
END $$;

-- For INSERT and COPY. `role` is told by its default, in the name of whoever inserts, and nobody may
-- give it.
CREATE OR REPLACE VIEW penstock.outbox AS
SELECT NULL::text AS topic, NULL::text AS key, NULL::text AS value, NULL::jsonb AS headers,
       NULL::integer AS partition, NULL::timestamptz AS "timestamp", NULL::bytea AS key_bytes,
       NULL::bytea AS value_bytes, NULL::name AS role
WHERE false;
ALTER VIEW penstock.outbox ALTER COLUMN role SET DEFAULT current_user;
CREATE OR REPLACE TRIGGER take_record INSTEAD OF INSERT ON penstock.outbox
    FOR EACH ROW EXECUTE FUNCTION penstock.take_record();

COMMENT ON VIEW penstock.outbox IS
    'INSERT and COPY into it produce records when the transaction commits. It is always empty.';
COMMENT ON COLUMN penstock.outbox.topic IS 'Name of the topic.';
COMMENT ON COLUMN penstock.outbox.key IS 'The key, as text; null for none.';
COMMENT ON COLUMN penstock.outbox.value IS 'The value, as text or JSON; null for a tombstone.';
COMMENT ON COLUMN penstock.outbox.headers IS 'An object, or an array of pairs.';
COMMENT ON COLUMN penstock.outbox.partition IS
    'Number of the partition; null for the one that Kafka''s partitioner chooses.';
COMMENT ON COLUMN penstock.outbox."timestamp" IS 'The record''s time; null for now.';
COMMENT ON COLUMN penstock.outbox.key_bytes IS 'The key, if it is not text.';
COMMENT ON COLUMN penstock.outbox.value_bytes IS 'The value, if it is not text.';
COMMENT ON COLUMN penstock.outbox.role IS 'Whose rights are asked for; nobody may give it.';

-- They run in the caller's name, so that INSERT tells it. Nothing in them is looked for by a
-- search_path.
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key text, value text, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.outbox (topic, key, value, headers, partition, "timestamp")
    VALUES ($1, $2, $3, $4, $5, $6);
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key bytea, value bytea, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
    VALUES ($1, $2, $3, $4, $5, $6);
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key text, value bytea, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.outbox (topic, key, value_bytes, headers, partition, "timestamp")
    VALUES ($1, $2, $3, $4, $5, $6);
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key bytea, value text, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.outbox (topic, key_bytes, value, headers, partition, "timestamp")
    VALUES ($1, $2, $3, $4, $5, $6);
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key text, value jsonb, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.outbox (topic, key, value, headers, partition, "timestamp")
    VALUES ($1, $2, $3::pg_catalog.text, $4, $5, $6);
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key bytea, value jsonb, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.outbox (topic, key_bytes, value, headers, partition, "timestamp")
    VALUES ($1, $2, $3::pg_catalog.text, $4, $5, $6);
END $$;

-- --- at COMMIT ---

-- The first pass, of triggers that are made with the tables: once for each record, so that nothing an application sets can leave it out. Its
-- argument is the slot.
--
-- Where the application has made constraints IMMEDIATE it is too early: what it waits for from now on
-- would not count for the order. (A SET CONSTRAINTS inside of a function is not noticed.)
CREATE OR REPLACE FUNCTION penstock.begin_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() > 1 OR current_query() ILIKE 'set constraints%' THEN
        RAISE EXCEPTION 'what is produced takes its place at COMMIT, and constraints are IMMEDIATE'
            USING ERRCODE = 'PS104',
                  HINT = 'Name your own in SET CONSTRAINTS, or leave ALL DEFERRED until COMMIT.';
    END IF;
    CASE TG_ARGV[0]
        WHEN '0' THEN
            INSERT INTO penstock.inbox_transaction_0 VALUES (NEW.xid) ON CONFLICT DO NOTHING;
        WHEN '1' THEN
            INSERT INTO penstock.inbox_transaction_1 VALUES (NEW.xid) ON CONFLICT DO NOTHING;
        WHEN '2' THEN
            INSERT INTO penstock.inbox_transaction_2 VALUES (NEW.xid) ON CONFLICT DO NOTHING;
    END CASE;
    RETURN NULL;
END $$;

-- The second. NOTIFY makes all who commit wait for each other, so it is sent only where no broker
-- looks already: the one that does holds this lock for itself (`storage/inbox.py`). A transaction
-- that has written into two slots has two stamps; the later one counts.
CREATE OR REPLACE FUNCTION penstock.stamp_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    era_now integer := (SELECT era FROM penstock.sql_door);
    stamp bigint := nextval('penstock.inbox_stamp_seq');
BEGIN
    CASE TG_ARGV[0]
        WHEN '0' THEN INSERT INTO penstock.inbox_commit_0 VALUES (NEW.xid, era_now, stamp);
        WHEN '1' THEN INSERT INTO penstock.inbox_commit_1 VALUES (NEW.xid, era_now, stamp);
        WHEN '2' THEN INSERT INTO penstock.inbox_commit_2 VALUES (NEW.xid, era_now, stamp);
    END CASE;
    IF pg_try_advisory_lock_shared(5784113066287911025) THEN
        PERFORM pg_advisory_unlock_shared(5784113066287911025);
        PERFORM pg_notify('penstock_inbox', '');
    END IF;
    RETURN NULL;
END $$;
