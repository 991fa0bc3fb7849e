"""Run the command line as a user does: a process of its own, in some folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_FRAY = [sys.executable, "-P", "-m", "fray"]  # -P: without the working directory on its path


def fray(*argv: str, cwd: Path | None = None, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
    """Run `fray ARGV`, and expect an exit code; None for whatever it answers."""
    command = [*_FRAY, *argv]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert code is None or done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def answer(*argv: str, cwd: Path | None = None, code: int | None = 0) -> Any:
    """Run `fray ARGV --json` and return what it prints."""
    verb, *rest = argv
    return json.loads(fray(verb, "--json", *rest, cwd=cwd, code=code).stdout)
