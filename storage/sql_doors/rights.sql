-- Who may do what: the one list of rules (table `acl`), asked for a role of the database as
-- `Role:name`.

-- Whether a role may do it. A stand-in until the rules are here: where rights are asked for, nobody.
CREATE OR REPLACE FUNCTION penstock.may(
    role name, operation text, resource_type text, resource_name text
) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT asks_rights FROM penstock.sql_door
$$;
