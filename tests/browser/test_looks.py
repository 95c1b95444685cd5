"""Test every page, empty and busy, in light mode, dark mode and at phone width, and take screenshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from browsing import DESKTOP, PATIENT, PHONE, Desk, session_path
from repositories import a_repository

Look = Callable[..., Awaitable[Any]]

pytestmark = pytest.mark.asyncio(loop_scope="session")

CREW = """
detect_agents = false
shutdown_grace = 0
default_agent = "claude"

[agents.claude]
kind = "function"
target = "crew:run"
path = "HERE"
description = "reads, writes and reviews code"

[agents.codex]
kind = "function"
target = "crew:run"
path = "HERE"
slots = 2

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]

[agents.coder]
kind = "coder:Coder"
description = "thinks, plans, changes files and asks"

[agents.nightly]
kind = "command"
argv = ["no-such-program", "{prompt}"]
description = "compares backups"
"""
LONG = "\n".join(["averylongwordwithoutanyblanks" * 12, *("many lines of words that go on and on " * 5,) * 40])
"""A text that is likely to break a layout."""


@pytest.fixture(scope="module")
def settings() -> str:
    return CREW.replace("HERE", str(Path(__file__).parent))


async def test_an_empty_desk_looks_right(look: Look) -> None:
    pages = {"now": "/", "tasks": "/tasks", "new-task": "/tasks/new", "sessions": "/sessions", "events": "/events"}
    pages |= {"agents": "/agents", "settings": "/settings", "inbox": "/inbox", "usage": "/usage", "rules": "/rules"}
    await look(pages | {"budgets": "/budgets"}, "empty")


@PATIENT
async def test_a_busy_desk_looks_right(desk: Desk, look: Look) -> None:
    tasks, talk = await fill(desk)
    pages = {
        "now": "/",
        "tasks": "/tasks",
        "new-task": "/tasks/new?prompt=Review%20the%20change",
        "sessions": "/sessions",
    }
    pages |= {"new-session": "/sessions?new=1", "session": session_path(talk), "events": "/events", "agents": "/agents"}
    pages |= {"inbox": "/inbox", "usage": "/usage?days=7", "usage-model": "/usage?by=model&days=30"}
    pages |= {"session-work": session_path("chat:worker"), "session-held": session_path("chat:held")}
    pages |= {"session-long": session_path("chat:long")}
    pages |= {"event": "/events?at=20", "settings": "/settings", "no-task": "/tasks?status=cancelled&agent=nobody"}
    pages |= {f"task-{name}": f"/tasks/{id}" for name, id in tasks.items()}
    await look(pages, "busy")


async def test_the_sign_in_page_looks_right(desk: Desk, faults: Look) -> None:
    desk.expect_problem("status of 401")
    for viewport, pictures in (
        (DESKTOP, {"light": "sign-in-light", "dark": "sign-in-dark"}),
        (PHONE, {"light": "sign-in-phone"}),
    ):
        page = await (await desk.context(viewport=viewport)).new_page()
        await page.goto("/sign-in#spent")
        await expect(page.get_by_label("Token")).to_be_focused()
        assert await faults(page, **pictures) == []


async def fill(desk: Desk) -> tuple[dict[str, str], str]:
    """Fill a desk and return the ids of its tasks by their status, and a conversation."""
    done = await desk.submit(
        "Review the retry logic in worker.py and say whether it can be released", "claude", route="console"
    )
    await desk.submit("Triage my inbox: file what is noise, list what needs me", "claude")
    await desk.submit("Check all links of the site and name the slow ones", "codex", workdir="/tmp")
    failed = await desk.submit("Summarise the quota report of the provider", "codex", priority=5)
    refused = await desk.submit(
        "Compare the backups of Monday and Tuesday", "nightly", route="webhook:http://127.0.0.1:9/"
    )
    for task_id in (done, failed, refused):
        await desk.wait_for_end(task_id)
    retried = (await desk.post(f"/tasks/{failed}/retry"))["id"]
    await desk.wait_for_end(retried)
    running = await desk.submit(
        "Compare the nightly export with the one before and explain every difference you find", "claude"
    )
    asking = await desk.submit("Build the site and deploy it when everything is green", "claude")
    delayed = await desk.submit("Write the weekly report", "claude", delay="2h")
    talk = (await desk.post("/sessions", {"agent": "claude", "title": "Release 0.2", "workdir": "/tmp"}))["key"]
    for text in (
        "Please review the last change to the worker",
        "And how about the nightly export?",
        "Then tell the crew",
    ):
        sent = await desk.post(f"{session_path(talk)}/messages", {"text": text})
        if "review" in text:
            await desk.wait_for_end(sent["id"])
    worked = await desk.submit("Put a ceiling on the back-off", "coder", session_key="chat:worker")
    await desk.wait_for_end(worked)
    await desk.submit("Now with asks, please", "coder", session_key="chat:worker")
    holding = await desk.submit("Put a ceiling on the back-off, and hold", "coder", session_key="chat:held")
    await desk.submit(f"say:{LONG}", "coder", session_key="chat:long")
    prompt = "echo one > one.txt; git add one.txt; git commit -qm one; echo two > two.txt; echo >> a.txt"
    branched = await desk.submit(
        prompt, "shell", workdir=str(a_repository(desk.server.home.parent / "repo")), worktree=True
    )
    await desk.wait_for_end(branched)
    ruled = await desk.submit("Take the time by the clock", "coder", workdir="/tmp")
    reply = await desk.until(
        "/approvals", lambda inbox: [approval for approval in inbox["approvals"] if approval["task_id"] == ruled]
    )
    mine = next(approval["id"] for approval in reply["approvals"] if approval["task_id"] == ruled)
    await desk.post(f"/approvals/{mine}/approve", {"always": True, "why": "it is asked every night"})
    await desk.wait_for_end(await desk.submit("Take the time by the clock once more", "coder", workdir="/tmp"))
    await desk.submit("Take the time by the clock of another place", "coder", workdir="/")
    await desk.post("/sessions", {"agent": "codex", "key": "chat:ideas/harbour|2", "workdir": "/tmp"})
    await desk.post("/tokens", {"name": "phone", "role": "operator", "actor": "anna"})
    await desk.post("/tokens", {"name": "wall-display", "role": "viewer"})
    await desk.until("/now", lambda now: now["approvals"] and len(now["approvals"]) == 5 and len(now["running"]) == 7)
    return {
        "done": done,
        "failed": retried,
        "refused": refused,
        "running": running,
        "asking": asking,
        "delayed": delayed,
        "worked": worked,
        "held": holding,
        "branched": branched,
    }, talk
