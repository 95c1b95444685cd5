"""The worktree service: prepare worktrees for tasks, and compare, merge and remove worktrees.

The record is `midwatch.domain.worktree`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput, MidwatchError
from midwatch.base.text import cut
from midwatch.domain import worktree as rules
from midwatch.domain.changes import Changes, Update
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.listing import Listing
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.domain.worktree import Diff, Git, MergeResult, Mutex, Worktree, WorktreeFilter
from midwatch.services.authorization import Authorization, Owner, authorize
from midwatch.services.records import require

log = logging.getLogger("midwatch.worktrees")

LOCKS = 16
"""The number of file locks for all worktrees. Each worktree uses one of the locks, and several may use the same."""
PAUSE_SECONDS = 0.05
MESSAGE_SHOWN = 60


class Worktrees:
    """Service: worktrees on this machine."""

    def __init__(
        self, store: Store, clock: Clock, git: Git, authorization: Authorization, *, home: str, host: str,
        lock: Callable[[str], Mutex],
    ) -> None:  # fmt: skip
        """Build the service.

        Worktrees are created in the directory `home`. `lock` returns a lock by its name; all processes of this machine
        share the lock with this name.
        """
        self._store = store
        self._clock = clock
        self._git = git
        self._authorization = authorization
        self._home = home
        self._host = host
        self._lock = lock

    # -- for the worker ------------------------------------------------------------------------------------------

    async def prepare(self, task: Task, workdir: str | None) -> Worktree:
        """Create or repair the worktree of a running task if necessary, and return it."""
        worktree_id = rules.find_worktree_id(task)
        assert worktree_id is not None
        async with self._lock_worktree(worktree_id):
            tree = await self._store.get_worktree(worktree_id)
            if tree is None:
                tree = await self._plan(task, workdir)
            elif tree.status == "removed":
                fresh = await self._plan_at(task, tree.repository, tree.subdir)
                names = ("path", "base", "target", "note", "host", "git_dir", "admin_dir")
                begin = {name: getattr(fresh, name) for name in names}
                tree = await self._write(tree, task, status="making", **begin)
            tree = await self._pin(tree)
            if tree.status == "making":
                await self._git.make(tree)
                return await self._write(tree, task, status="kept")
            await self._git.mend(tree)
            if tree.status == "merged":
                return await self._write(tree, task, status="kept", base=await self._git.tip(tree))
            return await self._write(tree, task)

    async def finish_task(self, task: Task) -> Task:
        """Return the task, after its turn, with a summary of the changes in its worktree. Errors are only logged."""
        worktree_id = rules.find_worktree_id(task)
        if worktree_id is None:
            return task
        try:
            tree = await self._pin(await self.find(worktree_id))
            if tree.status != "making":
                tree = await self._write(tree, task, **await self._read_stat(tree))
            return task._replace(worktree=tree.note_of_task())
        except MidwatchError as problem:
            log.warning("the changes of task %s in its worktree cannot be read: %s", task.id, problem)
            return task

    # -- for people ----------------------------------------------------------------------------------------------

    async def find(self, key: str) -> Worktree:
        """Return the worktree whose own id or whose task's id is `key`, as it is stored, or raise NotFound."""
        worktree_id: str | None = key
        if key.startswith("t_"):
            task = await self._store.get_task(key)
            worktree_id = rules.find_worktree_id(task) if task is not None else None
        return require(await self._store.get_worktree(worktree_id) if worktree_id else None, "worktree", key)

    async def get(self, key: str, *, actor: AnyActor = None) -> Worktree:
        """Return a worktree with a summary of its current changes.

        For a worktree that a task uses now, or that is on another machine, return the stored summary.
        """
        tree = await self.find(key)
        work = (tree.task_id, tree.session_key)
        authorize(actor, "read", Owner(None, work=frozenset(name for name in work if name)))
        if tree.status not in ("kept", "merged") or tree.host != self._host or await self._find_runner(tree):
            return tree
        try:
            tree = await self._pin(tree)
            return replace(tree, **await self._read_stat(tree))
        except MidwatchError as problem:
            return replace(tree, note=str(problem))

    async def list(self, which: WorktreeFilter | None = None, *, actor: AnyActor = None) -> Listing[Worktree]:
        """Return the worktrees that match a filter, newest first, at most 500 at a time."""
        authorize(actor, "oversee")
        which = which or WorktreeFilter()
        if not 1 <= which.limit <= 500:
            raise InvalidInput("`limit` must be from 1 to 500.", field="limit")
        return await self._store.list_worktrees(which)

    async def diff(self, key: str, limit: int = 1_000_000, *, actor: AnyActor = None) -> Diff:
        """Return all changes in a worktree since its creation as text, also uncommitted changes and new files.

        The text has at most `limit` bytes. An agent gets no diff: it has its own files.
        """
        authorize(actor, "oversee")
        if not 1 <= limit <= rules.MAX_DIFF:
            raise InvalidInput(f"`limit` must be from 1 to {rules.MAX_DIFF}.", field="limit")
        tree = await self._get_present(key)
        return await self._git.diff(tree, limit)

    async def merge(self, key: str, *, hooks: bool = False, actor: AnyActor = None) -> tuple[Worktree, MergeResult]:
        """Commit all changes in a worktree, and merge its branch into the branch from which it was created.

        Only with `hooks` the hooks of the repository run at the merge; they run outside of every sandbox.
        """
        await self._find_managed(key, actor)
        tree = await self._get_present(key)
        async with self._lock_worktree(tree.id):
            tree = await self._get_present(tree.id)
            await self._check_idle(tree)
            task = await self._store.get_task(tree.task_id)
            async with self._hold_lock(f"repositories-{crc32(os.fsencode(tree.repository)) % LOCKS}"):
                merged = await self._git.merge(tree, _message(tree, task), hooks=hooks)  # one at a time
            now = self._clock.now()
            stat = await self._read_stat(tree)
            fields = stat if tree.status == "merged" else {"status": "merged", **stat}
            after, update = rules.change_worktree(tree, now, **fields)
            updates = (update,) if task is None else (update, rules.note_on_task(after, task))
            event = rules.announce_worktree(after, now, actor_name(actor), into=after.target)
            await self._store.apply(Changes(updates=updates, events=(event,)))
            return after, merged

    async def remove(self, key: str, *, force: bool = False, actor: AnyActor = None) -> Worktree:
        """Remove the directory and the branch of a worktree.

        Unless `force` is True, raise Conflict if changes or commits would be lost.
        """
        tree = await self._find_managed(key, actor)
        async with self._lock_worktree(tree.id):
            tree = await self.find(tree.id)
            if tree.status == "removed":
                return tree
            tree = await self._pin(tree)
            await self._check_idle(tree)
            await self._check_closed(tree)
            if not force and (lost := await self._git.losses(tree)):
                raise Conflict(
                    f"{tree.branch} has {' and '.join(lost)}, which would be lost; merge it with "
                    f"`midwatch worktree merge {tree.id}`, or remove it with `--force`."
                )
            return await self._remove(tree, actor_name(actor))

    async def prune(self, before: int) -> int:
        """Remove the worktrees that were not used since the time `before` and have no changes or commits to lose.

        Return how many worktrees were removed.
        """
        removed = 0
        async for tree in self._list_old(before):
            async with self._lock_worktree(tree.id):
                try:
                    tree = await self._pin(tree)
                    await self._check_idle(tree)
                    await self._check_closed(tree)
                    if not await self._git.losses(tree):
                        await self._remove(tree, None)
                        removed += 1
                except MidwatchError as problem:
                    log.warning("the old worktree %s is not removed: %s", tree.id, problem)
        return removed + await self._store.prune_worktrees(before)

    # -- internal ------------------------------------------------------------------------------------------------

    async def _find_managed(self, key: str, actor: AnyActor) -> Worktree:
        """Return the worktree, or raise Forbidden if the actor may not manage the worktree's task."""
        authorize(actor, "manage")
        tree = await self.find(key)
        await self._authorization.check_task(actor, "manage", tree.task_id, tree.creator or "")
        return tree

    async def _list_old(self, before: int) -> AsyncIterator[Worktree]:
        which = WorktreeFilter(statuses=("kept", "merged"), limit=500)
        while True:
            page = await self._store.list_worktrees(which)
            for tree in page:
                if tree.updated_at < before and tree.host == self._host:
                    yield tree
            if page.next is None:
                return
            which = replace(which, before=page.next)

    async def _plan_at(self, task: Task, repository: str, subdir: str = "") -> Worktree:
        place = await self._git.locate(repository)
        plan = rules.plan_worktree(task, place, self._home, self._host, self._clock.now())
        return replace(plan, subdir=subdir or plan.subdir)

    async def _plan(self, task: Task, workdir: str | None) -> Worktree:
        """Write the record of a new worktree, and return it. The worktree itself is created later.

        So if this process dies during the creation, a later attempt can repair the worktree.
        """
        if workdir is None:
            raise Conflict("for a worktree, the task needs a working directory in a git repository; name one.")
        tree = await self._plan_at(task, workdir)
        fence = rules.occupy_worktree(tree, task, tree.created_at)[1].fence
        await self._store.apply(Changes(fence=fence, records=(tree,), updates=(rules.note_on_task(tree, task),)))
        return tree

    async def _write(self, tree: Worktree, task: Task, **fields: Any) -> Worktree:
        after, step = rules.occupy_worktree(tree, task, self._clock.now(), **fields)
        await self._store.apply(step)
        return after

    async def _read_stat(self, tree: Worktree) -> dict[str, Any]:
        return (await self._git.stat(tree))._asdict()

    async def _get_present(self, key: str) -> Worktree:
        """Return the worktree, or raise Conflict unless its files exist on this machine."""
        tree = await self.find(key)
        if tree.status in ("making", "removed"):
            why = "is being created; try again later" if tree.status == "making" else "was removed; its files are gone"
            raise Conflict(f"worktree {tree.id} {why}.")
        return await self._pin(tree)

    async def _pin(self, tree: Worktree) -> Worktree:
        """Return the worktree with the directories of its repository, or raise Conflict if it is on another machine.

        Records that older versions wrote have no directories; they are found once and stored.
        """
        if tree.host != self._host:
            raise Conflict(f"worktree {tree.id} is on the machine {tree.host}; run this command there.")
        if tree.git_dir or (found := await self._git.find_directories(tree)) is None:
            return tree
        after, update = rules.change_worktree(tree, self._clock.now(), git_dir=found[0], admin_dir=found[1])
        await self._store.apply(Changes(updates=(update,)))
        return after

    async def _check_idle(self, tree: Worktree) -> None:
        if runner := await self._find_runner(tree):
            raise Conflict(f"task {runner} works in {tree.branch}; wait, or cancel it with `midwatch cancel {runner}`.")

    async def _check_closed(self, tree: Worktree) -> None:
        """Raise Conflict if the agent of the worktree's session still has the conversation open."""
        session = await self._store.get_session(tree.session_key) if tree.session_key else None
        if session is not None and session.live_owner is not None and session.status != "closed":
            raise Conflict(f"session {session.key} uses {tree.branch}; close it with `midwatch session close`.")

    async def _find_runner(self, tree: Worktree) -> str | None:
        running = await self._store.list_running_tasks()
        return next((task.id for task in running if rules.find_worktree_id(task) == tree.id), None)

    async def _remove(self, tree: Worktree, actor: str | None) -> Worktree:
        await self._git.remove(tree)
        now = self._clock.now()
        after, update = rules.change_worktree(tree, now, status="removed")
        updates: tuple[Update, ...] = (update,)
        if task := await self._store.get_task(tree.task_id):
            updates += (rules.note_on_task(after, task),)
        await self._store.apply(Changes(updates=updates, events=(rules.announce_worktree(after, now, actor),)))
        return after

    @asynccontextmanager
    async def _lock_worktree(self, worktree_id: str) -> AsyncIterator[None]:
        """Hold the lock of a worktree during the block: no other process creates, merges or removes the worktree."""
        async with self._hold_lock(f"worktrees-{int(rules.short_id(worktree_id), 16) % LOCKS}"):
            yield

    @asynccontextmanager
    async def _hold_lock(self, name: str) -> AsyncIterator[None]:
        lock = self._lock(name)
        while not lock.acquire():  # noqa: ASYNC110 - a file lock sends no signal when it is free
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            yield
        finally:
            lock.release()


def _message(tree: Worktree, task: Task | None) -> str:
    """Return the message of the commit and of the merge: the beginning of the prompt, and the id of the task."""
    about = cut(" ".join(task.prompt.split()), MESSAGE_SHOWN) if task is not None else f"Work of {tree.branch}"
    return f"{about}\n\nmidwatch task {tree.task_id}"
