-- What every call that changes a queue has. Each call is a transaction. `p_now` is the engine's clock, which the call reads, or a
-- test's. Names end with the version of the store. `@DECLARE@`, `@ANSWERED@`, `@BOUNDS@` and `@KEEP …@` in the other files stand for these texts:
-- the usual case has two statements, one that does the work and `@KEEP@`, and few expressions: PostgreSQL prepares each anew for a
-- transaction, which takes microseconds, and a call within a call costs as much as a statement.

-- @DECLARE@
        v_most integer;  -- attempts
    v_size integer;
    v_waited boolean;
    v_known bigint;
    v_answer bigint[];

-- @ANSWERED@
        -- What this request was answered, if it was done. Nobody asks the first time: two that do it at the same time meet in
        -- `keep`, and the second is undone.
        SELECT number, CASE WHEN number = p_number THEN coalesce(answer, '{}') END INTO v_known, v_answer
            FROM fray.slots WHERE queue = p_queue AND slot = p_slot;
        IF v_known > p_number THEN
            RAISE EXCEPTION 'a later request of this client was answered' USING ERRCODE = 'FR003';
        END IF;

-- @BOUNDS@
    SELECT max_attempts, max_size, waited_until > clock_timestamp() INTO v_most, v_size, v_waited
        FROM fray.queues WHERE number = p_queue;

-- @KEEP answer; ready; held; dead; returning@
    -- The answer, and what changed of the counts. It comes last: no call waits for another's row after it.
    UPDATE fray.slots SET number = p_number, answer = {answer}, ready = ready + {ready}, held = held + {held},
        dead = dead + {dead}, at = clock_timestamp() WHERE queue = p_queue AND slot = p_slot AND number < p_number {returning};
    IF NOT FOUND THEN v_size := fray.first_@V@(p_queue, p_slot, p_number, {answer}, {ready}, {held}, {dead}); END IF;

-- @ADD id; payload; from@
        INSERT INTO fray.items (id, queue, state, priority, due, deadline, reply_ttl, askers, payload, pushed_at) OVERRIDING SYSTEM VALUE
            SELECT {id}, p_queue, (p_delay > 0)::integer, p_priority, least(p_now + nullif(p_delay, 0), p_now + p_ttl), p_now + p_ttl,
                p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer, {payload}, p_now {from};

-- @PUSH ids; id; payload; from@
        UPDATE fray.slots s SET number = p_number, answer = {ids}, at = clock_timestamp(),
            ready = ready + CASE WHEN p_delay > 0 THEN 0 ELSE cardinality(p_payloads) END,
            held = held + CASE WHEN p_delay > 0 THEN cardinality(p_payloads) ELSE 0 END FROM fray.queues q
            WHERE s.queue = p_queue AND s.slot = p_slot AND s.number < p_number AND q.number = p_queue AND q.max_size IS NULL
            RETURNING s.answer, q.waited_until > clock_timestamp() INTO v_answer, v_waited;
        IF FOUND THEN
@ADD {id}; {payload}; {from}@
            IF v_waited THEN PERFORM pg_notify('fray_' || p_queue, ''); END IF;
            RETURN v_answer;
        END IF;

-- @TAKE unless@
    RETURN QUERY UPDATE fray.items i SET state = 1, attempt = attempt + 1, lease = p_token, leased_at = p_now,
        until = p_now + p_seconds, due = p_now + p_seconds, history = fray.noted_@V@(
            i, (SELECT max_attempts FROM fray.queues WHERE number = p_queue), p_now, 'expired', NULL)
        WHERE id = ANY (ARRAY(SELECT id FROM fray.items WHERE queue = p_queue AND state = 0 AND {unless}
                              ORDER BY priority DESC, id LIMIT p_n FOR UPDATE SKIP LOCKED))
        RETURNING id, attempt, leased_at, until, reply_ttl IS NOT NULL OR key IS NOT NULL, payload, pushed_at, priority;
    GET DIAGNOSTICS v_taken = ROW_COUNT;
