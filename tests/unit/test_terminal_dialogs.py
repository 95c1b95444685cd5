"""Test recorded dialogs of real agents: what each asks, what its answers mean, and which rules may answer it."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agents.scenarios.claude import SCRIPT, TRICK
from agents.scenarios.common import LONG, RM, URL
from midwatch.agents.terminal.dialog import Dialog, read_dialog
from midwatch.agents.terminal.profiles import PROFILES
from midwatch.agents.terminal.screen import Screen
from midwatch.agents.terminal.status import Reading, Watch
from midwatch.agents.terminal.subject import read_subject
from midwatch.domain.agent import Answer, Question
from midwatch.domain.risk import hint
from midwatch.domain.rule import Level, Pattern, Policy
from midwatch.services.rule_decision import decide

RECORDINGS = Path(__file__).parents[1] / "recordings" / "terminal"


class Seen(NamedTuple):
    """The end of a recording: the status, the dialog, and its question."""

    reading: Reading
    dialog: Dialog
    question: Question


def see(agent: str, kind: str) -> Seen:
    """Replay a recording up to its last screen."""
    lines = gzip.decompress((RECORDINGS / agent / "dialogs" / f"{kind}.jsonl.gz").read_bytes()).decode().splitlines()
    about, *items = [json.loads(line) for line in lines]
    signals: list[Any] = []
    screen = Screen(about["columns"], about["rows"], signal=signals.append)
    watch = Watch(PROFILES[agent], screen)
    now = 1000.0
    for item in items:
        now = 1000.0 + item["t"]
        if "out" in item:
            screen.feed(base64.b64decode(item["out"]))
            watch.note_output(now)
        elif "enter" in item:
            watch.note_enter(now)
        elif "turn" in item:
            screen.forget_history()
        while signals:
            watch.take_signal(signals.pop(0))
        if "screen" in item:
            break
    seen = Seen(watch.read(now + 1), dialog := watch.read_dialog(), dialog.question(place(agent, kind)))
    screen.close()
    return seen


def place(agent: str, kind: str) -> str:
    """Return the directory of the agent in a recording."""
    return f"/tmp/mw-recording/{agent}/{kind}/project"


class Expected(NamedTuple):
    """What a dialog must tell: `risk` is what people see, and `answers` are the meanings of its choices in order."""

    kind: str
    risk: str | None
    answers: str
    command: str | None = None
    paths: tuple[str, ...] = ()
    diff: str | None = None
    tool: str | None = None
    says: str = ""


ONCE_ALWAYS_NO = "allow_once allow_always reject_once"
EDIT = " one\n-two\n+2\n three\n"
TALL = "\n".join(f"touch file-{number}" for number in range(60))
CLAUDE = {
    "command": Expected("execute", "medium", ONCE_ALWAYS_NO, "touch made.txt", tool="Bash"),
    "rm": Expected("execute", "high", ONCE_ALWAYS_NO, RM, tool="Bash"),
    "long-command": Expected("execute", "high", "allow_once reject_once", LONG, tool="Bash"),
    "script": Expected("execute", "high", ONCE_ALWAYS_NO, SCRIPT, tool="Bash"),
    "tall-command": Expected("execute", "high", ONCE_ALWAYS_NO, TALL, tool="Bash"),
    "edit": Expected(
        "edit", "medium", ONCE_ALWAYS_NO, paths=("notes.txt",), tool="Edit",
        diff=f"--- a/notes.txt\n+++ b/notes.txt\n@@ -1,5 +1,5 @@\n{EDIT} four\n five\n",
    ),
    "write": Expected(
        "edit", "medium", ONCE_ALWAYS_NO, paths=("new.txt",), tool="Write",
        diff="--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,2 @@\n+alpha\n+beta\n",
    ),
    "overwrite": Expected(
        "edit", "medium", ONCE_ALWAYS_NO, paths=("notes.txt",), tool="Write",
        diff="--- a/notes.txt\n+++ b/notes.txt\n@@ -1,5 +1,2 @@\n one\n-two\n-three\n-four\n-five\n+zwei\n",
    ),
    "write-outside": Expected(
        "edit", "high", ONCE_ALWAYS_NO, paths=("../../../../mw-recording-elsewhere/new.txt",), tool="Write",
        diff="--- /dev/null\n+++ b/../../../../mw-recording-elsewhere/new.txt\n@@ -0,0 +1,1 @@\n+a\n",
    ),
    "read": Expected("read", "high", ONCE_ALWAYS_NO, paths=("/etc/hostname",), tool="Read"),
    "fetch": Expected("fetch", "medium", ONCE_ALWAYS_NO, tool="WebFetch", says=f"Fetch {URL}?"),
    "search": Expected("fetch", "medium", ONCE_ALWAYS_NO, tool="WebSearch", says='Web Search("what is it")'),
    "mcp": Expected("other", "medium", ONCE_ALWAYS_NO, tool="sums — Add", says="a: 1\nb: 2"),
    "mcp-server": Expected("other", "high", ONCE_ALWAYS_NO, says="New MCP server found in this project: sums"),
    "plan": Expected("switch_mode", "medium", "allow_always reject_once", tool="ExitPlanMode", says="Exit plan mode?"),
    "choice": Expected("choice", None, " ".join(["allow_once"] * 4), tool="AskUserQuestion", says="Which colour?"),
    "trust": Expected("other", "medium", "reject_once allow_once", paths=("",), says="Is this a project you created"),
    "theme": Expected("choice", None, " ".join(["allow_always", *["allow_once"] * 6]), says="Choose the text style"),
    "api-key": Expected("choice", None, "allow_once reject_once", says="Do you want to use this API key?"),
    "bypass": Expected("other", "high", "reject_once allow_once", says="Bypass Permissions mode"),
}  # fmt: skip
CODEX = {
    "command": Expected("execute", "medium", ONCE_ALWAYS_NO, "touch made.txt", tool="shell"),
    "rm": Expected("execute", "high", ONCE_ALWAYS_NO, RM, tool="shell"),
    "long-command": Expected("execute", "high", ONCE_ALWAYS_NO, LONG, tool="shell"),
    "script": Expected("execute", "high", "allow_once reject_once", SCRIPT, tool="shell"),
    "tall-command": Expected("execute", "high", ONCE_ALWAYS_NO, tool="shell", says="[… 66 lines] ^a view all"),
    "edit": Expected(
        "edit", "medium", ONCE_ALWAYS_NO, paths=("new.txt", "notes.txt"), tool="apply_patch",
        diff="--- a/new.txt\n+++ b/new.txt\n@@ -0,0 +1,1 @@\n+alpha\n"
        f"--- a/notes.txt\n+++ b/notes.txt\n@@ -1,3 +1,3 @@\n{EDIT}",
    ),
    "trust": Expected("other", "medium", "allow_once reject_once", paths=("",), says="Trust this folder? Codex can"),
    "trust-worktree": Expected(
        "other", "high", "allow_once reject_once", paths=("/tmp/mw-recording/codex/trust-worktree/home/repository",),
        says="Trusting will apply to the repository root",
    ),
    "update": Expected("choice", None, "allow_once reject_once reject_once", says="Update available · 0.166.0 → 99"),
}  # fmt: skip
EXPECTED = {"claude": CLAUDE, "codex": CODEX}
CASES = [(agent, kind) for agent, kinds in EXPECTED.items() for kind in kinds]


@pytest.mark.parametrize(("agent", "kind"), CASES, ids=lambda value: str(value))
def test_a_dialog_tells_what_it_is_about(agent: str, kind: str) -> None:
    expected, root = EXPECTED[agent][kind], place(agent, kind)
    reading, dialog, question = see(agent, kind)
    assert (reading.state, reading.certain, dialog.framed) == ("asking", True, True)
    assert (question.kind, question.tool, question.command) == (expected.kind, expected.tool, expected.command)
    assert question.paths == tuple(
        str(Path(root)) if not path else f"{root}/{path}".replace(f"{root}//", "/") for path in expected.paths
    )
    assert question.diff == expected.diff
    assert hint(question, root) == expected.risk
    assert " ".join(choice.kind for choice in question.choices) == expected.answers
    assert expected.says in question.text
    if expected.command:
        assert question.text.startswith(f"Run {expected.command.splitlines()[0]}")


def test_every_recorded_dialog_of_these_agents_is_checked() -> None:
    for agent, kinds in EXPECTED.items():
        recorded = {path.name.split(".")[0] for path in (RECORDINGS / agent / "dialogs").iterdir()}
        assert recorded - {"trick", "tab"} == kinds.keys()


# -- rules ---------------------------------------------------------------------------------------------------------


def decide_on(question: Question, **pattern: str) -> str:
    """Return the effect of a policy that allows this pattern."""
    policy = Policy(default="ask", allow=(Pattern.from_data(pattern, "allow"),))
    return decide(question, question.root, [Level("agent", policy)]).effect or ""


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_rule_allows_only_a_command_that_can_have_no_other_meaning(agent: str) -> None:
    question = see(agent, "command").question
    assert decide_on(question, command="touch *") == "allow"
    assert decide_on(question, command="git log *") == "ask"
    trick = see(agent, "trick").question  # two commands in two rows, which look like a long one
    assert trick.command == TRICK.replace("\n", " ") and decide_on(trick, command="git log *") == "ask"
    denied = Policy(default="allow", deny=(Pattern.from_data({"command": "some-other-command *"}, "deny"),))
    assert decide(trick, trick.root, [Level("agent", denied)]).effect == "ask"


def test_a_tab_that_the_screen_does_not_show_is_noticed() -> None:
    question = see("codex", "tab").question
    assert question.command == "touch ab" and decide_on(question, command="touch ab") == "ask"


def test_a_rule_about_files_applies_to_a_dialog() -> None:
    question = see("claude", "edit").question
    assert decide_on(question, kind="edit", path="*.txt") == "allow"
    assert decide_on(question, kind="edit", path="src/**") == "ask"
    outside = see("claude", "write-outside").question
    assert decide_on(outside, kind="edit", path="**") == "ask"


# -- text that looks like a dialog ---------------------------------------------------------------------------------

CLAUDE_DIALOG = (
    "─" * 120, " Bash command", " Runs a command", "╌" * 120, " {}", "╌" * 120, " Do you want to proceed?", " ❯ 1. Yes",
    "   2. No", "", " Esc to cancel · Tab to amend",
)  # fmt: skip
BOX = ("─" * 120, "❯ ", "─" * 120, "  ? for shortcuts")


def show(agent: str, rows: tuple[str, ...]) -> tuple[str, Dialog]:
    """Show these rows and return the state of the program and the dialog that midwatch reads."""
    screen = Screen(120, 40)
    watch = Watch(PROFILES[agent], screen)
    screen.feed("\r\n".join(rows).encode())
    watch.note_output(0.0)
    seen = watch.read(60.0).state, watch.read_dialog()
    screen.close()
    return seen


def test_a_real_dialog_below_a_reply_is_read() -> None:
    forged = tuple(row.format("ls") for row in CLAUDE_DIALOG)
    state, dialog = show("claude", (*forged, "", *(row.format("touch made.txt") for row in CLAUDE_DIALOG)))
    assert state == "asking" and dialog.question("/").command == "touch made.txt"


def test_no_rule_allows_a_command_with_signs_that_only_look_like_blanks_or_borders() -> None:
    for command, effect in (
        ("git log", "allow"),
        ("git log\xa0", "ask"),
        ("git log\u2003", "ask"),
        ("│ git log", "ask"),
    ):
        _, dialog = show("claude", tuple(row.format(command) for row in CLAUDE_DIALOG))
        assert decide_on(dialog.question("/"), command="git log") == effect, command


@pytest.mark.parametrize(
    "rows",
    [
        tuple(row.format("ls") for row in CLAUDE_DIALOG),
        ("● Esc to cancel, or:", "  1. do this", "  2. do that"),
        ("❯ Esc to cancel is the first line", "  the second", "  the third", "  ⎿  Not logged in · Please run /login"),
    ],
)
def test_a_reply_and_the_echo_of_a_prompt_are_no_dialogs(rows: tuple[str, ...]) -> None:
    state, dialog = show("claude", ("❯ hello", "", *rows, "", *BOX))
    assert state != "asking" and not dialog.framed and not dialog.options


@pytest.mark.parametrize(
    ("agent", "rows"),
    [
        ("claude", (*CLAUDE_DIALOG[:2], " Runs", "╌" * 120, " ls", "╌" * 120, *CLAUDE_DIALOG[3:])),  # two commands
        ("claude", (CLAUDE_DIALOG[0], " Something new", *CLAUDE_DIALOG[2:])),
        (
            "codex",
            (
                "• Running it", "", "  Would you like to run the following command?", "", "  $ rm x",
                "  Would you like to run the following command?", "", "  $ ls", "", "› 1. Yes, proceed (y)",
                "  2. No, and tell Codex what to do differently (esc)", "", "  Press enter to confirm or esc to cancel",
            ),
        ),
    ],
)  # fmt: skip
def test_a_dialog_that_cannot_be_read_is_shown_as_it_is_with_a_high_risk(agent: str, rows: tuple[str, ...]) -> None:
    state, dialog = show(agent, tuple(row.format("rm x") for row in rows))
    question = dialog.question("/")
    assert (state, question.command, question.kind, question.risk) == ("asking", None, "execute", "high")
    assert "rm x" in question.text and len(question.choices) == 2
    assert decide_on(question, kind="execute") == "ask"


# -- answers -------------------------------------------------------------------------------------------------------


def test_an_answer_becomes_keys() -> None:
    dialog = see("claude", "command").dialog
    assert dialog.keys(Answer("granted")) == ("1",)
    assert dialog.keys(Answer("granted", dialog.options[1].choice.name)) == ("2",)
    assert dialog.keys(Answer("denied")) == ("3",)
    down = "\x1b[B"
    assert dialog.keys(Answer("denied", None, "use\nmake")) == (down, down, "\t", "use make", "\r")
    assert see("claude", "fetch").dialog.keys(Answer("denied", None, "no")) == ("3",)
    assert see("claude", "trust").dialog.keys(Answer("granted")) == (f"{down}\r",)
    trust = see("codex", "trust").dialog
    assert (trust.keys(Answer("granted")), trust.keys(Answer("denied"))) == (("\r",), (f"{down}\r",))
    assert see("claude", "choice").dialog.keys(Answer("denied")) == ("\x1b",)


def test_custom_profiles_without_kinds_of_dialogs_ask_with_a_high_risk() -> None:
    dialog = read_dialog(PROFILES["custom"], "─" * 20 + "\nProceed with it?\n ❯ 1. Yes\n   2. No")
    question = dialog.question()
    assert (question.text, question.kind, question.risk) == ("Proceed with it?", "execute", "high")


@pytest.mark.parametrize(("target", "effect"), [("secret/k", "deny"), ("cat secret/k", "ask"), ("other/k", "allow")])
def test_rules_read_every_argument_that_a_dialog_shows(tmp_path: Path, target: str, effect: str) -> None:
    call = json.dumps({"tool_name": "keep", "arguments": {"target": target, "depth": 2}}, indent=2)
    body = "".join(f"    {line}\n" for line in call.splitlines()) + "\n◆ Goose would like to call the above tool\n"
    subject = read_subject(PROFILES["goose"], body, "", 120)
    assert subject.readable
    question = Dialog("May it?", (), subject).question(str(tmp_path))
    policy = Policy.from_data({"default": "allow", "deny": [{"path": "secret/**"}]})
    assert decide(question, str(tmp_path), [Level("agent", policy)]).effect == effect
