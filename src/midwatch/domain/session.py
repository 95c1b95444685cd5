"""Sessions: conversations. A session is also the lock of its tasks.

Tasks of one session run one at a time. A session key is `<type>:<id>`, followed by optional parts that begin with `|`,
for example `chat:42|thread:7|message:9`. Sessions with the same `gate_key` share one lock; this key is `<type>:<id>`
and the thread part. The current activity of a session is never stored: it is computed from the session's tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from midwatch.base.errors import InvalidInput
from midwatch.domain.event import Event, MessageUpdate, event
from midwatch.domain.fields import Example, Hidden, JsonRecord, to_json

Status = Literal["idle", "busy", "asking", "closed", "lost"]
Role = Literal["user", "agent", "result", "notice"]

PRIVATE = "bg:"
MAX_KEY = 500
MAX_TITLE = 200
MAX_ERRORS = 100
"""A new watcher of a session receives at most this many of the most recent errors."""


def visibility_key(key: str) -> str:
    """Return the part of a session key before its first `|`: the chat or user that the session belongs to."""
    return key.partition("|")[0]


def thread_scope(key: str) -> str:
    """Return the part of a session key that names its thread, such as `|thread:7`, or "" if there is none.

    The parts `work:7` and `seed:7` name the same thread.
    """
    tokens: dict[str, str] = {}
    for token in key.split("|")[1:]:
        name, _, value = token.partition(":")
        tokens.setdefault(name, value)
    for name, shown in (("seed", "seed"), ("thread", "thread"), ("work", "seed")):
        if tokens.get(name):
            return f"|{shown}:{tokens[name]}"
    return ""


def gate_key(key: str) -> str:
    """Return the key that all sessions of one conversation share.

    Tasks with the same gate key never run at the same time.
    """
    return visibility_key(key) + thread_scope(key) if "|" in key else key


def check_key(key: str, field: str = "session_key") -> str:
    """Return `key` without surrounding blanks.

    Raise InvalidInput if the key is not valid, or if it is reserved for midwatch.
    """
    key = key.strip()
    if not key or len(key) > MAX_KEY or not key.isprintable() or key in (".", ".."):  # no URL can contain them
        raise InvalidInput(
            f"a session key must be 1 to {MAX_KEY} printable characters, such as chat:42; got {key[:40]!r}.",
            field=field,
        )
    if key.startswith(PRIVATE):
        raise InvalidInput(
            f"session keys that begin with {PRIVATE} are for private sessions of tasks; choose another key.",
            field=field,
        )
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation with an agent. The only status that is stored is `closed`; the others are computed."""

    key: Annotated[str, Example("chat:42")]
    agent: Annotated[str, Example("demo")]
    gate_key: Hidden[str]
    title: Annotated[str, Example("Release notes")] = ""
    creator: Annotated[str | None, Example("owner")] = None
    status: Status = "idle"
    thread_id: str | None = None
    workdir: Annotated[str | None, Example("/home/me/project")] = None
    worktree: str | None = None
    """The id of the git worktree that belongs to the session, and that all its turns share."""
    created_at: int = 0
    updated_at: int = 0
    revision: Hidden[int] = 0
    live_owner: Hidden[str | None] = None
    """The process in which the conversation is open; only this process takes tasks of the session."""
    epoch: int = 0
    """How often a process has opened the conversation, or has been asked to open it again."""
    approvals: Mapping[str, Any] | None = None
    """The rules for all turns of the session, a `midwatch.domain.rule.Policy` as JSON."""


class View(NamedTuple):
    """A session, its running task, whether this task waits for an answer, and the number of queued tasks."""

    session: Session
    running_task: str | None = None
    asking: bool = False
    queued: int = 0

    @property
    def status(self) -> Status:
        """Return the current status of the session."""
        if self.session.status == "closed":
            return "closed"
        if self.running_task is None:
            return self.session.status
        return "asking" if self.asking else "busy"

    def snapshot(self) -> dict[str, Any]:
        """Return the session as JSON shows it."""
        live = self.session.live_owner is not None
        more = {"status": self.status, "live": live, "queued": self.queued, "running_task": self.running_task}
        return {**to_json(self.session), **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(JsonRecord):
    """One message of a conversation.

    The store sets `number`, which counts the messages of the session from 1. A message with the `id` of an earlier
    message replaces the earlier message.
    """

    session_key: Hidden[str]
    role: Annotated[Role, Example("agent")]
    text: Annotated[str, Example("Hello.")]
    time: int
    task_id: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")] = None
    number: Annotated[int, Example(2)] = 0
    id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2.1")] = ""
    author: Annotated[str | None, Example("demo")] = None


def announce_message(message: Message, **meta: Any) -> Event:
    """Return the event that a message was stored."""
    update = MessageUpdate(message_id=message.id, role=message.role, message=message.text)
    return event(update, message.time, **{**meta, "session_key": message.session_key, "task_id": message.task_id})


class Fault(NamedTuple):
    """An error of a turn that failed, or that is tried again."""

    message: Annotated[str, Example("The model is overloaded.")]
    level: Annotated[str, Example("warning")]
    time: int

    def snapshot(self) -> dict[str, Any]:
        """Return the fault as JSON shows it."""
        return to_json(self)


class SessionStore(Protocol):
    """Port: sessions and their messages.

    Messages are written with `Changes`, as part of the step that they belong to.
    """

    async def open_session(self, session: Session, events: tuple[Event, ...]) -> bool:
        """Create or reopen a session of this agent.

        If the session is already open, return False and write nothing.
        """

    async def close_session(self, key: str, now: int, events: tuple[Event, ...]) -> bool:
        """Close a session.

        If the session is already closed or does not exist, return False and write nothing.
        """

    async def list_session_managers(self, key: str) -> list[tuple[str | None, str]]:
        """Return creator and manage mode of each automation and open goal that uses the session."""

    async def get_session(self, key: str) -> Session | None:
        """Return the session, or None."""

    async def view_session(self, key: str) -> View | None:
        """Return the session with its running and queued tasks, or None."""

    async def list_sessions(self, limit: int = 50, before: str | None = None) -> list[View]:
        """Return sessions, the most recently used first. `before` is the last session key of the page before."""

    async def read_messages(self, key: str, after: int = 0, limit: int = 500) -> list[Message]:
        """Return the session's messages with number > `after`, in order."""

    async def read_last_messages(self, key: str, limit: int) -> list[Message]:
        """Return the session's newest messages, in order."""
