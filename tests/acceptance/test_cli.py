"""Test the program as people use it: real processes, a home for each test, real signals."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands import run
from servers import poll_until

PROGRAM = Path(sys.executable).with_name("midwatch")
CONFIG = """
port = 0
detect_agents = false

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
timeout = "10m"
on_crash = "rerun"
slots = 4

[agents.asks]
kind = "function"
target = "asking:work"
"""
ASKING = """
from midwatch.domain.agent import Choice, Question


def work(prompt, turn):
    choices = (Choice("Reject", "reject_once"), Choice("Allow", "allow_once"))
    asked = Question(text="May I?", kind="execute", command=prompt, diff="-old\\n+new\\n", choices=choices)
    return turn.ask(asked).choice
"""
PATIENCE = 120.0


class Desk:
    """A home directory and the commands run on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.work = home.parent
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("MIDWATCH_", "PYTHON"))}
        self.env["MIDWATCH_HOME"] = str(home)

    def prepare(self) -> "Desk":
        self.home.mkdir(parents=True)
        (self.home / "asking.py").write_text(ASKING)
        (self.home / "midwatch.toml").write_text(f"{CONFIG}path = [{json.dumps(str(self.home))}]\n")
        return self

    def __call__(self, *arguments: str, **more) -> subprocess.CompletedProcess[str]:
        return run(arguments, env=self.env, cwd=self.work, timeout=PATIENCE, **more)

    def json(self, *arguments: str, **more):
        done = self(*arguments, "--json", **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run_refused(self, status: int, *arguments: str) -> str:
        """Run a command that must fail with one line and return the line."""
        done = self(*arguments)
        assert done.returncode == status, (done.stdout, done.stderr)
        assert done.stdout == ""
        assert done.stderr.startswith("midwatch: ")
        assert done.stderr.count("\n") == 1
        assert done.stderr.rstrip().endswith(".")
        return done.stderr

    def start(self, *arguments: str, **more) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, *arguments], env=self.env, cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, **more,
        )  # fmt: skip

    @contextmanager
    def up(self) -> Iterator[dict]:
        """Start a server in the background and stop it at the end."""
        server = self.json("up", "--detach")
        try:
            yield server
        finally:
            self("down")

    def wait_for_end(self, task_id: str) -> dict:
        return poll_until(lambda: self.json("show", task_id), lambda task: task["status"] not in ("pending", "running"))


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "home").prepare()


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Desk]:
    """Start one server for all tests that need any server."""
    desk = Desk(tmp_path_factory.mktemp("live") / "home").prepare()
    with desk.up():
        yield desk


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> Desk:
    """Return a home that never has a server."""
    return Desk(tmp_path_factory.mktemp("offline") / "home").prepare()


@pytest.fixture(params=["live", "offline"])
def either(request) -> Desk:
    return request.getfixturevalue(request.param)


# -- with and without a server -----------------------------------------------------------------------------------------


def test_a_task_submitted_without_a_server_runs_when_one_starts(desk: Desk) -> None:
    submitted = desk("submit", "echo later", "--agent", "shell", "--json")
    assert "midwatch up" in submitted.stderr
    task_id = json.loads(submitted.stdout)["id"]
    assert "no live process has agent 'shell'" in desk.json("show", task_id)["status_text"]
    before = desk.json("status")
    assert (before["pending"], before["server"]) == (1, None)
    assert "midwatch up" in desk("status").stdout
    with desk.up() as server:
        assert desk.wait_for_end(task_id)["result"].strip() == "later"
        assert desk.json("status")["server"]["pid"] == server["pid"]
    poll_until(lambda: {"gone": has_ended(server["pid"])}, lambda state: state["gone"])
    assert desk("result", task_id).stdout.strip() == "later"


