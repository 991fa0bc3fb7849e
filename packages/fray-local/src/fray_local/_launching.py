"""Start a job's supervisor: its record first, complete or not there at all."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fray import JobId, JobInfo, JobRequest, JobStatus
from fray.cluster import TaskStatus
from fray_local._plans import Plan
from fray_local._supervisor.ledger import Ledger
from fray_local._supervisor.mailbox import create
from fray_local._supervisor.processes import COOKIE, identify, kill_until_gone, with_cookie
from fray_local._supervisor.status import STATUS, VERSION, write_json

# Run by the shell that is gone at once: the supervisor is nobody's child, so that nobody has to reap
# it. In the background a shell gives /dev/null for stdin, unless it is told otherwise by number.
_SHELL = 'exec 3<&0; "$@" <&3 3<&- >&2 & echo $!'
_MAIN = "import sys; sys.path.append(sys.argv[1]); from fray_local._supervisor.job import main; main()"


def start_job(request: JobRequest, job_id: JobId, job_dir: Path, plan: Plan) -> None:
    """Write the record and start the supervisor; when anything fails nothing is left of either."""
    info = _first_info(request, job_id, plan.values["replicas"])
    # The record is made under another name: it appears complete, supervisor included.
    draft = job_dir.with_name(f".new-{job_dir.name}")
    draft.mkdir(mode=0o700, parents=True)
    try:
        _write_record(draft, request, info, plan)
        _start_supervisor(draft, job_dir, info, plan)
    except BaseException:
        _undo(draft, job_dir, plan)
        raise


def _undo(draft: Path, job_dir: Path, plan: Plan) -> None:
    with contextlib.suppress(OSError):  # as a rule it is not there yet
        job_dir.rename(draft)
    kill_until_gone(lambda: with_cookie(os.fspath(job_dir)))
    if plan.values["claim"] is not None:
        with contextlib.suppress(OSError):  # the ledger may be what failed, and drops the claims of the dead
            Ledger(plan.values["state_dir"]).leave(os.fspath(job_dir))
    shutil.rmtree(draft, ignore_errors=True)


def _first_info(request: JobRequest, job_id: JobId, replicas: int) -> JobInfo:
    return JobInfo(
        job_id=job_id,
        name=request.name,
        status=JobStatus.PENDING,
        tasks=tuple(TaskStatus(replica=number) for number in range(replicas)),
        pending_reason="starting",
        submitted_at=time.time(),
    )


def _write_record(draft: Path, request: JobRequest, info: JobInfo, plan: Plan) -> None:
    (draft / "logs").mkdir(mode=0o700)
    create(os.fspath(draft))
    write_json(os.fspath(draft / "request.json"), {"version": VERSION, **request.to_dict()})
    write_json(os.fspath(draft / STATUS), {"version": VERSION, **info.to_dict()})
    if plan.payload is not None:
        payload = draft / "payload.pkl"
        payload.touch(mode=0o600)
        payload.write_bytes(plan.payload)


def _start_supervisor(draft: Path, job_dir: Path, info: JobInfo, plan: Plan) -> None:
    source = os.fspath(Path(__file__).parents[1])
    log = draft / "supervisor.log"
    log.touch(mode=0o600)
    with (
        log.open("ab") as output,
        subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "sh", sys.executable, "-I", "-S", "-c", _MAIN, source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=os.environ | {COOKIE: os.fspath(job_dir)},
            cwd="/",
            start_new_session=True,
        ) as shell,
    ):
        assert shell.stdin is not None
        assert shell.stdout is not None
        process = identify(int(shell.stdout.readline()))
        if process is None:
            raise OSError(
                f"the supervisor of {info.job_id} ended at once; is {sys.executable} a Python that runs?"
            )
        write_json(os.fspath(draft / "supervisor.json"), process)
        claim = _claim(plan, info, process)
        if claim and not plan.values["build"]:
            # Here, so that jobs stand in line as they were launched, not as their supervisors came up.
            Ledger(plan.values["state_dir"]).enter(claim)
        draft.rename(job_dir)
        shell.stdin.write(_told(plan, info, claim))


def _claim(plan: Plan, info: JobInfo, process: dict[str, Any]) -> dict[str, Any] | None:
    claim: dict[str, Any] | None = plan.values["claim"]
    return None if claim is None else claim | {"process": process, "ticket": info.submitted_at}


def _told(plan: Plan, info: JobInfo, claim: dict[str, Any] | None) -> bytes:
    return json.dumps({**plan.values, "claim": claim, "status": info.to_dict()}).encode()
