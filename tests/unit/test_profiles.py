"""Known agent programs: what they look like, and which are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from midwatch.agents.guard import guard
from midwatch.agents.profiles import PROFILES, Profile, detect
from midwatch.testing import RecordingTurn


def test_the_known_programs() -> None:
    assert [known.name for known in PROFILES] == [
        "claude", "codex", "gemini", "opencode", "aider", "goose", "qwen", "copilot",
    ]  # fmt: skip


@pytest.mark.parametrize("known", PROFILES, ids=lambda known: known.name)
def test_every_command_line_has_its_places(known: Profile) -> None:
    assert known.argv[0] == known.binary
    assert known.argv.count("{prompt}") == 1
    assert not known.resume_argv or {"{prompt}", "{thread}"} <= set(known.resume_argv)
    assert known.description


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert detect(str(tmp_path)) == []


async def test_what_is_found_becomes_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("goose", "claude", "other"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
    (tmp_path / "codex").write_text("not executable")
    found = detect(str(tmp_path))
    assert [one.profile.name for one in found] == ["claude", "goose"]
    agent = found[0].agent()
    assert agent.terms.timeout_seconds == 8 * 3600
    assert agent.terms.on_crash == "fail"
    assert str(tmp_path / "claude") in agent.capability.description
    assert agent.describe()["command"] == "claude -p '{prompt}'"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    turn = RecordingTurn("say hello")
    talk = await agent.open(turn.session("claude"))
    assert (await talk.turn(turn)).text == "claude -p say hello"
    await talk.close()
    guard.close()
