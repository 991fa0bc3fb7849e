"""What Ray's own dashboard shows of jobs: the output of a replica on its node, and figures for Prometheus."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
import requests
from gang_hosts import nodes_of_replicas
from prometheus_client.parser import text_string_to_metric_families

from fray.cluster import Entrypoint, JobRequest, ResourceConfig, create_environment
from fray.testing.gates import Gate, until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types
pytestmark = pytest.mark.timeout(480)

SECRET = "91ab7f-a-password"
PAGE = Path(__file__).parents[2] / "docs" / "ray-jobs-grafana.json"


def listed(ray_cluster: LocalRayCluster, node: str, job_id: str) -> set[str]:
    """The files of a job that the dashboard's page of the logs of a node lists."""
    question = {"node_id": node, "glob": f"*{job_id}*"}
    answer = requests.get(f"{ray_cluster.dashboard}/api/v0/logs", params=question, timeout=60)
    answer.raise_for_status()
    return {name for names in answer.json()["data"]["result"].values() for name in names}


def shown(ray_cluster: LocalRayCluster, node: str, name: str) -> str:
    """What the dashboard shows of a file among the logs of a node."""
    question: dict[str, str | int] = {"node_id": node, "filename": name, "lines": -1}
    answer = requests.get(f"{ray_cluster.dashboard}/api/v0/logs/file", params=question, timeout=60)
    answer.raise_for_status()
    return answer.text


def writer(name: str) -> int:
    """The process of this machine that has a file of that name open; 0 where none has."""
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has just been closed, or is another user's
            if file.readlink().name == name:
                return int(file.parts[2])
    return 0


def test_what_each_replica_wrote_is_a_file_of_its_node_without_secrets(
    ray_cluster: LocalRayCluster, joined_cluster: RayCluster, tmp_path: Path
) -> None:
    def work(gate: Gate) -> None:
        import os
        import sys

        print(f"hello from {os.environ['FRAY_REPLICA_ID']}, with {os.environ['SERVICE_KEY']}")
        if os.environ["FRAY_REPLICA_ID"] == "1" and os.environ["FRAY_ATTEMPT"] == "1":
            sys.exit("the first attempt fails")
        gate.wait()

    gate = Gate(tmp_path / "gate")
    request = JobRequest(
        "printing",
        Entrypoint.from_callable(work, [gate]),
        # More than half of the largest node: the replicas are on two.
        resources=ResourceConfig(cpu=2, replicas=2),
        environment=create_environment(env_vars={"SERVICE_KEY": SECRET}),
        max_retries_failure=1,
    )
    job_id = joined_cluster.launch(request)
    # All nodes of this cluster have one folder, so a file is of the node of the process that writes it.
    open_now = [f"fray-{job_id}-replica-{which}.log" for which in ("0-attempt-1", "1-attempt-2")]
    writers = until(lambda: found if all(found := list(map(writer, open_now))) else [], "both are written")
    nodes = nodes_of_replicas()
    assert set(writers) <= nodes.keys(), "it is written where the replica is"
    assert len({nodes[pid] for pid in writers}) == 2
    gate.open()
    joined_cluster.wait(job_id, timeout=200, raise_on_failure=True)
    names = {f"fray-{job_id}-replica-{which}.log" for which in ("0-attempt-1", "1-attempt-1", "1-attempt-2")}
    # Each lists what any has.
    for node in ray_cluster.node_ids()[:3]:
        assert names <= listed(ray_cluster, node, job_id)
    second = shown(ray_cluster, node, f"fray-{job_id}-replica-1-attempt-2.log")
    assert second == "hello from 1, with ***\n"
    first = shown(ray_cluster, node, f"fray-{job_id}-replica-1-attempt-1.log")
    assert first == "hello from 1, with ***\nthe first attempt fails\n"


def scraped(job_id: str) -> dict[str, float]:
    """What the head exports of a job now: by name, of replicas by their status."""
    head = next(node for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
    answer = requests.get(f"http://127.0.0.1:{head['MetricsExportPort']}/metrics", timeout=60)
    answer.raise_for_status()
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.labels.get("job_id") == job_id:
                assert sample.labels["job_name"] == 'counted "twice"'
                found[sample.labels.get("status", sample.name)] = sample.value
    return found


def test_figures_of_a_job_are_among_rays_metrics_and_zero_when_it_has_ended(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    def work(gate: Gate) -> None:
        import os
        import sys
        import time

        if os.environ["FRAY_REPLICA_ID"] == "1" and os.environ["FRAY_ATTEMPT"] == "1":
            sys.exit("the first attempt fails")
        while not gate.is_open():  # it uses a CPU
            time.sleep(0.0)

    gate = Gate(tmp_path / "gate")
    request = JobRequest(
        'counted "twice"',
        Entrypoint.from_callable(work, [gate]),
        resources=ResourceConfig(cpu=1, replicas=2),
        max_retries_failure=1,
    )
    job_id = joined_cluster.launch(request)
    gang_id = joined_cluster.launch(replace(request, gang=True))
    until(lambda: scraped(job_id).get("ray_fray_job_memory_bytes", 0) > 1 << 20, "its memory is exported")
    until(lambda: scraped(job_id)["ray_fray_job_attempts"] == 3, "the first attempt has failed")
    until(lambda: scraped(job_id)["running"] == 2, "both run")
    figures = scraped(job_id)
    assert {name.removeprefix("ray_fray_job_") for name in figures if name.startswith("ray_")} == {
        "attempts",
        "cpu_seconds",
        "failures",
        "memory_bytes",
        "pending_seconds",
        "preemptions",
    }
    assert (figures["ray_fray_job_attempts"], figures["ray_fray_job_failures"]) == (3, 1)
    assert (figures["ray_fray_job_preemptions"], figures["ray_fray_job_pending_seconds"]) == (0, 0)
    of_gang = {"ray_fray_job_gang_restarts": 1, "ray_fray_job_gang_size": 2}
    until(lambda: of_gang.items() <= scraped(gang_id).items(), "the gang runs, for the second time")
    gate.open()
    joined_cluster.wait([job_id, gang_id], timeout=200, raise_on_failure=True)
    until(
        lambda: {name for name, figure in scraped(job_id).items() if not figure} >= figures.keys(),
        "all are zero",
    )
    until(lambda: not scraped(job_id), "nothing is exported of a job that has ended")
    until(lambda: not scraped(gang_id), "nor of a gang")


def test_the_dashboard_for_grafana_asks_for_what_is_exported() -> None:
    asked = set(re.findall(r"ray_fray_job_(\w+)", PAGE.read_text()))
    assert asked == {
        "attempts",
        "cpu_seconds",
        "failures",
        "gang_restarts",
        "gang_size",
        "memory_bytes",
        "pending_seconds",
        "preemptions",
        "replicas",
    }
    assert json.loads(PAGE.read_text())["uid"] == "fray-jobs"
