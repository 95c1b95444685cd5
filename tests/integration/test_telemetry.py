"""Test telemetry: the spans that a real collector receives with the standard variables, and no spans without them."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from midwatch.agents.function import FunctionAgent
from midwatch.base.trace import incoming, parse_trace, validate_trace
from midwatch.desk.config import Settings
from midwatch.domain.agent import Turn
from midwatch.domain.event import EventFilter, LlmDelta, LlmRequest, LlmResponse, LlmRetry, ToolExecEnd, ToolExecStart
from midwatch.live import telemetry
from midwatch.runtime.runtime import Runtime
from servers import Server, eventually

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """A collector that receives OTLP over HTTP and records spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, list[Any]] = {}
        self.services: set[str] = set()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                body = await reader.readexactly(int(headers["content-length"]))
                self._take(lines[0].split()[1], gzip.decompress(body) if "content-encoding" in headers else body)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in (scope_metric for scope in resource.scope_metrics for scope_metric in scope.metrics):
                    self.metrics[metric.name] = list(metric.histogram.data_points)

    def find_spans(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def read_attributes(span: Any) -> dict[str, Any]:
    attributes = {}
    for attribute in span.attributes:
        which = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, which)
        attributes[attribute.key] = [v.string_value for v in value.values] if which == "array_value" else value
    return attributes


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    new_collector = Collector()
    server = await asyncio.start_server(new_collector.serve, "127.0.0.1", 0)
    new_collector.port = server.sockets[0].getsockname()[1]
    yield new_collector
    server.close()


@pytest.fixture
def exporting(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    return monkeypatch


async def work(prompt: str, turn: Turn) -> str:
    await turn.emit(LlmRequest(model="openai:gpt-5", messages_count=2, max_tokens=100, request_id="r1"))
    await turn.emit(LlmRetry(attempt=1, max_retries=3, reason="rate_limit", error="429", backoff=0.5, request_id="r1"))
    await turn.emit(LlmDelta(content_delta_len=3, request_id="r1"))
    await turn.emit(LlmDelta(content_delta_len=3, request_id="r1"))
    usage = {"input_tokens": 70, "output_tokens": 5}
    await turn.emit(LlmResponse(model="openai:gpt-5", usage=usage, finish_reason="tool_calls", request_id="r1"))
    await turn.emit(ToolExecStart(tool="look", arguments={"at": "secret place"}, tool_call_id="c1"))
    await turn.emit(ToolExecEnd(tool="look", tool_call_id="c1", result="secret thing", is_error=prompt == "bad"))
    await turn.emit(ToolExecStart(tool="cut", tool_call_id="c2"))
    if prompt == "raise":
        raise RuntimeError("no")
    return turn.env.get("TRACEPARENT", "none")


async def run_task(home: Path, prompt: str, trace: str | None = None) -> tuple[str, list[Any]]:
    settings = Settings.load(home, detect_agents=False)
    agents = {"it": FunctionAgent("it", work, on_loop=True)}
    async with Runtime.open(settings=settings, agents=agents) as desk:
        if trace:
            incoming.set(validate_trace(trace))
        task = await desk.tasks.submit(prompt, agent="it")
        done = await desk.tasks.wait(task.id)
        return done.result or done.error or "", await desk.store.read_events(0, EventFilter(turn_id=f"{task.id}.1"))


async def test_a_turn_its_model_calls_and_tools_are_spans(
    home: Path, collector: Collector, exporting: pytest.MonkeyPatch
) -> None:
    result, events = await run_task(home, "bad", PARENT)
    (turn,) = collector.find_spans("invoke_agent it")
    first, second = collector.find_spans("chat gpt-5")
    (tool,), (cut,) = collector.find_spans("execute_tool look"), collector.find_spans("execute_tool cut")
    assert (turn.trace_id.hex(), turn.parent_span_id.hex()) == (PARENT[3:35], PARENT[36:52])
    assert {span.parent_span_id for span in (first, second, tool, cut)} == {turn.span_id}
    assert result == f"00-{PARENT[3:35]}-{turn.span_id.hex()}-01"
    assert {(event.trace_id, event.span_id) for event in events} == {(turn.trace_id.hex(), turn.span_id.hex())}
    about = read_attributes(turn)
    assert (about["gen_ai.operation.name"], about["gen_ai.agent.name"], about["gen_ai.provider.name"]) == (
        "invoke_agent", "it", "openai",
    )  # fmt: skip
    assert (about["gen_ai.usage.input_tokens"], about["midwatch.status"]) == (70, "completed")
    assert (read_attributes(first)["error.type"], first.status.code) == ("rate_limit", 2)
    assert second.start_time_unix_nano - first.end_time_unix_nano == 500_000_000
    answer = read_attributes(second)
    assert (answer["gen_ai.usage.output_tokens"], answer["gen_ai.response.finish_reasons"]) == (5, ["tool_calls"])
    assert "gen_ai.response.time_to_first_chunk" in answer and "error.type" not in answer
    assert (read_attributes(tool)["error.type"], read_attributes(tool)["gen_ai.tool.call.id"]) == ("tool_error", "c1")
    assert read_attributes(cut)["error.type"] == "tool_error", "the turn ended while it ran"
    assert not any("secret" in str(read_attributes(span)) for span in collector.spans), "contents are not sent unasked"
    tokens = {p.attributes[-1].value.string_value: p.sum for p in collector.metrics["gen_ai.client.token.usage"]}
    assert tokens == {"input": 70, "output": 5}
    assert sum(p.count for p in collector.metrics["gen_ai.client.operation.duration"]) == 4
    assert sum(p.count for p in collector.metrics["gen_ai.client.operation.time_to_first_chunk"]) == 1


async def test_contents_are_exported_on_request_and_failures_always(
    home: Path, collector: Collector, exporting: pytest.MonkeyPatch
) -> None:
    exporting.setenv(telemetry.CONTENT, "true")
    exporting.setenv("OTEL_SERVICE_NAME", "mine")
    await run_task(home, "raise")
    (tool,), (turn,) = collector.find_spans("execute_tool look"), collector.find_spans("invoke_agent it")
    assert read_attributes(tool)["gen_ai.tool.call.arguments"] == '{"at": "secret place"}'
    assert read_attributes(tool)["gen_ai.tool.call.result"] == "secret thing"
    assert '"content": "raise"' in read_attributes(turn)["gen_ai.input.messages"]
    assert (read_attributes(turn)["error.type"], turn.status.code, turn.parent_span_id) == ("error", 2, b"")
    assert collector.services == {"mine"}


async def test_a_goal_is_a_workflow_span_over_its_turns(
    home: Path, collector: Collector, exporting: pytest.MonkeyPatch
) -> None:
    async def step(prompt: str, turn: Turn) -> str:
        return "going on"

    agents = {"it": FunctionAgent("it", step, on_loop=True)}
    async with Runtime.open(settings=Settings.load(home, detect_agents=False), agents=agents) as desk:
        goal = await desk.goals.create("get there", agent="it")
        async with asyncio.timeout(60):
            async for event in desk.bus.follow(0, EventFilter(kinds=("turn_end",))):
                assert event.kind == "turn_end"
                break
        await desk.goals.complete(goal.id, evidence="there")
        sent = desk.subscriptions.list()[0]
        assert await eventually(lambda: sent.handled > 0)
    (workflow,) = collector.find_spans("invoke_workflow goal")
    turns = collector.find_spans("invoke_agent it")
    assert {turn.parent_span_id for turn in turns} == {workflow.span_id}
    assert {turn.trace_id for turn in turns} == {workflow.trace_id}
    assert read_attributes(workflow)["midwatch.goal.id"] == goal.id


async def test_a_server_exports_its_turns_and_propagates_the_trace(tmp_path: Path, collector: Collector) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "midwatch.toml").write_text(
        'detect_agents = false\n[agents.env]\nkind = "command"\nargv = ["sh", "-c", "echo $TRACEPARENT"]\n'
    )
    server = Server(home, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.port}")
    await server.start()
    try:
        token = (home / "token").read_text().strip()
        headers = {"authorization": f"Bearer {token}", "traceparent": PARENT}
        async with httpx2.AsyncClient(base_url=f"{server.url}/api/v1", headers=headers, timeout=30.0) as http:
            tasks = [
                (await http.post("/tasks", json={"prompt": "x", "agent": name})).json()["id"]
                for name in ("env", "demo")
            ]
            replies = [{}, {}]
            for index, task_id in enumerate(tasks):
                while replies[index].get("status") not in ("done", "failed"):
                    replies[index] = (await http.get(f"/tasks/{task_id}")).json()
                    await asyncio.sleep(0.05)
    finally:
        await server.stop()
    (env,), (demo,) = collector.find_spans("invoke_agent env"), collector.find_spans("invoke_agent demo")
    assert replies[0]["result"].strip() == f"00-{PARENT[3:35]}-{env.span_id.hex()}-01"
    assert {env.parent_span_id.hex(), demo.parent_span_id.hex()} == {PARENT[36:52]}
    assert {span.parent_span_id for span in collector.find_spans("execute_tool read_clock")} == {demo.span_id}
    assert collector.services == {"midwatch"}


