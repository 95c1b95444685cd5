"""Routes of the system: does it live, is it ready, what does it measure, how is it set, which directories are there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from midwatch.api.bodies import DirectoryQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.base.errors import Forbidden, InvalidInput, MidwatchError, NotFound, StoreUnavailable
from midwatch.base.version import __version__
from midwatch.domain.event import EventLog
from midwatch.wire.alerts import AlertPage, RoutinePage
from midwatch.wire.system import Directories, Health, Ready, SettingsInfo

READY_SECONDS = 5.0
LOOKS = 5
"""So often its answer is looked for in that time, so that a moment in which this process was busy counts once."""
MOST_DIRECTORIES = 1000
LIMITS = ("slots", "max_open", "max_open_per_actor", "max_running_per_actor", "max_waiting", "approval_expiry")

router = APIRouter(prefix=PREFIX, tags=["system"])


@router.get("/health", responses={200: {"model": Health}})
async def health() -> Json:
    """Whether the server answers. Needs no token."""
    return Json({"status": "ok", "version": __version__})


@router.get("/ready", responses={200: {"model": Ready}})
async def ready(desk: DeskDep) -> Json:
    """Whether the database answers and tasks are taken; 503 otherwise. Needs no token."""
    await check_answers(desk.store)
    return Json({"status": "ready"})


async def check_answers(log: EventLog, seconds: float = READY_SECONDS) -> None:
    """StoreUnavailable unless the database answers within so many seconds."""
    asked = asyncio.ensure_future(log.log_bounds())
    try:
        for _ in range(LOOKS):
            if (await asyncio.wait({asked}, timeout=seconds / LOOKS))[0]:
                break
        asked.result()
    except (asyncio.InvalidStateError, MidwatchError):
        raise StoreUnavailable("the database does not answer; see `midwatch doctor`.") from None
    finally:
        asked.cancel()


@router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(desk: DeskDep, request: Request) -> Response:
    """Figures for Prometheus."""
    from midwatch.api import metrics as measured  # heavy, and seldom asked for

    return Response(await measured.text(desk, len(request.app.state.streams)), media_type=measured.MEDIA_TYPE)


@router.get("/settings", responses={200: {"model": SettingsInfo}})
async def settings(desk: DeskDep, who: Who) -> Json:
    """What is set, without anything secret. Only an owner is told where the home is."""
    chosen = desk.settings
    store = await desk.store.describe()
    return Json(
        {
            "default_agent": chosen.default_agent,
            "notify": (chosen.notify or "").partition(":")[0] or None,
            "channels": sorted(desk.channels),
            "limits": {name: getattr(chosen, name) for name in LIMITS},
            "retention": chosen.retention.model_dump(),
            "store": store if who.role == "owner" else {name: store[name] for name in store if name != "path"},
        }
    )


@router.get("/directories", responses={200: {"model": Directories}})
async def directories(desk: DeskDep, who: Who, asked: Annotated[DirectoryQuery, Query()]) -> Json:
    """The directories in a directory of the server's machine, for choosing where an agent works."""
    if who.role == "viewer":
        raise Forbidden("a viewer starts no work and needs no directory.")
    path = Path(asked.path) if asked.path else Path.home()
    if not path.is_absolute() or "\0" in str(path):
        raise InvalidInput("the path must be absolute.", field="path")
    place, found = await asyncio.to_thread(_inside, path, asked.hidden)
    parent = str(place.parent) if place.parent != place else None
    return Json({"path": str(place), "parent": parent, "directories": found})


def _inside(path: Path, hidden: bool) -> tuple[Path, list[str]]:
    try:
        place = path.resolve(strict=True)
        found = [
            one.name
            for one in os.scandir(place)
            if (hidden or not one.name.startswith(".")) and one.name.isprintable() and _is_directory(one)
        ]
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound("directory", str(path)) from None
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}.", field="path") from None
    except RuntimeError:  # links that go round in a circle
        raise InvalidInput(f"{path} cannot be read.", field="path") from None
    if not str(place).isprintable():
        raise InvalidInput(f"{path} leads to a place whose name cannot be shown.", field="path")
    return place, sorted(found, key=str.casefold)[:MOST_DIRECTORIES]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


@router.post("/watchdog", responses={200: {"model": AlertPage}})
async def watchdog(desk: DeskDep) -> Json:
    """Look for what is overdue, stuck or silent now; `told` are those that were not told lately, `known` the others."""
    found = await desk.alerts.look()
    told = await desk.alerts.tell()
    fresh = {one.id for one in told}
    return Json({"told": [a.snapshot() for a in told], "known": [a.snapshot() for a in found if a.id not in fresh]})


@router.get("/routines", responses={200: {"model": RoutinePage}})
async def routines(desk: DeskDep) -> Json:
    """What this process does at intervals, and how it went."""
    return Json({"routines": [one.snapshot() for one in desk.routines.list()]})
