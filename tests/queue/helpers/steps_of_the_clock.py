"""What a program sees of its leases when its wall clock is set: `MODULE STEP-FILE QUEUE-URL`; prints JSON."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from fray.queue import open_queue


def main(step: Path, url: str) -> None:
    queue: Any = open_queue(url)
    started = time.time()
    queue.push("x")
    seen: dict[str, Any] = {}
    lease = queue.pop(60)
    step.write_text("3600")
    seen["an hour ahead"] = time.time() - started > 3000
    seen["taken ahead"] = queue.pop() is not None
    queue.extend(lease, 60)
    queue.release(lease)
    began = time.monotonic()  # before the lease: it lasts no less than this shows
    lease = queue.pop(0.5)
    step.write_text("-3600")
    seen["an hour behind"] = started - time.time() > 3000
    again = queue.pop(wait=60)
    seen["waited"] = time.monotonic() - began
    seen["attempt"] = None if again is None else again.attempt
    queue.done(again)
    seen["size"] = queue.size()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
