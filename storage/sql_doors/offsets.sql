-- Offsets that an application commits in a transaction of its own, instead of commitSync().
--
-- A call writes down what is to be committed, and checks what can be known then. Nothing of the
-- group is locked before COMMIT, so a session that dawdles holds up nobody. At COMMIT the group's
-- row is locked FOR SHARE until all is over. The coordinator writes that row with every change of
-- the group or of a member, and tells clients afterwards. So a commit is in before the next owner
-- of a partition hears of it, and reads its offset; or it sees that the group has moved on, and
-- fails. What a refusal means is said once, in `core/group`; here the rows are compared, and a test
-- holds both against each other.

-- The key of a text that clients choose, and the text as it is stored (`client_text.py`). Without a
-- search_path of their own they become a part of the query.
CREATE OR REPLACE FUNCTION penstock.key_of(client_text text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.encode(pg_catalog.substring(
        pg_catalog.sha256(pg_catalog.convert_to(client_text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
CREATE OR REPLACE FUNCTION penstock.written(client_text text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.replace(client_text, '␀', '␀␀')
$$;

-- A group's shard (`core/shard.py`): the CRC-32 of its id, half a byte at a time, modulo 64.
-- PostgreSQL has a function for it from 18 on.
CREATE OR REPLACE FUNCTION penstock.shard_of(group_id text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    steps CONSTANT bigint[] := ARRAY[
        x'00000000'::bigint, x'1db71064'::bigint, x'3b6e20c8'::bigint, x'26d930ac'::bigint,
        x'76dc4190'::bigint, x'6b6b51f4'::bigint, x'4db26158'::bigint, x'5005713c'::bigint,
        x'edb88320'::bigint, x'f00f9344'::bigint, x'd6d6a3e8'::bigint, x'cb61b38c'::bigint,
        x'9b64c2b0'::bigint, x'86d3d2d4'::bigint, x'a00ae278'::bigint, x'bdbdf21c'::bigint];
    bytes bytea := convert_to(group_id, 'UTF8');
    crc bigint := x'ffffffff'::bigint;
BEGIN
    FOR n IN 0 .. octet_length(bytes) - 1 LOOP
        crc := crc # get_byte(bytes, n);
        crc := (crc >> 4) # steps[(crc & 15) + 1];
        crc := (crc >> 4) # steps[(crc & 15) + 1];
    END LOOP;
    RETURN (crc # x'ffffffff'::bigint) % 64;
END $$;

-- What confluent-kafka's consumer_group_metadata() returns: librdkafka's bytes
-- (rd_kafka_consumer_group_metadata_write), "CGMDv2:", the generation as the machine has it, the
-- group, the member, whether there is no instance, the instance. v1 had the group alone.
CREATE OR REPLACE FUNCTION penstock.read_group_metadata(
    data bytea, OUT group_id text, OUT generation integer, OUT member_id text, OUT instance_id text
) LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    version text := encode(substring(data FOR 7), 'escape');
    rest bytea := substring(data FROM CASE version WHEN 'CGMDv2:' THEN 12 ELSE 8 END);
BEGIN
    group_id := convert_from(penstock.before_nul(rest), 'UTF8');
    IF version = 'CGMDv2:' THEN
        generation := get_byte(data, 7) | (get_byte(data, 8) << 8) | (get_byte(data, 9) << 16)
            | (get_byte(data, 10) << 24);
        rest := substring(rest FROM octet_length(penstock.before_nul(rest)) + 2);
        member_id := convert_from(penstock.before_nul(rest), 'UTF8');
        rest := substring(rest FROM octet_length(member_id) + 2);
        IF get_byte(rest, 0) = 0 THEN
            instance_id := convert_from(penstock.before_nul(substring(rest FROM 2)), 'UTF8');
        END IF;
    ELSIF version <> 'CGMDv1:' THEN
        RAISE data_exception;
    END IF;
EXCEPTION
    WHEN data_exception THEN
        RAISE EXCEPTION 'INVALID_REQUEST: these bytes are not what consumer_group_metadata() gives'
            USING ERRCODE = 'PS211';
END $$;
CREATE OR REPLACE FUNCTION penstock.before_nul(bytes bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size integer := position('\x00'::bytea IN bytes) - 1;
BEGIN
    IF size < 0 THEN
        RAISE data_exception;
    END IF;
    RETURN substring(bytes FOR size);
END $$;

-- --- the call ---

-- Takes a row in, or refuses what is known to be refused later.
CREATE OR REPLACE FUNCTION penstock.take_offset() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    door penstock.sql_door%ROWTYPE;
    told record;
    taken penstock.inbox_offset_0%ROWTYPE;
BEGIN
    SELECT * INTO STRICT door FROM penstock.sql_door;
    IF NEW.group_metadata IS NOT NULL THEN
        told := penstock.read_group_metadata(NEW.group_metadata);
        IF NEW.group_id <> told.group_id OR NEW.member_id IS NOT NULL
           OR NEW.generation IS NOT NULL OR NEW.instance_id IS NOT NULL THEN
            RAISE EXCEPTION 'INVALID_REQUEST: the group metadata says already who commits'
                USING ERRCODE = 'PS211';
        END IF;
        NEW.group_id := told.group_id;
        NEW.member_id := told.member_id;
        NEW.generation := told.generation;
        NEW.instance_id := told.instance_id;
    END IF;
    IF NEW.group_id IS NULL OR NEW.topic IS NULL OR NEW.partition IS NULL
       OR NEW.committed_offset IS NULL THEN
        RAISE EXCEPTION 'INVALID_REQUEST: a commit has a group, a topic, a partition and an offset'
            USING ERRCODE = 'PS211', HINT = 'Arrays have to be of one length.';
    END IF;
    IF NEW.committed_offset < 0 OR NEW.previous < -1 THEN
        RAISE EXCEPTION 'INVALID_REQUEST: % is no offset',
            CASE WHEN NEW.committed_offset < 0 THEN NEW.committed_offset ELSE NEW.previous END
            USING ERRCODE = 'PS211';
    END IF;
    IF starts_with(NEW.group_id, 'pulsar-subscription:') THEN
        RAISE EXCEPTION 'INVALID_GROUP_ID: "%" names a subscription of Pulsar''s', NEW.group_id
            USING ERRCODE = 'PS209',
                  HINT = 'Acknowledge there, or by sendOffsetsToTransaction of a Kafka producer.';
    END IF;
    IF door.asks_rights THEN
        -- Before it is told whether there is such a topic.
        PERFORM penstock.refuse_unless(NEW.role, 'READ', 'GROUP', NEW.group_id);
        PERFORM penstock.refuse_unless(NEW.role, 'READ', 'TOPIC', NEW.topic);
    END IF;
    SELECT p.partition_id INTO taken.partition_id
    FROM penstock.topic t JOIN penstock.topic_partition p USING (topic_id)
    WHERE t.name = NEW.topic AND p.partition = NEW.partition;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'UNKNOWN_TOPIC_OR_PARTITION: there is no topic "%" with a partition %',
            NEW.topic, NEW.partition USING ERRCODE = 'PS101';
    END IF;
    -- Kafka counts as Java does: what is not in the first plane is two.
    IF octet_length(NEW.metadata) > door.max_metadata_bytes
       AND length(NEW.metadata) + length(regexp_replace(NEW.metadata, '[\u0001-\uffff]', '', 'g'))
           > door.max_metadata_bytes THEN
        RAISE EXCEPTION 'OFFSET_METADATA_TOO_LARGE: metadata may have % characters',
            door.max_metadata_bytes
            USING ERRCODE = 'PS210', HINT = 'Set offset.metadata.max.bytes.';
    END IF;
    IF coalesce(NEW.member_id, '') = '' AND coalesce(NEW.generation, -1) < 0
       AND NEW.instance_id IS NULL THEN  -- clients have these for nobody
        NEW.member_id := NULL;
        NEW.generation := NULL;
    ELSE
        NEW.member_id := coalesce(NEW.member_id, '');
        NEW.generation := coalesce(NEW.generation, -1);
    END IF;
    taken.group_key := penstock.key_of(NEW.group_id);
    taken.metadata := coalesce(penstock.written(NEW.metadata), '');
    CASE door.slot
        WHEN 0 THEN
            INSERT INTO penstock.inbox_offset_0 VALUES (pg_current_xact_id(),
                nextval('penstock.inbox_number_seq'), taken.group_key, NEW.group_id,
                taken.partition_id, NEW.committed_offset, taken.metadata, NEW.member_id,
                NEW.generation, NEW.instance_id, NEW.previous);
        WHEN 1 THEN
            INSERT INTO penstock.inbox_offset_1 VALUES (pg_current_xact_id(),
                nextval('penstock.inbox_number_seq'), taken.group_key, NEW.group_id,
                taken.partition_id, NEW.committed_offset, taken.metadata, NEW.member_id,
                NEW.generation, NEW.instance_id, NEW.previous);
        WHEN 2 THEN
            INSERT INTO penstock.inbox_offset_2 VALUES (pg_current_xact_id(),
                nextval('penstock.inbox_number_seq'), taken.group_key, NEW.group_id,
                taken.partition_id, NEW.committed_offset, taken.metadata, NEW.member_id,
                NEW.generation, NEW.instance_id, NEW.previous);
    END CASE;
    IF coalesce(current_setting(door.secret || '_offsets', true), '') <> 'done' THEN
        PERFORM set_config(door.secret || '_offsets', 'wait', true);
    END IF;
    RETURN NEW;
END $$;

-- For INSERT; the functions below are shorter. `role`: see penstock.outbox.
DO $do$ BEGIN
    IF to_regclass('penstock.offset_box') IS NULL THEN  -- as with the outbox
        CREATE VIEW penstock.offset_box AS
        SELECT NULL::text AS group_id, NULL::text AS topic, NULL::integer AS partition,
               NULL::bigint AS committed_offset, NULL::text AS metadata, NULL::text AS member_id,
               NULL::integer AS generation, NULL::text AS instance_id, NULL::bigint AS previous,
               NULL::bytea AS group_metadata, NULL::name AS role
        WHERE false;
        ALTER VIEW penstock.offset_box ALTER COLUMN role SET DEFAULT current_user;
        CREATE TRIGGER take_offset INSTEAD OF INSERT ON penstock.offset_box
            FOR EACH ROW EXECUTE FUNCTION penstock.take_offset();
    END IF;
END $do$;

COMMENT ON VIEW penstock.offset_box IS
    'INSERT into it commits offsets of groups when the transaction commits. It is always empty.';
COMMENT ON COLUMN penstock.offset_box.group_id IS 'Id of the group.';
COMMENT ON COLUMN penstock.offset_box.topic IS 'Name of the topic.';
COMMENT ON COLUMN penstock.offset_box.partition IS 'Number of the partition.';
COMMENT ON COLUMN penstock.offset_box.committed_offset IS
    'Offset of the next record to be read: one more than that of the last one done.';
COMMENT ON COLUMN penstock.offset_box.metadata IS 'Any text; null for none.';
COMMENT ON COLUMN penstock.offset_box.member_id IS 'Who commits; null for nobody in the group.';
COMMENT ON COLUMN penstock.offset_box.generation IS
    'The member''s generation, or its member epoch; null for nobody in the group.';
COMMENT ON COLUMN penstock.offset_box.instance_id IS 'Of a static member (group.instance.id).';
COMMENT ON COLUMN penstock.offset_box.previous IS
    'Commits only if this is what is committed; -1 for nothing yet, null for whatever it is.';
COMMENT ON COLUMN penstock.offset_box.group_metadata IS
    'What confluent-kafka''s consumer_group_metadata() returns, instead of group and member.';
COMMENT ON COLUMN penstock.offset_box.role IS 'Whose rights are asked for; nobody may give it.';

-- Of one offset, and of arrays. Which one is called follows from the number of arguments where a
-- driver tells the types of numbers, else from the names: those of arrays are in the plural. They
-- run in the caller's name, so that INSERT tells it. Nothing in them is looked for by a
-- search_path, not even an unnest of several.

-- From outside: only while the group has no members.
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_id text, topic text, partition integer, committed_offset bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_id, topic, partition, committed_offset)
    VALUES ($1, $2, $3, $4);
END $$;
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_id text, topics text[], partitions integer[], committed_offsets bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_id, topic, partition, committed_offset)
    SELECT $1, e.topic, e.partition, e.committed_offset
    FROM unnest($2, $3, $4) AS e (topic, partition, committed_offset);
END $$;
-- By whoever began the work where the group was; null for where nothing was committed.
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_id text, topic text, partition integer, committed_offset bigint, previous bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_id, topic, partition, committed_offset, previous)
    VALUES ($1, $2, $3, $4, coalesce($5, -1));
END $$;
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_id text, topics text[], partitions integer[], committed_offsets bigint[],
    previous bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.cardinality($5) OPERATOR(pg_catalog.<>) pg_catalog.cardinality($2) THEN
        RAISE EXCEPTION 'INVALID_REQUEST: for each topic and partition there is one previous offset'
            USING ERRCODE = 'PS211';
    END IF;
    INSERT INTO penstock.offset_box (group_id, topic, partition, committed_offset, previous)
    SELECT $1, e.topic, e.partition, e.committed_offset, coalesce(e.previous, -1)
    FROM unnest($2, $3, $4, $5) AS e (topic, partition, committed_offset, previous);
END $$;
-- By a member.
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_id text, topic text, partition integer, committed_offset bigint, member_id text,
    generation integer, instance_id text DEFAULT NULL, metadata text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_id, topic, partition, committed_offset, member_id,
        generation, instance_id, metadata)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8);
END $$;
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_id text, topics text[], partitions integer[], committed_offsets bigint[],
    member_id text, generation integer, instance_id text DEFAULT NULL, metadata text[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_id, topic, partition, committed_offset, member_id,
        generation, instance_id, metadata)
    SELECT $1, e.topic, e.partition, e.committed_offset, $5, $6, $7, e.metadata
    FROM unnest($2, $3, $4, $8) AS e (topic, partition, committed_offset, metadata);
END $$;
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_metadata bytea, topic text, partition integer, committed_offset bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_metadata, topic, partition, committed_offset)
    VALUES ($1, $2, $3, $4);
END $$;
CREATE OR REPLACE FUNCTION penstock.commit_offsets(
    group_metadata bytea, topics text[], partitions integer[], committed_offsets bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO penstock.offset_box (group_metadata, topic, partition, committed_offset)
    SELECT $1, e.topic, e.partition, e.committed_offset
    FROM unnest($2, $3, $4) AS e (topic, partition, committed_offset);
END $$;

-- --- at COMMIT ---

-- Whether the rows of a group let these commit: null, or Kafka's name of the refusal. It is core's
-- commit_refusal of a group just loaded, but for REBALANCE_IN_PROGRESS: between JoinGroup and
-- SyncGroup members know of a generation that is not stored yet. Until it is, the one before
-- counts: nobody has been told a partition of the next one.
CREATE OR REPLACE FUNCTION penstock.commit_refusal(
    of_group uuid, of_member text, in_generation integer, of_instance text
) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_group record;
    member record;
    instance_member text;
    is_known boolean;
BEGIN
    SELECT protocol, generation_id, state INTO found_group
    FROM penstock.consumer_group WHERE group_key = of_group;
    IF NOT FOUND THEN
        RETURN CASE WHEN in_generation >= 0 THEN 'GROUP_ID_NOT_FOUND' END;
    END IF;
    IF in_generation < 0 AND NOT EXISTS (
        SELECT FROM penstock.group_member WHERE group_key = of_group
    ) THEN
        RETURN NULL;
    END IF;
    SELECT protocol, member_epoch INTO member FROM penstock.group_member
    WHERE group_key = of_group AND member_key = penstock.key_of(of_member);
    is_known := FOUND;
    IF found_group.protocol = 'consumer' THEN
        RETURN CASE WHEN NOT is_known THEN 'UNKNOWN_MEMBER_ID'
                    WHEN member.member_epoch = in_generation THEN NULL
                    WHEN member.protocol = 'classic' THEN 'ILLEGAL_GENERATION'
                    ELSE 'STALE_MEMBER_EPOCH' END;
    END IF;
    IF of_instance IS NOT NULL THEN
        SELECT member_id INTO instance_member FROM penstock.group_member
        WHERE group_key = of_group AND group_instance_id = penstock.written(of_instance);
        IF instance_member <> penstock.written(of_member) THEN
            RETURN 'FENCED_INSTANCE_ID';
        END IF;
        is_known := is_known AND FOUND;
    END IF;
    IF found_group.state = 'CompletingRebalance'
       AND in_generation = found_group.generation_id % 2147483647 + 1 THEN
        RETURN 'REBALANCE_IN_PROGRESS';
    END IF;
    RETURN CASE WHEN NOT is_known THEN 'UNKNOWN_MEMBER_ID'
                WHEN in_generation <> found_group.generation_id THEN 'ILLEGAL_GENERATION' END;
END $$;

CREATE OR REPLACE FUNCTION penstock.refuse_commit(
    error text, group_id text, explanation text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%: group "%" %', error, group_id, explanation USING
        ERRCODE = CASE error
            WHEN 'UNKNOWN_TOPIC_OR_PARTITION' THEN 'PS101'
            WHEN 'UNKNOWN_MEMBER_ID' THEN 'PS201'
            WHEN 'ILLEGAL_GENERATION' THEN 'PS202'
            WHEN 'FENCED_INSTANCE_ID' THEN 'PS203'
            WHEN 'STALE_MEMBER_EPOCH' THEN 'PS204'
            WHEN 'REBALANCE_IN_PROGRESS' THEN 'PS205'
            WHEN 'GROUP_ID_NOT_FOUND' THEN 'PS206'
            WHEN 'PARTITION_NOT_ASSIGNED' THEN 'PS207'
            WHEN 'OFFSET_MOVED' THEN 'PS208'
        END,
        HINT = 'Roll back, and read on from the offset that is committed.';
END $$;

-- Commits a transaction's offsets, or fails. Locks are taken in the order of `docs/concurrency.md`:
-- groups that are to be made, all groups, offsets; each in order of keys.
CREATE OR REPLACE FUNCTION penstock.write_offsets(of_xid xid8) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    calls penstock.inbox_offset_0[];
    groups bigint;
    locked bigint;
    one record;
    who text;
    holding record;
    now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    IF current_query() ~* '^\s*prepare\s+transaction' THEN
        RAISE EXCEPTION 'a prepared transaction would hold up rebalances of its groups'
            USING ERRCODE = 'PS104';
    END IF;
    SELECT array_agg(ROW(o.*)::penstock.inbox_offset_0), count(DISTINCT o.group_key)
    INTO calls, groups FROM (
        SELECT * FROM penstock.inbox_offset_0 WHERE xid = of_xid
        UNION ALL SELECT * FROM penstock.inbox_offset_1 WHERE xid = of_xid
        UNION ALL SELECT * FROM penstock.inbox_offset_2 WHERE xid = of_xid
    ) AS o;
    -- Whoever is no member makes the group (MAKE_GROUPS in `storage/flush/groups.py`).
    INSERT INTO penstock.consumer_group (group_key, group_id, shard, protocol, protocol_type,
        generation_id, assignment_epoch, state, state_timestamp, waiting_for, metadata_hash)
    SELECT c.group_key, penstock.written(c.group_id), penstock.shard_of(c.group_id), 'classic', '',
        0, -1, 'Empty', -1, '{}', 0
    FROM unnest(calls) AS c
    WHERE NOT EXISTS (SELECT FROM penstock.consumer_group g WHERE g.group_key = c.group_key)
    GROUP BY c.group_key, c.group_id HAVING max(coalesce(c.generation, -1)) < 0
    ORDER BY c.group_key
    ON CONFLICT (group_key) DO NOTHING;
    PERFORM FROM penstock.consumer_group g
    WHERE g.group_key = ANY (ARRAY(SELECT c.group_key FROM unnest(calls) AS c))
    ORDER BY g.group_key FOR SHARE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked < groups AND EXISTS (
        SELECT FROM unnest(calls) AS c
        WHERE NOT EXISTS (SELECT FROM penstock.consumer_group g WHERE g.group_key = c.group_key)
        GROUP BY c.group_key HAVING max(coalesce(c.generation, -1)) < 0
    ) THEN
        RAISE EXCEPTION 'a group was deleted at this moment' USING ERRCODE = '40001',
            HINT = 'Try the transaction again.';
    END IF;
    -- Of several calls for one partition the last counts; each has to be right.
    FOR one IN
        SELECT c.*, p.partition, t.topic_id, t.name AS topic,
            lag(c.committed_offset) OVER place AS before,
            first_value(c.previous) OVER place AS expected,
            lead(c.number) OVER place IS NULL AS is_last
        FROM unnest(calls) AS c
        LEFT JOIN penstock.topic_partition p ON p.partition_id = c.partition_id
        LEFT JOIN penstock.topic t ON t.topic_id = p.topic_id
        WINDOW place AS (PARTITION BY c.group_key, c.partition_id ORDER BY c.number
                         ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
        ORDER BY c.group_key, c.partition_id, c.number
    LOOP
        IF one.topic IS NULL THEN
            PERFORM penstock.refuse_commit('UNKNOWN_TOPIC_OR_PARTITION', one.group_id,
                'commits an offset of a topic that has been deleted');
        END IF;
        -- `previous` says enough of somebody who says nothing else.
        IF one.member_id IS NOT NULL OR one.previous IS NULL THEN
            IF who IS DISTINCT FROM ROW(one.group_key, one.member_id, one.generation,
                                        one.instance_id)::text THEN
                PERFORM penstock.refuse_commit(r.error, one.group_id, CASE
                    WHEN one.member_id IS NULL THEN 'has members, and takes offsets of nobody else'
                    ELSE format('takes no offsets of member "%s" in generation %s', one.member_id,
                                one.generation) END)
                FROM penstock.commit_refusal(one.group_key, coalesce(one.member_id, ''),
                    coalesce(one.generation, -1), one.instance_id) AS r (error)
                WHERE r.error IS NOT NULL;
                who := ROW(one.group_key, one.member_id, one.generation, one.instance_id)::text;
                SELECT g.protocol, g.protocol_type, m.assigned, m.revoking INTO holding
                FROM penstock.consumer_group g JOIN penstock.group_member m USING (group_key)
                WHERE g.group_key = one.group_key
                  AND m.member_key = penstock.key_of(one.member_id);
            END IF;
            -- Kafka does not ask for it: a cooperative member may commit there, in the new
            -- generation, for what it has lost with it. What it has still to give back is its own.
            -- Of groups that are not consumers' nobody but they know who has what.
            IF (CASE
                WHEN holding.protocol = 'consumer' THEN NOT (
                    coalesce(holding.assigned -> one.topic_id::text @> to_jsonb(one.partition),
                             false)
                    OR coalesce(holding.revoking -> one.topic_id::text @> to_jsonb(one.partition),
                                false))
                WHEN holding.protocol_type = 'consumer' THEN NOT coalesce(
                    holding.assigned -> penstock.written(one.topic) @> to_jsonb(one.partition),
                    false)
            END) THEN
                PERFORM penstock.refuse_commit('PARTITION_NOT_ASSIGNED', one.group_id, format(
                    'has given topic "%s", partition %s, to another member than "%s", or to none',
                    one.topic, one.partition, one.member_id));
            END IF;
        END IF;
        IF one.previous <> one.before THEN
            PERFORM penstock.refuse_commit('OFFSET_MOVED', one.group_id, format(
                'has come to %s in topic "%s", partition %s, by this transaction, not to %s',
                one.before, one.topic, one.partition, one.previous));
        ELSIF NOT one.is_last THEN
            CONTINUE;
        ELSIF one.expected >= 0 THEN
            UPDATE penstock.committed_offset o SET committed_offset = one.committed_offset,
                leader_epoch = -1, metadata = one.metadata, commit_timestamp = now_ms,
                expire_timestamp = -1, commit_order = nextval('penstock.offset_commit_seq')
            WHERE o.group_key = one.group_key AND o.partition_id = one.partition_id
              AND o.committed_offset = one.expected;
        ELSE
            INSERT INTO penstock.committed_offset AS o (group_key, partition_id, committed_offset,
                leader_epoch, metadata, commit_timestamp, expire_timestamp, commit_order)
            VALUES (one.group_key, one.partition_id, one.committed_offset, -1, one.metadata, now_ms,
                -1, nextval('penstock.offset_commit_seq'))
            ON CONFLICT (group_key, partition_id) DO UPDATE
            SET committed_offset = excluded.committed_offset,
                leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
                commit_timestamp = excluded.commit_timestamp,
                expire_timestamp = excluded.expire_timestamp, commit_order = excluded.commit_order
            WHERE one.expected IS NULL;
        END IF;
        IF NOT FOUND THEN
            PERFORM penstock.refuse_commit('OFFSET_MOVED', one.group_id, format(
                'has come to %s in topic "%s", partition %s, meanwhile, not to %s',
                coalesce((SELECT o.committed_offset::text FROM penstock.committed_offset o
                          WHERE o.group_key = one.group_key AND o.partition_id = one.partition_id),
                         'no offset'), one.topic, one.partition,
                CASE one.expected WHEN -1 THEN 'none' ELSE one.expected::text END));
        END IF;
    END LOOP;
    -- What is called later, by a trigger of the application's that comes behind this, is refused.
    PERFORM set_config(d.secret || '_offsets', 'done', true) FROM penstock.sql_door d;
    RETURN true;
END $$;

-- The passes of an offset. Whichever trigger of the second pass comes first writes all of them.
-- for each slot
CREATE OR REPLACE FUNCTION penstock.begin_offsets_{slot}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM penstock.refuse_unless_commit();
    IF (SELECT current_setting(secret || '_offsets', true) FROM penstock.sql_door) = 'done' THEN
        RAISE EXCEPTION 'a deferred trigger has committed an offset behind the others'
            USING ERRCODE = 'PS104', HINT = 'Call it before COMMIT, or in the first such trigger.';
    END IF;
    INSERT INTO penstock.inbox_transaction_{slot} VALUES (NEW.xid, 0, true);
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION penstock.end_offsets_{slot}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() > 1 THEN  -- this trigger alone was made IMMEDIATE
        PERFORM penstock.refuse_unless_commit();
    END IF;
    IF (SELECT current_setting(secret || '_offsets', true) FROM penstock.sql_door) = 'wait' THEN
        PERFORM penstock.write_offsets(NEW.xid);
    END IF;
    RETURN NULL;
END $$;
-- end
