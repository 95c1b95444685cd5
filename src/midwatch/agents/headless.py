"""Kind `headless`: a coding agent's program, run for each prompt, that tells of its steps as a stream of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from midwatch.agents.base import BaseAgent, KindOptions, last_lines, prompt_of
from midwatch.agents.streams import PROFILES, steps
from midwatch.agents.streams.base import Parser, Permissions, Profile
from midwatch.agents.streams.faults import Fault, judge, reset_time
from midwatch.agents.streams.lines import Lines
from midwatch.agents.streams.step_events import StepEvents
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.durations import duration
from midwatch.base.errors import AgentError, BadConfig, TransientError, UsageLimit
from midwatch.base.text import cut
from midwatch.domain.agent import AgentTerms, Turn, TurnResult, Usage
from midwatch.domain.session import Session
from midwatch.programs.process import Child, Output, ProcessConversation, Program, end_strays, within
from midwatch.wire.fields import Seconds

IDLE_SECONDS = 1800.0
DRAIN = 0.2
ERROR_LIMIT = 100_000
FAULT_SHOWN = 1_000
LINE_SHOWN = 300
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MOST_THREADS = 10_000
VERSION_PATIENCE = 15.0
LONGEST_ASIDE = 10_000
MOST_ASIDE = 100


class HeadlessOptions(KindOptions):
    """Options of kind `headless`."""

    profile: Literal["claude", "codex", "gemini", "opencode", "qwen", "copilot", "goose"] = Field(
        description="Which program it is; by default the agent's own name."
    )
    argv: tuple[str, ...] = Field((), description="Program, and arguments that come first, instead of the profile's.")
    args: tuple[str, ...] = Field((), description="More arguments for the program.")
    model: str | None = Field(None, min_length=1, description="The model to use.")
    permissions: Permissions | None = Field(None, description="What it may do unasked: read, edit or all.")
    on_denial: Literal["fail", "tell"] = Field("fail", description="What a denied tool means for the task.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    workdir: str | None = Field(None, description="Working directory of tasks that name none.")
    idle_limit: Seconds = Field(
        IDLE_SECONDS, gt=0, description="How long it may print nothing before its turn is ended."
    )


class Patience(NamedTuple):
    """How long a program is waited for, in seconds."""

    limit: float = 120.0
    """While it waits for its provider's limit by itself; then its task is parked."""
    linger: float = 60.0
    """While it lives on in silence after its result."""
    stop: float = 5.0
    """After it was interrupted."""


PATIENCE = Patience()


class HeadlessAgent(BaseAgent):
    """Starts a program for each turn and reads its stream."""

    kind = "headless"
    starts_programs = True
    terms = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="resume", slots=4)

    def __init__(
        self,
        name: str,
        options: HeadlessOptions,
        *,
        terms: AgentTerms | None = None,
        description: str = "",
        patience: Patience = PATIENCE,
    ) -> None:
        super().__init__(name, terms=terms, description=description)
        self.options = options
        self.patience = patience
        self.profile = PROFILES[options.profile]
        self.totals: dict[str, steps.Spent] = {}
        """What conversations had consumed after their last turn, of programs that tell no figures of a turn."""

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> HeadlessAgent:
        """From `[agents.NAME]`."""
        read = HeadlessOptions.read(name, {"profile": name, **options})
        offered = PROFILES[read.profile].permissions
        if read.permissions is not None and read.permissions not in offered:
            listed = " or ".join(offered)
            raise BadConfig(
                f"agents.{name}.permissions: {read.profile} has no such mode; use {listed}, or leave it out."
            )
        return cls(name, read, terms=terms, description=description)

    async def open(self, session: Session) -> HeadlessConversation:
        """Nothing is started before the first turn."""
        return HeadlessConversation(self, session)

    def describe(self) -> Mapping[str, Any]:
        """The command line, the version where it is cheap to know, and why it cannot run here."""
        program = self.program(self.arguments("{thread}", resumed=False), None)
        found: dict[str, Any] = {"command": shlex.join(program.argv)}
        if problem := program.problem():
            found["problem"] = problem
        elif version := installed_version(program):
            found["version"] = version
        return found

    def arguments(self, thread: str | None, *, resumed: bool) -> tuple[str, ...]:
        """What follows the program's name."""
        chosen = self.options
        return self.profile.arguments(
            thread, resumed=resumed, model=chosen.model, allowed=chosen.permissions, own=chosen.args
        )

    def program(self, arguments: tuple[str, ...], workdir: str | None) -> Program:
        """What a turn starts."""
        chosen, known = self.options, self.profile
        place = Path(workdir or chosen.workdir or os.getcwd()).expanduser().absolute()  # noqa: PTH109
        env = dict(known.env)
        if chosen.permissions is not None:
            env |= known.permission_env.get(chosen.permissions, {})
            env |= known.root_env if chosen.permissions == "all" and os.geteuid() == 0 else {}
        argv = (*(chosen.argv or (known.binary,)), *arguments)
        env |= chosen.env
        inside = self.kept_in(argv[0], str(place), env)
        return Program(agent=self.name, argv=argv, workdir=str(place), sandbox=inside, env=env)


