"""Sessions: conversations, and the only lock.

Tasks of one session run one at a time. Which sessions share a lock is decided by `gate_key`: the visible part of the
session key and its thread. A key reads `<type>:<id>` followed by optional tokens, for example
`chat:42|thread:7|message:9`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from midwatch.clock import iso
from midwatch.errors import InvalidInput, NotFound

Status = Literal["idle", "busy", "asking", "closed", "lost"]
Role = Literal["user", "agent", "result", "notice"]

MAX_KEY = 500


def visibility_key(key: str) -> str:
    """The part of a session key before its first token: the chat or user it belongs to."""
    return key.partition("|")[0]


def thread_scope(key: str) -> str:
    """The thread a session key speaks of, or "". A work thread is the thread its first message seeded."""
    tokens: dict[str, str] = {}
    for token in key.split("|")[1:]:
        name, _, value = token.partition(":")
        tokens.setdefault(name, value)
    for name, shown in (("seed", "seed"), ("thread", "thread"), ("work", "seed")):
        if tokens.get(name):
            return f"|{shown}:{tokens[name]}"
    return ""


def gate_key(key: str) -> str:
    """What two sessions must share to be one conversation. Tasks with equal gate keys never run at once."""
    return visibility_key(key) + thread_scope(key)


def checked_key(key: str, field: str = "session_key") -> str:
    """`key` without surrounding blanks, or InvalidInput."""
    key = key.strip()
    if not key or len(key) > MAX_KEY or not key.isprintable():
        raise InvalidInput(
            f"a session key is 1 to {MAX_KEY} printable characters, such as chat:42; got {key[:40]!r}.",
            field=field,
        )
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation with an agent."""

    key: str
    agent: str
    gate_key: str
    status: Status = "idle"
    thread_id: str | None = None
    workdir: str | None = None
    created_at: int = 0
    updated_at: int = 0
    revision: int = 0

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "key": self.key,
            "agent": self.agent,
            "status": self.status,
            "thread_id": self.thread_id,
            "workdir": self.workdir,
            "created_at": iso(self.created_at),
            "updated_at": iso(self.updated_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. `number` counts within the session, from 1, and is given by the store."""

    session_key: str
    role: Role
    text: str
    time: int
    task_id: str | None = None
    number: int = 0

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "number": self.number,
            "role": self.role,
            "text": self.text,
            "time": iso(self.time),
            "task_id": self.task_id,
        }


class SessionStore(Protocol):
    """Port: sessions and their messages. They are written through `Changes`, with the step they belong to."""

    async def get_session(self, key: str) -> Session | None:
        """The session, or None."""
        ...

    async def list_sessions(self, limit: int = 50) -> list[Session]:
        """The most recently used first."""
        ...

    async def read_messages(self, key: str, after: int = 0, limit: int = 500) -> list[Message]:
        """The session's messages with number > `after`, in order."""
        ...


class Sessions:
    """Service: look at conversations."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def get(self, key: str) -> Session:
        """The session, or NotFound."""
        found = await self._store.get_session(key)
        if found is None:
            raise NotFound("session", key)
        return found

    async def messages(self, key: str, after: int = 0, limit: int = 500) -> list[Message]:
        """The conversation so far, in order."""
        return await self._store.read_messages(key, after, limit)

    async def list(self, limit: int = 50) -> list[Session]:
        """The most recently used sessions first."""
        return await self._store.list_sessions(limit)
