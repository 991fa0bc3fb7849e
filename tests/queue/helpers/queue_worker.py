"""A worker for the torture test: leases items, finishes them, and writes down what it tries and did."""

import os
import sys
from collections import Counter
from pathlib import Path

from fray import LeaseExpiredError
from fray.queue import open_queue

LEASE_SECONDS = 1.5


def main(url: str, log: str) -> None:
    queue = open_queue(url)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    idle = 0
    while idle < 3:
        leases = queue.pop_many(20, LEASE_SECONDS, wait=1.0)
        idle = 0 if leases or queue.size() else idle + 1
        for lease in leases:
            os.write(descriptor, b"tries %d\n" % lease.item)
            try:
                queue.done(lease)
            except LeaseExpiredError:
                os.write(descriptor, b"late %d\n" % lease.item)
            else:
                os.write(descriptor, b"done %d\n" % lease.item)


def noted(folder: Path) -> Counter[tuple[str, int]]:
    """Count what workers wrote down, by word and item."""
    found: Counter[tuple[str, int]] = Counter()
    for log in folder.glob("worker*.log"):
        for line in log.read_text().splitlines():
            verb, _, item = line.partition(" ")
            found[verb, int(item)] += 1
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
