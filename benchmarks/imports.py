"""What importing costs, against the bare interpreter.

`fray_resources` is imported by every experiment file: at most 10 ms more than the bare interpreter.
`fray --help`: under 150 ms.
"""

import os
import subprocess
import sys

from measure import at_most, compare, judge, timed

SUBJECTS = {
    "bare interpreter": ["-c", "pass"],
    "import fray_resources": ["-c", "import fray_resources"],
    "import dataclasses": ["-c", "import dataclasses"],
    "import fray": ["-c", "import fray"],
    "from fray.job import ThreadContext": ["-c", "from fray.job import ThreadContext"],
    "fray --help": ["-m", "fray", "--help"],
}


def main() -> None:
    """Print one table."""
    # Users import compiled files; a shell that forbids writing them would measure the compiler.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def start(arguments: list[str]) -> float:
        command = [sys.executable, *arguments]
        return timed(lambda: subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL))

    subjects = {name: (lambda arguments=arguments: start(arguments)) for name, arguments in SUBJECTS.items()}
    for subject in subjects.values():
        subject()
    found = compare(
        "Process start to end", subjects, peer="bare interpreter", rounds=15, unit="ms", scale=1e3
    )
    more = (found["import fray_resources"] - found["bare interpreter"]) * 1e3
    judge("import fray_resources, beyond the bare interpreter", more, at_most(10), " ms")
    limit = "almost half is `import fray`; most of the rest are importlib.metadata and the search for plugins"
    judge("fray --help", found["fray --help"] * 1e3, at_most(150, limit), " ms")


if __name__ == "__main__":
    main()
