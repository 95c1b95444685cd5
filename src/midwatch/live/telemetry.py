"""Telemetry: spans and metrics for OpenTelemetry, computed from the events of a turn of any agent.

Telemetry is configured by the standard OTEL_* variables; without them the library is not imported. The names of spans
and attributes follow the GenAI conventions and are all in the table below; names that the conventions do not have begin
with `midwatch.`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import time
from collections.abc import Mapping
from importlib.metadata import entry_points, version
from threading import Thread
from typing import Any

from midwatch.base.trace import Trace, parse_trace
from midwatch.domain.event import Event, EventFilter, call_of
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.live.subscriptions import try_again

log = logging.getLogger("midwatch.telemetry")

VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER",
)  # fmt: skip
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
NAMES = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "agent_id": "gen_ai.agent.id",
    "agent": "gen_ai.agent.name",
    "session": "gen_ai.conversation.id",
    "workflow": "gen_ai.workflow.name",
    "model": "gen_ai.request.model",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "answered_by": "gen_ai.response.model",
    "finish": "gen_ai.response.finish_reasons",
    "first_chunk": "gen_ai.response.time_to_first_chunk",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "tool": "gen_ai.tool.name",
    "tool_call_id": "gen_ai.tool.call.id",
    "tool_type": "gen_ai.tool.type",
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
    "input": "gen_ai.input.messages",
    "output": "gen_ai.output.messages",
    "error": "error.type",
    "token_type": "gen_ai.token.type",
    "tokens_metric": "gen_ai.client.token.usage",
    "duration_metric": "gen_ai.client.operation.duration",
    "first_chunk_metric": "gen_ai.client.operation.time_to_first_chunk",
    "task": "midwatch.task.id",
    "turn": "midwatch.turn.id",
    "attempt": "midwatch.attempt",
    "cause": "midwatch.cause",
    "actor": "midwatch.actor",
    "goal": "midwatch.goal.id",
    "status": "midwatch.status",
    "cost": "midwatch.usage.cost_usd",
    "try": "midwatch.llm.attempt",
    "reason": "midwatch.reason",
}  # fmt: skip
MOMENTS = frozenset({"tool_exec_skipped", "context_trimmed", "steering_injected", "budget_reached", "error"})
"""Kinds of events that are added to the span of a turn, under the name `midwatch.<kind>`."""
UNANSWERED = frozenset({"error", "interrupted", "cut_off"})
TOKEN_BUCKETS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]
SECOND_BUCKETS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
FLUSH_SECONDS = 5.0
ENDS = EventFilter(kinds=("goal_completed", "goal_timed_out", "task_finished"))


def telemetry() -> Telemetry | None:
    """Return the telemetry that the environment variables configure, or None if they configure none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if not any(os.environ.get(name, "").strip() not in ("", "none") for name in VARIABLES):
        return None
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as missing:
        log.warning(
            "OTEL_* variables ask for telemetry, but %s is missing; install it with `pip install 'midwatch[otel]'`.",
            missing.name,
        )
        return None
    return Telemetry()


def name_attributes(**values: Any) -> dict[str, Any]:
    """Return the values under the full names of their attributes, without values that are None."""
    return {NAMES[name]: value for name, value in values.items() if value is not None}


