"""Engines by their URLs."""

from collections.abc import Callable

from fray import SpecError
from fray_queue._engines.store import Engine

SCHEMES = ("redis", "rediss", "postgresql", "postgres")


def engine_at(url: str, *, seconds: float, clock: Callable[[], float] | None = None) -> Engine:
    """Return the engine at a URL, which holds no password; without a request to it.

    Args:
        seconds: How long a single request may take.

    Raises:
        SpecError: It is the URL of none, or has a password, or names a queue.
    """
    scheme = url.partition(":")[0]
    if scheme not in SCHEMES:
        raise SpecError(
            "an engine is at redis://host:6379/0, rediss://… or postgresql://user@host:5432/database, "
            f"not at a URL of the scheme {scheme!r}"
        )
    if "?queue=" in url or "&queue=" in url:
        raise SpecError("the URL of a server's engine names no queue: the server hands out all of them")
    if scheme.startswith("redis"):
        from fray_queue._redis.engine import RedisEngine

        return RedisEngine(url, seconds, clock)
    from fray_queue._postgres.engine import PostgresEngine

    return PostgresEngine(url, seconds, clock)
