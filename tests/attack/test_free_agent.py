"""Test that an agent in a sandbox that tries everything leaves the host, the owner's token and the server untouched."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from midwatch.programs import sandbox
from repositories import a_repository, git
from servers import PATIENCE, Server, processes_with

SECONDS = float(os.environ.get("MIDWATCH_ATTACK_SECONDS", "8"))
REFUSED = sandbox._try_sandbox("bwrap")
pytestmark = [
    pytest.mark.skipif(REFUSED is not None, reason=f"bubblewrap cannot be used here: {REFUSED}"),
    pytest.mark.timeout(6 * SECONDS + 400),
]
HERE = Path(__file__).parent
MOST_TREES = 10
TRICKS = 21
PRIVATE = "PRIVATE-TO-THE-OWNER"
SETTINGS = """
default_agent = "free"
detect_agents = false
max_open = 100000
log_level = "warning"
[agents.free]
kind = "command"
argv = ["sh", "-c", "{{prompt}}"]
sandbox = "bwrap"
sandbox_read = [{read}]
submits = true
slots = 6
max_attempts = 1
[agents.demo]
kind = "demo"
slots = 4
"""


class World(NamedTuple):
    """A user's home with secrets and a project, a second checkout of the project, midwatch's home, and a directory
    where programs that run outside of the sandbox leave a mark.
    """

    user: Path
    project: Path
    other: Path
    home: Path
    marks: Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    user = tmp_path / "user"
    project = a_repository(user / "project")
    git(project, "config", "extensions.worktreeConfig", "true")
    git(project, "worktree", "add", "-q", str(user / "other"))
    for name, text in {
        ".ssh/key": "a secret key\n", ".bashrc": "# rc\n", ".profile": "# profile\n", ".claude.json": "{}\n",
        ".claude/settings.json": "{}\n", ".claude/.credentials.json": "{}\n",
        ".gitconfig": "[user]\n\tname = Ann\n\temail = ann@example.org\n",
    }.items():  # fmt: skip
        (user / name).parent.mkdir(exist_ok=True)
        (user / name).write_text(text)
    home, marks = user / ".midwatch", tmp_path / "marks"
    home.mkdir()
    marks.mkdir()
    read = ", ".join(f'"{path}"' for path in (HERE, sys.prefix, sys.base_prefix))
    (home / "midwatch.toml").write_text(SETTINGS.format(read=read))
    return World(user, project, user / "other", home, marks)


@pytest.fixture
async def server(world: World) -> AsyncIterator[Server]:
    server = Server(world.home, HOME=str(world.user), GIT_CONFIG_SYSTEM=os.devnull)
    await server.start()
    try:
        yield server
    finally:
        assert await server.stop() == 0, server.log.read_text()[-3000:]


def fingerprint(world: World) -> dict[str, str]:
    """Return a hash of each file that the agent must not change."""
    paths = [world.home / name for name in ("token", "midwatch.toml")]
    for folder in (world.user / ".ssh", world.user / ".claude", world.other):
        paths += folder.rglob("*")
    paths += [path for path in world.user.glob(".*") if path.is_file()]
    paths += [world.project / ".git" / name for name in ("config", "HEAD", "index", "packed-refs")]
    for name in ("hooks", "info", "worktrees/other"):
        paths += (world.project / ".git" / name).rglob("*")
    missing = [world.project / ".git" / name for name in ("commondir", "config.worktree", "modules")]
    files = {path for path in (*paths, *missing) if path.name != ".credentials.json" and not path.is_dir()}
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none" for path in files}


async def use_the_desk(http: httpx2.AsyncClient, ended: asyncio.Event) -> int:
    """Submit tasks of another agent while the free agent runs; each must be accepted and done."""
    count = 0
    while not ended.is_set():
        assert (await http.get("/health")).status_code == 200
        reply = await http.post("/tasks", json={"prompt": f"{PRIVATE} {count}", "agent": "demo"})
        assert reply.status_code == 201, reply.text
        await wait_for_end(http, reply.json()["id"])
        count += 1
    return count


async def wait_for_end(http: httpx2.AsyncClient, task_id: str, seconds: float = 2 * PATIENCE) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        while True:
            task: dict[str, Any] = (await http.get(f"/tasks/{task_id}")).json()
            if task["status"] in ("done", "failed", "cancelled"):
                return task
            await asyncio.sleep(0.05)


async def cancel_everything(http: httpx2.AsyncClient) -> None:
    """Cancel the tasks that the agent has submitted. A task with files that nobody can read must end as well."""
    for status in ("pending", "running"):
        while left := (await http.get(f"/tasks?status={status}&limit=500")).json()["tasks"]:
            for task in left:
                await http.post(f"/tasks/{task['id']}/cancel")
            for task in left:
                await wait_for_end(http, task["id"])


async def look_at_everything(world: World, http: httpx2.AsyncClient) -> None:
    """Do what a person does afterwards: compare, merge and remove worktrees, and use git in their own checkouts."""
    trees = (await http.get("/worktrees?limit=500")).json()["worktrees"]
    for tree in [*trees[:MOST_TREES], *trees[-1:]]:  # the last one is the agent's own
        await http.get(f"/worktrees/{tree['id']}")
        await http.get(f"/worktrees/{tree['id']}/diff")
        await http.post(f"/worktrees/{tree['id']}/merge")
        await http.delete(f"/worktrees/{tree['id']}?force=true")
    for checkout in (world.project, world.other):
        for words in (("status",), ("diff",), ("log", "--oneline"), ("worktree", "list"), ("add", "a.txt")):
            await asyncio.to_thread(git, checkout, *words)


@pytest.mark.parametrize("apart", [True, False], ids=["worktree", "checkout"])
async def test_a_free_agent_stays_in_its_sandbox(world: World, server: Server, apart: bool) -> None:
    before = fingerprint(world)
    prompt = " ".join(
        [f"exec {sys.executable} {HERE}/free_agent.py {SECONDS}", *map(str, (world.marks, world.user, world.home)),
         str(world.project)]
    )  # fmt: skip
    async with server.client() as http:
        process = server.process
        assert process is not None
        session = (await http.post("/sessions", json={"key": f"chat:{PRIVATE}", "agent": "demo"})).json()
        assert session["key"] == f"chat:{PRIVATE}"
        attack = await http.post("/tasks", json={"prompt": prompt, "workdir": str(world.project), "worktree": apart})
        ended = asyncio.Event()
        working = asyncio.create_task(use_the_desk(http, ended))
        task = await wait_for_end(http, attack.json()["id"], 4 * SECONDS + 120)
        ended.set()
        assert await working > 0
        assert task["status"] == "done", task["error"]
        report = json.loads(task["result"])
        print(f"\n{sum(report['tried'].values())} tries of {len(report['tried'])} tricks")
        assert report["loot"] == {}
        assert len(report["tried"]) == TRICKS
        await cancel_everything(http)
        await look_at_everything(world, http)
        assert (await http.get("/ready")).status_code == 200
        assert process.poll() is None, "the server is the same"
        assert list(world.marks.iterdir()) == [], "a program of the agent ran outside of the sandbox"
        after = fingerprint(world)
        assert {path: after.get(path) for path in before} == before
        await find_secret(world, server, http)
        assert await asyncio.to_thread(processes_with, f"MIDWATCH_TASK={task['id']}/1") == []


async def find_secret(world: World, server: Server, http: httpx2.AsyncClient) -> None:
    """Fail if the owner's token is in a file that the agent could write, in an event or in the server's log."""
    secret = (world.home / "token").read_text().strip().encode()
    for folder in (world.project, world.home / "worktrees"):
        for path in folder.rglob("*"):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000:
                    assert secret not in path.read_bytes(), path
    assert secret.decode() not in server.log.read_text(errors="replace")
    events = await http.get("/events?after=0&limit=1000", headers={"accept": "application/json"})
    assert secret.decode() not in events.text
