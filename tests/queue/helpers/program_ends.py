"""Programs that come to their last line."""

import subprocess
import sys
import textwrap

SERVES_AFTER_ITS_END = """
    import sys, threading
    from fray_queue import HttpQueueServer

    store, name = sys.argv[1:]
    given = {"engine": store} if "://" in store else {"store": store}
    server = HttpQueueServer(**given).start()
    queue = server.new_queue(name)

    def go_on():
        threading.main_thread().join()
        queue.push_many(["a", "b"])
        queue.done(queue.pop())
        print(queue.size())
        server.stop()
        print("stopped")

    threading.Thread(target=go_on).start()
    """
"""Starts a server on a store, with a queue; after the last line of the program a thread uses both."""


def printed(program: str, *arguments: str) -> str:
    """Run a program; return what it printed. It prints nothing else, and ends well."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
