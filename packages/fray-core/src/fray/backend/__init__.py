"""What the author of a backend needs, and a user of one never sees.

Names are loaded when they are asked for, so that a worker imports only what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray._contexts.base import DEFAULT_TASK, ContextBase
    from fray._contexts.exits import end_at_exit, program_failed
    from fray._contexts.runner_context import TaskRunnerContext
    from fray._contracts.task_runner import (
        ActorRunner,
        CallRunner,
        PackedCall,
        Ready,
        RunnerActor,
        RunnerCall,
        StoredError,
        StoredValue,
        TaskRunner,
    )
    from fray._discovery.current import current_context_var
    from fray._discovery.specs import Spec
    from fray._engine_new.actors import Actor, EngineEndpoint
    from fray._engine_new.calls import Call, apart, current_call, dispatch, set_current_call
    from fray._engine_new.engine import Engine
    from fray._engine_new.execution import (
        CallExecutor,
        CallPacker,
        arguments_of,
        future_as_ref,
        run_coroutine,
        strip_frames,
    )
    from fray._engine_new.forks import disown_in_children
    from fray._engine_new.futures import EngineFuture
    from fray._engine_new.identity import (
        find_by_identity,
        identity_of,
        keeping,
        note_kept,
        reduce_by_identity,
        set_foreign_finder,
        thing_by_key,
    )
    from fray._engine_new.locking import check_may_block, guarded, may_block
    from fray._engine_new.refs import (
        ERROR,
        PENDING,
        VALUE,
        EngineRef,
        LocalError,
        PickledValue,
        error_ref,
        outcome,
        ref_of_future,
        settle_error,
        settle_value,
        value_ref,
    )
    from fray._engine_new.scope import Scope
    from fray._engine_new.streams import EngineStream, StreamCall
    from fray._engine_new.waiting import (
        Lender,
        blocking,
        ready_positions,
        seconds,
        set_lender,
        sources_of,
        watch_for,
    )
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
    from fray._serialization.functions import is_async_class, is_async_function, is_generator_function
    from fray._serialization.values import (
        callable_name,
        dumps,
        dumps_call,
        named_arguments,
        pack_exception,
        unpack_exception,
    )
    from fray._values.capabilities import (
        Capabilities,
        ClusterCapabilities,
        ContextCapabilities,
        QueueCapabilities,
    )
    from fray._values.checks import check_count, check_seconds, invalid
    from fray._values.delays import poll_delays
    from fray._values.errors import did_you_mean

__all__ = [
    "DEFAULT_TASK",
    "ERROR",
    "PENDING",
    "VALUE",
    "Actor",
    "ActorRunner",
    "Call",
    "CallExecutor",
    "CallPacker",
    "CallRunner",
    "Capabilities",
    "ClusterCapabilities",
    "ContextBase",
    "ContextCapabilities",
    "Engine",
    "EngineEndpoint",
    "EngineFuture",
    "EngineRef",
    "EngineStream",
    "LeaseState",
    "Lender",
    "LineSplitter",
    "LocalError",
    "LogReader",
    "LogSource",
    "LogWriter",
    "OffsetLog",
    "OutputPump",
    "PackedCall",
    "PartialLine",
    "PickledValue",
    "QueueCapabilities",
    "Ready",
    "RunnerActor",
    "RunnerCall",
    "Scope",
    "SourceState",
    "Spec",
    "StoredError",
    "StoredValue",
    "StreamCall",
    "TaskRunner",
    "TaskRunnerContext",
    "UsageMeter",
    "apart",
    "arguments_of",
    "blocking",
    "callable_name",
    "change_since",
    "check_count",
    "check_may_block",
    "check_seconds",
    "command_of",
    "complete_lines",
    "current_call",
    "current_context_var",
    "dead_letter",
    "did_you_mean",
    "disown_in_children",
    "dispatch",
    "dumps",
    "dumps_call",
    "end_at_exit",
    "error_ref",
    "find_by_identity",
    "future_as_ref",
    "guarded",
    "held_key",
    "identity_of",
    "import_paths",
    "in_words",
    "invalid",
    "is_async_class",
    "is_async_function",
    "is_generator_function",
    "keeping",
    "kept_alive",
    "lease_machine",
    "may_block",
    "named_arguments",
    "note_kept",
    "outcome",
    "over_asked",
    "pack_exception",
    "payload_of",
    "poll_delays",
    "program_failed",
    "prune_keys",
    "read_item",
    "ready_positions",
    "reduce_by_identity",
    "ref_of_future",
    "refuse_fields",
    "refuse_other_python",
    "refuse_python",
    "run_coroutine",
    "seconds",
    "set_current_call",
    "set_foreign_finder",
    "set_lender",
    "settle_error",
    "settle_value",
    "source_state",
    "sources_of",
    "steady_time",
    "strip_frames",
    "take_readable",
    "take_snapshot",
    "thing_by_key",
    "unpack_exception",
    "value_ref",
    "watch_for",
    "workspace_files",
    "workspace_of",
]

# The module below `fray` that each name comes from.
_HOMES = {
    "Actor": "_engine_new.actors",
    "ActorRunner": "_contracts.task_runner",
    "Call": "_engine_new.calls",
    "CallExecutor": "_engine_new.execution",
    "CallPacker": "_engine_new.execution",
    "CallRunner": "_contracts.task_runner",
    "Capabilities": "_values.capabilities",
    "ClusterCapabilities": "_values.capabilities",
    "ContextBase": "_contexts.base",
    "ContextCapabilities": "_values.capabilities",
    "DEFAULT_TASK": "_contexts.base",
    "ERROR": "_engine_new.refs",
    "Engine": "_engine_new.engine",
    "EngineEndpoint": "_engine_new.actors",
    "EngineFuture": "_engine_new.futures",
    "EngineRef": "_engine_new.refs",
    "EngineStream": "_engine_new.streams",
    "LeaseState": "_queues.lease_machine",
    "Lender": "_engine_new.waiting",
    "LineSplitter": "_jobs.logs.lines",
    "LocalError": "_engine_new.refs",
    "LogReader": "_jobs.logs.reader",
    "LogSource": "_jobs.logs.reader",
    "LogWriter": "_jobs.logs.writer",
    "OffsetLog": "_jobs.logs.reader",
    "OutputPump": "_jobs.logs.pump",
    "PENDING": "_engine_new.refs",
    "PackedCall": "_contracts.task_runner",
    "PartialLine": "_jobs.logs.lines",
    "PickledValue": "_engine_new.refs",
    "QueueCapabilities": "_values.capabilities",
    "Ready": "_contracts.task_runner",
    "RunnerActor": "_contracts.task_runner",
    "RunnerCall": "_contracts.task_runner",
    "Scope": "_engine_new.scope",
    "SourceState": "_jobs.snapshots",
    "Spec": "_discovery.specs",
    "StoredError": "_contracts.task_runner",
    "StoredValue": "_contracts.task_runner",
    "StreamCall": "_engine_new.streams",
    "TaskRunner": "_contracts.task_runner",
    "TaskRunnerContext": "_contexts.runner_context",
    "UsageMeter": "_jobs.usage",
    "VALUE": "_engine_new.refs",
    "apart": "_engine_new.calls",
    "arguments_of": "_engine_new.execution",
    "blocking": "_engine_new.waiting",
    "callable_name": "_serialization.values",
    "change_since": "_jobs.snapshots",
    "check_count": "_values.checks",
    "check_may_block": "_engine_new.locking",
    "check_seconds": "_values.checks",
    "command_of": "_jobs.plan",
    "complete_lines": "_jobs.logs.lines",
    "current_call": "_engine_new.calls",
    "current_context_var": "_discovery.current",
    "dead_letter": "_queues.reading",
    "did_you_mean": "_values.errors",
    "disown_in_children": "_engine_new.forks",
    "dispatch": "_engine_new.calls",
    "dumps": "_serialization.values",
    "dumps_call": "_serialization.values",
    "end_at_exit": "_contexts.exits",
    "error_ref": "_engine_new.refs",
    "find_by_identity": "_engine_new.identity",
    "future_as_ref": "_engine_new.execution",
    "guarded": "_engine_new.locking",
    "held_key": "_jobs.launch_keys",
    "identity_of": "_engine_new.identity",
    "import_paths": "_jobs.plan",
    "in_words": "_jobs.usage",
    "invalid": "_values.checks",
    "is_async_class": "_serialization.functions",
    "is_async_function": "_serialization.functions",
    "is_generator_function": "_serialization.functions",
    "keeping": "_engine_new.identity",
    "kept_alive": "_queues.heartbeat",
    "lease_machine": "_queues",
    "may_block": "_engine_new.locking",
    "named_arguments": "_serialization.values",
    "note_kept": "_engine_new.identity",
    "outcome": "_engine_new.refs",
    "over_asked": "_jobs.usage",
    "pack_exception": "_serialization.values",
    "payload_of": "_jobs.plan",
    "poll_delays": "_values.delays",
    "program_failed": "_contexts.exits",
    "prune_keys": "_jobs.launch_keys",
    "read_item": "_queues.reading",
    "ready_positions": "_engine_new.waiting",
    "reduce_by_identity": "_engine_new.identity",
    "ref_of_future": "_engine_new.refs",
    "refuse_fields": "_jobs.refusals",
    "refuse_other_python": "_jobs.refusals",
    "refuse_python": "_jobs.refusals",
    "run_coroutine": "_engine_new.execution",
    "seconds": "_engine_new.waiting",
    "set_current_call": "_engine_new.calls",
    "set_foreign_finder": "_engine_new.identity",
    "set_lender": "_engine_new.waiting",
    "settle_error": "_engine_new.refs",
    "settle_value": "_engine_new.refs",
    "source_state": "_jobs.snapshots",
    "sources_of": "_engine_new.waiting",
    "steady_time": "_queues.clocks",
    "strip_frames": "_engine_new.execution",
    "take_readable": "_queues.reading",
    "take_snapshot": "_jobs.snapshots",
    "thing_by_key": "_engine_new.identity",
    "unpack_exception": "_serialization.values",
    "value_ref": "_engine_new.refs",
    "watch_for": "_engine_new.waiting",
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
