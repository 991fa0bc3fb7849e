"""The first steps of a supervisor's process: it forks into a guardian and the supervisor.

The supervisor imports the rest of the runtime. The guardian imports nothing more until the supervisor has
ended; where it was killed, the guardian ends the tree. Both hold the record's lock, and neither is in the
control group of the job, or of the job that launched this one: they are to outlive a kill of it.
"""

import os
import signal

from fray._jobs.process_tree import SUPERVISORS_IGNORE, USER_SIGNALS, become_subreaper
from fray._jobs.processes.memory_group import groups_named, leave_group
from fray._jobs.records.files import LOCK, ON_EXIT
from fray._jobs.records.replica_records import job_path

_HOLDS_FOR = 3  # seconds after the end of a job in which its guardian holds the lock while it tidies up


def main(record: str, handed: str | None = None) -> None:
    """Start the supervisor of a record, and guard it.

    Args:
        handed: The file that holds the record's lock, where the launcher took it.
    """
    for number in USER_SIGNALS:  # before the fork: the supervisor loads for a while before it sets its own
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    if handed is None:
        lock = os.open(os.path.join(record, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    else:
        lock = int(handed)
        os.set_inheritable(lock, False)
    leave_group()
    become_subreaper()
    supervisor = os.fork()
    if supervisor == 0:
        _supervise(record, lock, handed=handed is not None)
    for number in SUPERVISORS_IGNORE:
        signal.signal(number, signal.SIG_IGN)  # the supervisor is asked, not its guardian
    _guard(record, supervisor, lock)


def _supervise(record: str, lock: int, *, handed: bool) -> None:
    code = 1
    try:
        from fray._jobs.supervisor.start import supervise

        supervise(record, lock, _group_name(record, os.getpid()), handed=handed)
        code = 0
    except BaseException:  # noqa: BLE001 - the guardian ends the tree and writes the status
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _guard(record: str, supervisor: int, lock: int) -> None:
    pid = status = 0
    while pid != supervisor:
        pid, status = os.waitpid(-1, 0)
    if status:
        from fray._jobs.supervisor.guardian import clear

        clear(record, supervisor, os.waitstatus_to_exitcode(status))
    groups_named(_group_name(record, supervisor)).remove()
    from fray._jobs.records.predecessors import tell_of_end

    tell_of_end(record)
    job = job_path(record)
    if job != record:
        from fray._jobs.records.settling import settle_job

        if not settle_job(job):
            return  # other replicas continue
        tell_of_end(job)
    if os.path.exists(os.path.join(job, ON_EXIT)):
        from fray._jobs.records.on_exit import run_on_exit

        os.close(lock)  # the job has ended, whatever comes now
        run_on_exit(job)
    else:
        # A stop or a retry of the job waits for the lock, and so for this process, but not for a long prune.
        signal.signal(signal.SIGALRM, lambda *_: os.close(lock))
        signal.alarm(_HOLDS_FOR)
    from fray._jobs.records.housekeeping import keep_house

    keep_house(job)


def _group_name(record: str, supervisor: int) -> str:
    return f"{os.path.basename(record)[-100:]}-{supervisor}"
