"""Hooks: code of the owner that decides at the seams of a turn, or observes events.

A seam is a point of a turn: before and after a model call, before a tool, at the approval of a tool, after a tool. At
the seam `observe` a hook gets events and decides nothing. A hook gets its subject as JSON data, the same data for a
Python hook and for a program, and returns a `HookDecision`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.base.errors import BadConfig, InvalidInput
from midwatch.domain.event import Event
from midwatch.domain.fields import Example, to_json
from midwatch.domain.task import Task, turn_of

Seam = Literal["before_model", "after_model", "before_tool", "approve_tool", "after_tool", "observe"]
SEAMS: tuple[Seam, ...] = get_args(Seam)
Action = Literal["go_on", "change", "answer", "deny", "stop"]
ACTIONS: Mapping[Seam, tuple[Action, ...]] = {
    "before_model": ("go_on", "change", "answer", "deny", "stop"),
    "after_model": ("go_on", "change", "deny", "stop"),
    "before_tool": ("go_on", "change", "answer", "deny", "stop"),
    "approve_tool": ("go_on", "deny", "stop"),
    "after_tool": ("go_on", "change", "deny", "stop"),
    "observe": (),
}
"""The decisions that are valid at each seam."""
SECONDS: Mapping[Seam, float] = {**dict.fromkeys(SEAMS, 5.0), "approve_tool": 60.0}
"""How long a call of a hook may take, if the hook sets no deadline of its own."""
MOST_SECONDS = 3600
"""The longest deadline of a call that a hook may set."""
PRIORITY = 100
"""The priority of a hook that sets none. A hook with a smaller number is called earlier."""
LONGEST_REASON = 1000
FIELDS: Mapping[Action, frozenset[str]] = {
    "go_on": frozenset(),
    "change": frozenset({"patch"}),
    "answer": frozenset({"text", "is_error"}),
    "deny": frozenset({"reason"}),
    "stop": frozenset({"reason"}),
}
"""The fields of each decision as JSON, besides `action`."""


@dataclass(frozen=True, slots=True)
class HookDecision:
    """What a hook decides. Make one with `go_on`, `change`, `answer`, `deny` or `stop`."""

    action: Action = "go_on"
    patch: Mapping[str, Any] | None = None
    text: str | None = None
    is_error: bool = False
    reason: str | None = None

    @classmethod
    def go_on(cls) -> HookDecision:
        """Change nothing. At `approve_tool` this approves the tool."""
        return cls()

    @classmethod
    def change(cls, patch: Mapping[str, Any]) -> HookDecision:
        """Change the subject by a merge patch (RFC 7396), such as `{"arguments": {"dry_run": True}}`."""
        return cls("change", patch=patch)

    @classmethod
    def answer(cls, text: str, *, is_error: bool = False) -> HookDecision:
        """Answer in place of the model or of the tool, which is not called."""
        return cls("answer", text=text, is_error=is_error)

    @classmethod
    def deny(cls, reason: str) -> HookDecision:
        """Deny the call, or withhold the result of a tool. The model gets the reason."""
        return cls("deny", reason=reason)

    @classmethod
    def stop(cls, reason: str) -> HookDecision:
        """End the turn with the outcome `error` and this reason."""
        return cls("stop", reason=reason)

    def data(self) -> dict[str, Any]:
        """Return the decision as JSON: the action and its fields."""
        return {"action": self.action, **{name: getattr(self, name) for name in sorted(FIELDS[self.action])}}


GO_ON = HookDecision()


def check_decision(seam: Seam, decision: object) -> HookDecision:
    """Return the decision of a hook if it is valid at this seam, or raise InvalidInput. None means go on."""
    if decision is None:
        return GO_ON
    if not isinstance(decision, HookDecision):
        raise InvalidInput(f"it returned a {type(decision).__name__}; return a HookDecision, or None to go on.")
    if decision.action not in ACTIONS[seam]:
        valid = ", ".join(ACTIONS[seam])
        raise InvalidInput(f"it decided {str(decision.action)[:50]!r}, but at {seam} it may decide: {valid}.")
    if decision.action == "change" and not isinstance(decision.patch, Mapping):
        raise InvalidInput("its patch is not an object; return the fields that change.")
    if decision.action == "answer" and not (isinstance(decision.text, str) and isinstance(decision.is_error, bool)):
        raise InvalidInput("its answer is not a text; return `text`, and `is_error` as true or false.")
    if decision.action in ("deny", "stop") and not (isinstance(decision.reason, str) and decision.reason.strip()):
        raise InvalidInput(f"its decision {decision.action!r} has no reason; return `reason` as text.")
    try:
        f"{decision.text}{decision.reason}".encode()
    except UnicodeEncodeError:
        raise InvalidInput("its text or reason has half of a character (a surrogate); return whole ones.") from None
    return decision


def read_decision(seam: Seam, data: object) -> HookDecision:
    """Return the decision that a program gave as JSON, or raise InvalidInput."""
    if not isinstance(data, Mapping) or str(data.get("action")) not in FIELDS:
        raise InvalidInput(f"its result is no decision; return an object with `action`: {', '.join(ACTIONS[seam])}.")
    action: Action = data["action"]
    if unknown := set(data) - FIELDS[action] - {"action"}:
        first = min(map(str, unknown))[:50]
        raise InvalidInput(f"its decision {action!r} has the unknown field {first!r}; remove it.")
    return check_decision(seam, HookDecision(**data))


def check_hook_name(name: str) -> None:
    """Raise BadConfig if `name` is not a valid name of a hook."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        raise BadConfig(f"hooks: {name[:100]!r} is no name; use 1 to 63 letters, digits, `_`, `.` or `-`.")


