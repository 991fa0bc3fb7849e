"""Ports of this machine, for a cluster of several nodes on it."""

import socket
import time


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
