"""The program that calls the pickled callable of a job: what it hands back to who started it."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fray.backend import payload_of, runner, unpack_exception
from fray.cluster import Entrypoint


def handed_back(folder: Path, function: Callable[[], Any]) -> tuple[int, str, Any]:
    """Run it; return its exit code, and what it handed back: which it is, and the value."""
    payload = payload_of(Entrypoint.from_callable(function), [])
    assert payload is not None
    (folder / "payload").write_bytes(payload)
    words = [os.fspath(folder / name) for name in ("payload", "result")]
    done = subprocess.run(
        [sys.executable, runner.__file__, *words], stderr=subprocess.PIPE, cwd=folder, timeout=60, check=False
    )
    with (folder / "result").open("rb") as file:
        return done.returncode, pickle.load(file), pickle.load(file)


def test_what_a_function_returns_is_handed_back(tmp_path: Path) -> None:
    assert handed_back(tmp_path, lambda: {"loss": 0.5}) == (0, "returned", {"loss": 0.5})


def test_what_a_function_raises_is_handed_back(tmp_path: Path) -> None:
    def fails() -> None:
        raise KeyError("no such luck")

    code, kind, packed = handed_back(tmp_path, fails)
    assert (code, kind) == (1, "raised")
    with pytest.raises(KeyError, match="no such luck"):
        raise unpack_exception(packed)


def test_what_no_pickle_can_hold_is_named(tmp_path: Path) -> None:
    def lock() -> object:
        import threading

        return threading.Lock()

    code, kind, packed = handed_back(tmp_path, lock)
    assert (code, kind) == (1, "raised")
    with pytest.raises(TypeError, match="what the function returned"):
        raise unpack_exception(packed)