class HookMeta(NamedTuple):
    """The turn that a hook decides about. `trace` is the `traceparent` of the turn."""

    agent: str
    task_id: str
    attempt: int
    turn_id: str
    session_key: str
    workdir: str | None = None
    trace: str | None = None


def describe_turn(task: Task, workdir: str | None, trace: str | None) -> HookMeta:
    """Return what hooks are told about the turn of a task."""
    turn_id = turn_of(task.id, task.attempt)
    return HookMeta(task.agent, task.id, task.attempt, turn_id, task.session_key, workdir, trace)


class HookOutcome(NamedTuple):
    """What all hooks of a seam have decided together.

    `subject` is the changed subject, or None if no hook changed it. `hook` is the hook that ended the chain, and `text`
    and `is_error` are its answer. `failed` is whether that hook gave no valid decision, so that midwatch denies.
    """

    action: Literal["go_on", "answer", "deny", "stop"] = "go_on"
    subject: dict[str, Any] | None = None
    text: str = ""
    is_error: bool = False
    reason: str = ""
    hook: str = ""
    failed: bool = False

    @property
    def words(self) -> str:
        """Return who decided and why, as text for people and models."""
        verb = {"stop": "stopped the turn", "answer": "answered"}.get(self.action, "denied it")
        return f"hook {self.hook} {'failed' if self.failed else verb}: {self.reason.rstrip('.')}"


NO_HOOK = HookOutcome()


class Hook:
    """A base class for hooks in Python.

    A hook has one or more of these async methods: `before_model`, `after_model`, `before_tool`, `approve_tool` and
    `after_tool`, each with the parameters `subject` (JSON data) and `meta` (HookMeta), return a HookDecision or None.
    They run on the event loop of midwatch. `observe` has one parameter, an Event, and runs on a thread of its own with
    its own event loop. `seconds` is the deadline of each call; None means 5 s, or 60 s for `approve_tool`.
    """

    name: ClassVar[str] = ""
    """The name of the hook in events and lists. Default: the name of the class."""
    priority: ClassVar[int] = PRIORITY
    seconds: ClassVar[float | None] = None


class HookFailure(NamedTuple):
    """What went wrong in a hook, and when."""

    text: str
    time: int


class HookPart(Protocol):
    """Port: a hook that a chain calls, in Python or as a program."""

    name: str
    kind: str
    priority: int
    seams: tuple[Seam, ...]
    seconds: float | None
    restarts: int
    """How often the program was started again."""
    last_end: HookFailure | None
    """How the program ended the last time, if it ended by itself or was ended because it failed."""

    @property
    def state(self) -> str:
        """Return the state: ready, or for a program stopped, starting, running or waiting."""

    def explain(self) -> str | None:
        """Return why the hook cannot answer now, or None."""

    async def decide(self, seam: Seam, subject: dict[str, Any], meta: HookMeta) -> HookDecision:
        """Return the decision about the subject. Raise any error if there is none: the chain denies then."""

    async def observe(self, event: Event) -> None:
        """Take an event. An error is counted."""

    async def start(self) -> None:
        """Prepare the hook, so that its first call is fast. A second call does nothing."""

    async def close(self) -> None:
        """End the hook and all its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookReport:
    """A hook with its state and its counters in this process."""

    name: Annotated[str, Example("policy")]
    kind: Annotated[str, Example("program")]
    seams: Annotated[tuple[Seam, ...], Example(["before_tool"])]
    priority: Annotated[int, Example(PRIORITY)]
    state: Annotated[str, Example("running")]
    calls: int = 0
    """Decisions that were asked for, also in tests."""
    events: int = 0
    """Events that the hook got."""
    failures: int = 0
    """Calls without a valid decision, and events at which the hook failed."""
    dropped: int = 0
    """Events that the hook did not get, because it was too slow."""
    restarts: int = 0
    """How often the program was started again."""
    last_error: Annotated[str | None, Example("the program failed with exit code 1.")] = None
    """The last failure: of a decision, of an event, or the end of the program."""
    last_error_at: int | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the hook as JSON."""
        return to_json(self)
