"""A pipeline over text: generator stages, chunks that are stored, a shuffle, and deduplication.

python text_pipeline.py --context process --rows 500000     # what each stage took, as JSON
python text_pipeline.py --rows 500000 --folder /tmp/chunks  # chunks as files, as where they exceed memory
"""

import argparse
import hashlib
import json
import pickle
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fray.job import JobContext, create_job_ctx

Row = tuple[str, str]  # key, text
WORDS = tuple(f"word{number}" for number in range(200))


@dataclass(frozen=True)
class Store:
    """Where chunks are: in the context's object store, or in a folder that all workers see.

    On threads the object store hands rows on by reference; a file is written and read on every context.
    """

    context: JobContext
    folder: Path | None = None

    def put(self, rows: list[Row]) -> Any:
        """Store rows, and return what `get` takes."""
        if self.folder is None:
            return self.context.put(rows)
        path = self.folder / uuid.uuid4().hex
        path.write_bytes(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
        return path

    def get(self, stored: Any) -> list[Row]:
        """Return rows that `put` stored."""
        rows: list[Row] = (
            pickle.loads(stored.read_bytes()) if isinstance(stored, Path) else self.context.get(stored)
        )
        return rows


@dataclass(frozen=True)
class Chunk:
    """Rows in a store, for one partition of the next stage."""

    partition: int
    count: int
    stored: Any


@dataclass
class Pipeline:
    """Runs stages of generator tasks on a context.

    Args:
        store: Passed to the tasks too, with its context: they store what they yield.
        chunk_rows: Rows of one chunk.
    """

    store: Store
    chunk_rows: int = 10_000
    seconds: dict[str, float] = field(default_factory=dict)

    def run_stage(
        self, name: str, shards: Sequence[Any], stage: Callable[..., Iterator[Chunk]], *args: Any
    ) -> list[Chunk]:
        """Run a generator task for each shard and return the chunks that they yield, as they arrive."""
        start = time.perf_counter()
        context = self.store.context
        streams: list[Any] = [
            context.run(stage, self.store, shard, self.chunk_rows, *args, name=f"{name}:{number}")
            for number, shard in enumerate(shards)
        ]
        chunks = []
        while streams:
            ready, streams = context.wait(streams, num_returns=1)
            for stream in ready:
                try:
                    chunks.append(context.get(next(stream)))
                except StopIteration:
                    continue
                streams.append(stream)
        self.seconds[name] = time.perf_counter() - start
        return chunks


def normalize(store: Store, shard: tuple[int, int], chunk_rows: int) -> Iterator[Chunk]:
    """Make the rows of a shard, clean their text, and key them by it."""
    rows = ((_fingerprint(text), text) for text in map(_clean, _texts(*shard)))
    while chunk := list(islice(rows, chunk_rows)):
        yield Chunk(0, len(chunk), store.put(chunk))


def scatter(store: Store, chunk: Chunk, chunk_rows: int, partitions: int) -> Iterator[Chunk]:
    """Send every row to the partition of its key."""
    parts: list[list[Row]] = [[] for _ in range(partitions)]
    for row in store.get(chunk.stored):
        parts[int(row[0][:8], 16) % partitions].append(row)
    for number, part in enumerate(parts):
        if part:
            yield Chunk(number, len(part), store.put(part))


def deduplicate(store: Store, chunks: Sequence[Chunk], chunk_rows: int) -> Iterator[Chunk]:
    """Keep one row of each key of a partition."""
    rows: dict[str, str] = {}
    for chunk in chunks:
        rows.update(store.get(chunk.stored))
    kept = iter(sorted(rows.items()))
    while some := list(islice(kept, chunk_rows)):
        yield Chunk(chunks[0].partition, len(some), store.put(some))


def run(store: Store, rows: int, *, shards: int = 8, chunk_rows: int = 10_000) -> dict[str, Any]:
    """Run the whole pipeline and return how many rows are left, with their checksum and each stage's time."""
    pipeline = Pipeline(store, chunk_rows)
    bounds = [(rows * part // shards, rows * (part + 1) // shards) for part in range(shards)]
    mapped = pipeline.run_stage("map", bounds, normalize)
    scattered = pipeline.run_stage("shuffle", mapped, scatter, shards)
    by_partition: dict[int, list[Chunk]] = {}
    for chunk in scattered:
        by_partition.setdefault(chunk.partition, []).append(chunk)
    kept = pipeline.run_stage("deduplicate", [by_partition[key] for key in sorted(by_partition)], deduplicate)
    digest = hashlib.sha256()
    for chunk in sorted(kept, key=lambda chunk: chunk.partition):
        for key, _ in store.get(chunk.stored):
            digest.update(key.encode())
    return {
        "rows": sum(chunk.count for chunk in mapped),
        "kept": sum(chunk.count for chunk in kept),
        "checksum": digest.hexdigest(),
        "seconds": {name: round(took, 3) for name, took in pipeline.seconds.items()},
    }


def expected_rows(rows: int) -> int:
    """Return how many different texts there are, counted in one loop."""
    return len({_clean(text) for text in _texts(0, rows)})


def _texts(start: int, end: int) -> Iterator[str]:
    """Make texts by number; every fifth is one of a few that come again and again, spelled differently."""
    for number in range(start, end):
        rng = random.Random(number if number % 5 else number % 1000)
        text = " ".join(rng.choice(WORDS) for _ in range(12))
        yield text.upper() if number % 2 else f"  {text} "


def _clean(text: str) -> str:
    return " ".join(text.lower().split())


def _fingerprint(text: str) -> str:
    """Hash the text's n-grams, as near-duplicate detection does: the CPU time of a real map stage."""
    words = text.split()
    grams = (" ".join(words[at : at + 3]) for at in range(len(words) - 2))
    hashes = sorted(hashlib.blake2b(gram.encode(), digest_size=8).hexdigest() for gram in grams)
    return hashlib.blake2b("".join(hashes).encode(), digest_size=12).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pipeline as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", default="auto")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--folder", help="chunks become files in here")
    options = parser.parse_args(argv)
    context = create_job_ctx(
        context_type=options.context, max_workers=options.workers, num_cpus=1, memory=None, max_retries=2
    )
    with context, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Store(context, Path(folder) if options.folder else None)
        print(json.dumps({"context": options.context, **run(store, options.rows)}))
    return 0


if __name__ == "__main__":
    # As a module that workers import by its name, as the stages of a library are: what belongs to `__main__`
    # itself travels by value, its classes with every chunk.
    import text_pipeline

    sys.exit(text_pipeline.main())
