"""The routes of one conversation, at the paths and in the words that clients of agentapi expect."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Send

from midwatch.api.agentapi import checks, describe
from midwatch.api.agentapi.chat import Chat
from midwatch.api.agentapi.feed import Feed, Reader
from midwatch.api.agentapi.replies import Refusal, failed, frames, refusal, reply, text_reply
from midwatch.api.agentapi.talk import NotTaken, Talk
from midwatch.api.agentapi.uploads import Uploads
from midwatch.api.dependencies import ACTOR
from midwatch.api.reply import STATUS
from midwatch.api.sse import LOG, Batches, EventStream, Streams
from midwatch.base.errors import AgentError, Conflict, InvalidInput, MidwatchError
from midwatch.domain.event import Event
from midwatch.domain.identity import Actor

EVENTS = ("message_update", "status_change", "agent_error")
STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-store, must-revalidate",
    "pragma": "no-cache",
    "expires": "0",
    "x-accel-buffering": "no",
    "x-proxy-buffering": "no",
    "connection": "keep-alive",
}
OPENAPI = {
    "openapi.json": ("3.1.0", "json"), "openapi.yaml": ("3.1.0", "yaml"),
    "openapi-3.0.json": ("3.0.3", "json"), "openapi-3.0.yaml": ("3.0.3", "yaml"),
}  # fmt: skip

log = logging.getLogger("midwatch.agentapi")

StillAllowed = Callable[[], Awaitable[bool]]
Handler = Callable[[Request, Talk], Awaitable[Response]]


class Stream(EventStream):
    """The state of a feed, then what changes."""

    def __init__(self, feed: Feed, names: tuple[str, ...], streams: Streams, actor: str, allowed: StillAllowed) -> None:
        super().__init__(_nothing(), streams, LOG, actor, allowed)
        self.init_headers(STREAM_HEADERS)
        self._feed = feed
        self._names = names

    async def _write(self, send: Send) -> None:
        reader, state = self._feed.subscribe(*self._names)
        try:
            if state:
                await self._send(send, frames(state))
            await self._pass_on(send, reader)
        finally:
            self._feed.unsubscribe(reader)

    async def _pass_on(self, send: Send, reader: Reader) -> None:
        while told := await reader.take():
            for start in range(0, len(told), 16):
                await self._send(send, frames(told[start : start + 16]))


async def _nothing() -> Batches:
    """A stream of the log has batches; this one has a feed."""
    nothing: list[Event] = []
    if nothing:
        yield nothing


class Surface:
    """The routes, for whichever conversation a request is about."""

    def __init__(self, chat: Chat, uploads: Uploads, streams: Streams) -> None:
        self._chat = chat
        self._uploads = uploads
        self._streams = streams
        self._routes: Mapping[str, tuple[str, Handler]] = {
            "status": ("GET", self._status),
            "messages": ("GET", self._messages),
            "message": ("POST", self._message),
            "upload": ("POST", self._upload),
            "events": ("GET", self._events),
            "internal/screen": ("GET", self._screen),
        }

    async def answer(
        self, request: Request, path: str, key: str, find: Callable[[], Awaitable[Talk]], chat_base: str, api: str
    ) -> Response:
        """The reply to a request for `path`, which has no slash before it, about session `key`. Browsers find the chat
        page at `chat_base`, and the interface of the console at `api`."""
        if path == "":
            return RedirectResponse(f"{chat_base.rstrip('/')}/embed", 307)
        if path in self._routes:
            method, handler = self._routes[path]
            if request.method != method:
                return Response(status_code=405, headers={"allow": method})
            try:
                return await handler(request, await find())
            except Refusal as refused:
                return refusal(request.scope, refused)
            except MidwatchError as problem:
                return refusal(request.scope, Refusal(_status_of(problem), str(problem)))
        folder, _, name = path.partition("/")
        if folder == "chat" and request.method == "GET":
            return self._chat.reply(request, name, key, chat_base, api)
        return self._page(request, path)

    def _page(self, request: Request, path: str) -> Response:
        folder, _, name = path.partition("/")
        fixed = path in OPENAPI or path == "docs"
        if not fixed and folder not in ("chat", "schemas"):
            return text_reply("404 page not found\n", 404)
        if request.method != "GET":
            return Response(status_code=405, headers={"allow": "GET"})
        if path == "docs":
            return Response(describe.page(), media_type="text/html; charset=utf-8")
        if path in OPENAPI:
            version, form = OPENAPI[path]
            text = json.dumps(describe.document(version), indent=2 if form == "yaml" else None)
            return Response(text + "\n", media_type=f"application/vnd.oai.openapi+{form}")  # JSON is YAML, too
        if not name.endswith(".json"):
            return text_reply("404 page not found\n", 404)
        found = describe.schema(name.removesuffix(".json"), request.scope.get("root_path", ""))
        return Response(json.dumps(found) + "\n", media_type="application/json")

    # -- the conversation ----------------------------------------------------------------------------------------------

    async def _status(self, request: Request, talk: Talk) -> Response:
        feed = talk.feed
        body = {"status": feed.status, "agent_type": feed.agent_type, "transport": talk.transport}
        return reply(request.scope, "StatusResponseBody", body)

    async def _messages(self, request: Request, talk: Talk) -> Response:
        told = [
            {"id": body["id"], "content": body["message"], "role": body["role"], "time": body["time"]}
            for body in talk.feed.bodies()
        ]
        return reply(request.scope, "MessagesResponseBody", {"messages": told})

    async def _message(self, request: Request, talk: Talk) -> Response:
        wish = checks.message(await _body(request, checks.LARGEST_BODY), request.headers.get("content-type"))
        try:
            if wish.raw:
                await talk.press(wish.content)
            else:
                await talk.send(wish.content, actor=_actor(request).name)
        except InvalidInput as problem:
            raise failed(422, str(problem)) from None
        except Conflict as problem:
            raise failed(409, str(problem)) from None
        except NotTaken as problem:
            log.warning("session %s: %s", talk.key, problem)
            raise failed(504, TIMED_OUT, str(problem)) from None
        except AgentError as problem:
            raise failed(500, str(problem)) from None
        return reply(request.scope, "MessageResponseBody", {"ok": True})

    async def _upload(self, request: Request, talk: Talk) -> Response:
        media = request.headers.get("content-type")
        body = await _body(request, checks.LARGEST_FILE + checks.FORM)
        if len(body) > checks.LARGEST_FILE + checks.FORM:
            raise checks.too_large()
        path = await self._uploads.keep(checks.upload(body, media))
        return reply(request.scope, "UploadResponseBody", {"ok": True, "filePath": path})

    async def _events(self, request: Request, talk: Talk) -> Response:
        return self._stream(request, talk, EVENTS)

    async def _screen(self, request: Request, talk: Talk) -> Response:
        return self._stream(request, talk, ("screen",))

    def _stream(self, request: Request, talk: Talk, names: tuple[str, ...]) -> Response:
        if self._streams.closing:
            raise Refusal(503, "the server is stopping; connect again when it is back")
        who = _actor(request).name
        self._streams.check_room(who)
        return Stream(talk.feed, names, self._streams, who, request.scope[ALLOWED])


TIMED_OUT = "failed to send message: failed to wait for processing to start: timeout waiting for condition"
ALLOWED = "midwatch.still_allowed"
"""Where in the scope of a request is the look whether its reader may still read."""


def _actor(request: Request) -> Actor:
    actor: Actor = request.scope[ACTOR]
    return actor


def _status_of(problem: MidwatchError) -> int:
    return next((STATUS[kind] for kind in type(problem).__mro__ if kind in STATUS), 500)


async def _body(request: Request, most: int) -> bytes:
    """The body, or the beginning of one that is too large."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > most:
            break
    return b"".join(parts)
