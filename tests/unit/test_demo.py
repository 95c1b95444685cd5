"""Test the agent kind `demo`: what it shows, and the words it obeys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.demo import DemoAgent
from midwatch.agents.registry import build
from midwatch.base.errors import AgentError, BadConfig, TransientError
from midwatch.domain.agent import AgentCapability, AgentTerms, TurnResult
from midwatch.domain.event import MessageDelta, TaskProgress, ToolExecEnd, ToolExecStart
from midwatch.testing import RecordingTurn


async def run(turn: RecordingTurn) -> TurnResult:
    talk = await DemoAgent("demo", streaming=0.0).open(turn.session("demo"))
    return await talk.turn(turn)


async def test_the_demo_agent_streams_text_uses_two_tools_and_calls_itself_a_demo() -> None:
    turn = RecordingTurn("Say hello")
    result = await run(turn)
    assert turn.text() == result.text
    assert "demo agent" in result.text and "Say hello" in result.text and "midwatch.toml" in result.text
    assert [e.tool for e in turn.events if isinstance(e, ToolExecStart)] == ["read_clock", "count_words"]
    ends = [e for e in turn.events if isinstance(e, ToolExecEnd)]
    assert ends[1].result == "2"
    offset = 0
    for piece in turn.events:
        if isinstance(piece, MessageDelta):
            assert piece.offset == offset
            offset += len(piece.text)
    assert result.usage.data() is None
    assert (result.outcome, turn.questions) == ("ok", [])


@pytest.mark.parametrize("prompt", ["ask me", "do not fail", "say demo:failure", "mydemo:fail", "demo:hanging demo:"])
async def test_ordinary_words_are_not_commands(prompt: str) -> None:
    turn = RecordingTurn(prompt)
    assert (await run(turn)).outcome == "ok"
    assert turn.questions == []


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_the_word_ask_asks_a_question_and_reports_the_answer(answer: str) -> None:
    turn = RecordingTurn("please demo:ask first", answers=[answer])
    result = await run(turn)
    assert f"the answer was: {answer}." in result.text
    assert len(turn.questions) == 1
    assert "demo:ask" not in result.text


async def test_the_word_fail_fails_the_turn() -> None:
    with pytest.raises(AgentError, match="told to fail"):
        await run(RecordingTurn("demo:fail"))


async def test_the_word_transient_fails_the_first_attempt_only() -> None:
    with pytest.raises(TransientError):
        await run(RecordingTurn("demo:transient"))
    assert (await run(RecordingTurn("demo:transient", attempt=2))).outcome == "ok"


async def test_the_word_crash_raises_an_unexpected_error() -> None:
    with pytest.raises(AgentError, match="RuntimeError: the demo was told to crash"):
        await run(RecordingTurn("demo:crash"))


async def test_the_word_hang_waits_for_an_interrupt() -> None:
    turn = RecordingTurn("demo:hang")
    talk = await DemoAgent("demo", streaming=0.0).open(turn.session("demo"))
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: "task_progress" in t.kinds())
    await talk.interrupt("stop")
    with pytest.raises(AgentError, match="interrupted"):
        await working


async def test_the_word_silent_ends_with_the_outcome_silent() -> None:
    assert (await run(RecordingTurn("demo:silent"))).outcome == "silent"


async def test_the_word_sleep_reports_progress() -> None:
    turn = RecordingTurn("demo:sleep=0.05")
    assert (await run(turn)).outcome == "ok"
    progress_events = [e for e in turn.events if isinstance(e, TaskProgress)]
    assert progress_events and all(e.percent is not None and 0 <= e.percent <= 100 for e in progress_events)


def test_the_demo_agent_has_no_options() -> None:
    with pytest.raises(BadConfig, match=r"agents\.demo\.model: there is no such option; options of this kind: none"):
        build("demo", "demo", {"model": "x"})
    assert build("demo", "demo", {}).terms[:6] == (1800.0, "rerun", 3, 16, False, str(Path.cwd()))


class FourArguments(DemoAgent):
    """A kind of another package, whose `from_options` takes no other settings."""

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> FourArguments:
        return cls(name, terms=terms, description=description)


def test_an_agent_has_its_settings_when_it_is_built() -> None:
    capabilities = (AgentCapability(name="code"),)
    agent = build("x", "demo", {}, capabilities=capabilities, description="about", slots=3)
    assert (agent.capabilities, agent.description, agent.terms.slots) == (capabilities, "about", 3)
    other_agent = build("x", f"{__name__}:FourArguments", {}, description="about", slots=3)
    assert (other_agent.capabilities, other_agent.description, other_agent.terms.slots) == ((), "about", 3)
