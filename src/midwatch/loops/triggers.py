"""The watcher of triggers: looks at watched files and branches, and follows the events that other triggers wait for.

The watcher runs on the leader. It looks at files often and reads only their sizes and times. The more such a look
costs, the rarer it is. What a trigger has seen is stored together with its firing, so that after a restart a change is
neither missed nor told twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, Protocol

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock
from midwatch.base.errors import Conflict, LimitReached, MidwatchError, StoreError
from midwatch.base.text import cut
from midwatch.base.threads import in_thread
from midwatch.domain.store import Store
from midwatch.domain.trigger import Trigger, write_state
from midwatch.domain.watch_options import DEBOUNCE, GIT_EVERY
from midwatch.loops.leader_loop import LeaderLoop
from midwatch.programs.git_branch import News, sign_refs
from midwatch.programs.watched_files import Files, Look, list_changes, look_at, show_name
from midwatch.services.triggers import Triggers

log = logging.getLogger("midwatch.triggers")

POLL_SECONDS = 1.0
"""The shortest time between two looks at files."""
SHARE = 100.0
"""Looks at files take at most one part in this many of the time."""
SLOWEST_POLL = 30.0
LOOK_SECONDS = 20.0
"""A look that takes longer, because a file system hangs, is given up."""
BRANCH_SECONDS = 5.0
"""For how long other triggers wait for git. A look that takes longer goes on in the background."""
GROUP = 50
"""How many triggers one thread looks at."""
AGAIN_SECONDS = 60.0
"""Seconds until a trigger is looked at again whose files or repository cannot be read."""
LISTED = 2000
"""The most files whose names are remembered for one trigger."""
UNREAD, UNREAD_SHOWN = ("unread_at", "unread_why"), 300
"""The parts of a trigger's state that say since when it cannot be read, and why."""
NAMED, TOLD = 3, 200
"""How many changed files the summary names, and how many the payload lists."""


class Branches(Protocol):
    """Reads branches of local repositories."""

    async def find_tip(self, repository: str, branch: str | None) -> str | None:
        """Return the id of the newest commit of a branch, or of what is checked out; None if there is none."""

    async def read_news(self, repository: str, old: str, new: str) -> News:
        """Return what is new in the commit `new` since the commit `old`."""


@dataclass(slots=True)
class Watch:
    """What the watcher remembers of a trigger: when it is due, and the change that it waits for to settle."""

    trigger: Trigger
    due_at: int = 0
    changed_to: str | None = None
    changed_at: int = 0
    files: Files | None = field(default=None)
    """The files when the state was stored, unless there were too many, or another process stored the state."""
    alone: bool = False
    """Whether it gets a thread of its own, because its group took too long."""


