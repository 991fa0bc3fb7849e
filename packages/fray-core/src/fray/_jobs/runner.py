"""Make the call of a job's callable, in the job: `python -m fray._jobs.runner < PAYLOAD`."""

import os
import pickle
import sys
import traceback

from fray._telemetry.instrumentation import observed_replica


def main() -> None:
    """Read the payload from the standard input and make the call; an exception is exit code 1."""
    sys.path.insert(0, os.getcwd())
    sys.path.extend(path for path in pickle.load(sys.stdin.buffer) if path not in sys.path)
    function, args, kwargs = pickle.load(sys.stdin.buffer)
    try:
        observed_replica(function)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is ends this process, as an uncaught one would
        # From the callable on: how it was called is nobody's concern.
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.exit(1)


if __name__ == "__main__":
    main()
