"""Tools with which a model hands work to other agents: it transfers all of the work, or it delegates a part."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from midwatch.agents.base import KindOptions
from midwatch.agents.llm import handoff_messages
from midwatch.agents.llm.output import OUTPUT_TOOL, Output
from midwatch.agents.llm.tools import NAME, Tool, ToolError, ToolOutput, read_nothing, running_call
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import Turn
from midwatch.domain.handoff import HandoffTask, Transfer, tool_description, tool_name, transfer_message
from midwatch.domain.handoff_history import HandoffContext
from midwatch.wire.fields import Seconds

ANOTHER = "The work was already transferred to another agent."


def _make_schema(name: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the JSON schema of tool arguments with one text field `name`."""
    text = {"type": "string", "description": description}
    return {"type": "object", "properties": {name: text}, **more, "additionalProperties": False}


MESSAGE = _make_schema("message", "Additional information for the other agent.")
TASK = _make_schema("task", "The task, with all information that it needs.", required=["task"])


class HandoffTo(KindOptions):
    """An agent that a model may hand work to, and the options of that handoff."""

    agent: str = Field(description="Name of the agent.")
    tool: str | None = Field(None, description="Name of the tool.")
    description: str | None = Field(None, description="Description of the tool for the model.")
    input: dict[str, Any] | type[BaseModel] | None = Field(None, description="JSON schema of the tool's arguments.")
    timeout: Seconds | None = Field(None, gt=0, description="Time limit of the handoff.")
    max_retries: int = Field(0, ge=0, le=20, description="Maximum number of retries after a temporary failure.")
    nest_history: bool | None = Field(None, description="Whether earlier messages are sent as one message.")
    input_filter: Callable[..., Any] | None = Field(None, description="In Python: filters the messages of the handoff.")
    on_handoff: Callable[..., Any] | None = Field(None, description="In Python: called when the handoff was accepted.")


def _read_target(value: Any) -> Any:
    return {"agent": value} if isinstance(value, str) else value


To = Annotated[HandoffTo, BeforeValidator(_read_target)]


class TurnTransfer:
    """The transfer of the work in one turn, if the model transfers it. `names` are the tools that transfer work."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.accepted: Transfer | None = None  # set once another agent has accepted the work


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTool(Tool):
    """A tool whose call ends the turn, because another agent takes over the work."""

    turn_transfer: TurnTransfer


@dataclass(frozen=True, slots=True)
class Way:
    """One tool that hands work to another agent."""

    to: HandoffTo
    name: str
    form: Output | None
    transfers: bool

    def check_arguments(self, arguments: dict[str, Any]) -> Any:
        """Check the arguments that the model gave and return them. Raise ToolError if they are wrong."""
        if self.form is None:
            return arguments
        text, problem = self.form.check(json.dumps(arguments))
        if problem is not None or text is None:
            raise ToolError((problem or "").replace("The result", "The argument object"))
        return json.loads(text)

    def handoff_options(self) -> Any:
        """Return the keyword arguments for `Turn.delegate` or `Turn.transfer`."""
        names = ("timeout", "max_retries", "nest_history", "input_filter", "on_handoff")
        own = {"tool_name_override": self.name, "tool_description_override": self.to.description}
        key, _ = running_call.get() or (None, None)
        return {"once": key, **own, **{name: getattr(self.to, name) for name in names}}

    async def delegate(self, arguments: dict[str, Any], turn: Turn) -> Any:
        """Have the other agent do a part of the work, and return that agent's answer."""
        checked = self.check_arguments(arguments)
        if self.form is not None:
            work = HandoffTask(input=checked)
        elif set(checked) != {"task"} or not isinstance(checked["task"], str) or not checked["task"].strip():
            raise ToolError("this tool needs exactly one argument, `task`, which must be a text.")
        else:
            work = HandoffTask(description=checked["task"])
        return (await turn.delegate(self.to.agent, work, **self.handoff_options())).output

    async def transfer(self, shared: TurnTransfer, arguments: dict[str, Any], turn: Turn) -> ToolOutput:
        """Have the other agent take over the work. The turn ends after this call."""
        if shared.accepted is not None:
            raise ToolError(ANOTHER)
        checked = self.check_arguments(arguments)
        if self.form is None:
            if set(checked) - {"message"} or not isinstance(checked.get("message", ""), str):
                raise ToolError("this tool takes only the argument `message`, which must be a text.")
            checked = checked.get("message")
        work = HandoffTask(description=turn.prompt, input=checked)
        shared.accepted = await turn.transfer(self.to.agent, work, **_history(shared.names), **self.handoff_options())
        return ToolOutput(transfer_message(shared.accepted.handoff.to_agent))


