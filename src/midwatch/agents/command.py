"""Kind `command`: a program that is started for each prompt, prints its answer and exits."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

from pydantic import AfterValidator, Field

from midwatch.agents.base import ProgramAgent, ProgramOptions, SharedSettings, last_lines, message_id
from midwatch.agents.live_text import LiveText
from midwatch.agents.streams.reading import get_text
from midwatch.base.errors import AgentError, BadConfig, TransientError
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.session import Session
from midwatch.programs.process import OUTPUT_LIMIT, Output, ProcessConversation, describe_exit, wait_within

TEMPORARY_FAILURE = 75  # exit code EX_TEMPFAIL of sysexits.h
ERROR_LIMIT = 100_000
LONGEST_LINE = 10_000  # characters of a line that are searched for the thread id
PAUSE = 0.05  # seconds between two live pieces of text
PLACEHOLDERS = re.compile(r"\{(prompt|thread)\}")


def _check_pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as problem:
        raise ValueError(f"not a regular expression: {problem}") from None
    if groups != 1:
        raise ValueError("must have exactly one group ( ), which matches the thread id")
    return text


class CommandOptions(ProgramOptions):
    """Options of kind `command`."""

    argv: tuple[str, ...] = Field(
        min_length=1, description="Program and arguments. Without {prompt} in it, the prompt goes to standard input."
    )
    resume_argv: tuple[str, ...] = Field((), description="Program and arguments to resume the conversation {thread}.")
    output_limit: int = Field(OUTPUT_LIMIT, ge=1000, description="Bytes of output that are kept: head and tail.")
    thread_pattern: Annotated[str, AfterValidator(_check_pattern)] | None = Field(
        None, description="Regular expression whose one group finds the thread id in a line of the output."
    )
    ok_codes: tuple[int, ...] = Field((0,), min_length=1, description="Exit codes that mean success.")


class CommandAgent(ProgramAgent[CommandOptions]):
    """Starts a program for each turn."""

    kind = "command"
    options_class = CommandOptions
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="fail", slots=4, threads=False, reports=())

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """Return the default terms. With the option `resume_argv`, a task continues after a crash."""
        return cls.terms._replace(on_crash="resume", threads=True) if options.get("resume_argv") else cls.terms

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> Self:
        """Return the agent that `[agents.NAME]` describes."""
        agent = super().from_options(name, options, **shared)
        if agent.terms.on_crash == "resume" and not agent.options.resume_argv:
            raise BadConfig(f"agents.{name}.on_crash: `resume` needs `resume_argv`; set it, or use `fail` or `rerun`.")
        return agent

    def command_line(self) -> tuple[str, ...]:
        """Return the program and its arguments for a new conversation."""
        return self.options.argv

    async def open(self, session: Session) -> CommandConversation:
        """Open a conversation. Nothing is started before the first turn."""
        return CommandConversation(self, session)


class CommandConversation(ProcessConversation):
    """One session with a program.

    A program with a thread id continues its own conversation. Other programs begin again at each turn.
    """

    def __init__(self, agent: CommandAgent, session: Session) -> None:
        super().__init__()
        self._agent = agent
        self._session = session
        self._thread = session.thread_id

    async def work(self, turn: Turn) -> TurnResult:
        """Start the program, show its output, wait until it exits, and return its output as the answer."""
        options = self._agent.options
        argv, stdin, thread = await self._prepare(turn)
        live = _Live(turn, options)
        out, err = Output(options.output_limit, live.add), Output(ERROR_LIMIT, live.add_error)
        program = self._agent.program(argv, turn.workdir or self._session.workdir)
        showing = asyncio.create_task(live.show())
        try:
            async with self.child(program, turn, out, err) as child:
                # `show` ends before the program only if an event was refused
                showing.add_done_callback(lambda _: child.interrupt("kill"))
                await child.admit(turn, stdin)
                await child.exited.wait()
            live.end()
            await showing
        finally:
            showing.cancel()
        if live.refused is not None:
            raise live.refused
        text = out.text().rstrip()
        self._thread = live.thread or thread
        self._check(child.returncode, text, err.text())
        return TurnResult(text=text, thread_id=self._thread)

    async def _prepare(self, turn: Turn) -> tuple[tuple[str, ...], bytes, str | None]:
        """Return the command line, the standard input and the thread id."""
        options = self._agent.options
        thread = turn.thread_id or self._thread
        if thread is None and turn.resumed:
            thread = get_text(await turn.load_progress(), "thread_id") or None
            if thread is None and options.resume_argv:
                raise AgentError("the turn was interrupted before its thread id was known; check its work, then retry")
        template = options.resume_argv if thread and options.resume_argv else options.argv
        if thread is None and any("{thread}" in part for part in template):
            thread = str(uuid.uuid4())
            await turn.save_progress({"thread_id": thread})
        prompt = turn.prompt.replace("\0", "").encode("utf-8", "replace").decode()
        stdin = b"" if any("{prompt}" in part for part in template) else prompt.encode()
        return fill(template, prompt, thread or ""), stdin, thread

    def _check(self, code: int | None, text: str, errors: str) -> None:
        if code in self._agent.options.ok_codes:
            return
        name = Path(self._agent.options.argv[0]).name
        reason = last_lines(errors) or last_lines(text)
        message = f"{name} {describe_exit(code)}" + (f": {reason}" if reason else "")
        raise TransientError(message) if code == TEMPORARY_FAILURE else AgentError(message)


def fill(template: tuple[str, ...], prompt: str, thread: str) -> tuple[str, ...]:
    """Return the command line `template`, with `{prompt}` and `{thread}` replaced by their values."""
    values = {"prompt": prompt, "thread": thread}
    argv: list[str] = []
    for part in template:
        # A prompt that is a separate argument and begins with `-` would look like an option.
        guarded = part == "{prompt}" and prompt.startswith("-") and "--" not in argv
        argv.append((" " if guarded else "") + PLACEHOLDERS.sub(lambda match: values[match[1]], part))
    return tuple(argv)


class _Live:
    """Shows the output while the program writes it. Saves the thread id as soon as the program prints it."""

    def __init__(self, turn: Turn, options: CommandOptions) -> None:
        self.thread: str | None = None
        self.refused: Exception | None = None
        self._turn = turn
        self._pattern = re.compile(options.thread_pattern) if options.thread_pattern else None
        self._text = LiveText(message_id(turn), options.output_limit)
        self._begun_lines = {"out": "", "err": ""}
        self._saved = False
        self._news, self._over = asyncio.Event(), asyncio.Event()

    def add(self, text: str) -> None:
        """Add a piece of the answer."""
        self._text.add(text)
        self._search("out", text)
        self._news.set()

    def add_error(self, text: str) -> None:
        """Search a piece of standard error for the thread id."""
        self._search("err", text)

    def end(self) -> None:
        """Note that the output has ended, so that `show` returns after the last piece."""
        for stream in self._begun_lines:
            self._search(stream, "\n")
        self._over.set()
        self._news.set()

    async def show(self) -> None:
        """Emit new text as events until `end` is called. Stop earlier if an event is refused."""
        try:
            while not self._over.is_set():
                await self._news.wait()
                self._news.clear()
                await self._emit()
                await wait_within(PAUSE, self._over)
            await self._emit()
        except Exception as problem:
            self.refused = problem

    async def _emit(self) -> None:
        if delta := self._text.take_delta():
            await self._turn.emit(delta)
        if self.thread and not self._over.is_set() and not self._saved:
            self._saved = True
            await self._turn.save_progress({"thread_id": self.thread})

    def _search(self, stream: str, text: str) -> None:
        """Search the output for the thread id.

        Only complete lines are searched, because in an incomplete line the pattern could match a part of the id.
        """
        if self._pattern is None or self.thread is not None:
            return
        lines, newline, begun = (self._begun_lines[stream] + text).rpartition("\n")
        self._begun_lines[stream] = begun[:LONGEST_LINE]
        if newline:
            match = next(filter(None, map(self._pattern.search, lines.splitlines())), None)
            self.thread = match[1] if match else None
            self._news.set()
