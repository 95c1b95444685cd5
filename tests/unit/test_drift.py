"""Test that a renamed field in the stream of a program never makes a turn end as done with a wrong answer."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.headless import HeadlessAgent, HeadlessConversation, _Run
from midwatch.agents.registry import build
from midwatch.agents.streams import PROFILES
from midwatch.agents.streams.drift import MARK, Drift, Versions, Words
from midwatch.base.errors import AgentError
from midwatch.domain.agent import TurnResult
from midwatch.testing import RecordingTurn

TESTS = Path(__file__).parents[1]
RECORDINGS = sorted((TESTS / "recordings/headless").glob("*/*.jsonl"))
CODES = {"limit": 1, "auth": 1, "overloaded": 1}
FREE_CODES = {("goose", "overloaded"): 0}
VALUES = ("type", "subtype", "role", "status")
Stream = list[dict[str, Any]]


@pytest.fixture
def package(tmp_path: Path) -> str:
    """Return the path of a program whose package has the version 9.9.9."""
    program = tmp_path / "package/agent"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (program.parent / "package.json").write_text('{"version": "9.9.9"}')
    return str(program)


async def conclude(agent: HeadlessAgent, stream: Stream, code: int) -> tuple[TurnResult | AgentError, RecordingTurn]:
    """Return the result of a turn that printed this stream, or its error."""
    turn = RecordingTurn()
    conversation = await agent.open(turn.session())
    assert isinstance(conversation, HeadlessConversation)
    run = _Run(turn, agent.profile.parser(), lambda: None, "th-1", resumed=False)
    run.lines.data_received("".join(json.dumps(line) + "\n" for line in stream).encode())
    run.lines.finish()
    while (line := await run.lines.next(1.0)) is not None:
        await run.emit(run.read(line))
    await run.emit(run.parser.end())
    run.code = code
    await conversation._finish(run)
    try:
        return await conversation._conclude(run, turn), turn
    except AgentError as error:
        return error, turn


def list_paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field. All items of a list have the same path."""
    for item in value if isinstance(value, list) else ():
        yield from list_paths(item, path)
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*path, name)
        yield from list_paths(inner, (*path, name))


