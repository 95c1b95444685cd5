"""Commands for clients of agentapi: agentapi server, attach."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import click

from midwatch.base.directories import expand_user
from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.version import __version__
from midwatch.cli.command import Command, Group, command
from midwatch.cli.options import AsJson
from midwatch.cli.output import clean, emit, note, say
from midwatch.cli.parameters import Argument, Option

app = Group("One agent behind the HTTP interface of coder/agentapi.")

PORT = 3284
WIDTH, HEIGHT = 80, 50
MIN_WIDTH, MIN_HEIGHT, MAX_SIZE = 20, 10, 1000
BAR = "=" * 8
SWITCHES = {"load-state": "no-load-state", "save-state": "no-save-state"}
LONE_SWITCHES = ("print-openapi", "experimental-acp", "exit")
SWITCH = re.compile(rf"^--({'|'.join([*SWITCHES, *LONE_SWITCHES])})=(?:(true|t|1)|false|f|0)$", re.IGNORECASE)


def flag(name: str, help_: str, *short: str, **more: Any) -> Any:
    """Return an option that an environment variable can also set. `name` may be a pair like `x/--no-x`."""
    variable = name.partition("/")[0].upper().replace("-", "_")
    return Option(f"--{name}", *short, envvar=f"AGENTAPI_{variable}", help=help_, **more)


def print_version(wanted: bool) -> None:
    """Print the version in the form of agentapi, and exit."""
    if wanted:
        say(f"agentapi version {__version__}")
        raise click.exceptions.Exit


Agent = Annotated[list[str], Argument(help="The agent's program and its arguments, after --.")]
Type = Annotated[str, flag("type", "Type of the agent. Default: by the program's name.", "-t")]
Port = Annotated[int, flag("port", "Port on this machine; 0 chooses a free one.", "-p", min=0, max=65535)]
PrintOpenapi = Annotated[bool, flag("print-openapi", "Print the OpenAPI document and exit.", "-P")]
ChatBase = Annotated[str, flag("chat-base-path", "Path of the chat page, if a proxy changes it.", "-c")]
Width = Annotated[int, flag("term-width", "Columns of the terminal.", "-W")]
Height = Annotated[int, flag("term-height", "Rows of the terminal.", "-H")]
Hosts = Annotated[list[str] | None, flag("allowed-hosts", "Host names of the server, with commas; * for all.", "-a")]
Origins = Annotated[list[str] | None, flag("allowed-origins", "Sites whose pages may use the server; * for all.", "-o")]
Prompt = Annotated[str, flag("initial-prompt", "First message. Default: standard input.", "-I")]
StateFile = Annotated[str, flag("state-file", "File that stores the conversation.", "-s")]
Load = Annotated[bool | None, flag("load-state/--no-load-state", "Load the conversation. Default with --state-file.")]
Save = Annotated[bool | None, flag("save-state/--no-save-state", "Save the conversation. Default with --state-file.")]
PidFile = Annotated[str, flag("pid-file", "File for the process id.")]
Acp = Annotated[bool, flag("experimental-acp", "Use the Agent Client Protocol instead of a terminal.")]
Leave = Annotated[bool, flag("exit", "Exit after the command line was parsed.", hidden=True)]
Version = Annotated[
    bool, Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True)
]


@command(app, default=True)
def start(version: Version = False) -> None:
    """Print the help of this group."""
    say(click.get_current_context().get_help())


class ServerCommand(Command):
    """A command that also accepts switches in the format of coder/agentapi, such as `--load-state=false`."""

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, after the switches of coder/agentapi were rewritten."""
        end = args.index("--") if "--" in args else len(args)
        own = [renamed for argument in args[:end] for renamed in _rename_switch(argument)]
        return super().parse_args(ctx, [*own, *args[end:]])


def _rename_switch(argument: str) -> list[str]:
    """Return the arguments that stand for one argument in the format of coder/agentapi."""
    switch = SWITCH.match(argument)
    if switch is None:
        return [argument]
    name = switch[1].lower() if switch[2] else SWITCHES.get(switch[1].lower())
    return [f"--{name}"] if name else []


