"""What the author of a backend needs, and a user of one never sees.

Names are loaded when they are requested, so that a worker imports only what it uses.

`API_VERSION` counts the versions of this door: it grows when a backend has to change, not when a name is
added. A backend calls `require_api` where it is imported, with the version that it was written for.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing would cost the supervisor of a job a third of its time
if TYPE_CHECKING:
    from typing import Any

    from fray._cli.log_output import print_lines
    from fray._cli.output import print_table
    from fray._cli.serving import ending_signal, token_in
    from fray._cli.shared import one_line
    from fray._contexts.base import DEFAULT_TASK, ContextBase
    from fray._contexts.exits import ACTOR_SECONDS, end_at_exit, name_given_up, program_failed
    from fray._contexts.in_process import InProcessRunner
    from fray._contexts.map import MapPace
    from fray._contexts.remote.context import EngineContext, capabilities_of
    from fray._contexts.remote.hosts import sessions
    from fray._contexts.remote.worker import answer, run_call
    from fray._contexts.runner_context import TaskRunnerContext
    from fray._contexts.task_future import TaskFuture
    from fray._contracts.current_context import current_context_var
    from fray._contracts.gang_runtime import GangRuntime
    from fray._contracts.remote_engine import AskingEngine, CallFailed, RemoteEngine
    from fray._contracts.task_runner import (
        ActorRunner,
        CallRunner,
        PackedCall,
        Ready,
        RescuingRunner,
        RunnerActor,
        RunnerCall,
        StoredError,
        StoredValue,
        TaskRunner,
    )
    from fray._discovery.gang_runtimes import gang_runtime
    from fray._discovery.specs import Spec, bind_options
    from fray._engine.actor_endpoint import EngineEndpoint
    from fray._engine.actors import Actor
    from fray._engine.calls import Call, apart, current_call, dispatch, set_current_call
    from fray._engine.engine import Engine
    from fray._engine.execution import (
        CallExecutor,
        CallPacker,
        arguments_of,
        future_as_ref,
        run_coroutine,
        strip_frames,
    )
    from fray._engine.forks import disown_in_children
    from fray._engine.futures import EngineFuture
    from fray._engine.identity import (
        find_by_identity,
        identity_of,
        keeping,
        note_kept,
        reduce_by_identity,
        set_foreign_finder,
        thing_by_key,
    )
    from fray._engine.locking import LOCK, OneAtATime, check_may_block, guarded, may_block
    from fray._engine.refs import (
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
    from fray._engine.scope import Scope
    from fray._engine.streams import EngineStream, StreamCall
    from fray._engine.waiting import (
        Lender,
        blocking,
        ready_positions,
        seconds,
        set_lender,
        sources_of,
        watch_for,
    )
    from fray._jobs import process_tree, runner
    from fray._jobs.clusters.restart import tasks_to_restart
    from fray._jobs.clusters.retry import check_retry
    from fray._jobs.clusters.sweep_log import follow_members
    from fray._jobs.logs.last_lines import as_last_lines, bytes_for_last_lines
    from fray._jobs.logs.lines import LineSplitter, PartialLine, complete_lines
    from fray._jobs.logs.pump import OutputPump
    from fray._jobs.logs.reader import LogReader, LogSource, OffsetLog
    from fray._jobs.logs.writer import LogWriter
    from fray._jobs.plans.about_request import about_request
    from fray._jobs.plans.environment_folder import ENVIRONMENT_LINK, ENVIRONMENT_READY, locked_environment
    from fray._jobs.plans.own_environment import own_python, plan_with_environment, warn_of_another_python
    from fray._jobs.plans.parts import Admission, HostEnd, Preparation
    from fray._jobs.plans.planning import (
        FAMILY,
        command_of,
        import_paths,
        own_family,
        path_in_copy,
        payload_of,
        plan_of,
        workspace_of,
    )
    from fray._jobs.plans.port_variables import HOST_ADDRESS, PORT_VARIABLE, port_variable
    from fray._jobs.plans.pythons import fits
    from fray._jobs.plans.refusals import (
        refuse_fields,
        refuse_native_options,
        refuse_other_python,
        refuse_python,
    )
    from fray._jobs.plans.snapshots import (
        SourceState,
        change_since,
        source_state,
        take_snapshot,
        workspace_files,
    )
    from fray._jobs.plans.sweep_plan import TURN, SweepPlan
    from fray._jobs.plans.sweeps import as_members, checked_requests, sweep_name
    from fray._jobs.plans.values import Grant, HostEnding, Keep
    from fray._jobs.process_tree import (
        JOB_VARIABLE,
        OUTLIVES_JOBS,
        SUPERVISORS_IGNORE,
        USER_SIGNALS,
        ControlGroup,
        ProcessIdentity,
        TreeKill,
        become_subreaper,
        boot_id,
        descendants,
        die_with_parent,
        environment_of,
        identify,
        kill_until_gone,
        tree_kill,
        with_variable,
    )
    from fray._jobs.processes.bare import bare_command
    from fray._jobs.processes.file_lock import release_lock, wait_for_lock
    from fray._jobs.processes.memory_group import MemoryGroup, leave_group, limits_memory
    from fray._jobs.processes.memory_limit import memory_bytes
    from fray._jobs.processes.oom import oom_kills
    from fray._jobs.processes.ports import HeldPorts, free_ports, port_is_free
    from fray._jobs.processes.spawn import start_program
    from fray._jobs.processes.usage import UsageMeter, over_asked
    from fray._jobs.ranks import PORTS, GangLayout, Meeting, rank_variable_names, rank_variables
    from fray._jobs.records.control_pipe import post_to_supervisor
    from fray._jobs.records.details import with_request
    from fray._jobs.records.kept_plans import is_secret_name
    from fray._jobs.records.launch_keys import HeldKey, check_key, held_key, prune_keys
    from fray._jobs.records.liveness import (
        Holder,
        Liveness,
        SupervisorLock,
        holder_of,
        liveness_of,
        this_host,
    )
    from fray._jobs.records.on_exit import exit_variables
    from fray._jobs.records.packed_plans import packed_plan
    from fray._jobs.records.predecessors import folder_of_records
    from fray._jobs.records.record import JobRecord, Records
    from fray._jobs.records.replica_records import REPLICAS, job_path
    from fray._jobs.records.settling import settle_by_members, sweep_info, sweep_progress
    from fray._jobs.records.status_file import replace_file
    from fray._jobs.records.usage_history import UsageHistory
    from fray._jobs.records.writing import write_record
    from fray._jobs.replica.preemption_notice import NOTICE_VARIABLE
    from fray._jobs.rules.events import (
        AttemptEnd,
        Begin,
        CannotRun,
        ClearReplica,
        ClearTree,
        Ended,
        EndTree,
        Noticed,
        NotifyReplica,
        Placed,
        Policy,
        RestartRequested,
        SettleJob,
        StartFailed,
        StartReplica,
        StopReplica,
        StopRequested,
        Tick,
        TreeEnded,
    )
    from fray._jobs.rules.replica_endings import info_of_replicas
    from fray._jobs.rules.replica_rules import pause_after
    from fray._jobs.rules.states import JobState, ReplicaState
    from fray._jobs.rules.sweep_order import SweepOrder
    from fray._jobs.supervision import JobPhase, Supervision
    from fray._jobs.supervisor.command import supervisor_command
    from fray._jobs.supervisor.exits import ends_path
    from fray._jobs.supervisor.job_tree import SUPERVISOR_MODULE
    from fray._jobs.supervisor.stopping import request_stop, settle_stopped
    from fray._queues import lease_machine
    from fray._queues.aio import AsyncQueue, PollingAsyncQueue, async_queue
    from fray._queues.answers import Answer, answer_of, check_error, check_lease, pack_answers, pack_failure
    from fray._queues.clocks import steady_time
    from fray._queues.heartbeat import Heartbeat, kept_alive
    from fray._queues.lease_machine import LeaseState
    from fray._queues.native_aio import NativeAsyncQueue, QueueCalls, ReplyPoller
    from fray._queues.reading import dead_letter, describe, read_item, read_lease, take_readable
    from fray._queues.turns import Turns
    from fray._serialization.captures import captures, found_by_name, is_importable, same_captures
    from fray._serialization.functions import is_async_class, is_async_function, is_generator_function
    from fray._serialization.pickler import function_pickler, register_reducer
    from fray._serialization.values import (
        callable_name,
        dumps,
        dumps_call,
        named_arguments,
        pack_exception,
        unpack_exception,
    )
    from fray._serialization.wrapped_classes import WrappedClass
    from fray._telemetry.listeners import listening, tell
    from fray._ui import queue_page
    from fray._ui.answers import part_answer
    from fray._ui.hosts import HostCheck, is_loopback, is_same_origin
    from fray._ui.server import UiServer
    from fray._ui.server_thread import ServerThread
    from fray._values.brief_threads import BriefThreads
    from fray._values.capabilities import (
        Capabilities,
        ClusterCapabilities,
        ContextCapabilities,
        QueueCapabilities,
    )
    from fray._values.checks import check_count, check_seconds, invalid
    from fray._values.delays import poll_delays, poll_until, retry_delays
    from fray._values.errors import did_you_mean
    from fray._values.findings import Finding, Health
    from fray._values.job_states import defer_tasks
    from fray._values.leases import with_end
    from fray._values.light_json import to_json
    from fray._values.light_tuples import NamedTuple
    from fray._values.push_options import PLAIN, PushOptions
    from fray._values.readable import readable
    from fray._values.threads import NoThreadError, map_in_threads, run_aside, start_thread
    from fray._values.words import in_words

__all__ = [
    "ACTOR_SECONDS",
    "API_VERSION",
    "DEFAULT_TASK",
    "ENVIRONMENT_LINK",
    "ENVIRONMENT_READY",
    "ERROR",
    "FAMILY",
    "HOST_ADDRESS",
    "JOB_VARIABLE",
    "LOCK",
    "NOTICE_VARIABLE",
    "OUTLIVES_JOBS",
    "PENDING",
    "PLAIN",
    "PORTS",
    "PORT_VARIABLE",
    "REPLICAS",
    "SUPERVISORS_IGNORE",
    "SUPERVISOR_MODULE",
    "TURN",
    "USER_SIGNALS",
    "VALUE",
    "Actor",
    "ActorRunner",
    "Admission",
    "Answer",
    "AskingEngine",
    "AsyncQueue",
    "AttemptEnd",
    "Begin",
    "BriefThreads",
    "Call",
    "CallExecutor",
    "CallFailed",
    "CallPacker",
    "CallRunner",
    "CannotRun",
    "Capabilities",
    "ClearReplica",
    "ClearTree",
    "ClusterCapabilities",
    "ContextBase",
    "ContextCapabilities",
    "ControlGroup",
    "EndTree",
    "Ended",
    "Engine",
    "EngineContext",
    "EngineEndpoint",
    "EngineFuture",
    "EngineRef",
    "EngineStream",
    "Finding",
    "GangLayout",
    "GangRuntime",
    "Grant",
    "Health",
    "Heartbeat",
    "HeldKey",
    "HeldPorts",
    "Holder",
    "HostCheck",
    "HostEnd",
    "HostEnding",
    "InProcessRunner",
    "JobPhase",
    "JobRecord",
    "JobState",
    "Keep",
    "LeaseState",
    "Lender",
    "LineSplitter",
    "Liveness",
    "LocalError",
    "LogReader",
    "LogSource",
    "LogWriter",
    "MapPace",
    "Meeting",
    "MemoryGroup",
    "NamedTuple",
    "NativeAsyncQueue",
    "NoThreadError",
    "Noticed",
    "NotifyReplica",
    "OffsetLog",
    "OneAtATime",
    "OutputPump",
    "PackedCall",
    "PartialLine",
    "PickledValue",
    "Placed",
    "Policy",
    "PollingAsyncQueue",
    "Preparation",
    "ProcessIdentity",
    "PushOptions",
    "QueueCalls",
    "QueueCapabilities",
    "Ready",
    "Records",
    "RemoteEngine",
    "ReplicaState",
    "ReplyPoller",
    "RescuingRunner",
    "RestartRequested",
    "RunnerActor",
    "RunnerCall",
    "Scope",
    "ServerThread",
    "SettleJob",
    "SourceState",
    "Spec",
    "StartFailed",
    "StartReplica",
    "StopReplica",
    "StopRequested",
    "StoredError",
    "StoredValue",
    "StreamCall",
    "Supervision",
    "SupervisorLock",
    "SweepOrder",
    "SweepPlan",
    "TaskFuture",
    "TaskRunner",
    "TaskRunnerContext",
    "Tick",
    "TreeEnded",
    "TreeKill",
    "Turns",
    "UiServer",
    "UsageHistory",
    "UsageMeter",
    "WrappedClass",
    "about_request",
    "answer",
    "answer_of",
    "apart",
    "arguments_of",
    "as_last_lines",
    "as_members",
    "async_queue",
    "bare_command",
    "become_subreaper",
    "bind_options",
    "blocking",
    "boot_id",
    "bytes_for_last_lines",
    "callable_name",
    "capabilities_of",
    "captures",
    "change_since",
    "check_count",
    "check_error",
    "check_key",
    "check_lease",
    "check_may_block",
    "check_retry",
    "check_seconds",
    "checked_requests",
    "command_of",
    "complete_lines",
    "current_call",
    "current_context_var",
    "dead_letter",
    "defer_tasks",
    "descendants",
    "describe",
    "did_you_mean",
    "die_with_parent",
    "disown_in_children",
    "dispatch",
    "dumps",
    "dumps_call",
    "end_at_exit",
    "ending_signal",
    "ends_path",
    "environment_of",
    "error_ref",
    "exit_variables",
    "find_by_identity",
    "fits",
    "folder_of_records",
    "follow_members",
    "found_by_name",
    "free_ports",
    "function_pickler",
    "future_as_ref",
    "gang_runtime",
    "guarded",
    "held_key",
    "holder_of",
    "identify",
    "identity_of",
    "import_paths",
    "in_words",
    "info_of_replicas",
    "invalid",
    "is_async_class",
    "is_async_function",
    "is_generator_function",
    "is_importable",
    "is_loopback",
    "is_same_origin",
    "is_secret_name",
    "job_path",
    "keeping",
    "kept_alive",
    "kill_until_gone",
    "lease_machine",
    "leave_group",
    "limits_memory",
    "listening",
    "liveness_of",
    "locked_environment",
    "map_in_threads",
    "may_block",
    "memory_bytes",
    "name_given_up",
    "named_arguments",
    "note_kept",
    "one_line",
    "oom_kills",
    "outcome",
    "over_asked",
    "own_family",
    "own_python",
    "pack_answers",
    "pack_exception",
    "pack_failure",
    "packed_plan",
    "part_answer",
    "path_in_copy",
    "pause_after",
    "payload_of",
    "plan_of",
    "plan_with_environment",
    "poll_delays",
    "poll_until",
    "port_is_free",
    "port_variable",
    "post_to_supervisor",
    "print_lines",
    "print_table",
    "process_tree",
    "program_failed",
    "prune_keys",
    "queue_page",
    "rank_variable_names",
    "rank_variables",
    "read_item",
    "read_lease",
    "readable",
    "ready_positions",
    "reduce_by_identity",
    "ref_of_future",
    "refuse_fields",
    "refuse_native_options",
    "refuse_other_python",
    "refuse_python",
    "register_reducer",
    "release_lock",
    "replace_file",
    "request_stop",
    "require_api",
    "retry_delays",
    "run_aside",
    "run_call",
    "run_coroutine",
    "runner",
    "same_captures",
    "seconds",
    "sessions",
    "set_current_call",
    "set_foreign_finder",
    "set_lender",
    "settle_by_members",
    "settle_error",
    "settle_stopped",
    "settle_value",
    "source_state",
    "sources_of",
    "start_program",
    "start_thread",
    "steady_time",
    "strip_frames",
    "supervisor_command",
    "sweep_info",
    "sweep_name",
    "sweep_progress",
    "take_readable",
    "take_snapshot",
    "tasks_to_restart",
    "tell",
    "thing_by_key",
    "this_host",
    "to_json",
    "token_in",
    "tree_kill",
    "unpack_exception",
    "value_ref",
    "wait_for_lock",
    "warn_of_another_python",
    "watch_for",
    "with_end",
    "with_request",
    "with_variable",
    "workspace_files",
    "workspace_of",
    "write_record",
]

# The module below `fray` that each name comes from.
_HOMES = {
    "to_json": "_values.light_json",
    "print_lines": "_cli.log_output",
    "bind_options": "_discovery.specs",
    "ReplicaState": "_jobs.rules.states",
    "JobState": "_jobs.rules.states",
    "about_request": "_jobs.plans.about_request",
    "with_request": "_jobs.records.details",
    "FAMILY": "_jobs.plans.planning",
    "own_family": "_jobs.plans.planning",
    "is_secret_name": "_jobs.records.kept_plans",
    "SweepOrder": "_jobs.rules.sweep_order",
    "as_members": "_jobs.plans.sweeps",
    "checked_requests": "_jobs.plans.sweeps",
    "sweep_name": "_jobs.plans.sweeps",
    "REPLICAS": "_jobs.records.replica_records",
    "job_path": "_jobs.records.replica_records",
    "folder_of_records": "_jobs.records.predecessors",
    "info_of_replicas": "_jobs.rules.replica_endings",
    "tasks_to_restart": "_jobs.clusters.restart",
    "check_retry": "_jobs.clusters.retry",
    "check_key": "_jobs.records.launch_keys",
    "NOTICE_VARIABLE": "_jobs.replica.preemption_notice",
    "PORT_VARIABLE": "_jobs.plans.port_variables",
    "port_variable": "_jobs.plans.port_variables",
    "exit_variables": "_jobs.records.on_exit",
    "follow_members": "_jobs.clusters.sweep_log",
    "TURN": "_jobs.plans.sweep_plan",
    "runner": "_jobs",
    "memory_bytes": "_jobs.processes.memory_limit",
    "oom_kills": "_jobs.processes.oom",
    "start_program": "_jobs.processes.spawn",
    "process_tree": "_jobs",
    "Answer": "_queues.answers",
    "answer_of": "_queues.answers",
    "check_error": "_queues.answers",
    "check_lease": "_queues.answers",
    "pack_answers": "_queues.answers",
    "pack_failure": "_queues.answers",
    "describe": "_queues.reading",
    "PLAIN": "_values.push_options",
    "PushOptions": "_values.push_options",
    "QueueCalls": "_queues.native_aio",
    "Actor": "_engine.actors",
    "ActorRunner": "_contracts.task_runner",
    "Admission": "_jobs.plans.parts",
    "SUPERVISOR_MODULE": "_jobs.supervisor.job_tree",
    "ends_path": "_jobs.supervisor.exits",
    "Finding": "_values.findings",
    "Health": "_values.findings",
    "HostEnd": "_jobs.plans.parts",
    "HostEnding": "_jobs.plans.values",
    "request_stop": "_jobs.supervisor.stopping",
    "settle_stopped": "_jobs.supervisor.stopping",
    "AsyncQueue": "_queues.aio",
    "AttemptEnd": "_jobs.rules.events",
    "Begin": "_jobs.rules.events",
    "Call": "_engine.calls",
    "CallExecutor": "_engine.execution",
    "CallPacker": "_engine.execution",
    "CallRunner": "_contracts.task_runner",
    "CannotRun": "_jobs.rules.events",
    "Capabilities": "_values.capabilities",
    "ClearReplica": "_jobs.rules.events",
    "ClearTree": "_jobs.rules.events",
    "ClusterCapabilities": "_values.capabilities",
    "ContextBase": "_contexts.base",
    "MapPace": "_contexts.map",
    "ContextCapabilities": "_values.capabilities",
    "ControlGroup": "_jobs.process_tree",
    "DEFAULT_TASK": "_contexts.base",
    "ENVIRONMENT_LINK": "_jobs.plans.environment_folder",
    "ENVIRONMENT_READY": "_jobs.plans.environment_folder",
    "ERROR": "_engine.refs",
    "EndTree": "_jobs.rules.events",
    "Ended": "_jobs.rules.events",
    "Engine": "_engine.engine",
    "AskingEngine": "_contracts.remote_engine",
    "CallFailed": "_contracts.remote_engine",
    "RemoteEngine": "_contracts.remote_engine",
    "EngineContext": "_contexts.remote.context",
    "answer": "_contexts.remote.worker",
    "capabilities_of": "_contexts.remote.context",
    "run_call": "_contexts.remote.worker",
    "sessions": "_contexts.remote.hosts",
    "EngineEndpoint": "_engine.actor_endpoint",
    "EngineFuture": "_engine.futures",
    "EngineRef": "_engine.refs",
    "EngineStream": "_engine.streams",
    "GangLayout": "_jobs.ranks",
    "GangRuntime": "_contracts.gang_runtime",
    "Grant": "_jobs.plans.values",
    "Heartbeat": "_queues.heartbeat",
    "Holder": "_jobs.records.liveness",
    "InProcessRunner": "_contexts.in_process",
    "JOB_VARIABLE": "_jobs.process_tree",
    "JobPhase": "_jobs.supervision",
    "JobRecord": "_jobs.records.record",
    "Keep": "_jobs.plans.values",
    "LOCK": "_engine.locking",
    "LeaseState": "_queues.lease_machine",
    "Lender": "_engine.waiting",
    "LineSplitter": "_jobs.logs.lines",
    "Liveness": "_jobs.records.liveness",
    "LocalError": "_engine.refs",
    "LogReader": "_jobs.logs.reader",
    "LogSource": "_jobs.logs.reader",
    "LogWriter": "_jobs.logs.writer",
    "Meeting": "_jobs.ranks",
    "MemoryGroup": "_jobs.processes.memory_group",
    "NamedTuple": "_values.light_tuples",
    "NativeAsyncQueue": "_queues.native_aio",
    "BriefThreads": "_values.brief_threads",
    "NoThreadError": "_values.threads",
    "map_in_threads": "_values.threads",
    "run_aside": "_values.threads",
    "start_thread": "_values.threads",
    "Noticed": "_jobs.rules.events",
    "NotifyReplica": "_jobs.rules.events",
    "Placed": "_jobs.rules.events",
    "OUTLIVES_JOBS": "_jobs.process_tree",
    "SUPERVISORS_IGNORE": "_jobs.process_tree",
    "USER_SIGNALS": "_jobs.process_tree",
    "OffsetLog": "_jobs.logs.reader",
    "OneAtATime": "_engine.locking",
    "OutputPump": "_jobs.logs.pump",
    "PENDING": "_engine.refs",
    "PORTS": "_jobs.ranks",
    "PackedCall": "_contracts.task_runner",
    "PartialLine": "_jobs.logs.lines",
    "PickledValue": "_engine.refs",
    "Policy": "_jobs.rules.events",
    "PollingAsyncQueue": "_queues.aio",
    "Preparation": "_jobs.plans.parts",
    "ProcessIdentity": "_jobs.process_tree",
    "QueueCapabilities": "_values.capabilities",
    "Ready": "_contracts.task_runner",
    "Records": "_jobs.records.record",
    "ReplyPoller": "_queues.native_aio",
    "RescuingRunner": "_contracts.task_runner",
    "RunnerActor": "_contracts.task_runner",
    "RunnerCall": "_contracts.task_runner",
    "Scope": "_engine.scope",
    "SettleJob": "_jobs.rules.events",
    "SourceState": "_jobs.plans.snapshots",
    "Spec": "_discovery.specs",
    "StartFailed": "_jobs.rules.events",
    "StartReplica": "_jobs.rules.events",
    "StopReplica": "_jobs.rules.events",
    "RestartRequested": "_jobs.rules.events",
    "StopRequested": "_jobs.rules.events",
    "StoredError": "_contracts.task_runner",
    "StoredValue": "_contracts.task_runner",
    "StreamCall": "_engine.streams",
    "Supervision": "_jobs.supervision",
    "SupervisorLock": "_jobs.records.liveness",
    "TaskFuture": "_contexts.task_future",
    "TaskRunner": "_contracts.task_runner",
    "TaskRunnerContext": "_contexts.runner_context",
    "Tick": "_jobs.rules.events",
    "TreeEnded": "_jobs.rules.events",
    "TreeKill": "_jobs.process_tree",
    "UiServer": "_ui.server",
    "HostCheck": "_ui.hosts",
    "ServerThread": "_ui.server_thread",
    "is_loopback": "_ui.hosts",
    "is_same_origin": "_ui.hosts",
    "part_answer": "_ui.answers",
    "queue_page": "_ui",
    "UsageHistory": "_jobs.records.usage_history",
    "UsageMeter": "_jobs.processes.usage",
    "VALUE": "_engine.refs",
    "Turns": "_queues.turns",
    "WrappedClass": "_serialization.wrapped_classes",
    "apart": "_engine.calls",
    "arguments_of": "_engine.execution",
    "async_queue": "_queues.aio",
    "bare_command": "_jobs.processes.bare",
    "become_subreaper": "_jobs.process_tree",
    "blocking": "_engine.waiting",
    "boot_id": "_jobs.process_tree",
    "callable_name": "_serialization.values",
    "same_captures": "_serialization.captures",
    "is_importable": "_serialization.captures",
    "found_by_name": "_serialization.captures",
    "captures": "_serialization.captures",
    "change_since": "_jobs.plans.snapshots",
    "check_count": "_values.checks",
    "check_may_block": "_engine.locking",
    "check_seconds": "_values.checks",
    "command_of": "_jobs.plans.planning",
    "as_last_lines": "_jobs.logs.last_lines",
    "bytes_for_last_lines": "_jobs.logs.last_lines",
    "complete_lines": "_jobs.logs.lines",
    "current_call": "_engine.calls",
    "current_context_var": "_contracts.current_context",
    "dead_letter": "_queues.reading",
    "defer_tasks": "_values.job_states",
    "descendants": "_jobs.process_tree",
    "did_you_mean": "_values.errors",
    "die_with_parent": "_jobs.process_tree",
    "disown_in_children": "_engine.forks",
    "dispatch": "_engine.calls",
    "dumps": "_serialization.values",
    "function_pickler": "_serialization.pickler",
    "register_reducer": "_serialization.pickler",
    "dumps_call": "_serialization.values",
    "ACTOR_SECONDS": "_contexts.exits",
    "end_at_exit": "_contexts.exits",
    "name_given_up": "_contexts.exits",
    "environment_of": "_jobs.process_tree",
    "error_ref": "_engine.refs",
    "find_by_identity": "_engine.identity",
    "fits": "_jobs.plans.pythons",
    "HeldPorts": "_jobs.processes.ports",
    "free_ports": "_jobs.processes.ports",
    "future_as_ref": "_engine.execution",
    "gang_runtime": "_discovery.gang_runtimes",
    "guarded": "_engine.locking",
    "HeldKey": "_jobs.records.launch_keys",
    "held_key": "_jobs.records.launch_keys",
    "holder_of": "_jobs.records.liveness",
    "identify": "_jobs.process_tree",
    "identity_of": "_engine.identity",
    "import_paths": "_jobs.plans.planning",
    "in_words": "_values.words",
    "invalid": "_values.checks",
    "is_async_class": "_serialization.functions",
    "is_async_function": "_serialization.functions",
    "is_generator_function": "_serialization.functions",
    "keeping": "_engine.identity",
    "kept_alive": "_queues.heartbeat",
    "kill_until_gone": "_jobs.process_tree",
    "lease_machine": "_queues",
    "leave_group": "_jobs.processes.memory_group",
    "listening": "_telemetry.listeners",
    "tell": "_telemetry.listeners",
    "limits_memory": "_jobs.processes.memory_group",
    "liveness_of": "_jobs.records.liveness",
    "locked_environment": "_jobs.plans.environment_folder",
    "may_block": "_engine.locking",
    "named_arguments": "_serialization.values",
    "note_kept": "_engine.identity",
    "one_line": "_cli.shared",
    "ending_signal": "_cli.serving",
    "token_in": "_cli.serving",
    "outcome": "_engine.refs",
    "over_asked": "_jobs.processes.usage",
    "own_python": "_jobs.plans.own_environment",
    "pack_exception": "_serialization.values",
    "packed_plan": "_jobs.records.packed_plans",
    "path_in_copy": "_jobs.plans.planning",
    "pause_after": "_jobs.rules.replica_rules",
    "payload_of": "_jobs.plans.planning",
    "plan_of": "_jobs.plans.planning",
    "plan_with_environment": "_jobs.plans.own_environment",
    "port_is_free": "_jobs.processes.ports",
    "HOST_ADDRESS": "_jobs.plans.port_variables",
    "poll_delays": "_values.delays",
    "poll_until": "_values.delays",
    "post_to_supervisor": "_jobs.records.control_pipe",
    "print_table": "_cli.output",
    "program_failed": "_contexts.exits",
    "prune_keys": "_jobs.records.launch_keys",
    "rank_variable_names": "_jobs.ranks",
    "rank_variables": "_jobs.ranks",
    "read_item": "_queues.reading",
    "read_lease": "_queues.reading",
    "readable": "_values.readable",
    "with_end": "_values.leases",
    "ready_positions": "_engine.waiting",
    "reduce_by_identity": "_engine.identity",
    "ref_of_future": "_engine.refs",
    "refuse_fields": "_jobs.plans.refusals",
    "refuse_native_options": "_jobs.plans.refusals",
    "refuse_other_python": "_jobs.plans.refusals",
    "refuse_python": "_jobs.plans.refusals",
    "replace_file": "_jobs.records.status_file",
    "retry_delays": "_values.delays",
    "run_coroutine": "_engine.execution",
    "seconds": "_engine.waiting",
    "set_current_call": "_engine.calls",
    "set_foreign_finder": "_engine.identity",
    "set_lender": "_engine.waiting",
    "settle_error": "_engine.refs",
    "settle_value": "_engine.refs",
    "source_state": "_jobs.plans.snapshots",
    "sources_of": "_engine.waiting",
    "steady_time": "_queues.clocks",
    "strip_frames": "_engine.execution",
    "supervisor_command": "_jobs.supervisor.command",
    "settle_by_members": "_jobs.records.settling",
    "sweep_info": "_jobs.records.settling",
    "sweep_progress": "_jobs.records.settling",
    "write_record": "_jobs.records.writing",
    "SweepPlan": "_jobs.plans.sweep_plan",
    "take_readable": "_queues.reading",
    "take_snapshot": "_jobs.plans.snapshots",
    "thing_by_key": "_engine.identity",
    "this_host": "_jobs.records.liveness",
    "tree_kill": "_jobs.process_tree",
    "unpack_exception": "_serialization.values",
    "value_ref": "_engine.refs",
    "release_lock": "_jobs.processes.file_lock",
    "wait_for_lock": "_jobs.processes.file_lock",
    "warn_of_another_python": "_jobs.plans.own_environment",
    "watch_for": "_engine.waiting",
    "with_variable": "_jobs.process_tree",
    "workspace_files": "_jobs.plans.snapshots",
    "workspace_of": "_jobs.plans.planning",
}

API_VERSION = 1
"""The version of this door."""


def require_api(version: int) -> None:
    """Refuse a door of another version than a backend was written for.

    Raises:
        ImportError: The versions differ; `fray plugins` shows it beside the backend's distribution.
    """
    if version != API_VERSION:
        newer = "fray-core" if version > API_VERSION else "the backend"
        raise ImportError(
            f"the backend was written for version {version} of fray.backend, and the fray-core that is "
            f"installed has version {API_VERSION}; install a newer version of {newer}"
        )


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"fray.{home}")
    # Some names are modules, which their room does not import by itself.
    value = getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")
    globals()[name] = value  # the next look finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
