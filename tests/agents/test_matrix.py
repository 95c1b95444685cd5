"""Test real agents of every kind under a real midwatch with a fake model. `agents.matrix` names the cases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agents.known import BAD_KEY, Known
from agents.rig import PATIENCE, Json, Rig, start_rig, wait_for
from midwatch.agents.known import KNOWN
from midwatch.programs import sandbox
from midwatch.programs.state import find_state
from repositories import a_repository, git

REFUSED = sandbox._try_sandbox("bwrap")
LONGEST_WAIT = 200.0
"""Seconds until a task is parked: midwatch gives a program that waits by itself two minutes."""
QUOTES = (
    "You've hit your usage limit, resets 3pm.",
    "API Error: 401 Unauthorized",
    "Please run /login",
    "✕ API Error: quota exceeded",
    "Ran into this error: Rate limit exceeded.",
)
"""Answers that read like failures."""
pytestmark = pytest.mark.timeout(400)


@pytest.mark.matrix
async def test_three_turns(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        assert "noted" in await rig.turn(key, "My name is Ada. [[say noted]]")
        assert "noted" in await rig.turn(key, "I live in Bonn. [[say noted]]")
        answer = await rig.turn(key, "[[recall]]")
        assert "Ada" in answer
        assert "Bonn" in answer


def check_question(rig: Rig, question: Json, command: str) -> None:
    """Check that a question tells the command, its kind and its risk."""
    assert (question["command"], question["kind"], question["risk"]) == (command, "execute", "medium"), question
    assert len(question["choices"]) >= 2


async def answer_two_questions(rig: Rig, key: str) -> Json:
    """Let the agent use two tools in one turn; allow the first, deny the second, and return the task."""
    task_id = await rig.send(key, "[[escalate touch made.txt]] [[escalate touch unmade.txt]] [[say all done]]")
    question = await rig.wait_for_question(task_id)
    check_question(rig, question, "touch made.txt")
    assert not (rig.work / "made.txt").exists()
    await rig.client.approve(question["id"])
    question = await rig.wait_for_question(task_id)
    check_question(rig, question, "touch unmade.txt")
    assert (rig.work / "made.txt").exists()
    denied = await rig.client.deny(question["id"], "not today")
    assert denied["status"] == "denied"
    return await rig.wait_for_end(task_id)


async def permit_and_forbid(rig: Rig, key: str) -> Json:
    """Let an agent that cannot ask use two tools, the first with all permissions, and return the second task."""
    await rig.restart(permissions="all")
    assert "all done" in await rig.turn(key, "[[shell touch made.txt]] [[say all done]]")
    assert (rig.work / "made.txt").exists()
    await rig.restart(on_denial="fail", **rig.known.forbid)
    return await rig.wait_for_end(await rig.send(key, "[[escalate touch unmade.txt]] [[say all done]]"))


async def test_two_tools(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        await rig.turn(key, "[[say ready]]")
        task = await (permit_and_forbid if kind == "headless" else answer_two_questions)(rig, key)
        assert not (rig.work / "unmade.txt").exists()
        said = task["error"] or task["result"]
        assert said, "it ended without a word"
        assert known.refusal in said if kind == "headless" else task["outcome"] == "ok" or "denied" in said, rig.tell(
            task
        )
        assert kind != "acp" or "not today" in said, "the agent was not told the reason"
        assert await rig.turn(key, "Go on [[say still here]]"), "it goes on, with whatever it makes of the refusal"


@pytest.mark.matrix
async def test_expiring_question(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        await rig.turn(key, "[[say ready]]")  # some programs ask at their start
        await rig.restart(approvals={"expires": 1.5})
        task_id = await rig.send(key, "[[escalate touch unmade.txt]] [[say all done]]")
        question = await rig.wait_for_question(task_id, "all")  # it may end before it is read
        await rig.wait_for_end(task_id)
        assert (await rig.client.approval(question["id"]))["status"] == "expired"
        assert not (rig.work / "unmade.txt").exists()


async def test_cancel(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"[[hold {name}]]")
        await rig.wait_for_hold(name)
        await rig.client.cancel(task_id)
        task = await rig.wait_for_end(task_id)
        assert (task["status"], task["outcome"]) == ("cancelled", "cancelled")
        rig.model.release(name)  # an agent may repeat the text that was interrupted
        assert "Ada" in await rig.turn(key, "[[recall]]")
        assert kind != "terminal" or (await rig.client.session(key))["epoch"] == 1, "the program was started again"


async def test_usage_limit(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"[[{known.limit_of(kind).format(name=name)}]] [[say back again]]")

        async def is_parked() -> str | None:
            task = await rig.client.get(task_id)
            assert task["status"] in ("pending", "running"), rig.tell(task)
            return task["due_at"] if (task["status"], task["wait"]) == ("pending", "limit") else None

        due = datetime.fromisoformat(await wait_for(is_parked, "the task is parked", LONGEST_WAIT))
        assert due <= datetime.now(UTC) + timedelta(minutes=62)
        assert await rig.client.approvals() == [], "a limit is no question"
        rig.model.lift(name)
        if due > datetime.now(UTC) + timedelta(seconds=10):  # reported in minutes, or not at all
            await rig.make_due(task_id)
        task = await rig.grant_until_end(task_id)
        assert (task["status"], task["outcome"], task["failures"]) == ("done", "ok", 0), rig.tell(task)
        assert "Ada" in await rig.turn(key, "[[recall]]")


@pytest.mark.matrix
async def test_not_signed_in(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path, key=BAD_KEY) as rig:
        for options in ({}, {"env": {known.signed_in_by: ""}}) if known.signed_in_by else ({},):
            if options:
                await rig.restart(**options)
            task = await rig.grant_until_end(await rig.send(await rig.open(), "[[say hello]]"))
            assert (task["status"], task["outcome"]) == ("failed", "error"), rig.tell(task)
            assert "is not signed in" in task["error"]
            assert KNOWN[known.name].sign_in in task["error"]
            asked: list[Any] = await rig.client.approvals("all")
            assert not [question for question in asked if "trust" not in question["question"]], "it asks nothing"


@pytest.mark.matrix
async def test_api_error(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        for text in QUOTES:
            assert text in " ".join((await rig.turn(key, f"[[say {text}]]")).split())
        task = await rig.grant_until_end(await rig.send(key, "[[fail 400]]"))
        assert (task["status"], task["outcome"]) == ("failed", "error"), rig.tell(task)
        assert task["error"].startswith(f"{known.name} failed")


async def test_killed_server(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"I live in Bonn. [[hold {name}]] [[say finished]]")
        await rig.wait_for_hold(name)
        await rig.kill()
        rig.model.release(name)
        await rig.start()
        task = await rig.grant_until_end(task_id, PATIENCE * 2)
        assert (task["status"], task["outcome"], task["rescues"]) == ("done", "ok", 1), rig.tell(task)
        assert "finished" in task["result"]
        assert "Ada" in await rig.turn(key, "[[recall]]")


@pytest.mark.matrix
async def test_restarted_server(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        await rig.restart()
        assert "Ada" in await rig.turn(key, "[[recall]]")


@pytest.mark.matrix
async def test_worktree(known: Known, kind: str, tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "work")
    before = git(repository, "rev-parse", "main"), git(repository, "status", "--porcelain")
    options, verb = ({"permissions": "all"}, "shell") if kind == "headless" else ({}, "escalate")
    async with start_rig(known, kind, tmp_path, **options) as rig:
        key = await rig.open(worktree=True)
        await rig.turn(key, "[[say ready]]")
        task = await rig.grant_until_end(await rig.send(key, f"[[{verb} touch made.txt]] [[say all done]]"))
        assert task["outcome"] == "ok", rig.tell(task)
        note = task["worktree"]
        assert (note["status"], note["files"]) == ("kept", 1), note
        assert (Path(note["path"]) / "made.txt").exists()
        assert (git(repository, "rev-parse", "main"), git(repository, "status", "--porcelain")) == before
        await rig.client.merge_worktree(note["id"])
        assert "made.txt" in git(repository, "ls-tree", "--name-only", note["branch"]).splitlines()


FIELDS = ("text", "content", "result", "delta", "deltaContent", "message", "response", "item", "part", "stopReason")
SIGNS = {"❯": "➤", "›": "»", "●": "■", "⏺": "■", "✦": "✧", "◆": "◇", "•": "▪", "┃": "║"} | {
    "Type your message": "Your message here",
    "Ask anything": "Say anything",
    "Enter to send": "Send by Enter",
}


async def test_renamed_output(known: Known, kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"quiet": 5.0} if kind == "terminal" else {}
    async with start_rig(known, kind, tmp_path, intercepted=True, **options) as rig:
        key = await rig.open()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        rig.rename(signs=SIGNS, fields=FIELDS)
        task = await rig.grant_until_end(await rig.send(key, "[[say all done]]"))
        assert task["outcome"] == "error" or "all done" in task["result"], rig.tell(task)
        if kind != "terminal":
            assert "not understood" in task["error"], rig.tell(task)


@pytest.mark.matrix
@pytest.mark.skipif(REFUSED is not None, reason=f"bubblewrap cannot be used here: {REFUSED}")
async def test_sandbox(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path, sandbox="bwrap") as rig:
        user, before = tmp_path / "agent", {}
        for name in find_state(known.name).shown:
            if not name.endswith("/") and (user / name).is_file():
                before[user / name] = (user / name).read_bytes()
        key = await rig.open()
        assert "noted" in await rig.turn(key, "My name is Ada. [[say noted]]")
        await rig.restart()
        assert "Ada" in await rig.turn(key, "[[recall]]")
        kept = tuple(name.rstrip("/") for name in find_state(known.name).kept)
        written = [str(path.relative_to(user)) for path in user.rglob("*") if path.is_file() and path not in before]
        assert [name for name in written if not name.startswith(kept)] == []
        assert {path: path.read_bytes() for path in before} == before
