"""What a job writes is shown where the encoding of the output lacks a character, too."""

from collections.abc import Callable

import pytest
from command_line import fray

WRITTEN, SHOWN = r"tick \342\234\223", r"tick \u2713"


@pytest.fixture(autouse=True)
def narrow_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")


def test_a_job_is_followed_shown_and_read() -> None:
    done = fray("run", "--name", "✓ tick", "--", "sh", "-c", f"printf '{WRITTEN}\\nend\\n'; exit 3", code=3)
    assert done.stdout == f"{SHOWN}\nend\n"
    assert r"\u2713 tick" in fray("status", "tick").stdout
    assert fray("logs", "tick").stdout == f"{SHOWN}\nend\n"


def test_a_program_that_waits_streams_all_lines(run_script: Callable[..., str]) -> None:
    printed = run_script(
        f"""
        from fray import Entrypoint, JobRequest, create_cluster
        cluster = create_cluster("local")
        writes = Entrypoint.from_binary("sh", ["-c", r"printf '{WRITTEN}\\nend\\n'"])
        cluster.wait(cluster.launch(JobRequest("writes", writes)), timeout=50, stream_logs=True)
        """
    )
    assert printed == f"{SHOWN}\nend\n"


def test_what_a_task_prints_in_another_process_is_shown(run_script: Callable[..., str]) -> None:
    printed = run_script(
        """
        from fray import create_context

        def write():
            print("before")
            print("tick \\u2713")

        with create_context("process?max_workers=1") as context:
            context.get(context.run(write))
        """
    )
    assert printed == f"before\n{SHOWN}\n"
