"""The commands of `fray queue`: look into queues, and change what is in them."""

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from fray import FrayError, UnsupportedError
from fray.backend import print_table
from fray.queue import Lease, UnreadableItem
from fray_queue._cli.access import Access, is_served, open_at, reaching
from fray_queue._cli.command_work import json_of, text_of, work
from fray_queue._cli.lines import arriving_lines
from fray_queue._cli.serve import serve
from fray_queue._cli.tokens import tokens

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


queue = click.Group()
queue.add_command(serve)
queue.add_command(tokens)
queue.add_command(work)


@queue.command("list")
@click.argument("url")
@reaching
@_as_json
def list_(url: str, access: Access, as_json: bool) -> None:
    """List the queues of the server at URL."""
    if not is_served(url):
        raise click.UsageError(
            f"the URL is that of a server, http://HOST:PORT, got {url!r}; `fray queue stats` is of one queue"
        )
    from fray_queue._http.client.queue import list_queues

    queues = list_queues(url, access.token, ca_file=access.ca_file)
    columns = ["name", "size", "pending", "in_flight", "dead", "oldest_seconds"]
    _print(queues, columns, as_json)


@queue.command()
@click.argument("url")
@click.argument("items", nargs=-1)
@click.option("--create", is_flag=True, help="Make the queue where it is missing.")
@reaching
@_as_json
def push(url: str, items: tuple[str, ...], create: bool, access: Access, as_json: bool) -> None:
    """Push ITEMS, or the lines of standard input as they arrive. With --json each is JSON, else text.

    ITEMS are pushed together, lines up to 1,000 at a time. Their ids are printed when they are stored.
    """
    opened = open_at(url, access, create=create)
    stored = 0
    try:
        for texts in [items] if items else arriving_lines():
            ids = opened.push_many(_parsed(texts, stored) if as_json else texts)
            if as_json:  # one list, which is closed at the end
                click.echo(("[" if not stored else ", ") + json.dumps(ids)[1:-1], nl=False)
            else:
                click.echo("\n".join(ids))
            stored += len(ids)
    finally:
        if as_json and stored:
            click.echo("]")
    if as_json and not stored:
        click.echo("[]")


def _parsed(texts: Sequence[str], stored: int) -> list[Any]:
    try:
        return [json.loads(text) for text in texts]
    except json.JSONDecodeError as error:
        before = f"; the first {stored} lines are pushed, and no others" if stored else ""
        raise click.UsageError(f"not JSON: {error}{before}") from error


@queue.command()
@click.argument("url")
@click.option("-n", default=1, show_default=True, help="How many at most.")
@click.option("--wait", default=0.0, show_default=True, help="Seconds to wait for the first.")
@reaching
@_as_json
def pop(url: str, n: int, wait: float, access: Access, as_json: bool) -> None:
    """Take items, print them and finish them. Unpickles what others pushed: trust them."""
    opened = open_at(url, access)
    leases = opened.pop_many(n, wait=wait)
    try:
        for lease in leases:
            item = json.loads(json_of(lease.item))
            row = {"item_id": lease.item_id, "attempt": lease.attempt, "item": item}
            click.echo(json.dumps(row) if as_json else _as_it_was(str(lease.item)))
        sys.stdout.flush()
    except BaseException:  # what was not printed is not finished, and others may have it at once
        with contextlib.suppress(FrayError, OSError):
            _return_unprinted(opened, leases)
        raise
    opened.done_many(leases)


@queue.command()
@click.argument("url")
@click.option("--max-attempts", type=click.IntRange(min=1), help="After so many an item is a dead letter.")
@click.option("--max-size", type=click.IntRange(min=1), help="Items that it takes; more have to wait.")
@reaching
def create(url: str, max_attempts: int | None, max_size: int | None, access: Access) -> None:
    """Make the queue at URL, or confirm its options."""
    given = {"max_attempts": max_attempts, "max_size": max_size}
    options = {name: value for name, value in given.items() if value is not None}
    opened = open_at(url, access, create=True, **options)
    if max_attempts is not None and not hasattr(type(opened), "max_attempts"):
        raise UnsupportedError(
            f"the queue at {url!r} does not keep max_attempts: give each program that opens it a URL with "
            f"the option max_attempts={max_attempts}"
        )
    opened.size()
    click.echo(f"{url} is there")


@queue.command()
@click.argument("url")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reaching
def delete(url: str, yes: bool, access: Access) -> None:
    """Remove the queue at URL with all that is in it."""
    opened: Any = open_at(url, access)
    if not hasattr(opened, "delete"):
        raise UnsupportedError(f"{url!r} cannot be removed: its backend has no `delete`")
    if not yes:
        click.confirm(f"Remove {url} with all that is in it ({opened.size()} items)?", abort=True)
    opened.delete()
    click.echo(f"{url} is removed")


@queue.command()
@click.argument("url")
@reaching
@_as_json
def peek(url: str, access: Access, as_json: bool) -> None:
    """Print the item that a pop would take, and leave it; exit with 1 where there is none.

    Unpickles what others pushed: trust them.
    """
    opened = open_at(url, access)
    if not opened.pending():
        raise SystemExit(1)
    item = opened.peek()
    click.echo(json_of(item) if as_json else _as_it_was(text_of(item)))


