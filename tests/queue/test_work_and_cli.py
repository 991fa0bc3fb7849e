"""`work` ends in time whatever the function does; `fray queue` reads, calls and prints."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_checks import check_verbs
from touching import Touch

from fray.backend import descendants
from fray.queue import Lease, open_queue
from fray.testing.command_line import main
from fray.testing.gates import until
from fray.testing.queue import ManualClock
from fray_queue import FileQueue, HttpQueueServer, Limits, MemoryQueue, SqliteQueue, work
from fray_queue.testing import Wire, unpack


def test_workers_share_the_items() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(100))
    seen: list[tuple[int, int]] = []
    barrier = threading.Barrier(4)

    def fn(item: int) -> None:
        if item < 4:
            barrier.wait(30)  # all four threads are at work
        seen.append((item, threading.get_ident()))

    summary = work(queue, fn, concurrency=4, stop_when_empty=True)
    assert sorted(item for item, _ in seen) == list(range(100))
    assert len({thread for _, thread in seen}) == 4
    assert (summary.done, summary.failed, queue.size()) == (100, 0, 0)


def test_a_failing_item_is_tried_again_and_given_up_in_the_end() -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=2)
    queue.push_many(["bad", "good"])
    calls: list[str] = []

    def fn(item: str) -> None:
        calls.append(item)
        if item == "bad":
            raise ValueError(item)

    summary = work(queue, fn, retries=2, stop_when_empty=True)
    assert (summary.done, summary.failed) == (1, 2)
    assert calls.count("bad") == 6  # three calls in each of two attempts
    assert [letter.item for letter in queue.dead_letters()] == ["bad"]


def test_an_item_that_fails_rests_longer_each_time() -> None:
    clock = ManualClock()
    delays: list[float] = []

    class Watched(MemoryQueue[str]):
        def release(
            self, lease: Lease[str], *, delay: float = 0.0, error: BaseException | None = None
        ) -> None:
            super().release(lease, delay=delay, error=error)
            assert self.pending() == 0
            delays.append(delay)
            clock.advance(delay)

    queue = Watched(max_attempts=9, clock=clock)
    queue.push("bad")
    summary = work(queue, int, lease_timeout=10_000, retry_delay=1.0, stop_when_empty=True)
    assert summary.failed == 9
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(queue.dead_letters()) == 1
    with pytest.raises(ValueError, match="retries"):
        work(queue, print, retries=-1)


def test_a_lease_lasts_as_long_as_its_function() -> None:
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("slow")

    def fn(item: str) -> None:
        time.sleep(1.0)
        assert queue.pop() is None

    assert work(queue, fn, lease_timeout=0.3, stop_when_empty=True).done == 1


class Surveyed(MemoryQueue[str]):
    """A queue with an item that another worker holds; each look whether it is empty takes a while."""

    def __init__(self, seconds: float, looks: int) -> None:
        super().__init__()
        self.push("held")
        self.held = self.pop(600)
        self.seconds, self.looks = seconds, looks
        self.at: list[float] = []

    def size(self) -> int:
        time.sleep(self.seconds)
        self.at.append(time.monotonic())
        if len(self.at) == self.looks:
            assert self.held is not None
            self.done(self.held)
        return super().size()


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_pool_that_waits_for_others_looks_ever_less_often(concurrency: int) -> None:
    queue = Surveyed(seconds=0.02, looks=4)
    assert work(queue, print, concurrency=concurrency, stop_when_empty=True).done == 0
    assert len(queue.at) == 4  # by one for all
    assert queue.at[3] - queue.at[0] >= 0.05 + 0.1 + 0.2
    assert queue.at[3] - queue.at[2] >= 0.2


WORKER = """
import pathlib, sys, time
from fray_queue import FileQueue, work
queue = FileQueue(sys.argv[1])
pool = work.__globals__["WorkerPool"]
stop = pool.stop
def stopped(self):  # nothing tells the program that its pool has seen the signal
    stop(self)
    print("stopping\\n", end="", flush=True)
