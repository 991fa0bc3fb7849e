"""The door for authors: every name is there, and another version of it is refused with a clear word."""

import subprocess
import sys

import pytest

import fray.backend
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
