"""Run a module whose wall clock is off by the seconds that a file says: FILE MODULE ARGUMENT…

Only the wall clock is off, as when somebody sets it: no monotonic clock changes.
"""

import runpy
import sys
import time
from pathlib import Path

_real_time, _real_gettime = time.time, time.clock_gettime
STEP = Path(sys.argv[1])


def stepped_time() -> float:
    return _real_time() + float(STEP.read_text())


def stepped_gettime(clock: int) -> float:
    return stepped_time() if clock == time.CLOCK_REALTIME else _real_gettime(clock)


if __name__ == "__main__":
    time.time, time.clock_gettime = stepped_time, stepped_gettime
    time.time_ns = lambda: int(stepped_time() * 1e9)
    sys.argv = sys.argv[2:]
    sys.path[:0] = [str(Path(__file__).parent), str(Path.cwd())]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
