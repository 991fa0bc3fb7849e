"""`fray queue`, without its commands: `fray --help` shows one line of it, and is quick."""

from typing import Any

import click


class _Commands(click.Group):
    """Imports its commands when one of them is used.

    What a call refuses or the system denies is one line for the user, not a traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return _commands().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _commands().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        from fray import UnsupportedError
        from fray.backend import one_line
        from fray_queue._extras import what_is_missing

        try:
            with one_line():
                return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = what_is_missing(f"fray queue {ctx.invoked_subcommand}", error)
            if missing is None:
                raise
            raise UnsupportedError(missing) from error


@click.group(cls=_Commands)
def queue() -> None:
    """Serve queues, and look into them."""


def _commands() -> click.Group:
    from fray_queue._cli.commands import queue

    return queue
