"""Test the fakes that midwatch ships for users' tests."""

from __future__ import annotations

import asyncio

import pytest

from midwatch import testing
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, DeliveryError
from midwatch.domain.agent import Answer, Turn, TurnResult, Usage
from midwatch.domain.channel import Delivery
from midwatch.domain.event import MessageDelta, TaskProgress
from midwatch.testing import FakeClock, RecordingChannel, RecordingTurn, ScriptedAgent

# -- FakeClock ---------------------------------------------------------------------------------------------------


async def test_the_fake_clock_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(now=5 * SECOND)
    began = clock.monotonic()
    await clock.advance(1.5)
    assert clock.now() == 6_500_000
    assert clock.monotonic() == began + 1.5


async def test_timers_fire_in_order_at_their_time() -> None:
    clock = FakeClock(now=0)
    fired: list[tuple[str, int]] = []

    def note(name: str) -> None:
        fired.append((name, clock.now()))

    clock.call_later(3, lambda: note("three"))
    clock.call_later(1, lambda: (note("one"), clock.call_later(1, lambda: note("two"))))
    clock.call_later(1, lambda: note("one again"))
    clock.call_later(2, lambda: note("never")).cancel()
    clock.call_later(9, lambda: note("later"))
    await clock.advance(3)
    assert fired == [("one", SECOND), ("one again", SECOND), ("two", 2 * SECOND), ("three", 3 * SECOND)]
    await clock.advance(5.9)
    assert len(fired) == 4
    await clock.advance(0.1)
    assert fired[-1] == ("later", 9 * SECOND)


async def test_sleeping_tasks_wake_in_order() -> None:
    clock = FakeClock(now=0)
    woken: list[int] = []

    async def sleeper() -> None:
        for _ in range(3):
            due = asyncio.Event()
            clock.call_later(10, due.set)
            await due.wait()
            woken.append(clock.now())

    sleeping = asyncio.create_task(sleeper())
    await clock.advance(25)
    assert woken == [10 * SECOND, 20 * SECOND]
    await clock.advance(5)
    assert woken[2:] == [30 * SECOND]
    await sleeping


# -- ScriptedAgent and RecordingTurn -----------------------------------------------------------------------------


async def test_a_script_uses_every_method_of_a_turn() -> None:
    agent = ScriptedAgent(
        testing.save({"n": 1}), testing.load(), testing.delta("par", 0), testing.tool("grep", {"q": 1}, "found"),
        testing.emit(TaskProgress(text="half")), testing.own_group(77), testing.ask("Go?", ("go", "stop")),
        testing.receive(), testing.say("partial"), testing.result("done", thread_id="th", usage=Usage(output_tokens=2)),
    )  # fmt: skip
    turn = RecordingTurn("p", answers=["go"], messages=["hurry"])
    talk = await agent.open(turn.session())
    result = await talk.turn(turn)
    await talk.close()
    assert result == TurnResult(text="done", thread_id="th", usage=Usage(output_tokens=2))
    assert turn.kinds() == ["message_delta", "tool_exec_start", "tool_exec_end", "task_progress", "message_update"]
    assert (turn.progress, turn.groups, turn.questions) == ({"n": 1}, [77], [("Go?", ("go", "stop"))])
    assert agent.turns == [turn]
    assert agent.opened == [turn.session()]
    assert agent.closed == 1


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (testing.ask("Go?"), "no"),
        (testing.receive(), "hurry"),
        (testing.load(), "{'a': 1}"),
        (testing.say("hello"), "hello"),
        (testing.delta("live"), ""),
    ],
)
async def test_the_result_is_that_of_the_last_step(step: testing.Step, text: str) -> None:
    turn = RecordingTurn(answers=["no"], messages=["hurry"], progress={"a": 1})
    talk = await ScriptedAgent(step).open(turn.session())
    assert (await talk.turn(turn)).text == text


async def test_a_function_can_be_a_script() -> None:
    async def script(turn: Turn) -> str:
        return turn.prompt.upper()

    turn = RecordingTurn("loud")
    assert (await (await ScriptedAgent(script).open(turn.session())).turn(turn)).text == "LOUD"


async def test_a_script_can_fail() -> None:
    turn = RecordingTurn()
    talk = await ScriptedAgent(testing.raise_(ValueError("bad"))).open(turn.session())
    with pytest.raises(AgentError, match="ValueError: bad"):
        await talk.turn(turn)


async def test_interrupts_are_recorded_and_can_be_ignored() -> None:
    never = asyncio.Event()
    agent = ScriptedAgent(testing.delta("on"), testing.wait_for(never), deaf_to=("stop", "terminate"))
    turn = RecordingTurn()
    talk = await agent.open(turn.session())
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: t.text() == "on")
    await talk.interrupt("stop")
    await talk.interrupt("terminate")
    await testing.settle()
    assert not working.done()
    await talk.interrupt("kill")
    with pytest.raises(AgentError):
        await working
    assert agent.interrupts == ["stop", "terminate", "kill"]


async def test_answers_are_given_in_order_and_end() -> None:
    turn = RecordingTurn(answers=["yes", "no", Answer("expired", None, "late")])
    assert [(await turn.ask("?")).status for _ in range(3)] == ["granted", "denied", "expired"]
    with pytest.raises(AgentError, match="gave no answer"):
        await turn.ask("?")


async def test_until_waits_for_a_condition() -> None:
    turn = RecordingTurn()
    waiting = asyncio.create_task(turn.until(lambda t: t.text() == "ab"))
    for offset, letter in enumerate("ab"):
        await testing.settle()
        assert not waiting.done()
        await turn.emit(MessageDelta(message_id="m", offset=offset, text=letter))
    await waiting


# -- RecordingChannel --------------------------------------------------------------------------------------------


def delivery(number: int) -> Delivery:
    return Delivery(id=f"d_{number}", task_id="t", channel="recording", notice="done", text="ended")


async def test_a_channel_records_messages_and_fails_as_often_as_requested() -> None:
    channel = RecordingChannel(fail=2, permanent=True)
    for _ in range(2):
        with pytest.raises(DeliveryError) as failed:
            await channel.deliver(delivery(1))
        assert failed.value.permanent
    await channel.deliver(delivery(1))
    assert (channel.tried, channel.delivered) == ([delivery(1)] * 3, [delivery(1)])
    await channel.until(lambda c: len(c.delivered) == 1)
    assert channel.listen() is None
    await channel.close()
    assert channel.closed


async def test_a_channel_can_hang() -> None:
    channel = RecordingChannel(hang=True)
    hanging = asyncio.create_task(channel.deliver(delivery(1)))
    await channel.until(lambda c: len(c.tried) == 1)
    await testing.settle()
    assert not hanging.done()
    hanging.cancel()
    await asyncio.wait({hanging})
    assert channel.delivered == []


async def test_typing_starts_and_always_stops() -> None:
    channel = RecordingChannel()
    with pytest.raises(ValueError, match="inside"):
        async with channel.typing("room"):
            assert channel.typing_now == 1
            raise ValueError("inside")
    assert channel.typing_now == 0
    assert channel.typed == [("start", "room"), ("stop", "room")]
