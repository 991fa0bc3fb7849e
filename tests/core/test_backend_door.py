"""The door for authors: every name is there, and another version of it is refused with a clear word."""

import pydoc
import re
import subprocess
import sys

import pytest

import fray.backend
import fray.cluster
import fray.queue
import fray.testing.cluster
import fray.testing.context
from fray.backend import API_VERSION, require_api


def test_every_name_of_the_door_is_there_in_a_fresh_interpreter() -> None:
    code = "import fray.backend as door; [getattr(door, name) for name in door.__all__]"
    for name in ("lease_machine", "TaskRunner"):  # a module and a class, each as the first that is asked for
        asked = f"from fray.backend import {name}; {code}"
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    assert not hasattr(fray.backend, "Nonsense")


@pytest.mark.parametrize(("version", "install"), [(API_VERSION + 1, "fray-core"), (0, "the backend")])
def test_a_backend_for_another_version_is_refused(version: int, install: str) -> None:
    require_api(API_VERSION)
    with pytest.raises(ImportError, match=rf"version {version} of fray\.backend.*newer version of {install}"):
        require_api(version)


# What an author may override or is asked for, by the class that asks.
SHOWN = {
    fray.backend.ContextBase: "_submit _start_actor _future _lending _cancel_all _map_window _map_pace "
    "capabilities",
    fray.backend.TaskRunner: "belong_to pack start resume interrupt new_actor call_back close abort disown",
    fray.backend.InProcessRunner: "submit close",
    fray.backend.EngineContext: "engine_type capabilities",
    fray.backend.RemoteEngine: "submit store fetch when_done release workers close processes",
    fray.backend.AskingEngine: "ask swap claim lend reclaim",
    fray.cluster.ClusterBase: "_submit _info _ids _read_log _stop _plan _check_supported _described _log "
    "_held_key _submit_many _all_jobs capabilities _SUPPORTED",
    fray.cluster.DirectoryCluster: "_start _start_sweep",
    fray.queue.StoredQueue: "_transaction",
    fray.queue.ItemStore: "save find delete waiting lapsed dead count",
    fray.testing.context.ContextFixtures: "CHAIN DEPTH PROGRAMS HOST spec left_on_workers kept_by_library",
    fray.testing.cluster.ClusterFixtures: "PATIENCE STARTS_WITHIN BUILDS_ENVIRONMENTS RUNS_CONTAINERS spec",
    fray.backend.ContextCapabilities: "isolation streams at_most_once",
}


@pytest.mark.parametrize("base", SHOWN, ids=lambda base: base.__name__)
def test_help_shows_every_hook_and_attribute_with_a_word_on_each(base: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(base)).replace(" |  ", "")
    for name in SHOWN[base].split():
        assert hasattr(base, name) or name in getattr(base, "__annotations__", {}), f"there is no {name}"
        # From Python 3.13 on a long signature has a line for each parameter.
        signature = r"\([^\n]*\)|\(\n.*?^ *\)"
        found = re.search(rf"^ *{name}({signature})?(: \S| ->|$)", shown, re.MULTILINE | re.DOTALL)
        assert found, f"{name} is not explained in\n{shown}"