def test_show_prints_the_task(live: Desk) -> None:
    task_id = live.json(
        "submit", "echo $((6*7))", "--agent", "shell", "--timeout", "10m", "--priority", "5", "--session", "chat:1",
        "--origin-channel", "web", "--origin-session", "chat:2", "--on-crash", "fail", "--route", "console",
    )["id"]  # fmt: skip
    task = live.wait_for_end(task_id)
    expected = {
        "id": task_id, "status": "done", "status_text": "done", "outcome": "ok", "prompt": "echo $((6*7))",
        "error": None, "agent": "shell", "session_key": "chat:1", "origin_channel": "web", "origin_session": "chat:2",
        "attempt": 1, "tokens_used": None, "priority": 5, "timeout_seconds": 600.0, "on_crash": "fail",
        "workdir": str(live.work),
    }  # fmt: skip
    assert {name: task[name] for name in expected} == expected
    assert task["result"].strip() == "42"
    assert task["started_at"] < task["completed_at"]
    shown = live("show", task_id).stdout
    assert "42" in shown
    assert "unknown" in shown  # the agent reported no tokens


def test_status_prints_the_six_counts(either: Desk) -> None:
    counts = either.json("status")
    six = ("total", "pending", "running", "done", "failed", "cancelled")
    assert all(isinstance(counts[name], int) for name in six)
    assert counts["total"] == sum(counts[name] for name in six[1:])


def test_tasks_are_listed(live: Desk) -> None:
    first = live.json("submit", "echo 1", "--agent", "shell", "--session", "list:1")["id"]
    second = live.json("submit", "echo 2", "--agent", "shell", "--session", "list:1")["id"]
    live.wait_for_end(second)
    listed = live.json("tasks", "--session", "list:1")
    assert [task["id"] for task in listed["tasks"]] == [second, first]
    page = live.json("tasks", "--session", "list:1", "--limit", "1")
    assert page["next"] == second
    assert live.json("tasks", "--session", "list:1", "--before", second)["tasks"][0]["id"] == first
    lines = live("tasks", "--status", "done", "--agent", "shell").stdout.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "AGENT", "AGE", "PROMPT"]
    assert any(second in line for line in lines)


