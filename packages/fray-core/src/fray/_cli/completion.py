"""Completion of the shell: the script that `fray completion SHELL` prints, and the values for it."""

import contextlib
import io
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SHELLS = ("bash", "zsh", "fish")
_MOST = 200


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the code by which a shell completes verbs, options and job ids.

    \b
    bash  eval "$(fray completion bash)"               in ~/.bashrc
    zsh   eval "$(fray completion zsh)"                in ~/.zshrc
    fish  fray completion fish > ~/.config/fish/completions/fray.fish
    """
    from click.shell_completion import get_completion_class

    from fray._cli.main import fray

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(fray, {}, "fray", "_FRAY_COMPLETE").source())


def complete_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the id of a job, the latest first; an error of the cluster completes nothing."""
    from click.shell_completion import CompletionItem

    from fray._cli.shared import open_cluster

    # A message would end up in the line that is being typed.
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        infos = open_cluster(ctx.params.get("spec")).list_jobs()
        found = [info for info in reversed(infos) if info.job_id.startswith(incomplete)]
        if not incomplete or any("/" not in info.job_id for info in found):
            found = [info for info in found if "/" not in info.job_id.removeprefix(incomplete)]
        return [CompletionItem(info.job_id, help=str(info.status)) for info in found[:_MOST]]
    return []
