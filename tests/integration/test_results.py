"""Test results of background work: the agent that started the work gets each result exactly once."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crashing import crash_at_every_write, list_crash_cases, run_crashes
from fakes.model_server import Model, serve
from midwatch import HandoffOptions, HandoffTask, Runtime, Settings, Task, Turn
from midwatch.agents.function import FunctionAgent
from midwatch.agents.llm.kind import LlmAgent
from midwatch.base.errors import AgentError, HandoffRefused, InvalidInput
from midwatch.domain.agent import Conversation
from midwatch.domain.context_item import HEAD
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.handoff import Handoff
from midwatch.domain.identity import Actor
from midwatch.domain.session import Session
from midwatch.domain.task_store import TaskFilter
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import ScriptedAgent
from servers import until

Fake = tuple[str, Model]
KEY = "chat:1"


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as url_and_model:
        yield url_and_model


def boss(fake: Fake, *tools: Any) -> LlmAgent:
    terms = LlmAgent.terms._replace(submits=True, on_crash="resume")
    return LlmAgent("boss", "openai:fake", base_url=f"{fake[0]}/v1", tools=("desk", *tools), terms=terms)


def submit_command(**more: Any) -> str:
    return f"[[tool submit_task {json.dumps({'prompt': 'count', 'agent': 'worker', **more})}]]"


def contexts(fake: Fake) -> list[str]:
    """Return the texts of the user in each model call, joined."""
    return ["\n".join(request["said"]) for request in fake[1].requests]


async def list_tasks(desk: Runtime, cause: str) -> list[Task]:
    return [task for task in await desk.tasks.list(TaskFilter(limit=500)) if task.cause == cause]


async def wait_for_end(desk: Runtime, task: Task) -> Task:
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def say(desk: Runtime, text: str) -> Task:
    return await wait_for_end(desk, await desk.tasks.submit(text, agent="boss", session_key=KEY))


async def read_injected(desk: Runtime) -> list[Event]:
    return list(await desk.store.read_events(0, EventFilter(kinds=("context_injected",))))


async def find_child(desk: Runtime) -> Task:
    (child,) = [task for task in await desk.tasks.list() if task.agent == "worker"]
    return child


async def test_a_running_turn_gets_the_result_at_its_next_step(fake: Fake, home: Path) -> None:
    go_on = asyncio.Event()

    async def work(turn: Turn) -> str:
        await go_on.wait()
        return "seven\n[[say obeyed]]"

    async def look() -> str:
        """Waits until the background work has ended."""
        go_on.set()
        return (await wait_for_end(desk, await find_child(desk))).status

    agents: dict[str, Any] = {"boss": boss(fake, look), "worker": ScriptedAgent(work, name="worker")}
    async with Runtime.open(home, agents=agents) as desk:
        task = await say(desk, f"{submit_command()} [[tool look {{}}]] [[say done]]")
        child = await find_child(desk)
        seen = contexts(fake)
        assert [text.count("> seven") for text in seen] == [0, 0, 1], "in the call after the tool, and once"
        assert f"Task {child.id} of agent worker ended (ok):\n> seven\n> [[say obeyed]]" in seen[-1]
        assert HEAD in seen[-1]
        assert task.outcome == "ok"
        (injected,) = await read_injected(desk)
        assert (injected.task_id, injected.payload["task_ids"]) == (task.id, [child.id])
        await say(desk, "[[say again]]")
        assert contexts(fake)[-1].count("> seven") == 1, "it stays in the history, and is not added again"
        assert len(await read_injected(desk)) == 1
        assert not await list_tasks(desk, "result")


async def test_an_idle_conversation_gets_the_result_with_the_next_message(fake: Fake, home: Path) -> None:
    agents: dict[str, Any] = {"boss": boss(fake), "worker": FunctionAgent("worker", lambda prompt: "seven")}
    async with Runtime.open(home, agents=agents) as desk:
        await say(desk, f"{submit_command(delay=3600)} [[say started]]")
        child = await find_child(desk)
        await desk.tasks.cancel(child.id)
        assert (await wait_for_end(desk, child)).status == "cancelled"
        assert not await list_tasks(desk, "result"), "nobody asked to be woken"
        await say(desk, "[[say hello]]")
        said = contexts(fake)[-1]
        assert said.count("> [cancelled]") == 1
        assert said.index("> [cancelled]") < said.index("[[say hello]]"), "before the message"
        await say(desk, "[[say bye]]")
        assert contexts(fake)[-1].count("> [cancelled]") == 1


async def test_a_result_wakes_the_agent_that_asked_for_it(fake: Fake, home: Path) -> None:
    go_on = asyncio.Event()

    async def work(turn: Turn) -> str:
        await go_on.wait()
        return "seven"

    agents: dict[str, Any] = {"boss": boss(fake), "worker": ScriptedAgent(work, name="worker")}
    async with Runtime.open(home, agents=agents) as desk:
        for key in (KEY, None):
            go_on.clear()
            fake[1].requests.clear()
            prompt = f"{submit_command(wake=True)} [[say started]]"
            first = await wait_for_end(desk, await desk.tasks.submit(prompt, agent="boss", session_key=key))
            go_on.set()
            (wake,) = await until(partial(list_wakes_of, desk, first))
            ended = await wait_for_end(desk, wake)
            assert (ended.outcome, ended.session_key, ended.root_id) == ("ok", first.session_key, first.id)
            assert contexts(fake)[-1].count("> seven") == 1
            assert prompt in contexts(fake)[-1], "it goes on in the same conversation"
        assert len(await read_injected(desk)) == 2
        roles = [(message.role, message.author) for message in await desk.sessions.messages(KEY)]
        assert ("notice", None) in roles, "no person wrote the prompt of this turn"


async def list_wakes_of(desk: Runtime, task: Task) -> list[Task]:
    return [wake for wake in await list_tasks(desk, "result") if wake.session_key == task.session_key]


async def test_the_end_of_a_task_wakes_its_starter_and_its_own_agent(home: Path) -> None:
    """Once both turns had the same key: the end of the task was never written, and its process tried without pause."""

    async def lead(turn: Turn) -> str:
        if turn.prompt == "begin":
            await turn.delegate("worker", "begin", wait=False, wake=True)
        return turn.prompt

    async def work(turn: Turn) -> str:
        if turn.prompt == "begin":
            await turn.delegate("counter", "count", wait=False, wake=True)
            await until(lambda: desk.store.list_context_items(turn.session_key))  # it ends without taking this
        return turn.prompt

    agents: dict[str, Any] = {
        "boss": ScriptedAgent(lead), "worker": ScriptedAgent(work), "counter": FunctionAgent("counter", lambda _: "7"),
    }  # fmt: skip
    async with Runtime.open(home, agents=agents) as desk:
        first = await say(desk, "begin")
        worker = await wait_for_end(desk, await find_child(desk))
        (woken,) = await until(partial(list_wakes_of, desk, worker))
        assert "> 7" in ((await wait_for_end(desk, woken)).result or "")

        async def has_both() -> bool:
            results = "".join(wake.result or "" for wake in await list_wakes_of(desk, first))
            return (results.count("> begin"), results.count("> 7")) == (1, 1)

        await until(has_both)


@pytest.mark.parametrize("retried", [True, False])
async def test_a_cancelled_turn_returns_its_results_and_its_retry_has_them(
    fake: Fake, home: Path, retried: bool
) -> None:
    agents: dict[str, Any] = {"boss": boss(fake), "worker": FunctionAgent("worker", lambda prompt: "seven")}
    async with Runtime.open(home, agents=agents) as desk:
        await say(desk, f"{submit_command(delay=3600)} [[say started]]")
        await desk.tasks.cancel((await find_child(desk)).id)
        held = await desk.tasks.submit("[[hold a]] [[say held]]", agent="boss", session_key=KEY)
        await fake[1].until(lambda seen: "a" in seen.held)
        assert contexts(fake)[-1].count("> [cancelled]") == 1
        await desk.tasks.cancel(held.id)
        assert (await wait_for_end(desk, held)).status == "cancelled"
        fake[1].release("a")
        if retried:
            assert (await wait_for_end(desk, await desk.tasks.retry(held.id))).outcome == "ok"
            assert contexts(fake)[-1].count("> [cancelled]") == 1
        await say(desk, "[[say bye]]")
        assert contexts(fake)[-1].count("> [cancelled]") == 1
        assert await desk.store.list_context_items(KEY) == []


async def test_agents_of_other_kinds_get_results_before_the_prompt(home: Path) -> None:
    prompts: list[str] = []

    async def lead(prompt: str, turn: Turn) -> str:
        prompts.append(prompt)
        if prompt == "begin":
            await turn.delegate("worker", "count", wait=False)
        return "ok"

    agents: dict[str, Any] = {
        "boss": FunctionAgent("boss", lead, on_loop=True), "worker": FunctionAgent("worker", lambda prompt: "seven"),
    }  # fmt: skip
    async with Runtime.open(home, agents=agents) as desk:
        await say(desk, "begin")
        await wait_for_end(desk, await find_child(desk))
        await say(desk, "next")
        await say(desk, "last")
    assert prompts[0] == "begin"
    assert prompts[1].startswith(HEAD)
    assert "> seven\n\nThe message to answer:\nnext" in prompts[1]
    assert prompts[2] == "last"


async def test_a_turn_whose_agent_cannot_be_opened_takes_no_result(home: Path) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        if prompt == "begin":
            await turn.delegate("worker", "count", wait=False)
        return prompt

    class Boss(FunctionAgent):
        async def open(self, session: Session) -> Conversation:
            if broken:
                raise AgentError("not signed in.")
            return await super().open(session)

    broken: list[str] = []
    agents: dict[str, Any] = {
        "boss": Boss("boss", lead, on_loop=True), "worker": FunctionAgent("worker", lambda prompt: "seven"),
    }  # fmt: skip
    async with Runtime.open(home, agents=agents) as desk:
        await say(desk, "begin")
        await wait_for_end(desk, await find_child(desk))
        broken.append("yes")
        assert (await say(desk, "next")).error == "not signed in."
        broken.clear()
        assert "> seven" in ((await say(desk, "last")).result or "")


async def test_a_handoff_that_an_agent_requests_returns_to_it(home: Path) -> None:
    async def lead(prompt: str, turn: Any) -> str:
        if prompt == "begin":
            agent = Actor("ann", "attempt", task=turn.task)
            await desk.handoff_requests.create(options, actor=agent)
            with pytest.raises(InvalidInput, match="wake"):
                await desk.handoff_requests.create(options, actor=agent, wait=1.0)
        return prompt

    options = HandoffOptions(task=HandoffTask(description="count"), to="worker", returns="wake")
    terms = FunctionAgent.terms._replace(submits=True)
    agents: dict[str, Any] = {
        "boss": FunctionAgent("boss", lead, on_loop=True, terms=terms),
        "worker": FunctionAgent("worker", lambda prompt: "seven"),
    }  # fmt: skip
    async with Runtime.open(home, agents=agents) as desk:
        first = await say(desk, "begin")
        (wake,) = await until(partial(list_wakes_of, desk, first))
        assert "> seven" in ((await wait_for_end(desk, wake)).result or "")


async def test_a_handoff_that_was_refused_returns_its_result_after_a_retry(home: Path) -> None:
    class Shy(FunctionAgent):
        def can_handle(self, work: HandoffTask) -> bool:
            return True

        async def accept(self, handoff: Handoff) -> None:
            if refuses:
                raise ValueError("busy")

    async def lead(prompt: str, turn: Turn) -> str:
        if prompt == "begin":
            with pytest.raises(HandoffRefused):
                await turn.delegate("worker", "count", wait=False)
        return prompt

    refuses = ["yes"]
    agents: dict[str, Any] = {
        "boss": FunctionAgent("boss", lead, on_loop=True), "worker": Shy("worker", lambda prompt: "seven"),
    }  # fmt: skip
    async with Runtime.open(home, agents=agents) as desk:
        await say(desk, "begin")
        (refused,) = await desk.handoffs.list()
        refuses.clear()
        await desk.handoffs.retry(refused.id, actor="ann")
        await wait_for_end(desk, await find_child(desk))
        assert "> seven" in ((await say(desk, "next")).result or "")


async def test_a_person_cannot_be_woken(home: Path) -> None:
    agents: dict[str, Any] = {"worker": FunctionAgent("worker", lambda prompt: "seven")}
    async with Runtime.open(home, agents=agents) as desk:
        with pytest.raises(InvalidInput, match="only the agent of a running task"):
            await desk.tasks.submit("count", agent="worker", wake=True)
        options = HandoffOptions(task=HandoffTask(description="count"), to="worker", returns="wake")
        with pytest.raises(InvalidInput, match="only an agent"):
            await desk.handoff_requests.create(options, actor="ann")


async def test_what_is_awaited_does_not_return_again(home: Path) -> None:
    async def lead(prompt: str, turn: Turn) -> str:
        return str((await turn.delegate("worker", "count")).output)

    agents: dict[str, Any] = {
        "boss": FunctionAgent("boss", lead, on_loop=True), "worker": FunctionAgent("worker", lambda prompt: "seven"),
    }  # fmt: skip
    async with Runtime.open(home, agents=agents) as desk:
        assert (await say(desk, "begin")).result == "seven"
        assert await desk.store.list_context_items(KEY) == []


# -- crashes -----------------------------------------------------------------------------------------------------


async def run_scenario(home: Path, name: str) -> None:
    """Run a starter, its background work and what follows, from the present state to the end."""

    async def lead(prompt: str, turn: Turn) -> str:
        if prompt == "begin":
            await turn.delegate("worker", "count", wait=False, wake=name == "wake", once="count")
        return prompt

    agents: dict[str, Any] = {
        "boss": FunctionAgent("boss", lead, on_loop=True),
        "worker": FunctionAgent("worker", lambda prompt: "seven", terms=FunctionAgent.terms),
    }  # fmt: skip
    settings = Settings.load(home, shutdown_grace=0, detect_agents=False)
    async with Runtime.open(settings=settings, agents=agents) as desk, asyncio.timeout(60):
        for number, text in enumerate(("begin", "next")):
            task = await desk.tasks.submit(text, agent="boss", session_key=KEY, idempotency_key=f"{number}")
            await desk.tasks.wait(task.id)
            await desk.tasks.wait((await find_child(desk)).id)
        while await desk.tasks.active_count():
            await asyncio.sleep(0.001)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "when"), list_crash_cases(["wake", "context"]))
async def test_a_crash_at_any_write_gives_each_result_once(tmp_path: Path, name: str, when: str) -> None:
    for crash_at in await run_crashes(__file__, str(tmp_path), name, when):
        await check_outcome(tmp_path / str(crash_at), name)


async def check_outcome(home: Path, name: str) -> None:
    """Check that one turn after the first one got the result."""
    store = await SqliteStore.open(home / "midwatch.db")
    try:
        tasks = await store.list_tasks(TaskFilter(agent="boss"))
        injected = [e for e in await store.read_events(0) if e.kind == "context_injected"]
        left = await store.list_context_items(KEY)
    finally:
        await store.close()
    assert all(task.status == "done" for task in tasks)
    got = [task for task in tasks if "> seven" in (task.result or "")]
    assert len(got) == len(injected) == 1, [(task.cause, task.result) for task in tasks]
    assert left == []
    assert len([task for task in tasks if task.cause == "result"]) <= (name == "wake")


if __name__ == "__main__":
    crash_at_every_write(run_scenario, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
