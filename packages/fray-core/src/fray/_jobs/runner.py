"""Call the pickled callable of a job: `python runner.py PAYLOAD [RESULT]`.

PAYLOAD is a path, `-` for standard input, or `fd:N` for a file that this process was given open; RESULT is a
path or `fd:N`.

Run by its path, and with the standard library alone (and, through pickle, cloudpickle): an environment built
for the job holds no Fray. It takes Fray where a RESULT is requested: a file for what the call returns or
raises, pickled after the name of which it is.
"""

import contextlib
import os
import pickle
import sys
import traceback

_GIVEN = "fd:"


def main(payload: str, result: str | None = None) -> None:
    """Load the payload and make the call; an exception is exit code 1."""
    # Python put the folder of this file first, where only Fray's own modules are.
    sys.path[0] = os.getcwd()
    with sys.stdin.buffer if payload == "-" else open(_place(payload), "rb") as file:
        sys.path.extend(path for path in pickle.load(file) if path not in sys.path)
        function, args, kwargs = pickle.load(file)
    if os.environ.get("FRAY_LISTENERS"):
        with contextlib.suppress(ImportError):  # an environment without Fray has no listeners either
            from fray._telemetry.instrumentation import observed_replica

            function = observed_replica(function)
    place = None if result is None else _place(result)
    if isinstance(place, int):
        os.set_inheritable(place, False)  # the programs that the function starts have no use for it
    try:
        value = function(*args, **kwargs)
        if result is not None:
            _return(value, result)
    except Exception as error:  # noqa: BLE001 - whatever it is ends this process, as an uncaught one would
        # From the callable on: how it was called is nobody's concern.
        error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        traceback.print_exception(error)
        if result is not None:
            _fail(error, result)
        sys.exit(1)


def _place(given: str) -> int | str:
    """Return a path, or the number of an open file."""
    return int(given[len(_GIVEN) :]) if given.startswith(_GIVEN) else given


def _return(value: object, place: str) -> None:
    from fray._serialization.values import dumps

    _write(place, pickle.dumps("returned") + dumps(value, "what the function returned"))


def _fail(error: Exception, place: str) -> None:
    from fray._serialization.values import pack_exception

    _write(place, pickle.dumps("raised") + pickle.dumps(pack_exception(error)))


def _write(given: str, data: bytes) -> None:
    place = _place(given)
    # An open file stays open, or the failure to write what was returned could not be written.
    with open(place, "wb", closefd=isinstance(place, str)) as file:
        file.truncate(file.seek(0))
        file.write(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
