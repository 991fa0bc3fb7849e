"""What runs around a replica inside a task of Iris, started as Iris does, by a Python that has no Fray."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Semaphore
from typing import Any, ClassVar

import pytest
from iris_replicas import PATIENCE, Controller, ended, launch_of, run_replica, serving, start

from fray.cluster import Entrypoint, ResourceConfig


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Controller) as found:
        yield found


def test_a_replica_needs_no_fray_and_finds_its_variables(address: str, tmp_path: Path) -> None:
    code = (
        "import os; print(os.environ['WORD'], os.environ['FRAY_REPLICA_ID'], os.environ['FRAY_ATTEMPT']);"
        "print(sorted(name for name in os.environ if name.startswith('FRAY_SECRET')), os.getcwd())"
    )
    process = start(address, tmp_path, code, env_vars={"WORD": "abracadabra", "LONG": "\n" * 50_000})
    code_, lines, end = ended(process)
    assert lines == ["abracadabra 0 3", f"[] {tmp_path / 'task'}"]
    assert (code_, end) == (0, {"reason": "exited", "exit_code": 0})


def test_a_job_has_its_own_word_on_how_python_buffers(address: str, tmp_path: Path) -> None:
    code = "import os; print(repr(os.environ['PYTHONUNBUFFERED']))"
    for number, variables in enumerate(({}, {"PYTHONUNBUFFERED": ""})):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, lines, _ = ended(start(address, folder, code, env_vars=variables))
        assert lines == [["'1'"], ["''"]][number]


def test_a_program_of_the_workspace_can_be_executed_in_its_copy(address: str, tmp_path: Path) -> None:
    scripts = {"bin/train.sh": 0o750, "bin/read.txt": 0o640}
    for name, mode in scripts.items():
        path = tmp_path / "workspace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\nstat -c '%n %A' bin/*\n")
        path.chmod(mode)
    (tmp_path / "workspace" / "train").symlink_to("bin/train.sh")
    program = Entrypoint.from_binary("./train", [])
    umask = os.umask(0o027)
    try:
        code, lines, _ = ended(start(address, tmp_path, "", program=program))
    finally:
        os.umask(umask)
    assert (code, lines) == (0, ["bin/read.txt -rw-r-----", "bin/train.sh -rwxr-x---"])


def test_a_failure_brings_the_last_lines_without_secrets(address: str, tmp_path: Path) -> None:
    code = "import os; print('the word is', os.environ['WORD']); raise SystemExit(3)"
    code_, _, end = ended(start(address, tmp_path, code, env_vars={"WORD": "abracadabra"}))
    assert (code_, end["reason"], end["exit_code"]) == (3, "exited", 3)
    assert end["message"] == "replica 0 exited with code 3\nits last lines:\n  the word is ***"


@pytest.mark.parametrize(
    ("requirement", "missing"),
    [
        ("no-such-package", True),
        ("no-such-package[extra] >= 1.0", True),
        ("no-such-package @ https://example.org/it-1.0.tar.gz", True),
        ("git+https://example.org/org/repo.git@main", False),
        ("https://example.org/pkg-1.0.tar.gz", False),
        ("./libs/core", False),
        ("libs/core", False),
        ("no-such-package; sys_platform == 'win32'", False),
        ("pkg-1.0-py3-none-any.whl", False),
    ],
)
def test_a_package_that_a_worker_has_not_installed_is_named(
    address: str, tmp_path: Path, requirement: str, missing: bool
) -> None:
    _, _, end = ended(start(address, tmp_path, "pass", packages=[requirement]))
    assert end["reason"] == ("could_not_start" if missing else "exited")
    assert not missing or f"{requirement!r} was asked for" in end["message"]


def test_a_tree_ends_when_its_worker_asks_for_it(address: str, tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "program = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = subprocess.Popen(program, start_new_session=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    process = start(address, tmp_path, code)
    assert process.stderr is not None
    child = int(process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    code_, _, end = ended(process)
    assert (code_, end["reason"]) == (143, "preempted")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_signals_of_a_user_end_only_the_program(address: str, tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "for number in (signal.SIGUSR1, signal.SIGUSR2):\n"
        "    os.kill(os.getppid(), number)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)"
    )
    _, _, end = ended(start(address, tmp_path, code))
    assert (end["reason"], end["exit_code"]) == ("signalled", -signal.SIGUSR1)


def test_a_replica_that_is_killed_leaves_no_folder(address: str, tmp_path: Path) -> None:
    code = (
        "import os, time; print(os.getpid(), os.environ['FRAY_PREEMPTION_NOTICE'], flush=True);"
        "time.sleep(600)"
    )
    process = start(address, tmp_path, code)
    assert process.stderr is not None
    child, notice = process.stderr.readline().split()
    process.kill()
    os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert not Path(notice).parent.exists()


def test_an_attempt_ends_at_its_limit(address: str, tmp_path: Path) -> None:
    code_, _, end = ended(start(address, tmp_path, "import time; time.sleep(600)", timeout=0.2))
    assert (code_, end["reason"]) == (124, "timed_out")
    assert "ran longer than its timeout of 0.2 s" in end["message"]


def test_a_line_that_is_written_over_is_passed_on_at_once(address: str, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "for step in range(3):\n"
        "    os.write(1, b'step %d\\r' % step)\n"
        f"    while step and not os.path.exists({str(tmp_path)!r} + '/go'): time.sleep(0.05)\n"
        "os.write(1, b'\\ndone\\r\\n')"
    )
    process = start(address, tmp_path, code)
    assert process.stderr is not None
    assert process.stderr.readline() == "step 0\n"
    (tmp_path / "go").touch()
    _, lines, _ = ended(process)
    assert lines == ["step 1", "step 2", "done"]


def test_an_answer_of_the_controller_that_is_cut_short_ends_nothing(tmp_path: Path) -> None:
    cut, asked_again = Event(), Event()

    class Restarting(Controller):
        def answer(self) -> None:
            if cut.is_set():
                asked_again.set()
                super().answer()
                return
            cut.set()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"task": ')

    code = (
        f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.05)"
    )
    with serving(Restarting) as address:
        process = start(address, tmp_path, code)
        assert asked_again.wait(PATIENCE)
        (tmp_path / "go").touch()
        code_, _, end = ended(process)
    assert (code_, end) == (0, {"reason": "exited", "exit_code": 0})


def test_a_controller_that_does_not_answer_delays_no_end(tmp_path: Path) -> None:
    asked, hanging, over = [], Event(), Event()

    class Hanging(Controller):
        def answer(self) -> None:
            asked.append(self.path)
            if len(asked) > 1:  # the first comes before the program
                hanging.set()
                over.wait(PATIENCE)
            super().answer()

    with serving(Hanging) as address:
        process = start(address, tmp_path, "import time; time.sleep(600)")
        assert hanging.wait(PATIENCE)
        process.send_signal(signal.SIGTERM)
        code_, _, end = ended(process, within=20.0)
        over.set()
    assert (code_, end["reason"]) == (143, "preempted")


def test_a_replica_that_failed_waits_for_another_that_was_started_again(tmp_path: Path) -> None:
    listed, other_ended = Semaphore(0), Event()

    class Listing(Controller):
        def answer(self) -> None:
            if not self.path.endswith("ListTasks"):
                super().answer()
                return
            state = "SUCCEEDED" if other_ended.is_set() else "RUNNING"
            earlier = 'fray-replica-state {"attempt": 0, "ended": {"reason": "stopped"}}'
            task = {"taskId": "/ada/other/1", "currentAttemptId": 1, "state": f"TASK_STATE_{state}"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"tasks": [{**task, "statusTextSummaryMd": earlier}]}).encode())
            listed.release()

    with serving(Listing) as address:
        process = start(address, tmp_path, "raise SystemExit(3)", resources=ResourceConfig(replicas=2))
        for _ in range(3):
            assert listed.acquire(timeout=PATIENCE), "it ended, and Iris would end the other"
        other_ended.set()
        code_, _, end = ended(process)
    assert (code_, end["reason"]) == (3, "exited")


class WithoutTexts(Controller):
    """A controller of builds that keep no text of a task's status, with the tasks of one job."""

    states: ClassVar[dict[str, str]]
    endpoints: ClassVar[dict[str, Any]]

    def answer(self) -> None:
        method, request = self.path.rpartition("/")[2], json.loads(self.body)
        if method == "SetTaskStatusText":
            self.send_error(404)
            return
        if method == "RegisterEndpoint":
            self.endpoints[request.get("endpointId", request["name"])] = request
        tasks = [{"taskId": task, "state": f"TASK_STATE_{state}"} for task, state in self.states.items()]
        found = [each for each in self.endpoints.values() if each["name"] == request.get("prefix")]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"tasks": tasks, "endpoints": found}).encode())


