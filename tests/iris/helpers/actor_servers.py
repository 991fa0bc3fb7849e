"""Iris's actor servers in this process: the jobs of named actors that a fake controller gets are served."""

import io
import json
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from fake_controller import FakeController, Message

from fray_iris._actor_host import ENDPOINT, serve_actor
from fray_iris._actor_line import forget_lines
from fray_iris._in_task.words import PLAN


def answer_of(host: Any, request: Any) -> Any:
    """Be Iris's actor server: call a method, and answer with its value or with its error."""
    try:
        value = getattr(host, request.method_name)(*pickle.loads(request.serialized_args))
    except Exception as raised:
        error = SimpleNamespace(error_type=type(raised).__name__, message=str(raised))
        return SimpleNamespace(HasField=lambda name: True, error=error)
    return SimpleNamespace(HasField=lambda name: False, serialized_value=pickle.dumps(value))


def transport(connect: Any) -> dict[str, ModuleType]:
    """Return the modules of Iris through which actors are called, by their names.

    Args:
        connect: Makes a client, as `ActorServiceClientSync`.
    """
    names = ("iris", "iris.rpc", "iris.rpc.actor_connect", "iris.rpc.actor_pb2")
    made = {name: ModuleType(name) for name in names}
    vars(made["iris.rpc.actor_pb2"])["ActorCall"] = SimpleNamespace
    vars(made["iris.rpc.actor_connect"])["ActorServiceClientSync"] = connect
    return made


class ActorServers:
    """The actors that run, by the names of their jobs."""

    def __init__(self, controller: FakeController) -> None:
        self.controller = controller
        self.hosts: dict[str, Any] = {}
        self.ended = threading.Event()  # one of them, by whatever asked the controller for it

    def launched(self, method: str, request: Message) -> None:
        """Be what comes after each request to the controller."""
        if method == "terminate_job":
            self.ended.set()
        if method == "launch_job" and "/actor-" in request.name:
            files: Mapping[str, bytes] = request.entrypoint.workdir_files
            payload = io.BytesIO(files["_fray_payload.pkl"])
            pickle.load(payload)  # the folders that it imports from
            _, (made, options, label, methods, _, namespace), _ = pickle.load(payload)
            job_context = json.loads(files[PLAN])["environ"]["FRAY_JOB_CONTEXT"]
            self.hosts[request.name] = serve_actor(made, options, label, namespace, job_context)
            self.controller.endpoints[request.name] = Message(
                name=f"{request.name}/{ENDPOINT}",
                address=f"http://{request.name}",
                metadata={"label": label, "methods": json.dumps(methods)},
            )

    def client(self, address: str, **_: Any) -> Any:
        """Be `ActorServiceClientSync`."""
        name = address.removeprefix("http://")
        if self.controller.jobs[name].state != "JOB_STATE_RUNNING":
            raise ConnectionError("its process is gone")
        return SimpleNamespace(call=lambda request: answer_of(self.hosts[name], request))


@contextmanager
def serving(controller: FakeController) -> Iterator[ActorServers]:
    """Serve the named actors whose jobs are launched inside of the block."""
    servers = ActorServers(controller)
    made = transport(servers.client)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    controller.after = servers.launched
    try:
        yield servers
    finally:
        forget_lines()  # the next test has jobs of the same names
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
