"""Tests and benchmarks use Fray by its doors: what a user or an author of a backend can import."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py")]
)
# A private module or name of ours: in an import, an attribute, the text of a program, or what is patched.
PRIVATE = re.compile(r"\bfray(?:_[a-z]+)?(?:\.[a-z]\w*)*\._[a-z]\w*")
NAMEDTUPLE = {"_asdict", "_fields", "_make", "_replace"}
NOTEBOOK = {"_repr_html_"}
OTHERS = {"os": {"_exit"}, "sys": {"_current_frames", "_getframe"}}

# Why a file may name private modules.
MODULES = {
    "benchmarks/ray_head.py": "a thousand jobs that ended are written, not run",
    "benchmarks/ray_loop_model.py": "the scheduler runs on a made-up cluster that counts what it is asked",
    "benchmarks/ray_scheduler_model.py": "it drives the rule of the line on a made-up cluster",
    "tests/core/test_import.py": "it tells which rooms an import loads",
    "tests/iris/helpers/actor_servers.py": "the server of an actor, which no test here has in a job of Iris",
    "tests/iris/test_actor_calls.py": "both sides of an actor's calls; no test here has Iris between them",
    "tests/iris/test_peers.py": "ten minutes of waiting, on a clock of its own",
    "tests/ray/helpers/head_in_memory.py": "a scheduler on a store that fails when a test wants it to",
    "tests/ray/helpers/replicas_in_memory.py": "calls of Ray that fail when a test wants them to",
    "tests/ray/helpers/room_in_memory.py": "nodes and placement groups that change at a chosen moment",
    "tests/ray/test_futures.py": "a finalizer on Ray's own thread, which the collector chooses",
    "tests/ray/test_head_away.py": "a head that is away in one instant of a job, which is chosen",
    "tests/ray/test_head_store.py": "what a scheduler does with a store that others left half done",
    "tests/ray/test_hostile_answers.py": "calls that would wait a minute or two for a better answer",
    "tests/ray/test_installing.py": "what pip and uv say when they fail, which takes Ray a minute each",
    "tests/ray/test_interrupted_pod.py": "an interrupt in the instant before a gang has begun",
    "tests/ray/test_job_metrics.py": "counts of many attempts, each of which takes a second to run",
    "tests/ray/test_job_process.py": "a signal that comes between two lines of the process",
    "tests/ray/test_launch_keys.py": "launchers and schedulers that end, or come, in one instant",
    "tests/ray/test_line.py": "a model of the order among gangs: schedules of many jobs, drawn at random",
    "tests/ray/test_notices.py": "a notice that comes between two steps of what takes it",
    "tests/ray/test_reservations.py": "places that are found, and calls that fail, at a chosen moment",
    "tests/ray/test_ray_internals.py": "each call of Ray's that is not public",
    "tests/ray/test_replica_file.py": "output that is cut at any byte, drawn at random",
    "tests/ray/test_small_entries.py": "what is written of hundreds of attempts, which take an hour to run",
    "tests/ray/test_taking_up.py": "what a scheduler leaves when it is killed in one instant",
    "tests/ray/test_verdicts.py": "a kill between two bytes that a process writes, and one at its end",
    "tests/slurm/test_on_node.py": "a node's part of a step: signals and files that come at a chosen moment",
}
# Why a file may use private attributes of others, and which.
ATTRIBUTES: dict[str, tuple[set[str], str]] = {
    "benchmarks/ray_head.py": (
        {"_internal_kv_get", "_internal_kv_list", "_internal_kv_put"},
        "Ray's: a thousand jobs that ended are copied, not run",
    ),
    "tests/core/test_backend_actors.py": ({"_future"}, "what a context's author implements"),
    "tests/docs/test_kubernetes.py": ({"_stop"}, "what a cluster's author implements"),
    "tests/iris/helpers/local_iris.py": (
        {
            "_container_handle",
            "_heartbeat_deadline",
            "_run_autoscaler_loop",
            "_server",
            "_tasks",
            "_worker_id",
        },
        "Iris has no public way to lose a worker, or to begin them when its controller listens",
    ),
    "tests/queue/test_file.py": ({"_done"}, "a crash between two requests"),
    "tests/queue/test_file_batches.py": (
        {"_enter", "_store"},
        "files that are damaged, or of an older release",
    ),
    "tests/queue/test_file_cleanup.py": ({"_store"}, "the files that are left"),
    "tests/queue/test_file_requests.py": ({"_store"}, "a crash at each request"),
    "tests/queue/test_http.py": ({"_name"}, "a second client of the same queue"),
    "tests/queue/test_http_options.py": ({"_name"}, "a second client of the same queue"),
    "tests/queue/test_http_security.py": ({"_headers"}, "a client that lies"),
    "tests/queue/test_memory.py": (
        {"_line", "_live", "_lock", "_timers"},
        "what is kept; a lock at a fork",
    ),
    "tests/queue/test_sqlite.py": (
        {"_fdatasync", "_opened", "_store"},
        "a full disk; a lock at a fork",
    ),
    "tests/ray/helpers/head_store.py": (
        {"_internal_kv_get", "_internal_kv_list", "_internal_kv_put"},
        "Ray's: all that the head's store holds",
    ),
    "tests/ray/test_line.py": ({"_let_go_in_time"}, "two minutes of waiting, on a clock of its own"),
    "tests/ray/test_requests.py": ({"_gpu_name_to_accelerator_type"}, "Ray's own, which ours has to equal"),
}


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def private_names(path: Path) -> Iterator[str]:
    text = path.read_text()
    yield from PRIVATE.findall(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0].startswith("fray"):
            yield from (alias.name for alias in node.names if re.match(r"_[a-z]", alias.name))


def private_attributes(path: Path) -> Iterator[str]:
    """Yield the private attributes that a file uses of what is not its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or not re.match(r"_[a-z]", node.attr):
            continue
        owner = ast.unparse(node.value)
        own = owner in ("self", "cls", "super()") or (owner in OTHERS and node.attr in OTHERS[owner])
        if not own and node.attr not in NAMEDTUPLE | NOTEBOOK:
            yield node.attr


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_private_module_is_named(path: Path) -> None:
    if not label(path).startswith(tuple(MODULES)):
        assert sorted(set(private_names(path))) == []


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_private_attribute_of_another_is_used(path: Path) -> None:
    allowed, _ = ATTRIBUTES.get(label(path), (set(), ""))
    assert set(private_attributes(path)) <= allowed


def test_every_exception_is_one() -> None:
    named = {label(path) for path in FILES if set(private_names(path))}
    there = [path for path in MODULES if (ROOT / path).exists()]
    assert [path for path in there if not any(each.startswith(path) for each in named)] == []
    for path, (attributes, _) in ATTRIBUTES.items():
        assert set(private_attributes(ROOT / path)) == attributes, path
