"""Test automations and goals on the command line, with and without a server, and an agent that uses its own token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from commands import run
from midwatch.wire.automations import AutomationInfo
from midwatch.wire.goals import SavedGoal
from servers import PROGRAM, Server, environment, eventually

CONFIG = f"""
detect_agents = false
default_agent = "shell"
notify = "console"
calendars = {{ holidays = {{ days = ["2026-03-30..2026-04-06"] }} }}

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{{prompt}}"]

[agents.talker]
kind = "command"
argv = ["sh", "-c", "echo thread: 1"]
resume_argv = ["sh", "-c", "echo again"]
thread_pattern = "thread: (.*)"

[agents.claimer]
kind = "command"
argv = ["sh", "-c", "{PROGRAM} goal complete --evidence 'it is so'"]

[agents.passer]
kind = "function"
target = "passer:run"
path = "HOME"

[agents.sleeper]
kind = "command"
argv = ["sh", "-c", "{PROGRAM} goal delay 30m 'the build runs'; echo slept"]

[agents.intruder]
kind = "command"
argv = ["sh", "./intrude.sh"]

[agents.doubter]
kind = "command"
argv = ["sh", "-c", "test -e proof && echo REACHED || {{ touch proof; echo NOT REACHED: no proof; }}"]
"""
PASSER = """
def run(prompt, turn):
    return turn.transfer("claimer")
