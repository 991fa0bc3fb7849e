-- What may be done to a queue: each call is a transaction. The rules are those of the lease machine; the queue's
-- tests compare the two. `p_now` is a test's clock; NULL is the engine's. Names end with the version of the store.

CREATE FUNCTION fray.now_@V@(p_now double precision) RETURNS double precision LANGUAGE sql VOLATILE AS
$$ SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision) $$;

CREATE FUNCTION fray.queue_@V@(p_queue integer) RETURNS fray.queues LANGUAGE plpgsql AS $$
DECLARE q fray.queues;
BEGIN
    SELECT * INTO q FROM fray.queues WHERE number = p_queue;
    IF NOT FOUND THEN RAISE EXCEPTION 'the queue is not there' USING ERRCODE = 'FR001'; END IF;
    RETURN q;
END $$;

-- The answer of a request that was done already. Two of one slot are done one after the other.
CREATE FUNCTION fray.kept_@V@(p_queue integer, p_slot bigint, p_number bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE known fray.slots;
BEGIN
    PERFORM pg_advisory_xact_lock(p_slot);
    SELECT * INTO known FROM fray.slots WHERE queue = p_queue AND slot = p_slot;
    IF known.number > p_number THEN
        RAISE EXCEPTION 'a later request of this client was answered' USING ERRCODE = 'FR003';
    END IF;
    RETURN CASE WHEN known.number = p_number THEN coalesce(known.answer, '{}') END;
END $$;

-- Note the answer of a request, and what changed of the counts. It comes last: no call waits for another's row after it.
CREATE FUNCTION fray.keep_@V@(
    q fray.queues, p_slot bigint, p_number bigint, p_answer bigint[], p_ready bigint, p_held bigint, p_dead bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_slot bigint := coalesce(p_slot, -pg_backend_pid());
    v_many bigint;
BEGIN
    IF p_slot IS NULL AND p_ready = 0 AND p_held = 0 AND p_dead = 0 THEN RETURN; END IF;
    UPDATE fray.slots SET number = coalesce(p_number, number), answer = p_answer, ready = ready + p_ready,
        held = held + p_held, dead = dead + p_dead, at = clock_timestamp()
        WHERE queue = q.number AND slot = v_slot;
    IF NOT FOUND THEN
        INSERT INTO fray.slots (queue, slot, number, answer, ready, held, dead)
            VALUES (q.number, v_slot, coalesce(p_number, 0), p_answer, p_ready, p_held, p_dead);
    END IF;
    IF p_dead <= 0 THEN RETURN; END IF;
    SELECT sum(dead) - q.max_dead INTO v_many FROM fray.slots WHERE queue = q.number;
    IF v_many <= 0 THEN RETURN; END IF;
    WITH gone AS (
        DELETE FROM fray.items WHERE id = ANY (ARRAY(
            SELECT id FROM fray.items WHERE queue = q.number AND state = 2 ORDER BY id LIMIT v_many FOR UPDATE SKIP LOCKED
        )) RETURNING 1
    ) SELECT count(*) INTO v_many FROM gone;
    UPDATE fray.slots SET dead = dead - v_many WHERE queue = q.number AND slot = v_slot;
    UPDATE fray.queues SET dropped = dropped + v_many WHERE number = q.number;
END $$;

-- Notify those who wait. The shared lock keeps one who begins to wait until this transaction can be seen.
CREATE FUNCTION fray.tell_@V@(p_queue integer, p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@LOCK@, p_queue);
    IF EXISTS (SELECT 1 FROM fray.waiters WHERE queue = p_queue AND until > clock_timestamp()) THEN
        PERFORM pg_notify('fray_' || p_queue, p_what);
    END IF;
END $$;

CREATE FUNCTION fray.noted_@V@(q fray.queues, i fray.items, p_now double precision, p_outcome text, p_error text)
RETURNS jsonb LANGUAGE sql AS $$
    SELECT CASE WHEN q.max_attempts IS NULL THEN i.history ELSE i.history || jsonb_build_array(
        jsonb_build_array(i.attempt, p_outcome, i.leased_at, least(p_now, i.until), p_error)) END
$$;

CREATE FUNCTION fray.is_last_@V@(q fray.queues, i fray.items) RETURNS boolean LANGUAGE sql AS
$$ SELECT q.max_attempts IS NOT NULL AND i.lease <> '' AND i.attempt >= q.max_attempts $$;

CREATE FUNCTION fray.is_over_@V@(q fray.queues, i fray.items, p_now double precision) RETURNS boolean LANGUAGE sql AS
$$ SELECT i.until <= p_now AND i.state < 2
    AND (coalesce(i.deadline <= p_now, false)
         OR (q.max_attempts IS NOT NULL AND i.lease <> '' AND i.attempt >= q.max_attempts)) $$;

CREATE FUNCTION fray.answer_@V@(
    p_queue integer, p_id bigint, p_outcome text, p_payload bytea, p_until double precision, p_askers integer,
    p_now double precision
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM fray.replies WHERE queue = p_queue AND until <= p_now;
    INSERT INTO fray.replies VALUES (p_queue, p_id, p_outcome, p_payload, p_until, p_askers)
        ON CONFLICT (queue, id) DO UPDATE SET outcome = p_outcome, payload = p_payload, until = p_until, askers = p_askers;
    PERFORM fray.tell_@V@(p_queue, 'answer');
END $$;

-- Give an item up; its row is locked. `p_dated` says that its time passed.
CREATE FUNCTION fray.bury_@V@(
    q fray.queues, i fray.items, p_history jsonb, p_dated boolean, p_failure bytea, p_now double precision
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fray.items SET state = 2, lease = '', leased_at = 0, until = 0, key = NULL, history = p_history,
        deadline = CASE WHEN p_dated THEN deadline END WHERE id = i.id;
    IF i.reply_ttl IS NOT NULL THEN
        PERFORM fray.answer_@V@(q.number, i.id,
            CASE WHEN p_failure IS NOT NULL THEN 'error' WHEN p_dated THEN 'expired' ELSE 'dead' END,
            coalesce(p_failure, ''), p_now + i.reply_ttl, i.askers, p_now);
    END IF;
    IF q.max_size IS NOT NULL THEN PERFORM fray.tell_@V@(q.number, 'room'); END IF;
END $$;

-- Have what ran out wait again, and give up what is over. Returns what changed of the counts.
CREATE FUNCTION fray.sweep_@V@(q fray.queues, p_now double precision) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    i fray.items;
    v_last boolean;
    v_ready bigint := 0;
    v_held bigint := 0;
    v_dead bigint := 0;
BEGIN
    IF EXISTS (SELECT 1 FROM fray.items WHERE queue = q.number AND state = 1 AND until <= p_now) THEN
        FOR i IN SELECT * FROM fray.items WHERE queue = q.number AND state = 1 AND until <= p_now
            ORDER BY until LIMIT 10000 FOR UPDATE SKIP LOCKED
        LOOP
            v_held := v_held - 1;
            v_last := fray.is_last_@V@(q, i);
            IF v_last OR coalesce(i.deadline <= p_now, false) THEN
                PERFORM fray.bury_@V@(q, i,
                    CASE WHEN i.lease <> '' THEN fray.noted_@V@(q, i, p_now, 'expired', NULL) ELSE i.history END,
                    NOT v_last, NULL, p_now);
                v_dead := v_dead + 1;
            ELSE
                UPDATE fray.items SET state = 0 WHERE id = i.id;
                v_ready := v_ready + 1;
            END IF;
        END LOOP;
    END IF;
    IF EXISTS (SELECT 1 FROM fray.items WHERE queue = q.number AND state = 0 AND deadline <= p_now) THEN
        FOR i IN SELECT * FROM fray.items WHERE queue = q.number AND state = 0 AND deadline <= p_now
            ORDER BY deadline LIMIT 10000 FOR UPDATE SKIP LOCKED
        LOOP
            v_last := fray.is_last_@V@(q, i);
            PERFORM fray.bury_@V@(q, i,
                CASE WHEN i.lease <> '' THEN fray.noted_@V@(q, i, p_now, 'expired', NULL) ELSE i.history END,
                NOT v_last, NULL, p_now);
            v_ready := v_ready - 1;
            v_dead := v_dead + 1;
        END LOOP;
    END IF;
    RETURN ARRAY[v_ready, v_held, v_dead];
END $$;

CREATE FUNCTION fray.next_change_@V@(p_queue integer, p_now double precision) RETURNS double precision LANGUAGE sql AS $$
    SELECT greatest(least(
        (SELECT until FROM fray.items WHERE queue = p_queue AND state = 1 ORDER BY until LIMIT 1),
        (SELECT deadline FROM fray.items WHERE queue = p_queue AND state = 0 AND deadline IS NOT NULL
         ORDER BY deadline LIMIT 1)) - p_now, 0)
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
    p_now double precision, p_slot bigint, p_number bigint, p_queue integer, p_payloads bytea[], p_priority integer,
    p_delay double precision, p_ttl double precision, p_reply_ttl double precision, p_keys text[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_ids bigint[] := fray.kept_@V@(p_queue, p_slot, p_number);
    v_deadline double precision := v_now + p_ttl;
    v_until double precision := 0;
    v_state smallint := 0;
    v_swept bigint[] := '{0,0,0}';
    v_live bigint;
    v_new bigint := cardinality(p_payloads);
    v_id bigint;
BEGIN
    IF v_ids IS NOT NULL THEN RETURN v_ids; END IF;
    IF p_delay > 0 THEN
        v_state := 1;
        v_until := least(v_now + p_delay, v_deadline);
    END IF;
    IF q.max_size IS NOT NULL THEN
        -- Pushes into a bounded queue are done one after the other: else two would take the last place.
        PERFORM 1 FROM fray.queues WHERE number = p_queue FOR UPDATE;
    END IF;
    IF q.max_size IS NOT NULL OR p_keys IS NOT NULL THEN
        v_swept := fray.sweep_@V@(q, v_now);  -- what is over needs no room, and its key is free
    END IF;
    IF q.max_size IS NOT NULL THEN
        IF p_keys IS NOT NULL THEN
            SELECT count(*) FILTER (WHERE k IS NULL) + count(DISTINCT k) FILTER (WHERE NOT EXISTS (
                SELECT 1 FROM fray.items WHERE queue = p_queue AND key = k)) INTO v_new FROM unnest(p_keys) AS k;
        END IF;
        SELECT coalesce(sum(ready + held), 0) + v_swept[1] + v_swept[2] INTO v_live FROM fray.slots WHERE queue = p_queue;
        IF v_new > 0 AND v_live + v_new > q.max_size THEN
            RAISE EXCEPTION '% % %', v_live, v_new, q.max_size USING ERRCODE = 'FR002';
        END IF;
    END IF;
    IF p_keys IS NULL AND v_new = 1 THEN
        INSERT INTO fray.items (queue, state, priority, until, deadline, reply_ttl, askers, payload, pushed_at)
            VALUES (p_queue, v_state, p_priority, v_until, v_deadline, p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer,
                    p_payloads[1], v_now) RETURNING id INTO v_id;
        v_ids := ARRAY[v_id];
    ELSIF p_keys IS NULL THEN
        WITH stored AS (
            INSERT INTO fray.items (queue, state, priority, until, deadline, reply_ttl, askers, payload, pushed_at)
            SELECT p_queue, v_state, p_priority, v_until, v_deadline, p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer,
                payload, v_now
            FROM unnest(p_payloads) WITH ORDINALITY AS u (payload, place) ORDER BY place RETURNING id
        ) SELECT array_agg(id ORDER BY id) INTO v_ids FROM stored;
    ELSE
        v_new := 0;
        FOR n IN 1 .. cardinality(p_payloads) LOOP
            LOOP
                INSERT INTO fray.items (queue, state, priority, until, deadline, key, reply_ttl, askers, payload, pushed_at)
                VALUES (p_queue, v_state, p_priority, v_until, v_deadline, p_keys[n], p_reply_ttl,
                        (p_reply_ttl IS NOT NULL)::integer, p_payloads[n], v_now)
                ON CONFLICT (queue, key) WHERE key IS NOT NULL DO NOTHING RETURNING id INTO v_id;
                IF v_id IS NOT NULL THEN
                    v_new := v_new + 1;
                    EXIT;
                END IF;
                UPDATE fray.items SET askers = askers + (p_reply_ttl IS NOT NULL)::integer,
                    reply_ttl = greatest(reply_ttl, p_reply_ttl) WHERE queue = p_queue AND key = p_keys[n] RETURNING id INTO v_id;
                EXIT WHEN v_id IS NOT NULL;  -- else it was finished meanwhile, and its key is free
            END LOOP;
            v_ids := v_ids || v_id;
        END LOOP;
    END IF;
    PERFORM fray.tell_@V@(p_queue, 'item');
    PERFORM fray.keep_@V@(q, p_slot, p_number, v_ids, v_swept[1] + CASE WHEN v_state = 0 THEN v_new ELSE 0 END,
        v_swept[2] + CASE WHEN v_state = 1 THEN v_new ELSE 0 END, v_swept[3]);
    RETURN v_ids;
END $$;

CREATE FUNCTION fray.pop_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_queue integer, p_n integer, p_seconds double precision,
    p_token text
) RETURNS TABLE (o_id bigint, o_attempt integer, o_leased_at double precision, o_until double precision, o_reply boolean,
                 o_payload bytea, o_pushed_at double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_ids bigint[] := fray.kept_@V@(p_queue, p_slot, p_number);
    v_swept bigint[];
    v_taken bigint;
BEGIN
    IF v_ids IS NULL THEN
        v_swept := fray.sweep_@V@(q, v_now);
        v_ids := ARRAY(SELECT id FROM fray.items WHERE queue = p_queue AND state = 0
                       ORDER BY priority DESC, id LIMIT p_n FOR UPDATE SKIP LOCKED);
        v_taken := cardinality(v_ids);
        IF v_taken = 0 THEN
            PERFORM fray.keep_@V@(q, NULL, NULL, NULL, v_swept[1], v_swept[2], v_swept[3]);
            o_until := fray.next_change_@V@(p_queue, v_now);
            RETURN NEXT;
            RETURN;
        END IF;
        UPDATE fray.items i SET state = 1, attempt = attempt + 1, lease = p_token, leased_at = v_now, until = v_now + p_seconds,
            history = CASE WHEN q.max_attempts IS NULL OR lease = '' THEN history
                      ELSE fray.noted_@V@(q, i, v_now, 'expired', NULL) END
            WHERE id = ANY (v_ids);
        PERFORM fray.keep_@V@(q, p_slot, p_number, v_ids, v_swept[1] - v_taken, v_swept[2] + v_taken, v_swept[3]);
    END IF;
    RETURN QUERY SELECT id, attempt, leased_at, until, reply_ttl IS NOT NULL OR key IS NOT NULL, payload, pushed_at
        FROM fray.items WHERE id = ANY (v_ids) AND lease = p_token ORDER BY priority DESC, id;
END $$;

CREATE FUNCTION fray.done_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_queue integer, p_ids bigint[], p_tokens text[],
    p_outcomes text[], p_payloads bytea[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_lost bigint[] := fray.kept_@V@(p_queue, p_slot, p_number);
    v_done boolean[] := array_fill(false, ARRAY[cardinality(p_ids)]);
    v_ready bigint := 0;
    v_held bigint := 0;
    r record;
BEGIN
    IF v_lost IS NOT NULL THEN RETURN v_lost; END IF;
    FOR r IN
        DELETE FROM fray.items i USING unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, place)
        WHERE i.id = u.id AND i.queue = p_queue AND u.token <> '' AND i.lease = u.token AND i.state < 2
            AND (i.until > v_now OR NOT fray.is_over_@V@(q, i, v_now))
        RETURNING u.place, i.id, i.state, i.reply_ttl, i.askers
    LOOP
        v_done[r.place] := true;
        IF r.state = 0 THEN v_ready := v_ready - 1; ELSE v_held := v_held - 1; END IF;
        IF r.reply_ttl IS NOT NULL THEN
            PERFORM fray.answer_@V@(p_queue, r.id, p_outcomes[r.place], p_payloads[r.place], v_now + r.reply_ttl, r.askers, v_now);
        END IF;
    END LOOP;
    v_lost := ARRAY(SELECT place - 1 FROM unnest(v_done) WITH ORDINALITY AS u (done, place) WHERE NOT done);
    IF q.max_size IS NOT NULL THEN PERFORM fray.tell_@V@(p_queue, 'room'); END IF;
    PERFORM fray.keep_@V@(q, p_slot, p_number, v_lost, v_ready, v_held, 0);
    RETURN v_lost;
END $$;

CREATE FUNCTION fray.release_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_queue integer, p_id bigint, p_token text,
    p_delay double precision, p_error text, p_failure bytea, p_unreadable text, p_delays double precision[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_kept bigint[] := fray.kept_@V@(p_queue, p_slot, p_number);
    i fray.items;
    v_until double precision := CASE WHEN p_delay > 0 THEN v_now + p_delay ELSE 0 END;
    v_history jsonb;
    v_dead boolean;
    v_takers integer;
    v_changes bigint[] := '{0,0,0}';
BEGIN
    IF v_kept IS NOT NULL THEN RETURN v_kept; END IF;
    SELECT * INTO i FROM fray.items WHERE id = p_id AND queue = p_queue FOR UPDATE;
    IF i.id IS NULL OR p_token = '' OR i.lease <> p_token OR i.state = 2 OR fray.is_over_@V@(q, i, v_now) THEN
        PERFORM fray.keep_@V@(q, p_slot, p_number, '{0}', 0, 0, 0);
        RETURN '{0}';
    END IF;
    v_dead := coalesce(i.attempt >= q.max_attempts, false);
    IF p_unreadable IS NOT NULL THEN
        v_history := i.history || jsonb_build_array(
            jsonb_build_array(i.attempt, 'unreadable', i.leased_at, v_now, p_unreadable));
        SELECT count(*) INTO v_takers FROM jsonb_array_elements(v_history) AS h WHERE h ->> 1 = 'unreadable';
        v_dead := v_dead OR v_takers > cardinality(p_delays);
        v_until := v_now + p_delays[v_takers];
    ELSE
        v_history := fray.noted_@V@(q, i, v_now, CASE WHEN v_now < i.until THEN 'released' ELSE 'expired' END, p_error);
    END IF;
    v_changes[i.state + 1] := -1;
    IF v_dead OR coalesce(i.deadline <= v_now, false) THEN
        PERFORM fray.bury_@V@(q, i, v_history, NOT v_dead, p_failure, v_now);
        v_changes[3] := 1;
    ELSE
        v_until := least(v_until, CASE WHEN v_until > 0 THEN i.deadline END);
        UPDATE fray.items SET state = (v_until > 0)::integer, lease = '', leased_at = 0, until = v_until, history = v_history
            WHERE id = p_id;
        v_changes[(v_until > 0)::integer + 1] := v_changes[(v_until > 0)::integer + 1] + 1;
        PERFORM fray.tell_@V@(p_queue, 'item');
    END IF;
    PERFORM fray.keep_@V@(q, p_slot, p_number, '{1}', v_changes[1], v_changes[2], v_changes[3]);
    RETURN '{1}';
END $$;

CREATE FUNCTION fray.extend_@V@(
    p_now double precision, p_queue integer, p_ids bigint[], p_tokens text[], p_seconds double precision
) RETURNS double precision[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_ends double precision[] := array_fill(NULL::double precision, ARRAY[cardinality(p_ids)]);
    v_back bigint := 0;
    r record;
BEGIN
    FOR n IN 0 .. 1 LOOP
        FOR r IN
            UPDATE fray.items i SET until = v_now + p_seconds, state = 1
            FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, place)
            WHERE i.id = u.id AND i.queue = p_queue AND u.token <> '' AND i.lease = u.token AND i.state = n
                AND (n = 0 OR v_ends[u.place] IS NULL) AND NOT fray.is_over_@V@(q, i, v_now)
            RETURNING u.place
        LOOP
            v_ends[r.place] := v_now + p_seconds;
            IF n = 0 THEN v_back := v_back + 1; END IF;
        END LOOP;
    END LOOP;
    PERFORM fray.keep_@V@(q, NULL, NULL, NULL, -v_back, v_back, 0);
    RETURN v_ends;
END $$;

CREATE FUNCTION fray.give_back_@V@(p_now double precision, p_queue integer, p_ids bigint[], p_tokens text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_back bigint := 0;
    v_count bigint;
BEGIN
    FOR n IN 0 .. 1 LOOP
        UPDATE fray.items i SET state = 0, attempt = attempt - 1, lease = '', leased_at = 0, until = 0
        FROM unnest(p_ids, p_tokens) AS u (id, token)
        WHERE i.id = u.id AND i.queue = p_queue AND u.token <> '' AND i.lease = u.token AND i.state = n
            AND NOT fray.is_over_@V@(q, i, v_now);
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_back := v_back + CASE WHEN n = 1 THEN v_count ELSE 0 END;
    END LOOP;
    PERFORM fray.tell_@V@(p_queue, 'item');
    PERFORM fray.keep_@V@(q, NULL, NULL, NULL, v_back, -v_back, 0);
END $$;

CREATE FUNCTION fray.peek_@V@(p_now double precision, p_queue integer) RETURNS TABLE (o_id bigint, o_payload bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_swept bigint[] := fray.sweep_@V@(q, fray.now_@V@(p_now));
BEGIN
    PERFORM fray.keep_@V@(q, NULL, NULL, NULL, v_swept[1], v_swept[2], v_swept[3]);
    RETURN QUERY SELECT id, payload FROM fray.items WHERE queue = p_queue AND state = 0 ORDER BY priority DESC, id LIMIT 1;
END $$;

CREATE FUNCTION fray.counts_@V@(p_now double precision, p_queue integer) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_swept bigint[] := fray.sweep_@V@(q, fray.now_@V@(p_now));
    v_rows bigint;
    v_counts bigint[];
BEGIN
    PERFORM fray.keep_@V@(q, NULL, NULL, NULL, v_swept[1], v_swept[2], v_swept[3]);
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

CREATE FUNCTION fray.fetch_@V@(p_now double precision, p_slot bigint, p_number bigint, p_queue integer, p_ids bigint[])
RETURNS TABLE (o_change double precision, o_outcomes text[], o_payloads bytea[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_now double precision := fray.now_@V@(p_now);
    v_known bigint[] := fray.kept_@V@(p_queue, p_slot, p_number);
    v_swept bigint[] := fray.sweep_@V@(q, v_now);
    v_told boolean := false;
    v_item text;
    v_outcome text;
    v_payload bytea;
    i fray.items;
BEGIN
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
        ELSIF v_known IS NULL AND v_outcome IN ('value', 'error') THEN
            UPDATE fray.replies SET askers = askers - 1, until = CASE WHEN askers <= 1
                THEN least(until, v_now + @KEPT@) ELSE until END WHERE queue = p_queue AND id = p_ids[n];
            v_told := true;
        END IF;
        o_outcomes := o_outcomes || v_outcome;
        o_payloads := o_payloads || v_payload;
    END LOOP;
    PERFORM fray.keep_@V@(q, CASE WHEN v_told THEN p_slot END, CASE WHEN v_told THEN p_number END, '{1}',
        v_swept[1], v_swept[2], v_swept[3]);
    o_change := fray.next_change_@V@(p_queue, v_now);
    RETURN NEXT;
END $$;

CREATE FUNCTION fray.wait_@V@(p_queue integer, p_session bigint, p_seconds integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM fray.waiters WHERE queue = p_queue AND until < clock_timestamp() - interval '1 minute' AND session <> p_session;
    IF p_seconds = 0 THEN
        DELETE FROM fray.waiters WHERE queue = p_queue AND session = p_session;
        RETURN;
    END IF;
    INSERT INTO fray.waiters VALUES (p_queue, p_session, clock_timestamp() + make_interval(secs => p_seconds))
        ON CONFLICT (queue, session) DO UPDATE SET until = excluded.until;
END $$;

CREATE FUNCTION fray.dead_@V@(p_now double precision, p_queue integer, p_after bigint, p_n integer)
RETURNS TABLE (o_id bigint, o_payload bytea, o_attempt integer, o_expired boolean, o_history jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_swept bigint[] := fray.sweep_@V@(q, fray.now_@V@(p_now));
BEGIN
    PERFORM fray.keep_@V@(q, NULL, NULL, NULL, v_swept[1], v_swept[2], v_swept[3]);
    RETURN QUERY SELECT id, payload, attempt, deadline IS NOT NULL, history FROM fray.items
        WHERE queue = p_queue AND state = 2 AND id > p_after ORDER BY id LIMIT p_n;
END $$;

-- What is done: 'requeue', 'purge_dead' (all the dead, or those of `p_ids`), or 'purge'.
CREATE FUNCTION fray.operate_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_queue integer, p_what text, p_ids bigint[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q fray.queues := fray.queue_@V@(p_queue);
    v_kept bigint[] := fray.kept_@V@(p_queue, p_slot, p_number);
    v_changes bigint[];
    v_held bigint;
    v_count bigint;
BEGIN
    IF v_kept IS NOT NULL THEN RETURN v_kept; END IF;
    v_changes := fray.sweep_@V@(q, fray.now_@V@(p_now));
    IF p_what = 'purge' THEN
        WITH gone AS (DELETE FROM fray.items WHERE queue = p_queue AND state < 2 RETURNING state)
            SELECT count(*), count(*) FILTER (WHERE state = 1) INTO v_count, v_held FROM gone;
        v_changes[1] := v_changes[1] - (v_count - v_held);
        v_changes[2] := v_changes[2] - v_held;
        PERFORM fray.tell_@V@(p_queue, 'room');
        PERFORM fray.tell_@V@(p_queue, 'answer');
    ELSIF p_what = 'purge_dead' THEN
        DELETE FROM fray.items WHERE queue = p_queue AND state = 2 AND (p_ids IS NULL OR id = ANY (p_ids));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_changes[3] := v_changes[3] - v_count;
    ELSE
        WITH back AS (
            UPDATE fray.items SET state = 0, attempt = 0, lease = '', until = 0, deadline = NULL, history = '[]'
            WHERE queue = p_queue AND state = 2 AND (p_ids IS NULL OR id = ANY (p_ids)) RETURNING id
        ), forgotten AS (DELETE FROM fray.replies r USING back WHERE r.queue = p_queue AND r.id = back.id)
        SELECT count(*) INTO v_count FROM back;
        v_changes[1] := v_changes[1] + v_count;
        v_changes[3] := v_changes[3] - v_count;
        PERFORM fray.tell_@V@(p_queue, 'item');
    END IF;
    PERFORM fray.keep_@V@(q, p_slot, p_number, ARRAY[v_count], v_changes[1], v_changes[2], v_changes[3]);
    RETURN ARRAY[v_count];
END $$;

CREATE FUNCTION fray.delete_@V@(p_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_number integer;
BEGIN
    DELETE FROM fray.queues WHERE name = p_name RETURNING number INTO v_number;
    DELETE FROM fray.items WHERE queue = v_number;
    DELETE FROM fray.replies WHERE queue = v_number;
    DELETE FROM fray.slots WHERE queue = v_number;
    DELETE FROM fray.waiters WHERE queue = v_number;
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
