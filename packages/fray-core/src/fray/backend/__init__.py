"""What the author of a backend needs, and a user of one never sees.

Names are loaded when they are asked for, so that a worker imports only what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray._contexts.base import DEFAULT_TASK
    from fray._discovery.current import current_context_var
    from fray._discovery.specs import Spec
    from fray._jobs.launch_keys import held_key, prune_keys
    from fray._jobs.logs.lines import LineSplitter, PartialLine, complete_lines
    from fray._jobs.logs.pump import OutputPump
    from fray._jobs.logs.reader import LogReader, LogSource, OffsetLog
    from fray._jobs.logs.writer import LogWriter
    from fray._jobs.plan import command_of, import_paths, payload_of, workspace_of
    from fray._jobs.refusals import refuse_fields, refuse_other_python, refuse_python
    from fray._jobs.snapshots import SourceState, change_since, source_state, take_snapshot, workspace_files
    from fray._jobs.usage import UsageMeter, in_words, over_asked
    from fray._queues import lease_machine
    from fray._queues.clocks import steady_time
    from fray._queues.heartbeat import kept_alive
    from fray._queues.lease_machine import LeaseState
    from fray._queues.reading import dead_letter, read_item, take_readable
    from fray._serialization.functions import is_generator_function
    from fray._serialization.values import (
        callable_name,
        dumps,
        dumps_call,
        named_arguments,
        pack_exception,
        unpack_exception,
    )
    from fray._values.checks import check_count, check_seconds, invalid
    from fray._values.delays import poll_delays
    from fray._values.errors import did_you_mean

__all__ = [
    "DEFAULT_TASK",
    "LeaseState",
    "LineSplitter",
    "LogReader",
    "LogSource",
    "LogWriter",
    "OffsetLog",
    "OutputPump",
    "PartialLine",
    "SourceState",
    "Spec",
    "UsageMeter",
    "callable_name",
    "change_since",
    "check_count",
    "check_seconds",
    "command_of",
    "complete_lines",
    "current_context_var",
    "dead_letter",
    "did_you_mean",
    "dumps",
    "dumps_call",
    "held_key",
    "import_paths",
    "in_words",
    "invalid",
    "is_generator_function",
    "kept_alive",
    "lease_machine",
    "named_arguments",
    "over_asked",
    "pack_exception",
    "payload_of",
    "poll_delays",
    "prune_keys",
    "read_item",
    "refuse_fields",
    "refuse_other_python",
    "refuse_python",
    "source_state",
    "steady_time",
    "take_readable",
    "take_snapshot",
    "unpack_exception",
    "workspace_files",
    "workspace_of",
]

# The module below `fray` that each name comes from.
_HOMES = {
    "DEFAULT_TASK": "_contexts.base",
    "LeaseState": "_queues.lease_machine",
    "LineSplitter": "_jobs.logs.lines",
    "LogReader": "_jobs.logs.reader",
    "LogSource": "_jobs.logs.reader",
    "LogWriter": "_jobs.logs.writer",
    "OffsetLog": "_jobs.logs.reader",
    "OutputPump": "_jobs.logs.pump",
    "PartialLine": "_jobs.logs.lines",
    "SourceState": "_jobs.snapshots",
    "Spec": "_discovery.specs",
    "UsageMeter": "_jobs.usage",
    "callable_name": "_serialization.values",
    "change_since": "_jobs.snapshots",
    "check_count": "_values.checks",
    "check_seconds": "_values.checks",
    "command_of": "_jobs.plan",
    "complete_lines": "_jobs.logs.lines",
    "current_context_var": "_discovery.current",
    "dead_letter": "_queues.reading",
    "did_you_mean": "_values.errors",
    "dumps": "_serialization.values",
    "dumps_call": "_serialization.values",
    "held_key": "_jobs.launch_keys",
    "import_paths": "_jobs.plan",
    "in_words": "_jobs.usage",
    "invalid": "_values.checks",
    "is_generator_function": "_serialization.functions",
    "kept_alive": "_queues.heartbeat",
    "lease_machine": "_queues",
    "named_arguments": "_serialization.values",
    "over_asked": "_jobs.usage",
    "pack_exception": "_serialization.values",
    "payload_of": "_jobs.plan",
    "poll_delays": "_values.delays",
    "prune_keys": "_jobs.launch_keys",
    "read_item": "_queues.reading",
    "refuse_fields": "_jobs.refusals",
    "refuse_other_python": "_jobs.refusals",
    "refuse_python": "_jobs.refusals",
    "source_state": "_jobs.snapshots",
    "steady_time": "_queues.clocks",
    "take_readable": "_queues.reading",
    "take_snapshot": "_jobs.snapshots",
    "unpack_exception": "_serialization.values",
    "workspace_files": "_jobs.snapshots",
    "workspace_of": "_jobs.plan",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"fray.{home}"), name)
    globals()[name] = value  # the next look finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
