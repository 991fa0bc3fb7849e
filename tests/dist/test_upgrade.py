"""An environment with 0.1.0 becomes one with this release, and goes on with what 0.1.0 left."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from archives import PROJECTS, SMOKE, Built, program_text, uv_run
from first_release import RECORDED, sources, stand_ins, write_stores

# What a program of this release does with the stores of 0.1.0.
GOES_ON = """
import os, sys
from fray.cluster import JobStatus, create_cluster
from fray.queue import open_queue
from fray_queue import FileQueue

cluster = create_cluster("local")
infos = {info.name: info for info in cluster.list_jobs()}
assert {name: info.status for name, info in infos.items()} == {
    "succeeds": JobStatus.SUCCEEDED, "fails": JobStatus.FAILED,
}
assert infos["fails"].tasks[0].exit_code == 3
assert list(cluster.monitor(infos["succeeds"].job_id)) == ["written by 0.1.0"]
assert "it breaks" in (cluster.poll(infos["fails"].job_id).error_message or "")
cluster.remove(infos["succeeds"].job_id)
assert [info.name for info in cluster.list_jobs()] == ["fails"]

queue = open_queue(f"file:{sys.argv[1]}/queue")
assert queue.size() == 4
queue.push({"number": 5})
leases = queue.pop_many(10)
# 1 was done, and the lease of 0 has ended.
assert sorted(lease.item["number"] for lease in leases) == [0, 2, 3, 4, 5]
queue.done_many(leases)
assert queue.size() == 0

from fray_queue import HttpQueueServer

try:
    HttpQueueServer(port=0, store=f"{sys.argv[1]}/server").start()
except ValueError as error:
    assert "0.1.0" in str(error), error
else:
    raise AssertionError("a store of 0.1.0 is refused")
print("goes on")
"""


@pytest.fixture(scope="module")
def upgraded(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that had 0.1.0, and has all wheels of this release now."""
    folder = tmp_path_factory.mktemp("upgrade")
    old = stand_ins(folder / "stand-ins")
    if packages := sources(folder / "history"):
        old = []
        for package in packages:
            uv_run("build", "--quiet", "--wheel", "--out-dir", str(folder / "old"), str(package))
        old = sorted((folder / "old").glob("*.whl"))
    environment = folder / "environment"
    uv_run("venv", "--quiet", "--python", sys.executable, str(environment))
    install = ["pip", "install", "--quiet", "--python", str(environment)]
    uv_run(*install, *map(str, old))
    assert versions(environment) == dict.fromkeys(RECORDED["wheels"], "0.1.0")
    extras = {"fray-queue": "[server]"}
    wheels = [f"{name}{extras.get(name, '')} @ file://{each.wheel}" for name, each in built.items()]
    uv_run(*install, "--upgrade", *wheels)
    return environment


def versions(environment: Path) -> dict[str, str]:
    shown = uv_run("pip", "list", "--quiet", "--python", str(environment))
    return dict(re.findall(r"^(fray-\S+)\s+(\S+)", shown, re.MULTILINE))


def ran(environment: Path, folder: Path, program: str, *arguments: str) -> str:
    path = folder / "program.py"
    path.write_text(program)
    environ = {
        "HOME": str(folder),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "FRAY_STATE_DIR": str(folder / "state"),
    }
    done = subprocess.run(
        ["python", str(path), *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
def test_an_upgrade_leaves_this_release_alone_and_whole(upgraded: Path, built: dict[str, Built]) -> None:
    assert versions(upgraded) == {name: project["version"] for name, project in PROJECTS.items()}
    uv_run("pip", "check", "--python", str(upgraded))
    (packages,) = upgraded.glob("lib/python*/site-packages")
    now = {name for each in built.values() for name in each.names()}
    gone = {name for about in RECORDED["wheels"].values() for name in about["files"]} - now
    assert gone
    assert [name for name in gone if (packages / name).exists()] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", PROJECTS)
def test_all_wheels_run_beside_each_other(upgraded: Path, package: str, tmp_path: Path) -> None:
    text = program_text(package)
    if package == "fray-core":  # which shows alone what it says without a backend
        text = "import fray, fray.cluster, fray.job, fray.queue, fray.types\nprint(fray.__version__)"
    assert ran(upgraded, tmp_path, text).strip()
    assert SMOKE[package]


@pytest.mark.timeout(120)
def test_what_0_1_0_left_is_read_or_refused_in_words(upgraded: Path, tmp_path: Path) -> None:
    write_stores(tmp_path)
    assert "goes on" in ran(upgraded, tmp_path, GOES_ON, str(tmp_path))
