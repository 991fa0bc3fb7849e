"""A pool of workers that answers requests from a queue, loses workers on the way, and loses no request.

The model is small and real: naive Bayes over the words of a line of Python, trained on the source of the
standard library, tells which of its packages the line is from. Every tenth line is kept from training
and asked.

    python examples/inference_pool.py                             # 2,000 requests, two workers
    python examples/inference_pool.py --workers 4 --crash 0.05    # a batch in twenty kills its worker

Two queues in an SQLite file; a job whose replicas lease requests, answer them and push the answers to the
second queue; and a client that streams requests in and hands the answers on in order.
"""

import argparse
import math
import os
import random
import re
import signal
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, repeat, zip_longest
from pathlib import Path

from fray.cluster import JobId, JobRequest, ResourceConfig, current_cluster
from fray.queue import Lease, LeaseExpiredError, Queue, open_queue

PACKAGES = ("asyncio", "email", "idlelib", "json", "multiprocessing", "tkinter", "unittest", "xml")
BATCH = 16
LEASE = 2.0  # seconds until the requests of a worker that died go to another
WORD = re.compile(r"[A-Za-z_]\w+")


@dataclass(frozen=True)
class Request:
    number: int
    line: str


@dataclass(frozen=True)
class Answer:
    number: int
    package: str


# --- the model ---


def lines_of(package: str) -> Iterator[str]:
    """Yield the lines of a package's sources that have some words."""
    for path in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if len(WORD.findall(line)) >= 3:
                yield line.strip()


class Model:
    """Naive Bayes with add-one smoothing."""

    def __init__(self) -> None:
        self._words = {
            package: Counter(
                word
                for index, line in enumerate(lines_of(package))
                if index % 10
                for word in WORD.findall(line)
            )
            for package in PACKAGES
        }
        vocabulary = len(set().union(*self._words.values()))
        self._totals = {package: words.total() + vocabulary for package, words in self._words.items()}

    def predict(self, line: str) -> str:
        """Return the package that the line is most likely from."""
        words = WORD.findall(line)

        def likelihood(package: str) -> float:
            seen, total = self._words[package], self._totals[package]
            return sum(math.log((seen[word] + 1) / total) for word in words)

        return max(PACKAGES, key=likelihood)


# --- the workers ---


def serve(url: str, crash: float) -> None:
    """Answer requests until stopped; each replica of the job runs this."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    requests: Queue[Request] = open_queue(url, queue="requests")
    answers: Queue[Answer] = open_queue(url, queue="answers")
    model = Model()
    print("ready", flush=True)
    while not stopping.is_set():
        leases = requests.pop_many(BATCH, LEASE, wait=1.0)
        if not leases:
            continue
        may_crash(crash, leases, "taken")  # the requests are leased by a worker that is no more
        answers.push_many([Answer(lease.item.number, model.predict(lease.item.line)) for lease in leases])
        may_crash(crash, leases, "answered")  # they will be again: nobody has said that they are done
        with suppress(LeaseExpiredError):  # too slow: another worker answers them, too
            requests.done_many(leases)


def may_crash(probability: float, leases: Sequence[Lease[Request]], moment: str) -> None:
    """Die as a worker dies whose machine is taken away: without a word."""
    if any(is_fatal(lease.item.number, lease.attempt, moment, probability) for lease in leases):
        os.kill(os.getpid(), signal.SIGKILL)


def is_fatal(number: int, attempt: int, moment: str, probability: float) -> bool:
    """Return whether this attempt at a request kills its worker: the same ones in every run.

    Args:
        probability: That one of a full batch does.
    """
    return random.Random(f"{number} {attempt} {moment}").random() < probability / BATCH


# --- the client ---


def questions(count: int) -> Iterator[tuple[str, str]]:
    """Yield lines that no model was trained on, with the package that each is from, in turn."""
    held_out = [zip(repeat(package), islice(lines_of(package), 0, None, 10)) for package in PACKAGES]
    dealt = (pair for pairs in zip_longest(*held_out) for pair in pairs if pair is not None)
    return islice(dealt, count)


class Client:
    """Streams requests in and answers out, in the order of the requests.

    Args:
        check: Called when no answer has come for a second; raises where none will come.
        window: How many requests may be unanswered at a time.
    """

    def __init__(
        self,
        requests: Queue[Request],
        answers: Queue[Answer],
        check: Callable[[], None],
        window: int = 20 * BATCH,
    ) -> None:
        self._requests, self._answers, self._check, self._window = requests, answers, check, window
        self.repeated = 0  # answers that came once more, and were dropped

    def ask(self, lines: Iterator[str]) -> Iterator[str]:
        """Yield one answer for each line, in order."""
        sent = handed_on = 0
        arrived: dict[int, str] = {}
        while True:
            new = [
                Request(sent + index, line)
                for index, line in enumerate(islice(lines, self._window - (sent - handed_on)))
            ]
            if new:
                self._requests.push_many(new)
                sent += len(new)
            if handed_on == sent:
                return
            self._collect(arrived, handed_on)
            while handed_on in arrived:
                yield arrived.pop(handed_on)
                handed_on += 1

    def settle(self) -> None:
        """Wait until no request is under way; one whose worker died before its `done` is answered again."""
        while self._requests.size() or self._answers.size():
            self._collect({}, sys.maxsize)

    def _collect(self, arrived: dict[int, str], handed_on: int) -> None:
        leases = self._answers.pop_many(10 * BATCH, wait=1.0)
        for answer in (lease.item for lease in leases):
            if answer.number < handed_on or answer.number in arrived:
                self.repeated += 1
            else:
                arrived[answer.number] = answer.package
        if leases:
            self._answers.done_many(leases)
        else:
            self._check()


def run(count: int, workers: int, crash: float) -> list[str]:
    """Start workers, ask, report; return the answers."""
    cluster = current_cluster()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/queues.db"
        requests: Queue[Request] = open_queue(url, queue="requests")
        answers: Queue[Answer] = open_queue(url, queue="answers")
        job_id = cluster.launch(
            JobRequest(
                "inference-pool",
                serve,
                (url, crash),
                resources=ResourceConfig(cpu=0.5, ram="256m", replicas=workers),
                max_retries_failure=10_000,  # a worker that died is started again
            )
        )

        def check() -> None:
            info = cluster.poll(job_id)
            if info.finished:
                raise RuntimeError(f"the workers ended early: {info.error_message}")

        try:
            client = Client(requests, answers, check)
            asked, truth = zip(*((line, package) for package, line in questions(count)), strict=True)
            given = list(client.ask(iter(asked)))
            client.settle()
        finally:
            cluster.terminate(job_id)
    right = sum(answer == package for answer, package in zip(given, truth, strict=True))
    print(f"{len(given):,} requests answered in order, {right / len(given):.0%} of them right")
    print(f"{deaths(job_id)} workers died, {client.repeated} answers came twice and were dropped")
    return given


def deaths(job_id: JobId) -> int:
    """Count the attempts that ended before the last one of each replica."""
    return sum(len(task.previous) for task in current_cluster().poll(job_id).tasks)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="replicas of the job (default 2)")
    parser.add_argument(
        "--crash", type=float, default=0.0, metavar="P", help="probability that a worker dies, twice a batch"
    )
    args = parser.parse_args(argv)
    run(args.requests, args.workers, args.crash)
    return 0


if __name__ == "__main__":
    sys.exit(main())
