-- What is in a stored batch: from bytes to rows, for `read.sql`. Knows no table and no topic.
--
-- Raises feature_not_supported where SQL cannot open it, and data_corrupted, or what a place
-- outside of the bytes raises, where they are not what their header says. Must be given nothing but
-- the batch: where one lies about its sizes, whatever lies behind it would be shown.
--
-- delta: place among the batch's offsets. ms: since the epoch. first: leaves out what is before.
-- most: at most so many; NULL: all.

CREATE OR REPLACE FUNCTION penstock.int32_at(data bytea, pos integer) RETURNS integer
LANGUAGE sql IMMUTABLE RETURN (get_byte(data, pos) << 24) | (get_byte(data, pos + 1) << 16)
    | (get_byte(data, pos + 2) << 8) | get_byte(data, pos + 3);

CREATE OR REPLACE FUNCTION penstock.int64_at(data bytea, pos integer) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN (penstock.int32_at(data, pos)::bigint << 32)
    | (penstock.int32_at(data, pos + 4)::bigint & 4294967295);

-- NULL where it is not UTF-8, or has a NUL, which no text of PostgreSQL's may have. (To pin a
-- search_path costs as much again; here nothing is looked for in one.)
CREATE OR REPLACE FUNCTION penstock.utf8(data bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN pg_catalog.convert_from(data, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire THEN
    RETURN NULL;
END $$;

-- What is no text as psql shows bytes: \x…
CREATE OR REPLACE FUNCTION penstock.text_of(data bytea) RETURNS text
LANGUAGE sql IMMUTABLE RETURN coalesce(penstock.utf8(data), chr(92) || 'x' || encode(data, 'hex'));

CREATE OR REPLACE FUNCTION penstock.header_value(data bytea) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN CASE WHEN data IS NULL THEN jsonb 'null' ELSE coalesce(
    to_jsonb(penstock.utf8(data)),
    jsonb_build_object('base64', translate(encode(data, 'base64'), chr(10), ''))) END;

-- A name that comes several times has an array of its values, in order.
CREATE OR REPLACE FUNCTION penstock.headers_of(names bytea[], contents bytea[]) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    headers jsonb := '{}';
    name text;
    found jsonb;
BEGIN
    IF cardinality(names) > 50 THEN  -- one by one they would be copied as often
        RETURN (
            SELECT jsonb_object_agg(h.name, CASE h.times WHEN 1 THEN h.found -> 0 ELSE h.found END)
            FROM (
                SELECT penstock.text_of(u.name) AS name, count(*) AS times,
                       jsonb_agg(penstock.header_value(u.content) ORDER BY u.place) AS found
                FROM unnest(names, contents) WITH ORDINALITY AS u (name, content, place) GROUP BY 1
            ) AS h
        );
    END IF;
    FOR place IN 1 .. cardinality(names) LOOP
        name := penstock.text_of(names[place]);
        found := penstock.header_value(contents[place]);
        IF headers ? name THEN
            found := CASE jsonb_typeof(headers -> name)
                WHEN 'array' THEN headers -> name ELSE jsonb_build_array(headers -> name)
            END || jsonb_build_array(found);
        END IF;
        headers := headers || jsonb_build_object(name, found);
    END LOOP;
    RETURN headers;
END $$;

-- A number as both protocols write it: seven bits a byte, the lowest first, at most ten bytes.
CREATE OR REPLACE FUNCTION penstock.long_varint(data bytea, pos integer) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number bigint := 0;
    byte integer;
BEGIN
    FOR place IN 0 .. 9 LOOP
        byte := get_byte(data, pos + place);
        number := number | ((byte & 127)::bigint << (7 * place));
        IF byte < 128 THEN
            RETURN number;
        END IF;
    END LOOP;
    RAISE data_corrupted;
END $$;

CREATE OR REPLACE FUNCTION penstock.long_varint_end(data bytea, pos integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    WHILE get_byte(data, pos) > 127 LOOP
        pos := pos + 1;
    END LOOP;
    RETURN pos + 1;
END $$;

-- Most are of one byte or two. PostgreSQL makes these expressions a part of those that call them,
-- which is several times as quick as a call.
CREATE OR REPLACE FUNCTION penstock.varint_end(data bytea, pos integer) RETURNS integer
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN get_byte(data, pos) < 128 THEN pos + 1
    WHEN get_byte(data, pos + 1) < 128 THEN pos + 2
    ELSE penstock.long_varint_end(data, pos) END;

CREATE OR REPLACE FUNCTION penstock.varint(data bytea, pos integer) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN get_byte(data, pos) < 128 THEN get_byte(data, pos)
    WHEN get_byte(data, pos + 1) < 128
    THEN (get_byte(data, pos) & 127) | (get_byte(data, pos + 1) << 7)
    ELSE penstock.long_varint(data, pos) END;

-- The same with a sign, which is the lowest bit (zigzag).
CREATE OR REPLACE FUNCTION penstock.signed(number bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN ((number >> 1) & 9223372036854775807) # -(number & 1);

CREATE OR REPLACE FUNCTION penstock.signed_varint(data bytea, pos integer) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN get_byte(data, pos) < 128 THEN (get_byte(data, pos) >> 1) # -(get_byte(data, pos) & 1)
    WHEN get_byte(data, pos + 1) < 128
    THEN (((get_byte(data, pos) & 126) >> 1) | (get_byte(data, pos + 1) << 6))
        # -(get_byte(data, pos) & 1)
    ELSE penstock.signed(penstock.long_varint(data, pos)) END;

-- A record batch of Kafka's, magic 2 (DefaultRecordBatch, DefaultRecord).
CREATE OR REPLACE FUNCTION penstock.kafka_records(batch bytea, first integer, most integer)
RETURNS TABLE (delta integer, ms bigint, key bytea, value bytea, headers jsonb)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size CONSTANT integer := octet_length(batch);
    attributes CONSTANT integer := get_byte(batch, 22);
    is_stamped CONSTANT boolean := attributes & 8 <> 0;  -- LogAppendTime
    last_delta CONSTANT integer := penstock.int32_at(batch, 23);
    base_ms CONSTANT bigint := penstock.int64_at(batch, 27);
    records CONSTANT integer := penstock.int32_at(batch, 57);
    emitted integer := 0;
    previous integer := -1;
    pos integer := 61;
    stop integer;
    number bigint;
    names bytea[];
    contents bytea[];
BEGIN
    IF records > 0 AND attributes & 7 <> 0 THEN  -- compaction leaves empty ones as they were
        RAISE feature_not_supported USING MESSAGE = 'compressed with ' || coalesce(
            (ARRAY['gzip', 'snappy', 'lz4', 'zstd'])[attributes & 7], 'an unknown codec');
    END IF;
    ms := penstock.int64_at(batch, 35);  -- the greatest, and each one's where the log stamps them
    FOR record IN 1 .. records LOOP
        number := penstock.signed_varint(batch, pos);
        pos := penstock.varint_end(batch, pos);
        stop := pos + number;
        IF number < 0 OR stop > size THEN
            RAISE data_corrupted;
        END IF;
        pos := pos + 1;  -- attributes
        IF NOT is_stamped THEN
            number := penstock.signed_varint(batch, pos);
            IF (base_ms >> 62) IN (0, -1) AND (number >> 62) IN (0, -1) THEN
                ms := base_ms + number;
            ELSE  -- it wraps, as Java adds
                ms := (base_ms::numeric + number + 27670116110564327424) % 18446744073709551616
                    - 9223372036854775808;
            END IF;
        END IF;
        pos := penstock.varint_end(batch, pos);
        delta := penstock.signed_varint(batch, pos);
        pos := penstock.varint_end(batch, pos);
        IF delta <= previous OR delta > last_delta THEN
            RAISE data_corrupted;
        END IF;
        previous := delta;
        IF delta < first THEN
            pos := stop;
            CONTINUE;
        END IF;
        number := penstock.signed_varint(batch, pos);
        pos := penstock.varint_end(batch, pos);
        IF number < 0 THEN
            key := NULL;
        ELSE
            key := substring(batch, pos + 1, number::integer);
            pos := pos + number;
        END IF;
        number := penstock.signed_varint(batch, pos);
        pos := penstock.varint_end(batch, pos);
        IF number < 0 THEN
            value := NULL;
        ELSE
            value := substring(batch, pos + 1, number::integer);
            pos := pos + number;
        END IF;
        number := penstock.signed_varint(batch, pos);
        pos := penstock.varint_end(batch, pos);
        headers := '{}';
        IF number <> 0 THEN
            IF number < 0 THEN
                RAISE data_corrupted;
            END IF;
            names := '{}';
            contents := '{}';
            FOR header IN 1 .. number LOOP
                number := penstock.signed_varint(batch, pos);
                pos := penstock.varint_end(batch, pos);
                IF number < 0 THEN
                    RAISE data_corrupted;
                END IF;
                names := names || substring(batch, pos + 1, number::integer);
                pos := pos + number;
                number := penstock.signed_varint(batch, pos);
                pos := penstock.varint_end(batch, pos);
                contents := contents || CASE
                    WHEN number >= 0 THEN substring(batch, pos + 1, number::integer) END;
                pos := pos + greatest(number, 0);
            END LOOP;
            headers := penstock.headers_of(names, contents);
        END IF;
        IF pos <> stop THEN
            RAISE data_corrupted;
        END IF;
        RETURN NEXT;
        emitted := emitted + 1;
        IF emitted = most THEN
            RETURN;
        END IF;
    END LOOP;
END $$;

-- The fields of a message of Protocol Buffers in `data`, from `pos` up to `stop`. number: of a
-- varint, its bits. start, size: of bytes.
CREATE OR REPLACE FUNCTION penstock.protobuf_fields(data bytea, pos integer, stop integer)
RETURNS TABLE (field integer, number bigint, start integer, size integer)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind integer;
BEGIN
    WHILE pos < stop LOOP
        number := penstock.varint(data, pos);
        pos := penstock.varint_end(data, pos);
        field := number >> 3;
        kind := number & 7;
        IF kind IN (0, 2) THEN
            number := penstock.varint(data, pos);
            pos := penstock.varint_end(data, pos);
        END IF;
        IF kind = 1 THEN
            pos := pos + 8;
        ELSIF kind = 5 THEN
            pos := pos + 4;
        ELSIF kind = 2 AND number >= 0 THEN
            start := pos;
            size := number;
            pos := pos + size;
        ELSIF kind <> 0 THEN
            RAISE data_corrupted;
        END IF;
        IF pos > stop THEN
            RAISE data_corrupted;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- What is not the Base64 that it is said to be is the key as it is (gateway/pulsar/keys.py).
CREATE OR REPLACE FUNCTION penstock.key_of_base64(key bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    text CONSTANT text := convert_from(key, 'LATIN1');
BEGIN
    RETURN CASE WHEN text ~ '[[:space:]]' THEN key ELSE decode(text, 'base64') END;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN key;
END $$;

-- A property: a message with a name and a text.
CREATE OR REPLACE FUNCTION penstock.property_field(
    data bytea, pos integer, stop integer, wanted integer
) RETURNS bytea LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(
        (array_agg(substring($1, start + 1, size)) FILTER (WHERE field = $4))[1], '')
    FROM penstock.protobuf_fields($1, $2, $3)
$$;

-- An entry of Pulsar's: 0x0e01, checksum, size of the metadata, MessageMetadata, and one payload
-- or, in a batch, for each message a size, SingleMessageMetadata and its payload
-- (gateway/pulsar/entries.py). Fields go by their numbers in commands.proto.
CREATE OR REPLACE FUNCTION penstock.pulsar_messages(batch bytea, first integer, most integer)
RETURNS TABLE (delta integer, ms bigint, key bytea, value bytea, headers jsonb)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size CONSTANT integer := octet_length(batch);
    pos integer := 10;
    stop integer := 10 + penstock.int32_at(batch, 6);
    field record;
    published bigint;
    codec bigint := 0;
    messages bigint;  -- NULL: it is no batch
    chunks bigint := 1;
    is_encrypted boolean := false;
    is_base64 boolean := false;
    is_null boolean := false;
    is_gone boolean;
    payload_size integer;
    emitted integer := 0;
    names bytea[] := '{}';
    contents bytea[] := '{}';
BEGIN
    IF stop NOT BETWEEN pos AND size THEN
        RAISE data_corrupted;
    END IF;
    FOR field IN SELECT * FROM penstock.protobuf_fields(batch, pos, stop) AS f LOOP
        CASE field.field
            WHEN 3 THEN published := field.number;
            WHEN 4 THEN
                names := names || penstock.property_field(
                    batch, field.start, field.start + field.size, 1);
                contents := contents || penstock.property_field(
                    batch, field.start, field.start + field.size, 2);
            WHEN 6 THEN key := substring(batch, field.start + 1, field.size);
            WHEN 8 THEN codec := field.number;
            WHEN 11 THEN messages := field.number;
            WHEN 12 THEN ms := field.number;  -- event_time
            WHEN 13 THEN is_encrypted := true;
            WHEN 17 THEN is_base64 := field.number <> 0;
            WHEN 25 THEN is_null := field.number <> 0;
            WHEN 27 THEN chunks := field.number;
            ELSE NULL;
        END CASE;
    END LOOP;
    IF is_encrypted THEN
        RAISE feature_not_supported USING MESSAGE = 'encrypted by their producer';
    ELSIF chunks > 1 THEN
        RAISE feature_not_supported USING MESSAGE = 'a part of a message that was sent in chunks';
    ELSIF codec <> 0 THEN
        RAISE feature_not_supported USING MESSAGE = 'compressed with '
            || coalesce((ARRAY['LZ4', 'ZLIB', 'ZSTD', 'SNAPPY'])[codec], 'an unknown codec');
    END IF;
    IF messages IS NULL THEN
        delta := 0;
        ms := coalesce(ms, published);
        key := CASE WHEN is_base64 THEN penstock.key_of_base64(key) ELSE key END;
        value := CASE WHEN NOT is_null THEN substring(batch, stop + 1) END;
        headers := penstock.headers_of(names, contents);
        IF first < 1 THEN
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;
    IF messages NOT BETWEEN 1 AND size / 6 THEN
        RAISE data_corrupted;
    END IF;
    FOR place IN 0 .. messages - 1 LOOP
        delta := place;
        pos := stop + 4;
        stop := pos + penstock.int32_at(batch, stop);
        IF stop NOT BETWEEN pos AND size THEN
            RAISE data_corrupted;
        END IF;
        ms := published;
        key := NULL;
        names := '{}';
        contents := '{}';
        is_base64 := false;
        is_null := false;
        is_gone := false;
        payload_size := 0;
        FOR field IN SELECT * FROM penstock.protobuf_fields(batch, pos, stop) AS f LOOP
            CASE field.field
                WHEN 1 THEN
                    names := names || penstock.property_field(
                        batch, field.start, field.start + field.size, 1);
                    contents := contents || penstock.property_field(
                        batch, field.start, field.start + field.size, 2);
                WHEN 2 THEN key := substring(batch, field.start + 1, field.size);
                WHEN 3 THEN payload_size := field.number;
                WHEN 4 THEN is_gone := field.number <> 0;  -- by compaction
                WHEN 5 THEN ms := field.number;  -- event_time
                WHEN 6 THEN is_base64 := field.number <> 0;
                WHEN 9 THEN is_null := field.number <> 0;
                ELSE NULL;
            END CASE;
        END LOOP;
        pos := stop;
        stop := pos + payload_size;
        IF stop NOT BETWEEN pos AND size THEN
            RAISE data_corrupted;
        END IF;
        CONTINUE WHEN is_gone OR delta < first;
        key := CASE WHEN is_base64 THEN penstock.key_of_base64(key) ELSE key END;
        value := CASE WHEN NOT is_null THEN substring(batch, pos + 1, payload_size) END;
        headers := penstock.headers_of(names, contents);
        RETURN NEXT;
        emitted := emitted + 1;
        IF emitted = most THEN
            RETURN;
        END IF;
    END LOOP;
END $$;

-- By how it is stored: `record_batch.format`.
CREATE OR REPLACE FUNCTION penstock.records_in(
    format smallint, batch bytea, first integer, most integer
) RETURNS TABLE (delta integer, ms bigint, key bytea, value bytea, headers jsonb)
LANGUAGE sql IMMUTABLE BEGIN ATOMIC
    SELECT k.delta, k.ms, k.key, k.value, k.headers
    FROM penstock.kafka_records(batch, first, most) AS k WHERE format = 2
    UNION ALL
    SELECT p.delta, p.ms, p.key, p.value, p.headers
    FROM penstock.pulsar_messages(batch, first, most) AS p WHERE format = 16;
END;
