"""Commands for clients of agentapi: agentapi server, attach."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.cli.options import AsJson
from midwatch.cli.output import clean, emit, note, say

app = typer.Typer(
    help="One agent in a terminal, behind the HTTP interface of coder/agentapi.", invoke_without_command=True
)

PORT = 3284
WIDTH, HEIGHT = 80, 50
LEAST_WIDTH, LEAST_HEIGHT, MOST = 20, 10, 1000
BAR = "=" * 8
TRUE = ("true", "t", "1")
SPELLED = re.compile(r"^--(load-state|save-state)=(true|false|t|f|1|0)$", re.IGNORECASE)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


def flag(name: str, help_: str, short: str = "", **more: Any) -> Any:
    """An option that may also be said by an environment variable."""
    names = (f"--{name}", *((short,) if short else ()))
    return typer.Option(*names, envvar=f"AGENTAPI_{name.upper().replace('-', '_')}", help=help_, **more)


def switch(name: str, help_: str) -> Any:
    """One that can be switched off, too."""
    return typer.Option(
        f"--{name}/--no-{name}", envvar=f"AGENTAPI_{name.upper().replace('-', '_')}", help=help_, show_default=False
    )


Agent = Annotated[list[str], typer.Argument(help="The agent's program and its arguments, after --.")]
Type = Annotated[str, flag("type", "What agent it is; by its name if not said.", "-t")]
Port = Annotated[int, flag("port", "Port on this machine; 0 takes a free one.", "-p", min=0, max=65535)]
PrintOpenapi = Annotated[bool, flag("print-openapi", "Print the description of the interface and end.", "-P")]
ChatBase = Annotated[str, flag("chat-base-path", "Where browsers find the chat page, behind a proxy.", "-c")]
Width = Annotated[int, flag("term-width", "Columns of the terminal.", "-W")]
Height = Annotated[int, flag("term-height", "Rows of the terminal.", "-H")]
Hosts = Annotated[list[str] | None, flag("allowed-hosts", "Names it answers to, with commas; * for all.", "-a")]
Origins = Annotated[list[str] | None, flag("allowed-origins", "Sites whose pages may use it; * for all.", "-o")]
Prompt = Annotated[str, flag("initial-prompt", "Sent once the agent is ready; also from standard input.", "-I")]
State = Annotated[str, flag("state-file", "Where the conversation is kept.", "-s")]
Load = Annotated[bool | None, switch("load-state", "Take it up from there; the default with a state file.")]
Save = Annotated[bool | None, switch("save-state", "Keep it there; the default with a state file.")]
Pid = Annotated[str, flag("pid-file", "Where the process id is written.")]


class Spelled(TyperCommand):
    """Takes a switch also as agentapi spells it: `--load-state=false`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        end = args.index("--") if "--" in args else len(args)
        ours = [SPELLED.sub(_switched, said) for said in args[:end]]
        return super().parse_args(ctx, [*ours, *args[end:]])


def _switched(said: re.Match[str]) -> str:
    return f"--{'' if said[2].lower() in TRUE else 'no-'}{said[1]}"


@app.command(cls=Spelled, context_settings={"allow_interspersed_args": False})
def server(
    agent: Agent, type_: Type = "", port: Port = PORT, print_openapi: PrintOpenapi = False,
    chat_base: ChatBase = "/chat",
    width: Width = WIDTH, height: Height = HEIGHT, hosts: Hosts = None, origins: Origins = None, prompt: Prompt = "",
    state_file: State = "", load: Load = None, save: Save = None, pid_file: Pid = "", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run an agent in a terminal and serve its conversation, on this machine and without a token."""
    if print_openapi:
        from midwatch.api.agentapi.describe import document

        say(json.dumps(document("3.0.3"), indent=2, sort_keys=True))
        return
    from midwatch.api.agentapi.allowed_origins import HOSTS, ORIGINS, Rules, checked_hosts, checked_origins
    from midwatch.runtime.serve_agentapi import Wishes, serve

    try:
        wishes = Wishes(
            argv=tuple(agent),
            agent_type=known_type(type_, agent[0]),
            port=port,
            chat_base="/" + chat_base.strip("/"),
            columns=sized("--term-width", width, LEAST_WIDTH),
            rows=sized("--term-height", height, LEAST_HEIGHT),
            rules=Rules(checked_hosts(entries(hosts, HOSTS)), checked_origins(entries(origins, ORIGINS))),
            prompt=(lambda: prompt) if prompt else from_stdin,
            state=Path(state_file).expanduser().absolute() if state_file else None,
            load=wanted("--load-state", load, state_file),
            save=wanted("--save-state", save, state_file),
            pid=Path(pid_file).expanduser().absolute() if pid_file else None,
            home=Path(own).expanduser().absolute() if (own := os.environ.get("MIDWATCH_HOME")) else None,
        )
        ended = serve(wishes, lambda url: started(url, as_json))
    except MidwatchError as problem:
        note(f"midwatch: {' '.join(clean(str(problem)).split())}")
        raise typer.Exit(1) from None
    if ended.screen is not None:
        note(f"midwatch: the agent has ended by itself. Its last screen:\n{BAR}\n{clean(ended.screen)}\n{BAR}")
    raise typer.Exit(ended.status)


@app.command()
def attach(
    url: Annotated[str, typer.Option("--url", "-u", help="Address of the server.")] = f"localhost:{PORT}",
) -> None:
    """Show the terminal of a server in this one and type into it. Ctrl-] leaves."""
    from midwatch.cli import attach as attaching

    attaching.attach(url=url)


def started(url: str, as_json: bool) -> None:
    """Tell where it is."""
    if as_json:
        emit({"url": url, "chat": f"{url}/chat", "pid": os.getpid()})
    else:
        say(f"agentapi: listening on {url}; the chat page is {url}/chat")
    sys.stdout.flush()


def known_type(said: str, program: str) -> str:
    """The type of the agent, or BadConfig when there is none of that name."""
    from midwatch.agents.terminal.format import NAMES, TYPES, agent_type

    if said and said not in (*TYPES, *NAMES):
        raise BadConfig(f"invalid agent type: {said}; use one of {', '.join(sorted((*TYPES, *NAMES)))}.")
    return agent_type(said or Path(program).name)


def sized(flag: str, value: int, least: int) -> int:
    """A side of the terminal, or BadConfig."""
    if not least <= value <= MOST:
        raise BadConfig(f"{flag} must be at least {least} and at most {MOST}.")
    return value


def entries(said: list[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """A list that was said once with commas, or again and again."""
    return default if said is None else tuple(part for one in said for part in one.split(",") if part or one != "")


def wanted(flag: str, said: bool | None, state_file: str) -> bool:
    """Whether the state is taken up, or kept."""
    if said and not state_file:
        raise BadConfig(f"{flag} requires --state-file to be set")
    return bool(state_file) if said is None else said


def from_stdin() -> str:
    """The initial prompt, where it comes by a pipe or a file."""
    try:
        return "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    except (OSError, ValueError):
        return ""
