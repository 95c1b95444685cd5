"""Test that code which is not part of midwatch cannot end the process: SystemExit ends nothing but its own call."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from midwatch import Runtime
from midwatch.base.errors import BadConfig, ForeignExit, HandoffError, MidwatchError
from midwatch.base.foreign import ContainExit
from midwatch.channels.registry import build as build_channel
from midwatch.domain.channel import Delivery
from midwatch.domain.handoff import HandoffTask
from midwatch.services.handoffs import HandoffOptions
from midwatch.testing import RecordingChannel, ScriptedAgent, result, say, wait_for
from servers import until


class Fatal(BaseException):
    """An exception that `except Exception` does not catch."""


EXITS = (SystemExit, KeyboardInterrupt, Fatal)


class BadChannel(RecordingChannel):
    """A channel that raises in all its methods."""

    def __init__(self, problem: type[BaseException]) -> None:
        super().__init__("bad")
        self._problem = problem

    async def deliver(self, delivery: Delivery) -> None:
        raise self._problem("a secret")

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        raise self._problem("a secret")

    async def close(self) -> None:
        raise self._problem("a secret")


class BadAgent(ScriptedAgent):
    """An agent that raises when it is interrupted, closed, described or asked to accept work."""

    def __init__(self, problem: type[BaseException]) -> None:
        super().__init__(say("it runs"), wait_for(asyncio.Event()))
        self._problem = problem

    async def open(self, session: Any) -> Any:
        conversation: Any = await super().open(session)
        conversation.interrupt = conversation.close = self._raise
        return conversation

    async def _raise(self, *_: object) -> NoReturn:
        raise self._problem("a secret")

    def describe(self) -> NoReturn:
        raise self._problem("a secret")


@pytest.mark.parametrize("problem", EXITS, ids=lambda problem: problem.__name__)
async def test_an_exit_of_foreign_code_ends_nothing_but_its_own_call(home: Path, problem: type[BaseException]) -> None:
    name = problem.__name__

    async def raise_it(*_: object) -> NoReturn:
        raise problem("a secret")

    agents = {"good": ScriptedAgent(result("fine")), "bad": BadAgent(problem)}
    channels = {"bad": BadChannel(problem), "good": RecordingChannel("good")}
    async with Runtime.open(home, agents=agents, channels=channels) as desk, asyncio.timeout(60):
        await desk.task_ends.add("bad function", raise_it)
        routine = desk.routines.register("bad routine", 0.01, raise_it)
        task = await desk.tasks.submit("x", agent="good", route="bad")
        assert (await desk.tasks.wait(task.id)).status == "done"
        await until(lambda: delivery_failed(desk, name))
        await until(lambda: desk.subscriptions.list()[0].failed > 0)
        await until(lambda: routine.failures > 1)
        assert f"routine bad routine raised {name} at test_foreign.py" in (routine.last_error or "")
        with pytest.raises(ForeignExit, match=f"agent scripted raised {name}"):
            await desk.registry.describe(lambda _: True)
        for option in ("input_filter", "on_handoff", "enable_func"):
            wish: Any = {"task": HandoffTask(description="x"), "to": "good", option: raise_it}
            with pytest.raises(HandoffError, match=name):
                await desk.handoffs.handoff(HandoffOptions(**wish))
        stopped = await desk.tasks.submit("x", agent="bad", timeout=0.1)
        assert (await desk.tasks.wait(stopped.id)).outcome == "timeout"
        good = await desk.tasks.submit("x", agent="good", route="good")
        assert (await desk.tasks.wait(good.id)).status == "done"
        await channels["good"].until(lambda channel: bool(channel.delivered))
        await desk.subscriptions.remove("bad function")


async def delivery_failed(desk: Runtime, name: str) -> bool:
    error = (await desk.notifications.list())[0].error or ""
    assert "secret" not in error
    return f"channel bad: `deliver` raised {name} at test_foreign.py" in error


def exit_at_once(*_: object) -> NoReturn:
    """Raise SystemExit, as the constructor of a channel."""
    raise SystemExit(3)


def test_a_channel_that_exits_when_it_is_built_is_a_wrong_setting() -> None:
    with pytest.raises(MidwatchError, match=r"channels\.x: .*exit_at_once raised SystemExit at"):
        build_channel("x", f"{__name__}:exit_at_once", {})


async def test_a_cancellation_and_ordinary_errors_stay_as_they_are() -> None:
    for problem in (asyncio.CancelledError(), BadConfig("no"), ValueError("no")):
        with pytest.raises(type(problem)), ContainExit("it"):
            raise problem
