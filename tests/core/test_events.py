"""Who listens, and what the logging listener writes."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.conftest import Install

from fray import ContextBase, TaskCancelledError, TaskOptions
from fray.backend import ContextCapabilities
from fray.events import (
    Event,
    EventKind,
    LoggingListener,
    Outcome,
    add_listener,
    remove_listener,
    use_listener,
)
from fray.testing.listening import nobody_listens  # noqa: F401


class Inline(ContextBase):
    """A stranger's context, as small as can be, whose references are the values themselves."""

    capabilities = ContextCapabilities(streams=True)

    submitted = staticmethod(lambda fn: None)

    def _submit(self, fn, args, kwargs, options):  # type: ignore[no-untyped-def]
        self.submitted(fn)
        return fn(*args, **kwargs)

    def _start_actor(self, cls, args, kwargs, options):  # type: ignore[no-untyped-def]
        return cls(*args, **kwargs)

    put = get = wait = cancel = get_actor = kill = shutdown = lambda self, *args, **kwargs: None  # type: ignore[assignment]


class Diary:
    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class Broken:
    def on_event(self, event: Event) -> None:
        raise RuntimeError("broken")


TASK = ["task_submitted", "task_started", "task_ended"]


@pytest.fixture
def context() -> Any:
    return Inline()


def test_a_listener_receives_until_it_is_removed(context: Any) -> None:
    diary = Diary()
    add_listener(diary)
    context.run(abs, -1)
    remove_listener(diary)
    remove_listener(diary)
    context.run(abs, -1)
    assert diary.kinds == TASK


def test_a_listener_may_be_there_for_a_block(context: Any) -> None:
    first, second = Diary(), Diary()
    with use_listener(first), use_listener(second):
        context.create_task(abs, -1, options=TaskOptions(name="size"))
    context.run(abs, -1)
    assert first.kinds == second.kinds == TASK


def test_a_function_is_itself_where_nobody_listens(context: Any) -> None:
    given: list[object] = []
    context.submitted = given.append
    context.run(abs, 1)
    with use_listener(Diary()):
        context.run(abs, 1)
    context.run(abs, 1)
    assert given[0] is given[2] is abs
    assert given[1] is not abs


def test_what_is_submitted_after_a_task_is_not_its_child(context: Any) -> None:
    def outer() -> None:
        context.run(abs, -1)
        list(context.run(numbers))

    def numbers() -> Iterator[int]:
        yield context.run(abs, -2)

    diary = Diary()
    with use_listener(diary):
        context.run(outer)
        list(context.run(numbers))
        context.run(abs, -3)
    names = {event.id: event.name.rpartition(".")[2] for event in diary.events}
    started = [event for event in diary.events if event.kind == "task_started"]
    assert [(names.get(event.parent_id or ""), names[event.id]) for event in started] == [
        (None, "outer"),
        ("outer", "abs"),
        ("outer", "numbers"),
        ("numbers", "abs"),
        (None, "numbers"),
        ("numbers", "abs"),
        (None, "abs"),
    ]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KeyError(), "error"),
        (KeyboardInterrupt(), "cancelled"),
        (TaskCancelledError("x"), "cancelled"),
        (SystemExit(0), "ok"),
        (SystemExit(3), "error"),
    ],
    ids=repr,
)
def test_an_end_is_an_error_or_came_from_outside(context: Any, error: BaseException, outcome: str) -> None:
    def end() -> None:
        raise error

    diary = Diary()
    with use_listener(diary), pytest.raises(type(error)):
        context.run(end)
    assert diary.events[-1].outcome == outcome
    assert diary.events[-1].error == (None if outcome == "ok" else type(error).__name__)


def test_a_stream_that_is_closed_early_is_reported_as_cancelled(context: Any) -> None:
    diary = Diary()
    with use_listener(diary):
        stream = context.run(lambda: (yield from range(3)))
        assert next(stream) == 0
        assert diary.kinds == ["task_submitted", "task_started"]
        stream.close()
    assert (diary.events[-1].kind, diary.events[-1].outcome) == ("task_ended", "cancelled")


def test_a_listener_that_fails_is_reported_once_and_the_others_receive(
    context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary()
    with use_listener(Broken()), use_listener(diary):
        assert context.run(abs, -1) == 1
        assert context.run(abs, -1) == 1
    assert diary.kinds == TASK * 2
    (record,) = caplog.records
    assert record.name == "fray.events"
    assert "Broken" in record.message


def test_a_listener_in_the_place_of_one_that_failed_is_reported_as_well(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []
    log = logging.getLogger("fray.events")
    # Not by caplog, which keeps the listener.
    monkeypatch.setattr(log, "exception", lambda text, *_: reports.append(text))
    listener = Broken()
    place = id(listener)
    with use_listener(listener):
        context.run(abs, -1)
    del listener
    again = next((other for other in [Broken() for _ in range(10_000)] if id(other) == place), None)
    assert again is not None, "this Python gave its memory to something else"
    with use_listener(again):
        context.run(abs, -1)
    assert len(reports) == 2


def test_installed_listeners_are_named_by_the_environment(
    context: Any, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "received = []\nclass L:\n    def __init__(self, mark: int = 0): self.mark = mark\n"
    code += "    def on_event(self, event): received.append((self.mark, str(event.kind)))\n"
    install("fray-diary", {"fray.listeners": {"diary": "diary_mod:L"}}, diary_mod=code)
    monkeypatch.setenv("FRAY_LISTENERS", "diary?mark=1, diary_mod:L?mark=2")
    context.run(abs, -1)
    received = sys.modules["diary_mod"].received
    assert received == [(mark, kind) for kind in TASK for mark in (1, 2)]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("loging", "did you mean 'logging'"),
        ("logging?colour=red", "colour"),
        ("logging?level=loud", "level must be one of"),
        ("nowhere_at_all:L", "nowhere_at_all"),
    ],
)
def test_a_listener_that_cannot_be_had_is_reported_and_does_not_stop_the_program(
    spec: str,
    complaint: str,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FRAY_LISTENERS", spec)
    assert [context.run(abs, -1), context.run(abs, -2)] == [1, 2]
    (record,) = caplog.records
    assert repr(spec) in record.message
    assert complaint in record.message


def test_the_logging_listener_writes_a_line_each_and_warns_of_errors(
    context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fray.events")
    listener = LoggingListener(level="debug")
    facts: dict[str, Any] = {"id": "1f", "name": "train", "time": 0.0, "parent_id": "job-1"}
    listener.on_event(Event(kind=EventKind.TASK_STARTED, **facts))
    listener.on_event(
        Event(kind=EventKind.TASK_ENDED, outcome=Outcome.ERROR, error="ValueError", seconds=0.25, **facts)
    )
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "task_started train id=1f parent=job-1"),
        ("WARNING", "task_ended train id=1f parent=job-1 outcome=error error=ValueError seconds=0.250000"),
    ]


def test_a_program_without_logging_gets_the_lines_on_stderr() -> None:
    code = "from fray.events import *\n"
    code += "LoggingListener().on_event(Event(kind=EventKind.JOB_LAUNCHED, id='a-1', name='a'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "job_launched a id=a-1\n")


def test_without_opentelemetry_its_listener_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None\nfrom fray.events import OpenTelemetryListener"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'fray-core[otel]'" in done.stderr
