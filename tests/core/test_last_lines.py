"""The end of a log in a message: enough of it, and nothing that is secret."""

import subprocess
from pathlib import Path

import pytest

from fray.backend import as_last_lines, bytes_for_last_lines, exit_variables
from fray.cluster import JobId, JobInfo, JobStatus, last_lines, redacted


@pytest.mark.parametrize(
    ("secrets", "shown"),
    [
        (["hunter2", "hunter2-long-token"], "with *** in it"),
        (["hunter2-long", "long-token"], "with *** in it"),
        (["token-token"], "with hunter2-long-token in it"),
        (["with", "in it"], "with hunter2-long-token in it"),
    ],
)
def test_no_part_of_a_secret_is_left_whichever_others_there_are(secrets: list[str], shown: str) -> None:
    for order in (secrets, secrets[::-1]):
        assert redacted("with hunter2-long-token in it", order) == shown


@pytest.mark.parametrize("shift", range(-2, 24))
def test_a_secret_that_the_cut_goes_through_is_not_seen_in_part(tmp_path: Path, shift: int) -> None:
    log, secret = tmp_path / "log", "sk-0123456789ABCDEF"
    log.write_text(f"{secret * 3}{'y' * (4096 - shift)}")
    shown = last_lines(log, [secret])
    assert not any(secret[start : start + 2] in shown for start in range(len(secret) - 1))
    assert shown.endswith("y" * (4096 - max(shift, 0)))


def test_the_message_goes_on_with_the_last_of_many_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100)) + b"\xe4 caf\xc3\xa9")
    assert last_lines(log, []).splitlines() == [
        "",
        "its last lines:",
        *(f"  line {number}" for number in range(81, 100)),
        "  \ufffd caf\u00e9",
    ]
    log.write_bytes(b"")
    assert last_lines(log, []) == "; it wrote nothing"
    assert last_lines(tmp_path / "missing", []) == ""


def test_the_end_of_a_log_that_is_in_memory_is_the_message_of_the_file(tmp_path: Path) -> None:
    log, secrets = tmp_path / "log", ["sk-0123456789ABCDEF"]
    log.write_text("".join(f"line {number} {secrets[0]}\n" for number in range(1_000)))
    end = log.read_bytes()[-bytes_for_last_lines(secrets) :]
    assert as_last_lines(end, secrets) == last_lines(log, secrets)


def test_a_long_message_is_no_longer_than_a_variable_may_be() -> None:
    message = "exited\0with " + "\u00e9" * 200_000
    info = JobInfo(job_id=JobId("a-1"), name="a", status=JobStatus.FAILED, tasks=(), error_message=message)
    error = exit_variables("ray", info)["FRAY_JOB_ERROR"]
    assert error.startswith("exitedwith")
    done = subprocess.run(["sh", "-c", "exit 3"], env={"FRAY_JOB_ERROR": error}, check=False)
    assert done.returncode == 3, "it was started"
