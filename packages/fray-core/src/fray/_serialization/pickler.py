"""The pickler of functions that travel by value: cloudpickle, and what it leaves out."""

import functools
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

_FILE_NAME = 10  # the position of `filename` among the arguments of `types.CodeType`
_registered: dict[type, Callable[[Any], Any]] = {}


def register_reducer(kind: type, reduce: Callable[[Any], Any]) -> None:
    """Pickle objects of exactly this type by a function, wherever `function_pickler` pickles them.

    Args:
        reduce: Returns what `__reduce__` of the object would. The last one registered for a type counts.
    """
    _registered[kind] = reduce


@functools.cache
def function_pickler() -> Any:
    """Return cloudpickle's `Pickler`; functions keep the name of their file, and cached ones travel too.

    cloudpickle 3.1.3 and later replace that name, so that equal code has equal pickles. A traceback has then
    neither the file nor its lines, and `inspect.getsource` fails, which compilers of kernels call.

    Made at the first call: a program without process boundaries does not pay the 20 ms of the import.
    """
    import cloudpickle

    from fray._serialization.cached_functions import CachedFunction, reduce_cached

    reducers = cloudpickle.Pickler.dispatch_table
    reduce_code = reducers[types.CodeType]

    def with_file_name(code: types.CodeType) -> tuple[Any, ...]:
        make, parts, *rest = reduce_code(code)
        if make is not types.CodeType:
            return make, parts, *rest
        return make, (*parts[:_FILE_NAME], code.co_filename, *parts[_FILE_NAME + 1 :]), *rest

    class FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar = ChainMap(
            _registered,
            {types.CodeType: with_file_name, CachedFunction: reduce_cached},
            cloudpickle.Pickler.dispatch_table,
        )

    return FunctionPickler


def cloud_dumps(value: Any, protocol: int | None = None) -> bytes:
    """Do what `cloudpickle.dumps` does, with `function_pickler`."""
    import io

    with io.BytesIO() as file:
        function_pickler()(file, protocol).dump(value)
        return file.getvalue()
