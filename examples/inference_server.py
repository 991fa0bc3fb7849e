"""An inference server that its clients find by name, and find again when it was started again.

python examples/inference_server.py --clients 3 --requests 100 --crash-after 50
"""

import argparse
import http.client
import json
import os
import signal
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

from fray.cluster import (
    Endpoint,
    Entrypoint,
    JobRequest,
    ResourceConfig,
    create_cluster,
    current_cluster,
)
from fray.job import register_endpoint

NAME = "models/tiny"
TEXT = """the loss goes down and the rate goes up and then the loss goes up and the rate goes down
when the server goes down the job goes on and the server comes up again"""
PATIENCE = 60.0  # seconds that a client waits for a server


class Bigrams:
    """The word that most often follows another: it stands for whatever you serve."""

    def __init__(self, text: str) -> None:
        following: defaultdict[str, Counter[str]] = defaultdict(Counter)
        words = text.split()
        for word, after in pairwise(words):
            following[word][after] += 1
        self._next = {word: counts.most_common(1)[0][0] for word, counts in following.items()}

    def complete(self, prompt: str, words: int) -> str:
        """Return the prompt with so many words more."""
        found = prompt.split()
        for _ in range(words):
            found.append(self._next.get(found[-1], "the"))
        return " ".join(found)


def serve(crash_after: int) -> None:
    """Be the server; its first attempt kills itself after so many answers, as a fault would."""
    model, answered = Bigrams(TEXT), 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal answered
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answered += 1
            if answered > crash_after and os.environ["FRAY_ATTEMPT"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            body = json.dumps({"text": model.complete(asked["prompt"], asked["words"])}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Not a line for each request."""

    server = ThreadingHTTPServer(("", int(os.environ["FRAY_PORT_HTTP"])), Handler)
    endpoint = register_endpoint(NAME, metadata={"vocabulary": len(set(TEXT.split()))})  # now that it listens
    print(f"attempt {endpoint.attempt} serves", flush=True)
    server.serve_forever()


def find_server() -> Endpoint:
    """Return where the server is; wait for one where there is none just now."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = current_cluster().endpoints(NAME)
        if found:
            return found[-1]
        time.sleep(0.05)
    raise TimeoutError(f"no server was found as {NAME!r} within {PATIENCE:g} s")


def ask(requests: int) -> None:
    """Be a client: ask again, of the server that is there then, what was not answered."""
    model, attempts = Bigrams(TEXT), set[int]()
    for number in range(requests):
        prompt = TEXT.split()[number % len(TEXT.split())]
        answer, attempt = request_until_answered({"prompt": prompt, "words": 5})
        assert answer == model.complete(prompt, 5)
        attempts.add(attempt)
        time.sleep(0.005)
    print(f"{requests} requests answered by attempts {sorted(attempts)} of the server", flush=True)


def request_until_answered(body: dict[str, object]) -> tuple[str, int]:
    """Return the answer, and which attempt of the server gave it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        endpoint = find_server()
        try:
            return post(endpoint.address, body), endpoint.attempt
        except (OSError, http.client.HTTPException):  # it has just gone: look again
            time.sleep(0.05)
    raise TimeoutError(f"no server answered within {PATIENCE:g} s")


def post(address: str, body: dict[str, object]) -> str:
    """Ask a server once."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("POST", "/", json.dumps(body))
        answer: str = json.loads(connection.getresponse().read())["text"]
        return answer
    finally:
        connection.close()


def main() -> None:
    """Launch the server and its clients, and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="local?overcommit=true")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100, help="of each client")
    parser.add_argument("--crash-after", type=int, default=50, help="answers of the server's first attempt")
    options = parser.parse_args()
    with create_cluster(options.cluster) as cluster:  # type: ignore[attr-defined]
        server = cluster.launch(
            JobRequest(
                "server",
                Entrypoint.from_callable(serve, args=[options.crash_after]),
                ports=["http"],
                max_retries_failure=3,
            )
        )
        clients = cluster.launch(
            JobRequest(
                "clients",
                Entrypoint.from_callable(ask, args=[options.requests]),
                resources=ResourceConfig(cpu=1, ram="512m", replicas=options.clients),
            )
        )
        info = cluster.wait(clients, raise_on_failure=True, stream_logs=True, timeout=10 * PATIENCE)
        (task,) = cluster.poll(server).tasks
        print(f"clients {info.status}; the server is at attempt {task.attempt}")


if __name__ == "__main__":
    main()