def test_the_log_is_printed_as_one_object_per_line(live: Desk) -> None:
    task_id = live.json("submit", "echo logged", "--agent", "shell")["id"]
    live.wait_for_end(task_id)
    events = [json.loads(line) for line in live("events", "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all({"seq", "kind", "time", "task_id", "payload"} <= set(event) for event in events)
    mine = live("events", "--json", "--task", task_id, "--kind", "task_finished").stdout.splitlines()
    assert [json.loads(line)["payload"]["result"].strip() for line in mine] == ["logged"]
    turn = [
        json.loads(line)
        for line in live("events", "--json", "--turn", f"{task_id}.1", "-k", "turn_*").stdout.split("\n")[:-1]
    ]
    assert [event["kind"] for event in turn] == ["turn_start", "turn_end"]
    later_events = [json.loads(line) for line in live("events", "--json", "--after", "3").stdout.splitlines()]
    assert later_events[0]["seq"] == 4
    assert task_id in live("events", "--task", task_id).stdout


def test_a_prompt_is_read_from_standard_input(live: Desk) -> None:
    task_id = live.json("submit", "-", "--agent", "shell", said="echo one\necho two\n")["id"]
    assert live.wait_for_end(task_id)["result"].split() == ["one", "two"]


def test_a_budget_stops_a_task_and_a_larger_one_continues_it(live: Desk) -> None:
    assert "a budget has no token" in live.run_refused(2, "submit", "x", "--budget", "token=5")
    task_id = live.json("submit", "sleep 300", "--agent", "shell", "--budget", "seconds=0.5,tokens=900")["id"]
    assert live.wait_for_end(task_id)["outcome"] == "budget"
    shown = live("show", task_id).stdout
    assert f"midwatch retry {task_id} --budget tokens=900,seconds=" in shown
    assert "0 of 900 tokens" in shown and "People could not be asked, because agent shell cannot resume" in shown
    again = live("run", "sleep 300", "--agent", "shell", "--budget", "seconds=0.3")
    assert (again.returncode, again.stdout) == (1, "")
    assert re.search(
        "People could not be asked, .*; try again with `midwatch retry t_.* --budget seconds=", again.stderr
    )
    told = json.loads(live("run", "sleep 300", "--agent", "shell", "--budget", "seconds=0.3", "--json").stdout)
    assert re.fullmatch(rf"midwatch retry {told['id']} --budget seconds=[0-9.]+", told["try_again"])
    assert f"midwatch retry {task_id} --budget" in live.run_refused(4, "retry", task_id)
    more = live.json("retry", task_id, "--budget", "seconds=1h")
    assert (more["retry_of"], more["budget"]["seconds"], more["budget"]["tokens"]) == (task_id, 3600.0, 900)
    live("cancel", more["id"])
    live.wait_for_end(more["id"])


def test_a_task_is_cancelled_and_retried(live: Desk) -> None:
    task_id = live.json("submit", "sleep 300", "--agent", "shell")["id"]
    poll_until(lambda: live.json("show", task_id), lambda task: task["status"] == "running")
    assert "stopped" in live("cancel", task_id).stdout
    assert live.wait_for_end(task_id)["outcome"] == "cancelled"
    retried = live.json("retry", task_id)
    assert retried["retry_of"] == task_id
    assert live.json("cancel", retried["id"])["id"] == retried["id"]
    live.wait_for_end(retried["id"])
    assert re.search(rf"^source +retry\ncaused by +{task_id}\.1$", live("show", retried["id"]).stdout, re.M)
    kinds = [line.split()[3] for line in live("events", "--tree", task_id, "--kind", "task_s*").stdout.splitlines()]
    assert kinds[:2] == ["task_submitted", "task_started"] and kinds.count("task_submitted") == 2
    for more in ((), ("--follow",), ("--before", "9")):
        assert (
            live.run_refused(3, "events", "--tree", "t_none", *more) == "midwatch: there is no task or goal 't_none'.\n"
        )


def test_submitting_the_same_key_twice_makes_one_task(either: Desk) -> None:
    arguments = ("submit", "echo once", "--agent", "shell", "--key", "k1", "--delay", "1h")
    assert either.json(*arguments)["id"] == either.json(*arguments)["id"]
    assert "a different request" in either.run_refused(4, "submit", "echo twice", "--agent", "shell", "--key", "k1")


def test_questions_are_answered_on_the_command_line(live: Desk) -> None:
    for command, choice in (("approve", "yes"), ("deny", "no")):
        task_id = live.json("submit", "demo:ask", "--agent", "demo")["id"]
        waiting = poll_until(lambda: live.json("show", task_id), lambda task: task["wait"] == "approval")  # noqa: B023
        assert "waits for an answer" in waiting["status_text"]
        find_question = next(
            approval for approval in live.json("approvals")["approvals"] if approval["task_id"] == task_id
        )
        assert find_question["id"] in live("show", task_id).stdout
        assert find_question["id"] in live("status").stdout
        assert live.json(command, find_question["id"], "--why", "because")["answer"] == choice
        assert f"the answer was: {choice}" in live.wait_for_end(task_id)["result"]
        live.run_refused(4, command, find_question["id"])
    assert "No questions" in live("approvals").stdout


def test_an_always_rule_is_made_and_revoked(live: Desk) -> None:
    def find_question() -> dict:
        live.json("submit", "git status", "--agent", "asks", "--workdir", str(live.work))
        return poll_until(lambda: live.json("approvals")["approvals"], bool)[0]

    first = find_question()
    listed, shown = live("approvals").stdout, live("approval", first["id"]).stdout
    assert "git status" in listed and "medium" in listed and "execute" in listed and "in 12h" in listed
    assert "always allow `git status` for asks" in shown and "+new" in shown
    assert live.json("approval", first["id"])["diff"] == "-old\n+new\n"
    assert "always allow" in live("approve", first["id"], "--always").stdout
    live.wait_for_end(first["task_id"])
    again = live.json("submit", "git status", "--agent", "asks", "--workdir", str(live.work))["id"]
    assert live.wait_for_end(again)["result"] == "Allow"
    (rule,) = live.json("rules")["rules"]
    assert rule["id"] in live("rules").stdout and rule["approval_id"] == first["id"]
    assert "revoked" in live("rules", "revoke", rule["id"]).stdout
    assert "No rules" in live("rules").stdout
    assert "was allow" in live("rules", "--all").stdout
    live.run_refused(4, "rules", "revoke", rule["id"])
    live.run_refused(3, "rules", "revoke", "r_none")
    second = find_question()
    approval = live.json("deny", second["id"], "--always", "--why", "never")
    assert (approval["status"], approval["why"]) == ("denied", "never")
    assert live.wait_for_end(second["task_id"])["result"] == "Reject"
    live.json("rules", "revoke", live.json("rules")["rules"][0]["id"])
    plain = live.json("submit", "demo:ask", "--agent", "demo")["id"]
    question = poll_until(lambda: live.json("approvals")["approvals"], bool)[0]
    assert "answer without `always`" in live.run_refused(2, "approve", question["id"], "--always")
    live("deny", question["id"])
    live.wait_for_end(plain)


def test_agents_version_and_doctor_print_their_reports(either: Desk) -> None:
    listed = {agent["name"]: agent for agent in either.json("agents")["agents"]}
    assert set(listed) == {"demo", "shell", "asks"}
    assert listed["shell"]["slots"] == 4
    assert (listed["shell"]["kind"], listed["shell"]["timeout"], listed["shell"]["on_crash"]) == (
        "command", 600.0, "rerun",
    )  # fmt: skip
    assert "shell" in either("agents").stdout
    version = either.json("version")["version"]
    assert either("version").stdout.strip() == either("--version").stdout.strip() == version
    module = subprocess.run([sys.executable, "-m", "midwatch", "version"], capture_output=True, text=True, check=True)
    assert module.stdout.strip() == version
    checked = either.json("doctor")
    assert checked["ok"]
    assert {"home", "disk", "token", "server", "configuration", "database"} <= {
        check["what"] for check in checked["checks"]
    }


def test_attention_lists_failed_tasks(live: Desk) -> None:
    task_id = live.json("submit", "echo broken >&2; exit 3", "--agent", "shell")["id"]
    assert live.wait_for_end(task_id)["status"] == "failed"
    assert task_id in [task["id"] for task in live.json("status")["attention"]["failed"]]
    assert task_id in live("status").stdout
    assert f"midwatch retry {task_id}" in live("show", task_id).stdout
    live.run_refused(4, "result", task_id)


# -- run -----------------------------------------------------------------------------------------------------------


def test_run_prints_the_result_and_exits_with_its_status(either: Desk) -> None:
    done = either("run", "echo words", "--agent", "shell")
    assert (done.returncode, done.stdout.strip()) == (0, "words")
    assert " done" in done.stderr
    failed = either("run", "exit 7", "--agent", "shell")
    assert failed.returncode == 1
    assert "midwatch retry" in failed.stderr
    completed = either("run", "echo words", "--agent", "shell", "--json")
    assert json.loads(completed.stdout)["result"].strip() == "words"
    assert completed.stderr == ""
    assert either("run", "sleep 300", "--agent", "shell", "--timeout", "200ms").returncode == 1


def test_an_interrupted_run_continues_on_the_server(live: Desk) -> None:
    runner = live.start("run", "sleep 300", "--agent", "shell")
    task_id = read_task_id(runner)
    runner.send_signal(signal.SIGINT)
    _, errors = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 130
    assert f"midwatch cancel {task_id}" in errors
    assert live.json("show", task_id)["status"] == "running"
    live("cancel", task_id)
    live.wait_for_end(task_id)


def test_an_interrupted_run_without_a_server_is_cancelled(offline: Desk) -> None:
    runner = offline.start("run", "echo $$ > pid; exec sleep 300", "--agent", "shell")
    task_id = read_task_id(runner)
    pid_file = offline.work / "pid"
    poll_until(lambda: {"pid": pid_file.exists() and pid_file.read_text()}, lambda state: bool(state["pid"]))
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 130
    assert offline.json("show", task_id)["outcome"] == "cancelled"
    assert has_ended(int(pid_file.read_text()))


def read_task_id(runner: subprocess.Popen[str]) -> str:
    """Return the id of the task that a `run` has started."""
    assert runner.stderr is not None
    task_id = runner.stderr.readline().split()[0]
    assert runner.stderr.readline().startswith("started")
    return task_id


# -- following -----------------------------------------------------------------------------------------------------


def test_the_log_is_followed_until_interrupted(either: Desk) -> None:
    follower = either.start("events", "--follow", "--json", "--kind", "task_finished")
    try:
        task_id = json.loads(either("run", "echo seen", "--agent", "shell", "--json").stdout)["id"]
        assert follower.stdout is not None
        while json.loads(follower.stdout.readline())["task_id"] != task_id:
            pass
    finally:
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=PATIENCE)
    assert (follower.returncode, errors) == (130, "")


def test_a_reader_that_closes_the_pipe_is_no_error(live: Desk) -> None:
    for _ in range(3):
        live("run", "echo x", "--agent", "shell")
    cut = subprocess.run(
        ["sh", "-c", f"{PROGRAM} events --json | head -n 1"], env=live.env, capture_output=True, text=True, check=True
    )
    assert json.loads(cut.stdout)["seq"] == 1
    assert cut.stderr == ""


# -- bad input -----------------------------------------------------------------------------------------------------


BAD_INPUT = [
    (2, ("submit", ""), "the prompt is empty"),
    (2, ("run", "  "), "the prompt is empty"),
    (2, ("submit", "x", "--agent", "nobody"), "midwatch agents"),
    (2, ("submit", "x", "--workdir", "/no/such/place"), "/no/such/place"),
    (2, ("submit", "x", "--timeout", "-5"), "timeout"),
    (2, ("submit", "x", "--timeout", "0"), "timeout"),
    (2, ("submit", "x", "--timeout", "soon"), "is not a duration"),
    (2, ("submit", "x", "--priority", "101"), "priority"),
    (2, ("submit", "x", "--on-crash", "panic"), "on_crash"),
    (2, ("submit", "x", "--route", "nowhere"), "use one of"),
    (2, ("tasks", "--status", "sleeping"), "status"),
    (2, ("tasks", "--limit", "0"), "limit"),
    (2, ("events", "--kind", "nonsense"), "known kinds"),
    (2, ("events", "--kind", "nonsense_*"), "known kinds"),
    (3, ("show", "t_no"), "midwatch tasks"),
    (3, ("result", "t_no"), "midwatch tasks"),
    (3, ("cancel", "t_no"), "midwatch tasks"),
    (3, ("retry", "t_no"), "midwatch tasks"),
    (3, ("approve", "a_no"), "midwatch approvals"),
    (3, ("deny", "a_no"), "midwatch approvals"),
]


def test_bad_input_prints_one_line_and_changes_nothing(either: Desk) -> None:
    before = either.json("status")["total"]
    for status, arguments, says in BAD_INPUT:
        assert says in either.run_refused(status, *arguments), arguments
    assert either.json("status")["total"] == before


def test_a_finished_task_cannot_be_cancelled_and_an_open_task_has_no_result(either: Desk) -> None:
    task_id = either.json("submit", "echo x", "--agent", "shell", "--delay", "1h")["id"]
    assert task_id in either.run_refused(4, "result", task_id)
    assert "first cancel it" in either.run_refused(4, "retry", task_id)
    assert either.json("cancel", task_id)["status"] == "cancelled"
    assert "already cancelled" in either.run_refused(4, "cancel", task_id)


def test_errors_are_printed_as_json_on_request(either: Desk) -> None:
    done = either("show", "t_no", "--json")
    assert (done.returncode, done.stdout) == (3, "")
    assert json.loads(done.stderr)["error"]["code"] == "not_found"


def test_submitting_above_max_open_is_refused(desk: Desk) -> None:
    desk.env["MIDWATCH_MAX_OPEN"] = "1"
    desk.json("submit", "echo 1", "--agent", "shell")
    desk.run_refused(5, "submit", "echo 2", "--agent", "shell")


@pytest.mark.parametrize("home", ["file/home", "/proc/midwatch"])
def test_an_unusable_home_is_reported(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    desk = Desk(tmp_path / home)
    desk.work = tmp_path
    for arguments in (("submit", "x"), ("run", "x"), ("status",), ("up",), ("up", "-d"), ("events",)):
        assert "MIDWATCH_HOME" in desk.run_refused(7, *arguments)
    checked = desk("doctor")
    assert checked.returncode == 1
    assert checked.stdout.startswith("bad ")


@pytest.mark.parametrize("arguments", [("submit", "x"), ("status",), ("up",)])
def test_a_damaged_database_is_reported_and_not_changed(desk: Desk, arguments: tuple[str, ...]) -> None:
    database = desk.home / "midwatch.db"
    database.write_bytes(b"this is no database" * 1000)
    assert "midwatch.db" in desk.run_refused(7, *arguments)
    assert database.read_bytes() == b"this is no database" * 1000
    assert desk("doctor").returncode == 1


@pytest.mark.parametrize("arguments", [("submit", "x"), ("up",)])
def test_a_newer_database_is_reported_and_not_changed(desk: Desk, arguments: tuple[str, ...]) -> None:
    desk.json("submit", "echo x", "--agent", "shell")
    with sqlite3.connect(desk.home / "midwatch.db") as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    assert "newer" in desk.run_refused(7, *arguments)


@pytest.mark.parametrize("text", ["port = 'x'", "prot = 1", "[agents.x]\nkind = 'nonsense'", "= broken"])
def test_a_wrong_configuration_is_reported(desk: Desk, text: str) -> None:
    (desk.home / "midwatch.toml").write_text(text)
    for arguments in (("submit", "x"), ("up",)):
        desk.run_refused(2, *arguments)
    assert desk("doctor").returncode == 1


def test_a_stream_that_was_not_understood_is_kept_and_told(desk: Desk, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "package.json").write_text('{"version": "9.9.9"}')
    tests = Path(__file__).parents[1]
    program, recording = package / "claude", tests / "recordings/headless/claude/work.jsonl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tests}/fakes/cli_agent.py cut {recording} "$LINES" "$@"\n')
    program.chmod(0o755)
    with (desk.home / "midwatch.toml").open("a") as settings:
        settings.write(f'[agents.claude]\nkind = "headless"\nargv = [{json.dumps(str(program))}]\n')
    desk.env["LINES"] = "20"
    failed = json.loads(desk("run", "x", "--agent", "claude", "--json").stdout)
    assert (failed["status"], failed["outcome"]) == ("failed", "error")
    assert "the stream of claude 2.1.325 was not understood: it has no final event" in failed["error"]
    assert failed["result"].startswith("The tool said: one\ntwo")
    checked = desk("doctor")
    assert checked.returncode == 1
    told = f"agent claude: 1 of its turns was not understood in the last 7 days, the last: {failed['id']}"
    assert f"bad   {told}" in checked.stdout
    assert "agent claude: version 9.9.9 is newer than 2.1.325, the newest tested one" in checked.stdout
    desk.env["LINES"] = "1000"
    assert desk.json("run", "x", "--agent", "claude")["outcome"] == "ok"
    assert f"warn  {told}" in desk("doctor").stdout


def test_a_full_disk_loses_nothing(desk: Desk) -> None:
    task_id = desk.json("submit", "echo kept", "--agent", "shell", "--delay", "1h")["id"]
    limited = ["sh", "-c", f"ulimit -f 400; exec {PROGRAM} submit - --agent shell"]  # in blocks of 512 or 1024 bytes
    done = subprocess.run(limited, env=desk.env, input="x" * 900_000, capture_output=True, text=True, cwd=desk.work)
    assert done.returncode == 7
    assert done.stderr.startswith("midwatch: ")
    assert done.stderr.count("\n") == 1
    assert [task["id"] for task in desk.json("tasks")["tasks"]] == [task_id]
    assert desk.json("doctor")["ok"]


# -- the server ----------------------------------------------------------------------------------------------------


def test_a_second_server_is_refused_with_the_first_ones_pid(desk: Desk) -> None:
    with desk.up() as server:
        for arguments in (("up",), ("up", "--detach"), ("up", "--port", "0")):
            error = desk.run_refused(4, *arguments)
            assert f"pid {server['pid']}" in error
            assert "midwatch down" in error
    assert "nothing to stop" in desk.run_refused(8, "down")


def test_a_port_in_use_is_reported(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        for arguments in (("up", "--port", port), ("up", "--detach", "--port", port)):
            error = desk.run_refused(4, *arguments)
            assert port in error
            assert "--port" in error
    with desk.up():
        assert desk.json("status")["total"] == 0


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP,)])
def test_a_server_stops_cleanly_and_its_tasks_continue_at_the_next_start(desk: Desk, signals: tuple[int, ...]) -> None:
    (desk.home / "midwatch.toml").write_text("shutdown_grace = 0.5\n" + CONFIG)
    server = desk.start("up", "--json")
    assert server.stdout is not None
    info = json.loads(server.stdout.readline())
    assert (info["pid"], info["home"]) == (server.pid, str(desk.home))
    follower = desk.start("events", "--follow", "--json")
    script = "if [ -e again ]; then echo second; else touch again; exec sleep 300; fi"
    task_id = desk.json("submit", script, "--agent", "shell")["id"]
    poll_until(lambda: {"begun": (desk.work / "again").exists()}, lambda state: state["begun"])
    seqs = [next_event(follower)["seq"]]
    for number in signals:
        server.send_signal(number)
    _, errors = server.communicate(timeout=PATIENCE)
    assert server.returncode == 0, errors
    assert "Traceback" not in errors
    assert desk.json("show", task_id)["status"] == "pending"
    with desk.up():
        assert desk.wait_for_end(task_id)["result"].strip() == "second"
        event = {"kind": ""}
        while event["kind"] != "task_finished":
            event = next_event(follower)
            seqs.append(event["seq"])
        assert seqs == list(range(1, len(seqs) + 1))  # the follower found the new server and missed nothing
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=PATIENCE)


