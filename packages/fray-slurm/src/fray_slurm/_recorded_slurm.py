"""A Slurm that answers with recorded text, and counts the calls."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "srun")
_SCRIPT = """\
#!/bin/sh
echo "{name} $*" >> {folder}/calls
if [ {name} = sbatch ]; then cat > {folder}/script; env > {folder}/environ; fi
cat {folder}/{name}.out
cat {folder}/{name}.err >&2
exit "$(cat {folder}/{name}.code)"
"""


class RecordedSlurm:
    """Slurm's commands as scripts, which are found where `variables` are set.

    Every launch gets job 77, no job is in the queue and no accounts are kept, until `says` says otherwise.

    Args:
        folder: Where the scripts are made; it must not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for name in PROGRAMS:
            program = folder / name
            program.write_text(_SCRIPT.format(name=name, folder=folder))
            program.chmod(0o755)
            self.says(name, "")
        self.says("sbatch", "77\n")
        self.says("sacct", "", error="Slurm accounting storage is disabled", code=1)
        self.node(socket.gethostname())

    @property
    def variables(self) -> Mapping[str, str]:
        """What a client of this Slurm has in its environment."""
        return {"PATH": f"{self._folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def says(self, name: str, text: str, *, error: str = "", code: int = 0) -> None:
        """Let a command print a text, and end with a code."""
        for kind, content in {"out": text, "err": error, "code": str(code)}.items():
            draft = self._folder / f"{name}.{kind}.new"
            draft.write_text(content)
            draft.rename(self._folder / f"{name}.{kind}")

    def node(self, host: str) -> None:
        """Let there be a node, on a host of that name."""
        self.says("scontrol", f"NodeName=n1 NodeAddr=10.0.0.1 NodeHostName={host}\n")

    def calls(self, name: str) -> list[str]:
        """Return how a command was called, each time."""
        path = self._folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.partition(" ")[0] == name]

    @property
    def script(self) -> str:
        """What was submitted last."""
        return (self._folder / "script").read_text()

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that sbatch had."""
        lines = (self._folder / "environ").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)
