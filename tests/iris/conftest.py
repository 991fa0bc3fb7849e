"""The tests in this folder need no Iris; those in `real` do, and are not collected where there is none."""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

collect_ignore: list[str] = []
try:
    distribution("marin-iris")
except PackageNotFoundError:
    collect_ignore.append("real")
