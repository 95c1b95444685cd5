"""Agents: they do the work.

The port is the same for every kind of agent: a Python function, a process, a protocol or a terminal. An agent opens a
conversation for a session, and the worker gives turns to the conversation. `midwatch.agents` has all kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypedDict, TypeGuard, Unpack, cast, get_args

from midwatch.base.directories import directory_of
from midwatch.base.errors import InvalidInput
from midwatch.domain.budget import Budget
from midwatch.domain.context_item import ContextItem
from midwatch.domain.event import Payload
from midwatch.domain.fields import Example
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.handoff_history import HandoffContext, InputFilter, Message
from midwatch.domain.hook import HookOutcome
from midwatch.domain.requests import OnBudget, OnCrash
from midwatch.domain.session import Message as SessionMessage
from midwatch.domain.session import Session
from midwatch.domain.steering import Mode, Steer
from midwatch.domain.task import Outcome
from midwatch.domain.tool_call import Describe, ToolCall, ToolDecision, ToolResult

Interrupt = Literal["stop", "terminate", "kill"]
"""`stop` asks the agent to end the turn; `terminate` and `kill` send SIGTERM or SIGKILL to its process group."""


USAGE_FIGURES = ("input_tokens", "output_tokens", "cost_usd", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a turn; a figure is None if the agent did not report it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    model: str | None = None

    def data(self) -> dict[str, Any] | None:
        """Return the figures that the agent reported, or None if it reported none."""
        if self is UNKNOWN_USAGE:
            return None
        figures = {name: getattr(self, name) for name in USAGE_FIGURES}
        return {name: value for name, value in figures.items() if value is not None} or None


UNKNOWN_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The result of a turn.

    `outcome` is ok, silent, error, budget or transferred; the worker sets the other outcomes. With the outcome
    `transferred`, `transfer` is the accepted handoff. `stuck` means that the work could not be stopped and continues;
    the slot of the turn stays in use until `Conversation.close` returns.
    """

    text: str = ""
    outcome: Outcome = "ok"
    error: str | None = None
    thread_id: str | None = None
    usage: Usage = UNKNOWN_USAGE
    iterations: int | None = None
    transfer: Transfer | None = None
    stuck: bool = False


