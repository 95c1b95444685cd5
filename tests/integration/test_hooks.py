"""Test hooks on a real desk: what they decide at each seam, and that a broken hook program denies in time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from fakes.model_server import Model, serve
from midwatch import Answer, Question, Runtime, Settings, Task, Turn
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.tools import tool
from midwatch.agents.local import LocalAgent
from midwatch.base.errors import BadConfig
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.hook import Hook, HookDecision, HookMeta
from midwatch.testing import RecordingTurn
from servers import PATIENCE, Server, eventually

Fake = tuple[str, Model]
Subject = dict[str, Any]
PROGRAM = Path(__file__).parent.parent / "fakes" / "hook_program.py"
ran: list[str] = []


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Yield a fake model and its address."""
    async with serve() as url_and_model:
        yield url_and_model


@pytest.fixture(autouse=True)
def forget_runs() -> None:
    ran.clear()


@tool(safe=True)
async def push(to: str, force: bool = False) -> str:
    """Pushes."""
    ran.append(f"{to} {force}")
    return f"pushed to {to}"


def agent(fake: Fake, *tools: Any, **more: Any) -> LlmAgent:
    return LlmAgent("it", "openai:fake", base_url=f"{fake[0]}/v1", tools=tools or (push,), **more)


async def run(desk: Runtime, prompt: str, agent: str = "it") -> Task:
    task = await desk.tasks.submit(prompt, agent=agent)
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def read_events(desk: Runtime, task: Task, *kinds: str) -> list[Event]:
    return list(await desk.store.read_events(0, EventFilter(task_id=task.id, kinds=kinds)))


ALLOWED = {"it": {"kind": "function", "target": "x:y", "approvals": {"default": "allow"}}}
PUSH = '[[tool push {"to": "main", "force": true}]]'


