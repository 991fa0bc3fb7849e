"""Whatever Slurm's commands print: a job reads as something, or the cluster says that it cannot be asked."""

import os
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fray import FrayError
from fray.cluster import create_cluster
from fray.testing.cluster import launch, program
from fray_slurm.testing import RecordedSlurm

DRAWN = settings(
    max_examples=25 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD = st.sampled_from(
    ["", " ", "\t", "²", "9" * 40, "-1", "None", "0:0", "²:0", "0:²", "77_", "|", "=", "a" * 500]
)
WORD = ODD | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\x00"), max_size=12)
STATE = (
    st.sampled_from(["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED by", "NODE_FAIL", "REQUEUED+"])
    | WORD
)
QUEUE = st.lists(st.sampled_from(["77", "77_1", "78"]) | WORD, min_size=1, max_size=1).flatmap(
    lambda first: st.tuples(STATE, WORD, WORD, WORD).map(lambda rest: "|".join([*first, *rest]))
)
FIELD = st.tuples(
    st.sampled_from(["JobState", "ExitCode", "Restarts", "Reason", "EndTime", "TimeLimit", "PreemptTime"]),
    STATE,
).map("=".join)
DETAILS = st.lists(FIELD, max_size=8).map(lambda fields: " ".join(["JobId=77", *fields]))
ACCOUNT = st.tuples(STATE, WORD, WORD).map(lambda rest: "|".join(["77", *rest]))


def test_answers_of_any_shape(recorded: RecordedSlurm, tmp_path: Path) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.01")
    (node,) = (tmp_path / "recorded" / "scontrol.out").read_text().splitlines()

    @DRAWN
    @given(st.lists(QUEUE, max_size=2), DETAILS | WORD, st.lists(ACCOUNT, max_size=2), st.booleans())
    def ask(queue: list[str], details: str, accounts: list[str], kept: bool) -> None:
        recorded.says("squeue", "")
        recorded.says("scontrol", f"{node}\n")
        job_id = launch(cluster, program("pass"))
        recorded.says("squeue", "".join(f"{line}\n" for line in queue))
        recorded.says("scontrol", f"{details}\n")
        recorded.says("sacct", "".join(f"{line}\n" for line in accounts), code=0 if kept else 1)
        for look in (lambda: cluster.poll(job_id), cluster.list_jobs):
            with suppress(FrayError):
                look()

    ask()
