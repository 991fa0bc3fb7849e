"""The engine streams to all its requests, batched, on this machine and on Ray."""

import subprocess
import sys
from pathlib import Path

import pytest

from fray_ray.testing import LocalRayCluster

PROGRAM = Path(__file__).parents[2] / "examples" / "llm_engine.py"


@pytest.mark.parametrize("context", ["sync", "threadpool", "process", "ray"])
def test_every_request_gets_its_words_in_a_shared_batch(context: str, ray_cluster: LocalRayCluster) -> None:
    spec = f"ray?address={ray_cluster.address}" if context == "ray" else context
    argv = [sys.executable, str(PROGRAM), "--context", spec, "--requests", "6", "--tokens", "200"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    *answers, batch = done.stdout.splitlines()
    assert [len(answer.split()) for answer in answers] == [200] * 6
    assert batch.startswith("largest batch: ")
    assert 1 <= int(batch.split()[-1]) <= 4
