"""The actor that runs a replica on its node: a fresh process per attempt, its output held for the scheduler.

The actor of a job outlives the scheduler: another one takes it up. One that nobody asks for a time ends its
attempt, gives back the room and ends.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group

from fray.backend import (
    HOST_ADDRESS,
    NOTICE_VARIABLE,
    HeldPorts,
    free_ports,
    port_variable,
    readable,
    replace_file,
    runner,
)
from fray_ray._on_node.memory_file import memory_files
from fray_ray._on_node.notices import NoticeWatch
from fray_ray._on_node.outbox import Outbox
from fray_ray._on_node.replica_file import replica_file
from fray_ray._on_node.usage_samples import NewSamples
from fray_ray._on_node.verdict import verdict_in
from fray_ray._placement import VARIABLE, current_placement_group
from fray_ray._ray_internals.environment import ADDRESS, is_of_one_process

_RUNNER = runner.__file__
_NOTICE = "preemption-notice"
_SUPERVISOR = (
    "import sys; sys.path[:] = sys.argv[1:]; from fray_ray._on_node.process_supervisor import main; main()"
)
_CHUNK = 1 << 16
_LOOK = 1.0  # seconds between looks for a notice, and for what the attempt uses
_TIME_TO_SAVE = 5.0  # seconds from SIGTERM to SIGKILL for a host of a gang whose node is being ended
_JAX, _OMP = "JAX_PLATFORMS", "OMP_NUM_THREADS"


class ReplicaActor:
    """Several calls run at a time: the `next` of a scheduler, that of one that was killed, `stop`.

    Args:
        lease: Seconds after which an actor that was not asked ends; None for one that ends with its
            program.
    """

    def __init__(self, lease: float | None = None) -> None:
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._stopped: float | None = None
        self._private: str | None = None  # the attempt's own folder
        self._outbox = Outbox()
        self._keeping: threading.Thread | None = None
        self._starting = threading.Lock()
        self._time_to_save = 0.0
        self._asked = time.monotonic()
        if lease is not None:
            threading.Thread(target=self._watch_lease, args=(lease,), name="lease", daemon=True).start()

    def node_id(self) -> str:
        """Return the id of the node; that it answers shows that the environment is built."""
        self._asked = time.monotonic()
        return str(ray.get_runtime_context().get_node_id())

    def start(self, plan: dict[str, Any], payload: bytes | None) -> None:
        """Start the attempt; what it has to say is there by `next`."""
        self._asked = time.monotonic()
        with self._starting:
            if self._keeping is not None:  # by the call of a scheduler that was killed
                return
            self._time_to_save = orphan_grace(gang=plan["gang"])
            self._keeping = threading.Thread(
                target=self._keep, args=(plan, payload), name="attempt", daemon=True
            )
            self._keeping.start()

    def take_up(self, scheduler_number: int) -> tuple[bool, int, Any]:
        """Return whether the attempt was started, and what of it was confirmed, with the note of that.

        Args:
            scheduler_number: That of the one that asks; those with lower ones get no events from now on.
        """
        self._asked = time.monotonic()
        return self._keeping is not None, *self._outbox.take_up(scheduler_number)

    def next(
        self, scheduler_number: int, position: int, note: Any, timeout: float
    ) -> list[bytes | str | dict[str, Any]]:
        """Confirm what there is up to a position; return what follows it, at the latest after the timeout.

        What follows: the ports of the attempt, its output as bytes, notices as text, at last the verdict. Now
        and then `{"samples": …}` says what it has used until now.
        """
        self._asked = time.monotonic()
        return self._outbox.after(scheduler_number, position, note, timeout)

    def ended(self) -> None:
        """Return when the attempt has ended, if one was started."""
        self._outbox.overflow()
        if self._keeping is not None:
            self._keeping.join()

    def _keep(self, plan: dict[str, Any], payload: bytes | None) -> None:
        held = HeldPorts()
        try:
            ports = dict(zip(plan["ports"], held.take(len(plan["ports"])), strict=True))
            if ports:
                self._outbox.add({"ports": ports})
            for event in self._run(plan, payload, ports):
                self._outbox.add(event)
        except Exception as error:  # noqa: BLE001 - who asks for the next event must not wait for ever
            self._outbox.add({"lost": f"its process could not be kept: {error!r}"})
        finally:
            held.close()
            if self._private is not None:  # its process supervisor has removed it, unless it was killed
                shutil.rmtree(self._private, ignore_errors=True)

    def _watch_lease(self, lease: float) -> None:
        while time.monotonic() - self._asked < lease:
            time.sleep(min(1.0, lease / 4))
        self._outbox.overflow()
        self.stop(self._time_to_save)
        if self._keeping is not None:
            self._keeping.join(self._time_to_save + _TIME_TO_SAVE)
        group = current_placement_group()
        if group is not None:
            with contextlib.suppress(Exception):  # the head is gone too
                remove_placement_group(group)
        os._exit(1)

    def _run(
        self, plan: dict[str, Any], payload: bytes | None, ports: dict[str, int]
    ) -> Iterator[bytes | str | dict[str, Any]]:
        returns = payload is not None and plan["returns"]
        with memory_files(payload, b"" if returns else None) as files:
            told = self._complete(plan, files, ports)
            started = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SUPERVISOR, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                # Ray signals the worker's group to end the worker, which lives long enough to say that the
                # attempt was lost, and not why.
                start_new_session=True,
                pass_fds=[file for file in files if file is not None],
            )
        with started:
            assert started.stdout is not None
            assert started.stderr is not None
            _tell(started, json.dumps(told))  # before `stop` of another thread has anybody to tell
            self._supervisor = started
            if self._stopped is not None:
                _tell(started, f"stop {self._stopped}")
            watch = NoticeWatch() if plan["watches"] else None
            used, file = NewSamples(told["private"]), replica_file(plan)
            output, words = started.stdout.fileno(), started.stderr.fileno()
            verdict, open_ = b"", [output, words]
            while open_:  # a program may end its output long before it ends
                for each in readable(open_, _LOOK):
                    chunk = os.read(each, _CHUNK)
                    if not chunk:
                        open_.remove(each)
                    if each == words:
                        verdict += chunk
                        continue
                    file.feed(chunk)
                    if chunk:
                        yield chunk
                if watch is not None and (notice := watch.take()):
                    yield notice
                if samples := used.take():
                    yield {"samples": samples}
        yield verdict_in(verdict.decode(errors="replace"), started.returncode)

    def free_ports(self, count: int) -> list[int]:
        """Return different ports on which nobody listens on this node now."""
        return free_ports(count)

    def stop(self, grace: float, goes_at: float | None = None) -> None:
        """End the attempt that runs, or will.

        Args:
            goes_at: When its node goes, where that is the reason. `fray.job.preemption_notice` reads it, and
                has it before the signal.
        """
        if goes_at is not None and self._private is not None:
            with contextlib.suppress(OSError):  # the attempt has ended
                replace_file(f"{self._private}/{_NOTICE}", str(goes_at).encode())
        self._stopped = grace
        if self._supervisor is not None:
            _tell(self._supervisor, f"stop {grace}")

    def _complete(
        self, plan: dict[str, Any], files: tuple[int | None, ...], ports: dict[str, int]
    ) -> dict[str, Any]:
        """Fill in what only this node knows: the interpreter, the variables, the attempt's open files."""
        python = sys.executable
        private = self._private = tempfile.mkdtemp(prefix="fray-")
        payload, result = files
        if payload is not None:
            command = [python, _RUNNER, *(f"fd:{file}" for file in files if file is not None)]
        else:
            program, *words = plan["command"]
            command = [python if program in ("python", "python3") else program, *words]
        environ = _environ(plan, python) | {
            NOTICE_VARIABLE: f"{private}/{_NOTICE}",
            HOST_ADDRESS: str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]
            **{port_variable(name): str(port) for name, port in ports.items()},
        }
        return {
            "command": command,
            "cwd": plan["cwd"] or os.fspath(Path.cwd()),
            "environ": environ,
            "private": private,
            "payload": payload,
            "result": result,
            "orphan_grace": orphan_grace(gang=plan["gang"]),
        }


