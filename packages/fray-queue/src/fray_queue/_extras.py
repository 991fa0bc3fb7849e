"""Which extra of the wheel brings the package that a part of it imports."""

_EXTRAS = {
    "redis": "redis",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "aiohttp": "server",
    "uvloop": "server",
    "httptools": "http",
}


def what_is_missing(part: str, error: ModuleNotFoundError) -> str | None:
    """Return which extra to install for a part that cannot be imported; None if no extra has the module."""
    extra = _EXTRAS.get(error.name or "")
    return extra and f"{part} needs {error.name}: pip install 'fray-queue[{extra}]'"
