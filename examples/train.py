"""A training launch: one program on all hosts of a TPU slice, preempted now and then, with one result.

    python examples/train.py launch RUN                     # a simulated slice of 4 hosts
    python examples/train.py launch RUN --preemptions 2     # the same result, two preemptions later
    fray run --cluster 'local?simulate=tpu' --tpu v5litepod-16 -- python examples/train.py work RUN

RUN is a folder that all hosts see: the checkpoint is in it, and in the end the result. The model is the
smallest that is worth distributing: least squares by gradient descent, each host with its share of the data.
"""

import argparse
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fray import Entrypoint, JobInfo, JobRequest, ResourceConfig
from fray_local import LocalCluster
from fray_local.testing import preempt

Vector = list[float]

FEATURES, ROWS = 6, 300  # rows of each host
STEPS, RATE = 1000, 0.05
CHECKPOINT_EVERY = 50  # steps
PREEMPTED = 128 + signal.SIGTERM  # what a shell reports of a process that SIGTERM ended


class Hosts:
    """The hosts of the job: they meet at rank 0, which adds up all values and sends the sum to each."""

    def __init__(self, rank: int, count: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.rank = rank
        if rank:
            self._peers = [_connect(host, int(port))]
            self._peers[0].sendall(bytes([rank]))
            return
        with socket.create_server((host, int(port))) as server:
            arrived = [server.accept()[0] for _ in range(count - 1)]
        # In the order of ranks: sums of floats depend on it, and the result shall not.
        self._peers = sorted(arrived, key=lambda peer: _receive(peer, 1)[0])

    def add(self, vector: Vector) -> Vector:
        """All-reduce: return the sum of the vectors of all hosts.

        Raises:
            ConnectionError: A host is gone.
        """
        form = struct.Struct(f"{len(vector)}d")
        if self.rank:
            self._peers[0].sendall(form.pack(*vector))
            return list(form.unpack(_receive(self._peers[0], form.size)))
        parts = [vector, *(form.unpack(_receive(peer, form.size)) for peer in self._peers)]
        total = [sum(column) for column in zip(*parts, strict=True)]
        for peer in self._peers:
            peer.sendall(form.pack(*total))
        return total


def _connect(host: str, port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:  # rank 0 is not that far yet; the cluster ends us if it never is
            time.sleep(0.01)


def _receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            raise ConnectionError("a host is gone")
        data += piece
    return data


def work(folder: Path) -> int:
    """Train, as one host of many; return the exit code."""
    rank, count = (int(os.environ[f"FRAY_REPLICA_{name}"]) for name in ("ID", "COUNT"))
    hosts = Hosts(rank, count, os.environ["FRAY_COORDINATOR_ADDRESS"])
    notices: list[int] = []
    # Only now: a host that waits for its peers has nothing to save, and ends at once.
    signal.signal(signal.SIGTERM, lambda number, _: notices.append(number))
    rows = _data(rank)
    # Rank 0 reads the checkpoint; the others add nothing to it. That is a broadcast.
    step, *weights = hosts.add(_load(folder) if rank == 0 else [0.0] * (1 + FEATURES))
    print(f"starts at step {step:g}", flush=True)
    while step < STEPS:
        # One number more in the sum: how many hosts are about to be taken away.
        leaving, *gradient = hosts.add([float(len(notices)), *_gradient(rows, weights)])
        weights = [w - RATE * g / (count * ROWS) for w, g in zip(weights, gradient, strict=True)]
        step += 1
        if rank == 0 and (leaving or step % CHECKPOINT_EVERY == 0):
            _save(folder / "checkpoint.json", [step, *weights])
        if leaving:
            print(f"leaves at step {step:g}", flush=True)
            return PREEMPTED
    if rank == 0:
        _save(folder / "result.json", weights)
    return 0


def _data(rank: int) -> list[tuple[Vector, float]]:
    """The rows of one host: its own, and the same in every attempt."""
    draw = random.Random(rank)
    rows = [[draw.gauss(0, 1) for _ in range(FEATURES)] for _ in range(ROWS)]
    return [(row, sum(map(float.__mul__, row, truth())) + draw.gauss(0, 0.1)) for row in rows]


def truth() -> Vector:
    """The weights that the data were made with."""
    return [float(number) for number in range(1, 1 + FEATURES)]


def _gradient(rows: list[tuple[Vector, float]], weights: Vector) -> Vector:
    total = [0.0] * FEATURES
    for row, target in rows:
        error = sum(map(float.__mul__, row, weights)) - target
        total = [t + error * x for t, x in zip(total, row, strict=True)]
    return total


def _load(folder: Path) -> Vector:
    checkpoint = folder / "checkpoint.json"
    state: Vector = json.loads(checkpoint.read_text()) if checkpoint.exists() else [0.0] * (1 + FEATURES)
    return state


def _save(path: Path, state: Vector) -> None:
    """Replace a file as a whole: a kill in the middle leaves the one before."""
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def launch(folder: Path, preemptions: int) -> JobInfo:
    """Train on a simulated slice, a host of which is preempted so often; return how the job ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with LocalCluster(simulate="tpu") as cluster:
        job_id = cluster.launch(
            JobRequest(
                name="train",
                entrypoint=Entrypoint.from_binary("python", [__file__, "work", os.fspath(folder.absolute())]),
                resources=ResourceConfig.with_tpu("v5litepod-16"),
                max_retries_preemption=preemptions,
            )
        )
        for number in range(preemptions):
            # All of them in the first half, so that each finds the job at work.
            step = STEPS // 2 * (number + 1) // preemptions
            while _load(folder)[0] < step and not cluster.poll(job_id).finished:
                time.sleep(0.01)
            preempt(job_id, replica=1 + number % 3)
        return cluster.wait(job_id, stream_logs=True, raise_on_failure=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Launch the training, or be one host of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["launch", "work"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preemptions", type=int, default=0)
    args = parser.parse_args(argv)
    if args.what == "work":
        return work(args.folder)
    info = launch(args.folder, args.preemptions)
    print(f"{info.status} in attempt {info.tasks[0].attempt}: {(args.folder / 'result.json').read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
