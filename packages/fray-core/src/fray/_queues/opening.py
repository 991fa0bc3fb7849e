"""Queues by their URLs."""

from typing import Any

from fray._contracts.queue import Queue
from fray._discovery.plugins import QUEUES, load
from fray._discovery.specs import bind_options, parse_query
from fray._values.errors import SpecError

# Options that a URL must not carry: URLs end in logs, shell histories and process lists.
_SECRETS = frozenset(
    {"token", "secret", "password", "credential"}
    | {"account_key", "sas_token", "connection_string", "client_secret"}  # of Azure's file system
)


def open_queue(url: str, **options: Any) -> Queue[Any]:
    """Open the queue that a URL names.

    `memory:`, `sqlite:/data/q.db`, `file:/dir`, `gs://…`, `s3://…`, `http://host:port/name`.

    Args:
        options: Those of the backend's `from_url`; they win over the URL's `?key=value&key=value`.

    Raises:
        PluginNotFoundError: No installed wheel provides the scheme.
        SpecError: The URL has no scheme, or an option is unknown, malformed or a secret.
    """
    if not isinstance(url, str):
        raise SpecError(f"a queue's URL is text such as 'file:/shared/tasks', got {url!r}")
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme or "/" in scheme:
        raise SpecError(
            f"{without_secrets(url)!r} has no scheme: a file of this machine is sqlite:/path/q.db, "
            "a folder file:/path, a server's queue http://host:port/name"
        )
    address, mark, query = url.partition("?")
    texts = parse_query(query, f"queue {scheme!r}") if mark else {}
    for key in _SECRETS & texts.keys():
        raise SpecError(
            f"queue {scheme!r}: pass {key!r} as a keyword or by the environment, never in a URL, "
            "which is logged"
        )
    factory = load(QUEUES, scheme)
    bound = bind_options(factory.from_url, f"queue {scheme!r}", texts, options)
    bound.pop("url", None)
    queue: Queue[Any] = factory.from_url(address, **bound)
    return queue


def without_secrets(url: str) -> str:
    """Return a URL without its user, password and options."""
    _, user, rest = url.rpartition("@")
    return ("…@" if user else "") + rest.partition("?")[0]
