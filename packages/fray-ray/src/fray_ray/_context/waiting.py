"""`ray.wait` and `ray.get` as every other backend has them: ready ones in order, exceptions as raised."""

from typing import Any

import ray
from ray import exceptions as rx

from fray_ray._context import lending
from fray_ray._context.errors import translate
from fray_ray._context.io_thread import refuse_to_wait


def fetch(refs: Any, timeout: float | None) -> Any:
    """Return the value of a reference, or those of a list of them."""
    refuse_to_wait()
    try:
        if not lending.is_beside():
            return ray.get(refs, timeout=timeout)
        with lending.awaiting(refs if isinstance(refs, list) else [refs]):
            return ray.get(refs, timeout=timeout)
    except rx.RayError as error:
        failure = translate(error, timeout=timeout)
    raise failure


def wait_in_order(refs: list[Any], wanted: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
    """Return the first `wanted` ready references and all others, each in the order of `refs`."""
    if timeout != 0:
        refuse_to_wait()
    try:
        ready, pending = _wait(refs, wanted, timeout)
    except TypeError as error:
        raise ValueError(f"wait takes what put() and run() return: {error}") from None
    except ValueError:
        if len(set(refs)) == len(refs):
            raise
        return _wait_for_repeated(refs, wanted, timeout)
    if len(ready) < wanted or not pending:
        return ready, pending
    # Ray picks any that are ready; one that is ready and stands before these goes first.
    before = refs[: refs.index(ready[-1])]
    if len(before) < wanted:
        return ready, pending
    earlier, _ = _wait(before, len(before), 0)
    return _split(refs, [*dict.fromkeys([*earlier, *ready])][:wanted])


def _wait(refs: list[Any], wanted: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
    # Ready is what is there, wherever in the cluster: looking does not move it here.
    ready, pending = ray.wait(refs, num_returns=wanted, timeout=timeout, fetch_local=False)
    return ready, pending


def _wait_for_repeated(refs: list[Any], wanted: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
    """Wait where a reference is in the list more than once, which Ray refuses."""
    distinct = list(dict.fromkeys(refs))
    found, _ = _wait(distinct, max(1, wanted - (len(refs) - len(distinct))), timeout)
    ready = set(found)
    places = [place for place, ref in enumerate(refs) if ref in ready][:wanted]
    taken = set(places)
    return [refs[place] for place in places], [ref for place, ref in enumerate(refs) if place not in taken]


def _split(refs: list[Any], chosen: list[Any]) -> tuple[list[Any], list[Any]]:
    taken = set(chosen)
    return [ref for ref in refs if ref in taken], [ref for ref in refs if ref not in taken]
