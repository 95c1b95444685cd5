"""Play a scenario with a real agent, and record its terminal until the screen stands still."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path
from typing import Any

from agents.scenarios.scenario import Scenario
from agents.tape import PLACE, RECORDINGS, Tape, environment, tap, thin, version
from fakes.model_server import serve
from fakes.script import SCRIPTS
from midwatch.agents.registry import build
from midwatch.agents.terminal.live import Live
from midwatch.agents.terminal.sending import send
from midwatch.testing.turn import RecordingTurn

STILL = 1.5  # seconds without a change after which a screen stands still
MOVING = 6.0  # seconds after which a matching screen counts although something on it moves


async def wait_for_screen(live: Live, pattern: str, seconds: float, still: float = STILL) -> None:
    """Return once the screen matches and stands still."""
    deadline = time.monotonic() + seconds
    matched = changed = 0.0
    before = ""
    while time.monotonic() < deadline:
        shown, now = live.screen.text(), time.monotonic()
        if shown != before:
            before, changed = shown, now
        found = re.search(pattern, shown, re.MULTILINE)
        matched = (matched or now) if found else 0.0
        if found and (now - changed >= still or now - matched >= MOVING):
            return
        if not live.running and not found:
            break
        await asyncio.sleep(0.05)
    raise AssertionError(f"no {pattern!r} on the screen:\n{live.screen.text().rstrip()}")


async def play(live: Live, scenario: Scenario, work: Path) -> None:
    """Take the steps of a scenario until its dialog stands on the screen."""
    for pattern, keys in scenario.steps:
        await wait_for_screen(live, pattern, scenario.seconds, 0.7)
        live.type(keys)
    if scenario.script:
        SCRIPTS[scenario.kind] = scenario.script.replace("{work}", str(work))
        await live.until(lambda reading: reading.state == "idle" and reading.certain, scenario.seconds)
        await send(live, f"Please help me. [[play {scenario.kind}]]")
    for pattern, keys in scenario.after:
        await wait_for_screen(live, pattern, scenario.seconds, 0.7)
        live.type(keys)
    await wait_for_screen(live, scenario.shows, scenario.seconds)


async def record_dialog(name: str, scenario: Scenario, program: str | None) -> str:
    """Record one scenario and return its last screen."""
    place = PLACE / name / scenario.kind
    shutil.rmtree(place, ignore_errors=True)
    home, work = place / "home", place / "project"
    home.mkdir(parents=True)
    work.mkdir()
    for path, text in scenario.files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    tape = Tape()
    tap(tape)
    async with serve() as (url, _):
        env = environment(name, home, url, program, scenario.key)
        if scenario.prepare:
            scenario.prepare(home, work, url)
        changed = {**env, **scenario.env}
        env = {key: value.replace("{url}", url) for key, value in changed.items() if value is not None}
        options = {"profile": name, "workdir": str(work), "args": list(scenario.args), "env": env}
        agent: Any = build(name, "terminal", options)
        found = shutil.which(agent.profile.argv[0], path=env["PATH"])
        assert found, f"{name} is not installed"
        tape.note(
            agent=name, kind=scenario.kind, version=version(found, env), command=agent.describe()["command"],
            made_by=f"tests/record-terminal --dialogs {name}",
            columns=agent.profile.columns, rows=agent.profile.rows,
        )  # fmt: skip
        turn = RecordingTurn(workdir=str(work))
        live = Live(agent.profile, (agent.profile.columns, agent.profile.rows), None)
        argv = tuple(part.replace("{thread}", "11111111-2222-4333-8444-555555555555") for part in agent.profile.argv)
        try:
            await live.start(agent.program(argv, str(work)), turn)
            await play(live, scenario, work)
            text = live.screen.text().rstrip()
            tape.note(screen=True)
        finally:
            tap(Tape())
            await live.end()
            live.free()
    tape.items = thin(tape.items, (agent.profile.columns, agent.profile.rows))
    tape.write(RECORDINGS / name / scenario.folder / f"{scenario.kind}.jsonl.gz")
    return text
