"""Test the contract of agents with every kind. A new kind adds one `Sample`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import serve_beside
from midwatch import testing
from midwatch.agents.acp.options import AcpOptions
from midwatch.agents.command import CommandOptions
from midwatch.agents.demo import DemoAgent, DemoOptions
from midwatch.agents.function import FunctionAgent, FunctionOptions
from midwatch.agents.headless import HeadlessOptions
from midwatch.agents.known import KNOWN
from midwatch.agents.registry import KINDS, build
from midwatch.agents.streams import PROFILES as STREAMS
from midwatch.base.errors import AgentError, MidwatchError
from midwatch.domain.agent import Agent, AgentTerms, Interrupt, TurnResult
from midwatch.programs.guard import guard
from midwatch.testing import RecordingTurn, ScriptedAgent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]

MODULE = """
import asyncio, time
from midwatch.domain.agent import TurnResult
from midwatch.domain.event import MessageDelta

def echo(prompt, turn): return TurnResult(text=f"you said {prompt}", thread_id=turn.thread_id or "th-1")
def fail(prompt): raise ValueError("told to fail")
def hang(prompt, turn):
    turn.emit(MessageDelta(message_id="m", offset=0, text="ready"))
    time.sleep(600)
"""
PROGRAM = """
import sys, time
said, thread = sys.argv[1:]
if said == "fail": sys.exit("told to fail")
print("you said", said, "ready" if said == "hang" else "", flush=True)
print("thread", thread or "th-1", file=sys.stderr, flush=True)
if said == "hang": time.sleep(600)
"""


LISTENER = """
import sys, time
while True:
    said = input("> ")
    if said == "fail": sys.exit("told to fail")
    print("you said", said, "ready" if said == "hang" else "", flush=True)
    if said == "hang": time.sleep(600)
"""


@dataclass(frozen=True)
class Sample:
    """One kind of agent: agents that echo, fail and hang, and whether it keeps a thread and can be interrupted."""

    echo: Agent
    fail: Agent
    hang: Agent
    keeps_thread: bool = True
    names_thread: bool = False
    counts: bool = False
    """Whether the kind reports the usage of a turn."""
    prompts: tuple[str, str, str] = ("hello", "fail", "hang")


def acp(folder: Path) -> Sample:
    fake = Path(__file__).parents[1] / "fakes" / "acp_agent.py"
    agent = build("x", "acp", {"argv": [sys.executable, str(fake), "--session", "th-1"]})
    return Sample(agent, agent, agent)


def command(folder: Path) -> Sample:
    argv = [sys.executable, "-c", PROGRAM, "{prompt}"]
    options = {"argv": [*argv, ""], "resume_argv": [*argv, "{thread}"], "thread_pattern": r"^thread (\S+)$"}
    agent = build("x", "command", options)
    return Sample(agent, agent, agent)


def function_in_child(folder: Path) -> Sample:
    (folder / "mw_contract.py").write_text(MODULE)

    def agent(name: str) -> Agent:
        return build("x", "function", {"target": f"mw_contract:{name}", "path": [str(folder)]})

    return Sample(agent("echo"), agent("fail"), agent("hang"))


async def _echo(prompt: str, turn: Any) -> TurnResult:
    return TurnResult(text=f"you said {prompt}", thread_id=turn.thread_id or "th-1")


async def _fail(prompt: str) -> None:
    raise ValueError("told to fail")


async def _hang(prompt: str, turn: Any) -> None:
    await testing.delta("ready")(turn)
    await asyncio.Event().wait()


def function_on_thread(folder: Path) -> Sample:
    return Sample(FunctionAgent("x", _echo), FunctionAgent("x", _fail), FunctionAgent("x", _hang))


def function_on_loop(folder: Path) -> Sample:
    return Sample(*(FunctionAgent("x", target, on_loop=True) for target in (_echo, _fail, _hang)))


def demonstration(folder: Path) -> Sample:
    agent = DemoAgent("x", streaming=0.0)
    return Sample(agent, agent, agent, keeps_thread=False, prompts=("hello", "demo:fail", "demo:hang"))


def headless(folder: Path) -> Sample:
    fake = Path(__file__).parents[1] / "fakes" / "cli_agent.py"
    agent = build("x", "headless", {"profile": "claude", "argv": [sys.executable, str(fake), "talk"]})
    return Sample(agent, agent, agent)


def llm(folder: Path) -> Sample:
    def agent(model: str) -> Agent:
        return build("x", "llm", {"model": model, "base_url": (folder / "model").read_text()})

    echo = agent("openai:fake")
    prompts = ("hello", "fail", "[[say ready]] [[hold a]]")
    return Sample(echo, agent("openai:no-such, told to fail"), echo, names_thread=True, counts=True, prompts=prompts)


def scripted(folder: Path) -> Sample:
    async def echo(turn: Any) -> TurnResult:
        return await _echo(turn.prompt, turn)

    return Sample(
        ScriptedAgent(echo),
        ScriptedAgent(testing.raise_(ValueError("told to fail"))),
        ScriptedAgent(testing.delta("ready"), testing.wait_for(asyncio.Event())),
    )


def terminal(folder: Path) -> Sample:
    agent = build("x", "terminal", {"argv": [sys.executable, "-c", LISTENER], "prompt": "^> $"})
    return Sample(agent, agent, agent, keeps_thread=False)


SAMPLES: tuple[Callable[[Path], Sample], ...] = (
    acp, command, demonstration, function_in_child, function_on_loop, function_on_thread, headless, llm,
    scripted, terminal,
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """Yield the address of a fake model."""
    with serve_beside() as url:
        yield f"{url}/v1"


@pytest.fixture(params=SAMPLES, ids=lambda make: make.__name__)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Sample:
    if request.param is llm:
        (tmp_path / "model").write_text(request.getfixturevalue("model"))
    sample: Sample = request.param(tmp_path)
    return sample


OTHERS: set[int] = set()
"""Child processes that belong to other tests of this process, such as a browser."""


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(children())


def children() -> set[int]:
    """Return our child processes without the guard and those of other tests."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in listed} - {guard.pid} - OTHERS


