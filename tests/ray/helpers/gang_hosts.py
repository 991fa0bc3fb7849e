"""What the hosts of a test's gang do, how the test talks to them, and what is left of them in Ray."""

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ray as typed_ray
from ray._private.state import state
from ray.util import placement_group_table

from fray.backend import process_tree
from fray.cluster import Entrypoint
from fray.job import preemption_notice
from fray.testing.cluster import until

ray: Any = typed_ray
_TOLD = ("FRAY_", "MEGASCALE_", "JAX_", "TPU_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


def host(folder: Path) -> str:
    """Note that it is up, then do what the test orders, until the test lets all go."""
    rank, pid = os.environ["FRAY_REPLICA_ID"], os.getpid()

    def save(*_: Any) -> None:
        (folder / f"saved-{rank}").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    told = {name: value for name, value in os.environ.items() if name.startswith(_TOLD)}
    me = process_tree.identify(pid)
    assert me is not None
    told |= {"pid": str(pid), "started": str(me.started)}
    draft = folder / f"draft-{pid}"
    draft.write_text(json.dumps(told))
    draft.rename(folder / f"up-{pid}")
    while not (folder / "go").exists():
        order = folder / f"order-{rank}"
        with contextlib.suppress(FileNotFoundError):  # there is none, or it was withdrawn
            what = order.read_text()
            if what == "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            elif what == "heed":
                _heed(folder / f"saved-{rank}", obeys=order.unlink)
            order.unlink()
            _obey(what)
        time.sleep(0.01)
    return f"done by {rank}"


def _obey(what: str) -> None:
    if what == "raise":
        raise ValueError("out of luck")
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)


def _heed(saved: Path, obeys: Callable[[], None]) -> NoReturn:
    """Wait for the notice and the SIGTERM that comes with it; note when the host goes, and end.

    The trace has the time of each step, and where the program is after that, for a test that fails.

    Args:
        obeys: Called once it would take a signal.
    """
    trace = saved.with_name("trace").open("a", buffering=1)

    def note(step: str) -> None:
        trace.write(f"{time.time():.2f} {step}\n")

    atexit.register(note, "leaves")
    faulthandler.dump_traceback_later(15, repeat=True, file=trace)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # From here on SIGTERM does not end it where there is a notice.
    notice, on_sigterm, signals = preemption_notice(), signal.getsignal(signal.SIGTERM), []
    assert callable(on_sigterm)

    def take(number: int, frame: Any) -> None:
        note("SIGTERM")
        signals.append(notice.is_set())
        on_sigterm(number, frame)

    signal.signal(signal.SIGTERM, take)
    note("heeds")
    obeys()
    assert notice.wait(200)
    note("has its notice")
    until(lambda: signals, "SIGTERM comes with it")
    assert signals == [True], "the notice came after its SIGTERM"
    assert notice.seconds_left is not None
    draft = saved.with_name(f"draft-{os.getpid()}")
    draft.write_text(str(time.time() + notice.seconds_left))
    draft.rename(saved)
    note("has saved")
    sys.exit(0)


def lives(told: Mapping[str, str]) -> bool:
    """Whether a host still runs, by what it told: its number may be another process's or thread's by now."""
    found = process_tree.identify(int(told["pid"]))
    return found is not None and str(found.started) == told["started"]


class Hosts:
    """The hosts of one gang, as a test sees them: through a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def entrypoint(self) -> Entrypoint:
        return Entrypoint.from_callable(host, [self.folder])

    def living(self) -> dict[int, dict[str, str]]:
        """The variables of those that run now, by rank."""
        return {int(told["FRAY_REPLICA_ID"]): told for told in self._told() if lives(told)}

    def pids(self) -> list[int]:
        """All that there ever were."""
        return [int(told["pid"]) for told in self._told()]

    def _told(self) -> list[dict[str, str]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("up-*")]

    def await_up(self, count: int) -> dict[int, dict[str, str]]:
        def all_up() -> dict[int, dict[str, str]]:
            return living if len(living := self.living()) == count else {}

        return until(all_up, f"{count} hosts run")

    def saved(self) -> set[int]:
        """The ranks of those that had SIGTERM, and time to note it."""
        return {int(path.name.removeprefix("saved-")) for path in self.folder.glob("saved-*")}

    def goes_at(self, rank: int) -> float:
        """The time at which a host goes, as its notice said; of one that had the order to `heed` it."""
        return float((self.folder / f"saved-{rank}").read_text())

    def trace(self) -> str:
        """What the host that had the order to `heed` its notice did, and when."""
        return (self.folder / "trace").read_text()

    def order(self, rank: int, what: str) -> None:
        """Have a host `raise`, `crash`, be `deaf` to SIGTERM, or `heed` the notice that its host goes."""
        draft = self.folder / "draft"
        draft.write_text(what)
        draft.rename(self.folder / f"order-{rank}")

    def await_obeyed(self, rank: int) -> None:
        """Wait until a host has taken its order, and is deaf where it is to be."""
        until(lambda: not (self.folder / f"order-{rank}").exists(), f"host {rank} obeys")

    def withdraw(self, rank: int) -> None:
        """Take back an order that nobody has obeyed."""
        (self.folder / f"order-{rank}").unlink(missing_ok=True)

    def go(self) -> None:
        """Let all finish."""
        (self.folder / "go").touch()


def left_in_ray() -> list[str]:
    """What jobs have left: placement groups, actors, TPU chips that are not free."""
    groups = placement_group_table().items()
    found = [f"group {name}" for name, group in groups if group["state"] != "REMOVED"]
    actors = state.actor_table(None, None, "ALIVE").values()
    found += [f"actor {actor['ActorID']}" for actor in actors if actor["ActorClassName"] == "ReplicaActor"]
    total, free = ray.cluster_resources(), ray.available_resources()
    if total.get("TPU", 0) != free.get("TPU", 0):
        found.append(f"TPUs: {free.get('TPU', 0)} of {total['TPU']} free")
    return found


def pending_groups() -> list[str]:
    """The placement groups that wait for room."""
    return [name for name, group in placement_group_table().items() if group["state"] == "PENDING"]


def pids_of_replicas() -> list[int]:
    """The processes of the actors that run replicas now."""
    return list(nodes_of_replicas())


def nodes_of_replicas() -> dict[int, str]:
    """The node of each of these processes, as Ray knows it."""
    actors = state.actor_table(None, None, "ALIVE").values()
    replicas = [actor for actor in actors if actor["ActorClassName"] == "ReplicaActor"]
    return {actor["Pid"]: actor["Address"]["NodeID"] for actor in replicas}


def slices_in_use() -> set[str]:
    """The names of the slices that a placement group is on."""
    names = {node["NodeID"]: node["Labels"].get("ray.io/tpu-slice-name") for node in ray.nodes()}
    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    return {names[node] for group in groups for node in group["bundles_to_node_id"].values()}
