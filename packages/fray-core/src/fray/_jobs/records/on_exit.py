"""Run a job's `on_exit` command, once, when the job has ended, also where nobody follows it.

Its guardian runs it, or the supervisor where the guardian was killed. Where both were killed, or the machine
went, nobody does: readers of records act on nothing.
"""

import json
import os
import signal
import sys
import time

from fray._jobs.plans.plan import JobPlan
from fray._jobs.process_tree import JOB_VARIABLE
from fray._jobs.processes.spawn import start_program
from fray._jobs.records.endings import read_status
from fray._jobs.records.files import ON_EXIT
from fray._jobs.records.status_file import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._values.job_states import JobInfo

DONE, LOG = "on_exit.done", "on-exit.log"
LONGEST = 600.0  # seconds that the command may take
_LONGEST_ERROR = 16 * 1024  # characters; Linux starts no program with a variable of 128 KiB, or with a NUL


def write_on_exit(record: str, plan: JobPlan) -> None:
    """Note in the record of a job what is to be run when it has ended."""
    said = {
        "command": plan.on_exit,
        "directory": plan.workspace,
        "spec": plan.environ.get("FRAY_CLUSTER_SPEC", ""),
    }
    replace_file(os.path.join(record, ON_EXIT), json.dumps(said).encode())


def run_on_exit(record: str) -> None:
    """Run the command where the job has ended, unless another process has begun to."""
    info = read_status(record)
    if info is None or not info.finished:
        return  # it is resumed elsewhere
    path, done = os.path.join(record, ON_EXIT), os.path.join(record, DONE)
    try:
        os.rename(path, done)
        with open(done) as file:
            said = json.load(file)
        _run(record, said, info)
    except (OSError, ValueError) as error:
        print(f"on_exit was not run: {error}", file=sys.stderr)


def _run(record: str, said: dict[str, str], info: "JobInfo") -> None:
    folder = said["directory"] if os.path.isdir(said["directory"]) else "/"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    output = os.open(os.path.join(record, "logs", LOG), flags, 0o600)
    try:
        pid = start_program(
            ("/bin/sh", "-c", said["command"]), exit_variables(said["spec"], info), folder, output
        )
        limit = time.monotonic() + LONGEST
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                os.killpg(pid, signal.SIGKILL)
                os.write(output, f"fray: ended after {LONGEST:g} s\n".encode())
                os.waitpid(pid, 0)
                return
            time.sleep(0.02)
    finally:
        os.close(output)


def exit_variables(spec: str, info: "JobInfo") -> dict[str, str]:
    """Return the environment of an `on_exit` command: this process's, and how the job ended."""
    environ = {name: value for name, value in os.environ.items() if name != JOB_VARIABLE}
    bin_folder = os.path.dirname(sys.executable)
    return environ | {
        "PATH": os.pathsep.join([bin_folder, environ.get("PATH") or os.defpath]),
        "FRAY_CLUSTER_SPEC": spec,
        "FRAY_JOB_ID": str(info.job_id),
        "FRAY_JOB_NAME": info.name,
        "FRAY_JOB_STATUS": str(info.status),
        "FRAY_JOB_REASON": reason_of(info),
        "FRAY_JOB_EXIT_CODE": str(info.exit_code),
        "FRAY_JOB_ERROR": (info.error_message or "").replace("\0", "")[:_LONGEST_ERROR],
    }


def reason_of(info: "JobInfo") -> str:
    """Return why a job ended: the reason of the first replica that ended as the job did."""
    reasons = [task.reason for task in info.tasks if task.status == info.status and task.reason]
    return str(reasons[0]) if reasons else ""
