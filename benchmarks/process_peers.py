"""The pools of processes that `process_contexts.py` compares, each behind the same two or three calls."""

import concurrent.futures
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from measure import available as measurable

from fray import JobContext, create_context

WORKERS = 2


@dataclass
class Pool:
    """An open pool.

    Args:
        run_all: Submits a task for each item, then gathers the results.
        run_one: Runs one task and waits for it; None where there are only batches.
        share: Returns what to pass to tasks instead of a large value that many read.
    """

    run_all: Callable[[Callable[..., Any], Iterable[Any]], list[Any]]
    run_one: Callable[[Callable[..., Any], Any], Any] | None
    share: Callable[[Any], Any] = lambda value: value


Opener = Callable[[], AbstractContextManager[Pool]]


@contextmanager
def fray() -> Iterator[Pool]:
    with create_context("process", max_workers=WORKERS) as context:
        yield fray_pool(context)


def fray_pool(context: JobContext) -> Pool:
    return Pool(
        lambda fn, items: context.get([context.run(fn, item) for item in items]),
        lambda fn, item: context.get(context.run(fn, item)),
        context.put,
    )


def _of_executor(executor: concurrent.futures.Executor) -> Pool:
    return Pool(
        lambda fn, items: [future.result() for future in [executor.submit(fn, item) for item in items]],
        lambda fn, item: executor.submit(fn, item).result(),
    )


@contextmanager
def standard() -> Iterator[Pool]:
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as executor:
        yield _of_executor(executor)


@contextmanager
def standard_forkserver() -> Iterator[Pool]:
    server = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=server) as executor:
        yield _of_executor(executor)


@contextmanager
def multiprocessing_pool() -> Iterator[Pool]:
    with multiprocessing.Pool(WORKERS) as pool:
        yield Pool(
            lambda fn, items: [result.get() for result in [pool.apply_async(fn, (item,)) for item in items]],
            lambda fn, item: pool.apply(fn, (item,)),
        )


@contextmanager
def loky() -> Iterator[Pool]:
    import loky

    executor = loky.ProcessPoolExecutor(WORKERS)
    yield _of_executor(executor)
    executor.shutdown(kill_workers=True)


@contextmanager
def joblib() -> Iterator[Pool]:
    import joblib

    with joblib.Parallel(n_jobs=WORKERS) as parallel:
        yield Pool(lambda fn, items: parallel(joblib.delayed(fn)(item) for item in items), None)


@contextmanager
def dask() -> Iterator[Pool]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(WORKERS, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield Pool(
            lambda fn, items: client.gather([client.submit(fn, item, pure=False) for item in items]),
            lambda fn, item: client.submit(fn, item, pure=False).result(),
            lambda value: client.scatter(value, broadcast=True),
        )


@contextmanager
def ray() -> Iterator[Pool]:
    os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported
    ray: Any = importlib.import_module("ray")
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    remotes: dict[Any, Any] = {}

    def remote(fn: Any) -> Any:
        if fn not in remotes:
            remotes[fn] = ray.remote(fn)
        return remotes[fn].remote

    yield Pool(
        lambda fn, items: ray.get([remote(fn)(item) for item in items]),
        lambda fn, item: ray.get(remote(fn)(item)),
        ray.put,
    )
    ray.shutdown()


# Those that fork this process come first, as long as it has no threads.
POOLS: dict[str, Opener] = {
    "ProcessPoolExecutor": standard,
    "multiprocessing.Pool": multiprocessing_pool,
    "fray": fray,
    "loky": loky,
    "joblib": joblib,
    "dask": dask,
    "ray": ray,
}
_MODULES = {"loky": "loky", "joblib": "joblib", "dask": "distributed", "ray": "ray"}


def available(wanted: Sequence[str]) -> dict[str, Opener]:
    """Return the pools of these names (all, where there are none) that can be opened; say what is missing."""
    found = {}
    for name, opener in POOLS.items():
        if wanted and name not in wanted:
            continue
        if measurable(name, module=_MODULES.get(name, "")):
            found[name] = opener
    return found