class HandoffTools:
    """The tools with which an agent hands work to other agents. There is no tool for an agent that cannot work now."""

    def __init__(
        self, agent: str, transfers: Iterable[HandoffTo], delegates: Iterable[HandoffTo], taken: Iterable[str]
    ) -> None:
        self._agent = agent
        self.ways = [self._way(to, transfers=True) for to in transfers]
        self.ways += [self._way(to, transfers=False) for to in delegates]
        names = [*taken, OUTPUT_TOOL, *(way.name for way in self.ways)]
        for way in self.ways:
            if names.count(way.name) > 1:
                raise BadConfig(f"agents.{agent}: two tools are named {way.name!r}; rename one of them with `tool`.")

    def _way(self, to: HandoffTo, *, transfers: bool) -> Way:
        field = "handoffs" if transfers else "delegates"
        if to.agent == self._agent:
            raise BadConfig(f"agents.{self._agent}.{field}: the agent cannot hand work to itself; name another agent.")
        name = tool_name(to.agent, to.tool)
        if not transfers and not (to.tool or "").strip():
            name = name.replace("transfer_to_", "delegate_to_", 1)
        if not NAME.fullmatch(name):
            raise BadConfig(f"agents.{self._agent}.{field}: {name[:80]!r} is no valid name for a tool; set `tool`.")
        return Way(to, name, None if to.input is None else Output(self._agent, to.input), transfers)

    @asynccontextmanager
    async def open(self, turn: Turn, taken: frozenset[str]) -> AsyncIterator[Sequence[Tool]]:
        """Yield the tools for the agents that can receive work now."""
        receivers = turn.receivers([way.to.agent for way in self.ways])
        ways = [way for way in self.ways if way.to.agent in receivers]
        shared = TurnTransfer(frozenset(way.name for way in ways if way.transfers))
        yield [self._tool(way, receivers[way.to.agent], shared) for way in ways]

    def _tool(self, way: Way, about: str, shared: TurnTransfer) -> Tool:
        schema = way.form.schema if way.form is not None else MESSAGE if way.transfers else TASK
        if way.transfers:
            text = tool_description(way.to.agent, way.to.description, about)
            return TransferTool(
                name=way.name, description=text, schema=schema, call=partial(way.transfer, shared), safe=True,
                kind="switch_mode", turn_transfer=shared, read=read_nothing,
            )  # fmt: skip
        text = way.to.description or f"Have the {way.to.agent} agent do a part of the work, and get its answer. {about}"
        return Tool(
            name=way.name, description=text.strip(), schema=schema, call=way.delegate, safe=True, read=read_nothing
        )


def _history(transfers: frozenset[str]) -> dict[str, Any]:
    """Return the messages for a transfer: those of earlier turns as `context`, those of this turn as `pre_handoff`.

    The prompt of this turn is left out, because it is the work itself. Calls of the tools in `transfers` are left out.
    """
    _, talk = running_call.get() or (None, None)
    if talk is None:
        return {}
    earlier = [message for turn in talk.turns[:-1] for message in handoff_messages.to_messages(turn, transfers)]
    own_messages = handoff_messages.to_messages([*talk.turns[-1], *talk.last()], transfers)
    messages = handoff_messages.keep_newest(earlier)
    return {"context": HandoffContext(messages=messages), "pre_handoff": handoff_messages.keep_newest(own_messages[1:])}
