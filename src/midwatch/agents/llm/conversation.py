"""The loop of a turn: call the model and run the tools that it requests, until it gives its final answer.

The next step depends only on the transcript. So an interrupted turn can continue from its stored steps. The methods
`before_model`, `model`, `after_model`, `before_tool`, `tool` and `after_tool` are the steps of the loop.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from midwatch.agents.base import cancel, message_id
from midwatch.agents.function import OnLoop
from midwatch.agents.llm import history
from midwatch.agents.llm.handoff_tools import ANOTHER, TransferTool, TurnTransfer
from midwatch.agents.llm.history import Call, Transcript, Window, select_newest
from midwatch.agents.llm.model import Caller, Connection, Fault, Live
from midwatch.agents.llm.model_hooks import Request, StoppedByHook, ask_after_model, ask_before_model
from midwatch.agents.llm.options import LlmOptions
from midwatch.agents.llm.output import OUTPUT_TOOL, Output
from midwatch.agents.llm.tools import Toolbox, ToolError, Toolkit, ToolOutput, clean, running_call, store_start
from midwatch.agents.streams.reading import find_paths, make_title
from midwatch.agents.streams.step_events import ARGUMENT_LIMIT, RESULT_LIMIT, TEXT_LIMIT, shorten
from midwatch.base.errors import AgentError
from midwatch.base.text import cut
from midwatch.domain import event as events
from midwatch.domain.agent import Turn, TurnResult, Usage
from midwatch.domain.context_item import write_items
from midwatch.domain.handoff import Transfer
from midwatch.domain.session import Session
from midwatch.domain.steering import Mode
from midwatch.domain.tool_call import ToolCall, ToolResult, collect_texts

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters


SPOKEN_TO = "It was not run: a person sent a message meanwhile."
STOPPED = "It was not run: a person asked to stop."
UNKNOWN = (
    "Whether it ran is not known: midwatch was stopped while it worked. It was not run again. "
    "Look at what it may have done before you go on."
)
CLOSE = "A person asked you to stop. Use no more tools. Say in a few sentences what is done and what is not."
ENOUGH = "You have used all {} model calls of this turn. Use no more tools. Say what you know, and what is not done."
SPENT = "The work may not go on: {}. Use no more tools. Say what you know, and what is not done."
CUT_SHORT = "(It was ended after {} model calls, which is the agent's max_steps.)"
NOTHING = "It was ended before it had an answer."
DENIED = "It was not run: it is not allowed."
TAKEN = "The result was taken."
MOST_TOKENS, SLACK = 1_000_000, 16
"""The context window of a model of unknown size, and the stored characters that are read for each of its tokens."""


class Opener(Protocol):
    """The parts of an agent that its conversations use."""

    options: LlmOptions
    connection: Connection
    kit: Toolkit
    output: Output | None
    system: str


class Obstacle(NamedTuple):
    """Why a tool must not run, as text for the model, and whether an earlier attempt may have run it."""

    reason: str
    may_have_run: bool = False


class LlmConversation(OnLoop):
    """One session with a model. An interrupt ends the turn at once. Messages of people are read between two steps."""

    def __init__(self, agent: Opener, session: Session) -> None:
        super().__init__(self._work)
        self._agent = agent
        self._session = session

    async def _work(self, prompt: str, turn: Turn) -> TurnResult:
        model = await self._agent.connection.model()
        if turn.thread_id is None:
            await turn.keep_thread(uuid.uuid4().hex)
        window = self._agent.options.context_tokens or model.profile.get("context_window") or MOST_TOKENS
        earlier, left = select_newest(await turn.history(), window * SLACK)
        talk = await asyncio.to_thread(Transcript, earlier, await turn.load_steps())
        if left:
            kept = sum(map(len, earlier))
            await turn.emit(events.ContextTrimmed(reason="budget", dropped_messages=left, remaining_messages=kept))
        async with model, self._agent.kit(turn) as box:
            return await Loop(self._agent, model, turn, box, talk).run()


class Loop:
    """One turn: calls of the model and of tools until there is a result."""

    def __init__(self, agent: Opener, model: Model, turn: Turn, box: Toolbox, talk: Transcript) -> None:
        from pydantic_ai.tools import ToolDefinition

        options = agent.options
        self._agent = agent
        self._options = options
        self._turn = turn
        self._box = box
        self._talk = talk
        self._output = agent.output
        self._caller = Caller(model, turn, options, agent.connection.hide)
        self._definitions = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.schema))
            for tool in box.tools.values()
        ]
        transfers = (tool.turn_transfer for tool in box.tools.values() if isinstance(tool, TransferTool))
        self._transfer = next(transfers, TurnTransfer(frozenset()))
        tokens = options.context_tokens or model.profile.get("context_window")
        overhead = len(agent.system) + len(str(self._definitions))
        self._window = Window(tokens, options.max_tokens or min(8192, (tokens or 0) // 4), overhead)
        self._spent: str | None = None  # the budget that is spent, if this is the last call
        self._calls = 0  # model calls of this attempt
        self._messages = 0  # messages emitted during the turn
        self._lost = Usage()  # usage of model calls without an answer
        self._paid = len(talk.usages(turn.task_id))  # answers that earlier attempts have counted

    async def run(self) -> TurnResult:
        """Run until there is an answer, or a hook stops the turn. Return the result."""
        try:
            return await self._run_steps()
        except StoppedByHook as stopped:
            for call in self._talk.open_calls():  # no results are kept: a later attempt asks the hooks again
                await self._emit_skipped(call, str(stopped))
            return replace(self._build_result(), outcome="error", error=str(stopped))

    async def _run_steps(self) -> TurnResult:
        """Run until there is an answer, the budget is spent, or the work is transferred. Return the result."""
        turn, talk, names = self._turn, self._talk, self._transfer.names
        # the retry of a completed task begins again
        if not talk.begun or (talk.complete and talk.task_id != turn.task_id):
            results = await turn.results(again=True)
            prompt = "\n\n".join([*([write_items(results)] if results else []), turn.prompt.replace("\0", "")])
            step = history.make_text_step(prompt, "prompt", **await self._read_handoff())
            await self._keep(step, [item.id for item in results])
        while True:
            if reason := talk.find_stop(turn.task_id):
                raise StoppedByHook(reason)
            if ready := await self._find_transfer():
                return replace(self._build_result(), outcome="transferred", transfer=ready)
            if talk.complete and not await self._continue_turn():
                return self._build_result()
            permit = await turn.reserve()
            if permit.action == "stop":
                return replace(self._build_result(), text=talk.text, outcome="budget", error=permit.reason)
            if permit.action == "wind_up" and not talk.closing:
                await self._keep(history.make_text_step(SPENT.format(permit.reason), closing=True))
                self._spent = permit.reason
            if calls := sorted(talk.open_calls(), key=lambda call: call.name in names):  # transfers come last
                await self._run_tool(calls[0])
                continue
            await self.before_model()
            if (response := await self.model()) is not None:
                await self.after_model(response)

    # -- the model -----------------------------------------------------------------------------------------------

    async def before_model(self) -> None:
        """Add new messages of people to the conversation.

        Before the last model call of the turn, tell the model that this call is the last.
        """
        talk, options = self._talk, self._options
        if talk.closing:
            return
        if self._turn.steers("stop"):
            await self._inject("stop", "interrupt", "after_tool")
        else:
            await self._inject("interrupt", *(("after_tool",) if talk.has_results else ()))
            await self._add_results()
            if talk.requests >= options.max_steps:
                await self._keep(history.make_text_step(ENOUGH.format(options.max_steps), closing=True))

    async def model(self) -> ModelResponse | None:
        """Call the model and return its answer; None if a person interrupted the call.

        Emit a request event before the call and a response event after it, also if the call fails.
        """
        turn, options = self._turn, self._options
        if trimmed := self._window.fit(self._talk):
            await self._emit_trimmed("budget", trimmed)
        self._calls += 1
        request_id = self._request_id()
        request = await self._prepare()
        if request.answer is not None:
            return request.answer
        tools = request.parameters.function_tools
        await turn.emit(events.LlmRequest(
            model=options.model, messages_count=len(request.messages),
            tools_count=0 if self._talk.closing else len(tools), max_tokens=request.settings.get("max_tokens"),
            temperature=request.settings.get("temperature"), request_id=request_id,
        ))  # fmt: skip
        live, began = Live(turn, request_id, self._messages), time.monotonic()
        asking = asyncio.create_task(self._ask(request, live))
        try:
            await self._wait_unless_interrupted(asking)
            if asking.done():
                response = asking.result()
                await self._emit_response(response, request_id, time.monotonic() - began)
                return response
        except Exception as problem:
            if not isinstance(problem, StoppedByHook):
                await turn.emit(events.LoopError(stage="llm", message=str(problem)))
            await self._emit_no_answer("error", request_id, live, began)
            raise
        finally:
            await cancel(asking)
        await live.discard()
        await self._emit_no_answer("interrupted", request_id, live, began)
        return None

    async def after_model(self, answer: ModelResponse) -> None:
        """Store the answer as hooks leave it. If it calls tools, emit its text as a message.

        Thoughts are left out of the events if a hook changes the answer, because they may contain what it removed.
        """
        response = await ask_after_model(self._turn, answer, self._request_id())
        if response is answer and (thought := read_thoughts(response)):
            name = f"{message_id(self._turn)}.t{self._messages}"
            await self._turn.emit(events.ThoughtUpdate(thought_id=name, text=thought[:TEXT_LIMIT]))
        text = (response.text or "").strip()
        if text and response.tool_calls:
            await self._emit_message(text)
        took = [steer.id for steer in self._turn.steers("stop")] if not response.tool_calls else []
        await self._keep(history.make_answer_step(response, self._turn.task_id), took)

    def _request_id(self) -> str:
        return f"{self._turn.task_id}.{self._turn.attempt}.{self._calls}"

    async def _prepare(self) -> Request:
        """Return the next request as hooks leave it, or the answer of a hook."""
        no_tools = {"tool_choice": "none"} if self._talk.closing and self._definitions else {}
        settings = {**self._caller.settings, **no_tools}
        request = Request(self._window.view(self._talk), self._build_parameters(), settings)
        return await ask_before_model(self._turn, request, self._options.model, self._request_id())

    async def _ask(self, request: Request, live: Live) -> ModelResponse:
        """Call the model. If the request is too long for the model, leave out more messages and try again."""
        while request.answer is None:
            try:
                return await self._caller.call(
                    request.messages, request.parameters, request.settings, live, self._request_id()
                )
            except Fault as fault:
                trimmed = self._window.make_room(self._talk)
                if trimmed is None:
                    hint = "shorten the prompt, or use a model with a larger window."
                    raise AgentError(f"{fault.text}; no more messages can be left out: {hint}") from fault
                await self._emit_trimmed("refused", trimmed)
                request = await self._prepare()
        return request.answer

    def _build_parameters(self) -> ModelRequestParameters:
        """Return the parameters of a model request: the tools, the form of the output and the instructions."""
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        more: dict[str, Any] = {}
        if self._output is not None:
            schema, description = self._output.schema, "Give the final result with it; this ends your work."
            final = ToolDefinition(
                name=OUTPUT_TOOL, description=description, parameters_json_schema=schema, kind="output"
            )  # fmt: skip
            form = OutputObjectDefinition(json_schema=schema, name=OUTPUT_TOOL)
            more = {"output_mode": "auto", "output_tools": [final], "output_object": form}
        if self._agent.system:
            more["instruction_parts"] = [InstructionPart(content=self._agent.system)]
        return ModelRequestParameters(function_tools=self._definitions, **more)

    async def _wait_unless_interrupted(self, asking: asyncio.Task[ModelResponse]) -> None:
        """Wait until `asking` is done or a person interrupts it. People cannot interrupt the last call of a turn."""
        if self._talk.closing:
            await asyncio.wait({asking})
        while not asking.done():
            news = asyncio.create_task(self._turn.wait_for_steer())
            try:
                await asyncio.sleep(0)  # `steered` listens from now on; earlier messages are checked in the next line
                if self._turn.steers("interrupt"):
                    return
                await asyncio.wait({asking, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()

    async def _emit_response(self, response: ModelResponse, request_id: str, latency: float) -> None:
        self._window.note_tokens(response.usage.input_tokens)
        await self._turn.emit(events.LlmResponse(
            model=self._options.model, content_len=len(response.text or ""), tool_calls=len(response.tool_calls),
            has_reasoning=bool(read_thoughts(response)), usage=read_counts(response.usage),
            finish_reason=response.finish_reason,
            latency=round(latency, 6), request_id=request_id,
        ))  # fmt: skip

    async def _emit_no_answer(self, reason: str, request_id: str, live: Live, began: float) -> None:
        """Emit the response event of a model call that ended without an answer."""
        usage = read_counts(live.usage) if live.usage is not None else {}
        self._lost = _sum(self._lost, usage)
        await self._turn.emit(events.LlmResponse(
            model=self._options.model, finish_reason=reason, latency=round(time.monotonic() - began, 6),
            request_id=request_id, usage=usage or None,
        ))  # fmt: skip

    async def _emit_trimmed(self, reason: str, trimmed: tuple[int, int]) -> None:
        dropped, left = trimmed
        await self._turn.emit(events.ContextTrimmed(reason=reason, dropped_messages=dropped, remaining_messages=left))

    async def _emit_message(self, text: str) -> None:
        """Emit a text as a message while the turn continues."""
        name = f"{message_id(self._turn)}.{self._messages}"
        self._messages += 1
        await self._turn.emit(events.MessageUpdate(message_id=name, role="agent", message=text[:TEXT_LIMIT]))

    # -- tools ---------------------------------------------------------------------------------------------------

    async def _run_tool(self, call: Call) -> None:
        if self._output is not None and call.name == OUTPUT_TOOL:
            await self._take_result(call)
            return
        if (obstacle := await self.before_tool(call)) is not None:
            if obstacle.may_have_run:  # hooks had no chance to decide about its result
                await self._take_answer(call, ToolResult(obstacle.reason, is_error=True))
            else:
                await self._skip(call, obstacle.reason)
            return
        decision = await self._turn.before_tool(self._describe(call), lambda new: self._describe(call.change(new)))
        if decision.action == "stop":
            raise StoppedByHook(decision.reason)
        if decision.action == "answer":
            await self._take_answer(call, decision.result or ToolResult(""), decision.by)
            return
        if decision.action != "go_on":
            await self._skip(call, decision.reason or DENIED, decision.by)
            return
        if decision.call is not None:
            call = call.change(decision.call.arguments)
        began = time.monotonic()
        output = await self.tool(call, changed=decision.call is not None)
        await self.after_tool(call, output, time.monotonic() - began)

    async def _take_answer(self, call: Call, result: ToolResult, rule: str | None = None) -> None:
        """Store what a hook or midwatch answers in place of a tool, as the hooks after the tool leave it."""
        decision = await self._turn.after_tool(self._describe(call), result)
        if decision.action == "stop":
            raise StoppedByHook(decision.reason)
        text, is_error = decision.result or result
        await self._emit_skipped(call, text, decision.by or rule)
        await self._keep(history.make_result_step(call, clean(text), "failed" if is_error else "success"))

    async def _skip(self, call: Call, reason: str, rule: str | None = None) -> None:
        """Report that a tool call is not run. The model gets `reason` as the result of the call."""
        await self._emit_skipped(call, reason, rule)
        await self._keep(history.make_result_step(call, reason, "interrupted"))

    async def _emit_skipped(self, call: Call, reason: str, rule: str | None = None) -> None:
        await self._turn.emit(events.ToolExecSkipped(
            tool=cut(call.name, 200), reason=cut(reason, RESULT_LIMIT), tool_call_id=call.part.tool_call_id, rule=rule
        ))  # fmt: skip

    async def before_tool(self, call: Call) -> Obstacle | None:
        """Return why the tool must not run; None if it may run."""
        talk, turn = self._talk, self._turn
        tool = self._box.tools.get(call.name)
        if talk.may_have_run(call) and not (tool is not None and tool.safe):
            return Obstacle(UNKNOWN, may_have_run=True)
        if turn.steers("stop"):
            return Obstacle(STOPPED)
        if self._spent is not None:
            return Obstacle(f"It was not run: {self._spent}.")
        spoken_to = turn.steers("interrupt", *(("after_tool",) if talk.has_results else ()))
        return Obstacle(SPOKEN_TO) if spoken_to else None

    def _describe(self, call: Call) -> ToolCall:
        """Return the call as rules and hooks see it."""
        tool, found, call_id = self._box.tools.get(call.name), read_arguments(call), call.part.tool_call_id
        arguments = found if isinstance(found, dict) else {"arguments": found}
        if tool is None:  # it does not exist, so it does not run
            return ToolCall(call.name, arguments, call_id, **collect_texts(arguments))
        try:
            return tool.describe(arguments, self._turn, call_id)
        except (ToolError, TypeError, ValueError):  # the tool refuses such arguments
            whole = collect_texts(arguments)
            return ToolCall(call.name, arguments, call_id, tool.server, tool.kind, asks=tool.asks, **whole)

    async def tool(self, call: Call, changed: bool = False) -> ToolOutput:
        """Run the tool. If it must not run twice, or a hook has changed the call, first store that it may have run.

        A tool that asks for permission stores this after the answer, so that a later attempt asks again.
        """
        tool = self._box.tools.get(call.name)
        arguments = read_arguments(call)
        await self._turn.emit(events.ToolExecStart(
            tool=cut(call.name, 200), arguments=shorten(arguments), tool_call_id=call.part.tool_call_id,
            title=make_title(call.name, arguments), tool_kind=tool.kind if tool else "other",
            locations=find_paths(arguments),
        ))  # fmt: skip
        store = None
        if changed or (tool is not None and not tool.safe and not self._talk.may_have_run(call)):
            store = partial(self._keep, history.make_started_step(call, changed))
        asks = tool is not None and tool.asks
        store_start.set(store if asks else None)
        if store is not None and not asks:
            await store()
        return await self._run(call)

    async def _run(self, call: Call) -> ToolOutput:
        running_call.set((f"{self._talk.turn}.{self._talk.requests}.{call.place}", self._talk))
        return await self._box.run(call.name, call.part.args, self._turn)

    async def after_tool(self, call: Call, output: ToolOutput, duration: float) -> None:
        """Emit and store the result of the tool, as hooks leave it."""
        decision = await self._turn.after_tool(self._describe(call), ToolResult(output.text, output.is_error))
        if decision.result is not None and decision.result != (output.text, output.is_error):
            output = ToolOutput(clean(decision.result.text), decision.result.is_error, went_on=output.went_on)
        await self._turn.emit(events.ToolExecEnd(
            tool=cut(call.name, 200), tool_call_id=call.part.tool_call_id, duration=round(duration, 6),
            for_llm_len=len(output.text), for_user_len=None if output.for_user is None else len(output.for_user),
            is_error=output.is_error, async_=output.went_on, result=cut(output.text, RESULT_LIMIT), diffs=output.diffs,
        ))  # fmt: skip
        if output.for_user:
            await self._emit_message(output.for_user)
        stop = {"stop": {"task": self._turn.task_id, "reason": decision.reason}} if decision.action == "stop" else {}
        await self._keep(
            history.make_result_step(call, output.text, "failed" if output.is_error else "success", **stop)
        )

    # -- other agents --------------------------------------------------------------------------------------------

    async def _read_handoff(self) -> dict[str, Any]:
        """Return the messages that came with the handoff as `before`; nothing without a handoff or messages."""
        handoff = await self._turn.handoff()
        before = list(handoff.context.get("messages") or ()) if handoff is not None else []
        return {"before": before} if before else {}

    async def _find_transfer(self) -> Transfer | None:
        """Return the transfer if the model has transferred the work to another agent, or None.

        Skip the tool calls that are still open, because the turn ends with the transfer.
        """
        if (call := self._talk.find_transfer(self._transfer.names)) is None:
            return None
        if self._transfer.accepted is None:  # an earlier attempt was interrupted right after the transfer
            output = await self._run(call)
            if self._transfer.accepted is None:
                raise AgentError(f"the work could not be handed over: {output.text}")
        for open_call in list(self._talk.open_calls()):
            await self._skip(open_call, ANOTHER)
        return self._transfer.accepted

    # -- results with a required form ----------------------------------------------------------------------------

    async def _take_result(self, call: Call) -> None:
        """Check and store the result, which the model gives as the arguments of the output tool."""
        assert self._output is not None
        text, problem = self._output.check(call.part.args_as_json_str())
        if problem is None:
            await self._keep(history.make_result_step(call, TAKEN, final=text))
            return
        await self._refuse(problem)
        await self._keep(history.make_result_step(call, problem, "failed", refused=True))

    async def _refuse(self, problem: str) -> None:
        """Report that a result has a wrong form. Raise AgentError if the model has no tries left."""
        await self._turn.emit(events.LoopError(stage="output", message=cut(problem, 1000)))
        if self._talk.refused >= self._options.retries:
            raise AgentError(f"the model's result does not have the form that `output` requires: {cut(problem, 500)}")

    # -- people --------------------------------------------------------------------------------------------------

    async def _inject(self, *modes: Mode) -> bool:
        """Add the unread messages of people with these modes to the conversation, and mark them as read.

        Return whether there were any.
        """
        messages = self._turn.steers(*modes)
        if not messages:
            return False
        stop = any(steer.mode == "stop" for steer in messages)
        texts = [steer.text for steer in messages if steer.text.strip()] + ([CLOSE] if stop else [])
        await self._keep(history.make_text_step("\n\n".join(texts), closing=stop), [steer.id for steer in messages])
        await self._turn.emit(events.SteeringInjected(
            count=len(messages), total_content_len=sum(len(steer.text) for steer in messages),
            steer_ids=tuple(steer.id for steer in messages),
        ))  # fmt: skip
        return True

    async def _add_results(self) -> None:
        """Add the results of background work that have arrived to the conversation, and mark them as taken."""
        if results := await self._turn.results():
            await self._keep(history.make_text_step(write_items(results)), [item.id for item in results])

    async def _continue_turn(self) -> bool:
        """Return whether the turn continues after an answer.

        It continues if the answer has a wrong form, or if people have sent new messages.
        """
        talk = self._talk
        if self._output is not None and talk.final is None:
            text, problem = self._output.check(talk.text)
            if problem is not None:
                await self._refuse(problem)
                await self._keep(history.make_text_step(problem, refused=True))
                return True
            talk.final = text
        if talk.closing or not self._turn.steers("interrupt", "after_tool"):
            return False
        if text := (talk.final or talk.text).strip():
            await self._emit_message(text)
        return await self._inject("interrupt", "after_tool")

    # -- the end -------------------------------------------------------------------------------------------------

    def _build_result(self) -> TurnResult:
        talk = self._talk
        text = talk.final if talk.final is not None else talk.text.strip()
        if talk.final is None and talk.closing and talk.requests > self._options.max_steps:
            text = f"{text}\n\n{CUT_SHORT.format(self._options.max_steps)}".strip()
        if self._spent is not None:
            text = f"{text}\n\n(It was ended early: {self._spent}.)".strip()
        text = text or (NOTHING if talk.closing else "")
        return TurnResult(text=text, thread_id=self._turn.thread_id, usage=self._sum_usage(), iterations=talk.requests)

    def _sum_usage(self) -> Usage:
        """Return the model usage of this attempt, without earlier attempts."""
        total = self._lost
        for usage in self._talk.usages(self._turn.task_id)[self._paid :]:
            total = _sum(total, read_counts(usage))
        return total

    async def _keep(self, step: dict[str, Any], took: list[str] | None = None) -> None:
        anew = step["kind"] == "prompt"
        step["turn"] = self._turn.task_id if anew else self._talk.turn
        await self._turn.save_step(step, took or ())
        self._talk.add(step)


def read_thoughts(response: ModelResponse) -> str:
    """Return the thoughts in an answer of the model."""
    return "\n\n".join(part.content for part in response.parts if part.part_kind == "thinking" and part.content)


def read_counts(usage: Any) -> dict[str, int]:
    """Return the token counts in `usage` by name, without counts that are zero."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return {name: count for name in names if (count := getattr(usage, name, 0))}


def _sum(total: Usage, usage: Mapping[str, int]) -> Usage:
    if not usage:
        return total
    new_input, new_output = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return Usage(
        input_tokens=(total.input_tokens or 0) + new_input, output_tokens=(total.output_tokens or 0) + new_output
    )


def read_arguments(call: Call) -> Any:
    """Return the arguments of a tool call as data. If they are not valid JSON, return them as text."""
    arguments = call.part.args
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return cut(arguments, ARGUMENT_LIMIT)
    return arguments or {}