def orphan_grace(*, gang: bool) -> float:
    """Return the seconds from SIGTERM to SIGKILL for a program whose actor has ended."""
    return _TIME_TO_SAVE if gang else 0.0


def _tell(supervisor: "subprocess.Popen[bytes]", line: str) -> None:
    assert supervisor.stdin is not None
    try:
        supervisor.stdin.write(line.encode() + b"\n")
        supervisor.stdin.flush()
    except (BrokenPipeError, ValueError):  # it has ended meanwhile
        return


def _environ(plan: dict[str, Any], python: str) -> dict[str, str]:
    environ = {
        name: value
        for name, value in os.environ.items()
        # The platform's word on several slices is not the gang's, which says its own where there are some.
        if not is_of_one_process(name) and not name.startswith("MEGASCALE_")
    }
    folder = os.fspath(Path(python).parent)
    environ["PATH"] = os.pathsep.join([folder, environ.get("PATH") or os.defpath])
    if sys.prefix != sys.base_prefix:
        environ["VIRTUAL_ENV"] = sys.prefix
    environ["PYTHONUNBUFFERED"] = "1"
    environ[ADDRESS] = ray.get_runtime_context().gcs_address
    if not plan["accelerated"]:
        environ[_JAX] = "cpu"  # so that importing JAX does not claim what was not asked for
    elif environ.get(_JAX) == "cpu":
        del environ[_JAX]
    # What Ray says to an actor that holds no CPU; the replica has those of its place.
    if environ.get(_OMP) == "1":
        environ[_OMP] = str(max(1, int(plan["cpus"])))
    group = current_placement_group()
    if group is not None:
        environ[VARIABLE] = group.id.hex()
    environ.update(plan["environ"])
    return environ