class TriggerWatch(LeaderLoop):
    """Loop: fires triggers of the kinds file and git while this process leads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        leads: Callable[[], bool],
        triggers: Triggers,
        branches: Branches,
        follow: Callable[[], Awaitable[None]],
        *,
        nap: float = LONGEST_NAP,
    ) -> None:
        """Build the loop. `follow` follows the events that some trigger waits for, and no others."""
        super().__init__(clock, leads, log, nap=nap)
        self._store = store
        self._triggers = triggers
        self._branches = branches
        self._follow = follow
        self._watches: dict[str, Watch] = {}
        self._outdated = True
        self._asking: dict[str, asyncio.Task[None]] = {}
        """The looks at branches that have not ended, by the ids of their triggers."""

    async def stop(self) -> None:
        """Stop the loop and the looks that have not ended."""
        await super().stop()
        for asking in self._asking.values():
            asking.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def wake(self) -> None:
        """Read the triggers again, because an automation changed or this process became the leader."""
        self._outdated = True
        super().wake()

    async def look(self) -> int | None:
        """Look at all files and branches that are due, and return the time of the next look."""
        if self._outdated:
            self._outdated = False
            try:
                await self._read_triggers()
            except BaseException:
                self._outdated = True
                raise
        now = self._clock.now()
        due = [watch for watch in self._watches.values() if watch.due_at <= now]
        await self._look_at_files([watch for watch in due if watch.trigger.kind == "file"])
        await self._look_at_branches([watch for watch in due if watch.trigger.kind == "git"])
        return min((watch.due_at for watch in self._watches.values()), default=None)

    async def _read_triggers(self) -> None:
        found = await self._store.list_triggers(("file", "git"))
        known, self._watches = self._watches, {}
        for trigger in found:
            watch = known.get(trigger.id)
            self._watches[trigger.id] = watch if watch and _same(watch.trigger, trigger) else Watch(trigger)
        await self._follow()

    # -- files ----------------------------------------------------------------------------------------------------

    async def _look_at_files(self, watches: Sequence[Watch]) -> None:
        if not watches:
            return
        together = [watch for watch in watches if not watch.alone]
        groups = [together[start : start + GROUP] for start in range(0, len(together), GROUP)]
        groups += [[watch] for watch in watches if watch.alone]
        began = time.monotonic()
        looks = await asyncio.gather(*(self._look_at_group(group) for group in groups))
        due_at = self._in(min(max(POLL_SECONDS, (time.monotonic() - began) * SHARE), SLOWEST_POLL))
        for watch, seen in (pair for group in looks for pair in group):
            watch.due_at = due_at  # all at the same time, so that the next look is one look
            await self._try(watch, partial(self._compare_files, watch, seen))

    async def _look_at_group(self, group: Sequence[Watch]) -> list[tuple[Watch, Look]]:
        paths = [tuple(watch.trigger.options["paths"]) for watch in group]
        try:
            looks = await in_thread(lambda: [look_at(each) for each in paths], seconds=LOOK_SECONDS)
        except TimeoutError:
            for watch in group:
                if watch.alone:
                    log.warning("the files of trigger %s cannot be read: no answer", watch.trigger.id)
                    watch.due_at = self._in(AGAIN_SECONDS)
                    await self._note_unread(watch, "its files cannot be read: no answer")
                watch.alone = True
            return []
        return list(zip(group, looks, strict=True))

    async def _compare_files(self, watch: Watch, seen: Look) -> None:
        trigger, now = watch.trigger, self._clock.now()
        old, signature = trigger.state, seen.signature
        state = {"signature": signature, "count": len(seen.files), "newest": seen.newest, "at": now}
        if old is None or "signature" not in old:
            if seen.cut:
                log.warning("trigger %s names too many files; it watches the first of them", trigger.id)
            await self._store.apply(write_state(trigger, state, now))
        elif old["signature"] == signature:
            watch.changed_to = None
            await self._note_read(watch)
            if watch.files is None and len(seen.files) <= LISTED:
                watch.files = seen.files
            return
        else:
            quiet = int(trigger.options.get("debounce", DEBOUNCE) * SECOND)
            if watch.changed_to != signature:
                watch.changed_to, watch.changed_at = signature, now
            if now - watch.changed_at < quiet:
                watch.due_at = min(watch.due_at, watch.changed_at + quiet)
                return
            changes = _tell_changes(watch.files, seen, old)
            names = [name for each in changes.values() for name in each]
            await self._triggers.fire(
                trigger, key=f"{signature}@{old['at']}", summary=_summarise(names), payload=_write_changes(changes),
                also=write_state(trigger, state, now),
            )  # fmt: skip
        await self._remember(watch)
        watch.files = seen.files if len(seen.files) <= LISTED else None

    # -- branches ----------------------------------------------------------------------------------------------------

    async def _look_at_branches(self, watches: Sequence[Watch]) -> None:
        """Look at branches. A repository that does not answer holds up the other triggers only for a moment."""
        begun = []
        for watch in watches:
            if watch.trigger.id in self._asking:
                watch.due_at = self._in(POLL_SECONDS)
            else:
                begun.append(asyncio.create_task(self._look_at_branch(watch)))
                self._asking[watch.trigger.id] = begun[-1]
        if begun:
            await asyncio.wait(begun, timeout=BRANCH_SECONDS)
        ended = [asking for asking in self._asking.values() if asking.done()]
        self._asking = {key: asking for key, asking in self._asking.items() if asking not in ended}
        for asking in ended:
            asking.result()

    async def _look_at_branch(self, watch: Watch) -> None:
        options = watch.trigger.options
        watch.due_at = self._in(options.get("every", GIT_EVERY))
        try:
            signs = await in_thread(
                lambda: sign_refs(options["repository"], options.get("branch")), seconds=LOOK_SECONDS
            )
        except TimeoutError:
            signs = "missing"
        if signs != watch.changed_to or signs == "missing":
            await self._try(watch, partial(self._compare_tips, watch, signs))

    async def _compare_tips(self, watch: Watch, signs: str) -> None:
        trigger, now = watch.trigger, self._clock.now()
        repository, branch = trigger.options["repository"], trigger.options.get("branch")
        tip = await self._branches.find_tip(repository, branch)
        old = (trigger.state or {}).get("tip")
        if tip is None:
            await self._note_unread(watch, f"{repository} has no commit on {branch or 'its branch'}")
            watch.changed_to = signs
            return
        if old is None:
            await self._store.apply(write_state(trigger, {"tip": tip}, now))
        elif tip != old:
            step = write_state(trigger, {"tip": tip}, now)
            news = await self._branches.read_news(repository, old, tip)
            recorded = await self._triggers.fire(
                trigger, key=tip, summary=_name_commits(news, branch), payload=_write_commits(news, branch, old),
                also=step,
            )  # fmt: skip
            if not recorded.created:  # the branch is back at a commit for which it has fired
                await self._store.apply(step)
        else:
            await self._note_read(watch)
            watch.changed_to = signs
            return
        await self._remember(watch)
        watch.changed_to = signs

    # -- both ----------------------------------------------------------------------------------------------------

    async def _try(self, watch: Watch, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work for a trigger. If it fails, the trigger is tried again later, and the others go on."""
        trigger = watch.trigger
        try:
            await work()
        except StoreError:
            raise
        except LimitReached as problem:
            log.warning("%s", problem)
            watch.due_at = self._in(AGAIN_SECONDS)
        except Conflict as problem:
            log.warning("trigger %s is tried again later: %s", trigger.id, problem)
            watch.due_at = self._in(AGAIN_SECONDS)
            await self._remember(watch)
            await self._note_unread(watch, str(problem))
        except MidwatchError as problem:
            log.warning("trigger %s is tried again later: %s", trigger.id, problem)
            watch.due_at = self._in(AGAIN_SECONDS)
            await self._note_unread(watch, str(problem))
        except Exception:
            log.exception("trigger %s could not be looked at", trigger.id)
            watch.due_at = self._in(AGAIN_SECONDS)

    async def _note_unread(self, watch: Watch, why: str) -> None:
        """Store since when a trigger cannot be read, and why, so that the watchdog tells it."""
        trigger, now = watch.trigger, self._clock.now()
        if trigger.unread_at is None:
            state = {**(trigger.state or {}), "unread_at": now, "unread_why": cut(why, UNREAD_SHOWN)}
            await self._write_state(watch, state)

    async def _note_read(self, watch: Watch) -> None:
        """Store that a trigger can be read again, if it could not be read."""
        if watch.trigger.unread_at is not None:
            state = watch.trigger.state or {}
            await self._write_state(watch, {name: value for name, value in state.items() if name not in UNREAD})

    async def _write_state(self, watch: Watch, state: Mapping[str, Any]) -> None:
        with suppress(Conflict):  # another process has looked at it meanwhile
            await self._store.apply(write_state(watch.trigger, state, self._clock.now()))
        await self._remember(watch)

    async def _remember(self, watch: Watch) -> None:
        """Read the stored trigger again, and forget it if it was removed."""
        fresh = await self._store.get_trigger(watch.trigger.id)
        if fresh is None:
            self._watches.pop(watch.trigger.id, None)
            return
        watch.trigger, watch.changed_to = fresh, None

    def _in(self, seconds: float) -> int:
        return self._clock.now() + int(seconds * SECOND)


