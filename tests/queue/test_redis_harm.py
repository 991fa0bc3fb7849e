"""What happens to a Redis while queues are open: one is made again, a slot moves, a snapshot fails."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_servers import RedisServer, fresh_name
from queue_processes import wait_until

from fray import LeaseExpiredError, NoReplyError, QueueUnavailableError
from fray.testing.queue import ManualClock
from fray_queue import HttpQueueServer, QueueFullError, RedisQueue


def test_a_queue_that_was_made_again_answers_for_none_of_the_items_before(redis_server: RedisServer) -> None:
    """A Redis that keeps nothing restarts empty, or the queue is deleted; then another has its name."""
    name = fresh_name()
    early, worker = RedisQueue[str](redis_server.url, name), RedisQueue[str](redis_server.url, name)
    tickets = early.push_many(["mine", "mine, too"], reply=True)
    held = worker.pop()
    assert held is not None
    RedisQueue[str](redis_server.url, name).delete()
    late = RedisQueue[str](redis_server.url, name)
    late.push_many(["other", "and another"], reply=True)
    for each in late.pop_many(2):
        late.done(each, result=f"the answer to {each.item}")
    for call in (tickets[0].result, lambda: worker.done(held)):
        with pytest.raises(QueueUnavailableError, match="not there any more"):
            call()
    # Who has it open goes on with the one that is there now.
    for ticket in tickets:
        with pytest.raises(NoReplyError):
            ticket.result(10.0)
    with pytest.raises(LeaseExpiredError):
        worker.done(held)
    item_id = early.push("new")
    lease = worker.pop()
    assert lease is not None
    assert (lease.item, lease.item_id) == ("new", item_id)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two nodes, of which the first has all slots."""
    settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with RedisServer(tmp_path / "one", *settings) as one, RedisServer(tmp_path / "two", *settings) as two:
        one.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        one.cli("CLUSTER", "MEET", "127.0.0.1", str(two.port))
        for server in (one, two):
            wait_until(server.is_joined)
        yield one, two


def test_nothing_is_lost_while_a_slot_moves_to_another_node(
    cluster: tuple[RedisServer, RedisServer],
) -> None:
    """As `redis-cli --cluster reshard` does it: key by key."""
    one, two = cluster
    queue: Any = RedisQueue(one.url, "q", timeout=0.3)
    queue.push_many(range(20))
    queue.push("special", priority=-1, reply=True)
    held = queue.pop(600.0)
    slot = one.ask("CLUSTER", "KEYSLOT", "fray:{q}:meta")[1:].decode()
    ids = [server.everything("CLUSTER", "MYID").split(b"\r\n")[1].decode() for server in cluster]
    two.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    one.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    for key in ("state", "items", "line", "meta", "held", "ready", "wake"):
        for request in (queue.pop, lambda: queue.push("x"), lambda: queue.done(held)):
            with pytest.raises(QueueUnavailableError, match="did not answer within"):
                request()
        one.cli("MIGRATE", "127.0.0.1", str(two.port), f"fray:{{q}}:{key}", "0", "5000")
    for server in (two, one):
        server.cli("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    wait_until(lambda: one.ask("EXISTS", "fray:{q}:meta").startswith(b"-MOVED"))
    queue.done(held)
    assert [lease.item for lease in queue.pop_many(50, 600.0)] == [*range(1, 20), "special"]


@pytest.fixture
def without_snapshots(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that takes no writes since its last snapshot failed."""
    (tmp_path / "gone").mkdir()
    settings = ("--dir", str(tmp_path / "gone"), "--save", "3600 1000000")
    with RedisServer(tmp_path / "redis", *settings) as server:
        (tmp_path / "gone").rmdir()
        yield server


def fail_a_snapshot(server: RedisServer) -> None:
    server.ask("BGSAVE")
    wait_until(lambda: server.ask("SET", "any", "1").startswith(b"-MISCONF"))


def test_a_snapshot_that_fails_is_waited_out(without_snapshots: RedisServer) -> None:
    """The disk is full for a moment: calls are repeated, and waiting pops are notified afterwards."""
    with HttpQueueServer(engine=without_snapshots.url) as server, ThreadPoolExecutor() as threads:
        served: Any = server.new_queue("q")
        waiting = threads.submit(served.pop, wait=60.0)
        fail_a_snapshot(without_snapshots)
        queue: Any = RedisQueue(without_snapshots.url, "q", timeout=60.0)
        push = threads.submit(queue.push, "x")
        with pytest.raises(QueueUnavailableError, match="MISCONF"):
            RedisQueue[str](without_snapshots.url, "q", timeout=0.3).push("y")
        without_snapshots.cli("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
        push.result(30.0)
        assert waiting.result(30.0).item == "x"
        begun = time.monotonic()
        waiting = threads.submit(served.pop, wait=60.0)
        wait_until(lambda: b"blocked_clients:1" in without_snapshots.everything("INFO", "clients"))
        queue.push("z")
        assert waiting.result(30.0).item == "z"
        assert time.monotonic() - begun < 30.0  # not the end of the wait
        served.close()


def test_refused_pushes_leave_nothing_behind(redis_server: RedisServer) -> None:
    name = fresh_name()
    queue: Any = RedisQueue(redis_server.url, name, max_size=1)
    queue.push("first")
    before = redis_server.ask("HLEN", f"fray:{{{name}}}:meta")
    for _ in range(10):
        with pytest.raises(QueueFullError):
            queue.push("refused", wait=0.0)
        queue.done(queue.pop())
        queue.push("next")
    assert redis_server.ask("HLEN", f"fray:{{{name}}}:meta") == before


@pytest.mark.parametrize("look", ["size", "pop"])
def test_answers_that_nobody_fetched_in_time_take_no_memory(redis_server: RedisServer, look: str) -> None:
    clock, name = ManualClock(), fresh_name()
    queue: Any = RedisQueue(redis_server.url, name, clock=clock)
    for number in range(5):
        queue.push(number, reply=True, reply_ttl=10.0)
        queue.done(queue.pop(), result="x")
    assert redis_server.ask("HLEN", f"fray:{{{name}}}:replies") == b":5"
    clock.advance(11.0)
    getattr(queue, look)()
    assert redis_server.ask("HLEN", f"fray:{{{name}}}:replies") == b":0"
