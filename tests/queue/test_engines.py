"""Queues on engines under harm: lost answers, cut connections, forks, engines that are killed or stopped."""

import asyncio
import json
import os
import pickle
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_checks import check_verbs
from cutting_proxy import CuttingProxy
from engine_servers import PostgresServer, Program, RedisServer, fresh_name
from engine_torture import EngineTorture
from queue_processes import check_forked, wait_until
from touching import Touch

from fray import LeaseExpiredError, QueueUnavailableError
from fray.queue import open_queue
from fray.testing.command_line import main
from fray.testing.queue import ManualClock
from fray_queue import QueueExistsError, QueueFullError
from fray_queue.testing import engine_queue

ENGINES = ["redis", "postgres"]


class Rig:
    """One kind of engine: a server that all tests share, and how to have one of a test's own."""

    def __init__(
        self, shared: Program, own: Callable[[Path], Program], address: Callable[[int], str]
    ) -> None:
        self.shared, self.own, self.address = shared, own, address

    def url(self, server: Program | None = None, *, port: int | None = None) -> str:
        """Return the URL of a new queue."""
        return f"{self.address(port or (server or self.shared).port)}?queue={fresh_name()}"


@pytest.fixture(params=ENGINES, scope="session")
def rig(request: pytest.FixtureRequest) -> Rig:
    shared = request.getfixturevalue(f"{request.param}_server")
    if request.param == "postgres":
        return Rig(
            shared,
            lambda folder: PostgresServer(folder, "fsync=on"),
            lambda port: f"postgresql://postgres@127.0.0.1:{port}/postgres",
        )
    return Rig(
        shared,
        lambda folder: RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always"),
        lambda port: f"redis://127.0.0.1:{port}/0",
    )


@pytest.fixture
def proxy(rig: Rig) -> Iterator[CuttingProxy]:
    with CuttingProxy(rig.shared.port) as running:
        yield running


def open_any(url: str, **options: Any) -> Any:
    return open_queue(url, **options)


