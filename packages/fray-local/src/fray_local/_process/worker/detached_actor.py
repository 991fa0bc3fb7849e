"""A detached actor's process: it has no owner, and is called by its name."""

import os
import threading

from fray.backend import leave_group
from fray_local._process.protocol.wire import adopted
from fray_local._process.worker import output
from fray_local._process.worker.connections import Connection, accept_all
from fray_local._process.worker.main import Worker


def main(creator: int, listener: int) -> None:
    """Answer calls until the actor is killed; end if it is not constructed.

    Args:
        creator: A socket to the process that made it, whose first call constructs it.
        listener: A listening socket.
    """
    # Tasks that its methods run, and actors that they look for, are those of a context of its own.
    os.environ["FRAY_CONTEXT_SPEC"] = "process"
    leave_group()  # of the job that made it
    output.line_by_line()
    worker = Worker(None, int(os.environ.pop("FRAY_ACTOR_CONCURRENCY", "0")) or None)
    first = Connection(worker, adopted(creator), owner=False)

    def listen_to_creator() -> None:
        first.listen()
        if not worker.constructed:
            os._exit(0)

    threading.Thread(target=listen_to_creator, daemon=True).start()
    accepting = adopted(listener)
    threading.Thread(target=accept_all, args=(worker, accepting), daemon=True).start()
    worker.run([], None)
    os._exit(0)
