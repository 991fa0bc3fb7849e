"""A whole Iris in one process: `python local_iris.py`, which says its address and lives until its stdin ends.

A controller, two workers for CPUs, two with GPUs in a pool that takes gangs, the hosts of a TPU slice, and
two slices of another type of which one may be lost: all threads of this process, which start tasks as
processes.
What a line on stdin asks is done:

    kill NAME    end a worker without a word, and what it runs, as a machine that is gone does
"""

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

WORKERS = {"cpus": 2, "gpus": 2, "slice": 4, "spare": 4}
PATIENCE = 60.0
LISTENS = threading.Event()


def config() -> Any:
    """The groups of workers, each of one kind."""
    from iris.cluster.config import make_local_config
    from iris.rpc import config_pb2

    cpu, gpu, tpu = (getattr(config_pb2, f"ACCELERATOR_TYPE_{kind}") for kind in ("CPU", "GPU", "TPU"))
    found = config_pb2.IrisClusterConfig()
    add_group(found, "cpus", cpu, slices=2, pool="cpus", region="here")
    add_group(found, "gpus", gpu, hosts=2, variant="H100", count=64, pool="gpus")
    add_group(found, "slice", tpu, hosts=4, variant="v5litepod-16", count=4)
    # Of a type that nothing but the training asks for. A group that lost a slice younger than five minutes
    # makes none for five minutes (`SHORT_LIVED_SLICE_THRESHOLD` and `DEFAULT_BACKOFF_INITIAL`, which no
    # configuration says otherwise), so that the one that takes over is there from the start.
    add_group(found, "spare", tpu, slices=2, more=0, hosts=2, variant="v4-16", count=4)
    return make_local_config(found)


def add_group(
    config: Any,
    name: str,
    kind: int,
    *,
    slices: int = 1,
    more: int = 8,
    hosts: int = 1,
    variant: str = "",
    count: int = 0,
    pool: str = "",
    region: str = "",
) -> None:
    """Add a group of workers that are there from the start, and of which Iris may make more."""
    from iris.rpc import config_pb2

    group = config_pb2.ScaleGroupConfig(
        name=name,
        buffer_slices=slices,
        max_slices=slices + more,
        num_vms=hosts,
        scale_up_rate_limit=1000,
        resources=config_pb2.ScaleGroupResources(
            cpu_millicores=64_000,
            memory_bytes=256 << 30,
            disk_bytes=1 << 40,
            device_type=kind,
            device_variant=variant,
            device_count=count,
        ),
    )
    if kind:
        group.slice_template.accelerator_type = kind
        group.slice_template.accelerator_variant = variant
        group.slice_template.num_vms = hosts
    if region:
        group.slice_template.gcp.zone = f"{region}-a"  # Iris plans by the zone, and places by the attribute
    for attribute, value in (("pool", pool), ("region", region)):
        if value:
            group.worker.attributes[attribute] = value
    config.scale_groups[name].CopyFrom(group)


def main() -> None:
    """Start it, say where it is, and do what is asked."""
    logging.basicConfig(level=logging.WARNING)  # Iris itself sends its log to its own log server alone
    from iris.cluster.providers.local.cluster import LocalCluster

    begin_workers_when_it_listens()
    cluster = LocalCluster(config())
    address = cluster.start()
    try:
        if not LISTENS.wait(PATIENCE):
            raise TimeoutError("the controller does not listen")
        await_workers(address)
        print(json.dumps({"address": address}), flush=True)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            answer = {"kill": kill}.get(word, unknown)(rest)
            print(json.dumps(answer), flush=True)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        threading.Timer(10.0, os._exit, [1]).start()  # a thread of Iris's that does not end holds up nobody
        cluster.close()
        os._exit(0)


def begin_workers_when_it_listens() -> None:
    """Hold up the workers until the controller listens.

    Iris begins both at once. A worker that does not reach the controller fails with its slice, of whose group
    Iris then makes no other for five minutes.
    """
    from iris.cluster.controller.controller import Controller

    begin = Controller._run_autoscaler_loop

    def begin_later(self: Any, stop_event: threading.Event) -> None:
        while not self._server.started and not stop_event.wait(0.02):
            continue
        LISTENS.set()
        begin(self, stop_event)

    Controller._run_autoscaler_loop = begin_later


def await_workers(address: str) -> None:
    """Wait until every group has its workers: one that begins ends what it was given before."""
    from iris.rpc.controller_connect import ControllerServiceClientSync
    from iris.rpc.controller_pb2 import Controller

    client = ControllerServiceClientSync(address=address, timeout_ms=30_000)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        workers = client.list_workers(Controller.ListWorkersRequest()).workers
        found = [
            name
            for name in WORKERS
            for worker in workers
            if worker.healthy and f"-{name}-" in worker.worker_id
        ]
        if len(found) >= sum(WORKERS.values()):
            return
        time.sleep(0.5)
    raise TimeoutError(f"not all workers came: {found}")


def unknown(name: str) -> dict[str, Any]:
    """Nothing else is done."""
    return {"error": "there is kill alone"}


def kill(name: str) -> dict[str, Any]:
    """End a worker: it answers nobody any more, and its processes are gone."""
    import gc

    from iris.cluster.worker.worker import Worker
    from rigging.timing import Deadline

    for worker in [each for each in gc.get_objects() if isinstance(each, Worker)]:
        if worker._worker_id == name:
            for attempt in list(worker._tasks.values()):
                process = getattr(getattr(attempt._container_handle, "_container", None), "_process", None)
                if process is not None and process.poll() is None:
                    os.killpg(process.pid, signal.SIGSTOP)
            worker._heartbeat_deadline = Deadline.from_seconds(3600)  # or it would come back
            worker._server.should_exit = True
            return {"killed": name}
    return {"error": f"no worker {name!r}"}


if __name__ == "__main__":
    main()
