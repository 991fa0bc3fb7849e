"""docs/older-names.md is made of the tables of older spellings, and every row of them is tried.

python tests/docs/test_older_names.py     # writes the page again
"""

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fray
import fray.cluster
import fray.job
import fray_resources
from fray.job import ActorHandle
from fray.testing import older_names as _legacy
from fray.testing.older_names import forget_warnings

PAGE = Path(__file__).parents[2] / "docs" / "older-names.md"
HEAD = """# Older names

Fray grew through several generations, whose names differ. The older names in the first three tables still
work, and mean the same as the names of today beside them. A name that is marked ⚠ issues a
`DeprecationWarning` with today's spelling, once in a process. Where a wheel is not installed, its names are
missing: `hasattr(fray.cluster, "RayCluster")` is False, and `from fray.cluster import RayCluster` says which
wheel to install.

A test generates this page from the table that the code uses, and tries each row.
"""
TAIL = """## What changed its meaning

- A job's `resources` are those of one replica; `replicas` says how many run. For a TPU job, `replicas` is the
  number of slices.
- `ram="16"` is GiB; `ram=16` is 16 bytes. Write the unit.
- `RuntimeEnv(package_requirements=[...])` of a local job builds an environment. An older local backend
  ignored it.
- `cluster.monitor` returns lines. The object that it returns also has the fields of the final `JobInfo`;
  reading one waits for the job's end.
- `create_job` of `LocalClusterContext` and `RayClusterContext` takes a shell command, or a function that gets
  the job's context as its argument. `delete_job` stops a job and keeps its record.
- `pip install fray` is `pip install fray-local`; `fray[ray]` is `fray-ray`.
"""


def page() -> str:
    """Make the page."""
    return "\n".join([HEAD, *sections(), TAIL])


def sections() -> Iterator[str]:
    """Make a table of each of the tables."""
    names = [
        (f"`{door}.{name}` ⚠", f"`{today}`")
        for door, older in _legacy.OLDER_NAMES.items()
        for name, today in older.items()
    ]
    yield table(
        "Names", "older", [*names, *((f"`{old}`", f"`{new}`") for old, new in _legacy.ALIASES.items())]
    )
    modules = ((f"`{older}` ⚠", f"`{home.module}`") for older, home in _legacy.OLDER_MODULES.items())
    yield table("Modules", "older", modules)
    calls = ((f"`{call.older}`{' ⚠' * call.warns}", f"`{call.today}`") for call in _legacy.OLDER_CALLS)
    yield table("Calls", "older", calls)
    gone = ((f"`{older}`", instead) for older, instead in sorted(_legacy.REPLACED.items()))
    yield table("Gone", "gone: importing it says so", gone)


def table(title: str, older: str, rows: Any) -> str:
    """Make a section with a table of two columns."""
    return "\n".join(
        [f"## {title}", "", f"| {older} | today |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows), ""]
    )


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == page(), "python tests/docs/test_older_names.py writes it again"


@pytest.fixture
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_warnings(monkeypatch)


NAMES = [(door, name, today) for door, older in _legacy.OLDER_NAMES.items() for name, today in older.items()]


@pytest.mark.usefixtures("nothing_warned")
@pytest.mark.parametrize(("door", "name", "today"), NAMES)
def test_a_name_is_the_same_object(door: str, name: str, today: str) -> None:
    module, _, attribute = today.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"^{door}.{name} is an older spelling of {today}$"):
        found = getattr(importlib.import_module(door), name)
    assert found is getattr(importlib.import_module(module), attribute)


MODULES = {
    "fray.backend.ray.ray_deps": "build_runtime_env_for_packages",
    "fray.cluster.base": "JobRequest",
    "fray.cluster.device_flops": "device_flops_for_jax_device",
    "fray.cluster.local_cluster": "LocalCluster",
    "fray.cluster.ray": "RayCluster",
    "fray.cluster.ray.deps": "build_runtime_env_for_packages",
    "fray.cluster.ray.tpu": "run_on_pod",
    "fray.job.context": "ThreadContext",
    "fray.queue.base": "Lease",
    "fray.queue.file": "FileQueue",
    "fray.queue.http": "HttpQueueServer",
}


@pytest.mark.usefixtures("nothing_warned")
@pytest.mark.parametrize("older", _legacy.OLDER_MODULES)
def test_a_module_has_the_same_objects(older: str) -> None:
    today = _legacy.OLDER_MODULES[older].module
    with pytest.warns(DeprecationWarning, match=f"^{older} is an older spelling of {today}$"):
        found = getattr(importlib.import_module(older), MODULES[older])
    assert found is getattr(importlib.import_module(today), MODULES[older])


class Counter:
    """A program's actor."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def value(self) -> int:
        return self.start


def double(number: int) -> int:
    """A program's task."""
    return 2 * number


def serve(model: str) -> None:
    """A program's job."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the calls of the table stand in."""
    monkeypatch.setenv("FRAY_STATE_DIR", str(tmp_path))
    with fray.cluster.LocalCluster(overcommit=True) as cluster, fray.create_context("sync") as context:
        job_id = cluster.launch(
            fray.JobRequest(name="job", entrypoint=fray.Entrypoint.from_binary("true", []))
        )
        own = {
            "cluster": cluster,
            "context": context,
            "job_id": job_id,
            "actor": context.create_actor(Counter, 3),
        }
        local = {name: getattr(fray.cluster, name) for name in ("LocalCluster", "LocalClusterConfig")}
        with fray.use_context(context):
            yield {
                **vars(fray),
                **{name: getattr(fray, name) for name in fray.__all__},
                **vars(fray_resources),
                **local,
                **own,
                "Counter": Counter,
                "double": double,
                "serve": serve,
            }


@pytest.mark.usefixtures("nothing_warned")
@pytest.mark.parametrize("call", _legacy.OLDER_CALLS, ids=lambda call: call.older)
def test_a_call_does_the_same(call: _legacy.Call, program: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        older = eval(call.older, program)
    # Others are of what earlier tests left to the collector.
    assert any(issubclass(one.category, DeprecationWarning) for one in told) == call.warns
    today = eval(call.today, program)
    assert type(older) is type(today)
    assert settled(older, program["context"]) == settled(today, program["context"])


def settled(thing: Any, context: Any) -> Any:
    """Return what can be compared: of an actor and of a reference their value, of a context its type."""
    if isinstance(thing, ActorHandle):
        return context.get(thing.value())
    return type(thing) if isinstance(thing, fray.ContextBase) else context.get(thing)


if __name__ == "__main__":
    PAGE.write_text(page())