def _same(one: Trigger, other: Trigger) -> bool:
    return (one.options, one.state, one.state_at) == (other.options, other.state, other.state_at)


def _tell_changes(before: Files | None, seen: Look, old: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of changed files. After a restart only those are known that are newer than what was seen."""
    if before is not None:
        return {kind: [show_name(name) for name in names] for kind, names in list_changes(before, seen.files).items()}
    newer = sorted(show_name(name) for name, (_, changed) in seen.files.items() if changed > old["newest"])
    gone = max(0, old["count"] - len(seen.files))
    return {"changed": newer, "removed": [f"{gone} files"] if gone else []}


def _summarise(names: Sequence[str]) -> str:
    shown = ", ".join(PurePath(name).name for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"changed: {shown}{more}" if names else "files changed"


def _write_changes(changes: Mapping[str, Sequence[str]]) -> str:
    told = {kind: names[:TOLD] for kind, names in changes.items() if names}
    more = sum(max(0, len(names) - TOLD) for names in changes.values())
    return json.dumps({**told, **({"more": more} if more else {})}, indent=1, ensure_ascii=False)


def _name_commits(news: News, branch: str | None) -> str:
    where = f" on {branch}" if branch else ""
    forced = ", forced" if news.forced else ""
    if not news.commits:
        return f"the branch{where} moved back{forced}"
    first, count = news.commits[0], len(news.commits)
    more = f" and {count - 1} more" if count > 1 else ""
    return f"{first.id[:10]} {cut(first.subject, 100)}{more}{where}{forced}"


def _write_commits(news: News, branch: str | None, old: str) -> str:
    commits = [{**commit._asdict(), "subject": cut(commit.subject, 500)} for commit in news.commits]
    about = {"branch": branch, "before": old, "forced": news.forced, "commits": commits}
    return json.dumps({name: value for name, value in about.items() if value is not None}, indent=1, ensure_ascii=False)