class Telemetry:
    """The tracer and the meters of this process."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        service = os.environ.get("OTEL_SERVICE_NAME") or "midwatch"
        resource = Resource.create({"service.name": service, "service.version": version("midwatch")})
        self.content = os.environ.get(CONTENT, "").strip().lower() == "true"
        self.ids = _ids()
        self._tracers = TracerProvider(resource=resource, id_generator=self.ids, shutdown_on_exit=False)
        for exporter in _exporters("traces"):
            self._tracers.add_span_processor(BatchSpanProcessor(exporter))
        readers = [PeriodicExportingMetricReader(exporter) for exporter in _exporters("metrics")]
        self._meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self.tracer = self._tracers.get_tracer("midwatch", version("midwatch"))
        meter = self._meters.get_meter("midwatch", version("midwatch"))
        buckets = {"explicit_bucket_boundaries_advisory": SECOND_BUCKETS}
        self.duration = meter.create_histogram(NAMES["duration_metric"], "s", "Duration of a call.", **buckets)
        self.first_chunk = meter.create_histogram(NAMES["first_chunk_metric"], "s", "Time to first chunk.", **buckets)
        self.tokens = meter.create_histogram(
            NAMES["tokens_metric"], "{token}", "Tokens of a call.", explicit_bucket_boundaries_advisory=TOKEN_BUCKETS
        )

    def observe(self, task: Task) -> TurnSpans:
        """Return an observer that records the events of one turn of this task."""
        return TurnSpans(self, task)

    def close(self) -> None:
        """Send the remaining data, for a few seconds at most. It blocks, so call it in a separate Python thread."""
        senders = [Thread(target=provider.shutdown, daemon=True) for provider in (self._tracers, self._meters)]
        until = time.monotonic() + FLUSH_SECONDS
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(max(0.0, until - time.monotonic()))
        if any(sender.is_alive() for sender in senders):
            log.warning("not all telemetry was sent; check that the collector runs.")

    def workflow(self, root: str, name: str, began: int, ended: int, inside: Any = None, **about: Any) -> None:
        """Write the span over all turns of a goal, or of a task with children.

        `root` is the id of the goal or of the task.
        """
        from opentelemetry.trace import SpanKind

        attributes = name_attributes(operation="invoke_workflow", workflow=name, **about)
        self.ids.next_trace, self.ids.next_span = trace_number(root), span_number(root)
        span = self.tracer.start_span(
            f"invoke_workflow {name}", inside or _no_parent(), SpanKind.INTERNAL, attributes, start_time=began * 1000
        )
        if about.get("error"):
            span.set_status(_error_status(), str(about["error"]))
        span.end(ended * 1000)


class Workflows:
    """Writes spans of goals, and of tasks with children, when they have ended."""

    def __init__(self, telemetry: Telemetry, store: Store) -> None:
        self._telemetry = telemetry
        self._store = store

    async def record(self, ended: Event) -> None:
        """Write the span of the goal, or of the task with children, that has ended with the event `ended`."""
        if ended.kind != "task_finished":
            with try_again():
                goal = await self._store.get_goal(str(ended.payload.get("goal_id")))
            if goal is not None:
                error = None if ended.kind == "goal_completed" else "timeout"
                self._telemetry.workflow(goal.id, "goal", goal.created_at, ended.time, goal=goal.id, error=error)
            return
        with try_again():
            relatives = await self._store.list_related_tasks(ended.task_id or "")
        root = next((task for task in relatives if task.id == ended.task_id), None)
        if root is not None and any(task.parent_id is not None for task in relatives):
            error = None if root.status == "done" else root.outcome
            began, inside = root.created_at, parent_of(root)
            self._telemetry.workflow(root.id, root.agent, began, ended.time, inside, task=root.id, error=error)


class TurnSpans:
    """The spans of one turn: `invoke_agent`, and inside of it one `chat` or `execute_tool` for each call."""

    def __init__(self, telemetry: Telemetry, task: Task) -> None:
        from opentelemetry.trace import SpanKind

        self._telemetry = telemetry
        self._task = task
        self._open: dict[str, _Call] = {}
        self._model: str | None = None
        self._tokens: dict[str, float] = {}
        attributes = name_attributes(
            operation="invoke_agent", provider="midwatch", agent=task.agent, agent_id=task.agent,
            session=task.session_key, task=task.id, turn=f"{task.id}.{task.attempt}", attempt=task.attempt,
            cause=task.cause, actor=task.creator, goal=task.cause_id if task.cause == "goal" else None,
        )  # fmt: skip
        telemetry.ids.next_trace = trace_number(task.root_id or task.id)
        name, parent = f"invoke_agent {task.agent}", parent_of(task)
        self._span = telemetry.tracer.start_span(name, parent, SpanKind.INTERNAL, attributes)
        span = self._span.get_span_context()
        state = span.trace_state.to_header() or None
        self.trace = Trace(f"{span.trace_id:032x}", f"{span.span_id:016x}", f"{int(span.trace_flags):02x}", state)

    def record(self, event: Event) -> None:
        """Record an event of the turn. An error in telemetry does not affect the turn."""
        try:
            note = getattr(self, f"_{event.kind}", None)
            if note is not None:
                note(event, event.payload)
            elif event.kind in MOMENTS:
                plain = {f"midwatch.{k}": v for k, v in event.payload.items() if isinstance(v, str | int | float)}
                self._span.add_event(f"midwatch.{event.kind}", plain, event.time * 1000)
        except Exception:
            log.exception("an event of the kind %s could not be written to telemetry", event.kind)

    def lose(self, now: int) -> None:
        """End the spans, because another process has the task now."""
        self._end(now, "lease_lost")

    def _start(self, key: str, name: str, kind: str, at: int, attributes: Mapping[str, Any], number: int = 1) -> _Call:
        from opentelemetry.trace import SpanKind, set_span_in_context

        inside = set_span_in_context(self._span, _no_parent())
        span = self._telemetry.tracer.start_span(name, inside, SpanKind[kind], dict(attributes), start_time=at * 1000)
        call = self._open[key] = _Call(span, at, dict(attributes), number)
        return call

    def _turn_start(self, event: Event, payload: Mapping[str, Any]) -> None:
        if self._telemetry.content:
            self._span.set_attribute(NAMES["input"], message("user", payload["user_message"]))

    def _message_update(self, event: Event, payload: Mapping[str, Any]) -> None:
        if self._telemetry.content and payload["role"] == "agent":
            self._span.set_attribute(NAMES["output"], message("assistant", payload["message"]))

    def _llm_request(self, event: Event, payload: Mapping[str, Any]) -> None:
        self._start_chat(
            call_of(event), event.time, payload["model"], payload.get("max_tokens"), payload.get("temperature")
        )

    def _start_chat(
        self, key: str, at: int, model: str | None, most: Any = None, warm: Any = None, number: int = 1
    ) -> _Call:
        """Start the span of a call of a model; `number` is 1 for the first attempt of the call, then 2, and so on."""
        provider, _, name = (model or "").rpartition(":")
        if model and self._model is None:
            self._model = model
            self._span.set_attributes(name_attributes(provider=provider or None, model=name))
        about = name_attributes(
            operation="chat", provider=provider or "midwatch", model=name or None, max_tokens=most, temperature=warm,
            agent=self._task.agent, session=self._task.session_key, task=self._task.id,
        )  # fmt: skip
        call = self._start(key, f"chat {name}".strip(), "CLIENT", at, {**about, NAMES["try"]: number}, number)
        call.request = (model, most, warm)
        return call

    def _llm_delta(self, event: Event, payload: Mapping[str, Any]) -> None:
        call = self._open.get(call_of(event))
        if call is not None and not call.began:
            call.began = True
            waited = max(0, event.time - call.at) / 1e6
            call.span.set_attribute(NAMES["first_chunk"], waited)
            self._telemetry.first_chunk.record(waited, call.metric_attributes())

    def _llm_retry(self, event: Event, payload: Mapping[str, Any]) -> None:
        """End the span of the failed attempt, and start the span of the next attempt when its pause is over."""
        key = call_of(event)
        call = self._open.pop(key, None)
        if call is not None:
            call.span.set_status(_error_status(), payload["error"])
            self._close(call, event.time, payload["reason"])
            self._start_chat(key, event.time + int(payload["backoff"] * 1e6), *call.request, call.number + 1)

    def _llm_response(self, event: Event, payload: Mapping[str, Any]) -> None:
        key = call_of(event)
        if key not in self._open:  # most agents report a call only when the model has answered
            self._start_chat(key, event.time - int((payload.get("latency") or 0) * 1e6), payload.get("model"))
        call, usage, how = self._open.pop(key), payload.get("usage") or {}, payload.get("finish_reason")
        about = name_attributes(
            answered_by=(payload.get("model") or "").rpartition(":")[2] or None, finish=[how] if how else None,
            cost=usage.get("cost_usd"), cache_read_tokens=usage.get("cache_read_tokens"),
            cache_write_tokens=usage.get("cache_write_tokens"),
        )  # fmt: skip
        call.span.set_attributes(about)
        for kind in ("input", "output"):
            count = usage.get(f"{kind}_tokens")
            if isinstance(count, int | float):
                self._tokens[kind] = self._tokens.get(kind, 0) + count
                call.span.set_attribute(NAMES[f"{kind}_tokens"], count)
                self._telemetry.tokens.record(count, {**call.metric_attributes(), NAMES["token_type"]: kind})
        self._close(call, max(event.time, call.at), how if how in UNANSWERED else None)

    def _tool_exec_start(self, event: Event, payload: Mapping[str, Any]) -> None:
        about = name_attributes(
            operation="execute_tool", tool=payload["tool"], tool_call_id=payload.get("tool_call_id"),
            tool_type="function", agent=self._task.agent, session=self._task.session_key, task=self._task.id,
            arguments=text(payload.get("arguments")) if self._telemetry.content else None,
        )  # fmt: skip
        self._start(call_of(event), f"execute_tool {payload['tool']}", "INTERNAL", event.time, about)

    def _tool_exec_end(self, event: Event, payload: Mapping[str, Any]) -> None:
        key = call_of(event)
        if key not in self._open:
            self._tool_exec_start(event._replace(time=event.time - int((payload.get("duration") or 0) * 1e6)), payload)
        call = self._open.pop(key)
        if self._telemetry.content and payload.get("result") is not None:
            call.span.set_attribute(NAMES["result"], text(payload["result"]))
        self._close(call, max(event.time, call.at), "tool_error" if payload.get("is_error") else None)

    def _turn_end(self, event: Event, payload: Mapping[str, Any]) -> None:
        self._span.set_attributes(name_attributes(status=payload["status"]))
        self._end(event.time, None if payload["status"] == "completed" else payload["status"])

    def _close(self, call: _Call, at: int, error: str | None) -> None:
        _end_span(call.span, at, error)
        attributes = {**call.metric_attributes(), **name_attributes(error=error)}
        self._telemetry.duration.record(max(0, at - call.at) / 1e6, attributes)

    def _end(self, at: int, error: str | None) -> None:
        if not self._span.is_recording():
            return
        for call in self._open.values():
            self._close(call, max(at, call.at), error or "cut_off")
        self._open.clear()
        self._span.set_attributes(
            name_attributes(input_tokens=self._tokens.get("input"), output_tokens=self._tokens.get("output"))
        )
        _end_span(self._span, at, error)


class _Call:
    """A call of a model or a tool that has not ended yet."""

    METRIC_ATTRIBUTES = tuple(NAMES[name] for name in ("operation", "provider", "model", "tool"))

    def __init__(self, span: Any, at: int, attributes: Mapping[str, Any], number: int) -> None:
        self.span = span
        self.at = at
        self.number = number
        self.began = False
        self.request: tuple[str | None, Any, Any] = (None, None, None)
        self._attributes = attributes

    def metric_attributes(self) -> dict[str, Any]:
        """Return the attributes for metrics: only attributes with few different values."""
        return {name: self._attributes[name] for name in self.METRIC_ATTRIBUTES if name in self._attributes}


def parent_of(task: Task) -> Any:
    """Return the context in which the span of a turn starts.

    It is the context of the request that created the task, of the task's goal, or of the parent task.
    """
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    trace, root = parse_trace(task.trace), None
    if trace is not None:
        numbers = (int(trace.trace_id, 16), int(trace.span_id, 16))
        flags, state = int(trace.flags, 16), TraceState.from_header([trace.state]) if trace.state else None
    else:
        root = task.cause_id if task.cause == "goal" else task.root_id if task.parent_id else None
        if root is None:
            return _no_parent()
        numbers, flags, state = (trace_number(root), span_number(root)), TraceFlags.SAMPLED, None
    context = SpanContext(*numbers, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)
    return set_span_in_context(NonRecordingSpan(context), _no_parent())


def trace_number(root: str) -> int:
    """Return the trace id for a goal or a tree of tasks; every process computes the same id from `root`."""
    return int.from_bytes(hashlib.sha256(f"trace {root}".encode()).digest()[:16])


def span_number(root: str) -> int:
    """Return the span id for a goal or a tree of tasks; every process computes the same id from `root`."""
    return int.from_bytes(hashlib.sha256(f"span {root}".encode()).digest()[:8])


def message(role: str, content: str) -> str:
    """Return a JSON list with one message, in the form that the GenAI conventions define."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": content}]}], ensure_ascii=False)


