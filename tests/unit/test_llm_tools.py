"""Test tools: functions that a model calls with arbitrary arguments."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from midwatch.agents.llm.tools import LONGEST_RESULT, Tool, Toolbox, Toolkit, ToolOutput, tool
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import Turn
from midwatch.domain.event import TaskProgress
from midwatch.testing import RecordingTurn


async def run(tool: Tool, arguments: Any = None, turn: Turn | None = None) -> ToolOutput:
    return await Toolbox([tool]).run(tool.name, arguments, turn or RecordingTurn())


# -- functions as tools ------------------------------------------------------------------------------------------


class Place(BaseModel):
    city: str
    country: str = "PT"


@tool(safe=True, kind="search")
def weather(place: Place, days: Annotated[int, Field(ge=1, le=7, description="How many days.")] = 1) -> dict[str, Any]:
    """Tells the weather."""
    return {"place": place.city, "country": place.country, "days": days}


def test_a_function_is_described_by_its_docstring_and_annotations() -> None:
    assert (weather.name, weather.description) == ("weather", "Tells the weather.")
    assert weather.safe
    assert weather.kind == "search"
    assert weather.schema["type"] == "object"
    assert weather.schema["required"] == ["place"]
    assert weather.schema["properties"]["days"]["description"] == "How many days."
    assert weather.schema["additionalProperties"] is False


async def test_arguments_are_validated_and_converted_to_their_annotations() -> None:
    good = await run(weather, '{"place": {"city": "Faro"}, "days": 3}')
    assert json.loads(good.text) == {"place": "Faro", "country": "PT", "days": 3}
    assert not good.is_error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"place": {"city": "Faro"}, "days": 9}', "days: Input should be less than or equal to 7"),
        ('{"days": 1}', "place: Missing required"),
        ('{"place": {}}', "place.city: Field required"),
        ('{"place": {"city": "Faro"}, "more": 1}', "more: Unexpected"),
        ('{"place": {"city"', "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ("", "place: Missing required"),
        (None, "place: Missing required"),
        ({"place": 7}, "place: Input should be"),
    ],
)
async def test_wrong_arguments_are_reported(arguments: Any, told: str) -> None:
    output = await run(weather, arguments)
    assert output.is_error
    assert told in output.text


async def test_an_unknown_tool_is_reported_with_the_known_ones() -> None:
    output = await Toolbox([weather]).run("wheather", "{}", RecordingTurn())
    assert output == ToolOutput("there is no tool 'wheather'; the tools are: weather.", is_error=True)


def test_an_object_that_cannot_be_a_tool_is_refused() -> None:
    def take_any(*names: str) -> None: ...
    def unknown(handle: threading.Thread) -> None: ...

    for function, advice in ((take_any, "remove"), (unknown, "change their types")):
        with pytest.raises(BadConfig, match=advice):
            tool(function)
    with pytest.raises(BadConfig, match="letters"):
        tool(name="no good")(weather.call)
    with pytest.raises(BadConfig, match="two tools are named 'weather'"):
        Toolkit("scout", [weather, weather])


# -- the turn ----------------------------------------------------------------------------------------------------


@tool
async def ask_async(text: str, turn: Turn) -> str:
    await turn.emit(TaskProgress(text="asking"))
    return (await turn.ask(text)).choice or ""


@tool
def ask_plain(text: str, turn: Turn) -> str:
    turn.emit(TaskProgress(text="asking"))  # type: ignore[unused-coroutine]
    return f"{turn.ask(text).choice} on {threading.current_thread().name}"  # type: ignore[attr-defined]


async def test_a_function_gets_the_turn_if_it_takes_it() -> None:
    for ask_tool, answer in ((ask_async, "yes"), (ask_plain, "yes on midwatch-call")):
        turn = RecordingTurn(answers=["yes"])
        assert "turn" not in ask_tool.schema["properties"]
        assert (await run(ask_tool, {"text": "May I?"}, turn)).text == answer
        assert turn.questions == [("May I?", ("yes", "no"))]
        assert turn.kinds() == ["task_progress"]


# -- results -----------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, "done, without a result"),
        ("", "done, without a result"),
        (Point(3), '{"x":3}'),
        (Place(city="Faro"), '{"city":"Faro","country":"PT"}'),
        ([1, {"a": float("nan")}], '[1,{"a":"NaN"}]'),
        ("half \ud800 and nul \0", "half ? and nul "),
        (ToolOutput("for the model", for_user="for people"), "for the model"),
    ],
)
async def test_results_become_text(value: Any, text: str) -> None:
    @tool
    def give() -> Any:
        return value

    output = await run(give)
    assert output.text == text
    assert not output.is_error


def endless() -> Iterator[int]:
    yield from itertools.count()


@pytest.mark.parametrize("value", [object(), {1, object()}, b"\xff\xfe", endless(), threading.Lock()])
async def test_a_result_that_is_no_json_is_reported(value: Any) -> None:
    @tool
    async def give() -> Any:
        return value

    output = await run(give)
    assert output.is_error
    assert "is not JSON" in output.text


async def test_a_circular_result_is_reported() -> None:
    circle: list[Any] = []
    circle.append(circle)

    @tool
    def give() -> Any:
        return circle

    assert "is not JSON" in (await run(give)).text


async def test_a_large_result_is_truncated() -> None:
    @tool
    def give(kind: str) -> Any:
        return "x" * 10_000_000 if kind == "text" else ["x" * 1000] * 10_000

    for kind in ("text", "list"):
        output = await run(give, {"kind": kind})
        assert len(output.text) < LONGEST_RESULT + 200
        assert "characters are left out" in output.text
        assert not output.is_error


# -- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [ValueError("bad luck"), SystemExit("bad luck"), KeyboardInterrupt("bad luck"), StopIteration("bad luck")],
)
async def test_a_tool_that_raises_is_reported(problem: BaseException) -> None:
    @tool
    def fail() -> None:
        raise problem

    output = await run(fail)
    assert output.is_error
    assert "bad luck" in output.text


async def test_a_tool_that_cancels_itself_is_reported_and_a_cancelled_call_is_cancelled() -> None:
    hanging = asyncio.Event()

    @tool
    async def give_up(now: bool) -> None:
        if now:
            raise asyncio.CancelledError
        hanging.set()
        await asyncio.Event().wait()

    assert (await run(give_up, {"now": True})).is_error
    call = asyncio.create_task(run(give_up, {"now": False}))
    await hanging.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_hanging_plain_function_blocks_nobody() -> None:
    go_on, hanging = threading.Event(), threading.Event()

    @tool
    def hang() -> None:
        hanging.set()
        go_on.wait()

    call = asyncio.create_task(run(hang))
    while not hanging.is_set():
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
