-- What a client's connection did last, and what it changed of the counts.

-- The time, where the queue is there.
CREATE FUNCTION fray.time_@V@(p_now double precision, p_queue integer) RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fray.queues WHERE number = p_queue) THEN
        RAISE EXCEPTION 'the queue is not there' USING ERRCODE = 'FR001';
    END IF;
    RETURN p_now;
END $$;

-- Make a client's slot, with its first request, and return the queue's bound. A queue that is deleted has none.
CREATE FUNCTION fray.first_@V@(
    p_queue integer, p_slot bigint, p_number bigint, p_answer bigint[], p_ready bigint, p_held bigint, p_dead bigint
) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fray.time_@V@(NULL, p_queue);
    INSERT INTO fray.slots (queue, slot, number, answer, ready, held, dead)
        VALUES (p_queue, p_slot, p_number, p_answer, p_ready, p_held, p_dead) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another session does this request' USING ERRCODE = 'serialization_failure';
    END IF;
    IF p_dead = 0 THEN PERFORM fray.fold_@V@(p_queue); END IF;  -- else `trim` follows, which waits for others, with rows locked
    RETURN (SELECT max_size FROM fray.queues WHERE number = p_queue);
END $$;

-- Note what changed of the counts without a request's number, under a slot of the session.
CREATE FUNCTION fray.count_@V@(p_queue integer, p_ready bigint, p_held bigint, p_dead bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO fray.slots (queue, slot, ready, held, dead)
        SELECT p_queue, -pg_backend_pid(), p_ready, p_held, p_dead WHERE p_ready <> 0 OR p_held <> 0 OR p_dead <> 0
        ON CONFLICT (queue, slot) DO UPDATE SET ready = fray.slots.ready + excluded.ready,
            held = fray.slots.held + excluded.held, dead = fray.slots.dead + excluded.dead, at = clock_timestamp()
$$;

-- Where there are many slots, add those of clients that are gone for long to the session's: pushes add up all of them. It waits for
-- nobody, and is done where nothing that waits for a row comes after it: others may wait for the rows that it locks.
CREATE FUNCTION fray.fold_@V@(p_queue integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ready bigint;
    v_held bigint;
    v_dead bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fray.slots WHERE queue = p_queue OFFSET 500) THEN RETURN; END IF;
    WITH gone AS (
        DELETE FROM fray.slots WHERE queue = p_queue AND slot = ANY (ARRAY(
            SELECT slot FROM fray.slots WHERE queue = p_queue AND at < clock_timestamp() - interval '15 minutes' FOR UPDATE SKIP LOCKED
        )) RETURNING ready, held, dead
    ) SELECT sum(ready), sum(held), sum(dead) INTO v_ready, v_held, v_dead FROM gone;
    PERFORM fray.count_@V@(p_queue, v_ready, v_held, v_dead);
END $$;

-- Drop the dead beyond the queue's bound, the oldest first. It comes last, after `keep`.
CREATE FUNCTION fray.trim_@V@(p_queue integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_many bigint;
BEGIN
    SELECT (SELECT sum(dead) FROM fray.slots WHERE queue = p_queue) - max_dead INTO v_many FROM fray.queues WHERE number = p_queue;
    IF v_many <= 0 THEN RETURN; END IF;
    WITH gone AS (
        DELETE FROM fray.items WHERE id = ANY (ARRAY(
            SELECT id FROM fray.items WHERE queue = p_queue AND state = 2 ORDER BY id LIMIT v_many FOR UPDATE SKIP LOCKED
        )) RETURNING 1
    ) SELECT count(*) INTO v_many FROM gone;
    PERFORM fray.count_@V@(p_queue, 0, 0, -v_many);
    UPDATE fray.queues SET dropped = dropped + v_many WHERE number = p_queue;
END $$;

CREATE FUNCTION fray.counts_@V@(p_now double precision, p_queue integer) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_counts bigint[];
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    DELETE FROM fray.replies WHERE queue = p_queue AND until <= p_now;
    SELECT ARRAY[coalesce(sum(ready), 0), coalesce(sum(held), 0), coalesce(sum(dead), 0)]
        INTO v_counts FROM fray.slots WHERE queue = p_queue;
    PERFORM fray.fold_@V@(p_queue);
    RETURN v_counts || (SELECT dropped FROM fray.queues WHERE number = p_queue);
END $$;

-- All queues by name; what ran out meanwhile is not looked for.
CREATE FUNCTION fray.list_@V@()
RETURNS TABLE (o_name text, o_ready bigint, o_held bigint, o_dead bigint, o_dropped bigint)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT q.name, coalesce(sum(s.ready), 0)::bigint, coalesce(sum(s.held), 0)::bigint,
        coalesce(sum(s.dead), 0)::bigint, q.dropped
    FROM fray.queues q LEFT JOIN fray.slots s ON s.queue = q.number GROUP BY q.number ORDER BY q.name
$$;

-- The age of the oldest item that is not dead: of each priority the first in line, and all that are held. They are in the order
-- of their ends, and one more index for this would cost every call.
CREATE FUNCTION fray.oldest_@V@(p_now double precision, p_queue integer) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now double precision := fray.look_@V@(p_now, p_queue);
    v_oldest double precision;
BEGIN
    WITH RECURSIVE first AS (
        (SELECT priority, pushed_at FROM fray.items WHERE queue = p_queue AND state = 0 ORDER BY priority DESC, id LIMIT 1)
        UNION ALL
        SELECT lower.priority, lower.pushed_at FROM first, LATERAL (
            SELECT priority, pushed_at FROM fray.items WHERE queue = p_queue AND state = 0 AND priority < first.priority
                ORDER BY priority DESC, id LIMIT 1) AS lower
    ) SELECT min(pushed_at) INTO v_oldest FROM first;
    SELECT least(v_oldest, min(pushed_at)) INTO v_oldest FROM fray.items WHERE queue = p_queue AND due IS NOT NULL AND state = 1;
    RETURN CASE WHEN v_oldest IS NOT NULL THEN greatest(v_now - v_oldest, 0) END;
END $$;
