"""Kind `function`: a Python function as an agent, in a child process, on a Python thread, or on the event loop.

A function that the settings name by its dotted path runs in a child process, which can be killed. A function object
given to `FunctionAgent` runs on its own Python thread, so that it cannot block other work. With `on_loop`, an async
function runs on midwatch's event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import asdict
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any, Unpack

from pydantic import AfterValidator, BeforeValidator, Field

from midwatch.agents import function_child
from midwatch.agents.base import BaseAgent, ProgramOptions, SharedSettings, convert_error, last_lines
from midwatch.agents.function_child import FACTS, TurnProxy, is_async, wants_turn, write_text
from midwatch.base.errors import AgentError, BadConfig, LeaseLost, TransientError
from midwatch.domain.agent import AgentTerms, Choice, Conversation, Interrupt, Question, Turn, TurnResult, Usage
from midwatch.domain.event import KINDS
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.session import Session
from midwatch.programs.process import Child, Output, Pipe, ProcessConversation, Program, wait_within

Function = Callable[..., Any]

LONGEST_LINE = 32_000_000
PRINTED_KEPT = 100_000
LAST_WORDS = 1.0  # seconds that a child may take to exit after it has sent its result
WAITS = ("ask", "receive", "delegate")  # methods of a turn that may wait for ever; an interrupt ends the wait
OFFERED = ("load_progress", "save_progress", "receive", "handoff", "delegate", "transfer")
OUTCOMES = ("ok", "silent", "error", "budget", "transferred")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:|\.)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _check_dotted(target: str) -> str:
    if not DOTTED.fullmatch(target):
        raise ValueError("write the dotted path of a function, such as package.module:name")
    return target


class FunctionOptions(ProgramOptions):
    """Options of kind `function`."""

    target: Annotated[str, AfterValidator(_check_dotted)] = Field(description="The function: package.module:name.")
    path: Annotated[tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)] = Field(
        (), description="Directories to import it from, before the others."
    )


class FunctionAgent(BaseAgent):
    """Calls a function with the prompt, or with the prompt and the turn."""

    kind = "function"
    starts_programs = True
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="rerun", slots=64)

    def __init__(
        self,
        name: str,
        target: str | Function,
        *,
        on_loop: bool = False,
        path: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        **shared: Unpack[SharedSettings],
    ) -> None:
        super().__init__(name, **shared)
        if on_loop and (isinstance(target, str) or not is_async(target)):
            raise BadConfig(f"agent {name!r}: `on_loop` needs an async function; write one or remove `on_loop`.")
        # the signature of a dotted path is not known before it runs
        takes_turn = isinstance(target, str) or wants_turn(target)
        self.terms = self.terms._replace(steerable=takes_turn)
        self.target = target
        self.workdir = workdir
        self._on_loop = on_loop
        # computed once, because reading the signature is slow
        self._call = None if isinstance(target, str) else accept_turn(target)
        self._path = tuple(str(Path(directory).expanduser().absolute()) for directory in path)
        self._env = dict(env or {})

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> FunctionAgent:
        """Return the agent that `[agents.NAME]` describes."""
        read = FunctionOptions.read(name, options)
        return cls(name, read.target, path=read.path, env=read.env, workdir=read.workdir, **shared)

    async def open(self, session: Session) -> Conversation:
        """Open a conversation. Nothing is started before the first turn."""
        if isinstance(self.target, str):
            return InChild(self, self.target, session)
        return OnLoop(self._call or self.target) if self._on_loop else OnThread(self.target, self.name)

    def describe(self) -> Mapping[str, Any]:
        """Return `target`, the name of the function, and `problem` if its package cannot be imported."""
        if not isinstance(self.target, str):
            where = "on the event loop" if self._on_loop else "on a thread"
            name = getattr(self.target, "__qualname__", type(self.target).__qualname__)
            return {"target": f"{name} ({where})"}
        if self.sandbox is not None and (problem := self.program(None).problem()):
            return {"target": self.target, "problem": problem}
        package = re.split(r"[.:]", self.target)[0]
        if package in sys.builtin_module_names or PathFinder.find_spec(package, [*self._path, *sys.path]):
            return {"target": self.target}
        problem = f"module {package!r} cannot be imported; install it or set agents.{self.name}.path"
        return {"target": self.target, "problem": problem}

    def program(self, workdir: str | None) -> Program:
        """Return the program of the child process that runs the function."""
        argv = (sys.executable, "-P", function_child.__file__)
        readable = (*self.import_path(), sys.prefix, sys.base_prefix)
        return self.build_program(argv, workdir or self.workdir, self._env, readable=readable)

    def import_path(self) -> list[str]:
        """Return the directories from which the child imports modules: the option `path`, then `sys.path`."""
        return [*self._path, *(os.path.abspath(directory) for directory in sys.path)]  # noqa: PTH100 - "" is here


# -- on the event loop -------------------------------------------------------------------------------------------


def accept_turn(function: Function) -> Function:
    """Return a function with the parameters (prompt, turn) that calls `function`."""
    return function if wants_turn(function) else lambda prompt, _: function(prompt)


class OnLoop:
    """Calls an async function with (prompt, turn) on midwatch's event loop. An interrupt cancels the function."""

    def __init__(self, function: Function) -> None:
        self._call = function
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0

    async def turn(self, turn: Turn) -> TurnResult:
        """Call the function, wait for it and return its result."""
        task = self._task = asyncio.current_task()
        assert task is not None
        try:
            return _make_result(await self._call(turn.prompt, turn))
        except asyncio.CancelledError:
            if task.cancelling() > self._cancels:
                raise
            how = "was interrupted" if self._cancels else "cancelled itself"
            raise AgentError(f"the function {how}") from None
        except GeneratorExit:
            raise
        except BaseException as problem:
            raise convert_error(problem) from problem
        finally:
            self._task = None
            while self._cancels:  # these cancellations were for the function, not for the task that runs the turn
                self._cancels -= 1
                task.uncancel()

    async def interrupt(self, mode: Interrupt) -> None:
        """Cancel the function."""
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    async def close(self) -> None:
        """Do nothing, because nothing is left to end."""


