"""Test the parts of the command line: texts, options, errors, exit statuses. No server and no store is needed."""

import json
import os
import pty
import re
import subprocess
import sys
from collections import defaultdict
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from midwatch.api.bodies import KeysBody
from midwatch.base import errors
from midwatch.base.errors import InvalidInput, MidwatchError
from midwatch.base.home import Home
from midwatch.cli import attach, automation, budgets, goal, inputs, options, output, questions
from midwatch.cli.connection import find_attempt_token
from midwatch.cli.doctor import check_permissions
from midwatch.cli.events import print_event
from midwatch.cli.inputs import read_prompt
from midwatch.cli.main import execute, report_error
from midwatch.cli.server import last_line
from midwatch.cli.status import describe_attention
from midwatch.cli.tasks import SUBMISSION, describe_task, suggest_answers
from midwatch.cli.token import TokenRole
from midwatch.cli.usage import Part, describe_usage, parse_moment
from midwatch.cli.watch import Watch, describe_end, describe_event
from midwatch.domain import approval, handoff, identity, usage
from midwatch.domain import automation as automations
from midwatch.domain import goal as goals
from midwatch.domain.task import STATUSES

COMMANDS = [
    "up", "down", "worker", "run", "submit", "tasks", "show", "status", "result", "cancel", "retry", "chat", "sessions",
    "attach", "worktrees", "events", "approvals", "approval", "approve", "deny", "deliveries", "redeliver", "budgets",
    "budget", "usage", "open", "cluster", "watchdog", "doctor", "backup", "restore", "migrate", "completion", "version",
    "agents", "session", "agentapi", "worktree", "token", "automation", "goal", "handoff", "hook", "hooks",
    "apply", "export", "rules",
]  # fmt: skip
LISTS = {"agents": ["add"]}
TERMINALS = ("attach", "agentapi attach")
"""Commands whose output is that of an agent's terminal."""
GROUPS = {
    "agentapi": ["server", "attach"],
    "session": ["new", "show", "send", "interrupt", "restart", "close"],
    "worktree": ["show", "diff", "merge", "remove"],
    "token": ["create", "list", "revoke"],
    "automation": [
        "add", "list", "show", "edit", "pause", "resume", "run", "history", "chain", "firings", "replay", "trigger",
        "secret", "rm", "preview", "export", "import",
    ],
    "goal": ["set", "show", "list", "edit", "step", "pause", "resume", "complete", "delay", "clear"],
    "handoff": ["to", "list", "show", "cancel", "retry"],
    "hook": ["claude"],
}  # fmt: skip
EVENT_TEXTS = [
    *(name for name in COMMANDS if name not in GROUPS),
    *(f"{group} {name}" for group, names in GROUPS.items() for name in names),
]
DOCS = Path(__file__).parents[2] / "docs"
LATER = "2026-11-18T09:00:00Z"


def test_help_lists_every_command(capsys) -> None:
    assert execute(["--help"]) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert listed == COMMANDS


@pytest.mark.parametrize(("group", "names"), GROUPS.items())
def test_a_group_without_a_command_lists_its_commands(group: str, names: list[str], capsys) -> None:
    assert execute([group]) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert listed == names


@pytest.mark.parametrize(("group", "names"), LISTS.items())
def test_groups_that_list_by_default_have_commands(group: str, names: list[str], capsys) -> None:
    assert execute([group, "--help"]) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert listed == names


@pytest.mark.parametrize("command", EVENT_TEXTS)
def test_every_command_has_help_and_json_output(command: str, capsys) -> None:
    assert execute([*command.split(), "--help"]) == 0
    assert ("--json" in capsys.readouterr().out) is (command not in TERMINALS)


def test_help_imports_no_heavy_module() -> None:
    heavy = [
        "pydantic",
        "fastapi",
        "httpx2",
        "uvicorn",
        "rich",
        "sqlite3",
        "orjson",
        "midwatch.runtime.runtime",
        "midwatch.domain.task",
    ]
    code = f"import sys, midwatch.cli.main; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["--help", "automation list --help", "goal show --help"])
