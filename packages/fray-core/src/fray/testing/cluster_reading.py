"""Waiting, following, and what must never be read."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fray._contracts.cluster import Cluster
from fray._values.entrypoint import Entrypoint
from fray._values.environment import create_environment
from fray._values.errors import JobFailedError, JobNotFoundError
from fray._values.jobs import JobRequest, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program, until
from fray_resources import ResourceConfig

SLEEP = "import time; time.sleep(600)"


class WaitContract(ClusterFixtures):
    """`wait` answers in the order of its ids, fails fast when asked to, and knows its time."""

    def test_several_are_answered_in_the_order_of_their_ids(
        self, cluster: Cluster, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ids = [launch(cluster, program(f"print('number', {number})")) for number in range(2)]
        asked = [ids[1], ids[0], ids[1]]
        infos = cluster.wait(iter(asked), timeout=self.PATIENCE, stream_logs=True)
        assert [info.job_id for info in infos] == asked
        assert {info.status for info in infos} == {JobStatus.SUCCEEDED}
        assert cluster.wait([], timeout=1.0) == []
        assert set(capsys.readouterr().out.splitlines()) >= {f"[{ids[n]}] number {n}" for n in range(2)}

    def test_the_first_failure_is_raised_while_others_run(self, cluster: Cluster) -> None:
        sleeping = launch(cluster, program(SLEEP))
        failing = launch(cluster, program("raise SystemExit(4)"))
        with pytest.raises(JobFailedError) as caught:
            cluster.wait([sleeping, failing], raise_on_failure=True, timeout=self.PATIENCE)
        assert caught.value.info.job_id == failing
        with pytest.raises(TimeoutError, match=r"0\.2"):
            cluster.wait(sleeping, timeout=0.2)
        assert not cluster.poll(sleeping).finished
        cluster.terminate(sleeping, grace=0.0)
        with pytest.raises(JobFailedError, match="stopped"):
            cluster.wait(sleeping, raise_on_failure=True)

    def test_an_unknown_id_is_named(self, cluster: Cluster) -> None:
        calls: list[Callable[[str], object]] = [
            cluster.poll,
            cluster.wait,
            cluster.terminate,
            cluster.monitor,
        ]
        for call in calls:
            for unknown in ("no-such-job-000000", "../..", ""):
                with pytest.raises(JobNotFoundError) as caught:
                    call(unknown)
                assert isinstance(caught.value, KeyError)
                assert repr(unknown) in str(caught.value)


class LogContract(ClusterFixtures):
    """`monitor`: live, from the first line, and the last one is never lost."""

    def test_lines_arrive_while_the_job_runs_and_the_last_after_it_died(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        code = """
            import os, pathlib, sys, time
            print("first", flush=True)
            while not pathlib.Path(sys.argv[1]).exists():
                time.sleep(0.01)
            sys.stderr.write("last words, no end of line")
            sys.stderr.flush()
            os.kill(os.getpid(), 9)
        """
        go = tmp_path / "go"
        job_id = launch(cluster, program(code, go))
        stream = cluster.monitor(job_id)
        assert next(line for line in stream if line == "first")
        until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running", self.PATIENCE)
        go.touch()
        assert list(stream)[-1] == "last words, no end of line"
        assert stream.info.status is JobStatus.FAILED

    def test_replicas_are_distinguished_and_can_be_read_alone(self, cluster: Cluster) -> None:
        code = """
            import os
            for number in range(3):
                print("line", number, "of", os.environ["FRAY_REPLICA_ID"])
        """
        job_id = launch(cluster, program(code), resources=ResourceConfig(replicas=2))
        lines = list(cluster.monitor(job_id))
        for replica in range(2):
            own = [line for line in lines if line.startswith(f"[replica-{replica}] line")]
            assert own == [f"[replica-{replica}] line {number} of {replica}" for number in range(3)]
        alone = list(cluster.monitor(job_id, replica=1, tail=2))
        assert alone == ["line 1 of 1", "line 2 of 1"]
        with pytest.raises(ValueError, match="replica"):
            cluster.monitor(job_id, replica=2)

    def test_all_that_a_failed_job_wrote_is_shown_before_its_failure_is_raised(
        self, cluster: Cluster, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = [*(f"line {number}" for number in range(2000)), "the reason"]
        code = "import sys; print('\\n'.join(sys.argv[1:])); sys.exit(3)"
        job_id = launch(cluster, program(code, *lines))
        with pytest.raises(JobFailedError):
            cluster.wait(job_id, stream_logs=True, raise_on_failure=True, timeout=self.PATIENCE)
        shown = capsys.readouterr().out.splitlines()
        assert [line for line in shown if line in set(lines)] == lines

    def test_whatever_bytes_are_written_all_lines_can_be_read(self, cluster: Cluster) -> None:
        code = r"""
            import sys
            write = sys.stdout.buffer.write
            write(b"0%\r50%\r100%\n")
            write("no end\u2028of \x0c a\x85 line\r\n".encode())
            write(b"no text: \xff\xfe\n")
            write("half a character: é".encode()[:-1])
        """
        job_id = launch(cluster, program(code))
        assert list(cluster.monitor(job_id)) == [
            *("0%", "50%", "100%"),
            "no end\u2028of \x0c a\x85 line",
            "no text: \ufffd\ufffd",
            "half a character: \ufffd",
        ]

    def test_a_look_without_following_ends_at_once(self, cluster: Cluster) -> None:
        job_id = launch(cluster, program("print('seen', flush=True); import time; time.sleep(600)"))
        assert next(line for line in cluster.monitor(job_id) if line == "seen")
        started = time.monotonic()
        assert list(cluster.monitor(job_id, follow=False))[-1:] == ["seen"]
        assert time.monotonic() - started < self.STARTS_WITHIN
        cluster.terminate(job_id, grace=0.0)

    def test_a_replica_that_writes_for_ever_does_not_hide_the_others(self, cluster: Cluster) -> None:
        code = """
            import os
            if os.environ["FRAY_REPLICA_ID"] == "1":
                print("a word", flush=True)
                __import__("time").sleep(600)
            while True:
                print("noise")
        """
        if not self.declares(cluster, "log_limit"):  # without a limit such a log would fill the disk
            self.moot("capabilities.log_limit")
            return
        job_id = launch(cluster, program(code), resources=ResourceConfig(replicas=2), log_limit="1m")
        stream = cluster.monitor(job_id)
        assert next(line for line in stream if line == "[replica-1] a word")
        last = ["[replica-0] noise"] * 3 + ["[replica-1] a word"]

        def shown() -> bool:  # replicas need not start at the same time
            return list(cluster.monitor(job_id, tail=4, follow=False)) == last

        until(shown, "both are in the tail", self.PATIENCE)
        cluster.terminate(job_id, grace=0.0)

    def test_lines_are_found_by_what_is_in_them_and_by_their_time(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        code = """
            import os, sys, time
            print("step 1, loss 5", flush=True)
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
            print("it is", time.time(), flush=True)
            print("step 2, loss 3", flush=True)
            print("done")
        """
        go = tmp_path / "go"
        job_id = launch(cluster, program(code, go))
        assert next(line for line in cluster.monitor(job_id) if "step 1" in line)
        time.sleep(2.5)  # its time is that much older than those of the others
        go.touch()
        cluster.wait(job_id, timeout=self.PATIENCE)
        assert list(cluster.monitor(job_id, grep=r"loss \d")) == ["step 1, loss 5", "step 2, loss 3"]
        assert list(cluster.monitor(job_id, grep="step", tail=1)) == ["step 2, loss 3"]
        with pytest.raises(ValueError, match="regular expression"):
            cluster.monitor(job_id, grep="(")
        (said,) = cluster.monitor(job_id, grep="it is")
        since = float(said.split()[-1]) - 1.2  # some backends know the second, no more
        knows = self.declares(cluster, "log_limit") if self.KNOWS_TIMES is None else self.KNOWS_TIMES
        if not knows:
            with self.refuses("when a line was written"):
                cluster.monitor(job_id, since=since)
            return
        assert list(cluster.monitor(job_id, since=since)) == [said, "step 2, loss 3", "done"]

    def test_the_stream_has_the_fields_of_the_final_state(self, cluster: Cluster) -> None:
        job_id = launch(cluster, program("import time; time.sleep(0.1); print('end')"))
        stream = cluster.monitor(job_id)
        assert (stream.status, stream.job_id) == (JobStatus.SUCCEEDED, job_id)


class SecretContract(ClusterFixtures):
    """The values of `env_vars` are seen by the job and by nobody else."""

    def test_a_secret_is_in_no_answer_no_log_and_no_command_line(
        self, cluster: Cluster, elsewhere: Callable[..., str]
    ) -> None:
        secret = "contract-secret-0123456789"
        code = """
            import os, pathlib, subprocess, sys
            secret = os.environ["CONTRACT_TOKEN"]
            shown = []
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    shown.append(path.read_text(errors="replace"))
                except OSError:
                    pass
            if not shown:
                shown = subprocess.check_output(["ps", "-A", "-ww", "-o", "args="])
            print("on a command line:", secret in str(shown), "length:", len(secret))
            sys.exit(6)
        """
        environment = create_environment(env_vars={"CONTRACT_TOKEN": secret})
        request = JobRequest("secret", program(code), environment=environment)
        assert secret not in repr(request)
        job_id = cluster.launch(request)
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        lines = list(cluster.monitor(job_id))
        assert f"on a command line: False length: {len(secret)}" in lines
        seen = elsewhere("print(cluster.list_jobs(), list(cluster.monitor(sys.argv[1])))", job_id)
        for text in (*lines, repr(info), str(info.to_dict()), seen):
            assert secret not in text

    def test_a_failed_job_that_printed_its_secrets_shows_no_part_of_them_in_its_message(
        self, cluster: Cluster
    ) -> None:
        variables = {
            "CONTRACT_SHORT": "contract-key",
            "CONTRACT_LONG": "contract-key-and-more",
            "CONTRACT_LINES": "-----BEGIN\nfirst-half\nsecond-half\n-----END",
        }
        code = """
            import os, sys
            print(os.environ["CONTRACT_LINES"])
            print("with", os.environ["CONTRACT_LONG"], "and", os.environ["CONTRACT_SHORT"], "in it")
            sys.exit(6)
        """
        job_id = launch(cluster, program(code), environment=create_environment(env_vars=variables))
        message = str(cluster.wait(job_id, timeout=self.PATIENCE).error_message)
        assert "with *** and *** in it" in message
        assert "contract-key" not in message
        assert "and-more" not in message
        assert "-half" not in message


class UnsupportedContract(ClusterFixtures):
    """What a cluster cannot do is refused at launch, in words that help."""

    def test_a_tpu_that_it_does_not_have_is_refused_at_launch(self, cluster: Cluster) -> None:
        if self.HAS_TPUS:
            self.moot("HAS_TPUS")
            return
        before = cluster.list_jobs()
        request = JobRequest("tpu", program("pass"), resources=ResourceConfig.with_tpu("v5litepod-16"))
        with self.refuses("TPU") as caught:
            cluster.launch(request)
        assert isinstance(caught.value, NotImplementedError)
        assert cluster.list_jobs() == before

    def test_a_container_that_it_cannot_run_is_refused_at_launch(self, cluster: Cluster) -> None:
        if self.RUNS_CONTAINERS:
            self.moot("RUNS_CONTAINERS")
            return
        before = cluster.list_jobs()
        environment = create_environment(docker_image="ubuntu:24.04")
        with self.refuses(r"ubuntu:24\.04"):
            cluster.launch(JobRequest("boxed", Entrypoint.from_binary("true"), environment=environment))
        assert cluster.list_jobs() == before
