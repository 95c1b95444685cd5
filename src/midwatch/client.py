"""A typed client of the HTTP interface. Errors come back as the classes of `midwatch.errors`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast
from urllib.parse import quote

import httpx2
import orjson

from midwatch import errors
from midwatch.errors import InvalidInput, MidwatchError, NotFound, NotRunning
from midwatch.home import Home
from midwatch.submission import AutomationWish, GoalWish, NewAutomation, NewGoal, Submission
from midwatch.wire import (
    AgentInfo,
    AlertPage,
    ApprovalInfo,
    AutomationInfo,
    ClusterInfo,
    Counts,
    DeliveryInfo,
    Directories,
    EventInfo,
    EventPage,
    GoalInfo,
    Health,
    Interrupted,
    Link,
    Me,
    MessageInfo,
    Now,
    Ready,
    RoutineInfo,
    RunInfo,
    SessionInfo,
    SessionPage,
    SessionStateInfo,
    SettingsInfo,
    TakenInfo,
    TaskInfo,
    TaskPage,
    TaskStateInfo,
    TaskView,
    TokenInfo,
    TokenMade,
    UsageInfo,
)

TIMEOUT = httpx2.Timeout(30.0, connect=5.0)
QUIET_SECONDS = 45.0
"""A stream that sends nothing for this long, not even a heartbeat, is taken for dead."""
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between tries to reach a server that went away."""
PAGE = 1000