def test_help_of_other_commands_needs_no_definitions_of_records(command: str) -> None:
    code = f"import sys; from midwatch.cli.main import execute; execute({command.split()})\n"
    code += "print('midwatch.domain.automation' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submit"], "Missing argument 'PROMPT'"),
        (["nonsense"], "No such command 'nonsense'"),
        (["statsu"], "Did you mean 'status'"),
        (["tasks", "--nonsense"], "No such option"),
        (["submit", "x", "--priority", "high"], "--priority"),
        (["up", "--port", "70000"], "--port"),
        (["events", "--after", "-1"], "--after"),
        (["approvals", "--status", "x"], "'x' is not one of 'pending', 'granted', 'denied', 'expired', 'all'"),
        (["usage", "--by", "week"], "'week' is not one of 'actor', 'agent', 'session', 'model', 'day'"),
        (["tasks", "--limit", "501"], "--limit"),
        (["tasks", "--status", "x"], "'x' is not one of 'pending', 'running', 'done', 'failed', 'cancelled'"),
        (["token", "create", "--name", "x", "--role", "y"], "'y' is not one of 'viewer', 'operator', 'owner'"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_wrong_usage_prints_one_line_with_status_2(arguments: list[str], says: str, capsys) -> None:
    assert execute(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("midwatch: ")
    assert output.err.count("\n") == 1
    assert says in output.err


def test_errors_are_printed_as_json_on_standard_error_on_request(capsys) -> None:
    assert execute(["tasks", "--nonsense", "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert json.loads(output.err)["error"]["code"] == "usage"


def test_an_error_of_several_lines_is_printed_on_one(capsys) -> None:
    report_error("error", "first\n  second", as_json=False)
    assert capsys.readouterr().err == "midwatch: first second\n"


def test_every_exit_status_is_documented() -> None:
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", (DOCS / "cli.md").read_text(), re.MULTILINE))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MidwatchError)]
    assert {str(kind.exit_status) for kind in kinds} | {"0", "70", "71", "130"} == set(table)
    missing = [kind.code for kind in kinds if f"`{kind.code}`" not in table[str(kind.exit_status)]]
    assert missing == [MidwatchError.code]  # the base class has no exit status of its own


def test_every_command_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    assert [command for command in COMMANDS if f"`midwatch {command}" not in text] == []


def test_an_unexpected_error_prints_one_line_and_logs_its_details(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("MIDWATCH_HOME", str(tmp_path))
    monkeypatch.delenv("MIDWATCH_DEBUG", raising=False)
    monkeypatch.setattr("midwatch.cli.app.find_version", lambda: 1 / 0)
    assert execute(["version"]) == 70
    output = capsys.readouterr()
    assert output.err.startswith("midwatch: unexpected error, ZeroDivisionError")
    assert output.err.count("\n") == 1
    assert "Traceback" in (tmp_path / "log" / "midwatch.log").read_text()


def test_details_are_shown_on_request(monkeypatch, capsys) -> None:
    monkeypatch.setenv("MIDWATCH_DEBUG", "1")
    monkeypatch.setattr("midwatch.cli.app.find_version", lambda: 1 / 0)
    assert execute(["version"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_the_working_directory_is_absolute(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SUBMISSION.take({"workdir": "."}, ()) == {"workdir": str(tmp_path)}
    assert SUBMISSION.take({"workdir": "sub"}, ()) == {"workdir": str(tmp_path / "sub")}


def test_the_current_directory_is_the_default_without_a_session(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inputs.default_workdir({"workdir": None, "title": "x"}) == {"workdir": str(tmp_path), "title": "x"}
    for request in ({"workdir": "/there"}, {"session_key": "chat:1"}):
        assert inputs.default_workdir(request) == request


def test_a_prompt_with_invalid_bytes_becomes_text() -> None:
    assert read_prompt("caf\udcff") == "caf\ufffd"


def test_a_prompt_may_come_from_standard_input() -> None:
    code = "from midwatch.cli.inputs import read_prompt; print(ascii(read_prompt('-')))"
    result = subprocess.run(
        [sys.executable, "-c", code], input="zwei\nZeilen é\xff".encode("latin-1"), capture_output=True
    )
    assert result.stdout.decode().strip() == ascii("zwei\nZeilen \ufffd\ufffd")


def test_agent_output_cannot_control_the_terminal() -> None:
    assert output.clean("a\x1b[31mred\x07\x9b\r\n\tok é 👍\u200d") == "a[31mred\n\tok é 👍\u200d"


DANGEROUS = "\x00\x08\x0d\x1b\x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u2028\u202a\u202e\u2066\u2069"
"""C0, DEL and C1 control characters, and characters that change the direction or end a line."""


def print_on_terminal(code: str) -> str:
    """Run Python code whose standard output and error are a terminal, and return what arrives there."""
    terminal, program_side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "", "PYTHONUTF8": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=program_side, stderr=program_side, env=env) as program:
        os.close(program_side)
        received = b""
        with suppress(OSError):  # the terminal is closed when the program has ended
            while part := os.read(terminal, 65536):
                received += part
        assert program.wait() == 0, received
    os.close(terminal)
    return received.decode().replace("\r\n", "\n")


def test_no_output_on_a_terminal_has_characters_that_control_it() -> None:
    calls = "output.emit({'text': text}); output.say(text); output.note(text); log(text)"
    printed = print_on_terminal(
        "import logging, sys; from midwatch.cli import output; from midwatch.runtime.serve import write_log\n"
        "from midwatch.desk.config import Settings; log = logging.getLogger('agent').warning\n"
        f"write_log(Settings(home='/nowhere')); text = {DANGEROUS + 'é'!a}; {calls}"
    )
    lines = printed.splitlines()
    assert not set(DANGEROUS) & set(printed)
    assert all("\\u009b" in line and "\\u202e" in line and "é" in line for line in lines), lines
    assert len(lines) == 4
    assert json.loads(lines[0]) == {"text": DANGEROUS + "é"}


def test_colours_stay_on_a_terminal() -> None:
    printed = print_on_terminal("from midwatch.cli import output; output.say(output.paint('x', 'red'))")
    assert printed == "\x1b[31mx\x1b[0m\n"


SECRETS = {
    "[channels.hook]\nkind = 'webhook'\nurl = 'https://x.example/T0/B0'\n": "channels.hook.url",
    "[agents.x]\nkind = 'command'\nargv = ['x']\nenv.API_KEY = 's'\n": "agents.x.env.API_KEY",
    "db = 'postgresql://user:word@127.0.0.1:1/x'\n": "db",
    "[agents.x]\nkind = 'llm'\nmodel = 'openai:x'\napi_key_env = 'NAME'\nmax_tokens = 5\n": None,
}


@pytest.mark.parametrize("settings", SECRETS)
def test_doctor_warns_of_settings_with_secrets_that_others_can_read(home: Path, settings: str) -> None:
    place, file, name = Home(home), home / "midwatch.toml", SECRETS[settings]
    place.prepare()
    file.write_text(settings)
    file.chmod(0o640)
    place.database.touch(0o600)
    assert [finding.told for finding in check_permissions(place)] == (
        [f"{file} has mode 640: other users can read it, and it contains {name}"] if name else []
    )
    file.chmod(0o600)
    assert not list(check_permissions(place))
    for path, mode in ((home, 0o755), (place.database, 0o644), (home / "old.db", 0o604)):
        path.touch()
        before, _ = path.stat().st_mode, path.chmod(mode)
        (finding,) = check_permissions(place)
        assert finding.state == "warn" and str(path) in finding.told
        assert (finding.remedy or "").startswith("chmod 700" if path == home else "chmod 600")
        path.chmod(before & 0o700)


def test_a_table_cell_is_one_short_line() -> None:
    assert output.shorten("a\n b\t c") == "a b c"
    assert output.shorten("x" * 100, 10) == "x" * 9 + "…"
    assert output.shorten(None) == "-"


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0.42, "0.4s"), (12, "12s"), (119, "119s"), (300, "5m"), (7200, "2h"), (200000, "2d"), (None, "-")],
)
def test_durations_are_formatted_for_people(duration: float | None, text: str) -> None:
    assert output.format_duration(duration) == text


def test_columns_are_aligned_and_plain_without_a_terminal(capsys) -> None:
    output.say(output.table(("ID", "STATUS"), [("t_1", "done"), ("t_22", "failed")]))
    assert capsys.readouterr().out == "ID    STATUS\nt_1   done\nt_22  failed\n"


@pytest.mark.parametrize(
    ("kind", "payload", "says"),
    [
        ("tool_exec_start", {"tool": "sh", "arguments": {"cmd": "ls"}}, "→ sh ls"),
        ("tool_exec_start", {"tool": "Bash", "arguments": {"command": "ls"}, "title": "Bash"}, "→ Bash ls"),
        ("tool_exec_start", {"tool": "search", "arguments": {"id": 1}, "title": "Find a"}, "→ search Find a"),
        ("tool_exec_start", {"tool": "odd", "arguments": {"id": 1}, "title": "odd"}, "→ odd {'id': 1}"),
        ("tool_exec_end", {"tool": "sh", "is_error": True, "duration": 0.25}, "← sh failed in 0.2s"),
        ("task_progress", {"text": "half", "percent": 50.0}, "· half (50 %)"),
        (
            "task_waiting",
            {"wait": "backoff", "until": LATER, "reason": None},
            f"waits: backoff until {output.format_time(LATER)}",
        ),
        ("task_waiting", {"wait": "approval"}, None),
        ("error", {"stage": "x", "message": "boom"}, "! boom"),
        ("turn_end", {"status": "completed"}, None),
        (
            "hook_decided",
            {"hook": "policy", "decision": "deny", "reason": "no", "failed": False, "tool": "push"},
            "! hook policy deny push: no",
        ),
        ("hook_decided", {"hook": "policy", "decision": "change", "failed": False}, "! hook policy change"),
    ],
)
def test_events_are_described_in_words(kind: str, payload: dict, says: str | None) -> None:
    assert describe_event(kind, payload, {"kind": kind, "task_id": "t_1", "attempt": 1}) == says


def test_an_event_of_a_newer_version_has_a_stable_text(capsys) -> None:
    event = {"seq": 7, "time": None, "kind": "later", "task_id": "t_1", "payload": {"a": 1}}
    print_event(event, as_json=False)
    print_event(event, as_json=True)
    plain, exact = capsys.readouterr().out.splitlines()
    assert plain.split() == ["7", "-", "event_kind(later)", "t_1", "a=1"]
    assert json.loads(exact) == event


class Terminal:
    """Standard output that is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


def task(**more):
    return {
        "id": "t_1",
        "status": "done",
        "result": "Hello",
        "tokens_used": None,
        "error": None,
        "outcome": "ok",
        **more,
    }


def event(kind: str, **payload):
    return {"kind": kind, "seq": 1, "task_id": "t_1", "payload": payload}


def test_streamed_text_is_printed_once(monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(screen):
        watch = Watch(quiet=False)
        watch.show(event("message_delta", message_id="m", offset=0, text="Hel"))
        watch.show(event("message_delta", message_id="m", offset=9, text="lost"))
        watch.show(event("message_update", message_id="m", role="agent", message="Hello"))
        watch.end(task())
    assert screen.text == "Hello\n"


def test_an_answer_that_was_streamed_is_not_printed_again() -> None:
    screen = Terminal()
    with redirect_stdout(screen):
        watch = Watch(quiet=False)
        watch.show(event("message_delta", message_id="t_1.1.1", offset=0, text="I look. "))
        watch.show(event("message_update", message_id="t_1.1.1", role="agent", message="I look."))
        watch.show(event("message_delta", message_id="t_1.1.2", offset=0, text="Hello "))
        watch.show(event("message_update", message_id="t_1.1", role="agent", message="Hello"))
        watch.end(task())
    assert screen.text.split() == ["I", "look.", "Hello"]


def test_a_result_that_was_not_streamed_is_printed_at_the_end() -> None:
    screen = Terminal()
    with redirect_stdout(screen):
        watch = Watch(quiet=False)
        watch.show(event("message_update", message_id="m", role="agent", message="Thinking"))
        watch.end(task())
    assert screen.text == "Thinking\nHello\n"


def test_only_the_result_is_written_to_a_pipe(capsys) -> None:
    watch = Watch(quiet=False)
    watch.show(event("message_update", message_id="m", role="agent", message="Thinking"))
    watch.show(event("task_progress", text="half"))
    watch.end(task())
    output = capsys.readouterr()
    assert output.out == "Hello\n"
    assert "half" in output.err


def test_a_failure_prints_the_retry_command() -> None:
    assert describe_end(task(status="failed", error="boom")) == "t_1 failed: boom; try again with `midwatch retry t_1`"
    spent = task(status="failed", outcome="budget", budget={"steps": 3}, usage={"steps": 3})
    assert describe_end(spent).endswith("try again with `midwatch retry t_1 --budget MORE`")


def test_a_task_shows_its_cost_if_known() -> None:
    for tokens, used, text in (
        (None, None, "unknown, not reported by the agent"),
        (3, {"input_tokens": 3}, "3 tokens, cost unknown"),
        (None, {"cost_usd": 0.00034}, "tokens unknown, $0.00034"),
    ):
        about = task(timeout_seconds=60, usage=used, tokens_used=tokens, started_at=LATER)
        assert dict(describe_task(defaultdict(lambda: None, about)))["used"] == f"this task: {text}"


def test_attention_is_short() -> None:
    failed_tasks = [{"id": f"t_{n}", "error": "boom"} for n in range(7)]
    lines = describe_attention({"failed": failed_tasks, "questions": [], "deliveries": [], "no_agent": []})
    assert lines[1] == "  t_0  boom"
    assert lines[-1] == "  ... and 2 more"
    assert describe_attention({"failed": [], "questions": [], "deliveries": [], "no_agent": []}) == [
        "Nothing needs attention."
    ]


def test_the_status_option_accepts_every_status() -> None:
    assert get_args(options.ApprovalStatus) == (*get_args(approval.Status), "all")
    assert get_args(Part) == usage.PARTS
    assert get_args(options.TaskStatus) == STATUSES
    assert get_args(options.HandoffStatus) == get_args(handoff.Status)
    assert get_args(TokenRole) == get_args(identity.TokenRole)


def test_since_is_a_duration_or_a_time() -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert parse_moment("7d", now) == now - timedelta(days=7)
    assert parse_moment("2026-02-01T08:00+01:00", now) == datetime(2026, 2, 1, 7, tzinfo=UTC)
    assert parse_moment("2026-02-01", now) == datetime(2026, 2, 1).astimezone()
    for wrong in ("yesterday", "2026-13-01", "99999999999w", ""):
        with pytest.raises(InvalidInput, match="--since"):
            parse_moment(wrong, now)


def test_unknown_usage_is_shown_as_unknown(capsys) -> None:
    usage: Any = {
        "tasks": 2, "done": 1, "failed": 1, "cancelled": 0, "untold": 1, "unpriced": 2, "seconds": 90.0,
        "input_tokens": 1200, "output_tokens": None, "cost_usd": None,
    }  # fmt: skip
    rows = [{"day": "2026-03-01", **usage}, {"day": "2026-03-02", **usage, "cost_usd": 0.004, "input_tokens": None}]
    total = {**usage, "tasks": 4, "cost_usd": 0.004}
    output.say(
        describe_usage({"since": "2026-03-01T00:00:00Z", "by": ["day"], "rows": rows, "total": total, "left_off": 3})
    )  # type: ignore[typeddict-item]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["DAY", "TASKS", "DONE", "FAILED", "CANCELLED", "TIME", "IN", "OUT", "COST"]
    assert lines[2].split() == ["2026-03-01", "2", "1", "1", "0", "90s", "1200", "unknown", "unknown"]
    assert lines[3].split()[-3:] == ["unknown", "unknown", "$0.0040"]
    assert lines[4].split()[:2] == ["total", "4"]
    assert lines[5:] == ["and 3 more rows", "No usage reported for 1 of 4 tasks; no cost reported for 1 of 4 tasks."]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (b"one\n\n  two \r\nlast", ["one", "two", "last"]),
        ("é \\\nü\n\xff\n".encode("latin-1"), ["\ufffd \n\ufffd", "\ufffd"]),
        (b"never ended \\\n", ["never ended"]),
        (b"", []),
    ],
)
def test_typed_lines_are_read(typed: bytes, said: list[str]) -> None:
    code = (
        "import asyncio; from midwatch.cli.questions import read_lines\n"
        "async def all(): return [line async for line in read_lines()]\n"
        "print(ascii(asyncio.run(all())))"
    )
    result = subprocess.run([sys.executable, "-c", code], input=typed, capture_output=True, check=True)
    assert result.stdout.decode().strip() == ascii(said)


def test_a_deadline_has_the_offset_of_its_zone() -> None:
    assert goal.parse_deadline(None, None) == {}
    assert goal.parse_deadline("2026-07-01T09:00", "Europe/Berlin") == {"deadline": "2026-07-01T09:00:00+02:00"}
    assert goal.parse_deadline("2026-07-01T09:00Z", "Asia/Tokyo") == {"deadline": "2026-07-01T18:00:00+09:00"}
    with pytest.raises(InvalidInput, match="tomorrow 09:00"):
        goal.parse_deadline("48h", "UTC")


def test_choices_of_automations_and_goals_match_the_domain() -> None:
    assert get_args(options.AutomationStatus) == (*get_args(automations.Status), "all")
    assert get_args(options.GoalStatus) == (*get_args(goals.Status), "all")


def test_the_state_of_a_spent_budget_is_that_of_the_console() -> None:
    account: Any = {"scope": "task", "question": None, "open": False, "limits": {"steps": 2}, "steps": 2}
    assert budgets.describe_state(account) == "spent"
    assert budgets.describe_state({**account, "steps": 1}) == "ended"
    assert budgets.describe_state({**account, "question": "a_1"}) == "asks"


def test_a_paused_goal_names_the_command_that_raises_a_spent_limit() -> None:
    paused: Any = {"id": "g_1", "max_steps": 0, "step": 9, "max_tokens": 0, "tokens": 9, "max_usd": 5, "usd": None}
    resume = "Resume it: midwatch goal resume g_1"
    assert goal.suggest_resume({**paused, "max_seconds": 10, "seconds": 9}) == resume
    raised = goal.suggest_resume({**paused, "max_seconds": 10, "seconds": 11})
    assert raised == f"Raise it: midwatch goal edit g_1 --max-time MORE\n{resume}"


def test_a_run_is_shown_as_a_row() -> None:
    run = {
        "task_id": "t_1", "scheduled_for": None, "status": "done", "outcome": "ok", "error": None, "result": "a\n b",
        "started_at": "2026-03-01T08:00:00Z", "completed_at": "2026-03-01T08:05:00Z",
        "usage": {"input_tokens": 2, "output_tokens": 3, "model": "m"},
    }  # fmt: skip
    assert automation.make_run_row(run)[:2] + automation.make_run_row(run)[3:] == ("t_1", "-", "5m", "ok", 5, "a b")
    waits = {**run, "status": "pending", "outcome": None, "started_at": None, "completed_at": None, "usage": None}
    assert automation.make_run_row(waits)[2:6] == ("-", "-", "pending", None)


@pytest.mark.parametrize("task", ["", "t_1/1"])
def test_only_an_agent_uses_its_own_token(task: str, monkeypatch) -> None:
    monkeypatch.setenv("MIDWATCH_TASK", task)
    monkeypatch.setenv("MIDWATCH_TOKEN", "secret")
    assert find_attempt_token() == ("secret" if task else None)


def test_the_last_log_line_of_a_failed_server_start_is_shown(tmp_path) -> None:
    log = tmp_path / "log"
    log.write_text("before\nstarting\nmidwatch: no\n\n")
    assert last_line(log, len("before\n")) == "midwatch: no"
    assert "wrote nothing" in last_line(log, log.stat().st_size)


def test_a_large_paste_is_sent_in_pieces() -> None:
    pasted = "ü\0" * 70_000
    pieces = attach.split_keys(pasted)
    assert "".join(KeysBody(keys=piece).keys for piece in pieces) == pasted
    assert attach.split_keys("") == []


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (
            ("Yes, proceed (y)", "No, and tell it what to do (esc)"),
            "Type yes or no. After no you may write the reason.",
        ),
        (("Allow once", "Reject"), "Type Allow once or Reject. After Reject you may write the reason."),
    ],
)
def test_yes_and_no_answer_every_question_with_one_choice_for_each(names: tuple[str, str], hint: str) -> None:
    allow, deny = ({"name": name, "kind": kind} for name, kind in zip(names, questions.ONCE, strict=True))
    always = {"name": "Yes, always", "kind": "allow_always"}
    words = dict(questions.short_answers([allow, always, deny]))
    assert words == {"yes": allow, "y": allow, "no": deny, "n": deny}
    assert questions.explain_choices([allow, always, deny]) == hint
    assert questions.short_answers([allow, {"name": "Yes, later", "kind": "allow_once"}, deny]) == []


def test_the_answers_of_a_question_with_several_choices_are_named() -> None:
    def describe(*names: str) -> str:
        choices = [{"name": name, "kind": "allow_once"} for name in names] + [{"name": "stop", "kind": "reject_once"}]
        question: Any = {"id": "q_1", "question": "The budget is spent.", "choices": choices}
        return suggest_answers(question).partition("midwatch deny q_1")[2]

    assert describe("go on") == ""
    expected = "All answers: go on, wind up, stop. For example: midwatch approve q_1 --choice 'wind up'"
    assert describe("go on", "wind up") == f"\n{expected}"
