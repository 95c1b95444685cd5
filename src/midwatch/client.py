"""A typed client of the HTTP interface. Errors come back as the classes of `midwatch.errors`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import httpx2
import orjson

from midwatch import errors
from midwatch.errors import InvalidInput, MidwatchError, NotRunning
from midwatch.home import Home
from midwatch.submission import Submission
from midwatch.wire import (
    AgentInfo,
    ApprovalInfo,
    ClusterInfo,
    Counts,
    DeliveryInfo,
    EventInfo,
    EventPage,
    Health,
    Link,
    Me,
    TaskInfo,
    TaskPage,
    TokenInfo,
    TokenMade,
)

TIMEOUT = httpx2.Timeout(30.0, connect=5.0)
QUIET_SECONDS = 45.0
"""A stream that sends nothing for this long, not even a heartbeat, is taken for dead."""
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between tries to reach a server that went away."""
PAGE = 1000


class Client:
    """Speaks to one server. Use it as an async context manager, or `close` it."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        locate: Callable[[], str | None] | None = None,
    ) -> None:
        """`locate` tells where the server is now; a follower asks it before it connects again."""
        self.url = url
        self._locate = locate
        self._http = httpx2.AsyncClient(
            base_url=f"{url}/api/v1",
            headers={"authorization": f"Bearer {token}", "accept": "application/json"},
            timeout=TIMEOUT,
            transport=transport,
            trust_env=False,  # the server is on this machine; a proxy set for the web is not the way to it
            verify=url.startswith("https:"),
        )

    @classmethod
    def for_home(cls, home: str | Path) -> Client:
        """A client of the live server of a home directory, or NotRunning."""
        place = Home(Path(home).expanduser().absolute())
        live = place.server()
        if live is None:
            raise NotRunning(f"no midwatch server serves {place.path}; start one with `midwatch up`.")

        def locate() -> str | None:
            found = place.server()
            return found.url if found else None

        return cls(live.url, place.token(), locate=locate)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    # -- tasks ---------------------------------------------------------------------------------------------------

    async def submit(self, prompt: str, wish: Submission | None = None) -> TaskInfo:
        """Hand in a prompt. The task is durable when this returns."""
        said = {name: value for name, value in (wish or {}).items() if value is not None}
        return cast(TaskInfo, await self._post("/tasks", {"prompt": prompt, **said}))

    async def get(self, task_id: str) -> TaskInfo:
        """One task."""
        return cast(TaskInfo, await self._get(f"/tasks/{quoted(task_id)}"))

    async def list(
        self,
        *,
        status: Iterable[str] = (),
        agent: str | None = None,
        session_key: str | None = None,
        creator: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> TaskPage:
        """Tasks, newest first."""
        asked = {"status": list(status), "agent": agent, "session_key": session_key, "creator": creator}
        return cast(TaskPage, await self._get("/tasks", {**asked, "before": before, "limit": limit}))

    async def result(self, task_id: str) -> str:
        """The whole text of a task that is done."""
        return str((await self._get(f"/tasks/{quoted(task_id)}/result"))["result"])

    async def cancel(self, task_id: str) -> TaskInfo:
        """Stop a task."""
        return cast(TaskInfo, await self._post(f"/tasks/{quoted(task_id)}/cancel"))

    async def retry(self, task_id: str) -> TaskInfo:
        """Have a failed or cancelled task done again, as a new task."""
        return cast(TaskInfo, await self._post(f"/tasks/{quoted(task_id)}/retry"))

    async def summary(self) -> Counts:
        """How many tasks there are, by status."""
        return cast(Counts, await self._get("/summary"))

    # -- events --------------------------------------------------------------------------------------------------

    async def events(
        self,
        after: int = 0,
        *,
        kinds: Iterable[str] = (),
        task_id: str | None = None,
        session_key: str | None = None,
        limit: int = PAGE,
    ) -> EventPage:
        """One page of stored events with seq > `after`."""
        asked = {"after": after, "kind": list(kinds), "task_id": task_id, "session_key": session_key, "limit": limit}
        return cast(EventPage, await self._get("/events", asked))

    async def follow(
        self,
        after: int = 0,
        *,
        kinds: Iterable[str] = (),
        task_id: str | None = None,
        session_key: str | None = None,
        live: bool = False,
        patience: float | None = None,
    ) -> AsyncGenerator[EventInfo, None]:
        """Every event with seq > `after`, for ever, each stored one once and in order. A lost connection is taken up
        where it broke; NotRunning when there is no server for `patience` seconds."""
        asked = without_none({"kind": list(kinds), "task_id": task_id, "session_key": session_key, "live": live})
        lost_at: float | None = None
        tries = 0
        while True:
            try:
                async with aclosing(self._stream(asked, after)) as events:
                    async for event in events:
                        lost_at, tries = None, 0
                        if event is not None:
                            after = event["seq"] or after
                            yield event
            except httpx2.TransportError as lost:
                lost_at = lost_at or time.monotonic()
                if patience is not None and time.monotonic() - lost_at >= patience:
                    raise self._unreachable(lost) from None
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
            self._move()

    async def _stream(self, asked: Mapping[str, Any], after: int) -> AsyncGenerator[EventInfo | None, None]:
        """The events of one connection; None when it has been made."""
        limits = httpx2.Timeout(30.0, connect=5.0, read=QUIET_SECONDS)
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        async with self._http.sse(
            "/events", params=asked, headers=headers, timeout=limits, max_event_size=None
        ) as source:
            if source.response.status_code >= 500:
                raise httpx2.ReadError("the server is stopping")
            if source.response.is_error:
                await source.response.aread()
                raise error_of(source.response)
            yield None
            async for message in source:
                told = orjson.loads(message.data)
                yield cast(EventInfo, told if "seq" in told else {"seq": 0, "kind": message.event, **told})

    def _move(self) -> None:
        found = self._locate() if self._locate else None
        if found and found != self.url:
            self.url = found
            self._http.base_url = httpx2.URL(f"{found}/api/v1")

    # -- approvals, agents, ... ----------------------------------------------------------------------------------

    async def approvals(self, status: str = "pending", limit: int = 50) -> Sequence[ApprovalInfo]:
        """Questions with this status, or `all`; newest first."""
        found = await self._get("/approvals", {"status": status, "limit": limit})
        return cast(Sequence[ApprovalInfo], found["approvals"])

    async def approve(self, approval_id: str, choice: str | None = None, why: str | None = None) -> ApprovalInfo:
        """Say yes, or answer with a choice."""
        said = without_none({"choice": choice, "why": why})
        return cast(ApprovalInfo, await self._post(f"/approvals/{quoted(approval_id)}/approve", said))

    async def deny(self, approval_id: str, why: str | None = None) -> ApprovalInfo:
        """Say no."""
        said = without_none({"why": why})
        return cast(ApprovalInfo, await self._post(f"/approvals/{quoted(approval_id)}/deny", said))

    async def deliveries(self, status: str | None = None, task_id: str | None = None) -> Sequence[DeliveryInfo]:
        """Notices, newest first."""
        found = await self._get("/deliveries", {"status": status, "task_id": task_id})
        return cast(Sequence[DeliveryInfo], found["deliveries"])

    async def agents(self) -> Sequence[AgentInfo]:
        """All agents, by name."""
        return cast(Sequence[AgentInfo], (await self._get("/agents"))["agents"])

    async def cluster(self) -> ClusterInfo:
        """Which processes run tasks."""
        return cast(ClusterInfo, await self._get("/cluster"))

    async def me(self) -> Me:
        """Who this client is to the server."""
        return cast(Me, await self._get("/me"))

    async def link(self) -> Link:
        """An address that signs one browser in, as whoever this client is."""
        return cast(Link, await self._post("/links"))

    async def tokens(self) -> Sequence[TokenInfo]:
        """Tokens of programs and browsers, newest first."""
        return cast(Sequence[TokenInfo], (await self._get("/tokens"))["tokens"])

    async def create_token(self, name: str, role: str, actor: str | None = None) -> TokenMade:
        """A token for a program; its secret is not told again."""
        said = without_none({"name": name, "role": role, "actor": actor})
        return cast(TokenMade, await self._post("/tokens", said))

    async def revoke_token(self, key: str) -> TokenInfo:
        """End a token, by its id or name."""
        return cast(TokenInfo, await self._call("DELETE", f"/tokens/{quoted(key)}"))

    async def health(self) -> Health:
        """Whether the server answers."""
        return cast(Health, await self._get("/health"))

    # -- the wire ------------------------------------------------------------------------------------------------

    async def _get(self, path: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._call("GET", path, params=without_none(asked or {}))

    async def _post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return await self._call("POST", path, content=orjson.dumps(body or {}, default=str), headers=headers)

    async def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **request)
        except httpx2.TransportError as lost:
            raise self._unreachable(lost) from None
        if response.is_error:
            raise error_of(response)
        return cast("dict[str, Any]", orjson.loads(response.content))

    def _unreachable(self, lost: httpx2.TransportError) -> NotRunning:
        if isinstance(lost, httpx2.ConnectError | httpx2.ConnectTimeout):
            return NotRunning(f"no server answers at {self.url}; start it with `midwatch up`.")
        return NotRunning(
            f"the server at {self.url} went away before it answered ({type(lost).__name__}); "
            "see with `midwatch doctor`, and with `midwatch tasks` what it had taken."
        )


def quoted(key: str) -> str:
    """`key` as one part of a path."""
    if not key or key in (".", ".."):
        raise InvalidInput("the id is empty; list what there is with `midwatch tasks`.", field="id")
    return str(httpx2.QueryParams({"k": key}))[2:].replace("+", "%20")


def without_none(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Only what was said."""
    return {name: value for name, value in asked.items() if value is not None}


def _subclasses(kind: type[MidwatchError]) -> list[type[MidwatchError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _subclasses(child))]


BY_CODE = {kind.code: kind for kind in _subclasses(errors.MidwatchError)}
FIXED = frozenset({"type", "title", "status", "code", "detail", "field"})


def error_of(response: httpx2.Response) -> MidwatchError:
    """The error a reply tells of, as the class it was raised as."""
    try:
        told = orjson.loads(response.content)
        code, detail = str(told["code"]), str(told["detail"])
    except (ValueError, KeyError, TypeError):
        return MidwatchError(f"the server answered {response.status_code} in a way that was not understood.")
    kind = BY_CODE.get(code, MidwatchError)
    made = kind.__new__(kind, detail)  # its own arguments are not known here, only what came of them
    vars(made).update({name: value for name, value in told.items() if name not in FIXED})
    if isinstance(made, InvalidInput):
        made.field = told.get("field")
    return made
