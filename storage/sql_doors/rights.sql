-- Who may do what: the one list of rules (table `acl`), asked for a role of the database as
-- `Role:name`.

-- Whether a role may do it. A stand-in until the rules are here: where rights are asked for, nobody.
CREATE OR REPLACE FUNCTION penstock.may(
    role name, operation text, resource_type text, resource_name text
) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT asks_rights FROM penstock.sql_door
$$;

-- The same, or an error.
CREATE OR REPLACE FUNCTION penstock.refuse_unless(
    role name, operation text, resource_type text, resource_name text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT penstock.may(role, operation, resource_type, resource_name) THEN
        RAISE EXCEPTION '%_AUTHORIZATION_FAILED: role "%" may not % % "%"', resource_type, role,
            operation, lower(resource_type), resource_name USING ERRCODE = '42501';
    END IF;
END $$;
