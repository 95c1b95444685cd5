"""Kind `command`: a program that is started for each prompt, prints its answer and exits."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from midwatch.agents.base import BaseAgent, KindOptions, last_lines, message_id
from midwatch.base.errors import AgentError, BadConfig, TransientError
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.event import MessageDelta
from midwatch.domain.session import Session
from midwatch.programs.process import OUTPUT_LIMIT, Output, ProcessConversation, Program, within

TEMPORARY_FAILURE = 75
"""Exit code EX_TEMPFAIL of sysexits.h."""
ERROR_LIMIT = 100_000
LONGEST_LINE = 10_000
"""Characters of a line that are searched for the thread id."""
PAUSE = 0.05
"""Seconds between two live pieces of text."""
PLACES = re.compile(r"\{(prompt|thread)\}")


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as problem:
        raise ValueError(f"not a regular expression: {problem}") from None
    if groups != 1:
        raise ValueError("write a regular expression with one group, which is the thread id")
    return text


class CommandOptions(KindOptions):
    """Options of kind `command`."""

    argv: tuple[str, ...] = Field(
        min_length=1, description="Program and arguments. Without {prompt} in it, the prompt goes to standard input."
    )
    resume_argv: tuple[str, ...] = Field((), description="The same for a conversation whose {thread} is known.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    workdir: str | None = Field(None, description="Working directory of tasks that name none.")
    output_limit: int = Field(OUTPUT_LIMIT, ge=1000, description="Bytes of output kept; of more, head and tail.")
    thread_pattern: Annotated[str, AfterValidator(_pattern)] | None = Field(
        None, description="Regular expression whose one group finds the thread id in a line of the output."
    )
    ok_codes: tuple[int, ...] = Field((0,), min_length=1, description="Exit codes that mean success.")


class CommandAgent(BaseAgent):
    """Starts a program for each turn."""

    kind = "command"
    starts_programs = True
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="fail", slots=4)

    def __init__(
        self, name: str, options: CommandOptions, *, terms: AgentTerms | None = None, description: str = ""
    ) -> None:
        super().__init__(name, terms=terms, description=description)
        self.options = options

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """With a resume template a task cut off by a crash goes on."""
        return cls.terms._replace(on_crash="resume") if options.get("resume_argv") else cls.terms

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> CommandAgent:
        """From `[agents.NAME]`."""
        read = CommandOptions.read(name, options)
        if terms.on_crash == "resume" and not read.resume_argv:
            raise BadConfig(
                f"agents.{name}.on_crash: resume needs agents.{name}.resume_argv; write it, or fail or rerun."
            )
        return cls(name, read, terms=terms, description=description)

    async def open(self, session: Session) -> CommandConversation:
        """Nothing is started before the first turn."""
        return CommandConversation(self, session)

    def describe(self) -> Mapping[str, Any]:
        """The command line, and why it cannot run here."""
        found: dict[str, Any] = {"command": shlex.join(self.options.argv)}
        if problem := self.program(self.options.argv, None).problem():
            found["problem"] = problem
        return found

    def program(self, argv: tuple[str, ...], workdir: str | None) -> Program:
        """What a turn starts."""
        place = Path(workdir or self.options.workdir or os.getcwd()).expanduser().absolute()  # noqa: PTH109
        env = self.options.env
        inside = self.kept_in(argv[0], str(place), env)
        return Program(agent=self.name, argv=argv, workdir=str(place), sandbox=inside, env=env)


@dataclass(frozen=True, slots=True)
class _Call:
    """One command line, made for one prompt."""

    argv: tuple[str, ...]
    stdin: bytes
    thread: str | None


class CommandConversation(ProcessConversation):
    """One session with a program that forgets, or remembers by thread id."""

    def __init__(self, agent: CommandAgent, session: Session) -> None:
        super().__init__()
        self._agent = agent
        self._session = session
        self._thread = session.thread_id

    async def work(self, turn: Turn) -> TurnResult:
        """Start the program, show what it prints, wait for its end."""
        options = self._agent.options
        call = await self._prepare(turn)
        live = _Live(turn, options.thread_pattern)
        out, err = Output(options.output_limit, live.add), Output(ERROR_LIMIT, live.aside)
        program = self._agent.program(call.argv, turn.workdir or self._session.workdir)
        showing = asyncio.create_task(live.show())
        try:
            async with self.child(program, turn, out, err) as child:
                showing.add_done_callback(lambda _: child.interrupt("kill"))  # it ends early only when refused
                await child.admit(turn, call.stdin)
                await child.exited.wait()
            live.end()
            await showing
        finally:
            showing.cancel()
        if live.refused is not None:
            raise live.refused
        text = out.text().rstrip()
        self._thread = live.thread or call.thread
        self._check(child.returncode, text, err.text())
        return TurnResult(text=text, thread_id=self._thread)

    async def _prepare(self, turn: Turn) -> _Call:
        options = self._agent.options
        thread = turn.thread_id or self._thread
        if thread is None and turn.resumed:
            thread = _thread_of(await turn.load_progress())
            if thread is None and options.resume_argv:
                raise AgentError("it was cut off before its thread id was known; look at what it did, then retry it")
        template = options.resume_argv if thread and options.resume_argv else options.argv
        if thread is None and any("{thread}" in part for part in template):
            thread = str(uuid.uuid4())
            await turn.save_progress({"thread_id": thread})
        prompt = turn.prompt.replace("\0", "").encode("utf-8", "replace").decode()
        stdin = b"" if any("{prompt}" in part for part in template) else prompt.encode()
        return _Call(fill(template, prompt, thread or ""), stdin, thread)

    def _check(self, code: int | None, text: str, said: str) -> None:
        if code in self._agent.options.ok_codes:
            return
        name = Path(self._agent.options.argv[0]).name
        why = last_lines(said) or last_lines(text)
        how = f"was ended by {_signal_name(-code)}" if code and code < 0 else f"failed with exit code {code}"
        message = f"{name} {how}" + (f": {why}" if why else "")
        raise TransientError(message) if code == TEMPORARY_FAILURE else AgentError(message)


def fill(template: tuple[str, ...], prompt: str, thread: str) -> tuple[str, ...]:
    """The template with prompt and thread id in their places."""
    values = {"prompt": prompt, "thread": thread}
    made: list[str] = []
    for part in template:
        # A prompt that is an argument of its own must not be taken for an option.
        guarded = part == "{prompt}" and prompt.startswith("-") and "--" not in made
        made.append((" " if guarded else "") + PLACES.sub(lambda place: values[place[1]], part))
    return tuple(made)


class _Live:
    """Shows output while it is written, in pieces, and keeps the thread id durably as soon as it is printed."""

    def __init__(self, turn: Turn, thread_pattern: str | None) -> None:
        self.thread: str | None = None
        self.refused: Exception | None = None
        self._turn = turn
        self._pattern = re.compile(thread_pattern) if thread_pattern else None
        self._begun_lines = {"out": "", "err": ""}
        self._waiting: list[str] = []
        self._offset = 0
        self._saved = False
        self._news, self._over = asyncio.Event(), asyncio.Event()

    def add(self, text: str) -> None:
        """More of the answer."""
        self._waiting.append(text)
        self._search("out", text)
        self._news.set()

    def aside(self, text: str) -> None:
        """More of what is not the answer; it may hold the thread id."""
        self._search("err", text)

    def end(self) -> None:
        """There will be no more."""
        for stream in self._begun_lines:
            self._search(stream, "\n")
        self._over.set()
        self._news.set()

    async def show(self) -> None:
        """Emit until the end, or until an event is refused."""
        try:
            while not self._over.is_set():
                await self._news.wait()
                self._news.clear()
                await self._emit()
                await within(PAUSE, self._over)
            await self._emit()
        except Exception as problem:
            self.refused = problem

    async def _emit(self) -> None:
        if text := "".join(self._waiting):
            self._waiting.clear()
            piece = MessageDelta(message_id=message_id(self._turn), offset=self._offset, text=text)
            self._offset += len(text)
            await self._turn.emit(piece)
        if self.thread and not self._over.is_set() and not self._saved:
            self._saved = True
            await self._turn.save_progress({"thread_id": self.thread})

    def _search(self, stream: str, text: str) -> None:
        """Whole lines only: half an id would match, too."""
        if self._pattern is None or self.thread is not None:
            return
        lines, newline, begun = (self._begun_lines[stream] + text).rpartition("\n")
        self._begun_lines[stream] = begun[:LONGEST_LINE]
        if newline:
            found = next(filter(None, map(self._pattern.search, lines.splitlines())), None)
            self.thread = found[1] if found else None
            self._news.set()


def _thread_of(progress: Any) -> str | None:
    found = progress.get("thread_id") if isinstance(progress, dict) else None
    return found if isinstance(found, str) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
