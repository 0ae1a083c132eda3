-- Records that an application produces in a transaction of its own.
--
-- They wait in the inbox until a broker publishes them, in the order of COMMITs. That order is a
-- stamp: a number from a sequence, drawn by a deferred trigger, while the transaction holds all of
-- its locks. Whoever waited for this transaction, or saw what it did, draws a later one. It is
-- drawn in a *second* pass of deferred triggers, so behind what the application's own deferred
-- triggers and foreign keys wait for.

-- Which cluster this is. A stored column of it is made anew by whoever loads a dump, but not by a
-- backup of files, nor by pg_upgrade: so it tells whether transactions have other ids now. It is no
-- constant, but nothing else makes a column of it.
CREATE OR REPLACE FUNCTION penstock.present_cluster(only_row boolean) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT system_identifier FROM pg_catalog.pg_control_system() $$;

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
            WHEN 'object' THEN jsonb_typeof(h -> 'name') = 'string'
                AND (jsonb_typeof(h -> 'hex') = 'null' OR h ->> 'hex' ~ '^([0-9a-fA-F]{2})*$')
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

-- Takes a record in, or refuses what a broker would refuse later. role: whose rights are asked for;
-- null where that is not known: then false is returned if rights are asked for at all.
--
-- In a new transaction each statement and each expression of a function is set up anew, which costs
-- more than what it does. So one statement looks up, compares and inserts, in the usual case. The
-- slot was the last one's as a rule.
--
-- How much a transaction has produced is a setting of its own: it ends with it, and goes back with
-- a savepoint. Its name is a secret (`sql_door`), so that nobody else gives it.
CREATE OR REPLACE FUNCTION penstock.take_record(
    role name, topic text, key bytea, value bytea, headers jsonb, partition integer,
    "timestamp" timestamptz
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    checked record;
BEGIN
    IF role IS NULL AND headers IS NULL AND partition IS NULL AND "timestamp" IS NULL THEN
        CASE current_setting('penstock.slot', true)
            -- for each slot
            WHEN '{slot}' THEN
                INSERT INTO penstock.inbox_record_{slot} (xid, era, number, is_first, topic_id,
                    topic, timestamp_ms, key, value)
                SELECT pg_current_xact_id(),
                       d.era + (d.cluster <> d.cluster_of_era)::integer,
                       nextval('penstock.inbox_number_seq'),
                       set_config(d.secret, (s.before + s.size)::text, true) IS NOT NULL
                           AND s.before = 0,
                       t.topic_id, topic, extract(epoch FROM clock_timestamp()) * 1000, key, value
                FROM penstock.topic t, penstock.sql_door d, LATERAL (
                    SELECT coalesce(nullif(current_setting(d.secret, true), ''), '0')::bigint
                               AS before,
                           96::bigint + coalesce(octet_length(key), 0)
                               + coalesce(octet_length(value), 0) AS size OFFSET 0) AS s
                WHERE t.name = topic AND d.slot = {slot} AND NOT d.asks_rights
                  AND NOT t.is_internal AND (key IS NOT NULL OR NOT d.is_compacted)
                  AND s.size <= d.max_message_bytes
                  AND s.before + s.size <= d.max_transaction_bytes
                  AND NOT EXISTS (SELECT FROM penstock.config_entry c
                                  WHERE c.resource_type = 'topic'
                                    AND c.resource_name = t.topic_id::text
                                    AND c.name IN ('max.message.bytes', 'cleanup.policy'));
            -- end
            ELSE NULL;
        END CASE;
        IF FOUND THEN
            RETURN true;
        END IF;
    END IF;
    SELECT * INTO checked
    FROM penstock.check_record(role, topic, key, value, headers, partition, "timestamp");
    IF checked IS NULL THEN
        RETURN false;
    END IF;
    PERFORM set_config('penstock.slot', checked.slot::text, false);
    CASE checked.slot
        -- for each slot
        WHEN {slot} THEN
            INSERT INTO penstock.inbox_record_{slot} (xid, era, number, is_first, topic_id, topic,
                partition, timestamp_ms, key, value, header_names, header_values)
            VALUES (pg_current_xact_id(), checked.era, nextval('penstock.inbox_number_seq'),
                checked.is_first, checked.topic_id, topic, partition, checked.stamp_ms, key, value,
                checked.header_names, checked.header_values);
        -- end
    END CASE;
    RETURN true;
END $$;

-- What is wrong with a record, as an error; else what is to be inserted. No row where rights are
-- asked for and nobody's name is known.
CREATE OR REPLACE FUNCTION penstock.check_record(
    role name, topic text, key bytea, value bytea, headers jsonb, partition integer,
    "timestamp" timestamptz, OUT slot smallint, OUT era integer, OUT is_first boolean,
    OUT topic_id uuid, OUT stamp_ms bigint, OUT header_names text[], OUT header_values bytea[]
) RETURNS SETOF record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    door penstock.sql_door%ROWTYPE;
    found_topic penstock.topic%ROWTYPE;
    settings jsonb;
    now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
    size bigint;
    most integer;
    total bigint;
BEGIN
    SELECT * INTO STRICT door FROM penstock.sql_door;
    IF door.asks_rights THEN
        IF role IS NULL THEN
            RETURN;
        END IF;
        -- Before it is told whether there is such a topic.
        PERFORM penstock.refuse_unless(role, 'WRITE', 'TOPIC', topic);
    END IF;
    SELECT * INTO found_topic FROM penstock.topic t WHERE t.name = topic;
    IF found_topic.topic_id IS NULL OR found_topic.is_internal THEN
        RAISE EXCEPTION 'UNKNOWN_TOPIC_OR_PARTITION: there is no topic "%" that one may write to',
            topic USING ERRCODE = 'PS101';
    END IF;
    IF partition IS NOT NULL AND NOT EXISTS (
        SELECT FROM penstock.topic_partition p
        WHERE p.topic_id = found_topic.topic_id AND p.partition = check_record.partition
    ) THEN
        RAISE EXCEPTION 'UNKNOWN_TOPIC_OR_PARTITION: topic "%" has no partition %', topic, partition
            USING ERRCODE = 'PS101';
    END IF;
    SELECT coalesce(jsonb_object_agg(c.name, c.value), '{}') INTO settings
    FROM penstock.config_entry c
    WHERE c.resource_type = 'topic' AND c.resource_name = found_topic.topic_id::text;
    IF key IS NULL AND coalesce(settings ->> 'cleanup.policy' ~ 'compact', door.is_compacted) THEN
        RAISE EXCEPTION 'INVALID_RECORD: topic "%" is compacted, and a record of it has a key',
            topic USING ERRCODE = 'PS103';
    END IF;
    IF headers IS NOT NULL THEN
        SELECT h.names, h.contents INTO header_names, header_values
        FROM penstock.read_headers(headers) AS h;
    END IF;
    -- Alone in its batch, without compression.
    size := 3::bigint + penstock.varint_size(coalesce(octet_length(key), 0))
        + coalesce(octet_length(key), 0)
        + penstock.varint_size(coalesce(octet_length(value), 0))
        + coalesce(octet_length(value), 0)
        + penstock.varint_size(coalesce(cardinality(header_names), 0))
        + coalesce(penstock.headers_size(header_names, header_values), 0);
    size := 61 + size + penstock.varint_size(least(size, 2147483647)::integer);
    most := coalesce((settings ->> 'max.message.bytes')::integer, door.max_message_bytes);
    IF size > most THEN
        RAISE EXCEPTION 'MESSAGE_TOO_LARGE: the record has % bytes, topic "%" takes %', size, topic,
            most USING ERRCODE = 'PS102', HINT = 'Set the topic''s max.message.bytes.';
    END IF;
    total := coalesce(nullif(current_setting(door.secret, true), ''), '0');
    is_first := total = 0;
    total := total + size;
    IF total > door.max_transaction_bytes THEN
        RAISE EXCEPTION 'MESSAGE_TOO_LARGE: the transaction has produced % bytes, % are the limit',
            total, door.max_transaction_bytes USING ERRCODE = 'PS102',
            HINT = 'Commit more often, or raise penstock.sql.transaction.max.bytes.';
    END IF;
    PERFORM set_config(door.secret, total::text, true);
    slot := door.slot;
    -- In another cluster by now, where no broker has been yet, it has risen.
    era := door.era + (door.cluster <> door.cluster_of_era)::integer;
    topic_id := found_topic.topic_id;
    stamp_ms := now_ms;
    IF "timestamp" IS NOT NULL THEN
        IF NOT isfinite("timestamp") OR "timestamp" < 'epoch' THEN
            RAISE EXCEPTION 'INVALID_TIMESTAMP: % is no time that a record has', "timestamp"
                USING ERRCODE = 'PS103';
        END IF;
        stamp_ms := floor(extract(epoch FROM "timestamp") * 1000);
        -- Where the log stamps, it gets another one.
        IF coalesce(settings ->> 'message.timestamp.type', '') <> 'LogAppendTime' AND (
            now_ms - stamp_ms > coalesce((settings ->> 'message.timestamp.before.max.ms')::bigint,
                                         door.timestamp_before_max_ms)
            OR stamp_ms - now_ms > coalesce((settings ->> 'message.timestamp.after.max.ms')::bigint,
                                            door.timestamp_after_max_ms)) THEN
            RAISE EXCEPTION 'INVALID_TIMESTAMP: % is further from now than the topic takes',
                "timestamp" USING ERRCODE = 'PS103', HINT =
                'See message.timestamp.before.max.ms and message.timestamp.after.max.ms.';
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- The same for all who may produce, in nobody's name.
CREATE OR REPLACE FUNCTION penstock.take_record_unasked(
    topic text, key bytea, value bytea, headers jsonb, partition integer, "timestamp" timestamptz
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN penstock.take_record(NULL, topic, key, value, headers, partition, "timestamp");
END $$;

-- What is inserted into `outbox`.
CREATE OR REPLACE FUNCTION penstock.take_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF num_nonnulls(NEW.key, NEW.key_bytes) > 1 OR num_nonnulls(NEW.value, NEW.value_bytes) > 1 THEN
        RAISE EXCEPTION 'INVALID_RECORD: a key, and a value, is given as text or as bytes'
            USING ERRCODE = 'PS103';
    END IF;
    PERFORM penstock.take_record(
        NEW.role, NEW.topic, coalesce(NEW.key_bytes, convert_to(NEW.key, 'UTF8')),
        coalesce(NEW.value_bytes, convert_to(NEW.value, 'UTF8')), NEW.headers, NEW.partition,
        NEW."timestamp");
    RETURN NEW;
END $$;

-- For INSERT and COPY. `role` is told by its default, in the name of whoever inserts, and nobody
-- may give it. Not replaced: that would wait for all transactions that have produced, and all
-- others would wait behind it. What changes here, a migration changes.
DO $do$ BEGIN
    IF to_regclass('penstock.outbox') IS NULL THEN
        CREATE VIEW penstock.outbox AS
        SELECT NULL::text AS topic, NULL::text AS key, NULL::text AS value, NULL::jsonb AS headers,
               NULL::integer AS partition, NULL::timestamptz AS "timestamp",
               NULL::bytea AS key_bytes, NULL::bytea AS value_bytes, NULL::name AS role
        WHERE false;
        ALTER VIEW penstock.outbox ALTER COLUMN role SET DEFAULT current_user;
        CREATE TRIGGER take_row INSTEAD OF INSERT ON penstock.outbox
            FOR EACH ROW EXECUTE FUNCTION penstock.take_row();
    END IF;
END $do$;

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

-- They run in the caller's name, so that INSERT tells it where rights are asked for. Nothing in
-- them is looked for by a search_path.
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key text, value text, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT penstock.take_record_unasked(
        $1, pg_catalog.convert_to($2, 'UTF8'), pg_catalog.convert_to($3, 'UTF8'),
        $4, $5, $6
    ) THEN
        INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
        VALUES ($1, pg_catalog.convert_to($2, 'UTF8'), pg_catalog.convert_to($3, 'UTF8'),
                $4, $5, $6);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key bytea, value bytea, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT penstock.take_record_unasked(
        $1, $2, $3,
        $4, $5, $6
    ) THEN
        INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
        VALUES ($1, $2, $3,
                $4, $5, $6);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key text, value bytea, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT penstock.take_record_unasked(
        $1, pg_catalog.convert_to($2, 'UTF8'), $3,
        $4, $5, $6
    ) THEN
        INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
        VALUES ($1, pg_catalog.convert_to($2, 'UTF8'), $3,
                $4, $5, $6);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key bytea, value text, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT penstock.take_record_unasked(
        $1, $2, pg_catalog.convert_to($3, 'UTF8'),
        $4, $5, $6
    ) THEN
        INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
        VALUES ($1, $2, pg_catalog.convert_to($3, 'UTF8'),
                $4, $5, $6);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key text, value jsonb, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT penstock.take_record_unasked(
        $1, pg_catalog.convert_to($2, 'UTF8'), pg_catalog.convert_to($3::pg_catalog.text, 'UTF8'),
        $4, $5, $6
    ) THEN
        INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
        VALUES ($1, pg_catalog.convert_to($2, 'UTF8'),
                pg_catalog.convert_to($3::pg_catalog.text, 'UTF8'), $4, $5, $6);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION penstock.produce(
    topic text, key bytea, value jsonb, headers jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    "timestamp" timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT penstock.take_record_unasked(
        $1, $2, pg_catalog.convert_to($3::pg_catalog.text, 'UTF8'),
        $4, $5, $6
    ) THEN
        INSERT INTO penstock.outbox (topic, key_bytes, value_bytes, headers, partition, "timestamp")
        VALUES ($1, $2, pg_catalog.convert_to($3::pg_catalog.text, 'UTF8'),
                $4, $5, $6);
    END IF;
END $$;

-- --- at COMMIT ---
--
-- Triggers are made with the tables. The first pass is of a transaction's first record, or of each
-- offset that it commits (`offsets.sql`).

-- Where the application has made constraints IMMEDIATE it is too early: what it waits for from now
-- on would not count for the order. That is told by the statement, or by the context if a function
-- has called it; behind others in one text of the simple protocol it is not noticed. A prepared
-- transaction would end without waking a broker.
CREATE OR REPLACE FUNCTION penstock.refuse_unless_commit() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    context text;
    statement text := regexp_replace(left(current_query(), 1000),
                                     '^(\s|--[^\n]*\n|/\*.*?\*/)+', '');
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF pg_trigger_depth() > 1 OR statement ~* '^set\s+constraints'
       OR context ~* '\nsql function "|set\s+constraints|penstock\.take_(record|offset)' THEN
        RAISE EXCEPTION 'records and offsets take their place at COMMIT, and constraints are '
            'IMMEDIATE' USING ERRCODE = 'PS104',
                  HINT = 'Name your own in SET CONSTRAINTS, or leave ALL DEFERRED until COMMIT.';
    END IF;
    IF statement ~* '^prepare\s+transaction' THEN
        RAISE EXCEPTION 'a transaction with records or offsets cannot be prepared'
            USING ERRCODE = 'PS104';
    END IF;
END $$;

-- for each slot
CREATE OR REPLACE FUNCTION penstock.begin_commit_{slot}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() > 1 OR lower(left(current_query(), 6)) <> 'commit' THEN
        PERFORM penstock.refuse_unless_commit();
    END IF;
    INSERT INTO penstock.inbox_transaction_{slot} VALUES (NEW.xid, NEW.era);
    RETURN NULL;
END $$;
-- end

-- NOTIFY makes all who commit wait for each other, so it is sent only where no broker looks
-- already: the one that does holds this lock for itself (`storage/inbox.py`).
CREATE OR REPLACE FUNCTION penstock.wake_brokers() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_unlock_shared(5784113066287911025);
    PERFORM pg_notify('penstock_inbox', '');
END $$;

-- Offsets come first: where they wait for somebody, this transaction comes behind it.
-- What is produced from now on, in a deferred trigger that another one has called up, is as a first
-- record, and draws another stamp: the last one counts. (This trigger alone may have been made
-- IMMEDIATE: then it is in the first pass.)
-- for each slot
CREATE OR REPLACE FUNCTION penstock.stamp_commit_{slot}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO penstock.inbox_commit_{slot}
    SELECT NEW.xid, NEW.era, nextval('penstock.inbox_stamp_seq')
    FROM penstock.sql_door d WHERE set_config(d.secret, '0', true) IS NOT NULL
      AND (current_setting(d.secret || '_offsets', true) IS DISTINCT FROM 'wait'
           OR penstock.write_offsets(NEW.xid));
    IF pg_trigger_depth() > 1 THEN
        PERFORM penstock.refuse_unless_commit();
    ELSIF pg_try_advisory_lock_shared(5784113066287911025) THEN
        PERFORM penstock.wake_brokers();
    END IF;
    RETURN NULL;
END $$;
-- end