class Policy(Hook):
    """Forbids pushes to main, and forced pushes."""

    name = "policy"

    async def before_tool(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        if subject["arguments"].get("to") == "main":
            return HookDecision.deny("main is protected")
        return HookDecision.change({"arguments": {"force": None}}) if subject["arguments"].get("force") else None


@pytest.mark.parametrize("kind", ["llm", "local"])
async def test_a_denied_tool_is_not_run_the_model_is_told_and_the_turn_goes_on(
    fake: Fake, home: Path, kind: str
) -> None:
    it = agent(fake)
    if kind == "local":
        local = LocalAgent("it", tools=(push,))
        local.connection, it = it.connection, local  # type: ignore[assignment]  # the fake model instead of weights
    async with Runtime.open(home, agents={"it": it}, hooks=[Policy()]) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert task.outcome == "ok" and "hook policy denied it: main is protected" in str(task.result) and ran == []
        decided, skipped = await read_events(desk, task, "hook_decided", "tool_exec_skipped", "tool_exec_start")
        assert {**decided.payload, "duration": 0} == {
            "hook": "policy", "seam": "before_tool", "decision": "deny", "reason": "main is protected",
            "failed": False, "duration": 0, "tool": "push", "tool_call_id": decided.payload["tool_call_id"],
            "request_id": None,
        }  # fmt: skip
        assert skipped.payload["tool_call_id"] == decided.payload["tool_call_id"]
        assert (decided.turn_id, decided.agent_id) == (f"{task.id}.1", "it")


async def test_a_changed_call_is_what_runs_and_what_is_recorded(fake: Fake, home: Path) -> None:
    async with Runtime.open(home, agents={"it": agent(fake)}, hooks=[Policy()]) as desk:
        task = await run(desk, '[[tool push {"to": "dev", "force": true}]] [[say done]]')
        assert (task.outcome, ran) == ("ok", ["dev False"])
        (start,) = await read_events(desk, task, "tool_exec_start")
        assert start.payload["arguments"] == {"to": "dev"}
        assert [step["kind"] for step in await steps(desk, task)] == ["prompt", "model", "started", "tool", "model"]


async def steps(desk: Runtime, task: Task) -> list[Any]:
    return [step.data for step in await desk.store.list_task_steps(task.id)]


async def test_a_changed_call_is_what_runs_after_a_crash(fake: Fake, home: Path) -> None:
    model = agent(fake)
    async with Runtime.open(home, agents={"it": model}, hooks=[Policy()]) as desk:
        task = await run(desk, '[[tool push {"to": "dev", "force": true}]] [[say done]]')
        before = (await steps(desk, task))[:3]  # as if the process had died while the tool ran
    ran.clear()
    turn = RecordingTurn(task.prompt, steps=before, attempt=2, thread_id="x", task_id=task.id)
    result = await (await model.open(turn.session())).turn(turn)
    assert (result.outcome, ran, [call.arguments for call in turn.tool_calls]) == ("ok", ["dev False"], [{"to": "dev"}])


class Everywhere(Hook):
    """Decides at all seams as `decisions` says, and records what it gets."""

    def __init__(self, **decisions: HookDecision) -> None:
        self.decisions = decisions
        self.got: list[tuple[str, Subject, HookMeta]] = []
        self.kinds: list[str] = []

    def _decide(self, seam: str, subject: Subject, meta: HookMeta) -> HookDecision | None:
        self.got.append((seam, subject, meta))
        return self.decisions.get(seam)

    async def before_model(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return self._decide("before_model", subject, meta)

    async def after_model(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return self._decide("after_model", subject, meta)

    async def before_tool(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return self._decide("before_tool", subject, meta)

    async def approve_tool(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return self._decide("approve_tool", subject, meta)

    async def after_tool(self, subject: Subject, meta: HookMeta) -> HookDecision | None:
        return self._decide("after_tool", subject, meta)

    async def observe(self, event: Event) -> None:
        self.kinds.append(event.kind)


async def test_a_hook_hears_all_six_seams_in_order_with_the_same_turn(fake: Fake, home: Path) -> None:
    hook = Everywhere()
    async with Runtime.open(home, agents={"it": agent(fake, system="Be kind.")}, hooks=[hook]) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert [seam for seam, _, _ in hook.got] == [
            "before_model", "after_model", "before_tool", "approve_tool", "after_tool", "before_model", "after_model",
        ]  # fmt: skip
        assert {meta for _, _, meta in hook.got} == {
            HookMeta("it", task.id, 1, f"{task.id}.1", task.session_key, hook.got[0][2].workdir)
        }
        subjects = [subject for _, subject, _ in hook.got]
        assert subjects[0] == {
            "model": "openai:fake", "instructions": "Be kind.", "tools": ["push"],
            "settings": {},
            "messages": [{"role": "user", "text": task.prompt}],
        }  # fmt: skip
        arguments = {"to": "main", "force": True}
        assert subjects[1]["tool_calls"][0]["arguments"] == subjects[2]["arguments"] == arguments
        assert (subjects[4]["text"], subjects[4]["is_error"]) == ("pushed to main", False)
        assert [message["role"] for message in subjects[5]["messages"]] == ["user", "call", "tool"]
        assert await eventually(lambda: "task_finished" in hook.kinds)
        assert await read_events(desk, task, "hook_decided") == []


async def test_hooks_change_requests_answers_and_results(fake: Fake, home: Path) -> None:
    hook = Everywhere(
        before_model=HookDecision.change({"instructions": "Be brief.", "tools": [], "settings": {"max_tokens": 7}}),
        after_model=HookDecision.change({"text": "changed"}),
        after_tool=HookDecision.change({"text": "secret ***"}),
    )
    async with Runtime.open(home, agents={"it": agent(fake)}, hooks=[hook]) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.outcome, task.result) == ("ok", "changed")
        request = fake[1].requests[0]
        assert (request["system"], request["tools"]) == ("Be brief.", [])
        assert fake[1].requests[1]["results"] == ["secret ***"]
        first, _ = await read_events(desk, task, "llm_request")
        assert (first.payload["max_tokens"], first.payload["tools_count"]) == (7, 0)
        (end,) = await read_events(desk, task, "tool_exec_end")
        assert end.payload["result"] == "secret ***"


async def test_hooks_answer_in_place_of_the_tool_and_of_the_model(fake: Fake, home: Path) -> None:
    hook = Everywhere(before_tool=HookDecision.answer("pretended"))
    async with Runtime.open(home, agents={"it": agent(fake)}, hooks=[hook]) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.result, ran) == ("The tool said: pretended done", [])
        assert [event.kind for event in await read_events(desk, task, "tool_*")] == ["tool_exec_skipped"]
        hook.decisions = {"before_model": HookDecision.answer("from the hook")}
        sent = len(fake[1].requests)
        task = await run(desk, "hello")
        assert (task.outcome, task.result, len(fake[1].requests)) == ("ok", "from the hook", sent)
        assert await read_events(desk, task, "llm_*") == []


@pytest.mark.parametrize("seam", ["before_model", "after_model", "before_tool", "approve_tool", "after_tool"])
async def test_a_hook_stops_the_turn_at_every_seam_with_its_reason(fake: Fake, home: Path, seam: str) -> None:
    hook = Everywhere(**{seam: HookDecision.stop("it is night.")})
    async with Runtime.open(home, agents={"it": agent(fake)}, hooks=[hook]) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.outcome, task.error) == ("error", "hook Everywhere stopped the turn: it is night")
        assert bool(ran) == (seam == "after_tool")
        kinds = [event.kind for event in await read_events(desk, task)]
        assert kinds.count("llm_request") == kinds.count("llm_response") == (seam != "before_model")
        assert kinds.count("tool_exec_start") == kinds.count("tool_exec_end") == (seam == "after_tool")
        hook.decisions = {}
        again = await desk.tasks.retry(task.id)
        async with asyncio.timeout(60):
            assert (await desk.tasks.wait(again.id)).outcome == "ok"


async def test_a_withheld_result_reaches_nobody(fake: Fake, home: Path) -> None:
    hook = Everywhere(after_tool=HookDecision.deny("it has a key"))
    async with Runtime.open(home, agents={"it": agent(fake)}, hooks=[hook]) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert "result is withheld: hook Everywhere denied it: it has a key" in str(task.result) and ran
        assert "pushed" not in "".join(str(event.payload) for event in await read_events(desk, task, "tool_*"))


async def test_approving_hooks_come_before_rules_and_people_for_other_kinds_of_agents(home: Path) -> None:
    answers: list[Answer] = []

    async def work(prompt: str, turn: Turn) -> str:
        answers.append(await turn.ask("Go on?", ("yes", "no"), expires=0.2))
        answers.append(await turn.ask(Question(text="Run it?", kind="execute", tool="Bash", command=prompt)))
        return "went on"

    hook = Everywhere(approve_tool=HookDecision.deny("not this"))
    settings = Settings.load(home, detect_agents=False, agents=ALLOWED)
    async with Runtime.open(settings=settings, agents={"it": work}, hooks=[hook]) as desk:
        task = await run(desk, "git push")
        assert (task.error, task.result, answers[1].status) == (None, "went on", "denied")
        assert answers[1].why == "hook Everywhere denied it: not this"
        assert [(seam, subject["tool"], subject["command"]) for seam, subject, _ in hook.got] == [
            ("approve_tool", "Bash", "git push")
        ]
        hook.decisions = {}
        await run(desk, "git push")
        assert answers[3].status == "granted"
        hook.decisions = {"approve_tool": HookDecision.stop("enough")}
        task = await run(desk, "git push")
        assert (task.outcome, task.error) == ("error", "hook Everywhere stopped the turn: enough")


async def test_an_acp_agent_is_asked_about_by_hooks_before_rules_and_people(home: Path, tmp_path: Path) -> None:
    argv = [sys.executable, str(PROGRAM.with_name("acp_agent.py")), "--memory", str(tmp_path)]
    acp = {"kind": "acp", "argv": argv, "workdir": str(tmp_path), "approvals": {"default": "allow"}}
    hook = Everywhere(approve_tool=HookDecision.deny("not this"))
    settings = Settings.load(home, detect_agents=False, agents={"it": acp})
    async with Runtime.open(settings=settings, hooks=[hook]) as desk:
        task = await run(desk, "[[ask ar touch x]] [[say I could not]]")
        (decided,) = await read_events(desk, task, "hook_decided")
        assert (decided.payload["seam"], decided.payload["decision"]) == ("approve_tool", "deny")
        (answered,) = await read_events(desk, task, "approval_resolved")
        assert (answered.payload["status"], answered.payload["answered_by"]) == ("denied", "hook")
        assert hook.got[0][1]["question"] and "touch x" in str(hook.got[0][1])
        hook.decisions = {"approve_tool": HookDecision.stop("enough")}
        task = await run(desk, "[[ask ar touch x]] [[hold ever]]")
        assert (task.outcome, task.error) == ("error", "hook Everywhere stopped the turn: enough")
        (end,) = await read_events(desk, task, "turn_end")
        assert end.payload["status"] == "error"
        assert await eventually(lambda: hook.kinds.count("task_finished") == 2)
        for seam in ("before_tool", "approve_tool"):  # a request of the agent to midwatch itself
            hook.decisions = {seam: HookDecision.stop("enough")}
            task = await run(desk, "[[run touch ran]] [[hold ever]]")
            assert (task.outcome, task.error) == ("error", "hook Everywhere stopped the turn: enough")
        hook.decisions = {"before_tool": HookDecision.answer("use the copy in x")}
        task = await run(desk, "[[run touch ran]]")
        assert (task.outcome, (task.result or "").strip()) == ("ok", "refused: use the copy in x")
        (skipped,) = await read_events(desk, task, "tool_exec_skipped")
        assert (skipped.payload["reason"], skipped.payload["rule"]) == ("use the copy in x", "hook:Everywhere")
        task = await run(desk, "[[ask ar touch ran]] [[run touch ran]]")
        assert (task.result or "").strip() == "refused: use the copy in x", "a permission does not replace this hook"
        assert not (tmp_path / "ran").exists()


async def test_a_tool_that_asks_is_approved_once(fake: Fake, home: Path) -> None:
    @tool(ask=True)
    async def deploy() -> str:
        """Deploys."""
        return "deployed"

    hook = Everywhere()
    settings = Settings.load(home, detect_agents=False, agents=ALLOWED)
    async with Runtime.open(settings=settings, agents={"it": agent(fake, deploy)}, hooks=[hook]) as desk:
        task = await run(desk, "[[tool deploy {}]] [[say done]]")
        assert task.result == "The tool said: deployed done"
        assert [seam for seam, _, _ in hook.got].count("approve_tool") == 1


async def test_an_observing_hook_can_hold_up_and_change_nothing(fake: Fake, home: Path) -> None:
    class Bad(Hook):
        async def observe(self, event: Event) -> None:
            cast(dict[str, Any], event.payload).clear()
            if event.kind == "turn_start":
                raise SystemExit
            if event.kind == "llm_request":
                raise asyncio.CancelledError
            await asyncio.sleep(3600)

    async with Runtime.open(home, agents={"it": agent(fake)}, hooks=[Bad()]) as desk:
        began = time.monotonic()
        task = await run(desk, f"{PUSH} [[say done]]")
        assert task.outcome == "ok" and time.monotonic() - began < 20, "an event that is waited for takes 5 s"
        assert all(event.payload for event in await read_events(desk, task, "turn_*", "tool_*", "llm_*"))


class Blocking(Policy):
    """Decides as `Policy` does, and blocks its thread while it observes."""

    blocks, released = threading.Event(), threading.Event()

    async def observe(self, event: Event) -> None:
        if event.kind == "turn_start":
            raise SystemExit
        if event.kind == "llm_request":
            self.blocks.set()
            self.released.wait(PATIENCE)
            self.blocks.clear()


@pytest.mark.parametrize("registered", [True, False], ids=["passed", "of the settings"])
async def test_a_hook_that_blocks_while_it_observes_holds_up_nothing(fake: Fake, home: Path, registered: bool) -> None:
    Blocking.released.clear()
    named = [] if registered else [f"{__name__}:Blocking"]
    settings = Settings.load(home, detect_agents=False, hooks=named)
    hooks = [Blocking()] if registered else []
    async with Runtime.open(settings=settings, agents={"it": agent(fake)}, hooks=hooks) as desk:
        try:
            task = await run(desk, '[[tool push {"to": "dev", "force": true}]] [[say done]]')
            assert task.outcome == "ok" and ran == ["dev False"], "it still decides"
            assert await eventually(lambda: desk.hooks.list()[0].failures == 2)
            (report,) = desk.hooks.list()
            assert report.last_error == "it did not take an event within 5 s." and report.events > 2
            assert (await run(desk, f"{PUSH} [[say done]]")).outcome == "ok" and Blocking.blocks.is_set()
        finally:
            Blocking.released.set()


# -- programs ------------------------------------------------------------------------------------------------------


def program(bad: Path, way: str, *seams: str, timeout: str = "1s") -> dict[str, Any]:
    return {
        "argv": [sys.executable, str(PROGRAM), way, str(bad)], "name": "policy",
        "seams": list(seams or ("before_tool",)), "timeout": timeout,
    }  # fmt: skip


BAD_WAYS = {
    "hang": "gave no decision within 1 s",
    "flood": "a line of more than 1048576 bytes",
    "chatter": "no answer in JSON-RPC: 'hello'",
    "die": "failed with exit code 3",
    "half": "ended with exit code 0 in the middle of a line",
    "other": "which is not open",
    "patch": "names 'tool'",
    "deep": "nested in more than 200 levels",
    "error": "answered with an error: no idea",
    "nothing": "its result is no decision",
    "closed": "closed its standard output",
    "bytes": "no answer in JSON-RPC",
    "heir": "failed with exit code 3",
}


@pytest.mark.parametrize("way", BAD_WAYS)
async def test_a_broken_program_denies_in_time_and_works_after_its_restart(
    fake: Fake, home: Path, tmp_path: Path, way: str
) -> None:
    bad = tmp_path / "bad"
    bad.touch()
    hook = program(bad, way, timeout="1s" if way == "hang" else "1h")
    settings = Settings.load(home, detect_agents=False, hooks=[hook])
    async with Runtime.open(settings=settings, agents={"it": agent(fake)}) as desk:
        assert await eventually(lambda: desk.hooks.list()[0].state == "running")
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.outcome, ran) == ("ok", [])
        assert "It was not run: hook policy failed" in str(task.result)
        (decided,) = await read_events(desk, task, "hook_decided")
        assert BAD_WAYS[way] in decided.payload["reason"]
        assert (decided.payload["decision"], decided.payload["failed"]) == ("deny", True)
        assert way != "hang" or decided.payload["duration"] > 0.99
        bad.unlink()
        assert await eventually(lambda: desk.hooks.list()[0].state == "running")
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.result, ran) == ("The tool said: pushed to main done", ["main True"])
        (report,) = desk.hooks.list()
        assert (report.calls, report.failures) == (2, 1)
        assert ("the program did not answer in time." if way == "hang" else BAD_WAYS[way]) in str(report.last_error)
        pids = [int(pid) for pid in bad.with_suffix(".starts").read_text().split()]
    assert not any(exists(pid) for pid in pids)


