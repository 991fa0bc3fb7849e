"""The token of a server that made one itself: a file for each port, which only its user can read."""

import contextlib
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def new_token() -> str:
    """Return 256 random bits as text that a header and a URL can carry."""
    return secrets.token_urlsafe(32)


def token_path(port: int) -> Path:
    """Return where the token of this user's server on a port is."""
    return _state() / "queue-servers" / f"{port}.token"


def kept_token(port: int) -> str | None:
    """Return the token of this user's server on a port of this machine; None without one."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = token_path(port)
        status = path.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return path.read_text().strip() or None
    return None


def keep_token(port: int, token: str) -> Path:
    """Write the token of a server where only this user can read it."""
    path = token_path(port)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{port}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, token.encode() + b"\n")
    finally:
        os.close(descriptor)
    temporary.replace(path)
    return path


def forget_token(port: int) -> None:
    """Remove the token of a server that ended."""
    with contextlib.suppress(OSError):
        token_path(port).unlink()


def token_for(url: str) -> str | None:
    """Return the token for a server of this user on this machine; None for any other."""
    parts = urlsplit(url)
    if parts.hostname not in _LOOPBACK:
        return None
    try:
        return kept_token(parts.port) if parts.port else None
    except ValueError:  # no port; connecting says so
        return None


def _state() -> Path:
    if given := os.environ.get("FRAY_STATE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fray"
