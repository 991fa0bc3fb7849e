"""Call the pickled callable of a job: `python _runner.py PAYLOAD [RESULT]`.

Needs cloudpickle at the most, and Fray where a RESULT is asked for: there goes what the call returns or
raises, pickled behind the word that says which.
"""

import contextlib
import os
import pickle
import sys
import traceback
from pathlib import Path


def main(payload: str, result: str | None = None) -> None:
    """Load the payload and make the call."""
    # Python put the folder of this file first, where only this package's own modules are.
    sys.path[0] = str(Path.cwd())
    with Path(payload).open("rb") as file:
        sys.path.extend(path for path in pickle.load(file) if path not in sys.path)
        function, args, kwargs = pickle.load(file)
    if os.environ.get("FRAY_LISTENERS"):
        with contextlib.suppress(ImportError):  # an environment without Fray has no listeners either
            from fray.events import observed_replica

            function = observed_replica(function)
    try:
        value = function(*args, **kwargs)
        if result is not None:
            _return(value, result)
    except Exception as error:  # noqa: BLE001 - whatever it is ends this process, as an uncaught one would
        error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        traceback.print_exception(error)
        if result is not None:
            _fail(error, result)
        sys.exit(1)


def _return(value: object, place: str) -> None:
    from fray.backend import dumps

    Path(place).write_bytes(pickle.dumps("returned") + dumps(value, "what the function returned"))


def _fail(error: Exception, place: str) -> None:
    from fray.backend import pack_exception

    Path(place).write_bytes(pickle.dumps("raised") + pickle.dumps(pack_exception(error)))


if __name__ == "__main__":
    main(*sys.argv[1:])
