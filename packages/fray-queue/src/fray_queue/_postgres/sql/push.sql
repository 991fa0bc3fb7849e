-- Store items.

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
        -- Keeps one who begins to wait until this transaction can be seen. An assignment costs less than PERFORM.
        v_waited := pg_advisory_xact_lock_shared(@LOCK@, p_queue) IS NULL;
        -- Of a queue without a bound all is known, so that `keep` may come first: nothing after it waits.
        IF cardinality(p_payloads) = 1 THEN
@PUSH ARRAY[nextval('fray.items_id_seq')]; v_answer[1]; p_payloads[1]; @
        ELSE
@PUSH ARRAY(SELECT nextval('fray.items_id_seq') FROM unnest(p_payloads)); id; payload; FROM unnest(v_answer, p_payloads) AS u (id, payload)@
        END IF;
    END IF;
@BOUNDS@
    -- Pushes into a bounded queue are done one after the other: else two would take the last place. The answer is looked for after
    -- that, as the first request may have been done meanwhile, and have taken the place.
    IF v_size IS NOT NULL THEN PERFORM 1 FROM fray.queues WHERE number = p_queue FOR UPDATE; END IF;
    IF p_again THEN
@ANSWERED@
        IF v_answer IS NOT NULL THEN RETURN v_answer; END IF;
    END IF;
    IF v_size IS NOT NULL OR p_keys IS NOT NULL THEN
        PERFORM fray.sweep_@V@(p_queue, p_now);  -- what is over needs no room, and its key is free
        SELECT count(*) FILTER (WHERE k IS NULL) + count(DISTINCT k) FILTER (WHERE NOT EXISTS (
            SELECT 1 FROM fray.items WHERE queue = p_queue AND key = k)) INTO v_new FROM unnest(p_payloads, p_keys) AS u (p, k);
        SELECT sum(ready + held) INTO v_live FROM fray.slots WHERE queue = p_queue;
        IF v_new > 0 AND coalesce(v_live, 0) + v_new > v_size THEN
            RAISE EXCEPTION '% % %', coalesce(v_live, 0), v_new, v_size USING ERRCODE = 'FR002';
        END IF;
    END IF;
    IF p_keys IS NOT NULL THEN
        v_new := 0;
        FOR n IN 1 .. cardinality(p_payloads) LOOP
            LOOP
                INSERT INTO fray.items (queue, state, priority, due, deadline, reply_ttl, askers, payload, pushed_at, key)
                VALUES (p_queue, (p_delay > 0)::integer, p_priority, least(p_now + nullif(p_delay, 0), p_now + p_ttl), p_now + p_ttl,
                p_reply_ttl, (p_reply_ttl IS NOT NULL)::integer, p_payloads[n], p_now, p_keys[n])
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
    ELSE
        v_new := cardinality(p_payloads);
        v_answer := ARRAY(SELECT nextval('fray.items_id_seq') FROM unnest(p_payloads));
@ADD id; payload; FROM unnest(v_answer, p_payloads) AS u (id, payload)@
    END IF;
@KEEP v_answer; CASE WHEN p_delay > 0 THEN 0 ELSE v_new END; CASE WHEN p_delay > 0 THEN v_new ELSE 0 END; 0; @
    IF v_waited THEN PERFORM pg_notify('fray_' || p_queue, ''); END IF;
    RETURN v_answer;
END $$;
