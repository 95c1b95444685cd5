"""Test recorded dialogs of real agents: what each is about, its choices and its risk.

The expected values are written by hand, after a look at the screen, in tests/recordings/terminal/AGENT/expected.json.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.known import PINS
from agents.scenarios import MISSING, SCENARIOS
from midwatch.agents.terminal.arguments import read_arguments
from midwatch.agents.terminal.profiles import PROFILES
from midwatch.agents.terminal.screen import Screen, Signal
from midwatch.agents.terminal.status import Watch
from midwatch.domain.agent import Answer

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings" / "terminal"
EXPECTED = {path.parent.name: json.loads(path.read_text()) for path in RECORDINGS.glob("*/expected.json")}
FILES = sorted(path for agent in EXPECTED for path in RECORDINGS.glob(f"{agent}/dialogs/*.jsonl.gz"))
BEGIN, LATER = 1000.0, 5.0
DEFAULTS = {"tool": None, "command": None, "paths": [], "diff": None, "url": None}
KINDS = (
    "command", "long-command", "rm", "edit", "write", "fetch", "mcp", "question", "plan", "trust", "login", "update",
    "theme", "telemetry",
)  # fmt: skip
"""The kinds of dialogs that the documentation lists for each agent."""


class Still:
    """The last screen of a recording."""

    def __init__(self, path: Path) -> None:
        self.agent, self.kind = path.parts[-3], path.name.partition(".")[0]
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        self.about, *self.items = [json.loads(line) for line in lines]
        self.screen = Screen(self.about["columns"], self.about["rows"], signal=self._pass_signal)
        self.watch = Watch(PROFILES[self.agent], self.screen)
        self.watch.note_output(BEGIN)
        self.now = BEGIN
        for item in self.items:
            self.now = BEGIN + item["t"]
            if "out" in item:
                self.screen.feed(base64.b64decode(item["out"]))
                self.watch.note_output(self.now)
            elif "enter" in item:
                self.watch.note_enter(self.now)
            elif "screen" in item:
                break

    def _pass_signal(self, signal: Signal) -> None:
        self.watch.take_signal(signal)


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parts[-3]}-{path.name.partition('.')[0]}")
def still(request: pytest.FixtureRequest) -> Iterator[Still]:
    new_still = Still(request.param)
    yield new_still
    new_still.screen.close()


def test_a_dialog_shows_what_it_is_about_with_its_choices_and_its_risk(still: Still) -> None:
    expected = EXPECTED[still.agent][still.kind]
    reading = still.watch.read(still.now + LATER)
    if expected.get("asks") is False:
        assert reading.state != "asking"
        return
    assert (reading.state, reading.certain) == ("asking", True)
    dialog = still.watch.read_dialog()
    question = dialog.question(f"/tmp/mw-recording/{still.agent}/{still.kind}/project")
    found: dict[str, Any] = {
        "kind": question.kind, "risk": question.risk, "tool": question.tool, "command": question.command,
        "paths": list(question.paths), "diff": question.diff, "url": dialog.subject.url,
        "choices": [[choice.name, choice.kind] for choice in question.choices],
    }  # fmt: skip
    told = {name: value for name, value in expected.items() if name not in ("text", "certain")}
    assert found == {**DEFAULTS, **told}
    assert expected.get("text", "") in question.text
    if question.command is not None:
        assert question.certain is expected["certain"], "rules may allow only what a screen shows without doubt"
    keys = [option.keys for option in dialog.options]
    assert all(keys) and len(set(keys)) == len(keys)


def test_recordings_tell_their_origin_and_name_no_machine(still: Still) -> None:
    assert still.about["agent"] == still.agent and still.about["kind"] == still.kind
    assert still.about["made_by"] == f"tests/record-terminal --dialogs {still.agent}"
    assert still.about["version"] == PINS[still.agent]["version"]
    output = b"".join(base64.b64decode(item["out"]) for item in still.items if "out" in item)
    assert not re.search(rb"(?<!\w)/(root|home|Users)/", output) and str(ROOT).encode() not in output


def test_every_kind_of_dialog_is_recorded_or_has_a_reason_in_the_documentation() -> None:
    page = (ROOT / "docs/terminal.md").read_text()
    for agent, scenarios in SCENARIOS.items():
        made = sorted(scenario.kind for scenario in scenarios if scenario.folder == "dialogs")
        assert f"| `{agent}` | {', '.join(f'`{kind}`' for kind in made)} |" in page
        for kind, reason in MISSING[agent].items():
            assert f"| `{agent}` | `{kind}` | {reason} |" in page
    for agent, expected in EXPECTED.items():
        recorded = {path.name.partition(".")[0] for path in FILES if path.parts[-3] == agent}
        assert recorded == set(expected)
        assert set(KINDS) <= recorded | MISSING[agent].keys()


def test_copilot_is_refused_by_escape_because_its_own_choice_waits_for_text() -> None:
    still = Still(RECORDINGS / "copilot/dialogs/rm.jsonl.gz")
    assert still.watch.read_dialog().keys(Answer("denied")) == ("\x1b",)
    still.screen.close()


def test_a_blank_at_the_edge_of_a_wrapped_row_belongs_to_the_command() -> None:
    command = "echo " + "a" * 30 + " b  c"
    text = json.dumps({"command": command}, indent=2)
    for columns in range(20, len(text)):
        rows = [line[at : at + columns].rstrip() for line in text.split("\n") for at in range(0, len(line), columns)]
        arguments = read_arguments("\n".join(rows) + "\n", columns)
        assert arguments is not None and arguments.get("command") == command
