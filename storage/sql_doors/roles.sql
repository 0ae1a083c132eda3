-- Nobody calls anything but what is granted: penstock_producer, penstock_consumer, penstock_reader.
-- They are siblings; none may touch a table.

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA penstock FROM PUBLIC;

DO $do$
DECLARE
    role name;
BEGIN
    FOREACH role IN ARRAY ARRAY['penstock_producer', 'penstock_consumer', 'penstock_reader']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION
                WHEN insufficient_privilege THEN  -- somebody else may make it later
                    CONTINUE;
                WHEN duplicate_object OR unique_violation THEN  -- another database of the cluster
                    NULL;
            END;
        END IF;
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA penstock TO %I', role);
        CASE role
            WHEN 'penstock_producer' THEN
                GRANT INSERT (topic, key, value, headers, partition, "timestamp", key_bytes,
                    value_bytes) ON penstock.outbox TO penstock_producer;
                GRANT EXECUTE ON FUNCTION
                    penstock.produce(text, text, text, jsonb, integer, timestamptz),
                    penstock.produce(text, bytea, bytea, jsonb, integer, timestamptz),
                    penstock.produce(text, text, bytea, jsonb, integer, timestamptz),
                    penstock.produce(text, bytea, text, jsonb, integer, timestamptz),
                    penstock.produce(text, text, jsonb, jsonb, integer, timestamptz),
                    penstock.produce(text, bytea, jsonb, jsonb, integer, timestamptz),
                    penstock.headers_as_json(penstock.header[]),
                    penstock.take_record_unasked(text, bytea, bytea, jsonb, integer, timestamptz)
                    TO penstock_producer;
            WHEN 'penstock_consumer' THEN
                GRANT INSERT (group_id, topic, partition, committed_offset, metadata, member_id,
                    generation, instance_id, previous, group_metadata)
                    ON penstock.offset_box TO penstock_consumer;
                GRANT EXECUTE ON FUNCTION
                    penstock.commit_offsets(text, text, integer, bigint),
                    penstock.commit_offsets(text, text[], integer[], bigint[]),
                    penstock.commit_offsets(text, text, integer, bigint, bigint),
                    penstock.commit_offsets(text, text[], integer[], bigint[], bigint[]),
                    penstock.commit_offsets(text, text, integer, bigint, text, integer, text, text),
                    penstock.commit_offsets(text, text[], integer[], bigint[], text, integer, text,
                        text[]),
                    penstock.commit_offsets(bytea, text, integer, bigint),
                    penstock.commit_offsets(bytea, text[], integer[], bigint[])
                    TO penstock_consumer;
            ELSE NULL;
        END CASE;
    END LOOP;
END $do$;

DO $do$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'penstock_reader') THEN
        GRANT SELECT ON penstock.caller TO penstock_reader;
        GRANT EXECUTE ON FUNCTION
            penstock.read, penstock.read_text, penstock.read_between, penstock.read_between_text,
            penstock.records, penstock.text_of, penstock.utf8, penstock.proof
        TO penstock_reader;
    END IF;
END $do$;
