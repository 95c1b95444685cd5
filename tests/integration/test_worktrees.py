"""Test worktrees: made when work starts, reported at its end, merged and removed; the user's checkout is unharmed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings, Task
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.changes import Changes
from midwatch.domain.task_store import TaskFilter
from midwatch.domain.worktree import Worktree
from midwatch.programs.git import GitProgram
from records import claim_tasks, put
from repositories import a_repository, commit, git
from servers import PATIENCE

SHELL = '[agents.sh]\nkind = "command"\nargv = ["sh", "-c", "{prompt}"]\non_crash = "rerun"\nmax_attempts = 1\n'
WORK = "echo three >> a.txt; echo new > 'new file'; printf '\\0\\1' > bin; pwd"


@pytest.fixture(autouse=True)
def ignore_git_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the git configuration of this machine."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return a_repository(tmp_path / "-project")


@pytest.fixture
async def desk(home: Path) -> AsyncIterator[Runtime]:
    home.mkdir()
    (home / "midwatch.toml").write_text(SHELL)
    settings = Settings.load(home, shutdown_grace=0, detect_agents=False, default_agent="sh", git_filters=["slow"])
    async with Runtime.open(settings=settings) as opened:
        yield opened


async def run_task(desk: Runtime, prompt: str, workdir: Path, **fields: Any) -> Task:
    task = await desk.tasks.submit(prompt, workdir=str(workdir), worktree=True, **fields)
    async with asyncio.timeout(PATIENCE):
        return await desk.tasks.wait(task.id)


def read_worktree_note(task: Task) -> dict[str, Any]:
    note: dict[str, Any] | None = task.snapshot()["worktree"]
    assert note is not None
    return note


def read_checkout(repo: Path) -> tuple[bytes, str, str]:
    """Return the user's index, branches and files as git sees them; git may refresh its index for this."""
    files = git(repo, "status", "--porcelain")
    return (repo / ".git" / "index").read_bytes(), git(repo, "rev-parse", "main"), files


# -- a task ------------------------------------------------------------------------------------------------------


async def test_a_task_works_in_a_worktree_and_reports_its_changes(desk: Runtime, repo: Path) -> None:
    before = read_checkout(repo)
    pending = (await desk.tasks.submit("true", workdir=str(repo), worktree=True, delay=3600)).snapshot()["worktree"]
    assert (pending["status"], pending["path"], pending["id"][:2]) == ("planned", None, "w_")
    task = await run_task(desk, WORK, repo / "-sub")
    note = read_worktree_note(task)
    path = desk.home.worktrees / note["id"][-12:]
    assert task.result == str(path / "-sub")
    assert (note["path"], note["branch"], note["status"]) == (str(path), f"midwatch/{note['id'][-12:]}", "kept")
    assert (note["files"], note["added"], note["removed"], note["dirty"]) == (3, 2, 0, True)
    assert note["base"] == git(repo, "rev-parse", "main")
    assert read_checkout(repo) == before
    (end,) = [e for e in await desk.store.read_events(0) if e.kind == "task_finished"]
    assert end.payload["worktree"] == note
    worktree = await desk.worktrees.get(note["id"])
    assert worktree == await desk.worktrees.get(task.id)
    assert (worktree.repository, worktree.target, worktree.subdir, worktree.note) == (str(repo), "main", "-sub", None)
    text = (await desk.worktrees.diff(task.id)).text
    assert "+new" in text
    assert "+++ b/-sub/new file" in text
    assert "Binary files" in text
    cut = await desk.worktrees.diff(task.id, limit=50)
    assert (len(cut.text), cut.truncated) == (50, True)
    assert read_checkout(repo) == before


