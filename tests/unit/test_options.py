"""Test the options of commands that follow from the fields of a record."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from click.testing import CliRunner

from midwatch.base.errors import InvalidInput
from midwatch.cli import options as opt
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.options import FLAGS, WITHOUT_OPTION, FieldOptions, Flag, Prompt
from midwatch.cli.parameters import Argument
from midwatch.domain.automation import Automation, Times
from midwatch.domain.fields import inputs
from midwatch.domain.goal import Goal
from midwatch.domain.requests import Submission

app = Group("")


def reply(request: dict[str, Any]) -> Reply:
    return Reply({}, json.dumps(request))


@command(app, options=FieldOptions(lambda: (Automation, Times)))
async def add(prompt: Prompt, **request: Any) -> Reply:
    """Make one."""
    return reply({"prompt": prompt, **request})


@command(app, options=FieldOptions(lambda: (Automation, Times), changes=True, title=Flag("--heading -N")))
async def edit(automation_id: Annotated[str, Argument()], **request: Any) -> Reply:
    """Change one."""
    return reply({"id": automation_id, **request})


@command(app, "set", options=FieldOptions(lambda: (Goal,)))
async def set_goal(objective: Prompt, deadline: opt.Key = None, **request: Any) -> Reply:
    """Set a goal."""
    return reply({"deadline": deadline, **request})


@command(app, options=FieldOptions(lambda: (Submission,), workdir=Flag(default="/here")))
async def submit(prompt: Prompt, **request: Any) -> Reply:
    """Submit a task."""
    return reply(request)


def run_options(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def help_of(command: str) -> str:
    return " ".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output.split())


def test_only_options_in_use_reach_the_command() -> None:
    assert run_options("add", "Look around") == {"prompt": "Look around"}
    assert run_options("submit", "Look around") == {"workdir": "/here"}


def test_options_have_the_request_names_and_field_types() -> None:
    request = run_options(
        "add", "Look", "--cron", "@daily", "--tz", "UTC", "-a", "demo", "--max-runs", "3", "--timeout", "10m",
        "--fresh", "--missed", "skip", "--tag", "a", "--tag", "b", "--session", "chat:1",
    )  # fmt: skip
    assert request == {
        "prompt": "Look", "cron": "@daily", "zone": "UTC", "agent": "demo", "max_runs": 3, "timeout": "10m",
        "fresh": True, "missed": "skip", "tags": ["a", "b"], "session_key": "chat:1",
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["--max-runs -1", "--missed never", "--max-runs many", "--nope 1", "--scope-id me"])
def test_invalid_options_are_refused(wrong: str) -> None:
    assert CliRunner().invoke(app, ["add", "Look", *wrong.split()]).exit_code == 2


def test_a_change_can_disable_and_clear_fields() -> None:
    request = run_options("edit", "am_1", "--no-fresh", "--max-runs", "0", "--agent", "", "--cron", "")
    assert request == {"id": "am_1", "fresh": False, "max_runs": 0, "agent": "", "cron": ""}
    empty = ("route", "quiet", "workdir", "timeout", "on_crash", "heading", "jitter", "tag", "budget", "approvals")
    arguments = [argument for name in empty for argument in (f"--{name.replace('_', '-')}", "")]
    assert run_options("edit", "am_1", *arguments) == {
        "id": "am_1", "route": None, "quiet": None, "workdir": None, "timeout": None, "on_crash": None, "title": "",
        "jitter": 0, "tags": [], "budget": None, "approvals": None,
    }  # fmt: skip


def test_an_empty_text_is_not_replaced_by_the_default() -> None:
    assert run_options("submit", "Look", "--agent", "", "--priority", "0")["agent"] == ""


def test_an_immutable_field_has_no_option_to_change_it() -> None:
    assert "--session" in help_of("add")
    assert "--session" not in help_of("edit")


def test_a_text_can_be_parsed_into_another_type(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_options("add", "Look", "--budget", "tokens=7", "--workdir", "sub", "--approvals", '{"allow": []}') == {
        "prompt": "Look", "budget": {"tokens": 7}, "workdir": str(tmp_path / "sub"), "approvals": {"allow": []},
    }  # fmt: skip
    with pytest.raises(InvalidInput, match="JSON"):
        run_options("add", "Look", "--approvals", "[]")


def test_only_a_number_of_seconds_may_be_a_duration() -> None:
    assert run_options("set", "x", "--max-usd", "1.5", "--max-time", "2h") == {
        "deadline": None, "max_usd": 1.5, "max_seconds": "2h",
    }  # fmt: skip


def test_an_option_of_the_command_replaces_that_of_the_field() -> None:
    assert "--deadline" not in help_of("set")
    assert run_options("set", "x", "--key", "k") == {"deadline": "k"}


def test_the_help_of_an_option_is_the_description_of_its_field() -> None:
    shown = help_of("edit")
    for field, field_input in inputs(Automation, Times):
        if not field_input.once and not {field.request_name} & {*WITHOUT_OPTION, *FLAGS}:
            assert field_input.help in shown, field.name
    assert "--tz ZONE" in shown and "--jitter DURATION" in shown and "--fresh / --no-fresh" in shown
    assert "Repeatable" in shown


def test_only_fields_are_left_out_or_different() -> None:
    names = {field.request_name for field, _ in inputs(Automation, Times, Goal, Submission)}
    assert WITHOUT_OPTION | set(FLAGS) <= names
