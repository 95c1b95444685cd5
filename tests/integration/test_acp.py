"""Test the agent kind `acp` on a real desk: memory, questions, stops, limits, crashes. The agent is a fake in a real
process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch.domain.approval import Approval
from midwatch.domain.event import EventFilter
from midwatch.domain.task import Task
from midwatch.programs.guard import guard
from midwatch.runtime.runtime import Runtime
from servers import Server, WorkerProcess, eventually, processes_with, until

FAKE = Path(__file__).parents[1] / "fakes" / "acp_agent.py"
KEY = f"web:chat-{os.getpid()}"
"""A key of its own for each process: agent processes are found by it, and other tests may run at the same time."""


def configure(home: Path, memory: Path, settings: str = "", *arguments: str) -> None:
    home.mkdir()
    memory.mkdir(exist_ok=True)
    argv = [sys.executable, str(FAKE), "--memory", str(memory), *arguments]
    agent = f'[agents.fake]\nkind = "acp"\nargv = {argv}\nworkdir = "{memory}"\n'
    (home / "midwatch.toml").write_text(f"detect_agents = false\n{settings}\n{agent}")


@asynccontextmanager
async def desk_at(tmp_path: Path, settings: str = "") -> AsyncIterator[Runtime]:
    configure(tmp_path / "home", tmp_path / "memory", settings)
    async with Runtime.open(tmp_path / "home") as desk:
        yield desk
    assert guard.pid is None, "a process group was left behind"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with desk_at(tmp_path) as runtime:
        yield runtime


async def send_message(desk: Runtime, prompt: str) -> Task:
    """Send a message to the conversation and wait for its end."""
    task = await desk.sessions.send(KEY, prompt)
    return await desk.tasks.wait(task.id)


async def wait_for_question(desk: Runtime) -> Approval:
    """Return the open question."""
    approvals: list[Approval] = await until(desk.approvals.list)
    return approvals[0]


async def kinds(desk: Runtime, task: Task) -> list[str]:
    return [event.kind for event in await desk.store.read_events(0, EventFilter(task_id=task.id))]


async def test_three_turns_with_memory_in_one_process(desk: Runtime) -> None:
    await desk.sessions.create(agent="fake", key=KEY)
    pids = set()
    for prompt in ("one", "two"):
        assert (await send_message(desk, prompt)).result == f"you said {prompt}"
        pids.add((await send_message(desk, "[[show pid]]")).result)
    last = await send_message(desk, "[[recall]]")
    assert last.result == "You said: one | [[show pid]] | two | [[show pid]]"
    assert len(pids) == 1
    session = await desk.sessions.get(KEY)
    assert session.session.thread_id is not None
    texts = [message.text for message in await desk.sessions.messages(KEY)]
    assert texts[:2] == ["one", "you said one"]


async def test_an_allowed_tool_runs(desk: Runtime) -> None:
    task = await desk.tasks.submit("[[ask RAar touch x]] [[say so I did]]", agent="fake")
    question = await wait_for_question(desk)
    assert (question.task_id, question.agent) == (task.id, "fake")
    assert "touch x" in question.question
    await desk.approvals.answer(question.id, grant=True)
    ended_task = await desk.tasks.wait(task.id)
    assert (ended_task.status, ended_task.result) == ("done", "so I did")
    event_kinds = await kinds(desk, task)
    assert event_kinds.count("tool_exec_start") == event_kinds.count("tool_exec_end") == 1


async def test_a_denied_tool_does_not_run(desk: Runtime) -> None:
    task = await desk.tasks.submit("[[ask ar touch x]]", agent="fake")
    await desk.approvals.answer((await wait_for_question(desk)).id, grant=False)
    ended_task = await desk.tasks.wait(task.id)
    assert (ended_task.status, ended_task.outcome) == ("failed", "error")
    assert "denied actions: 'touch x' (denied)" in (ended_task.error or "")
    task = await desk.tasks.submit("[[ask ar touch x]]", agent="fake")
    await desk.approvals.answer((await wait_for_question(desk)).id, grant=False, why="not today")
    ended_task = await desk.tasks.wait(task.id)
    assert (ended_task.status, ended_task.outcome) == ("done", "ok")
    assert "'touch x': a person denied it: not today" in (ended_task.result or ""), "the agent was told the reason"


async def test_an_unanswered_question_expires(tmp_path: Path) -> None:
    async with desk_at(tmp_path, 'approval_expiry = "1s"') as desk:
        task = await desk.tasks.submit("[[ask ar touch x]] [[say I could not]]", agent="fake")
        ended_task = await desk.tasks.wait(task.id)
        assert (ended_task.status, ended_task.result) == ("done", "I could not")
        (question,) = await desk.approvals.list(None)
        assert question.status == "expired"


@pytest.mark.parametrize("prompt", ["[[open x]] [[hold ever]]", "[[say half]] [[ask ar touch x]]"])
async def test_a_turn_is_cancelled(desk: Runtime, prompt: str) -> None:
    await desk.sessions.create(agent="fake", key=KEY)
    pid = (await send_message(desk, "[[show pid]]")).result
    task = await desk.sessions.send(KEY, prompt)
    if "ask" in prompt:
        await wait_for_question(desk)
    else:
        await until(lambda: _uses_tool(desk, task))
    await desk.tasks.cancel(task.id)
    ended_task = await desk.tasks.wait(task.id)
    assert ended_task.status == "cancelled"
    assert await desk.approvals.list() == []
    assert (await send_message(desk, "[[show pid]]")).result == pid, "the agent itself stopped and is still there"


async def _uses_tool(desk: Runtime, task: Task) -> bool:
    return "tool_exec_start" in await kinds(desk, task)


async def test_a_usage_limit_parks_the_task_until_it_ends(desk: Runtime) -> None:
    task = await desk.tasks.submit("[[limit 2]] [[recall]]", agent="fake")

    ended_task = await desk.tasks.wait(task.id)
    assert (ended_task.status, ended_task.failures, ended_task.attempt) == ("done", 0, 2)
    assert "You said: [[limit 2]] [[recall]]" in (ended_task.result or ""), "it is the same conversation"
    (parked,) = await desk.store.read_events(0, EventFilter(task_id=task.id, kinds=("task_waiting",)))
    assert parked.payload["wait"] == "limit"


async def test_a_closed_conversation_leaves_no_process(desk: Runtime) -> None:
    await desk.sessions.create(agent="fake", key=KEY)
    pid = int((await send_message(desk, "[[show pid]]")).result or 0)
    stray = int((await send_message(desk, "[[stray]]")).result.split()[1])  # type: ignore[union-attr]
    await desk.sessions.close(KEY)
    assert await eventually(lambda: not runs(pid) and not runs(stray))


def runs(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended before or during the read
        return False


async def test_a_conversation_continues_after_midwatch_was_killed_during_a_turn(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    configure(tmp_path / "home", memory)
    server = Server(tmp_path / "home")
    await server.start()
    try:
        async with server.client() as http:
            first = (
                await http.post("/tasks", json={"prompt": "remember me", "agent": "fake", "session_key": KEY})
            ).json()
            await _wait_for_end(http, first["id"])
            prompt = "[[stray]] [[recall]] [[hold go]]"
            task = (await http.post("/tasks", json={"prompt": prompt, "agent": "fake", "session_key": KEY})).json()
            await until(lambda: _working(memory))
        assert await eventually(lambda: len(_find_agents(first["id"])) == 2 and len(_find_fakes(first["id"])) == 1), (
            "the agent and what left its group carry the task that began the conversation"
        )  # a new process looks like the agent until it has executed its own program
        before, (agent,) = _find_agents(first["id"]), _find_fakes(first["id"])
        await server.kill()
        assert await eventually(lambda: not runs(agent))
        (memory / "go").touch()
        await server.start()
        async with server.client() as http:
            ended_task = await _wait_for_end(http, task["id"])
            assert (ended_task["status"], ended_task["attempt"]) == ("done", 2), ended_task
            assert "remember me" in ended_task["result"]
            assert "midwatch was interrupted" in "".join(file.read_text() for file in memory.glob("s-*.json"))
            assert len(list(memory.glob("s-*.json"))) == 1, "it is the same conversation"
        assert await eventually(lambda: not any(runs(pid) for pid in before)), "something of the first process is left"
    finally:
        await server.stop()
    for task_id in (first["id"], task["id"]):
        assert await eventually(lambda task_id=task_id: not _find_agents(task_id))


async def test_an_agent_that_forgets_knows_the_conversation_after_a_kill_and_a_restart(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    configure(tmp_path / "home", memory, "", "--forgets")
    server = Server(tmp_path / "home")
    await server.start()

    async def send(http: Any, prompt: str) -> str:
        task = (await http.post("/tasks", json={"prompt": prompt, "agent": "fake", "session_key": KEY})).json()
        return str(task["id"])

    try:
        async with server.client() as http:
            await _wait_for_end(http, await send(http, "remember me"))
            task_id = await send(http, "[[tool make]] [[recall]] [[hold go]]")
            await until(lambda: _working(memory))
        await server.kill()
        (memory / "go").touch()
        await server.start()
        async with server.client() as http:
            ended_task = await _wait_for_end(http, task_id)
            assert (ended_task["status"], ended_task["attempt"]) == ("done", 2), ended_task
            assert "> remember me" in ended_task["result"]
            assert "hold go" not in ended_task["result"], "its own prompt is not a part of what was said before"
        await server.stop()
        await server.start()
        async with server.client() as http:
            ended_task = await _wait_for_end(http, await send(http, "[[recall]]"))
            assert ended_task["result"].count("> remember me") == 2, "once itself, and once in an answer"
            assert "> [[tool make]] [[recall]] [[hold go]]" in ended_task["result"]
            ended_task = await _wait_for_end(http, await send(http, "[[show blocks]]"))
            assert "remember me" not in ended_task["result"], "it is told once"
            messages = (await http.get(f"/sessions/{KEY}/messages")).json()["messages"]
            notices = [message["text"] for message in messages if message["role"] == "notice"]
            assert len(notices) == 2, notices
            assert all("midwatch gave it the" in notice for notice in notices)
    finally:
        await server.stop()


def _find_fakes(task_id: str) -> list[int]:
    """Return the pids of the task's processes that are the agent itself."""
    return [pid for pid in _find_agents(task_id) if FAKE.name in (Path("/proc") / str(pid) / "cmdline").read_text()]


