"""Record what a program writes into its terminal, for tests/record-terminal."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from agents.known import AGENTS
from midwatch.agents.terminal.live import Live
from midwatch.agents.terminal.screen import Screen
from midwatch.agents.terminal.status import Watch

RECORDINGS = Path(__file__).parents[1] / "recordings" / "terminal"
PLACE = Path("/tmp/mw-recording")
"""The directory where the agents work: the same on every machine, because its length is visible on screens."""
KNOWN = {known.name: known for known in AGENTS}


class Tape:
    """Items with their times."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.items: list[dict[str, Any]] = []

    def note(self, **what: Any) -> None:
        """Add an item now."""
        self.items.append({"t": round(time.monotonic() - self.began, 4), **what})

    def write(self, path: Path) -> None:
        """Write the items into a compressed file, one line of JSON each."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(json.dumps(item, ensure_ascii=False) for item in self.items) + "\n"
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def thin(items: list[dict[str, Any]], size: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the items without output that changes nothing at the end, such as that of a spinner.

    The last screen, its history, the modes, and the last signal of each kind stay the same.
    """

    def result(kept: list[dict[str, Any]]) -> tuple[Any, ...]:
        signals: dict[str, str] = {}
        screen = Screen(*size, signal=lambda signal: signals.update({signal.kind: signal.value}))
        try:
            for item in kept:
                if "out" in item:
                    screen.feed(base64.b64decode(item["out"]))
            modes = screen.takes_paste, screen.cursor, screen.height
            return screen.read(), screen.styled_text(), modes, signals
        finally:
            screen.close()

    end = next((at for at, item in enumerate(items) if "screen" in item), len(items) - 1)
    items = items[: end + 1]  # what follows is the end of the program
    wanted = result(items)
    block = len(items) // 2
    while block:
        at = 0
        while at < len(items) - 2:
            last = min(at + block, len(items) - 2)  # the last output stays: its time is the end of the movement
            kept = items[:at] + [item for item in items[at:last] if "out" not in item] + items[last:]
            if len(kept) < len(items) and result(kept) == wanted:
                at += block - (len(items) - len(kept))
                items = kept
            else:
                at = last
        block //= 2
    return items


_heard, _enter, _forgot = Live._take_output, Watch.note_enter, Screen.forget_history


def tap(tape: Tape) -> None:
    """Record everything that a terminal receives."""

    def hear(self: Live, data: bytes) -> None:
        tape.note(out=base64.b64encode(hide_home_path(data)).decode())
        _heard(self, data)

    def enter(self: Watch, now: float) -> None:
        tape.note(enter=True)
        _enter(self, now)

    def forget(self: Screen) -> None:
        tape.note(turn=True)
        _forgot(self)

    Live._take_output, Watch.note_enter, Screen.forget_history = hear, enter, forget  # type: ignore[method-assign]


def hide_home_path(data: bytes) -> bytes:
    """Return the data without the path of a home directory; the length stays, so that screens look the same."""
    home = str(Path.home()).encode()
    return data.replace(home, b"/" + b"h" * (len(home) - 1))


def environment(name: str, home: Path, url: str, program: str | None, key: str = "fake-key") -> dict[str, str]:
    """Return the environment that makes an agent use the fake model."""
    if name in KNOWN:
        found = KNOWN[name].environment(home, url, key)
        return {key: value for key, value in found.items() if key not in ("TERM", "NO_COLOR")}
    assert name == "aider" and program, f"{name}: say --program {name}=/path"
    settings = {"model": "openai/fake-model", "check-update": False, "show-release-notes": False, "analytics": False}
    settings |= {"show-model-warnings": False, "git": False, "map-tokens": 0}
    (home / ".aider.conf.yml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    path = f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip


def version(program: str, env: dict[str, str]) -> str:
    """Return the version that the program prints."""
    said = subprocess.run((program, "--version"), env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    return re.findall(r"\d+\.\d+\.\d+\S*", said.stdout)[0].rstrip(".")
