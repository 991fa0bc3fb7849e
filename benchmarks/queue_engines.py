"""Queues on Redis and PostgreSQL, compared with hand-written leases on them and with other libraries.

python benchmarks/queue_engines.py                          everything; half an hour on two cores
python benchmarks/queue_engines.py --only redis --items 500 --depth 10000 --turnover 0

`push`, `take` and `done` of 100 bytes. A+B is A producers and B consumers, each a process, at the same time
(1+1: one after the other). All peers of an engine use the same server, with the same settings.
"""

import argparse
import itertools
import multiprocessing
import secrets
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "queue" / "helpers"))

import psycopg
import redis
from engine_servers import PostgresServer, RedisServer
from measure import at_least, available, columns, compile_packages, fewer, judge, lines

from fray.queue import open_queue

PAYLOAD = b"x" * 100
LEASE = 600.0
_numbers = itertools.count()
_fork: Any = multiprocessing.get_context("fork")


class Peer:
    """A queue as a benchmark uses it; made anew in each process."""

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


Make = Callable[[], Peer]


def _produce(make: Make, items: int, batch: int, start: Any) -> None:
    peer = make()
    start.wait()
    for _ in range(items // batch):
        peer.push(batch)


def _consume(make: Make, left: Any, batch: int, start: Any) -> None:
    peer = make()
    start.wait()
    while left.value > 0:
        tokens = peer.take(batch)
        if not tokens:
            time.sleep(0.001)
            continue
        peer.done(tokens)
        with left.get_lock():
            left.value -= len(tokens)


def rate(make: Make, producers: int, consumers: int, items: int, batch: int) -> float:
    """Return items a second from the first push to the last `done`."""
    if producers == consumers == 1:
        peer = make()
        start = time.perf_counter()
        for _ in range(items // batch):
            peer.push(batch)
        while tokens := peer.take(batch):
            peer.done(tokens)
        return items / (time.perf_counter() - start)
    each = max(items // producers // batch, 1) * batch
    left, barrier = _fork.Value("q", each * producers), _fork.Barrier(producers + consumers + 1)
    workers = [_fork.Process(target=_produce, args=(make, each, batch, barrier)) for _ in range(producers)]
    workers += [_fork.Process(target=_consume, args=(make, left, batch, barrier)) for _ in range(consumers)]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return each * producers / (time.perf_counter() - start)


def compare_rates(title: str, peers: dict[str, Callable[[], Make]], items: int, rounds: int) -> None:
    """Print each peer's rates; the last of them is what the ratios are to."""
    for producers, consumers, batch in ((1, 1, 1), (4, 4, 1), (16, 16, 1), (1, 1, 100), (4, 4, 100)):
        count = items * (10 if batch > 1 else 1)
        found: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(rounds):
            for name, fresh in peers.items():
                found[name].append(rate(fresh(), producers, consumers, count, batch))
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        base = list(medians.values())[-1]
        shape = f"{title} {producers}+{consumers}, batches of {batch}"
        rows = [(name, f"{median:,.0f}", f"{median / base:.2f}") for name, median in medians.items()]
        columns(shape, ["items/s", "ratio to the last"], rows)
        for name in list(medians)[1:]:
            bound = at_least(0.8 if name == "by hand" else 1.0)
            judge(f"{shape}: fray, ratio to {name}", medians["fray"] / medians[name], bound)


def compare_depths(title: str, fresh: Callable[[], Make], items: int, depth: int) -> None:
    """Print the rate of push, take and done with few and with many items behind them."""
    rows, rates = [], []
    for there in (1000, depth):
        peer = fresh()()
        for _ in range(there // 1000):
            peer.push(1000)
        start = time.perf_counter()
        for _ in range(items):
            peer.push(1)
            peer.done(peer.take(1))
        rates.append(items / (time.perf_counter() - start))
        rows.append((f"{there:,} items", f"{rates[-1]:,.0f}"))
    columns(f"{title}: push, take and done at a depth of", ["items/s"], rows)
    judge(f"{title}: rate with {depth:,} items, ratio to 1,000", rates[1] / rates[0], at_least(0.9))


def watch_size(server: PostgresServer, fresh: Callable[[], Make], items: int) -> None:
    """Print what the tables take while many items come and go, with autovacuum alone."""
    peer = fresh()()
    rows = []
    for turn in range(10):
        start = time.perf_counter()
        for _ in range(items // 10 // 1000):
            peer.push(1000)
            peer.done(peer.take(1000))
        ((size, dead),) = server.sql(
            "SELECT pg_total_relation_size('fray.items'), n_dead_tup FROM pg_stat_user_tables "
            "WHERE relid = 'fray.items'::regclass"
        )
        took = time.perf_counter() - start
        figures = f"{size / 1e6:>8.1f} MB {dead:>9,} dead rows {items / 10 / took:>10,.0f} items/s"
        rows.append((f"{items * (turn + 1) // 10:,} items", figures))
    lines("postgresql: size of fray.items over the items that went through", rows)


def on_redis(options: argparse.Namespace, folder: Path) -> None:
    with RedisServer(folder / "redis", "--appendonly", "no") as server:
        url = f"redis://127.0.0.1:{server.port}/0?queue="

        def fray() -> Make:
            name = f"q{next(_numbers)}"
            return lambda: Fray(url + name)

        def by_hand() -> Make:
            name = f"h{next(_numbers)}"
            return lambda: RedisByHand(server.port, name)

        compare_rates("redis", {"fray": fray, "by hand": by_hand}, options.items, options.rounds)
        compare_depths("redis", fray, options.items, options.depth)
        if options.libraries and available("rq", module="rq"):
            compare_library("rq", fray, lambda items: _rq(server.port, items), options.items)


def on_postgres(options: argparse.Namespace, folder: Path) -> None:
    with PostgresServer(folder / "postgres", "fsync=on", "shared_buffers=256MB") as server:

        def fray() -> Make:
            name = f"q{next(_numbers)}"
            return lambda: Fray(f"{server.url}?queue={name}")

        def by_hand() -> Make:
            table = f"h{next(_numbers)}"
            PostgresByHand.make(server.url, table)
            return lambda: PostgresByHand(server.url, table)

        def pgmqs_way() -> Make:
            table = f"m{next(_numbers)}"
            PgmqsWay.make(server.url, table)
            return lambda: PgmqsWay(server.url, table)

        peers = {"fray": fray, "pgmq's way": pgmqs_way, "by hand": by_hand}
        compare_rates("postgresql", peers, options.items, options.rounds)
        compare_depths("postgresql", fray, options.items, options.depth)
        if options.turnover:
            watch_size(server, fray, options.turnover)
        if options.libraries and available("procrastinate", module="procrastinate"):
            compare_library(
                "procrastinate", fray, lambda items: _procrastinate(server.url, items), options.items
            )


def compare_library(name: str, fray: Callable[[], Make], run: Callable[[int], float], items: int) -> None:
    """Print the rate of a library that runs a function that does nothing, beside a pool of one thread."""
    ours = _work(fray, items)
    theirs = items / run(items)
    rows = [("fray work()", f"{ours:,.0f}", f"{ours / theirs:.2f}"), (name, f"{theirs:,.0f}", "1.00")]
    columns(f"{name}: push, then run a function that does nothing", ["items/s", "ratio"], rows)
    judge(f"fray work(), ratio to {name}", ours / theirs, at_least(1.0))


def _work(fray: Callable[[], Make], items: int) -> float:
    from fray_queue import work

    peer: Any = fray()()
    start = time.perf_counter()
    for _ in range(items):
        peer.push(1)
    work(peer.queue, _nothing, stop_when_empty=True)
    return items / (time.perf_counter() - start)


def _nothing(item: Any) -> None:
    pass


def _rq(port: int, items: int) -> float:
    import rq

    client = redis.Redis(port=port)
    queue = rq.Queue(connection=client)
    start = time.perf_counter()
    for _ in range(items):
        queue.enqueue("operator.truth", PAYLOAD, result_ttl=0)  # a function that workers can import
    rq.SimpleWorker([queue], connection=client).work(burst=True, logging_level="ERROR")
    return time.perf_counter() - start


def _procrastinate(url: str, items: int) -> float:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    app.task(name="nothing")(_nothing)
    with (
        app.replace_connector(procrastinate.SyncPsycopgConnector(conninfo=url)) as own,
        own.open(),
    ):
        own.schema_manager.apply_schema()
        start = time.perf_counter()
        for _ in range(items):
            own.configure_task("nothing").defer(item=PAYLOAD.decode())
    app.run_worker(wait=False, delete_jobs="always")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=("redis", "postgresql"))
    parser.add_argument("--items", type=int, default=fewer(2000, 200))
    parser.add_argument("--rounds", type=int, default=fewer(5, 1))
    parser.add_argument("--depth", type=int, default=fewer(1_000_000, 10_000))
    parser.add_argument(
        "--turnover", type=int, default=fewer(10_000_000, 20_000), help="items that go through the tables"
    )
    parser.add_argument("--libraries", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    compile_packages("fray", "fray_queue", "redis", "psycopg")
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "postgresql" and available("Redis", program="redis-server"):
            on_redis(options, Path(folder))
        if options.only != "redis" and available("PostgreSQL", program="pg_ctlcluster"):
            on_postgres(options, Path(folder))


if __name__ == "__main__":
    main()
