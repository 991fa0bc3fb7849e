"""What crosses a process boundary: values, calls and exceptions.

Every backend pickles through here, so that what cannot travel is named the same way everywhere
and an exception arrives as its own type wherever that is possible.
"""

import inspect
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from fray._serialization.pickler import cloud_dumps
from fray._values.errors import SerializationError, TaskError

_CHAIN_LIMIT = 8  # causes of causes that travel with an exception
_TRACEBACK = "\nTraceback where it was raised:\n"  # begins the note with what was formatted elsewhere
# Everything else that a class raises when it is pickled or unpickled concerns this value alone, including
# what derives from BaseException alone, such as the panic of a library in Rust.
_ENDS_PROGRAMS = (KeyboardInterrupt, SystemExit)


def dumps(value: Any, what: str) -> bytes:
    """Pickle a value with cloudpickle (closures, lambdas and `__main__` included).

    Args:
        what: The value as an error should call it, e.g. "argument 'lock' of train()".

    Raises:
        SerializationError: It cannot be pickled.
    """
    try:
        return cloud_dumps(value, pickle.HIGHEST_PROTOCOL)
    except (SerializationError, *_ENDS_PROGRAMS):
        raise
    except BaseException as error:
        raise SerializationError(what, f"{type(error).__name__}: {error}") from error


def dumps_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle `(fn, args, kwargs)` together, so that what they share stays shared.

    Raises:
        SerializationError: A part cannot be pickled; the message names that part.
    """
    try:
        return dumps((fn, args, kwargs), "the call")
    except SerializationError:
        name = callable_name(fn)
        for what, value in named_arguments(fn, args, kwargs):
            dumps(value, what)
        dumps(fn, f"the function {name}")
        raise


def named_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    """Pair each argument with what an error should call it: its parameter's name where there is one."""
    name = callable_name(fn)
    try:
        parameters = [
            parameter.name
            for parameter in inspect.signature(fn).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = []
    labels = [
        f"argument {index + 1} ({parameters[index]!r}) of {name}()"
        if index < len(parameters)
        else f"argument {index + 1} of {name}()"
        for index in range(len(args))
    ]
    return [
        *zip(labels, args, strict=True),
        *((f"argument {key!r} of {name}()", kwargs[key]) for key in kwargs),
    ]


def callable_name(fn: Callable[..., Any]) -> str:
    """Return what messages and logs call a function, a class, a partial or a callable object."""
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def pack_exception(error: BaseException, *, traceback_text: str | None = None) -> bytes:
    """Pickle an exception with its causes and its traceback as text; never fails.

    One that cannot travel becomes a TaskError with its type's name, message and traceback.
    """
    text = _formatted(error) if traceback_text is None else traceback_text
    if isinstance(error, TaskError):  # which keeps the one that it has
        text = ""
    chain: list[tuple[str, bytes]] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < _CHAIN_LIMIT:
        chain.append((_link(seen), _pack_one(seen, text) if seen is error else _pack_cause(seen, text)))
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return cloud_dumps((chain, text))


def unpack_exception(data: bytes) -> BaseException:
    """Rebuild what `pack_exception` made; the remote traceback is a note on the exception (PEP 678).

    One that cannot be rebuilt, because its class is in no module of this process, say, is a TaskError.
    """
    chain, text = pickle.loads(data)
    errors = [_unpack_one(packed, text) for _, packed in chain]
    for (link, _), error, cause in zip(chain, errors, errors[1:], strict=False):
        # Not by its own `__setattr__`, nor `add_note` below, which uses it: that of a frozen class refuses.
        BaseException.__setattr__(error, f"__{link}__", cause)
    first: BaseException = errors[0]
    if text:
        _forget_tracebacks(first)
        if not isinstance(first, TaskError):
            notes = _notes(first)
            vars(first)["__notes__"] = [*(notes or ()), f"{_TRACEBACK}{text.rstrip()}"]
    return first


def _unpack_one(packed: bytes, text: str) -> BaseException:
    try:
        error: BaseException = pickle.loads(packed)
    except _ENDS_PROGRAMS:
        raise
    except BaseException as failure:  # noqa: BLE001 - whatever a class does or misses when it is unpickled
        return TaskError(
            "Exception", f"it cannot be rebuilt here ({type(failure).__name__}: {_message(failure)})", text
        )
    return error


def _forget_tracebacks(first: BaseException) -> None:
    """Remove the earlier tracebacks from an exception, its causes and the members of groups.

    The text of the exception has all of them: with both, it would double with every task that it passes.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [first]
    while left:
        error = left.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        left += error.__cause__, error.__context__
        if isinstance(error, BaseExceptionGroup):
            left += error.exceptions
        notes = _notes(error)
        if notes is not None:
            notes[:] = [note for note in notes if not str(note).startswith(_TRACEBACK)]


def _notes(error: BaseException) -> list[Any] | None:
    notes = vars(error).get("__notes__")
    return notes if isinstance(notes, list) else None


def _formatted(error: BaseException, *, chain: bool = True) -> str:
    """Return the traceback of an exception; of one whose attributes raise, what it is."""
    try:
        return "".join(traceback.format_exception(error, chain=chain))
    except _ENDS_PROGRAMS:
        raise
    except BaseException:  # noqa: BLE001 - that a task has failed must be known nevertheless
        return f"{_qualified(error)}: {_message(error)}\n"


def _link(error: BaseException) -> str:
    return "cause" if error.__cause__ is not None else "context"


def _pack_cause(cause: BaseException, text: str) -> bytes:
    """Pickle a cause without the traceback, in a TaskError, that the text of the whole chain has."""
    if not text or not isinstance(cause, TaskError):
        return _pack_one(cause, None if text else "")
    shorter = TaskError(cause.type_name, cause.message, "")
    shorter.__dict__.update(cause.__dict__, traceback="")
    return _pack_one(shorter, "")


def _pack_one(error: BaseException, text: str | None) -> bytes:
    """Pickle one exception in the first of three ways that gives the same type and message back.

    Args:
        text: The traceback where it becomes a TaskError; None: its own, without its causes'.
    """
    for form in (lambda: error, lambda: _Rebuilt(error)):
        try:
            data = cloud_dumps(form(), pickle.HIGHEST_PROTOCOL)
            copy = pickle.loads(data)
            # Classes of `__main__` travel by value and come back as another class of the same name.
            if type(copy).__qualname__ == type(error).__qualname__ and str(copy) == str(error):
                return data
        except _ENDS_PROGRAMS:
            raise
        except BaseException:  # noqa: BLE001, S112 - whatever a user's __reduce__ or __init__ raises, the next way is tried
            continue
    if text is None:
        text = _formatted(error, chain=False)
    return pickle.dumps(TaskError(_qualified(error), _message(error), text))


class _Rebuilt:
    """Pickles as an exception that is rebuilt without calling its constructor."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self._error), self._error.args, dict(self._error.__dict__))


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    BaseException.__setattr__(error, "args", args)  # as in `unpack_exception`
    error.__dict__.update(state)
    return error


def _qualified(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except _ENDS_PROGRAMS:
        raise
    except BaseException as failure:  # noqa: BLE001 - a broken __str__ must not hide that the task failed
        return f"<no message: str() raised {type(failure).__name__}>"