pool.stop = stopped
def fn(gate):
    print("started\\n", end="", flush=True)  # in one write: two threads print
    while not pathlib.Path(gate).exists():
        time.sleep(0.01)
summary = work(queue, fn, concurrency=2, grace=float(sys.argv[2]))
print(summary.done, summary.released, flush=True)
"""


@pytest.mark.parametrize(("ends", "grace", "says"), [(True, 60.0, "2 0"), (False, 0.3, "0 2")])
def test_sigterm_lets_workers_finish_or_gives_their_items_back(
    tmp_path: Path, ends: bool, grace: float, says: str
) -> None:
    queue: FileQueue[str] = FileQueue(tmp_path / "q")
    gate = tmp_path / "gate"
    queue.push_many([str(gate)] * 3)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "q"), str(grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert [process.stdout.readline(), process.stdout.readline()] == ["started\n"] * 2
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "stopping\n"
            if ends:
                gate.touch()
            assert process.stdout.readline().strip() == says
            assert process.wait(20) == 0
        finally:
            process.kill()  # a worker that outlives a failed check would go on for ever
    assert queue.size() == queue.pending() == 3 - int(says[0])


TWICE = """
import signal, sys
from fray.queue import open_queue
from fray_queue import work
lines = 0
def trace(frame, event, _argument):
    global lines
    if (frame.f_code.co_name, frame.f_back and frame.f_back.f_code.co_name) != ("set", "<lambda>"):
        return None
    lines += event == "line"
    if lines == 2:
        lines += 1
        signal.raise_signal(signal.SIGTERM)
    return trace
