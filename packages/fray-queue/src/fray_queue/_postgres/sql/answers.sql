-- What became of items.

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
            WHERE queue = p_queue AND id = p_ids[n] AND until > p_now;
        IF NOT FOUND THEN
            v_outcome := v_item;
            v_payload := '';
        ELSIF v_answer IS NULL AND v_outcome IN ('value', 'error') THEN
            UPDATE fray.replies SET askers = askers - 1, until = CASE WHEN askers <= 1
                THEN least(until, p_now + @KEPT@) ELSE until END WHERE queue = p_queue AND id = p_ids[n];
            v_told := true;
        END IF;
        o_outcomes := o_outcomes || v_outcome;
        o_payloads := o_payloads || v_payload;
    END LOOP;
    o_change := fray.next_change_@V@(p_queue, p_now);
    RETURN NEXT;
    IF NOT v_told THEN RETURN; END IF;  -- nothing that may not be done again
@KEEP '{1}'; 0; 0; 0; @
END $$;
