"""The command `completion`: print the script with which a shell completes commands, options and their values."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Annotated, Literal, get_args

import click

from midwatch.base.errors import InvalidInput
from midwatch.cli.command import Reply, command
from midwatch.cli.parameters import Argument

Shell = Literal["bash", "zsh", "fish"]


@command()
async def completion(
    shell: Annotated[Shell | None, Argument(metavar="[bash|zsh|fish]", help="Default: the shell in $SHELL.")] = None,
) -> Reply:
    """Print the script for shell completion. Use it in a shell: `source <(midwatch completion)`."""
    from click.shell_completion import get_completion_class

    name = shell or find_shell()
    program = click.get_current_context().find_root()
    kind = get_completion_class(name)
    assert kind is not None
    script = kind(program.command, {}, "midwatch", "_MIDWATCH_COMPLETE").source()
    return Reply({"shell": name, "script": script}, script.rstrip("\n"))


def find_shell() -> str:
    """Return the name of the user's shell. Raise InvalidInput if there is no script for it."""
    name = PurePath(os.environ.get("SHELL", "")).name
    if name in get_args(Shell):
        return name
    found = f"the shell {name!r} in $SHELL is not supported" if name else "$SHELL is not set"
    raise InvalidInput(f"{found}; name bash, zsh or fish, such as `midwatch completion bash`.", field="shell")