async def run(agent: Agent, turn: RecordingTurn) -> TurnResult:
    talk = await agent.open(turn.session(agent.name))
    try:
        return await talk.turn(turn)
    finally:
        await talk.close()


async def start_hanging_turn(sample: Sample) -> tuple[Any, RecordingTurn, asyncio.Task[TurnResult]]:
    """Start a turn that hangs, and wait until it does."""
    turn = RecordingTurn(sample.prompts[2])
    talk = await sample.hang.open(turn.session(sample.hang.name))
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: "ready" in t.text() or "task_progress" in t.kinds())
    return talk, turn, working


async def await_interrupted(working: Awaitable[TurnResult]) -> None:
    """Wait for an interrupted turn, which may return or raise an error of midwatch."""
    with suppress(MidwatchError):
        assert isinstance(await working, TurnResult)


def test_every_registered_kind_is_in_this_suite() -> None:
    tested = {make.__name__.partition("_")[0] for make in SAMPLES}
    assert {"demo" if name == "demonstration" else name for name in tested} - {"scripted"} == set(KINDS) - {
        "local"
    }  # it is kind llm with another model


def test_every_option_and_known_program_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/agents.md").read_text()
    for options in (AcpOptions, CommandOptions, FunctionOptions, HeadlessOptions, DemoOptions):
        for name, option in options.model_fields.items():
            assert f"| `{name}` |" in page
            assert option.description
    for known_program in KNOWN.values():
        assert re.search(
            rf"^\| `{known_program.name}` \| .* \| `{re.escape(' '.join(known_program.argv))}` \|$", page, re.M
        )
    for program in STREAMS.values():
        called = (program.name, *(part for part in program.start if part != "{options}"))
        assert f"| `{program.name}` | `{' '.join(called)}` |" in page
    for kind in KINDS:
        assert f"## `{kind}`: " in page


def test_an_agent_has_a_description(sample: Sample) -> None:
    agent = sample.echo
    assert agent.name and agent.kind
    assert isinstance(agent.terms, AgentTerms)
    assert agent.terms.slots >= 1 and agent.terms.timeout_seconds
    assert isinstance(agent.description, str) and agent.capabilities == ()
    described = agent.describe()
    assert described.keys() & {"command", "target"}
    assert "problem" not in described


async def test_a_turn_returns_the_answer(sample: Sample) -> None:
    result = await run(sample.echo, RecordingTurn("hello"))
    assert "hello" in result.text
    assert (result.outcome, result.error, result.stuck) == ("ok", None, False)
    assert (result.usage.data() is not None) == sample.counts, "unknown is not zero"