@command(app, kind=ServerCommand)
def server(
    agent: Agent, type_: Type = "", port: Port = PORT, print_openapi: PrintOpenapi = False,
    chat_base: ChatBase = "/chat",
    width: Width = WIDTH, height: Height = HEIGHT, hosts: Hosts = None, origins: Origins = None, prompt: Prompt = "",
    state_file: StateFile = "", load: Load = None, save: Save = None, pid_file: PidFile = "", acp: Acp = False,
    leave: Leave = False, as_json: AsJson = False, version: Version = False,
) -> None:  # fmt: skip
    """Run an agent and serve its conversation, on this machine and without a token."""
    if leave:
        return
    if print_openapi and not acp:
        from midwatch.api.agentapi.app import describe_surface

        say(json.dumps(describe_surface("3.0.3"), indent=2, sort_keys=True))
        return
    from midwatch.api.agentapi.allowed_origins import HOSTS, ORIGINS, Rules, check_hosts, check_origins
    from midwatch.runtime.serve_agentapi import ServerOptions, serve

    try:
        if print_openapi:
            raise BadConfig("flags --print-openapi and --experimental-acp are mutually exclusive")
        options = ServerOptions(
            argv=tuple(agent),
            acp=acp,
            agent_type=find_type(type_, agent[0]),
            port=port,
            chat_base="/" + chat_base.strip("/"),
            columns=check_size("--term-width", width, MIN_WIDTH),
            rows=check_size("--term-height", height, MIN_HEIGHT),
            rules=Rules(check_hosts(split_entries(hosts, HOSTS)), check_origins(split_entries(origins, ORIGINS))),
            read_prompt=(lambda: prompt) if prompt else read_stdin,
            state=find_path(state_file),
            load=check_switch("--load-state", load, state_file, acp),
            save=check_switch("--save-state", save, state_file, acp),
            pid=find_path(pid_file),
            home=find_path(os.environ.get("MIDWATCH_HOME", "")),
        )
        ended = serve(options, lambda url: print_address(url, as_json))
    except MidwatchError as problem:
        note(f"midwatch: {' '.join(clean(str(problem)).split())}")
        raise click.exceptions.Exit(1) from None
    if ended.screen is not None:
        note(f"midwatch: the agent's program has ended. Its last screen:\n{BAR}\n{clean(ended.screen)}\n{BAR}")
    raise click.exceptions.Exit(ended.status)


@command(app)
def attach(
    url: Annotated[str, Option("--url", "-u", help="Address of the server.")] = f"localhost:{PORT}",
) -> None:
    """Show the terminal of an agentapi server and type into it. Ctrl-] leaves."""
    from midwatch.cli.attach import show_terminal

    show_terminal(None, url)


def print_address(url: str, as_json: bool) -> None:
    """Print the address of the server and of its chat page."""
    if as_json:
        emit({"url": url, "chat": f"{url}/chat", "pid": os.getpid()})
    else:
        say(f"agentapi: listening on {url}; the chat page is {url}/chat")
    sys.stdout.flush()


def find_type(name: str, program: str) -> str:
    """Return the type of the agent, by default that of its program. Raise BadConfig if `name` is not a known type."""
    from midwatch.agents.terminal.format import NAMES, TYPES, find_agent_type

    if name and name not in (*TYPES, *NAMES):
        raise BadConfig(f"invalid agent type: {name}; use one of {', '.join(sorted((*TYPES, *NAMES)))}.")
    return find_agent_type(name or Path(program).name)


def find_path(name: str) -> Path | None:
    """Return the absolute path of the file `name`, or None if `name` is empty."""
    return expand_user(name, f"the path {name!r}").absolute() if name else None


def check_size(option: str, size: int, least: int) -> int:
    """Return the width or the height of the terminal. Raise BadConfig if it is too small or too large."""
    if not least <= size <= MAX_SIZE:
        raise BadConfig(f"{option} must be at least {least} and at most {MAX_SIZE}.")
    return size


def split_entries(values: list[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of a repeatable option. Each value may contain several entries, separated by commas."""
    if values is None:
        return default
    return tuple(entry for value in values for entry in value.split(",") if entry or value != "")


def check_switch(option: str, value: bool | None, state_file: str, acp: bool) -> bool:
    """Return the value of --load-state or --save-state. Raise BadConfig if it does not fit the other options."""
    if value and not state_file:
        raise BadConfig(f"{option} requires --state-file to be set")
    wanted = bool(state_file) and value is not False
    if wanted and acp:
        raise BadConfig("ACP mode doesn't support state persistence")
    return wanted


def read_stdin() -> str:
    """Return the text of standard input if it is a pipe or a file, else an empty text."""
    try:
        return "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    except (OSError, ValueError):
        return ""
