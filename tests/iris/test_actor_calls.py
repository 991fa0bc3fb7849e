"""Calls of named actors between their two sides, with the transport of Iris left out."""

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from actor_servers import answer_of, transport

from fray import ActorDiedError, FrayError, create_cluster, create_context
from fray.backend import unpack_exception
from fray.cluster import Entrypoint, JobId, JobRequest
from fray.job import ActorOptions
from fray.testing.cluster import until
from fray_iris import _actor_line, _named_actors
from fray_iris._actor_host import ServedActor
from fray_iris._actor_line import ActorLine
from fray_iris._connection import AlreadyThere, Iris

PATIENCE = 60.0
JOB = "/ada/actor-1"


class Gated:
    """Counts its calls, and waits in those that are to."""

    def __init__(self) -> None:
        self.calls = 0

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def double(self, data: bytes) -> bytes:
        return data + data

    def name_of(self, value: object) -> str:
        return type(value).__name__

    def late(self, *gates: int) -> "Late":
        return Late(*gates)

    def open(self, gate: int) -> None:
        GATES[gate].set()

    def wait_for(self, gate: int, started: int | None = None) -> int:
        if started is not None:
            self.open(started)
        assert GATES[gate].wait(PATIENCE)
        return self.count()


GATES: dict[int, threading.Event] = {}


@pytest.fixture
def gates() -> Iterator[Callable[[], int]]:
    """Return what makes a gate; all are open in the end."""

    def make() -> int:
        GATES[len(GATES)] = threading.Event()
        return len(GATES) - 1

    yield make
    for each in GATES.values():
        each.set()


@pytest.fixture
def gate(gates: Callable[[], int]) -> int:
    return gates()


@pytest.fixture
def serve() -> Iterator[Callable[[], ServedActor]]:
    with create_context("threadpool") as context:
        yield lambda: ServedActor(lambda: context.create_actor(Gated), context, "Gated 'one'")


class NearIris:
    """What a line asks of Iris: an address behind which there may be one host after the other."""

    controller = "http://nowhere"

    def __init__(self, host: Any) -> None:
        self.host = host
        self.state = "JOB_STATE_RUNNING"
        self.lost_answer: Callable[[str], None] = lambda method: None
        self.taken: list[int] = []
        self.timeouts: list[int] = []
        self.late = ""  # the method whose answer never comes in time
        self.renewed: list[str] = []
        self.address = "http://nowhere:1"

    def endpoints(self, prefix: str, *, exact: bool, patient: bool = True) -> list[dict[str, str]]:
        return [{"name": prefix, "address": self.address}]

    def jobs(self, prefix: str) -> list[dict[str, str]]:
        return []

    def status(self, job: str) -> tuple[dict[str, str], dict[str, str]]:
        return {"state": self.state}, {}

    def call(self, request: Any) -> Any:
        """Be Iris's actor server: call a method, and answer with its value or with its error."""
        if request.method_name == self.late:
            raise TimeoutError("it takes too long")
        arguments = pickle.loads(request.serialized_args)
        if request.method_name == "renew":
            self.renewed.append(self.address)
        if request.method_name == "results":
            self.taken += arguments[1]
        host = self.host
        answer = answer_of(host, request)
        if not answer.HasField("error"):
            self.lost_answer(request.method_name)
        if self.host is not host:
            raise ConnectionError("the process is gone")
        return answer


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], tuple[NearIris, ActorLine]]]:
    """Return a line to a host, as a process that has Iris would have one."""
    modules = transport(None)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    lines: list[ActorLine] = []

    def connected(host: Any) -> tuple[NearIris, ActorLine]:
        iris: Any = NearIris(host)

        def client(address: str, timeout_ms: int, **_: Any) -> NearIris:
            if address != iris.address:
                raise ConnectionError("nobody is there any more")
            iris.timeouts.append(timeout_ms)
            found: NearIris = iris
            return found

        vars(modules["iris.rpc.actor_connect"])["ActorServiceClientSync"] = client
        lines.append(ActorLine(iris, JOB, "Gated 'one'"))
        return iris, lines[-1]

    yield connected
    for line in lines:
        line.die("the test is over")


def packed(method: str, *args: Any) -> tuple[int, bytes]:
    return 0, pickle.dumps((method, args, {}))


def all_results(host: ServedActor, count: int) -> list[Any]:
    def found() -> list[Any]:
        results = host.results("caller", [], 1.0)[1]
        return results if len(results) == count else []

    return [pickle.loads(data) for _, _, data in until(found, "all results")]


