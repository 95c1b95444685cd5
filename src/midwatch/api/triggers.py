"""Routes of triggers: deliveries to webhooks, the triggers and firings of an automation, tests and replays."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Query, Request
from starlette.responses import Response

from midwatch.api import bodies
from midwatch.api.admission import Call
from midwatch.api.body_checks import check_json, check_structure
from midwatch.api.dependencies import Caller, DeskDep, FromWhere
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.refusal import LogLimiter
from midwatch.api.reply import Json, make_problem, reply_created
from midwatch.base.errors import InvalidInput, LimitReached, Unauthorized, UnsupportedMediaType
from midwatch.services.triggers import MINUTE
from midwatch.wire.triggers import DeliveredInfo, FiringDetail, FiringInfo, FiringPage, TriggerPage, WebhookInfo

FORM = "application/x-www-form-urlencoded"

log = logging.getLogger("midwatch.webhooks")
limiter = LogLimiter()

router = make_router("triggers")


@router.post("/hooks/{trigger_id}", status_code=202, responses={n: {"model": DeliveredInfo} for n in (200, 202)})
@needs("open")
async def deliver(desk: DeskDep, call: FromWhere, request: Request, trigger_id: str) -> Response:
    """Deliver to a webhook. The signature in the headers is the proof; no token is needed."""
    body = await request.body()
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    try:
        trigger = await desk.triggers.check_delivery(trigger_id, headers, body)
    except Unauthorized as error:
        if limiter.admits(call.peer, error.code):
            log.warning("refused a delivery to %.50r from %s: it is not signed as it should be", trigger_id, call.peer)
        raise
    payload = read_payload(call, body)
    try:
        delivered = await desk.triggers.deliver(trigger, headers, body, payload)
    except LimitReached as error:
        too_many = make_problem(error)
        too_many.headers["retry-after"] = str(int(MINUTE))
        return too_many
    firing = delivered.firing
    status = firing.status if firing is not None else delivered.status
    content = {
        "firing_id": firing.id if firing else None, "status": status, "reason": firing.reason if firing else None
    }  # fmt: skip
    is_new = delivered.created or delivered.status == "filtered"
    return Json(content, 202 if is_new else 200)


def read_payload(call: Call, body: bytes) -> Any:
    """Return the payload of a delivery: JSON, or the field `payload` of a form, as GitHub can send it."""
    media = call.header(b"content-type").partition(";")[0].strip().lower()
    if media == FORM:
        body = _read_form(body)
    elif media != "application/json":
        raise UnsupportedMediaType("a delivery must be JSON; choose application/json where it is sent.", field="body")
    check_structure(body)
    try:
        return check_json(json.loads(body.decode(), parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        raise InvalidInput(
            "the body is not valid JSON in UTF-8, or has NUL characters, huge numbers or more than 100 levels.",
            field="body",
        ) from None


def _read_form(body: bytes) -> bytes:
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=10, strict_parsing=True)
    except ValueError:
        fields = {}
    payload = fields.get("payload", ())
    if len(payload) != 1:
        raise InvalidInput("the form must have one field `payload` with JSON.", field="body")
    return payload[0].encode("utf-8", "surrogatepass")


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


@router.get("/automations/{automation_id}/triggers", responses={200: {"model": TriggerPage}})
@needs("read")
async def list_triggers(desk: DeskDep, actor: Caller, automation_id: str) -> Json:
    """List the triggers of an automation, with their addresses."""
    return Json({"triggers": await desk.triggers.of_automation(automation_id, actor=actor)})


@router.get("/automations/{automation_id}/firings", responses={200: {"model": FiringPage}})
@needs("read")
async def list_firings(
    desk: DeskDep, actor: Caller, automation_id: str, query: Annotated[bodies.HistoryQuery, Query()]
) -> Json:
    """List the firings of an automation, newest first."""
    firings = await desk.triggers.firings(automation_id, query.limit, actor=actor)
    return Json({"firings": [firing.snapshot() for firing in firings]})


@router.post("/automations/{automation_id}/trigger", status_code=201, responses={201: {"model": FiringInfo}})
@needs("manage")
async def test_trigger(desk: DeskDep, actor: Caller, automation_id: str, body: bodies.TriggerTestBody) -> Json:
    """Fire a trigger of an automation by hand, without its filter. Default: its first trigger."""
    firing = await desk.triggers.test(automation_id, trigger_id=body.trigger_id, payload=body.payload, actor=actor)
    return reply_created("firings", firing.snapshot())


@router.get("/firings/{firing_id}", responses={200: {"model": FiringDetail}})
@needs("read")
async def show_firing(desk: DeskDep, actor: Caller, firing_id: str) -> Json:
    """Return a firing. Who may manage its automation also gets its payload."""
    firing = await desk.triggers.get(firing_id, actor=actor)
    return Json(await desk.triggers.describe(firing, actor=actor))


@router.post("/firings/{firing_id}/replay", status_code=201, responses={201: {"model": FiringInfo}})
@needs("manage")
async def replay(desk: DeskDep, actor: Caller, firing_id: str) -> Json:
    """Fire again with the payload of a firing."""
    return reply_created("firings", (await desk.triggers.replay(firing_id, actor=actor)).snapshot())


@router.get("/triggers/{trigger_id}/secret", responses={200: {"model": WebhookInfo}})
@needs("manage")
async def show_secret(desk: DeskDep, actor: Caller, trigger_id: str) -> Json:
    """Return the address and the secret of a webhook."""
    return Json(await desk.triggers.secret(trigger_id, actor=actor))


@router.post("/triggers/{trigger_id}/secret", responses={200: {"model": WebhookInfo}})
@needs("manage")
async def rotate_secret(desk: DeskDep, actor: Caller, trigger_id: str) -> Json:
    """Give a webhook a new secret, and return it. The old one is refused from now on."""
    return Json(await desk.triggers.secret(trigger_id, rotate=True, actor=actor))