ChoiceKind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]
QuestionKind = Literal[
    "choice", "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
"""The kind of a question: a plain `choice`, or the kind of tool that the agent wants to use."""
Risk = Literal["low", "medium", "high"]


class Choice(NamedTuple):
    """A possible answer to a question, and the meaning of this answer.

    Only the meaning matters, never the position of the choice in a list.
    """

    name: Annotated[str, Example("Allow")]
    kind: Annotated[ChoiceKind, Example("allow_once")]

    @property
    def allows(self) -> bool:
        """Return whether the choice means yes."""
        return self.kind.startswith("allow")


YES_NO = (Choice("yes", "allow_once"), Choice("no", "reject_once"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of an agent, with everything that a person needs to answer it.

    `tool` is the agent's own name for the tool, and `paths` are the files that the tool would use. `diff` is a unified
    diff of the change. `root` is the directory that the agent works in, if it is not the directory of the task. If
    `command` or `paths` were read from a screen and could also mean something else, `certain` is false: no rule allows
    it. `hosts` are the machines that the tool would reach. If midwatch does not know what the arguments of the tool
    mean, `texts` are all texts in them; `unread` is true if there are more of them than were read. `call_id` is the
    agent's id of the tool call.
    """

    text: str
    choices: tuple[Choice, ...] = YES_NO
    kind: QuestionKind = "choice"
    tool: str | None = None
    command: str | None = None
    paths: tuple[str, ...] = ()
    diff: str | None = None
    risk: Risk | None = None
    root: str | None = None
    certain: bool = True
    hosts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    unread: bool = False
    call_id: str | None = None

    @classmethod
    def about(cls, call: ToolCall) -> Question:
        """Return the question whether a tool may run."""
        kind = cast(QuestionKind, call.kind if call.kind in get_args(QuestionKind) else "other")
        return cls(
            text=call.question, kind=kind, tool=call.name, command=call.command, paths=call.paths,
            hosts=call.hosts, root=call.root, texts=call.texts, unread=call.unread,
        )  # fmt: skip

    @classmethod
    def plain(cls, text: str, choices: tuple[str, ...]) -> Question:
        """Return a question whose first choice means yes, and whose other choices mean no."""
        options = (Choice(name, "reject_once" if index else "allow_once") for index, name in enumerate(choices))
        return cls(text=text, choices=tuple(options))


class Answer(NamedTuple):
    """The answer to a question: the status (granted, denied or expired), the choice, and the reason.

    `by_person` is whether a person gave the answer, and not a rule or the end of the time.
    """

    status: Literal["granted", "denied", "expired"]
    choice: str | None = None
    why: str | None = None
    by_person: bool = False

    @property
    def granted(self) -> bool:
        """Return whether a person or a rule said yes."""
        return self.status == "granted"


class Permit(NamedTuple):
    """Whether the next step of a turn may start; `reason` describes the spent budget if not.

    With the action `wind_up`, save the progress and end the turn with one last answer of the model, without tools. With
    the action `stop`, save the progress and end the turn with the outcome `budget`. An agent that cannot wind up stops.
    """

    action: Literal["go_on", "wind_up", "stop"] = "go_on"
    reason: str | None = None


MAY_START = Permit()


class Delegation(TypedDict, total=False):
    """Options of a handoff by a turn, as in `midwatch.services.handoffs.HandoffOptions`.

    `once` is a name for the handoff, so that a new attempt gets the same handoff and not a second one. Without `once`,
    the name is computed from the work, the target, and how often this turn has asked for the same handoff.
    """

    once: str | None
    timeout: float | None
    max_retries: int
    wait: bool
    wake: bool
    context: HandoffContext
    pre_handoff: tuple[Message, ...]
    on_handoff: Callable[[Handoff], Any] | None
    input_filter: InputFilter | None
    nest_history: bool | None
    tool_name_override: str | None
    tool_description_override: str | None
    workdir: str | None


class ProgramUsage(NamedTuple):
    """What programs have used: seconds of CPU time, and the most memory at one time in bytes, if it is known.

    `killed` is how many of their processes the kernel killed because the programs had reached their memory limit.
    """

    cpu_seconds: float = 0.0
    peak_memory: int | None = None
    killed: int = 0

    def plus(self, other: ProgramUsage) -> ProgramUsage:
        """Return this usage and a later usage of the same attempt together."""
        peaks = [peak for peak in (self.peak_memory, other.peak_memory) if peak is not None]
        return ProgramUsage(
            self.cpu_seconds + other.cpu_seconds, max(peaks, default=None), max(self.killed, other.killed)
        )


class ProgramOwner(Protocol):
    """The owner of an agent's program: a turn, or a terminal that is opened before its first prompt.

    `pin` is the pin of the directory `workdir`; if it is None, nothing is checked. `resumed` is whether an earlier
    attempt was interrupted and this attempt should continue the work.
    """

    task_id: str
    attempt: int
    thread_id: str | None
    workdir: str | None
    pin: str | None
    resumed: bool

    @property
    def env(self) -> Mapping[str, str]:
        """Return environment variables for a child process: MIDWATCH_TASK, and the access to midwatch."""

    async def emit(self, payload: Payload) -> None:
        """Emit an event. Events are stored in order; live events are only shown.

        This method waits if too many events are not written yet, and raises AgentError for kinds of events that agents
        may not emit. A message gets the agent as its author, and its id gets the prefix of this attempt.
        """

    async def own_group(self, pgid: int) -> None:
        """Store that process group `pgid` belongs to this attempt.

        Wait for the return of this method before the child process calls exec: then the child can be found and ended
        even if this process dies.
        """

    def note_usage(self, usage: ProgramUsage) -> None:
        """Note what programs of this attempt have used since the last call for the same program."""


class Turn(ProgramOwner, Protocol):
    """One prompt for an agent, and the operations that the agent may use while it works on the prompt."""

    session_key: str
    prompt: str

    @property
    def deadline(self) -> float | None:
        """Return the monotonic time at which the turn is ended, or None if it has no timeout.

        While the turn waits for an answer, this time moves to later.
        """

    async def load_progress(self) -> Any:
        """Return the progress that was saved last, or None if none was saved.

        An earlier attempt of the task, or a task that this task retries, may have saved it.
        """

    async def save_progress(self, progress: Any) -> None:
        """Store JSON data, so that a later attempt can continue from here."""

    async def load_steps(self) -> list[Any]:
        """Return the stored steps of this turn, in order.

        Steps of earlier attempts, and of the task that this task retries, are included.
        """

    async def save_step(self, data: Any, took: Sequence[str] = ()) -> None:
        """Store a completed step of the turn as JSON data, after all events that were emitted before it.

        `took` are the ids of people's messages and of results that the step has taken. The step becomes part of the
        history of the thread, unless the task is cancelled.
        """

    async def history(self) -> list[Any]:
        """Return the steps of the earlier turns of this thread, in order."""

    async def tell(self, notice_id: str, text: str) -> None:
        """Write a notice of midwatch into the session. Only midwatch's own code calls this, never an agent's."""

    async def earlier_messages(self) -> list[SessionMessage]:
        """Return the newest messages of people and agents in this session before the prompt, oldest first.

        Messages of earlier attempts of the task are included, but not its prompt. The list is empty for a private
        session, and for a turn that was handed over: its prompt contains what it may know. If an earlier turn of this
        agent was handed over in this session, the list begins with the prompt of that turn.
        """

    async def results(self, *, again: bool = False) -> tuple[ContextItem, ...]:
        """Return results of background work that wait for this session and that no turn has taken, oldest first.

        Pass their ids to `save_step` as `took`, with the step that contains them. Only an agent with the attribute
        `takes_results` calls this method; all others get the results before the prompt. With `again`, the results that
        earlier attempts of the task took are returned, too, because a new prompt is made for the task.
        """

    def steers(self, *modes: Mode) -> tuple[Steer, ...]:
        """Return the messages of people that no step of this turn has taken yet, oldest first.

        With `modes`, only messages with one of these modes are returned.
        """

    async def wait_for_steer(self) -> None:
        """Wait until a person sends a new message to this turn."""

    async def receive(self) -> str:
        """Wait for the next message of a person to this turn, mark the message as taken, and return its text."""

    async def reserve(self) -> Permit:
        """Reserve the next step in the budgets of the task, before a model is called or a tool is used.

        If a budget is spent, people may be asked first; meanwhile the turn has no slot. The step begins with its event.
        Until then, another call of this method reserves nothing more. An agent whose class has `reserves_steps` calls
        this method before every step, and can wind up.
        """

    async def before_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Decide about a model call, by hooks. Call this method before each model call that the agent itself makes.

        `describe` returns the request, the subject of `before_model`. It is only called if there are hooks.
        """

    async def after_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Decide about a model's answer, by hooks. `describe` returns the answer, the subject of `after_model`."""

    async def before_tool(self, call: ToolCall, describe: Describe | None = None) -> ToolDecision:
        """Decide whether a tool may run, by hooks and rules. Call this before each tool that the agent itself runs.

        `describe` returns the call with the arguments that a hook has changed. Leave it out if the agent can use
        neither other arguments nor the result of a hook: then a change is a denial, an answer is a denial with its text
        as the reason, and a stop interrupts the turn. With it, the agent itself ends the turn.
        """

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolDecision:
        """Decide about the result of a tool, by hooks. The `result` of the decision is what the model gets."""

    async def ask(
        self, question: str | Question, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None
    ) -> Answer:
        """Ask a person and wait for the answer; a rule may answer at once.

        If the question is plain text, the first choice means yes. While the turn waits, it releases its slot and its
        timeout is paused. After `expires` seconds without an answer the question expires.
        """

    async def handoff(self) -> Handoff | None:
        """Return the handoff that brought this work to the agent, with the context of the work, or None."""

    async def delegate(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Handoff:
        """Hand work over to another agent and return the completed handoff, or raise HandoffError.

        Without `to` the best agent is chosen. While the turn waits, it releases its slot and its timeout is paused. If
        the task is stopped, the handoff is cancelled. With `wait=False` the method returns at once, before the answer.
        """

    async def transfer(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Transfer:
        """Hand this work, by default the prompt, over to another agent in the same conversation.

        The other agent has accepted the work when this method returns. It begins when this turn ends with the outcome
        `transferred` and with the returned value as `transfer`.
        """

    def receivers(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return which of the agents `names` can receive handoffs now, with their descriptions."""

    async def keep_thread(self, thread_id: str) -> None:
        """Store the id that the agent gave to this conversation, so that a later attempt can continue the thread.

        Call this method as soon as the id is known; a second call with the same id does nothing.
        """


class Conversation(Protocol):
    """An open session with an agent."""

    async def turn(self, turn: Turn) -> TurnResult:
        """Work on one prompt until it is done.

        If this method raises an error, the task fails. After a TransientError the task is tried again; after a
        UsageLimit the task waits and then continues.
        """

    async def interrupt(self, mode: Interrupt) -> None:
        """Make the running turn end soon, with a result or an error. Does nothing if no turn runs."""

    async def close(self) -> None:
        """End the conversation and all its processes; return when none of them runs any more."""


class Lasting(Conversation, Protocol):
    """A conversation that can stay open between the turns of a session: a process that waits for the next prompt."""

    @property
    def alive(self) -> bool:
        """Return whether the conversation can take another turn.

        If it cannot, the worker closes the conversation after the current turn.
        """


class Screenshot(NamedTuple):
    """The screen of a terminal, and the status of the agent in it.

    `text` has the rows without blanks at their ends. `cursor` is column and row, from 0. `status` is starting, idle,
    busy, asking or exited. `evidence` is the reason for the status: program, title, mode, progress, text, prompt,
    silence, process or reaction. `certain` is false if the evidence is only silence. `styled` has escape sequences that
    draw the screen, if they were requested.
    """

    text: Annotated[str, Example("Welcome\\n> ")]
    columns: Annotated[int, Example(120)]
    rows: Annotated[int, Example(40)]
    cursor: Annotated[tuple[int, int], Example([2, 1])]
    title: Annotated[str, Example("")]
    status: Annotated[str, Example("idle")]
    evidence: Annotated[str, Example("prompt")]
    certain: Annotated[bool, Example(True)]
    styled: str = ""


class Terminal(Lasting, Protocol):
    """A conversation with a program in a terminal, which people may look at and type into."""

    def screenshot(self, *, styled: bool = False) -> Screenshot:
        """Return the current screen, or raise Conflict if no program runs in the terminal."""

    def late_output(self) -> str:
        """Return what the program has written since the last turn; an empty text before the first turn."""

    def send_keys(self, data: bytes) -> None:
        """Type `data` into the terminal, or raise Conflict if no program runs in the terminal."""

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal, or raise Conflict if no program runs in the terminal."""

    def listen(self, listener: Callable[[str], None] | None) -> None:
        """Call `listener` with the text of the screen soon after each change, but not too often."""

    async def start(self, turn: ProgramOwner) -> None:
        """Start the program before the first prompt. Does nothing if the program already runs."""


def lasts(talk: Conversation) -> TypeGuard[Lasting]:
    """Return whether a conversation can stay open between turns.

    This check is much faster than `isinstance` with a protocol.
    """
    return hasattr(talk, "alive")


def has_terminal(talk: Conversation | None) -> TypeGuard[Terminal]:
    """Return whether a conversation has a terminal that people may look at and type into."""
    return hasattr(talk, "screenshot")


NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


def check_name(name: object) -> None:
    """Raise InvalidInput if `name` is not a valid name of an agent."""
    if not isinstance(name, str) or not re.fullmatch(NAME.rstrip("$"), name):
        raise InvalidInput("an agent's name must have 1 to 63 letters, digits, `_`, `.` or `-`.", field="name")


class Agent(Protocol):
    """Port: something that can work on prompts."""

    @property
    def name(self) -> str:
        """Return the name that tasks use."""

    @property
    def kind(self) -> str:
        """Return the kind of the agent, such as demo, function or command."""

    @property
    def terms(self) -> AgentTerms:
        """Return the settings that tasks inherit from this agent."""

    @property
    def description(self) -> str:
        """Return the description of the agent for lists."""

    @property
    def capabilities(self) -> tuple[AgentCapability, ...]:
        """Return the capabilities of the agent. Without capabilities it gets only handoffs that name it as target."""

    async def open(self, session: Session) -> Conversation:
        """Begin a conversation, or continue the thread `session.thread_id` if it is set."""

    def describe(self) -> Mapping[str, Any]:
        """Return facts for `midwatch agents`: `command` or `target`, and `problem` if the agent cannot run here."""


class AgentTerms(NamedTuple):
    """The settings that tasks inherit from an agent, from the configuration of the agent.

    `exclusive`: while a task of the agent runs, no other task may use the same directory. `steerable`: turns of the
    agent take messages of people. `submits`: the agent may submit tasks and automations for the creator of its task.
    `threads`: the agent can report the id of its thread. `reports`: the usage that the agent can report.
    """

    timeout_seconds: float | None = 1800.0
    on_crash: OnCrash = "fail"
    max_attempts: int = 3
    slots: int = 4
    exclusive: bool = False
    workdir: str | None = None
    steerable: bool = False
    budget: Mapping[str, Any] | None = None
    submits: bool = False
    on_budget: OnBudget | None = None
    threads: bool = True
    reports: Sequence[str] = ("tokens", "usd")

    def dir_key(self, workdir: str | None) -> str | None:
        """Return the directory that only this task may use, or None if the task may share its directory."""
        directory = workdir or self.workdir
        return directory_of(directory) if self.exclusive and directory else None

    def budget_of(self, limits: Budget) -> dict[str, Any] | None:
        """Return the budget of a task: the limits of the task, and the agent's limits for amounts without a limit."""
        return Budget.from_record(self.budget).override_with(limits).data()

    def mode_of(self, wanted: OnBudget | None, *, askable: bool) -> OnBudget:
        """Return what happens when a budget is spent: as wanted, as the agent's setting says, or by default.

        By default people are asked if somebody can be asked.
        """
        return wanted or self.on_budget or ("ask" if askable else "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCapability:
    """A kind of work that an agent can do; handoffs choose agents by capabilities.

    A capability without task types is for all types.
    """

    name: str
    description: str = ""
    task_types: tuple[str, ...] = ()
    priority: int = 0


class Candidate(NamedTuple):
    """An agent that a handoff may choose.

    `open` is the number of its open handoffs. `place` is its position in the order of registration.
    """

    name: str
    capabilities: tuple[AgentCapability, ...]
    open: int = 0
    place: int = 0

    def score(self, task_type: str) -> int | None:
        """Return the agent's best priority for work of this type, or None if the agent cannot do such work."""
        fitting = [c.priority for c in self.capabilities if not c.task_types or task_type in c.task_types]
        return max(fitting, default=None)


def best_first(candidates: Iterable[Candidate], task_type: str, without: frozenset[str]) -> list[str]:
    """Return the agents that can do the work, the best agent first.

    The order is by higher priority, then by fewer open handoffs, then by earlier registration.
    """
    ranked = []
    for candidate in candidates:
        score = candidate.score(task_type)
        if score is not None and candidate.name not in without:
            ranked.append((-score, candidate.open, candidate.place, candidate.name))
    return [name for *_, name in sorted(ranked)]
