"""What the files of a user and of a project set: which cluster, which context, the defaults of `fray run`.

A project's is `[tool.fray]` of the nearest `pyproject.toml` that has it, a user's `fray/config.toml` in
`XDG_CONFIG_HOME`, with the same keys. A key of the project wins over the user's, a variable over both, and
the command line over all. They are read by the command line alone; a program chooses itself what it uses.

What a project's file sets runs as this user (`on-exit`, a cluster to connect to), and the search for it leads
through folders of others, such as /tmp. So it must belong to this user or to root.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from fray._values.errors import did_you_mean

CLUSTER_VARIABLE, CONTEXT_VARIABLE = "FRAY_CLUSTER_SPEC", "FRAY_CONTEXT_SPEC"
_TEXTS = ("cluster", "context")
_TABLES = ("clusters", "run")
_PROJECT = "pyproject.toml"
_MOST_OF_ANOTHER = 1 << 20  # bytes that are read of a file of another user, to see whether it is about fray


class SettingsError(click.ClickException):
    """A file has an unknown key or an invalid value."""

    exit_code = 2


@dataclass(frozen=True)
class Setting:
    """One value, and where it was read."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Settings:
    """What the files set, by dotted key: `cluster`, `clusters.prod`, `run.cpu`."""

    values: Mapping[str, Setting]
    files: tuple[str, ...] = ()

    def text(self, key: str) -> str | None:
        """Return a text; None where no file sets it."""
        found = self.values.get(key)
        return None if found is None else str(found.value)

    def below(self, table: str) -> dict[str, Setting]:
        """Return the settings of a table, by the rest of their keys."""
        start = f"{table}."
        return {key.removeprefix(start): value for key, value in self.values.items() if key.startswith(start)}


def settings() -> Settings:
    """Return what the files set here.

    Raises:
        SettingsError: A file cannot be read, or has a key that is not known.
    """
    try:
        folder = os.getcwd()  # noqa: PTH109 - a key of the cache
    except OSError:
        folder = ""  # it was removed: no project's file is above it
    return _settings(folder, os.fspath(user_file()))


def user_file() -> Path:
    """Return where the user's own settings are, or would be."""
    given = os.environ.get("XDG_CONFIG_HOME")
    try:
        folder = Path(given) if given else Path.home() / ".config"
    except RuntimeError:  # a user without a home, as containers have: theirs is / where it is set at all
        folder = Path("/.config")
    return folder / "fray" / "config.toml"


@cache
def _settings(folder: str, user: str) -> Settings:
    values: dict[str, Setting] = {}
    files = []
    for path, table in _files(Path(folder), Path(user)):
        files.append(os.fspath(path))
        for key, value in _flat(table, path):
            values[key] = Setting(value, os.fspath(path))
    return Settings(values, tuple(files))


def _files(folder: Path, user: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the files that set something, the one that wins last."""
    if _is_file(user):
        yield user, _parsed(user, _read(user))
    for above in (folder, *folder.parents):
        path = above / _PROJECT
        if _is_file(path) and b"fray" in (text := _read_own(path)):
            tool = _parsed(path, text).get("tool", {})
            if isinstance(tool, dict) and isinstance(tool.get("fray"), dict):
                yield path, tool["fray"]
                return


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # in a folder that this user may not search


def _read_own(path: Path) -> bytes:
    """Return a file of this user or of root; nothing of one of another, with a message if it is of fray."""
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            if owner in (0, os.geteuid()):
                return file.read()
            start = file.read(_MOST_OF_ANOTHER)
    except OSError as error:
        if _is_own(path):
            raise SettingsError(f"{path} cannot be read: {error}") from error
        return b""  # whether it is about fray is for its owner to know
    if b"tool.fray" in start:
        click.echo(
            f"fray: {path} is passed over: it belongs to another user (uid {owner}), and what it sets would "
            f"run as you; settings of your own are in {user_file()}",
            err=True,
        )
    return b""


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False  # it is gone


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    import tomllib  # imported only where there is a file

    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


def _flat(table: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key not in (*_TEXTS, *_TABLES):
            known = ", ".join((*_TEXTS, *_TABLES))
            hint = did_you_mean(key, (*_TEXTS, *_TABLES))
            raise SettingsError(f"{path}: unknown key {key!r}; known: {known}" + (hint and f"; {hint}"))
        if key in _TEXTS:
            yield key, _text(key, value, path)
            continue
        if not isinstance(value, dict):
            raise SettingsError(f"{path}: {key!r} must be a table, got {value!r}")
        for name, each in value.items():
            below = f"{key}.{name}"
            yield below, _text(below, each, path) if key == "clusters" else each


def _text(key: str, value: Any, path: Path) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{path}: {key!r} must be a spec such as 'ray?address=…', got {value!r}")
    return value


def run_defaults(command: click.Command) -> dict[str, Any]:
    """Return the defaults of `fray run` that files give, by the names of its parameters.

    Raises:
        SettingsError: A key is not an option of it, or the option does not accept the value.
    """
    options = configurable(command)
    found = {}
    for key, setting in settings().below("run").items():
        name = key.replace("_", "-")
        if name not in options:
            hint = did_you_mean(name, options)
            raise SettingsError(
                f"{setting.origin}: 'run.{key}' is not an option of fray run that a file can set"
                + (f"; {hint}" if hint else "; `fray config keys` lists them")
            )
        option = options[name]
        found[str(option.name)] = _checked(option, setting, f"run.{key}")
    return found


def configurable(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that files and variables can set, by their long names."""
    found = {}
    for param in command.params:
        if isinstance(param, click.Option) and param.name not in _ONLY_ON_THE_LINE:
            long = [name for name in param.opts if name.startswith("--")]
            found[long[0].removeprefix("--")] = param
    return found


# Options of one launch, not of how jobs are launched.
_ONLY_ON_THE_LINE = {
    "spec", "as_json", "dry_run", "key", "module", "args", "after", "sweeps", "zips", "max_parallel",
    "context", "help",
}  # fmt: skip


def _checked(option: click.Option, setting: Setting, key: str) -> Any:
    value = setting.value
    if isinstance(value, dict):
        value = [f"{name}={text}" for name, text in value.items()]
    if option.multiple and not isinstance(value, list):
        value = [value]
    if isinstance(option.type, click.Path) and isinstance(value, str):
        folder, name = os.path.split(setting.origin)
        # A user's file is of no folder: what it names is looked for where `fray run` is called.
        value = os.path.join(folder, value) if name == _PROJECT else value  # noqa: PTH118 - it may be absolute
    wrong = None
    if not option.multiple and isinstance(value, list):
        wrong = f"expected one value, got {value!r}"
    elif option.is_flag and not isinstance(value, bool):
        wrong = f"expected true or false, got {value!r}"
    try:
        if wrong is None:
            option.type_cast_value(click.Context(click.Command("run")), _as_typed(value))
    except click.BadParameter as error:
        wrong = error.message
    if wrong is not None:
        raise SettingsError(f"{setting.origin}: '{key}': {wrong}")
    return value


def _as_typed(value: Any) -> Any:
    """Return a value as the command line would have it: of 2.9, as a number, click makes the integer 2."""
    return [str(each) for each in value] if isinstance(value, list) else str(value)
