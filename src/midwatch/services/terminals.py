"""The terminals of sessions: read a terminal and type into it, also if it is open in another process.

A request to another process is sent again and again until the answer arrives. The other process executes the request
only once.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from midwatch.base.directories import UNKNOWN
from midwatch.base.errors import AgentError, Conflict, InvalidInput, MidwatchError, NotRunning
from midwatch.domain.agent import Agent, Conversation, ProgramUsage, Screenshot, has_terminal
from midwatch.domain.event import Payload
from midwatch.domain.identity import AnyActor
from midwatch.domain.relay import Relay
from midwatch.domain.session import Session
from midwatch.domain.store import Store
from midwatch.services.authorization import Authorization
from midwatch.services.records import require

ASK, ANSWER = "terminal", "terminal_answer"
PATIENCE = 5.0
AGAIN_SECONDS = 0.5
MOST_ANSWERED = 1000
MOST_KEYS = 1_000_000
MIN_SIZE, MAX_SIZE = (20, 10), (1000, 1000)
ERRORS: Mapping[str, type[MidwatchError]] = {kind.code: kind for kind in (Conflict, AgentError)}


class OpenConversations(Protocol):
    """Port: the open conversations of this process."""

    def find(self, key: str) -> Conversation | None: ...
    async def begin(self, agent: Agent, session: Session, turn: OpeningTurn) -> Conversation: ...


class OpeningTurn:
    """A substitute for a turn, with which a program is started before its first prompt.

    If midwatch dies, the guard ends the process group of the program.
    """

    attempt = 0
    resumed = False

    def __init__(self, session: Session, env: Mapping[str, str]) -> None:
        self.task_id = f"open-{uuid.uuid4().hex[:12]}"
        self.thread_id: str | None = session.thread_id
        self.workdir: str | None = session.workdir
        self.pin: str | None = UNKNOWN
        self.env: Mapping[str, str] = {
            **env, "MIDWATCH_TASK": f"{self.task_id}/0", "MIDWATCH_SESSION": session.key
        }  # fmt: skip

    async def emit(self, payload: Payload) -> None:
        """Ignore the event, because no turn runs yet."""

    async def own_group(self, pgid: int) -> None:
        """Do nothing, because the guard knows the process group and no task needs to know it."""

    def note_usage(self, usage: ProgramUsage) -> None:
        """Do nothing, because no task has used the program yet."""


class Terminals:
    """Service: terminals of sessions."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        conversations: OpenConversations | None,
        relay: Relay | None,
        env: Callable[[], Mapping[str, str]],
        authorization: Authorization,
    ) -> None:
        """Build the service. `conversations` is None if this process runs no tasks.

        `relay` sends requests to other processes. If it is None, only terminals of this process can be used.
        """
        self._store = store
        self._agents = agents
        self._relay = relay
        self._env = env
        self._authorization = authorization
        self._conversations = conversations
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        """The latest answers to requests of other processes, by the id of the request."""
        if relay is not None:
            relay.on_message(ASK, self._handle_request)
            relay.on_message(ANSWER, self._handle_answer)

    async def screenshot(self, key: str, *, styled: bool = False, actor: AnyActor = None) -> Screenshot:
        """Return the screen of a session's terminal. Raise Conflict if the session has no open terminal."""
        await self._authorization.check_session(actor, "read", key)
        screen = await self._do(key, "screenshot", {"styled": styled})
        return Screenshot(**{**screen, "cursor": tuple(screen["cursor"])})

    async def late_output(self, key: str) -> str:
        """Return what the program in a session's terminal has written since the last turn."""
        return str(await self._do(key, "late_output", {}))

    async def send_keys(self, key: str, data: bytes, *, actor: AnyActor = None) -> None:
        """Type `data` into a session's terminal, even while a turn runs.

        Raise Conflict if the session has no open terminal.
        """
        await self._check_manager(actor, key)
        if len(data) > MOST_KEYS:
            raise InvalidInput(f"`data` must have at most {MOST_KEYS} bytes; send it in parts.", field="data")
        await self._do(key, "send_keys", {"data": base64.b64encode(data).decode()})

    async def resize(self, key: str, columns: int, rows: int, *, actor: AnyActor = None) -> None:
        """Change the size of a session's terminal. Raise Conflict if the session has no open terminal."""
        await self._check_manager(actor, key)
        if not (MIN_SIZE[0] <= columns <= MAX_SIZE[0] and MIN_SIZE[1] <= rows <= MAX_SIZE[1]):
            raise InvalidInput(
                f"a terminal must have {MIN_SIZE[0]}-{MAX_SIZE[0]} columns and {MIN_SIZE[1]}-{MAX_SIZE[1]} rows.",
                field="columns",
            )
        await self._do(key, "resize", {"columns": columns, "rows": rows})

    async def open(self, key: str, *, actor: AnyActor = None) -> None:
        """Start the agent's program in the terminal of a session before the first message, unless it runs already."""
        await self._check_manager(actor, key)
        session = await self._session(key)
        agent = self._agents.get(session.agent)
        if self._conversations is None or agent is None:
            why = f"agent {session.agent} is not run by this process"
            raise Conflict(f"{why}; to start it, send a message to the session.")
        if session.status == "closed":
            raise Conflict(f"session {key} is closed; to open it again, create it with the same key.")
        await self._conversations.begin(agent, session, OpeningTurn(session, self._env()))

    # -- in this or another process ------------------------------------------------------------------------------

    async def _check_manager(self, actor: AnyActor, key: str) -> None:
        """Raise Forbidden unless the actor may manage the session, and the task that runs in it."""
        await self._authorization.check_session(actor, "manage", key)
        view = await self._store.view_session(key)
        if view is not None and view.running_task is not None:
            await self._authorization.check_task(actor, "manage", view.running_task)

    async def _session(self, key: str) -> Session:
        return require(await self._store.get_session(key), "session", key)

    async def _do(self, key: str, verb: str, wishes: Mapping[str, Any]) -> Any:
        if self._conversations is not None and self._conversations.find(key) is not None:
            return self._execute_here(key, verb, wishes)
        session = await self._session(key)
        if session.live_owner is None or self._relay is None:
            raise _no_terminal(key)
        return await self._request_elsewhere(session.live_owner, {"key": key, "verb": verb, "wishes": dict(wishes)})

    def _execute_here(self, key: str, verb: str, wishes: Mapping[str, Any]) -> Any:
        conversation = self._conversations.find(key) if self._conversations is not None else None
        if not has_terminal(conversation):
            raise _no_terminal(key)
        if verb == "screenshot":
            return conversation.screenshot(styled=bool(wishes["styled"]))._asdict()
        if verb == "late_output":
            return conversation.late_output()
        if verb == "send_keys":
            return conversation.send_keys(base64.b64decode(wishes["data"]))
        return conversation.resize(int(wishes["columns"]), int(wishes["rows"]))

    async def _request_elsewhere(self, owner: str, request: dict[str, Any]) -> Any:
        assert self._relay is not None
        id_ = uuid.uuid4().hex
        answer = self._waiting[id_] = asyncio.get_running_loop().create_future()
        self._relay.open()
        try:
            async with asyncio.timeout(PATIENCE):
                while not answer.done():
                    self._relay.send(owner, ASK, {"id": id_, **request})
                    await asyncio.wait({answer}, timeout=AGAIN_SECONDS)
        except TimeoutError:
            raise NotRunning(f"the process of session {request['key']} does not answer; try again.") from None
        finally:
            del self._waiting[id_]
        reply = answer.result()
        if "code" in reply:
            raise ERRORS.get(reply["code"], MidwatchError)(reply["error"])
        return reply["result"]

    # -- requests of other processes -----------------------------------------------------------------------------

    def _handle_request(self, sender: str, data: Mapping[str, Any]) -> None:
        """Answer a request of another process. A repeated request gets the same answer and is not executed again."""
        assert self._relay is not None
        if data["id"] not in self._answers:
            if len(self._answers) >= MOST_ANSWERED:
                del self._answers[next(iter(self._answers))]
            self._answers[data["id"]] = self._execute(data)
        self._relay.send(sender, ANSWER, self._answers[data["id"]])

    def _execute(self, data: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"id": data["id"], "result": self._execute_here(data["key"], data["verb"], data["wishes"])}
        except MidwatchError as problem:
            return {"id": data["id"], "code": problem.code, "error": str(problem)}

    def _handle_answer(self, sender: str, data: Mapping[str, Any]) -> None:
        waiting = self._waiting.get(data["id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(data)


def _no_terminal(key: str) -> Conflict:
    return Conflict(f"session {key} has no open terminal; to open one, send a message to the session.")