def _find_agents(task_id: str) -> list[int]:
    return [pid for attempt in (1, 2) for pid in processes_with(f"MIDWATCH_TASK={task_id}/{attempt}")]


async def _working(memory: Path) -> bool:
    return any("[[hold go]]" in file.read_text() for file in memory.glob("s-*.json"))


async def _wait_for_end(http: Any, task_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            task: dict[str, Any] = (await http.get(f"/tasks/{task_id}")).json()
            if task["status"] in ("done", "failed", "cancelled"):
                return task
            await asyncio.sleep(0.02)


# -- two processes -----------------------------------------------------------------------------------------------------


async def test_a_conversation_is_used_watched_and_taken_over_by_another_process(tmp_path: Path, database: str) -> None:
    for name in ("a", "b"):
        configure(tmp_path / name, tmp_path / "memory", f'db = "{database}"\nshutdown_grace = 0')
    owner = WorkerProcess(tmp_path / "a")
    owner.start()
    try:
        async with Runtime.open(tmp_path / "b", work=False) as looking:
            await until(looking.living)
            await looking.sessions.create(agent="fake", key=KEY)
            assert (await send_message(looking, "one")).result == "you said one"
            first = (await looking.sessions.get(KEY)).session
        async with Runtime.open(tmp_path / "b") as b:
            assert (await send_message(b, "two")).result == "you said two"
            pieces = await collect_pieces(b, "[[flood 3000]] [[hold seen]]", tmp_path / "memory" / "seen")
            assert pieces, "nothing of what is written on the other host was seen while it was written"
            hanging = await b.sessions.send(KEY, "[[tool true]] [[hold never]]")
            await until(lambda: at_work(b, hanging))
            assert await b.sessions.interrupt(KEY) == hanging.id
            assert (await b.tasks.wait(hanging.id)).status == "cancelled"
            there = (await b.sessions.get(KEY)).session
            assert (there.live_owner, there.epoch) == (first.live_owner, 1), "it stayed where it was opened"
            cut = await b.sessions.send(KEY, "[[tool true]] [[hold never]]")
            await until(lambda: at_work(b, cut))
            mark = f"MIDWATCH_SESSION={KEY}"
            assert processes_with(mark)
            await owner.kill()
            await b.tasks.cancel(cut.id)
            recalled = await send_message(b, "[[recall]]")
            assert (recalled.status, "one | two" in (recalled.result or "")) == ("done", True)
            here = (await b.sessions.get(KEY)).session
            assert (here.live_owner != first.live_owner, here.epoch, here.thread_id) == (True, 2, first.thread_id)
        assert await eventually(lambda: not processes_with(mark)), "a process was left behind"
    finally:
        await owner.stop()


async def at_work(desk: Runtime, task: Task) -> bool:
    return "tool_exec_end" in await kinds(desk, task)


async def collect_pieces(desk: Runtime, prompt: str, seen_file: Path) -> list[str]:
    """Return the parts of an answer that another process saw while it was written; the answer ends when `seen_file`
    exists.
    """
    pieces: list[str] = []

    async def watch() -> None:
        async for batch in desk.bus.batches(0, EventFilter(session_key=KEY), live=True):
            pieces.extend(event.payload["text"] for event in batch if event.kind == "message_delta")
            if pieces:
                seen_file.touch()

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(60):
            await send_message(desk, prompt)
    finally:
        watching.cancel()
    return pieces


RULES = """
[approvals]
deny = [{path = "secret/**"}, {command = "git push **"}]
"""


async def run_task(desk: Runtime, prompt: str) -> Task:
    task = await desk.tasks.submit(prompt, agent="fake")
    return await desk.tasks.wait(task.id)


async def skipped(desk: Runtime, task: Task) -> list[tuple[str | None, str, str | None]]:
    """Return the call, the tool and the rule of each tool that was not run."""
    events = await desk.store.read_events(0, EventFilter(task_id=task.id, kinds=("tool_exec_skipped",)))
    return [(e.payload.get("tool_call_id"), e.payload["tool"], e.payload.get("rule")) for e in events]


async def test_rules_hold_for_what_midwatch_does_for_an_agent(tmp_path: Path) -> None:
    (tmp_path / "memory/secret").mkdir(parents=True)
    (tmp_path / "memory/secret/k").write_text("key")
    async with desk_at(tmp_path, RULES) as desk:
        for prompt, tool, rule in (
            ("[[read secret/k]]", "read_text_file", "deny any use of secret/**"),
            ("[[write x/../secret/new text]]", "write_text_file", "deny any use of secret/**"),
            ("[[run cp secret/k copy]]", "terminal", "deny any use of secret/**"),
            ("[[run git push origin]]", "terminal", "deny `git push **`"),
            ("[[run_in secret cat k]]", "terminal", "deny any use of secret/**"),
            ("[[run_in x/../secret cat k]]", "terminal", "deny any use of secret/**"),
        ):
            task = await run_task(desk, prompt)
            assert f"refused: It was not run: a rule forbids it ({rule})" in (task.result or "")
            assert await skipped(desk, task) == [(None, tool, rule)]
        assert [path.name for path in (tmp_path / "memory/secret").iterdir()] == ["k"]
        assert not (tmp_path / "memory/copy").exists()
        assert (await run_task(desk, "[[write ok text]] [[read ok]]")).result == "writtentext"


async def test_a_denied_request_is_a_skipped_tool_with_its_rule(tmp_path: Path) -> None:
    async with desk_at(tmp_path, RULES) as desk:
        task = await run_task(desk, "[[ask ar git push]]")
        ((call, tool, rule),) = await skipped(desk, task)
        assert ((call or "").startswith("call-"), tool, rule) == (True, "execute", "deny `git push **`")
        assert "- 'git push': not allowed: deny `git push **`" in (task.result or ""), "the agent was told the rule"


async def test_a_call_that_is_changed_while_it_is_asked_is_asked_again(tmp_path: Path) -> None:
    async with desk_at(tmp_path, RULES) as desk:
        for second, end in (("secret/k", "'Edit': not allowed: deny any use of secret/**"), ("other", "chose yes-1")):
            sending = asyncio.create_task(run_task(desk, f"[[swap first {second}]]"))
            first = await wait_for_question(desk)
            (tmp_path / "memory/swap").touch()
            named = f"{tmp_path}/memory/{second}"

            async def is_changed(path: str = named) -> bool:
                told = await desk.store.read_events(0, EventFilter(kinds=("thought_update",)))
                return any(path in str(event.payload) for event in told)

            await until(is_changed)
            await desk.approvals.answer(first.id, "Yes")
            if second == "other":
                again = await wait_for_question(desk)
                assert again.paths == (f"{tmp_path}/memory/first", named)
                await desk.approvals.answer(again.id, "Yes")
            assert end in ((await sending).result or "")
            (tmp_path / "memory/swap").unlink()


async def test_one_yes_is_enough_for_a_request_and_its_file(tmp_path: Path) -> None:
    async with desk_at(tmp_path, '[approvals]\nask = [{kind = "edit"}]\n') as desk:
        prompt = "[[diff notes]] [[write {0}/notes 1]] [[write {0}/notes 2]] [[write {0}/other 3]]"
        prompt = prompt.format(tmp_path / "memory")
        sending = asyncio.create_task(run_task(desk, prompt))
        for path in ("notes", "notes", "other"):
            question = await wait_for_question(desk)
            assert question.paths == (f"{tmp_path}/memory/{path}",)
            await desk.approvals.answer(question.id, question.choices[0].name)
        assert (await sending).result == "writtenwrittenwritten"


async def test_a_yes_to_read_a_file_allows_no_change(tmp_path: Path) -> None:
    async with desk_at(tmp_path, '[approvals]\nallow = [{kind = "read"}]\ndeny = [{kind = "edit"}]\n') as desk:
        path = tmp_path / "memory/notes"
        task = await run_task(desk, f"[[look {path}]] [[write {path} text]]")
        assert await skipped(desk, task) == [(None, "write_text_file", "deny edit")]
        assert not path.exists()
