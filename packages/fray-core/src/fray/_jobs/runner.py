"""Call the pickled callable of a job: `python runner.py PAYLOAD`, or `-` for its standard input.

Run by its path, and with the standard library alone (and, through pickle, cloudpickle): an environment built
for the job holds no Fray.
"""

import contextlib
import os
import pickle
import sys
import traceback


def main(payload: str) -> None:
    """Load the payload and make the call; an exception is exit code 1."""
    # Python put the folder of this file first, where only Fray's own modules are.
    sys.path[0] = os.getcwd()
    with sys.stdin.buffer if payload == "-" else open(payload, "rb") as file:
        sys.path.extend(path for path in pickle.load(file) if path not in sys.path)
        function, args, kwargs = pickle.load(file)
    if os.environ.get("FRAY_LISTENERS"):
        with contextlib.suppress(ImportError):  # an environment without Fray has no listeners either
            from fray._telemetry.instrumentation import observed_replica

            function = observed_replica(function)
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is ends this process, as an uncaught one would
        # From the callable on: how it was called is nobody's concern.
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
