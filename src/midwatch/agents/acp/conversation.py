"""A conversation with an agent that speaks the protocol. The agent's process keeps running between turns."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from midwatch.agents.acp import questions, settings
from midwatch.agents.acp.desk import Desk
from midwatch.agents.acp.faults import convert_fault
from midwatch.agents.acp.link import Gone, Link
from midwatch.agents.acp.options import AcpOptions
from midwatch.agents.acp.outcome import Ledger, judge_answer, make_blocks, tell_reasons
from midwatch.agents.acp.profiles import Profile
from midwatch.agents.acp.updates import Tool, Transcript
from midwatch.agents.base import ProgramAgent, build_prompt, cancel, message_id
from midwatch.agents.earlier import tell_earlier
from midwatch.agents.streams.reading import get, get_dict, get_dicts, get_text
from midwatch.base.clock import SystemClock
from midwatch.base.durations import duration
from midwatch.base.errors import AgentError, MidwatchError
from midwatch.base.version import __version__
from midwatch.domain.agent import Answer, Interrupt, Question, Turn, TurnResult
from midwatch.domain.event import AgentFault, Payload, ToolExecSkipped
from midwatch.domain.session import Session
from midwatch.domain.tool_call import ToolCall
from midwatch.programs.process import Program

VERSION = 1  # version of the protocol
BULK = 200_000  # characters of an update above which it is handled in a thread
WORK = ("agent_message_chunk", "agent_thought_chunk", "tool_call", "plan")  # only an agent with a prompt sends these
MOST_CHANGES = 3  # how often a question is asked again because its tool call was changed meanwhile
MOST_REASONS = 10  # how often a turn tells the agent why its actions were denied
CANCELLED = {"outcome": {"outcome": "cancelled"}}
T = TypeVar("T")


class Stopped(Exception):
    """Raised when somebody stops the turn before the prompt was sent."""


class AcpConversation:
    """One session with one agent."""

    def __init__(
        self, agent: ProgramAgent[AcpOptions], profile: Profile, session: Session, patience: float = 30.0
    ) -> None:
        """`patience` is how many seconds the agent may wait by itself for the end of a usage limit."""
        self._agent = agent
        self._profile = profile
        self._patience = patience
        self._version: str | None = None
        self._session = session
        self._thread = session.thread_id
        self._link: Link | None = None
        self._desk: Desk | None = None
        self._can: Mapping[str, Any] = {}
        self._id: str | None = None  # the agent's id of the session that is open in its process
        self._turn: Turn | None = None
        self._transcript: Transcript | None = None
        self._ledger = Ledger(running_total=profile.running_total)
        self._resuming: str | None = None
        self._earlier = ""  # what was said before, until the agent has taken a prompt with it
        self._asides: set[str] = set()
        self._stopped, self._over = asyncio.Event(), asyncio.Event()
        self._prompting = False
        self._emitting = asyncio.Lock()
        self._questions = asyncio.Lock()
        self._waiting = 0
        self._granted = Counter[tuple[str, str]]()
        """What was allowed in this turn and is not done yet: the kind of use, and the command or the file."""
        self._heard_at = self._asked_at = time.monotonic()

    # -- the port ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process waits for another prompt."""
        return self._link is not None and self._link.alive and self._id is not None

    async def turn(self, turn: Turn) -> TurnResult:
        """Send one prompt to the agent and return the result. Start the agent's process if it does not run."""
        self._turn = turn
        self._stopped.clear()
        self._granted.clear()
        known = (turn.thread_id or self._thread) is not None
        try:
            return await self._run_turn(turn, known=known)
        except Stopped:
            await self._end_process()
            raise AgentError("the turn was stopped before the prompt was sent to the agent.") from None
        except asyncio.CancelledError:
            await self._end_process()
            raise
        finally:
            if self._link is not None and self._link.child is not None:
                self._link.child.report_usage()
            self._turn = self._transcript = None
            self._prompting = False

    async def interrupt(self, mode: Interrupt) -> None:
        """Ask the agent to stop. All modes except `stop` send a signal to the agent's process group."""
        link = self._link
        if self._turn is None:
            return
        again = self._stopped.is_set()
        self._stopped.set()
        if mode == "stop":
            if link is not None and self._prompting and again:  # at the first stop, `_wait_for_answer` sends the cancel
                await link.tell("session/cancel", {"sessionId": self._id})
        elif link is not None and link.child is not None:
            link.child.interrupt(mode)

    async def close(self) -> None:
        """End all processes of the conversation and wait for their end."""
        await self._end_process()

    async def _run_turn(self, turn: Turn, *, known: bool) -> TurnResult:
        waiting = self._link
        link = await self._ready(turn)
        try:
            return await self._prompt(turn, link, known=known)
        except Gone:
            if link is not waiting or self._heard_at > self._asked_at or self._stopped.is_set():
                raise await self._explain_death(link) from None
        await self._end_process()  # the process had ended between turns, and this is noticed only now
        return await self._run_turn(turn, known=known)

    # -- process and session before a prompt ---------------------------------------------------------------------

    async def _ready(self, turn: Turn) -> Link:
        program = self._agent.program(self._agent.command_line(), turn.workdir or self._session.workdir)
        link = self._link
        if link is not None and (not self.alive or link.program.workdir != program.workdir):
            await self._end_process()
            link = None
        if link is None:
            link = await self._start(turn, program)
        else:
            await link.serve(turn)
        thread_id = turn.thread_id or self._thread
        if self._id is None or self._earlier or (thread_id is not None and thread_id != self._id):
            await self._open_session(turn, link, thread_id)
        elif turn.thread_id is None:
            await turn.keep_thread(self._id)
        return link

    async def _start(self, turn: Turn, program: Program) -> Link:
        if problem := self._agent.find_problem(program):
            raise AgentError(problem)
        read_log = self._profile.log().read_error if self._profile.log else None
        link = self._link = Link(program, self, self._note_life, read_log)
        await link.open(turn)
        self._desk = Desk(program)
        client = {"name": "midwatch", "title": "midwatch", "version": __version__}
        files = not self._profile.own_files and program.sandbox is None
        capabilities = {"fs": {"readTextFile": files, "writeTextFile": files}, "terminal": True}
        request = {"protocolVersion": VERSION, "clientCapabilities": capabilities, "clientInfo": client}
        answer = await self._request_before_prompt(link.ask("initialize", request), link)
        if answer.get("protocolVersion") != VERSION:
            await self._end_process()
            raise AgentError(
                f"{self._agent.name} speaks version {answer.get('protocolVersion')} of the protocol, but midwatch "
                f"speaks version {VERSION}; install another version of the agent: {self._profile.install}."
            )
        self._can = get_dict(answer, "agentCapabilities")
        self._version = get_text(answer, "agentInfo", "version") or None
        return link

    async def _open_session(self, turn: Turn, link: Link, session: str | None) -> None:
        """Resume the agent's session `session`. If it is None or cannot be resumed, begin a new session."""
        servers = [server.wire() for server in self._agent.options.mcp_servers]
        request = {"cwd": link.program.workdir, "mcpServers": servers}
        answer: Mapping[str, Any] | None = None
        self._id, self._earlier, self._ledger = None, "", Ledger(running_total=self._profile.running_total)
        known, reason = session is not None, "a new conversation begins"
        if session is not None:
            answer, reason = await self._resume(link, {**request, "sessionId": session})
        resumed = answer is not None
        if answer is None:
            answer = await self._request_before_prompt(link.ask("session/new", request), link)
            session = answer.get("sessionId")
            if not isinstance(session, str) or not session:
                await self._end_process()
                raise AgentError(f"{self._agent.name} began a session without an id; install a newer version.")
            self._earlier = await tell_earlier(turn, self._agent.name, reason)
            if known and not self._earlier:
                text = f"{self._agent.name} cannot resume its conversation and begins a new one: {reason}"
                await turn.emit(AgentFault(message=text, level="warning"))
        assert session is not None
        if not self._earlier:  # else the session is kept when the agent has taken the prompt
            self._thread = session
            await turn.keep_thread(session)
        offered = settings.read_offer("model", answer)
        model = self._agent.options.model or (offered.label if offered else None)
        self._ledger.open_session(model, resumed=resumed)
        await self._choose_settings(link, session, answer)
        self._id, self._resuming = session, None

    async def _resume(self, link: Link, request: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
        """Resume a session and return the agent's answer; None and the reason if the agent cannot resume it.

        While an agent resumes a session, it may send its old updates again. These updates are not emitted.
        """
        from acp import RequestError

        resumes = get(self._can, "sessionCapabilities", "resume") is not None
        method = "session/resume" if resumes else "session/load" if self._can.get("loadSession") else None
        reason = "the agent does not keep conversations"
        if method is not None:
            self._resuming = request["sessionId"]
            try:
                return await self._request_before_prompt(link.ask(method, request), link, refusals=True), ""
            except RequestError as problem:
                error = self._fault(problem)
                if type(error) is not AgentError:  # temporary: a later attempt may resume it
                    await self._end_process()
                    raise error from problem
                reason = str(error)
        return None, reason

    async def _choose_settings(self, link: Link, session: str, answer: Mapping[str, Any]) -> None:
        """Request the mode and the model.

        Raise AgentError if the agent does not offer a value of the settings. The profile's mode is skipped if it is not
        offered.
        """
        options, profile = self._agent.options, self._profile
        model = None if profile.model_argument else options.model
        requested_settings: tuple[tuple[settings.Setting, str | None, bool], ...] = (
            ("mode", options.mode or profile.mode, options.mode is not None),
            ("model", model, True),
        )
        for setting, value, required in requested_settings:
            offered = settings.read_offer(setting, answer)
            if value is None:
                continue
            try:
                call = settings.make_call(setting, offered or settings.Offer({}, None, None), session, value)
            except KeyError:
                if required:
                    await self._end_process()
                    values = ", ".join(offered.values) if offered else "none"
                    name = self._agent.name
                    raise AgentError(
                        f"{name} has no {setting} {value!r}; set agents.{name}.{setting} to one of these: {values}."
                    ) from None
                continue
            if call is not None:
                await self._request_before_prompt(link.ask(*call), link)

    async def _request_before_prompt(self, request: Awaitable[T], link: Link, *, refusals: bool = False) -> T:
        """Return the answer to a request that is sent before the prompt.

        The wait ends with an error after `start_timeout`, or if the turn is stopped. With `refusals`, raise the agent's
        RequestError unchanged.
        """
        from acp import RequestError

        seconds = self._agent.options.start_timeout
        try:
            async with asyncio.timeout(seconds):
                return await self._wait_unless_stopped(request)
        except TimeoutError:
            await self._end_process()
            raise AgentError(
                f"{self._agent.name} did not answer within {duration(seconds)}; run `{' '.join(link.program.argv)}` to "
                f"see why, or increase agents.{self._agent.name}.start_timeout."
            ) from None
        except Gone:
            raise await self._explain_early_end(link) from None
        except RequestError as problem:
            if refusals:
                raise
            await self._end_process()
            error = self._fault(problem)
            if type(error) is AgentError:
                error = AgentError(f"{error}; to set up the agent, {self._profile.program.sign_in}.")
            raise error from problem

    async def _explain_early_end(self, link: Link) -> AgentError:
        error = await link.explain_end("before its first prompt")
        await self._end_process()
        name, profile = self._agent.name, self._profile
        sign_in = profile.program.sign_in
        judged = convert_fault(name, 0, str(error), None, SystemClock().now(), sign_in=sign_in)
        if type(judged) is not AgentError:
            return judged
        return AgentError(f"{error}; install the newest version ({profile.install}) and set it up ({sign_in}).")

    async def _wait_unless_stopped(self, request: Awaitable[T]) -> T:
        """Return the answer to `request`. Raise Stopped if the turn is stopped or ends before the answer."""
        answer = asyncio.ensure_future(request)
        stops = [asyncio.ensure_future(future.wait()) for future in (self._stopped, self._over)]
        try:
            await asyncio.wait({answer, *stops}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise Stopped
        finally:
            await cancel(answer, *stops)

    # -- the prompt ----------------------------------------------------------------------------------------------

    async def _prompt(self, turn: Turn, link: Link, *, known: bool) -> TurnResult:
        """Send the prompt of the turn, and then the reasons why actions of the agent were denied."""
        prompt = self._earlier + build_prompt(turn, known=known)
        transcript = self._transcript = Transcript(message_id(turn), self._profile.asides, self._asides)
        self._ledger.begin()
        if self._stopped.is_set():
            raise Stopped
        noise = link.lines.noise
        answer = await self._exchange(turn, link, prompt, transcript)
        for _ in range(MOST_REASONS):
            reasons = transcript.take_reasons()
            if not reasons or self._stopped.is_set() or (await turn.reserve()).action != "go_on":
                break
            await self._emit_in_order(transcript.begin_again())
            answer = await self._exchange(turn, link, tell_reasons(reasons), transcript)
        if link.lines.noise > noise:
            lines = link.lines.noise - noise
            text = f"{self._agent.name} wrote {lines} lines that are not protocol messages: {link.lines.first_noise}"
            await self._emit_in_order([AgentFault(message=text, level="warning")])
        result, last_events = judge_answer(
            self._agent.name, self._profile, answer, transcript, stopped=self._stopped.is_set(),
            now=SystemClock().now(), version=self._version, printed=link.lines.last_lines(),
        )  # fmt: skip
        await self._emit_in_order(last_events)
        return replace(result, thread_id=self._id, usage=self._ledger.usage())

    async def _exchange(self, turn: Turn, link: Link, prompt: str, transcript: Transcript) -> Mapping[str, Any]:
        """Send one prompt, and return the agent's answer when the agent has worked on it."""
        from acp import RequestError

        request = {"sessionId": self._id, "prompt": make_blocks(prompt, link.program.workdir)}
        self._prompting = True
        try:
            answer = await self._wait_for_answer(link, link.ask("session/prompt", request))
        except RequestError as problem:
            await self._end(transcript, cut_off=True)
            raise self._fault(problem) from problem
        finally:
            self._prompting = False
            await self._withdraw_questions()
        await self._note_taken(turn)
        await self._end(transcript, cut_off=answer.get("stopReason") == "cancelled")
        await self._emit_in_order(self._ledger.finish(answer, transcript))
        return answer

    async def _note_taken(self, turn: Turn) -> None:
        """Keep the agent's session once the agent has taken a prompt that tells what was said before.

        If the agent ends earlier, its session is empty, and the next prompt must tell it again in a new session.
        """
        if self._earlier and self._id is not None:
            self._earlier, self._thread = "", self._id
            await turn.keep_thread(self._id)

    async def _end(self, transcript: Transcript, *, cut_off: bool) -> None:
        async with self._emitting:
            await self._emit(transcript.end(cut_off=cut_off))

    async def _withdraw_questions(self) -> None:
        """Withdraw the agent's open questions at the end of the turn."""
        self._over.set()
        async with self._questions:  # wait until all open questions have returned
            self._over.clear()

    async def _wait_for_answer(self, link: Link, request: Awaitable[T]) -> T:
        """Wait for the agent's answer to the prompt and return it.

        Raise AgentError if the agent is silent for longer than `idle_limit`, and UsageLimit if it waits by itself for
        the end of a usage limit. The time in which the agent waits for a person does not count.
        """
        answer = asyncio.ensure_future(request)
        stop: asyncio.Future[Any] = asyncio.ensure_future(self._stopped.wait())
        link.errors.wait = None
        self._note_life()
        self._asked_at = self._heard_at
        try:
            while not answer.done():
                limit = link.errors.allowed_silence(self._agent.options.idle_limit, self._patience)
                quiet = 0.0 if self._waiting else time.monotonic() - self._heard_at
                if quiet >= limit:
                    await self._end_process()
                    raise self._explain_silence(link, limit)
                link.errors.news.clear()
                news: asyncio.Future[Any] = asyncio.ensure_future(link.errors.news.wait())
                waiting = {answer, news} if stop.done() else {answer, news, stop}
                done, _ = await asyncio.wait(waiting, timeout=limit - quiet, return_when=asyncio.FIRST_COMPLETED)
                await cancel(news)
                if news in done:  # its wait begins now
                    self._note_life()
                if stop in done:
                    await link.tell("session/cancel", {"sessionId": self._id})
            return answer.result()
        finally:
            await cancel(answer, stop)

    def _explain_silence(self, link: Link, seconds: float) -> AgentError:
        name = self._agent.name
        return link.errors.limit(name) or AgentError(
            f"{name} sent nothing for {duration(seconds)}, so midwatch ended it; retry the task, or increase "
            f"agents.{name}.idle_limit if the work needs longer."
        )

    async def _explain_death(self, link: Link) -> MidwatchError:
        interrupted = link.child is not None and link.child.interrupted
        error = await link.explain_end("in the middle of its work")
        await self._end_process()
        return AgentError("the turn was interrupted.") if interrupted else error

    # -- updates and requests of the agent -----------------------------------------------------------------------

    async def update(self, params: Mapping[str, Any], *, more: bool) -> None:
        """Handle an update of the agent, as `link.Host` describes.

        Ignore updates of other sessions. While a session is being resumed, read only the model and the cost.
        """
        update = params.get("update")
        if self._transcript is not None and self._prompting:
            self._transcript.drift.need(params, "sessionId", kind=str)
            self._transcript.drift.need(params, "update", kind=dict)
        if not isinstance(update, dict) or params.get("sessionId") not in (self._id, self._resuming):
            return
        self._ledger.note(update)
        if self._transcript is None or not self._prompting or self._turn is None:
            return
        if update.get("sessionUpdate") in WORK:
            await self._note_taken(self._turn)
            if self._link is not None:
                self._link.errors.wait = None
        async with self._emitting:
            transcript = self._transcript
            if _measure_diffs(update) > BULK:
                payloads = await asyncio.to_thread(transcript.update, update, more=more)
            else:
                payloads = transcript.update(update, more=more)
            await self._emit(payloads)

    def note_unknown(self, method: str) -> None:
        """Count a notification that midwatch does not know, as `link.Host` describes."""
        if self._transcript is not None and self._prompting:
            self._transcript.drift.miss(method)

    async def serve(self, method: str, params: Mapping[str, Any]) -> Any:
        """Answer a request of the agent, as `link.Host` describes."""
        from acp import RequestError

        self._note_life()
        turn = self._turn
        if params.get("sessionId") != self._id or turn is None or self._desk is None:
            raise RequestError(-32602, "there is no such session, or it has no running turn.")
        if method == "session/request_permission":
            return await self._ask_permission(turn, params)
        if (refusal := await self._refuse_request(turn, self._desk.describe(method, params))) is not None:
            raise RequestError(-32602, refusal)
        return await self._desk.serve(turn, method, params)

    async def _refuse_request(self, turn: Turn, call: ToolCall | None) -> str | None:
        """Return why midwatch must not read, write or run something for the agent; None if it may."""
        if call is None:
            return None
        granted = next((use for use in list_uses(call) if self._granted[use]), None)
        if granted is not None:
            self._granted[granted] -= 1
            call = call._replace(granted=True)
        self._waiting += 1
        try:
            decision = await self._wait_unless_stopped(turn.before_tool(call))
        except Stopped:
            return "the turn is being stopped."
        finally:
            self._waiting -= 1
            self._note_life()
        if decision.action == "go_on":
            return None
        reason = decision.reason or decision.action
        await self._emit_in_order([ToolExecSkipped(tool=call.name, reason=reason, rule=decision.by)])
        return reason

    async def _ask_permission(self, turn: Turn, params: Mapping[str, Any]) -> Any:
        """Ask a person for the permission that the agent requests. Only one question is open at a time."""
        call = get_dict(params, "toolCall")
        async with self._questions:
            transcript = self._transcript
            if transcript is None or not self._prompting or self._stopped.is_set() or self._desk is None:
                return CANCELLED
            async with self._emitting:
                tool, payloads = await asyncio.to_thread(transcript.ask_for, call)
                await self._emit(payloads)
            offered = questions.read_options(params.get("options"))
            if any(option.kind in questions.ALLOWS for option in offered):
                answer = await self._ask_about(turn, tool, offered)
            else:
                answer = Answer("denied", None, f"{self._agent.name} offered no option that allows it")
            tool.request = None
            if answer is None:
                return CANCELLED
            if not answer.granted:
                transcript.refuse(tool, answer)
            choice = questions.choose_option(answer, offered)
            return {"outcome": {"outcome": "selected", "optionId": choice.id}} if choice else CANCELLED

    async def _ask_about(self, turn: Turn, tool: Tool, offered: tuple[questions.Option, ...]) -> Answer | None:
        """Return the answer about a tool call. If the agent changes the call meanwhile, ask about the changed call."""
        assert self._desk is not None
        root = self._desk.files.root
        changed = questions.make_question(tool, offered, root)
        for _ in range(MOST_CHANGES):
            question, content = changed, tool.content()
            answer = await self._ask_person(turn, question)
            if answer is None or not answer.granted or tool.ended:
                return answer
            changed = questions.make_question(tool, offered, root)
            if (changed, tool.content()) == (question, content):
                self._granted.update(list_uses(question))
                return answer
        return Answer("denied", None, f"{self._agent.name} changed the tool call again and again while it was asked")

    async def _ask_person(self, turn: Turn, question: Question) -> Answer | None:
        """Return a person's answer to the question; None if the turn is stopped before the answer."""
        self._waiting += 1
        try:
            return await self._wait_unless_stopped(turn.ask(question))
        except Stopped:
            return None
        except MidwatchError as problem:
            if not self._stopped.is_set():
                message = f"the question of the agent could not be asked: {problem}"
                await self._emit_in_order([AgentFault(message=message, level="warning")])
            return Answer("denied", None, str(problem))
        finally:
            self._waiting -= 1
            self._note_life()

    async def _emit_in_order(self, payloads: list[Payload]) -> None:
        async with self._emitting:
            await self._emit(payloads)

    async def _emit(self, payloads: list[Payload]) -> None:
        for payload in payloads:
            if self._turn is not None:
                await self._turn.emit(payload)

    def _note_life(self) -> None:
        self._heard_at = time.monotonic()

    def _fault(self, problem: Any) -> AgentError:
        name, sign_in = self._agent.name, self._profile.program.sign_in
        return convert_fault(name, problem.code, str(problem), problem.data, SystemClock().now(), sign_in=sign_in)

    async def _end_process(self) -> None:
        """End the agent's process and the commands that midwatch runs for the agent."""
        link, desk = self._link, self._desk
        self._link = self._desk = self._id = None
        if desk is not None:
            await desk.terminals.close()
        if link is not None:
            await link.close()


def list_uses(use: Question | ToolCall) -> list[tuple[str, str]]:
    """Return the kind of a tool, with each file that it would use, or with its command."""
    return [(use.kind, name) for name in (use.paths if use.command is None else (use.command,))]


def _measure_diffs(update: Mapping[str, Any]) -> int:
    """Return the number of characters in the diffs of an update."""
    items = get_dicts(update, "content")
    return sum(len(get_text(item, name)) for item in items for name in ("oldText", "newText"))
