"""Test the agent kind `acp` with a fake agent: a real process whose prompt says how to behave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from midwatch.agents.acp import conversation as talking
from midwatch.agents.acp.call_facts import find_command
from midwatch.agents.acp.faults import convert_fault
from midwatch.agents.acp.files import Files, Refused
from midwatch.agents.acp.kind import AcpAgent
from midwatch.agents.acp.link import LONGEST_LINE, Link
from midwatch.agents.acp.options import ProfileName
from midwatch.agents.acp.outcome import judge_answer, make_blocks
from midwatch.agents.acp.profiles import PROFILES
from midwatch.agents.acp.questions import Option, choose_option, make_question, read_options
from midwatch.agents.acp.settings import make_call, read_offer
from midwatch.agents.acp.terminals import OUTPUT_LIMIT, Tail, Terminals
from midwatch.agents.acp.updates import Tool, Transcript
from midwatch.agents.patch import patch
from midwatch.agents.registry import build
from midwatch.agents.streams.faults import NotSignedIn
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, BadConfig, TransientError, UsageLimit
from midwatch.domain.agent import Answer, Choice, TurnResult, lasts
from midwatch.domain.event import AgentFault, LlmResponse, MessageUpdate, Payload, PlanUpdate, ThoughtUpdate
from midwatch.domain.rule import Level, Policy
from midwatch.domain.session import Role
from midwatch.programs.guard import guard
from midwatch.programs.process import Program
from midwatch.services.rule_decision import decide
from midwatch.testing import RecordingTurn

pytestmark = pytest.mark.slow

FAKE = Path(__file__).parents[1] / "fakes" / "acp_agent.py"
Talk = Callable[..., Awaitable[talking.AcpConversation]]


def fake(folder: Path, *arguments: str, **more: Any) -> AcpAgent:
    argv = [sys.executable, str(FAKE), "--memory", str(folder), *arguments]
    agent = build("fake", "acp", {"argv": argv, "workdir": str(folder), **more})
    assert isinstance(agent, AcpAgent)
    return agent


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    yield
    guard.close()
    assert guard.pid is None, "a process group was left behind"


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    opened: list[talking.AcpConversation] = []

    async def open_conversation(*arguments: str, thread_id: str | None = None, **more: Any) -> talking.AcpConversation:
        agent = fake(tmp_path, *arguments, **more)
        opened.append(await agent.open(RecordingTurn(thread_id=thread_id).session()))
        return opened[-1]

    yield open_conversation
    for conversation in opened:
        await conversation.close()


async def run_turn(talk: Talk, prompt: str, *answers: str | Answer, **more: Any) -> tuple[TurnResult, RecordingTurn]:
    turn = RecordingTurn(prompt, answers=answers)
    return await (await talk(**more)).turn(turn), turn


def events_of(turn: RecordingTurn, kind: type[Payload]) -> list[Any]:
    return [event for event in turn.events if isinstance(event, kind)]


def tools(turn: RecordingTurn) -> list[tuple[str, str]]:
    """Return the kind and call id of each tool start and tool end, in order."""
    events = [event for event in turn.events if event.kind.startswith("tool_exec")]
    return [(event.kind.removeprefix("tool_exec_"), event.tool_call_id) for event in events]  # type: ignore[attr-defined]


def runs(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- turns ---------------------------------------------------------------------------------------------------------


async def test_a_process_is_kept_for_the_next_turn_and_every_turn_records_its_group(talk: Talk) -> None:
    conversation = await talk()
    assert lasts(conversation)
    assert not conversation.alive
    groups = set()
    for prompt in ("first", "second", "[[recall]]"):
        turn = RecordingTurn(prompt)
        result = await conversation.turn(turn)
        assert conversation.alive
        groups.add(tuple(turn.groups))
        assert turn.thread_id == result.thread_id is not None
    assert len(groups) == 1
    assert result.text == "You said: first | second"


async def test_a_dead_process_is_restarted_and_its_session_resumed(talk: Talk) -> None:
    conversation = await talk()
    first = RecordingTurn("remember me")
    await conversation.turn(first)
    os.killpg(first.groups[0], 9)
    later = RecordingTurn("[[recall]]", thread_id=first.thread_id)
    assert (await conversation.turn(later)).text == "You said: remember me"
    assert later.groups != first.groups
    assert tools(later) == [], "what was told before is not told again"
    assert [event.text for event in later.events if event.kind == "message_delta"] == ["You said: remember me"]


@pytest.mark.parametrize("how", [(), ("--resumes",)], ids=["load", "resume"])
async def test_a_session_of_another_process_is_resumed(talk: Talk, how: tuple[str, ...]) -> None:
    first = RecordingTurn("remember me")
    await (await talk(*how)).turn(first)
    conversation = await talk(*how, thread_id=first.thread_id)
    result = await conversation.turn(RecordingTurn("[[recall]]"))
    assert (result.text, result.thread_id) == ("You said: remember me", first.thread_id)


async def test_a_session_that_cannot_be_resumed_is_reported_and_begun_anew(talk: Talk) -> None:
    turn = RecordingTurn("hello", thread_id="old")
    result = await (await talk("--forgets")).turn(turn)
    assert result.text == "you said hello"
    assert result.thread_id not in (None, "old")
    assert turn.thread_id == result.thread_id
    (warning,) = events_of(turn, AgentFault)
    assert "cannot resume its conversation" in warning.message
    unknown = RecordingTurn("hello", thread_id="never-was")
    await (await talk()).turn(unknown)
    assert "session not found" in events_of(unknown, AgentFault)[0].message


SAID: list[tuple[Role, str]] = [
    ("user", "My name is Ada. [[say noted]]"), ("agent", "noted\n@/etc/passwd\nThe message to answer:\n[[die 3]]"),
]  # fmt: skip


def notices(turn: RecordingTurn) -> list[str]:
    return [event.message for event in events_of(turn, MessageUpdate) if event.role == "notice"]


async def test_an_agent_that_lost_its_session_gets_the_earlier_conversation_once(talk: Talk) -> None:
    conversation = await talk("--forgets", "--session", "new")
    turn = RecordingTurn("[[recall]]", thread_id="old", said=SAID)
    assert "Ada" in (await conversation.turn(turn)).text
    (notice,) = notices(turn)
    assert "(the agent does not keep conversations), so midwatch gave it the 2 earlier messages." in notice
    assert events_of(turn, AgentFault) == []
    later = RecordingTurn("[[show blocks]]", thread_id=turn.thread_id, said=[*SAID, ("user", "[[recall]]")])
    (block,) = json.loads((await conversation.turn(later)).text)
    assert (block["text"], notices(later)) == ("[[show blocks]]", [])


async def test_an_agent_that_has_its_session_does_not_get_the_earlier_conversation(talk: Talk) -> None:
    first = RecordingTurn("remember me")
    await (await talk()).turn(first)
    later = RecordingTurn("[[show blocks]]", thread_id=first.thread_id, said=SAID)
    result = await (await talk()).turn(later)
    assert json.loads(result.text) == [{"type": "text", "text": "[[show blocks]]"}]
    assert notices(later) == []


async def test_the_earlier_conversation_is_told_again_if_the_agent_ended_before_it_took_it(talk: Talk) -> None:
    turn = RecordingTurn("[[die 3]]", thread_id="never-was", said=SAID)
    with pytest.raises(AgentError, match="exit code 3"):
        await (await talk()).turn(turn)
    assert turn.thread_id == "never-was", "the new session is empty, so it must not be loaded"
    again = RecordingTurn("[[recall]]", thread_id=turn.thread_id, said=SAID, resumed=True)
    assert "Ada" in (await (await talk()).turn(again)).text
    assert again.thread_id != "never-was"
    killed = RecordingTurn("[[say hm]] [[die 3]]", thread_id="never-was", said=SAID)
    with pytest.raises(AgentError, match="exit code 3"):
        await (await talk()).turn(killed)
    later = RecordingTurn("[[recall]]", thread_id=killed.thread_id, said=SAID)
    assert "Ada" in (await (await talk()).turn(later)).text
    assert notices(later) == [], "its own session has the conversation"


async def test_an_interrupted_turn_gets_a_continue_prompt(talk: Talk) -> None:
    conversation = await talk()
    first = RecordingTurn("work")
    await conversation.turn(first)
    resumed = RecordingTurn("work", thread_id=first.thread_id, resumed=True)
    text = (await conversation.turn(resumed)).text
    assert "midwatch was interrupted" in text
    assert text.endswith("work")


async def test_another_directory_needs_another_process(talk: Talk, tmp_path: Path) -> None:
    conversation = await talk()
    first = RecordingTurn("[[show cwd]]")
    assert json.loads((await conversation.turn(first)).text) == str(tmp_path)
    (tmp_path / "sub").mkdir()
    other_turn = RecordingTurn("[[show cwd]] [[recall]]", workdir=str(tmp_path / "sub"), thread_id=first.thread_id)
    assert (await conversation.turn(other_turn)).text == f'"{tmp_path}/sub"You said: [[show cwd]]'


async def test_attached_files_are_sent(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    prompt = f"Read\n@{tmp_path}/notes.md\n@/etc/passwd\n@{tmp_path}/none\n[[show blocks]]"
    result, _ = await run_turn(talk, prompt)
    linked = [block for block in json.loads(result.text) if block["type"] == "resource_link"]
    assert [block["uri"] for block in linked] == [f"file://{tmp_path}/notes.md"]
    assert make_blocks("a\0b", "/") == [{"type": "text", "text": "ab"}]
    assert len(make_blocks(f"@/{' ' * 1_000_000}x", str(tmp_path))) == 1


async def test_mode_and_model_are_set(talk: Talk) -> None:
    assert json.loads((await run_turn(talk, "[[show settings]]"))[0].text) == {"mode": "auto", "model": "small"}
    result, _ = await run_turn(talk, "[[show settings]]", mode="Default", model="large")
    assert json.loads(result.text) == {"mode": "default", "model": "large"}
    with pytest.raises(AgentError, match=r"has no model 'giant'; set agents\.fake\.model .*: small, large"):
        await run_turn(talk, "x", model="giant")
    with pytest.raises(AgentError, match=r"has no mode 'wild'.*: default, auto"):
        await run_turn(talk, "x", mode="wild")


async def test_an_agent_that_would_not_ask_is_set_to_the_mode_that_asks(talk: Talk) -> None:
    result, _ = await run_turn(talk, "[[show settings]]", profile="claude")
    assert json.loads(result.text)["mode"] == "default"


async def test_usage_is_as_reported_and_cost_is_that_of_the_turn(talk: Talk) -> None:
    conversation = await talk()
    first = RecordingTurn("[[usage 100 20 0.5]]")
    used = (await conversation.turn(first)).usage
    assert (used.input_tokens, used.output_tokens, used.cost_usd, used.model) == (100, 20, 0.5, "small")
    assert events_of(first, LlmResponse)[0].usage == {"input_tokens": 100, "output_tokens": 20}
    assert (await conversation.turn(RecordingTurn("[[usage 150 30 0.75]]"))).usage.cost_usd == 0.25
    assert (await conversation.turn(RecordingTurn("hello"))).usage.data() is None
    other_conversation = await talk(thread_id=first.thread_id)
    assert (await other_conversation.turn(RecordingTurn("[[usage 1 2 0.9]]"))).usage.cost_usd is None, (
        "what it cost before is unknown"
    )
    total = await talk(profile="copilot")
    assert (await total.turn(RecordingTurn("[[usage 100 20 0]]"))).usage.input_tokens == 100
    assert (await total.turn(RecordingTurn("[[usage 150 30 0]]"))).usage.input_tokens == 50


# -- events ----------------------------------------------------------------------------------------------------------


async def test_steps_are_logged_in_order(talk: Talk) -> None:
    result, turn = await run_turn(talk, "[[think hm well]] [[plan a,b]] [[say I look]] [[tool ls -l]] [[say all done]]")
    assert result.text == "all done"
    stored = [kind for kind in turn.kinds() if not kind.endswith("delta")]
    assert stored == ["plan_update", "thought_update", "message_update", "tool_exec_start", "tool_exec_end"]
    assert events_of(turn, ThoughtUpdate)[0].text == "hm well"
    assert [entry["content"] for entry in events_of(turn, PlanUpdate)[0].entries] == ["a", "b"]
    assert events_of(turn, MessageUpdate)[0].message == "I look"
    start, end = (event for event in turn.events if event.kind.startswith("tool_exec"))
    assert (start.title, start.tool_kind, start.arguments) == ("ls -l", "execute", {"command": "ls -l"})  # type: ignore[attr-defined]
    assert (end.result, end.is_error) == ("ran ls -l", False)  # type: ignore[attr-defined]


async def test_a_tool_without_an_end_is_closed_with_the_turn(talk: Talk) -> None:
    _, turn = await run_turn(talk, "[[open something]] [[say bye]]")
    assert tools(turn) == [("start", "open"), ("end", "open")]


async def test_a_warning_is_not_part_of_the_answer(talk: Talk) -> None:
    result, turn = await run_turn(talk, "[[warn]] [[say the answer]]", profile="codex")
    assert result.text == "the answer"
    assert "Model metadata" in events_of(turn, AgentFault)[0].message


async def test_invalid_updates_are_ignored(talk: Talk, caplog: pytest.LogCaptureFixture) -> None:
    result, turn = await run_turn(talk, "[[say so:]] [[malformed]] [[say fine]]")
    assert result.text == "so:-32602 -32602 -32602 fine"
    noise, drift = events_of(turn, AgentFault)
    assert "lines that are not protocol messages" in noise.message
    assert "was not understood: missing: " in drift.message
    assert "toolCallId" in drift.message
    assert "a_kind_of_tomorrow" in drift.message
    result, _ = await run_turn(talk, "still there")
    assert result.text == "you said still there"
    assert "Traceback" not in caplog.text


RENAMED = (
    "agent_message_chunk=message_chunk", "content=body", "text=words", "type=form", "sessionUpdate=event",
    "update=news",  "session/update=session/event",
)  # fmt: skip


@pytest.mark.parametrize("renamed", RENAMED)
async def test_an_answer_that_is_not_understood_fails_the_turn_and_is_kept(talk: Talk, renamed: str) -> None:
    turn = RecordingTurn("[[tool make]] [[say all done]]")
    result = await (await talk("--rename", renamed)).turn(turn)
    assert result.outcome == "error"
    assert "fake 1 was not understood: it has no text; " in (result.error or "")
    assert "done" in result.text, "what it printed is kept"


@pytest.mark.parametrize(
    "renamed", ["tool_call=call", "toolCallId=callId", "status=state", "stopReason=end", "sessionId=session"]
)
async def test_other_renamed_fields_do_not_hide_the_answer(talk: Talk, renamed: str) -> None:
    result = await (await talk("--rename", renamed)).turn(RecordingTurn("[[tool make]] [[say all done]]"))
    assert (result.outcome, result.text) == ("ok", "all done")
    result = await (await talk("--rename", renamed)).turn(RecordingTurn("[[tool make]]"))
    assert result.outcome == "error"
    assert "was not understood" in (result.error or "")


async def test_a_turn_without_text_is_ok_if_everything_was_understood(talk: Talk) -> None:
    result, _ = await run_turn(talk, "[[think hm]] [[plan one,two]] [[tool make]]")
    assert (result.outcome, result.text) == ("ok", "")


async def test_a_diff_is_shown_as_a_patch(talk: Talk, tmp_path: Path) -> None:
    _, turn = await run_turn(talk, "[[diff a.txt]]", "Yes")
    end = next(event for event in turn.events if event.kind == "tool_exec_end")
    (change,) = end.diffs  # type: ignore[attr-defined]
    assert (change["path"], change["added"], change["removed"], change["cut"]) == (f"{tmp_path}/a.txt", 2, 1, False)
    assert "@@ -1,3 +1,4 @@\n one\n-two\n+2\n three\n+four\n" in change["patch"]
    assert turn.asked[0].diff == change["patch"]
    assert (turn.asked[0].kind, turn.asked[0].paths) == ("edit", (f"{tmp_path}/a.txt",))


async def test_a_diff_of_ten_megabytes_is_truncated_and_delays_nobody(talk: Talk) -> None:
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.process_time()  # the CPU time of this process only, however busy the machine is
            await asyncio.sleep(0.01)
            longest = max(longest, time.process_time() - before)

    ticking = asyncio.create_task(tick())
    _, turn = await run_turn(talk, "[[bigdiff 10]]")
    ticking.cancel()
    (end,) = (event for event in turn.events if event.kind == "tool_exec_end")
    (change,) = end.diffs  # type: ignore[attr-defined]
    assert (change["added"], change["removed"], change["cut"]) == (250_000, 250_000, True)
    assert len(change["patch"]) <= 20_000
    assert sum(len(repr(event)) for event in turn.events) < 100_000
    assert longest < 1.0


def lines_of(talk: Any) -> Any:
    """Return the buffer of lines that the agent has written and nobody has read."""
    return talk._link.lines


async def test_a_flood_of_text_is_stored_in_few_pieces_and_truncated(talk: Talk) -> None:
    class Slow(RecordingTurn):
        async def emit(self, payload: Payload) -> None:
            await super().emit(payload)
            waiting = lines_of(conversation)._waiting
            async with asyncio.timeout(60):  # no event shows that the program has written everything
                while len(self.events) == 1 and not (waiting and b"stopReason" in waiting[-1]):
                    await asyncio.sleep(0.01)

    conversation, turn = await talk(), Slow("[[flood 15000]]")
    result = await conversation.turn(turn)
    assert result.text.split() == [str(number) for number in range(15000)]
    assert turn.text() == result.text + " "
    assert len(turn.events) < 10
    result, _ = await run_turn(talk, "[[huge 3]]")
    assert len(result.text) < 1_000_100
    assert "2000000 characters left out" in result.text


async def test_a_flood_of_text_waits_for_the_store(talk: Talk) -> None:
    class Slow(RecordingTurn):
        gate = asyncio.Event()

        async def emit(self, payload: Payload) -> None:
            await super().emit(payload)
            await self.gate.wait()

    conversation, turn = await talk(), Slow("[[flood 100000]]")
    working = asyncio.create_task(conversation.turn(turn))
    await turn.until(lambda t: bool(t.events))
    lines = lines_of(conversation)
    async with asyncio.timeout(60):
        while not lines._paused:  # no event shows that the program has to wait
            await asyncio.sleep(0.01)
    assert lines._size < 8_000_000
    turn.gate.set()
    assert (await working).text.endswith("99999")


# -- questions -------------------------------------------------------------------------------------------------------

ONCE = ("Yes", "allow_once")
DENIED = Answer("denied")


@pytest.mark.parametrize(
    ("letters", "answer", "choice"),
    [
        ("ar", "Yes", "yes-1"),
        ("rRAa", "Yes", "yes-1"),
        ("Aar", "Yes, always", "yes-1"),  # midwatch itself remembers an "always" answer
        ("A", "Yes, always", "yes-2"),
        ("abr", "Yes, and switch mode", "yes-3"),
        ("xAr", Answer("granted", None), "yes-2"),
        ("arR", DENIED, "no-1"),
        ("aR", DENIED, "no-2"),
        ("aA", DENIED, "cancelled"),
        ("ra", Answer("expired", None, "nobody answered in time"), "no-1"),
    ],
)
async def test_options_are_chosen_by_their_meaning(talk: Talk, letters: str, answer: str | Answer, choice: str) -> None:
    result, turn = await run_turn(talk, f"[[ask {letters} make all?]]", answer)
    assert result.text == f"chose {choice}"
    (question,) = turn.asked
    assert question.choices[0].allows
    assert not question.choices[-1].allows
    assert (question.kind, question.command, question.text) == ("execute", "make all?", "Run make all??")


def test_the_name_of_an_option_is_one_line() -> None:
    listed = [{"optionId": "y\n", "name": name, "kind": "allow_once"} for name in ("Yes\r\n all", " \u2028", [["x"]])]
    assert [option.name for option in read_options(listed)] == ["Yes all", "y"]


@pytest.mark.parametrize(("letters", "choice"), [("-", "cancelled"), ("r", "no-1"), ("xR", "no-2")])
async def test_a_question_that_cannot_be_allowed_is_not_asked(talk: Talk, letters: str, choice: str) -> None:
    result, turn = await run_turn(talk, f"[[ask {letters} make all?]]")
    assert (events_of(turn, MessageUpdate)[0].message, turn.asked) == (f"chose {choice}", [])
    assert "not allowed: fake offered no option that allows it" in result.text


async def test_a_tool_call_may_first_appear_in_its_question(talk: Talk) -> None:
    result, turn = await run_turn(talk, "[[late rm -r build]] [[say done]]", "Yes, always")
    assert (result.outcome, result.text) == ("ok", "done")
    assert tools(turn) == [("start", "late"), ("end", "late")]
    assert (turn.asked[0].command, turn.asked[0].risk) == ("rm -r build", "high")
    _, refused = await run_turn(talk, "[[late rm -r build]] [[say done]]", DENIED)
    assert tools(refused) == [("start", "late"), ("end", "late")]
    end = next(event for event in refused.events if event.kind == "tool_exec_end")
    assert (end.is_error, end.result) == (True, "denied: denied")  # type: ignore[attr-defined]


async def test_a_turn_with_a_denied_tool_is_not_ok(talk: Talk) -> None:
    result, _ = await run_turn(talk, "[[ask ar make all]]", DENIED)
    assert result.outcome == "error"
    assert result.error == "fake stopped without an answer; denied actions: 'make all' (denied)."
    result, _ = await run_turn(talk, "[[ask ar make all]] [[say I may not]]", DENIED)
    assert (result.outcome, result.text) == ("ok", "I may not")
    result, _ = await run_turn(talk, "[[ask ar make all]] [[stop cancelled]]", DENIED)
    assert result.outcome == "error"
    assert result.error == "fake stopped after these actions were denied: 'make all' (denied)."


async def test_the_reason_of_a_denial_is_told_to_the_agent_once(talk: Talk) -> None:
    for by_person, end in ((True, ""), (True, "[[say I may not]]"), (False, "[[stop cancelled]]")):
        why = Answer("denied", None, "not today", by_person)
        result, turn = await run_turn(talk, f"[[ask ar make all]] [[ask ar make all]] {end}", why, why)
        told = "- 'make all': a person denied it: not today" if by_person else "- 'make all': not allowed: not today"
        assert (result.outcome, result.text.count("make all"), result.text.count(told)) == ("ok", 1, 1)
    assert [event.message for event in events_of(turn, MessageUpdate)] == []
    for untold in (DENIED, Answer("expired", None, "nobody answered in time")):
        result, turn = await run_turn(talk, "[[ask ar make all]] [[say I may not]]", untold)
        assert result.text == "I may not"
    again = Answer("denied", None, "[[ask ar make all]]")  # the agent asks again after each reason
    result, turn = await run_turn(talk, "[[ask ar make all]]", again, again)
    assert (result.outcome, len(turn.asked)) == ("error", 2)
    another = [again._replace(why=f"{number} {again.why}") for number in range(talking.MOST_REASONS + 1)]
    result, turn = await run_turn(talk, "[[ask ar make all]]", *another)
    assert (result.outcome, len(turn.asked)) == ("error", talking.MOST_REASONS + 1)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({"title": "rm -rf ."}, ["git status", "rm -rf ."]),
        ({"rawInput": {"command": "rm -rf ."}}, ["git status", "rm -rf ."]),
        ({"rawInput": {"command": "rm -rf .", "reason": "x" * 60_000}}, ["git status", "rm -rf ."]),
        ({"locations": [{"path": "/etc/x"}]}, ["git status", "git status"]),
        ({"title": "git status", "status": "in_progress"}, ["git status"]),
        ({"status": "completed", "title": "rm -rf ."}, ["git status"]),
    ],
)
async def test_a_call_that_is_changed_while_it_is_asked_is_asked_again(
    talk: Talk, change: dict[str, Any], asked: list[str]
) -> None:
    class ChangingTurn(RecordingTurn):
        async def ask(self, *args: Any, **more: Any) -> Answer:
            update = {"sessionUpdate": "tool_call_update", "toolCallId": "late", **change}
            await conversation.update({"sessionId": "s", "update": update}, more=False)
            return await super().ask(*args, **more)

    conversation = await talk("--session", "s")
    turn = ChangingTurn("[[late git status]] [[say done]]", answers=["Yes"] * 2)
    assert (await conversation.turn(turn)).text == "done"
    assert [question.command for question in turn.asked] == asked
    assert len({question.text for question in turn.asked}) == len(set(asked))


async def test_questions_are_asked_one_by_one(talk: Talk) -> None:
    class CountingTurn(RecordingTurn):
        open = most = 0

        async def ask(self, *args: Any, **more: Any) -> Answer:
            self.open += 1
            self.most = max(self.most, self.open)
            await asyncio.sleep(0)
            try:
                return await super().ask(*args, **more)
            finally:
                self.open -= 1

    turn = CountingTurn("[[both one,two]] [[say done]]", answers=["Yes", "No"])
    assert (await (await talk()).turn(turn)).text == "done"
    assert sorted(question.command or "" for question in turn.asked) == ["one", "two"]
    assert turn.most == 1


async def test_a_stop_cancels_an_open_question(talk: Talk) -> None:
    class UnansweredTurn(RecordingTurn):
        async def ask(self, *args: Any, **more: Any) -> Answer:
            await self.emit(AgentFault(message="asked", level="warning"))
            await asyncio.Event().wait()
            raise AssertionError

    conversation, turn = await talk(), UnansweredTurn("[[say before]] [[ask ar make all]]")
    working = asyncio.create_task(conversation.turn(turn))
    await turn.until(lambda t: "agent_error" in t.kinds())
    await conversation.interrupt("stop")
    result = await working
    assert (result.outcome, result.error) == ("error", "the turn was interrupted.")
    assert conversation.alive
    assert (await conversation.turn(RecordingTurn("go on"))).text == "you said go on"


async def test_a_question_is_withdrawn_when_its_turn_ends(talk: Talk) -> None:
    class UnansweredTurn(RecordingTurn):
        cancelled = False

        async def ask(self, *args: Any, **more: Any) -> Answer:
            try:
                return await asyncio.Future()
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    conversation, turn = await talk(), UnansweredTurn("[[leave make all]] [[say bye]]")
    assert (await conversation.turn(turn)).text == "bye"
    assert turn.cancelled
    assert (await conversation.turn(RecordingTurn("go on"))).text == "you said go on"


async def test_a_stop_sent_with_the_prompt_is_not_lost(talk: Talk) -> None:
    conversation = await talk()
    await conversation.turn(RecordingTurn("hello"))
    for _ in range(20):
        turn = RecordingTurn("[[hold ever]]")
        working = asyncio.create_task(conversation.turn(turn))
        await turn.until(lambda t: bool(t.groups))
        await conversation.interrupt("stop")
        with contextlib.suppress(AgentError):
            assert (await working).outcome == "error"


async def test_a_stop_ends_the_turn_with_the_text_so_far(talk: Talk) -> None:
    conversation, turn = await talk(), RecordingTurn("[[say half of it]] [[hold ever]]")
    working = asyncio.create_task(conversation.turn(turn))
    await turn.until(lambda t: "of it" in t.text())
    await conversation.interrupt("stop")
    assert (await working).outcome == "error"
    assert events_of(turn, MessageUpdate)[0].message == "half of it"
    assert conversation.alive


async def test_an_agent_that_ignores_a_stop_is_ended_by_the_next(talk: Talk) -> None:
    conversation, turn = await talk(), RecordingTurn("[[deaf]]")
    working = asyncio.create_task(conversation.turn(turn))
    await turn.until(lambda t: "ready" in t.text())
    await conversation.interrupt("stop")
    await asyncio.wait({working}, timeout=0.1)
    assert not working.done()
    await conversation.interrupt("terminate")
    with pytest.raises(AgentError, match="interrupted"):
        await working
    assert not conversation.alive


# -- files and terminals ---------------------------------------------------------------------------------------------


async def test_only_files_below_the_root_are_served(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "dangling").symlink_to(tmp_path.parent / "made-outside")
    (tmp_path / "within").symlink_to("in.txt")
    os.mkfifo(tmp_path / "pipe")
    assert (await run_turn(talk, f"[[read {tmp_path}/in.txt]]"))[0].text == "one\ntwo\nthree"
    assert (await run_turn(talk, f"[[read {tmp_path}/within 2 1]]"))[0].text == "two"
    for path in ("/etc/passwd", "link", "out/passwd", "../x", f"{tmp_path}-other/x"):
        assert "is outside" in (await run_turn(talk, f"[[read {path}]]"))[0].text
    assert "not a regular file" in (await run_turn(talk, "[[read pipe]]"))[0].text
    assert "Resource not found" in (await run_turn(talk, "[[read none]]"))[0].text
    assert (await run_turn(talk, f"[[write {tmp_path}/new/deep.txt text]]"))[0].text == "written"
    assert (tmp_path / "new/deep.txt").read_text() == "text"
    for path in ("/tmp/mw-never", "dangling", "out/mw-never", "../mw-never"):
        assert "is outside" in (await run_turn(talk, f"[[write {path} text]]"))[0].text
    assert not (tmp_path.parent / "made-outside").exists()


def test_a_symlink_created_after_the_check_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    where = str(root / "sub/secret")

    class OutdatedCheck(Files):
        """Return the path as the check found it, before the symlink was created."""

        def place(self, path: str) -> str:
            return where

    files = OutdatedCheck(str(root))
    (root / "sub").rmdir()
    (root / "sub").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        files.read(where)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        files.write(where, "changed")
    assert (tmp_path / "secret").read_text() == "secret"


def test_the_size_of_files_is_limited(tmp_path: Path) -> None:
    files = Files(str(tmp_path), longest=10)
    (tmp_path / "long").write_text("12345\n" * 10)
    with pytest.raises(Refused, match="larger than 10 bytes; read only some of its lines"):
        files.read("long")
    assert files.read("long", 2, 1) == "12345\n"
    (tmp_path / "endless").write_text("1\n" + "2" * 11)
    assert files.read("endless", 1, 1) == "1\n"
    with pytest.raises(Refused, match="line 2 of endless is longer than 10 bytes"):
        files.read("endless", 2, 1)
    with pytest.raises(Refused, match="larger"):
        files.write("x", "12345678901")
    with pytest.raises(Refused, match="NUL"):
        files.read("a\0b")


async def test_terminals_run_commands(talk: Talk, tmp_path: Path) -> None:
    result, _ = await run_turn(talk, "[[run echo hi; exit 3]]")
    assert json.loads(result.text) == ["hi\n", 3, False]
    result, _ = await run_turn(talk, "[[run printenv MIDWATCH_TASK; pwd]]")
    task, folder = json.loads(result.text)[0].split()
    assert "/1" in task
    assert folder == str(tmp_path)
    assert "no-such-program' or the directory" in (await run_turn(talk, "[[run no-such-program]]"))[0].text
    result, _ = await run_turn(talk, "[[run seq 1 300000]]")
    output, code, cut = json.loads(result.text)
    assert (code, cut) == (0, True)
    assert output.endswith("300000\n")


async def test_an_invalid_terminal_is_refused(tmp_path: Path) -> None:
    program = Program(agent="x", argv=("x",), workdir=str(tmp_path), sandbox=None)
    terminals = Terminals(program, Files(str(tmp_path)))
    for odd in ({"env": [{"name": "A=B", "value": "x"}]}, {"args": ["a\0b"]}):
        with pytest.raises(Refused):
            await terminals.create(RecordingTurn(), {"command": "true", **odd})
    assert Tail(10**9).limit == Tail(OUTPUT_LIMIT).limit, "fifty of them must be bearable"


async def test_a_terminal_is_killed_on_request_or_with_the_conversation(talk: Talk, tmp_path: Path) -> None:
    conversation = await talk()
    result = await conversation.turn(RecordingTurn("[[terminal here echo here; sleep 600]] [[kill]] [[say alive]]"))
    assert '"signal": "SIGTERM"' in result.text
    assert result.text.endswith("alive")
    turn = RecordingTurn(f"[[terminal here echo $$ > {tmp_path}/pid; echo here; sleep 600]]")
    await conversation.turn(turn)
    pid = int((tmp_path / "pid").read_text())
    assert runs(pid)
    await conversation.close()
    assert not runs(pid)


async def test_processes_that_left_the_group_end_with_the_conversation(talk: Talk) -> None:
    conversation = await talk()
    await conversation.turn(RecordingTurn("hello"))
    pid = int((await conversation.turn(RecordingTurn("[[stray]]"))).text.split()[1])
    assert runs(pid)
    await conversation.close()
    assert not runs(pid)


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        (("--start", "mute"), {"start_timeout": 0.6}, r"did not answer within 1s; .* agents\.fake\.start_timeout"),
        (
            ("--start", "dies"),
            {},
            r"exit code 2 before its first prompt: error: unknown option .*; install the newest version",
        ),
        (("--start", "auth"), {"profile": "claude"}, r"is not signed in .*; run `claude` once and sign in"),
        (
            ("--version", "7"),
            {"profile": "gemini"},
            r"speaks version 7 .* midwatch speaks version 1; .*@google/gemini-cli",
        ),
    ],
)
async def test_a_failed_start_is_reported_in_one_line(
    talk: Talk, arguments: tuple[str, ...], more: dict[str, Any], words: str
) -> None:
    conversation = await talk(*arguments, **more)
    with pytest.raises(AgentError, match=words) as caught:
        await conversation.turn(RecordingTurn("hello"))
    assert "\n" not in str(caught.value)
    assert not conversation.alive


async def test_a_slow_start_is_awaited_and_can_be_stopped(talk: Talk) -> None:
    result, _ = await run_turn(talk, "hello")
    assert result.text == "you said hello"
    conversation, turn = await talk("--start", "slow600"), RecordingTurn("hello")
    working = asyncio.create_task(conversation.turn(turn))
    await turn.until(lambda t: bool(t.groups))
    await conversation.interrupt("stop")
    with pytest.raises(AgentError, match="stopped before the prompt was sent"):
        await working


async def test_a_missing_program_is_reported_with_a_remedy(tmp_path: Path) -> None:
    agent = build("claude", "acp", {"env": {"PATH": str(tmp_path)}})
    described = agent.describe()
    assert described["command"] == "claude-agent-acp"
    assert "npm install -g @agentclientprotocol/claude-agent-acp" in described["problem"]
    conversation = await agent.open(RecordingTurn().session())
    with pytest.raises(AgentError, match=r"claude-agent-acp.* is not installed"):
        await conversation.turn(RecordingTurn())
    await conversation.close()


async def test_silence_has_a_limit_except_during_a_question(talk: Talk) -> None:
    conversation = await talk(idle_limit=3)
    with pytest.raises(AgentError, match=r"sent nothing for 3s, so midwatch ended it; .* agents\.fake\.idle_limit"):
        await conversation.turn(RecordingTurn("[[silence 600]]"))
    assert not conversation.alive

    class SlowAnswerTurn(RecordingTurn):
        async def ask(self, *args: Any, **more: Any) -> Answer:
            await asyncio.sleep(4.0)
            return await super().ask(*args, **more)

    turn = SlowAnswerTurn("[[ask ar make all?]]", answers=["Yes"])
    assert (await conversation.turn(turn)).text == "chose yes-1"


async def test_an_agent_that_waits_for_its_usage_limit_is_ended_and_parked(tmp_path: Path) -> None:
    agent = fake(tmp_path, profile="opencode")
    agent.limit_patience = 0.5
    conversation = await agent.open(RecordingTurn().session())
    with pytest.raises(UsageLimit, match="Rate limit exceeded"):
        await conversation.turn(RecordingTurn("[[wait 600]]"))
    assert not conversation.alive
    agent.limit_patience = 60.0
    waiting = fake(tmp_path, profile="qwen")
    conversation = await waiting.open(RecordingTurn().session())
    with pytest.raises(UsageLimit, match="usage limit, 3567 s more") as caught:
        await conversation.turn(RecordingTurn("[[wait 600 3567]]"))
    assert caught.value.resets_at is not None
    conversation = await agent.open(RecordingTurn().session())
    assert (await conversation.turn(RecordingTurn("[[wait 0]] [[say back]]"))).text == "back"
    await conversation.close()


async def test_an_exit_during_a_turn_is_reported_with_the_last_output(talk: Talk) -> None:
    conversation = await talk()
    with pytest.raises(AgentError, match="exit code 3 in the middle of its work: Segmentation fault"):
        await conversation.turn(RecordingTurn("[[say hm]] [[die 3]]"))
    assert (await conversation.turn(RecordingTurn("again"))).text == "you said again"


async def test_an_endless_message_is_refused(talk: Talk) -> None:
    with pytest.raises(AgentError, match=f"a message longer than {LONGEST_LINE} bytes"):
        await run_turn(talk, f"[[huge {LONGEST_LINE / 1_000_000 + 1}]]")


async def test_a_refused_event_ends_the_turn(talk: Talk) -> None:
    class RefusingTurn(RecordingTurn):
        async def emit(self, payload: Payload) -> None:
            raise AgentError("no more events")

    conversation = await talk()
    with pytest.raises(AgentError, match="no more events"):
        await conversation.turn(RefusingTurn("hello"))


@pytest.mark.parametrize(
    ("wish", "kind", "words"),
    [
        ('429 {"error": {"resetsAt": 1900000000}}', UsageLimit, "fake: Internal error"),
        ('-32603 {"message": "You\'ve hit your usage limit."}', UsageLimit, "hit your usage limit"),
        ('-32603 {"details": "Overloaded", "status": 529}', TransientError, "Overloaded"),
        ('-32603 {"message": "fetch failed: ECONNREFUSED"}', TransientError, "ECONNREFUSED"),
        ("-32000", NotSignedIn, "is not signed in"),
        ('-32603 {"details": "the cat ate it"}', AgentError, "fake failed: the cat ate it"),
    ],
)
async def test_error_messages_are_classified(talk: Talk, wish: str, kind: type[AgentError], words: str) -> None:
    conversation = await talk()
    with pytest.raises(AgentError, match=words) as caught:
        await conversation.turn(RecordingTurn(f"[[error {wish}]]"))
    assert type(caught.value) is kind
    if isinstance(caught.value, UsageLimit) and "1900000000" in wish:
        assert caught.value.resets_at == 1900000000 * SECOND
    assert conversation.alive


async def test_an_error_sent_as_an_answer_is_an_error(talk: Talk) -> None:
    with pytest.raises(UsageLimit, match="429"):
        await run_turn(talk, "[[say Error: 429 This request would exceed your rate limit.]]", profile="copilot")
    with pytest.raises(TransientError, match=r"529.*Overloaded"):
        await run_turn(talk, "[[say Ran into this error: Server error (529): Overloaded.]]", profile="goose")
    with pytest.raises(AgentError, match="failed: Error: 400 The value"):
        await run_turn(talk, "[[say Error: 400 The value of `messages` is invalid.]]", profile="copilot")
    result, _ = await run_turn(talk, "[[say Error: there is no such file.]]", profile="copilot")
    assert result.text == "Error: there is no such file."


def judge_updates(name: str, *updates: dict[str, Any]) -> TurnResult:
    """Return the result of a turn of a known agent with these updates."""
    transcript = Transcript("m", PROFILES[name].asides)
    for update in updates:
        transcript.update(update)
    answer = {"stopReason": "end_turn"}
    return judge_answer(name, PROFILES[name], answer, transcript, stopped=False, now=0)[0]


def piece(text: str, id: str | None = None) -> dict[str, Any]:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return update if id is None else {**update, "messageId": id}


def status(type: str) -> dict[str, Any]:
    return {"sessionUpdate": "session_info_update", "_meta": {"codex": {"threadStatus": {"type": type}}}}


def test_a_failed_thread_of_codex_is_an_error() -> None:
    """These are the updates of codex-acp 2.6.0."""
    refused = '{"error":{"message":"No such tool.","type":"invalid_request_error","param":null,"code":null}}\n\n'
    active, broken = status("active"), status("systemError")
    with pytest.raises(AgentError, match=r"^codex failed: No such tool\.$"):
        judge_updates("codex", active, piece("I begin. ", "msg_1"), broken, piece(refused))
    with pytest.raises(NotSignedIn, match=r"FAKE_API_KEY.*codex login"):
        judge_updates("codex", active, broken, piece("Missing environment variable: `FAKE_API_KEY`.\n\n"))
    with pytest.raises(AgentError, match="no reason was given"):
        judge_updates("codex", active, piece("I begin. ", "msg_1"), broken)
    assert judge_updates("codex", active, piece(refused, "msg_1"), status("idle")).text == refused.strip()


@pytest.mark.parametrize(
    ("name", "text", "own", "of_model"),
    [
        ("claude", "API Error: 401 Unauthorized", "27423806-34b7-46c0-a5df-a58de295e75a", "msg_1794990393771721791"),
        (
            "goose",
            "Ran into this error: Authentication failed.",
            "msg_e9f69800-9b59-400d-be84-1bc86abba212",
            "chatcmpl-1",
        ),
    ],
)
def test_an_error_that_the_model_quotes_is_an_answer(name: str, text: str, own: str, of_model: str) -> None:
    assert judge_updates(name, piece(text, of_model)).text == text
    for id in (own, None):
        with pytest.raises(NotSignedIn):
            judge_updates(name, piece(text, id))


def test_goose_without_any_answer_failed() -> None:
    usage = {"sessionUpdate": "usage_update", "used": 135, "size": 128000}
    with pytest.raises(AgentError, match="goose failed without an answer: its provider refused the request"):
        judge_updates("goose", usage)
    tool = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "status": "completed"}
    assert judge_updates("goose", tool).outcome == "ok"


def test_goose_without_a_provider_tells_how_to_sign_in() -> None:
    sign_in = PROFILES["goose"].program.sign_in
    error = convert_fault(
        "goose", -32603, "Internal error", "Error getting agent reply: Provider not set", 0, sign_in=sign_in
    )
    assert isinstance(error, NotSignedIn) and sign_in in str(error)


@pytest.mark.parametrize(
    ("reason", "words"),
    [("max_tokens", "token limit"), ("refusal", "refused to continue"), ("cancelled", "cancelled its work by itself")],
)
async def test_a_turn_that_stopped_early_is_not_ok(talk: Talk, reason: str, words: str) -> None:
    result, turn = await run_turn(talk, f"[[say so far]] [[stop {reason}]]")
    assert result.outcome == "error"
    assert words in (result.error or "")
    assert events_of(turn, MessageUpdate)[0].message == "so far"


# -- pure functions --------------------------------------------------------------------------------------------------


def test_every_profile_is_a_valid_name_and_is_documented() -> None:
    assert get_args(ProfileName) == tuple(PROFILES)
    page = (Path(__file__).parents[2] / "docs/agents.md").read_text()
    for name, profile in PROFILES.items():
        mode = f"`{profile.mode}`" if profile.mode else "as configured"
        assert f"| `{name}` | `{' '.join(profile.argv)}` | `{profile.install}` | {mode} |" in page


def test_options_are_checked() -> None:
    assert build("codex", "acp", {}).describe()["command"] == "codex-acp"
    assert (
        build("x", "acp", {"profile": "gemini", "model": "m", "args": ["-d"]}).describe()["command"]
        == "gemini --acp -m m -d"
    )
    for options_, message in (
        ({}, "set `profile`"),
        ({"profile": "x"}, "agents.y.profile"),
        ({"profile": "codex", "mcp_servers": [{"name": "a"}]}, "either `command` or `url`"),
    ):
        with pytest.raises(BadConfig, match=message):
            build("y", "acp", options_)
    servers = [{"name": "a", "command": "b", "env": {"K": "v"}}, {"name": "c", "url": "http://d"}]
    agent = build("y", "acp", {"profile": "codex", "mcp_servers": servers})
    assert isinstance(agent, AcpAgent)
    assert [server.wire() for server in agent.options.mcp_servers] == [
        {"name": "a", "command": "b", "args": [], "env": [{"name": "K", "value": "v"}]},
        {"type": "http", "name": "c", "url": "http://d", "headers": []},
    ]
    assert (agent.terms.timeout_seconds, agent.terms.on_crash, agent.terms.slots) == (8 * 3600.0, "resume", 4)


@pytest.mark.parametrize(
    ("call_", "command"),
    [
        ({"rawInput": {"command": "git log; rm -rf ."}}, "git log; rm -rf ."),
        ({"rawInput": {"command": ["git", "log", "a b"]}}, "git log 'a b'"),
        ({"rawInput": {"command": ["/bin/zsh", "-lc", "git log"]}}, "git log"),
        ({"rawInput": {"command": ["bash", "-c", "git log", "x"]}}, "bash -c 'git log' x"),
        ({"title": "git log"}, "git log"),
        ({"title": "git log …"}, None),  # a rule must check the whole command although the title shows only a part
        ({"title": "git log..."}, None),
        ({"title": "x" * 600}, None),
        ({"rawInput": {"command": "make", "args": ["install"]}}, "make install"),
        ({"rawInput": {"command": "git log", "args": "-p"}}, "'git log' -p"),
        ({}, None),
    ],
)
def test_the_command_of_a_question_is_read(call_: dict[str, Any], command: str | None) -> None:
    assert find_command(Tool("1", kind="execute"), call_) == command
    assert find_command(Tool("1", kind="edit"), {"title": "git log"}) is None


def test_an_earlier_command_counts_where_the_question_has_only_a_title() -> None:
    tool_call = {"toolCallId": "1", "kind": "execute", "title": "git log", "rawInput": {"command": "git log; rm -rf ."}}
    transcript = Transcript("m")
    transcript.update({"sessionUpdate": "tool_call", **tool_call}, more=False)
    call_ = {"toolCallId": "1", "title": "git log"}
    assert find_command(transcript.ask_for(call_)[0], call_) == "git log; rm -rf ."
    for count, known in ((98, True), (20_000, False)):
        many = {"command": ["git", *["x"] * count, "; rm"]}
        transcript.update({"sessionUpdate": "tool_call_update", "toolCallId": "1", "rawInput": many}, more=False)
        command = find_command(transcript.ask_for(call_)[0], call_)
        assert (command is not None and command.endswith("'; rm'")) == known, "a long one is not kept"


def test_a_reused_call_name_is_another_call() -> None:
    transcript = Transcript("m")
    for status in ("pending", "completed"):
        first = {"toolCallId": "1", "kind": "edit", "locations": [{"path": "/p/src/a"}], "status": status}
        transcript.update({"sessionUpdate": "tool_call", **first}, more=False)
    tool, _ = transcript.ask_for({"toolCallId": "1", "kind": "delete", "locations": [{"path": "/etc/x"}]})
    assert (tool.kind, tool.locations) == ("delete", ("/etc/x",))


@pytest.mark.parametrize(
    ("more", "command"),
    [
        ({"cwd": "{root}"}, "npm test"),
        ({"dir_path": "."}, "npm test"),
        ({"cwd": "/elsewhere"}, "cd /elsewhere && npm test"),
        ({"workdir": "sub dir"}, "cd 'sub dir' && npm test"),
        ({"env": {"NODE_OPTIONS": "-r ./evil"}}, "NODE_OPTIONS='-r ./evil' npm test"),
    ],
)
def test_a_command_in_another_directory_is_another_command(tmp_path: Path, more: dict[str, Any], command: str) -> None:
    root = str(tmp_path)
    raw = {"command": "npm test", **{key: root if value == "{root}" else value for key, value in more.items()}}
    tool = Tool("1", kind="execute", request={"rawInput": raw})
    question = make_question(tool, (Option("1", "Go", "allow_once"),), root)
    assert question.command == command
    allowed = decide(question, root, [Level("agent", Policy.from_data({"allow": [{"command": "npm test"}]}))])
    assert allowed.effect == ("allow" if command == "npm test" else None)


def test_a_file_named_in_two_ways_is_one_file(tmp_path: Path) -> None:
    root = str(tmp_path)
    diffs = {"a": patch("a", None, "old"), f"{root}/a": patch(f"{root}/a", None, "new"), "b/a": patch("b/a", None, "b")}
    tool = Tool("1", kind="edit", title="Write a", locations=(f"{root}/a", "./a"), diffs=diffs)
    question = make_question(tool, (Option("1", "Go", "allow_once"),), root)
    assert question.paths == (f"{root}/a", f"{root}/b/a")
    assert [line for line in str(question.diff).splitlines() if line.startswith("+") and line[1] != "+"] == [
        "+new",
        "+b",
    ]


def test_a_question_has_a_risk(tmp_path: Path) -> None:
    go = {"optionId": "1", "name": "Go", "kind": "allow_always"}
    offered = read_options([go, {"optionId": 7}, "odd", {"kind": "x"}])
    assert offered == (Option("1", "Go", "allow_always"),)
    root = str(tmp_path)
    question = make_question(Tool("1", kind="edit", title="Edit a", locations=(f"{root}/a",)), offered, root)
    assert question.choices == (Choice("Go", "allow_always"), Choice("no", "reject_once"))
    assert (question.text, question.risk, question.root) == ("Change a?", "medium", root)
    assert make_question(Tool("1", kind="edit", locations=("/etc/x",)), offered, root).risk == "high"
    assert make_question(Tool("1", kind="read", locations=("/etc/x",)), offered, root).risk == "medium"
    assert make_question(Tool("1", kind="read"), offered, root).risk == "low"
    assert choose_option(Answer("granted", "Go"), offered) == offered[0]
    assert choose_option(Answer("denied"), offered) is None
    (misleading,) = read_options([{**go, "name": "No, stop"}])
    assert misleading.name == "No, stop (this allows it)"


def test_settings_may_be_modes_models_or_options() -> None:
    reply = {"models": {"currentModelId": "a", "availableModels": [{"modelId": "a"}, {"modelId": "b", "name": "Big"}]}}
    offer = read_offer("model", reply)
    assert offer is not None
    assert make_call("model", offer, "s", "a") is None
    assert make_call("model", offer, "s", "big") == ("session/set_model", {"sessionId": "s", "modelId": "b"})
    group = {"group": "g", "options": [{"value": "http://x#plan", "name": "Plan it"}]}
    offer = read_offer("mode", {"configOptions": [{"id": "m", "category": "mode", "options": [group]}]})
    assert offer is not None
    call = make_call("mode", offer, "s", "plan")
    assert call == ("session/set_config_option", {"sessionId": "s", "configId": "m", "value": "http://x#plan"})
    with pytest.raises(KeyError):
        make_call("mode", offer, "s", "other")
    assert read_offer("mode", {"modes": 7, "configOptions": [7]}) is None


def test_messages_with_ids_are_kept_apart() -> None:
    transcript = Transcript("t.1")
    for name, text in (("a", "one"), ("a", " two"), ("b", "three")):
        transcript.update(
            {"sessionUpdate": "agent_message_chunk", "messageId": name, "content": {"type": "text", "text": text}}
        )
    assert transcript.text == "one two\n\nthree"


def test_a_tool_without_a_kind_is_classified_by_its_name() -> None:
    transcript = Transcript("t.1")
    tool, _ = transcript.ask_for(
        {"toolCallId": "1", "kind": "other", "rawInput": {"path": "/a/b"}, "_meta": {"toolName": "write"}}
    )
    assert (tool.kind, tool.locations) == ("edit", ("/a/b",))


def test_tokens_sent_with_empty_text_add_up() -> None:
    transcript = Transcript("t.1")
    piece = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}}
    for count in (3, 4):
        used = {"inputTokens": count, "outputTokens": 1}
        (response,) = transcript.update({**piece, "_meta": {"usage": used}})
        assert isinstance(response, LlmResponse)
    assert transcript.usage == {"input_tokens": 7, "output_tokens": 2}


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (None, "a\nb\n", (2, 0)),
        ("a\nb\n", "", (0, 2)),
        ("a\nb\n", "a\nb\n", (0, 0)),
        ("x\n" * 10 + "a\n" + "x\n" * 10, "x\n" * 10 + "b\n" + "x\n" * 10, (1, 1)),
        ("a" * 100_000, "b" * 100_000, (1, 1)),
    ],
)
def test_patches_are_made(old: str | None, new: str, counts: tuple[int, int]) -> None:
    result = patch("/a/b", old, new)
    assert (result["added"], result["removed"]) == counts
    assert result["cut"] == (len(new) > 20_000)
    assert result["patch"].startswith("--- /dev/null\n" if old is None else "--- a/a/b\n")


def test_an_error_is_reported_by_its_most_specific_text() -> None:
    nested = {"error": json.dumps({"error": {"message": "the real reason"}})}
    assert "the real reason" in str(convert_fault("x", -32603, "Internal error", nested, 0, sign_in="sign in"))
    assert str(convert_fault("x", -32603, "", None, 0, sign_in="sign in")) == "x failed: no reason was given"


async def test_closing_without_a_process_is_harmless(tmp_path: Path) -> None:
    agent = fake(tmp_path)
    host = talking.AcpConversation(agent, agent.profile, RecordingTurn().session())
    link = Link(agent.program(agent.command_line(), None), host, lambda: None)
    assert not link.alive
    await link.tell("session/cancel", {})
    await link.close()
