-- What becomes of one item. The rules are those of the lease machine; the queue's tests compare the two.

-- Notify those who wait. The shared lock keeps one who begins to wait until this transaction can be seen.
CREATE FUNCTION fray.tell_@V@(p_queue integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@LOCK@, p_queue);
    IF EXISTS (SELECT 1 FROM fray.queues WHERE number = p_queue AND waited_until > clock_timestamp()) THEN
        PERFORM pg_notify('fray_' || p_queue, '');
    END IF;
END $$;

CREATE FUNCTION fray.noted_@V@(i fray.items, p_most integer, p_now double precision, p_outcome text, p_error text)
RETURNS jsonb LANGUAGE sql AS $$
    SELECT CASE WHEN i.lease = '' OR p_most IS NULL THEN i.history ELSE i.history || jsonb_build_array(
        jsonb_build_array(i.attempt, p_outcome, i.leased_at, least(p_now, i.until), p_error)) END
$$;

-- Whether somebody has the item under this lease, which may have run out: nobody else has it yet, and it is not over. `p_most`
-- stands there once and late: a query that is given for it is done for few.
CREATE FUNCTION fray.is_held_@V@(i fray.items, p_queue integer, p_token text, p_most integer, p_now double precision)
RETURNS boolean LANGUAGE sql AS $$
    SELECT i.queue = p_queue AND i.lease = p_token AND p_token <> '' AND i.state < 2 AND (i.until > p_now OR NOT (
        coalesce(i.deadline <= p_now, false) OR coalesce(i.attempt >= p_most, false)))
$$;

CREATE FUNCTION fray.answer_@V@(r fray.replies, p_now double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM fray.replies WHERE queue = r.queue AND until <= p_now;
    INSERT INTO fray.replies VALUES (r.*)
        ON CONFLICT (queue, id) DO UPDATE SET outcome = r.outcome, payload = r.payload, until = r.until, askers = r.askers;
    PERFORM fray.tell_@V@(r.queue);
END $$;

-- Give an item up; its row is locked. `p_dated` says that its time passed.
CREATE FUNCTION fray.mark_dead_@V@(i fray.items, p_history jsonb, p_dated boolean, p_failure bytea, p_size integer, p_now double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fray.items SET state = 2, lease = '', leased_at = 0, until = 0, due = NULL, key = NULL, history = p_history,
        deadline = CASE WHEN p_dated THEN deadline END WHERE id = i.id;
    IF i.reply_ttl IS NOT NULL THEN
        PERFORM fray.answer_@V@(ROW(i.queue, i.id,
            CASE WHEN p_failure IS NOT NULL THEN 'error' WHEN p_dated THEN 'expired' ELSE 'dead' END,
            coalesce(p_failure, ''), p_now + i.reply_ttl, i.askers)::fray.replies, p_now);
    END IF;
    IF p_size IS NOT NULL THEN PERFORM fray.tell_@V@(i.queue); END IF;
END $$;

-- Have what ran out wait again, and give up what is over.
CREATE FUNCTION fray.sweep_@V@(p_queue integer, p_now double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q fray.queues;
    i fray.items;
    v_last boolean;
    v_changes bigint[] := '{0,0,0}';  -- of the counts, by state
BEGIN
    SELECT * INTO q FROM fray.queues WHERE number = p_queue;
    FOR i IN SELECT * FROM fray.items WHERE queue = p_queue AND due <= p_now ORDER BY due LIMIT 10000 FOR UPDATE SKIP LOCKED
    LOOP
        v_last := q.max_attempts IS NOT NULL AND i.lease <> '' AND i.attempt >= q.max_attempts;
        v_changes[i.state + 1] := v_changes[i.state + 1] - 1;
        IF v_last OR coalesce(i.deadline <= p_now, false) THEN
            PERFORM fray.mark_dead_@V@(i, fray.noted_@V@(i, q.max_attempts, p_now, 'expired', NULL), NOT v_last, NULL, q.max_size, p_now);
            v_changes[3] := v_changes[3] + 1;
        ELSE
            UPDATE fray.items SET state = 0, due = deadline WHERE id = i.id;
            v_changes[1] := v_changes[1] + 1;
        END IF;
    END LOOP;
    PERFORM fray.count_@V@(p_queue, v_changes[1], v_changes[2], v_changes[3]);
    IF v_changes[3] > 0 THEN PERFORM fray.trim_@V@(p_queue); END IF;
END $$;

-- Begin a call that looks at what is there. Returns the time.
CREATE FUNCTION fray.look_@V@(p_now double precision, p_queue integer) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE v_now double precision := fray.time_@V@(p_now, p_queue);
BEGIN
    PERFORM fray.sweep_@V@(p_queue, v_now);
    RETURN v_now;
END $$;

CREATE FUNCTION fray.next_change_@V@(p_queue integer, p_now double precision) RETURNS double precision LANGUAGE sql AS $$
    SELECT greatest((SELECT due FROM fray.items WHERE queue = p_queue AND due IS NOT NULL ORDER BY due LIMIT 1) - p_now, 0)
$$;
