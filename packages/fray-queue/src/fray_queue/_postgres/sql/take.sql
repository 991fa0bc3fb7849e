-- Lease items, or look at the first.

-- The rows come in no order. Kept is when the leases end: by that and the token a repeated request finds them.
CREATE FUNCTION fray.pop_@V@(
    p_now double precision, p_slot bigint, p_number bigint, p_again boolean, p_queue integer, p_n integer, p_seconds double precision,
    p_token text, p_once boolean
) RETURNS TABLE (o_id bigint, o_attempt integer, o_leased_at double precision, o_until double precision, o_reply boolean,
                 o_payload bytea, o_pushed_at double precision, o_priority integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
@DECLARE@
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
    -- What a sweep leaves, as it is too much for one call, is taken by nobody. Nothing is taken at first where something ran out that may come before it.
@TAKE NOT EXISTS (SELECT 1 FROM fray.items WHERE queue = p_queue AND due <= p_now)@
    IF v_taken = 0 THEN
        IF EXISTS (SELECT 1 FROM fray.items WHERE queue = p_queue AND due <= p_now) THEN
            PERFORM fray.sweep_@V@(p_queue, p_now);
@TAKE (due IS NULL OR due > p_now)@
        END IF;
        IF v_taken = 0 THEN
            PERFORM fray.time_@V@(p_now, p_queue);
            o_until := fray.next_change_@V@(p_queue, p_now);
            RETURN NEXT;
            -- That nothing was there is kept where the first request may not be over, which would lease for nobody; but not where
            -- the same request looks again later.
            IF NOT (p_again AND p_once) THEN RETURN; END IF;
        END IF;
    END IF;
@KEEP ARRAY[((p_now + p_seconds) * 1e6)::bigint]; -v_taken; v_taken; 0; @
END $$;

CREATE FUNCTION fray.peek_@V@(p_now double precision, p_queue integer) RETURNS TABLE (o_id bigint, o_payload bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM fray.look_@V@(p_now, p_queue);
    RETURN QUERY SELECT id, payload FROM fray.items WHERE queue = p_queue AND state = 0 AND (due IS NULL OR due > p_now)
        ORDER BY priority DESC, id LIMIT 1;
END $$;