def test_calls_that_wait_for_their_turn_take_no_threads(serve: Callable[[], ServedActor], gate: int) -> None:
    host = serve()
    host.submit("caller", 0, [packed("wait_for", gate)], None)
    before = threading.active_count()
    host.submit("caller", 1, [packed("count")] * 50, None)
    until(lambda: threading.active_count() <= before, "they wait in the actor's queue")
    GATES[gate].set()
    assert all_results(host, 51) == list(range(1, 52))


class Late:
    """Waits for a gate where it is unpickled."""

    def __init__(self, started: int, gate: int) -> None:
        self.gates = started, gate

    def __setstate__(self, state: dict[str, tuple[int, int]]) -> None:
        started, gate = state["gates"]
        GATES[started].set()
        assert GATES[gate].wait(PATIENCE)
        vars(self).update(state)


@pytest.mark.timeout(120)
def test_an_argument_that_is_long_in_being_unpickled_holds_up_its_own_caller_alone(
    serve: Callable[[], ServedActor],
    connect: Callable[[Any], tuple[NearIris, ActorLine]],
    gates: Callable[[], int],
) -> None:
    host = serve()
    (_, line), (_, another) = connect(host), connect(host)
    started, gate = gates(), gates()
    late = line.call("name_of", (Late(started, gate),), {}, None, "first")
    behind = line.call("count", (), {}, None, "first")
    assert GATES[started].wait(PATIENCE)
    assert another.call("count", (), {}, None).result(PATIENCE) == 1
    assert line.call("count", (), {}, None, "second").result(PATIENCE) == 2
    assert not late.done()
    GATES[gate].set()
    assert (late.result(PATIENCE), behind.result(PATIENCE)) == ("Late", 3)


@pytest.mark.timeout(120)
def test_a_result_that_is_long_in_being_read_holds_up_no_other(
    serve: Callable[[], ServedActor],
    connect: Callable[[Any], tuple[NearIris, ActorLine]],
    gates: Callable[[], int],
) -> None:
    _, line = connect(serve())
    started, gate = gates(), gates()
    late = line.call("late", (started, gate), {}, None)
    assert GATES[started].wait(PATIENCE)
    counted = line.call("count", (), {}, None)
    asked: Future[int] = Future()
    counted.add_done_callback(lambda _: asked.set_result(line.call("count", (), {}, None).result(PATIENCE)))
    assert counted.result(PATIENCE) == 1
    assert asked.result(PATIENCE) == 2
    assert line.pending() == [late]
    GATES[gate].set()
    assert isinstance(late.result(PATIENCE), Late)


def test_a_call_in_a_process_without_iris_says_so(serve: Callable[[], ServedActor]) -> None:
    line = ActorLine(Iris("http://127.0.0.1:1"), JOB, "Gated 'one'")
    for _ in range(2):
        with pytest.raises(ImportError, match="marin-iris"):
            line.call("count", (), {}, None).result(PATIENCE)
    line.die("the test is over")


def test_a_call_that_the_server_refuses_each_time_fails_alone(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]]
) -> None:
    host = serve()
    _, line = connect(host)
    assert line.call("count", (), {}, None).result(PATIENCE) == 1
    submit = host.submit

    def refuse(caller: str, first: int, calls: list[tuple[int, bytes]], incarnation: str | None) -> str:
        if b"refused" in calls[0][1]:
            raise ValueError("no such call")
        return submit(caller, first, calls, incarnation)

    host.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(FrayError, match="no such call"):
        line.call("count", ("refused",), {}, None).result(PATIENCE)
    assert line.call("count", (), {}, None).result(PATIENCE) == 2


def test_a_call_whose_answer_was_lost_with_its_process_does_not_run_in_the_next(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]], gate: int
) -> None:
    first, second = serve(), serve()
    iris, line = connect(first)

    def die(method: str) -> None:
        if method == "submit" and iris.host is first:
            iris.host = second

    iris.lost_answer = die
    with pytest.raises(ActorDiedError, match="its process died"):
        line.call("wait_for", (gate,), {}, None).result(PATIENCE)
    assert line.call("count", (), {}, None).result(PATIENCE) == 1


def test_a_call_that_reached_no_process_before_the_restart_runs_in_the_next(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]]
) -> None:
    iris, line = connect(serve())
    assert line.call("count", (), {}, None).result(PATIENCE) == 1
    iris.host = serve()
    futures = [line.call("count", (), {}, None) for _ in range(3)]
    assert [future.result(PATIENCE) for future in futures] == [1, 2, 3]


