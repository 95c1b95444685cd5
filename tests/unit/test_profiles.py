"""Test the known agent programs: their descriptions, their detection, and the connection chosen for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.known import KNOWN, KnownProgram
from midwatch.agents.profiles import advise, detect, find_program
from midwatch.base.errors import BadConfig
from midwatch.desk.build import build_agents
from midwatch.desk.config import Settings
from midwatch.programs.guard import guard
from midwatch.testing import RecordingTurn


def install(folder: Path, *names: str) -> None:
    for name in names:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)


def test_the_known_programs_are_listed() -> None:
    assert list(KNOWN) == [
        "claude", "codex", "gemini", "opencode", "aider", "goose", "qwen", "copilot",
    ]  # fmt: skip


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.name)
def test_every_program_has_a_title_and_commands_to_install_and_sign_in(known: KnownProgram) -> None:
    assert known.argv[0] == known.name
    assert known.argv.count("{prompt}") == 1
    assert known.title and known.install and known.sign_in


def test_no_agent_is_detected_without_programs(tmp_path: Path) -> None:
    assert detect(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("installed", "name", "ways"),
    [
        (("claude",), "claude", ("headless", "terminal", "command")),
        (("claude", "claude-agent-acp"), "claude", ("acp", "headless", "terminal", "command")),
        (("codex", "codex-acp"), "codex", ("acp", "headless", "terminal", "command")),
        (("gemini",), "gemini", ("acp", "headless", "terminal", "command")),
        (("aider",), "aider", ("terminal", "command")),
    ],
)
def test_the_best_connection_for_the_installed_programs_is_chosen(
    tmp_path: Path, installed: tuple[str, ...], name: str, ways: tuple[str, ...]
) -> None:
    install(tmp_path, *installed)
    (detected,) = detect(str(tmp_path))
    agent = detected.build_agent()
    assert (detected.program.name, detected.ways, detected.way, agent.kind) == (name, ways, ways[0], ways[0])
    assert agent.terms.timeout_seconds == 8 * 3600
    assert agent.terms.exclusive
    assert agent.terms.on_crash == ("resume" if detected.way in ("acp", "headless") else "fail")
    assert str(tmp_path / name) in agent.description


def test_requirements_of_a_better_connection_are_named(tmp_path: Path) -> None:
    install(tmp_path, "claude", "other")
    (detected,) = detect(str(tmp_path))
    assert detected.why.endswith("`npm install -g @agentclientprotocol/claude-agent-acp`")
    install(tmp_path, "claude-agent-acp")
    (detected,) = detect(str(tmp_path))
    assert "inbox" in detected.why and "npm" not in detected.why


async def test_a_detected_program_becomes_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "aider")
    (tmp_path / "codex").write_text("not executable")
    (detected,) = detect(str(tmp_path))
    agent = replace(detected, ways=("command",)).build_agent()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    turn = RecordingTurn("say hello")
    talk = await agent.open(turn.session("aider"))
    assert (await talk.turn(turn)).text == "aider --yes-always --no-stream --message say hello"
    await talk.close()
    guard.close()


def test_a_section_without_a_kind_changes_the_found_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a section with nothing but rules replaced the agent by one of kind command without a program."""
    install(tmp_path, "claude", "codex")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    rules: Any = {"approvals": {"deny": [{"command": "git push"}]}}
    sections: Any = {"claude": {**rules, "slots": 2}, "codex": {**rules, "argv": ["true"]}, "demo": rules}
    found = build_agents(Settings(home=tmp_path), {})["claude"]
    built = build_agents(Settings(home=tmp_path, agents=sections), {})
    assert (built["claude"].kind, built["claude"].terms.slots) == (found.kind, 2)
    assert (built["codex"].kind, built["demo"].kind) == ("command", "demo")
    with pytest.raises(BadConfig, match=r"agents\.other\.argv: it is missing"):
        build_agents(Settings(home=tmp_path, agents={"other": rules}), {})


def test_advice_is_given_for_known_programs() -> None:
    advice = advise("codex")
    assert advice is not None and "npm install -g @openai/codex" in advice
    assert advise("nobody") is None
    with pytest.raises(BadConfig, match="use one of claude"):
        find_program("nobody")