"""
INTRUDE = f"""
{PROGRAM} goal complete "$(cat other)" --evidence x --json
echo "other goal: $?" >&2
{PROGRAM} submit "echo free" --json
echo "submit: $?" >&2
{PROGRAM} automation add "echo free" --every 1h --json
echo "automation: $?" >&2
{PROGRAM} goal pause "$MIDWATCH_GOAL" --json
echo "pause: $?" >&2
{PROGRAM} goal complete --json
echo "no evidence: $?" >&2
{PROGRAM} goal show --json
exit 1
"""
PATIENCE = 120.0


class Desk:
    """A home and the commands run on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.work = home.parent

    def __call__(self, *arguments: str, said: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return run(arguments, env=environment(self.home, **env), cwd=self.work, said=said, timeout=PATIENCE)

    def run_json(self, *arguments: str, **more: Any) -> dict[str, Any]:
        ran = self(*arguments, "--json", **more)
        assert ran.returncode == 0, ran.stderr
        output: dict[str, Any] = json.loads(ran.stdout)
        return output

    def run_refused(self, status: int, *arguments: str, **more: Any) -> str:
        """Run a command that must fail with one line and return the line."""
        ran = self(*arguments, **more)
        assert (ran.returncode, ran.stdout) == (status, ""), ran.stderr
        assert ran.stderr.startswith("midwatch: ")
        assert ran.stderr.count("\n") == 1
        assert ran.stderr.rstrip().endswith((".", "?"))
        return ran.stderr

    async def until(self, read: Callable[[], dict[str, Any]], good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the result of `read` once `good` accepts it."""
        reply: dict[str, Any] = {}

        def check() -> bool:
            nonlocal reply
            reply = read()
            return good(reply)

        assert await eventually(check, PATIENCE), reply
        return reply


@pytest.fixture
def offline(home: Path) -> Desk:
    """Return a home without a server."""
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG.replace("HOME", str(home)))
    (home / "passer.py").write_text(PASSER)
    (home.parent / "intrude.sh").write_text(INTRUDE)
    return Desk(home)


@pytest.fixture
async def served(offline: Desk) -> AsyncIterator[Desk]:
    server = Server(offline.home, MIDWATCH_SHUTDOWN_GRACE="0")
    await server.start()
    yield offline
    await server.stop()


@pytest.fixture(params=["with a server", "without a server"])
async def either(request: pytest.FixtureRequest, offline: Desk) -> AsyncIterator[Desk]:
    if request.param == "without a server":
        yield offline
        return
    server = Server(offline.home, MIDWATCH_SHUTDOWN_GRACE="0")
    await server.start()
    yield offline
    await server.stop()


# -- automations -------------------------------------------------------------------------------------------------------


async def test_an_automation_is_added_paused_resumed_and_deleted(either: Desk) -> None:
    assert "midwatch automation add" in either("automation", "list").stdout
    ran = either(
        "automation", "add", "--cron", "0 9 * * *", "--tz", "Europe/Berlin", "--agent", "shell", "--json", "echo it"
    )
    automation = json.loads(ran.stdout)
    assert ("midwatch up" in ran.stderr) == (either.run_json("status")["server"] is None)
    assert set(automation) == set(AutomationInfo.__annotations__)
    key = automation["id"]
    assert (automation["prompt"], automation["status"], automation["agent"], automation["workdir"]) == (
        "echo it",
        "active",
        "shell",
        str(either.work),
    )
    assert automation["schedule"] == {"cron": "0 9 * * *", "zone": "Europe/Berlin"}
    assert len(automation["next_runs"]) == 5
    assert all("T09:00:00+0" in moment for moment in automation["next_runs"])
    assert either.run_json("automation", "show", key) == automation
    assert either.run_json("automation", "list")["automations"] == [automation]
    shown = either("automation", "show", key).stdout
    assert all(text in shown for text in (key, "at 09:00 every day (Europe/Berlin)", automation["next_runs"][4]))

    edited = either.run_json(
        "automation", "edit", key, "--title", "Morning", "--every", "24h", "--tag", "a", "--max-runs", "2"
    )
    assert (edited["title"], edited["schedule"]["every"], edited["tags"], edited["max_runs"]) == (
        "Morning",
        86400,
        ["a"],
        2,
    )
    assert edited["zone"] == "Europe/Berlin"
    cleared = either.run_json("automation", "edit", key, "--title", "", "--tag", "", "--route", "")
    assert (cleared["title"], cleared["tags"], cleared["route"], cleared["max_runs"]) == ("", [], None, 2)
    assert "revision" in either.run_refused(4, "automation", "edit", key, "--title", "x", "--revision", "0")
    assert "every 1d" in either("automation", "list").stdout
    once = either.run_json("automation", "edit", key, "--at", "2998-01-01T09:00")  # in the zone of the automation
    assert once["schedule"] == {"at": "2998-01-01T08:00:00.000000Z", "zone": "Europe/Berlin"}

    assert f"midwatch automation resume {key}" in either("automation", "pause", key).stdout
    assert either.run_json("status")["automations"] == {"active": [], "paused": [key]}
    assert "Automations: 1 paused" in either("status").stdout
    assert either.run_json("automation", "show", key)["next_runs"] == []
    assert either.run_json("automation", "resume", key)["status"] == "active"

    waited = either("automation", "run", key, "--wait")
    assert (waited.returncode, waited.stdout) == (0, "it\n"), waited.stderr
    (run,) = either.run_json("automation", "history", key)["runs"]
    assert (run["outcome"], run["result"], run["scheduled_for"]) == ("ok", "it", None)
    assert run["task_id"] in either("automation", "history", key).stdout
    assert either.run_json("automation", "show", key)["run_count"] == 1

    removed = either("automation", "rm", key)
    assert f"midwatch automation resume {key}" in removed.stdout
    assert either.run_json("automation", "list")["automations"] == []
    assert [
        deleted["id"] for deleted in either.run_json("automation", "list", "--status", "deleted")["automations"]
    ] == [key]
    assert "midwatch automation resume" in either.run_refused(4, "automation", "run", key)
    assert either.run_json("automation", "resume", key)["run_count"] == 1


async def test_add_accepts_every_option(either: Desk) -> None:
    automation = either.run_json(
        "automation", "add", "echo {{date}}", "--at", "2099-03-02 09:00", "--tz", "Asia/Tokyo", "--title", "Once",
        "--timeout", "90m", "--route", "console", "--max-runs", "3", "--fresh", "--jitter", "5m", "--missed", "once",
        "--missed-window", "2h", "--quiet", "OK", "--tag", "a", "--tag", "b", "--session", "chat:1", "--on-crash",
        "rerun", "--manage-mode", "scope_all", "--workdir", ".", "--paused", "--name", "once", "--overlap", "queue",
        "--day-off", "sat", "--day-off", "holidays", "--quiet-hours", "22:00-07:00",
    )  # fmt: skip
    expected = {
        "title": "Once", "zone": "Asia/Tokyo", "timeout_seconds": 5400.0, "route": "console", "max_runs": 3,
        "fresh": True, "jitter_seconds": 300.0, "missed": "once", "missed_window": 7200.0, "quiet": "OK",
        "tags": ["a", "b"], "session_key": "chat:1", "on_crash": "rerun", "manage_mode": "scope_all",
        "name": "once", "overlap": "queue", "days_off": ["sat", "holidays"], "quiet_hours": ["22:00-07:00"],
        "status": "paused", "next_run_at": None, "prompt": "echo {{date}}", "workdir": str(either.work),
    }  # fmt: skip
    assert {name: automation[name] for name in expected} == expected
    assert automation["schedule"]["at"].endswith("T00:00:00.000000Z")
    text = either("automation", "add", "echo x", "--every", "90m").stdout.splitlines()
    assert text[0].endswith("every 1h30m, by shell")
    assert len(text) == 6
    piped = either.run_json("automation", "add", "-", "--every", "1h", said="from a pipe\n")
    assert piped["prompt"] == "from a pipe"
    assert either.run_json("automation", "show", "Once") == either.run_json("automation", "show", "once")
    twin = either("automation", "add", "other", "--every", "1h", "--title", "Once")
    assert twin.returncode == 0 and f"warning: {automation['id']} has the same title" in twin.stderr
    assert automation["id"] in either.run_refused(4, "automation", "show", "Once")
    assert automation["id"] in either.run_refused(4, "automation", "add", "x", "--every", "1h", "--name", "once")
    assert either.run_json("automation", "rm", "once")["id"] == automation["id"]
    begun = either.run_json("automation", "show", piped["id"])["schedule"]["anchor"]
    kept = either.run_json("automation", "edit", piped["id"], "--every", "2h", "--keep-anchor")
    assert kept["schedule"]["anchor"] == begun
    assert either.run_json("automation", "edit", piped["id"], "--every", "3h")["schedule"]["anchor"] > begun


async def test_an_automation_fires_on_time_with_its_own_environment(served: Desk) -> None:
    prompt = 'test -n "$MIDWATCH_TOKEN" && echo {{date}} $MIDWATCH_AUTOMATION $MIDWATCH_SESSION'
    automation = served.run_json("automation", "add", prompt, "--at", "in 1s", "--tz", "UTC")
    history = lambda: served.run_json("automation", "history", automation["id"])  # noqa: E731
    (run,) = (await served.until(history, lambda reply: any(entry["outcome"] for entry in reply["runs"])))["runs"]
    day = run["scheduled_for"].partition("T")[0]
    assert (run["outcome"], run["result"]) == ("ok", f"{day} {automation['id']} auto:{automation['id']}")
    spent = served.run_json("automation", "show", automation["id"])
    assert (spent["status"], spent["next_run_at"], spent["run_count"]) == ("paused", None, 1)
    assert "midwatch automation edit" in served.run_refused(2, "automation", "resume", automation["id"])


async def test_automations_are_exported_and_imported(either: Desk, tmp_path: Path) -> None:
    first = either.run_json("automation", "add", "echo one", "--every", "90m", "--tag", "a", "--route", "console:here")
    second = either.run_json("automation", "add", "echo two", "--cron", "@daily", "--tz", "UTC", "--paused")
    file = tmp_path / "all.json"
    file.write_text(either("automation", "export").stdout)
    assert [automation["id"] for automation in json.loads(file.read_text())["automations"]] == [
        second["id"],
        first["id"],
    ]
    assert [automation["id"] for automation in either.run_json("automation", "export", first["id"])["automations"]] == [
        first["id"]
    ]
    assert either("automation", "import", str(file)).stdout.count("skipped: it is the same here") == 2

    either.run_json("automation", "edit", first["id"], "--title", "changed", "--every", "2h")
    either.run_json("automation", "rm", second["id"])
    lines = either("automation", "import", str(file)).stdout.splitlines()
    assert lines[0].startswith(f"{second['id']} skipped: it is deleted here")
    assert lines[1] == f"{first['id']} changed"
    back = either.run_json("automation", "show", first["id"])
    assert (back["title"], back["schedule"], back["next_run_at"]) == ("", first["schedule"], first["next_run_at"])

    other_desk = Desk(tmp_path / "other" / "home")
    other_desk.home.mkdir(parents=True)
    (other_desk.home / "midwatch.toml").write_text(CONFIG)
    imported = other_desk.run_json("automation", "import", "-", said=file.read_text())["automations"]
    assert [automation["what"] for automation in imported] == ["made", "made"]
    exported = other_desk.run_json("automation", "export")["automations"]
    fields = ("id", "prompt", "schedule", "status", "tags", "route", "workdir", "next_runs", "session_key", "creator")
    assert [{name: automation[name] for name in fields} for automation in exported] == [
        {name: automation[name] for name in fields} for automation in json.loads(file.read_text())["automations"]
    ]


async def test_a_webhook_is_added_tested_and_imported(either: Desk, tmp_path: Path) -> None:
    added = either("automation", "add", "cat", "--webhook", "github", "--filter", "action = opened")
    lines = [line.split() for line in added.stdout.splitlines()]
    made, trigger, (url,), (_, secret) = lines[0][0], lines[2][1], lines[3], lines[4]
    assert url.endswith(f"/api/v1/hooks/{trigger}") and secret.startswith("whsec_")
    assert secret in either("automation", "secret", trigger).stdout
    assert either.run_json("automation", "secret", trigger, "--rotate")["secret"] != secret
    fired = either.run_json("automation", "trigger", made, "--payload", "-", said='{"action": "closed"}')
    (firing,) = either.run_json("automation", "firings", made)["firings"]
    assert (firing["id"], firing["summary"]) == (fired["id"], "by hand: closed")
    assert either.run_json("automation", "replay", firing["id"])["replay_of"] == firing["id"]
    shown = either("automation", "show", made).stdout
    assert url in shown and "by hand: closed" in shown and "whsec_" not in shown
    assert "--filter needs --webhook" in either.run_refused(2, "automation", "add", "cat", "--filter", "a = b")
    assert "cannot be read" in either.run_refused(2, "automation", "edit", made, "--webhook", "hmac", "--filter", "a")

    file = tmp_path / "all.json"
    file.write_text(either("automation", "export").stdout)
    assert "whsec_" not in file.read_text()
    assert "skipped: it is the same here" in either("automation", "import", str(file)).stdout
    either.run_json("automation", "edit", made, "--trigger", "", "--every", "2h")
    assert either.run_json("automation", "show", made)["triggers"] == []
    back, note = either("automation", "import", str(file)).stdout.splitlines()
    assert back == f"{made} changed" and "has a new secret: midwatch automation secret tr_" in note
    (again,) = either.run_json("automation", "import", str(file))["automations"]
    assert (again["what"], again["new_webhooks"]) == ("same", [])


async def test_an_invalid_import_changes_nothing(either: Desk, tmp_path: Path) -> None:
    good = either.run_json("automation", "add", "echo one", "--cron", "@daily", "--tz", "UTC")
    either.run_json("automation", "edit", good["id"], "--title", "as it is")
    fresh = {**good, "id": "am_0123456789a", "session_key": ""}
    for wrong, says in (
        ({"agent": "nobody"}, "midwatch agents"),
        ({"schedule": {"cron": "0 0 30 2 *", "zone": "UTC"}}, "never runs"),
        ({"schedule": {"cron": "@daily", "zone": "Mars"}}, "no time zone"),
        ({"schedule": {}}, "zone"),
        ({"workdir": "/no/such/place"}, "/no/such/place"),
        ({"route": "nowhere"}, "no channel"),
        ({"prompt": "  "}, "prompt"),
        ({"max_runs": 1, "run_count": 2}, "max_runs"),
        ({"id": "../x"}, "id"),
        ({"id": good["id"]}, "twice"),
    ):
        file = tmp_path / "bad.json"
        file.write_text(json.dumps({"automations": [good, {**fresh, **wrong}]}))
        assert says in either.run_refused(2, "automation", "import", str(file)), wrong
    for text in ("", "[]", "{}", '{"automations": 1}', '{"automations": [1]}', "[" * 100_000):
        (tmp_path / "bad.json").write_text(text)
        either.run_refused(2, "automation", "import", str(tmp_path / "bad.json"))
    assert "No such file" in either.run_refused(2, "automation", "import", str(tmp_path / "none.json"))
    (automation,) = either.run_json("automation", "list", "--status", "all")["automations"]
    assert (automation["id"], automation["title"]) == (good["id"], "as it is")


def test_preview_prints_the_next_runs(offline: Desk) -> None:
    args = ("automation", "preview", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2026-03-28T12:00")
    assert offline.run_json(*args, "--count", "3") == {
        "next_runs": ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00"]
    }
    every = offline.run_json(
        "automation", "preview", "--every", "24h", "--tz", "UTC", "--after", "2026-01-01", "--count", "2"
    )
    assert every == {"next_runs": ["2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"]}
    free = offline.run_json(*args, "--count", "2", "--day-off", "holidays", "--quiet-hours", "01:00-04:30")
    assert free == {"next_runs": ["2026-03-29T04:30:00+02:00", "2026-04-07T04:30:00+02:00"]}
    once = offline.run_json("automation", "preview", "--at", "in 20m", "--tz", "UTC", "--after", "2026-01-01T00:00Z")
    assert once == {"next_runs": ["2026-01-01T00:20:00+00:00"]}
    assert not (offline.home / "midwatch.db").exists()


# -- goals -------------------------------------------------------------------------------------------------------------


def notices(desk: Desk, goal_id: str) -> list[str]:
    """Return the notices about a goal itself, without those of its steps."""
    deliveries = desk.run_json("deliveries", "--limit", "200")["deliveries"]
    return [delivery["notice"] for delivery in deliveries if delivery["task_id"] == goal_id]


async def test_an_agent_completes_its_goal_with_its_own_token(served: Desk) -> None:
    goal = served.run_json("goal", "set", "reach it", "--agent", "claimer", "--deadline", "in 2h")
    assert set(goal) == set(SavedGoal.__annotations__)
    ended_goal = await served.until(
        lambda: served.run_json("goal", "show", goal["id"]), lambda shown: shown["status"] != "active"
    )
    assert (ended_goal["status"], ended_goal["evidence"], ended_goal["step"]) == ("complete", "it is so", 1)
    assert [step["outcome"] for step in ended_goal["steps"]] == ["ok"]
    assert "will be complete when this step has ended" in ended_goal["steps"][0]["result"]
    assert notices(served, goal["id"]) == ["goal_completed"]
    assert "complete" in served("goal", "list").stdout
    assert "create a new goal" in served.run_refused(4, "goal", "complete", goal["id"])
    assert notices(served, goal["id"]) == ["goal_completed"]


async def test_an_agent_that_takes_over_a_step_may_complete_the_goal(served: Desk) -> None:
    goal = served.run_json("goal", "set", "reach it", "--agent", "passer")
    ended_goal = await served.until(
        lambda: served.run_json("goal", "show", goal["id"]), lambda shown: shown["status"] != "active"
    )
    assert (ended_goal["status"], ended_goal["evidence"], ended_goal["step"]) == ("complete", "it is so", 1)
    (task,) = (candidate for candidate in served.run_json("tasks")["tasks"] if candidate["agent"] == "claimer")
    assert (task["cause"], task["outcome"]) == ("handoff", "ok")
    assert notices(served, goal["id"]) == ["goal_completed"]


async def test_an_agent_delays_its_goal(served: Desk) -> None:
    goal = served.run_json("goal", "set", "wait for it", "--agent", "sleeper", "--max-steps", "5", "--max-time", "90m")
    show = lambda: served.run_json("goal", "show", goal["id"])  # noqa: E731
    waits = await served.until(show, lambda shown: shown["step"] == 1 and not shown["running"])
    assert (waits["status"], waits["delay_reason"], waits["max_seconds"]) == ("active", "the build runs", 5400.0)
    assert waits["next_run_at"] > waits["created_at"]
    assert "the build runs" in served("goal", "show", goal["id"]).stdout
    assert served.run_json("goal", "step", goal["id"])["next_run_at"] is None
    await served.until(show, lambda shown: shown["step"] == 2 and not shown["running"])


async def test_an_agent_token_allows_nothing_but_its_goal(served: Desk) -> None:
    other_goal = served.run_json("goal", "set", "not yours", "--session", "chat:1", "--agent", "talker")
    assert other_goal["status"] == "waiting_for_session"
    (served.work / "other").write_text(other_goal["id"])
    goal = served.run_json("goal", "set", "meddle", "--agent", "intruder")
    show = lambda: served.run_json("goal", "show", goal["id"])  # noqa: E731
    failed = (await served.until(show, lambda shown: shown["errors"] == 1))["steps"][0]
    error = failed["error"]
    for line in ("other goal: 6", "submit: 6", "automation: 6", "pause: 6", "no evidence: 2"):
        assert line in error, error
    assert "only the goal that its own task works on" in error
    assert served.run_json("goal", "show", other_goal["id"])["status"] == "waiting_for_session"
    assert "echo free" not in [task["prompt"] for task in served.run_json("tasks", "--limit", "50")["tasks"]]
    assert served.run_json("automation", "list")["automations"] == []


async def test_a_second_agent_must_verify_the_goal(served: Desk) -> None:
    goal = served.run_json("goal", "set", "prove it", "--agent", "claimer", "--verifier", "doubter")
    ended_goal = await served.until(
        lambda: served.run_json("goal", "show", goal["id"], "--steps", "20"),
        lambda shown: shown["status"] == "complete",
    )
    assert ended_goal["step"] == 2
    assert len(ended_goal["steps"]) == 4  # claimed, refused, claimed again, verified
    assert notices(served, goal["id"]) == ["goal_completed"]


async def test_a_person_manages_a_goal(either: Desk) -> None:
    assert "midwatch goal set" in either("goal", "list").stdout
    of_talker = ("--session", "chat:1", "--agent", "talker")
    goal = either.run_json(
        "goal", "set", "talk first", *of_talker, "--name", "talk", "--deadline", "2999-01-01T09:00", "--tz", "UTC"
    )
    key = goal["id"]
    assert (goal["status"], goal["deadline_at"]) == ("waiting_for_session", "2999-01-01T09:00:00.000000Z")
    assert (goal["max_steps"], goal["warnings"]) == (50, [])
    assert "has an open goal" in either.run_refused(4, "goal", "set", "another", *of_talker, "--name", "talk")
    second = either.run_json("goal", "set", "another", *of_talker, "--every", "10m", "--max-steps", "0")
    assert (second["every_seconds"], second["max_steps"]) == (600.0, 0)
    assert "every 10m" in either("goal", "list", "--scope", "chat:chat:1").stdout
    assert "several goals are open" in either.run_refused(4, "goal", "show", "--scope", "chat:chat:1")
    assert "does not report its tokens" in either("goal", "edit", second["id"], "--max-tokens", "9").stderr
    either("goal", "clear", second["id"])
    assert either.run_json("goal", "show", "--scope", "chat:chat:1")["id"] == key
    assert either.run_json("goal", "show", "talk")["id"] == key
    edited = either.run_json("goal", "edit", key, "--objective", "talk", "--max-tokens", "9", "--deadline", "in 3h")
    assert (edited["objective"], edited["max_tokens"]) == ("talk", 9)
    assert edited["deadline_at"] < goal["deadline_at"]
    assert "session" in either.run_refused(4, "goal", "step", key)
    assert f"midwatch goal resume {key}" in either("goal", "pause", "talk").stdout
    assert either.run_json("status")["goals"]["paused"] == [key]
    assert "Goals: 1 paused" in either("status").stdout
    assert f"midwatch goal resume {key}" in either("goal", "show", key).stdout
    assert either.run_json("goal", "resume", key)["status"] == "waiting_for_session"
    assert [
        waiting["id"] for waiting in either.run_json("goal", "list", "--status", "waiting_for_session")["goals"]
    ] == [key]
    done = either.run_json("goal", "complete", key, "--evidence", "I saw it")
    assert (done["status"], done["evidence"]) == ("complete", "I saw it")
    again = either.run_json("goal", "set", "another", *of_talker)
    assert "is removed" in either("goal", "clear", again["id"]).stdout
    assert "midwatch goal list" in either.run_refused(3, "goal", "show", again["id"])


async def test_commands_use_the_goal_from_the_environment(either: Desk) -> None:
    goal = either.run_json("goal", "set", "x", "--session", "chat:1", "--agent", "talker")
    assert either.run_json("goal", "show", MIDWATCH_GOAL=goal["id"])["id"] == goal["id"]
    assert either.run_json("goal", "complete", MIDWATCH_GOAL=goal["id"])["status"] == "complete"
    assert "only an active goal" in either.run_refused(4, "goal", "delay", "30m", "why", MIDWATCH_GOAL=goal["id"])
    assert "midwatch goal list" in either.run_refused(2, "goal", "complete", "--evidence", "x")


# -- errors ------------------------------------------------------------------------------------------------------------

BAD_INPUT = [
    (2, ("automation", "add", "x"), "exactly one of `at`, `every` and `cron`"),
    (2, ("automation", "add", "x", "--every", "1h", "--cron", "@daily"), "exactly one of `at`, `every` and `cron`"),
    (2, ("automation", "add", "x", "--every", "10s"), "one minute"),
    (2, ("automation", "add", "x", "--every", "soon"), "90s, 10m"),
    (2, ("automation", "add", "x", "--cron", "0 0 30 2 *"), "never runs"),
    (2, ("automation", "add", "x", "--cron", "* * * * * *"), "no field for seconds"),
    (2, ("automation", "add", "x", "--cron", "@daily", "--tz", "Berlin"), "Europe/Berlin"),
    (2, ("automation", "add", "x", "--at", "2020-01-01"), "choose a later time"),
    (2, ("automation", "add", "x", "--at", "someday"), "tomorrow 09:00"),
    (2, ("automation", "add", "  ", "--every", "1h"), "the prompt is empty"),
    (2, ("automation", "add", "x", "--every", "1h", "--agent", "nobody"), "midwatch agents"),
    (2, ("automation", "add", "x", "--every", "1h", "--workdir", "/no/such/place"), "/no/such/place"),
    (2, ("automation", "add", "x", "--every", "1h", "--missed", "twice"), "'skip', 'once', 'once_within'"),
    (2, ("automation", "add", "x", "--every", "1h", "--jitter", "2d"), "jitter"),
    (2, ("automation", "add", "x", "--every", "1h", "--route", "nowhere"), "no channel"),
    (2, ("automation", "list", "--status", "done"), "'active', 'paused', 'deleted', 'all'"),
    (2, ("automation", "edit", "am_no"), "nothing to change"),
    (3, ("automation", "edit", "am_no", "--title", "x"), "midwatch automation list"),
    (3, ("automation", "show", "am_no"), "midwatch automation list"),
    (3, ("automation", "show", "a/b"), "midwatch automation list"),
    (3, ("automation", "pause", "am_no"), "midwatch automation list"),
    (3, ("automation", "resume", "am_no"), "midwatch automation list"),
    (3, ("automation", "run", "am_no"), "midwatch automation list"),
    (3, ("automation", "history", "am_no"), "midwatch automation list"),
    (3, ("automation", "rm", "am_no"), "midwatch automation list"),
    (3, ("automation", "export", "am_no"), "midwatch automation list"),
    (2, ("goal", "set", "x", "--deadline", "48h"), "tomorrow 09:00"),
    (2, ("goal", "set", "x", "--deadline", "2020-01-01"), "choose a later"),
    (2, ("goal", "set", " "), "objective is empty"),
    (2, ("goal", "set", "x", "--verifier", "nobody"), "midwatch agents"),
    (2, ("goal", "set", "x", "--max-time", "long"), "90s, 10m"),
    (2, ("goal", "delay", "30m"), "midwatch goal delay"),
    (2, ("goal", "delay", "30m", "because"), "midwatch goal list"),
    (2, ("goal", "edit", "g_no"), "nothing to change"),
    (3, ("goal", "edit", "g_no", "--max-steps", "3"), "midwatch goal list"),
    (3, ("goal", "delay", "g_no", "30m", "because"), "midwatch goal list"),
    (3, ("goal", "pause", "a/b"), "midwatch goal list"),
    (3, ("goal", "clear", "g_no"), "midwatch goal list"),
]  # fmt: skip


async def test_bad_input_prints_one_line_with_a_remedy(either: Desk) -> None:
    served = either.run_json("status")["server"] is not None
    for status, arguments, says in BAD_INPUT if served else BAD_INPUT[::5]:
        assert says in either.run_refused(status, *arguments), arguments
    assert either.run_json("automation", "list", "--status", "all")["automations"] == []
    assert either.run_json("goal", "list")["goals"] == []
