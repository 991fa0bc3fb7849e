"""`import fray` is paid by every worker: it loads what describes jobs when somebody asks for it."""

import subprocess
import sys

import fray


def printed(code: str) -> str:
    """Run a program in a fresh interpreter, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_every_public_name_is_listed_and_loads() -> None:
    assert set(fray.__all__) <= set(dir(fray))
    assert all(getattr(fray, name) is not None for name in fray.__all__)


def test_jobs_and_resources_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import sys, fray; before = 'fray_resources' in sys.modules;"
        "from fray import JobRequest, ResourceConfig; print(before, 'fray_resources' in sys.modules)"
    )
    assert printed(code) == "False True\n"


def test_the_door_of_contexts_brings_no_job_runtime() -> None:
    code = (
        "import sys, fray.job; print([name for name in sys.modules if name.startswith('fray._jobs')]);"
        "from fray.job import register_endpoint, preemption_notice; print(callable(preemption_notice))"
    )
    assert printed(code) == "[]\nTrue\n"
