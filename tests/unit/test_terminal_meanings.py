"""Test what texts on the screens of terminal agents mean. The screens were taken from the real programs."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.known import KNOWN
from midwatch.agents.registry import build
from midwatch.agents.streams.faults import NotSignedIn
from midwatch.agents.terminal import meaning, sending
from midwatch.agents.terminal.extract import read_lines
from midwatch.agents.terminal.profiles import PROFILES, find_version
from midwatch.agents.terminal.screen import Screen
from midwatch.agents.terminal.status import Report, Watch
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, TransientError, UsageLimit
from midwatch.domain.agent import Answer, Choice, Question
from midwatch.testing import RecordingTurn

NOW = 1_794_985_200 * SECOND  # 07:00 UTC
RULE = "─" * 60
BAR, FOOT = "▄" * 60, "▀" * 60
BOXES = {
    "claude": f"{RULE}\n❯ \n{RULE}\n  ⏸ manual mode on · ? for shortcuts",
    "codex": "› Ask Codex to do anything\n\n  fake-model default",
    "gemini": f"{RULE}\n{BAR}\n >   Type your message or @path/to/file\n{FOOT}\n workspace (/directory)",
    "qwen": f"{RULE}\n>   Type your message or @path/to/file\n{RULE}\n  project",
    "opencode": "  ┃\n  ┃  Build · Fake Fake\n  ╹▀▀▀▀▀▀\n   /project    ctrl+p commands",
    "goose": "  ╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌ 1% 1k/128k\n> Enter to send · Ctrl+J newline",
    "copilot": f"╻{BAR}\n┃\n╹{FOOT}\n / commands",
}
"""The input box of each program when it waits."""
ECHOES = {
    "claude": "❯ do it", "codex": "› do it", "gemini": f"{BAR}\n > do it\n{FOOT}", "qwen": "  > do it",
    "opencode": "  ┃\n  ┃  do it\n  ┃", "goose": "> do it", "copilot": "  ❯ do it",
}  # fmt: skip
ROOT = Path(__file__).parents[2]
MESSAGES = tomllib.loads((ROOT / "tests/recordings/terminal_messages.toml").read_text())
ERRORS = {kind.__name__: kind for kind in (AgentError, NotSignedIn, TransientError, UsageLimit)}
QUOTED = (
    "You've hit your usage limit · resets 3pm (Europe/Berlin)",
    "Please run /login · API Error: 401",
    "■ You've hit your usage limit. Try again at 4:49 AM.",
    "✕ [API Error: quota exceeded]",
    "✗ 429 rate limit",
    "Ran into this error: Rate limit exceeded.",
    "⚠ Usage limit reached · limit resets 7:42am",
    "Interrupted · What should Claude do instead?",
)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use UTC as the time zone of this machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def screen_with(name: str, reply: str) -> str:
    return f"earlier\n\n{ECHOES[name]}\n\n{reply}\n\n{BOXES[name]}"


def read(name: str, reply: str, report: Report = Report(), **options: Any) -> meaning.Found | None:  # noqa: B008
    lines = read_lines(screen_with(name, reply), "do it", PROFILES[name])
    return meaning.find_in_reply(PROFILES[name], lines, report, **options)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("case", MESSAGES["reply"], ids=lambda case: f"{case['name']}-{case['error']}")
def test_a_message_of_the_program_is_a_failure(case: dict[str, str]) -> None:
    name, reply = case["name"], case["text"]
    found = read(name, reply)
    assert found is not None
    problem = meaning.make_problem(PROFILES[name], found, NOW)
    assert type(problem) is ERRORS[case["error"]], problem
    if isinstance(problem, UsageLimit):
        end = problem.resets_at
        shown = "none" if end is None else datetime.fromtimestamp(end / SECOND, UTC).strftime("%H:%M")
        assert shown == case["end"]
    else:
        assert case["word"] in str(problem)
    if isinstance(problem, NotSignedIn):
        assert KNOWN[name].sign_in in str(problem)
    assert read(name, reply, Report("done")) is None, "the program itself says that it has answered"


def render(name: str, text: str) -> str:
    """Return an answer of the model as the program shows it."""
    first, indent = {
        "claude": ("● ", "  "), "codex": ("• ", "  "), "gemini": ("✦ ", "  "), "qwen": ("  ◆ ", "    "),
        "opencode": ("     ", "     "), "goose": ("", ""), "copilot": (" ● ", "   "),
    }[name]  # fmt: skip
    lines = text.split("\n")
    return "\n".join([first + lines[0], *((indent + line).rstrip() for line in lines[1:])])


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("quoted", QUOTED)
def test_a_reply_may_contain_the_same_words(name: str, quoted: str) -> None:
    for text in (
        f"The log says:\n{quoted}\nSo wait.",
        f"The rate limit (HTTP 429) is explained here:\n\n{quoted}",
        f"1. `{quoted}` means that the key was refused with 401.\n2. Sign in again.",
        f"```\n{quoted}\n```",
    ):
        assert read(name, render(name, text)) is None, text
        assert meaning.find_on_screen(PROFILES[name], screen_with(name, render(name, text))) is None
        waiting = meaning.LimitWait(PROFILES[name])
        for moment in (0.0, 500.0):
            assert waiting.check(screen_with(name, render(name, text)), moment, NOW) is None


def test_an_agent_that_goes_on_after_a_failure_has_not_failed() -> None:
    assert read("codex", "■ stream disconnected\n\n• It works now.") is None
    assert read("gemini", "✕ [API Error: overloaded]\n\n✦ It works now.") is None
    assert read("claude", "● API Error: 529 Overloaded\n\n● It works now.") is None


def test_the_report_of_the_program_is_the_best_evidence() -> None:
    found = read(
        "claude", "● something new", Report("error", "You've hit your weekly limit · resets Nov 20, 3pm (UTC)")
    )
    assert found is not None
    limit = meaning.make_problem(PROFILES["claude"], found, NOW)
    assert isinstance(limit, UsageLimit) and limit.resets_at == (1_795_186_800 + 60) * SECOND
    found = read("codex", "• something new", Report("error"))
    assert found is not None and "something new" in str(meaning.make_problem(PROFILES["codex"], found, NOW))


def test_a_denied_action_is_named() -> None:
    touch = meaning.name_action(Question(text="Do it?", command="touch x"), Answer("denied", why="not today"))
    assert touch == "'touch x' (not today)"
    for name, reply in (
        ("claude", "● Bash(touch x)\n  ⎿ \xa0Interrupted · What should Claude do instead?"),
        ("opencode", "     $ touch x"),
        ("qwen", "  - Shell touch x (Runs a command)"),
    ):
        found = read(name, reply, denied=True)
        assert found is not None
        problem = str(meaning.make_problem(PROFILES[name], found, NOW, [touch]))
        assert problem == f"{name} stopped without an answer; denied actions: 'touch x' (not today)."
    assert read("opencode", "     $ touch x") is None and read("qwen", "  - Shell touch x (Runs a command)") is None
    assert read("qwen", "  - Shell touch x (Runs a command)\n\n  ◆ Then not.", denied=True) is None


@pytest.mark.parametrize("case", MESSAGES["screen"], ids=lambda case: f"{case['name']}-{case['error']}")
def test_sign_in_screens_and_limit_menus_are_no_questions(case: dict[str, str]) -> None:
    profile = PROFILES[case["name"]]
    found = meaning.find_on_screen(profile, case["text"])
    assert found is not None
    assert type(meaning.make_problem(profile, found, NOW)) is ERRORS[case["error"]]
    assert bool(found.row.keys) == (case["error"] == "UsageLimit"), "a limit menu is closed, a sign-in screen stays"


RECORDED = {
    "copilot": {
        "error": "passing", "overloaded": "passing", "limit": "limit", "quota": "limit", "refused-key": "auth",
        "no-key": "auth",
    },
    "gemini": {"limit": "limit", "no-key": "auth", "refused-key": "auth"},
    "goose": {"error": "passing", "overloaded": "passing", "quota": "limit", "refused-key": "auth", "no-key": "auth"},
    "opencode": {
        "error": "passing", "overloaded": "passing", "limit": "limit", "quota": "limit", "refused-key": "auth"
    },
    "qwen": {"error": "passing", "overloaded": "passing", "quota": "limit", "refused-key": "auth"},
}  # fmt: skip
"""Recordings of failures, and what they mean. In other recordings the program retries and shows nothing."""
KINDS = {"passing": TransientError, "limit": UsageLimit, "auth": NotSignedIn}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in RECORDED.items() for kind in kinds])
def test_recorded_failures_are_understood(name: str, kind: str) -> None:
    file = ROOT / f"tests/recordings/terminal/{name}/failures/{kind}.jsonl.gz"
    about, *items = (json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines())
    profile = PROFILES[name]
    screen = Screen(about["columns"], about["rows"])
    for item in items:
        screen.feed(base64.b64decode(item.get("out", "")))
    lines = read_lines(screen.read(), f"Please help me. [[play {kind}]]", profile)
    shown = screen.text().rstrip()
    screen.close()
    finds = (
        meaning.find_on_screen(profile, shown), meaning.find_at_exit(profile, shown),
        meaning.find_in_reply(profile, lines, Report()), meaning.find_retry(profile, shown),
    )  # fmt: skip
    found = next(filter(None, finds))
    assert type(meaning.make_problem(profile, found, NOW)) is KINDS[RECORDED[name][kind]]
    assert about["version"] == find_version(name)


def test_a_program_may_wait_for_a_limit_for_two_minutes() -> None:
    shown = "❯ do it\n\n✻ 429 You exceeded your current quota. · Retrying in 2s · attempt 3/10\n\n" + BOXES["claude"]
    waiting = meaning.LimitWait(PROFILES["claude"])
    assert [waiting.check(shown, moment, NOW) for moment in (0.0, 60.0, 119.0)] == [None] * 3
    limit = waiting.check(shown, 121.0, NOW)
    assert limit is not None and limit.resets_at is None
    assert waiting.check(shown.replace("429 You exceeded your current quota.", "API error"), 122.0, NOW) is None
    assert waiting.check(shown, 123.0, NOW) is None, "the time counts from its last beginning"
    later = "  ╹▀▀\n   ■■⬝⬝⬝⬝⬝⬝ You exceeded your quota [retrying in 2h 5m attempt #1]  esc interrupt"
    long = meaning.LimitWait(PROFILES["opencode"]).check(later, 0.0, NOW)
    assert long is not None and long.resets_at == NOW + 7500 * SECOND


def test_a_program_that_waits_for_a_sign_in_is_idle() -> None:
    screen = Screen(80, 24, signal=lambda signal: watch.take_signal(signal))
    watch = Watch(PROFILES["claude"], screen)
    message = base64.b64encode("Please run /login · API Error: 401".encode()).decode()
    screen.feed(f"❯ \x1b]7501;state=blocked:app=claude-code:kind=auth:msg={message}\x1b\\".encode())
    reading = watch.read(100.0)
    assert (reading.state, reading.evidence) == ("idle", "program")
    assert watch.report == Report("error", "Please run /login · API Error: 401")
    screen.feed(b"\x1b]7501;state=blocked:app=claude-code:kind=permission\x1b\\")
    assert watch.read(100.0).state == "asking"
    screen.feed(b"\x1b]7501;state=error:msg=%%%\x1b\\")
    assert watch.report.message == "" and watch.read(100.0).state == "idle"
    screen.close()


PROGRAM = r"""
import sys
print(sys.argv[1], flush=True)
if "LOGIN" in sys.argv[1]: input()
if "late" in sys.argv[1]:
    import tty
    tty.setcbreak(0)
    print("> ", end="", flush=True)
    sys.stdin.read(1)
    print("\x1b[2J\x1b[HLOGIN SCREEN", flush=True)
    sys.stdin.read()
