"""Ports of this machine, for a cluster of several nodes on it."""

import random
import socket
import time

# Below those that the kernel gives to connections: one that is free stays free until somebody listens there.
_PORTS = range(20_000, 32_000)


def lasting_port() -> int:
    """Return a free port that no connection takes before somebody listens there."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - nodes that start at the same time choose different ones
        if _is_free(port):
            return port


def await_listener(what: str, port: int, patience: float = 300.0) -> None:
    """Wait until a process answers at its port.

    Raises:
        TimeoutError: It did not within `patience` seconds.
    """
    address = ("127.0.0.1", port)
    deadline = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not answer at {address} within {patience:.0f} s") from error
        time.sleep(0.05)


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True
