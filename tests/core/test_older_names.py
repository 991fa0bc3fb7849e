"""The older spellings: each is the same object as today's, says so once, and can always be asked about."""

import importlib
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

import pytest

import fray
import fray.cluster
import fray.job
import fray.queue
import fray.types
from fray.testing import older_names as _legacy
from fray.testing.installation import uninstall_all
from fray.testing.older_names import forget_warnings

if TYPE_CHECKING:
    from tests.core.conftest import Install
else:
    Install = object

NAMES = [
    (door, name, today)
    for door, names in _legacy.OLDER_NAMES.items()
    for name, today in names.items()
    if not today.startswith(("fray.cluster.", "fray.queue.")) and not name.endswith("Context")
]
CORE_MODULES = [older for older, home in _legacy.OLDER_MODULES.items() if home.names is None]


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_warnings(monkeypatch)


def resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(resolve(module), name)


@pytest.mark.parametrize(("door", "name", "today"), NAMES)
def test_an_older_name_is_the_same_object_and_warns_once(door: str, name: str, today: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^{door}\.{name} is an older spelling of {today}$") as told:
        assert getattr(importlib.import_module(door), name) is resolve(today)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert getattr(importlib.import_module(door), name) is resolve(today)


@pytest.mark.parametrize(("alias", "today"), _legacy.ALIASES.items())
def test_an_alias_is_the_same_object_and_does_not_warn(alias: str, today: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert resolve(alias) == resolve(today)


@pytest.mark.parametrize("module", CORE_MODULES)
def test_an_older_module_has_the_objects_of_todays_and_warns_once(module: str) -> None:
    today = importlib.import_module(_legacy.OLDER_MODULES[module].module)
    older = importlib.import_module(module)
    first, *others = today.__all__
    with pytest.warns(DeprecationWarning, match=rf"^{module} is an older spelling of {today.__name__}$"):
        assert getattr(older, first) is getattr(today, first)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for name in others:
            assert getattr(older, name) is getattr(today, name)


def test_the_from_statement_warns_at_its_own_line() -> None:
    with pytest.warns(DeprecationWarning, match=r"^fray\.cluster\.base is an older spelling") as told:
        from fray.cluster.base import Entrypoint, JobRequest
    assert (Entrypoint, JobRequest) == (fray.Entrypoint, fray.JobRequest)
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("module", [fray, fray.job, fray.cluster, fray.queue, fray.types])
def test_hasattr_is_an_answer(module: object, monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    uninstall_all(monkeypatch)
    for name in ("X", "RayCluster", "RayContext", "HttpQueue", "TemporaryVenv", "_private", "__wrapped__"):
        assert not hasattr(module, name), name


def test_hasattr_is_an_answer_for_a_plugin_that_cannot_be_imported(install: Install) -> None:
    install(
        "fray-mine", {"fray.names": {"cluster.Mine": "mine_names:Mine"}}, mine_names="import nothing_there"
    )
    assert not hasattr(fray.cluster, "Mine")
    with pytest.raises(AttributeError, match=r"'fray-mine' cannot be loaded .*nothing_there"):
        _ = fray.cluster.Mine
    with pytest.raises(ImportError, match=r"'fray-mine' cannot be loaded .*nothing_there"):
        from fray.cluster import Mine  # noqa: F401


FROM = [
    (
        "from fray.cluster import RayCluster",
        "fray.cluster.RayCluster comes with fray-ray: pip install fray-ray",
    ),
    ("from fray import RayClusterContext", "fray.RayClusterContext comes with fray-ray"),
    ("from fray import RayContext", "fray.job.RayContext comes with fray-ray"),
    ("from fray.job import ThreadContext", "fray.job.ThreadContext comes with fray-local"),
    ("from fray.queue import HttpQueue", "comes with fray-queue[http]: pip install fray-queue[http]"),
    ("from fray.cluster.ray import RayCluster", "fray.cluster.RayCluster comes with fray-ray"),
    ("from fray.cluster.ray.tpu import run_on_pod", "run_on_pod comes with fray-ray"),
    ("from fray.backend.ray.ray_deps import build_runtime_env_for_packages", "comes with fray-ray"),
    ("from fray.queue.file import FileQueue", "fray.queue.FileQueue comes with fray-queue"),
    (
        "from fray.cluster import TemporaryVenv",
        "there is no fray.cluster.TemporaryVenv any more; use create_",
    ),
    ("import fray.backend.in_memory", "there is no fray.backend.in_memory any more; use LocalClusterContext"),
    ("from fray.context import get", "there is no fray.context any more; use get_job_context"),
    ("from fray.types import Resource", "there is no fray.types.Resource any more; use TaskOptions"),
]


@pytest.mark.parametrize(("statement", "message"), FROM, ids=[statement for statement, _ in FROM])
def test_the_import_statement_says_what_to_do(
    statement: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninstall_all(monkeypatch)
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert message in str(caught.value)


def test_a_name_that_never_was_is_refused_as_ever() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'Nonsense' from 'fray.cluster'"):
        from fray.cluster import Nonsense  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'fray.cluster.nonsense'"):
        importlib.import_module("fray.cluster.nonsense")


def test_a_state_answers_for_the_class_too() -> None:
    assert fray.JobStatus.STOPPED.finished
    assert not fray.JobStatus.RUNNING.finished
    with pytest.warns(DeprecationWarning, match="is an older spelling of status.finished"):
        assert fray.JobStatus.finished(fray.JobStatus.FAILED)
    assert not fray.JobStatus.finished("pending")


def test_importing_fray_imports_no_older_module() -> None:
    code = "import fray, fray.job, fray.cluster, fray.queue, fray.types, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & set(_legacy.OLDER_MODULES)


def test_what_is_set_for_good_is_current_until_it_is_taken_back(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("fray-mine", {"fray.clusters": {"mine": "mine_cluster:Mine"}}, mine_cluster="class Mine: pass")
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "mine")
    context, cluster, other = (cast("Any", object()) for _ in range(3))
    try:
        fray.set_job_ctx(context)
        fray.set_current_cluster(cluster)
        assert (fray.get_job_context(), fray.current_cluster()) == (context, cluster)
        with fray.use_cluster(other), fray.use_context(other):
            assert (fray.get_job_context(), fray.current_cluster()) == (other, other)
        assert fray.current_cluster() is cluster
        with pytest.raises(
            ValueError, match=r"^set_current_cluster takes a cluster, got the str 'local'; create_"
        ):
            fray.set_current_cluster(cast("Any", "local"))
    finally:
        fray.set_job_ctx(None)
        fray.set_current_cluster(None)
    assert type(fray.current_cluster()).__name__ == "Mine"
