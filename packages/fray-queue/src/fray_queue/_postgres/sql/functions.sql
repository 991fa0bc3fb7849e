-- What may be done to a queue: each call is a transaction. The rules are those of the lease machine; the queue's
-- tests compare the two. `p_now` is a test's clock; NULL is the engine's. Names end with the version of the store.
-- @DECLARE@, @ANSWERED@, @BOUNDS@ and @KEEP …@ stand for the texts in call.sql.

-- The time, for a call without a request's number.
CREATE FUNCTION fray.time_@V@(p_now double precision, p_queue integer) RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fray.queues WHERE number = p_queue) THEN
        RAISE EXCEPTION 'the queue is not there' USING ERRCODE = 'FR001';
    END IF;
    RETURN coalesce(p_now, date_part('epoch', clock_timestamp()));
END $$;

-- Make a client's slot, with its first request. A queue that is deleted has none.
CREATE FUNCTION fray.first_@V@(
    p_queue integer, p_slot bigint, p_number bigint, p_answer bigint[], p_ready bigint, p_held bigint, p_dead bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fray.time_@V@(NULL, p_queue);
    INSERT INTO fray.slots (queue, slot, number, answer, ready, held, dead)
        VALUES (p_queue, p_slot, p_number, p_answer, p_ready, p_held, p_dead) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another session does this request' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

-- Note what changed of the counts without a request's number, under a slot of the session.
CREATE FUNCTION fray.count_@V@(p_queue integer, p_ready bigint, p_held bigint, p_dead bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO fray.slots (queue, slot, ready, held, dead)
        SELECT p_queue, -pg_backend_pid(), p_ready, p_held, p_dead WHERE p_ready <> 0 OR p_held <> 0 OR p_dead <> 0
        ON CONFLICT (queue, slot) DO UPDATE SET ready = fray.slots.ready + excluded.ready,
            held = fray.slots.held + excluded.held, dead = fray.slots.dead + excluded.dead, at = clock_timestamp()
$$;

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
    SELECT CASE WHEN p_most IS NULL OR i.lease = '' THEN i.history ELSE i.history || jsonb_build_array(
        jsonb_build_array(i.attempt, p_outcome, i.leased_at, least(p_now, i.until), p_error)) END
$$;

-- Whether somebody has the item under this lease, which may have run out: nobody else has it yet, and it is not over.
CREATE FUNCTION fray.is_held_@V@(i fray.items, p_queue integer, p_token text, p_most integer, p_now double precision)
RETURNS boolean LANGUAGE sql AS $$
    SELECT i.queue = p_queue AND i.lease = p_token AND p_token <> '' AND i.state < 2 AND (i.until > p_now OR NOT (
        coalesce(i.deadline <= p_now, false) OR (p_most IS NOT NULL AND i.attempt >= p_most)))
$$;

CREATE FUNCTION fray.answer_@V@(r fray.replies, p_now double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM fray.replies WHERE queue = r.queue AND until <= p_now;
    INSERT INTO fray.replies VALUES (r.*)
        ON CONFLICT (queue, id) DO UPDATE SET outcome = r.outcome, payload = r.payload, until = r.until, askers = r.askers;
    PERFORM fray.tell_@V@(r.queue);
END $$;

-- Give an item up; its row is locked. `p_dated` says that its time passed.
CREATE FUNCTION fray.bury_@V@(i fray.items, p_history jsonb, p_dated boolean, p_failure bytea, p_size integer, p_now double precision)
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
            PERFORM fray.bury_@V@(i, fray.noted_@V@(i, q.max_attempts, p_now, 'expired', NULL), NOT v_last, NULL, q.max_size, p_now);
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

CREATE FUNCTION fray.push_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_payloads bytea[], p_priority integer,
    p_delay double precision, p_ttl double precision, p_reply_ttl double precision, p_keys text[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    v_live bigint;
    v_new bigint;
    v_id bigint;
BEGIN
    IF p_keys IS NULL THEN  -- who pushes a key may wait for another call, which must not wait for this lock
        -- Keeps one who begins to wait until this transaction can be seen.
        PERFORM pg_advisory_xact_lock_shared(@LOCK@, p_queue);
    END IF;
    IF p_again THEN
@ANSWERED@
        IF v_answer IS NOT NULL THEN RETURN v_answer; END IF;
    END IF;
@BOUNDS@
    IF v_size IS NOT NULL OR p_keys IS NOT NULL THEN
        -- Pushes into a bounded queue are done one after the other: else two would take the last place.
        IF v_size IS NOT NULL THEN PERFORM 1 FROM fray.queues WHERE number = p_queue FOR UPDATE; END IF;
        PERFORM fray.sweep_@V@(p_queue, v_now);  -- what is over needs no room, and its key is free
        SELECT count(*) FILTER (WHERE k IS NULL) + count(DISTINCT k) FILTER (WHERE NOT EXISTS (
            SELECT 1 FROM fray.items WHERE queue = p_queue AND key = k)) INTO v_new FROM unnest(p_payloads, p_keys) AS u (p, k);
        SELECT sum(ready + held) INTO v_live FROM fray.slots WHERE queue = p_queue;
        IF v_new > 0 AND coalesce(v_live, 0) + v_new > v_size THEN
            RAISE EXCEPTION '% % %', coalesce(v_live, 0), v_new, v_size USING ERRCODE = 'FR002';
        END IF;
    END IF;
    v_new := cardinality(p_payloads);
    IF p_keys IS NOT NULL THEN
        v_new := 0;
        FOR n IN 1 .. cardinality(p_payloads) LOOP
            LOOP
                INSERT INTO fray.items (queue, state, priority, due, deadline, reply_ttl, askers, payload, pushed_at, key)
                VALUES (p_queue, (p_delay > 0)::integer, p_priority, least(v_now + nullif(p_delay, 0), v_now + p_ttl), v_now + p_ttl,
                p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer, p_payloads[n], v_now, p_keys[n])
                ON CONFLICT (queue, key) WHERE key IS NOT NULL DO NOTHING RETURNING id INTO v_id;
                IF v_id IS NOT NULL THEN
                    v_new := v_new + 1;
                    EXIT;
                END IF;
                UPDATE fray.items SET askers = askers + (p_reply_ttl IS NOT NULL)::integer, reply_ttl = greatest(reply_ttl, p_reply_ttl)
                    WHERE queue = p_queue AND key = p_keys[n] RETURNING id INTO v_id;
                EXIT WHEN v_id IS NOT NULL;  -- else it was finished meanwhile, and its key is free
            END LOOP;
            v_answer := v_answer || v_id;
        END LOOP;
        v_waited := false;
        PERFORM fray.tell_@V@(p_queue);
    ELSIF v_new = 1 THEN
        INSERT INTO fray.items (queue, state, priority, due, deadline, reply_ttl, askers, payload, pushed_at)
            VALUES (p_queue, (p_delay > 0)::integer, p_priority, least(v_now + nullif(p_delay, 0), v_now + p_ttl), v_now + p_ttl,
                p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer, p_payloads[1], v_now)
            RETURNING ARRAY[id] INTO v_answer;
    ELSE
        v_answer := ARRAY(SELECT nextval('fray.items_id_seq') FROM generate_series(1, v_new));
        INSERT INTO fray.items (id, queue, state, priority, due, deadline, reply_ttl, askers, payload, pushed_at) OVERRIDING SYSTEM VALUE
            SELECT id, p_queue, (p_delay > 0)::integer, p_priority, least(v_now + nullif(p_delay, 0), v_now + p_ttl), v_now + p_ttl,
                p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer, payload, v_now
            FROM unnest(v_answer, p_payloads) AS u (id, payload);
    END IF;
@KEEP v_answer; CASE WHEN p_delay > 0 THEN 0 ELSE v_new END; CASE WHEN p_delay > 0 THEN v_new ELSE 0 END; 0@
    IF v_waited THEN PERFORM pg_notify('fray_' || p_queue, ''); END IF;
    RETURN v_answer;
END $$;

-- The rows come in no order. Kept is when the leases end: by that and the token a repeated request finds them.
CREATE FUNCTION fray.pop_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_n integer, p_seconds double precision,
    p_token text
) RETURNS TABLE (o_id bigint, o_attempt integer, o_leased_at double precision, o_until double precision, o_reply boolean,
                 o_payload bytea, o_pushed_at double precision, o_priority integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    v_due boolean;
    v_taken bigint;
BEGIN
    IF p_again THEN
@ANSWERED@
        IF v_answer IS NOT NULL THEN
            RETURN QUERY SELECT id, attempt, leased_at, until, reply_ttl IS NOT NULL OR key IS NOT NULL, payload, pushed_at, priority
                FROM fray.items WHERE queue = p_queue AND lease = p_token
                    AND due BETWEEN (v_answer[1] - 2) / 1e6::double precision AND (v_answer[1] + 2) / 1e6::double precision;
            RETURN;
        END IF;
    END IF;
    SELECT max_attempts, EXISTS (SELECT 1 FROM fray.items WHERE queue = p_queue AND due <= v_now) INTO v_most, v_due
        FROM fray.queues WHERE number = p_queue;
    IF v_due THEN PERFORM fray.sweep_@V@(p_queue, v_now); END IF;
    RETURN QUERY UPDATE fray.items i SET state = 1, attempt = attempt + 1, lease = p_token, leased_at = v_now,
        until = v_now + p_seconds, due = v_now + p_seconds, history = fray.noted_@V@(i, v_most, v_now, 'expired', NULL)
        WHERE id = ANY (ARRAY(SELECT id FROM fray.items WHERE queue = p_queue AND state = 0
                              ORDER BY priority DESC, id LIMIT p_n FOR UPDATE SKIP LOCKED))
        RETURNING id, attempt, leased_at, until, reply_ttl IS NOT NULL OR key IS NOT NULL, payload, pushed_at, priority;
    GET DIAGNOSTICS v_taken = ROW_COUNT;
    IF v_taken = 0 THEN
        PERFORM fray.time_@V@(p_now, p_queue);
        o_until := fray.next_change_@V@(p_queue, v_now);
        RETURN NEXT;
        RETURN;
    END IF;
@KEEP ARRAY[((v_now + p_seconds) * 1e6)::bigint]; -v_taken; v_taken; 0@
END $$;

CREATE FUNCTION fray.done_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_ids bigint[], p_tokens text[],
    p_outcomes text[], p_payloads bytea[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    v_done bigint[];
    v_ready bigint;
    v_replies fray.replies[];
    v_reply fray.replies;
BEGIN
    IF p_again THEN
@ANSWERED@
        IF v_answer IS NOT NULL THEN RETURN v_answer; END IF;
    END IF;
@BOUNDS@
    IF cardinality(p_ids) = 1 THEN
        DELETE FROM fray.items i WHERE id = p_ids[1] AND fray.is_held_@V@(i, p_queue, p_tokens[1], v_most, v_now)
            RETURNING '{1}', (state = 0)::integer, '{}', CASE WHEN reply_ttl IS NOT NULL THEN ARRAY[ROW(p_queue, id,
                coalesce(p_outcomes[1], 'value'), coalesce(p_payloads[1], ''), v_now + reply_ttl, askers)::fray.replies] END
            INTO v_done, v_ready, v_answer, v_replies;
    ELSE
        WITH gone AS (
            DELETE FROM fray.items i USING unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, place)
            WHERE i.id = u.id AND fray.is_held_@V@(i, p_queue, u.token, v_most, v_now)
            RETURNING u.place, i.id, i.state, i.reply_ttl, i.askers
        ) SELECT array_agg(place), count(*) FILTER (WHERE state = 0), CASE WHEN count(*) = cardinality(p_ids) THEN '{}' END,
            array_agg(ROW(p_queue, id, coalesce(p_outcomes[place], 'value'), coalesce(p_payloads[place], ''),
                          v_now + reply_ttl, askers)::fray.replies) FILTER (WHERE reply_ttl IS NOT NULL)
        INTO v_done, v_ready, v_answer, v_replies FROM gone;
    END IF;
    IF v_answer IS NULL THEN  -- which are lost, counted from 0
        v_answer := ARRAY(SELECT n - 1 FROM generate_series(1, cardinality(p_ids)) AS n
                          EXCEPT SELECT place - 1 FROM unnest(v_done) AS place ORDER BY 1);
    END IF;
    IF v_replies IS NOT NULL OR v_size IS NOT NULL THEN
        FOREACH v_reply IN ARRAY coalesce(v_replies, '{}') LOOP PERFORM fray.answer_@V@(v_reply, v_now); END LOOP;
        PERFORM fray.tell_@V@(p_queue);
    END IF;
@KEEP v_answer; -coalesce(v_ready, 0); coalesce(v_ready, 0) - coalesce(cardinality(v_done), 0); 0@
    RETURN v_answer;
END $$;

CREATE FUNCTION fray.release_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_id bigint, p_token text,
    p_delay double precision, p_error text, p_failure bytea, p_unreadable text, p_delays double precision[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    i fray.items;
    v_until double precision := CASE WHEN p_delay > 0 THEN v_now + p_delay END;
    v_history jsonb;
    v_last boolean;
    v_takers integer;
    v_state smallint := 2;
    v_changes bigint[] := '{0,0,0}';  -- of the counts, by state
BEGIN
    IF p_again THEN
@ANSWERED@
        IF v_answer IS NOT NULL THEN RETURN v_answer; END IF;
    END IF;
@BOUNDS@
    v_answer := '{0}';
    SELECT * INTO i FROM fray.items WHERE id = p_id FOR UPDATE;
    IF fray.is_held_@V@(i, p_queue, p_token, v_most, v_now) THEN
        v_answer := '{1}';
        v_last := coalesce(i.attempt >= v_most, false);
        IF p_unreadable IS NOT NULL THEN
            v_history := i.history || jsonb_build_array(
                jsonb_build_array(i.attempt, 'unreadable', i.leased_at, v_now, p_unreadable));
            SELECT count(*) INTO v_takers FROM jsonb_array_elements(v_history) AS h WHERE h ->> 1 = 'unreadable';
            v_last := v_last OR v_takers > cardinality(p_delays);
            v_until := v_now + p_delays[v_takers];
        ELSE
            v_history := fray.noted_@V@(i, v_most, v_now, CASE WHEN v_now < i.until THEN 'released' ELSE 'expired' END, p_error);
        END IF;
        IF v_last OR coalesce(i.deadline <= v_now, false) THEN
            PERFORM fray.bury_@V@(i, v_history, NOT v_last, p_failure, v_size, v_now);
        ELSE
            v_state := (v_until IS NOT NULL)::integer;
            v_until := CASE v_state WHEN 1 THEN least(v_until, i.deadline) END;
            UPDATE fray.items SET state = v_state, lease = '', leased_at = 0, until = coalesce(v_until, 0),
                due = coalesce(v_until, deadline), history = v_history WHERE id = p_id;
            PERFORM fray.tell_@V@(p_queue);
        END IF;
        v_changes[i.state + 1] := -1;
        v_changes[v_state + 1] := v_changes[v_state + 1] + 1;
    END IF;
@KEEP v_answer; v_changes[1]; v_changes[2]; v_changes[3]@
    IF v_changes[3] > 0 THEN PERFORM fray.trim_@V@(p_queue); END IF;
    RETURN v_answer;
END $$;

-- The leases of a session that are held still, locked: those of `p_ids`, and of each its place among them and its state.
CREATE FUNCTION fray.held_@V@(p_now double precision, p_queue integer, p_ids bigint[], p_tokens text[])
RETURNS TABLE (o_id bigint, o_place bigint, o_state smallint) LANGUAGE sql AS $$
    SELECT i.id, u.place, i.state FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, place)
    JOIN fray.queues q ON q.number = p_queue
    JOIN fray.items i ON i.id = u.id AND fray.is_held_@V@(i, p_queue, u.token, q.max_attempts, p_now) FOR UPDATE OF i
$$;

CREATE FUNCTION fray.extend_@V@(
    p_now double precision, p_queue integer, p_ids bigint[], p_tokens text[], p_seconds double precision
) RETURNS double precision[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now double precision := fray.time_@V@(p_now, p_queue);
    v_until double precision := v_now + p_seconds;
    v_ends double precision[] := array_fill(NULL::double precision, ARRAY[cardinality(p_ids)]);
    v_held bigint[];
    v_place bigint;
    v_back bigint;
BEGIN
    WITH held AS MATERIALIZED (SELECT * FROM fray.held_@V@(v_now, p_queue, p_ids, p_tokens)), extended AS (
        UPDATE fray.items SET until = v_until, due = v_until, state = 1 WHERE id = ANY (ARRAY(SELECT o_id FROM held))
    ) SELECT array_agg(o_place), count(*) FILTER (WHERE o_state = 0) INTO v_held, v_back FROM held;
    PERFORM fray.count_@V@(p_queue, -v_back, v_back, 0);
    FOREACH v_place IN ARRAY coalesce(v_held, '{}') LOOP v_ends[v_place] := v_until; END LOOP;
    RETURN v_ends;
END $$;

CREATE FUNCTION fray.give_back_@V@(p_now double precision, p_queue integer, p_ids bigint[], p_tokens text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now double precision := fray.time_@V@(p_now, p_queue);
    v_back bigint;
BEGIN
    WITH held AS MATERIALIZED (SELECT * FROM fray.held_@V@(v_now, p_queue, p_ids, p_tokens)), given_back AS (
        UPDATE fray.items SET state = 0, attempt = attempt - 1, lease = '', leased_at = 0, until = 0, due = deadline
        WHERE id = ANY (ARRAY(SELECT o_id FROM held))
    ) SELECT count(*) FILTER (WHERE o_state = 1) INTO v_back FROM held;
    PERFORM fray.tell_@V@(p_queue);
    PERFORM fray.count_@V@(p_queue, v_back, -v_back, 0);
END $$;

CREATE FUNCTION fray.peek_@V@(p_now double precision, p_queue integer) RETURNS TABLE (o_id bigint, o_payload bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    RETURN QUERY SELECT id, payload FROM fray.items WHERE queue = p_queue AND state = 0 ORDER BY priority DESC, id LIMIT 1;
END $$;

CREATE FUNCTION fray.counts_@V@(p_now double precision, p_queue integer) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_rows bigint;
    v_counts bigint[];
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    SELECT count(*), ARRAY[coalesce(sum(ready), 0), coalesce(sum(held), 0), coalesce(sum(dead), 0)]
        INTO v_rows, v_counts FROM fray.slots WHERE queue = p_queue;
    IF v_rows > 500 THEN  -- clients that are gone for long leave only what they changed
        WITH gone AS (
            DELETE FROM fray.slots WHERE queue = p_queue AND at < clock_timestamp() - interval '15 minutes' AND slot <> 0
            RETURNING ready, held, dead
        ) INSERT INTO fray.slots (queue, slot, ready, held, dead)
            SELECT p_queue, 0, sum(ready), sum(held), sum(dead) FROM gone HAVING count(*) > 0
            ON CONFLICT (queue, slot) DO UPDATE SET ready = fray.slots.ready + excluded.ready,
                held = fray.slots.held + excluded.held, dead = fray.slots.dead + excluded.dead;
    END IF;
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

CREATE FUNCTION fray.fetch_@V@(p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_ids bigint[])
RETURNS TABLE (o_change double precision, o_outcomes text[], o_payloads bytea[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    v_told boolean := false;
    v_item text;
    v_outcome text;
    v_payload bytea;
    i fray.items;
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    IF p_again THEN
@ANSWERED@
    END IF;
    o_outcomes := '{}';
    o_payloads := '{}';
    FOR n IN 1 .. cardinality(p_ids) LOOP
        -- The item before its answer: each statement sees what was committed before it, and `done` may come between.
        SELECT id, state, deadline INTO i.id, i.state, i.deadline FROM fray.items WHERE id = p_ids[n] AND queue = p_queue;
        v_item := CASE WHEN NOT FOUND THEN 'gone' WHEN i.state < 2 THEN '' WHEN i.deadline IS NULL THEN 'dead'
                  ELSE 'expired' END;
        SELECT outcome, payload INTO v_outcome, v_payload FROM fray.replies
            WHERE queue = p_queue AND id = p_ids[n] AND until > v_now;
        IF NOT FOUND THEN
            v_outcome := v_item;
            v_payload := '';
        ELSIF v_answer IS NULL AND v_outcome IN ('value', 'error') THEN
            UPDATE fray.replies SET askers = askers - 1, until = CASE WHEN askers <= 1
                THEN least(until, v_now + @KEPT@) ELSE until END WHERE queue = p_queue AND id = p_ids[n];
            v_told := true;
        END IF;
        o_outcomes := o_outcomes || v_outcome;
        o_payloads := o_payloads || v_payload;
    END LOOP;
    o_change := fray.next_change_@V@(p_queue, v_now);
    RETURN NEXT;
    IF NOT v_told THEN RETURN; END IF;  -- nothing that may not be done again
@KEEP '{1}'; 0; 0; 0@
END $$;

-- Somebody waits for so long: until then pushes notify.
CREATE FUNCTION fray.wait_@V@(p_queue integer, p_seconds integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE fray.queues SET waited_until = clock_timestamp() + make_interval(secs => p_seconds) WHERE number = p_queue;
END $$;

CREATE FUNCTION fray.dead_@V@(p_now double precision, p_queue integer, p_after bigint, p_n integer)
RETURNS TABLE (o_id bigint, o_payload bytea, o_attempt integer, o_expired boolean, o_history jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    RETURN QUERY SELECT id, payload, attempt, deadline IS NOT NULL, history FROM fray.items
        WHERE queue = p_queue AND state = 2 AND id > p_after ORDER BY id LIMIT p_n;
END $$;

-- What is done: 'requeue', 'purge_dead' (all the dead, or those of `p_ids`), or 'purge'.
CREATE FUNCTION fray.operate_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_what text, p_ids bigint[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    v_ready bigint := 0;
    v_held bigint := 0;
    v_dead bigint := 0;
    v_count bigint;
BEGIN
    IF p_again THEN
@ANSWERED@
        IF v_answer IS NOT NULL THEN RETURN v_answer; END IF;
    END IF;
    PERFORM fray.look_@V@(p_now, p_queue);
    IF p_what = 'purge' THEN
        WITH gone AS (DELETE FROM fray.items WHERE queue = p_queue AND state < 2 RETURNING state)
            SELECT count(*), count(*) FILTER (WHERE state = 1) INTO v_count, v_held FROM gone;
        v_ready := v_held - v_count;
    ELSIF p_what = 'purge_dead' THEN
        DELETE FROM fray.items WHERE queue = p_queue AND state = 2 AND (p_ids IS NULL OR id = ANY (p_ids));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_dead := v_count;
    ELSE
        WITH back AS (
            UPDATE fray.items SET state = 0, attempt = 0, lease = '', until = 0, due = NULL, deadline = NULL, history = '[]'
            WHERE queue = p_queue AND state = 2 AND (p_ids IS NULL OR id = ANY (p_ids)) RETURNING id
        ), forgotten AS (DELETE FROM fray.replies r USING back WHERE r.queue = p_queue AND r.id = back.id)
        SELECT count(*) INTO v_count FROM back;
        v_ready := v_count;
        v_dead := v_count;
    END IF;
    PERFORM fray.tell_@V@(p_queue);
    v_answer := ARRAY[v_count];
@KEEP v_answer; v_ready; -v_held; -v_dead@
    RETURN v_answer;
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

-- Give a role what a kind of program needs: 'producer', 'worker' or 'admin'. An upgrade gives it again.
CREATE FUNCTION fray.grant_rights(p_kind text, p_role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_producer text[] := '{open,exists,push,counts,peek,fetch,wait}';
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
