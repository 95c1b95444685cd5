"""Test recorded terminals of real agents, replayed at full speed: their states, questions and replies."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.terminal.extract import extract_reply, has_other_sign
from midwatch.agents.terminal.profiles import PROFILES
from midwatch.agents.terminal.screen import Screen
from midwatch.agents.terminal.status import Watch

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "tests/recordings/terminal").glob("*/turns.jsonl.gz"))
BEGIN = 1000.0


class Replay:
    """A screen and its watcher at each point of a recording."""

    def __init__(self, folder: Path) -> None:
        lines = gzip.decompress((folder / "turns.jsonl.gz").read_bytes()).decode().splitlines()
        self.about, *self.items = [json.loads(line) for line in lines]
        self.profile = PROFILES[self.about["agent"]]
        self.signals: list[Any] = []
        self.screen = Screen(self.about["columns"], self.about["rows"], signal=self._record_signal)
        self.watch = Watch(self.profile, self.screen)
        self.first = 0

    def _record_signal(self, signal: Any) -> None:
        self.signals.append(signal)
        self.watch.take_signal(signal)

    def steps(self) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield each item and its time after it was applied; for output also the state before."""
        self.watch.note_output(BEGIN)
        for item in self.items:
            now = BEGIN + item["t"]
            if "out" in item:
                yield {"before": True}, now
                self.screen.feed(base64.b64decode(item["out"]))
                self.watch.note_output(now)
            elif "turn" in item:
                self.screen.forget_history()
                self.first = 0 if self.profile.echo else self.screen.cursor_row
            elif "enter" in item:
                self.watch.note_enter(now)
            yield item, now


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def replay(request: pytest.FixtureRequest) -> Iterator[Replay]:
    new_replay = Replay(request.param)
    yield new_replay
    new_replay.screen.close()


def test_replies_are_read_when_the_agent_is_idle_and_not_before(replay: Replay) -> None:
    working, replies = False, 0
    for item, now in replay.steps():
        if "enter" in item:
            working = True
        elif "reply" in item:
            reading = replay.watch.read(now + replay.profile.settle)
            assert (reading.state, reading.certain) == ("idle", True), item["prompt"]
            assert reading.evidence == item["evidence"]
            assert extract_reply(replay.screen.read(replay.first), item["prompt"], replay.profile) == item["reply"]
            working, replies = False, replies + 1
        elif "before" in item and working:
            assert replay.watch.read(now).state != "idle", f"idle at {now - BEGIN:.2f} s, in mid-turn"
    assert replies >= 5


def test_long_replies_are_complete(replay: Replay) -> None:
    (counted,) = [item["reply"] for item in replay.items if item.get("prompt", "").startswith("Count")]
    lines = [line.strip() for line in counted.split("\n") if line.strip()]
    expected = [f"line {n} of a long answer" for n in range(120)]
    if replay.about["agent"] in ("copilot", "opencode"):  # on the alternate screen, which keeps the visible lines
        assert lines == expected[-len(lines) :] and len(lines) > 10
    else:
        assert lines == expected


def test_questions_are_recognised_with_their_choices(replay: Replay) -> None:
    questions = [item for item in replay.items if "asked" in item]
    if replay.about["agent"] == "aider":
        assert not questions
        return
    for item, now in replay.steps():
        if "asked" in item:
            assert replay.watch.read(now).state == "asking"
            dialog = replay.watch.read_dialog()
            assert [option.choice.name for option in dialog.options] == item["asked"]
            kinds = {option.choice.kind.partition("_")[0] for option in dialog.options}
            assert kinds == {"allow", "reject"}, item["asked"]
    assert any("touch made.txt" in item["text"] for item in questions) or replay.about["agent"] in ("claude", "goose")


def test_recordings_describe_their_origin_and_name_no_machine(replay: Replay) -> None:
    assert replay.about["version"] and replay.about["command"]
    assert replay.about["made_by"] == f"tests/record-terminal {replay.about['agent']}"
    output = b"".join(base64.b64decode(item["out"]) for item in replay.items if "out" in item)
    assert not re.search(rb"/(root|home|Users)/", output) and str(ROOT).encode() not in output


def test_the_documentation_lists_the_tested_profiles() -> None:
    page = (ROOT / "docs/terminal.md").read_text()
    recorded = {folder.name for folder in FOLDERS}
    for name, profile in PROFILES.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` | `{' '.join(profile.argv)}` |")]
        if name in recorded:
            version = json.loads((ROOT / f"tests/recordings/terminal/{name}/about.json").read_text())["version"]
            assert version in row
        elif name != "custom":
            assert "untested" in row


def test_the_echo_of_a_partly_hidden_prompt_is_removed() -> None:
    prompt = "\n".join(f"This is line {n} of a long prompt." for n in range(40))
    shown = prompt.split("\n")
    echo = [f"❯ {shown[0]}", *shown[1:5], "──── (30 lines hidden) ────", *shown[35:]]
    text = "\n".join(["above", *echo, "", "● The reply.", "", "─" * 20, "❯ ", "─" * 20])
    assert extract_reply(text, prompt, PROFILES["claude"]) == "The reply."


def test_a_prompt_with_another_sign_gives_no_reply() -> None:
    earlier = "› My name is Ada.\n\n• noted\n"
    for sign, other, reply in (("›", False, "all done"), ("»", True, "")):
        text = f"{earlier}\n{sign} Go on\n\n• all done\n\n› Ask Codex to do anything"
        assert has_other_sign(text, "Go on", PROFILES["codex"]) is other
        assert extract_reply(text, "Go on", PROFILES["codex"]) == reply
    assert not has_other_sign(f"{earlier}\n› Ask Codex", "Go on", PROFILES["codex"]), "it has scrolled off the screen"
