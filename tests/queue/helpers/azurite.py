"""Azurite, the emulator of Azure's blob store, as a process of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from azure.storage.blob import BlobServiceClient

_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"
    "/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own, in its documentation
)
_INSTALLED = (
    Path(__file__).resolve().parents[3] / ".nox" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
)


def _program() -> str:
    found = shutil.which("azurite-blob") or (str(_INSTALLED) if _INSTALLED.exists() else None)
    if found is None:
        raise FileNotFoundError("azurite-blob is not installed: run the tests by nox, or npm install azurite")
    return found


@contextlib.contextmanager
def azurite() -> Iterator[str]:
    """Run the emulator with a container `bucket`; give its connection string."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    arguments = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    command = [_program(), *arguments, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"account:{_KEY}"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        _wait_for(process, port)
        url = f"http://127.0.0.1:{port}/account"
        text = f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={_KEY};BlobEndpoint={url};"
        with BlobServiceClient.from_connection_string(text) as client:
            client.create_container("bucket")
        yield text
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, "azurite ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise TimeoutError("azurite does not listen")