sys.settrace(trace)
queue = open_queue("memory:")
queue.push(0)
work(queue, lambda _: signal.raise_signal(signal.SIGTERM))
"""


def test_a_second_sigterm_that_comes_while_the_first_is_handled_ends_it_too() -> None:
    with subprocess.Popen([sys.executable, "-c", TWICE]) as process:
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()


# --- the command line ---


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["queue", *arguments]) == 0
    return capsys.readouterr().out


def test_every_verb_works_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file:{tmp_path}/q?max_attempts=1"
    ids = run(capsys, "push", "--create", url, "a", "b", "c").split()
    assert len(ids) == 3
    run(capsys, "push", url, "--json", '{"n": 1}')
    assert run(capsys, "pop", url) == "a\n"
    (row,) = json.loads(run(capsys, "stats", url, "--json"))
    assert row == {"size": 3, "pending": 3, "in_flight": 0, "dead": 0}
    queue = open_queue(url)
    for lease in queue.pop_many(2):
        queue.release(lease)
    letters = json.loads(run(capsys, "dead", url, "--json"))
    assert [letter["item_id"] for letter in letters] == ids[1:]
    assert "released" in run(capsys, "dead", url)
    assert main(["queue", "requeue", url, ids[1], "nobody"]) == 1
    said = capsys.readouterr()
    assert said.out == "1 requeued\n"
    assert "1 of 2 ids are of no dead letter" in said.err
    assert run(capsys, "purge", url, "--dead", "--yes") == "1 removed\n"
    rows = [json.loads(line) for line in run(capsys, "pop", url, "-n", "5", "--json").splitlines()]
    assert {row["item_id"]: row["item"] for row in rows}[ids[1]] == "b"
    assert {"n": 1} in [row["item"] for row in rows]
    assert run(capsys, "purge", url, "--yes", "--json") == '{"removed": 0}\n'


def test_looking_at_a_queue_runs_nothing_of_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with HttpQueueServer() as server:
        url = f"{server.url}/tasks"
        queue = server.new_queue("tasks", max_attempts=1)
        queue.push_many([Touch(tmp_path / "loaded"), "waiting"])
        record = unpack(Wire(queue).send("pop", b'{"n": 1}', "application/json"))[0][0]
        Wire(queue).json("release", {"item_id": record["item_id"], "lease_id": record["lease_id"]})
        (row,) = json.loads(run(capsys, "stats", url, "--json"))
        assert row == {"size": 1, "pending": 1, "in_flight": 0, "dead": 1}
        (letter,) = json.loads(run(capsys, "dead", url, "--json"))
        assert (letter["item_id"], letter["outcomes"]) == (record["item_id"], "released")
        assert str(letter["bytes"]) in run(capsys, "dead", url)
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("address", ["sqlite:{}/q.db?max_attempts=1", "file:{}/q?max_attempts=1"])
def test_counting_a_queue_runs_nothing_of_what_it_holds(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = address.format(tmp_path)
    queue: Any = open_queue(url)
    queue.push_many([Touch(tmp_path / "loaded"), "a", "b"])
    queue.release(queue.pop())
    queue.pop()
    (tmp_path / "loaded").unlink()  # by the pop
    (row,) = json.loads(run(capsys, "stats", url, "--json"))
    assert row == {"size": 2, "pending": 1, "in_flight": 1, "dead": 1}
    assert not (tmp_path / "loaded").exists()
    queue.close()


def test_what_cannot_be_unpickled_here_is_reported_in_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_workers_have_this.py").write_text("class Task: pass")
    url = f"file:{tmp_path}/q?max_attempts=1"
    queue = open_queue(url)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        queue.push(importlib.import_module("only_workers_have_this").Task())
        lease = queue.pop()
        assert lease is not None
        queue.release(lease)
    del sys.modules["only_workers_have_this"]
    assert json.loads(run(capsys, "stats", url, "--json"))[0]["dead"] == 1
    (row,) = json.loads(run(capsys, "dead", url, "--json"))
    assert row["item"].startswith("unreadable here: ModuleNotFoundError")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_is_served_listed_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: int
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    command = [sys.executable, "-m", "fray", "queue", "serve"]
    command += ["--token-file", str(token), "--queue", "tasks", "--store", str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            secured = ("--token-file", str(token))
            run(capsys, "push", f"{url}/tasks", "x", "y", *secured)
            (row,) = json.loads(run(capsys, "list", url, "--json", *secured))
            assert (row["name"], row["size"]) == ("tasks", 2)
            assert run(capsys, "pop", f"{url}/tasks", *secured) == "x\n"
            assert main(["queue", "list", url]) == 1
            assert "token" in capsys.readouterr().err
            assert main(["queue", "push", f"{url}/tasks?token=s3cret", "x"]) == 1
            assert "never in a URL" in capsys.readouterr().err
        finally:
            process.send_signal(ending)
            assert process.wait(20) == 0


def test_limits_of_a_server_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "fray", "queue", "serve"]
    command += ["--queue", "tasks", "--queues", "1", "--item-bytes", "1000"]
    command += ["--body-seconds", "5", "--free-disk", "0", "--store-bytes", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            run(capsys, "push", f"{url}/tasks", "x" * 900)
            assert main(["queue", "push", f"{url}/tasks", "x" * 1100]) == 1
            assert "an item has at most 1000 bytes" in capsys.readouterr().err
            assert main(["queue", "push", "--create", f"{url}/others", "x"]) == 1
            assert "takes no more" in capsys.readouterr().err
        finally:
            process.terminate()
            assert process.wait(20) == 0
    for option in ("--item-bytes", "--queues", "--body-seconds", "--store-bytes"):
        assert main(["queue", "serve", option, "0"]) == 2
        assert option in capsys.readouterr().err
    with pytest.raises(ValueError, match="batch"):
        Limits(batch=0)
    with pytest.raises(ValueError, match="wait_seconds"):
        Limits(wait_seconds=-1)


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "stats", "nope://x"]) == 1
    assert "Unknown queue scheme 'nope'" in capsys.readouterr().err
    assert main(["queue", "stats", str(tmp_path)]) == 1
    assert "has no scheme" in capsys.readouterr().err
    assert main(["queue", "list", f"sqlite:{tmp_path}/q.db"]) == 2
    assert "the URL is that of a server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [(["list", "http://127.0.0.1:9"], "httptools", "http"), (["serve"], "uvloop", "server")],
)
def test_a_verb_whose_extra_is_missing_says_what_to_install(
    arguments: list[str], module: str, extra: str
) -> None:
    without = f"import sys; sys.modules[{module!r}] = None; from fray.testing.command_line import main"
    command = [sys.executable, "-c", f"{without}; sys.exit(main(sys.argv[1:]))", "queue", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"fray queue {arguments[0]} needs {module}: pip install 'fray-queue[{extra}]'" in done.stderr


@pytest.mark.parametrize("kind", ["file", "sqlite", "http"])
def test_queues_are_made_looked_at_and_removed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with HttpQueueServer() as server:
        places = {
            "file": f"file:{tmp_path}/q",
            "sqlite": f"sqlite:{tmp_path}/q.db",
            "http": f"{server.url}/q",
        }
        assert main(["queue", "stats", places[kind]]) == 1
        assert not (tmp_path / "q").exists()
        assert not (tmp_path / "q.db").exists()
        capsys.readouterr()
        check_verbs(places[kind], capsys)
    assert not (tmp_path / "q").exists() or not any((tmp_path / "q").iterdir())


def test_a_wrong_name_or_a_queue_of_no_place_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "create", "http://127.0.0.1:1/a..b"]) == 2
    assert "is not a name for a queue" in capsys.readouterr().err
    assert main(["queue", "stats", "memory:"]) == 1
    assert "in the memory of the program that made it" in capsys.readouterr().err


def test_a_command_works_on_items_and_its_exit_code_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    run(capsys, "create", url, "--max-attempts", "1")
    run(capsys, "push", url, "one", "two", "bad")
    run(capsys, "push", url, "--json", '{"n": 1}')
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\n[ "$1" = bad ] && exit 3\necho "$1" >> {tmp_path}/seen\n')
    script.chmod(0o700)
    assert main(["queue", "work", url, "--stop-when-empty", "--", str(script), "{}"]) == 0
    assert "3 done, 1 failed" in capsys.readouterr().err
    assert (tmp_path / "seen").read_text() == 'one\ntwo\n{"n": 1}\n'
    assert json.loads(run(capsys, "dead", url, "--json"))[0]["item"] == "'bad'"
    run(capsys, "push", url, "on its input")
    script.write_text(f"#!/bin/sh\ncat > {tmp_path}/input\n")
    assert main(["queue", "work", url, "--stop-when-empty", "--", str(script)]) == 0
    assert (tmp_path / "input").read_text() == "on its input"
    assert main(["queue", "work", url, "--", "no-such-program"]) == 1
    assert "no program 'no-such-program'" in capsys.readouterr().err


def test_a_command_that_the_machine_cannot_start_now_is_tried_again(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\ncat\n")
    script.chmod(0o700)
    command = [sys.executable, "-m", "fray", "queue", "work", f"sqlite:{tmp_path}/q.db"]
    command += ["--stop-when-empty", "--", str(script)]
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=1) as queue:
        queue.push("x")
        with (
            script.open("a") as written,  # the system starts no program that is being written
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ):
            try:
                assert process.stderr is not None
                said = process.stderr.readline()
                assert f"{script} cannot be started now, and is tried again: Text file busy" in said
                written.close()
                assert process.communicate(timeout=60) == ("x", "1 done, 0 failed, 0 given back\n")
            finally:
                process.kill()
        assert (queue.size(), queue.dead_letters()) == (0, [])


def test_a_command_that_could_be_started_as_its_pool_ended_is_not(tmp_path: Path) -> None:
    """Its item is back in the queue: another pool would run it at the same time."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o700)
    command = [sys.executable, "-m", "fray", "queue", "work", f"sqlite:{tmp_path}/q.db"]
    command += ["--grace", "0", "--", str(script)]
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        queue.push("x")
        with (
            script.open("a") as written,  # the system starts no program that is being written
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        ):
            assert process.stderr is not None
            assert "is tried again" in process.stderr.readline()
            time.sleep(3)  # its pauses grow, and nothing shows it: the next try comes when the pool ends
            written.close()
            process.terminate()
            process.wait(60)
        running = [
            each for each in psutil.process_iter(["cmdline"]) if str(script) in (each.info["cmdline"] or [])
        ]
        for each in running:
            each.kill()
        assert (running, queue.pending()) == ([], 1)


