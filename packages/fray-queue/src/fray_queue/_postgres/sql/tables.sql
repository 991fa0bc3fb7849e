-- One schema for all queues of a database. An item is one row: what is in line, held or dead is in `state`,
-- and each state has an index of its own, so that no look depends on the others' number.
CREATE SCHEMA IF NOT EXISTS fray;
CREATE TABLE fray.store (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version integer NOT NULL);
CREATE TABLE fray.rights (kind text NOT NULL, role text NOT NULL, PRIMARY KEY (kind, role));
CREATE TABLE fray.queues (
    number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE, tag text NOT NULL,
    max_attempts integer, max_size integer, max_dead integer NOT NULL, dropped bigint NOT NULL DEFAULT 0,
    waited_until timestamptz  -- somebody waits: only then is anybody notified
);
CREATE TABLE fray.items (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue integer NOT NULL, state smallint NOT NULL DEFAULT 0,
    priority integer NOT NULL DEFAULT 0, attempt integer NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '',
    leased_at double precision NOT NULL DEFAULT 0, until double precision NOT NULL DEFAULT 0,
    due double precision, deadline double precision, key text, reply_ttl double precision, askers integer NOT NULL DEFAULT 0,
    history jsonb NOT NULL DEFAULT '[]', payload bytea NOT NULL, pushed_at double precision
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_insert_scale_factor = 0.5);
ALTER TABLE fray.items ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX items_ready ON fray.items (queue, priority DESC, id) WHERE state = 0;
CREATE INDEX items_due ON fray.items (queue, due) WHERE due IS NOT NULL;  -- the end of a lease or a delay; else the deadline
CREATE INDEX items_dead ON fray.items (queue, id) WHERE state = 2;
CREATE UNIQUE INDEX items_key ON fray.items (queue, key) WHERE key IS NOT NULL;
-- Of each client's connection: its newest request with the answer, and what it changed of the queue's counts.
CREATE TABLE fray.slots (
    queue integer NOT NULL, slot bigint NOT NULL, number bigint NOT NULL DEFAULT 0, answer bigint[],
    ready bigint NOT NULL DEFAULT 0, held bigint NOT NULL DEFAULT 0, dead bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (queue, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);
CREATE TABLE fray.replies (
    queue integer NOT NULL, id bigint NOT NULL, outcome text NOT NULL, payload bytea NOT NULL,
    until double precision NOT NULL, askers integer NOT NULL, PRIMARY KEY (queue, id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE INDEX replies_until ON fray.replies (queue, until);
INSERT INTO fray.store (version) VALUES (@VERSION@);
