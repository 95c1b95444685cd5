"""Every error midwatch raises on purpose.

MidwatchError
├── InvalidInput            what was asked for makes no sense; names the field
│   ├── UnknownAgent        no configuration and no live process offers that agent
│   └── UnsupportedMediaType the body is not declared as JSON
├── NotFound                no such task, approval, session, ...
│   └── Pruned              the events asked for are not kept any more
├── Conflict                the record is not in a state that allows this, or changed meanwhile
│   ├── AlreadyFinished     the task has ended
│   ├── NotFinished         the task has no result yet
│   └── KeyReused           an idempotency key was used before with another body
├── LimitReached            too much open work; try again later
│   └── HandoffLimit        the work was passed on too often
├── Unauthorized            no token, or a wrong one
├── Forbidden               the role does not allow this
│   ├── ForeignOrigin       a web page of another site asks
│   └── WrongHost           the server was called by a name that is not its own
├── LeaseLost               this attempt no longer owns its task; its writes are refused
├── StoreError
│   ├── StoreUnavailable    the database did not take the write (busy, full disk, ...)
│   ├── StoreCorrupt        the file is not a usable midwatch database
│   └── SchemaTooNew        the database was written by a newer midwatch
├── HomeUnusable            the home directory cannot be read or written
├── AlreadyRunning          another `midwatch up` serves this home
├── NotRunning              this needs a live server and there is none
├── PortInUse               another program listens on the port
├── BadConfig               midwatch.toml or the environment holds a wrong setting
├── AgentError              an agent failed; the task fails with this text
│   ├── TransientError      an agent failed in a way that may pass; the task is tried again
│   ├── UsageLimit          the provider's limit is used up; the task waits until it is reset, and goes on
│   └── HandoffError        work that was handed over did not come back as an answer
│       ├── NoCandidate     nobody can take work of that type
│       ├── HandoffDisabled the target may not be handed to
│       ├── HandoffRefused  the target, or all of them, did not take it
│       └── HandoffOverdue  it was not done before its deadline
└── DeliveryError           a channel refused or failed to send

The message says what is wrong and what to do about it. `code` is stable and is what programs should look at;
`exit_status` is what the command line returns.
"""

from __future__ import annotations

from typing import ClassVar


