-- What a lease's holder does with it.

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
    IF cardinality(p_ids) = 1 THEN
        DELETE FROM fray.items i WHERE id = p_ids[1] AND fray.is_held_@V@(i, p_queue, p_tokens[1],
                (SELECT max_attempts FROM fray.queues WHERE number = p_queue), p_now)
            RETURNING '{1}'::bigint[], (state = 0)::integer::bigint, '{}'::bigint[], CASE WHEN reply_ttl IS NOT NULL THEN ARRAY[ROW(p_queue, id,
                coalesce(p_outcomes[1], 'value'), coalesce(p_payloads[1], ''), p_now + reply_ttl, askers)::fray.replies] END
            INTO v_done, v_ready, v_answer, v_replies;
    ELSE
        WITH gone AS (
            DELETE FROM fray.items i USING unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, place)
            WHERE i.id = u.id AND fray.is_held_@V@(i, p_queue, u.token,
                (SELECT max_attempts FROM fray.queues WHERE number = p_queue), p_now)
            RETURNING u.place, i.id, i.state, i.reply_ttl, i.askers
        ) SELECT array_agg(place), count(*) FILTER (WHERE state = 0), CASE WHEN count(*) = cardinality(p_ids) THEN '{}'::bigint[] END,
            array_agg(ROW(p_queue, id, coalesce(p_outcomes[place], 'value'), coalesce(p_payloads[place], ''),
                          p_now + reply_ttl, askers)::fray.replies) FILTER (WHERE reply_ttl IS NOT NULL)
        INTO v_done, v_ready, v_answer, v_replies FROM gone;
    END IF;
    IF v_answer IS NULL OR v_replies IS NOT NULL THEN
        v_answer := ARRAY(SELECT n - 1 FROM generate_series(1, cardinality(p_ids)) AS n  -- which are lost, counted from 0
                          EXCEPT SELECT place - 1 FROM unnest(v_done) AS place ORDER BY 1);
        FOREACH v_reply IN ARRAY coalesce(v_replies, '{}') LOOP PERFORM fray.answer_@V@(v_reply, p_now); END LOOP;
    END IF;
@KEEP v_answer; -coalesce(v_ready, 0); coalesce(v_ready, 0) - coalesce(cardinality(v_done), 0); 0; RETURNING (SELECT max_size FROM fray.queues WHERE number = p_queue) INTO v_size@
    IF v_size IS NOT NULL THEN PERFORM fray.tell_@V@(p_queue); END IF;
    RETURN v_answer;
END $$;

CREATE FUNCTION fray.release_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_id bigint, p_token text,
    p_delay double precision, p_error text, p_failure bytea, p_unreadable text, p_delays double precision[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
    i fray.items;
    v_until double precision := CASE WHEN p_delay > 0 THEN p_now + p_delay END;
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
    IF fray.is_held_@V@(i, p_queue, p_token, v_most, p_now) THEN
        v_answer := '{1}';
        v_last := coalesce(i.attempt >= v_most, false);
        IF p_unreadable IS NOT NULL THEN
            v_history := i.history || jsonb_build_array(
                jsonb_build_array(i.attempt, 'unreadable', i.leased_at, p_now, p_unreadable));
            SELECT count(*) INTO v_takers FROM jsonb_array_elements(v_history) AS h WHERE h ->> 1 = 'unreadable';
            v_last := v_last OR v_takers > cardinality(p_delays);
            v_until := p_now + p_delays[v_takers];
        ELSE
            v_history := fray.noted_@V@(i, v_most, p_now, CASE WHEN p_now < i.until THEN 'released' ELSE 'expired' END, p_error);
        END IF;
        IF v_last OR coalesce(i.deadline <= p_now, false) THEN
            PERFORM fray.mark_dead_@V@(i, v_history, NOT v_last, p_failure, v_size, p_now);
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
@KEEP v_answer; v_changes[1]; v_changes[2]; v_changes[3]; @
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
