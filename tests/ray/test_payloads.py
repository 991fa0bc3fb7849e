"""Large functions: how much of them is kept, and where."""

import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from ray.util.state import list_objects

from fray import create_context
from fray_ray.testing import LocalRayCluster

LARGE = 30_000_000


def large_function(number: int) -> Callable[[], tuple[int, int]]:
    """Return a function that refers to much, and tells the process that it runs in, and what that holds."""
    table = bytes([number]) * LARGE

    def used() -> tuple[int, int]:
        figures = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()]
        own = sum(int(words[1]) for words in figures if words[0].startswith("Private_"))  # in KiB
        return os.getpid(), own * 1024 - len(table)

    return used


def test_of_large_functions_the_latest_are_kept_here_in_the_store_and_in_the_workers(
    ray_cluster: LocalRayCluster,
) -> None:
    first: dict[int, int] = {}
    made = []
    # No other node has three CPUs: its worker is used again.
    with create_context(f"ray?address={ray_cluster.address}&num_cpus=3") as context:
        for number in range(10):
            function = large_function(number)
            made.append(weakref.ref(function))
            pid, used = context.get(context.run(function))
            assert used - first.setdefault(pid, used) < 6 * LARGE
        del function
        gc.collect()
        assert sum(each() is not None for each in made) <= 2
        stored = list_objects(
            address=ray_cluster.dashboard, limit=10_000, timeout=200, raise_on_missing_output=False
        )
        mine = {each.object_id for each in stored if each.pid == os.getpid() and each.object_size > LARGE}
        assert 1 <= len(mine) <= 2
