"""What a job on this machine costs: launched, followed, two hundred at once, in an environment of its own.

Goals: a command that does nothing within 4 starts of a bare interpreter, and within a fifth of the time of
submitit's LocalExecutor (`pip install submitit`); an environment that is built already adds under 0.3 s;
nothing is left of 200 jobs; among 10,000 finished records a list takes 0.3 s, and `launch` and `poll` what
they take without.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
from measure import Timed, at_most, available, compare, fewer, judge, lines, timed

from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, create_cluster, create_environment

NOTHING = Entrypoint.from_binary("python", ["-c", "pass"])
COUNT = fewer(200, 20)


def do_nothing() -> None: ...


def launch_and_wait(entrypoint: Entrypoint) -> float:
    cluster = create_cluster("local")
    request = JobRequest("nothing", entrypoint)
    return timed(lambda: cluster.wait(cluster.launch(request), raise_on_failure=True))


def bare() -> float:
    return timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))


def submitit_local(folder: Path) -> float:
    import submitit

    executor = submitit.LocalExecutor(folder=folder)
    return timed(lambda: executor.submit(do_nothing).result())


def launching(folder: Path) -> None:
    subjects: dict[str, Timed] = {
        "python -c pass (subprocess.run)": bare,
        "command: true": lambda: launch_and_wait(Entrypoint.from_binary("true")),
        "command: python -c pass": lambda: launch_and_wait(NOTHING),
        "callable": lambda: launch_and_wait(Entrypoint.from_callable(do_nothing)),
    }
    if available("submitit", module="submitit"):
        subjects["submitit.LocalExecutor, callable"] = lambda: submitit_local(folder)
    peer = "python -c pass (subprocess.run)"
    goals = {"command: python -c pass": at_most(4.0), "command: true": at_most(4.0)}
    found = compare("Launch to succeeded", subjects, peer=peer, rounds=15, unit="ms", scale=1e3, goals=goals)
    if "submitit.LocalExecutor, callable" in found:
        share = found["callable"] / found["submitit.LocalExecutor, callable"]
        judge("Launch to succeeded: a callable, ratio to submitit.LocalExecutor", share, at_most(0.2))


def following() -> None:
    """The time from a line's print to its arrival, by the clock that both processes read."""
    cluster = create_cluster("local")
    code = "import time\nfor _ in range(50):\n    print(time.time(), flush=True)\n    time.sleep(0.03)"
    job_id = cluster.launch(JobRequest("talk", Entrypoint.from_binary("python", ["-c", code])))
    late = sorted(time.time() - float(line) for line in cluster.monitor(job_id))
    figures = [("median", late[len(late) // 2]), ("slowest of 50", late[-1])]
    lines("From a printed line to its follower", [(name, f"{value * 1e3:.1f} ms") for name, value in figures])


def footprint(state: Path) -> dict[str, int]:
    """What could leak: processes of ours, threads, file descriptors, files outside the records."""
    me = psutil.Process()
    ours = [
        each for each in psutil.process_iter(["environ"]) if str(state) in str(each.info["environ"] or {})
    ]
    return {
        "processes": len([each for each in ours if each.pid != me.pid]),
        "threads": threading.active_count(),
        "file descriptors": me.num_fds(),
        "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
        "files beside the logs": sum(1 for _ in state.rglob("*.new")),
    }


def many(state: Path) -> None:
    cluster = create_cluster("local?overcommit=true")
    before = footprint(state)
    ids: list[str] = []
    start = time.perf_counter()
    launched = timed(lambda: ids.extend(cluster.launch(JobRequest("many", NOTHING)) for _ in range(COUNT)))
    infos = cluster.wait(ids, raise_on_failure=True)
    total = time.perf_counter() - start
    assert len(infos) == COUNT
    time.sleep(0.5)  # the last supervisors write the final status and exit
    after = footprint(state)
    rows = [("all launched after", f"{launched:.2f} s"), ("all succeeded after", f"{total:.2f} s")]
    rows += [(f"{name} before and after", f"{before[name]} {after[name]}") for name in before]
    lines(f"{COUNT} jobs at once (python -c pass)", rows)


def remembered(state: Path, count: int = fewer(10_000, 500)) -> None:
    """What finished records cost those who launch, look at one, and look at all."""
    cluster = create_cluster("local?overcommit=true", keep_jobs=10 * count)
    request = JobRequest("nothing", Entrypoint.from_binary("true"))

    def middle(act: Callable[[], object]) -> float:
        return sorted(timed(act) for _ in range(9))[4]

    def ended() -> str:
        job_id = cluster.launch(request)
        cluster.wait(job_id)
        return job_id

    first = ended()
    before = [middle(lambda: cluster.launch(request)), middle(lambda: cluster.poll(first))]
    source = state / "jobs" / first
    for number in range(count):
        copy = source.with_name(f"copy-{number:06x}")
        copy.mkdir()
        for name in ("status.json", "request.json"):
            (copy / name).write_text((source / name).read_text().replace(first, copy.name))
    ended()  # after which the index is written, in the background
    while not (state / "jobs" / ".index.pickle").exists():
        time.sleep(0.1)
    after = [middle(lambda: cluster.launch(request)), middle(lambda: cluster.poll(first))]
    rows = [
        (f"{name} without and with", f"{old * 1e3:.2f} {new * 1e3:.2f} ms")
        for name, old, new in zip(("launch", "poll"), before, after, strict=True)
    ]
    listed = middle(cluster.list_jobs)
    lines(f"{count} finished records", [*rows, ("list", f"{listed:.2f} s")])
    judge(f"list among {count} finished records", listed, at_most(0.3), " s")
    judge("launch among them, ratio to launch without", after[0] / before[0], at_most(1.5))
    judge("poll among them, ratio to poll without", after[1] / before[1], at_most(1.5))
    verbs = ["--help", "list", "list --limit 10", "list --name nothing --status failed", f"status {first}"]
    asked = [(f"fray {verb}", middle(partial(on_the_command_line, *verb.split()))) for verb in verbs]
    shortened = middle(partial(on_the_command_line, "status", first[:-1]))
    asked.append(("fray status, by the beginning of an id", shortened))
    lines("... on the command line", [(what, f"{seconds:.2f} s") for what, seconds in asked])


def on_the_command_line(*argv: str) -> None:
    fray = Path(sys.executable).with_name("fray")
    subprocess.run([fray, *argv], check=True, stdout=subprocess.DEVNULL)


def isolated(folder: Path) -> None:
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    environment = create_environment(workspace=folder, pip_packages=[str(wheel)])
    cluster = create_cluster("local")

    def run(environment: EnvironmentConfig | None) -> float:
        request = JobRequest("isolated", NOTHING, environment=environment)
        return timed(lambda: cluster.wait(cluster.launch(request), raise_on_failure=True))

    first = run(environment)
    lines("An environment of its own", [("built for the first job", f"{first * 1e3:.0f} ms")])
    found = compare(
        "... and for the next ones",
        {
            "the launcher's environment": lambda: run(None),
            "an environment that is built": lambda: run(environment),
        },
        peer="the launcher's environment",
        unit="ms",
        scale=1e3,
    )
    more = found["an environment that is built"] - found["the launcher's environment"]
    judge("an environment that is built already adds", more, at_most(0.3), " s")


def main() -> None:
    """Print every table; state lives in a directory that goes at the end."""
    # Users start compiled files; a shell that forbids writing them would measure the compiler.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        os.environ["FRAY_STATE_DIR"] = str(state)
        launch_and_wait(NOTHING)
        launching(Path(folder))
        following()
        many(state)
        isolated(Path(folder))
        os.environ["FRAY_STATE_DIR"] = str(Path(folder) / "remembered")
        remembered(Path(folder) / "remembered")


if __name__ == "__main__":
    main()
