"""A Redis and a PostgreSQL of the tests' own, on free loopback ports; ended by their process ids."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

from queue_processes import wait_until

_numbers = itertools.count()


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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder
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


def as_postgres() -> list[str]:
    """Return what begins a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
