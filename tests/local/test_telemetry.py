"""OpenTelemetry: one trace from the launcher over its job to the tasks, in whatever process they run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fray import (
    Entrypoint,
    JobContext,
    JobRequest,
    create_cluster,
    create_context,
    create_environment,
    get_job_context,
)
from fray.events import Event, EventKind, OpenTelemetryListener, use_listener
from fray.testing.listening import nobody_listens  # noqa: F401

# What a program would write to set up its telemetry, here with a file for a collector.
SETUP = """
from pathlib import Path
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from fray.events import OpenTelemetryListener

class FileExporter(SpanExporter):
    def __init__(self, path):
        self.path = Path(path)

    def export(self, spans):
        with self.path.open("a") as file:
            file.write("".join(span.to_json(indent=None) + "\\n" for span in spans))
        return SpanExportResult.SUCCESS

def listen(path: str):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(path)))
    return OpenTelemetryListener(provider)
"""


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider
    provider.shutdown()


@pytest.fixture(params=["sync", "threadpool"])
def context(request: pytest.FixtureRequest) -> Iterator[JobContext]:
    with create_context(request.param) as context:
        yield context


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def parent_id(span: ReadableSpan) -> int:
    assert span.parent is not None
    return int(span.parent.span_id)


def current_span_id() -> int:
    return trace.get_current_span().get_span_context().span_id


def item_span_ids() -> Iterator[int]:
    yield current_span_id()
    yield current_span_id()


def add(a: int, b: int = 1) -> int:
    return a + b


def fail(message: str) -> None:
    raise ValueError(message)


class Counter:
    def count(self, by: int) -> None:
        if by < 0:
            raise ValueError(f"cannot count by {by}")


def train() -> None:
    """What the job runs: tasks in threads and in processes, of which one runs another."""
    for spec in ("threadpool", "process?max_workers=1"):
        with create_context(spec) as context:
            context.get(context.run(outer))


def outer() -> int:
    context = get_job_context()
    return int(context.get(context.run(add, 1)))


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the spans of this process and of its jobs end up, a line of JSON each."""
    (tmp_path / "telemetry_here.py").write_text(SETUP)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = tmp_path / "spans.jsonl"
    monkeypatch.setenv("FRAY_LISTENERS", f"telemetry_here:listen?path={lines}")
    return lines


def edges(lines: Path) -> list[tuple[str, str]]:
    """The names of each span's parent and of itself; all are of one trace."""
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len({span["context"]["trace_id"] for span in found}) == 1
    names = {span["context"]["span_id"]: span["name"] for span in found}
    return sorted((str(names.get(span["parent_id"])), span["name"]) for span in found)


def test_launcher_job_and_tasks_are_one_trace(collected: Path) -> None:
    cluster = create_cluster("local")
    job_id = cluster.launch(JobRequest("train", train))
    assert cluster.wait(job_id, timeout=60).status == "succeeded", list(cluster.monitor(job_id))
    assert edges(collected) == [
        ("None", "launch train"),
        ("launch train", "replica train"),
        ("replica train", "task outer"),
        ("replica train", "task outer"),
        ("task outer", "task add"),
        ("task outer", "task add"),
    ]
    assert job_id in collected.read_text()


def test_a_command_takes_part_in_the_trace(collected: Path) -> None:
    code = "from fray import create_context\n"
    code += "with create_context('threadpool') as context: context.get(context.run(pow, 2, 3))"
    environment = create_environment(workspace=collected.parent)
    program = Entrypoint.from_binary("python", ["-c", code])
    cluster = create_cluster("local")
    job_id = cluster.launch(JobRequest("command", program, environment=environment))
    assert cluster.wait(job_id, timeout=60).status == "succeeded", list(cluster.monitor(job_id))
    assert edges(collected) == [("None", "launch command"), ("launch command", "task pow")]


