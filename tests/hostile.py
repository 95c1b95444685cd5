"""Git settings that an agent could write, each of which would run a program, and a desk that meets them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings, Task
from midwatch.base.errors import MidwatchError
from repositories import git
from servers import PATIENCE

SHELL = '[agents.sh]\nkind = "command"\nargv = ["sh", "-c", "{prompt}"]\nmax_attempts = 1\n'
ATTRIBUTES = "* filter=e merge=e diff=e\n"


def write_trap(folder: Path, mark: Path) -> str:
    """Write a program that leaves the file `mark` behind and copies its input, and hooks that do the same.

    Return git settings that name them.
    """
    (folder / "hooks").mkdir(parents=True)
    program = folder / "trap"
    for file in (program, *(folder / "hooks" / name for name in HOOKS)):
        file.write_text(f"#!/bin/sh\n: > {mark}\nexec /bin/cat\n")
        file.chmod(0o755)
    return f"""
[core]
    fsmonitor = {program}
    hooksPath = {folder}/hooks
    editor = {program}
    pager = {program}
    askPass = {program}
    sshCommand = {program}
[filter "e"]
    clean = {program}
    smudge = {program}
    required = true
[filter "p"]
    process = {program}
[merge "e"]
    driver = {program}
[diff "e"]
    textconv = {program}
    command = {program}
[diff]
    external = {program}
    submodule = diff
[commit]
    gpgSign = true
[gpg]
    program = {program}
[merge]
    verifySignatures = true
[credential]
    helper = {program}
[protocol "ext"]
    allow = always
[remote "origin"]
    url = ext::{program}
    promisor = true
"""


HOOKS = (
    "post-checkout", "post-index-change", "reference-transaction", "pre-commit", "prepare-commit-msg", "commit-msg",
    "post-commit", "pre-merge-commit", "post-merge", "fsmonitor-watchman",
)  # fmt: skip


@asynccontextmanager
async def open_desk(home: Path, **settings: Any) -> AsyncIterator[Runtime]:
    """Open a desk whose agent `sh` runs its prompt, without a sandbox."""
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text(SHELL)
    loaded = Settings.load(home, shutdown_grace=0, detect_agents=False, default_agent="sh", **settings)
    async with Runtime.open(settings=loaded) as desk:
        yield desk


async def run_task(desk: Runtime, prompt: str, workdir: Path) -> Task:
    task = await desk.tasks.submit(prompt, workdir=str(workdir), worktree=True)
    async with asyncio.timeout(PATIENCE):
        return await desk.tasks.wait(task.id)


async def use_worktree(desk: Runtime, key: str) -> list[str]:
    """Do everything with a worktree that a person can do, and return the errors."""
    errors = []
    for act in (desk.worktrees.get, desk.worktrees.diff, desk.worktrees.merge, desk.worktrees.remove):
        with suppress(MidwatchError):
            try:
                await act(key)
            except MidwatchError as problem:
                errors.append(f"{act.__name__}: {problem}")
    with suppress(MidwatchError):
        await desk.worktrees.remove(key, force=True)
    return errors


def forget_object(repo: Path, name: str) -> None:
    """Remove the content of a file from the repository, so that git would fetch it."""
    blob = git(repo, "rev-parse", f"HEAD:{name}")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def hide_bwrap(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the search path to a directory with some programs, but without bubblewrap."""
    programs.mkdir()
    for name in ("git", "sh", "sed", "cat", "mkfifo", "sleep", "touch"):
        (programs / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(programs))
