"""Connections to Redis: one pool for each address, and which of several addresses takes writes."""

import contextlib
import os
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary, finalize

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fray import FrayError, SpecError
from fray_queue._engines.store import TransientError
from fray_queue._errors import AccessRefusedError, LimitError, QueueFullError
from fray_queue._passwords import refuse_password
from fray_queue._redis.scripts import Script

PORT = 6379
_MOST_MOVES = 5  # that one request follows: nodes that disagree are asked again later
_IDLE = 32  # connections that wait for the next request; more are closed
USERNAME, PASSWORD, CA_FILE = "FRAY_REDIS_USERNAME", "FRAY_REDIS_PASSWORD", "FRAY_REDIS_CA_FILE"
# A node says so that is starting, is a replica, lost its cluster, cannot write to its disk, or hands the
# queue over to another: another may do it, or the same later.
_LATER = (
    *("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "BUSY", "NOREPLICAS"),
    "MISCONF",
)
_LEAST_PART, _MOST_PART = 1 << 20, 512 << 20  # bytes: proto-max-bulk-len at least, and by default
_NO_DATABASE = ("DB index is out of range", "SELECT is not allowed in cluster mode")
_REFUSALS = ("NOPERM", "NOAUTH", "WRONGPASS")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of a URL, which never holds a password."""

    nodes: tuple[tuple[str, int], ...]
    database: int
    username: str | None
    tls: bool

    @classmethod
    def of(cls, url: str) -> "RedisAddress":
        """Read `redis://host:6379/0`, or `redis://one,other:6379/0` where one takes the other's place."""
        refuse_password(url, PASSWORD)
        scheme, _, rest = url.partition("://")
        network, _, path = rest.partition("/")
        user, _, hosts = network.rpartition("@")
        nodes = tuple(_node(host) for host in hosts.split(","))
        if scheme not in ("redis", "rediss") or not all(nodes) or not (path or "0").isdecimal():
            raise SpecError(
                f"{scheme}://{hosts}/{path} is not a Redis address; it is redis://host:6379/0?queue=name, "
                "or rediss: with TLS"
            )
        found = tuple(node for node in nodes if node is not None)
        return cls(found, int(path or 0), unquote(user) or None, scheme == "rediss")

    def only(self, node: tuple[str, int]) -> "RedisAddress":
        """Return the address of one of the nodes."""
        return RedisAddress((node,), self.database, self.username, self.tls)


def _node(text: str) -> tuple[str, int] | None:
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:
        return None
    return parts.hostname or "localhost", port or PORT


_Key = tuple[Any, ...]


class _Pool:
    """Connections to one address, which are closed when no queue of this process uses them any more.

    redis-py's own pool takes as long as a request does.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._pid = make, os.getpid()
        self._idle: deque[Any] = deque()
        finalize(self, _close_all, self._idle)

    def take(self) -> Any:
        """Return a connection for one request."""
        if self._pid != os.getpid():  # forked: they are the parent's
            self._idle.clear()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        _close_all(self._idle)

    def give_back(self, connection: Any) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.disconnect()


def _close_all(idle: "deque[Any]") -> None:
    with contextlib.suppress(IndexError):  # another thread takes them as well
        while True:
            idle.pop().disconnect()


_pools: "WeakValueDictionary[_Key, _Pool]" = WeakValueDictionary()
_pools_lock = threading.Lock()


def _reset_in_child() -> None:
    """A forked child shares no connection with its parent."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_reset_in_child)


def _pool(address: RedisAddress, host: str, port: int, timeout: float) -> _Pool:
    password = os.environ.get(PASSWORD) or None
    ca_file = os.environ.get(CA_FILE) or None
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": address.database,
        "username": address.username or os.environ.get(USERNAME) or None,
        "password": password,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # repetitions are the queue's, which names its requests
        "socket_connect_timeout": min(5.0, timeout),
        "socket_timeout": timeout,
        "socket_keepalive": True,
        "driver_info": None,  # else a user needs the right to report the library
    }
    if address.tls:
        options |= {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
        options |= {"ssl_ca_certs": ca_file} if ca_file else {}
    key = (host, port, address, timeout, options["username"], hash(password), ca_file)
    with _pools_lock:
        pool = _pools.get(key)
        if pool is None:
            kind: Any = redis.SSLConnection if address.tls else redis.Connection
            pool = _pools[key] = _Pool(partial(kind, **options))
        return pool


class Keys:
    """The keys of a queue, as every script is given them: a cluster that has them no more says so at once.

    Were they not given, it would say so when the script comes to the first that moved to another node, and
    what the script did before would stay done.
    """

    def __init__(self, *names: str) -> None:
        self.count = len(names)
        self.packed = b"".join(_packed((self.count, *names)))


def _packed(words: Iterable[Any]) -> list[bytes]:
    """Return words as Redis reads them. That of redis-py takes longer, and all of it for the same keys."""
    data = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return [b"$%d\r\n%b\r\n" % (len(each), each) for each in data]


class Nodes:
    """The nodes that hold one queue; requests go to the one that took the last.

    Args:
        timeout: Seconds that a single request may take.
        engine: Those of the engine that the queue is of, and which outlive it: it begins where they are, and
            they learn which node takes no requests.
    """

    def __init__(self, address: RedisAddress, timeout: float, engine: "Nodes | None" = None) -> None:
        self._address, self._timeout, self._engine = address, timeout, engine
        self._nodes: list[tuple[str, int]] = list(address.nodes if engine is None else engine._nodes)
        self._pools: dict[tuple[str, int], _Pool] = {}

    def close(self) -> None:
        """Release the connections, which end with the last queue of the process that uses them."""
        self._pools.clear()

    def _pool(self, node: tuple[str, int]) -> _Pool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = _pool(self._address, *node, self._timeout)
        return pool

    def run(self, script: Script, keys: Keys, arguments: Sequence[Any]) -> Any:
        """Run a script; by its digest, and where the node does not know it by its text."""
        rest, count = [keys.packed, *_packed(arguments)], 3 + keys.count + len(arguments)
        try:
            return self._send(count, [*_packed(("EVALSHA", script.digest)), *rest], None)
        except redis.exceptions.NoScriptError:
            return self._send(count, [*_packed(("EVAL", script.text)), *rest], None)

    def block(self, seconds: float, *keys: bytes) -> Any:
        """Wait until one of these lists has an entry, and take it."""
        return self.command("BLPOP", *keys, f"{max(seconds, 0.001):.3f}", timeout=seconds + self._timeout)

    def command(self, *command: Any, timeout: float | None = None) -> Any:
        """Send a command and return its answer.

        Raises:
            TransientError: No answer arrived; the next try may go to another node.
            AccessRefusedError: The user may not.
        """
        return self._send(len(command), _packed(command), timeout)

    def _send(self, count: int, packed: list[bytes], timeout: float | None) -> Any:
        request = b"*%d\r\n%b" % (count, b"".join(packed))
        for _ in range(_MOST_MOVES):
            node = self._nodes[0]
            try:
                return _exchange(self._pool(node), request, timeout)
            except redis.exceptions.NoScriptError:
                raise
            except redis.exceptions.MovedError as error:  # nothing was done: the other node may do it at once
                self._follow(error, node)
            except (redis.exceptions.RedisError, OSError) as error:
                self._refuse_large(max(map(len, packed)), node)
                self._refuse(error, node)
        raise TransientError(
            f"the nodes of the cluster do not agree on who has the queue; the last was {node}"
        )

    def _refuse_large(self, size: int, node: tuple[str, int]) -> None:
        """Report what is too large in a request that failed: the node may have said no word."""
        if size <= _LEAST_PART:
            return
        most = _MOST_PART
        with contextlib.suppress(redis.exceptions.RedisError, FrayError):  # a user may lack the right to ask
            (_, setting) = self.command("CONFIG", "GET", "proto-max-bulk-len")
            most = int(setting)
        if size > most:
            raise LimitError(
                "Redis at {}:{} takes no item or result ".format(*node)
                + f"of more than {most} bytes (proto-max-bulk-len); this one has {size}"
            ) from None

    def _follow(self, error: redis.exceptions.MovedError, node: tuple[str, int]) -> None:
        """Go to the node that has the queue, as this one of a cluster says."""
        host, _, port = str(error).split()[-1].rpartition(":")
        there = (host or node[0], int(port))
        self._nodes = [there, *(each for each in self._nodes if each not in (node, there)), node]

    def _go_on(self, node: tuple[str, int]) -> None:
        """Begin with another node, where there is one, as this one takes no requests."""
        if self._nodes[0] == node:  # else another thread went on already
            self._nodes = [*self._nodes[1:], node]
        if self._engine is not None:
            self._engine._go_on(node)

    def _refuse(self, error: Exception, node: tuple[str, int]) -> NoReturn:
        text = str(error)
        where = "{}:{}".format(*node)
        code = text.partition(" ")[0]
        if isinstance(error, (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)) or (
            code in _REFUSALS or "unauthenticated" in text  # the latter of a request of more than ten words
        ):
            raise AccessRefusedError(
                f"Redis at {where} refuses this user: {type(error).__name__}. {_without_secret(text)}"
            ) from None
        if isinstance(error, redis.exceptions.OutOfMemoryError) or code == "OOM":
            raise QueueFullError(
                f"Redis at {where} has no memory left: take items, or raise its maxmemory"
            ) from None
        if text.startswith("unknown command"):
            raise AccessRefusedError(
                f"Redis at {where} does not have a command, which its administrator may have renamed: {text}"
            ) from None
        if any(refusal in text for refusal in _NO_DATABASE):
            raise SpecError(
                f"Redis at {where} has no database {self._address.database}, which the URL names: {text}; "
                "a cluster has only 0, another as many as its setting databases says"
            ) from None
        if isinstance(error, redis.exceptions.ResponseError) and not _is_transient(error):
            raise error
        self._go_on(node)
        raise TransientError(f"{where}: {type(error).__name__}: {_without_secret(text)}") from None


def _exchange(pool: _Pool, packed: bytes, timeout: float | None) -> Any:
    connection = pool.take()
    try:
        connection.send_packed_command([packed], check_health=False)
        longer = {} if timeout is None else {"timeout": timeout}
        answer = connection.read_response(**longer)
    except redis.exceptions.ResponseError as error:
        if _is_transient(error):  # behind the address another node may have taken its place, for new ones
            connection.disconnect()
            pool.close()
        elif str(error).startswith("Protocol error"):  # the node ends the connection after that
            connection.disconnect()
        else:
            pool.give_back(connection)
        raise
    except BaseException:
        connection.disconnect()  # its answer may come yet, and would be taken for another's
        pool.close()  # the others may have ended with it
        raise
    pool.give_back(connection)
    return answer


def _is_transient(error: Exception) -> bool:
    """Return whether another node may do what this one refuses, or this one later."""
    kinds = (
        redis.exceptions.BusyLoadingError,
        redis.exceptions.ReadOnlyError,
        redis.exceptions.MasterDownError,
        redis.exceptions.ClusterDownError,
        redis.exceptions.TryAgainError,
        redis.exceptions.AskError,
    )
    text = str(error)
    return isinstance(error, kinds) or text.partition(" ")[0] in _LATER or "READONLY" in text


def _without_secret(text: str) -> str:
    password = os.environ.get(PASSWORD)
    return text.replace(password, "…") if password else text
