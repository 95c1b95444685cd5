"""Run each verb in one transaction in a Python thread, return its result, and report the commit to listeners.

A verb is a function `verb(tx, ...)`. `read`, `peek`, `snapshot` and `write` turn a verb into a method of a store. The
method has the verb's signature without the transaction, and returns the verb's result.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from midwatch.base.errors import MidwatchError, StoreUnavailable
from midwatch.domain.store import Commit

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("midwatch.store")


class Op(NamedTuple):
    """A verb to run, with its arguments, and the future that gets its result."""

    verb: Callable[..., Any]
    args: tuple[Any, ...]
    future: asyncio.Future[Any]


class Answer(NamedTuple):
    """The outcome of a verb: its result, or the error for its caller."""

    op: Op
    result: Any
    problem: BaseException | None


class VerbRunner(ABC):
    """Runs verbs on one database."""

    def __init__(self, readers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[Commit], None]] = []
        self._submit_listeners: list[Callable[[], None]] = []
        self._readers = ThreadPoolExecutor(readers, "midwatch-reader")
        self._local = threading.local()
        self._closed = threading.Event()
        self._write_failed = False
        """Whether a write failed because of the database since the last successful `check_writable`."""

    async def write(self, verb: Callable[..., T], *args: Any) -> T:
        """Run `verb(tx, *args)` and return when its changes are durable."""
        self._check_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(Op(verb, args, future))
        return await future

    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        """Run `verb(tx, *args)`, which must only read. It sees everything that was committed before."""
        self._check_open()
        return await self._loop.run_in_executor(self._readers, self._read, verb, args)

    async def snapshot(self, verb: Callable[..., T], *args: Any) -> T:
        """Run a verb that only reads, with several queries. All queries see the same snapshot of the database."""
        return await self.read(verb, *args)

    async def peek(self, verb: Callable[..., T], *args: Any) -> T:
        """Run a verb that reads one record by its key. A store may run it on the event loop."""
        return await self.read(verb, *args)

    def on_commit(self, listener: Callable[[Commit], None]) -> None:
        self._listeners.append(listener)

    def on_submit(self, listener: Callable[[], None]) -> None:
        self._submit_listeners.append(listener)

    @abstractmethod
    def _submit(self, op: Op) -> None:
        """Start a verb in a Python thread that may write."""

    @abstractmethod
    def _read(self, verb: Callable[..., T], args: tuple[Any, ...]) -> T:
        """Run a verb that only reads. This method is called in a Python thread for readers."""

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreUnavailable("the store is closed; open it again.")

    def _report(self, answers: list[Answer], commit: Commit | None) -> None:
        """Pass the answers of verbs, and their commit, from the current Python thread to the event loop."""
        for op, _, problem in answers:
            if isinstance(problem, StoreUnavailable):
                self._write_failed = True
            if problem is not None and not isinstance(problem, MidwatchError):
                log.error("the verb %s of the store failed", getattr(op.verb, "__name__", op.verb), exc_info=problem)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._resolve, answers, commit)

    def _resolve(self, answers: list[Answer], commit: Commit | None) -> None:
        for op, result, problem in answers:
            if op.future.done():
                continue
            if problem is None:
                op.future.set_result(result)
            else:
                op.future.set_exception(problem)
        if commit is not None and (commit.topics or commit.events or commit.foreign):
            for listener in self._listeners:
                listener(commit)


Verb = Callable[Concatenate[Any, P], T]
Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def write(verb: Verb[P, T]) -> Method[P, T]:
    """Make a method that runs the verb in a transaction and returns when its changes are durable."""
    return _method("write", verb)


def read(verb: Verb[P, T]) -> Method[P, T]:
    """Make a method that runs a verb that only reads, with one query."""
    return _method("read", verb)


def peek(verb: Verb[P, T]) -> Method[P, T]:
    """Make a method that runs a verb that reads one record by its key."""
    return _method("peek", verb)


def snapshot(verb: Verb[P, T]) -> Method[P, T]:
    """Make a method that runs a verb that only reads, with several queries. All queries see the same snapshot."""
    return _method("snapshot", verb)


def _method(way: str, verb: Verb[P, T]) -> Method[P, T]:
    def method(runner: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        run: Callable[..., Coroutine[Any, Any, T]] = getattr(runner, way)
        return run(partial(verb, **kwargs) if kwargs else verb, *args)

    return method
