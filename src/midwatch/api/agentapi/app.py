"""The routes of agentapi, at the paths that clients of agentapi expect.

`create_standalone` serves the routes for one session, without tokens. `create_shared` serves the routes for each
session of a server; `mount` adds it to the server.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from midwatch.api.agentapi import bodies, describe
from midwatch.api.agentapi.allowed_origins import Gate, Rules
from midwatch.api.agentapi.chat import Chat
from midwatch.api.agentapi.console import PREFIX, Console
from midwatch.api.agentapi.feed import STREAM_HEADERS, encode_event
from midwatch.api.agentapi.follower import NoReaction, SessionFollower, SessionFollowers
from midwatch.api.agentapi.place import METHODS, PLACE, Place
from midwatch.api.agentapi.replies import HANDLERS, refuse_message, reply
from midwatch.api.agentapi.requests import read_message
from midwatch.api.agentapi.uploads import UploadedFile, Uploads, read_upload
from midwatch.api.dependencies import ACTOR, Caller, StillAllowed
from midwatch.api.describe import NO_TELEMETRY
from midwatch.api.permissions import needs
from midwatch.api.reply import find_status
from midwatch.api.sse import EventStream, Streams
from midwatch.base.errors import AgentError, Conflict, InvalidInput
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor

MAX_STREAMS = 600
TIMED_OUT = "failed to send message: failed to wait for processing to start: timeout waiting for condition"

log = logging.getLogger("midwatch.agentapi")

FindFollower = Callable[[str], Awaitable[SessionFollower]]


async def find_place(request: Request) -> Place:
    """Return the `Place` that is stored in the ASGI scope of a request."""
    place: Place = request.scope[PLACE]
    return place


async def find_follower(request: Request, actor: Caller) -> SessionFollower:
    """Return the follower of the session that the request names. Raise NotFound if there is no such session."""
    find: FindFollower = request.app.state.find_follower
    key = (await find_place(request)).key
    await request.app.state.desk.authorization.check_session(actor, "read", key)
    return await find(key)


AtPlace = Annotated[Place, Depends(find_place)]
Follower = Annotated[SessionFollower, Depends(find_follower)]

router = APIRouter(responses={"default": describe.PROBLEM})
pages = APIRouter(include_in_schema=False)

# -- the conversation --------------------------------------------------------------------------------------------------


@router.get("/status", operation_id="get-status", summary="Get status", response_model=bodies.StatusResponseBody)
@needs("read")
async def get_status(request: Request, follower: Follower) -> Response:
    """Return the status of the agent."""
    feed = follower.feed
    body = bodies.StatusResponseBody(status=feed.status, agent_type=feed.agent_type, transport=follower.transport)
    return reply(request, body)


@router.get(
    "/messages", operation_id="get-messages", summary="Get messages", response_model=bodies.MessagesResponseBody
)
@needs("read")
async def get_messages(request: Request, follower: Follower) -> Response:
    """Return all messages of the conversation."""
    messages = [
        bodies.Message(id=message.id, content=message.message, role=message.role, time=message.time)
        for message in follower.feed.messages
    ]
    return reply(request, bodies.MessagesResponseBody(messages=messages))


@router.post(
    "/message", operation_id="post-message", summary="Post message", response_model=bodies.MessageResponseBody,
    openapi_extra=describe.describe_request("application/json", describe.refer_to(bodies.MessageRequestBody)),
)  # fmt: skip
@needs("manage")
async def post_message(
    request: Request,
    follower: Follower,
    who: Caller,
    message: Annotated[bodies.MessageRequestBody, Depends(read_message)],
) -> Response:
    """Send a message to the agent, or keystrokes to its terminal."""
    try:
        if message.type == "raw":
            await follower.type_keys(message.text, actor=who)
        else:
            await follower.send_message(message.text, actor=who)
    except (InvalidInput, Conflict, AgentError) as problem:
        raise refuse_message(find_status(problem), str(problem)) from None
    except NoReaction as problem:
        log.warning("the agent of session %s did not react to a message: %s", follower.key, problem)
        raise refuse_message(504, TIMED_OUT, str(problem)) from None
    return reply(request, bodies.MessageResponseBody(ok=True))


@router.post(
    "/upload", operation_id="upload", summary="Upload a file", response_model=bodies.UploadResponseBody,
    openapi_extra=describe.describe_request("multipart/form-data", describe.FILE),
)  # fmt: skip
@needs("manage")
async def upload(
    request: Request, follower: Follower, who: Caller, file: Annotated[UploadedFile, Depends(read_upload)]
) -> Response:
    """Store a file for the agent."""
    await request.app.state.desk.authorization.check_session(who, "manage", follower.key)
    path = await request.app.state.uploads.keep(file)
    return reply(request, bodies.UploadResponseBody(ok=True, filePath=path))


@router.get(
    "/events", operation_id="subscribeEvents", summary="Subscribe to events", response_class=EventStream,
    status_code=200, responses={200: {"content": {"text/event-stream": {"schema": describe.EVENTS}}}},
)  # fmt: skip
@needs("read")
async def get_events(request: Request, follower: Follower, who: Caller, still_allowed: StillAllowed) -> Response:
    """Stream the current state of the conversation as events, then an event for every change."""
    events = follower.feed.follow(*bodies.EVENTS)
    return EventStream(events, request.app.state.streams, encode_event, who, still_allowed, STREAM_HEADERS)


@pages.get("/internal/screen")
@needs("read")
async def get_screen(request: Request, follower: Follower, who: Caller, still_allowed: StillAllowed) -> Response:
    """Stream the current screen of the terminal, then every new screen."""
    events = follower.feed.follow(bodies.ScreenUpdateBody)
    return EventStream(events, request.app.state.streams, encode_event, who, still_allowed, STREAM_HEADERS)


def describe_surface(version: str) -> dict[str, Any]:
    """Return the OpenAPI document of agentapi. `version` is that of OpenAPI: 3.1.0 or 3.0.3."""
    return describe.describe_routes(router.routes, version)


# -- pages -------------------------------------------------------------------------------------------------------------


@pages.api_route("/", methods=METHODS)
@needs("know")
async def go_to_chat(place: AtPlace) -> Response:
    """Redirect a browser to the chat page."""
    return RedirectResponse(f"{place.chat.rstrip('/')}/embed", 307)


@pages.get("/chat")
@pages.get("/chat/{name:path}")
@needs("know")
async def get_chat(request: Request, place: AtPlace, name: str = "") -> Response:
    """Return the chat page, or one of its files."""
    chat: Chat = request.app.state.chat
    return chat.reply(request, name, place.key, place.chat, place.console)


@pages.get("/docs")
@needs("know")
async def get_docs() -> Response:
    """Return a page that lists the routes."""
    return Response(describe.write_page(describe_surface("3.1.0")), media_type="text/html; charset=utf-8")


@pages.get("/schemas")
@pages.get("/schemas/{name:path}")
@needs("know")
async def get_schema(request: Request, name: str = "") -> Response:
    """Return the JSON schema with this name, or null. References to other schemas are addresses on this server."""
    if not name.endswith(".json"):
        raise HTTPException(404)
    text = json.dumps(describe.describe_bodies().get(name.removesuffix(".json")))
    prefix = request.scope.get("root_path", "")
    linked = re.sub(r'"#/components/schemas/(\w+)"', rf'"{prefix}/schemas/\1.json"', text)
    return Response(linked + "\n", media_type="application/json")


@pages.get("/openapi.json")
@pages.get("/openapi.yaml")
@pages.get("/openapi-3.0.json")
@pages.get("/openapi-3.0.yaml")
@needs("know")
async def get_openapi(request: Request) -> Response:
    """Return the OpenAPI document as JSON, which is also valid YAML."""
    name, _, form = request.scope["path"].rpartition(".")
    document = describe_surface("3.0.3" if name.endswith("3.0") else "3.1.0")
    text = json.dumps(document, indent=2 if form == "yaml" else None)
    return Response(text + "\n", media_type=f"application/vnd.oai.openapi+{form}")


# -- apps --------------------------------------------------------------------------------------------------------------


def create_surface(desk: Desk, streams: Streams, find_follower: FindFollower, chat: Chat, uploads: Uploads) -> FastAPI:
    """Return the app with all routes of agentapi. The ASGI scope of each request must hold a `Place` and the actor."""
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=NO_TELEMETRY,
        exception_handlers={**HANDLERS},
    )  # fmt: skip
    app.state.desk, app.state.streams, app.state.find_follower = desk, streams, find_follower
    app.state.chat, app.state.uploads = chat, uploads
    app.router.routes.extend([*router.routes, *pages.routes])
    return app


def create_standalone(desk: Desk, follower: SessionFollower, rules: Rules, chat_base: str, uploads: Uploads) -> FastAPI:
    """Return the app of `midwatch agentapi server`, which serves one session without tokens."""

    async def find_follower(key: str) -> SessionFollower:
        return follower

    streams = Streams(max_per_actor=MAX_STREAMS)
    app = create_surface(desk, streams, find_follower, Chat(rules.frames), uploads)
    app.router.routes.insert(0, Route(PREFIX + "/{path:path}", Console(desk, streams)))
    place = Place(follower.key, chat_base, chat_base.rstrip("/") + PREFIX.removeprefix("/chat"))
    client = Actor("agentapi", "operator", session=follower.key)
    app.add_middleware(Gate, rules=rules, context={ACTOR: client, PLACE: place})
    return app


def create_shared(
    desk: Desk, streams: Streams, unexpected: Callable[[Request, Exception], Awaitable[Response]]
) -> FastAPI:
    """Return the app for every session of a server. If a bug makes a request fail, `unexpected` replies to it."""
    app = create_surface(desk, streams, SessionFollowers(desk).find, Chat(), Uploads())
    app.add_exception_handler(Exception, unexpected)
    return app
