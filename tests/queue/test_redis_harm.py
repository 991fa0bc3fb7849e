"""What happens to a Redis while queues are open: one is made again, a slot moves, a snapshot fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_servers import RedisServer, fresh_name
from queue_processes import wait_until

from fray import LeaseExpiredError, NoReplyError, QueueUnavailableError
from fray_queue import RedisQueue


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
