"""Test the fake model over real HTTP: the behaviour that agents rely on, for each provider."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from fakes.model_server import Model, serve

pytestmark = pytest.mark.slow

SHELL = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "why": {"type": "string"}},
    "required": ["why"],
}
Json = dict[str, Any]


def events(text: str) -> list[Json]:
    """Return the data of a stream of server-sent events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@dataclass(frozen=True)
class Dialect:
    """The requests of one provider's client. `turns` are texts of the user; a tuple is a tool call and its result."""

    path: Callable[[bool], str]
    body: Callable[[list[Any], bool, bool], Json]
    whole: Callable[[Json], tuple[str, list[Json], int]]
    streamed: Callable[[list[Json]], tuple[str, list[Json], int]]
    refused: int = 401


def anthropic_body(turns: list[Any], stream: bool, tools: bool) -> Json:
    messages: list[Json] = []
    for turn in turns:
        if isinstance(turn, str):
            messages.append({"role": "user", "content": f"<system-reminder>no</system-reminder>{turn}"})
        else:
            call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": turn[1]}]}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    offered = [{"name": "Bash", "input_schema": SHELL}] if tools else []
    return {"model": "m", "max_tokens": 9, "messages": messages, "stream": stream, "tools": offered}


def anthropic_streamed(events: list[Json]) -> tuple[str, list[Json], int]:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    calls = [json.loads(delta["partial_json"]) for delta in deltas if "partial_json" in delta]
    return "".join(delta.get("text", "") for delta in deltas), calls, events[-2]["usage"]["output_tokens"]


def anthropic_whole(reply: Json) -> tuple[str, list[Json], int]:
    blocks = reply["content"]
    calls = [block["input"] for block in blocks if block["type"] == "tool_use"]
    return "".join(block.get("text", "") for block in blocks), calls, reply["usage"]["output_tokens"]


