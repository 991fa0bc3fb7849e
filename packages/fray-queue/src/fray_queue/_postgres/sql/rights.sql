-- What programs may do.

-- Give a role what a kind of program needs: 'producer', 'worker' or 'admin'. An upgrade gives it again.
CREATE FUNCTION fray.grant_rights(p_kind text, p_role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_producer text[] := '{open,exists,push,counts,oldest,peek,fetch,wait}';
    v_worker text[] := v_producer || '{pop,done,release,extend,give_back}'::text[];
    v_names text[] := CASE p_kind WHEN 'producer' THEN v_producer WHEN 'worker' THEN v_worker
        WHEN 'admin' THEN v_worker || '{dead,operate,delete,list}'::text[] END;
    v_function regprocedure;
BEGIN
    IF v_names IS NULL THEN
        RAISE EXCEPTION 'there are the rights of a producer, a worker and an admin; not of %', quote_literal(p_kind);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA fray TO %I', p_role);
    EXECUTE format('GRANT SELECT ON fray.store TO %I', p_role);
    FOR v_function IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'fray' AND p.proname = ANY (SELECT name || '_@V@' FROM unnest(v_names) AS name)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
    INSERT INTO fray.rights VALUES (p_kind, p_role) ON CONFLICT DO NOTHING;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fray FROM PUBLIC;
