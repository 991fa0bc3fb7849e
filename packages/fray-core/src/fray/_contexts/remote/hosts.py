"""The sessions that this worker process has something of."""

import pickle
import threading

from fray._contexts.remote.ending import EndingContext
from fray._contexts.remote.hosting import SessionHost
from fray._contexts.remote.session import Session

_hosts: dict[str, SessionHost] = {}
_ended: dict[str, None] = {}  # sessions that are over, in order: a late request does not bring one back
_ENDED_KEPT = 1000
_lock = threading.Lock()


def context_of(session: bytes) -> EndingContext:
    """Return this process's context of a session, made at its first request."""
    return host_of(session).context


def host_of(session: bytes) -> SessionHost:
    """Return what runs a session's actors and streams in this process."""
    kind, name, namespace, remote = pickle.loads(session)
    with _lock:
        host = _hosts.get(name)
        if host is None:
            if name in _ended:
                raise RuntimeError(f"session {name}: its context was shut down")
            host = _hosts[name] = SessionHost(kind.in_worker(remote, Session(name, namespace, session)))
    return host


def has_session(name: str) -> bool:
    """Whether this process has something of a session."""
    return name in _hosts


def end_session(name: str) -> None:
    """Forget a session, and end what it has in this process."""
    with _lock:
        host = _hosts.pop(name, None)
        _ended[name] = None
        if len(_ended) > _ENDED_KEPT:
            del _ended[next(iter(_ended))]
    if host is not None:
        host.close()


def sessions() -> list[str]:
    """Return the sessions that this process has something of; for tests of what is left behind."""
    with _lock:
        return sorted(_hosts)