def chat_body(turns: list[Any], stream: bool, tools: bool) -> Json:
    messages: list[Json] = [{"role": "system", "content": "You are an agent."}]
    for turn in turns:
        if isinstance(turn, str):
            messages.append({"role": "user", "content": [{"type": "text", "text": turn}]})
        else:
            call = {"id": "t", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            messages += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": turn[1]}]
    function = {"type": "function", "function": {"name": "bash", "parameters": SHELL}}
    return {"model": "m", "messages": messages, "stream": stream, "tools": [function] if tools else []}


def chat_streamed(chunks: list[Json]) -> tuple[str, list[Json], int]:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    text = "".join(delta.get("content") or "" for delta in deltas)
    return text, [json.loads(call["arguments"]) for call in calls], chunks[-1]["usage"]["completion_tokens"]


def chat_whole(reply: Json) -> tuple[str, list[Json], int]:
    message = reply["choices"][0]["message"]
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"] or "", calls, reply["usage"]["completion_tokens"]


def responses_body(turns: list[Any], stream: bool, tools: bool) -> Json:
    items: list[Json] = []
    for turn in turns:
        if isinstance(turn, str):
            items.append({"role": "user", "content": [{"type": "input_text", "text": turn}]})
        else:
            items.append({"type": "function_call", "call_id": "t", "name": "shell", "arguments": "{}"})
            items.append({"type": "function_call_output", "call_id": "t", "output": turn[1]})
    function = {"type": "function", "name": "shell", "parameters": SHELL}
    return {"model": "m", "input": items, "stream": stream, "tools": [function] if tools else []}


def responses_whole(reply: Json) -> tuple[str, list[Json], int]:
    calls = [json.loads(item["arguments"]) for item in reply["output"] if item["type"] == "function_call"]
    parts = [part for item in reply["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts), calls, reply["usage"]["output_tokens"]


def gemini_body(turns: list[Any], stream: bool, tools: bool) -> Json:
    contents: list[Json] = []
    for turn in turns:
        if isinstance(turn, str):
            contents.append({"role": "user", "parts": [{"text": turn}]})
        else:
            call = {"functionCall": {"name": "run_shell_command", "args": {}}}
            result = {"functionResponse": {"name": "run_shell_command", "response": {"output": turn[1]}}}
            contents += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    offered = [{"functionDeclarations": [{"name": "run_shell_command", "parameters": SHELL}]}] if tools else []
    return {"contents": contents, "tools": offered}


def gemini_streamed(chunks: list[Json]) -> tuple[str, list[Json], int]:
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    calls = [part["functionCall"]["args"] for part in parts if "functionCall" in part]
    text = "".join(part.get("text", "") for part in parts)
    return text, calls, chunks[-1]["usageMetadata"]["candidatesTokenCount"]


DIALECTS = {
    "anthropic": Dialect(lambda _: "/v1/messages", anthropic_body, anthropic_whole, anthropic_streamed),
    "chat": Dialect(lambda _: "/v1/chat/completions", chat_body, chat_whole, chat_streamed),
    "responses": Dialect(
        lambda _: "/v1/responses",
        responses_body,
        responses_whole,
        lambda events: responses_whole(events[-1]["response"]),
    ),
    "gemini": Dialect(
        lambda stream: f"/v1beta/models/m:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}",
        gemini_body,
        lambda reply: gemini_streamed([reply]),
        gemini_streamed,
        refused=400,
    ),
}


@pytest.fixture
async def fake() -> AsyncIterator[tuple[httpx2.AsyncClient, Model]]:
    """Yield the fake model and a client of it."""
    async with serve() as (url, model), httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as http:
        yield http, model


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Return each provider."""
    return DIALECTS[request.param]


async def ask(
    http: httpx2.AsyncClient, dialect: Dialect, *turns: Any, stream: bool = True, tools: bool = True
) -> tuple[str, list[Json], int]:
    """Return text, tool calls and output tokens of an answer."""
    reply = await http.post(dialect.path(stream), json=dialect.body(list(turns), stream, tools))
    assert reply.status_code == 200, reply.text
    return dialect.streamed(events(reply.text)) if stream else dialect.whole(reply.json())


Fake = tuple[httpx2.AsyncClient, Model]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_server_answers_remembers_and_counts(fake: Fake, dialect: Dialect, stream: bool) -> None:
    text, calls, tokens = await ask(fake[0], dialect, "Hello there.", stream=stream)
    assert (text, calls, tokens) == ("You said: Hello there.", [], 1)
    text, _, _ = await ask(fake[0], dialect, "I am Ada.", "I like tea.", "[[recall]]", stream=stream)
    assert text == "You said: I am Ada. | I like tea."


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_is_called_as_offered_and_its_result_ends_the_script(
    fake: Fake, dialect: Dialect, stream: bool
) -> None:
    script = "[[shell ls -l]] [[say all done]]"
    text, calls, _ = await ask(fake[0], dialect, "Before.", script, stream=stream)
    assert (text, calls) == ("", [{"why": "fake", "command": "ls -l"}])
    text, calls, _ = await ask(fake[0], dialect, "Before.", script, ("call", "two files"), stream=stream)
    assert calls == []
    assert text.startswith("The tool said: ")
    assert "two files" in text
    assert text.endswith("all done ")


async def test_a_tool_that_is_not_offered_is_not_called(fake: Fake, dialect: Dialect) -> None:
    text, calls, _ = await ask(fake[0], dialect, "[[shell ls]]", tools=False)
    assert (text, calls) == ("No tool for shell among: .", [])


async def test_a_request_without_tools_does_not_run_the_script(fake: Fake, dialect: Dialect) -> None:
    text, calls, _ = await ask(fake[0], dialect, "Write a title for: [[shell ls]]", tools=False)
    assert (text, calls) == ("Fake title", [])


async def test_a_limit_reports_its_end_and_ends_then(fake: Fake, dialect: Dialect) -> None:
    http, _ = fake
    body = dialect.body(["[[limit 1 a]] [[say back]]"], True, True)
    began = time.monotonic()
    reply = await http.post(dialect.path(True), json=body)
    assert reply.status_code == 429
    assert "retry-after" in reply.headers or "retryDelay" in reply.text
    while reply.status_code == 429:
        assert time.monotonic() - began < 60.0
        reply = await http.post(dialect.path(True), json=body)
    assert time.monotonic() - began > 0.9
    assert dialect.streamed(events(reply.text))[0] == "It is over. back "


async def test_a_limit_without_an_end_is_lifted_by_the_test(fake: Fake, dialect: Dialect) -> None:
    http, model = fake
    body = dialect.body(["[[quota 3600 a]]"], False, True)
    reply = await http.post(dialect.path(False), json=body)
    assert reply.status_code == 429
    assert "retry-after" not in reply.headers
    model.lift("a")
    assert (await http.post(dialect.path(False), json=body)).status_code == 200


async def test_errors_come_as_often_as_the_script_says(fake: Fake, dialect: Dialect) -> None:
    http, _ = fake
    body = dialect.body(["[[fail 529 2 a]]"], True, True)
    codes = [(await http.post(dialect.path(True), json=body)).status_code for _ in range(3)]
    assert codes == [529, 529, 200]


async def test_a_bad_key_is_refused(fake: Fake, dialect: Dialect) -> None:
    headers = {"authorization": "Bearer bad-key"}
    reply = await fake[0].post(dialect.path(True), json=dialect.body(["Hello."], True, True), headers=headers)
    assert reply.status_code == dialect.refused
    assert "API key" in reply.json()["error"]["message"]


async def test_an_answer_waits_until_it_is_released(fake: Fake, dialect: Dialect) -> None:
    http, model = fake
    asking = asyncio.create_task(ask(http, dialect, "[[hold a]] [[say done]]"))
    await model.until(lambda server: "a" in server.held)
    assert not asking.done()
    await http.post("/fake/release/a")
    assert (await asking)[0] == "I am holding. I go on. done "


async def test_a_dropped_answer_breaks_the_connection(fake: Fake, dialect: Dialect) -> None:
    with pytest.raises(httpx2.HTTPError):
        await ask(fake[0], dialect, "[[drop]]")


async def test_pauses_and_slow_answers_take_time(fake: Fake, dialect: Dialect) -> None:
    began = time.monotonic()
    text, _, _ = await ask(fake[0], dialect, "[[pause 0.2]] [[slow 4 0.2]] [[long 100]]")
    assert time.monotonic() - began > 0.39
    assert text.count("word") == 4
    assert text.count("\n") == 100


async def test_side_requests_of_agents_are_answered(fake: Fake) -> None:
    http, model = fake
    assert (await http.get("/v1/models")).json()["data"][0]["id"] == "fake-model"
    counted = await http.post("/v1/messages/count_tokens", json=anthropic_body(["Hello."], False, False))
    assert counted.json()["input_tokens"] > 5
    counted = await http.post("/v1beta/models/m:countTokens", json=gemini_body(["Hello."], False, False))
    assert counted.json()["totalTokens"] > 5
    assert (await http.get("/v1/nothing")).status_code == 404
    assert model.requests[-1]["path"] == "/v1/nothing"


async def test_an_answer_matches_the_requested_schema(fake: Fake) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["n"],
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {**chat_body(["[[shell ls]]"], False, False), "response_format": response_format}
    text, _, _ = chat_whole((await fake[0].post("/v1/chat/completions", json=body)).json())
    assert json.loads(text) == {"n": 1}
