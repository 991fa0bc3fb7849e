"""Train across the hosts of TPU slices, save, and continue where the last attempt ended.

    fray run --cluster ray --tpu v5litepod-16 --replicas 2 -- python train_gang.py /mnt/shared/checkpoints
    fray run --cluster 'local?simulate=tpu' --tpu v5litepod-8 --replicas 2 -- python train_gang.py checkpoints

Every host runs this file once. It fits a line to points by gradient descent: the smallest program that
has all that a large one has. The hosts find each other, each computes on its own part of the data, the
gradient is the mean over all, and what a preemption interrupts ends as if nothing had happened.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

RANK, COUNT = int(os.environ["FRAY_REPLICA_ID"]), int(os.environ["FRAY_REPLICA_COUNT"])
POINTS = 256  # of all hosts together


def my_points() -> tuple[np.ndarray, np.ndarray]:
    """Return this host's part of the data, which is the same in every attempt."""
    x = np.random.default_rng(0).normal(size=POINTS).astype(np.float32)
    part = slice(RANK, POINTS, COUNT)
    return x[part], (3 * x + 2)[part]


@jax.jit
def gradient(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the gradient of the squared error of `slope * x + offset`."""
    slope: jax.Array = jax.grad(lambda line: jnp.mean((line[0] * x + line[1] - y) ** 2))(weights)
    return slope


def load(checkpoint: Path) -> tuple[int, np.ndarray]:
    """Return the step to continue at, and the weights; the beginning where nothing was saved."""
    if not checkpoint.exists():
        return 0, np.zeros(2, np.float32)
    saved = np.load(checkpoint)
    return int(saved["step"]), saved["weights"]


def save(checkpoint: Path, step: int, weights: np.ndarray) -> None:
    """Write a checkpoint, whole or not at all: a preemption may come at any moment."""
    draft = checkpoint.with_suffix(f".draft-{os.getpid()}.npz")
    np.savez(draft, step=step, weights=weights)
    draft.replace(checkpoint)


def train(checkpoint: Path, steps: int, every: int, pause: float) -> np.ndarray:
    """Train to the last step; leave early, with a checkpoint, when a machine is about to be taken away."""
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append("to go"))
    step, weights = load(checkpoint)
    print(f"host {RANK} of {COUNT} starts at step {step}", flush=True)
    x, y = my_points()
    while step < steps:
        mine = np.append(gradient(weights, x, y), np.float32(bool(told)))
        # One host is notified first, and all leave after the same step: the notice travels with the gradient.
        *mean, leaving = np.mean(multihost_utils.process_allgather(mine), axis=0)
        weights = weights - 0.05 * np.array(mean, np.float32)
        step += 1
        if RANK == 0 and (leaving or step % every == 0 or step == steps):
            save(checkpoint, step, weights)
        if leaving:
            print(f"host {RANK} leaves after step {step}", flush=True)
            raise SystemExit(1)
        time.sleep(pause)
    return weights


def main() -> None:
    """Join the other hosts, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where checkpoints go; all hosts must see it.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="Steps between checkpoints.")
    parser.add_argument("--pause", type=float, default=0.0, help="Seconds that a step takes longer.")
    args = parser.parse_args()
    # On a TPU JAX finds its peers by itself; on CPUs, as in a test, it is given where they meet.
    jax.distributed.initialize(os.environ["FRAY_COORDINATOR_ADDRESS"], COUNT, RANK)
    args.folder.mkdir(parents=True, exist_ok=True)
    weights = train(args.folder / "checkpoint.npz", args.steps, args.every, args.pause)
    print(f"host {RANK}: slope {weights[0]:.6f}, offset {weights[1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
