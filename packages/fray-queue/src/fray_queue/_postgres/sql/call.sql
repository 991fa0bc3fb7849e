-- What every call that changes a queue has. The text stands in each of the functions, and the usual case has few expressions:
-- PostgreSQL prepares each anew for a transaction, and a call within a call costs as much as a statement.

-- @DECLARE@
    v_now double precision := coalesce(p_now, date_part('epoch', clock_timestamp()));
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

-- @KEEP answer; ready; held; dead@
    -- The answer, and what changed of the counts. It comes last: no call waits for another's row after it.
    UPDATE fray.slots SET number = p_number, answer = {answer}, ready = ready + {ready}, held = held + {held},
        dead = dead + {dead}, at = clock_timestamp() WHERE queue = p_queue AND slot = p_slot AND number < p_number;
    IF NOT FOUND THEN PERFORM fray.first_@V@(p_queue, p_slot, p_number, {answer}, {ready}, {held}, {dead}); END IF;
