"""The training example: what preemptions cost is time, not the result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"


def run(folder: Path, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "launch", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def starts(lines: list[str]) -> list[int]:
    """The steps at which rank 0 started its attempts."""
    prefix = "[replica-0] starts at step "
    return [int(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)]


def test_a_training_that_is_preempted_twice_ends_with_the_same_result(tmp_path: Path) -> None:
    undisturbed, disturbed = (run(tmp_path / name, "--preemptions", name) for name in ("0", "2"))
    assert starts(undisturbed) == [0]
    first, second, third = starts(disturbed)
    # Each attempt goes on where the last one saved, as it was asked to leave.
    assert first == 0
    assert 250 <= second < third < 1000
    assert third >= 500
    assert f"[replica-3] leaves at step {second}" in disturbed
    assert disturbed[-1].startswith("succeeded in attempt 3: ")
    results = [(tmp_path / name / "result.json").read_text() for name in ("0", "2")]
    assert results[0] == results[1]
    assert json.loads(results[0]) == pytest.approx([1, 2, 3, 4, 5, 6], abs=0.05)
