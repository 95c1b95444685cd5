"""Test commands that midwatch runs for a task: before a run of an automation, and after each step of a goal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings, Turn, TurnResult
from midwatch.base.errors import AgentError, Forbidden, TransientError
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.goal import Goal
from midwatch.domain.identity import Actor
from midwatch.domain.task import Task
from midwatch.testing import RecordingChannel, ScriptedAgent, result
from repositories import a_repository
from servers import Server, until

RERUN = AgentTerms(timeout_seconds=60.0, on_crash="rerun", submits=True)


@asynccontextmanager
async def open_desk(
    home: Path, *steps: Any, terms: AgentTerms = RERUN, others: Any = None
) -> AsyncIterator[tuple[Runtime, ScriptedAgent]]:
    agent = ScriptedAgent(*steps, name="it", terms=terms)
    settings = Settings.load(home, shutdown_grace=0, detect_agents=False)
    channels = {"there": RecordingChannel("there")}
    async with Runtime.open(settings=settings, agents={"it": agent, **(others or {})}, channels=channels) as desk:
        yield desk, agent


async def automate(desk: Runtime, work: Path, **wish: Any) -> Automation:
    wish = {"agent": "it", "every": 3600, "workdir": str(work), "route": "there", **wish}
    return await desk.automations.create("look", **wish)


async def run(desk: Runtime, automation: Automation) -> Task:
    """Run an automation and return the ended task."""
    task = await desk.automations.run(automation.id)
    return await desk.tasks.wait(task.id)


async def probes(desk: Runtime, kind: str = "probe_end") -> list[Event]:
    return await desk.store.read_events(0, EventFilter(kinds=(kind,)))


async def notices(desk: Runtime) -> list[str]:
    return [delivery.notice for delivery in (await desk.store.list_deliveries())[::-1]]


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def read_pid(file: Path) -> int:
    """Return the number that a command has written to a file."""
    return int(await until(lambda: file.exists() and file.read_text().strip()))


# -- when ----------------------------------------------------------------------------------------------------------


async def test_a_command_starts_skips_or_fails_a_run(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "decide"
    async with open_desk(home, result("done")) as (desk, agent):
        automation = await automate(desk, tmp_path, when="sh ./decide", when_timeout=20, max_runs=9, notices="all")
        script.write_text("echo nothing new; exit 1")
        skipped = await run(desk, automation)
        assert (skipped.status, skipped.outcome) == ("done", "skipped")
        assert skipped.result == "Skipped: `sh ./decide` ended with exit status 1:\nnothing new"
        assert not agent.opened
        assert await notices(desk) == []
        assert await desk.store.read_messages(automation.session_key) == []
        automation = await desk.automations.get(automation.id)
        assert (automation.run_count, automation.consecutive_failures) == (0, 0)
        assert (automation.last_result or "").startswith("skipped: ")
        script.write_text("echo 'new ````'; echo to stderr >&2")
        assert (await run(desk, automation)).outcome == "ok"
        assert "instructions to you):\n`````\nnew ````\nto stderr\n`````" in agent.turns[0].prompt
        assert await notices(desk) == ["started", "done"]
        script.write_text("yes | head -c 3000000; echo the end; exit 2")
        failed = await run(desk, automation)
        assert failed.outcome == "error"
        assert (failed.error or "").startswith("the command `when` failed: `sh ./decide` ended with exit status 2:")
        assert (failed.error or "").endswith("y\nthe end")
        assert len(failed.error or "") < 3000
        script.write_text("exit 1")
        await run(desk, automation)  # resets no count of failures
        automation = await desk.automations.get(automation.id)
        assert (automation.run_count, automation.consecutive_failures) == (2, 1)
        assert len(agent.opened) == 1
        assert await notices(desk) == ["started", "done", "failed"]
        assert [event.payload["exit_status"] for event in await probes(desk)] == [1, 0, 2, 1]


async def test_a_command_that_takes_too_long_or_cannot_start_is_a_failure(home: Path, tmp_path: Path) -> None:
    pid, missing = tmp_path / "pid", tmp_path / "missing"
    missing.mkdir()
    async with open_desk(home, result("done")) as (desk, agent):
        slow = await automate(desk, tmp_path, when="echo $$ > pid; sleep 60 & sleep 60", when_timeout=0.3)
        task = await run(desk, slow)
        assert "it ran longer than 0.3 s and was ended" in (task.error or "")
        assert is_dead(await read_pid(pid))
        killed = await automate(desk, tmp_path, when="kill -9 $$")
        assert "was ended by SIGKILL" in ((await run(desk, killed)).error or "")
        gone = await automate(desk, missing, when="true")
        missing.rmdir()
        assert (await run(desk, gone)).outcome == "error"
        assert not agent.opened


async def test_the_command_decides_once_although_the_run_is_tried_again(home: Path, tmp_path: Path) -> None:
    async def fail_first(turn: Turn) -> str:
        if len(agent.turns) == 1:
            raise TransientError("later")
        return "done"

    async with open_desk(home, fail_first) as (desk, agent):
        automation = await automate(desk, tmp_path, when="test ! -e seen && touch seen && echo first")
        task = await desk.automations.run(automation.id)
        await until(lambda: is_waiting(desk, task.id))
        await desk.tasks.cancel(task.id)
        again = await desk.tasks.retry(task.id)
        assert (await desk.tasks.wait(again.id)).outcome == "ok"
        assert ["\nfirst\n" in turn.prompt for turn in agent.turns] == [True, True]
        assert len(await probes(desk)) == 1


async def is_waiting(desk: Runtime, task_id: str) -> bool:
    return (await desk.tasks.get(task_id)).wait == "backoff"


async def test_a_cancel_and_a_shutdown_end_the_command(home: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with open_desk(home, result("done")) as (desk, agent):
        automation = await automate(desk, tmp_path, when="trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")
        task = await desk.automations.run(automation.id)
        first = await read_pid(pid)
        await desk.tasks.cancel(task.id)
        assert (await desk.tasks.wait(task.id)).outcome == "cancelled"
        assert is_dead(first)
        pid.unlink()
        task = await desk.automations.run(automation.id)
        second = await read_pid(pid)
    assert is_dead(second)
    async with open_desk(home, result("done")) as (desk, agent):
        assert (await desk.tasks.get(task.id)).open
        await desk.tasks.cancel(task.id)
        await desk.tasks.wait(task.id)
        assert not agent.opened
        ends = await probes(desk)
        assert len(ends) == len(await probes(desk, "probe_start"))


# -- check -----------------------------------------------------------------------------------------------------------


async def set_goal(desk: Runtime, work: Path, **wish: Any) -> Goal:
    return await desk.goals.create("reach it", agent="it", workdir=str(work), **wish)


async def wait_for_status(desk: Runtime, goal: Goal, *statuses: str) -> Goal:
    async def look() -> Goal | None:
        now = await desk.goals.get(goal.id)
        return now if now.status in statuses else None

    return await until(look)  # type: ignore[no-any-return]


async def test_a_check_after_each_step_decides_about_a_goal(home: Path, tmp_path: Path) -> None:
    async def work(turn: Turn) -> str:
        number = len(agent.turns)
        (tmp_path / "n").write_text(str(number))
        if number == 1:  # a claim is decided by the check alone
            await desk.goals.complete(goal.id, evidence="I think so", in_step=turn.task_id)
        return f"step {number}"

    async with open_desk(home, work) as (desk, agent):
        goal = await set_goal(desk, tmp_path, check="echo n=$(cat n) '```'; test $(cat n) = 3")
        goal = await wait_for_status(desk, goal, "complete", "paused")
        assert (goal.status, goal.step) == ("complete", 3)
        assert (goal.evidence or "").endswith("ended with exit status 0:\nn=3 ```")
        first, second, third = (turn.prompt for turn in agent.turns)
        assert "This check alone decides." in first
        assert "````\nn=1 ```\n````" in second
        assert "````\nn=2 ```\n````" in third
        assert "n=1" not in third
        assert [event.payload["passed"] for event in await probes(desk)] == [False, False, True]


async def test_no_check_follows_a_step_that_failed_or_waits(home: Path, tmp_path: Path) -> None:
    async def work(turn: Turn) -> str:
        if len(agent.turns) == 1:
            await desk.goals.delay(goal.id, 3600, "the build", in_step=turn.task_id)
            return "later"
        raise AgentError("broken")

    async with open_desk(home, work) as (desk, agent):
        goal = await set_goal(desk, tmp_path, check="true")
        await until(lambda: step_ended(desk, goal, 1))
        await desk.goals.step(goal.id)
        await until(lambda: step_ended(desk, goal, 2))
        assert await probes(desk) == []
        assert (await desk.goals.get(goal.id)).status == "active"


async def step_ended(desk: Runtime, goal: Goal, count: int) -> bool:
    steps = await desk.goals.steps(goal.id)
    return len(steps) >= count and not any(step.open for step in steps)


async def test_the_check_follows_the_turn_of_the_agent_that_took_the_step_over(home: Path, tmp_path: Path) -> None:
    async def hand_over(turn: Turn) -> TurnResult:
        return TurnResult(outcome="transferred", transfer=await turn.transfer("other", "do it"))

    async def finish(turn: Turn) -> str:
        (tmp_path / "done").touch()
        return "I did it"

    async with open_desk(home, hand_over, others={"other": ScriptedAgent(finish, name="other")}) as (desk, _):
        goal = await set_goal(desk, tmp_path, check="test -e done && echo checked")
        goal = await wait_for_status(desk, goal, "complete", "paused")
        assert (goal.status, goal.step) == ("complete", 1)
        (ended,) = await probes(desk)
        assert (ended.agent_id, ended.payload["output"]) == ("other", "checked")


async def test_a_pause_stops_the_check_and_a_shutdown_keeps_the_turn(home: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with open_desk(home, result("worked")) as (desk, _):
        goal = await set_goal(desk, tmp_path, check="echo $$ > pid; sleep 60")
        first = await read_pid(pid)
        await desk.goals.pause(goal.id, stop=True)
        await until(lambda: step_ended(desk, goal, 1))
        assert is_dead(first)
        pid.unlink()
        await desk.goals.resume(goal.id)
        second = await read_pid(pid)
    assert is_dead(second)
    async with open_desk(home, result("worked")) as (desk, _agent):
        await desk.goals.pause(goal.id, stop=True)
        steps = await desk.goals.steps(goal.id)
        assert [step.outcome for step in steps][-2:] == ["ok", "cancelled"]


AGENT = """
from pathlib import Path
def work(prompt):
    with Path("turns").open("a") as file:
        file.write("turn\\n")
    return "worked"
