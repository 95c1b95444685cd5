"""Test midwatch's own git while an agent changes the settings of git again and again."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hostile import ATTRIBUTES, append, hide_bwrap, open_desk, run_task, use_worktree, write_trap
from midwatch.programs import git_call
from repositories import a_repository, commit, git

ROUNDS = int(os.environ.get("MIDWATCH_ATTACK_ROUNDS", "5"))
PAUSE_SECONDS = 0.001


@pytest.fixture(autouse=True)
def ignore_git_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the git configuration of this machine."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Return a repository, all of whose files have a filter that is not configured."""
    repo = a_repository(tmp_path / "project")
    (repo / ".gitattributes").write_text(ATTRIBUTES)
    commit(repo, "attributes")
    return repo


@contextmanager
def repeating(act: Callable[[], None]) -> Iterator[None]:
    """Repeat an act in a thread during the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(random.uniform(0, 10 * PAUSE_SECONDS)):
            with suppress(OSError):
                act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def ask_for_worktrees(repo: Path, home: Path) -> None:
    """Ask for worktrees and use them. Git may fail when a file vanishes in between."""
    async with open_desk(home) as desk:
        for number in range(ROUNDS):
            task = await run_task(desk, f"echo {number} > new; echo three >> a.txt", repo)
            await use_worktree(desk, task.id)


async def test_a_repository_that_points_elsewhere_now_and_then(
    repo: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent writes and removes `.git/commondir`; git must never follow it, even where nothing locks git in."""
    hide_bwrap(tmp_path / "programs", monkeypatch)
    mark, evil, link = tmp_path / "mark", tmp_path / "evil", repo / ".git" / "commondir"
    shutil.copytree(repo / ".git", evil)
    append(evil / "config", write_trap(tmp_path / "trap", mark))

    def flip() -> None:
        link.with_name("new").write_text(f"{evil}\n")
        link.with_name("new").replace(link)
        time.sleep(PAUSE_SECONDS)  # the agent's own pace: midwatch must see the file sometimes, and not always
        link.unlink()

    with repeating(flip):
        await ask_for_worktrees(repo, home)
    assert not mark.exists()


@pytest.mark.skipif(not git_call.find_box(), reason="bubblewrap cannot be used here")
async def test_settings_that_change_while_git_runs(repo: Path, home: Path, tmp_path: Path) -> None:
    """An agent changes settings after midwatch has read them; then the sandbox of git holds its programs."""
    mark = tmp_path / "mark"
    git(repo, "config", "extensions.worktreeConfig", "true")
    settings = write_trap(tmp_path / "trap", mark).replace("= true", "= false").replace("submodule = diff", "")

    def flip() -> None:
        folders = [repo / ".git", *(repo / ".git" / "worktrees").glob("*")]
        for folder in folders:
            (folder / "config.worktree.new").write_text(settings)
            (folder / "config.worktree.new").replace(folder / "config.worktree")
        for folder in folders:
            (folder / "config.worktree").unlink()

    with repeating(flip):
        await ask_for_worktrees(repo, home)
    assert not mark.exists()
