"""One replica of a job that brings a Ray cluster along: `python -m fray_ray._on_node.gang_member -- PROGRAM`.

replica 0   the head of the cluster; when all nodes have joined, the program runs here, once
others      a node each, until the program has ended

They meet in a folder of the job's record, which all see. Its token and its ports are this attempt's own, so
that it meets no other Ray on the same hosts. When a node's Ray ends its replica fails, and with it the gang.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from fray.backend import JOB_VARIABLE, USER_SIGNALS, poll_delays, rank_variable_names, replace_file
from fray_ray._on_node.own_files import OwnFiles

if TYPE_CHECKING:
    from fray_ray._on_node.ray_node import RayNode

T = TypeVar("T")
_JOINED_WITHIN = 180.0  # seconds for all nodes to come up
_ENDS_WITHIN = 5.0  # seconds that the program has after SIGTERM when its Ray is gone
_RAY_ENDED = 69  # the exit code of a replica whose Ray ended by itself


class GangMember:
    """The Ray node of one replica.

    Args:
        amounts: What the node has: `cpus`, `memory` in bytes, `gpus`.
    """

    def __init__(self, amounts: Namespace) -> None:
        self._amounts = amounts
        self._rank, self._count = int(os.environ["FRAY_REPLICA_ID"]), int(os.environ["FRAY_REPLICA_COUNT"])
        attempt = os.environ.get("FRAY_ATTEMPT", "1")
        self._folder = Path(os.environ[JOB_VARIABLE]) / "ray" / f"attempt-{attempt}"
        self._own = _own_address(os.environ["FRAY_COORDINATOR_ADDRESS"].rpartition(":")[0])
        self._files: OwnFiles | None = None  # of Ray, on this host
        self._node: RayNode | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._told = False  # to end

    def run(self, program: list[str]) -> int:
        """Run the node, and in replica 0 the program; return the code to end with, a signal's negative."""
        signal.signal(signal.SIGTERM, self._forward)
        try:
            return self._follow() if self._rank else self._lead(program)
        finally:
            self._close()

    # --- replica 0 ---

    def _lead(self, program: list[str]) -> int:
        self._folder.mkdir(mode=0o700, parents=True)
        replace_file(os.fspath(self._folder / "token"), secrets.token_hex(32).encode())
        node = self._start(None)
        replace_file(os.fspath(self._folder / "address"), node.head.encode())
        self._wait_for_nodes(node.head)
        code = self._run(program, node.head)
        replace_file(os.fspath(self._folder / "ended"), str(code).encode())
        return code

    def _wait_for_nodes(self, address: str) -> None:
        from fray_ray._on_node.ray_node import disconnect, nodes_alive

        def all_there() -> bool:
            return nodes_alive(address) >= self._count

        try:
            self._wait(all_there, f"all {self._count} nodes have joined Ray")
        finally:
            disconnect()

    def _run(self, program: list[str], address: str) -> int:
        """Run the program: one, whatever the number of replicas."""
        environ = {name: value for name, value in os.environ.items() if name not in rank_variable_names()}
        environ |= {"FRAY_REPLICA_ID": "0", "FRAY_REPLICA_COUNT": "1"}
        environ |= {"FRAY_CONTEXT_SPEC": "ray", "RAY_ADDRESS": address}
        try:
            self._program = subprocess.Popen(program, env=environ)
        except OSError as error:
            sys.stderr.write(f"could not start {program[0]!r}: {error.strerror}\n")
            return 127
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._program.wait(0.5)
            if not self._told and self._ended_ray():
                self._end_program()
                self._fail()

    def _end_program(self) -> None:
        assert self._program is not None
        self._program.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(_ENDS_WITHIN)
        self._program.kill()

    # --- the others ---

    def _follow(self) -> int:
        self._start(self._wait(lambda: _read(self._folder / "address"), "the head of Ray is up"))
        for pause in poll_delays(longest=0.5):
            ended_ray = self._ended_ray()  # before the look: the head may end at any time after it says so
            if _read(self._folder / "ended"):
                return 0
            if ended_ray:
                self._fail()
            time.sleep(pause)
        raise AssertionError("unreachable: the delays never end")

    # --- the node ---

    def _start(self, head: str | None) -> "RayNode":
        # A node has its own, also where it shares its host: Ray would give two the same socket.
        self._files = OwnFiles()
        os.environ.update(self._variables(self._files.path))  # before the import: Ray reads them then
        from fray_ray._on_node.ray_node import RayNode

        given = self._amounts
        self._node = RayNode(
            self._own, head, files=self._files.path, cpus=given.cpus, memory=given.memory, gpus=given.gpus
        )
        return self._node

    def _variables(self, files: Path) -> dict[str, str]:
        """What Ray's processes and the program need to find and enter this cluster, and no other."""
        found = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": os.fspath(self._folder / "token"),
            "RAY_TMPDIR": os.fspath(files),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if self._own.startswith("127."):
            # Ray turns a loopback address into the machine's own, unless this says that there is only one.
            found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        return found

    def _wait(self, found: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + _JOINED_WITHIN
        for pause in poll_delays(longest=0.5):
            result = found()
            if result:
                return result
            if self._ended_ray():
                self._fail()
            if time.monotonic() >= deadline:
                raise SystemExit(f"not within {_JOINED_WITHIN:g} s: {what}; see {self._folder}")
            time.sleep(pause)
        raise AssertionError("unreachable: the delays never end")

    def _ended_ray(self) -> list[str]:
        return [] if self._node is None else self._node.dead()

    def _fail(self) -> NoReturn:
        ended = ", ".join(self._ended_ray())
        sys.stderr.write(f"the Ray of this node has ended ({ended}): the job's cluster is lost\n")
        raise SystemExit(_RAY_ENDED)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Hand SIGTERM on to the program, which saves; Ray's processes are ended afterwards."""
        self._told = True
        if self._program is None:
            raise SystemExit(128 + number)
        if self._program.poll() is None:
            self._program.send_signal(number)

    def _close(self) -> None:
        if self._node is not None:
            self._node.close()
        if self._files is not None:
            self._files.close()


def _own_address(peer: str) -> str:
    """Return the address of this host by which it reaches a peer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(peer), 9))  # sends nothing
        return str(probe.getsockname()[0])


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def main() -> None:
    """Be the member that this process's variables say."""
    for number in USER_SIGNALS:  # a handler: unlike SIG_IGN it does not outlive exec
        signal.signal(number, lambda *_: None)
    parser = ArgumentParser()
    for name in ("--cpus", "--memory", "--gpus"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("program", nargs="+")
    given = parser.parse_args()
    code = GangMember(given).run(given.program)
    if code < 0:
        if -code != signal.SIGKILL:  # of which there is no other disposition
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
