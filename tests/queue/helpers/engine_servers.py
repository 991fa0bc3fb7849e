"""A Redis and a PostgreSQL of the tests' own, on free loopback ports; ended by their process ids."""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import psycopg
from queue_processes import wait_until

_numbers = itertools.count()
_PRODUCER = [
    *("~fray:{*}:*", "+evalsha", "+eval", "+time", "+exists", "+hget", "+hmget", "+hset", "+hincrby"),
    *("+hexists", "+hdel", "+zadd", "+zrem", "+zcard", "+zrange", "+zrangebyscore", "+zscore", "+llen"),
    *("+lpush", "+rpush", "+lindex", "+zscan", "+expire", "+hlen", "+hgetall", "+blpop"),
]
_WORKER = [*_PRODUCER, "+zpopmin", "+lpop"]
_ADMIN = [*_WORKER, "+zrangebylex", "+hstrlen", "+unlink", "+info", "+config|get"]
REDIS_RIGHTS = {"producer": _PRODUCER, "worker": _WORKER, "admin": _ADMIN, "server": [*_ADMIN, "+scan"]}
"""What each kind of program needs; the page about the queue gives the same."""


def fresh_name() -> str:
    """Return the name of a queue that nobody had: one server serves all tests."""
    return f"q{next(_numbers)}"


def free_port() -> int:
    """Return a port that nobody listens on; below what a node of a cluster adds 10,000 to."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
            if port < 50_000:
                return port


def listens(port: int) -> bool:
    """Return whether somebody takes connections there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """A server as a process, which can be killed, stopped for a while, and started again where it was."""

    url: str

    def __init__(self, folder: Path) -> None:
        self.folder = self.home = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.home
            )
        try:
            wait_until(lambda: (self.process and self.process.poll() is not None) or self.is_ready(), 60.0)
            assert self.process.poll() is None, (self.folder / "log").read_text()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class RedisServer(Program):
    """Debian's redis-server, with what a test sets."""

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder)
        self.settings = settings
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        program = shutil.which("redis-server")
        assert program, "the tests of redis: queues need Debian's redis-server"
        fixed = ["--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        return [program, "--port", str(self.port), *fixed, *self.settings]

    def is_ready(self) -> bool:
        return listens(self.port) and self.ask("PING") in (b"+PONG", b"-NOAUTH Authentication required.")

    def is_joined(self) -> bool:
        """Return whether the cluster that it is a node of is complete."""
        return b"cluster_state:ok" in self.everything("CLUSTER", "INFO")

    def ask(self, *command: str) -> bytes:
        """Send a command of plain words; return the first line of the answer."""
        return self.everything(*command).split(b"\r\n")[0]

    def everything(self, *command: str) -> bytes:
        """Send a command of plain words; return the answer as it is."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
                client.sendall(" ".join(command).encode() + b"\r\n")
                return client.recv(65536)
        except OSError:
            return b""

    def cli(self, *command: str) -> None:
        """Do what an operator does, which must succeed."""
        parts = [part.encode() for part in command]
        lines = [b"*%d" % len(parts)] + [line for part in parts for line in (b"$%d" % len(part), part)]
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
            client.sendall(b"\r\n".join(lines) + b"\r\n")
            answer = client.recv(65536)
        assert not answer.startswith(b"-"), answer


def certificate_of_this_machine(folder: Path) -> tuple[Path, Path]:
    """Make a key and a certificate that signs itself."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-addext", names]
    subprocess.run(
        [*command, "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return key, certificate


class PostgresServer(Program):
    """Debian's postgresql, run by its own user where the tests run as root: it refuses to."""

    def __init__(self, folder: Path, *settings: str, copy_of: "PostgresServer | None" = None) -> None:
        super().__init__(folder)
        self.settings = settings
        # A folder of pytest's own is for one user alone.
        self.home = Path(tempfile.mkdtemp(prefix="fray-postgres-", dir="/tmp"))
        self._data = self.home / "data"
        if os.geteuid() == 0:
            shutil.chown(self.home, "postgres", "postgres")
        if copy_of is None:
            options = ["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C"]
            self._do("initdb", "-D", str(self._data), *options)
        else:
            self._do(
                "pg_basebackup",
                "-D",
                str(self._data),
                "-d",
                copy_of.url_of(),
                "-R",
                "--no-sync",
                "-c",
                "fast",
            )
        self.url = self.url_of()

    def url_of(self, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres"

    def _do(self, program: str, *arguments: str) -> None:
        command = [*_as_postgres(), _program(program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.home, env=_plain())

    def command(self) -> list[str]:
        fixed = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            "max_connections": 200,
            "restart_after_crash": "on",
            "fsync": "off",
        }
        settings = [f"{name}={value}" for name, value in fixed.items()] + list(self.settings)
        options = [part for setting in settings for part in ("-c", setting)]
        return [*_as_postgres(), _program("postgres"), "-D", str(self._data), *options]

    def is_ready(self) -> bool:
        with contextlib.suppress(psycopg.Error), self.session():
            return True
        return False

    def session(self, user: str = "postgres") -> "psycopg.Connection[Any]":
        return psycopg.connect(self.url_of(user), autocommit=True, connect_timeout=5)

    def sql(self, *statements: str) -> list[Any]:
        """Do what an operator does; return the rows of the last statement."""
        with self.session() as session:
            for statement in statements:
                cursor = session.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def __exit__(self, *error: object) -> None:
        self.kill()
        shutil.rmtree(self.home)

    def promote(self) -> None:
        self._do("pg_ctl", "-D", str(self._data), "promote", "-w")

    def kill(self) -> None:
        """End all of its processes at once, as a crash of the machine would."""
        if self.process is None or self.process.poll() is not None:
            return
        # A postmaster that runs could start another process after the look at its children.
        self.process.send_signal(signal.SIGSTOP)
        wait_until(partial(_starts_nothing, self.process.pid))
        pids = self._pids()
        self.process.kill()
        self.process.wait()
        for pid in pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids[1:]:
            wait_until(partial(_has_ended, pid))
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        assert self.process is not None
        pid = self.process.pid
        lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [pid, *(int(child) for children in lists for child in children)]


def _starts_nothing(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "Z", "X")
    return True


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def _as_postgres() -> list[str]:
    """Return what begins a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _program(name: str) -> str:
    """Return a program of PostgreSQL's; Debian keeps them out of the path."""
    found = shutil.which(name) or max(
        map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None
    )
    assert found, "the tests of postgresql: queues need Debian's postgresql"
    return found


@contextlib.contextmanager
def redis_cluster(folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A cluster of two nodes, each with half of the slots."""
    settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with RedisServer(folder / "one", *settings) as one, RedisServer(folder / "two", *settings) as two:
        one.cli("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
        two.cli("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
        one.cli("CLUSTER", "MEET", "127.0.0.1", str(two.port))
        for node in (one, two):
            wait_until(node.is_joined)
        yield one, two