async def test_a_program_that_breaks_right_after_hello_denies_and_the_event_says_how(
    fake: Fake, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad").touch()
    settings = Settings.load(home, detect_agents=False, hooks=[program(tmp_path / "bad", "brief")])
    async with Runtime.open(settings=settings, agents={"it": agent(fake)}) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.outcome, ran) == ("ok", [])
        (decided,) = await read_events(desk, task, "hook_decided")
        assert "no answer in JSON-RPC: 'I am gone.'" in decided.payload["reason"]


async def test_a_cancelled_task_does_not_end_the_program_that_others_wait_for(
    fake: Fake, home: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.touch()
    settings = Settings.load(home, detect_agents=False, hooks=[program(bad, "wait", timeout="1h")])
    async with Runtime.open(settings=settings, agents={"it": agent(fake)}) as desk:
        tasks = [await desk.tasks.submit(f"{PUSH} [[say done]]", agent="it") for _ in range(2)]
        assert await eventually(lambda: desk.hooks.list()[0].calls == 2)
        await desk.tasks.cancel(tasks[0].id)
        assert (await desk.tasks.wait(tasks[0].id)).status == "cancelled"
        bad.unlink()
        async with asyncio.timeout(PATIENCE):
            other = await desk.tasks.wait(tasks[1].id)
        assert other.result == "The tool said: pushed to main done"
        (report,) = desk.hooks.list()
        assert (report.failures, report.restarts, report.last_error) == (0, 0, None)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_program_answers_many_turns_at_once_and_observes(fake: Fake, home: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    settings = Settings.load(home, detect_agents=False, hooks=[program(bad, "hang", "before_tool", "observe")])
    async with Runtime.open(settings=settings, agents={"it": agent(fake)}) as desk:
        tasks = await asyncio.gather(*(run(desk, f"{PUSH} [[say {number}]]") for number in range(20)))
        assert {task.outcome for task in tasks} == {"ok"} and len(ran) == 20
        events = bad.with_suffix(".events")
        assert await eventually(lambda: events.exists() and events.read_text().count("task_finished") == 20)
        assert len(bad.with_suffix(".starts").read_text().split()) == 1
        pid = int(bad.with_suffix(".starts").read_text())
        os.kill(pid, signal.SIGKILL)
        assert await eventually(lambda: len(bad.with_suffix(".starts").read_text().split()) == 2)
        (report,) = desk.hooks.list()
        assert (report.restarts, report.last_error) == (1, "the program was ended by SIGKILL."), "it leaves a trace"
        assert report.last_error_at and report.calls == 20 and report.events > 100
        assert (await run(desk, f"{PUSH} [[say done]]")).outcome == "ok"
        assert len(ran) == 21


async def test_a_program_that_cannot_be_kept_running_denies_and_is_started_less_and_less_often(
    fake: Fake, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = {"argv": ["false"], "name": "policy", "seams": ["before_tool"], "timeout": "1s"}
    async with Runtime.open(
        settings=Settings.load(home, detect_agents=False, hooks=[hook]), agents={"it": agent(fake)}
    ) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert (task.outcome, ran) == ("ok", [])
        (decided,) = await read_events(desk, task, "hook_decided")
        assert "failed with exit code 1" in decided.payload["reason"]
        assert await eventually(lambda: caplog.text.count("It is started again in") >= 4)
        pauses = re.findall(r"hook policy: the program failed .* started again in (.*) s\.", caplog.text)
        assert pauses[:4] == ["0.1", "0.2", "0.4", "0.8"]


DESK = """
import asyncio, sys
from midwatch import Runtime, Settings

async def main():
    hook = {"argv": [sys.executable, *sys.argv[2:5]], "seams": ["observe"], "name": "policy"}
    async with Runtime.open(settings=Settings.load(sys.argv[1], detect_agents=False, hooks=[hook])):
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_program_ends_with_a_midwatch_that_is_killed(home: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    starts = bad.with_suffix(".starts")
    desk = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DESK, str(home), str(PROGRAM), "hang", str(bad)
    )  # fmt: skip
    try:
        assert await eventually(lambda: starts.exists() and starts.read_text().endswith("\n"))
        pid = int(starts.read_text())
        assert exists(pid)
    finally:
        desk.kill()
        await desk.wait()
    assert await eventually(lambda: not exists(pid))


PAGE = (Path(__file__).parent.parent.parent / "docs" / "hooks.md").read_text()


async def test_the_program_of_the_hooks_page_works(fake: Fake, home: Path) -> None:
    home.mkdir()
    (code,) = re.findall(r"```python\n(#!.*?)```", PAGE, re.S)
    (settings,) = re.findall(r"```toml\n(hooks = \[\n.*?)```", PAGE, re.S)
    (home / "policy.py").write_text(code.replace("#!/usr/bin/env python3", f"#!{sys.executable}"))
    (home / "policy.py").chmod(0o700)
    (home / "midwatch.toml").write_text(settings)
    async with Runtime.open(home, agents={"it": agent(fake)}) as desk:
        task = await run(desk, f"{PUSH} [[say done]]")
        assert "denied it: main is protected" in str(task.result)
        assert (await run(desk, '[[tool push {"to": "dev"}]] [[say done]]')).outcome == "ok" and ran == ["dev False"]


DIED = "the program failed with exit code 3.\n"


async def test_people_list_and_test_hooks(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    bad = tmp_path / "bad"
    entry = json.dumps(program(bad, "die", "before_tool", "observe"))
    (home / "midwatch.toml").write_text(f"detect_agents = false\nhooks = [{to_toml(entry)}]\n")
    server = Server(home)
    await server.start()
    try:
        (hook,) = await eventually_running(home)
        assert (hook["name"], hook["kind"], hook["seams"], hook["priority"]) == (
            "policy", "program", ["before_tool", "observe"], 100,
        )  # fmt: skip
        async with server.client() as http:
            tested = (await http.post("/hooks/policy/test", json={"tool": "push"})).json()
            assert (tested["decision"], tested["failed"]) == ({"action": "go_on"}, False)
            assert (await http.post("/hooks/other/test", json={})).status_code == 404
            wrong = await http.post("/hooks/policy/test", json={"seam": "after_tool"})
            assert (wrong.status_code, wrong.json()["field"]) == (422, "seam")
        bad.touch()
        command = ("hooks", "test", "policy", "--tool", "push", "--arguments", '{"to": "main"}')
        shown, problem = await call(home, *command, status=1)
        assert "policy decides deny at before_tool" in shown
        assert problem == "midwatch: hook policy failed at before_tool, so midwatch denies: " + DIED
        shown, problem = await call(home, *command, "--json", status=1)
        assert json.loads(shown)["decision"]["action"] == "deny"
        assert json.loads(problem)["error"]["code"] == "hook_failed"
        assert "ago: the program" in (await call(home, "hooks"))[0]
    finally:
        assert await server.stop() == 0


def to_toml(text: str) -> str:
    """Return a JSON object as an inline table of TOML."""
    return "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in json.loads(text).items()) + "}"


async def call(home: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    """Return the output of a command, and its errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midwatch", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "MIDWATCH_HOME": str(home), "COLUMNS": "300"},
    )  # fmt: skip
    output, problems = await process.communicate()
    assert process.returncode == status
    return output.decode(), problems.decode()


async def eventually_running(home: Path) -> list[dict[str, Any]]:
    """Return the hooks when the first one runs."""
    async with asyncio.timeout(30):
        while True:
            hooks: list[dict[str, Any]] = json.loads((await call(home, "hooks", "--json"))[0])["hooks"]
            if hooks[0]["state"] == "running":
                return hooks


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        ("nothing", "write a class as package.module:Class"),
        ("no_such_module:Policy", "cannot be loaded"),
        ({"argv": ["/does/not/exist"], "seams": ["before_tool"]}, "not installed or not executable"),
        ({"argv": [], "seams": ["before_tool"]}, "hooks.0.argv: it needs more entries: at least 1"),
        ({"argv": ["true"]}, "hooks.0.seams: it is missing; add it"),
        ({"argv": ["true"], "seams": ["before_all"]}, "seams.0: it must be one of: before_model, "),
        ({"argv": ["true"], "seams": ["observe"], "name": "a b"}, "name"),
        ({"argv": ["true"], "seams": ["observe"], "colour": "red"}, "colour"),
        (3, "it must be a table"),
    ],
)
async def test_a_wrong_entry_is_one_error_at_the_start(home: Path, hook: Any, why: str) -> None:
    with pytest.raises(BadConfig, match=why) as error:
        async with Runtime.open(settings=Settings.load(home, detect_agents=False, hooks=[hook])):
            pass
    assert "\n" not in str(error.value)
