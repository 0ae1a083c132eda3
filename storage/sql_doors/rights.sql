-- Who may do what: the one list of rules (table `acl`), asked for a role of the database as
-- `Role:name`. The decision is that of core/security/acls.py; a test compares the two.

-- --- a resource's other name (gateway/pulsar/names.py) ---

-- These two are parsed as they are made, so that they need no search_path, and cost no call.
CREATE OR REPLACE FUNCTION penstock.is_of_partition(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN coalesce(
    substring(name FROM '-partition-(0|[1-9][0-9]{0,9})$')::bigint <= 2147483647, false);

CREATE OR REPLACE FUNCTION penstock.is_legal_topic(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN name ~ '^[a-zA-Z0-9._-]{1,249}$' AND name NOT IN ('.', '..');

-- Tenant, namespace and name of the topic of Pulsar's whose escaped name this is; null if none's.
-- A zero byte is written as '/': text cannot hold it, neither can a rule, and no name has that.
CREATE OR REPLACE FUNCTION penstock.unescaped_topic(name text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    escaped text[] := string_to_array(substr(name, 8), '.');
    parts text[];
BEGIN
    IF NOT starts_with(name, 'pulsar.') OR length(name) > 249 OR cardinality(escaped) <> 3
       OR substr(name, 8) !~ '^([A-Za-z0-9_.]|-[0-9A-F]{2})+$' OR '' = ANY (escaped)
       -- What needs no escape has none.
       OR name ~ '-(3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A])' OR name ~ '-2F' THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(convert_from(p.bytes, 'UTF8') ORDER BY p.number) INTO parts
    FROM (
        SELECT e.number, string_agg(
            CASE WHEN m.found[1] = '-00' THEN '/'
                 WHEN starts_with(m.found[1], '-') THEN decode(substr(m.found[1], 2), 'hex')
                 ELSE convert_to(m.found[1], 'UTF8') END, '' ORDER BY m.number) AS bytes
        FROM unnest(escaped) WITH ORDINALITY AS e (part, number),
            regexp_matches(e.part, '-..|[^-]+', 'g') WITH ORDINALITY AS m (found, number)
        GROUP BY e.number
    ) AS p;
    IF parts[1] !~ '^[-=:.A-Za-z0-9_]+$' OR parts[2] !~ '^[-=:.A-Za-z0-9_]+$'
       OR penstock.is_of_partition(parts[3])
       -- All that Python takes for a space.
       OR btrim(parts[3], E'\t\n\u000b\f\r\u001c\u001d\u001e\u001f \u0085\u00a0\u1680\u2000'
           '\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f'
           '\u205f\u3000') = ''
       -- It has this name without an escape.
       OR parts[1] = 'public' AND parts[2] = 'default' AND penstock.is_legal_topic(parts[3])
          AND penstock.unescaped_topic(parts[3]) IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN parts;
EXCEPTION
    WHEN character_not_in_repertoire THEN
        RETURN NULL;
END $$;

-- The full name that Pulsar has for a topic, or for a subscription by its group's id.
CREATE OR REPLACE FUNCTION penstock.name_in_acls(resource_type text, name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    topic text := name;
    subscription text;
    parts text[];
BEGIN
    IF resource_type = 'GROUP' AND starts_with(name, 'pulsar-subscription:') THEN
        SELECT matched[1], matched[2] INTO topic, subscription
        FROM regexp_matches(name, '^pulsar-subscription:([^:]+):[0-9]{1,9}:(.+)$') AS matched;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    ELSIF resource_type <> 'TOPIC' OR NOT penstock.is_legal_topic(name) OR name IN
          ('__consumer_offsets', '__transaction_state', '__share_group_state') THEN
        RETURN NULL;
    END IF;
    IF strpos(topic, '-partition-') > 0 AND penstock.is_of_partition(topic) THEN
        RETURN NULL;
    END IF;
    IF starts_with(topic, 'pulsar.') THEN
        parts := penstock.unescaped_topic(topic);
    END IF;
    parts := coalesce(parts, ARRAY['public', 'default', topic]);
    IF resource_type = 'GROUP' THEN
        RETURN format('pulsar-subscription:persistent://%s/%s/:%s', parts[1], parts[2],
            subscription);
    END IF;
    RETURN 'persistent://' || array_to_string(parts, '/');
END $$;

-- --- where a session comes from ---

-- An address as Java writes it (core/security/principal.py).
CREATE OR REPLACE FUNCTION penstock.java_host(address inet) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bytes bytea := inet_send(address);
BEGIN
    IF family(address) = 4 THEN
        RETURN host(address);
    ELSIF address <<= '::ffff:0:0/96'::inet THEN
        RETURN concat_ws('.', get_byte(bytes, 16), get_byte(bytes, 17), get_byte(bytes, 18),
            get_byte(bytes, 19));
    END IF;
    RETURN (
        SELECT string_agg(to_hex(get_byte(bytes, n) * 256 + get_byte(bytes, n + 1)), ':' ORDER BY n)
        FROM generate_series(4, 18, 2) AS n
    );
END $$;

-- The session's own. By a Unix socket it comes from this machine; so do the server's own workers.
CREATE OR REPLACE FUNCTION penstock.client_host() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF inet_client_addr() IS NULL THEN
        RETURN '127.0.0.1';
    END IF;
    RETURN penstock.java_host(inet_client_addr());
END $$;

-- --- decisions ---

-- Whether a role may do it. Whoever asks for somebody else's sake says the role: `current_user` of
-- the caller, where that is another one. Where rights are not asked for, everybody may.
CREATE OR REPLACE FUNCTION penstock.may(
    role name, operation text, resource_type text, resource_name text
) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    door record;
    who text := 'Role:' || role::text;
    alias text;
    names text[];
    rules record;
    admins record;
    granting text[];
BEGIN
    SELECT d.asks_rights, d.allows_without_acl, d.super_users INTO door FROM penstock.sql_door AS d;
    IF door.asks_rights IS FALSE OR who = ANY (door.super_users) THEN
        RETURN true;
    END IF;
    IF num_nulls(role, operation, resource_type, resource_name) > 0 THEN
        RETURN false;
    END IF;
    -- By which operations an ALLOW grants one; a DENY takes away its own and no other.
    granting := ARRAY[operation, 'ALL'] || CASE operation
        WHEN 'DESCRIBE' THEN '{READ,WRITE,DELETE,ALTER}'::text[]
        WHEN 'DESCRIBE_CONFIGS' THEN '{ALTER_CONFIGS}'::text[] END;
    alias := penstock.name_in_acls(resource_type, resource_name);
    names := ARRAY[resource_name, alias, '*'];
    SELECT bool_or(a.permission = 'DENY' AND a.operation IN (may.operation, 'ALL')) AS is_denied,
           bool_or(a.permission = 'ALLOW' AND a.operation = ANY (granting)) AS is_allowed,
           -- One of those that nobody can read may forbid.
           EXISTS (
               SELECT FROM penstock.acl AS u
               WHERE NOT (
                   u.permission IN ('ALLOW', 'DENY')
                   AND u.operation IN ('ALL', 'READ', 'WRITE', 'CREATE', 'DELETE', 'ALTER',
                                       'DESCRIBE', 'CLUSTER_ACTION', 'DESCRIBE_CONFIGS',
                                       'ALTER_CONFIGS', 'IDEMPOTENT_WRITE', 'CREATE_TOKENS',
                                       'DESCRIBE_TOKENS', 'TWO_PHASE_COMMIT')
                   AND u.resource_type IN ('TOPIC', 'GROUP', 'CLUSTER', 'TRANSACTIONAL_ID',
                                           'DELEGATION_TOKEN', 'USER')
                   AND u.pattern_type IN ('LITERAL', 'PREFIXED'))
           ) AS is_unreadable
    INTO rules
    FROM (
        -- Those of the role, of all roles, and of whoever asks.
        SELECT l.permission, l.operation, l.host FROM penstock.acl AS l
        WHERE l.principal = ANY (ARRAY[who, 'Role:*', 'User:*'])
          AND octet_length(l.principal) <= 300
          AND l.resource_type = may.resource_type AND l.pattern_type = 'LITERAL'
          AND left(l.resource_name, 300) = ANY (ARRAY[left(may.resource_name, 300), left(alias, 300),
                                                       '*'])
          AND l.resource_name = ANY (names)
        UNION ALL
        SELECT p.permission, p.operation, p.host FROM penstock.acl AS p
        WHERE p.principal = ANY (ARRAY[who, 'Role:*', 'User:*'])
          AND octet_length(p.principal) <= 300
          AND p.resource_type = may.resource_type AND p.pattern_type = 'PREFIXED'
          AND (starts_with(may.resource_name, p.resource_name)
               OR starts_with(alias, p.resource_name))
    ) AS a
    WHERE a.host = '*' OR a.host = penstock.client_host();
    IF rules.is_unreadable OR rules.is_denied THEN
        RETURN false;
    ELSIF rules.is_allowed THEN
        RETURN true;
    END IF;
    -- What holds without a row: a tenant's admins may do everything to its topics.
    SELECT count(*) > 0 AS are_there, coalesce(bool_or('*' = ANY (t.admin_roles)), false) AS are_all
    INTO admins
    FROM penstock.tenant AS t,
        concat(CASE resource_type WHEN 'GROUP' THEN 'pulsar-subscription:' END,
               'persistent://', t.name, '/') AS prefix
    WHERE resource_type IN ('TOPIC', 'GROUP') AND t.admin_roles <> '{}'
      AND (starts_with(resource_name, prefix) OR starts_with(alias, prefix));
    IF admins.are_there OR NOT coalesce(door.allows_without_acl, false) THEN
        RETURN admins.are_all;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM penstock.acl AS a
        WHERE a.resource_type = may.resource_type AND CASE a.pattern_type
            WHEN 'PREFIXED' THEN starts_with(may.resource_name, a.resource_name)
                OR coalesce(starts_with(alias, a.resource_name), false)
            ELSE a.resource_name = ANY (names) END
    );
END $$;

-- The same, or an error. Ask it before it is told whether there is such a resource: names are not
-- given away.
CREATE OR REPLACE FUNCTION penstock.refuse_unless(
    role name, operation text, resource_type text, resource_name text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF penstock.may(role, operation, resource_type, resource_name) IS NOT TRUE THEN
        RAISE EXCEPTION '%_AUTHORIZATION_FAILED: role "%" may not % % "%": no ACL allows it',
            resource_type, role, operation, lower(replace(resource_type, '_', ' ')),
            left(resource_name, 300)
            USING ERRCODE = 'insufficient_privilege', HINT = format(
                'An administrator may give the right to the principal "Role:%s": see v_acl.', role);
    END IF;
END $$;