class MidwatchError(Exception):
    """Base of all errors raised on purpose."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1


class InvalidInput(MidwatchError):
    """What was asked for makes no sense."""

    code = "invalid_input"
    exit_status = 2

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownAgent(InvalidInput):
    """No configuration and no live process offers that agent."""

    code = "unknown_agent"

    def __init__(self, agent: str, known: list[str], advice: str | None = None) -> None:
        offered = ", ".join(sorted(known)) or "none"
        remedy = advice or "Add it under [agents.NAME] in midwatch.toml, or list them with `midwatch agents`."
        super().__init__(
            f"no agent is called {agent!r}; known agents: {offered}. {remedy}",
            field="agent",
        )


class UnsupportedMediaType(InvalidInput):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"


LISTS = {
    "task": "tasks", "session": "sessions", "approval": "approvals", "delivery": "deliveries", "agent": "agents",
    "token": "token list", "automation": "automation list", "goal": "goal list", "worktree": "worktrees",
    "handoff": "handoff list",
}  # fmt: skip
"""The command that lists each noun."""


class NotFound(MidwatchError):
    """There is no such record."""

    code = "not_found"
    exit_status = 3

    def __init__(self, noun: str, key: str) -> None:
        listed = f"; list what there is with `midwatch {LISTS[noun]}`" if noun in LISTS else ""
        super().__init__(f"there is no {noun} {key!r}{listed}.")
        self.noun = noun
        self.key = key


class Pruned(NotFound):
    """The events asked for are not kept any more."""

    code = "pruned"

    def __init__(self, after: int, oldest_seq: int) -> None:
        MidwatchError.__init__(
            self, f"events {after + 1} to {oldest_seq - 1} are not kept any more; begin after {oldest_seq - 1}."
        )
        self.oldest_seq = oldest_seq


class Conflict(MidwatchError):
    """The record changed meanwhile, or is not in a state that allows this."""

    code = "conflict"
    exit_status = 4


class AlreadyFinished(Conflict):
    """The task has ended."""

    code = "already_finished"

    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(f"task {task_id} is already {status}; look at it with `midwatch show {task_id}`.")


class NotFinished(Conflict):
    """The task has no result yet."""

    code = "not_finished"

    def __init__(self, task_id: str, status: str, hint: str) -> None:
        super().__init__(f"task {task_id} is {status} and has no result; {hint}")


class KeyReused(Conflict):
    """An idempotency key was used before with another body."""

    code = "key_reused"

    def __init__(self, key: str, first: str) -> None:
        super().__init__(
            f"idempotency key {key!r} belongs to {first}, which was made with another body; use a new key."
        )


class LimitReached(MidwatchError):
    """Too much open work."""

    code = "limit_reached"
    exit_status = 5


class Unauthorized(MidwatchError):
    """No token, or a wrong one."""

    code = "unauthorized"
    exit_status = 6


class Forbidden(MidwatchError):
    """The role does not allow this."""

    code = "forbidden"
    exit_status = 6


class ForeignOrigin(Forbidden):
    """A web page of another site asks."""

    code = "foreign_origin"


class WrongHost(Forbidden):
    """The server was called by a name that is not its own."""

    code = "wrong_host"


class LeaseLost(MidwatchError):
    """This attempt no longer owns its task; what it wrote was refused."""

    code = "lease_lost"

    def __init__(self, task_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} of task {task_id} no longer owns it; its write was refused.")
        self.task_id = task_id
        self.attempt = attempt


class StoreError(MidwatchError):
    """The database cannot be used."""

    code = "store_error"
    exit_status = 7


class StoreUnavailable(StoreError):
    """The database did not take the write; nothing of it was kept."""

    code = "store_unavailable"


class StoreCorrupt(StoreError):
    """The file is not a usable midwatch database."""

    code = "store_corrupt"


class SchemaTooNew(StoreError):
    """The database was written by a newer midwatch."""

    code = "schema_too_new"


class HomeUnusable(MidwatchError):
    """The home directory cannot be read or written."""

    code = "home_unusable"
    exit_status = 7


class AlreadyRunning(MidwatchError):
    """Another server serves this home."""

    code = "already_running"
    exit_status = 4


class NotRunning(MidwatchError):
    """This needs a live server and there is none."""

    code = "not_running"
    exit_status = 8


class PortInUse(MidwatchError):
    """Another program listens on the port."""

    code = "port_in_use"
    exit_status = 4


class BadConfig(MidwatchError):
    """The configuration file or the environment holds a wrong setting."""

    code = "bad_config"
    exit_status = 2


class AgentError(MidwatchError):
    """An agent failed; its task fails with this text."""

    code = "agent_error"


class TransientError(AgentError):
    """An agent failed in a way that may pass (network, rate limit); its task is tried again after a pause."""

    code = "transient_error"


class UsageLimit(AgentError):
    """The provider's usage limit is used up; the task waits until it is reset and goes on, which is no failure."""

    code = "usage_limit"
    resets_at: int | None
    """In microseconds; None when nobody said it."""

    def __init__(self, message: str, *, resets_at: int | None = None) -> None:
        super().__init__(message)
        self.resets_at = resets_at


class DeliveryError(MidwatchError):
    """A channel refused or failed to send."""

    code = "delivery_error"

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class HandoffLimit(LimitReached):
    """The work was passed on too often."""

    code = "handoff_limit"


class HandoffError(AgentError):
    """Work that was handed over did not come back as an answer; `handoff` is its id, where there is a record."""

    code = "handoff_error"

    def __init__(self, message: str, handoff: str | None = None) -> None:
        super().__init__(message)
        self.handoff = handoff


class NoCandidate(HandoffError):
    """Nobody can take work of that type."""

    code = "no_candidate"


class HandoffDisabled(HandoffError):
    """The target may not be handed to."""

    code = "handoff_disabled"


class HandoffRefused(HandoffError):
    """The target, or all of them, did not take it."""

    code = "handoff_refused"


class HandoffOverdue(HandoffError):
    """It was not done before its deadline."""

    code = "handoff_overdue"