def text(value: Any) -> str:
    """Return any value as the text of an attribute."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _no_parent() -> Any:
    from opentelemetry.context import Context

    return Context()


def _end_span(span: Any, at: int, error: str | None) -> None:
    if error is not None:
        span.set_attribute(NAMES["error"], error)
        span.set_status(_error_status(), error)
    span.end(at * 1000)


def _error_status() -> Any:
    from opentelemetry.trace import StatusCode

    return StatusCode.ERROR


def _ids() -> Any:
    """Return a generator of trace ids and span ids: ids are random, unless the next id was set before."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Ids(IdGenerator):
        next_trace: int | None = None
        next_span: int | None = None

        def generate_trace_id(self) -> int:
            chosen, self.next_trace = self.next_trace, None
            return chosen or random.getrandbits(128) or 1

        def generate_span_id(self) -> int:
            chosen, self.next_span = self.next_span, None
            return chosen or random.getrandbits(64) or 1

    return Ids()


def _exporters(signal: str) -> list[Any]:
    """Return the exporters for a `signal`, which is traces or metrics.

    OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER names them; the default is OTLP over HTTP.
    """
    names = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp"
    exporters = []
    for name in (part.strip() for part in names.split(",")):
        entry = "otlp_proto_http" if name == "otlp" else name
        matching = entry_points(group=f"opentelemetry_{signal}_exporter").select(name=entry)
        if matching:
            exporters.append(next(iter(matching)).load()())
        elif name != "none":
            log.warning("there is no exporter of %s called %r; install it, or use otlp.", signal, name)
    return exporters
