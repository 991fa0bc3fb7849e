"""What verbs on jobs take alike: which jobs, and the grace of their end."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fray._cli.completion import complete_ids
from fray._cli.values import DURATION

F = TypeVar("F", bound=Callable[..., Any])


def job_argument(command: F) -> F:
    """Take `ID`."""
    decorate: Callable[[F], F] = click.argument("job_id", metavar="ID", shell_complete=complete_ids)
    return decorate(command)


def jobs_argument(command: F) -> F:
    """Take `ID...`, one or more."""
    decorate: Callable[[F], F] = click.argument(
        "job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids
    )
    return decorate(command)


def grace_option(command: F) -> F:
    """Add `--grace TIME`."""
    decorate: Callable[[F], F] = click.option(
        "--grace",
        type=DURATION,
        default=10.0,
        show_default=True,
        metavar="TIME",
        help="From SIGTERM to SIGKILL, in seconds or as 1m.",
    )
    return decorate(command)