# -- on a thread -------------------------------------------------------------------------------------------------


class OnThread:
    """Calls a function on its own Python thread.

    A Python thread cannot be killed. So after an interrupt with `kill`, the turn ends and the Python thread continues.
    """

    def __init__(self, function: Function, name: str) -> None:
        self._function = function
        self._name = name
        self._run: _ThreadRun | None = None

    async def turn(self, turn: Turn) -> TurnResult:
        """Call the function and return its result. After an interrupt with `kill`, return an error at once."""
        run = self._run = _ThreadRun(self._function, turn)
        threading.Thread(target=run.main, name=f"midwatch-{self._name}", daemon=True).start()
        try:
            return await run.result_future
        finally:
            run.leave()

    async def interrupt(self, mode: Interrupt) -> None:
        """Ask the function to stop. With the mode `kill`, the turn does not wait for the function."""
        if self._run is not None:
            self._run.stop()
            if mode == "kill":
                self._run.give_up()

    async def close(self) -> None:
        """Ask the function to stop and wait until its Python thread has ended."""
        if self._run is not None:
            self._run.stop()
            await self._run.ended.wait()


class _ThreadRun:
    """One call of a function on its own Python thread."""

    def __init__(self, function: Function, turn: Turn) -> None:
        self.loop = asyncio.get_running_loop()
        self.result_future: asyncio.Future[TurnResult] = self.loop.create_future()
        self.ended = asyncio.Event()
        self._function = function
        self._turn = turn
        self._async = is_async(function)
        wait: Callable[[Future[Any]], Any] = asyncio.wrap_future if self._async else Future.result
        self._proxy = TurnProxy({name: getattr(turn, name) for name in FACTS}, self._call, wait)
        self._waiting: set[Future[Any]] = set()
        self._over = False
        self._cancel: Callable[[], object] | None = None

    # -- these methods run on the event loop

    def stop(self) -> None:
        """Ask the function to stop.

        An async function is cancelled. A plain function can check `turn.stopping`; if it waits in a method of the turn,
        the wait is cancelled.
        """
        self._proxy.stopping = True
        for future in tuple(self._waiting):
            future.cancel()
        if self._cancel is not None:
            self._cancel()

    def leave(self) -> None:
        """Refuse all later calls of the turn's methods and ask the function to stop."""
        self._over = True
        self.stop()

    def give_up(self) -> None:
        """End the turn with an error, although the function's Python thread still runs."""
        if not self.result_future.done():
            error = "the function did not stop; its Python thread continues until the function returns"
            self.result_future.set_result(TurnResult(outcome="error", error=error, stuck=True))

    def _finish(self, result: TurnResult | None, problem: BaseException | None) -> None:
        self.ended.set()
        if self.result_future.done():
            return
        if result is not None:
            self.result_future.set_result(result)
        elif problem is not None:
            self.result_future.set_exception(convert_error(problem))

    # -- these methods run on the thread

    def main(self) -> None:
        """Call the function and send its result or error to midwatch's event loop."""
        try:
            end: tuple[TurnResult | None, BaseException | None] = (_make_result(self._value()), None)
        except (asyncio.CancelledError, CancelledError):
            end = None, AgentError("the function was interrupted")
        except BaseException as problem:
            end = None, problem
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the result
            self.loop.call_soon_threadsafe(self._finish, *end)

    def _value(self) -> Any:
        turn = self._proxy
        arguments = (turn.prompt, turn) if wants_turn(self._function) else (turn.prompt,)
        return asyncio.run(self._await_function(arguments)) if self._async else self._function(*arguments)

    async def _await_function(self, arguments: tuple[Any, ...]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            with suppress(RuntimeError):  # the function has just ended
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        if self._proxy.stopping:
            raise asyncio.CancelledError
        return await self._function(*arguments)

    def _call(self, name: str, *arguments: Any) -> Future[Any]:
        if self._over or (self._proxy.stopping and name in WAITS):
            raise AgentError("this turn has ended" if self._over else "this turn is being stopped")
        call = self._keep_deadline(call_turn(self._turn, name, arguments))
        future = asyncio.run_coroutine_threadsafe(call, self.loop)
        if name in WAITS:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
            if self._proxy.stopping:  # the stop came after the check above
                future.cancel()
        return future

    async def _keep_deadline(self, call: Coroutine[Any, Any, Any]) -> Any:
        value = await call
        self._proxy.deadline = self._turn.deadline
        return value


# -- in a child process ------------------------------------------------------------------------------------------


class _Lines(Pipe):
    """Splits the output of the child into lines and calls `hear` with each line."""

    def __init__(self, hear: Callable[[bytes], None]) -> None:
        super().__init__()
        self.too_long = False
        self._hear = hear
        self._begun = bytearray()

    def data_received(self, data: bytes) -> None:
        *lines, unfinished = data.split(b"\n")
        for line in lines:
            self._hear(bytes(self._begun) + line)
            self._begun.clear()
        if len(self._begun) + len(unfinished) > LONGEST_LINE:
            self.too_long = True
            self._begun.clear()
            self._hear(b"")
        elif not self.too_long:
            self._begun += unfinished


class InChild(ProcessConversation):
    """Calls a function in a child process."""

    def __init__(self, agent: FunctionAgent, target: str, session: Session) -> None:
        super().__init__()
        self._agent = agent
        self._target = target
        self._session = session

    async def work(self, turn: Turn) -> TurnResult:
        """Start the child process, answer its calls of the turn, and return the function's result."""
        serving = _CallServer(turn, self._write)
        lines, printed = _Lines(serving.hear), Output(PRINTED_KEPT)
        facts = {name: getattr(turn, name) for name in FACTS} | {"env": dict(turn.env)}
        order = {"target": self._target, "path": self._agent.import_path(), "facts": facts}
        program = self._agent.program(turn.workdir or self._session.workdir)
        try:
            async with self.child(program, turn, lines, printed) as child:
                await child.admit(turn, json.dumps(order).encode() + b"\n", more=True)
                await serving.wait_until_over(child)
        finally:
            serving.cancel()
        if serving.refused is not None:
            raise serving.refused
        if serving.end is None:
            why = "its result is too long" if lines.too_long else last_lines(printed.text(), 3) or "no output"
            raise AgentError(f"the process ended with code {child.returncode} before the function returned: {why}")
        return _read_end(serving.end, serving.transfers)

    def _write(self, data: bytes) -> None:
        if self._child is not None:
            self._child.write(data)


class _CallServer:
    """Answers the calls of a child process. Each call has its own asyncio task, because some calls take long."""

    def __init__(self, turn: Turn, write: Callable[[bytes], None]) -> None:
        self.end: Mapping[str, Any] | None = None
        self.refused: LeaseLost | None = None
        self.transfers: dict[str, Transfer] = {}
        self._over = asyncio.Event()
        self._turn = turn
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, line: bytes) -> None:
        """Handle a line that the child wrote. An invalid line ends the child."""
        try:
            message = json.loads(line)
            if "end" in message:
                self.end = message["end"]
                self._over.set()
                return
            task = asyncio.create_task(self._serve(message["call"], message["name"], message["arguments"]))
        except (ValueError, TypeError, KeyError):
            self._over.set()
        else:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def wait_until_over(self, child: Child) -> None:
        """Wait until the child has sent its result or an invalid line, or has exited."""
        leaving = asyncio.create_task(child.exited.wait())
        leaving.add_done_callback(lambda _: self._over.set())
        try:
            await self._over.wait()
            if self.end is not None:
                await wait_within(LAST_WORDS, child.exited)
        finally:
            leaving.cancel()

    def cancel(self) -> None:
        """Cancel all calls that are still open."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, number: int, name: str, arguments: list[Any]) -> None:
        reply: dict[str, Any] = {"reply": number, "name": name}
        try:
            reply["value"] = await self._answer(name, arguments)
        except LeaseLost as lost:
            self.refused = lost
            self._over.set()
            return
        except Exception as problem:
            reply["problem"] = str(convert_error(problem))
        reply["deadline"] = self._turn.deadline
        self._write(json.dumps(reply).encode() + b"\n")

    async def _answer(self, name: str, arguments: list[Any]) -> Any:
        turn = self._turn
        if name == "emit":
            kind, data = arguments
            return await turn.emit(KINDS[kind].of(data))
        if name == "ask":
            question, choices, expires = arguments
            wanted = question if isinstance(question, str) else read_question(question)
            return tuple(await turn.ask(wanted, tuple(choices), expires=expires))
        if name not in OFFERED:
            raise AgentError(f"turn.{name} is not available to a function in a child process.")
        value = await call_turn(turn, name, arguments)
        if isinstance(value, Transfer):
            self.transfers[value.handoff.id] = value
            return {"handoff": asdict(value.handoff), "task": value.task._asdict()}
        return asdict(value) if isinstance(value, Handoff) else value


async def call_turn(turn: Turn, name: str, arguments: Sequence[Any]) -> Any:
    """Call the method `name` of the turn for a `TurnProxy`, and return its result."""
    if name == "ask":
        question, choices, expires = arguments
        return await turn.ask(question, choices, expires=expires)
    if name in ("delegate", "transfer"):
        to, work, handoff_options = arguments
        hand = turn.delegate if name == "delegate" else turn.transfer
        return await hand(to, work if isinstance(work, str) else HandoffTask(**work), **handoff_options)
    return await getattr(turn, name)(*arguments)


def _read_end(end: Mapping[str, Any], transfers: Mapping[str, Transfer]) -> TurnResult:
    """Return the result from the child's last line. If that line contains an error, raise the error."""
    if "problem" in end:
        raise (TransientError if end["transient"] else AgentError)(end["problem"])
    fields = dict(end)
    usage = Usage(**(fields.pop("usage", None) or {}))
    return _check(TurnResult(**fields | {"transfer": transfers.get(end.get("transfer") or "")}, usage=usage))


def _make_result(value: Any) -> TurnResult:
    if isinstance(value, Transfer):
        return TurnResult(outcome="transferred", transfer=value)
    return _check(value) if isinstance(value, TurnResult) else TurnResult(text=write_text(value))


def _check(result: TurnResult) -> TurnResult:
    if result.outcome not in OUTCOMES:
        raise AgentError(f"a function cannot return the outcome {result.outcome!r}; use one of {', '.join(OUTCOMES)}")
    if result.outcome == "transferred" and result.transfer is None:
        raise AgentError("the outcome `transferred` needs a transfer; return the result of `turn.transfer`")
    return result


def read_question(data: Mapping[str, Any]) -> Question:
    """Return the question that the child sent as JSON data."""
    choices = tuple(Choice(*choice) for choice in data["choices"])
    lists = {name: tuple(data[name]) for name in ("paths", "hosts", "texts")}
    return Question(**{**data, "choices": choices, **lists})
