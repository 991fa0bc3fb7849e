"""What `queue_engines.py` compares: a queue of ours, and hand-written leases on the same engines."""

import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import redis

from fray.queue import open_queue

PAYLOAD = b"x" * 100
LEASE = 600.0


class Peer:
    """A queue as a benchmark uses it; opened again in each process."""

    def push(self, count: int) -> None:
        raise NotImplementedError

    def take(self, count: int) -> Sequence[Any]:
        raise NotImplementedError

    def done(self, tokens: Sequence[Any]) -> None:
        raise NotImplementedError


class Fray(Peer):
    def __init__(self, url: str) -> None:
        self.queue = open_queue(url)
        self.queue.size()  # connects, as the others did by now

    def push(self, count: int) -> None:
        self.queue.push(PAYLOAD) if count == 1 else self.queue.push_many([PAYLOAD] * count)

    def take(self, count: int) -> Sequence[Any]:
        return self.queue.pop_many(count, LEASE)

    def done(self, tokens: Sequence[Any]) -> None:
        self.queue.done_many(tokens)


class RedisByHand(Peer):
    """A list, a hash and a sorted set, moved by scripts; a receipt for each delivery, as our leases have."""

    PUSH = (
        "for i = 1, #ARGV, 2 do redis.call('hset', KEYS[2], ARGV[i], ARGV[i + 1]) "
        "redis.call('lpush', KEYS[1], ARGV[i]) end"
    )
    TAKE = (
        "local found = {} for _ = 1, tonumber(ARGV[1]) do local id = redis.call('rpop', KEYS[1]) "
        "if not id then break end redis.call('zadd', KEYS[3], ARGV[2], id) "
        "redis.call('hset', KEYS[4], id, ARGV[3]) "
        "found[#found + 1] = {id, redis.call('hget', KEYS[2], id)} end return found"
    )
    DONE = (
        "for i = 1, #ARGV, 2 do if redis.call('hget', KEYS[4], ARGV[i]) == ARGV[i + 1] then "
        "redis.call('zrem', KEYS[3], ARGV[i]) redis.call('hdel', KEYS[2], ARGV[i]) "
        "redis.call('hdel', KEYS[4], ARGV[i]) end end"
    )

    def __init__(self, port: int, name: str) -> None:
        client = redis.Redis(port=port)
        self.keys = [f"{name}:{part}" for part in ("line", "items", "leases", "receipts")]
        self.scripts = [client.register_script(text) for text in (self.PUSH, self.TAKE, self.DONE)]

    def push(self, count: int) -> None:
        self.scripts[0](self.keys, [part for _ in range(count) for part in (uuid.uuid4().hex, PAYLOAD)])

    def take(self, count: int) -> Sequence[Any]:
        receipt = secrets.token_hex(8)
        found = self.scripts[1](self.keys, [count, time.time() + LEASE, receipt])
        return [(item, receipt) for item, _ in found]

    def done(self, tokens: Sequence[Any]) -> None:
        self.scripts[2](self.keys, [part for token in tokens for part in token])


class PostgresByHand(Peer):
    """One table, SKIP LOCKED, a receipt for each delivery; `make` makes the table."""

    def __init__(self, url: str, table: str) -> None:
        self.session, self.table = psycopg.connect(url, autocommit=True), table

    @staticmethod
    def make(url: str, table: str) -> None:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(
                f"CREATE TABLE {table} (id bigserial PRIMARY KEY, leased_until timestamptz, receipt text, "
                "attempts int NOT NULL DEFAULT 0, payload bytea NOT NULL)"
            )
            session.execute(f"CREATE INDEX ON {table} (id) WHERE leased_until IS NULL")

    def push(self, count: int) -> None:
        self.session.execute(
            f"INSERT INTO {self.table} (payload) SELECT unnest(%s::bytea[])", [[PAYLOAD] * count]
        )

    def take(self, count: int) -> Sequence[Any]:
        receipt = secrets.token_hex(8)
        rows = self.session.execute(
            f"UPDATE {self.table} SET leased_until = now() + interval '600 s', receipt = %s, "
            f"attempts = attempts + 1 WHERE id = ANY (ARRAY(SELECT id FROM {self.table} "
            "WHERE leased_until IS NULL ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id, payload",
            [receipt, count],
            binary=True,
        ).fetchall()
        return [(row[0], receipt) for row in rows]

    def done(self, tokens: Sequence[Any]) -> None:
        self.session.execute(
            f"DELETE FROM {self.table} WHERE id = ANY (%s) AND receipt = %s",
            [[token[0] for token in tokens], tokens[0][1]],
        )


class PgmqsWay(PostgresByHand):
    """As pgmq does it: one index over the visibility time, `done` by the id alone."""

    @staticmethod
    def make(url: str, table: str) -> None:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(
                f"CREATE TABLE {table} (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, "
                "read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(), "
                "vt timestamptz NOT NULL DEFAULT clock_timestamp(), payload bytea)"
            )
            session.execute(f"CREATE INDEX ON {table} (vt ASC)")

    def take(self, count: int) -> Sequence[Any]:
        rows = self.session.execute(
            f"WITH cte AS (SELECT msg_id FROM {self.table} WHERE vt <= clock_timestamp() "
            "ORDER BY msg_id ASC LIMIT %s FOR UPDATE SKIP LOCKED) "
            f"UPDATE {self.table} m SET vt = clock_timestamp() + interval '600 s', read_ct = read_ct + 1 "
            "FROM cte WHERE m.msg_id = cte.msg_id RETURNING m.msg_id, m.payload",
            [count],
            binary=True,
        ).fetchall()
        return [row[0] for row in rows]

    def done(self, tokens: Sequence[Any]) -> None:
        self.session.execute(f"DELETE FROM {self.table} WHERE msg_id = ANY (%s)", [list(tokens)])
