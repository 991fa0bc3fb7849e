"""One set of options for every type of context."""

import time
from pathlib import Path

from fray.job import JobContext, SyncContext


def meet(folder: Path, name: str, others: int) -> int:
    """Wait until so many tasks have started; return how many have."""
    (folder / name).touch()
    deadline = time.monotonic() + 20.0
    while len(list(folder.iterdir())) < others and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(list(folder.iterdir()))


def test_num_cpus_is_of_a_task_not_of_all(context: JobContext, tmp_path: Path) -> None:
    at_once = 1 if isinstance(context, SyncContext) else 4
    seen = context.get([context.run(meet, tmp_path, str(number), at_once) for number in range(4)])
    assert min(seen) >= at_once
