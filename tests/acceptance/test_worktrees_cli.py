"""Test worktrees on the command line and over HTTP, with and without a server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from commands import run
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.client import Client
from repositories import a_repository, git
from servers import PROGRAM, Server, environment, eventually

CONFIG = """
detect_agents = false
default_agent = "shell"

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]

[agents.alone]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
share_workdir = false
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return a_repository(tmp_path / "project")


@pytest.fixture
def home(home: Path) -> Path:
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG)
    return home


@asynccontextmanager
async def serve_client(home: Path) -> AsyncIterator[Client]:
    """Yield a client of a live server."""
    server = Server(home)
    await server.start()
    try:
        async with Client(server.url, (home / "token").read_text().strip()) as client:
            yield client
    finally:
        await server.stop()


async def wait_for_end(client: Client, task_id: str) -> None:
    async with asyncio.timeout(60):
        while (await client.get(task_id))["status"] in ("pending", "running"):
            await asyncio.sleep(0.02)


def midwatch(home: Path, folder: Path, *arguments: str, said: str | None = None) -> subprocess.CompletedProcess[str]:
    return run(arguments, env=environment(home), cwd=folder, said=said)


def run_json(home: Path, folder: Path, *arguments: str) -> Any:
    ran = midwatch(home, folder, *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def run_refused(home: Path, folder: Path, status: int, *arguments: str) -> str:
    ran = midwatch(home, folder, *arguments)
    assert (ran.returncode, ran.stdout) == (status, ""), ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.rstrip().endswith(".")
    return ran.stderr


def test_a_worktree_is_made_merged_and_removed_without_a_server(home: Path, repo: Path) -> None:
    hook = repo / ".git" / "hooks" / "post-merge"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    assert "No worktrees." in midwatch(home, repo, "worktrees").stdout
    ran = midwatch(home, repo / "-sub", "run", "--worktree", "echo new > new; touch .envrc; pwd")
    assert ran.returncode == 0, ran.stderr
    (tree,) = run_json(home, repo, "worktrees")["worktrees"]
    assert f"{tree['branch']} 2 files +1 -0" in ran.stderr
    assert Path(ran.stdout.strip()) == Path(tree["path"], "-sub")
    shown = midwatch(home, repo, "worktree", "show", tree["id"]).stdout
    assert "2 files +1 -0" in shown
    assert f"Then: midwatch worktree diff {tree['id']}" in midwatch(home, repo, "show", tree["task_id"]).stdout
    code = "files run code when they are used; read them:\n  -sub/.envrc: an editor or a shell that opens"
    diff = midwatch(home, repo, "worktree", "diff", tree["task_id"])
    assert ("+new" in diff.stdout, code in diff.stderr) == (True, True)
    cut = midwatch(home, repo, "worktree", "diff", tree["id"], "--limit", "10")
    assert (len(cut.stdout), "--limit 100" in cut.stderr) == (10, True)
    why = run_refused(home, repo, 4, "worktree", "remove", tree["id"])
    assert "has 2 uncommitted files, which would be lost" in why
    merged = midwatch(home, repo, "worktree", "merge", tree["id"], "--hooks")
    assert code in merged.stdout
    assert (repo / "hooked").exists()
    assert f"{tree['branch']} is merged into main (fast-forward)" in merged.stdout, merged.stderr
    assert (repo / "-sub" / "new").exists()
    assert "is removed" in midwatch(home, repo, "worktree", "remove", tree["id"]).stdout
    assert git(repo, "branch", "--list", "midwatch/*") == ""
    assert run_json(home, repo, "worktrees", "--status", "removed")["worktrees"][0]["id"] == tree["id"]
    assert "midwatch worktrees" in run_refused(home, repo, 3, "worktree", "show", "w_none")
    assert "is not in the checkout of a git repository" in run_refused(
        home, repo.parent, 2, "submit", "--worktree", "x"
    )


def test_a_chat_keeps_one_worktree_and_names_it_on_close(home: Path, repo: Path) -> None:
    first = midwatch(home, repo, "chat", "chat:1", "--worktree", said="echo 1 > one\n")
    assert first.returncode == 0, first.stderr
    again = midwatch(home, repo, "chat", "chat:1", said="ls\n")
    assert "one" in again.stdout, again.stderr
    closed = midwatch(home, repo, "session", "close", "chat:1").stdout
    (tree,) = run_json(home, repo, "worktrees")["worktrees"]
    assert f"Its worktree {tree['id']} is kept in {tree['path']}, on {tree['branch']}: 1 file +1 -0" in closed
    reopened = midwatch(home, repo, "chat", "chat:1", said="ls\n")
    assert "one" in reopened.stdout, reopened.stderr
    session = run_json(home, repo, "session", "new", "--worktree")
    assert session["worktree"].startswith("w_")
    assert not (repo / "one").exists()


async def test_worktrees_are_managed_over_http(home: Path, repo: Path) -> None:
    async with serve_client(home) as client:
        first_task = await client.submit("echo x > x", {"workdir": str(repo), "worktree": True})
        assert first_task["worktree"] is not None
        assert first_task["worktree"]["status"] in ("planned", "making", "kept")
        await wait_for_end(client, first_task["id"])
        task = await client.get(first_task["id"])
        assert task["worktree"] is not None
        assert (task["worktree"]["files"], task["worktree"]["dirty"]) == (1, True), task
        tree = await client.worktree(task["id"])
        assert tree == (await client.worktrees())["worktrees"][0] | {"updated_at": tree["updated_at"]}
        changes = await client.worktree_diff(tree["id"])
        assert ("+x" in changes["diff"], changes["runs_code"]) == (True, [])
        with pytest.raises(InvalidInput):
            await client.worktree_diff(tree["id"], limit=0)
        with pytest.raises(Conflict, match="would be lost"):
            await client.remove_worktree(tree["id"])
        merged = await client.merge_worktree(tree["id"])
        assert (merged["into"], merged["how"], merged["worktree"]["status"]) == ("main", "fast-forward", "merged")
        assert (await client.remove_worktree(tree["id"]))["status"] == "removed"
        assert (await client.worktrees())["worktrees"] == []
        with pytest.raises(NotFound, match="midwatch worktrees"):
            await client.worktree("w_1")
        with pytest.raises(InvalidInput, match="worktree"):
            await client.submit("x", {"workdir": str(repo), "worktree": "yes"})  # type: ignore[typeddict-item]


async def test_two_tasks_of_a_coding_agent_share_a_directory_only_on_request(home: Path, repo: Path) -> None:
    async with serve_client(home) as client:
        holder = await client.submit("touch begun; sleep 600", {"agent": "alone", "workdir": str(repo)})
        assert await eventually((repo / "begun").exists)
        second = await client.submit("echo second", {"agent": "alone", "workdir": str(repo / "-sub")})
        waiting = await client.get(second["id"])
        assert (waiting["wait"], waiting["status"]) == ("directory", "pending")
        assert waiting["status_text"] == "pending: waits for the task that works in its directory"
        sharing = {"agent": "alone", "workdir": str(repo), "share_workdir": True}
        for fields in (sharing, {"agent": "shell", "workdir": str(repo)}, {**sharing, "worktree": True}):
            beside = await client.submit("echo beside", fields)  # type: ignore[arg-type]
            await wait_for_end(client, beside["id"])
        assert (await client.get(second["id"]))["status"] == "pending"
        await client.cancel(holder["id"])
        await wait_for_end(client, second["id"])
        assert (await client.get(second["id"]))["result"] == "second"


async def test_run_prints_why_its_task_does_not_start(home: Path, repo: Path) -> None:
    async with serve_client(home) as client:
        holder = await client.submit("touch begun; sleep 600", {"agent": "alone", "workdir": str(repo)})
        assert await eventually((repo / "begun").exists)
        running = await asyncio.create_subprocess_exec(
            PROGRAM, "run", "--agent", "alone", "echo second", env=environment(home), cwd=repo,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert running.stderr is not None
            async with asyncio.timeout(60):
                assert b"submitted to alone" in await running.stderr.readline()
                assert b"waits for the task that works in its directory" in await running.stderr.readline()
            await client.cancel(holder["id"])
            output, _ = await asyncio.wait_for(running.communicate(), 60)
            assert (running.returncode, output) == (0, b"second\n")
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()


async def test_an_agent_does_not_see_the_worktrees_of_others(home: Path, repo: Path) -> None:
    async with serve_client(home) as client:
        first = await client.submit("echo x > x", {"workdir": str(repo), "worktree": True})
        await wait_for_end(client, first["id"])
        script = f"midwatch worktree diff {first['id']}; midwatch worktree merge {first['id']}"
        task = await client.submit(script.replace("midwatch", str(PROGRAM)), {"workdir": str(repo)})
        await wait_for_end(client, task["id"])
        error = (await client.get(task["id"]))["error"] or ""
        assert "may not see the desk as a whole" in error
        assert "may not change, stop" in error