@pytest.mark.parametrize("gang", [False, True], ids=["both fail for good", "a gang succeeds"])
def test_replicas_find_each_other_s_ends_where_a_status_has_no_text(tmp_path: Path, gang: bool) -> None:
    class Iris(WithoutTexts):
        states: ClassVar = {}
        endpoints: ClassVar = {}

    with serving(Iris) as address:
        code = "import sys; sys.exit(int(sys.argv[1]))"
        program = Entrypoint.from_binary("python", ["-c", code, "0" if gang else "3"])
        resources = ResourceConfig(replicas=2)
        made = launch_of(address, tmp_path, "", program=program, resources=resources, gang=gang)
        Iris.states |= {f"{made.request['name']}/{number}": "RUNNING" for number in range(2)}
        replicas = [run_replica(made, address, tmp_path / str(number), number, 0) for number in range(2)]
        try:
            codes = [ended(replica)[0] for replica in replicas]
        finally:
            for replica in replicas:
                replica.kill()
    assert codes == ([0, 0] if gang else [3, 3])


def test_a_controller_that_authenticates_is_shown_the_token_of_the_request(tmp_path: Path) -> None:
    reported: list[str] = []

    class Authenticating(Controller):
        def answer(self) -> None:
            if self.headers.get("Authorization") == "Bearer hunter2":
                reported.append(self.path.rpartition("/")[2])
                super().answer()
            else:
                self.send_error(401)

    with serving(Authenticating) as address:
        process = start(address, tmp_path, "print('up')", ports=["http"], env_vars={"IRIS_TOKEN": "hunter2"})
        code, lines, _ = ended(process)
    assert (code, lines) == (0, ["up"])
    assert "SetTaskStatusText" in reported