@pytest.mark.parametrize(
    ("prompt", "outcome"), [("echo x > x; exit 3", "error"), ("echo x > x; sleep 60", "cancelled")]
)
async def test_failed_and_cancelled_tasks_report_their_changes_too(
    desk: Runtime, repo: Path, prompt: str, outcome: str
) -> None:
    task = await desk.tasks.submit(prompt, workdir=str(repo), worktree=True)
    if outcome == "cancelled":
        path = desk.home.worktrees / read_worktree_note(task)["id"][-12:] / "x"
        async with asyncio.timeout(PATIENCE):
            while not path.exists():
                await asyncio.sleep(0.01)
        await desk.tasks.cancel(task.id)
    ended_task = await desk.tasks.wait(task.id)
    assert (ended_task.outcome, read_worktree_note(ended_task)["files"], read_worktree_note(ended_task)["dirty"]) == (
        outcome,
        1,
        True,
    )


async def test_a_retry_continues_in_the_same_worktree(desk: Runtime, repo: Path) -> None:
    first = await run_task(desk, "test -e half && cat half; echo half > half; test $MIDWATCH_TASK = x", repo)
    again = await desk.tasks.retry(first.id)
    ended_task = await desk.tasks.wait(again.id)
    assert "half" in (ended_task.error or "")
    assert read_worktree_note(ended_task)["id"] == read_worktree_note(first)["id"]
    assert len(await desk.worktrees.list()) == 1


async def test_the_turns_of_a_session_share_a_worktree_which_is_announced_and_recreated(
    desk: Runtime, repo: Path
) -> None:
    view, _ = await desk.sessions.create(workdir=str(repo), worktree=True)
    key = view.session.key
    other_task = await desk.tasks.submit("echo 0 >> log; cat log", workdir=str(repo), session_key=key)
    await desk.tasks.wait(other_task.id)
    sent = await desk.sessions.send(key, "echo 1 >> log; cat log; pwd")
    task = await desk.tasks.wait(sent.id)
    assert task.result == f"0\n1\n{desk.home.worktrees / (view.session.worktree or '')[-12:]}"
    assert task.dir_key is None
    (tree,) = await desk.worktrees.list()
    assert (tree.id, tree.session_key, tree.task_id) == (view.session.worktree, key, task.id)
    closed = await desk.sessions.close(key)
    assert closed.snapshot()["worktree"] == tree.id
    with pytest.raises(Conflict, match="exists already, with agent"):
        await desk.sessions.create(workdir=str(repo), key=key)
    await desk.sessions.create(workdir=str(repo), key=key, worktree=True)
    await desk.worktrees.remove(tree.id, force=True)
    again = await desk.sessions.send(key, "ls")
    assert (await desk.tasks.wait(again.id)).result == "-sub\na.txt"
    assert (await desk.worktrees.get(tree.id)).status == "kept"
    plain, _ = await desk.sessions.create(workdir=str(repo))
    with pytest.raises(InvalidInput, match="has no worktree"):
        await desk.tasks.submit("x", session_key=plain.session.key, worktree=True, workdir=str(repo))


async def test_each_run_of_an_automation_has_its_own_worktree(desk: Runtime, repo: Path) -> None:
    fields = {"every": 3600, "workdir": str(repo), "worktree": True}
    with pytest.raises(InvalidInput, match="needs `fresh`"):
        await desk.automations.create("echo x >> x; cat x", **fields)
    with pytest.raises(InvalidInput, match="not in the checkout of a git repository"):
        await desk.automations.create("x", **{**fields, "workdir": "/"}, fresh=True)
    automation = await desk.automations.create("echo x >> x; cat x", **fields, fresh=True)
    ran = [await desk.tasks.wait((await desk.automations.run(automation.id)).id) for _ in range(2)]
    assert [task.result for task in ran] == ["x", "x"]
    assert len({read_worktree_note(task)["path"] for task in ran}) == 2
    assert (await desk.automations.get(automation.id)).worktree is True


async def test_every_task_of_a_session_with_a_worktree_works_there(desk: Runtime, repo: Path) -> None:
    view, _ = await desk.sessions.create(workdir=str(repo), worktree=True)
    automation = await desk.automations.create("pwd", every=3600, workdir=str(repo), session_key=view.session.key)
    task = await desk.tasks.wait((await desk.automations.run(automation.id)).id)
    assert task.result == str(desk.home.worktrees / (view.session.worktree or "")[-12:])
    assert read_worktree_note(task)["id"] == view.session.worktree