while True:
    said = input("> ")
    if said == "quota": print("! quota exceeded, try again in 2 hours")
    elif said == "menu":
        print("LIMIT MENU 1. wait", flush=True)
        print("\x1b[2J\x1b[Hclosed by " + input())
    elif said == "ask":
        print("may I? (y/n)", flush=True)
        print("! I stop" if input() == "n" else "done")
    else: print("you said", said)
"""
MEANINGS = [
    {"what": "auth", "where": "screen", "text": "^LOGIN SCREEN"},
    {"what": "limit", "where": "screen", "text": r"^LIMIT MENU 1\. wait$", "keys": "esc\r"},
    {"what": "stopped", "text": "I stop"},
    {"what": "error"},
]


def small_agent(banner: str = "hello", **more: str) -> Any:
    options = {
        "prompt": "^> $",
        "box": "^> ?$",
        "asking": r"^may I\? \(y/n\)$(?!\n.)",
        "failure": "^! ",
        "settle": 0.05,
    }
    answers = {"yes": "y\r", "no": "n\r"}
    argv = [sys.executable, "-c", PROGRAM, banner]
    return build("x", "terminal", {"argv": argv, "answers": answers, "meanings": MEANINGS, **options, **more})


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
async def test_turns_of_a_program_that_fails_and_goes_on() -> None:
    talk = await small_agent().open(RecordingTurn().session())
    try:
        async with asyncio.timeout(60):
            with pytest.raises(UsageLimit, match="quota exceeded") as limit:
                await talk.turn(RecordingTurn("quota"))
            assert limit.value.resets_at is not None
            with pytest.raises(UsageLimit, match="LIMIT MENU"):
                await talk.turn(RecordingTurn("menu"))
            assert "closed by esc" in talk.screenshot().text
            turn = RecordingTurn("ask", answers=[Answer("denied", "no", "not today")])
            with pytest.raises(AgentError, match=r"denied actions: .*not today"):
                await talk.turn(turn)
            assert list(turn.asked[0].choices) == [
                Choice("yes", "allow_once"), Choice("no", "reject_once")
            ]  # fmt: skip
            assert (await talk.turn(RecordingTurn("quota exceeded"))).text == "you said quota exceeded"
    finally:
        await talk.close()


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
async def test_a_sign_in_screen_fails_the_turn_at_once() -> None:
    talk = await small_agent("LOGIN SCREEN").open(RecordingTurn().session())
    turn = RecordingTurn("hello")
    try:
        async with asyncio.timeout(60):
            with pytest.raises(NotSignedIn, match="sign in with its own program"):
                await talk.turn(turn)
        assert not turn.asked
    finally:
        await talk.close()


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
async def test_a_sign_in_screen_that_appears_while_the_prompt_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ECHO_SECONDS", 1.0)
    talk = await small_agent("late", busy="^working$").open(RecordingTurn().session())
    try:
        async with asyncio.timeout(60):
            with pytest.raises(NotSignedIn, match="sign in with its own program"):
                await talk.turn(RecordingTurn("hello"))
    finally:
        await talk.close()
