"""Events as OpenTelemetry's spans and metrics; through its API alone, whatever SDK the program has set up."""

import os
from typing import Any, NamedTuple

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
except ImportError as error:
    raise ImportError("OpenTelemetry is not installed: pip install 'fray-core[otel]'") from error

from fray._telemetry.job_instrumentation import variable_of
from fray._values.events import Event, EventKind, Outcome

_SUBJECTS = ("job", "replica", "task", "actor", "call", "lease")


class _Open(NamedTuple):
    span: trace.Span
    context: Context | None  # made current for what runs; what was current before
    before: Context | None


class OpenTelemetryListener:
    """A span for each launch, replica, task, actor's constructor, call and lease; counts and durations.

    Whatever is submitted carries the trace context of its submitter, into jobs as the variables
    `TRACEPARENT`, `TRACESTATE` and `BAGGAGE`. So a launcher, its job and its tasks are one trace. While
    something runs, its span is the current one. The names of metrics are `fray.events` (a counter by kind,
    name and outcome) and, for each subject, `fray.SUBJECT.duration` and `fray.SUBJECT.wait` (histograms,
    seconds). The counts of a pool of workers are gauges: `fray.pool.done`, `fray.pool.in_hand` and so on.

    Args:
        tracer_provider: By default the global one.
        meter_provider: By default the global one.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("fray", tracer_provider=tracer_provider)
        meter = metrics.get_meter("fray", meter_provider=meter_provider)
        self._events = meter.create_counter("fray.events", "{event}", "What happened, by kind.")
        self._histograms = {
            (subject, what): meter.create_histogram(f"fray.{subject}.{what}", "s", f"Of a {subject}.")
            for subject in _SUBJECTS
            for what in ("duration", "wait")
        }
        self._meter = meter
        self._gauges: dict[str, Any] = {}
        self._open: dict[str, _Open] = {}
        self._inherited = propagate.extract(_carrier_of_this_process())

    def on_event(self, event: Event, /) -> None:
        """Open, close or record a span, and count."""
        self._measure(event)
        match event.kind.phase:
            case "submitted":
                self._submitted(event)
            case "started":
                self._started(event)
            case "launched" | "ended" | "ready":
                self._ended(event)
            case "settled":
                self._record(event)

    def _submitted(self, event: Event) -> None:
        context = self._here()
        if event.kind.subject == "job":
            span = self._start(f"launch {event.name}", event, context, trace.SpanKind.PRODUCER)
            self._open[event.id] = _Open(span, None, None)
            context = trace.set_span_in_context(span, context)
        propagate.inject(event.carrier, context)

    def _started(self, event: Event) -> None:
        parent = self._here()
        # A call's carrier is its actor's; where its caller's context came along, that is nearer.
        if event.carrier and not (event.kind.subject == "call" and _has_span(parent)):
            parent = propagate.extract(event.carrier, parent)
        waited = event.kind.subject in ("task", "replica")
        kind = trace.SpanKind.CONSUMER if waited else trace.SpanKind.INTERNAL
        span = self._start(f"{event.kind.subject} {event.name}", event, parent, kind)
        before, context = contexts.get_current(), trace.set_span_in_context(span, parent)
        contexts.attach(context)
        self._open[event.id] = _Open(span, context, before)

    def _ended(self, event: Event) -> None:
        opened = self._open.pop(event.id, None)
        if opened is None:
            return
        # Not by a token: a generator may be closed in another context than the one it was started in.
        if opened.before is not None and contexts.get_current() is opened.context:
            contexts.attach(opened.before)
        _end(opened.span, event)

    def _record(self, event: Event) -> None:
        start = event.time - (event.seconds or 0.0)
        name, kind = f"{event.kind.subject} {event.name}", trace.SpanKind.INTERNAL
        _end(self._start(name, event, self._here(), kind, start), event)

    def _start(
        self, name: str, event: Event, parent: Context, kind: trace.SpanKind, start: float | None = None
    ) -> trace.Span:
        facts = {"id": event.id, "parent_id": event.parent_id, **event.details}
        attributes = {f"fray.{key}": value for key, value in facts.items() if value is not None}
        time = _nanoseconds(event.time if start is None else start)
        return self._tracer.start_span(name, parent, kind, attributes, start_time=time)

    def _here(self) -> Context:
        """The context of the reporting process; of the launcher of this process where there is none."""
        current = contexts.get_current()
        return current if _has_span(current) or not _has_span(self._inherited) else self._inherited

    def _gauge(self, event: Event) -> None:
        about = {"fray.name": event.name, "fray.id": event.id}
        for key, value in event.details.items():
            gauge = self._gauges.get(key) or self._meter.create_gauge(f"fray.pool.{key}")
            self._gauges[key] = gauge
            gauge.set(float(value), about)

    def _measure(self, event: Event) -> None:
        about = {"fray.name": event.name}
        outcome = {} if event.outcome is None else {"fray.outcome": str(event.outcome)}
        self._events.add(1, {"fray.kind": str(event.kind), **about, **outcome})
        if event.kind is EventKind.POOL_REPORTED:
            self._gauge(event)
        elif event.seconds is not None and event.kind.phase != "launched":
            what = "wait" if event.kind.phase in ("started", "taken") else "duration"
            self._histograms[event.kind.subject, what].record(event.seconds, about | outcome)


def _end(span: trace.Span, event: Event) -> None:
    if event.outcome is not None:
        span.set_attribute("fray.outcome", str(event.outcome))
    if event.error is not None:
        span.set_attribute("error.type", event.error)
    if event.outcome is Outcome.ERROR:
        span.set_status(trace.StatusCode.ERROR, event.error)
    span.end(_nanoseconds(event.time))


def _has_span(context: Context) -> bool:
    return trace.get_current_span(context).get_span_context().is_valid


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _carrier_of_this_process() -> dict[str, Any]:
    variables = {key: os.environ.get(variable_of(key)) for key in propagate.get_global_textmap().fields}
    return {key: value for key, value in variables.items() if value}
