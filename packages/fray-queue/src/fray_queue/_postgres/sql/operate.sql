-- What an operator does with the dead and with all items.

CREATE FUNCTION fray.dead_@V@(
    p_now double precision, p_queue integer, p_after bigint, p_n integer, p_payloads boolean
) RETURNS TABLE (
    o_id bigint, o_payload bytea, o_size integer, o_attempt integer, o_expired boolean, o_history jsonb
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    RETURN QUERY SELECT id, CASE WHEN p_payloads THEN payload ELSE '' END, length(payload), attempt,
            deadline IS NOT NULL, history FROM fray.items
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
@KEEP v_answer; v_ready; -v_held; -v_dead; @
    RETURN v_answer;
END $$;
