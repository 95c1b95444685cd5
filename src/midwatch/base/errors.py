"""Every error that midwatch raises on purpose; docs/errors.md lists them as a table.

A message says what happened, then what to do. `code` never changes, so programs should compare it. `exit_status` is the
exit status of a command that fails with the error. A class that does not set `code` and `exit_status` inherits them
from its base class.
"""

from __future__ import annotations

from typing import ClassVar


class MidwatchError(Exception):
    """Base class of all errors that midwatch raises on purpose."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init_subclass__(cls, code: str | None = None, exit_status: int | None = None) -> None:
        cls.code = code or cls.code
        cls.exit_status = exit_status or cls.exit_status


class InvalidInput(MidwatchError, code="invalid_input", exit_status=2):
    """The request has a value that is not valid; `field` names the wrong field, if it is known."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownAgent(InvalidInput, code="unknown_agent"):
    """Neither the configuration nor a running process has an agent with this name."""

    def __init__(self, agent: str, known: list[str], advice: str | None = None) -> None:
        offered = ", ".join(sorted(known)) or "none"
        remedy = advice or "Add it under [agents.NAME] in midwatch.toml, or list all agents with `midwatch agents`."
        super().__init__(f"no agent is called {agent!r}; known agents: {offered}. {remedy}", field="agent")


class UnsupportedMediaType(InvalidInput, code="unsupported_media_type"):
    """The body of the request is not declared as JSON."""


LISTS = {
    "task": "tasks", "session": "sessions", "approval": "approvals", "delivery": "deliveries", "agent": "agents",
    "token": "token list", "automation": "automation list", "goal": "goal list", "worktree": "worktrees",
    "handoff": "handoff list", "hook": "hooks", "budget": "budgets", "firing": "automation firings ID",
    "trigger": "automation show ID", "alert": "watchdog",
    "automation, goal or declared rule": "export",
}  # fmt: skip
"""For each noun, the command that lists its records."""


class NotFound(MidwatchError, code="not_found", exit_status=3):
    """There is no record with this id or name."""

    def __init__(self, noun: str, key: str) -> None:
        hint = f"; list them with `midwatch {LISTS[noun]}`" if noun in LISTS else ""
        super().__init__(f"there is no {noun} {key!r}{hint}.")
        self.noun = noun
        self.key = key


class Pruned(NotFound, code="pruned"):
    """The requested events were deleted because they are old."""

    def __init__(self, after: int, oldest_seq: int) -> None:
        MidwatchError.__init__(
            self,
            f"events {after + 1} to {oldest_seq - 1} were deleted because of age; read events after {oldest_seq - 1}.",
        )
        self.oldest_seq = oldest_seq


class Conflict(MidwatchError, code="conflict", exit_status=4):
    """The state of the record does not allow the change, or the record was changed at the same time."""


class AlreadyFinished(Conflict, code="already_finished"):
    """The task has ended."""

    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(f"task {task_id} is already {status}; look at it with `midwatch show {task_id}`.")


class NotFinished(Conflict, code="not_finished"):
    """The task has no result yet."""

    def __init__(self, task_id: str, status: str, hint: str) -> None:
        super().__init__(f"task {task_id} is {status} and has no result; {hint}")


class KeyReused(Conflict, code="key_reused"):
    """The idempotency key was used before, with a different request."""

    def __init__(self, key: str, first: str) -> None:
        super().__init__(
            f"idempotency key {key!r} belongs to {first}, which came from a different request; use a new key."
        )


class DirectoryChanged(Conflict, code="directory_changed"):
    """The working directory was removed or replaced after it was stored, for example by a symbolic link."""


class LimitReached(MidwatchError, code="limit_reached", exit_status=5):
    """Too much work is open; try again later."""


class Unauthorized(MidwatchError, code="unauthorized", exit_status=6):
    """The request has no token, or a wrong token."""


class Forbidden(MidwatchError, code="forbidden", exit_status=6):
    """The role of the caller does not allow the request."""


class ForeignOrigin(Forbidden, code="foreign_origin"):
    """The request comes from a web page of another site."""


class WrongHost(Forbidden, code="wrong_host"):
    """The request names a host that is not this server."""


class LeaseLost(MidwatchError, code="lease_lost"):
    """The attempt does not own its task any more, so what the attempt wanted to write was refused."""

    def __init__(self, task_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} does not own task {task_id} any more, so its write was refused.")
        self.task_id = task_id
        self.attempt = attempt


class StoreError(MidwatchError, code="store_error", exit_status=7):
    """The database cannot be used."""


class StoreUnavailable(StoreError, code="store_unavailable"):
    """The database cannot be reached, read or written; nothing was stored."""


class DiskFull(StoreUnavailable, code="disk_full"):
    """The database could not write, because the disk is full; nothing was stored."""


class StoreCorrupt(StoreError, code="store_corrupt"):
    """The file is not a midwatch database, or it is damaged."""


class SchemaTooNew(StoreError, code="schema_too_new"):
    """A newer version of midwatch has written the database."""


class HomeUnusable(MidwatchError, code="home_unusable", exit_status=7):
    """The home directory cannot be read or written."""


class AlreadyRunning(MidwatchError, code="already_running", exit_status=4):
    """Another server already runs for this home directory."""


class NotRunning(MidwatchError, code="not_running", exit_status=8):
    """The command needs a running server, and no server runs."""


class PortInUse(MidwatchError, code="port_in_use", exit_status=4):
    """Another program already listens on the port."""


class BadConfig(MidwatchError, code="bad_config", exit_status=2):
    """A setting in midwatch.toml or in the environment is wrong."""


class AgentError(MidwatchError, code="agent_error"):
    """An agent failed, and its task fails with this message."""

    usage: object = None
    """The `Usage` of the turn that failed, if the agent knows it."""


class TransientError(AgentError, code="transient_error"):
    """An agent failed for a reason that may go away (network, rate limit); its task is tried again after a pause."""


class UsageLimit(AgentError, code="usage_limit"):
    """The usage limit of a provider is reached; if `resets_at` is known, the task waits until then and continues."""

    def __init__(self, message: str, *, resets_at: int | None = None) -> None:
        super().__init__(message)
        self.resets_at = resets_at


class DeliveryError(MidwatchError, code="delivery_error"):
    """A channel could not send a notice; if `permanent`, another try is useless."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class ForeignExit(MidwatchError, code="foreign_exit"):
    """A channel, hook, routine or agent raised SystemExit or a similar exception; only its own call ended."""


class HookFailed(MidwatchError, code="hook_failed"):
    """A tested hook gave no valid decision, so midwatch denies."""


class HandoffLimit(LimitReached, code="handoff_limit"):
    """The work was handed over too often."""


class HandoffError(AgentError, code="handoff_error"):
    """A handoff ended without an answer; `handoff` is the id of the handoff, if a record was stored."""

    def __init__(self, message: str, handoff: str | None = None) -> None:
        super().__init__(message)
        self.handoff = handoff


class NoCandidate(HandoffError, code="no_candidate"):
    """No agent can take work of this type."""


class HandoffDisabled(HandoffError, code="handoff_disabled"):
    """The target agent does not take handoffs."""


class HandoffRefused(HandoffError, code="handoff_refused"):
    """The target agent rejected the handoff, or every agent that could take the work rejected it."""


class HandoffOverdue(HandoffError, code="handoff_overdue"):
    """The handoff was not completed before its deadline."""
