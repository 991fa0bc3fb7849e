"""What ends a tree where no control group can be made: the chain of sub-reapers."""

import subprocess
import sys

import pytest

from fray.testing.cluster_faults import unshares

PROGRAM = """
import os, signal, subprocess, sys, time
from fray.cluster import Entrypoint, JobRequest, create_cluster

TREE = '''
import os, subprocess, sys, time
escaped = subprocess.Popen(["/usr/bin/env", "-i", "setsid", "/bin/sleep", "99"])
while os.getsid(escaped.pid) != escaped.pid:
    time.sleep(0.01)
print(os.getpid(), escaped.pid, flush=True)
time.sleep(99)
'''

def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def until(test):
    end = time.monotonic() + 30
    while not (found := test()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found

cluster = create_cluster("local")
print(cluster.capabilities.tree_kill)
for name in ("supervisor", "guardian and stop", "stop"):
    job_id = cluster.launch(JobRequest("tree", Entrypoint.from_binary(sys.executable, ["-c", TREE])))
    pids = [int(word) for word in next(cluster.monitor(job_id)).split()]
    holder = cluster.record(job_id).holder()
    assert holder.group is None
    if name != "stop":
        os.kill(holder.pid if name == "supervisor" else holder.guardian, signal.SIGKILL)
    if name != "supervisor":
        cluster.terminate(job_id, grace=0.5)
    until(lambda: not any(map(running, pids)))
    print(name, cluster.wait(job_id, timeout=30).status)
"""


def test_a_tree_ends_with_its_supervisor_and_when_it_is_asked_to() -> None:
    hidden = 'mount -t tmpfs fray-test /sys/fs/cgroup && exec "$@"'
    command = [sys.executable, "-c", PROGRAM]
    if unshares("-m"):
        command = ["unshare", "-m", "sh", "-c", hidden, "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    if "assert holder.group is None" in done.stderr:
        pytest.fail("control groups can be made here, and not be hidden: run this where they can be")
    assert done.stdout.splitlines() == [
        "subreaper",
        "supervisor failed",
        "guardian and stop stopped",
        "stop stopped",
    ], done.stderr
