"""Test how a function becomes a command: its options, its reply and its exit status."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest

from midwatch.cli.app import COMMANDS, load
from midwatch.cli.command import Command, Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.options import AsJson, FieldOptions, TaskId
from midwatch.cli.parameters import Argument, Option
from midwatch.domain.automation import Times


async def show_task(desk: Desk, task_id: TaskId) -> Reply:
    return Reply({}, "")


async def follow_events(as_json: AsJson = False, **options: Any) -> int:
    return 0


def names_of(made: Command) -> list[str]:
    return [parameter.name for parameter in made.get_params(click.Context(made, help_option_names=[]))]


def run(made: click.Command, *arguments: str) -> Any:
    return made.main(list(arguments), standalone_mode=False)


def test_the_desk_parameter_is_not_an_option_and_a_json_option_is_added() -> None:
    assert names_of(command()(show_task)) == ["task_id", "as_json"]


def test_options_of_fields_replace_the_keyword_arguments() -> None:
    options = FieldOptions(lambda: (Times,))
    assert names_of(command(options=options)(follow_events)) == ["at", "every", "cron", "zone", "as_json"]


def test_the_values_of_parameters_have_the_types_of_the_function(capsys) -> None:
    @command()
    async def read(
        file: Annotated[Path, Argument()],
        words: Annotated[list[str] | None, Argument()] = None,
        tags: Annotated[list[str] | None, Option("--tag")] = None,
        count: Annotated[int, Option("--count", min=1, max=9)] = 3,
        share: Annotated[float | None, Option("--share")] = None,
        kind: Annotated[Literal["a", "b"] | None, Option("--kind")] = None,
        state: Annotated[bool | None, Option("--state/--no-state")] = None,
        text: Annotated[str, Option("--text", callback=str.upper)] = "x",
    ) -> Reply:
        return Reply({}, repr((file, words, tags, count, share, kind, state, text)))

    run(read, "f")
    assert capsys.readouterr().out == f"{(Path('f'), None, None, 3, None, None, None, 'X')}\n"
    run(
        read,
        *[
            "f",
            "a",
            "b",
            "--tag",
            "t",
            "--tag",
            "u",
            "--count",
            "4",
            "--share",
            "0.5",
            "--kind",
            "b",
            "--no-state",
            "--text",
            "y",
        ],
    )
    assert capsys.readouterr().out == f"{(Path('f'), ['a', 'b'], ['t', 'u'], 4, 0.5, 'b', False, 'Y')}\n"
    for wrong in ("--count 10", "--count x", "--share x", "--kind c"):
        with pytest.raises(click.BadParameter):
            run(read, "f", *wrong.split())


def test_a_reply_is_printed_as_text_or_json_and_its_notice_on_standard_error(capsys) -> None:
    @command()
    async def greet() -> Reply:
        return Reply({"hello": "world"}, lambda: "hello world", "nobody listens")

    run(greet)
    assert capsys.readouterr() == ("hello world\n", "nobody listens\n")
    run(greet, "--json")
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"hello": "world"}, "nobody listens\n")


@pytest.mark.parametrize("reply", [3, Reply({}, "", status=3)])
def test_a_status_other_than_zero_is_the_exit_status(reply: Reply | int) -> None:
    @command()
    async def fail() -> Reply | int:
        return reply

    assert run(fail) == 3


def test_a_group_runs_its_default_only_without_a_command(capsys) -> None:
    app = Group("")

    @command(app, default=True)
    async def lists(all_: Annotated[bool, Option("--all")] = False) -> Reply:
        return Reply({}, f"list {all_}")

    @command(app)
    async def add() -> Reply:
        return Reply({}, "add")

    run(app, "--all")
    run(app, "add")
    assert capsys.readouterr().out == "list True\nadd\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name: str) -> None:
    summary = click.Command(name, help=COMMANDS[name][1]).get_short_help_str(200)
    assert load(name).get_short_help_str(200) == summary