def test_a_controller_that_is_restarted_does_not_end_a_gang_that_meets(tmp_path: Path) -> None:
    refused: list[str] = []

    class Restarting(Controller):
        def answer(self) -> None:
            if self.path.endswith("RegisterEndpoint") and len(refused) < 5:  # those of one call and another
                refused.append(self.path)
                self.send_error(503)
            elif self.path.endswith("ListTasks"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"tasks": [{"taskId": "/ada/other/1", "state": "TASK_STATE_SUCCEEDED"}]}')
            else:
                super().answer()

    code = "import os; print(os.environ['RANK'])"
    with serving(Restarting) as address:
        process = start(address, tmp_path, code, resources=ResourceConfig(replicas=2), gang=True)
        code_, lines, _ = ended(process)
    assert (code_, lines) == (0, ["0"])
    assert len(refused) == 5


@pytest.mark.parametrize(
    ("reason", "code"), [("exited", 3), ("stopped", 143)], ids=["it had failed for good", "it was stopped"]
)
def test_what_had_ended_for_good_does_not_run_again(tmp_path: Path, reason: str, code: int) -> None:
    """Its worker was taken while it waited for the others, and Iris starts it again for that."""
    report = {"reason": reason, "exit_code": None, "message": "out of luck"}

    class Remembering(Controller):
        def answer(self) -> None:
            said = f"fray-replica-state {json.dumps({'attempt': 1, 'ended': report, 'code': code})}"
            task = {"taskId": "/ada/other/0", "currentAttemptId": 2, "statusTextSummaryMd": said}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"task": task, "tasks": []}).encode())

    with serving(Remembering) as address:
        resources = ResourceConfig(replicas=2)
        code_, lines, end = ended(start(address, tmp_path, "print('again')", resources=resources))
    assert (code_, lines, end) == (code, [], report)


def test_a_host_without_room_for_the_notice_still_asks_the_program_to_end(
    address: str, tmp_path: Path
) -> None:
    code = (
        "import os, pathlib, signal, sys, time\n"
        f"saved = pathlib.Path({str(tmp_path / 'saved')!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: (saved.touch(), sys.exit(0)))\n"
        "print(os.environ['FRAY_PREEMPTION_NOTICE'], flush=True)\n"
        "time.sleep(600)"
    )
    process = start(address, tmp_path, code)
    assert process.stderr is not None
    folder = Path(process.stderr.readline().strip()).parent
    folder.touch()  # a file where a folder is to be made
    try:
        process.send_signal(signal.SIGTERM)
        code_, _, end = ended(process)
    finally:
        folder.unlink()
    assert (code_, end["reason"]) == (143, "preempted")
    assert (tmp_path / "saved").exists()
