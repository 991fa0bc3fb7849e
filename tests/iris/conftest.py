"""The tests in this folder need no Iris; those in `real` do, and are not collected where there is none."""

from importlib.metadata import PackageNotFoundError, distribution

collect_ignore: list[str] = []
try:
    distribution("marin-iris")
except PackageNotFoundError:
    collect_ignore.append("real")
