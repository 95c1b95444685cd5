"""The program that runs a configured function in its own process.

The program starts for each turn, so it uses only the standard library to start fast. First it reads one JSON line that
names the function and describes the turn. Then it exchanges JSON lines with its parent process. A line with `call`
calls a method of the turn in the parent, and the parent sends back a line with `reply`. The last line contains `end`,
the result. Text that the function prints goes to standard error.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

FACTS = ("task_id", "attempt", "session_key", "prompt", "thread_id", "workdir", "env", "deadline", "resumed")
"""Fields of the turn that a function may read."""


class Answer(NamedTuple):
    """The answer to a question, with the same fields as `midwatch.domain.agent.Answer`."""

    status: str
    choice: str | None = None
    why: str | None = None
    by_person: bool = False

    @property
    def granted(self) -> bool:
        """Whether a person said yes."""
        return self.status == "granted"


class Handoff(SimpleNamespace):
    """Work that was handed over, with the same fields as `midwatch.domain.handoff.Handoff`."""

    @property
    def output(self) -> Any:
        """The output in the target's answer; None if there is no answer."""
        return (self.answer or {}).get("output")


class Transfer(NamedTuple):
    """Work that another agent takes over, with the same fields as `midwatch.domain.handoff.Transfer`."""

    handoff: Handoff
    task: SimpleNamespace


class TurnProxy:
    """The turn for a function that runs on another Python thread or in another process.

    For a plain function, each method waits and returns its result. An async function must await each method.
    """

    task_id: str
    attempt: int
    session_key: str
    prompt: str
    thread_id: str | None
    workdir: str | None
    env: Mapping[str, str]
    deadline: float | None
    resumed: bool

    def __init__(
        self, facts: Mapping[str, Any], call: Callable[..., Future[Any]], wait: Callable[[Future[Any]], Any]
    ) -> None:
        self.__dict__.update(facts)
        self.stopping = False  # True once the turn should end; a long plain function should check it
        self._call = call
        self._wait = wait

    def emit(self, payload: Any) -> Any:
        """Emit an event."""
        return self._wait(self._call("emit", payload))

    def load_progress(self) -> Any:
        """Return the data that was last saved with `save_progress`; None if there is none."""
        return self._wait(self._call("load_progress"))

    def save_progress(self, progress: Any) -> Any:
        """Save JSON data, so that a later attempt can continue from it."""
        return self._wait(self._call("save_progress", progress))

    def receive(self) -> Any:
        """Wait for a message that a person sends into this turn, and return it."""
        return self._wait(self._call("receive"))

    def ask(self, question: Any, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None) -> Any:
        """Ask a person and wait for the answer. The question is a text or a `midwatch.domain.agent.Question`."""
        data = question if isinstance(question, str) else asdict(question)
        return self._wait(self._call("ask", data, tuple(choices), expires))

    def handoff(self) -> Any:
        """Return the handoff that this task comes from, or None."""
        return self._wait(self._call("handoff"))

    def delegate(self, to: str | None = None, task: Any = "", **wish: Any) -> Any:
        """Hand work to another agent and wait for the answer.

        The task is a text or a `midwatch.domain.handoff.HandoffTask`.
        """
        return self._wait(self._call("delegate", to, task if isinstance(task, str) else asdict(task), wish))

    def transfer(self, to: str | None = None, task: Any = "", **wish: Any) -> Any:
        """Have another agent take over the work.

        The function must return the result of this call. After that, the other agent begins.
        """
        return self._wait(self._call("transfer", to, task if isinstance(task, str) else asdict(task), wish))


def wants_turn(function: Callable[..., Any]) -> bool:
    """Return whether the function has a second parameter for the turn, after the prompt."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(by_position) > 1 and (by_position[1].default is inspect.Parameter.empty or by_position[1].name == "turn")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether the function is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def write_text(value: Any) -> str:
    """Return a function's return value as text: empty for None, a text unchanged, other values as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def find(target: str) -> Callable[..., Any]:
    """Return the function at `package.module:name` or `package.module.name`."""
    module, colon, attribute = target.partition(":")
    if not colon:
        module, _, attribute = target.rpartition(".")
    value: Any = importlib.import_module(module)
    for name in attribute.split("."):
        value = getattr(value, name)
    if not callable(value):
        raise TypeError(f"{target} is not a function")
    return value  # type: ignore[no-any-return]  # checked to be callable


