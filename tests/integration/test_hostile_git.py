"""Test that midwatch's own git runs nothing that an agent wrote, with and without bubblewrap, and never hangs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hostile import ATTRIBUTES, append, forget_object, hide_bwrap, open_desk, run_task, use_worktree, write_trap
from midwatch import Runtime
from midwatch.base.errors import Conflict, Forbidden
from midwatch.domain.identity import Actor
from midwatch.programs import git_call
from midwatch.programs.git import GitProgram
from repositories import a_repository, commit, git
from servers import PATIENCE, eventually, processes_with

NEEDS_BWRAP = pytest.mark.skipif(not git_call.find_box(), reason="bubblewrap cannot be used here")
QUICKLY = 20.0  # seconds; far below the timeout of a git call


@pytest.fixture(autouse=True)
def ignore_git_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the git configuration of this machine."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return a_repository(tmp_path / "project")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Return the path of the file that shows that a program of the agent ran."""
    return tmp_path / "mark"


@pytest.fixture
def without_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide bubblewrap: what an agent wrote must be switched off, and not only be locked in."""
    hide_bwrap(tmp_path / "programs", monkeypatch)


# -- where an agent can write settings of git --------------------------------------------------------------------


def in_commondir(repo: Path, settings: str, tmp_path: Path) -> None:
    """Send git from the repository to a copy with other settings."""
    shutil.copytree(repo / ".git", tmp_path / "evil")
    append(tmp_path / "evil" / "config", settings)
    (repo / ".git" / "commondir").write_text(f"{tmp_path}/evil\n")


def in_settings_of_worktrees(repo: Path, settings: str, _: Path) -> None:
    """Write the settings of single worktrees, which git reads if the extension is on."""
    git(repo, "config", "extensions.worktreeConfig", "true")
    for folder in (repo / ".git", *(repo / ".git" / "worktrees").glob("*")):
        (folder / "config.worktree").write_text(settings)


def in_every_worktree(repo: Path, settings: str, tmp_path: Path) -> None:
    """Send git from the worktrees to a repository with other settings."""
    shutil.copytree(repo / ".git", tmp_path / "evil")
    append(tmp_path / "evil" / "config", settings)
    for folder in (repo / ".git" / "worktrees").glob("*"):
        (folder / "commondir").write_text(f"{tmp_path}/evil\n")


def in_own_repository(repo: Path, settings: str, tmp_path: Path) -> None:
    """Write the settings of the repository itself, also by including a file: an agent may have made all of it."""
    (tmp_path / "more").write_text(settings)
    append(repo / ".git" / "config", f"[include]\n\tpath = {tmp_path}/more\n")


PLANTS = (in_commondir, in_settings_of_worktrees, in_every_worktree, in_own_repository)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
@pytest.mark.usefixtures("without_bwrap")
async def test_settings_of_an_agent_run_nothing(
    repo: Path, home: Path, tmp_path: Path, mark: Path, plant: Callable[[Path, str, Path], None], early: bool
) -> None:
    settings = write_trap(tmp_path / "trap", mark)
    checkout = tmp_path / "linked" if plant is in_every_worktree else repo
    if checkout != repo:  # the task starts in a worktree, which git finds by a file that an agent can write
        git(repo, "worktree", "add", "--quiet", "-b", "linked", str(checkout))
    if early:
        plant(repo, settings, tmp_path)
    async with open_desk(home) as desk:
        work = f"echo '{ATTRIBUTES}' > .gitattributes; echo 'a.txt filter=p' >> .gitattributes; echo three >> a.txt"
        task = await run_task(desk, f"{work}; echo new > new", checkout)
        if not early:
            plant(repo, settings, tmp_path)
        (repo / ".gitattributes").write_text(ATTRIBUTES)
        if plant is in_commondir:
            refused = "commondir makes git use another repository"
            assert refused in ((task.error or "") if early else (await use_worktree(desk, task.id))[0])
        elif plant is in_every_worktree and early:
            assert "is not the directory of a repository" in (task.error or "")
        else:
            assert "+three" in (await desk.worktrees.diff(task.id)).text, task.error
            forget_object(repo, "-sub/b.txt")
            errors = await use_worktree(desk, task.id)
            assert not any("stopped after" in error for error in errors), errors
    assert not mark.exists()


@NEEDS_BWRAP
async def test_a_filter_that_is_allowed_runs_in_a_sandbox(
    repo: Path, home: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = git_call.find_box()
    secret, outside = home / "token", Path(f"/tmp/midwatch-{os.getpid()}")
    escapes = f"touch {mark} {outside}; cat {secret}; env | grep SECRET"
    monkeypatch.setenv("SECRET", "x")
    (repo / ".gitattributes").write_text("*.loud filter=up\n")
    (repo / "x.loud").write_text("loud\n")
    commit(repo, "loud")
    smudge = f"({escapes}) 2>/dev/null; sed s/loud/LOUD/; readlink /proc/self/ns/net"
    git(repo, "config", "filter.up.smudge", smudge)
    async with open_desk(home, git_filters=["up"]) as desk:
        assert secret.exists()
        task = await run_task(desk, "cat x.loud", repo)
        loud, network = (task.result or "").splitlines()
        assert (loud, network == str(Path("/proc/self/ns/net").readlink())) == ("LOUD", "--unshare-net" not in box)
        assert (await desk.worktrees.get(task.id)).note is None
    assert not mark.exists()
    assert not outside.exists()


@pytest.mark.usefixtures("without_bwrap")
async def test_files_of_a_filter_that_is_not_allowed_are_not_merged(
    repo: Path, home: Path, tmp_path: Path, mark: Path
) -> None:
    (repo / ".gitattributes").write_text("*.big filter=e\n")
    (repo / "x.big").write_text("pointer\n")
    commit(repo, "big")
    append(repo / ".git" / "config", write_trap(tmp_path / "trap", mark))
    async with open_desk(home) as desk:
        task = await run_task(desk, "echo content > x.big", repo)
        assert "not converted by the filter e (setting git_filters)" in ((await desk.worktrees.get(task.id)).note or "")
        with pytest.raises(Conflict, match=r'allow it with the setting `git_filters = \["e"\]`, or merge by hand'):
            await desk.worktrees.merge(task.id)
        other = await run_task(desk, "echo three >> a.txt", repo)
        assert (await desk.worktrees.merge(other.id))[1].how == "fast-forward"
    assert not mark.exists()


@pytest.mark.usefixtures("without_bwrap")
async def test_files_with_a_merge_driver_are_merged_as_text(repo: Path, home: Path, tmp_path: Path, mark: Path) -> None:
    (repo / ".gitattributes").write_text("*.txt merge=e\n")
    (repo / "a.txt").write_text("".join(f"{number}\n" for number in range(20)))
    commit(repo, "lines")
    append(repo / ".git" / "config", write_trap(tmp_path / "trap", mark))
    async with open_desk(home) as desk:
        task = await run_task(desk, "sed -i s/^19$/last/ a.txt", repo)
        clash = await run_task(desk, "sed -i s/^0$/other/ a.txt", repo)
        (repo / "a.txt").write_text((repo / "a.txt").read_text().replace("0\n", "first\n", 1))
        git(repo, "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=", "-c", "commit.gpgSign=false",
            "-c", "filter.e.required=false", "commit", "-qam", "first")  # fmt: skip
        mark.unlink(missing_ok=True)
        assert (await desk.worktrees.merge(task.id))[1].how == "merge"
        assert (repo / "a.txt").read_text().split()[0::19] == ["first", "last"]
        with pytest.raises(Conflict, match=r"conflicts with main in a\.txt; nothing was changed"):
            await desk.worktrees.merge(clash.id)
    assert not mark.exists()


async def test_a_repository_made_by_an_agent_runs_nothing(repo: Path, home: Path, tmp_path: Path, mark: Path) -> None:
    """An agent makes a whole repository in its own directory, and asks for a worktree of it."""
    async with open_desk(home) as desk:
        first = await run_task(desk, "true", repo)
        inner = Path((await desk.worktrees.get(first.id)).path, "sub")
        a_repository(inner)
        (inner / ".gitattributes").write_text(ATTRIBUTES)
        commit(inner, "attributes")
        append(inner / ".git" / "config", write_trap(tmp_path / "trap", mark))
        second = await run_task(desk, "echo three >> a.txt", inner)
        assert second.status == "done", second.error
        await use_worktree(desk, second.id)
        (inner / ".git").rename(tmp_path / "elsewhere")
        (inner / ".git").write_text(f"gitdir: {repo}/.git\n")
        foreign = await run_task(desk, "true", inner)
        assert "no repository lists" in (foreign.error or ""), "a file in a worktree cannot choose another repository"
    assert not mark.exists()


@NEEDS_BWRAP
async def test_a_directory_that_is_replaced_after_it_was_checked_is_refused(repo: Path, tmp_path: Path) -> None:
    """An agent replaces its repository by a link to one that it cannot read, between the check and the call."""
    secret = a_repository(tmp_path / "secret")
    inner = repo / ".git"
    calls = await git_call.open_calls("git", None, frozenset(), inner, inner, repo)
    assert await calls.text("rev-parse", "HEAD") == git(repo, "rev-parse", "HEAD")
    inner.rename(repo / "away")
    inner.symlink_to(secret / ".git")
    with pytest.raises(Conflict, match=r"the sandbox of git in .* cannot be made"):
        await calls.run("rev-parse", "HEAD")
    inner.unlink()
    (secret / ".git").rename(inner)
    with pytest.raises(Conflict, match=r"a directory of the repository of .* was replaced"):
        await calls.run("rev-parse", "HEAD")
    inner.rename(secret / ".git")
    inner.symlink_to(secret / ".git")
    with pytest.raises(Conflict, match="cannot be opened"):
        await git_call.open_calls("git", None, frozenset(), inner, inner, repo)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)
    with pytest.raises(Conflict, match="replaced by a symbolic link"):
        await git_call.open_calls("git", None, frozenset(), linked / "secret" / ".git", linked / "secret" / ".git")


# -- hooks of the repository -------------------------------------------------------------------------------------


async def test_hooks_run_at_a_merge_only_if_a_person_says_so(
    repo: Path, home: Path, tmp_path: Path, mark: Path
) -> None:
    for name in ("post-merge", "pre-commit"):
        hook = repo / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        hook.chmod(0o755)
    async with open_desk(home) as desk:
        first, second = [await run_task(desk, f"echo x > {name}", repo) for name in ("one", "two")]
        agent = Actor("ann", "attempt", "attempt", task=first)
        with pytest.raises(Forbidden, match="an agent may use only its own work"):
            await desk.worktrees.merge(first.id, hooks=True, actor=agent)
        await desk.worktrees.merge(first.id)
        assert not mark.exists()
        await desk.worktrees.merge(second.id, hooks=True)
    assert mark.read_text() == "post-merge\n"


# -- files that never end ----------------------------------------------------------------------------------------


async def test_a_fifo_among_the_worktrees_of_a_repository_holds_up_nothing(repo: Path, home: Path) -> None:
    async with open_desk(home) as desk:
        task = await run_task(desk, "echo x > x", repo)
        entry = repo / ".git" / "worktrees" / "000"
        entry.mkdir()
        os.mkfifo(entry / "gitdir")
        async with asyncio.timeout(QUICKLY):
            assert (await desk.worktrees.get(task.id)).files == 1
            assert "+x" in (await desk.worktrees.diff(task.id)).text
            late = await desk.tasks.submit("true", workdir=str(repo), worktree=True)
            ended_task = await desk.tasks.wait(late.id)
        assert "worktrees/000/gitdir is not a small regular file; look at it" in (ended_task.error or "")


@pytest.mark.parametrize("kind", ["fifo", "link", "huge"])
async def test_an_index_that_an_agent_replaced_is_refused_at_once(repo: Path, home: Path, kind: str) -> None:
    async with open_desk(home) as desk:
        task = await run_task(desk, "true", repo)
        index = Path((await desk.worktrees.find(task.id)).admin_dir, "index")
        index.unlink()
        if kind == "fifo":
            os.mkfifo(index)
        elif kind == "link":
            index.symlink_to("/dev/zero")
        else:
            with index.open("wb") as file:
                file.truncate(1 << 40)
        for act in (desk.worktrees.diff, desk.worktrees.merge, desk.worktrees.remove):
            async with asyncio.timeout(QUICKLY):
                with pytest.raises(Conflict, match=r"index is (not a regular file|larger than \d+ bytes)"):
                    await act(task.id)
        assert "index is" in ((await desk.worktrees.get(task.id)).note or "")
        async with asyncio.timeout(QUICKLY):
            assert (await desk.worktrees.remove(task.id, force=True)).status == "removed"


@pytest.mark.parametrize("kind", ["fifo", "zero", "directory of a fifo"])
async def test_a_directory_whose_git_file_never_ends_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    if kind == "fifo":
        os.mkfifo(folder / ".git")
    elif kind == "zero":
        (folder / ".git").symlink_to("/dev/zero")
    else:
        (folder / "real").mkdir()
        os.mkfifo(folder / "real" / "gitdir")
        (folder / ".git").write_text("gitdir: real\n")
    async with asyncio.timeout(QUICKLY):
        with pytest.raises(Conflict, match="is not the directory of a repository"):
            await GitProgram().locate(str(folder))


async def test_a_task_is_cancelled_while_git_waits_for_a_file(repo: Path, home: Path) -> None:
    """The config of a repository is read by git itself, which waits for a FIFO; a cancel stops it."""
    (repo / ".git" / "config").unlink()
    os.mkfifo(repo / ".git" / "config")
    async with open_desk(home) as desk, asyncio.timeout(QUICKLY):
        task = await desk.tasks.submit("true", workdir=str(repo), worktree=True)
        while (await desk.tasks.get(task.id)).status != "running":
            await asyncio.sleep(0.01)
        await desk.tasks.cancel(task.id)
        assert (await desk.tasks.wait(task.id)).outcome == "cancelled"


async def test_a_task_ends_by_a_cancel_if_git_waits_for_a_file_of_its_agent(repo: Path, home: Path) -> None:
    """At the end of a task git reads the files of the worktree, and waits for a FIFO in place of `.gitignore`."""
    async with open_desk(home) as desk, asyncio.timeout(QUICKLY):
        task = await desk.tasks.submit("mkfifo .gitignore; touch done; pwd", workdir=str(repo), worktree=True)
        while not list((home / "worktrees").glob("*/done")):
            await asyncio.sleep(0.01)
        await desk.tasks.cancel(task.id)
        assert (await desk.tasks.wait(task.id)).status in ("cancelled", "done")


def test_git_never_runs_without_a_sandbox_if_agents_have_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(git_call, "WORKING", set())
    assert git_call.find_box() == ()
    monkeypatch.setattr(git_call, "WORKING", {("bwrap",)})
    with pytest.raises(Conflict, match="the sandbox of git cannot be made at the moment"):
        git_call.find_box()


# -- what a diff shows -------------------------------------------------------------------------------------------


async def edit_in_the_second_of_the_checkout(desk: Runtime, repo: Path) -> str:
    """Run tasks until one changes a file, but not its size, in the second in which the file was checked out."""
    async with asyncio.timeout(PATIENCE):
        while True:
            task = await run_task(desk, "printf 'ONE\\ntwo\\n' > a.txt", repo)
            tree = await desk.worktrees.find(task.id)
            index = next((repo / ".git" / "worktrees").glob(f"{Path(tree.path).name}/index"))
            seconds = {int(path.stat().st_mtime) for path in (index, Path(tree.path, "a.txt"))}
            if len(seconds) == 1:
                while int(time.time()) in seconds:
                    await asyncio.sleep(0.02)
                return task.id


async def test_an_edit_of_the_same_size_in_the_second_of_the_checkout_is_shown(repo: Path, home: Path) -> None:
    async with open_desk(home) as desk:
        task_id = await edit_in_the_second_of_the_checkout(desk, repo)
        assert "+ONE" in (await desk.worktrees.diff(task_id)).text
        tree = await desk.worktrees.get(task_id)
        assert (tree.files, tree.added, tree.removed, tree.dirty) == (1, 1, 1, True)


async def test_a_diff_names_the_files_that_run_code(repo: Path, home: Path) -> None:
    git(repo, "config", "core.hooksPath", "tools/hooks")
    work = "mkdir -p tools/hooks .github/workflows; touch plain tools/hooks/x .github/workflows/ci.yml .gitattributes"
    async with open_desk(home) as desk:
        task = await run_task(desk, work, repo)
        changes = await desk.worktrees.diff(task.id, limit=10)
        assert [file.path for file in changes.runs_code] == [
            ".gitattributes", ".github/workflows/ci.yml", "tools/hooks/x"
        ]  # fmt: skip
        assert changes.runs_code == (await desk.worktrees.merge(task.id))[1].runs_code


async def test_directories_are_added_to_the_record_of_an_older_version(repo: Path, home: Path) -> None:
    async with open_desk(home) as desk:
        task = await run_task(desk, "echo x > x", repo)
        tree = await desk.worktrees.find(task.id)
        older = replace(tree, git_dir="", admin_dir="")
        assert await GitProgram().find_directories(older) == (tree.git_dir, tree.admin_dir)
        assert (tree.git_dir, tree.admin_dir) == (f"{repo}/.git", f"{repo}/.git/worktrees/{tree.id[-12:]}")


async def test_a_call_that_takes_too_long_leaves_no_process(repo: Path, tmp_path: Path, without_bwrap: None) -> None:
    """Once a process of its sandbox ran on, because the program that began it had ended."""
    program = tmp_path / "git-that-leaves"
    program.write_text("#!/bin/sh\nsleep 600 &\n")
    program.chmod(0o700)
    calls = await git_call.open_calls("git", None, frozenset(), repo / ".git", repo / ".git", repo)
    with pytest.raises(Conflict, match="was stopped after 1 s"):
        await replace(calls, program=str(program)).run("status", seconds=1)
    assert await eventually(lambda: not processes_with(f"GIT_DIR={repo}/.git"))