def installed_version(program: Program) -> str | None:
    """The version in the package a program was installed with by npm. Nothing is started for it."""
    place = shutil.which(program.argv[0], path=program.environment({}).get("PATH"))
    for folder in list(Path(place).resolve().parents)[:4] if place else ():
        try:
            found = json.loads((folder / "package.json").read_text())
        except (OSError, ValueError):
            continue
        version = found.get("version") if isinstance(found, dict) else None
        return version if isinstance(version, str) else None
    return None


class _Aside:
    """What a program says on standard error: a sign of life, and for some parsers worth reading."""

    def __init__(self, parser: Parser, lines: Lines, heard: Callable[[], None]) -> None:
        self._parser = parser
        self._heard = heard
        self._lines = lines
        self._begun = ""
        self._steps: list[steps.Step] = []

    def add(self, text: str) -> None:
        """More of it."""
        self._heard()
        *whole, self._begun = (self._begun + text)[-LONGEST_ASIDE:].split("\n")
        self._steps += [step for line in whole for step in self._parser.aside(line)][:MOST_ASIDE]
        self._lines.wake()

    def take(self) -> list[steps.Step]:
        """The steps it told of since the last time."""
        taken, self._steps = self._steps, []
        return taken


@dataclass(slots=True)
class _Run:
    """One start of the program, and what came of it."""

    told: StepEvents
    parser: Parser
    lines: Lines
    errors: Output
    aside: _Aside
    thread: str | None
    resumed: bool
    code: int | None = None
    silent: bool = False
    """Whether it was ended because it printed nothing."""
    lingered: bool = False
    """Whether it was ended because it did not exit after its result."""