# -- merge and remove --------------------------------------------------------------------------------------------


async def test_a_merge_commits_remaining_changes_and_updates_the_checkout(desk: Runtime, repo: Path) -> None:
    task = await run_task(desk, "echo one > c1; git add c1; git commit -qm mine; echo two > c2", repo)
    (repo / "untracked").write_text("mine")
    tree, merged = await desk.worktrees.merge(task.id, actor="ann")
    assert (tree.status, tree.dirty, merged.how, merged.commit) == (
        "merged", False, "fast-forward", git(repo, "rev-parse", "main")
    )  # fmt: skip
    assert (repo / "c1").exists()
    assert (repo / "c2").read_text() == "two\n"
    log = git(repo, "log", "-1", "--format=%an %s %b")
    assert "Ann" in log
    assert f"midwatch task {task.id}" in log
    assert read_worktree_note(await desk.tasks.get(task.id))["status"] == "merged"
    events = [e for e in await desk.store.read_events(0) if e.kind == "worktree_changed"]
    assert [(e.payload["status"], e.payload["into"]) for e in events] == [("kept", None), ("merged", "main")]
    assert events[-1].actor == "ann"
    assert (await desk.worktrees.merge(task.id))[1].how == "nothing"
    removed = await desk.worktrees.remove(task.id)
    assert removed.status == "removed"
    assert not Path(tree.path).exists()
    assert git(repo, "branch", "--list", "midwatch/*") == ""
    assert read_worktree_note(await desk.tasks.get(task.id))["status"] == "removed"
    assert (await desk.worktrees.remove(task.id)).status == "removed"
    with pytest.raises(Conflict, match="removed"):
        await desk.worktrees.diff(task.id)


async def test_changes_after_a_merge_count_from_the_merge(desk: Runtime, repo: Path) -> None:
    view, _ = await desk.sessions.create(workdir=str(repo), worktree=True)
    first = await desk.tasks.wait((await desk.sessions.send(view.session.key, "echo 1 > one")).id)
    await desk.worktrees.merge(first.id)
    second = await desk.tasks.wait((await desk.sessions.send(view.session.key, "echo 2 > two")).id)
    assert (read_worktree_note(second)["files"], read_worktree_note(second)["status"]) == (1, "kept")
    assert read_worktree_note(second)["base"] == git(repo, "rev-parse", "main")


