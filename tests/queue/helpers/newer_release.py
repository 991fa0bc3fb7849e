"""A newer release of fray-queue: a copy of this one whose engines have another version, run as a program."""

import base64
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fray_queue
from fray.queue import Lease

SIZE = "print(open_queue(sys.argv[1]).size())"
FINISH = """
import base64, pickle
queue = open_queue(sys.argv[1])
queue.done(pickle.loads(base64.b64decode(sys.argv[2])))
print(queue.size())
"""
REFUSED = """
from fray_queue import QueueVersionError
try:
    open_queue(sys.argv[1]).size()
except QueueVersionError as error:
    print(error)
"""
_FILES = {"redis": "_redis/scripts.py", "postgresql": "_postgres/schema.py"}


def packed(lease: Lease[Any]) -> str:
    """Return a lease as an argument of a program."""
    return base64.b64encode(pickle.dumps(lease)).decode()


class NewerRelease:
    """The next release.

    Args:
        folder: Where the copy is made.
        engine: `redis` or `postgresql`.
        upgrade: What brings a queue of this release up to the next, whose number is at `@NEXT@`; None for a
            release that cannot.
        step: How many versions newer it is.
    """

    def __init__(self, folder: Path, engine: str, upgrade: str | None, *, step: int = 1) -> None:
        self._folder = folder
        shutil.copytree(Path(fray_queue.__file__).parent, folder / "fray_queue")
        path = folder / "fray_queue" / _FILES[engine]
        text = path.read_text()
        (number,) = re.findall(r"^VERSION = (\d+)$", text, re.MULTILINE)
        self.older = int(number)
        """The version of this release."""
        text = text.replace(f"\nVERSION = {number}\n", f"\nVERSION = {self.older + step}\n")
        if upgrade is None:
            text += "\nUPGRADES.clear()\n"
        else:
            text += f"\nUPGRADES[{number}] = {upgrade.replace('@NEXT@', str(self.older + 1))!r}\n"
        path.write_text(text)

    def run(self, program: str, *arguments: str) -> str:
        """Run statements, `sys.argv` having the arguments; return what they print."""
        environment = os.environ | {"PYTHONPATH": str(self._folder)}
        command = [sys.executable, "-c", f"import sys\nfrom fray.queue import open_queue\n{program}"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
