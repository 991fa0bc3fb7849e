"""Submit jobs and sweeps to Slurm, and again those that did not succeed."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fray import ClusterUnavailableError
from fray.backend import (
    REPLICAS,
    JobRecord,
    SupervisorLock,
    SweepPlan,
    bare_command,
    import_paths,
    poll_delays,
    settle_by_members,
    settle_stopped,
    supervisor_command,
    write_record,
)
from fray.cluster import JobId, JobStatus
from fray_slurm._after import dependency, failed_before
from fray_slurm._allocation import FOLDER, JOB, OPTIONS, RECORD, SCRIPT, SECRETS, path_of, read, write
from fray_slurm._arrays import Array, arrays_of, arrays_of_replicas, in_order
from fray_slurm._client import SlurmError
from fray_slurm._jobs import SlurmJobs, members_of, run_of
from fray_slurm._script import batch_script, log_path
from fray_slurm._settings import SlurmSettings
from fray_slurm._shared_folder import check_shared
from fray_slurm._states import End

MEMBERS = "jobs"  # in the record of a sweep
_LEAVES_WITHIN = 30.0  # seconds in which the batch step of a job that has ended is gone
Options = Mapping[str, str | None]
NONE: Options = {}


class SlurmLaunches(SlurmJobs):
    """The part of a `SlurmCluster` that submits."""

    _settings: SlurmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._options: dict[str, Options] = {}  # of what is being launched
        self._checked = False

    def _check_folder(self) -> None:
        if not self._checked:
            self._records.make_folder()
            check_shared(self._client, self._records.folder, self._settings)
            self._checked = True

    def _start(self, job_id: str, command: list[str]) -> None:
        path = self._records.path(job_id)
        (path / FOLDER).mkdir(mode=0o700, exist_ok=True)
        options = self._options.get(job_id)
        if options is None:
            self._start_again(JobRecord(path, JobId(job_id)), command)
        else:
            write(path_of(os.fspath(path), OPTIONS), options)
            self._submit_job(job_id, os.fspath(path), options, command, again=False)
        self._table.expect_change()

    def _start_again(self, record: JobRecord, command: list[str]) -> None:
        path = os.fspath(record.path)
        try:
            self._submit_job(record.job_id, path, read(path_of(path, OPTIONS)), command, again=True)
        except BaseException:
            settle_stopped(record)  # it can be run again later
            raise

    def _submit_job(
        self, job_id: str, record: str, options: Options, command: list[str], *, again: bool
    ) -> str:
        """Submit one job to Slurm, and note its number; "" where it can never start."""
        failed, after = self._standing(job_id)
        if failed is not None:
            write(path_of(record, JOB), {"never": failed.message})
            return ""
        name = next(_names(job_id, again))
        options = {**options, **after, "job-name": name}
        script = batch_script(options, [*batch_command(), record, *command], record)
        Path(path_of(record, SCRIPT)).write_text(script)
        write(path_of(record, JOB), {"name": name})  # by which it is found, should this process be killed now
        number, _, cluster = self._client.submit(script, name).partition(";")
        write(path_of(record, JOB), {"id": number, "cluster": cluster or None, "name": name})
        self._withdraw_stopped(Path(record), number)
        return number

    def _withdraw_stopped(self, record: Path, number: str) -> None:
        """Take out of the queue what was stopped while it was being submitted."""
        if JobRecord(record, JobId(record.name)).written().finished:
            with contextlib.suppress(SlurmError, ClusterUnavailableError):  # it ends when it starts
                self._client.cancel(number, pending=True)

    def _unfinished_numbers(self, job_id: str) -> list[str]:
        """Return the numbers under which Slurm has what is left of a job: of a sweep, those of its arrays.

        What has no number yet is none of them: the supervisor looks.
        """
        record = self._records.find(job_id)
        members = members_of(record)
        left = [each for each in members or [record] if not self._state(each).finished]
        numbers = self._names_by_number(left)
        return sorted({number.partition("_")[0] for number in numbers} if members else numbers)

    def _start_replicas(self, job_id: str, replicas: Sequence[int]) -> None:
        record = self._records.path(job_id)
        own, again = os.fspath(record), job_id not in self._options
        (record / FOLDER).mkdir(mode=0o700, exist_ok=True)
        options = read(path_of(own, OPTIONS)) if again else self._options[job_id]
        write(path_of(own, OPTIONS), options)
        for replica in replicas:
            (record / REPLICAS / str(replica) / FOLDER).mkdir(mode=0o700, exist_ok=True)
        try:
            self._submit_replicas(job_id, replicas, options, again)
        except BaseException:
            for each in JobRecord(record, JobId(job_id)).replicas() if again else ():
                settle_stopped(each)  # they can be run again later
            raise
        self._table.expect_change()

    def _submit_replicas(self, job_id: str, replicas: Sequence[int], options: Options, again: bool) -> None:
        """Submit replicas that are independent as an array, each a task that starts when there is room."""
        folder = self._records.path(job_id) / REPLICAS
        failed, after = self._standing(job_id)
        if failed is not None:
            for replica in replicas:
                write(path_of(os.fspath(folder / str(replica)), JOB), {"never": failed.message})
            return
        submitted: list[str] = []
        try:
            arrays = arrays_of_replicas(options, replicas, self._client.largest_array())
            for array, name in zip(arrays, _names(job_id, again), strict=False):
                submitted += [self._submit_array(name, array, folder, after)]
        except BaseException:
            if submitted:
                with contextlib.suppress(SlurmError, ClusterUnavailableError):
                    self._client.cancel(*submitted)
            raise
        write(path_of(os.fspath(folder.parent), JOB), {"id": ":".join(submitted)})

    def _standing(self, job_id: str) -> tuple[End | None, Options]:
        """Return why a job can never start, or by which option it starts after those before it."""
        before = self._predecessors(job_id)
        for pause in poll_delays(shortest=0.1, longest=0.5):
            failed = failed_before(before, self._info)
            if failed is not None:  # Slurm may have forgotten those; and why should it wait in the queue
                return failed, NONE
            if not any(map(self._is_taken, before)):
                break
            time.sleep(pause)
        numbers = [number for job_id in before for number in self._unfinished_numbers(job_id)]
        return None, {"dependency": dependency(numbers)} if numbers else NONE

    def _is_taken(self, job_id: str) -> bool:
        """Whether another job has the number of a job by now, which is about to be known as lost."""
        record = self._records.find(job_id)
        names = self._names_by_number(record.replicas() or [record])
        return any(self._table.is_taken(number, name) for number, name in names.items())

    # --- sweeps ---

    def _start_sweep(self, sweep: SweepPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        self._check_folder()
        again = draft == record
        options = _kept_options(record) if again else self._options_of_members(sweep)
        late = in_order(sweep)
        wanted = [position for position in options if not again or _is_to_run(record, position)]
        late = [position for position in late if position in set(wanted)]
        early = [position for position in wanted if position not in set(late)]
        arrays = arrays_of(sweep, options, early, self._client.largest_array())
        if not again:
            write_record(draft, sweep)
            draft.rename(record)
        lock.close()
        own = os.fspath(record)
        (record / FOLDER).mkdir(mode=0o700, exist_ok=True)
        write(path_of(own, OPTIONS), {str(position): options[position] for position in options})
        run = run_of(JobRecord(record, JobId(sweep.job_id))) + again
        write(path_of(own, JOB), {"sweep": sweep.job_id, "run": run})
        submitted: list[str] = []
        try:
            for position in wanted:
                _prepare_member(record / MEMBERS / str(position), sweep.secrets.get(position, {}))
            for array, name in zip(arrays, _names(sweep.job_id, again), strict=False):
                submitted += [self._submit_array(name, array, record / MEMBERS)]
            for position in late:
                submitted += [self._submit_late(sweep, position, options[position], record, again)]
        except BaseException:
            with contextlib.suppress(SlurmError, ClusterUnavailableError):
                self._client.cancel(*filter(None, submitted))
            if again:
                _settle_members(JobRecord(record, JobId(sweep.job_id)))
            raise
        self._table.expect_change()

    def _options_of_members(self, sweep: SweepPlan) -> dict[int, Options]:
        return {
            position: self._options.pop(f"{sweep.job_id}/{position}") for position in range(sweep.members)
        }

    def _submit_array(self, name: str, array: Array, members: Path, options: Options = NONE) -> str:
        """Submit members of a sweep, or replicas, that share their options; return the number of the array.

        Args:
            name: Of the Slurm job.
            members: The folder of their records.
            options: Others, which the array has not.
        """
        record = members.parent
        script = array_script(name, array, members, options)
        (record / FOLDER / f"script-{array.members[0]}.sh").write_text(script)
        paths = {array.task(each): path_of(os.fspath(members / str(each)), JOB) for each in array.members}
        for task, path in paths.items():
            write(path, {"name": name, "task": task})  # as in `_submit_job`
        number, _, cluster = self._client.submit(script, name).partition(";")
        for task, path in paths.items():
            write(path, {"id": f"{number}_{task}", "cluster": cluster or None, "name": name})
        self._withdraw_stopped(record, number)
        return number

    def _submit_late(
        self, sweep: SweepPlan, position: int, options: Options, record: Path, again: bool
    ) -> str:
        """Submit a member that runs after others: a job of its own, with its own dependency."""
        own = os.fspath(record / MEMBERS / str(position))
        member = f"{sweep.job_id}/{position}"
        os.utime(record / FOLDER)  # those that follow are not lost: see `SlurmJobs._unsubmitted`
        return self._submit_job(member, own, options, supervisor_command(own, import_paths()), again=again)

    # --- again ---

    def retry(self, job_id: str, /) -> JobId:
        """See `Cluster.retry`."""
        record = self._records.find(job_id)
        info = self.poll(job_id)
        if info.finished:
            sweep = record.job_id.sweep
            self._settle(record if sweep is None else self._records.find(sweep))
        if info.finished and info.status is not JobStatus.SUCCEEDED:
            self._let_go(record)
        return super().retry(job_id)

    def _settle(self, record: JobRecord) -> None:
        """Write how a job has ended of which Slurm alone knows that; of a sweep, that of each member."""
        self._scans.pop(record.path, None)
        for member in members_of(record):
            self._settle(member)
        if record.replicas():
            settle_by_members(record)
        for pause in poll_delays(longest=0.1):
            info = self._state(record)
            # False where another process is about to write it: the last member of a sweep, say.
            if record.written().finished or not info.finished or settle_stopped(record, end=info):
                return
            time.sleep(pause)

    def _let_go(self, record: JobRecord) -> None:
        """Wait until Slurm has nothing more of what is to run again, and forget the numbers of that."""
        family = members_of(record) or [record]
        ended = [each for each in family if each.written().status is not JobStatus.SUCCEEDED]
        names = self._names_by_number(ended)
        deadline = time.monotonic() + _LEAVES_WITHIN
        for pause in poll_delays(shortest=0.1, longest=1.0):
            if not self._unfinished(names) or time.monotonic() > deadline:
                break
            time.sleep(pause)
        for each in ended:
            write(path_of(os.fspath(each.path), JOB), {})


def _names(job_id: str, again: bool) -> Iterator[str]:
    """Yield a name for each submission of a job or sweep: its id for the first one, of all that there were.

    No two have the same, so that the one whose number was lost on the way back is found by its name.
    """
    if not again:
        yield job_id
    while True:
        yield f"{job_id}.{os.urandom(3).hex()}"


def batch_command() -> list[str]:
    """Return the command of a batch step; a record and the command of its supervisor follow."""
    return bare_command("fray_slurm._batch", import_paths())


def array_script(name: str, array: Array, members: Path, options: Options = NONE) -> str:
    """Return the script of an array: each task supervises the record that has its number in `members`."""
    record = members.parent
    output = log_path(os.fspath(record / FOLDER), "slurm-%A_%a.log")
    own = {"job-name": name, "array": array.option, "output": output}
    which = ["--member", os.fspath(members), str(array.base)]
    command = [*batch_command(), *which, *supervisor_command(RECORD, import_paths())]
    return batch_script(own | dict(array.options) | dict(options), command, os.fspath(record))


def _prepare_member(record: Path, secrets: Mapping[str, str]) -> None:
    (record / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write(path_of(os.fspath(record), SECRETS), secrets)


def _kept_options(record: Path) -> dict[int, Options]:
    return {int(position): found for position, found in read(path_of(os.fspath(record), OPTIONS)).items()}


def _is_to_run(record: Path, position: int) -> bool:
    member = JobRecord(record / MEMBERS / str(position), JobId(str(position)))
    return not member.written().finished


def _settle_members(sweep: JobRecord) -> None:
    for member in sweep.children():
        settle_stopped(member)
    settle_by_members(sweep, stopped=True)
