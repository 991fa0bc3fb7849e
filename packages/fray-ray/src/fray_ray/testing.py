"""A Ray cluster of several nodes on this machine, for tests and for trying things out.

    with LocalRayCluster() as ray_cluster:
        ray_cluster.add_node(num_cpus=4, labels={"ray.io/market-type": "spot"})
        with create_context(f"ray?address={ray_cluster.address}") as context:
            ...

Its nodes are processes of this machine that listen on 127.0.0.1 at ports of their own and keep their
files in a directory of their own; leaving the block ends these processes and no others. Use it from
the main thread: starting a node takes over a signal handler for a moment.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from unittest import mock

import ray
from ray.cluster_utils import Cluster

from fray.backend import HeldPorts, process_tree
from fray_ray._local_ports import await_listener
from fray_ray._ray_internals.agent_ports import agent_ports, await_agent
from fray_ray._ray_internals.local_clusters import (
    KEEPS_LOOPBACK,
    STORE,
    announce_preemption,
    is_rays,
    keeping_loopback,
    nodes_known_alive,
    restart_gcs,
)
from fray_ray._ray_internals.worker_fork_server import start_fork_server
from fray_ray._ray_internals.worker_setup import SETUP_WORKER, SOCKET
from fray_resources import TpuConfig

_NODE: dict[str, Any] = {"object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1"}
# All nodes share this machine: their agents look at its processes seldom, its logs are looked for twice a
# second however few they are, and their workers yield to nobody. What workers write for Ray's list of events
# nobody reads here: every agent reads one file for each worker that there ever was, each two seconds, which
# was most of its work at the end of an hour of tests (748 of 1,300 samples, Ray 2.60, 2026-11-26).
_FOR_ONE_MACHINE = {
    "REPORTER_UPDATE_INTERVAL_MS": "30000",
    "SCAN_EVENT_DIR_INTERVAL_SECONDS": "3600",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "RAY_worker_niceness": "0",
}
_HEAD: dict[str, Any] = {
    "include_dashboard": True,
    "dashboard_port": 0,
    # A killed node refuses each look at once, and is noticed after 1 s instead of 15. One that lives is slow
    # where the machine is busy: Ray waits a minute before it takes it for dead, because a raylet that was
    # taken for dead exits, and with the head's every driver that is connected to it.
    "_system_config": {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 30_000,
        "health_check_failure_threshold": 2,
        "agent_register_timeout_ms": 120_000,
    },
}
# Nodes wait so long for a head that is started again.
_RECONNECT = {"gcs_rpc_server_reconnect_timeout_s": 300}
# Ray keeps one idle worker for each CPU, and each wakes 100 times a second, which is 1 % of a CPU (Ray 2.60,
# 2026-11-26). A forked one is there again in a moment.
_FEW_IDLE_WORKERS = {"num_workers_soft_limit": 0, "idle_worker_killing_time_threshold_ms": 40_000}


class LocalRayCluster:
    """A head node and further nodes, each a set of processes of this machine.

    Args:
        num_cpus: CPUs of the head node; as of every node, what it declares.
        memory: Bytes of memory that the head node declares.
        resources: Further resources of the head node.
        redis: Host and port of a Redis that keeps the head's state; `restart_gcs` and `restart_head` need it.
        fast_workers: Workers start in a third of the time, and end when they were idle for 40 s. False, for
            measurements: as Ray starts and keeps them.
    """

    def __init__(
        self,
        num_cpus: float = 2,
        memory: int = 8 * 2**30,
        resources: Mapping[str, float] | None = None,
        redis: str | None = None,
        *,
        fast_workers: bool = True,
    ) -> None:
        # Short: Ray's sockets are in it, and their paths may have 107 characters.
        self._dir = tempfile.mkdtemp(prefix="fray-", dir="/tmp")
        told = {"RAY_TMPDIR": self._dir, KEEPS_LOOPBACK: "0", "RUNTIME_ENV_RETRY_TIMES": "1"}
        self._environ = mock.patch.dict(os.environ, told | _FOR_ONE_MACHINE)
        self._constant = keeping_loopback()
        self._ports = HeldPorts()  # of its agents, and of a head that returns
        # By slice and rank: the node, and what to make another one of.
        self._slices: dict[str, dict[int, tuple[str, str, float]]] = {}
        self._drained: set[str] = set()
        self._killed: set[str] = set()  # of which Ray may not know yet
        self._added = 0  # nodes beside the head
        self._environ.start()
        self._constant.start()
        os.environ.pop("RAY_ADDRESS", None)  # it would win over every address given in code
        self._redis = redis
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._every_node = {**_NODE, "setup_worker_path": SETUP_WORKER} if fast_workers else _NODE
        self._head: dict[str, Any] = {"num_cpus": num_cpus, "memory": memory}
        self._head["resources"] = dict(resources or {})
        config = _HEAD["_system_config"] | (_FEW_IDLE_WORKERS if fast_workers else {})
        if redis is not None:  # another head has the ports of this one, and is at the address in the Redis
            self._head |= zip(("gcs_server_port", "dashboard_port"), self._ports.take(2), strict=True)
            config |= _RECONNECT
        self._head["_system_config"] = config
        try:
            if fast_workers:
                self._fork_server = start_fork_server(f"{self._dir}/{SOCKET}")
            self._cluster: Any = Cluster()
            self._start_head()
        except BaseException:
            with contextlib.suppress(AttributeError):  # there is none yet
                self._cluster.shutdown()
            self._clean_up()
            raise

    def _start_head(self) -> None:
        store = {} if self._redis is None else {STORE: self._redis}
        with agent_ports(self._ports) as ports, mock.patch.dict(os.environ, store):
            self._cluster.add_node(**{**_HEAD, **self._every_node, **ports, **self._head})
        await_agent(ports)
        if self._redis is not None:  # which has the address of the dashboard before it is there again
            await_listener("Ray's dashboard", self._head["dashboard_port"])

    @property
    def address(self) -> str:
        """Host and port of the head, for `ray?address=...` and `ray.init`."""
        return str(self._cluster.address)

    @property
    def dashboard(self) -> str:
        """The URL of Ray's dashboard, where jobs are submitted."""
        return f"http://{self._cluster.webui_url}"

    def add_node(
        self,
        num_cpus: float = 2,
        memory: int = 8 * 2**30,
        *,
        num_gpus: int = 0,
        gpu_type: str | None = None,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Add a node and return its id; its GPUs are a declared number, not devices."""
        amounts = dict(resources or {})
        if gpu_type is not None:
            amounts[f"accelerator_type:{gpu_type}"] = 1.0
        self._added += 1
        with agent_ports(self._ports) as ports:
            node = self._cluster.add_node(
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                memory=memory,
                resources=amounts,
                labels=dict(labels or {}),
                # Each builds environments in a folder of its own, as on a machine of its own: in one folder
                # the node that comes second takes away what the first has built.
                runtime_env_dir_name=f"runtime_resources_{self._added}",
                include_log_monitor=False,  # the head's reads the logs of all nodes: they are in one folder
                **ports,
                **self._every_node,
            )
        return str(node.node_id)

    def add_slice(self, name: str, type: str = "v5litepod-16", num_cpus: float = 2) -> list[str]:  # noqa: A002
        """Add the hosts of a TPU slice, labelled as Ray labels real ones, and return their ids."""
        return [self.add_host(name, rank, type, num_cpus) for rank in range(TpuConfig(type).hosts)]

    def add_host(self, name: str, rank: int, type: str = "v5litepod-16", num_cpus: float = 2) -> str:  # noqa: A002
        """Add one host of a TPU slice, by its rank in the slice."""
        tpu = TpuConfig(type)
        told = {
            "TPU_NAME": name,
            "TPU_WORKER_ID": str(rank),
            "TPU_ACCELERATOR_TYPE": tpu.type,
            "TPU_TOPOLOGY": tpu.topology,
        }
        with mock.patch.dict(os.environ, told):  # where Ray looks for a TPU, in this process
            node_id = self.add_node(num_cpus, resources={"TPU": tpu.chips_per_host})
        self._slices.setdefault(name, {})[rank] = node_id, type, num_cpus
        return node_id

    def slice_nodes(self, name: str) -> list[str]:
        """Return the ids of the nodes that are the hosts of a slice, by rank; those lost are left out."""
        living = set(self.node_ids())
        hosts = self._slices.get(name, {})
        return [hosts[rank][0] for rank in sorted(hosts) if hosts[rank][0] in living]

    def node_of_host(self, name: str, rank: int) -> str:
        """Return the id of the node that is a host of a slice."""
        return self._slices[name][rank][0]

    def forget_slice(self, name: str) -> None:
        """Kill the hosts of a slice, for good."""
        for node_id in self.slice_nodes(name):
            self.kill_node(node_id)
        del self._slices[name]

    def mend_slices(self) -> None:
        """Give every slice new hosts for those that it lost, and for those that were drained."""
        living = set(self.node_ids())
        for name, hosts in self._slices.items():
            for rank, (node_id, type_, num_cpus) in list(hosts.items()):
                if node_id in living and node_id not in self._drained:
                    continue
                if node_id in living:
                    self.kill_node(node_id)
                self.add_host(name, rank, type_, num_cpus)

    def kill_node(self, node_id: str) -> None:
        """Kill the processes of a node with SIGKILL, as a machine that vanishes.

        For about 1 s Ray does not know, and may place actors there, which then die without having run.
        """
        self._cluster.remove_node(self._node(node_id), allow_graceful=False)
        self._killed.add(node_id)

    def settle(self) -> None:
        """Return when Ray knows of every node that was killed."""
        while self._killed:
            asked = list(self._killed)
            alive = nodes_known_alive(self.address, asked, timeout=30)
            self._killed -= {node_id for node_id, lives in zip(asked, alive, strict=True) if not lives}
            time.sleep(0.05 if self._killed else 0.0)

    def stop_node(self, node_id: str) -> None:
        """End a node with SIGTERM, as a machine that is shut down."""
        self._cluster.remove_node(self._node(node_id), allow_graceful=True)

    def drain_node(self, node_id: str, seconds: float = 60.0) -> None:
        """Announce that a node will be preempted, as a cloud does; Ray starts nothing on it any more.

        Args:
            seconds: How long it is declared to have left; nothing but you ends it then.
        """
        self._node(node_id)
        announce_preemption(self.address, node_id, seconds)
        self._drained.add(node_id)

    def restart_gcs(self) -> None:
        """Kill the head's GCS with SIGKILL, and start another, which reads its state from the Redis."""
        self._check_redis()
        restart_gcs(self._cluster.head_node)

    def restart_head(self) -> None:
        """Kill all processes of the head with SIGKILL, and start another head at its address.

        This process must not be connected to the cluster.
        """
        self._check_redis()
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)
        self._start_head()

    def _check_redis(self) -> None:
        if self._redis is None:
            raise ValueError("the state of this head ends with it: give LocalRayCluster a redis=")

    def node_ids(self) -> list[str]:
        """Return the ids of the nodes, the head's first."""
        nodes = [
            self._cluster.head_node,
            *sorted(self._cluster.worker_nodes, key=lambda node: node.unique_id),
        ]
        return [str(node.node_id) for node in nodes if node is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Disconnect this process and end every process of the cluster."""
        ray.shutdown()
        self._cluster.shutdown()
        self._clean_up()

    def _clean_up(self) -> None:
        if self._fork_server is not None:
            self._fork_server.kill()
            self._fork_server.communicate()
        # A raylet ends the workers that it knows. One that has just started waits minutes for its head.
        process_tree.kill_until_gone(self._workers)
        self._ports.close()
        self._constant.stop()
        self._environ.stop()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _workers(self) -> list[int]:
        """Return what Ray has started for this cluster: not what else this program has started meanwhile."""
        started = process_tree.with_variable("RAY_TMPDIR", self._dir)
        return [pid for pid in started if is_rays(process_tree.command_of(pid), self._dir)]

    def _node(self, node_id: str) -> Any:
        for node in self._nodes():
            if node.node_id == node_id:
                return node
        raise ValueError(f"no node {node_id!r} here; there are {', '.join(self.node_ids())}")

    def _nodes(self) -> Iterator[Any]:
        with contextlib.suppress(AttributeError):
            yield self._cluster.head_node
        yield from self._cluster.worker_nodes