def test_a_call_after_a_restart_elsewhere_runs_there(
    serve: Callable[[], ServedActor],
    connect: Callable[[Any], tuple[NearIris, ActorLine]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_actor_line, "_KNOWN_FOR", 0.0)  # it has been idle for that long
    iris, line = connect(serve())
    assert line.call("count", (), {}, None).result(PATIENCE) == 1
    iris.host, iris.address = serve(), "http://nowhere:2"
    assert line.call("count", (), {}, None).result(PATIENCE) == 1


def test_a_restart_fails_the_calls_that_the_dead_process_had_and_no_later_one(
    serve: Callable[[], ServedActor],
    connect: Callable[[Any], tuple[NearIris, ActorLine]],
    gates: Callable[[], int],
) -> None:
    iris, line = connect(serve())
    started, gate = gates(), gates()
    running = line.call("wait_for", (gate, started), {}, None)
    assert GATES[started].wait(PATIENCE)
    iris.host = serve()
    assert line.call("count", (), {}, None).result(PATIENCE) == 1
    with pytest.raises(ActorDiedError, match="its process died"):
        running.result(PATIENCE)


def test_a_caller_says_that_it_has_taken_its_last_result(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]]
) -> None:
    iris, line = connect(serve())
    assert line.call("count", (), {}, None).result(PATIENCE) == 1
    until(lambda: iris.taken == [0], "the actor may drop it")


def test_results_that_nobody_takes_are_dropped_in_the_end(
    serve: Callable[[], ServedActor], gate: int
) -> None:
    host = serve()
    host.submit("caller", 0, [packed("count"), packed("wait_for", gate)], None)
    host.forget_silent(0.0, 0.0)  # one call still runs
    GATES[gate].set()
    assert all_results(host, 2) == [1, 2]
    host.forget_silent(0.0, 60.0)
    assert all_results(host, 2) == [1, 2]
    host.forget_silent(0.0, 0.0)
    for _, worked, data in host.results("caller", [], 0.0)[1]:
        assert not worked
        assert "did not take it" in str(unpack_exception(pickle.loads(data)))


def test_an_actor_that_was_started_again_elsewhere_is_renewed_there(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]]
) -> None:
    iris, line = connect(serve())
    line.renew()
    iris.address = "http://nowhere:2"
    for _ in range(2):  # the first finds that nobody is there
        line.renew()
    assert iris.renewed == ["http://nowhere:1", "http://nowhere:2"]


