"""Queues that lose nothing: in memory, in SQLite, on any file system or object store, over HTTP."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray_queue._errors import AccessRefusedError as AccessRefusedError
    from fray_queue._errors import DamagedError as DamagedError
    from fray_queue._errors import ForeignHostError as ForeignHostError
    from fray_queue._errors import LimitError as LimitError
    from fray_queue._errors import QueueExistsError as QueueExistsError
    from fray_queue._errors import QueueFullError as QueueFullError
    from fray_queue._errors import QueueNotFoundError as QueueNotFoundError
    from fray_queue._errors import QueueRemovedError as QueueRemovedError
    from fray_queue._errors import QueueVersionError as QueueVersionError
    from fray_queue._errors import TimeLimitError as TimeLimitError
    from fray_queue._errors import TokenError as TokenError
    from fray_queue._file.queue import FileQueue as FileQueue
    from fray_queue._http.client.queue import HttpQueue as HttpQueue
    from fray_queue._http.protocol.limits import Limits as Limits
    from fray_queue._http.server.server import HttpQueueServer as HttpQueueServer
    from fray_queue._memory.queue import MemoryQueue as MemoryQueue
    from fray_queue._postgres.queue import PostgresQueue as PostgresQueue
    from fray_queue._redis.queue import RedisQueue as RedisQueue
    from fray_queue._sqlite.queue import SqliteQueue as SqliteQueue
    from fray_queue._work.options import WorkSummary as WorkSummary
    from fray_queue._work.work import awork as awork
    from fray_queue._work.work import work as work

# Public name -> its module: a program that uses one backend does not load what another needs.
_HOMES = {
    "AccessRefusedError": "_errors",
    "DamagedError": "_errors",
    "FileQueue": "_file.queue",
    "ForeignHostError": "_errors",
    "HttpQueue": "_http.client.queue",
    "HttpQueueServer": "_http.server.server",
    "LimitError": "_errors",
    "Limits": "_http.protocol.limits",
    "MemoryQueue": "_memory.queue",
    "PostgresQueue": "_postgres.queue",
    "QueueExistsError": "_errors",
    "QueueFullError": "_errors",
    "QueueNotFoundError": "_errors",
    "QueueRemovedError": "_errors",
    "QueueVersionError": "_errors",
    "RedisQueue": "_redis.queue",
    "SqliteQueue": "_sqlite.queue",
    "TimeLimitError": "_errors",
    "TokenError": "_errors",
    "WorkSummary": "_work.options",
    "awork": "_work.work",
    "work": "_work.work",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"fray_queue.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from fray_queue._extras import what_is_missing

        missing = what_is_missing(name, error)
        if missing is None:
            raise
        raise ImportError(missing, name=error.name) from error
