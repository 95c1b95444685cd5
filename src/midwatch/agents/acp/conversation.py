"""A conversation with an agent that speaks the protocol. Its process waits for the next turn as long as it is let."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from midwatch.agents.acp import questions, settings
from midwatch.agents.acp.desk import Desk
from midwatch.agents.acp.faults import fault
from midwatch.agents.acp.link import Gone, Link
from midwatch.agents.acp.options import AcpOptions
from midwatch.agents.acp.outcome import Ledger, blocks, outcome
from midwatch.agents.acp.profiles import Profile
from midwatch.agents.acp.updates import Transcript
from midwatch.agents.base import ProgramAgent, build_prompt, message_id
from midwatch.base.clock import SECOND
from midwatch.base.durations import duration
from midwatch.base.errors import AgentError, MidwatchError
from midwatch.base.version import __version__
from midwatch.domain.agent import Answer, Interrupt, Question, Turn, TurnResult
from midwatch.domain.event import AgentFault, Payload
from midwatch.domain.session import Session
from midwatch.programs.process import Program

VERSION = 1
"""Of the protocol."""
BULK = 200_000
"""Characters of an update above which it is worked on in a thread."""
CANCELLED = {"outcome": {"outcome": "cancelled"}}
T = TypeVar("T")


class Stopped(Exception):
    """Somebody stopped the turn before the agent had its prompt."""


class AcpConversation:
    """One session with one agent."""

    def __init__(self, agent: ProgramAgent[AcpOptions], profile: Profile, session: Session) -> None:
        self._agent = agent
        self._profile = profile
        self._session = session
        self._thread = session.thread_id
        self._link: Link | None = None
        self._desk: Desk | None = None
        self._can: Mapping[str, Any] = {}
        self._id: str | None = None
        """The agent's id of the session that is open in its process."""
        self._turn: Turn | None = None
        self._transcript: Transcript | None = None
        self._ledger = Ledger(running_total=profile.running_total)
        self._taking_up: str | None = None
        self._asides: set[str] = set()
        self._stopped, self._over = asyncio.Event(), asyncio.Event()
        self._prompting = False
        self._telling = asyncio.Lock()
        self._questions = asyncio.Lock()
        self._waiting = 0
        self._heard_at = self._asked_at = time.monotonic()

    # -- the port ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process waits for another prompt."""
        return self._link is not None and self._link.alive and self._id is not None

    async def turn(self, turn: Turn) -> TurnResult:
        """Work on one prompt, in the process that is there or in a new one."""
        self._turn = turn
        self._stopped.clear()
        known = (turn.thread_id or self._thread) is not None
        try:
            return await self._converse(turn, known=known)
        except Stopped:
            await self._drop()
            raise AgentError("it was stopped before the agent had its prompt.") from None
        except asyncio.CancelledError:
            await self._drop()
            raise
        finally:
            self._turn = self._transcript = None
            self._prompting = False

    async def interrupt(self, mode: Interrupt) -> None:
        """Ask the agent to stop; the harder modes signal its group."""
        link = self._link
        if self._turn is None:
            return
        again = self._stopped.is_set()
        self._stopped.set()
        if mode == "stop":
            if link is not None and self._prompting and again:  # the first time whoever sent the prompt does it
                await link.tell("session/cancel", {"sessionId": self._id})
        elif link is not None and link.child is not None:
            link.child.interrupt(mode)

    async def close(self) -> None:
        """Return when nothing of it runs any more."""
        await self._drop()

    async def _converse(self, turn: Turn, *, known: bool) -> TurnResult:
        waiting = self._link
        link = await self._ready(turn)
        try:
            return await self._prompt(turn, link, known=known)
        except Gone:
            if link is not waiting or self._heard_at > self._asked_at or self._stopped.is_set():
                raise await self._death(link) from None
        await self._drop()  # it had died while it waited for this prompt, and the news is only here now
        return await self._converse(turn, known=known)

    # -- an agent that is ready for a prompt ---------------------------------------------------------------------

    async def _ready(self, turn: Turn) -> Link:
        program = self._agent.program(self._agent.command_line(), turn.workdir or self._session.workdir)
        link = self._link
        if link is not None and (not self.alive or link.program.workdir != program.workdir):
            await self._drop()
            link = None
        if link is None:
            link = await self._start(turn, program)
        else:
            await turn.own_group(link.pgid)
        wanted = turn.thread_id or self._thread
        if self._id is None or (wanted is not None and wanted != self._id):
            await self._open_session(turn, link, wanted)
        elif turn.thread_id is None:
            await turn.keep_thread(self._id)
        return link

    async def _start(self, turn: Turn, program: Program) -> Link:
        if problem := self._agent.find_problem(program):
            raise AgentError(problem)
        link = self._link = Link(program, self, self._heard)
        await link.open(turn)
        self._desk = Desk(program)
        client = {"name": "midwatch", "title": "midwatch", "version": __version__}
        files = not self._profile.own_files and program.sandbox is None
        can = {"fs": {"readTextFile": files, "writeTextFile": files}, "terminal": True}
        wish = {"protocolVersion": VERSION, "clientCapabilities": can, "clientInfo": client}
        told = await self._begin(link.ask("initialize", wish), link)
        if told.get("protocolVersion") != VERSION:
            await self._drop()
            raise AgentError(
                f"{self._agent.name} speaks version {told.get('protocolVersion')} of the protocol and midwatch speaks "
                f"{VERSION}; install a version of the agent that speaks it: {self._profile.install}."
            )
        offered = told.get("agentCapabilities")
        self._can = offered if isinstance(offered, dict) else {}
        return link

    async def _open_session(self, turn: Turn, link: Link, wanted: str | None) -> None:
        """Take up the session `wanted`, or begin one."""
        servers = [server.wire() for server in self._agent.options.mcp_servers]
        wish = {"cwd": link.program.workdir, "mcpServers": servers}
        told: Mapping[str, Any] | None = None
        self._id, self._ledger = None, Ledger(running_total=self._profile.running_total)
        if wanted is not None:
            told = await self._take_up(turn, link, {**wish, "sessionId": wanted})
            self._ledger.loaded = told is not None
        if told is None:
            told = await self._begin(link.ask("session/new", wish), link)
            wanted = told.get("sessionId")
            if not isinstance(wanted, str) or not wanted:
                await self._drop()
                raise AgentError(f"{self._agent.name} began a session without an id; install a newer version of it.")
        self._thread = wanted
        assert wanted is not None
        await turn.keep_thread(wanted)
        await self._settle(link, wanted, told)
        self._id, self._taking_up = wanted, None

    async def _take_up(self, turn: Turn, link: Link, wish: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What was told of the session; None if the agent cannot go on with it. What it tells again is not told."""
        from acp import RequestError

        sessions = self._can.get("sessionCapabilities")
        resumes = isinstance(sessions, dict) and sessions.get("resume") is not None
        method = "session/resume" if resumes else "session/load" if self._can.get("loadSession") else None
        why = "it does not keep conversations"
        if method is not None:
            self._taking_up = wish["sessionId"]
            try:
                return await self._begin(link.ask(method, wish), link, refusals=True)
            except RequestError as problem:
                found = self._fault(problem)
                if type(found) is not AgentError:  # it may know the conversation later
                    await self._drop()
                    raise found from problem
                why = str(found)
        text = f"{self._agent.name} cannot take up its conversation and begins a new one: {why}"
        await turn.emit(AgentFault(message=text, level="warning"))
        return None

    async def _settle(self, link: Link, session: str, told: Mapping[str, Any]) -> None:
        """Choose mode and model, where they are offered."""
        options, profile = self._agent.options, self._profile
        model = None if profile.model_argument else options.model
        wishes: tuple[tuple[settings.Setting, str | None, bool], ...] = (
            ("mode", options.mode or profile.mode, options.mode is not None),
            ("model", model, True),
        )
        for setting, wish, must in wishes:
            offered = settings.offer(setting, told)
            if setting == "model":
                self._ledger.model = options.model or (offered.label if offered else None)
            if wish is None:
                continue
            try:
                call = settings.call(setting, offered or settings.Offer({}, None, None), session, wish)
            except KeyError:
                if must:
                    await self._drop()
                    known = ", ".join(offered.values) if offered else "none"
                    raise AgentError(
                        f"{self._agent.name} has no {setting} {wish!r}; change agents.{self._agent.name}.{setting} to "
                        f"one it offers: {known}."
                    ) from None
                continue
            if call is not None:
                await self._begin(link.ask(call.method, call.params), link)

    async def _begin(self, asked: Awaitable[T], link: Link, *, refusals: bool = False) -> T:
        """An answer that is needed before the prompt. Not for ever, and not when somebody stops the turn."""
        from acp import RequestError

        seconds = self._agent.options.start_timeout
        try:
            async with asyncio.timeout(seconds):
                return await self._unless_stopped(asked)
        except TimeoutError:
            await self._drop()
            raise AgentError(
                f"{self._agent.name} did not answer within {duration(seconds)}; run `{' '.join(link.program.argv)}` to "
                f"see why, or raise agents.{self._agent.name}.start_timeout."
            ) from None
        except Gone:
            raise await self._early_end(link) from None
        except RequestError as problem:
            if refusals:
                raise
            await self._drop()
            found = self._fault(problem)
            if type(found) is AgentError:
                found = AgentError(f"{found}; to set it up, {self._profile.program.sign_in}.")
            raise found from problem

    async def _early_end(self, link: Link) -> AgentError:
        found = await link.obituary("before it could work")
        await self._drop()
        judged = fault(self._agent.name, 0, str(found), None, self._now(), sign_in=self._profile.program.sign_in)
        if type(judged) is not AgentError:
            return judged
        profile = self._profile
        return AgentError(f"{found}; see that it is new ({profile.install}) and set up ({profile.program.sign_in}).")

    async def _unless_stopped(self, asked: Awaitable[T]) -> T:
        """The answer, or Stopped: somebody stopped the turn, or it is over."""
        answer = asyncio.ensure_future(asked)
        stops = [asyncio.ensure_future(one.wait()) for one in (self._stopped, self._over)]
        try:
            await asyncio.wait({answer, *stops}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise Stopped
        finally:
            for one in (answer, *stops):
                one.cancel()
            await asyncio.gather(answer, *stops, return_exceptions=True)

    # -- the prompt ----------------------------------------------------------------------------------------------

    async def _prompt(self, turn: Turn, link: Link, *, known: bool) -> TurnResult:
        from acp import RequestError

        wish = {"sessionId": self._id, "prompt": blocks(build_prompt(turn, known=known), link.program.workdir)}
        transcript = self._transcript = Transcript(message_id(turn), self._profile.asides, self._asides)
        self._ledger.begin()
        if self._stopped.is_set():
            raise Stopped
        noise = link.lines.noise
        self._prompting = True
        try:
            told = await self._watched(link, link.ask("session/prompt", wish))
        except RequestError as problem:
            await self._end(transcript, cut_off=True)
            raise self._fault(problem) from problem
        finally:
            self._prompting = False
            await self._take_back_questions()
        await self._end(transcript, cut_off=told.get("stopReason") == "cancelled")
        await self._tell(self._ledger.finish(told, transcript))
        if link.lines.noise > noise:
            lines = link.lines.noise - noise
            text = f"{self._agent.name} wrote {lines} lines that are no messages: {link.lines.first_noise}"
            await self._tell([AgentFault(message=text, level="warning")])
        agent, stopped = self._agent, self._stopped.is_set()
        ending = outcome(agent.name, self._profile, told, transcript, stopped=stopped, now=self._now())
        await self._tell(ending.events)
        return TurnResult(
            text=ending.text, outcome=ending.outcome, error=ending.error, thread_id=self._id,
            usage=self._ledger.usage(), iterations=None,
        )  # fmt: skip

    async def _end(self, transcript: Transcript, *, cut_off: bool) -> None:
        async with self._telling:
            await self._emit(transcript.end(cut_off=cut_off))

    async def _take_back_questions(self) -> None:
        """The turn is over: what its agent still asks is no question any more."""
        self._over.set()
        async with self._questions:  # once everybody before us has left
            self._over.clear()

    async def _watched(self, link: Link, asked: Awaitable[T]) -> T:
        """The answer to the prompt. Silence has its limit, unless it is a person who is waited for."""
        limit = self._agent.options.idle_limit
        answer = asyncio.ensure_future(asked)
        stop: asyncio.Future[Any] = asyncio.ensure_future(self._stopped.wait())
        self._heard()
        self._asked_at = self._heard_at
        try:
            while not answer.done():
                quiet = 0.0 if self._waiting else time.monotonic() - self._heard_at
                if quiet >= limit:
                    await self._drop()
                    raise AgentError(
                        f"{self._agent.name} said nothing for {duration(limit)} and was ended; retry the task, or "
                        f"raise agents.{self._agent.name}.idle_limit if it needs longer."
                    )
                heard = {answer} if stop.done() else {answer, stop}
                done, _ = await asyncio.wait(heard, timeout=limit - quiet, return_when=asyncio.FIRST_COMPLETED)
                if stop in done:
                    await link.tell("session/cancel", {"sessionId": self._id})
            return answer.result()
        finally:
            for one in (answer, stop):
                one.cancel()
            await asyncio.gather(answer, stop, return_exceptions=True)

    async def _death(self, link: Link) -> MidwatchError:
        interrupted = link.child is not None and link.child.interrupted
        found = await link.obituary("in the middle of its work")
        await self._drop()
        return AgentError("it was interrupted.") if interrupted else found

    # -- what the agent tells and asks ---------------------------------------------------------------------------

    async def update(self, params: Mapping[str, Any], *, more: bool) -> None:
        """See `link.Host`. What it tells of another session, or while it takes up an old one, is no news."""
        told = params.get("update")
        if not isinstance(told, dict) or params.get("sessionId") not in (self._id, self._taking_up):
            return
        self._ledger.note(told)
        if self._transcript is None or not self._prompting:
            return
        async with self._telling:
            transcript = self._transcript
            if _bulk(told) > BULK:
                made = await asyncio.to_thread(transcript.update, told, more=more)
            else:
                made = transcript.update(told, more=more)
            await self._emit(made)

    async def serve(self, method: str, params: Mapping[str, Any]) -> Any:
        """See `link.Host`."""
        from acp import RequestError

        self._heard()
        turn = self._turn
        if params.get("sessionId") != self._id or turn is None or self._desk is None:
            raise RequestError(-32602, "there is no such session, or nothing is asked of it now.")
        if method == "session/request_permission":
            return await self._permission(turn, params)
        return await self._desk.serve(turn, method, params)

    async def _permission(self, turn: Turn, params: Mapping[str, Any]) -> Any:
        """Ask a person, one question after the other."""
        call = params.get("toolCall")
        call = call if isinstance(call, dict) else {}
        async with self._questions:
            transcript = self._transcript
            if transcript is None or not self._prompting or self._stopped.is_set() or self._desk is None:
                return CANCELLED
            async with self._telling:
                tool, made = await asyncio.to_thread(transcript.ask_for, call)
                await self._emit(made)
            offered = questions.options(params.get("options"))
            if any(one.kind in questions.ALLOWS for one in offered):
                answer = await self._answer(turn, questions.question(tool, call, offered, self._desk.files.root))
            else:
                answer = Answer("denied", None, f"{self._agent.name} offered no way to allow it")
            if answer is None:
                return CANCELLED
            if not answer.granted:
                transcript.refuse(tool, answer.why or answer.status)
            choice = questions.chosen(answer, offered)
            return {"outcome": {"outcome": "selected", "optionId": choice.id}} if choice else CANCELLED

    async def _answer(self, turn: Turn, question: Question) -> Answer | None:
        """What a person says; None when the turn is stopped first."""
        self._waiting += 1
        try:
            return await self._unless_stopped(turn.ask(question))
        except Stopped:
            return None
        except MidwatchError as problem:
            if not self._stopped.is_set():
                await self._tell([AgentFault(message=f"its question could not be asked: {problem}", level="warning")])
            return Answer("denied", None, str(problem))
        finally:
            self._waiting -= 1
            self._heard()

    async def _tell(self, made: list[Payload]) -> None:
        async with self._telling:
            await self._emit(made)

    async def _emit(self, made: list[Payload]) -> None:
        for payload in made:
            if self._turn is not None:
                await self._turn.emit(payload)

    def _heard(self) -> None:
        self._heard_at = time.monotonic()

    def _fault(self, problem: Any) -> AgentError:
        sign_in = self._profile.program.sign_in
        return fault(self._agent.name, problem.code, str(problem), problem.data, self._now(), sign_in=sign_in)

    def _now(self) -> int:
        return int(time.time() * SECOND)

    async def _drop(self) -> None:
        """End the process and everything it had us start."""
        link, desk = self._link, self._desk
        self._link = self._desk = self._id = None
        if desk is not None:
            await desk.terminals.close()
        if link is not None:
            await link.close()


def _bulk(told: Mapping[str, Any]) -> int:
    """Characters of the texts an update carries."""
    items = told.get("content")
    listed = items if isinstance(items, list) else ()
    texts = (one.get(name) for one in listed if isinstance(one, dict) for name in ("oldText", "newText"))
    return sum(len(text) for text in texts if isinstance(text, str))
