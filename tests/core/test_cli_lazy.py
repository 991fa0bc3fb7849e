"""`fray --help` loads next to nothing: it must be there when the key is up."""

import subprocess
import sys

import pytest

HEAVY = {"rich", "cloudpickle", "psutil", "ray", "fsspec", "aiohttp", "asyncio", "fray_local"}


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["run", "--dry-run", "--json", "--", "true"]]
)
def test_a_command_line_loads_only_what_it_needs(argv: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "fray", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "fray" in loaded
    assert loaded & HEAVY == set()
    assert done.stdout