async def test_the_users_name_may_come_from_an_included_file(
    desk: Runtime, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    (user / "dotfiles").mkdir(parents=True)
    (user / "dotfiles" / "name").write_text("[user]\nname = Bob\nemail = bob@example.org\n")
    (user / "dotfiles" / "ignore").write_text("*.log\n")
    (user / ".gitconfig").write_text(
        f'[core]\nexcludesFile = ~/dotfiles/ignore\n[includeIf "gitdir:{repo}/"]\npath = ~/dotfiles/name\n'
    )
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    for key in ("user.name", "user.email"):
        git(repo, "config", "--unset", key)
    task = await run_task(desk, "echo x > x; echo x > x.log", repo)
    assert read_worktree_note(task)["files"] == 1
    await desk.worktrees.merge(task.id)
    assert git(repo, "log", "-1", "--format=%an", "--name-only").split() == ["Bob", "x"]


async def test_diverged_branches_are_merged(desk: Runtime, repo: Path) -> None:
    task = await run_task(desk, "echo new > new", repo)
    (repo / "other").write_text("other")
    commit(repo, "meanwhile")
    assert (await desk.worktrees.merge(task.id))[1].how == "merge"
    assert (repo / "new").exists()
    assert git(repo, "log", "-1", "--format=%P").count(" ") == 1


async def test_a_conflict_changes_nothing_and_has_a_remedy(desk: Runtime, repo: Path) -> None:
    task = await run_task(desk, "echo theirs > a.txt", repo)
    (repo / "a.txt").write_text("mine\n")
    commit(repo, "meanwhile")
    before = read_checkout(repo)
    with pytest.raises(Conflict, match=r"conflicts with main in a.txt; nothing was changed. .* `git merge midw"):
        await desk.worktrees.merge(task.id)
    assert read_checkout(repo)[1:] == before[1:]
    assert not (repo / ".git" / "MERGE_HEAD").exists()
    assert (await desk.worktrees.get(task.id)).status == "kept"


async def test_concurrent_merges_all_succeed(desk: Runtime, repo: Path) -> None:
    tasks = [await run_task(desk, f"echo {number} > file{number}", repo) for number in range(5)]
    await asyncio.gather(*(desk.worktrees.merge(task.id) for task in tasks))
    assert sorted(path.name for path in repo.glob("file*")) == [f"file{number}" for number in range(5)]
    assert git(repo, "status", "--porcelain") == ""


async def test_a_merge_into_a_dirty_checkout_is_refused(desk: Runtime, repo: Path) -> None:
    task = await run_task(desk, "echo new > new", repo)
    (repo / "a.txt").write_text("unsaved\n")
    with pytest.raises(Conflict, match="uncommitted changes; commit or stash them"):
        await desk.worktrees.merge(task.id)
    assert (repo / "a.txt").read_text() == "unsaved\n"
    git(repo, "checkout", "--quiet", "a.txt")
    (repo / "new").write_text("mine, and not known to git")
    with pytest.raises(Conflict, match=r"could not be merged into main: .* would be overwritten by merge"):
        await desk.worktrees.merge(task.id)
    assert (repo / "new").read_text() == "mine, and not known to git"


async def test_a_branch_that_is_not_checked_out_is_only_fast_forwarded(desk: Runtime, repo: Path) -> None:
    first, second = await run_task(desk, "echo 1 > one", repo), await run_task(desk, "echo 2 > two", repo)
    git(repo, "switch", "--quiet", "--create", "elsewhere")
    assert (await desk.worktrees.merge(first.id))[1].how == "fast-forward"
    assert git(repo, "show", "main:one") == "1"
    assert not (repo / "one").exists()
    with pytest.raises(Conflict, match="main has new commits and is not checked out"):
        await desk.worktrees.merge(second.id)
    git(repo, "worktree", "add", "--quiet", str(repo.parent / "third"), "main")
    with pytest.raises(Conflict, match="checked out in another worktree"):
        await desk.worktrees.merge(second.id)


async def test_removal_reports_the_changes_that_would_be_lost(desk: Runtime, repo: Path) -> None:
    task = await run_task(
        desk, "echo c > c; git add c; git commit -qm c; echo d > d; mkdir r; echo e > r/e; chmod 500 r", repo
    )
    with pytest.raises(Conflict, match=r"has 2 uncommitted files and 1 commit that no other branch has.*--force"):
        await desk.worktrees.remove(task.id)
    assert Path(read_worktree_note(task)["path"], "d").exists()
    assert (await desk.worktrees.remove(task.id, force=True)).status == "removed"
    assert git(repo, "worktree", "list").count("\n") == 0
    empty = await run_task(desk, "true", repo)
    assert (await desk.worktrees.remove(empty.id)).status == "removed"


async def test_a_worktree_with_a_running_task_is_not_merged_or_removed(desk: Runtime, repo: Path) -> None:
    task = await desk.tasks.submit("touch begun; exec sleep 60", workdir=str(repo), worktree=True)
    marker = desk.home.worktrees / read_worktree_note(task)["id"][-12:] / "begun"
    async with asyncio.timeout(PATIENCE):
        while not marker.exists():
            await asyncio.sleep(0.01)
    for act in (desk.worktrees.merge(task.id), desk.worktrees.remove(task.id, force=True)):
        with pytest.raises(Conflict, match=f"task {task.id} works in midwatch/"):
            await act
    assert (await desk.worktrees.get(task.id)).files is None
    await desk.tasks.cancel(task.id)
    await desk.tasks.wait(task.id)


async def test_a_worktree_whose_agent_left_the_branch_is_not_merged(desk: Runtime, repo: Path) -> None:
    away = await run_task(desk, "git switch -qc mine; echo x > x; git add x; git commit -qm x", repo)
    with pytest.raises(Conflict, match="but on mine; merge by hand"):
        await desk.worktrees.merge(away.id)
    await desk.worktrees.remove(away.id)
    assert git(repo, "show", "mine:x") == "x", "its commit is on another branch, which stays"
    inner = await run_task(
        desk, "git init -q in; cd in; git -c user.name=a -c user.email=b commit -qm x --allow-empty", repo
    )
    with pytest.raises(Conflict, match="contains another repository, in"):
        await desk.worktrees.merge(inner.id)
    empty = await run_task(desk, "git init -q in; echo x > x", repo)
    assert read_worktree_note(empty)["files"] == 1, "a repository without a commit hides nothing else"


async def test_pruning_removes_empty_worktrees_and_keeps_changes(desk: Runtime, repo: Path) -> None:
    empty, work = await run_task(desk, "true", repo), await run_task(desk, "echo x > x", repo)
    assert await desk.worktrees.prune(0) == 0
    later = desk.clock.now()
    assert await desk.worktrees.prune(later) == 1
    assert [(await desk.worktrees.get(task.id)).status for task in (empty, work)] == ["removed", "kept"]
    assert await desk.worktrees.prune(desk.clock.now()) == 1, "what was removed is forgotten"
    with pytest.raises(NotFound):
        await desk.worktrees.get(empty.id)
    assert Path(read_worktree_note(work)["path"], "x").exists()


# -- failures ----------------------------------------------------------------------------------------------------


async def test_an_unusable_repository_is_reported_in_one_line(desk: Runtime, repo: Path, tmp_path: Path) -> None:
    plain, fresh, bare = tmp_path / "plain", tmp_path / "fresh", tmp_path / "bare.git"
    plain.mkdir()
    git(tmp_path, "init", "--quiet", str(fresh))
    git(tmp_path, "init", "--quiet", "--bare", str(bare))
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(a_repository(tmp_path / "m")), "m")
    program = GitProgram()
    for folder, why in (
        (plain, "is not in a git repository"), (fresh, "has no commit yet"), (bare, "has no checkout"),
        (repo / "m", "is in a submodule"), (tmp_path / "none", "cannot change to"),
    ):  # fmt: skip
        with pytest.raises(Conflict, match=why) as caught:
            await program.locate(str(folder))
        assert "\n" not in str(caught.value)
    with pytest.raises(Conflict, match=r"git cannot be started .* install it"):
        await GitProgram("no-such-git").locate(str(repo))
    with pytest.raises(InvalidInput, match="not in the checkout of a git repository"):
        await desk.tasks.submit("x", workdir=str(plain), worktree=True)
    ended_task = await run_task(desk, "true", fresh)
    assert (ended_task.outcome, read_worktree_note(ended_task)["status"]) == ("error", "planned")
    assert "has no commit yet; make the first commit with `git commit`" in (ended_task.error or "")
    commit(repo, "a submodule")
    (repo / "a.txt").write_text("unsaved")
    task = await run_task(desk, "cat a.txt; ls m", repo)
    assert task.result == "one\ntwo"
    note = (await desk.worktrees.get(task.id)).note
    assert note == "uncommitted changes of the checkout are not in it; its submodules are empty"


