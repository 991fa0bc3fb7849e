"""What the settings of a Redis make of "stored", and which are refused."""

from fray import UnsupportedError
from fray_queue._errors import AccessRefusedError
from fray_queue._redis.nodes import Nodes


def stored(nodes: Nodes) -> tuple[bool, str]:
    """Return what the engine's settings keep of a push."""
    try:
        persistence = _info(nodes, "persistence")
        replicas = _info(nodes, "replication").get("connected_slaves", "0")
    except AccessRefusedError:
        return False, "unknown: the user may not call INFO; ask the engine's administrator"
    durable, text = _persistence(nodes, persistence.get("aof_enabled") == "1")
    if replicas != "0":
        text += "; a replica gets it later, and a fail-over may lose the last pushes"
    return durable, text


def refuse_eviction(nodes: Nodes, name: str) -> None:
    """Refuse an engine that drops keys when its memory is full.

    Raises:
        UnsupportedError: It does.
    """
    try:
        memory = _info(nodes, "memory")
    except AccessRefusedError:
        return  # a user who may not read it has to trust the administrator
    if memory.get("maxmemory_policy", "").startswith("allkeys") and memory.get("maxmemory", "0") != "0":
        raise UnsupportedError(
            f"queue {name!r}: this Redis drops keys when its memory is full "
            f"(maxmemory-policy {memory['maxmemory_policy']}), and with them items; "
            "use one with maxmemory-policy noeviction"
        )


def _persistence(nodes: Nodes, append_only: bool) -> tuple[bool, str]:
    if not append_only:
        return (
            False,
            "in memory: a crash of the engine loses what its last snapshot had not (appendonly no)",
        )
    try:
        (_, setting) = nodes.command("CONFIG", "GET", "appendfsync")
    except AccessRefusedError:
        setting = b"unknown: the user may not ask, CONFIG GET"
    if setting == b"always":
        return True, "on disk when push returns (appendfsync always)"
    if setting == b"everysec":
        return False, "on disk within two seconds: a crash may lose the last (appendfsync everysec)"
    return False, f"on disk when the system writes it (appendfsync {setting.decode()})"


def _info(nodes: Nodes, section: str) -> dict[str, str]:
    text: bytes = nodes.command("INFO", section)
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