def test_what_a_command_writes_is_the_reply_and_how_it_failed_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=1) as queue:
        good, bad, ended = queue.push_many(["good", "bad", "ended"], reply=True)
        queue.push("nobody asks")
        script = tmp_path / "script"
        ends = '[ "$1" = bad ] && exit 3\n[ "$1" = ended ] && kill -35 $$\nexit 0\n'
        script.write_text(f'#!/bin/sh\necho "$1: 1"\necho "$1: 2"\n{ends}')
        script.chmod(0o700)
        assert main(["queue", "work", url, "--stop-when-empty", "--", str(script), "{}"]) == 0
        assert good.result(timeout=30) == "good: 1\ngood: 2"
        with pytest.raises(RuntimeError, match="script ended with exit code 3"):
            bad.result(timeout=30)
        with pytest.raises(RuntimeError, match="script was ended by signal 35"):  # it has no name
            ended.result(timeout=30)
        assert "nobody asks: 1\nnobody asks: 2\n" in capfd.readouterr().out


def test_a_command_may_write_bytes_that_are_no_text(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=1) as queue:
        ticket = queue.push("\N{SNOWMAN}", reply=True)
        script = tmp_path / "script"
        script.write_text("#!/bin/sh\ncat; printf ' \\377\\r\\nend\\n'\n")
        script.chmod(0o700)
        assert main(["queue", "work", f"sqlite:{tmp_path}/q.db", "--stop-when-empty", "--", str(script)]) == 0
        output = capfdbinary.readouterr()
        assert b"1 done, 0 failed" in output.err
        assert output.out == "\N{SNOWMAN}".encode() + b" \xff\r\nend\n"
        assert ticket.result(timeout=30) == "\N{SNOWMAN} \N{REPLACEMENT CHARACTER}\nend"