def next_event(follower: subprocess.Popen[str]) -> dict:
    assert follower.stdout is not None
    return json.loads(follower.stdout.readline())


def test_a_killed_server_is_not_reported_as_running(desk: Desk) -> None:
    with desk.up() as server:
        os.kill(server["pid"], signal.SIGKILL)
        poll_until(lambda: {"gone": has_ended(server["pid"])}, lambda state: state["gone"])
        assert desk.json("status")["server"] is None
        assert "it has ended" in desk("doctor").stdout
        task_id = desk.json("submit", "echo on", "--agent", "shell")["id"]
        desk.run_refused(8, "down")
        with desk.up():
            assert desk.wait_for_end(task_id)["result"].strip() == "on"


def test_tasks_are_accepted_while_the_server_is_suspended(desk: Desk) -> None:
    with desk.up() as server:
        os.kill(server["pid"], signal.SIGSTOP)
        try:
            task_id = desk.json("submit", "echo patient", "--agent", "shell")["id"]
        finally:
            os.kill(server["pid"], signal.SIGCONT)
        assert desk.wait_for_end(task_id)["result"].strip() == "patient"


def test_a_wrong_token_is_reported(desk: Desk) -> None:
    with desk.up():
        (desk.home / "token").write_text("something else\n")
        assert "token" in desk.run_refused(6, "status")
        assert desk("doctor").returncode == 1


