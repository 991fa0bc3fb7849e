"""The engine behind `fray queue serve`: its URL, and a password that no list of processes shows."""

import os
from pathlib import Path

import click

from fray_queue._passwords import parted

VARIABLE = "FRAY_QUEUE_ENGINE"
_PASSWORDS = {"redis": "FRAY_REDIS_PASSWORD", "postgres": "PGPASSWORD"}


def engine_of(url: str | None, file: Path | None) -> str | None:
    """Return the engine's URL without its password: as given, or from a file, or from the environment.

    A password of the file's or the environment's URL goes to the variable that the engine's clients read.

    Raises:
        UsageError: Two are given, or others may read a file with a password.
    """
    if url is not None and file is not None:
        raise click.UsageError("--engine and --engine-file both say where the engine is; give one of them")
    if url is not None:
        return url  # one with a password is refused: a list of processes shows it
    text = file.read_text().strip() if file is not None else os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    plain, password = parted(text)
    if password is not None:
        if file is not None and file.stat().st_mode & 0o077:
            raise click.UsageError(f"{str(file)!r} holds a password, and others may read it: chmod 600 it")
        for scheme, variable in _PASSWORDS.items():
            if plain.startswith(scheme):
                os.environ[variable] = password
    return plain
