"""What a job runs: a callable, a command or a module."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fray._serialization.values import callable_name
from fray._values.checks import fits_a_program, invalid, plain_text

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Entrypoint:
    """Exactly one of a callable, a command (`binary`) and a module, with its arguments.

    Args:
        callable: A function to call in the job; cloudpickle serializes it and its arguments.
        function_args: Keyword arguments of the callable.
        args: Positional arguments of the callable, or the words after the command or module.
        binary: A program, found on the job's `PATH`; `python` is the interpreter of the job's environment.
        module: A dotted name to run as `python -m`.
    """

    callable: Callable[..., Any] | None = None
    function_args: Mapping[str, Any] = field(default_factory=dict)
    args: Iterable[Any] = ()
    binary: str | None = None
    module: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("callable", "binary", "module") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"an Entrypoint is one of callable=, binary= and module=, got {found}")
        if isinstance(self.args, str) or not isinstance(self.args, Iterable):
            raise invalid("args", "a list of arguments", self.args)
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "function_args", dict(self.function_args))
        if self.callable is not None:
            _check_callable(self.callable)
        else:
            self._check_command()

    @classmethod
    def from_callable(
        cls, fn: Callable[..., Any], args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> "Entrypoint":
        """Call a function, closures and lambdas included; what it returns is dropped."""
        return cls(callable=fn, args=args, function_args=kwargs or {})

    @classmethod
    def from_binary(cls, binary: str, args: Iterable[str] = ()) -> "Entrypoint":
        """Run a program; its arguments are passed as they are, through no shell."""
        return cls(binary=binary, args=args)

    @classmethod
    def from_module(cls, module: str, args: Iterable[str] = ()) -> "Entrypoint":
        """Run `python -m MODULE ARGS`."""
        return cls(module=module, args=args)

    @classmethod
    def of(cls, given: Any, args: Iterable[Any] = ()) -> "Entrypoint":
        """Make an entry point of what a `JobRequest` takes: one, a callable, or a module's name."""
        args = tuple(args) if not isinstance(args, str) else args
        if isinstance(given, Entrypoint):
            if args:
                raise ValueError(
                    f"entrypoint_args go with a module's name; the Entrypoint has its own, got {args!r}"
                )
            return given
        if isinstance(given, str):
            return cls.from_module(given, args)
        if callable(given):
            return cls.from_callable(given, args)
        raise invalid("entrypoint", "an Entrypoint, a callable or a module's name", given)

    @property
    def command(self) -> tuple[str, ...]:
        """The words of a command or module, with `python` for the interpreter of the job's environment."""
        if self.callable is not None:
            raise ValueError(f"{self} is a callable, not a command")
        return (
            (self.binary, *self.args)
            if self.binary is not None
            else ("python", "-m", str(self.module), *self.args)
        )

    def __str__(self) -> str:
        if self.callable is not None:
            # The arguments stay out: they may be large, or secret.
            return f"{callable_name(self.callable)}()"
        import shlex

        return shlex.join(self.command)

    def _check_command(self) -> None:
        if self.function_args:
            raise ValueError(
                f"function_args go with callable=, got {sorted(self.function_args)} for a command"
            )
        for word in (self.module if self.binary is None else self.binary, *self.args):
            if not isinstance(word, str) or not fits_a_program(word):
                raise invalid("each word of a command", "text without NUL or half of a character", word)
        object.__setattr__(self, "args", tuple(map(plain_text, self.args)))
        for name in ("module", "binary"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, plain_text(given))
        if self.binary == "":
            raise invalid("binary", "the name of a program", "")
        if self.module is not None and not _MODULE.fullmatch(self.module):
            raise ValueError(
                f"entrypoint {self.module!r} is not a module's dotted name; "
                "for a command use Entrypoint.from_binary('python', ['train.py'])"
            )


def _check_callable(fn: Any) -> None:
    if not callable(fn):
        raise invalid("callable", "something to call", fn)
    if inspect.iscoroutinefunction(fn):
        raise ValueError(f"{callable_name(fn)} is a coroutine function; pass one that calls asyncio.run")