@queue.command()
@click.argument("url")
@reaching
@_as_json
def stats(url: str, access: Access, as_json: bool) -> None:
    """Count what is in the queue at URL."""
    opened = open_at(url, access)
    if is_served(url):
        told = opened.stats()
        row = {column: told[column] for column in ("size", "pending", "in_flight", "dead")}
    elif hasattr(opened, "stats"):  # ours count the dead: they are neither fetched nor unpickled
        told = opened.stats()
        row = {"size": told["pending"] + told["held"], "pending": told["pending"]}
        row |= {"in_flight": told["held"], "dead": told["dead"]}
    else:
        size, pending = opened.size(), opened.pending()
        row = {"size": size, "pending": pending, "in_flight": size - pending}
        row["dead"] = len(opened.dead_letters())
    _print([row], list(row), as_json)


@queue.command()
@click.argument("url")
@reaching
@_as_json
def dead(url: str, access: Access, as_json: bool) -> None:
    """List the dead letters of the queue at URL; those of a server without what they hold."""
    opened = open_at(url, access)
    if is_served(url):  # items are not unpickled to look at a queue
        shown = "bytes"
        told = opened.dead_facts()
        letters = [(each["item_id"], each["attempts"], each["history"], each["bytes"]) for each in told]
    else:
        shown = "item"
        letters = [
            (
                each.item_id,
                each.attempts,
                [(a.number, a.outcome, a.started_at, a.ended_at, a.error) for a in each.history],
                _shown(each.item),
            )
            for each in opened.dead_letters()
        ]
    rows = [
        {
            "item_id": item_id,
            "attempts": attempts,
            "outcomes": ",".join(attempt[1] for attempt in history),
            "errors": [attempt[4] for attempt in history if attempt[4]],
            shown: what,
        }
        for item_id, attempts, history, what in letters
    ]
    _print(rows, ["item_id", "attempts", "outcomes", shown], as_json)


@queue.command()
@click.argument("url")
@click.argument("item_ids", nargs=-1)
@reaching
@_as_json
def requeue(url: str, item_ids: tuple[str, ...], access: Access, as_json: bool) -> None:
    """Put dead letters back: those of ITEM_IDS, or all.

    The exit code is 1 where one of ITEM_IDS is no dead letter; the others are put back.
    """
    wanted = set(item_ids)
    count = open_at(url, access).requeue_dead(list(wanted) or None)
    click.echo(json.dumps({"requeued": count}) if as_json else f"{count} requeued")
    if count < len(wanted):
        raise click.ClickException(
            f"{len(wanted) - count} of {len(wanted)} ids are of no dead letter; `fray queue dead` lists them"
        )


@queue.command()
@click.argument("url")
@click.option("--dead", "only_dead", is_flag=True, help="The dead letters, not the items.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reaching
@_as_json
def purge(url: str, only_dead: bool, yes: bool, access: Access, as_json: bool) -> None:
    """Remove every item of the queue at URL, leased ones too."""
    opened: Any = open_at(url, access)
    if not hasattr(opened, "purge"):
        raise UnsupportedError(f"{url!r} cannot be purged: its backend has no `purge`")
    if not yes:
        click.confirm(f"Remove all {'dead letters' if only_dead else 'items'} of {url}?", abort=True)
    count = opened.purge_dead() if only_dead else opened.purge()
    click.echo(json.dumps({"removed": count}) if as_json else f"{count} removed")


@queue.command()
@click.argument("url")
@click.option("--restore", is_flag=True, help="Put items back whose history cannot be read.")
@reaching
@_as_json
def repair(url: str, restore: bool, access: Access, as_json: bool) -> None:
    """List what in the queue at URL cannot be read; the exit status is 1 while there is some.

    None of it stops the queue. A damaged item is among the dead letters, with its bytes; an item with a
    damaged history rests until --restore puts it back; files that are not the queue's are left alone.
    """
    opened: Any = open_at(url, access)
    if not hasattr(opened, "repair"):
        raise UnsupportedError(f"{url!r} cannot be repaired: its backend has no `repair`")
    found = opened.repair(restore=restore)
    columns = ["path", "problem", "item_id", "restored"]
    rows = [{column: getattr(each, column) for column in columns} for each in found]
    _print(rows, columns, as_json)
    if any(not each.restored for each in found):
        sys.exit(1)


def _return_unprinted(opened: Any, leases: list[Lease[Any]]) -> None:
    if hasattr(opened, "give_back"):
        opened.give_back(leases)
        return
    for lease in leases:
        opened.release(lease)


def _as_it_was(text: str) -> str | bytes:
    """Return a text as `push` read it: in bytes, where some of them are none in the system's encoding."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        with contextlib.suppress(UnicodeEncodeError):
            return text.encode(sys.stdout.encoding or "utf-8", "surrogateescape")
    return text


def _shown(item: Any) -> str:
    return f"unreadable here: {item.error}" if isinstance(item, UnreadableItem) else repr(item)


def _print(rows: list[dict[str, Any]], columns: list[str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        print_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
