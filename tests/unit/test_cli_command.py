"""Test how a function becomes a command: its options, its reply and its exit status."""

import inspect
import json
from typing import Any

import pytest
import typer

from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.options import AsJson, FieldOptions, TaskId
from midwatch.domain.automation import Times


async def show_task(desk: Desk, task_id: TaskId) -> Reply:
    return Reply({}, "")


async def follow_events(as_json: AsJson = False, **options: Any) -> int:
    return 0


def test_the_desk_parameter_is_not_an_option_and_a_json_option_is_added() -> None:
    assert list(inspect.signature(command()(show_task)).parameters) == ["task_id", "as_json"]


def test_options_of_fields_replace_the_keyword_arguments() -> None:
    options = FieldOptions(lambda: (Times,))
    names = ["at", "every", "cron", "zone", "as_json"]
    assert list(inspect.signature(command(options=options)(follow_events)).parameters) == names


def test_a_reply_is_printed_as_text_or_json_and_its_notice_on_standard_error(capsys) -> None:
    @command()
    async def greet() -> Reply:
        return Reply({"hello": "world"}, lambda: "hello world", "nobody listens")

    greet()
    assert capsys.readouterr() == ("hello world\n", "nobody listens\n")
    greet(as_json=True)  # type: ignore[call-arg]  # typer adds it
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"hello": "world"}, "nobody listens\n")


@pytest.mark.parametrize("reply", [3, Reply({}, "", status=3)])
def test_a_status_other_than_zero_is_the_exit_status(reply: Reply | int) -> None:
    @command()
    async def fail() -> Reply | int:
        return reply

    with pytest.raises(typer.Exit) as end:
        fail()
    assert end.value.exit_code == 3
