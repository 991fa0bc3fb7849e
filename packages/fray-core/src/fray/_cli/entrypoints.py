"""What the arguments of `fray run` name: a command, a script, a module or a function.

Whatever can be found out here is found out before anything starts.
"""

import contextlib
import inspect
import re
import shutil
import sys
from collections.abc import Sequence
from enum import Enum
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fray._cli.shared import talk
from fray._cli.values import literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

    from fray._values.entrypoint import Entrypoint

_FUNCTION = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*(\.[^\W\d]\w*)*)")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Modules(Enum):
    """Where a job imports its modules from."""

    HERE = "where this process does"
    ITS_OWN = "an environment of its own"
    ON_THE_CLUSTER = "what the machines of the cluster have"


class Target(NamedTuple):
    """What is to run, and what a job that runs it is called by default."""

    entrypoint: "Entrypoint"
    name: str


def target_of(
    words: Sequence[str],
    *,
    verbatim: bool,
    module: bool,
    args: Sequence[str],
    folder: Path,
    modules: Modules,
) -> Target:
    """Read the words behind the options of `fray run`.

    Args:
        verbatim: They stood behind `--`: a command, whatever it looks like.
        module: `-m` was given: the first word is a module.
        args: Those of `--arg`.
        folder: The working directory of the job.
        modules: Where the job imports from.

    Raises:
        UsageError: It cannot be run; the message says why.
    """
    if module:
        _refuse_args(args, words[0])
        return _module(words, folder, modules)
    named = _FUNCTION.fullmatch(words[0])
    if not verbatim and named and shutil.which(words[0]) is None and not (folder / words[0]).exists():
        given = [*args, *_args_behind(words[0], words[1:])]
        return _function(named["module"], named["function"], given, folder)
    _refuse_args(args, words[0])
    if not verbatim and words[0].endswith(".py"):
        return _script(words, folder)
    return _command(words)


def _command(words: Sequence[str]) -> Target:
    from fray._jobs.clusters.context import job_name
    from fray._values.entrypoint import Entrypoint

    return Target(Entrypoint.from_binary(words[0], words[1:]), job_name(" ".join(words)))


def _script(words: Sequence[str], folder: Path) -> Target:
    from fray._values.entrypoint import Entrypoint

    path = Path(words[0])
    if not (folder / path).is_file():
        elsewhere = f"; there is one in {Path.cwd()}, which --workdir leaves" if path.is_file() else ""
        raise click.UsageError(
            f"there is no file {words[0]} in {folder}{elsewhere}. A command of that name goes after `--`"
        )
    return Target(Entrypoint.from_binary("python", words), path.stem)


def _module(words: Sequence[str], folder: Path, modules: Modules) -> Target:
    from fray._values.entrypoint import Entrypoint

    name = words[0]
    if not _MODULE.fullmatch(name):
        raise click.UsageError(f"-m takes a module's dotted name such as pkg.train, got {name!r}")
    missing = None if modules is Modules.ITS_OWN else _missing(name, [str(folder), *sys.path])
    if missing:
        message = f"no module {name!r}: {missing} is not in {folder}, nor installed here"
        if modules is Modules.HERE:
            raise click.UsageError(message)
        talk(f"warning: {message}; the job runs where the cluster's machines have it")
    return Target(Entrypoint.from_module(name, words[1:]), name)


def _missing(module: str, path: list[str]) -> str | None:
    """Return the part of a module's name that is not found; nothing is imported."""
    found, places = "", list(path)
    for part in module.split("."):
        found = f"{found}.{part}" if found else part
        if found in sys.builtin_module_names or found in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(found, places) or _of_other_finders(
            found, places if "." in found else None
        )
        if spec is None:
            return repr(found)
        places = list(spec.submodule_search_locations or ())
    return None


def _of_other_finders(name: str, places: list[str] | None) -> "ModuleSpec | None":
    """Ask what else this process imports by, such as the finders of editable installs."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if finder is not PathFinder and find is not None:
            spec: ModuleSpec | None = find(name, places)
            if spec is not None:
                return spec
    return None


def _function(module: str, name: str, args: Sequence[str], folder: Path) -> Target:
    from fray._values.entrypoint import Entrypoint

    kwargs = _typed(args)
    function = _import(module, name, folder)
    _check_signature(f"{module}:{name}", function, kwargs)
    return Target(Entrypoint.from_callable(function, kwargs=kwargs), f"{module}:{name}")


def _import(module: str, name: str, folder: Path) -> "Callable[..., Any]":
    """Import a function as the job will: from its working directory first."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what is printed here is an id, or JSON
            found: Any = import_module(module)
    except SystemExit as error:
        raise click.UsageError(
            f"{module!r} ends the program that imports it, by exit({error.code!r}): what a script does goes "
            "below `if __name__ == '__main__':`; `fray run -m` runs it as it is"
        ) from error
    except Exception as error:
        raise click.UsageError(
            f"cannot import {module!r} in {folder}: {type(error).__name__}: {error}. A function is imported "
            "here first; `fray run -m` runs a module that only the job's environment can import"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            inside = getattr(found, "__dict__", {})  # a number or a text has none
            known = sorted(each for each, value in inside.items() if _is_own(value, module))
            raise click.UsageError(
                f"{module!r} has no function {name!r}; it has {', '.join(known) or 'none'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"{module}:{name} is not a function: its type is {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _is_own(value: Any, module: str) -> bool:
    return inspect.isfunction(value) and value.__module__ == module and not value.__name__.startswith("_")


def _check_signature(what: str, function: "Callable[..., Any]", kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # one without a signature
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise click.UsageError(f"{what}{signature}: {error}; give arguments by --arg NAME=VALUE") from error


def _args_behind(target: str, words: Sequence[str]) -> list[str]:
    """Read `--arg NAME=VALUE` behind a function."""
    given, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word == "--arg" and rest:
            given.append(rest.pop(0))
        elif word.startswith("--arg="):
            given.append(word.removeprefix("--arg="))
        else:
            raise click.UsageError(f"{target} is a function: it takes --arg NAME=VALUE, got {word!r}")
    return given


def _typed(args: Sequence[str]) -> dict[str, Any]:
    """Read the arguments of a function: each a JSON value, else text."""
    kwargs: dict[str, Any] = {}
    for text in args:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--arg takes NAME=VALUE, got {text!r}")
        if name in kwargs:
            raise click.UsageError(f"--arg {name} is given twice")
        kwargs[name] = literal(value)
    return kwargs


def _refuse_args(args: Sequence[str], word: str) -> None:
    if args:
        raise click.UsageError(
            f"--arg goes with a function such as pkg.mod:function; {word!r} takes its arguments behind it"
        )
