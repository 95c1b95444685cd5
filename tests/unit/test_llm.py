"""Test the agent kind `llm` over real HTTP: providers, retries, steering, budgets, resuming, schemas and context
windows.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fakes.model_server import Model, serve
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.output import Output
from midwatch.agents.llm.tools import Tool, tool
from midwatch.agents.registry import build
from midwatch.base.errors import AgentError, BadConfig, TransientError, UsageLimit
from midwatch.domain.agent import Permit, TurnResult
from midwatch.domain.event import LlmRequest, LlmResponse, LlmRetry, MessageDelta, ToolExecEnd, ToolExecSkipped
from midwatch.testing import RecordingTurn

pytestmark = pytest.mark.slow

Fake = tuple[str, Model]
PROVIDERS = {"openai:fake": "/v1", "openai-responses:fake": "/v1", "anthropic:fake": "", "google:fake": ""}
ADD = '[[tool add {"a": 1, "b": 2}]]'


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as fake_server:
        yield fake_server


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    """Return each provider that has a fake."""
    return str(request.param)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def make_agent(fake: Fake, *tools: Any, model: str = "openai:fake", **more: Any) -> LlmAgent:
    return LlmAgent("it", model, base_url=fake[0] + PROVIDERS.get(model, "/v1"), tools=tools or (add,), **more)


async def perform(agent: LlmAgent, turn: RecordingTurn) -> TurnResult:
    talk = await agent.open(turn.session())
    try:
        async with asyncio.timeout(100):
            return await talk.turn(turn)
    finally:
        await talk.close()


async def run(fake: Fake, prompt: str, *tools: Any, **more: Any) -> tuple[TurnResult, RecordingTurn]:
    turn = RecordingTurn(prompt)
    return await perform(make_agent(fake, *tools, **more), turn), turn


def events_of(turn: RecordingTurn, kind: type) -> list[Any]:
    return [event for event in turn.events if isinstance(event, kind)]


def is_balanced(turn: RecordingTurn) -> bool:
    """Return whether every start has its end, in order."""
    opened: list[str | None] = []
    for event in turn.events:
        if event.kind in ("llm_request", "tool_exec_start"):
            opened.append(getattr(event, "request_id", None) or getattr(event, "tool_call_id", None))
        elif event.kind in ("llm_response", "tool_exec_end"):
            opened.remove(getattr(event, "request_id", None) or getattr(event, "tool_call_id", None))
    return not opened


def results(turn: RecordingTurn) -> list[str]:
    """Return the results of tool calls that the model received."""
    return [step["request"]["parts"][0]["content"] for step in turn.steps if step["kind"] == "tool"]


# -- providers ---------------------------------------------------------------------------------------------------


async def test_each_provider_answers_calls_tools_and_remembers(fake: Fake, provider: str) -> None:
    agent = make_agent(fake, model=provider, system="Be kind.")
    first = RecordingTurn(f"[[say let me see]] {ADD} [[say done]]")
    result = await perform(agent, first)
    assert result.text.startswith("The tool said: ")
    assert "3" in result.text
    assert result.text.endswith("done")
    assert (result.iterations, result.thread_id) == (2, first.thread_id)
    stored = [kind for kind in first.kinds() if "delta" not in kind]
    assert stored == [
        "llm_request", "llm_response", "message_update", "tool_exec_start", "tool_exec_end", "llm_request",
        "llm_response",
    ]  # fmt: skip
    assert {event.model for event in events_of(first, LlmRequest)} == {provider}
    assert all(event.usage["input_tokens"] > 0 and event.latency > 0 for event in events_of(first, LlmResponse))
    assert first.text().startswith("let me see ")
    assert all("Be kind." in request["system"] for request in fake[1].requests)

    second = RecordingTurn("[[recall]]", earlier=first.steps, thread_id=first.thread_id)
    result = await perform(agent, second)
    assert result.text == f"You said: [[say let me see]] {ADD} [[say done]]"
    assert events_of(second, LlmRequest)[0].messages_count == 5


async def test_thoughts_are_reported(fake: Fake) -> None:
    result, turn = await run(fake, "[[think hm hm]] [[say yes]]", model="anthropic:fake")
    assert result.text == "yes"
    assert "thought_update" in turn.kinds()
    assert events_of(turn, LlmResponse)[0].has_reasoning is True


# -- failures of the provider ------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["fail 500", "fail 503", "drop", "cut"])
async def test_a_failed_call_is_repeated_and_its_text_is_dropped(fake: Fake, provider: str, trouble: str) -> None:
    began = time.monotonic()
    result, turn = await run(fake, f"[[say one]] [[{trouble} 1 a]] [[say two]]", model=provider)
    assert result.text.split() == ["one", "two"] or result.text.split() == ["one", "It", "is", "over.", "two"]
    retries = events_of(turn, LlmRetry)
    assert [(retry.attempt, retry.max_retries, retry.reason) for retry in retries] == [(1, 3, "passing")]
    assert 0.5 <= retries[0].backoff <= 1.0
    assert time.monotonic() - began >= retries[0].backoff
    assert (len(events_of(turn, LlmRequest)), len(events_of(turn, LlmResponse))) == (1, 1)
    text = ""
    for piece in events_of(turn, MessageDelta):
        assert piece.offset <= len(text)
        text = text[: piece.offset] + piece.text
    assert text.strip() == result.text


@pytest.mark.parametrize("trouble", ["fail 500", "drop", "cut"])
async def test_a_provider_that_keeps_failing_is_a_temporary_failure(fake: Fake, trouble: str) -> None:
    turn = RecordingTurn(f"[[{trouble}]]")
    with pytest.raises(TransientError):
        await perform(make_agent(fake, retries=1), turn)
    assert events_of(turn, LlmResponse)[0].finish_reason == "error"
    assert [event.stage for event in turn.events if event.kind == "error"] == ["llm"]
    assert is_balanced(turn)


async def test_an_unreachable_provider_is_a_temporary_failure(fake: Fake) -> None:
    turn = RecordingTurn("Hello.")
    with pytest.raises(TransientError, match="not reached"):
        await perform(LlmAgent("it", "openai:fake", base_url="http://127.0.0.1:9/v1", retries=0), turn)
    assert is_balanced(turn)


async def test_a_silent_model_is_called_again(fake: Fake) -> None:
    turn = RecordingTurn("[[hold a]]")
    with pytest.raises(TransientError, match=r"silent for 0.3 s"):
        await perform(make_agent(fake, retries=0, silence="0.3s"), turn)


async def test_a_short_limit_is_awaited_as_the_provider_asks(fake: Fake, provider: str) -> None:
    result, turn = await run(fake, "[[limit 1 a]] [[say back]]", model=provider)
    assert result.text == "It is over. back"
    retries = events_of(turn, LlmRetry)
    assert retries[0].reason == "limit"
    assert 0.9 <= retries[0].backoff <= 2.3


async def test_a_long_limit_parks_the_task(fake: Fake, provider: str) -> None:
    turn = RecordingTurn("[[limit 3600 a]]")
    now = time.time_ns() // 1000
    with pytest.raises(UsageLimit) as raised:
        await perform(make_agent(fake, model=provider), turn)
    assert raised.value.resets_at is not None
    later = time.time_ns() // 1000
    assert now + 3598e6 < raised.value.resets_at < later + 3602e6
    assert not events_of(turn, LlmRetry)
    assert is_balanced(turn)


async def test_an_account_without_credit_parks_the_task(fake: Fake) -> None:
    with pytest.raises(UsageLimit, match="used up"):
        await run(fake, "[[quota 3600 a]]")
    with pytest.raises(UsageLimit):
        await run(fake, "[[quota 3600 a]]", model="google:fake", retries=0)


async def test_a_refused_key_is_reported_with_a_remedy(
    fake: Fake, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IT_KEY", "bad-key-of-mine")
    turn = RecordingTurn("Hello.")
    with pytest.raises(AgentError, match="check the key") as raised:
        await perform(make_agent(fake, model=provider, api_key_env="IT_KEY"), turn)
    assert type(raised.value) is AgentError
    assert "bad-key" not in f"{raised.value} {turn.events}"
    assert "(IT_KEY)" in str(raised.value)
    assert is_balanced(turn)


@pytest.mark.parametrize("key", ["key-of-mine\n", " key-of-mine", "key-of-\u2026mine"])
async def test_a_key_that_cannot_be_sent_is_reported_by_its_name(
    fake: Fake, provider: str, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("IT_KEY", key)
    agent = make_agent(fake, model=provider, api_key_env="IT_KEY")
    assert "IT_KEY" in agent.describe()["problem"]
    with pytest.raises(AgentError, match="the key in IT_KEY") as raised:
        await perform(agent, RecordingTurn("Hello."))
    assert "mine" not in str(raised.value)
    assert not fake[1].requests


async def test_an_unknown_model_is_reported_with_a_remedy(fake: Fake, provider: str) -> None:
    kind = provider.partition(":")[0]
    agent = LlmAgent("it", f"{kind}:no-such-model", base_url=fake[0] + PROVIDERS[provider])
    with pytest.raises(AgentError, match="correct `model`") as raised:
        await perform(agent, RecordingTurn("Hello."))
    assert type(raised.value) is AgentError


async def test_a_missing_key_is_reported_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    agent = LlmAgent("it", "anthropic:claude-sonnet-4-5")
    assert "ANTHROPIC_API_KEY" in agent.describe()["problem"]
    with pytest.raises(AgentError, match="set ANTHROPIC_API_KEY"):
        await perform(agent, RecordingTurn())
    assert "problem" not in LlmAgent("it", "openai:x", base_url="http://127.0.0.1:9/v1").describe()


async def test_an_unknown_provider_is_reported() -> None:
    with pytest.raises(AgentError, match=r"agents\.it\.model"):
        await perform(LlmAgent("it", "nobody:model"), RecordingTurn())


# -- tools -------------------------------------------------------------------------------------------------------


@tool
def broken() -> str:
    """Fails."""
    raise RuntimeError("it is broken")


@tool
def large() -> str:
    """Returns ten megabytes."""
    return "x" * 10_000_000


@tool
def odd() -> Any:
    """Returns what is no JSON."""
    return object()


DEEP = 'add {"a": ' + "[ " * 900 + "] " * 900 + "}"


@pytest.mark.parametrize(
    ("call", "expected", "is_error"),
    [
        ("broken", "it is broken", True),
        ("large", "cut: 9900000 of 10000000", False),
        ("odd", "not JSON", True),
        ('add {"a": "many"}', "a: ", True),
        ('add {"a": 1, "b": 2, "c": 3}', "c: ", True),
        ('add {"a": 1,', "not valid JSON", True),
        ("add 7", "not a JSON object", True),
        (DEEP, "a: ", True),
        ("missing {}", "there is no tool 'missing'", True),
    ],
)
async def test_the_model_gets_the_result_of_a_tool(fake: Fake, call: str, expected: str, is_error: bool) -> None:
    result, turn = await run(fake, f"[[tool {call}]] [[say on]]", add, broken, large, odd)
    assert result.text.endswith("on")
    assert expected in results(turn)[0]
    assert [event.is_error for event in events_of(turn, ToolExecEnd)] == [is_error]
    assert len(json.dumps(turn.steps)) < 300_000
    assert is_balanced(turn)


async def test_arguments_that_are_no_json_keep_the_history_valid(fake: Fake, provider: str) -> None:
    result, turn = await run(fake, '[[tool add {"a": 1,]] [[say on]]', model=provider)
    assert result.text.endswith("on")
    assert [event.is_error for event in events_of(turn, ToolExecEnd)] == [True]
    after = RecordingTurn("[[say next]]", earlier=turn.steps, thread_id=turn.thread_id)
    assert (await perform(make_agent(fake, model=provider), after)).text == "next"


async def test_tools_of_one_answer_run_one_by_one(fake: Fake) -> None:
    running: list[str] = []
    calls: list[tuple[str, int]] = []

    @tool
    async def work(name: str) -> str:
        """Works."""
        running.append(name)
        await asyncio.sleep(0.01)
        calls.append((name, len(running)))
        running.remove(name)
        return name

    prompt = '[[also work {"name": "a"}]] [[also work {"name": "b"}]] [[tool work {"name": "c"}]] [[say done]]'
    result, turn = await run(fake, prompt, work)
    assert calls == [("a", 1), ("b", 1), ("c", 1)]
    assert results(turn) == ["a", "b", "c"]
    assert fake[1].requests[-1]["results"] == ["a", "b", "c"]
    assert result.iterations == 2


# -- steering ----------------------------------------------------------------------------------------------------


async def start_steered_turn(
    fake: Fake, turn: RecordingTurn, *tools: Any, **more: Any
) -> tuple[asyncio.Task[TurnResult], RecordingTurn]:
    return asyncio.create_task(perform(make_agent(fake, *tools, **more), turn)), turn


async def test_an_interrupt_cancels_a_model_call(fake: Fake) -> None:
    working, turn = await start_steered_turn(fake, RecordingTurn("[[say so]] [[hold a]]"))
    await fake[1].until(lambda model: "a" in model.held)
    await turn.steer("[[say instead]]", "interrupt")
    assert (await working).text == "instead"
    assert [event.finish_reason for event in events_of(turn, LlmResponse)] == ["interrupted", "stop"]
    assert fake[1].requests[-1]["said"] == ["[[say so]] [[hold a]]", "[[say instead]]"]
    assert len(fake[1].requests) == 2
    assert turn.kinds().count("steering_injected") == 1
    assert not turn.steers()
    assert is_balanced(turn)


async def test_after_tool_lets_an_answer_end_keeps_it_and_continues(fake: Fake) -> None:
    working, turn = await start_steered_turn(fake, RecordingTurn("[[hold a]]"))
    await fake[1].until(lambda model: "a" in model.held)
    await turn.steer("[[say more]]", "after_tool")
    fake[1].release("a")
    assert (await working).text == "more"
    assert [event.finish_reason for event in events_of(turn, LlmResponse)] == ["stop", "stop"]
    assert [event.message for event in turn.events if event.kind == "message_update"] == ["I am holding. I go on."]
    said_steps = [step for step in turn.steps if step["kind"] == "said"]
    assert len(said_steps) == 1
    assert fake[1].requests[-1]["said"] == ["[[hold a]]", "[[say more]]"]


@pytest.mark.parametrize("mode", ["interrupt", "after_tool", "stop"])
async def test_a_message_between_tools_skips_the_remaining_ones(fake: Fake, mode: Any) -> None:
    turn = RecordingTurn(
        '[[also work {"name": "a"}]] [[also work {"name": "b"}]] [[tool work {"name": "c"}]] [[say x]]'
    )
    tool_started, ran = asyncio.Event(), []
    gate = asyncio.Event()

    @tool
    async def work(name: str) -> str:
        """Works."""
        tool_started.set()
        await gate.wait()
        ran.append(name)
        return name

    working, _ = await start_steered_turn(fake, turn, work)
    await tool_started.wait()
    await turn.steer("[[say instead]]", mode)
    gate.set()
    result = await working
    assert ran == ["a"]
    assert [event.tool for event in events_of(turn, ToolExecSkipped)] == ["work", "work"]
    tool_results = results(turn)
    assert tool_results[0] == "a"
    assert all(text.startswith("It was not run: a person") for text in tool_results[1:])
    assert len(tool_results) == 3
    assert "instead" in result.text
    assert fake[1].requests[-1]["tools"] == ([] if mode == "stop" else ["work"])
    assert events_of(turn, LlmRequest)[-1].tools_count == (0 if mode == "stop" else 1)
    assert turn.kinds().count("steering_injected") == 1
    assert not turn.steers()
    assert is_balanced(turn)


async def test_a_message_during_a_tool_request_acts_after_the_first_tool(fake: Fake) -> None:
    working, turn = await start_steered_turn(
        fake, RecordingTurn(f'[[hold a]] [[also add {{"a": 4, "b": 4}}]] {ADD} [[say x]]')
    )
    await fake[1].until(lambda model: "a" in model.held)
    await turn.steer("[[say instead]]", "after_tool")
    fake[1].release("a")
    assert (await working).text == "instead"
    assert results(turn)[0] == "8"
    assert len(events_of(turn, ToolExecSkipped)) == 1


async def test_stop_makes_the_current_answer_the_last(fake: Fake) -> None:
    working, turn = await start_steered_turn(fake, RecordingTurn("[[hold a]]"))
    await fake[1].until(lambda model: "a" in model.held)
    await turn.steer("", "stop")
    fake[1].release("a")
    assert (await working).text == "I am holding. I go on."
    assert len(fake[1].requests) == 1
    assert not turn.steers()


async def test_a_closing_answer_is_not_interrupted(fake: Fake) -> None:
    working, turn = await start_steered_turn(fake, RecordingTurn("Hello. [[hold a]] " + ADD))
    await fake[1].until(lambda model: "a" in model.held)
    await turn.steer("[[hold b]]", "stop")
    fake[1].release("a")
    await fake[1].until(lambda model: "b" in model.held)
    await turn.steer("[[say more]]", "interrupt")
    fake[1].release("b")
    assert (await working).text == "I am holding. I go on."
    assert [steer.text for steer in turn.steers()] == ["[[say more]]"]
    assert len(fake[1].requests) == 2


async def test_a_worker_interrupt_ends_a_model_call_at_once(fake: Fake) -> None:
    turn = RecordingTurn("[[hold a]]")
    talk = await make_agent(fake).open(turn.session())
    before = asyncio.all_tasks()
    working = asyncio.create_task(talk.turn(turn))
    await fake[1].until(lambda model: "a" in model.held)
    await talk.interrupt("stop")
    with pytest.raises(AgentError, match="interrupted"):
        async with asyncio.timeout(30):  # the model waits for much longer
            await working
    await talk.close()
    remaining_tasks = [task for task in asyncio.all_tasks() - before - {working} if "fakes" not in repr(task)]
    assert [task for task in remaining_tasks if "llm" in repr(task.get_coro())] == []


async def test_a_worker_interrupt_ends_a_tool_at_once(fake: Fake) -> None:
    tool_started, tool_ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        tool_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            tool_ended.set()

    turn = RecordingTurn("[[tool hang]]")
    talk = await make_agent(fake, hang).open(turn.session())
    working = asyncio.create_task(talk.turn(turn))
    await tool_started.wait()
    await talk.interrupt("stop")
    with pytest.raises(AgentError, match="interrupted"):
        await working
    assert tool_ended.is_set()


# -- limits ------------------------------------------------------------------------------------------------------


async def test_a_spent_budget_ends_the_turn_before_the_next_step_and_keeps_the_results(fake: Fake) -> None:
    turn = RecordingTurn(f"[[say so far]] [[also spend]] {ADD} [[say done]]")
    ran: list[str] = []

    @tool
    def spend() -> str:
        """Spends."""
        ran.append("spend")
        turn.permit = Permit("stop", "it may use 10 tokens and has used 11")
        return "spent"

    result = await perform(make_agent(fake, add, spend), turn)
    assert (result.outcome, result.error, result.text.strip()) == ("budget", turn.permit.reason, "so far")
    assert len(fake[1].requests) == 1
    assert results(turn) == ["spent"]
    assert is_balanced(turn)
    again = RecordingTurn(turn.prompt, steps=turn.steps, thread_id=turn.thread_id)
    result = await perform(make_agent(fake, add, spend), again)
    assert (result.outcome, result.text) == ("ok", "The tool said: 3 done")
    assert ran == ["spend"]
    assert len(fake[1].requests) == 2


async def test_a_turn_with_a_spent_budget_calls_no_model(fake: Fake) -> None:
    turn = RecordingTurn("Hello.")
    turn.permit = Permit("stop", "nothing is left")
    assert (await perform(make_agent(fake), turn)).outcome == "budget"
    assert fake[1].requests == []


async def test_after_the_last_step_there_is_one_closing_answer(fake: Fake) -> None:
    result, turn = await run(fake, " ".join([ADD] * 5), max_steps=2)
    assert len(events_of(turn, ToolExecEnd)) == 2
    assert [event.tools_count for event in events_of(turn, LlmRequest)] == [1, 1, 0]
    assert fake[1].requests[-1]["tools"] == []
    assert result.outcome == "ok"
    assert result.text.endswith("(It was ended after 2 model calls, which is the agent's max_steps.)")


# -- resuming ----------------------------------------------------------------------------------------------------


def make_counting_tools() -> tuple[list[str], list[Tool]]:
    """Return two tools that record their calls: one that may be repeated and one that may not."""
    ran: list[str] = []

    @tool(safe=True)
    def look(what: str) -> str:
        """Looks."""
        ran.append(f"look {what}")
        return f"saw {what}"

    @tool
    def send(what: str) -> str:
        """Sends."""
        ran.append(f"send {what}")
        return f"sent {what}"

    return ran, [look, send]


SCRIPT = '[[also look {"what": "a"}]] [[tool send {"what": "b"}]] [[tool send {"what": "c"}]] [[say the end]]'


async def test_an_interrupted_turn_continues_from_any_step(fake: Fake) -> None:
    ran, tools = make_counting_tools()
    whole, first = await run(fake, SCRIPT, *tools)
    steps, requests = first.steps, len(fake[1].requests)
    assert [step["kind"] for step in steps] == [
        "prompt", "model", "tool", "started", "tool", "model", "started", "tool", "model",
    ]  # fmt: skip
    assert ran == ["look a", "send b", "send c"]
    for length in range(len(steps) + 1):
        ran.clear()
        fake[1].requests.clear()
        stored_steps = steps[:length]
        turn = RecordingTurn(SCRIPT, steps=stored_steps, task_id=first.task_id, attempt=2, resumed=True, thread_id="t")
        result = await perform(make_agent(fake, *tools), turn)
        assert result.text.endswith("the end")
        assert len(fake[1].requests) == requests - sum(step["kind"] == "model" for step in stored_steps)
        assert result.iterations == whole.iterations
        open_send = bool(stored_steps) and stored_steps[-1]["kind"] == "started"
        done = sum(step["kind"] == "tool" for step in stored_steps) + open_send
        assert ran == ["look a", "send b", "send c"][done:]
        assert len(events_of(turn, ToolExecSkipped)) == open_send
        if open_send:
            assert "not known" in events_of(turn, ToolExecSkipped)[0].reason
        assert len(results(turn)) == 3
        assert bool(result.usage.input_tokens) == bool(fake[1].requests)
        assert is_balanced(turn)


async def test_an_interrupted_safe_tool_is_run_again(fake: Fake) -> None:
    ran, tools = make_counting_tools()
    _, first = await run(fake, '[[tool look {"what": "a"}]] [[say x]]', *tools)
    stored_steps = [*first.steps[:2], {"kind": "started", "call": 0, "turn": first.task_id}]
    turn = RecordingTurn(first.prompt, steps=stored_steps, task_id=first.task_id, attempt=2, thread_id="t")
    await perform(make_agent(fake, *tools), turn)
    assert ran == ["look a", "look a"]


async def test_a_retry_of_a_finished_turn_starts_anew(fake: Fake) -> None:
    ran, tools = make_counting_tools()
    _, first = await run(fake, SCRIPT, *tools)
    again = RecordingTurn(SCRIPT, steps=first.steps, thread_id=first.thread_id)
    assert (await perform(make_agent(fake, *tools), again)).text.endswith("the end")
    assert ran == ["look a", "send b", "send c"] * 2
    assert fake[1].requests[3]["said"] == [SCRIPT]


async def test_unanswered_calls_of_a_turn_are_answered_in_the_next(fake: Fake) -> None:
    _, tools = make_counting_tools()
    _, first = await run(fake, SCRIPT, *tools)
    turn = RecordingTurn("[[say next]]", earlier=first.steps[:3], thread_id=first.thread_id)
    assert (await perform(make_agent(fake, *tools), turn)).text == "next"
    assert fake[1].requests[-1]["said"][-1] == "[[say next]]"


async def test_a_resumed_turn_keeps_its_place_in_the_history(fake: Fake) -> None:
    _, tools = make_counting_tools()
    agent = make_agent(fake, *tools)
    first = RecordingTurn(SCRIPT)
    await perform(agent, first)
    cut_off = first.steps[:4]
    second = RecordingTurn("Between.", earlier=cut_off, thread_id="t")
    await perform(agent, second)
    retry = RecordingTurn(SCRIPT, steps=cut_off, earlier=second.steps, thread_id="t")
    await perform(agent, retry)
    assert {step["turn"] for step in retry.steps} == {first.task_id}
    later = RecordingTurn("[[recall]]", earlier=[*cut_off, *second.steps, *retry.steps[4:]], thread_id="t")
    assert (await perform(agent, later)).text == f"You said: {SCRIPT} | Between."


# -- the context window ------------------------------------------------------------------------------------------


@tool(safe=True)
def many(n: int) -> str:
    """So many characters."""
    return "y" * n


async def test_old_results_and_turns_are_dropped_when_the_window_is_full(fake: Fake) -> None:
    agent = make_agent(fake, many, context_tokens=4000, max_tokens=500)
    steps: list[Any] = []
    trimmed = []
    for number in range(12):
        turn = RecordingTurn(
            f'No {number} {"z" * 600} [[tool many {{"n": 3000}}]] [[say ok]]', earlier=steps, thread_id="t"
        )
        assert (await perform(agent, turn)).text.endswith("ok")
        trimmed += [event for event in turn.events if event.kind == "context_trimmed"]
        steps += turn.steps
        assert fake[1].requests[-1]["size"] < 4 * 4500
    assert trimmed
    assert {trim.reason for trim in trimmed} == {"budget"}
    assert any(trim.dropped_messages == 0 for trim in trimmed)
    assert any(trim.dropped_messages > 0 for trim in trimmed)
    assert sum("y" * 3000 in str(step) for step in steps) == 12


@pytest.mark.parametrize("model", ["openai:fake", "anthropic:fake", "google:fake"])
async def test_a_model_that_refuses_the_length_gets_a_shorter_history(fake: Fake, model: str) -> None:
    agent = make_agent(fake, many, model=model)
    first = RecordingTurn('[[tool many {"n": 5000}]] [[say ok]]')
    await perform(agent, first)
    turn = RecordingTurn("[[window 3000]] [[say fits]]", earlier=first.steps, thread_id=first.thread_id)
    assert (await perform(agent, turn)).text == "fits"
    assert [event.reason for event in turn.events if event.kind == "context_trimmed"] == ["refused"]
    assert (len(events_of(turn, LlmRequest)), len(events_of(turn, LlmResponse))) == (1, 1)


async def test_a_prompt_that_cannot_be_shortened_fails_the_task(fake: Fake) -> None:
    turn = RecordingTurn("[[window 10]]")
    with pytest.raises(AgentError, match="no more messages can be left out"):
        await perform(make_agent(fake), turn)
    assert is_balanced(turn)


async def test_only_the_end_of_a_very_long_conversation_is_read(fake: Fake) -> None:
    agent = make_agent(fake, context_tokens=1000)
    first = RecordingTurn("z" * 5000)
    await perform(agent, first)
    earlier = [{**step, "turn": f"t_{number}"} for number in range(200) for step in first.steps]
    turn = RecordingTurn("[[say ok]]", earlier=earlier, thread_id="t")
    began = time.process_time()
    assert (await perform(agent, turn)).text == "ok"
    assert time.process_time() - began < 2.0
    trims = [event for event in turn.events if event.kind == "context_trimmed"]
    assert trims[0].dropped_messages > 380
    assert fake[1].requests[-1]["size"] < 10_000


async def test_unpaired_surrogates_are_joined_or_removed(fake: Fake) -> None:
    result, turn = await run(fake, '[[halves]] [[tool add {"a": 1, "b": 2}]] [[halves]]')
    assert result.text.endswith("\U0001f642 \ufffd")
    json.dumps(turn.steps).encode()
    turn.text().encode()


async def test_invalid_tool_names_keep_the_history_valid(fake: Fake, provider: str) -> None:
    result, turn = await run(fake, "[[garble]] [[say on]]", model=provider)
    assert result.text.endswith("on")
    assert [event.is_error for event in events_of(turn, ToolExecEnd)] == [True]
    json.dumps([turn.steps, [event.tool for event in events_of(turn, ToolExecEnd)]], ensure_ascii=False).encode()
    (call,) = [part for step in turn.steps if step["kind"] == "model" for part in step["response"]["parts"]
               if part["part_kind"] == "tool-call"]  # fmt: skip
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["tool_name"])


# -- schemas of results ------------------------------------------------------------------------------------------


class City(BaseModel):
    """A city."""

    name: str
    people: int


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name"],
}
WRONG, RIGHT = '[[tool final_result {"people": "some"}]]', '[[tool final_result {"name": "Ulm", "people": 3}]]'


@pytest.mark.parametrize("form", [City, SCHEMA])
async def test_a_result_matches_its_schema(fake: Fake, provider: str, form: Any) -> None:
    result, turn = await run(fake, f"{ADD} {WRONG} {RIGHT}", model=provider, output=form)
    assert json.loads(result.text) == {"name": "Ulm", "people": 3}
    assert [event.stage for event in turn.events if event.kind == "error"] == ["output"]
    assert len(events_of(turn, ToolExecEnd)) == 1
    assert is_balanced(turn)
    after = RecordingTurn("[[say next]] " + RIGHT, earlier=turn.steps, thread_id=turn.thread_id)
    assert json.loads((await perform(make_agent(fake, model=provider, output=form), after)).text)["name"] == "Ulm"


async def test_a_result_that_never_matches_its_schema_fails_the_task(fake: Fake) -> None:
    with pytest.raises(AgentError, match="does not have the form"):
        await run(fake, " ".join([WRONG] * 9), output=SCHEMA, retries=2)
    assert len(fake[1].requests) == 3


def test_a_result_is_found_between_fences_in_linear_time() -> None:
    """An expression that tries all combinations does not end within the time limit of a test."""
    output, blank, city = Output("ask", SCHEMA), "\n" * 100_000, '{"name": "Ulm"}'
    for text in (f"```json\n{city}\n```", f"Here:\n``` \n\n{city}\n\n ```\n```\n1\n```", f"```{blank}{city}{blank}```"):
        assert output.check(text) == (city, None)
    assert output.check(f"```{blank}{city}")[0] is None


# -- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, "agents.it.model"),
        ({"model": "gpt-5"}, "agents.it.model: must be provider:model"),
        ({"model": "openai:x", "modle": 1}, "agents.it.modle: there is no such option"),
        ({"model": "openai:x", "temperature": 9}, "agents.it.temperature"),
        ({"model": "openai:x", "base_url": "localhost"}, "agents.it.base_url"),
        ({"model": "openai:x", "system": "a", "system_file": "b"}, "`system` or `system_file`"),
        ({"model": "openai:x", "system_file": "/nowhere/at/all"}, "agents.it.system_file"),
        ({"model": "openai:x", "max_steps": 0}, "agents.it.max_steps"),
        ({"model": "openai:x", "output": {"type": "string"}}, "agents.it.output"),
        ({"model": "openai:x", "output": {"type": "nonsense"}}, "agents.it.output"),
    ],
)
def test_wrong_options_are_reported(options: dict[str, Any], where: str) -> None:
    with pytest.raises(BadConfig) as raised:
        build("it", "llm", options)
    assert where in str(raised.value)


def test_the_system_text_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "system").write_text("Be kind.")
    agent = build("it", "llm", {"model": "openai:x", "system_file": str(tmp_path / "system")})
    assert isinstance(agent, LlmAgent)
    assert agent.system == "Be kind."
    assert (agent.terms.on_crash, agent.describe()["target"]) == ("resume", "openai:x")


LAZY = """
import sys
from midwatch.agents.registry import build
agent = build("it", "llm", {"model": "openai:x", "base_url": "http://127.0.0.1:9"})
agent.describe()
assert "pydantic_ai" not in sys.modules
sys.modules["pydantic_ai"] = None
print(agent.describe()["problem"])
"""


def test_the_library_is_imported_on_use_and_reported_when_missing() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, env=dict(os.environ), timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "pip install 'midwatch[llm]'" in ran.stdout
