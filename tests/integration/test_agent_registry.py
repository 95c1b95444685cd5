"""Test agents that are added and removed while a desk works: a new agent gets work at once, a removed one gets none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings, Turn
from midwatch.agents.function import FunctionAgent
from midwatch.agents.handoff_agent import HandoffAgent
from midwatch.agents.llm.kind import LlmAgent
from midwatch.base.errors import BadConfig, Conflict, InvalidInput, StoreUnavailable, UnknownAgent
from midwatch.desk.build import build_agents
from midwatch.domain.agent import AgentCapability, AgentTerms
from midwatch.domain.handoff import Handoff, HandoffTask
from midwatch.services.handoffs import HandoffOptions
from midwatch.testing import ScriptedAgent, result, wait_for

STORES = ("sqlite", "postgres")


class Coder(HandoffAgent):
    capabilities = (AgentCapability(name="code", task_types=("code",)),)

    async def execute(self, handoff: Handoff) -> str:
        return f"{self.id} did {handoff.work.description}"


async def echo(prompt: str) -> str:
    return f"<{prompt}>"


def settings(folder: Path, db: str | None = None) -> Settings:
    return Settings.load(folder, db=db, detect_agents=False, shutdown_grace=0)


def make_options(to: str | None, description: str = "it", **fields: Any) -> HandoffOptions:
    return HandoffOptions(task=HandoffTask(type="code", description=description), to=to, from_agent="lead", **fields)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime.open(settings=settings(tmp_path), agents={"echo": echo}) as desk:
        yield desk


class FailingChoice(Coder):
    def can_handle(self, work: HandoffTask) -> bool:
        raise RuntimeError("what is this?")


async def test_an_agent_whose_check_fails_does_not_block_others(desk: Runtime) -> None:
    await desk.handoffs.register(FailingChoice("puzzled"))
    await desk.handoffs.register(Coder("coder"))
    assert (await desk.handoffs.handoff(make_options(None))).to_agent == "coder"
    odd = Coder("odd")
    odd.capabilities = ("code",)  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="AgentCapability"):
        await desk.handoffs.register(odd)


async def test_an_agent_removed_during_the_choice_is_skipped(desk: Runtime) -> None:
    await desk.handoffs.register(Coder("first"))
    await desk.handoffs.register(Coder("second"))

    async def leaves(options: HandoffOptions, agent: str) -> bool:
        if agent == "first":
            await desk.handoffs.unregister("first")
        return True

    async with asyncio.timeout(20):
        done = await desk.handoffs.handoff(make_options(None, enable_func=leaves))
    assert (done.to_agent, [refusal["agent"] for refusal in done.refusals]) == ("second", ["first"])
    await desk.handoffs.register(Coder("first"))
    named, _ = await asyncio.gather(
        desk.handoffs.handoff(make_options("first", wait=False)), desk.handoffs.unregister("first")
    )
    assert named.status == "in_progress"  # it waits until the agent is added again
    await desk.handoffs.register(Coder("first"))
    assert (await desk.handoffs.wait(named.id)).output == "first did it"


@pytest.mark.parametrize("kind", STORES)
async def test_an_added_agent_gets_work_at_once_and_a_removed_one_gets_none(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    db = request.getfixturevalue("database") if kind == "postgres" else None
    role: Any = "worker" if db else "library"
    async with (
        Runtime.open(settings=settings(tmp_path, db), role=role) as desk,
        Runtime.open(settings=settings(tmp_path, db), work=False) as other_desk,
        asyncio.timeout(60),
    ):
        with pytest.raises(UnknownAgent):
            await other_desk.tasks.submit("x", agent="late")
        with pytest.raises(Conflict, match="runs no tasks; open it without"):
            await other_desk.handoffs.register(FunctionAgent("late", echo))
        await desk.handoffs.register(FunctionAgent("late", echo, terms=AgentTerms(timeout_seconds=777.0)))
        first = await other_desk.tasks.submit("from another process", agent="late")
        assert first.timeout_seconds == 777.0
        assert (await desk.tasks.wait(first.id)).result == "<from another process>"
        assert (await desk.handoffs.handoff(make_options("late"))).output == "<it>"
        assert {instance.id: instance.agents for instance in await desk.living()}[desk.id] == ("demo", "late")
        waiting = await other_desk.tasks.submit("later", agent="late", delay=3600)
        await desk.handoffs.unregister("late")
        assert {instance.id: instance.agents for instance in await desk.living()}[desk.id] == ("demo",)
        for runtime in (desk, other_desk):
            with pytest.raises(UnknownAgent):
                await runtime.tasks.submit("x", agent="late")
        with pytest.raises(UnknownAgent):
            await desk.handoffs.handoff(make_options("late"))
        assert (await desk.tasks.get(waiting.id)).status == "pending"


@pytest.mark.parametrize("kind", STORES)
async def test_a_running_task_ends_normally_after_its_agent_was_removed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    db = request.getfixturevalue("database") if kind == "postgres" else None
    go = asyncio.Event()

    async def lead(prompt: str, turn: Turn) -> str:
        """Delegate, which frees the slot; after the delegation the source must get a slot again."""
        return f"heard {(await turn.delegate('slow', prompt)).output}"

    slow = ScriptedAgent(wait_for(go), result("done"), name="slow")
    role: Any = "worker" if db else "library"
    opening = Runtime.open(settings=settings(tmp_path, db), agents={"slow": slow}, role=role)
    async with opening as desk, asyncio.timeout(60):
        await desk.handoffs.register(FunctionAgent("lead", lead, terms=AgentTerms(slots=1), on_loop=True))
        running = await desk.tasks.submit("one", agent="lead")
        while not slow.opened:
            await asyncio.sleep(0.01)
        await desk.handoffs.unregister("lead")
        await desk.handoffs.unregister("slow")
        assert list(desk.agents) == ["demo"]
        go.set()
        ended_task = await desk.tasks.wait(running.id)
        assert (ended_task.outcome, ended_task.result) == ("ok", "heard done"), ended_task.error


async def test_a_task_of_a_removed_agent_waits_until_it_is_added_again(desk: Runtime) -> None:
    go = asyncio.Event()
    await desk.handoffs.register(ScriptedAgent(wait_for(go), result("done"), name="it", terms=AgentTerms(slots=1)))
    running = await desk.tasks.submit("one", agent="it")
    queued = await desk.tasks.submit("two", agent="it")
    handed = await desk.handoffs.handoff(make_options("it", wait=False))
    async with asyncio.timeout(30):
        while not desk.running:
            await asyncio.sleep(0.01)
        await desk.handoffs.unregister("it")
        go.set()
        assert (await desk.tasks.wait(running.id)).result == "done"
        await desk.tasks.wait((await desk.tasks.submit("between", agent="echo")).id)  # the engine has claimed since
        assert (await desk.tasks.get(queued.id)).status == "pending"
        assert (await desk.handoffs.get(handed.id)).status == "in_progress"
        await desk.handoffs.register(ScriptedAgent(result("another"), name="it"))
        assert (await desk.tasks.wait(queued.id)).result == "another"
        assert (await desk.handoffs.wait(handed.id)).output == "another"


async def test_the_best_registered_agent_is_chosen(desk: Runtime) -> None:
    for name in ("one", "two"):
        await desk.handoffs.register(Coder(name))
    assert list(desk.handoffs.receivers()) == ["demo", "echo", "one", "two"]
    assert (await desk.handoffs.handoff(make_options(None))).output == "one did it"
    await desk.handoffs.unregister("one")
    assert (await desk.handoffs.handoff(make_options(None))).output == "two did it"
    await desk.handoffs.register(Coder("one"))  # an agent that is added again is the last of its priority
    assert await desk.handoffs.find_agent(HandoffTask(type="code")) == ["two", "one"]
    desk.handoffs.enable("two", False)
    assert list(desk.handoffs.receivers()) == ["demo", "echo", "one"]


async def test_an_invalid_registration_is_reported_and_changes_nothing(
    desk: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Conflict, match="there is an agent 'echo' already; unregister it"):
        await desk.handoffs.register(FunctionAgent("echo", echo))
    for name in ("", "a b", "-a", "a" * 64, "a\n", 7):
        with pytest.raises(InvalidInput, match="letters, digits"):
            await desk.handoffs.register(FunctionAgent(name, echo))  # type: ignore[arg-type]
    for candidate in (echo, "package:function", None):
        with pytest.raises(InvalidInput, match="an agent must have"):
            await desk.handoffs.register(candidate)  # type: ignore[arg-type]
    with pytest.raises(UnknownAgent, match=r"'nobody'.*Register it first"):
        await desk.handoffs.register(LlmAgent("model", "openai:fake", delegates=["nobody"]))
    with pytest.raises(UnknownAgent, match=r"'nobody'.*of this process"):
        await desk.handoffs.unregister("nobody")

    async def broken(*_: object) -> None:
        raise StoreUnavailable("no")

    with monkeypatch.context() as away:
        away.setattr(desk.store, "apply", broken)
        for change in (desk.handoffs.register(Coder("it")), desk.handoffs.unregister("echo")):
            with pytest.raises(StoreUnavailable):
                await change
    assert list(desk.agents) == ["demo", "echo"]
    assert (await desk.living())[0].agents == ("demo", "echo")
    await desk.handoffs.register(LlmAgent("model", "openai:fake", delegates=["echo"]))


@pytest.mark.parametrize("kind", STORES)
async def test_concurrent_registrations_keep_one_agent_per_name(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    db = request.getfixturevalue("database") if kind == "postgres" else None
    requested_names = [f"a{number % 20}" for number in range(40)]
    names = list(dict.fromkeys(requested_names))
    role: Any = "worker" if db else "library"
    async with Runtime.open(settings=settings(tmp_path, db), role=role) as desk, asyncio.timeout(60):
        outcomes = await asyncio.gather(
            *(desk.handoffs.register(Coder(n)) for n in requested_names), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [Conflict] * 20
        done = await asyncio.gather(*(desk.handoffs.handoff(make_options(name, "x")) for name in names))
        assert [handoff.output for handoff in done] == [f"{name} did x" for name in names]
        await asyncio.gather(*(desk.handoffs.unregister(name) for name in names))
        assert (await desk.living())[0].agents == ("demo",)
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


async def test_an_open_conversation_ends_with_its_agent(desk: Runtime) -> None:
    go = asyncio.Event()
    old, new = (ScriptedAgent(wait_for(go), result(text), name="it", lasting=True) for text in ("old", "new"))
    await desk.handoffs.register(old)
    for key in ("chat:1", "chat:2"):
        await desk.sessions.create(key=key, agent="it")
    go.set()
    async with asyncio.timeout(30):
        await desk.tasks.wait((await desk.sessions.send("chat:1", "hello")).id)
        assert old.closed == 0  # it waits for the next message
        go.clear()
        running = await desk.sessions.send("chat:2", "hello")
        while not desk.running:
            await asyncio.sleep(0.01)
        await desk.handoffs.unregister("it")
        await desk.handoffs.register(new)
        go.set()
        assert (await desk.tasks.wait(running.id)).result == "old"
        for key in ("chat:1", "chat:2"):
            assert (await desk.tasks.wait((await desk.sessions.send(key, "and now?")).id)).result == "new"
        assert (len(old.opened), old.closed, len(new.opened), new.closed) == (2, 2, 2, 0)


CONFIG = "[agents.it]\nkind = 'llm'\nmodel = 'openai:fake'\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "delegates = ['demo', 'nobody']",
            r"agents.it.delegates: there is no agent 'nobody'; correct the name, or add",
        ),
        ("handoffs = ['nobody']", r"agents.it.handoffs: there is no agent 'nobody'; .* Other agents: demo, echo\."),
        ("handoffs = [{ agent = 'nobody', tool = 'ask' }]", "agents.it.handoffs: there is no agent 'nobody'"),
        ("handoffs = ['it']", "agents.it.handoffs: .* cannot hand work to itself"),
        ("delegates = ['it']", "agents.it.delegates: .* cannot hand work to itself"),
    ],
)
async def test_a_missing_target_is_an_error_at_startup(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "midwatch.toml").write_text(CONFIG + line + "\n")
    with pytest.raises(BadConfig, match=said) as caught:
        async with Runtime.open(settings=settings(tmp_path), agents={"echo": echo}):
            pass
    assert "\n" not in str(caught.value)


async def test_targets_from_configuration_and_code_are_found(tmp_path: Path) -> None:
    (tmp_path / "midwatch.toml").write_text(CONFIG + "handoffs = ['demo', 'echo']\ndelegates = ['echo']\n")
    async with Runtime.open(settings=settings(tmp_path), agents={"echo": echo}, only=["it"]) as desk:
        assert list(desk.agents) == ["it"]  # the other agents may run in other processes
        assert desk.handoffs.can_receive("it")
    with pytest.raises(BadConfig, match=r"agents.other.delegates: .* cannot hand over to itself"):
        build_agents(settings(tmp_path), {"echo": echo, "other": LlmAgent("me", "openai:fake", delegates=["other"])})
