"""A replica started as Iris does, by a Python that has no Fray, and a controller for it."""

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from fray import create_cluster
from fray.cluster import Entrypoint, JobRequest, create_environment

ENDED = "fray-replica-ended "
QUIET = "fray-replica-flush"  # for a worker of Iris that reads ahead
PATIENCE = 60.0


class Controller(BaseHTTPRequestHandler):
    """Takes whatever it gets, and knows of nothing."""

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None:
        return


@contextmanager
def serving(controller: type[Controller]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), controller) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def start(address: str, folder: Path, code: str, **fields: Any) -> "subprocess.Popen[str]":
    """Start the first replica of a job as Iris does, with a Python that sees the standard library alone."""
    return run_replica(launch_of(address, folder, code, **fields), address, folder / "task", 0, 2)


def launch_of(address: str, folder: Path, code: str, **fields: Any) -> Any:
    """Return what the launch of a job of this code sends to Iris."""
    (folder / "workspace").mkdir(parents=True, exist_ok=True)
    environment = create_environment(
        folder / "workspace", env_vars=fields.pop("env_vars", {}), pip_packages=fields.pop("packages", [])
    )
    program = fields.pop("program", Entrypoint.from_binary("python", ["-c", code]))
    cluster: Any = create_cluster("iris", controller=address, user="ada")
    return cluster.launch_request(JobRequest("job", program, environment=environment, **fields))


def run_replica(
    made: Any, address: str, work: Path, index: int = 0, attempt: int = 0
) -> "subprocess.Popen[str]":
    """Start an attempt of a replica, both from 0, in a folder of its own."""
    work.mkdir(parents=True)
    for name, data in made.files.items():
        (work / name).write_bytes(data)
    if made.bundle is not None:
        zipfile.ZipFile(io.BytesIO(made.bundle)).extractall(work)  # as Iris's workers do, without modes
    variables = {
        "PATH": os.defpath,
        "IRIS_WORKDIR": str(work),
        "IRIS_TASK_ID": f"{made.request['name']}/{index}:{attempt}",
        "IRIS_CONTROLLER_ADDRESS": address,
        **made.request["environment"]["env_vars"],
    }
    program_of_replica = str(work / "_fray_replica.pyz")
    command = [sys.executable, "-I", "-S", "-u", program_of_replica]
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def ended(
    process: "subprocess.Popen[str]", within: float = PATIENCE
) -> tuple[int, list[str], dict[str, Any]]:
    """Return the exit code of a replica, its lines, and what it says of its end."""
    *lines, last = [line for line in process.communicate(timeout=within)[1].splitlines() if line != QUIET]
    assert last.startswith(ENDED), [*lines, last]
    return process.returncode, lines, json.loads(last.removeprefix(ENDED))