class _Line:
    """The connection to the parent process. What the function prints or reads does not disturb it."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._begun = b""
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, Future[Any]] = {}

    def read(self) -> dict[str, Any]:
        # Not a buffered file: a daemon thread that holds its lock can hang the interpreter's exit.
        parts = [self._begun]
        while b"\n" not in parts[-1]:
            parts.append(os.read(self._in, 65536))
            if not parts[-1]:
                os._exit(1)  # the parent has ended, and nothing reads the result
        line, _, self._begun = b"".join(parts).partition(b"\n")
        return json.loads(line)  # type: ignore[no-any-return]

    def send(self, message: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._out, data) :]

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        if name == "emit":
            arguments = (arguments[0].kind, arguments[0].data())
        future: Future[Any] = Future()
        number = next(self._numbers)
        self._calls[number] = future
        self.send({"call": number, "name": name, "arguments": arguments})
        return future

    def serve(self, turn: TurnProxy) -> None:
        """Read the parent's replies for ever, and give each reply to the call that waits for it."""
        while True:
            reply = self.read()
            future = self._calls.pop(reply["reply"])
            turn.deadline = reply["deadline"]
            if not future.set_running_or_notify_cancel():
                continue
            if "problem" in reply:
                future.set_exception(RuntimeError(reply["problem"]))
            else:
                future.set_result(_read(reply["name"], reply["value"]))


def _read(name: str, value: Any) -> Any:
    """Convert the parent's reply to a call of the method `name` to the object that the function gets."""
    if name == "ask":
        return Answer(*value)
    if name == "transfer":
        return Transfer(Handoff(**value["handoff"]), SimpleNamespace(**value["task"]))
    return Handoff(**value) if name in ("handoff", "delegate") and value is not None else value


def _run(line: _Line, order: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function. Return its result or error as data for the last line to the parent."""
    try:
        sys.path[:0] = [directory for directory in order["path"] if directory not in sys.path]
        function = find(order["target"])
        value = _value(line, function, order["facts"])
        if isinstance(value, Transfer):
            return {"outcome": "transferred", "transfer": value.handoff.id}
        if hasattr(value, "outcome") and hasattr(value, "usage"):
            fields = ("text", "outcome", "error", "thread_id", "iterations")
            transfer = getattr(value, "transfer", None)
            handoff_id = transfer.handoff.id if transfer is not None else None
            data = {name: getattr(value, name) for name in fields}
            return {**data, "usage": value.usage.data(), "transfer": handoff_id}
        return {"text": write_text(value)}
    except BaseException as problem:
        traceback.print_exc()
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(problem).__mro__}
        transient = isinstance(problem, ConnectionError) or "midwatch.base.errors.TransientError" in kinds
        message = traceback.format_exception_only(problem)[-1].strip()
        if isinstance(problem, KeyboardInterrupt):
            message = "the function was interrupted"
        elif "midwatch.base.errors.MidwatchError" in kinds:
            message = str(problem)
        return {"problem": message, "transient": transient}


def _value(line: _Line, function: Callable[..., Any], facts: Mapping[str, Any]) -> Any:
    if is_async(function):
        import asyncio  # imported only if needed, because it doubles the start time

        wait: Callable[[Future[Any]], Any] = asyncio.wrap_future
    else:
        wait = Future.result
    turn = TurnProxy(facts, line.call, wait)

    def stop(*_: Any) -> NoReturn:
        turn.stopping = True
        raise KeyboardInterrupt

    threading.Thread(target=line.serve, args=(turn,), daemon=True).start()
    arguments = (turn.prompt, turn) if wants_turn(function) else (turn.prompt,)
    if is_async(function):
        return asyncio.run(function(*arguments))
    signal.signal(signal.SIGINT, stop)
    return function(*arguments)


def main() -> None:
    """Read the order of the parent, run the function, and send the result."""
    line = _Line()
    line.send({"end": _run(line, line.read())})


if __name__ == "__main__":
    main()
