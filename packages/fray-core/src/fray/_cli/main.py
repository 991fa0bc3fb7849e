"""The `fray` command: read, call, print, return.

`_EXIT_CODES` lists its exit codes; an unexpected error keeps its traceback.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from fray._values.errors import FrayError, PluginError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Verb -> where its command is, and its line in `fray --help`; a command's module is imported when it runs.
_VERBS = {
    "run": ("fray._cli.run:run", "Launch a command as a job and follow its log."),
    "list": ("fray._cli.jobs:list_jobs", "List the jobs of the cluster."),
    "status": ("fray._cli.status:status", "Show all that is known of a job, or of a sweep."),
    "logs": ("fray._cli.jobs:logs", "Print what a job has written."),
    "usage": ("fray._cli.usage:usage", "Show what the replicas of a job used over time."),
    "wait": ("fray._cli.jobs:wait", "Wait until jobs are finished."),
    "stop": ("fray._cli.jobs:stop", "Stop jobs, and the jobs that they launched."),
    "retry": (
        "fray._cli.restart:retry",
        "Run a job that did not succeed again, or the failed members of a sweep.",
    ),
    "restart": (
        "fray._cli.restart:restart",
        "End a running job and start it again, or run a failed one again.",
    ),
    "rm": ("fray._cli.pruning:remove", "Remove finished jobs: their records, logs and files."),
    "prune": ("fray._cli.pruning:prune", "Remove old jobs, and environments that no job uses."),
    "ui": ("fray._ui.command:ui", "Show jobs and queues as a page."),
    "config": ("fray._cli.config:config", "Show what files and variables set, and where."),
    "doctor": ("fray._cli.doctor:doctor", "Check this installation: what is wrong, and what to do."),
    "completion": ("fray._cli.completion:completion", "Print the code by which a shell completes job ids."),
    "plugins": ("fray._cli.plugins:plugins", "List the installed plugins, broken ones with the reason."),
}


class _Verbs(click.Group):
    """The built-in verbs, then those of `fray.commands`, each imported only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_VERBS, *_plugin_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _VERBS:
            module, _, attribute = _VERBS[cmd_name][0].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        from fray._discovery.plugins import COMMANDS, load, provider

        if cmd_name not in _plugin_verbs() and (ctx.resilient_parsing or not provider(COMMANDS, cmd_name)):
            return None  # else `load` says which wheel has the verb

        loaded: click.Command = load(COMMANDS, cmd_name)
        return loaded

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete a verb; none of them is imported for that."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        summaries = {verb: summary for verb, (_, summary) in _VERBS.items()}
        verbs = [verb for verb in self.list_commands(ctx) if verb.startswith(incomplete)]
        return [CompletionItem(verb, help=summaries.get(verb, "")) for verb in verbs]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(verb, summary) for verb, (_, summary) in _VERBS.items()]
        for verb in _plugin_verbs():
            try:
                command = self.get_command(ctx, verb)
                rows.append((verb, command.get_short_help_str() if command else ""))
            except PluginError:
                rows.append((verb, "(cannot be loaded: see `fray plugins`)"))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _plugin_verbs() -> list[str]:
    from fray._discovery.plugins import COMMANDS, plugins

    return list(plugins(COMMANDS))


_EXIT_CODES = (
    "Exit codes: 0 success; 1 failure, with one line on stderr; 2 wrong usage; 130 interrupted. "
    "`fray run` and `fray wait` exit with the job's."
)


@click.group(cls=_Verbs, epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fray-core", prog_name="fray")
def fray() -> None:
    """Launch and follow jobs, and see what is installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        # None: colours where the output is a terminal.
        color = False if os.environ.get("NO_COLOR") else None
        result: Any = fray.main(args=argv, prog_name="fray", standalone_mode=False, color=color)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FrayError as error:
        click.echo(f"fray: {error}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("fray: interrupted", err=True)
        return 130
    except OSError as error:  # the system denies a file: which, and why, is all that its user needs
        if error.filename is None:
            raise
        click.echo(f"fray: {error}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def entry() -> None:
    """Run the console script."""
    _open_closed_streams()
    out = sys.stdout
    # A job may write, or be called, what the encoding of this terminal or pipe lacks.
    if isinstance(out, io.TextIOWrapper) and out.errors in ("strict", "surrogateescape"):
        out.reconfigure(errors="backslashreplace")
    try:
        code = main()
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        click.echo(f"fray: the output is not complete: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left there when it ends
        code = 1
    sys.exit(code)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _open_closed_streams() -> None:
    """Let the standard streams that this was started without read and write nothing.

    Each gets its own number again: the lowest one that is free.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