async def test_without_the_variables_the_trace_is_propagated_and_nothing_is_imported(home: Path) -> None:
    result, events = await run_task(home, "x", PARENT)
    assert result == PARENT
    assert {event.trace_id for event in events} == {PARENT[3:35]}
    code = "import sys, midwatch.runtime.runtime; assert not [m for m in sys.modules if 'opentelemetry' in m]"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_requested_run_of_an_automation_is_in_the_trace_of_the_request(home: Path) -> None:
    settings = Settings.load(home, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": FunctionAgent("it", work, on_loop=True)}) as desk:
        automation = await desk.automations.create("x", agent="it", every="1h", fresh=True)
        incoming.set(validate_trace(PARENT))
        task = await desk.automations.run(automation.id)
        assert (await desk.tasks.wait(task.id)).result == PARENT
        events = await desk.store.read_events(0, EventFilter(turn_id=f"{task.id}.1"))
    assert {event.trace_id for event in events} == {PARENT[3:35]}


async def test_a_missing_collector_stops_nothing(home: Path, exporting: pytest.MonkeyPatch) -> None:
    exporting.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    result, _ = await run_task(home, "x")
    assert result.startswith("00-")


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    assert telemetry.telemetry() is None
    assert "midwatch[otel]" in caplog.text
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    caplog.clear()
    assert telemetry.telemetry() is None
    assert [record for record in caplog.records if record.name == telemetry.log.name] == []


@pytest.mark.parametrize(
    "bad", ["", "x", PARENT.replace("00-", "ff-", 1), PARENT.upper(), f"00-{'0' * 32}-{'1' * 16}-01", PARENT[:-1]]
)
def test_a_malformed_trace_is_ignored(bad: str) -> None:
    assert validate_trace(bad) is None and parse_trace({"traceparent": bad}) is None
