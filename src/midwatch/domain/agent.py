"""Agents: who does the work. The port is the same for a Python function, a process, a protocol or a terminal.

An agent opens a conversation for a session; the worker gives it turns. All kinds are listed in `midwatch.agents`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypedDict, TypeGuard, Unpack

from midwatch.base.directories import directory_of
from midwatch.base.errors import InvalidInput
from midwatch.domain.budget import Budget
from midwatch.domain.event import Payload
from midwatch.domain.fields import Example
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.handoff_history import HandoffContext, InputFilter, Message
from midwatch.domain.requests import OnCrash
from midwatch.domain.session import Session
from midwatch.domain.steering import Mode, Steer
from midwatch.domain.task import Outcome

Interrupt = Literal["stop", "terminate", "kill"]
"""How hard to interrupt: `stop` is the agent's own way (a cancel request, SIGINT), `terminate` ends it (SIGTERM),
`kill` leaves it no choice (SIGKILL). Always the whole process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a turn consumed. None means the agent did not tell."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    model: str | None = None

    def data(self) -> dict[str, Any] | None:
        """Return the known figures, or None when there are none."""
        pairs = (("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens))
        known = {k: v for k, v in (*pairs, ("cost_usd", self.cost_usd), ("model", self.model)) if v is not None}
        return known or None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """How a turn ended. `outcome` is ok, silent, error, budget or transferred; of the others the worker knows."""

    text: str = ""
    outcome: Outcome = "ok"
    error: str | None = None
    thread_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    iterations: int | None = None
    transfer: Transfer | None = None
    """Who goes on with the work, with the outcome `transferred`."""
    stuck: bool = False
    """The work could not be stopped and goes on unseen; its slot stays taken until `Conversation.close` returns."""


ChoiceKind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]
QuestionKind = Literal[
    "choice", "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
"""What is asked for: a plain `choice`, or leave to use a tool of this kind."""
Risk = Literal["low", "medium", "high"]


class Choice(NamedTuple):
    """One way to answer, and what it means. An answer is told by its meaning, never by its place."""

    name: Annotated[str, Example("Allow")]
    kind: Annotated[ChoiceKind, Example("allow_once")]

    @property
    def allows(self) -> bool:
        """Return whether it is a yes."""
        return self.kind.startswith("allow")


YES_NO = (Choice("yes", "allow_once"), Choice("no", "reject_once"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What an agent asks before it goes on, with all that a person needs to answer it."""

    text: str
    choices: tuple[Choice, ...] = YES_NO
    kind: QuestionKind = "choice"
    tool: str | None = None
    """The agent's own name of the tool."""
    command: str | None = None
    """The command it wants to run, as it wrote it."""
    paths: tuple[str, ...] = ()
    """Files it wants to read, change or remove."""
    diff: str | None = None
    """What it wants to change, as a unified diff."""
    risk: Risk | None = None
    root: str | None = None
    """The directory it works in, where that is not the task's."""

    @classmethod
    def plain(cls, text: str, choices: tuple[str, ...]) -> Question:
        """Return a question whose first choice is the yes."""
        options = (Choice(name, "reject_once" if place else "allow_once") for place, name in enumerate(choices))
        return cls(text=text, choices=tuple(options))


class Answer(NamedTuple):
    """What became of a question: granted, denied or expired, the choice made, and why."""

    status: Literal["granted", "denied", "expired"]
    choice: str | None = None
    why: str | None = None

    @property
    def granted(self) -> bool:
        """Return whether a person said yes."""
        return self.status == "granted"


class Delegation(TypedDict, total=False):
    """What a turn can say with work it hands over; the same words as in `midwatch.services.handoffs.HandoffOptions`."""

    once: str | None
    """What the turn calls it by, so that an attempt that begins anew gets the same handoff and not a second one.
    Unset: the work and its target, and how often the turn has asked for just that."""
    timeout: float | None
    max_retries: int
    wait: bool
    context: HandoffContext
    pre_handoff: tuple[Message, ...]
    on_handoff: Callable[[Handoff], Any] | None
    input_filter: InputFilter | None
    nest_history: bool | None
    tool_name_override: str | None
    tool_description_override: str | None
    workdir: str | None


class ProgramOwner(Protocol):
    """What the program of an agent is started for: a turn, or a terminal that is opened before its first prompt."""

    task_id: str
    attempt: int
    thread_id: str | None
    workdir: str | None
    resumed: bool
    """Whether an earlier attempt was cut off and this one should go on where it stopped."""

    @property
    def env(self) -> Mapping[str, str]:
        """To be added to a child's environment: MIDWATCH_TASK and what an agent needs to speak to midwatch."""

    async def emit(self, payload: Payload) -> None:
        """Tell what happened. Stored in order, unless the payload's kind is live. Waits when too much is unwritten.
        AgentError for kinds that are midwatch's own to tell. Messages are the agent's, with ids of this attempt."""

    async def own_group(self, pgid: int) -> None:
        """Commit that process group `pgid` belongs to this attempt. To be awaited before the child may exec, so that
        it can be found and ended whatever happens to this process."""


class Turn(ProgramOwner, Protocol):
    """One prompt for an agent, and everything it may do while it works on it."""

    session_key: str
    prompt: str

    @property
    def deadline(self) -> float | None:
        """Monotonic time at which the turn is ended, or None. It moves while the turn waits for an answer."""

    async def load_progress(self) -> Any:
        """What `save_progress` kept last, also from an earlier attempt or a retried task; None if nothing."""

    async def save_progress(self, progress: Any) -> None:
        """Keep JSON data durably, so that a later attempt can go on from here."""

    async def load_steps(self) -> list[Any]:
        """The steps of this turn that `save_step` has kept, in order, also those of earlier attempts and of the task
        this one tries again."""

    async def save_step(self, data: Any, took: Sequence[str] = ()) -> None:
        """Keep a completed step of the turn as JSON data, durably and after all that was emitted before it; `took` are
        the ids of messages people sent that are part of it. It becomes part of the thread's history, unless the task is
        cancelled."""

    async def history(self) -> list[Any]:
        """The steps of the earlier turns of this thread, in order."""

    def steers(self, *modes: Mode) -> tuple[Steer, ...]:
        """The messages of these modes, or all, that people sent into this turn and no step took, oldest first."""

    async def steered(self) -> None:
        """Wait until there is such a message that was not there before."""

    async def receive(self) -> str:
        """Wait for the next message a person sends into this turn, and take it."""

    def over_budget(self) -> str | None:
        """In words, what the task may spend and has spent; None while there is some left. To be asked before each
        step: the turn then ends with the outcome `budget` and its progress kept."""

    async def ask(
        self, question: str | Question, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None
    ) -> Answer:
        """Ask a person and wait; of a plain text the first choice is the yes. A rule may answer at once. Meanwhile the
        turn gives back its slot and its timeout stands still. `expires` is in seconds."""

    async def handoff(self) -> Handoff | None:
        """The handoff that brought this work here, with its context; None when nobody handed it over."""

    async def delegate(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Handoff:
        """Hand work to another agent, or with no `to` to the best for it, and wait for the answer: the handoff as it
        was completed, or HandoffError. Meanwhile the turn gives back its slot and its timeout stands still. When the
        task is stopped the handoff is cancelled; without `wait` it goes on by itself."""

    async def transfer(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Transfer:
        """Have another agent take over this work, in the same conversation; by default the prompt. It has accepted when
        this returns, and begins when the turn ends with the outcome `transferred` and this as its `transfer`."""

    def receivers(self, names: Sequence[str]) -> Mapping[str, str]:
        """Of these agents those that may be handed to now, with what they are for."""

    async def keep_thread(self, thread_id: str) -> None:
        """Keep durably by what id the agent knows this conversation, so that a later attempt takes it up. To be called
        as soon as it is known; harmless when it is the same."""


class Conversation(Protocol):
    """An open session with an agent."""

    async def turn(self, turn: Turn) -> TurnResult:
        """Work on one prompt until it is done. Raising fails the task; TransientError has it tried again, UsageLimit
        has it wait for the provider and go on."""

    async def interrupt(self, mode: Interrupt) -> None:
        """Make the running turn end soon; it then returns or raises as it likes. Harmless when nothing runs."""

    async def close(self) -> None:
        """End the session and everything started for it. Returns when nothing of it runs any more."""


class Lasting(Conversation, Protocol):
    """A conversation that can stay open between the turns of a session: a process that waits for the next prompt."""

    @property
    def alive(self) -> bool:
        """Whether it can take another turn as it is; one that cannot is closed after its turn."""


class Screenshot(NamedTuple):
    """What a terminal shows, and what the agent in it does."""

    text: Annotated[str, Example("Welcome\\n> ")]
    """Its rows, without blanks at their ends."""
    columns: Annotated[int, Example(120)]
    rows: Annotated[int, Example(40)]
    cursor: Annotated[tuple[int, int], Example([2, 1])]
    """Column and row, from 0."""
    title: Annotated[str, Example("")]
    status: Annotated[str, Example("idle")]
    """starting, idle, busy, asking or exited."""
    evidence: Annotated[str, Example("prompt")]
    """What tells so: program, title, mode, progress, text, prompt, silence, process or reaction."""
    certain: Annotated[bool, Example(True)]
    """False when it is no more than silence."""
    styled: str = ""
    """Escape sequences that paint it, when they were asked for."""


class Terminal(Lasting, Protocol):
    """A conversation with a program in a terminal, which people may look at and type into."""

    def screenshot(self, *, styled: bool = False) -> Screenshot:
        """What it shows now; Conflict when no program runs in it."""

    def send_keys(self, data: bytes) -> None:
        """Type, whatever goes on. Conflict when no program runs in it."""

    def resize(self, columns: int, rows: int) -> None:
        """Give it another size. Conflict when no program runs in it."""

    def listen(self, listener: Callable[[str], None] | None) -> None:
        """Have `listener` called with the text of the screen soon after it has changed, not too often."""

    async def start(self, turn: ProgramOwner) -> None:
        """Have the program running, before there is a prompt. Harmless when it is."""


def lasts(talk: Conversation) -> TypeGuard[Lasting]:
    """Return whether it can stay open. To ask a protocol itself takes longer than many a turn."""
    return hasattr(talk, "alive")


def has_terminal(talk: Conversation | None) -> TypeGuard[Terminal]:
    """Return whether people may look at it and type into it."""
    return hasattr(talk, "screenshot")


NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


def check_name(name: object) -> None:
    """Raise InvalidInput when it cannot be the name of an agent."""
    if not isinstance(name, str) or not re.fullmatch(NAME.rstrip("$"), name):
        raise InvalidInput("an agent's name is letters, digits, `_`, `.` and `-`, 63 at most.", field="name")


class Agent(Protocol):
    """Port: something that can work on prompts."""

    @property
    def name(self) -> str:
        """What tasks call it by."""

    @property
    def kind(self) -> str:
        """Its kind: demo, function, command, ..."""

    @property
    def terms(self) -> AgentTerms:
        """What its tasks inherit."""

    @property
    def description(self) -> str:
        """What lists show beside its name."""

    @property
    def capabilities(self) -> tuple[AgentCapability, ...]:
        """What work handed over is given to it for; without any it gets only what is handed to it by name."""

    async def open(self, session: Session) -> Conversation:
        """Begin or take up the conversation (`session.thread_id` names an earlier one)."""

    def describe(self) -> Mapping[str, Any]:
        """What `midwatch agents` shows: at least `command` or `target`, and `problem` when it cannot run here."""


class AgentTerms(NamedTuple):
    """What a task inherits from its agent's configuration when the submitter does not say."""

    timeout_seconds: float | None = 1800.0
    on_crash: OnCrash = "fail"
    max_attempts: int = 3
    slots: int = 4
    exclusive: bool = False
    """Whether its tasks want their directory for themselves while they run, as those that write code do."""
    workdir: str | None = None
    """Where a task works that names no directory."""
    steerable: bool = False
    """Whether its turns take what people send into them while they run."""
    budget: Mapping[str, Any] | None = None
    """What a task may spend, as far as it says nothing else."""
    submits: bool = False
    """Whether it may hand in tasks and automations in the name of whoever its own task belongs to."""

    def dir_key(self, workdir: str | None) -> str | None:
        """Return the directory that a task needs for itself; None when it may share it."""
        place = workdir or self.workdir
        return directory_of(place) if self.exclusive and place else None

    def budget_of(self, limits: Budget) -> dict[str, Any] | None:
        """Return the budget of a task that has these limits of its own."""
        return Budget.from_record(self.budget).override_with(limits).data()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCapability:
    """What an agent is good for; what handing work over chooses by. Without task types it is for all of them."""

    name: str
    description: str = ""
    task_types: tuple[str, ...] = ()
    priority: int = 0


class Candidate(NamedTuple):
    """An agent that may be chosen: what it can do, how much it has, and when it was registered."""

    name: str
    capabilities: tuple[AgentCapability, ...]
    open: int = 0
    place: int = 0

    def score(self, task_type: str) -> int | None:
        """Return the best priority it has for work of this type; None when it has none. A capability without types is
        for all."""
        fitting = [c.priority for c in self.capabilities if not c.task_types or task_type in c.task_types]
        return max(fitting, default=None)


def best_first(candidates: Iterable[Candidate], task_type: str, without: frozenset[str]) -> list[str]:
    """Return the agents that could do it: higher priority first, then fewer open handoffs, then who was registered
    earlier."""
    ranked = []
    for candidate in candidates:
        score = candidate.score(task_type)
        if score is not None and candidate.name not in without:
            ranked.append((-score, candidate.open, candidate.place, candidate.name))
    return [name for *_, name in sorted(ranked)]
