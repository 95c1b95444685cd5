"""Routes of the system: health, readiness, metrics, settings, directories, watchdog, alerts, routines."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from midwatch.api.bodies import DirectoryQuery, WatchdogBody
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.base.version import __version__
from midwatch.wire.alerts import AlertInfo, AlertList, AlertPage, RoutinePage
from midwatch.wire.system import Directories, Health, Ready, SettingsInfo

LIMITS = ("slots", "max_open", "max_open_per_actor", "max_running_per_actor", "max_waiting", "approval_expiry")

router = make_router("system")


@router.get("/health", responses={200: {"model": Health}})
@needs("open")
async def health() -> Json:
    """Report that the server answers. Needs no token."""
    return Json({"status": "ok", "version": __version__})


@router.get("/ready", responses={200: {"model": Ready}})
@needs("open")
async def ready(desk: DeskDep) -> Json:
    """Report whether the database answers and can write. If not, the status is 503. Needs no token.

    If the disk is full, the code of the reply is `disk_full`.
    """
    await desk.system.check_ready()
    return Json({"status": "ready"})


@router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
@needs("oversee")
async def metrics(desk: DeskDep, actor: Caller, request: Request) -> Response:
    """Return metrics for Prometheus."""
    from midwatch.api.metrics import MEDIA_TYPE, render  # a slow import that is rarely needed

    return Response(await render(desk, len(request.app.state.streams), actor), media_type=MEDIA_TYPE)


@router.get("/settings", responses={200: {"model": SettingsInfo}})
@needs("oversee")
async def settings(desk: DeskDep, actor: Caller) -> Json:
    """Return the settings without secrets. Only an owner gets the path of the home."""
    settings = desk.settings
    return Json(
        {
            "default_agent": settings.default_agent,
            "notify": (settings.notify or "").partition(":")[0] or None,
            "channels": sorted(desk.channels),
            "limits": {name: getattr(settings, name) for name in LIMITS},
            "retention": settings.retention.model_dump(),
            "store": await desk.system.describe_store(actor),
        }
    )


@router.get("/directories", responses={200: {"model": Directories}})
@needs("operate")
async def directories(desk: DeskDep, actor: Caller, query: Annotated[DirectoryQuery, Query()]) -> Json:
    """Return the subdirectories of a directory on the server's machine, to choose a working directory for an agent."""
    return Json(await desk.system.list_directories(query.path, query.hidden, actor=actor))


@router.post("/watchdog", responses={200: {"model": AlertPage}})
@needs("operate")
async def watchdog(desk: DeskDep, actor: Caller, body: WatchdogBody | None = None) -> Json:
    """Look for problems now: raise, escalate and withdraw alerts, and send notices.

    If the body has a grace, the problems are only looked for with it and listed in `known`; nothing is sent.
    """
    report = await desk.alerts.look(**(body or WatchdogBody()).model_dump(), actor=actor)
    return Json({name: [alert.snapshot() for alert in alerts] for name, alerts in report._asdict().items()})


@router.get("/alerts", responses={200: {"model": AlertList}})
@needs("oversee")
async def alerts(desk: DeskDep, actor: Caller) -> Json:
    """Return the problems that exist now, each with the state of its alert, the oldest first."""
    return Json({"alerts": [alert.snapshot() for alert in await desk.alerts.list(actor=actor)]})


@router.post("/alerts/{alert_id}/ack", responses={200: {"model": AlertInfo}})
@needs("operate")
async def acknowledge(desk: DeskDep, actor: Caller, alert_id: str) -> Json:
    """Acknowledge an alert: there are no more notices about it until it is over."""
    return Json((await desk.alerts.acknowledge(alert_id, actor=actor)).snapshot())


@router.get("/routines", responses={200: {"model": RoutinePage}})
@needs("oversee")
async def routines(desk: DeskDep, actor: Caller) -> Json:
    """Return the routines of this process, which run at intervals, and the results of their last runs."""
    desk.system.check_overseer(actor)
    return Json({"routines": [routine.snapshot() for routine in desk.routines.list()]})
