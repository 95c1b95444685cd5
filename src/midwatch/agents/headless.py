"""Kind `headless`: a coding agent's program that is started for each prompt and reports its steps as JSON lines."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, Unpack

from pydantic import Field

from midwatch.agents.base import ProgramAgent, ProgramOptions, SharedSettings, build_prompt, last_lines
from midwatch.agents.earlier import tell_earlier
from midwatch.agents.streams import PROFILES, steps
from midwatch.agents.streams.base import Parser, Permissions
from midwatch.agents.streams.drift import NotUnderstood, make_drift_error
from midwatch.agents.streams.faults import Fault, find_reset_time, judge, make_error
from midwatch.agents.streams.lines import Lines
from midwatch.agents.streams.step_events import StepEvents
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.durations import duration
from midwatch.base.errors import AgentError, BadConfig, Conflict, TransientError, UsageLimit
from midwatch.base.files import read_regular
from midwatch.base.text import cut
from midwatch.domain.agent import AgentTerms, Turn, TurnResult, Usage
from midwatch.domain.session import Session
from midwatch.programs.process import Child, Output, ProcessConversation, Program, describe_exit, wait_within
from midwatch.programs.reaper import end_strays
from midwatch.wire.fields import Seconds

IDLE_SECONDS = 1800.0
ERROR_LIMIT = 100_000
FAULT_SHOWN = 1_000
LINE_SHOWN = 300
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MOST_THREADS = 10_000
VERSION_PATIENCE = 15.0
LONGEST_ERROR_LINE = 10_000
LONGEST_PACKAGE_FILE = 1_000_000
MOST_ERROR_STEPS = 100


class HeadlessOptions(ProgramOptions):
    """Options of kind `headless`."""

    profile: Literal["claude", "codex", "gemini", "opencode", "qwen", "copilot", "goose"] = Field(
        description="The known program; by default the agent's own name."
    )
    argv: tuple[str, ...] = Field((), description="Program and first arguments, instead of the profile's.")
    args: tuple[str, ...] = Field((), description="Additional arguments for the program.")
    model: str | None = Field(None, min_length=1, description="The model to use.")
    permissions: Permissions | None = Field(None, description="What it may do without asking: read, edit or all.")
    on_denial: Literal["fail", "tell"] = Field("fail", description="Whether a denied tool fails the task.")
    idle_limit: Seconds = Field(IDLE_SECONDS, gt=0, description="Time without output after which a turn is ended.")


class Patience(NamedTuple):
    """How many seconds midwatch waits for a program in different situations."""

    limit: float = 60.0  # while it waits for the limit of its provider; after that its task waits without it
    linger: float = 60.0  # while it prints nothing and does not exit after its result
    stop: float = 5.0  # after an interrupt


class HeadlessAgent(ProgramAgent[HeadlessOptions]):
    """Starts a program for each turn and reads its JSON lines."""

    kind = "headless"
    options_class = HeadlessOptions
    terms = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="resume", slots=4)

    patience = Patience()

    def __init__(self, name: str, options: HeadlessOptions, **shared: Unpack[SharedSettings]) -> None:
        super().__init__(name, options, **shared)
        self.profile = PROFILES[options.profile]
        self.totals: dict[str, steps.Spent] = {}
        """Total usage by thread id, for programs that report only the usage of the whole conversation."""

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> Self:
        """Return the agent that `[agents.NAME]` describes."""
        agent = super().from_options(name, {"profile": name, **options}, **shared)
        permissions, offered = agent.options.permissions, agent.profile.permissions
        if permissions is not None and permissions not in offered:
            raise BadConfig(
                f"agents.{name}.permissions: {agent.profile.name} does not have {permissions!r}; use "
                f"{' or '.join(offered)}, or remove the setting."
            )
        return agent

    async def open(self, session: Session) -> HeadlessConversation:
        """Open a conversation. Nothing is started before the first turn."""
        return HeadlessConversation(self, session)

    def describe(self) -> Mapping[str, Any]:
        """Return `command`, the command line, and `version`, or `problem` if the program cannot be started here."""
        description = super().describe()
        version = None if "problem" in description else self.find_version()
        tested = {"version": version, "tested_versions": list(self.profile.versions)}
        return {**description, **tested} if version else description

    def find_version(self) -> str | None:
        """Return the version of the installed program, or None. The program is not started."""
        return installed_version(self.program(self.command_line(), None))

    def command_line(self, thread: str | None = "{thread}", *, resumed: bool = False) -> tuple[str, ...]:
        """Return the program and its arguments for a new or a resumed conversation."""
        options = self.options
        arguments = self.profile.arguments(
            thread, resumed=resumed, model=options.model, allowed=options.permissions, own=options.args
        )
        return (*self.executable(), *arguments)

    def executable(self) -> tuple[str, ...]:
        """Return the program and the arguments that come first: the option `argv`, or the name of the profile."""
        return self.options.argv or (self.profile.name,)

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that the program needs, also those that set its permissions."""
        profile, permissions = self.profile, self.options.permissions
        for_root = profile.program.environment_for_root() if permissions == "all" else {}
        return {**profile.env, **(profile.permission_env.get(permissions, {}) if permissions else {}), **for_root}