async def test_a_creation_that_was_killed_is_repeated(desk: Runtime, repo: Path) -> None:
    (repo / ".gitattributes").write_text("slow filter=slow\n")
    (repo / "slow").write_text("slow")
    commit(repo, "slow")
    task = await put(desk.store, agent="nobody", worktree={"id": "w_00000000000000000000abcdef"})
    tree = Worktree(
        id=read_worktree_note(task)["id"], status="making", host=os.uname().nodename, repository=str(repo), subdir="",
        path=str(desk.home.worktrees / read_worktree_note(task)["id"][-12:]),
        branch=f"midwatch/{read_worktree_note(task)['id'][-12:]}",
        base=git(repo, "rev-parse", "main"), target="main", task_id=task.id,
    )  # fmt: skip
    await desk.store.apply(Changes(records=(tree,)))
    slow = ("-c", "filter.slow.smudge=sleep 60", "-c", "filter.slow.required=true")
    child = subprocess.Popen(
        ("git", *slow, "-C", str(repo), "worktree", "add", "-q", "-b", tree.branch, tree.path), start_new_session=True
    )
    async with asyncio.timeout(PATIENCE):
        while not Path(tree.path, "a.txt").exists():
            await asyncio.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    (running,) = await claim_tasks(desk.store, agents={"nobody": 1})
    worktree = await desk.worktrees.prepare(running, str(repo))
    assert worktree.status == "kept"
    assert Path(tree.path, "slow").read_text() == "slow"
    assert git(tree.path, "status", "--porcelain") == ""