def test_counting_a_queue_runs_nothing_of_what_it_holds(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = rig.url()
    with open_any(url, max_attempts=1) as queue:
        queue.push_many([Touch(tmp_path / "loaded"), "a", "b"])
        queue.release(queue.pop())
        queue.pop()
        (tmp_path / "loaded").unlink()  # by the pop
        assert main(["queue", "stats", url, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"size": 2, "pending": 1, "in_flight": 1, "dead": 1}
    assert not (tmp_path / "loaded").exists()


def test_the_command_line_makes_looks_at_and_removes_queues(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    check_verbs(rig.url(), capsys)


def test_other_bounds_than_those_that_it_has_are_refused(rig: Rig) -> None:
    url = rig.url()
    open_any(url, max_attempts=3).push("x")
    with pytest.raises(QueueExistsError, match="max_attempts=3, not 4"):
        open_any(url, max_attempts=4).push("x")
    assert open_any(url).max_attempts == 3


def test_a_bound_that_is_given_later_holds_for_who_has_the_queue_open(rig: Rig) -> None:
    url = rig.url()
    early = open_any(url)
    early.push("a")
    late = open_any(url, max_size=2)
    late.push("b")
    with pytest.raises(QueueFullError):
        early.push("c", wait=0.0)
    early.done(early.pop())
    early.push("c", wait=0.0)
    early.close()
    late.close()


@pytest.mark.parametrize("bound", ["max_attempts", "max_size", "max_dead"])
def test_a_bound_that_no_engine_holds_is_refused(rig: Rig, bound: str) -> None:
    with pytest.raises(ValueError, match=f"{bound} must be at most 2147483646"):
        open_any(rig.url(), **{bound: 10**10}).push("x")


def test_a_bound_on_dead_letters_that_is_given_later_holds_from_the_next_one(rig: Rig) -> None:
    url = rig.url()
    early = open_any(url, max_attempts=1)
    early.push_many(range(6))
    for _ in range(5):
        early.release(early.pop())
    late = open_any(url, max_dead=2)
    late.release(late.pop())
    assert [letter.item for letter in late.dead_letters()] == [4, 5]
    assert late.dead_dropped() == 4
    early.close()
    late.close()


def test_dead_letters_are_read_in_answers_of_a_bounded_size(rig: Rig, proxy: CuttingProxy) -> None:
    items = [bytes([number]) * (4 << 20) for number in range(6)]
    with open_any(rig.url(port=proxy.port), max_attempts=1) as queue:
        for item in items:
            queue.push(item)
        for lease in queue.pop_many(len(items)):
            queue.release(lease)
        proxy.largest_answer = 0
        assert [letter.item for letter in queue.dead_letters()] == items
    assert proxy.largest_answer < 13 << 20


def test_items_past_their_time_are_handed_to_nobody_however_many_there_are(rig: Rig) -> None:
    """A call gives up so many, to keep nobody waiting."""
    clock = ManualClock()
    queue: Any = type(open_any(rig.url()))(rig.address(rig.shared.port), fresh_name(), clock=clock)
    for look in (queue.peek, lambda: queue.pop().item):
        queue.push_many(["late"] * 10_500, ttl=1.0)
        queue.push("in time")
        clock.advance(5.0)
        assert look() == "in time"
        queue.purge()
    queue.close()


def test_plain_items_and_others_are_taken_in_the_order_of_their_pushes(rig: Rig) -> None:
    queue = open_any(rig.url())
    ids = queue.push_many(range(1500))
    queue.push(1500, key="k")
    queue.push_many(range(1501, 2600))
    queue.push("last", priority=-1)
    queue.push("first", priority=1)
    assert (queue.size(), queue.pending(), queue.peek()) == (2602, 2602, "first")
    taken = queue.pop_many(1201)
    assert [lease.item for lease in taken] == ["first", *range(1200)]
    assert [lease.item_id for lease in taken[1:]] == ids[:1200]
    assert queue.fetch_replies([ids[7], ids[1400]]) == {}  # one is leased, one waits
    queue.release(taken[6])
    queue.release(taken[700])
    assert queue.peek() == 5
    queue.done_many([lease for lease in taken if lease.item not in (5, 699)])
    rest = queue.pop_many(5000)
    assert [lease.item for lease in rest] == [5, 699, *range(1200, 2600), "last"]
    queue.done_many(rest[:200])
    found = queue.fetch_replies([ids[7], ids[1210], ids[1499]])
    assert {item_id: reply.outcome for item_id, reply in found.items()} == {ids[7]: "gone", ids[1210]: "gone"}
    assert (queue.size(), queue.pending()) == (1203, 0)
    queue.close()


def fail_to_load(text: str) -> None:
    raise ValueError(text)


class FailsToLoad:
    """An item that nobody can unpickle, for a reason of its own."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return fail_to_load, (self.text,)


@pytest.mark.parametrize(
    "text", ["no text: \udcff", "zero: \0", "x" * 5000], ids=["surrogate", "zero", "long"]
)
def test_an_error_of_any_text_gives_its_item_back(rig: Rig, text: str) -> None:
    queue = open_any(rig.url(), max_attempts=1)
    queue.push("x")
    queue.release(queue.pop(), error=ValueError(text))
    queue.push(FailsToLoad(text))
    assert queue.pop() is None
    errors = [letter.history[0].error for letter in queue.dead_letters()]
    assert len(errors) == 2
    assert all(error.startswith(f"ValueError: {text[:5]}") for error in errors)


def test_a_lease_that_is_given_twice_is_counted_once(rig: Rig) -> None:
    queue = open_any(rig.url())
    queue.push_many("ab")
    first, second = queue.pop_many(2)
    queue.give_back([first, first])
    assert (queue.size(), queue.pending()) == (2, 1)
    queue.extend(second, 0.01)
    wait_until(lambda: queue.pending() == 2)
    assert len({lease.expires_at for lease in queue.extend_many([second, second], 60)}) == 1
    assert (queue.size(), queue.pending()) == (2, 1)
    with pytest.raises(LeaseExpiredError):
        queue.done_many([second, second])
    assert (queue.size(), queue.pending()) == (1, 1)


def test_numbers_that_the_engine_does_not_hold_are_the_largest_that_it_does(rig: Rig) -> None:
    queue = open_any(rig.url())
    queue.push_many(range(3))
    leases = queue.pop_many(sys.maxsize, lease_timeout=1e300)
    assert [lease.item for lease in leases] == [0, 1, 2]
    queue.release(queue.extend(leases[0], sys.float_info.max), delay=sys.float_info.max)
    assert (queue.size(), queue.pending()) == (3, 0)


def test_a_key_is_any_text_that_the_engine_holds(rig: Rig) -> None:
    queue = open_any(rig.url())
    with suppress(ValueError):  # refused, or kept apart from others
        assert queue.push("x", key="a\0b") == queue.push("y", key="a\0b") != queue.push("z", key="a\0c")
    with pytest.raises(ValueError, match="key must be text"):
        queue.push("x", key="\udcff")
    queue.push("y", key="é")
    assert queue.peek() in ("x", "y")


def test_the_oldest_item_is_found_among_thousands_that_are_held(rig: Rig) -> None:
    clock = ManualClock()
    queue: Any = type(open_any(rig.url()))(rig.address(rig.shared.port), fresh_name(), clock=clock)
    queue.push("oldest", delay=500.0)
    clock.advance(5.0)
    queue.push_many(range(1500))
    assert len(queue.pop_many(1500)) == 1500
    clock.advance(1.0)
    queue.push("newest", priority=-1)
    assert queue.oldest_seconds() == pytest.approx(6.0, abs=0.01)
    queue.close()


def test_leases_are_timed_by_the_engines_clock(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_any(rig.url())
    queue.push("x")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    lease = queue.pop(60.0)
    assert lease.expires_at < now + 1e5
    monkeypatch.setattr(time, "time", lambda: now + 2e6)
    assert queue.pop() is None
    queue.done(lease)
    queue.close()


def test_a_queue_that_is_made_again_is_used_after_one_error(rig: Rig) -> None:
    url = rig.url()
    with open_any(url) as queue, open_any(url) as other:
        queue.push("of the first")
        held = queue.pop()
        other.delete()
        for _ in range(2):
            with pytest.raises(QueueUnavailableError, match="deleted"):
                queue.push("of none")
        assert not other.exists()
        other.push("of the second")
        with pytest.raises(QueueUnavailableError, match="deleted"):
            queue.pop()
        assert queue.pop().item == "of the second"
        with pytest.raises(LeaseExpiredError):
            queue.done(held)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.pop, wait=30.0)
            other.push("of the second, too")
            assert waiting.result(40).item == "of the second, too"
        ticket = queue.push("answered", reply=True)
        other.done(other.pop(), result="so")
        assert ticket.result(timeout=30) == "so"


def test_a_queue_that_was_deleted_says_so_to_who_has_it_open(rig: Rig) -> None:
    url = rig.url()
    one, other = (open_any(url) for _ in range(2))
    assert not one.exists()
    one.push("x")
    assert other.exists()
    assert other.size() == 1
    one.delete()
    assert not one.exists()
    with pytest.raises(QueueUnavailableError, match="deleted"):
        other.push("y")


def test_answers_that_are_lost_are_asked_for_again_and_nothing_is_done_twice(
    rig: Rig, proxy: CuttingProxy
) -> None:
    queue = open_any(rig.url(port=proxy.port), max_attempts=3)
    queue.push("first")
    proxy.cut_every = 7
    ids = [queue.push(number) for number in range(20)]
    ids += queue.push_many(range(20, 40), keys=[f"k{number}" for number in range(20)])
    assert len(set(ids)) == 40
    leases = []
    while taken := queue.pop_many(5):
        leases += taken
    proxy.cut_every = 5
    assert [lease.item for lease in leases] == ["first", *range(40)]
    assert {lease.attempt for lease in leases} == {1}
    for lease in leases[:10]:
        queue.done(lease)
    queue.done_many(leases[10:20])
    for lease in leases[20:30]:
        queue.release(lease)
    with pytest.raises(LeaseExpiredError):
        queue.done(leases[0])
    assert (queue.size(), queue.pending()) == (21, 10)
    assert proxy.cuts > 3
    proxy.cut_every = 0
    queue.close()


def test_idle_connections_that_died_in_silence_cost_one_wait_and_not_one_each(
    rig: Rig, proxy: CuttingProxy
) -> None:
    queue = open_any(rig.url(port=proxy.port), timeout=4.0)  # two seconds for each request
    pushed = 0
    with ThreadPoolExecutor(8) as threads:
        while proxy.connections < 8:
            pushed += len(list(threads.map(queue.push, range(80))))
    proxy.forget_all()
    queue.push("after")
    assert queue.size() == pushed + 1
    queue.close()


def test_the_queues_of_a_process_share_a_connection_for_each_thread(rig: Rig, proxy: CuttingProxy) -> None:
    queues = [open_any(rig.url(port=proxy.port)) for _ in range(12)]

    def use_all() -> None:
        for queue in queues:
            queue.push("x")
            queue.done(queue.pop())

    use_all()
    use_all()
    assert proxy.connections == 1
    threads = [threading.Thread(target=use_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert proxy.connections <= 4
    assert sum(queue.size() for queue in queues) == 0
    for queue in queues:
        queue.close()


def test_connections_that_are_cut_while_pops_wait_are_made_anew(rig: Rig, proxy: CuttingProxy) -> None:
    queue = open_any(rig.url(port=proxy.port))
    queue.size()
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(queue.pop(wait=60.0)))
    waiter.start()
    waiter.join(0.2)
    proxy.cut_all()
    waiter.join(0.2)
    assert waiter.is_alive()
    queue.push("x")
    waiter.join(30)
    assert [lease.item for lease in found] == ["x"]
    queue.close()


def test_an_engine_that_is_away_is_waited_for_so_long_and_no_longer(rig: Rig) -> None:
    port = CuttingProxy(rig.shared.port)
    port.close()
    queue = open_any(rig.url(port=port.port), timeout=0.3)
    with pytest.raises(QueueUnavailableError, match=r"0\.3 s"):
        queue.push("x")
    assert not queue.capabilities.durable  # nobody knows


def test_a_forked_child_has_connections_of_its_own(rig: Rig) -> None:
    queue = open_any(rig.url())
    queue.push_many(range(20))
    mine = queue.pop_many(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of fork in a process with threads
        pid = os.fork()
    if not pid:
        code = 1
        try:
            leases = queue.pop_many(5)
            queue.done_many(leases)
            queue.push("of the child")
            code = 0 if [lease.item for lease in leases] == [5, 6, 7, 8, 9] else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    queue.done_many(mine)
    assert [lease.item for lease in queue.pop_many(20)] == [*range(10, 20), "of the child"]
    queue.close()


def test_a_child_that_is_forked_while_another_thread_opens_the_queue_waits_for_no_lock(rig: Rig) -> None:
    def push() -> None:
        with pytest.raises(QueueUnavailableError):
            queue.push("to an engine that does not answer")

    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        queue = open_any(rig.url(port=silent.getsockname()[1]), timeout=2.0)
        pushing = pool.submit(push)
        connection, _ = silent.accept()
        with connection:
            check_forked(push)
            pushing.result(30)
    queue.close()


def test_threads_and_coroutines_share_one_queue(rig: Rig) -> None:
    queue = open_any(rig.url())

    async def ask() -> list[Any]:
        tickets = [await queue.aio.push(number, reply=True) for number in range(30)]
        return await asyncio.wait_for(asyncio.gather(*(_awaited(ticket) for ticket in tickets)), 60)

    def work() -> None:
        while (lease := queue.pop(wait=30.0)) and lease.item is not None:
            queue.done(lease, result=lease.item * 2)
        if lease:
            queue.done(lease)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert asyncio.run(ask()) == [2 * number for number in range(30)]
    queue.push_many([None] * 4)
    for worker in workers:
        worker.join(60)
    assert queue.size() == 0
    queue.close()


async def _awaited(ticket: Any) -> Any:
    return await ticket


def test_a_waiting_pop_takes_what_others_lost_when_its_lease_runs_out(rig: Rig) -> None:
    queue = open_any(rig.url())
    queue.push("x")
    lost = queue.pop(0.4)
    found = queue.pop(60.0, wait=30.0)
    assert (found.item, found.attempt) == ("x", 2)
    with pytest.raises(LeaseExpiredError):
        queue.done(lost)
    queue.done(found)
    queue.close()


def test_a_push_wakes_who_waits_before_it_would_look_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_queue, "LOOK_AGAIN", 3600.0)
    queue = open_any(rig.url())
    found: list[Any] = []

    def take() -> None:
        for _ in range(3):
            lease = queue.pop(wait=3600.0)
            found.append(lease.item)
            queue.done(lease)
            taken.release()

    taken = threading.Semaphore(0)
    waiter = threading.Thread(target=take, daemon=True)
    waiter.start()
    for number in range(3):
        queue.push(number)
        assert taken.acquire(timeout=60.0)
    waiter.join(60)
    assert found == [0, 1, 2]
    queue.close()


def test_one_push_after_the_other_wakes_each_of_those_who_wait(rig: Rig) -> None:
    url = rig.url()
    queues = [open_any(url) for _ in range(3)]
    found: list[Any] = []

    def take(queue: Any) -> None:
        lease = queue.pop(wait=60.0)
        queue.done(lease)
        found.append(lease.item)

    waiters = [threading.Thread(target=take, args=(queue,)) for queue in queues for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    queues[0].push_many(range(6))
    for number in range(6, 12):
        queues[1].push(number)
    for waiter in waiters:
        waiter.join(60)
    assert sorted(found) == list(range(12))
    for queue in queues:
        queue.close()


def test_what_was_stored_outlasts_a_crash_of_an_engine_that_says_so(rig: Rig, tmp_path: Path) -> None:
    server = rig.own(tmp_path / "engine")
    with server:
        queue = open_any(rig.url(server), max_attempts=3, timeout=120.0)
        assert queue.capabilities.durable
        assert "on disk" in queue.stats()["stored"]
        queue.push_many("abcd")
        done, held = queue.pop(), queue.pop(3600.0)
        ticket = queue.push("question", reply=True, priority=7)
        queue.done(done)
        queue.done(queue.pop(), result="answer")
        waiting: list[Any] = []
        server.kill()
        pusher = threading.Thread(target=lambda: waiting.append(queue.push("e")))
        pusher.start()  # it tries until the engine is back
        pusher.join(0.2)
        server.start()
        pusher.join(150)
        assert len(waiting) == 1
        assert (queue.size(), queue.pending()) == (4, 3)
        assert ticket.result(timeout=10.0) == "answer"
        queue.done(held)
        assert [lease.item for lease in queue.pop_many(9)] == ["c", "d", "e"]
        queue.close()


def test_an_engine_that_is_stopped_for_a_while_does_what_was_asked_once(rig: Rig, tmp_path: Path) -> None:
    with rig.own(tmp_path / "engine") as server:
        queue = open_any(rig.url(server), timeout=8.0)  # a request is made again after half of that
        queue.push("before")
        server.pause()
        pushers = [threading.Thread(target=queue.push, args=(number,)) for number in range(5)]
        for pusher in pushers:
            pusher.start()
        pushers[0].join(4.2)  # beyond the time of one request: it is made again
        server.resume()
        for pusher in pushers:
            pusher.join(150)
        assert sorted(str(lease.item) for lease in queue.pop_many(20)) == ["0", "1", "2", "3", "4", "before"]
        queue.close()


@pytest.mark.timeout(0)
def test_workers_and_an_engine_that_are_killed_and_stopped_lose_nothing(
    rig: Rig, tmp_path: Path, torture: int
) -> None:
    with rig.own(tmp_path / "engine") as server:
        url = f"{rig.url(server)}&timeout=120"
        run = EngineTorture(url, tmp_path, server, rounds=torture)
        run.run()
        print(f"\ntorture {url.partition(':')[0]}: {run.check()}")
        queue = open_any(url)
        assert queue.size() == 0
        queue.close()


def test_a_pickled_queue_holds_no_secret(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FRAY_REDIS_PASSWORD", "PGPASSWORD"):
        monkeypatch.setenv(variable, "hush-hush")
    queue = open_any(rig.url())
    assert b"hush-hush" not in pickle.dumps(queue)
    assert "hush-hush" not in repr(queue)
    assert "hush-hush" not in str(vars(queue))