def installed_version(program: Program) -> str | None:
    """Return the version of a program from its npm package, or None. The program is not started."""
    executable = shutil.which(program.argv[0], path=program.environment({}).get("PATH"))
    for folder in list(Path(executable).resolve().parents)[:4] if executable else ():
        try:
            package = json.loads(read_regular(folder / "package.json", LONGEST_PACKAGE_FILE))
        except (OSError, ValueError, Conflict):
            continue
        version = package.get("version") if isinstance(package, dict) else None
        return version if isinstance(version, str) else None
    return None


class _Run:
    """One run of the program: its output, and the events that report it."""

    def __init__(self, turn: Turn, parser: Parser, hear: Callable[[], None], thread: str | None, resumed: bool) -> None:
        self.events = StepEvents(turn)
        self.parser = parser
        self.lines = Lines(hear)
        self.errors = Output(ERROR_LIMIT, self._read_errors)
        self.thread = thread
        self.resumed = resumed
        self.code: int | None = None
        self.silent = False  # whether midwatch ended it because it printed nothing
        self.lingered = False  # whether midwatch ended it because it did not exit after its result
        self._hear = hear
        self._begun_line = ""
        self.version: str | None = None
        self._error_steps: list[steps.Step] = []

    def _read_errors(self, text: str) -> None:
        """Parse a piece of standard error, and note that the program is not silent."""
        self._hear()
        *lines, self._begun_line = (self._begun_line + text)[-LONGEST_ERROR_LINE:].split("\n")
        self._error_steps += [step for line in lines for step in self.parser.read_error(line)][:MOST_ERROR_STEPS]
        self.lines.wake()

    async def emit_error_steps(self) -> None:
        """Emit the steps that were found in standard error since the last call."""
        new, self._error_steps = self._error_steps, []
        await self.emit(new)

    async def emit(self, new: Iterable[steps.Step]) -> None:
        """Emit steps as events."""
        for step in new:
            await self.events.emit(step)

    def read(self, line: dict[str, Any]) -> Iterable[steps.Step]:
        """Return the steps in a line of standard output, and count what is unknown in the line."""
        self.parser.drift.count(line)
        self.version = self.version or self.parser.read_version(line)
        return self.parser.read(line)

    @property
    def misread(self) -> str | None:
        """Why the stream was not understood, or None.

        An empty answer and a tool without a result are doubted only if something was unknown.
        """
        events, drift = self.events, self.parser.drift
        if events.failed:
            other = events.fault is not None and events.fault.kind == "other"
            return drift.describe() if other and drift.missing else None
        if events.done:
            empty = not events.has_answer and not events.answer.strip()
            lost = bool(events.left_open and drift.types)  # perhaps the result of a tool, which may be a denial
            return drift.describe() if drift.missing or lost or (empty and drift.seen) else None
        if not self.lines.objects and not (self.lines.noise and self.code == 0):
            return None
        if self.code != 0 and self.plain_errors().strip():
            return None  # standard error has the reason
        return "; ".join(filter(None, ("it has no final event", drift.describe())))

    def kept_text(self) -> str:
        """Return everything that the program said or, if nothing of it was understood, the last lines it printed."""
        said = self.events.said.strip()
        answer = self.events.answer.strip()
        return "\n".join(filter(None, (said, answer if answer not in said else ""))) or self.lines.last_lines()

    def error_text(self, lines: int = 20) -> str:
        """Return the last lines of standard error without colours, or the first line that was not JSON."""
        return last_lines(self.plain_errors(), lines) or self.lines.first_noise

    def plain_errors(self) -> str:
        """Return standard error without colours."""
        return ESCAPES.sub("", self.errors.text())


