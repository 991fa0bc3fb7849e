"""Ports that are held for a job: no other process of the host is given them until they are let go."""

import os
import socket
import subprocess
import sys

import pytest

from fray.backend import HeldPorts, free_ports
from fray.job import register_endpoint

# So many of 12,000 that two processes would meet often, if they did not know of each other.
COUNT = 300
HOLD = """
import sys
from fray.backend import HeldPorts
held = HeldPorts()
print(*held.take(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_no_two_processes_hold_the_same_port() -> None:
    command = [sys.executable, "-c", HOLD, str(COUNT)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as two,
    ):
        assert one.stdout is not None
        assert two.stdout is not None
        found = [set(map(int, each.stdout.readline().split())) for each in (one, two) if each.stdout]
        assert [len(ports) for ports in found] == [COUNT, COUNT]
        assert not found[0] & found[1]
        assert not (found[0] | found[1]) & set(free_ports(COUNT))
        one.kill()
        two.kill()


def test_ports_are_free_again_when_they_are_let_go() -> None:
    held = HeldPorts()
    ports = held.take(3)
    assert len(set(ports)) == 3
    assert held.again(ports[0]) == ports[0]
    held.close()
    other = HeldPorts()
    try:
        assert len(other.take(3)) == 3
    finally:
        other.close()


def test_a_port_on_which_somebody_listens_now_is_given_up_for_another() -> None:
    held = HeldPorts()
    (port,) = held.take(1)
    with socket.create_server(("", port)):
        other = held.again(port)
    held.close()
    assert other != port


def test_an_endpoint_without_an_address_says_which_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_JOB_ID", "serve-1")
    with pytest.raises(ValueError, match="ports=\\('http',\\)"):
        register_endpoint("llm/v1")
    for name, value in {"PORT_HTTP": "7001", "PORT_METRICS": "7002", "HOST_ADDRESS": "10.0.0.7"}.items():
        monkeypatch.setenv(f"FRAY_{name}", value)
    with pytest.raises(ValueError, match="address=") as caught:
        register_endpoint("llm/v1")
    advised = str(caught.value).partition("address=")[2]
    assert eval(advised, {"os": os}) == "10.0.0.7:7001"
