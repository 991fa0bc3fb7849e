"""The verbs of the command line on jobs of this machine."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import ClusterUnavailableError
from fray.cluster import JobId, JobInfo, JobRequest, JobStatus, ResourceConfig, use_cluster
from fray.testing.cluster import launch, program, until
from fray.testing.command_line import COMMAND, main
from fray_local import LocalCluster

Capture = pytest.CaptureFixture[str]
SLEEP = ["python", "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> Iterator[LocalCluster]:
    """The current cluster, here and in processes that are started."""
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")
    cluster = LocalCluster(overcommit=True)
    with use_cluster(cluster):
        yield cluster


def test_run_follows_the_log_and_answers_with_the_code_of_the_job(capsys: Capture) -> None:
    assert (
        main(["run", "--replicas", "2", "--", "sh", "-c", "echo out; echo err >&2; exit $FRAY_REPLICA_ID"])
        == 1
    )
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == [f"[replica-{n}] {word}" for n in (0, 1) for word in ("err", "out")]
    launched, ended = err.splitlines()
    job_id = launched.removeprefix("launched ")
    assert ended == f"{job_id} failed: replica 1 exited with code 1"


def test_run_takes_options_before_the_command_only(capsys: Capture, tmp_path: Path) -> None:
    code = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['A'], os.environ['B'], os.environ['C'])"
    )
    (tmp_path / "vars").write_text("# a comment\nexport B='two words'\n\nC=3\n")
    argv = ["run", "--workdir", str(tmp_path), "-e", "A=x=y", "--env-file", str(tmp_path / "vars")]
    assert main([*argv, "python", "-c", code, "--name", "-e", "--json"]) == 0
    assert capsys.readouterr().out == f"['--name', '-e', '--json'] {tmp_path} x=y two words 3\n"


def test_a_variable_without_a_value_is_taken_from_here(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-s3cret")
    argv = ["run", "--json", "-e", "TOKEN", "--", "sh", "-c", "test ${#TOKEN} -eq 13"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "succeeded"
    assert main(["run", "--dry-run", *argv[1:]]) == 0
    assert "s3cret" not in "".join([out, err, *capsys.readouterr()])
    assert main(["run", "-e", "NOT_SET_ANYWHERE", "true"]) == 2
    assert "NOT_SET_ANYWHERE takes its value from here" in capsys.readouterr().err


def test_dry_run_shows_the_request_and_launches_nothing(capsys: Capture, cluster: LocalCluster) -> None:
    argv = [
        "run",
        "--dry-run",
        "--gpu",
        "H100:8",
        "--ram",
        "64g",
        "--pip",
        "numpy",
        "--retries",
        "2",
        "--timeout",
        "60",
    ]
    assert main([*argv, "--json", "--", "python", "train.py"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "python-train.py"
    assert shown["entrypoint"] == "python train.py"
    assert shown["resources"]["device"] == {"kind": "gpu", "type": "H100", "count": 8}
    assert shown["environment"]["pip_packages"] == ["numpy"]
    assert (shown["max_retries_failure"], shown["timeout"]) == (2, 60)
    assert main([*argv, "--", "python", "train.py"]) == 0
    assert "gpu H100 8" in capsys.readouterr().out
    assert cluster.list_jobs() == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["run"], "COMMAND"),
        (["run", "--name", "a\nb", "true"], "printable"),
        (["run", "--gpu", "H100:x", "true"], "H100:x"),
        (["run", "--gpu", "H100:0", "true"], "count must be"),
        (["run", "--label", "team", "true"], "KEY=VALUE"),
        (["run", "--log-limit", "1k", "true"], "64 KiB"),
        (["run", "--python", "three", "true"], "'3.12'"),
        (["prune", "--older-than", "soon"], "an age such as"),
        (["run", "--gpu", "H100", "--tpu", "v5litepod-4", "true"], "both"),
        (["run", "--tpu", "v5litepod-17", "true"], "v5litepod-16"),
        (["run", "--ram", "much", "true"], "much"),
        (["run", "--timeout", "0", "true"], "timeout"),
        (["run", "--workdir", "/no/such/folder", "true"], "/no/such/folder"),
        (["logs", "--tail", "-1", "x"], "-1"),
        (["list", "--status", "asleep"], "asleep"),
        (["status"], "ID"),
        (["stop", "--grace", "-1", "x"], "-1"),
        (["wait", "--timeout", "-1", "x"], "-1"),
        (["list", "--cluster", "local?cpus=0"], "cpus must be"),
        (["list", "--cluster", "local?slices=2"], "slices"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(capsys: Capture, argv: list[str], told: str) -> None:
    assert main(argv) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["run", "--tpu", "v5litepod-4", "true"], "simulate=tpu"),
        (["status", "no-such-job"], "no job 'no-such-job'"),
        (["list", "--cluster", "locale"], "Unknown cluster type 'locale'"),
        (["list", "--cluster", "local?cpu=3"], "did you mean 'cpus'?"),
    ],
)
def test_what_the_cluster_refuses_is_one_line(capsys: Capture, argv: list[str], told: str) -> None:
    assert main(argv) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fray: ")
    assert told in line


def test_detached_jobs_are_listed_read_and_stopped_by_the_start_of_their_id(
    capsys: Capture, cluster: LocalCluster
) -> None:
    assert main(["run", "--detach", "--name", "sleeper", "--", *SLEEP]) == 0
    job_id = capsys.readouterr().out.strip()
    until(lambda: list(cluster.monitor(job_id, follow=False)) == ["up"], "the job is up")
    assert main(["list"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "status", "replicas", "launched", "ran", "message"]
    assert row.split()[:3] == [job_id, "running", "1/1"]
    assert main(["logs", job_id[:-2]]) == 0
    assert capsys.readouterr().out == "up\n"
    assert main(["wait", "sleep", "--timeout", "0.05"]) == 1
    assert "not finished after 0.05 s" in capsys.readouterr().err
    assert main(["stop", "sleeper", "--grace", "inf"]) == 2
    assert "a duration such as" in capsys.readouterr().err
    assert main(["stop", "sleeper", "--grace", "1"]) == 0
    assert capsys.readouterr().out == f"{job_id}  stopped\n"
    assert main(["wait", "sleeper"]) == 143
    assert main(["list", "--status", "running", "--json"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "[]"


def test_a_job_that_refuses_keeps_a_verb_from_no_other(capsys: Capture, cluster: LocalCluster) -> None:
    ended = [launch(cluster, program("pass"), name) for name in ("first", "third")]
    cluster.wait(ended, timeout=30)
    runs = launch(cluster, program("import time; time.sleep(600)"), "second")
    assert main(["rm", ended[0], runs, ended[1]]) == 2
    out, err = capsys.readouterr()
    assert out == f"{ended[0]} removed\n{ended[1]} removed\n"
    assert f"job {runs} is" in err
    assert [info.job_id for info in cluster.list_jobs()] == [runs]
    again = launch(cluster, program("raise SystemExit(3)"), "fails")
    cluster.wait(again, timeout=30)
    assert main(["retry", "--json", runs, again, runs]) == 2
    out, err = capsys.readouterr()
    assert [each["job_id"] for each in json.loads(out)] == [again]
    assert err.count(runs) >= 2
    assert main(["stop", runs, "--grace", "1"]) == 0


def test_an_id_that_fits_several_jobs_lists_them(capsys: Capture, cluster: LocalCluster) -> None:
    ids = [launch(cluster, program("pass"), "twin") for _ in range(2)]
    cluster.wait(ids, timeout=30)
    assert main(["status", "twin"]) == 2
    err = capsys.readouterr().err
    assert all(job_id in err for job_id in ids)
    assert main(["status", ids[0]]) == 0


def test_a_text_that_is_longer_than_any_id_names_no_job(capsys: Capture, cluster: LocalCluster) -> None:
    job_id = launch(cluster, program("pass"))
    cluster.wait(job_id, timeout=30)
    for text in ("x" * 300, f"{job_id}/{'x' * 300}"):
        assert main(["logs", text]) == 1
        assert "fray: no job" in capsys.readouterr().err


def test_status_shows_every_attempt(capsys: Capture, cluster: LocalCluster) -> None:
    job_id = launch(cluster, program("print('why'); raise SystemExit(7)"), max_retries_failure=1)
    cluster.wait(job_id, timeout=30)
    assert main(["status", job_id]) == 0
    head, message, last, line, *facts, header, first, second = capsys.readouterr().out.splitlines()
    rows = [first, second]
    assert head.startswith(f"{job_id}  failed  ran ")
    assert (message, last, line) == (
        "replica 0 exited with code 7 (attempt 2 of 2)",
        "its last lines:",
        "  why",
    )
    columns = ["replica", "attempt", "status", "exit", "code", "reason", "started", "ran", "cpu", "memory"]
    assert header.split() == columns
    told = "\n".join(facts)
    for fact in ("command", "directory", "asked", "used", "user", "launched", "logs", "attempt-2.log"):
        assert fact in told
    assert [row.split()[:5] for row in rows] == [["0", str(n), "failed", "7", "exited"] for n in (1, 2)]
    assert main(["status", job_id, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["exit_code"], len(shown["tasks"][0]["previous"])) == (7, 1)


@pytest.mark.parametrize("name", ["train", "step:tokenized/fineweb v2"])
def test_status_shows_the_name_of_a_job(capsys: Capture, cluster: LocalCluster, name: str) -> None:
    job_id = launch(cluster, program("pass"), name)
    cluster.wait(job_id, timeout=30)
    assert main(["status", job_id]) == 0
    assert f"  name         {name}" in capsys.readouterr().out.splitlines()


def test_logs_of_one_replica_and_their_tail(capsys: Capture, cluster: LocalCluster) -> None:
    code = "import os; print(*range(3), sep='\\n'); print('of', os.environ['FRAY_REPLICA_ID'])"
    job_id = launch(cluster, program(code), resources=ResourceConfig(replicas=2))
    cluster.wait(job_id, timeout=30)
    assert main(["logs", "-f", job_id, "--replica", "1", "--tail", "2"]) == 0
    assert capsys.readouterr().out == "2\nof 1\n"
    assert main(["logs", job_id, "--json", "--replica", "0"]) == 0
    assert json.loads(capsys.readouterr().out) == ["0", "1", "2", "of 0"]
    assert main(["logs", job_id, "--replica", "2"]) == 2
    assert "replica must be 0 to 1, got 2" in capsys.readouterr().err


def test_a_reader_that_has_had_enough_ends_the_log_quietly(cluster: LocalCluster) -> None:
    job_id = launch(cluster, program("for number in range(200000): print(number)"))
    with start_cli("logs", "-f", job_id, stdout=subprocess.PIPE) as cli:
        assert cli.stdout is not None
        assert cli.stderr is not None
        assert cli.stdout.readline() == "0\n"
        cli.stdout.close()
        assert cli.stderr.read() == ""
    assert cli.returncode == 1
    cluster.terminate(job_id, grace=0.0)


@contextlib.contextmanager
def start_cli(*argv: str, **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """Run the command line in a process of its own, and wait for its end; a test that fails ends it."""
    command = [sys.executable, "-m", "fray", *argv]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options) as cli:
        try:
            yield cli
        except BaseException:
            cli.kill()
            raise


@pytest.mark.parametrize("stop", [False, True])
def test_ctrl_c_leaves_the_job_or_stops_it(cluster: LocalCluster, stop: bool) -> None:
    options = ["--stop-on-interrupt"] if stop else []
    # A group of its own, as a shell gives a command: Ctrl-C goes to the whole group.
    with start_cli(
        "run", "--name", "job", *options, "--", *SLEEP, stdout=subprocess.PIPE, process_group=0
    ) as cli:
        assert cli.stdout is not None
        assert cli.stderr is not None
        assert cli.stdout.readline() == "up\n"
        os.killpg(cli.pid, signal.SIGINT)
        err = cli.stderr.read()
    assert cli.returncode == 130
    (info,) = cluster.list_jobs()
    if stop:
        assert info.status is JobStatus.STOPPED
    else:
        assert info.status is JobStatus.RUNNING
        assert f"fray logs -f {info.job_id}" in err
        assert f"fray stop {info.job_id}" in err
        cluster.terminate(info.job_id, grace=0.0)


@pytest.mark.parametrize("stop", [False, True])
def test_ctrl_c_counts_though_it_ended_the_reader_too(cluster: LocalCluster, stop: bool) -> None:
    """As in `fray run ... 2>&1 | tee log`."""
    options = ["--stop-on-interrupt"] if stop else []
    command = [sys.executable, "-m", "fray", "run", *options, "--", *SLEEP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as cli:
        try:
            assert cli.stdout is not None
            assert b"up\n" in iter(cli.stdout.readline, b"")
            cli.stdout.close()
            cli.send_signal(signal.SIGINT)
            assert cli.wait(60) == 130
        finally:
            cli.kill()
    (info,) = cluster.list_jobs()
    assert info.status is (JobStatus.STOPPED if stop else JobStatus.RUNNING)
    cluster.terminate(info.job_id, grace=0.0)


class Interrupted(LocalCluster):
    """Ctrl-C comes when the job has been launched, or when it is followed and is to stop."""

    def __init__(self, *calls: str) -> None:
        super().__init__(overcommit=True)
        self._calls = calls

    def launch(self, *args: Any, **options: Any) -> Any:
        job_id = super().launch(*args, **options)
        self._interrupt("launch")
        return job_id

    def monitor(self, *args: Any, **options: Any) -> Any:
        self._interrupt("monitor")
        return super().monitor(*args, **options)

    def terminate(self, *args: Any, **options: Any) -> None:
        self._interrupt("terminate")
        super().terminate(*args, **options)

    def _interrupt(self, call: str) -> None:
        if call in self._calls:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("calls", "told"),
    [(["launch"], "it may have been launched: `fray list"), (["monitor", "terminate"], "fray stop job-")],
)
def test_ctrl_c_that_leaves_open_what_the_job_does_says_so(
    cluster: LocalCluster, capsys: Capture, calls: list[str], told: str
) -> None:
    with use_cluster(Interrupted(*calls)):
        assert main(["run", "--name", "job", "--stop-on-interrupt", "--", *SLEEP]) == 130
    assert told in capsys.readouterr().err
    (info,) = cluster.list_jobs()
    assert not info.finished
    cluster.terminate(info.job_id, grace=0.0)


def test_a_job_whose_output_nobody_reads_any_more_is_said_to_go_on(cluster: LocalCluster) -> None:
    lines = "while sleep 0.05; do echo line; done"
    with start_cli("run", "--", "sh", "-c", lines, stdout=subprocess.PIPE) as cli:
        assert cli.stdout is not None
        assert cli.stderr is not None
        assert cli.stdout.readline() == "line\n"
        cli.stdout.close()
        err = cli.stderr.read()
    assert cli.returncode == 1
    (info,) = cluster.list_jobs()
    assert f"{info.job_id} is not followed any more" in err
    assert f"fray stop {info.job_id}" in err
    cluster.terminate(info.job_id, grace=0.0)


def test_a_terminal_gets_a_table_that_fits_it_in_colour(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = launch(cluster, program("raise SystemExit(1)"), "job")
    cluster.wait(job_id, timeout=30)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    text = on_a_terminal("list")
    assert "\x1b[31mfailed" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal("list")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert job_id in plain
    assert "exited" in plain


def on_a_terminal(*argv: str) -> str:
    """Return what the command line prints on a terminal."""
    ours, theirs = pty.openpty()
    with start_cli(*argv, stdout=theirs) as cli:
        os.close(theirs)
        text = b"".join(iter(lambda: read_terminal(ours), b"")).decode().replace("\r", "")
    os.close(ours)
    assert cli.returncode == 0
    return text


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def test_output_that_has_no_room_is_reported_in_one_line(cluster: LocalCluster) -> None:
    job_id = launch(cluster, program("print('here')"))
    cluster.wait(job_id, timeout=30)
    for argv in (["list"], ["logs", job_id]):
        with Path("/dev/full").open("w") as full, start_cli(*argv, stdout=full) as cli:
            assert cli.stderr is not None
            reported = cli.stderr.read()
        assert reported == "fray: the output is not complete: No space left on device\n"
        assert cli.returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_file_that_may_not_be_read_is_named_in_one_line(cluster: LocalCluster) -> None:
    job_id = launch(cluster, program("print('here')"))
    cluster.wait(job_id, timeout=30)
    logs = Path(cluster.poll(job_id).logs[0]).parent
    os.chown(logs, 65534, -1)
    as_any_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    command = [*as_any_user, *COMMAND, "logs", job_id]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"fray: [Errno 13] Permission denied: '{logs}'\n")


def test_a_record_that_may_not_be_read_hides_no_other(cluster: LocalCluster) -> None:
    """As `sudo fray run` leaves it."""
    job_ids = [launch(cluster, program("print('here')")) for _ in range(2)]
    for job_id in job_ids:
        cluster.wait(job_id, timeout=30)
    record = Path(cluster.poll(job_ids[0]).logs[0]).parent.parent
    record.chmod(0)
    # Not even root may read it without these.
    as_any_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

    def fray(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [*as_any_user, *COMMAND, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    try:
        listed = fray("list", "--json")
        assert listed.returncode == 0, listed.stderr
        read = {info["job_id"]: (info["status"], info["error_message"]) for info in json.loads(listed.stdout)}
        why = f"its record is damaged: {record}/status.json cannot be read: Permission denied"
        assert read == {job_ids[0]: ("failed", why), job_ids[1]: ("succeeded", None)}
        assert why in fray("status", job_ids[0]).stdout
        assert "1 of 2 cannot be read" in fray("doctor").stdout
        assert f"{job_ids[0]} may still run" in fray("rm", job_ids[0]).stderr
    finally:
        record.chmod(0o700)
    assert cluster.poll(job_ids[0]).status is JobStatus.SUCCEEDED


class Away(LocalCluster):
    """A cluster that takes a job, and then does not answer any more."""

    launched = False

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        self.launched = True
        return super().launch(request, key=key)

    def _info(self, job_id: str) -> JobInfo | None:
        if self.launched:
            raise ClusterUnavailableError("the cluster is away")
        return super()._info(job_id)


@pytest.mark.parametrize("argv", [["--detach", "--json"], []])
def test_a_job_that_was_launched_is_named_whatever_the_cluster_says_then(
    capsys: Capture, argv: list[str]
) -> None:
    with use_cluster(Away(overcommit=True)):
        assert main(["run", *argv, "--", "true"]) == 1
    told = capsys.readouterr().err
    job_id = told.partition("launched ")[2].split()[0]
    assert LocalCluster(overcommit=True).wait(job_id, timeout=30).exit_code == 0
    assert "the cluster is away" in told
    assert argv or f"fray logs -f {job_id}" in told


def test_a_program_without_standard_streams_may_call_it(cluster: LocalCluster) -> None:
    """As a daemon or `fray list >&-` does."""
    job_id = launch(cluster, program("print('here')"))
    cluster.wait(job_id, timeout=30)
    for argv in ("list", f"logs {job_id}"):
        shell = f"exec {sys.executable} -m fray {argv} <&- >&-"
        done = subprocess.run(["/bin/sh", "-c", shell], stderr=subprocess.PIPE, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_directory_that_was_removed_under_the_shell_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    shell = f"cd {tmp_path}/gone && rmdir ../gone && exec {sys.executable} -m fray run -- true"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "Error: the current directory is not there any more; change to another\n"
    assert done.returncode == 1


def test_a_file_of_variables_is_utf_8_whatever_wrote_it(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "vars"
    argv = ["run", "--dry-run", "--json", "--env-file", str(path), "--", "true"]
    path.write_bytes("\ufeffA=caf\u00e9\r\nB=x\u2028y\r\n".encode())
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["environment"]["env_vars"] == ["A", "B"]
    path.write_bytes(b"A=caf\xe9\n")
    assert main(argv) == 2
    assert f"{path} is to be UTF-8 text" in capsys.readouterr().err