def list_values(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each field that names a type or a state, with its value."""
    for item in value if isinstance(value, list) else ():
        yield from list_values(item)
    for name, inner in value.items() if isinstance(value, dict) else ():
        if name in VALUES and isinstance(inner, str):
            yield name, inner
        yield from list_values(inner)


def rename_field(value: Any, path: tuple[str, ...]) -> Any:
    """Return the data with the field at this path renamed, in all items of lists."""
    if isinstance(value, list):
        return [rename_field(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    head, rest = path[0], path[1:]
    return {
        (f"renamed_{name}" if name == head and not rest else name): (
            rename_field(inner, rest) if name == head and rest else inner
        )
        for name, inner in value.items()
    }


def rename_everywhere(value: Any, name: str) -> Any:
    """Return the data with all fields of this name renamed."""
    if isinstance(value, list):
        return [rename_everywhere(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    return {(f"renamed_{key}" if key == name else key): rename_everywhere(inner, name) for key, inner in value.items()}


def rename_value(value: Any, name: str, old: str) -> Any:
    """Return the data with this value of all fields of this name renamed."""
    if isinstance(value, list):
        return [rename_value(item, name, old) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: f"renamed_{old}" if key == name and inner == old else rename_value(inner, name, old)
        for key, inner in value.items()
    }


def list_variants(stream: Stream) -> Iterator[tuple[str, Stream]]:
    """Yield the stream with one field renamed at one path or everywhere, or with one type or state renamed."""
    paths = dict.fromkeys(path for line in stream for path in list_paths(line))
    for path in paths:
        yield f"field {'.'.join(path)}", [rename_field(line, path) for line in stream]
    for name in dict.fromkeys(path[-1] for path in paths):
        yield f"all fields {name}", [rename_everywhere(line, name) for line in stream]
    for name, old in dict.fromkeys(found for line in stream for found in list_values(line)):
        yield f"value {name}={old}", [rename_value(line, name, old) for line in stream]


def is_told(turn: RecordingTurn) -> bool:
    """Return whether an event of the turn says that something was unknown."""
    return any("does not know all" in event.message for event in turn.events if event.kind == "error")


def is_same(result: TurnResult | AgentError, expected: TurnResult | AgentError) -> bool:
    """Return whether a turn has the same answer, or failed in the same way. An answer may have more text before it."""
    error, expected_error = (r.error if isinstance(r, TurnResult) else str(r) for r in (result, expected))
    if error is None:
        return isinstance(expected, TurnResult) and result.text.endswith(expected.text)  # type: ignore[union-attr]
    typed = type(result) is type(expected) and type(result) not in (TurnResult, AgentError)
    return typed or (MARK not in error and error.partition(" use ")[0] == (expected_error or "").partition(" use ")[0])


def is_kept(result: TurnResult | AgentError, answer: str) -> bool:
    """Return whether a turn failed because its stream was not understood, and its result contains the answer."""
    if not isinstance(result, TurnResult) or result.outcome != "error" or MARK not in (result.error or ""):
        return False
    return all(word in result.text for word in re.findall("[a-z]{3,}", answer))


@pytest.mark.parametrize("recording", RECORDINGS, ids=[f"{path.parent.name}-{path.stem}" for path in RECORDINGS])
async def test_a_renamed_field_never_ends_as_a_wrong_answer(recording: Path, package: str) -> None:
    name, case = recording.parent.name, recording.stem
    agent = build("x", "headless", {"profile": name, "argv": [package]})
    assert isinstance(agent, HeadlessAgent)
    stream = [json.loads(line) for line in recording.read_text().splitlines()]
    code = FREE_CODES.get((name, case), CODES.get(case, 0))
    expected, turn = await conclude(agent, stream, code)
    assert not is_told(turn), "the recordings contain nothing unknown"
    answer = expected.text if isinstance(expected, TurnResult) else ""
    bad = []
    for what, variant in list_variants(stream):
        result, turn = await conclude(agent, variant, code)
        if not is_same(result, expected) and not is_kept(result, answer):
            bad.append(f"{what}: {result!r}")
    assert bad == [], "\n".join(bad)


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ([{"type": "init", "session_id": "s"}, {"type": "result", "status": "success"}], "ok"),
        ([{"type": "init", "session_id": "s", "mood": 1}, {"type": "result", "status": "success"}], "error"),
    ],
)
async def test_an_empty_answer_is_doubted_only_if_something_was_unknown(
    lines: Stream, outcome: str, package: str
) -> None:
    agent = build("x", "headless", {"profile": "gemini", "argv": [package]})
    assert isinstance(agent, HeadlessAgent)
    result, _ = await conclude(agent, lines, 0)
    assert isinstance(result, TurnResult) and result.outcome == outcome
    if outcome == "error":
        assert "gemini 9.9.9 was not understood: unknown fields: mood." in (result.error or "")


async def test_new_fields_do_not_fail_a_turn_but_are_told_once(package: str) -> None:
    agent = build("x", "headless", {"profile": "goose", "argv": [package]})
    assert isinstance(agent, HeadlessAgent)
    stream = [json.loads(line) for line in (TESTS / "recordings/headless/goose/plain.jsonl").read_text().splitlines()]
    result, turn = await conclude(agent, [{**line, "mood": "good"} for line in [*stream, {"type": "wink"}]], 0)
    assert isinstance(result, TurnResult) and (result.outcome, result.text) == ("ok", "hello there")
    (told,) = [event.message for event in turn.events if event.kind == "error"]
    assert told == (
        "midwatch does not know all that goose 9.9.9 printed: unknown fields: mood (4); unknown types: wink"
    )


def test_counts_are_limited() -> None:
    drift = Drift(Words.of("a", "t", free="any"))
    drift.count({"a": {"type": "t", "any": {"x": 1}}})
    assert not drift.seen and drift.describe() == ""
    drift.count([{f"n{number}": 1} for number in range(500)])
    assert len(drift.fields) == 101 and drift.fields["others"] == 400
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    drift.count(deep)


def test_the_newest_tested_version_is_the_pinned_one() -> None:
    pins = tomllib.loads((TESTS / "agents/pins.toml").read_text())
    assert {name: profile.versions.newest for name, profile in PROFILES.items()} == {
        name: pins[name]["version"] for name in PROFILES
    }
    assert all(profile.versions.place(profile.versions.oldest) is None for profile in PROFILES.values())


@pytest.mark.parametrize(
    ("version", "place"),
    [("1.9", "older"), ("2.0.0", None), ("2.10.1", None), ("2.10.2-beta.3", "newer"), ("3", "newer"), ("2.9.9", None)],
)
def test_versions_are_compared(version: str, place: str | None) -> None:
    assert Versions("2.0.0", "2.10.1").place(version) == place
