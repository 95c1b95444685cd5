"""Test the contract of stores for worktrees and for directories that a task has for itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from midwatch.base.errors import Conflict, LeaseLost
from midwatch.domain.changes import Changes, Update
from midwatch.domain.store import Store
from midwatch.domain.task import end
from midwatch.domain.worktree import Place, Worktree, WorktreeFilter, change_worktree, occupy_worktree, plan_worktree
from records import CLOCK, claim_request, claim_tasks, fence, put, submit_and_claim


def a_tree(number: int = 1, **fields: object) -> Worktree:
    tree = Worktree(
        id=f"w_{number:023x}", status="kept", host="here", repository="/src", path=f"/home/w/{number}",
        branch=f"midwatch/{number}", base="a" * 40, target="main", subdir="", task_id="t_1", updated_at=number,
    )  # fmt: skip
    return replace(tree, **fields)  # type: ignore[arg-type]  # of the test's own choice


async def test_a_worktree_is_read_back_unchanged_and_listed_newest_first(store: Store) -> None:
    trees = [
        a_tree(1, status="removed", dirty=False, files=0), a_tree(2, dirty=True, files=3, note="x"),
        a_tree(3, status="merged", target=None, session_key="chat:1", creator="ann"), a_tree(4, status="making"),
    ]  # fmt: skip
    await store.apply(Changes(records=tuple(trees)))
    for tree in trees:
        assert await store.get_worktree(tree.id) == tree
    assert await store.get_worktree("w_none") is None
    assert await store.list_worktrees(WorktreeFilter()) == trees[:0:-1]
    assert await store.list_worktrees(WorktreeFilter(limit=1, before=trees[3].id)) == [trees[2]]
    assert await store.list_worktrees(WorktreeFilter(statuses=("removed",))) == [trees[0]]
    assert (await store.prune_worktrees(1), await store.prune_worktrees(10)) == (0, 1)
    assert await store.get_worktree(trees[0].id) is None
    assert await store.get_worktree(trees[1].id) is not None, "only what was removed is forgotten"


async def test_only_transitions_of_the_table_are_allowed(store: Store) -> None:
    tree = a_tree(1)
    await store.apply(Changes(records=(tree,)))
    with pytest.raises(Conflict, match="cannot become making"):
        await store.apply(Changes(updates=(change_worktree(tree, 5, status="making")[1],)))
    after, update = change_worktree(tree, 5, status="merged", files=2)
    await store.apply(Changes(updates=(update,)))
    assert await store.get_worktree(tree.id) == after
    with pytest.raises(Conflict, match="changed meanwhile"):
        await store.apply(Changes(updates=(change_worktree(tree, 6, files=9)[1],)))


async def test_a_task_and_its_worktree_are_written_together_by_its_attempt_only(store: Store) -> None:
    task = await submit_and_claim(store, worktree={"id": "w_000000000000000000000001"})
    tree = plan_worktree(task, Place("/src", "/src/.git", "sub", "b" * 40, "main"), "/home/w", "here", 7)
    assert (tree.branch, tree.path, tree.workdir) == (
        "midwatch/000000000001", "/home/w/000000000001", "/home/w/000000000001/sub"
    )  # fmt: skip
    assert (tree.git_dir, tree.admin_dir) == ("/src/.git", "/src/.git/worktrees/000000000001")
    await store.apply(Changes(fence=fence(task), records=(tree,)))
    occupied, step = occupy_worktree(tree, task, 8, status="kept")
    await store.apply(step)
    stored_task = await store.get_task(task.id)
    assert stored_task is not None
    assert stored_task.worktree == occupied.note_of_task()
    assert stored_task.snapshot()["worktree"]["branch"] == tree.branch
    assert [e.kind for e in await store.read_events(0)][-1] == "worktree_changed"
    with pytest.raises(LeaseLost):
        await store.apply(occupy_worktree(occupied, task._replace(attempt=9), 9)[1])


async def test_a_directory_is_used_by_one_task_at_a_time(store: Store) -> None:
    first = await put(store, dir_key="/src")
    second = await put(store, dir_key="/src", priority=-1)
    other_task = await put(store, dir_key="/other")
    free = await put(store)
    assert {task.id for task in await claim_tasks(store)} == {first.id, other_task.id, free.id}
    assert await claim_tasks(store) == []
    assert await store.find_dir_holder("/src") == first.id
    assert await store.find_dir_holder("/nowhere") is None
    stored_task = await store.get_task(first.id)
    assert stored_task is not None
    await store.apply(end(stored_task, CLOCK.now(), outcome="ok", result="x")[1])
    assert [task.id for task in await claim_tasks(store)] == [second.id]


async def test_fair_claims_respect_a_directory_in_use(store: Store) -> None:
    """Where actors share scarce slots, tasks are claimed by another query; it respects directories too."""
    await submit_and_claim(store, dir_key="/src", creator="ann")
    await put(store, dir_key="/src", creator="bob")
    last = await put(store, dir_key="/other", creator="bob")
    cyd = await put(store, creator="cyd")
    first = await claim_tasks(store, 1)
    second = await claim_tasks(store, 1)
    assert {task.id for task in (*first, *second)} == {last.id, cyd.id}
    assert await claim_tasks(store, 1) == []


async def test_the_index_refuses_a_second_task_in_a_directory(store: Store) -> None:
    await submit_and_claim(store, dir_key="/src")
    waiting = await put(store, dir_key="/src")
    with pytest.raises(Conflict):
        await store.apply(Changes(updates=(Update("task", waiting.id, {"status": "running"}, {"status": "pending"}),)))


async def test_concurrent_claims_never_share_a_directory(store: Store) -> None:
    for _ in range(20):
        await put(store, dir_key="/src")
    claims = await asyncio.gather(*(store.claim(claim_request(1, owner=f"i_{n}"), CLOCK.now()) for n in range(8)))
    assert sum(len(claim.taken) for claim in claims) == 1
