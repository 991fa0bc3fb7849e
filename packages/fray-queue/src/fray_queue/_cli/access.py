"""How `fray queue` reaches what it is pointed at."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from fray import FrayError, UnsupportedError
from fray.backend import token_in
from fray.queue import open_queue

F = TypeVar("F", bound=Callable[..., Any])

token_file_option = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the server's token; else FRAY_QUEUE_TOKEN.",
)


class MissingQueueError(FrayError, FileNotFoundError):
    """There is no queue at the URL of a command."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a server: its token, and whose certificates to trust."""

    token: str | None
    ca_file: str | None


def reaching(command: F) -> F:
    """Add the options that say how to reach a server, and hand them on as `access`."""

    @token_file_option
    @click.option(
        "--ca-file", type=click.Path(exists=True, dir_okay=False), help="Certificates to trust, for https."
    )
    @functools.wraps(command)
    def with_access(*, token_file: Path | None, ca_file: str | None, **arguments: Any) -> Any:
        return command(access=Access(token_of(token_file), ca_file), **arguments)

    return cast(F, with_access)


def is_served(url: str) -> bool:
    """Return whether a URL is of a server's queue."""
    return url.startswith(("http:", "https:"))


def open_at(url: str, access: Access, *, create: bool = False, **options: Any) -> Any:
    """Open the queue at a URL.

    Raises:
        MissingQueueError: There is none, and it is not to be made.
    """
    if is_served(url):
        given = {"token": access.token, "ca_file": access.ca_file}
        options |= {"create": create} | {name: value for name, value in given.items() if value is not None}
    if url.partition(":")[0] == "memory":
        raise UnsupportedError(
            "a memory: queue is in the memory of the program that made it, and of no other"
        )
    opened: Any = open_queue(url, **options)
    # A server reports it itself, to tokens too that may not look at a queue.
    if not create and not is_served(url) and hasattr(opened, "exists") and not opened.exists():
        raise MissingQueueError(f"there is no queue at {url!r}; `fray queue create {url}` makes one")
    return opened


def token_of(token_file: Path | None) -> str | None:
    """Return a server's token: what a file holds, or the environment."""
    return token_in(token_file) if token_file else os.environ.get("FRAY_QUEUE_TOKEN")
