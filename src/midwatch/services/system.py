"""The system service: an overview of the desk, its usage, whether it is ready, and the directories of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.directories import is_directory
from midwatch.base.errors import DiskFull, InvalidInput, MidwatchError, NotFound, StoreUnavailable
from midwatch.base.schedule import find_zone, host_zone
from midwatch.domain.event import Event
from midwatch.domain.identity import Actor, AnyActor
from midwatch.domain.store import Store
from midwatch.domain.task_store import TaskFilter
from midwatch.domain.usage import By, UsageQuery, add_up, group_rows
from midwatch.services.approvals import Approvals
from midwatch.services.authorization import Owner, allows, authorize
from midwatch.services.tasks import Tasks

DAY = 24 * 3600 * SECOND
LISTED = 10
ACTIVITY_FIELDS = ("text", "tool", "question", "wait", "status")
"""The payload fields of an event that describe what a task does, the best field first."""
READY_SECONDS = 5.0
LOOKS = 5
"""Into how many parts the wait for the database is divided. A pause of this process shortens only one part."""
LEAST_SPACE = 1_000_000
"""With fewer free bytes on the disk of the home, midwatch cannot store tasks reliably."""
MOST_DIRECTORIES = 1000


class System:
    """Service: information about the desk as a whole."""

    def __init__(self, store: Store, clock: Clock, tasks: Tasks, approvals: Approvals, home: Path) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._approvals = approvals
        self._home = home

    async def overview(self, since: datetime | None = None, *, actor: AnyActor = None) -> dict[str, Any]:
        """Return an overview of the desk as JSON: tasks, questions, failures of the last 24 hours, and the usage.

        The usage is that of the tasks that ended after `since`, by default in the last 24 hours.
        """
        authorize(actor, "oversee")
        state = await self._store.read_desk_state()
        done = TaskFilter(statuses=("done",), limit=LISTED)
        failed = await self._store.list_failed_tasks(self._clock.now() - DAY, LISTED)
        return {
            "as_of_seq": state.as_of_seq,
            "summary": state.summary._asdict(),
            "running": [{**task.brief(), "activity": _describe_activity(last)} for task, last in state.running],
            "approvals": [approval.snapshot() for approval in await self._approvals.list()],
            "failed": [task.brief() for task in failed],
            "recent": [task.brief() for task in await self._tasks.list(done)],
            "usage": await self.usage(since=since),
        }

    async def usage(
        self, *, since: datetime | None = None, until: datetime | None = None, by: Sequence[By] = ("actor", "agent"),
        zone: str | None = None, session_key: str | None = None, limit: int = 1000, actor: AnyActor = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the usage of the tasks that ended from `since` until `until`, as JSON.

        It contains the total, and at most `limit` rows for the groups `by`. Days begin at midnight in `zone`.
        """
        authorize(actor, "read", Owner(None, work=frozenset({session_key} if session_key else ())))
        now = self._clock.now()
        begin, end = _to_micros(since, now - DAY), _to_micros(until, now + 1)
        parts = tuple(dict.fromkeys(by))
        time_zone = find_zone(zone or host_zone())
        query = UsageQuery(since=begin, until=end, by=parts, session_key=session_key, zone=time_zone)
        spent = await self._store.sum_usage(query)
        rows = group_rows(spent, parts)
        listed = rows[-limit:] if "day" in parts else rows[:limit]
        return {
            "since": iso(begin), "until": iso(end) if until else None, "by": list(parts), "zone": time_zone.key,
            "total": add_up(spent), "rows": listed, "left_off": len(rows) - len(listed),
        }  # fmt: skip

    async def check_ready(self, seconds: float = READY_SECONDS) -> None:
        """Raise StoreUnavailable unless the database answers within `seconds` and can write.

        The errors contain no path and no address, because everybody may ask whether the server is ready.
        """
        answer = asyncio.ensure_future(self._check_store())
        try:
            for _ in range(LOOKS):
                if (await asyncio.wait({answer}, timeout=seconds / LOOKS))[0]:
                    break
            answer.result()
        except DiskFull:
            raise DiskFull("the disk is full: free some space; everything stored before is safe.") from None
        except (asyncio.InvalidStateError, MidwatchError, OSError):
            raise StoreUnavailable("the database does not answer; find the cause with `midwatch doctor`.") from None
        finally:
            answer.cancel()

    async def _check_store(self) -> None:
        await self._store.read_log_bounds()
        await self._store.check_writable()
        if (await asyncio.to_thread(shutil.disk_usage, self._home)).free < LEAST_SPACE:
            raise DiskFull

    def check_overseer(self, actor: AnyActor) -> None:
        """Raise Forbidden unless the actor may see the desk as a whole."""
        authorize(actor, "oversee")

    def home_for(self, actor: Actor) -> str | None:
        """Return the path of the home for an owner, and None for other actors."""
        return str(self._home) if allows(actor, "administer") else None

    async def describe_store(self, actor: Actor) -> dict[str, object]:
        """Return facts about the store as JSON. Only an owner gets the path of the store."""
        authorize(actor, "oversee")
        facts = await self._store.describe()
        return {name: fact for name, fact in facts.items() if name != "path" or allows(actor, "administer")}

    async def list_directories(self, path: str | None, hidden: bool, *, actor: Actor) -> dict[str, Any]:
        """Return the subdirectories of a directory as JSON, so that a person can choose a working directory.

        Without `path`, this is the home directory of the user. With `hidden`, hidden directories are included.
        """
        authorize(actor, "operate")
        requested = Path(path) if path else Path.home()
        if not requested.is_absolute() or "\0" in str(requested):
            raise InvalidInput("`path` must be an absolute path.", field="path")
        directory, names = await asyncio.to_thread(_scan, requested, hidden)
        parent = str(directory.parent) if directory.parent != directory else None
        return {"path": str(directory), "parent": parent, "directories": names}


def _to_micros(moment: datetime | None, default: int) -> int:
    return default if moment is None else int(moment.timestamp() * SECOND)


def _describe_activity(last: Event | None) -> dict[str, Any] | None:
    """Return the time of the last event of a task and a short text that describes it, or None."""
    if last is None:
        return None
    detail = next((last.payload[name] for name in ACTIVITY_FIELDS if last.payload.get(name)), "")
    return {"at": iso(last.time), "text": f"{last.kind.replace('_', ' ')} {detail}".strip()[:200]}


def _scan(path: Path, hidden: bool) -> tuple[Path, list[str]]:
    """Return the real path of a directory, and the names of its subdirectories."""
    try:
        directory = path.resolve(strict=True)
        names = [
            entry.name
            for entry in os.scandir(directory)
            if (hidden or not entry.name.startswith(".")) and entry.name.isprintable() and is_directory(entry.path)
        ]
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound("directory", str(path)) from None
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read ({problem.strerror}); choose another path.", field="path") from None
    except RuntimeError:  # a loop of symbolic links
        raise InvalidInput(f"the symbolic links of {path} form a loop; choose another path.", field="path") from None
    if not str(directory).isprintable():
        raise InvalidInput(f"the real path of {path} has unprintable characters; choose another path.", field="path")
    return directory, sorted(names, key=str.casefold)[:MOST_DIRECTORIES]
