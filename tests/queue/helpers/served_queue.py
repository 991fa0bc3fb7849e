"""A server of one queue until its input ends: `MODULE [STORE]`; prints where it is, and its token."""

import sys

from fray_queue import HttpQueueServer

if __name__ == "__main__":
    with HttpQueueServer(store=sys.argv[1] if len(sys.argv) > 1 else None) as server:
        server.new_queue("q")
        print(server.url, server.token, flush=True)
        sys.stdin.read()
