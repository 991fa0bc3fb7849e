"""Submit jobs and sweeps to Slurm, and again those that did not succeed."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fray import ClusterUnavailableError, JobNotFoundError, UnsupportedError
from fray.backend import (
    REPLICAS,
    JobRecord,
    SupervisorLock,
    SweepPlan,
    bare_command,
    import_paths,
    poll_delays,
    poll_until,
    settle_by_members,
    settle_stopped,
    supervisor_command,
    write_record,
)
from fray.cluster import JobId, JobInfo, JobPlan, JobStatus
from fray_slurm._after import dependency, failed_before
from fray_slurm._allocation import FOLDER, JOB, LOCK, OPTIONS, RECORD, SCRIPT, SECRETS, path_of, read, write
from fray_slurm._arrays import Array, arrays_of, arrays_of_replicas, in_order
from fray_slurm._client import SlurmError
from fray_slurm._jobs import SlurmJobs, members_of, run_of
from fray_slurm._script import batch_script, log_path
from fray_slurm._settings import SlurmSettings
from fray_slurm._shared_folder import check_shared
from fray_slurm._states import WAITING, End

MEMBERS = "jobs"  # in the record of a sweep
_LETS_GO_WITHIN = 10.0  # seconds in which the supervisor of a job that has ended is gone
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
        record, again = self._records.path(job_id), job_id not in self._options
        options = _kept_options(record) if again else self._options[job_id]
        self._submit_job(job_id, os.fspath(record), options, command, again=again)
        self._table.expect_change()

    def _start_supervisor(
        self, plan: JobPlan | SweepPlan, draft: Path, record: Path, lock: SupervisorLock
    ) -> None:
        if draft != record:
            _prepare(draft, self._options[plan.job_id])
        super()._start_supervisor(plan, draft, record, lock)

    def _start_apart(self, plan: JobPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        _prepare(draft, self._options[plan.job_id])
        super()._start_apart(plan, draft, record, lock)

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
        own = {"name": name, "cluster": self._client.name}
        write(path_of(record, JOB), own)  # by which it is found, should this process be killed now
        with self._cancelled_on_error() as submitted:
            number, _, cluster = self._client.submit(script, name).partition(";")
            submitted.append(number)
            write(path_of(record, JOB), {**own, "id": number, "cluster": cluster or self._client.name})
            self._withdraw_stopped(Path(record), number)
        return number

    @contextlib.contextmanager
    def _cancelled_on_error(self) -> Iterator[list[str]]:
        """Be around submissions: where an error ends them, the jobs in its list are cancelled."""
        submitted: list[str] = []
        try:
            yield submitted
        except BaseException:
            if submitted:
                with contextlib.suppress(SlurmError, ClusterUnavailableError):
                    self._client.cancel(*submitted)
            raise

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
        record, again = self._records.path(job_id), job_id not in self._options
        for replica in replicas:
            (record / REPLICAS / str(replica) / FOLDER).mkdir(mode=0o700, exist_ok=True)
        options = _kept_options(record) if again else self._options[job_id]
        self._submit_replicas(job_id, replicas, options, again)
        self._table.expect_change()

    def _submit_replicas(self, job_id: str, replicas: Sequence[int], options: Options, again: bool) -> None:
        """Submit replicas that are independent as an array, each a task that starts when there is room."""
        folder = self._records.path(job_id) / REPLICAS
        failed, after = self._standing(job_id)
        if failed is not None:
            for replica in replicas:
                write(path_of(os.fspath(folder / str(replica)), JOB), {"never": failed.message})
            return
        arrays = arrays_of_replicas(options, replicas, self._client.largest_array())
        with self._cancelled_on_error() as submitted:
            for array, name in zip(arrays, _names(job_id, again), strict=False):
                self._submit_array(name, array, folder, submitted, after)
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
        self._settle_ended(before)  # a supervisor goes by their records alone
        numbers = [number for job_id in before for number in self._unfinished_numbers(job_id)]
        return None, {"dependency": dependency(numbers)} if numbers else NONE

    def _settle_ended(self, job_ids: Sequence[str]) -> None:
        """Write how jobs have ended that have; where that cannot be, what waits for them waits for that."""
        for job_id in job_ids:
            info = self._info(job_id)
            if info is not None and info.finished:
                with contextlib.suppress(JobNotFoundError, ClusterUnavailableError):
                    self._settle(self._records.find(job_id))

    def _is_taken(self, job_id: str) -> bool:
        """Whether another job has the number of a job by now, which is about to be known as lost."""
        record = self._records.find(job_id)
        names = self._names_by_number(record.replicas() or [record])
        return any(self._table.is_taken(number, name) for number, name in names.items())

    # --- sweeps ---

    def _start_sweep(self, sweep: SweepPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        self._check_folder()
        again = draft == record
        options = _kept_by_member(record) if again else self._options_of_members(sweep)
        late = in_order(sweep)
        wanted = [position for position in options if not again or _is_to_run(record, position)]
        late = [position for position in late if position in set(wanted)]
        early = [position for position in wanted if position not in set(late)]
        arrays = arrays_of(sweep, options, early, self._client.largest_array())
        for position in wanted:
            _prepare_member(draft / MEMBERS / str(position), sweep.secrets.get(position, {}))
        if not again:
            write_record(draft, sweep)
            _prepare(draft, {str(position): options[position] for position in options})
        run = run_of(JobRecord(draft, JobId(sweep.job_id))) + again
        write(path_of(os.fspath(draft), JOB), {"sweep": sweep.job_id, "run": run})
        if not again:
            draft.rename(record)
        lock.close()
        with self._cancelled_on_error() as submitted:
            for array, name in zip(arrays, _names(sweep.job_id, again), strict=False):
                self._submit_array(name, array, record / MEMBERS, submitted)
            for position in late:
                number = self._submit_late(sweep, position, options[position], record, again)
                submitted += [number] if number else []
        self._table.expect_change()

    def _options_of_members(self, sweep: SweepPlan) -> dict[int, Options]:
        return {
            position: self._options.pop(f"{sweep.job_id}/{position}") for position in range(sweep.members)
        }

    def _submit_array(
        self, name: str, array: Array, members: Path, submitted: list[str], options: Options = NONE
    ) -> None:
        """Submit members of a sweep, or replicas, that share their options.

        Args:
            name: Of the Slurm job.
            members: The folder of their records.
            submitted: The number of the array is added to these.
            options: Others, which the array has not.
        """
        record = members.parent
        script = array_script(name, array, members, options)
        (record / FOLDER / f"script-{array.members[0]}.sh").write_text(script)
        own = {"name": name, "cluster": self._client.name}
        paths = {array.task(each): path_of(os.fspath(members / str(each)), JOB) for each in array.members}
        for task, path in paths.items():
            write(path, {**own, "task": task})  # as in `_submit_job`
        number, _, cluster = self._client.submit(script, name).partition(";")
        submitted.append(number)
        own["cluster"] = cluster or self._client.name
        for task, path in paths.items():
            write(path, {**own, "id": f"{number}_{task}"})
        self._withdraw_stopped(record, number)

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
        """Write how a job has ended of which Slurm alone knows that; of a sweep, that of each member.

        Raises:
            ClusterUnavailableError: A process holds the record whose end nobody sees: that of a host that is
                down, say, whose locks the file system keeps.
        """
        self._scans.pop(record.path, None)
        for member in members_of(record):
            self._settle(member)
        if record.replicas():
            settle_by_members(record)
        deadline = time.monotonic() + _LETS_GO_WITHIN
        for pause in poll_delays(longest=0.1):
            info = self._state(record)
            # False where another process is about to write it: the last member of a sweep, say.
            if record.written().finished or not info.finished or write_end(record, info):
                return
            if time.monotonic() > deadline:
                raise _still_held(record)
            time.sleep(pause)

    def _let_go(self, record: JobRecord) -> None:
        """Wait until Slurm has nothing more of what is to run again, and forget the numbers of that.

        What waits in the queue is cancelled: Slurm took it unseen, or could not cancel it before.
        """
        ended = [each for each in members_of(record) or [record] if _is_to_run_again(each)]
        names = self._names_by_number(ended)
        if not all(map(_is_to_run_again, ended)):
            return  # another process runs them again, and the numbers are its own
        deadline = time.monotonic() + _LEAVES_WITHIN
        for pause in poll_delays(shortest=0.1, longest=1.0):
            left = self._unfinished(names).values()
            if not left or time.monotonic() > deadline:
                break
            waiting = sorted(job.job_id for job in left if job.state in WAITING)
            if waiting:
                self._client.cancel(*waiting)
            time.sleep(pause)
        for each in ended:
            _forget_number(each)


def _names(job_id: str, again: bool) -> Iterator[str]:
    """Yield a name for each submission of a job or sweep: its id for the first one, of all that there were.

    No two have the same, so that the one whose number was lost on the way back is found by its name.
    """
    if not again:
        yield job_id
    while True:
        yield f"{job_id}.{os.urandom(3).hex()}"


def write_end(record: JobRecord, end: JobInfo | None = None) -> bool:
    """Write that a job without a supervisor was stopped, or how it has ended; False where it has one.

    What its supervisor was to be given is gone then.
    """
    unfinished = not record.written().finished
    done = settle_stopped(record, end=end)
    if unfinished and done:
        Path(path_of(os.fspath(record.path), SECRETS)).unlink(missing_ok=True)
    return done


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


def _prepare(draft: Path, options: Mapping[str, Any]) -> None:
    """Note the options of sbatch in a record before it appears: from then on it can be submitted again."""
    (draft / FOLDER).mkdir(mode=0o700)
    write(path_of(os.fspath(draft), OPTIONS), options)


def _kept_options(record: Path) -> dict[str, Any]:
    """Return the options of sbatch that were noted at launch.

    Raises:
        UnsupportedError: They cannot be read; without them Slurm would run another job.
    """
    found = read(path_of(os.fspath(record), OPTIONS))
    if not found:
        raise UnsupportedError(
            f"job {record.name} cannot be run again: its record has no options of sbatch "
            f"({os.fspath(record / FOLDER / OPTIONS)}); launch it as a new job"
        )
    return found


def _kept_by_member(sweep: Path) -> dict[int, Options]:
    return {int(position): options for position, options in _kept_options(sweep).items()}


def _forget_number(record: JobRecord) -> None:
    """Forget the number of a job that has ended: under its lock, as another process may run it again."""
    path = os.fspath(record.path / LOCK)
    lock = poll_until(lambda: SupervisorLock.acquire(path), _LETS_GO_WITHIN)
    if lock is None:
        raise _still_held(record)
    try:
        if _is_to_run_again(record):
            Path(path_of(os.fspath(record.path), JOB)).unlink(missing_ok=True)
    finally:
        lock.close()


def _is_to_run_again(record: JobRecord) -> bool:
    return record.written().status in (JobStatus.FAILED, JobStatus.STOPPED)


def _still_held(record: JobRecord) -> ClusterUnavailableError:
    holder = record.holder()
    where = f" on host {holder.host}" if holder is not None else ""
    return ClusterUnavailableError(
        f"job {record.job_id} has ended, and its supervisor{where} still holds its record; where that host "
        "is down, the file system keeps its locks for a while: try again later"
    )


def _is_to_run(record: Path, position: int) -> bool:
    member = JobRecord(record / MEMBERS / str(position), JobId(str(position)))
    return not member.written().finished
