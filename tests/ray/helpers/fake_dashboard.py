"""A dashboard on loopback that says what a test has it say; behind it is no cluster."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from head_in_memory import HeadInMemory
from serving import serving

NODE = "a-node"
KINDS = (
    ("GET", "/api/version", "version"),
    ("GET", "/api/v0/cluster_metadata", "metadata"),
    ("GET", r"/nodes\?view=summary", "nodes"),
    ("GET", "/api/jobs/", "list"),
    ("GET", "/api/jobs/[^/]+", "entry"),
    ("GET", "/api/jobs/.+/logs", "logs"),
    ("GET", "/api/v0/logs/file.*", "file"),
    ("GET", "/api/packages/.*", "look"),
    ("PUT", "/api/packages/.*", "upload"),
    ("POST", "/api/jobs/", "submit"),
    ("POST", "/api/jobs/.+/stop", "stop"),
    ("DELETE", "/api/jobs/.+", "delete"),
)


class FakeDashboard(ThreadingHTTPServer):
    """Answers as Ray's does, for jobs alone, and takes jobs as their scheduler does.

    `entries` are the job table, by submission; `logs` what drivers have written; `files` other files among
    the logs of the node. `asked` are the paths of all questions, `submitted` the jobs that came to Ray,
    `queued` those that came to the scheduler, by submission, `stored` what the head was given to keep. A job
    is refused until `agent_after` submissions have come. `nodes_at_first` is what it says of nodes before it
    says `nodes`. `before_a_package` is called when somebody asks whether one is there; it may return the
    status of the answer. So many answers are `cut` off. Ray's own reader reads no log where `garbled`. A
    removal is refused where it is of a submission in `kept`. `python` is the version of the cluster's.
    `instead` are the status, the body and the headers of the answers to requests of one kind, which are
    granted nevertheless; `KINDS` names the kinds.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.entries: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.nodes: Any = {"data": {"summary": [{"ip": "127.0.0.1", "raylet": {"state": "ALIVE"}}]}}
        self.nodes_at_first: list[Any] = []
        self.asked: list[str] = []
        self.submitted: list[dict[str, Any]] = []
        self.queued: dict[str, dict[str, Any]] = {}
        self.refused = 0
        self.stored: dict[str, bytes] = {}
        self.agent_after = 0
        self.takes_jobs = True
        self.fetched = 0  # characters of logs that were given
        self.before_a_log: Callable[[], None] = lambda: None  # is given
        self.before_a_package: Callable[[], int | None] = lambda: None
        self.python: str | None = None
        self.odd: list[Any] = []  # rows of the job table that are no entries
        self.cut = 0
        self.garbled = False
        self.kept: set[str] = set()
        self.instead: dict[str, tuple[int, bytes, dict[str, str]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, submission: str, status: str, metadata: dict[str, str], **more: Any) -> None:
        """Put an entry into the job table."""
        self.entries[submission] = {
            "type": "SUBMISSION",
            "submission_id": submission,
            "status": status,
            "entrypoint": "true",
            "metadata": metadata,
            "driver_node_id": NODE,
            **more,
        }

    def answer(self, path: str) -> tuple[int, Any]:
        """Return the status, and a body: what JSON can hold, or text."""
        parts = urlsplit(path)
        words = parts.path.strip("/").split("/")
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0", "version": "4"}
        if path == "/api/v0/cluster_metadata" and self.python is not None:
            return 200, {"result": True, "data": {"pythonVersion": self.python, "rayVersion": "2.60.0"}}
        if path == "/nodes?view=summary":
            return 200, self.nodes_at_first.pop(0) if self.nodes_at_first else self.nodes
        if path == "/api/jobs/":
            return 200, [*self.entries.values(), *self.odd]
        if self.garbled and words[-1] == "logs":
            return 500, "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"
        if words[:2] == ["api", "jobs"] and words[2] in self.entries:
            return 200, {"logs": self._given(self._log(words[2]))} if words[3:] else self.entries[words[2]]
        if words[:3] == ["api", "packages", "gcs"]:
            return self.before_a_package() or (200 if parts.path in self.stored else 404), ""
        if parts.path == "/api/v0/logs/file":
            return self._file(**{name: values[0] for name, values in parse_qs(parts.query).items()})
        return 404, f"nothing is at {path}"

    def _log(self, submission: str) -> str:
        self.before_a_log()
        return self.logs.get(submission, "")

    def _file(self, node_id: str, filename: str, lines: str) -> tuple[int, Any]:
        self.before_a_log()
        of_drivers = {f"job-driver-{submission}.log": text for submission, text in self.logs.items()}
        found = {**of_drivers, **self.files}
        if node_id != NODE or filename not in found:
            return 404, f"no {filename}"
        text, count = found[filename], int(lines)
        return 200, self._given(text if count < 0 else "".join(text.splitlines(keepends=True)[-count:]))

    def _given(self, text: str) -> str:
        self.fetched += len(text)
        return text

    def store(self, path: str, data: bytes) -> None:
        """Keep bytes; a job that is queued has an entry then."""
        self.stored[path] = data
        name = path.rpartition("/")[2]
        if name.endswith(".queued") and data != b"-" and self.takes_jobs:
            submission = name.removeprefix("fray-").removesuffix(".queued")
            self.queued[submission] = json.loads(data)
            self.add(submission, "PENDING", self.queued[submission]["metadata"])

    def submit(self, job: dict[str, Any]) -> tuple[int, Any]:
        """Take a job, or say that no agent is there to run it."""
        if self.refused + 1 < self.agent_after:
            self.refused += 1
            return 500, "No available agent to submit job, please try again later."
        self.submitted.append(job)
        self.add(job["submission_id"], "SUCCEEDED", {})
        return 200, {"job_id": job["submission_id"], "submission_id": job["submission_id"]}

    def remove(self, submission: str) -> None:
        """Forget a job."""
        self.entries.pop(submission, None)


class DashboardOfHead(FakeDashboard):
    """The dashboard of a head whose store is in memory: a scheduler on that store takes the jobs.

    Where it `forgets_packages`, one that was looked at is gone after that, as from Ray ten minutes
    later.
    """

    def __init__(self, head: HeadInMemory) -> None:
        super().__init__()
        self.head = head
        self.forgets_packages = False

    def answer(self, path: str) -> tuple[int, Any]:
        """Answer with what the head has now."""
        entries = self.head.entries()
        self.entries = {name: {**entry, "submission_id": name} for name, entry in entries.items()}
        self.stored = {f"/api/packages/gcs/{name}": data for name, data in self.head.packages.items()}
        if self.forgets_packages and path in self.stored:
            self.head.remove(path.rpartition("/")[2])
        return super().answer(path)

    def store(self, path: str, data: bytes) -> None:
        """Keep bytes in the head's store."""
        self.head.put(path.rpartition("/")[2], data)

    def submit(self, job: dict[str, Any]) -> tuple[int, Any]:
        """Have a job run that never connects to its scheduler."""
        self.submitted.append(job)
        self.head.add_entry(job["submission_id"], {"status": "RUNNING", "metadata": job["metadata"]})
        return 200, {"job_id": job["submission_id"], "submission_id": job["submission_id"]}

    def remove(self, submission: str) -> None:
        """Forget a job."""
        self.head.remove_entry(submission)


class _Handler(BaseHTTPRequestHandler):
    server: FakeDashboard

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self._answer(*self.server.answer(self.path))

    def do_PUT(self) -> None:
        self.server.store(self.path, self._body())
        self._answer(200, "")

    def do_POST(self) -> None:
        if self.path.endswith("/stop"):
            submission = self.path.split("/")[-2]
            if submission in self.server.entries:
                self.server.entries[submission]["status"] = "STOPPED"
            self._answer(200, {"stopped": True})
        else:
            self._answer(*self.server.submit(json.loads(self._body())))

    def do_DELETE(self) -> None:
        submission = self.path.rpartition("/")[2]
        if submission in self.server.kept:
            self._answer(500, "RuntimeError: Request failed with status code 500: it has not ended.")
            return
        self.server.remove(submission)
        self._answer(200, {"deleted": True})

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        headers: dict[str, str] = {}
        for method, path, kind in KINDS:
            if method == self.command and re.fullmatch(path, self.path) and kind in self.server.instead:
                status, data, headers = self.server.instead[kind]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.server.cut > 0
        self.server.cut -= cut
        self.wfile.write(data[: len(data) // 2] if cut else data)


def fake_dashboard(head: HeadInMemory | None = None) -> AbstractContextManager[FakeDashboard]:
    """Return one that ends with the block: without a cluster, or that of a head in memory."""
    return serving(FakeDashboard() if head is None else DashboardOfHead(head))