def test_lines_that_are_no_text_pass_the_queue_as_they_are(tmp_path: Path) -> None:
    line = b"caf\xe9.txt\n"
    fray = [sys.executable, "-m", "fray", "queue"]
    url = f"sqlite:{tmp_path}/q.db"
    environment = {**os.environ, "PYTHONUTF8": "1"}  # as in most containers

    def run(*command: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            [*fray, *command], input=given, capture_output=True, env=environment, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("push", "--create", url, given=2 * line)
    assert run("work", "--stop-when-empty", url, "--", "head", "-n", "1") == line[:-1] * 2
    run("push", url, given=line)
    assert run("pop", url) == line


def test_lines_are_pushed_as_they_arrive(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fray", "queue", "push", "--create", f"sqlite:{tmp_path}/q.db"]
    with (
        SqliteQueue[str](tmp_path / "q.db") as queue,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            items: list[str] = []
            given: list[bytes] = [b"first\nse", b"c\xc3", b"\xb6nd\r\n\n", b"x\n" * 2500]
            for part, ids in zip(given, (1, 0, 2, 2500), strict=True):
                process.stdin.write(part)
                process.stdin.flush()
                printed = [process.stdout.readline().strip().decode() for _ in range(ids)]
                leases = queue.pop_many(3000)  # while the input is still open
                assert [lease.item_id for lease in leases] == printed
                items += [lease.item for lease in leases]
            process.stdin.write(b"last")
            assert process.communicate(timeout=60)[0].count(b"\n") == 1
            assert process.returncode == 0
        finally:
            process.kill()
        items += [lease.item for lease in queue.pop_many(10)]
    assert items == ["first", "sec\N{LATIN SMALL LETTER O WITH DIAERESIS}nd", "", *["x"] * 2500, "last"]


def test_json_lines_are_one_list_of_ids_and_what_is_wrong_says_how_far_it_came(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fray", "queue", "push", "--json", "--create", f"sqlite:{tmp_path}/q.db"]
    for lines, status, count in ((b"1\n" * 2500, 0, 2500), (b"1\n" * 1500 + b"{\n", 2, 1000), (b"", 0, 0)):
        done = subprocess.run(command, input=lines, capture_output=True, timeout=60)
        assert (done.returncode, len(json.loads(done.stdout))) == (status, count)
        assert (b"the first 1000 lines are pushed" in done.stderr) == (status == 2)


def test_an_item_that_could_not_be_printed_goes_back(tmp_path: Path) -> None:
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=1) as queue, Path("/dev/full").open("wb") as full:
        queue.push("x")
        command = [sys.executable, "-m", "fray", "queue", "pop", f"sqlite:{tmp_path}/q.db"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1
        assert b"No space left" in done.stderr
        assert queue.pending() == 1


def test_a_command_beyond_its_time_limit_is_killed_and_what_it_wrote_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    assert main(["queue", "create", url, "--max-attempts", "1"]) == 0
    assert main(["queue", "push", url, "x"]) == 0
    command = ["sh", "-c", f"echo $$ > {tmp_path}/pid; echo started; exec sleep 600"]
    assert main(["queue", "work", url, "--time-limit", "2", "--stop-when-empty", "--", *command]) == 0
    shown = capfd.readouterr()
    assert "0 done, 1 failed" in shown.err
    assert "started\n" in shown.out
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_process_that_a_command_leaves_in_the_background_holds_no_item(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=1) as queue:
        ticket = queue.push("x" * 300_000, reply=True)  # more than a pipe holds
        script = tmp_path / "script"
        script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nwc -c\n")
        script.chmod(0o700)
        limited = ["--time-limit", "60", "--stop-when-empty", "--"]
        try:
            assert main(["queue", "work", f"sqlite:{tmp_path}/q.db", *limited, str(script)]) == 0
        finally:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert "1 done, 0 failed" in capfd.readouterr().err
        assert ticket.result(timeout=30) == "300000"


def deaf_to_signals(pids: Iterable[int]) -> list[int]:
    """Those of these processes that ignore SIGTERM and SIGUSR2."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            status = Path("/proc", str(pid), "status").read_text()
            ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
            if all(int(ignored, 16) >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGUSR2)):
                found.append(pid)
    return found


def test_a_terminal_that_is_closed_ends_the_pool_and_its_commands(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    pid = tmp_path / "pid"
    command = [sys.executable, "-m", "fray", "queue", "work", url, "--grace", "0", "--", "sh", "-c"]
    script = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=3) as queue:
        queue.push("x")
        # These tests may run under `nohup`, whose programs the end of a terminal does not end.
        ends = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        with subprocess.Popen([*command, script], preexec_fn=ends, stderr=subprocess.PIPE) as process:
            until(pid.exists, "the command runs")
            ran = Path("/proc", pid.read_text().strip())
            process.send_signal(signal.SIGHUP)
            try:
                _, said = process.communicate(timeout=60)
                assert (process.returncode, said) == (0, b"0 done, 0 failed, 1 given back\n")
                assert not ran.exists()
            finally:
                process.kill()
                if ran.exists():
                    os.kill(int(ran.name), signal.SIGKILL)
        assert queue.pending() == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_what_commands_have_started_ends_with_a_pool_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Also by a signal that reaches all that is below the pool, and that its commands ignore."""
    url = f"sqlite:{tmp_path}/q.db"
    command = [sys.executable, "-m", "fray", "queue", "work", url, "--", "sh", "-c"]
    # A daemon belongs to its command while that runs; the first command has ended, and left one behind.
    daemon = f"setsid sleep 600 2>&- & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/$item"
    script = f"trap '' USR1; read item; {daemon}; [ $item = left ] || exec sleep 600"
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=3) as queue:
        queue.push_many(["left\n", "orphan\n"])
        with subprocess.Popen([*command, script], stderr=subprocess.PIPE) as process:
            until((tmp_path / "orphan").exists, "the second command runs")
            pids = [(tmp_path / name).read_text().strip() for name in ("left", "orphan")]
            left, orphan = (Path("/proc", pid) for pid in pids)
            if number == signal.SIGUSR1:
                ignoring = until(lambda: deaf_to_signals(descendants(process.pid)), "what ends them is there")
                for pid in ignoring:
                    os.kill(pid, number)
            process.send_signal(number)
            try:
                process.communicate(timeout=60)  # until nothing of the pool writes there, but for the daemons
                until(lambda: not orphan.exists(), "what the second command has started is gone")
                assert left.exists()
            finally:
                for each in (left, orphan):
                    if each.exists():
                        os.kill(int(each.name), signal.SIGKILL)


def test_a_pool_whose_output_nobody_reads_any_more_ends_and_its_items_go_back(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    command = [sys.executable, "-m", "fray", "queue", "work", url, "--", "sh", "-c"]
    script = f"read item; echo $item >> {tmp_path}/ran; echo $item"
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=3) as queue:
        queue.push("read\n")
        with subprocess.Popen([*command, script], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == b"read\n"
                process.stdout.close()
                queue.push_many(["lost\n", "left\n"])
                assert process.wait(30) == 1
            finally:
                process.kill()
        assert (tmp_path / "ran").read_text() == "read\nlost\n"
        assert (queue.size(), queue.dead_letters()) == (2, [])


def test_a_pool_whose_output_has_no_room_ends_and_its_items_go_back(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    command = [sys.executable, "-m", "fray", "queue", "work", url, "--stop-when-empty", "--"]
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=2) as queue, Path("/dev/full").open("wb") as full:
        queue.push_many(["first", "second"])
        done = subprocess.run([*command, "cat"], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1
        assert done.stderr == b"Error: the output of cat cannot be written: No space left on device\n"
        assert (queue.size(), queue.dead_letters()) == (2, [])


def test_importing_the_package_loads_neither_fsspec_nor_aiohttp() -> None:
    code = "import sys, fray.queue, fray_queue; assert not {'fsspec', 'aiohttp', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    code = "import sys; from fray_queue import FileQueue, Limits"
    code += "; assert not {'fsspec', 'aiohttp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_option_that_a_queue_does_not_keep_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "create", f"file:{tmp_path / 'tasks'}", "--max-attempts", "2"]) == 1
    assert "max_attempts=2" in capsys.readouterr().err
    assert not (tmp_path / "tasks").exists()
    for worker in (open_queue(f"file:{tmp_path / 'tasks'}?max_attempts=1") for _ in range(2)):
        worker.push("item")
        lease = worker.pop()
        assert lease is not None
        worker.release(lease)
        assert len(list(worker.dead_letters())) >= 1


def test_items_that_are_no_json_are_printed_by_their_repr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    items: list[Any] = [{(1, 2): 3}, float("nan"), b"bytes", {"a": 1}]
    open_queue(url).push_many(items)
    assert main(["queue", "peek", url]) == 0
    assert main(["queue", "peek", url, "--json"]) == 0
    assert main(["queue", "pop", url, "--json", "-n", "4"]) == 0
    shown, peeked, *popped = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown == peeked == "{(1, 2): 3}"
    assert [row["item"] for row in popped] == ["{(1, 2): 3}", "nan", "b'bytes'", {"a": 1}]
    assert open_queue(url).size() == 0
