"""What a program that has come to its last line can still do with queues: the same on every Python.

From 3.12 on Python starts no thread then, and no executor of the standard library has ever taken a call.
"""

from pathlib import Path

import pytest
from program_ends import SERVES_AFTER_ITS_END, printed

_AT_EXIT = """
import atexit, sys, threading
from fray.queue import open_queue
from fray_queue import FileQueue

def at_exit():
    assert not threading.main_thread().is_alive()
    for n in range(20):
        queue.push(n)
    queue.push_many(range(20, 40))
    leases = queue.pop_many(30)
    queue.done_many(leases[1:])
    queue.done(leases[0])
    print(queue.size(), [lease.item for lease in leases] == list(range(30)))
    if hasattr(queue, "close"):
        queue.close()

place = sys.argv[1]
queue = FileQueue(place) if "://" in place else open_queue(place)
atexit.register(at_exit)
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file", "object store"])
def test_functions_at_exit_use_all_of_a_queue(kind: str, tmp_path: Path) -> None:
    specs = {
        "memory": "memory:",
        "sqlite": f"sqlite:{tmp_path / 'q.db'}",
        "file": f"file:{tmp_path / 'q'}",
        "object store": "memory://q",
    }
    assert printed(_AT_EXIT, specs[kind]) == "10 True\n"


def test_leases_that_no_thread_can_extend_are_refused_or_extended() -> None:
    program = """
        import atexit
        from fray.queue import open_queue
        from fray.backend import NoThreadError, kept_alive

        def at_exit():
            lease = queue.pop()
            try:
                with kept_alive(queue, lease, 60):
                    print("extended")
            except NoThreadError as error:
                print("extended" if "do this before its last line" in str(error) else error)
            queue.done(lease)

        queue = open_queue("memory:")
        queue.push(1)
        atexit.register(at_exit)
        """
    assert printed(program) == "extended\n"


def test_a_server_serves_and_stops_after_the_last_line_of_its_program(tmp_path: Path) -> None:
    assert printed(SERVES_AFTER_ITS_END, str(tmp_path / "store"), "q") == "1\nstopped\n"
