-- A queue as a whole: made, looked for, waited for, removed.

CREATE FUNCTION fray.open_@V@(p_name text, p_tag text, p_attempts integer, p_size integer, p_dead integer)
RETURNS fray.queues LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE q fray.queues;
BEGIN
    SELECT * INTO q FROM fray.queues WHERE name = p_name;
    IF NOT FOUND THEN
        INSERT INTO fray.queues (name, tag, max_attempts, max_size, max_dead)
            VALUES (p_name, p_tag, p_attempts, p_size, coalesce(p_dead, @MOST_DEAD@)) ON CONFLICT (name) DO NOTHING;
        SELECT * INTO q FROM fray.queues WHERE name = p_name;
    END IF;
    IF p_attempts <> q.max_attempts THEN
        RAISE EXCEPTION 'max_attempts % %', q.max_attempts, p_attempts USING ERRCODE = 'FR004';
    ELSIF p_size <> q.max_size THEN
        RAISE EXCEPTION 'max_size % %', q.max_size, p_size USING ERRCODE = 'FR004';
    ELSIF p_dead <> q.max_dead AND q.max_dead <> @MOST_DEAD@ THEN
        RAISE EXCEPTION 'max_dead % %', q.max_dead, p_dead USING ERRCODE = 'FR004';
    END IF;
    IF (p_attempts, p_size, p_dead) IS DISTINCT FROM (q.max_attempts, q.max_size, q.max_dead)
        AND (p_attempts, p_size, p_dead) IS DISTINCT FROM (NULL::integer, NULL::integer, NULL::integer)
    THEN
        UPDATE fray.queues SET max_attempts = coalesce(p_attempts, max_attempts), max_size = coalesce(p_size, max_size),
            max_dead = coalesce(p_dead, max_dead) WHERE number = q.number RETURNING * INTO q;
    END IF;
    RETURN q;
END $$;

CREATE FUNCTION fray.exists_@V@(p_name text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT EXISTS (SELECT 1 FROM fray.queues WHERE name = p_name) $$;

-- Somebody waits for so long: until then pushes notify.
CREATE FUNCTION fray.wait_@V@(p_queue integer, p_seconds integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE fray.queues SET waited_until = clock_timestamp() + make_interval(secs => p_seconds) WHERE number = p_queue;
END $$;

CREATE FUNCTION fray.delete_@V@(p_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_number integer;
BEGIN
    DELETE FROM fray.queues WHERE name = p_name RETURNING number INTO v_number;
    DELETE FROM fray.items WHERE queue = v_number;
    DELETE FROM fray.replies WHERE queue = v_number;
    DELETE FROM fray.slots WHERE queue = v_number;
END $$;
