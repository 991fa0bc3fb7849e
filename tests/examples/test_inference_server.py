"""The example of an inference server: its clients find it by name, and find it again after its death."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "inference_server.py"


def test_clients_survive_a_restart_of_the_server_that_they_found_by_name() -> None:
    options = ["--clients", "2", "--requests", "40", "--crash-after", "20"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    *answered, last = done.stdout.splitlines()
    assert last == "clients succeeded; the server is at attempt 2"
    assert len(answered) == 2
    assert all(
        re.fullmatch(r"\[replica-\d\] 40 requests answered by attempts .*2\] of the server", line)
        for line in answered
    )
    assert any("[1, 2]" in line for line in answered)