async def test_text_of_any_script_survives(sample: Sample) -> None:
    prompt = "né 日本語 🙂 'quoted' \"$HOME\" `id` \\n"
    assert prompt in (await run(sample.echo, RecordingTurn(prompt))).text


async def test_a_conversation_has_many_turns(sample: Sample) -> None:
    turn = RecordingTurn("first")
    talk = await sample.echo.open(turn.session())
    for prompt in ("first", "second", "third"):
        assert prompt in (await talk.turn(RecordingTurn(prompt))).text
    await talk.close()


async def test_turns_of_many_conversations_run_at_once(sample: Sample) -> None:
    turns = [RecordingTurn(f"number-{n}") for n in range(8)]
    results = await asyncio.gather(*(run(sample.echo, turn) for turn in turns))
    assert all(turn.prompt in result.text for turn, result in zip(turns, results, strict=True))


async def test_the_thread_is_reported_and_kept(sample: Sample) -> None:
    if not sample.keeps_thread:
        assert (await run(sample.echo, RecordingTurn("hello"))).thread_id is None
        return
    thread_id = (await run(sample.echo, RecordingTurn("hello"))).thread_id
    assert thread_id == "th-1" or (sample.names_thread and thread_id)
    assert (await run(sample.echo, RecordingTurn("hello", thread_id="th-7"))).thread_id == "th-7"


async def test_a_failure_is_an_error_with_its_reason(sample: Sample) -> None:
    with pytest.raises(AgentError, match="told to fail"):
        await run(sample.fail, RecordingTurn(sample.prompts[1]))


async def test_a_conversation_continues_after_a_failure(sample: Sample) -> None:
    turn = RecordingTurn(sample.prompts[1])
    talk = await sample.fail.open(turn.session())
    for _ in range(2):
        with pytest.raises(AgentError):
            await talk.turn(turn)
    await talk.close()


@pytest.mark.parametrize("mode", ["stop", "terminate", "kill"])
async def test_an_interrupt_ends_a_hanging_turn(sample: Sample, mode: Interrupt) -> None:
    talk, _, working = await start_hanging_turn(sample)
    await talk.interrupt(mode)
    await await_interrupted(working)
    await talk.close()
    assert children() == set()


async def test_interrupts_may_be_repeated(sample: Sample) -> None:
    talk, _, working = await start_hanging_turn(sample)
    for mode in ("stop", "stop", "terminate", "kill", "kill"):
        await talk.interrupt(mode)
    await await_interrupted(working)
    await talk.interrupt("kill")
    await talk.close()


async def test_an_interrupt_without_a_turn_is_harmless(sample: Sample) -> None:
    turn = RecordingTurn("hello")
    talk = await sample.echo.open(turn.session())
    for mode in ("stop", "terminate", "kill"):
        await talk.interrupt(mode)
    assert "hello" in (await talk.turn(turn)).text
    for mode in ("stop", "terminate", "kill"):
        await talk.interrupt(mode)
    assert "again" in (await talk.turn(RecordingTurn("again"))).text
    await talk.close()
    await talk.interrupt("stop")


async def test_an_interrupt_does_not_cancel_the_caller_of_the_turn(sample: Sample) -> None:
    turn = RecordingTurn(sample.prompts[2])
    talk = await sample.hang.open(turn.session())

    async def worker() -> str:
        await await_interrupted(talk.turn(turn))
        await asyncio.sleep(0)
        return "went on"

    working = asyncio.create_task(worker())
    await turn.until(lambda t: "ready" in t.text() or "task_progress" in t.kinds())
    await talk.interrupt("stop")
    assert await working == "went on"
    await talk.close()


async def test_close_ends_an_abandoned_turn(sample: Sample) -> None:
    talk, _, working = await start_hanging_turn(sample)
    working.cancel()
    await asyncio.wait({working})
    assert working.cancelled()
    await talk.close()
    assert children() == set()


async def test_a_conversation_can_be_closed_without_a_turn_and_twice(sample: Sample) -> None:
    talk = await sample.echo.open(RecordingTurn().session())
    await talk.close()
    await talk.close()


async def test_processes_are_recorded_before_they_start_and_gone_afterwards(sample: Sample) -> None:
    turn = RecordingTurn("hello")
    await run(sample.echo, turn)
    assert children() == set()
    programs = ("acp", "command", "headless", "terminal")
    if sample.echo.kind in programs or isinstance(getattr(sample.echo, "target", None), str):
        assert len(turn.groups) == 1
    else:
        assert turn.groups == []