def test_a_token_file_readable_by_others_is_reported(offline: Desk) -> None:
    offline.json("status")
    token = offline.home / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    token.chmod(0o644)
    try:
        assert "chmod 600" in offline("doctor").stdout
    finally:
        token.chmod(0o600)


def test_a_desk_that_runs_as_root_is_warned_of_it(desk: Desk) -> None:
    warning = "midwatch runs as root, so an agent without a sandbox can read and change everything"
    as_root = os.geteuid() == 0
    checks = {check["what"]: check for check in desk.json("doctor")["checks"]}
    assert ("user" in checks) == as_root
    with desk.up():
        assert desk.json("doctor")["ok"]
    if as_root:
        assert warning in checks["user"]["told"] and "user of its own" in checks["user"]["remedy"]
    assert (f"WARNING midwatch.runtime.serve: {warning}" in (desk.home / "log" / "midwatch.log").read_text()) == as_root


def test_the_server_prints_the_next_steps(desk: Desk) -> None:
    server = desk.start("up")
    assert server.stdout is not None
    lines = [server.stdout.readline() for _ in range(4)]
    server.send_signal(signal.SIGTERM)
    lines += server.communicate(timeout=PATIENCE)[0].splitlines()
    assert "listens on http://127.0.0.1:" in lines[0]
    assert "demo, shell" in lines[1]
    assert any("midwatch run" in line for line in lines)
