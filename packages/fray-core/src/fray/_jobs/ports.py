"""Ports on loopback that programs of a job may listen on."""

import os
import random
import socket

# Below the range that systems take the ports of outgoing connections from (Linux 32768, macOS 49152): a
# program that connects before its peer listens could else be given that very port, and talk to itself.
_PORTS = range(20000, 32000)


PORT_VARIABLE = "FRAY_PORT_"
HOST_ADDRESS = "FRAY_HOST_ADDRESS"
"""The variable that says where others reach the host of a replica."""


def port_variable(name: str) -> str:
    """Return the variable in which a replica finds its port of this name."""
    return PORT_VARIABLE + name.upper().replace("-", "_")


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 on which nobody listens now."""
    # A fork has the same state of `random` as its parent; two jobs must not look in the same order.
    order = random.Random(os.urandom(8)).sample(_PORTS, len(_PORTS))  # noqa: S311 - not secret
    found: list[int] = []
    for port in order:
        if len(found) == count:
            return found
        if _free(port):
            found.append(port)
    raise OSError(f"no {count} of the ports {_PORTS.start} to {_PORTS.stop - 1} of 127.0.0.1 are free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
