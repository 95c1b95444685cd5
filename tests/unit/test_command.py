"""Test the agent kind `command`: templates, results, failures, threads."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.command import CommandAgent, fill
from midwatch.agents.registry import build
from midwatch.base.errors import AgentError, BadConfig, LeaseLost, TransientError
from midwatch.domain.agent import TurnResult
from midwatch.domain.event import MessageDelta, Payload
from midwatch.programs.reaper import members
from midwatch.testing import RecordingTurn

pytestmark = pytest.mark.usefixtures("no_process_is_left")

SHELL = ["sh", "-c", "{prompt}"]


def command(argv: list[str] | None = None, **options: Any) -> CommandAgent:
    agent = build("x", "command", {"argv": argv or SHELL, **options})
    assert isinstance(agent, CommandAgent)
    return agent


async def run(agent: CommandAgent, turn: RecordingTurn | str) -> TurnResult:
    turn = RecordingTurn(turn) if isinstance(turn, str) else turn
    talk = await agent.open(turn.session("x"))
    try:
        return await talk.turn(turn)
    finally:
        await talk.close()


# -- the command line --------------------------------------------------------------------------------------------


def test_placeholders_are_filled_in_one_pass() -> None:
    assert fill(("a", "x{prompt}y", "{thread}"), "{thread}", "T") == ("a", "x{thread}y", "T")


def test_a_prompt_cannot_become_an_option() -> None:
    assert fill(("p", "{prompt}"), "--help", "") == ("p", " --help")
    assert fill(("p", "--", "{prompt}"), "--help", "") == ("p", "--", "--help")
    assert fill(("p", "--text={prompt}"), "--help", "") == ("p", "--text=--help")


async def test_the_prompt_can_be_an_argument() -> None:
    assert (await run(command(["printf", "%s|", "{prompt}", "{prompt}!"]), "a b\nc")).text == "a b\nc|a b\nc!|"


async def test_the_prompt_is_on_standard_input_without_a_placeholder() -> None:
    assert (await run(command(["cat"]), "hello\n  \n")).text == "hello"


async def test_standard_input_is_empty_with_a_prompt_placeholder() -> None:
    assert (await run(command(), "cat; echo end")).text == "end"


async def test_a_prompt_too_long_for_a_command_line_is_refused() -> None:
    assert (await run(command(["cat"]), "x" * 500_000)).text == "x" * 500_000
    with pytest.raises(AgentError, match=r"too long for a command line; leave \{prompt\} out of agents\.x\.argv"):
        await run(command(["echo", "{prompt}"]), "x" * 500_000)


async def test_characters_a_command_line_cannot_hold_are_replaced() -> None:
    assert (await run(command(["printf", "%s", "{prompt}"]), "a\0b\ud800é")).text == "ab?é"


async def test_environment_and_working_directory_are_set(tmp_path: Path) -> None:
    agent = command(env={"MW_WORD": "agent"}, workdir=str(tmp_path))
    assert (await run(agent, "echo $MW_WORD $MIDWATCH_TASK; pwd")).text.splitlines()[1] == str(tmp_path)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    turn = RecordingTurn("pwd; echo $MW_WORD $MIDWATCH_TASK", workdir=str(elsewhere), attempt=4)
    assert (await run(agent, turn)).text.split() == [str(elsewhere), "agent", f"{turn.task_id}/4"]


# -- exit codes --------------------------------------------------------------------------------------------------


async def test_a_failing_exit_code_is_reported_with_the_output() -> None:
    with pytest.raises(AgentError, match=r"^sh failed with exit code 3: no such luck$") as failed:
        await run(command(), "echo answer; echo no such luck >&2; exit 3")
    assert not isinstance(failed.value, TransientError)
    with pytest.raises(AgentError, match=r"exit code 4: only this$"):
        await run(command(), "echo only this; exit 4")
    with pytest.raises(AgentError, match=r"^sh failed with exit code 5$"):
        await run(command(), "exit 5")


async def test_long_errors_keep_their_end() -> None:
    with pytest.raises(AgentError) as failed:
        await run(command(), "seq 100000 >&2; exit 1")
    assert len(str(failed.value)) < 2100
    assert str(failed.value).endswith("99999\n100000")


async def test_exit_code_75_is_a_temporary_failure() -> None:
    with pytest.raises(TransientError, match="exit code 75"):
        await run(command(), "exit 75")
    assert (await run(command(ok_codes=[0, 75]), "exit 75")).text == ""


async def test_other_codes_can_mean_success() -> None:
    assert (await run(command(ok_codes=[0, 1]), "echo fine; exit 1")).text == "fine"
    with pytest.raises(AgentError, match="exit code 0"):
        await run(command(ok_codes=[1]), "exit 0")


async def test_a_signal_is_named() -> None:
    with pytest.raises(AgentError, match=r"^sh was ended by SIGKILL$"):
        await run(command(), "kill -9 $$")


async def test_a_missing_program_is_reported() -> None:
    agent = command(["no-such-program"])
    with pytest.raises(AgentError, match=r"program 'no-such-program' is not installed .* agents\.x\.argv"):
        await run(agent, "hello")
    assert "not installed" in agent.describe()["problem"]
    assert command(["cat", "a b"]).describe() == {"command": "cat 'a b'"}


async def test_a_missing_working_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="does not exist; create it"):
        await run(command(), RecordingTurn("pwd", workdir=str(tmp_path / "gone")))


async def test_output_above_the_limit_is_truncated() -> None:
    turn = RecordingTurn("head -c 50000000 /dev/zero | tr '\\0' x")
    result = await run(command(output_limit=100_000), turn)
    assert "… 49900000 bytes left out …" in result.text
    assert len(result.text) < 100_100
    assert turn.text() == "x" * 100_000


async def test_a_hanging_program_ends_when_interrupted() -> None:
    talk = await (agent := command()).open(RecordingTurn().session("x"))
    turn = RecordingTurn("trap '' INT TERM; echo ready; while :; do sleep 0.05; done")
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: "ready" in t.text())
    await talk.interrupt("stop")
    await talk.interrupt("terminate")
    await talk.interrupt("kill")
    with pytest.raises(AgentError, match="ended by SIGKILL"):
        await working
    await talk.close()
    assert members(turn.groups[0]) == set()
    assert agent.terms.on_crash == "fail"


# -- live output -------------------------------------------------------------------------------------------------


async def test_output_is_shown_while_it_is_written(tmp_path: Path) -> None:
    turn = RecordingTurn("printf 'première '; while ! test -e go; do sleep 0.01; done; echo fin", workdir=str(tmp_path))
    talk = await command().open(turn.session("x"))
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: t.text() == "première ")
    (tmp_path / "go").touch()
    assert (await working).text == "première fin"
    await talk.close()
    pieces = [event for event in turn.events if isinstance(event, MessageDelta)]
    assert pieces == turn.events
    assert [piece.offset for piece in pieces] == [0, len("première ")]
    assert turn.text() == "première fin\n"


async def test_a_refused_event_ends_the_program() -> None:
    class RefusingTurn(RecordingTurn):
        async def emit(self, payload: Payload) -> None:
            raise LeaseLost(self.task_id, self.attempt)

    turn = RefusingTurn("echo hello; sleep 600")
    with pytest.raises(LeaseLost):
        await run(command(), turn)
    assert members(turn.groups[0]) == set()


# -- threads -----------------------------------------------------------------------------------------------------

THREAD_OPTIONS: dict[str, Any] = {
    "argv": ["sh", "-c", "echo 'session id: s-1' >&2; echo new {prompt}"],
    "resume_argv": ["sh", "-c", "echo again {thread} {prompt}"],
    "thread_pattern": r"^session id: (\S+)$",
}


async def test_the_thread_is_found_and_resumed() -> None:
    agent = command(**THREAD_OPTIONS)
    turn = RecordingTurn("one")
    talk = await agent.open(turn.session("x"))
    first = await talk.turn(turn)
    assert (first.text, first.thread_id) == ("new one", "s-1")
    second = await talk.turn(RecordingTurn("two"))
    assert (second.text, second.thread_id) == ("again s-1 two", "s-1")
    await talk.close()
    assert (await run(agent, RecordingTurn("three", thread_id="s-9"))).text == "again s-9 three"


async def test_the_thread_is_saved_early_and_an_interrupted_turn_continues(tmp_path: Path) -> None:
    argv = ["sh", "-c", "printf 'thread=abc'; sleep 0.05; echo def; while ! test -e go; do sleep 0.01; done"]
    agent = command(argv, resume_argv=["echo", "resumed {thread}"], thread_pattern="thread=(.*)")
    assert agent.terms.on_crash == "resume"
    turn = RecordingTurn("work", workdir=str(tmp_path))
    talk = await agent.open(turn.session("x"))
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: t.progress is not None)
    assert turn.progress == {"thread_id": "abcdef"}, "half an id is not an id"
    working.cancel()
    await asyncio.wait({working})
    await talk.close()
    again = RecordingTurn("work", progress=turn.progress, resumed=True, attempt=2)
    assert (await run(agent, again)).text == "resumed abcdef"


async def test_an_interrupted_turn_without_a_thread_is_not_repeated() -> None:
    turn = RecordingTurn("work", resumed=True)
    with pytest.raises(AgentError, match="interrupted before its thread id was known"):
        await run(command(**THREAD_OPTIONS), turn)
    assert turn.groups == []


async def test_a_thread_placeholder_in_the_first_command_is_a_new_id() -> None:
    agent = command(["echo", "--id", "{thread}"], resume_argv=["echo", "--resume", "{thread}"])
    turn = RecordingTurn("work")
    result = await run(agent, turn)
    assert result.thread_id is not None and uuid.UUID(result.thread_id)
    assert result.text == f"--id {result.thread_id}"
    assert turn.progress == {"thread_id": result.thread_id}


# -- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, "agents.x.argv:"),
        ({"argv": []}, "agents.x.argv:"),
        ({"argv": "cat"}, "agents.x.argv:"),
        ({"argv": [1]}, "agents.x.argv.0:"),
        ({"argv": ["cat"], "env": {"A": ["secret"]}}, "agents.x.env.A:"),
        ({"argv": ["cat"], "output_limit": 5}, "agents.x.output_limit:"),
        ({"argv": ["cat"], "thread_pattern": "("}, "agents.x.thread_pattern: not a regular expression"),
        (
            {"argv": ["cat"], "thread_pattern": "x"},
            "agents.x.thread_pattern: must have exactly one group",
        ),
        ({"argv": ["cat"], "ok_codes": []}, "agents.x.ok_codes:"),
        (
            {"argv": ["cat"], "agrv": 1},
            "agents.x.agrv: there is no such option; options of this kind: env, ",
        ),
    ],
)
def test_wrong_options_are_reported_on_one_line(options: dict[str, Any], where: str) -> None:
    with pytest.raises(BadConfig) as wrong:
        build("x", "command", options)
    assert str(wrong.value).startswith(where)
    assert "\n" not in str(wrong.value)
    assert "secret" not in str(wrong.value)


def test_terms_come_from_the_kind_and_the_configuration() -> None:
    assert command().terms[:5] == (1800.0, "fail", 3, 4, False)
    agent = build(
        "x", "command", {"argv": ["cat"]}, timeout_seconds=5.0, on_crash="rerun", max_attempts=7, slots=2,
        description="words",
    )  # fmt: skip
    assert agent.terms[:6] == (5.0, "rerun", 7, 2, False, str(Path.cwd()))
    assert (agent.name, agent.kind, agent.description) == ("x", "command", "words")


def test_on_crash_resume_needs_a_resume_command() -> None:
    with pytest.raises(BadConfig, match=r"agents\.x\.on_crash: `resume` needs `resume_argv`"):
        build("x", "command", {"argv": ["cat"]}, on_crash="resume")


def test_an_agent_without_kind_and_argv_is_told_both() -> None:
    with pytest.raises(BadConfig, match=r"agents\.x\.argv: it is missing; add it, or set another `kind`"):
        build("x", "command", {})


def test_kinds_are_names_or_dotted_paths() -> None:
    assert build("x", "midwatch.agents.command:CommandAgent", {"argv": [sys.executable]}).kind == "command"
    with pytest.raises(BadConfig, match=r"agents\.x\.kind: there is no kind 'nope'; use acp, command, demo, function"):
        build("x", "nope", {})
    for path in ("no.such.module:Thing", "midwatch.agents.command:Nope", ":x"):
        with pytest.raises(BadConfig, match=r"agents\.x\.kind: .* cannot be loaded"):
            build("x", path, {})
    with pytest.raises(BadConfig, match=r"agents\.x: .* failed with AttributeError; check its options"):
        build("x", "midwatch.domain.event:Event", {})
