"""Queues on Redis and PostgreSQL, compared with hand-written leases on them and with other libraries.

python benchmarks/queue_engines.py                          everything; half an hour on two cores
python benchmarks/queue_engines.py --only redis --items 500 --depth 10000
python benchmarks/queue_engines.py --only turnover --turnover 10000000 --turnover-rate 6000    half an hour

`push`, `take` and `done` of 100 bytes. A+B is A producers and B consumers, each a process, at the same time
(1+1: one after the other). All peers of an engine use the same server, with the same settings.
"""

import argparse
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "queue" / "helpers"))

import redis
from engine_peers import PAYLOAD, Fray, Peer, PgmqsWay, PostgresByHand, RedisByHand
from engine_servers import PostgresServer, RedisServer
from measure import at_least, at_most, available, columns, compile_packages, fewer, judge, missing

NAPTIME = 10  # seconds between rounds of autovacuum, as docs/queues-engines.md advises
_numbers = itertools.count()
_fork: Any = multiprocessing.get_context("fork")


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


_LIMITS = {
    "postgresql": "a call is a function of the database with two statements, where a loop by hand sends one: "
    "the second stores the answer, for requests that are repeated, and the counts"
}


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
            bound = at_least(0.8 if name == "by hand" else 1.0, _LIMITS.get(title, ""))
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


def compare_depths_in_batches(server: RedisServer, peers: dict[str, Callable[[], Make]], depth: int) -> None:
    """Print the server's CPU time for an item in batches of 100, with few and with many items behind it."""
    rows, growth = [], {}
    for name, fresh in peers.items():
        costs = []
        for there in (1000, depth):
            peer = fresh()()
            for _ in range(there // 1000):
                peer.push(1000)
            costs.append(_cpu_of_an_item(server, peer))
        growth[name] = costs[1] / costs[0]
        rows.append((name, *(f"{cost * 1e6:.1f}" for cost in costs), f"{growth[name]:.2f}"))
    title = "redis: the server's CPU for an item in batches of 100"
    columns(title, ["µs at 1,000 items", f"µs at {depth:,} items", "ratio"], rows)
    judge(f"{title}: ratio of {depth:,} items to 1,000", growth["fray"], at_most(1.25))


def _cpu_of_an_item(server: RedisServer, peer: Peer) -> float:
    count = fewer(100_000, 5_000)
    before = _cpu_of(server)
    for _ in range(count // 100):
        peer.push(100)
        peer.done(peer.take(100))
    return (_cpu_of(server) - before) / count


def _cpu_of(server: RedisServer) -> float:
    found = dict(
        line.split(":", 1) for line in server.everything("INFO", "CPU").decode().splitlines() if ":" in line
    )
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def watch_size(server: PostgresServer, fresh: Callable[[], Make], items: int, most: float) -> None:
    """Print what the tables take while items come and go, at `most` so many a second."""
    peer = fresh()()
    rows, sizes = [], []
    turns, begin = 10, time.perf_counter()
    for turn in range(turns):
        start = time.perf_counter()
        biggest = [0, 0, 0]
        for done in range(items // turns // 1000):
            peer.push(1000)
            peer.done(peer.take(1000))
            if most:
                time.sleep(max(0.0, start + (done + 1) * 1000 / most - time.perf_counter()))
            if done % 10 == 0:
                biggest = [max(pair) for pair in zip(biggest, _sizes(server), strict=True)]
        took = time.perf_counter() - start
        table, indexes, dead = biggest
        sizes.append(table + indexes)
        figures = (
            f"{table / 1e6:.1f} MB",
            f"{indexes / 1e6:.1f} MB",
            f"{dead:,}",
            f"{items / turns / took:,.0f}",
        )
        rows.append((f"{items * (turn + 1) // turns:,} items", *figures))
    columns("postgresql: the most that fray.items took", ["table", "indexes", "dead rows", "items/s"], rows)
    what = f"postgresql: size over {items:,} items, the most in the second half to that in the first"
    if time.perf_counter() - begin < 4 * NAPTIME:
        missing(
            what, f"it takes four rounds of autovacuum, {NAPTIME} s each; give more items, or --turnover-rate"
        )
    else:
        judge(what, max(sizes[turns // 2 :]) / max(sizes[: turns // 2]), at_most(1.2))


def _sizes(server: PostgresServer) -> tuple[int, int, int]:
    ((table, indexes, dead),) = server.sql(
        "SELECT pg_table_size(relid), pg_indexes_size(relid), n_dead_tup FROM pg_stat_user_tables "
        "WHERE relid = 'fray.items'::regclass"
    )
    return table, indexes, dead


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
        compare_depths_in_batches(server, {"fray": fray, "by hand": by_hand}, options.depth)
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
        if options.libraries and available("procrastinate", module="procrastinate"):
            compare_library(
                "procrastinate", fray, lambda items: _procrastinate(server.url, items), options.items
            )


def on_turnover(options: argparse.Namespace, folder: Path) -> None:
    settings = (
        "fsync=on",
        "shared_buffers=256MB",
        f"autovacuum_naptime={NAPTIME}s",
    )  # as docs/queues-engines.md advises
    with PostgresServer(folder / "turnover", *settings) as server:
        watch_size(
            server, lambda: lambda: Fray(f"{server.url}?queue=q"), options.turnover, options.turnover_rate
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
    parser.add_argument("--only", choices=("redis", "postgresql", "turnover"))
    parser.add_argument("--items", type=int, default=fewer(2000, 200))
    parser.add_argument("--rounds", type=int, default=fewer(5, 1))
    parser.add_argument("--depth", type=int, default=fewer(1_000_000, 10_000))
    parser.add_argument(
        "--turnover", type=int, default=fewer(10_000_000, 20_000), help="items that go through the tables"
    )
    parser.add_argument(
        "--turnover-rate", type=float, default=0.0, help="of them a second; 0 is as many as can be"
    )
    parser.add_argument("--libraries", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    compile_packages("fray", "fray_queue", "redis", "psycopg")
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "redis") and available("Redis", program="redis-server"):
            on_redis(options, Path(folder))
        if options.only in (None, "postgresql") and available("PostgreSQL", program="pg_ctlcluster"):
            on_postgres(options, Path(folder))
        if (
            options.only in (None, "turnover")
            and options.turnover
            and available("PostgreSQL", program="pg_ctlcluster")
        ):
            on_turnover(options, Path(folder))


if __name__ == "__main__":
    main()
