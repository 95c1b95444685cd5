"""Test the agent kind `headless`: real child processes that play recorded streams."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents import base
from midwatch.agents.earlier import LONGEST_MESSAGE, keep_newest, write_earlier
from midwatch.agents.headless import HeadlessAgent, Patience, installed_version
from midwatch.agents.registry import build
from midwatch.agents.streams import PROFILES, step_events
from midwatch.agents.streams.faults import NotSignedIn
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import AgentError, BadConfig, TransientError, UsageLimit
from midwatch.domain.agent import TurnResult
from midwatch.domain.event import MessageUpdate, ToolExecEnd, ToolExecStart
from midwatch.domain.session import Message, Role
from midwatch.running.outcome import read_error
from midwatch.testing import RecordingTurn
from records import a_task

pytestmark = pytest.mark.usefixtures("no_process_is_left")

TESTS = Path(__file__).parents[1]
PROGRAM = (sys.executable, str(TESTS / "fakes/cli_agent.py"))


def recording_path(name: str, case: str) -> str:
    return str(TESTS / "recordings/headless" / name / f"{case}.jsonl")


def agent(profile: str, *play: str, patience: Patience = HeadlessAgent.patience, **options: Any) -> HeadlessAgent:
    headless_agent = build("x", "headless", {"profile": profile, "argv": [*PROGRAM, *play], **options})
    assert isinstance(headless_agent, HeadlessAgent)
    headless_agent.patience = patience
    return headless_agent


def make_player(profile: str, case: str, code: int = 0, errors: str = "", **options: Any) -> HeadlessAgent:
    return agent(profile, "play", recording_path(profile, case), str(code), *((errors,) if errors else ()), **options)


async def run(agent: HeadlessAgent, turn: RecordingTurn) -> TurnResult:
    talk = await agent.open(turn.session())
    try:
        return await talk.turn(turn)
    finally:
        await talk.close()


def events_of(turn: RecordingTurn, kind: str) -> list[Any]:
    return [event for event in turn.events if event.kind == kind]


def list_faults(turn: RecordingTurn, stage: str) -> list[str]:
    return [error.message for error in events_of(turn, "error") if error.stage == stage]


# -- a turn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PROFILES))
async def test_a_plain_turn_returns_its_answer(name: str) -> None:
    turn = RecordingTurn("My name is Ada.")
    result = await run(make_player(name, "plain"), turn)
    assert (result.outcome, result.text, result.error) == ("ok", "hello there", None)
    assert result.thread_id and turn.thread_id == result.thread_id
    assert len(turn.groups) == 1
    if name not in ("codex", "opencode"):  # these programs print whole texts
        assert turn.text().strip() == "hello there"
    assert events_of(turn, "message_update") == [], "the answer is the result's"


@pytest.mark.parametrize("name", sorted(PROFILES))
async def test_steps_become_events(name: str) -> None:
    turn = RecordingTurn()
    result = await run(make_player(name, "work"), turn)
    assert result.text.endswith("all done")
    open_tools: dict[str | None, ToolExecStart] = {}
    for event in turn.events:
        if isinstance(event, ToolExecStart):
            assert event.title and event.tool_kind in ("execute", "edit")
            open_tools[event.tool_call_id] = event
        elif isinstance(event, ToolExecEnd):
            assert event.tool == open_tools.pop(event.tool_call_id).tool
            assert event.duration is not None and event.duration >= 0 and not event.is_error
    assert open_tools == {}
    between = [update for update in turn.events if isinstance(update, MessageUpdate)]
    assert [update.message_id for update in between] == [f"{base.message_id(turn)}.0"]
    assert between[0].message.startswith("The tool said")
    if name in ("claude", "opencode", "qwen"):
        replies = events_of(turn, "llm_response")
        assert result.iterations == len(replies) == 3
        assert all(reply.usage["input_tokens"] > 0 for reply in replies)


async def test_usage_of_a_turn_is_reported() -> None:
    result = await run(make_player("claude", "work"), RecordingTurn())
    used = result.usage
    assert used.input_tokens and used.output_tokens == 6 and used.cost_usd and used.model == "claude-sonnet-4-5"
    assert (await run(make_player("copilot", "plain"), RecordingTurn())).usage.data() == {"model": "fake-model"}


async def test_the_cost_of_a_turn_that_a_limit_ended_is_counted(tmp_path: Path) -> None:
    *lines, last = Path(recording_path("claude", "work")).read_text().splitlines()
    refused = {**json.loads(last), "is_error": True, "api_error_status": 429, "result": "You've hit your limit"}
    stream = tmp_path / "stream.jsonl"
    stream.write_text("\n".join([*lines, json.dumps(refused)]))
    with pytest.raises(UsageLimit) as raised:
        await run(agent("claude", "play", str(stream), "1"), RecordingTurn())
    outcome = read_error(raised.value, a_task())
    assert outcome.limit is raised.value and outcome.result is not None
    assert outcome.result.usage.cost_usd and outcome.result.usage.output_tokens == 6


async def test_cumulative_usage_is_reported_as_the_difference() -> None:
    codex = make_player("codex", "plain")
    first = await run(codex, RecordingTurn())
    codex.options = codex.options.model_copy(
        update={"argv": (*PROGRAM, "play", recording_path("codex", "resumed"), "0")}
    )
    second = await run(codex, RecordingTurn(thread_id=first.thread_id))
    assert first.usage.input_tokens and second.usage.input_tokens
    assert 0 < second.usage.input_tokens - first.usage.input_tokens < 200
    fresh = await run(make_player("codex", "resumed"), RecordingTurn(thread_id=first.thread_id))
    assert fresh.usage.data() is None, "what it had consumed before is not known"


async def test_the_thread_is_saved_during_the_turn() -> None:
    turn = RecordingTurn()
    talk = await agent("claude", "hold", recording_path("claude", "plain"), "1").open(turn.session())
    working = asyncio.create_task(talk.turn(turn))
    async with asyncio.timeout(30):
        await turn.until(lambda t: t.thread_id is not None)
    await talk.interrupt("stop")
    with pytest.raises(AgentError, match="interrupted"):
        await working
    await talk.close()


async def test_text_is_sent_at_most_20_times_per_second() -> None:
    turn = RecordingTurn()
    began = time.monotonic()
    result = await run(agent("claude", "flood", "20000"), turn)
    spent = time.monotonic() - began
    assert result.text == "enough"
    pieces = events_of(turn, "message_delta")
    assert len(pieces) <= spent / step_events.PAUSE + 2
    offset = 0
    for piece in pieces:
        assert piece.offset == offset
        offset += len(piece.text)
    assert events_of(turn, "message_update")[0].message == "word " * 20000, "it was not the answer"


async def test_the_prompt_is_on_standard_input_and_the_thread_is_an_argument() -> None:
    prompt = "x" * 300_000
    result = await run(agent("claude", "talk"), RecordingTurn(prompt, thread_id="th-9"))
    assert (result.text, result.thread_id) == (f"you said {prompt}", "th-9")


async def test_an_interrupted_turn_gets_a_continue_prompt() -> None:
    talker = agent("claude", "talk")
    result = await run(talker, RecordingTurn("count to ten", thread_id="th-9", resumed=True))
    assert result.text == f"you said {base.GO_ON}count to ten"
    result = await run(talker, RecordingTurn("count to ten", resumed=True))
    assert result.text == "you said count to ten", "it knows nothing that could go on"


# -- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tool"), [("claude", "Bash"), ("codex", "shell"), ("copilot", "bash"), ("opencode", "bash")]
)
async def test_a_turn_with_a_denied_tool_is_not_ok(name: str, tool: str) -> None:
    turn = RecordingTurn()
    try:
        result = await run(make_player(name, "denied"), turn)
    except AgentError as problem:  # nothing was consumed that could be counted
        error = str(problem)
    else:
        assert result.outcome == "error" and result.error
        error = result.error
    assert error.startswith(f"{name} was not allowed to use {tool}") and "\n" not in error
    assert "agents.x.permissions" in error and "acp" in error
    assert list_faults(turn, "permission") == [f"{tool} was not allowed"]


async def test_on_denial_tell_only_reports_a_denied_tool() -> None:
    turn = RecordingTurn()
    result = await run(make_player("claude", "denied", on_denial="tell"), turn)
    assert result.outcome == "ok" and list_faults(turn, "permission")


async def test_a_denial_may_be_reported_on_standard_error_only() -> None:
    errors = "ERROR codex_core::tools::router: error=approval policy is Never; reject command\n"
    result = await run(make_player("codex", "plain", 0, errors), RecordingTurn())
    assert result.outcome == "error" and result.error and "not allowed to use shell" in result.error


async def test_a_read_only_agent_may_have_denied_tools() -> None:
    turn = RecordingTurn()
    result = await run(make_player("claude", "denied", permissions="read"), turn)
    assert result.outcome == "ok" and list_faults(turn, "permission")
    with pytest.raises(AgentError, match="not allowed"):  # it never ends by itself
        result = await run(make_player("opencode", "denied", permissions="read"), RecordingTurn())
        raise AgentError(result.error or "")


@pytest.mark.parametrize(("name", "code"), [("claude", 1), ("codex", 1), ("copilot", 1), ("gemini", 173)])
async def test_a_usage_limit_parks_the_task(name: str, code: int) -> None:
    errors = "Error: 429, Please retry in 3600s.\n" if name == "gemini" else ""
    with pytest.raises(UsageLimit) as raised:
        await run(make_player(name, "limit", code, errors), RecordingTurn())
    assert "\n" not in str(raised.value)
    if name == "copilot":
        assert raised.value.resets_at is None
    elif name == "gemini":
        assert raised.value.resets_at is not None
        assert 3500 < (raised.value.resets_at - SystemClock().now()) / SECOND < 3700
    else:
        assert raised.value.resets_at is not None


@pytest.mark.parametrize(
    ("name", "code"), [*((name, 1) for name in sorted(PROFILES) if name != "gemini"), ("gemini", 144)]
)
async def test_a_refused_key_is_reported_with_the_sign_in_command(name: str, code: int) -> None:
    with pytest.raises(AgentError) as raised:
        await run(make_player(name, "auth", code), RecordingTurn())
    assert isinstance(raised.value, NotSignedIn)
    assert PROFILES[name].program.sign_in in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "code"), [("claude", 1), ("codex", 1), ("goose", 0)])
async def test_an_overloaded_provider_is_a_temporary_failure(name: str, code: int) -> None:
    turn = RecordingTurn()
    with pytest.raises(TransientError):
        await run(make_player(name, "overloaded", code), turn)
    assert bool(list_faults(turn, "llm")) == (name != "goose")


async def test_goose_that_cannot_continue_failed() -> None:
    result = await run(make_player("goose", "too_long", 0), RecordingTurn())
    assert result.outcome == "error" and "Unable to continue: Context limit still exceeded" in (result.error or "")


async def test_a_stream_without_a_result_was_not_understood() -> None:
    turn = RecordingTurn()
    result = await run(agent("codex", "cut", recording_path("codex", "work"), "4"), turn)
    assert result.outcome == "error" and result.error == (
        "the stream of codex 0.9.1 was not understood: it has no final event. midwatch was tested with codex 0.166.0; "
        "update midwatch, or install that version of codex, and see `midwatch doctor`. What it printed is kept as the "
        "result."
    )
    assert "echo one" in result.text, "nothing was said, so the lines are kept"
    (end,) = events_of(turn, "tool_exec_end")
    assert end.is_error and end.result == step_events.NO_RESULT, "what was open is closed"


async def test_text_written_before_the_end_is_kept() -> None:
    turn = RecordingTurn()
    result = await run(agent("gemini", "cut", recording_path("gemini", "plain"), "3"), turn)
    assert (result.outcome, result.text) == ("error", "hello")
    assert [event.message for event in events_of(turn, "message_update")] == ["hello "]


async def test_an_exit_code_is_reported_with_the_output() -> None:
    with pytest.raises(AgentError, match=r"codex failed with exit code 3: first\nno such luck$"):
        await run(agent("codex", "play", "/dev/null", "3", "first\n\x1b[31mno such luck\x1b[0m\n"), RecordingTurn())
    with pytest.raises(AgentError, match="exit code 3 after its answer"):
        crashing_agent = make_player("claude", "plain", 3, "crashed\n")
        result = await run(crashing_agent, RecordingTurn())
        assert result.error
        raise AgentError(result.error)


async def test_a_program_that_exits_at_once_is_reported() -> None:
    with pytest.raises(AgentError, match="claude ended without a result; read its own logs"):
        await run(agent("claude", "play", "/dev/null", "0"), RecordingTurn())


async def test_an_unknown_argument_is_reported_with_the_supported_versions() -> None:
    with pytest.raises(AgentError) as raised:
        await run(agent("claude", "version"), RecordingTurn())
    message = str(raised.value)
    assert "claude 0.9.1 refuses an argument (error: unknown option" in message
    assert PROFILES["claude"].versions.oldest in message and "\n" not in message


async def test_a_missing_program_is_reported() -> None:
    missing = build("x", "headless", {"profile": "claude", "argv": ["/no/such/claude"]})
    assert "not installed" in missing.describe()["problem"]
    with pytest.raises(AgentError, match=r"not installed or not executable; install it or change agents\.x\.argv"):
        await run(missing, RecordingTurn())  # type: ignore[arg-type]  # it is one


async def test_an_unknown_thread_is_reported_or_begun_anew() -> None:
    lost = "No conversation found with session ID: th-9\n"
    forgetful = agent("claude", "play", "/dev/null", "1", lost)
    with pytest.raises(AgentError, match=r"does not find the conversation th-9.*start a new session"):
        await run(forgetful, RecordingTurn(thread_id="th-9"))
    turn = RecordingTurn(thread_id="th-9", resumed=True)
    with pytest.raises(AgentError):
        await run(forgetful, turn)
    assert len(turn.groups) == 2, "one that was cut off begins anew"
    assert list_faults(turn, "thread") == ["claude does not know thread th-9; a new one begins"]


async def test_a_program_that_lost_its_conversation_gets_it_from_midwatch() -> None:
    said: list[tuple[Role, str]] = [("user", "My name is Ada."), ("agent", "noted\n\nmore")]
    turn = RecordingTurn("Who am I?", thread_id="th-9", said=said)
    result = await run(agent("claude", "forget"), turn)
    assert result.text.endswith(
        "\n\nuser:\n> My name is Ada.\n\nagent:\n> noted\n> \n> more\n\nThe message to answer:\nWho am I?"
    )
    (notice,) = [event for event in turn.events if isinstance(event, MessageUpdate) and event.role == "notice"]
    assert "does not know thread th-9), so midwatch gave it the 2 earlier messages." in notice.message
    known = await run(agent("claude", "talk"), RecordingTurn("Who am I?", thread_id="th-9", said=said))
    assert known.text == "you said Who am I?", "it has its conversation"
    begun = await run(agent("claude", "talk"), RecordingTurn("Who am I?", said=said, resumed=True))
    assert "> My name is Ada." in begun.text, "it has no conversation yet"
    assert begun.text.endswith(f"{base.GO_ON}Who am I?")


def test_the_newest_messages_are_told() -> None:
    def message(text: str) -> Message:
        return Message(session_key="s", role="user", text=text, time=0)

    messages = [message("a" * 5), message("b" * 5), message("c" * 5)]
    assert keep_newest(messages, 15) == messages
    assert keep_newest(messages, 14) == messages[1:]
    assert keep_newest(messages, 1) == messages[2:]
    text = write_earlier([message("d" * (LONGEST_MESSAGE + 7))], 3)
    assert "3 older messages are left out." in text
    assert "> … 7 characters" in text


async def test_garbage_is_ignored_and_reported_in_one_line() -> None:
    turn = RecordingTurn()
    result = await run(agent("claude", "garbage", recording_path("claude", "plain")), turn)
    assert result.text == "hello there"
    (fault,) = list_faults(turn, "stream")
    assert fault.startswith(
        "skipped output: 7 lines that were not JSON, the first: '__( O)>  a banner'; 1 lines that were too long"
    )
    assert events_of(turn, "message_update")[0].message == "half \ufffd and nul \ufffd"


# -- silence and the end -----------------------------------------------------------------------------------------


async def test_silence_ends_the_turn() -> None:
    turn = RecordingTurn()
    with pytest.raises(
        AgentError, match=r"^codex printed nothing for 5s, so midwatch ended it; .* agents\.x\.idle_limit"
    ):
        await run(agent("codex", "hold", recording_path("codex", "plain"), "1", idle_limit=5), turn)
    assert turn.thread_id, "it can be taken up"


async def test_a_program_that_ignores_the_interrupt_is_killed() -> None:
    deaf = agent("codex", "deaf", recording_path("codex", "plain"), "1", idle_limit="0.3s", patience=Patience(stop=0.1))
    with pytest.raises(AgentError, match="printed nothing"):
        await run(deaf, RecordingTurn())


async def test_silent_waiting_for_a_usage_limit_parks_the_task() -> None:
    lines = Path(recording_path("copilot", "limit")).read_text().splitlines()
    count = next(n for n, line in enumerate(lines, 1) if "model.call_failure" in line)
    waiting = agent("copilot", "hold", recording_path("copilot", "limit"), str(count), patience=Patience(limit=0.2))
    with pytest.raises(UsageLimit):
        await run(waiting, RecordingTurn())


@pytest.mark.parametrize(("seconds", "patience"), [(900, Patience(stop=0.2)), (30, Patience(limit=0.2))])
async def test_a_program_that_says_again_and_again_that_it_waits_for_a_limit_is_parked(
    seconds: int, patience: Patience
) -> None:
    said = f"[qwen-code] Waiting for API capacity... attempt 1, retry in {seconds}s"
    turn = RecordingTurn()
    with pytest.raises(UsageLimit, match=f"end of a usage limit, {seconds} s more") as raised:
        await run(agent("qwen", "nag", recording_path("qwen", "plain"), "1", said, patience=patience), turn)
    assert raised.value.resets_at is not None
    assert 0 <= seconds - (raised.value.resets_at - SystemClock().now()) / SECOND < 20
    assert turn.thread_id, "it can be taken up"


async def test_a_program_that_does_not_exit_after_its_result_is_ended() -> None:
    lingering = agent("claude", "linger", recording_path("claude", "plain"), patience=Patience(linger=0.2))
    result = await run(lingering, RecordingTurn())
    assert (result.outcome, result.text) == ("ok", "hello there")


@pytest.mark.parametrize("name", ["codex", "claude"])
@pytest.mark.usefixtures("without_cgroups")
async def test_a_daemon_does_not_delay_the_end_and_that_of_codex_is_ended(name: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    began = time.monotonic()
    result = await run(agent(name, "leave", recording_path(name, "plain"), str(note)), RecordingTurn())
    assert result.text == "hello there" and time.monotonic() - began < HeadlessAgent.patience.linger
    daemon_pid = int(note.read_text())
    try:
        alive = "State:\tZ" not in Path(f"/proc/{daemon_pid}/status").read_text()
    except OSError:
        alive = False
    if alive:
        os.kill(daemon_pid, 9)
    assert alive == (name == "claude"), "of others, what has left the group is not ours to end"


async def test_a_refused_event_ends_the_program() -> None:
    class RefusingTurn(RecordingTurn):
        async def emit(self, payload: Any) -> None:
            raise AgentError("refused")

    with pytest.raises(AgentError, match="refused"):
        await run(agent("claude", "hold", recording_path("claude", "work"), "40"), RefusingTurn())


# -- options -----------------------------------------------------------------------------------------------------


def test_the_profile_is_the_agents_name_by_default() -> None:
    assert build("codex", "headless", {}).describe()["command"] == "codex exec --json --skip-git-repo-check -"
    with pytest.raises(BadConfig, match=r"^agents.helper.profile: it must be one of: claude"):
        build("helper", "headless", {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"permissions": "everything"}, "agents.goose.permissions: it must be one of"),
        (
            {"permissions": "edit"},
            "agents.goose.permissions: goose does not have 'edit'; use read or all, or remove the setting.",
        ),
        ({"idle_limit": "soon"}, "agents.goose.idle_limit: "),
        ({"idle_limit": 0}, "agents.goose.idle_limit: "),
        ({"prompt": "x"}, "agents.goose.prompt: there is no such option"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig) as raised:
        build("goose", "headless", options)
    assert str(raised.value).startswith(said)


def test_the_kind_has_its_terms() -> None:
    terms = build("claude", "headless", {}).terms
    assert (terms.timeout_seconds, terms.on_crash, terms.slots) == (8 * 3600.0, "resume", 4)


def test_permissions_and_model_become_arguments_and_environment() -> None:
    agent = build("gemini", "headless", {"permissions": "all", "model": "pro", "env": {"A": "b"}, "args": ["-d"]})
    assert isinstance(agent, HeadlessAgent)
    program = agent.program(agent.command_line("th", resumed=True), None)
    assert program.argv[3:] == ("--model", "pro", "--approval-mode", "yolo", "-d", "--resume", "th")
    assert program.env == {"GEMINI_CLI_TRUST_WORKSPACE": "true", "A": "b"}


def test_claude_as_root_gets_its_sandbox_variable() -> None:
    for options, env in (({"permissions": "all"}, {"IS_SANDBOX": "1"} if os.geteuid() == 0 else {}), ({}, {})):
        agent = build("claude", "headless", options)
        assert isinstance(agent, HeadlessAgent)
        assert agent.program(agent.command_line(), None).env == env


def test_the_version_is_read_from_the_package(tmp_path: Path) -> None:
    package = tmp_path / "node_modules/agent"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text('{"version": "3.2.1"}')
    program = package / "bin/agent.js"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "agent").symlink_to(program)
    agent = build("claude", "headless", {"argv": [str(tmp_path / "agent")]})
    assert agent.describe()["version"] == "3.2.1"
    assert isinstance(agent, HeadlessAgent)
    (package / "package.json").write_text("[broken")
    assert installed_version(agent.program(agent.command_line(), None)) is None
