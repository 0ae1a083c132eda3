-- Who calls. Inside a function that runs as its owner `current_user` is the owner, `session_user`
-- does not know of SET ROLE, and what an argument says anybody can say. So the caller brings a
-- proof that only this view gives: in a view `current_user` is whoever reads it, while its tables
-- are read with its owner's rights. The proof is for this session and this transaction only (not
-- statement: a cursor goes on in later ones); stolen, it is of no use later. Nothing is written, so
-- it works where nothing can be.

CREATE OR REPLACE FUNCTION penstock.proof(secret uuid, role name) RETURNS bytea
LANGUAGE sql STABLE RETURN sha256(convert_to(concat_ws(
    ' ', 'caller', secret, pg_backend_pid(), extract(epoch FROM transaction_timestamp()), role
), 'UTF8'));

CREATE OR REPLACE VIEW penstock.caller WITH (security_barrier) AS
SELECT current_user AS role, penstock.proof(c.login_secret, current_user) AS proof
FROM penstock.cluster AS c LIMIT 1;  -- so that whoever plans knows that it is one row

COMMENT ON VIEW penstock.caller IS 'Who asks, and a proof of it for the functions in SQL.';
COMMENT ON COLUMN penstock.caller.role IS 'The current role.';
COMMENT ON COLUMN penstock.caller.proof IS 'Good for this session and this transaction only.';

-- For functions that run as the owner; nobody else may call it.
CREATE OR REPLACE FUNCTION penstock.is_caller(role name, proof bytea) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce($2 = penstock.proof(c.login_secret, $1), false) FROM penstock.cluster AS c
$$;