"""


@pytest.mark.timeout(120)
async def test_a_killed_server_neither_loses_nor_doubles_a_step_whose_check_ran(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "probing.py").write_text(AGENT)
    settings = f'detect_agents = false\n[agents.it]\nkind = "function"\ntarget = "probing:work"\npath = "{home}"\n'
    (home / "midwatch.toml").write_text(settings)
    server = Server(home)
    await server.start()
    try:
        check = "echo $$ > pid.new; mv pid.new pid; test -e go || sleep 600"
        async with server.client() as client:
            body = {"objective": "reach it", "agent": "it", "check": check, "workdir": str(work)}
            goal = (await client.post("/goals", json=body)).json()
        pid = await read_pid(work / "pid")
        await server.kill()
        assert await until(lambda: is_dead(pid))
        (work / "go").touch()
        await server.start()
        async with server.client() as client:

            async def is_complete() -> Any:
                now = (await client.get(f"/goals/{goal['id']}")).json()
                return now if now["status"] == "complete" else None

            ended = await until(is_complete)
            (step,) = (await client.get(f"/goals/{goal['id']}/steps")).json()["runs"]
            path, json = f"/events?task_id={step['task_id']}&kind=probe_*", {"Accept": "application/json"}
            events = (await client.get(path, headers=json)).json()["events"]
        assert (ended["step"], ended["errors"], step["outcome"]) == (1, 0, "ok")
        assert (work / "turns").read_text() == "turn\nturn\n"  # the rescue asked the agent again
        kinds = [(event["kind"], event["attempt"], event["payload"].get("passed")) for event in events]
        assert kinds == [
            ("probe_start", 1, None), ("probe_end", 1, False), ("probe_start", 2, None), ("probe_end", 2, True),
        ]  # fmt: skip
    finally:
        await server.stop()


# -- variables and earlier results ---------------------------------------------------------------------------------


async def test_variables_reach_only_the_runs_and_secrets_are_masked(home: Path, tmp_path: Path) -> None:
    async with open_desk(home, result("done")) as (desk, agent):
        env = {"COLOUR": "red", "API_KEY": "s3cr3t-value"}
        automation = await automate(desk, tmp_path, env=env, when='echo "$COLOUR $API_KEY"')
        await run(desk, automation)
        assert {name: agent.turns[0].env[name] for name in env} == env
        assert "red ***" in agent.turns[0].prompt
        other = await desk.tasks.submit("x", agent="it")
        await desk.tasks.wait(other.id)
        assert not env.keys() & agent.turns[1].env.keys()
        assert (await desk.automations.describe(automation))["env"] == {"COLOUR": "red", "API_KEY": "***"}
        changes = {"env": {"COLOUR": "", "API_KEY": "***", "SIZE": "9"}}
        automation = await desk.automations.patch(automation.id, changes)
        assert automation.env == {"API_KEY": "s3cr3t-value", "SIZE": "9"}
        task = await desk.tasks.get((await desk.automations.history(automation.id))[0].id)
        own = Actor("it", "attempt", task=task)
        assert (await desk.automations.describe(automation, actor=own))["env"] == {"API_KEY": "***", "SIZE": "***"}
        (exported,) = await desk.automation_transfer.export()
        shot = exported.snapshot()
        assert "s3cr3t" not in str(shot)
        await desk.automation_transfer.import_all([{**shot, "title": "new"}], actor=Actor("owner", "owner"))
        assert (await desk.automations.get(automation.id)).env == {"API_KEY": "s3cr3t-value", "SIZE": "9"}
        events = await desk.store.read_events(0, limit=500)
        assert "s3cr3t" not in str(events)


@pytest.mark.parametrize("field", ["when", "env", "history"])
async def test_an_agent_cannot_set_commands_or_variables(home: Path, tmp_path: Path, field: str) -> None:
    async with open_desk(home, result("done")) as (desk, _agent):
        task = await desk.tasks.submit("x", agent="it", workdir=str(tmp_path))
        own = Actor("it", "attempt", task=await desk.tasks.wait(task.id))
        wish: dict[str, Any] = {"when": "true", "env": {"A": "b"}, "history": 2}
        with pytest.raises(Forbidden, match=f"cannot set `{field}`"):
            await desk.automations.create("look", every=3600, actor=own, **{field: wish[field]})
        with pytest.raises(Forbidden):
            await desk.goals.create("x", check="true", actor=own)


async def test_an_agent_without_memory_gets_earlier_results(home: Path, tmp_path: Path) -> None:
    async def count(turn: Turn) -> str:
        if len(agent.turns) == 2:
            raise AgentError("broken ```")
        return f"result {len(agent.turns)}"

    async with open_desk(home, count) as (desk, agent):
        automation = await automate(desk, tmp_path, history=2, fresh=True, when="test ! -e stop")
        for _ in range(3):
            await run(desk, automation)
        (tmp_path / "stop").touch()
        await run(desk, automation)
        (tmp_path / "stop").unlink()
        await run(desk, automation)
        assert "Results of earlier runs" not in agent.turns[0].prompt
        last = agent.turns[3].prompt
        assert "result 1" not in last
        assert 0 < last.index("broken ```") < last.index("result 3")
        assert last.count("````") == 2


async def test_a_command_runs_in_the_worktree_of_its_run(home: Path, tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "repository")
    async with open_desk(home, result("done")) as (desk, agent):
        automation = await automate(desk, repository, worktree=True, fresh=True, when="pwd; exit 1")
        task = await run(desk, automation)
        assert task.outcome == "skipped"
        assert str(home / "worktrees") in (task.result or "")
        (tree,) = await desk.worktrees.list()
        await until(lambda: is_removed(desk, tree.id))
        assert not agent.opened


async def is_removed(desk: Runtime, worktree_id: str) -> bool:
    return (await desk.worktrees.find(worktree_id)).status == "removed"