def test_only_its_owner_keeps_an_actor_alive(
    serve: Callable[[], ServedActor],
    connect: Callable[[Any], tuple[NearIris, ActorLine]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_actor_line, "_KNOWN_FOR", 0.0)  # each call asks who answers
    host = serve()
    iris, line = connect(host)
    made_at = host.renewed_at
    assert line.call("count", (), {}, None).result(PATIENCE) == 1
    until(lambda: iris.taken == [0], "its result is taken")
    assert host.renewed_at == made_at
    line.renew()
    assert host.renewed_at > made_at


@pytest.mark.parametrize("owns", [True, False], ids=["by a program", "by a task of it"])
@pytest.mark.parametrize("inside", [None, "local-job-1a2b3c"])
def test_an_actor_that_was_made_outside_of_iris_is_renewed(
    owns: bool,
    inside: str | None,
    serve: Callable[[], ServedActor],
    connect: Callable[[Any], tuple[NearIris, ActorLine]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if inside is not None:  # a job of another cluster, which Iris does not know
        monkeypatch.setenv("FRAY_JOB_ID", inside)
    monkeypatch.setattr(_named_actors, "OWNER_SILENT", 0.3)
    iris, _ = connect(serve())
    launched: list[Any] = []
    cluster: Any = SimpleNamespace(
        iris=iris,
        iris_name="/ada/{}".format,
        own_job=lambda: None,
        launch_as=lambda request, job_id: launched.append(request),
        terminate=lambda *_, **__: None,
    )
    actors = _named_actors.NamedActors(cluster, "family", owns=owns)
    actor = actors.make(Gated, (), {}, ActorOptions(name="one"))
    assert launched[0].entrypoint.args[4].program
    until(lambda: len(iris.renewed) >= 2, "the actor knows that the program lives")
    actors.kill(actor)


def test_a_launch_whose_answer_was_lost_is_the_launchers_own() -> None:
    launched: dict[str, Any] = {}

    def launch(request: Any, files: Any, bundle: Any) -> str:
        launched.setdefault(request["name"], request)
        raise AlreadyThere("there is one")  # as Iris says to a second try

    cluster: Any = create_cluster("iris", controller="http://127.0.0.1:1", user="ada", shared_files=True)
    cluster.iris = SimpleNamespace(launch=launch, status=lambda name: ({}, launched[name]))
    request, job_id = JobRequest("actor", Entrypoint.from_binary("true")), JobId("actor-1")
    cluster.launch_as(request, job_id)
    with pytest.raises(AlreadyThere):
        cluster.launch_as(request, job_id)


def test_results_of_many_bytes_come_in_several_answers(serve: Callable[[], ServedActor], gate: int) -> None:
    host = serve()
    host.submit("caller", 0, [*[packed("double", bytes(5 << 20))] * 3, packed("open", gate)], None)
    assert GATES[gate].wait(PATIENCE)
    taken: list[int] = []
    for number in range(3):
        _, results = host.results("caller", taken[-1:], PATIENCE)
        taken += [number for number, _, _ in results]
        assert taken == list(range(number + 1))  # one at a time, although each is larger than an answer
    assert pickle.loads(host.results("caller", taken[-1:], PATIENCE)[1][0][2]) is None


def test_a_call_that_waits_for_an_argument_holds_up_its_own_caller_alone(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]]
) -> None:
    _, line = connect(serve())
    failing, argument = Future[bytes](), Future[bytes]()

    def call(method: str, *args: Any, caller: str = "this one") -> "Future[Any]":
        return line.call(method, args, {}, None, caller)

    failed = call("double", failing)
    waiting = [call("count"), call("count")]
    after = [call("double", argument), call("count")]
    assert call("count", caller="another").result(PATIENCE) == 1
    assert set(line.pending()) == {failed, *waiting, *after}
    failing.set_exception(ValueError("no such bytes"))
    with pytest.raises(ValueError, match="no such bytes"):
        failed.result(PATIENCE)
    assert [future.result(PATIENCE) for future in waiting] == [2, 3]
    argument.set_result(b"a")
    assert [future.result(PATIENCE) for future in after] == [b"aa", 4]
    left = call("double", Future[bytes]())
    line.die("it was killed")
    with pytest.raises(ActorDiedError, match="it was killed"):
        left.result(PATIENCE)


def test_calls_of_many_bytes_go_in_several_messages(
    serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]], gate: int
) -> None:
    host = serve()
    sizes: list[list[int]] = []
    submit = host.submit

    def first_waits(caller: str, first: int, calls: list[tuple[int, bytes]], incarnation: str | None) -> str:
        sizes.append([len(call) >> 20 for _, call in calls])
        assert GATES[gate].wait(PATIENCE)
        return submit(caller, first, calls, incarnation)

    host.submit = first_waits  # type: ignore[method-assign]
    _, line = connect(host)
    futures = [line.call("double", (bytes(size << 20),), {}, None) for size in (0, 5, 5, 9, 1, 1)]
    GATES[gate].set()
    assert [len(future.result(PATIENCE)) >> 20 for future in futures] == [0, 10, 10, 18, 2, 2]
    assert all(sum(message) <= 8 or len(message) == 1 for message in sizes), sizes


@pytest.mark.parametrize("method", ["submit", "results"])
def test_a_call_whose_answer_never_comes_in_time_fails(
    method: str, serve: Callable[[], ServedActor], connect: Callable[[Any], tuple[NearIris, ActorLine]]
) -> None:
    iris, line = connect(serve())

    iris.late = method
    with pytest.raises(FrayError, match="did not answer in 5 tries"):
        line.call("count", (), {}, None).result(PATIENCE)
    assert max(iris.timeouts) == 8 * min(iris.timeouts)  # each try has more time
    iris.late = ""
    assert line.call("count", (), {}, None).result(PATIENCE) == (1 if method == "submit" else 2)


HOSTING = """
import os, pickle, sys
from types import ModuleType, SimpleNamespace
from fray.job import ActorOptions
from fray_iris import _actor_host as host

class Failing:
    def __init__(self):
        raise ValueError("no such model")
    def predict(self):
        return 1

server = ModuleType("iris.actor.server")
server.ActorServer = lambda host: SimpleNamespace(register=print, serve_background=lambda: 1)
sys.modules["iris.actor.server"] = server
host.Iris = lambda address: SimpleNamespace(register=print)
host._ANSWERED_WITHIN = 0.2
os.environ |= {"IRIS_TASK_ID": "/ada/actor-1/0:0", "IRIS_CONTROLLER_ADDRESS": "http://nowhere"}
made = pickle.dumps((Failing, (), {}))
host.host_actor(made, ActorOptions(), "Failing 'one'", {"predict": False}, host.Owner(), "here")
"""


def test_the_job_of_an_actor_that_cannot_be_made_fails() -> None:
    ended = subprocess.run([sys.executable, "-c", HOSTING], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1
    assert ended.stderr.endswith("its constructor raised ValueError: no such model\n")
