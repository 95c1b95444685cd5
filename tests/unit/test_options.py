"""Options of commands that follow from the definition of a record."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from midwatch.cli.options import AsJson, Flag, Prompt, options_of
from midwatch.domain.automation import Automation, Times
from midwatch.domain.fields import inputs
from midwatch.domain.goal import Goal

FLAGS: dict[str, Any] = {
    "zone": Flag("--tz", metavar="ZONE"),
    "tags": Flag("--tag", help="A word to find it by; may be repeated."),
    "agent": Flag("--agent -a"),
    "budget": Flag(metavar="LIMITS", read=lambda text: {"tokens": int(text)}),
}
app = typer.Typer(rich_markup_mode=None)


@app.command()
@options_of(Automation, Times, without=("prompt",), **FLAGS)
def add(prompt: Prompt, as_json: AsJson = False, **given: Any) -> None:
    """Make one."""
    typer.echo(json.dumps({"prompt": prompt, "as_json": as_json, **given}))


@app.command()
@options_of(Automation, Times, changes=True, **FLAGS)
def edit(automation_id: Annotated[str, typer.Argument()], **given: Any) -> None:
    """Change one."""
    typer.echo(json.dumps({"id": automation_id, **given}))


@app.command("set")
@options_of(Goal, without=("objective",))
def set_goal(**given: Any) -> None:
    """Set a goal."""
    typer.echo(json.dumps(given))


def run_options(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def help_of(command: str) -> str:
    return " ".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output.split())


def test_only_given_options_reach_the_command() -> None:
    assert run_options("add", "Look around") == {"prompt": "Look around", "as_json": False}


def test_options_have_the_request_names_and_field_types() -> None:
    given = run_options(
        "add", "Look", "--cron", "@daily", "--tz", "UTC", "-a", "demo", "--max-runs", "3", "--timeout", "10m",
        "--fresh", "--missed", "skip", "--tag", "a", "--tag", "b", "--session-key", "chat:1", "--json",
    )  # fmt: skip
    assert given == {
        "prompt": "Look", "as_json": True, "cron": "@daily", "zone": "UTC", "agent": "demo", "max_runs": 3,
        "timeout": "10m", "fresh": True, "missed": "skip", "tags": ["a", "b"], "session_key": "chat:1",
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["--max-runs -1", "--missed never", "--max-runs many", "--nope 1"])
def test_invalid_values_are_refused(wrong: str) -> None:
    assert CliRunner().invoke(app, ["add", "Look", *wrong.split()]).exit_code == 2


def test_a_change_can_disable_and_clear_fields() -> None:
    given = run_options("edit", "am_1", "--no-fresh", "--quiet", "", "--jitter", "", "--title", "", "--agent", "")
    assert given == {"id": "am_1", "fresh": False, "quiet": None, "jitter": 0.0, "title": "", "agent": ""}


def test_immutable_fields_have_no_change_option() -> None:
    assert "--session-key" in help_of("add")
    assert "--session-key" not in help_of("edit")


def test_a_text_can_be_parsed_into_another_type() -> None:
    assert run_options("add", "Look", "--budget", "7")["budget"] == {"tokens": 7}
    assert run_options("edit", "am_1", "--budget", "") == {"id": "am_1", "budget": None}


def test_a_number_that_is_not_a_duration_is_a_number() -> None:
    assert run_options("set", "--max-usd", "1.5", "--max-seconds", "2h", "--deadline", "in 3d") == {
        "max_usd": 1.5, "max_seconds": "2h", "deadline": "in 3d",
    }  # fmt: skip


def test_help_comes_from_the_field_definition() -> None:
    shown = help_of("edit")
    for field, given in inputs(Automation, Times):
        if not given.once and field.name not in FLAGS:
            assert given.help in shown, field.name
    assert "--tz ZONE" in shown and "--jitter DURATION" in shown and "--fresh / --no-fresh" in shown
    assert "may be repeated" in shown