async def test_a_cancel_stops_the_creation(desk: Runtime, repo: Path) -> None:
    (repo / ".gitattributes").write_text("slow filter=slow\n")
    (repo / "slow").write_text("slow")
    commit(repo, "slow")
    git(repo, "config", "filter.slow.smudge", "sleep 600")
    task = await desk.tasks.submit("true", workdir=str(repo), worktree=True)
    path = desk.home.worktrees / read_worktree_note(task)["id"][-12:]
    async with asyncio.timeout(PATIENCE):
        while not (path / "a.txt").exists():
            await asyncio.sleep(0.01)
        await desk.tasks.cancel(task.id)
        ended_task = await desk.tasks.wait(task.id)
    assert (ended_task.outcome, read_worktree_note(ended_task)["status"]) == ("cancelled", "making")
    git(repo, "config", "--unset", "filter.slow.smudge")
    again = await desk.tasks.retry(task.id)
    assert (await desk.tasks.wait(again.id)).status == "done"
    assert (path / "slow").read_text() == "slow"


async def test_a_missing_directory_is_recreated_from_its_branch(desk: Runtime, repo: Path) -> None:
    view, _ = await desk.sessions.create(workdir=str(repo / "-sub"), worktree=True)
    key = view.session.key
    first = await desk.tasks.wait((await desk.sessions.send(key, "echo x > x; git add x; git commit -qm x")).id)
    subprocess.run(("rm", "-rf", read_worktree_note(first)["path"]), check=True)
    second = await desk.tasks.wait((await desk.sessions.send(key, "ls")).id)
    assert second.result == "b.txt\nx"
    third = await desk.tasks.wait((await desk.sessions.send(key, "rm ../.git; ls")).id)
    assert read_worktree_note(third)["files"] == 1, "its repository still knows it"
    fourth = await desk.tasks.wait((await desk.sessions.send(key, "git log --format=%s")).id)
    assert fourth.result == "x\nfirst"
    fifth = await desk.tasks.wait((await desk.sessions.send(key, "rm ../.git; mkdir ../.git; ls")).id)
    assert fifth.status == "done"
    sixth = await desk.tasks.wait((await desk.sessions.send(key, "ls")).id)
    assert "is not a regular file" in (sixth.error or "")


async def test_hooks_and_programs_written_by_an_agent_are_never_run(
    desk: Runtime, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    evil = (
        f"git init -q evil; git -C evil config core.fsmonitor 'touch {trap}; false'; echo gitdir: $PWD/evil/.git > .git"
    )
    task = await run_task(desk, f"unset GIT_DIR; {evil}", repo)
    assert read_worktree_note(task)["dirty"] is True
    await desk.worktrees.diff(task.id)
    await desk.worktrees.remove(task.id, force=True)
    assert not trap.exists()


async def test_a_worktree_on_another_machine_is_not_changed(desk: Runtime, repo: Path) -> None:
    task = await run_task(desk, "echo x > x", repo)
    tree = await desk.worktrees.get(task.id)
    await desk.store.apply(Changes(records=(replace(tree, id="w_" + "1" * 23, host="far", task_id="t_far"),)))
    assert (await desk.worktrees.get("w_" + "1" * 23)).host == "far"
    for act in (desk.worktrees.merge("w_" + "1" * 23), desk.worktrees.remove("w_" + "1" * 23, force=True)):
        with pytest.raises(Conflict, match="is on the machine far"):
            await act
    assert len(await desk.tasks.list(TaskFilter())) == 1
