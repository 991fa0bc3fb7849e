"""The wall clock of a real process is set, and no lease ends or lasts by it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fray.queue import open_queue
from fray_queue import HttpQueue

HELPERS = Path(__file__).parent / "helpers"
SECONDS = 60.0  # for what takes two


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step"
    path.write_text("0")
    return path


def command(step: Path, module: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HELPERS / "stepped_clock.py"), str(step), module, *arguments]


@pytest.mark.parametrize("kind", ["memory:", "sqlite:{folder}/q.db"])
def test_a_step_moves_no_lease_of_the_process_that_it_happens_to(
    tmp_path: Path, step: Path, kind: str
) -> None:
    url = kind.format(folder=tmp_path)
    ran = subprocess.run(
        command(step, "steps_of_the_clock", str(step), url),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    check(json.loads(ran.stdout))


def check(seen: dict[str, Any]) -> None:
    assert seen["an hour ahead"]
    assert seen["an hour behind"]
    assert not seen["taken ahead"]
    assert 0.49 < seen["waited"] < 30
    assert (seen["attempt"], seen["size"]) == (3, 0)


@pytest.mark.parametrize("stored", [False, True])
def test_a_step_at_the_server_moves_no_lease(tmp_path: Path, step: Path, stored: bool) -> None:
    program = command(step, "served_queue", *([str(tmp_path / "store")] if stored else []))
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url, token = server.stdout.readline().split()
            queue: HttpQueue[str] = HttpQueue(url, "q", token=token)
            queue.push("x")
            lease = queue.pop(60)
            assert lease is not None
            step.write_text("3600")
            assert queue.pop() is None
            queue.release(queue.extend(lease, 60))
            began = time.monotonic()
            assert queue.pop(0.5) is not None
            step.write_text("-3600")
            again = queue.pop(wait=30)
            assert again is not None
            assert 0.49 < time.monotonic() - began < 30
            queue.done(again)
            assert queue.size() == 0
        finally:
            server.kill()


def test_processes_whose_wall_clocks_differ_share_a_sqlite_queue(tmp_path: Path, step: Path) -> None:
    url = f"sqlite:{tmp_path}/q.db"
    queue: Any = open_queue(url)
    queue.push("held here")
    lease = queue.pop(60)
    step.write_text("7200")
    program = f"import json; from fray.queue import open_queue; q = open_queue({url!r}); l = q.pop(60); "
    module = tmp_path / "other.py"
    module.write_text(program + "print(json.dumps([q.size(), q.pending(), l is None]))")
    ran = subprocess.run(
        command(step, "other"), capture_output=True, text=True, timeout=SECONDS, check=True, cwd=tmp_path
    )
    assert json.loads(ran.stdout) == [1, 0, True]
    queue.done(lease)
    assert queue.size() == 0