def test_a_tasks_span_is_the_current_one_while_it_runs(
    context: JobContext, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracer = provider.get_tracer("program")
    with use_listener(OpenTelemetryListener(provider)), tracer.start_as_current_span("mine") as mine:
        inside = context.get(context.run(current_span_id))
        items = [context.get(item) for item in context.run(item_span_ids)]
        assert trace.get_current_span() is mine
    found = by_name(spans)
    assert span_id(found["task current_span_id"]) == inside
    assert [span_id(found["task item_span_ids"])] * 2 == items
    mine_id = mine.get_span_context().span_id
    assert {parent_id(span) for name, span in found.items() if name != "mine"} == {mine_id}


def test_what_was_current_is_so_again_when_something_has_ended(provider: TracerProvider) -> None:
    listener = OpenTelemetryListener(provider)
    facts: dict[str, Any] = {"id": "1f", "name": "train"}
    with provider.get_tracer("program").start_as_current_span("mine") as mine:
        listener.on_event(Event(kind=EventKind.TASK_STARTED, **facts))
        assert trace.get_current_span() is not mine
        listener.on_event(Event(kind=EventKind.TASK_ENDED, **facts))
        assert trace.get_current_span() is mine


def test_failures_mark_their_span_and_say_no_more_than_the_type(
    context: JobContext, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with use_listener(OpenTelemetryListener(provider)):
        with pytest.raises(ValueError, match="secret"):
            context.get(context.run(fail, "secret"))
        counter = context.create_actor(Counter)
        with pytest.raises(ValueError, match="cannot count"):
            context.get(counter.count(-1))
    found = by_name(spans)
    for name in ("task fail", "call Counter.count"):
        assert found[name].status.status_code is trace.StatusCode.ERROR
        assert (found[name].attributes or {})["error.type"] == "ValueError"
        assert not found[name].events
        assert "secret" not in found[name].to_json()
    assert found["actor Counter"].status.status_code is trace.StatusCode.UNSET


def test_what_happens_is_counted_and_measured(context: JobContext) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    with use_listener(OpenTelemetryListener(meter_provider=meters)):
        context.get([context.run(add, 1), context.run(add, 2)])
        with pytest.raises(ValueError, match="x"):
            context.get(context.run(fail, "x"))
    points = metric_points(reader)
    meters.shutdown()
    counts = {
        (
            point.attributes["fray.kind"],
            point.attributes["fray.name"],
            point.attributes.get("fray.outcome"),
        ): (point.value)
        for point in points["fray.events"]
    }
    assert counts == {
        ("task_submitted", "add", None): 2,
        ("task_started", "add", None): 2,
        ("task_ended", "add", "ok"): 2,
        ("task_submitted", "fail", None): 1,
        ("task_started", "fail", None): 1,
        ("task_ended", "fail", "error"): 1,
    }
    assert sum(point.count for point in points["fray.task.duration"]) == 3
    assert sum(point.count for point in points["fray.task.wait"]) == 3


def test_the_counts_of_a_pool_are_gauges_of_its_queue() -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    listener = OpenTelemetryListener(meter_provider=meters)
    for done in (3, 8):  # as `work` and `awork` report, again and again
        for name in ("tasks", "others"):
            details = {"done": done, "in_hand": 2, "work_ms": 5, "oldest_seconds": 7}
            listener.on_event(
                Event(kind=EventKind.POOL_REPORTED, id=f"of {name}", name=name, details=details)
            )
    points = metric_points(reader)
    meters.shutdown()
    for key, value in (("done", 8), ("in_hand", 2), ("work_ms", 5), ("oldest_seconds", 7)):
        found = {point.attributes["fray.name"]: point.value for point in points[f"fray.pool.{key}"]}
        assert found == {"tasks": value, "others": value}


def metric_points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [
        metric for item in data.resource_metrics for scope in item.scope_metrics for metric in scope.metrics
    ]
    return {metric.name: list(metric.data.data_points) for metric in metrics}
