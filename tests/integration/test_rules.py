"""Test rules in a runtime: they hold for every tool, on each level, and for all work that grows out of work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import Model, serve
from midwatch import Runtime, Settings, Task
from midwatch.agents.llm.builtin import file_tools
from midwatch.agents.llm.desk_tools import desk_tools
from midwatch.agents.llm.fetch import fetch_tool
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.tools import tool
from midwatch.base.errors import Conflict, Forbidden, InvalidInput
from midwatch.domain.agent import AgentTerms
from midwatch.domain.context_item import make_item
from midwatch.domain.event import EventFilter
from midwatch.domain.identity import Actor
from midwatch.domain.rule import inherit
from midwatch.domain.steering import Steer, requeue_steers
from midwatch.domain.waking import wake_starter
from midwatch.testing import ScriptedAgent
from servers import until

Fake = tuple[str, Model]
MCP = Path(__file__).parents[1] / "fakes" / "mcp_server.py"
READ = '[[tool read_file {"path": "a.txt"}]]'


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as url_and_model:
        yield url_and_model


@tool
def count(path: str) -> str:
    """Count the lines of a file."""
    return f"counted {path}"


def llm(fake: Fake, name: str = "it", **more: Any) -> LlmAgent:
    options = {"tools": [count, "files", "command"], **more}
    return LlmAgent(name, "openai:fake", base_url=f"{fake[0]}/v1", **options)


@asynccontextmanager
async def desk_of(
    home: Path, agents: dict[str, Any], desk: dict[str, Any] | None = None, agent: dict[str, Any] | None = None
) -> AsyncIterator[Runtime]:
    """Yield a desk with rules of the desk and of the agent `it`."""
    written = {"it": {"kind": "command", "argv": ["true"], "approvals": agent}} if agent else {}
    settings = Settings.load(home, detect_agents=False, approvals=desk or {}, agents=written)
    async with Runtime.open(settings=settings, agents=agents) as runtime:
        yield runtime


async def run_task(desk: Runtime, prompt: str, workdir: Path, answer: bool | None = None, **options: Any) -> Task:
    """Run a task to its end. If `answer` is set, answer each of its questions with it."""
    task = await desk.tasks.submit(prompt, agent="it", workdir=str(workdir), **options)
    waiting = asyncio.create_task(desk.tasks.wait(task.id))

    async def look() -> bool:
        for question in await desk.approvals.list() if answer is not None else ():
            await desk.approvals.answer(question.id, grant=answer, why="because")
        return waiting.done()

    await until(look)
    return await waiting


async def list_skipped(desk: Runtime, task: Task) -> list[dict[str, Any]]:
    events = await desk.store.read_events(0, EventFilter(kinds=("tool_exec_skipped",)))
    return [dict(event.payload) for event in events if event.task_id == task.id]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a working directory with a file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha\n")
    (folder / "b.txt").symlink_to("a.txt")
    return folder


# -- tools of a model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "call", "words"),
    [
        ({"kind": "read"}, READ, "deny read"),
        ({"tool": "read_*"}, READ, "deny the tool read_*"),
        ({"path": "a.txt"}, '[[tool read_file {"path": "x/../b.txt"}]]', "deny any use of a.txt"),
        ({"path": "k/**"}, '[[tool list_files {"pattern": "**/k/*"}]]', "deny any use of k/**"),
        ({"path": "k/**"}, '[[tool list_files {"pattern": "x/**/../k/?"}]]', "deny any use of k/**"),
        (
            {"tool": "count", "path": "a.txt"},
            '[[tool count {"path": "a.txt"}]]',
            "deny any use of a.txt with the tool count",
        ),
        ({"command": "touch"}, '[[tool run_command {"command": "sh -c \'touch new\'"}]]', "deny `touch`"),
        ({"tool": "fs/add"}, '[[tool add {"a": 1, "b": 2}]]', "deny the tool fs/add"),
        ({"tool": "add", "agent": "i*"}, '[[tool add {"a": 1, "b": 2}]]', "deny the tool add by i*"),
        ({"tool": "transfer_*"}, "[[tool transfer_to_other {}]]", "deny the tool transfer_*"),
    ],
)
async def test_a_denied_tool_is_skipped_and_the_model_is_told(
    fake: Fake, home: Path, work: Path, rule: dict[str, str], call: str, words: str
) -> None:
    server = {"command": [sys.executable, str(MCP)], "ask": "never"}
    agents = {"it": llm(fake, mcp={"fs": server}, handoffs=["other"]), "other": ScriptedAgent(name="other")}
    async with desk_of(home, agents, {"deny": [rule]}) as desk:
        task = await run_task(desk, f"{call}[[say done]]", work)
        (skipped,) = await list_skipped(desk, task)
        assert skipped["rule"] == words
        assert task.outcome == "ok" and not (work / "new").exists()
        assert task.result == f"The tool said: {skipped['reason']} done" and f"({words})" in skipped["reason"]
        assert await desk.approvals.list(None) == []


async def test_a_rule_asks_about_a_tool_that_does_not_ask(fake: Fake, home: Path, work: Path) -> None:
    async with desk_of(home, {"it": llm(fake)}, {"ask": [{"kind": "read"}]}) as desk:
        granted = await run_task(desk, READ, work, answer=True)
        assert "alpha" in (granted.result or "") and await list_skipped(desk, granted) == []
        denied = await run_task(desk, READ, work, answer=False)
        (skipped,) = await list_skipped(desk, denied)
        assert skipped["rule"] == "ask read" and "because" in skipped["reason"]
        first, second = await desk.approvals.list(None)
        assert (first.tool, first.kind, first.paths, first.answered_by) == ("read_file", "read", ("a.txt",), None)
        assert first.question == 'Use read_file with {"path": "a.txt"}'
        assert {first.status, second.status} == {"granted", "denied"}
        kinds = [choice.kind for choice in first.choices]  # a rule of the agent has no effect here
        assert kinds == ["allow_once", "reject_once", "reject_always"]


async def test_a_tool_that_asks_is_asked_once_and_a_rule_may_answer(fake: Fake, home: Path, work: Path) -> None:
    touch = '[[tool run_command {"command": "touch new"}]]'
    async with desk_of(home, {"it": llm(fake)}, {"ask": [{"command": "touch"}]}) as desk:
        await run_task(desk, touch, work, answer=True)
        assert len(await desk.approvals.list(None)) == 1 and (work / "new").exists()
    (work / "new").unlink()
    async with desk_of(home, {"it": llm(fake)}, agent={"allow": [{"command": "touch *"}]}) as desk:
        await run_task(desk, touch, work)
        assert (work / "new").exists()
        assert (await desk.approvals.list(None))[0].answered_by == "rule:agent"


async def test_a_tool_that_asks_asks_again_after_a_restart_because_it_was_not_run(
    fake: Fake, home: Path, work: Path
) -> None:
    prompt = '[[tool run_command {"command": "touch ran"}]] [[say done]]'
    async with desk_of(home, {"it": llm(fake)}) as desk:
        task = await desk.tasks.submit(prompt, agent="it", workdir=str(work))
        (first,) = await until(desk.approvals.list)
    async with desk_of(home, {"it": llm(fake)}) as desk:
        (second,) = await until(desk.approvals.list)
        assert (second.command, second.id != first.id, (work / "ran").exists()) == ("touch ran", True, False)
        await desk.approvals.answer(second.id, grant=True)
        assert (await desk.tasks.wait(task.id)).outcome == "ok"
        assert (work / "ran").exists()


async def test_a_default_holds_for_all_tools(fake: Fake, home: Path, work: Path) -> None:
    async with desk_of(home, {"it": llm(fake)}, agent={"default": "deny", "allow": [{"tool": "read_file"}]}) as desk:
        assert "alpha" in ((await run_task(desk, READ, work)).result or "")
        task = await run_task(desk, '[[tool count {"path": "a.txt"}]]', work)
        assert [skipped["rule"] for skipped in await list_skipped(desk, task)] == ["default: deny"]


# -- levels --------------------------------------------------------------------------------------------------------


async def test_a_task_and_a_session_add_stricter_rules(fake: Fake, home: Path, work: Path) -> None:
    async with desk_of(home, {"it": llm(fake)}, agent={"deny": [{"tool": "count"}]}) as desk:
        deny = {"deny": [{"kind": "read"}]}
        task = await run_task(desk, READ, work, approvals=deny)
        assert [skipped["rule"] for skipped in await list_skipped(desk, task)] == ["deny read"]
        loose = {"default": "allow", "allow": [{"tool": "count"}]}
        task = await run_task(desk, '[[tool count {"path": "x"}]]', work, approvals=loose)
        assert len(await list_skipped(desk, task)) == 1
        view, _ = await desk.sessions.create(agent="it", workdir=str(work), key="chat:1", approvals=deny)
        for sent in (
            await desk.sessions.send("chat:1", READ),
            await desk.tasks.submit(READ, session_key="chat:1|message:7", agent="it"),
        ):
            task = await asyncio.wait_for(desk.tasks.wait(sent.id), 60)
            assert len(await list_skipped(desk, task)) == 1
        assert view.session.approvals == deny
        with pytest.raises(Conflict, match="other rules"):
            await desk.sessions.create(agent="it", workdir=str(work), key="chat:1", approvals=loose)
        trial = await desk.rules.test(agent="it", tool="read_file", path="a.txt", session="chat:1")
        assert (trial.effect, trial.source, trial.rule) == ("deny", "session", "deny read")
        assert [level.name for level in trial.levels] == ["chat:1"]
        with pytest.raises(InvalidInput, match="`above` cannot be set"):
            await desk.tasks.submit("x", agent="it", approvals={"above": []})


async def test_the_steps_of_a_goal_keep_its_rules(fake: Fake, home: Path, work: Path) -> None:
    async with desk_of(home, {"it": llm(fake)}) as desk:
        rules = {"deny": [{"kind": "read"}]}
        with pytest.raises(InvalidInput, match="`deny` must be a list"):
            await desk.goals.create("x", agent="it", approvals={"deny": "read"})
        goal = await desk.goals.create(
            f"{READ}[[say done]]", agent="it", workdir=str(work), max_steps=2, approvals=rules
        )

        async def list_ended() -> list[Task]:
            return [task for task in await desk.goals.steps(goal.id) if task.status == "done"]

        (first,) = (await until(list_ended))[-1:]
        assert first.approvals == rules and [skip["rule"] for skip in await list_skipped(desk, first)] == ["deny read"]
        trial = await desk.rules.test(agent="it", tool="read_file", path="a.txt", task=first.id)
        assert (trial.source, trial.by) == ("goal", "rule:goal")
        assert (await desk.goals.edit(goal.id, {"approvals": None})).approvals is None


async def test_an_answer_always_allows_a_tool_by_its_exact_name(fake: Fake, home: Path, work: Path) -> None:
    server = {"command": [sys.executable, str(MCP)], "ask": "always"}
    add = '[[tool add {"a": 1, "b": 2}]]'
    async with desk_of(home, {"it": llm(fake, mcp={"fs": server})}) as desk:
        task = await desk.tasks.submit(add, agent="it", workdir=str(work))
        (question,) = await until(desk.approvals.list)
        always = next(choice.name for choice in question.choices if choice.kind == "allow_always")
        assert always == f"always allow the tool fs/add for it in {work}"
        await desk.approvals.answer(question.id, grant=True, always=True)
        await desk.tasks.wait(task.id)
        assert "3" in ((await run_task(desk, add, work)).result or "")  # nobody is asked
        (rule,) = await desk.rules.list()
        assert (rule.tool, rule.command, rule.path, rule.root) == ("fs/add", None, None, str(work))
        for tool, root, effect in (
            ("fs/add", work, "allow"),
            ("fs/addx", work, None),
            ("add", work, None),
            ("other/add", work, None),
            ("fs/add", work.parent, None),
        ):
            assert (await desk.rules.test(agent="it", tool=tool, workdir=str(root))).effect == effect
        assert (await desk.rules.test(agent="it", tool="fs/add", workdir=str(work), command="ls")).effect is None
        await desk.rules.revoke(rule.id)
        assert (await desk.rules.test(agent="it", tool="fs/add", workdir=str(work))).effect is None


async def test_a_rule_of_an_answer_cannot_loosen_the_desk(fake: Fake, home: Path, work: Path) -> None:
    touch = '[[tool run_command {"command": "touch new"}]]'
    async with desk_of(home, {"it": llm(fake)}) as desk:
        task = await desk.tasks.submit(touch, agent="it", workdir=str(work))
        (question,) = await until(desk.approvals.list)
        await desk.approvals.answer(question.id, grant=True, always=True)
        await desk.tasks.wait(task.id)
        await run_task(desk, touch, work)  # nobody is asked
    async with desk_of(home, {"it": llm(fake)}, {"ask": [{"command": "touch"}]}) as desk:
        await run_task(desk, touch, work, answer=False)
        assert (await desk.approvals.list("denied"))[0].rule == "ask `touch`"


# -- work that grows out of work -----------------------------------------------------------------------------------

STRICT = {"deny": [{"kind": "read"}]}


def list_agents(fake: Fake) -> dict[str, Any]:
    return {
        "it": llm(fake, delegates=["helper"], handoffs=["helper"]),
        "helper": llm(fake, "helper", delegates=["last"]),
        "last": llm(fake, "last"),
    }


@pytest.mark.parametrize(
    "prompt",
    [
        '[[tool delegate_to_helper {"task": "help"}]]',
        "[[tool transfer_to_helper {}]]",
    ],
)
async def test_delegated_and_transferred_work_keeps_the_rules(fake: Fake, home: Path, work: Path, prompt: str) -> None:
    async with desk_of(home, list_agents(fake)) as desk:
        task = await run_task(desk, prompt, work, approvals=STRICT)
        family = await desk.store.list_related_tasks(task.root_id or task.id)
        child = next(task for task in family if task.agent == "helper")
        (above,) = (child.approvals or {})["above"]
        assert above["deny"] == STRICT["deny"] and above["of"] == f"task {child.parent_id}"
        trial = await desk.rules.test(agent="helper", tool="read_file", path="a.txt", task=child.id)
        assert (trial.effect, trial.source) == ("deny", "task")


async def test_submitted_scheduled_and_retried_work_keeps_the_rules(home: Path, work: Path) -> None:
    terms = AgentTerms(timeout_seconds=60.0, submits=True)

    async def fail(turn: Any) -> str:
        raise RuntimeError("it broke")

    async with desk_of(home, {"it": ScriptedAgent(fail, terms=terms)}) as desk:
        await desk.sessions.create(agent="it", key="chat:1", approvals={"deny": [{"tool": "x"}]})
        first = await desk.tasks.submit("x", agent="it", session_key="chat:1", approvals=STRICT)
        parent = await desk.tasks.wait(first.id)
        agent = Actor("it", "attempt", task=parent)
        rules = inherit([("session chat:1", {"deny": [{"tool": "x"}]}), (f"task {parent.id}", STRICT)])
        child = await desk.tasks.submit("y", agent="it", actor=agent)
        automation = await desk.automations.create("z", agent="it", every=3600, actor=agent)
        assert child.approvals == automation.approvals == rules
        run = await desk.automations.run(automation.id)
        assert run.approvals == rules
        assert (await desk.tasks.retry(parent.id)).approvals == STRICT
        item = make_item(parent.id, child.id, "it", "ok", "x", 1, wake=True)
        steer = Steer(
            id="t_1", task_id=parent.id, number=1, session_key="chat:1", mode="interrupt", text="x", created_at=1
        )
        steps = (wake_starter(parent, "it", item, "k", 1), requeue_steers(parent, [steer], 1, closed=False))
        assert [step.records[0].approvals for step in steps] == [STRICT, STRICT]
        with pytest.raises(Forbidden, match="cannot set `approvals`"):
            await desk.tasks.submit("y", agent="it", actor=agent, approvals={"default": "allow"})


async def test_agents_may_not_read_or_test_rules(home: Path) -> None:
    async with desk_of(home, {}, {"deny": [{"tool": "x"}]}) as desk:
        task = await desk.tasks.submit("x", agent="demo")
        agent = Actor("demo", "attempt", task=task)
        calls: tuple[Callable[[], Any], ...] = (lambda: desk.rules.list_written(actor=agent),)
        for call in calls:
            with pytest.raises(Forbidden):
                call()
        with pytest.raises(Forbidden):
            await desk.rules.test(agent="demo", tool="x", actor=agent)
        (written,) = desk.rules.list_written()
        assert (written.source, written.effect, written.tool, written.text) == (
            "desk",
            "deny",
            "x",
            "deny the tool x",
        )


async def test_a_test_of_rules_reads_a_host_in_every_form(home: Path) -> None:
    rules = {"deny": [{"host": "evil.org"}, {"host": "::1"}], "default": "allow"}
    async with desk_of(home, {}, rules) as desk:
        for host, effect in (
            ("evil.org", "deny"), ("evil.org/x", "deny"), ("evil.org:80/x", "deny"), ("git@evil.org:x", "deny"),
            ("https://evil.org/x", "deny"), ("::1", "deny"), ("http://[::1]:80/", "deny"), ("ok.org/evil.org", "allow"),
            ("http:\\\\evil.org/", "ask"),
        ):  # fmt: skip
            assert (await desk.rules.test(agent="it", tool="x", host=host)).effect == effect, host
        with pytest.raises(InvalidInput, match="'/' has no host"):
            await desk.rules.test(agent="it", host="/")


async def test_a_test_of_rules_knows_the_kinds_of_own_tools_and_says_when_it_guesses(home: Path) -> None:
    rules = {"allow": [{"kind": kind} for kind in ("think", "read", "search")], "deny": [{"kind": "delete"}]}
    own = {tool.name: tool.kind for tool in (*desk_tools(), *file_tools(None), fetch_tool(lambda host: True))}
    own |= {"run_command": "execute", "transfer_to_reviewer": "switch_mode", "delegate_to_writer": "other"}
    async with desk_of(home, {}, {**rules, "default": "deny"}) as desk:
        trials = {name: await desk.rules.test(agent="demo", tool=name, path="x") for name in own}
        assert {name: trial.kind for name, trial in trials.items()} == own
        assert trials["submit_task"].text == "denied by a rule of the desk: default: deny"
        guessed = await desk.rules.test(agent="demo", tool="plan_trip")
        assert guessed.text == "allowed by a rule of the desk: allow think (if its kind is think, as its name suggests)"
        told = await desk.rules.test(agent="demo", tool="plan_trip", kind="think")
        assert told.text == "allowed by a rule of the desk: allow think"