class HeadlessConversation(ProcessConversation):
    """One session with a program that finds the conversation by its thread id."""

    def __init__(self, agent: HeadlessAgent, session: Session) -> None:
        super().__init__()
        self._agent = agent
        self._profile = agent.profile
        self._session = session
        self._thread = session.thread_id
        self._heard_at = 0.0

    async def work(self, turn: Turn) -> TurnResult:
        """Start the program, emit its steps and return the result."""
        thread, name = turn.thread_id or self._thread, self._agent.name
        earlier = "" if thread else await tell_earlier(turn, name, "a new conversation begins")
        run = await self._run(turn, thread, resumed=thread is not None, earlier=earlier)
        forgotten = run.events.fault is not None and run.events.fault.kind == "thread"
        if forgotten and run.resumed:
            earlier = await tell_earlier(turn, name, f"{self._profile.name} does not know thread {thread}")
            if not earlier and not turn.resumed and not self._profile.names_thread:
                return await self._conclude(run, turn)
            await run.events.complain("thread", f"{self._profile.name} does not know thread {thread}; a new one begins")
            run = await self._run(turn, thread if self._profile.names_thread else None, resumed=False, earlier=earlier)
        return await self._conclude(run, turn)

    async def _run(self, turn: Turn, thread: str | None, *, resumed: bool, earlier: str = "") -> _Run:
        if self._profile.names_thread:
            thread = thread or str(uuid.uuid4())
            await turn.keep_thread(thread)
        run = _Run(turn, self._profile.parser(), self._hear, thread, resumed)
        argv = self._agent.command_line(thread, resumed=resumed)
        program = self._agent.program(argv, turn.workdir or self._session.workdir)
        prompt = (earlier + build_prompt(turn, known=resumed or bool(earlier))).encode("utf-8", "replace")
        self._hear()
        async with self.child(program, turn, run.lines, run.errors) as child:
            closing = asyncio.create_task(_drain(child, run.lines))
            try:
                await child.admit(turn, prompt)
                await self._follow(run, child)
            finally:
                closing.cancel()
        if self._profile.leaves_daemon:
            await end_strays(turn.task_id, turn.attempt)
        run.code = child.returncode
        await self._finish(run)
        return run

    def _hear(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    async def _follow(self, run: _Run, child: Child) -> None:
        """Emit the steps until the output ends, or until the program is silent for too long."""
        events = run.events
        while True:
            await run.emit_error_steps()
            remaining = self._remaining(events)
            if remaining <= 0 and child.returncode is not None:
                remaining = self._agent.patience.stop  # it has ended, and its last output is not read yet
            if remaining <= 0:
                run.silent, run.lingered = not events.done, events.done
                child.interrupt("stop")
                await wait_within(self._agent.patience.stop, child.exited)
                return
            due = events.due()
            try:
                line = await run.lines.next(remaining if due is None else min(remaining, due))
            except TimeoutError:
                if events.due() == 0.0:
                    await events.show()
                continue
            if line is None:
                break
            await run.emit(run.read(line))
            await asyncio.sleep(0)  # let other tasks run while a program prints many lines
        await run.emit(run.parser.end())
        await wait_within(self._agent.patience.linger, child.exited)

    def _remaining(self, events: StepEvents) -> float:
        """Return the seconds that midwatch waits for the program from now on.

        A program that waits for a limit may print that it waits. So this time begins with its first retry.
        """
        patience, idle = self._agent.patience, self._agent.options.idle_limit
        silent = asyncio.get_running_loop().time() - self._heard_at
        if events.done:
            return patience.linger - silent
        if events.retry is None or events.retry.fault.kind != "limit":
            return idle - silent
        waited = time.monotonic() - events.retries_since
        known = events.retry.seconds is not None and events.retry.seconds > patience.limit
        return min(patience.stop if known else patience.limit, idle) - waited

    async def _finish(self, run: _Run) -> None:
        """Emit the last events after the output has ended, and find the reason for a failure."""
        events, lines = run.events, run.lines
        await run.emit_error_steps()
        await events.end()
        left_out = []
        if lines.noise:
            left_out.append(f"{lines.noise} lines that were not JSON, the first: {lines.first_noise!r}")
        if lines.too_long:
            left_out.append(f"{lines.too_long} lines that were too long")
        if left_out:
            await events.complain("stream", "skipped output: " + "; ".join(left_out))
        if drift := run.parser.drift.describe():
            version = run.version or self._agent.find_version() or "of unknown version"
            told = f"midwatch does not know all that {self._profile.name} {version} printed: {drift}"
            await events.complain("stream", told)
        if events.fault is None and not events.done and run.code != 0 and not run.silent:
            events.fault = self._find_reason(run)
        if events.fault is not None and events.fault.kind == "limit" and events.fault.resets_at is None:
            later = find_reset_time(run.plain_errors(), SystemClock().now())
            events.fault = replace(events.fault, resets_at=later)

    def _find_reason(self, run: _Run) -> Fault:
        """Return the reason why a run failed.

        Programs report an unknown thread id or a wrong option first in standard error, and other errors last.
        """
        now = SystemClock().now()
        first = judge(run.plain_errors()[:FAULT_SHOWN], now=now)
        if first.kind in ("thread", "options") and not run.lines.objects:
            return first
        return judge(run.error_text(), now=now)

    async def _conclude(self, run: _Run, turn: Turn) -> TurnResult:
        """Return the result of the turn.

        Raise the error of a failed turn. If the failed turn used model tokens, return a result with the error instead,
        so that the usage is counted.
        """
        events, usage = run.events, self._usage(run)
        self._thread = events.thread or run.thread
        problem = await self._find_problem(run, turn)
        iterations = events.replies or None
        if problem is None and self._thread is None:
            lost = f"{self._profile.name} did not name its conversation, so the next message begins a new one"
            await events.complain("thread", lost)
        if isinstance(problem, NotUnderstood):
            await events.emit_message()
            return TurnResult(
                text=run.kept_text(), outcome="error", error=str(problem), thread_id=self._thread, usage=usage,
                iterations=iterations,
            )  # fmt: skip
        if problem is None:
            return TurnResult(text=events.answer.rstrip(), thread_id=self._thread, usage=usage, iterations=iterations)
        temporary = isinstance(problem, TransientError | UsageLimit)
        if temporary or not (usage.input_tokens or usage.output_tokens or usage.cost_usd):
            problem.usage = usage
            raise problem
        return TurnResult(
            text=events.answer, outcome="error", error=str(problem), thread_id=self._thread, usage=usage,
            iterations=iterations,
        )  # fmt: skip

    async def _find_problem(self, run: _Run, turn: Turn) -> AgentError | None:
        """Return the error that the turn fails with, or None."""
        events, name, options = run.events, self._profile.name, self._agent.options
        if self._interrupted is not None and not events.done:
            return AgentError(f"{name} was interrupted")
        if run.silent:
            return self._explain_silence(events)
        if (misread := run.misread) is not None and (events.failed or events.done or not events.denied):
            return await self._explain_misreading(misread, run, turn)
        if events.fault is not None:
            return await self._convert_fault(events.fault, run, turn)
        strict = options.on_denial == "fail" and options.permissions != "read"
        if events.denied and (strict or not events.done):
            return AgentError(self._explain_denial(events))
        if not events.done:
            reason = run.error_text(3)
            hint = f": {reason}" if reason else "; read its own logs"
            return AgentError(f"{name} ended without a result{hint}")
        if run.code is not None and run.code > 0 and not run.lingered:
            reason = last_lines(run.plain_errors(), 3)
            return AgentError(f"{name} {describe_exit(run.code)} after its answer: {reason}")
        return None

    async def _explain_misreading(self, why: str, run: _Run, turn: Turn) -> AgentError:
        """Return the error of a turn whose stream was not understood."""
        version = run.version or self._agent.find_version() or await self._read_version(turn)
        reason = last_lines(run.plain_errors(), 3)
        why += f"; on standard error: {cut(reason, LINE_SHOWN)}" if reason and not run.events.done else ""
        return make_drift_error(self._profile.name, version, self._profile.versions, " ".join(why.split()))

    def _explain_silence(self, events: StepEvents) -> AgentError:
        """Return the error of a turn that midwatch ended because the program printed nothing for too long."""
        name, retry = self._agent.name, events.retry
        if retry is not None and retry.fault.kind == "passing":
            return TransientError(retry.message)
        if retry is not None and retry.fault.kind == "limit":
            later = None if retry.seconds is None else SystemClock().now() + int(retry.seconds * SECOND)
            return UsageLimit(retry.message, resets_at=retry.fault.resets_at or later)
        return AgentError(
            f"{self._profile.name} printed nothing for {duration(self._agent.options.idle_limit)}, so midwatch ended "
            f"it; retry the task, or increase agents.{name}.idle_limit if the work needs longer."
        )

    async def _convert_fault(self, fault: Fault, run: _Run, turn: Turn) -> AgentError:
        """Convert a fault to the error that the turn fails with."""
        name, text = self._profile.name, cut(" ".join(fault.text.split()), LINE_SHOWN)
        if fault.kind == "thread":
            return AgentError(
                f"{name} does not find the conversation {run.thread} in this directory; start a new session. ({text})"
            )
        if fault.kind == "options" and not run.lines.objects:
            version = await self._read_version(turn)
            first = next(iter(fault.text.strip().splitlines()), "")
            own = f", or correct agents.{self._agent.name}.args" if self._agent.options.args else ""
            return AgentError(
                f"{name} {version} refuses an argument ({first}); midwatch is known to work with "
                f"{self._profile.versions.oldest} and newer: update {name}{own}."
            )
        if fault.kind in ("other", "options"):
            how = "failed" if run.code in (0, None) else describe_exit(run.code)
            return AgentError(f"{name} {how}" + (f": {cut(fault.text.strip(), FAULT_SHOWN)}" if text else ""))
        return make_error(replace(fault, text=text), name, self._profile.program.sign_in)

    def _explain_denial(self, events: StepEvents) -> str:
        name, profile = self._agent.name, self._profile
        modes = [mode for mode in profile.permissions if mode not in ("read", self._agent.options.permissions)]
        wider = f"set agents.{name}.permissions to {' or '.join(modes)}, " if modes else ""
        return (
            f"{profile.name} was not allowed to use {', '.join(events.denied)}, so its work may be incomplete; {wider}"
            f"allow it in {profile.program.title}'s own settings, or use kind acp, where it asks you."
        )

    async def _read_version(self, turn: Turn) -> str:
        """Run the program with --version and return the version it prints."""
        argv = (*self._agent.executable(), "--version")
        program = self._agent.program(argv, turn.workdir or self._session.workdir)
        out = Output(ERROR_LIMIT)
        async with self.child(program, turn, out, Output(ERROR_LIMIT)) as child:
            await child.admit(turn)
            await wait_within(VERSION_PATIENCE, child.exited)
        return next((word.rstrip(".") for word in out.text().split() if word[:1].isdigit()), "of unknown version")

    def _usage(self, run: _Run) -> Usage:
        """Return the usage of the turn.

        Some programs report only the total of the conversation. Then subtract the total before this turn.
        """
        events, totals = run.events, self._agent.totals
        figures, total = events.own, events.of_thread
        if total is not None:
            thread = events.thread or run.thread or ""
            before = totals.pop(thread, None) if run.resumed else steps.Spent(input_tokens=0, output_tokens=0)
            totals[thread] = total
            if len(totals) > MOST_THREADS:
                del totals[next(iter(totals))]
            figures = [_subtract(total, before)] if before is not None else events.answered
        return Usage(
            input_tokens=_sum(spent.input_tokens for spent in figures),
            output_tokens=_sum(spent.output_tokens for spent in figures),
            cost_usd=_sum(spent.cost_usd for spent in figures),
            model=events.model or self._agent.options.model,
        )


def _sum(values: Iterable[Any]) -> Any:
    reported = [value for value in values if value is not None]
    return sum(reported) if reported else None


def _subtract(total: steps.Spent, before: steps.Spent) -> steps.Spent:
    def subtract(now: int | None, then: int | None) -> int | None:
        return None if now is None else max(0, now - (then or 0))

    return steps.Spent(
        input_tokens=subtract(total.input_tokens, before.input_tokens),
        output_tokens=subtract(total.output_tokens, before.output_tokens),
    )


async def _drain(child: Child, lines: Lines) -> None:
    await child.exited.wait()
    await lines.drain()
