"""A pool that works on a queue while a test uses it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fray.queue import Queue
from fray_queue import WorkSummary, work


@contextlib.contextmanager
def at_work(
    queue: Queue[Any], fn: Callable[[Any], Any], pool: Callable[..., Any] = work, **options: Any
) -> Iterator[WorkSummary]:
    """Have a pool work on a queue meanwhile."""
    stop, summary = threading.Event(), WorkSummary()
    options |= {"stop": stop, "summary": summary}
    thread = threading.Thread(target=pool, args=(queue, fn), kwargs=options)
    thread.start()
    try:
        yield summary
    finally:
        stop.set()
        thread.join(60)