class HeadlessConversation(ProcessConversation):
    """One session with a program that remembers it by its thread id."""

    def __init__(self, agent: HeadlessAgent, session: Session) -> None:
        super().__init__()
        self._agent = agent
        self._session = session
        self._thread = session.thread_id
        self._heard_at = 0.0

    @property
    def _profile(self) -> Profile:
        return self._agent.profile

    @property
    def _strict(self) -> bool:
        """Whether a denied tool fails the task; of one that shall only look it is no wonder."""
        chosen = self._agent.options
        return chosen.on_denial == "fail" and chosen.permissions != "read"

    async def work(self, turn: Turn) -> TurnResult:
        """Start the program, tell what it tells, and say how it ended."""
        thread = turn.thread_id or self._thread
        run = await self._run(turn, thread, resumed=thread is not None)
        forgotten = run.told.fault is not None and run.told.fault.kind == "thread"
        if forgotten and run.resumed and (turn.resumed or self._profile.names_thread):
            await run.told.complain("thread", f"{self._profile.binary} does not know {thread}; it begins anew")
            run = await self._run(turn, thread if self._profile.names_thread else None, resumed=False)
        self._thread = run.told.thread or run.thread
        return await self._conclude(run, turn)

    async def _run(self, turn: Turn, thread: str | None, *, resumed: bool) -> _Run:
        if thread is None and self._profile.names_thread:
            thread = str(uuid.uuid4())
        if self._profile.names_thread and thread is not None:
            await turn.keep_thread(thread)
        lines, parser = Lines(self._hear), self._profile.parser()
        aside = _Aside(parser, lines, self._hear)
        run = _Run(StepEvents(turn), parser, lines, Output(ERROR_LIMIT, aside.add), aside, thread, resumed)
        workdir = turn.workdir or self._session.workdir
        program = self._agent.program(self._agent.arguments(thread, resumed=resumed), workdir)
        said = prompt_of(turn, known=resumed).encode("utf-8", "replace")
        self._hear()
        async with self.child(program, turn, run.lines, run.errors) as child:
            closing = asyncio.create_task(_close(child, run.lines))
            try:
                await child.admit(turn, said)
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
        """Tell what comes until there is no more, or nothing comes for too long."""
        parser, told = run.parser, run.told
        while True:
            for step in run.aside.take():
                await told.tell(step)
            left = self._heard_at + self._allowance(told) - asyncio.get_running_loop().time()
            if left <= 0:
                run.silent, run.lingered = not told.done, told.done
                child.interrupt("stop")
                await within(self._agent.patience.stop, child.exited)
                return
            due = told.due()
            try:
                line = await run.lines.next(left if due is None else min(left, due))
            except TimeoutError:
                if told.due() == 0.0:
                    await told.show()
                continue
            if line is None:
                break
            for step in parser.read(line):
                await told.tell(step)
            await asyncio.sleep(0)  # a flood of lines is no reason to stop the world
        for step in parser.end():
            await told.tell(step)
        await within(self._agent.patience.linger, child.exited)

    def _allowance(self, told: StepEvents) -> float:
        """How long silence is allowed now."""
        if told.done:
            return self._agent.patience.linger
        waits = told.retry is not None and told.retry.fault.kind == "limit"
        idle = self._agent.options.idle_limit
        return min(self._agent.patience.limit, idle) if waits else idle

    async def _finish(self, run: _Run) -> None:
        """Tell what is left to tell of a stream that is over, and look for the reason of its end."""
        told, lines = run.told, run.lines
        for step in run.aside.take():
            await told.tell(step)
        await told.end()
        left_out = []
        if lines.noise:
            left_out.append(f"{lines.noise} lines that were no JSON, the first: {lines.first_noise!r}")
        if lines.too_long:
            left_out.append(f"{lines.too_long} lines that were too long")
        if left_out:
            await told.complain("stream", "left out: " + "; ".join(left_out))
        if told.fault is None and not told.done and run.code != 0 and not run.silent:
            told.fault = self._reason(run)
        if told.fault is not None and told.fault.kind == "limit" and told.fault.resets_at is None:
            later = reset_time(without_escapes(run.errors.text()), SystemClock().now())
            told.fault = replace(told.fault, resets_at=later)

    def _reason(self, run: _Run) -> Fault:
        """Why it failed, of what it said on standard error: at its beginning what it was asked, or else at its end."""
        said, now = without_escapes(run.errors.text()), SystemClock().now()
        first = judge(said[:FAULT_SHOWN], now=now)
        if first.kind in ("thread", "options") and not run.lines.objects:
            return first
        return judge(last_lines(said) or run.lines.first_noise, now=now)

    async def _conclude(self, run: _Run, turn: Turn) -> TurnResult:
        told, name = run.told, self._profile.binary
        usage = self._usage(run)
        if self._interrupted is not None and not told.done:
            return self._failed(AgentError(f"{name} was interrupted"), run, usage)
        if run.silent:
            return self._failed(self._silence(told), run, usage)
        if told.fault is not None:
            return self._failed(await self._fault(told.fault, run, turn), run, usage)
        if told.denied and (self._strict or not told.done):
            return self._failed(AgentError(self._denial(told)), run, usage)
        if not told.done:
            said = last_lines(without_escapes(run.errors.text()), 3) or run.lines.first_noise
            why = f"{name} ended without a result" + (f": {said}" if said else "; look at its own logs")
            return self._failed(AgentError(why), run, usage)
        if run.code is not None and run.code > 0 and not run.lingered:
            said = last_lines(without_escapes(run.errors.text()), 3)
            return self._failed(AgentError(f"{name} {_ending(run.code)} after its answer: {said}"), run, usage)
        return TurnResult(
            text=told.answer.rstrip(), thread_id=self._thread, usage=usage, iterations=told.replies or None
        )

    def _failed(self, problem: AgentError, run: _Run, usage: Usage) -> TurnResult:
        """A failure is raised, or told as a result if something was consumed that has to be counted."""
        passes = isinstance(problem, TransientError | UsageLimit)
        if passes or not (usage.input_tokens or usage.output_tokens or usage.cost_usd):
            raise problem
        return TurnResult(
            text=run.told.answer, outcome="error", error=str(problem), thread_id=self._thread, usage=usage,
            iterations=run.told.replies or None,
        )  # fmt: skip

    def _silence(self, told: StepEvents) -> AgentError:
        name, retry = self._agent.name, told.retry
        if retry is not None and retry.fault.kind == "passing":
            return TransientError(retry.message)
        if retry is not None and retry.fault.kind == "limit":
            later = None if retry.seconds is None else SystemClock().now() + int(retry.seconds * SECOND)
            return UsageLimit(retry.message, resets_at=retry.fault.resets_at or later)
        allowed = duration(self._agent.options.idle_limit)
        return AgentError(
            f"{self._profile.binary} printed nothing for {allowed} and was ended; raise agents.{name}.idle_limit if "
            "its work needs such silence, or retry the task."
        )

    async def _fault(self, fault: Fault, run: _Run, turn: Turn) -> AgentError:
        """The error a task ends with."""
        name, said = self._profile.binary, cut(" ".join(fault.text.split()), LINE_SHOWN)
        match fault.kind:
            case "limit":
                return UsageLimit(said, resets_at=fault.resets_at)
            case "passing":
                return TransientError(f"{name}: {said}")
            case "auth":
                return AgentError(f"{name} is not signed in, or its key was refused: {self._profile.sign_in}. ({said})")
            case "thread":
                return AgentError(
                    f"{name} does not know the conversation {run.thread} (any more, or in this directory); start a new "
                    f"session. ({said})"
                )
            case "options" if not run.lines.objects:
                version = await self._version(turn)
                first = next(iter(fault.text.strip().splitlines()), "")
                own = f", or correct agents.{self._agent.name}.args" if self._agent.options.args else ""
                return AgentError(
                    f"{name} {version} refuses an argument ({first}); midwatch is known to work with "
                    f"{self._profile.known_version} and newer: update {name}{own}."
                )
        how = "failed" if run.code in (0, None) else _ending(run.code)
        return AgentError(f"{name} {how}" + (f": {cut(fault.text.strip(), FAULT_SHOWN)}" if said else ""))

    def _denial(self, told: StepEvents) -> str:
        name, tools = self._agent.name, ", ".join(told.denied)
        modes = [
            mode for mode in self._profile.permissions if mode != "read" and mode != self._agent.options.permissions
        ]
        wider = f"set agents.{name}.permissions to {' or '.join(modes)}, " if modes else ""
        return (
            f"{self._profile.binary} was not allowed to use {tools}, so its work may be incomplete; {wider}allow it in "
            f"{self._profile.title}'s own settings, or use kind acp, where it asks you."
        )

    async def _version(self, turn: Turn) -> str:
        """What the program says its version is."""
        program = self._agent.program(("--version",), turn.workdir or self._session.workdir)
        out = Output(ERROR_LIMIT)
        async with self.child(program, turn, out, Output(ERROR_LIMIT)) as child:
            await child.admit(turn)
            await within(VERSION_PATIENCE, child.exited)
        said = out.text().split()
        return next((word.rstrip(".") for word in said if word[:1].isdigit()), "of unknown version")

    def _usage(self, run: _Run) -> Usage:
        """From the figures the program told. Of programs that count whole conversations, the difference."""
        told = run.told
        figures, total = told.own, told.of_thread
        if total is not None:
            thread = told.thread or run.thread or ""
            before = (
                self._agent.totals.pop(thread, None) if run.resumed else steps.Spent(input_tokens=0, output_tokens=0)
            )
            self._agent.totals[thread] = total
            if len(self._agent.totals) > MOST_THREADS:
                del self._agent.totals[next(iter(self._agent.totals))]
            figures = [_difference(total, before)] if before is not None else told.answered
        sent, made, cost = ([getattr(one, name) for one in figures] for name in FIGURES)
        return Usage(
            input_tokens=_sum(sent), output_tokens=_sum(made), cost_usd=_sum(cost),
            model=told.model or self._agent.options.model,
        )  # fmt: skip


FIGURES = ("input_tokens", "output_tokens", "cost_usd")


def _sum(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _difference(total: steps.Spent, before: steps.Spent) -> steps.Spent:
    def less(name: str) -> int | None:
        now, then = getattr(total, name), getattr(before, name)
        return None if now is None else max(0, now - (then or 0))

    return steps.Spent(input_tokens=less("input_tokens"), output_tokens=less("output_tokens"))


def without_escapes(text: str) -> str:
    """A text without colours."""
    return ESCAPES.sub("", text)


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"failed with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


async def _close(child: Child, lines: Lines) -> None:
    """A program that has ended has said all; something it left behind may hold its output open."""
    await child.exited.wait()
    lines.hurry()
    await within(DRAIN, lines.closed)
    lines.finish()