class Which(TypedDict, total=False):
    """Which events are meant; those that fit all that is said."""

    kinds: Iterable[str]
    task_id: str | None
    session_key: str | None
    agent: str | None
    actor: str | None


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
    def for_home(cls, home: str | Path, token: str | None = None) -> Client:
        """A client of the live server of a home directory, by default as its owner; or NotRunning."""
        place = Home(Path(home).expanduser().absolute())
        live = place.server()
        if live is None:
            raise NotRunning(f"no midwatch server serves {place.path}; start one with `midwatch up`.")

        def locate() -> str | None:
            found = place.server()
            return found.url if found else None

        return cls(live.url, token or place.token(), locate=locate)

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
        return cast(TaskInfo, await self._get(f"/tasks/{named('task', task_id)}"))

    async def task_page(self, task_id: str) -> TaskView:
        """One task with everything around it: texts as HTML, kin, notices, questions."""
        return cast(TaskView, await self._get(f"/tasks/{named('task', task_id)}/page"))

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
        return str((await self._get(f"/tasks/{named('task', task_id)}/result"))["result"])

    async def cancel(self, task_id: str) -> TaskInfo:
        """Stop a task."""
        return cast(TaskInfo, await self._post(f"/tasks/{named('task', task_id)}/cancel"))

    async def retry(self, task_id: str, idempotency_key: str | None = None) -> TaskInfo:
        """Have a failed or cancelled task done again, as a new task; with the same key, as one new task."""
        return cast(TaskInfo, await self._post(f"/tasks/{named('task', task_id)}/retry", key=idempotency_key))

    async def summary(self) -> Counts:
        """How many tasks there are, by status."""
        return cast(Counts, await self._get("/summary"))

    # -- sessions ------------------------------------------------------------------------------------------------

    async def sessions(self, *, before: str | None = None, limit: int = 50) -> SessionPage:
        """Conversations, the most recently used first."""
        return cast(SessionPage, await self._get("/sessions", {"before": before, "limit": limit}))

    async def session(self, key: str) -> SessionInfo:
        """One conversation."""
        return cast(SessionInfo, await self._get(f"/sessions/{quoted(key)}"))

    async def create_session(
        self, *, agent: str | None = None, workdir: str | None = None, title: str | None = None, key: str | None = None
    ) -> SessionInfo:
        """Open a conversation with an agent; one that is open with that key, agent and directory is returned."""
        said = without_none({"agent": agent, "workdir": workdir, "title": title, "key": key})
        return cast(SessionInfo, await self._post("/sessions", said))

    async def messages(
        self, key: str, after: int = 0, *, limit: int = 500, html: bool = False
    ) -> Sequence[MessageInfo]:
        """Messages with a greater number than `after`, in order; with `html` also as HTML that is safe to show."""
        found = await self._get(f"/sessions/{quoted(key)}/messages", {"after": after, "limit": limit, "html": html})
        return cast(Sequence[MessageInfo], found["messages"])

    async def send(
        self, key: str, text: str, *, priority: int | None = None, idempotency_key: str | None = None
    ) -> TaskInfo:
        """Say something in a conversation: a task, which waits while another one runs there. It is durable when this
        returns."""
        said = without_none({"text": text, "priority": priority})
        return cast(TaskInfo, await self._post(f"/sessions/{quoted(key)}/messages", said, key=idempotency_key))

    async def interrupt(self, key: str) -> Interrupted:
        """Stop what runs in a conversation; what waits goes on. Says what was stopped, and how it is resumed."""
        return cast(Interrupted, await self._post(f"/sessions/{quoted(key)}/interrupt"))

    async def close_session(self, key: str) -> SessionInfo:
        """Cancel what is open in a conversation and take no more messages."""
        return cast(SessionInfo, await self._post(f"/sessions/{quoted(key)}/close"))

    # -- events --------------------------------------------------------------------------------------------------

    async def events(
        self, after: int | None = None, *, before: int | None = None, limit: int = PAGE, **which: Unpack[Which]
    ) -> EventPage:
        """One page of stored events, in order: those with seq > `after`, or the last ones with seq < `before`. Pruned
        when some after `after` are not kept any more."""
        return cast(
            EventPage, await self._get("/events", {"after": after, "before": before, "limit": limit, **asked(which)})
        )

    async def follow(
        self, after: int = 0, *, live: bool = False, patience: float | None = None, **which: Unpack[Which]
    ) -> AsyncGenerator[EventInfo, None]:
        """Every event with seq > `after`, for ever, each stored one once and in order; with `live` also those that are
        never stored. A lost connection is taken up where it broke; NotRunning when there is no server for `patience`
        seconds."""
        async with aclosing(self._frames({**asked(which), "live": live}, after, patience)) as frames:
            async for frame in frames:
                yield cast(EventInfo, frame)

    async def watch_task(
        self, task_id: str, after: int | None = None, *, patience: float | None = None
    ) -> AsyncGenerator[TaskStateInfo | EventInfo, None]:
        """The task as it is, then its events as they come, live ones too. See `watch_session`."""
        async with aclosing(self._frames({"task_id": task_id, "state": True}, after, patience)) as frames:
            async for frame in frames:
                yield cast("TaskStateInfo | EventInfo", frame)

    async def watch_session(
        self, key: str, after: int | None = None, *, patience: float | None = None
    ) -> AsyncGenerator[SessionStateInfo | EventInfo, None]:
        """The conversation as it is (its kind is `state`), then its events as they come, live ones too; long texts are
        cut. From `after` on, and after a lost connection, come the events that were missed, then the state again."""
        async with aclosing(self._frames({"session_key": key, "state": True}, after, patience)) as frames:
            async for frame in frames:
                yield cast("SessionStateInfo | EventInfo", frame)

    async def _frames(
        self, query: Mapping[str, Any], after: int | None, patience: float | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The frames of a stream, over as many connections as it takes."""
        lost_at: float | None = None
        tries = 0
        while True:
            try:
                async with aclosing(self._stream(query, after)) as frames:
                    async for frame in frames:
                        lost_at, tries = None, 0
                        if frame is not None and not (0 < frame.get("seq", 0) <= (after or 0)):
                            after = position(frame, after)
                            yield frame
            except httpx2.TransportError as lost:
                lost_at = lost_at or time.monotonic()
                if patience is not None and time.monotonic() - lost_at >= patience:
                    raise self._unreachable(lost) from None
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
            self._move()

    async def _stream(self, query: Mapping[str, Any], after: int | None) -> AsyncGenerator[dict[str, Any] | None, None]:
        """The frames of one connection; None when it has been made. What the query says of live ones is added."""
        known = {"seq": 0, "task_id": query.get("task_id"), "session_key": query.get("session_key")}
        limits = httpx2.Timeout(30.0, connect=5.0, read=QUIET_SECONDS)
        headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": str(after)})
        async with self._http.sse(
            "/events", params=query, headers=headers, timeout=limits, max_event_size=None
        ) as source:
            if source.response.status_code >= 500:
                raise httpx2.ReadError("the server is stopping")
            if source.response.is_error:
                await source.response.aread()
                raise error_of(source.response)
            yield None
            async for message in source:
                told = orjson.loads(message.data)
                whole = message.event == "state" or "seq" in told
                yield {**({} if whole else known), "kind": message.event, **told}

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
        return cast(ApprovalInfo, await self._post(f"/approvals/{named('approval', approval_id)}/approve", said))

    async def deny(self, approval_id: str, why: str | None = None) -> ApprovalInfo:
        """Say no."""
        said = without_none({"why": why})
        return cast(ApprovalInfo, await self._post(f"/approvals/{named('approval', approval_id)}/deny", said))

    async def deliveries(
        self, status: str | None = None, task_id: str | None = None, limit: int = 50
    ) -> Sequence[DeliveryInfo]:
        """Notices, newest first."""
        found = await self._get("/deliveries", {"status": status, "task_id": task_id, "limit": limit})
        return cast(Sequence[DeliveryInfo], found["deliveries"])

    async def delivery(self, delivery_id: str) -> DeliveryInfo:
        """One notice."""
        return cast(DeliveryInfo, await self._get(f"/deliveries/{named('delivery', delivery_id)}"))

    async def retry_delivery(self, delivery_id: str) -> DeliveryInfo:
        """Try to send a failed notice again."""
        return cast(DeliveryInfo, await self._post(f"/deliveries/{named('delivery', delivery_id)}/retry"))

    async def agents(self) -> Sequence[AgentInfo]:
        """All agents, by name."""
        return cast(Sequence[AgentInfo], (await self._get("/agents"))["agents"])

    async def test_agent(self, name: str, idempotency_key: str | None = None) -> TaskInfo:
        """Give an agent a short task, to see whether it works."""
        return cast(TaskInfo, await self._post(f"/agents/{named('agent', name)}/test", key=idempotency_key))

    # -- automations ---------------------------------------------------------------------------------------------

    async def automations(
        self, status: str = "", *, scope_kind: str | None = None, scope_id: str | None = None, limit: int = 20
    ) -> Sequence[AutomationInfo]:
        """Newest first: all but deleted ones, those of one status, or `all`."""
        asked = {"status": status, "scope_kind": scope_kind, "scope_id": scope_id, "limit": limit}
        return cast(Sequence[AutomationInfo], (await self._get("/automations", asked))["automations"])

    async def automation(self, automation_id: str) -> AutomationInfo:
        """One automation, deleted ones too."""
        return cast(AutomationInfo, await self._get(f"/automations/{named('automation', automation_id)}"))

    async def create_automation(self, prompt: str, wish: NewAutomation) -> AutomationInfo:
        """Make one. Exactly one of `at`, `every` and `cron` says when it runs."""
        return cast(AutomationInfo, await self._post("/automations", {"prompt": prompt, **wish}))

    async def patch_automation(
        self, automation_id: str, wish: AutomationWish, *, prompt: str | None = None, revision: int | None = None
    ) -> AutomationInfo:
        """Change what is said. Conflict when it is not at `revision` any more."""
        said = {**wish, **without_none({"prompt": prompt, "revision": revision})}
        return cast(AutomationInfo, await self._patch(f"/automations/{named('automation', automation_id)}", said))

    async def pause_automation(self, automation_id: str) -> AutomationInfo:
        """Fire no more; what runs goes on."""
        return cast(AutomationInfo, await self._post(f"/automations/{named('automation', automation_id)}/pause"))

    async def resume_automation(self, automation_id: str) -> AutomationInfo:
        """Fire again, also after it was deleted."""
        return cast(AutomationInfo, await self._post(f"/automations/{named('automation', automation_id)}/resume"))

    async def run_automation(self, automation_id: str) -> TaskInfo:
        """Run it now, beside its times."""
        return cast(TaskInfo, await self._post(f"/automations/{named('automation', automation_id)}/run"))

    async def delete_automation(self, automation_id: str) -> AutomationInfo:
        """Delete it; resuming brings it back for 30 days."""
        return cast(AutomationInfo, await self._call("DELETE", f"/automations/{named('automation', automation_id)}"))

    async def automation_history(self, automation_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Its runs, newest first."""
        found = await self._get(f"/automations/{named('automation', automation_id)}/history", {"limit": limit})
        return cast(Sequence[RunInfo], found["runs"])

    async def export_automations(self, ids: Iterable[str] = ()) -> Sequence[AutomationInfo]:
        """These, or all that are not deleted, for an import."""
        found = await self._get("/automations/export", {"id": list(ids)})
        return cast(Sequence[AutomationInfo], found["automations"])

    async def import_automations(self, automations: Sequence[Mapping[str, Any]]) -> Sequence[TakenInfo]:
        """Make those that are not there, change those that differ; all of it or nothing."""
        found = await self._post("/automations/import", {"automations": automations})
        return cast(Sequence[TakenInfo], found["automations"])

    # -- goals ---------------------------------------------------------------------------------------------------

    async def goals(self, status: str = "", *, limit: int = 20) -> Sequence[GoalInfo]:
        """Newest first; of one status, or all."""
        return cast(Sequence[GoalInfo], (await self._get("/goals", {"status": status, "limit": limit}))["goals"])

    async def goal(self, goal_id: str) -> GoalInfo:
        """One goal."""
        return cast(GoalInfo, await self._get(f"/goals/{named('goal', goal_id)}"))

    async def create_goal(self, objective: str, wish: NewGoal | None = None) -> GoalInfo:
        """Set a goal; its first step begins at once, or when its session has a thread."""
        return cast(GoalInfo, await self._post("/goals", {"objective": objective, **(wish or {})}))

    async def edit_goal(
        self, goal_id: str, wish: GoalWish, *, objective: str | None = None, revision: int | None = None
    ) -> GoalInfo:
        """Change what is said. Conflict when it is not at `revision` any more."""
        said = {**wish, **without_none({"objective": objective, "revision": revision})}
        return cast(GoalInfo, await self._patch(f"/goals/{named('goal', goal_id)}", said))

    async def goal_steps(self, goal_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Its tasks, newest first."""
        found = await self._get(f"/goals/{named('goal', goal_id)}/steps", {"limit": limit})
        return cast(Sequence[RunInfo], found["runs"])

    async def step_goal(self, goal_id: str) -> GoalInfo:
        """Begin the next step now."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/step"))

    async def pause_goal(self, goal_id: str) -> GoalInfo:
        """Rest until it is resumed; a running step is stopped."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/pause"))

    async def resume_goal(self, goal_id: str) -> GoalInfo:
        """Go on."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/resume"))

    async def complete_goal(self, goal_id: str, evidence: str = "") -> GoalInfo:
        """It is reached. Said by its agent, it counts when the step has ended and its verifier, if any, agrees."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/complete", {"evidence": evidence}))

    async def delay_goal(self, goal_id: str, duration: float | str, reason: str) -> GoalInfo:
        """Begin the next step later: 0, or 1 minute to 12 hours."""
        said = {"duration": duration, "reason": reason}
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/delay", said))

    async def clear_goal(self, goal_id: str) -> GoalInfo:
        """Give it up and remove it; a running step is stopped."""
        return cast(GoalInfo, await self._call("DELETE", f"/goals/{named('goal', goal_id)}"))

    # -- the desk ------------------------------------------------------------------------------------------------

    async def now(self, since: datetime | None = None) -> Now:
        """The desk at a glance; usage is counted from `since`, or over the last 24 hours."""
        return cast(Now, await self._get("/now", {"since": moment(since)}))

    async def usage(self, since: datetime | None = None) -> UsageInfo:
        """What the tasks that ended since then, or in the last 24 hours, have cost."""
        return cast(UsageInfo, await self._get("/usage", {"since": moment(since)}))

    async def settings(self) -> SettingsInfo:
        """What is set, without anything secret."""
        return cast(SettingsInfo, await self._get("/settings"))

    async def directories(self, path: str | None = None, *, hidden: bool = False) -> Directories:
        """The directories in a directory of the server's machine, or in its user's home."""
        return cast(Directories, await self._get("/directories", {"path": path, "hidden": hidden}))

    async def watchdog(self) -> AlertPage:
        """Look for what is overdue, stuck or silent, and tell of it."""
        return cast(AlertPage, await self._post("/watchdog"))

    async def routines(self) -> Sequence[RoutineInfo]:
        """What the server does at intervals, and how it went."""
        return cast(Sequence[RoutineInfo], (await self._get("/routines"))["routines"])

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

    async def ready(self) -> Ready:
        """That the database answers and tasks are taken, or StoreUnavailable."""
        return cast(Ready, await self._get("/ready"))

    async def metrics(self) -> str:
        """Figures for Prometheus, in its text format."""
        return (await self._reply("GET", "/metrics", headers={"accept": "text/plain"})).text

    # -- the wire ------------------------------------------------------------------------------------------------

    async def _get(self, path: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._call("GET", path, params=without_none(asked or {}))

    async def _post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if key is not None:
            if not (key.isascii() and key.isprintable()):
                raise InvalidInput("an idempotency key is printable ASCII here.", field="idempotency_key")
            headers["idempotency-key"] = key
        return await self._call("POST", path, content=orjson.dumps(body or {}, default=str), headers=headers)

    async def _patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return await self._call("PATCH", path, content=orjson.dumps(body, default=str), headers=headers)

    async def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", orjson.loads((await self._reply(method, path, **request)).content))

    async def _reply(self, method: str, path: str, **request: Any) -> httpx2.Response:
        try:
            response = await self._http.request(method, path, **request)
        except httpx2.TransportError as lost:
            raise self._unreachable(lost) from None
        if response.is_error:
            raise error_of(response)
        return response

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
        raise InvalidInput(f"{key!r} cannot be the name of anything; list what there is.", field="id")
    return quote(key, safe="", errors="replace")


def named(noun: str, key: str) -> str:
    """The id of a record as one part of a path. None has a slash in it, and a server would take it for two parts."""
    if "/" in key:
        raise NotFound(noun, key)
    return quoted(key)


def asked(which: Which) -> dict[str, Any]:
    """A filter as a query."""
    said = without_none(which)
    return {"kind": list(said.pop("kinds", ())), **said}


def position(frame: Mapping[str, Any], after: int | None) -> int | None:
    """Where a reader is that was at `after` and has read this frame."""
    if frame["kind"] == "state":
        return int(frame["as_of_seq"])
    if frame["kind"] == "gap" and (oldest := frame["payload"].get("oldest_seq")) is not None:
        return int(oldest) - 1  # what comes now may be another log, restored from a backup
    return frame["seq"] or after


def moment(when: datetime | None) -> str | None:
    """A time with its zone, as the interface reads it."""
    return when.astimezone().isoformat() if when else None


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
