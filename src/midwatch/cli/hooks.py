"""Commands of hooks: list the hooks, and test one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from midwatch.base.errors import HookFailed, InvalidInput
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.options import AsJson
from midwatch.cli.output import format_age, join, shorten, table
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.wire.hooks import HookInfo

ERROR_LENGTH = 80
HEADERS = (
    "NAME", "KIND", "PRIORITY", "STATE", "CALLS", "EVENTS", "FAILURES", "DROPPED", "RESTARTS", "SEAMS", "LAST ERROR",
)  # fmt: skip
DecidingSeam = Literal["before_model", "after_model", "before_tool", "approve_tool", "after_tool"]

app = Group("List and test hooks that decide what agents may do.")


@command(app, default=True)
async def hooks(desk: Desk) -> Reply:
    """List hooks in the order in which they are called. State and counters are those of the server's process."""
    reports = await desk.client.hooks()
    rows = [
        (
            hook["name"], hook["kind"], hook["priority"], hook["state"], hook["calls"], hook["events"],
            hook["failures"], hook["dropped"], hook["restarts"], ", ".join(hook["seams"]), _show_error(hook),
        )
        for hook in reports
    ]  # fmt: skip
    return Reply({"hooks": reports}, table(HEADERS, rows, "No hooks. Add them with the setting hooks."))


@command(app)
async def test(
    desk: Desk,
    name: Annotated[str, Argument(help="Name of the hook.")],
    seam: Annotated[DecidingSeam, Option("--seam", help="Where the hook decides.")] = "before_tool",
    tool: Annotated[str, Option("--tool", help="Name of the tool.")] = "run_command",
    arguments: Annotated[str, Option("--arguments", metavar="JSON", help="Arguments of the tool, as JSON.")] = "{}",
    text: Annotated[str, Option("--text", help="Message to the model, its answer, or the tool's result.")] = "",
    *,
    as_json: AsJson = False,
) -> Reply:
    """Call a hook with an example and show its decision. Nothing else happens. If the hook fails, the status is 1."""
    tested = await desk.client.test_hook(name, seam, tool=tool, arguments=parse_arguments(arguments), text=text)
    decision = tested["decision"]
    details = "".join(f"\n{key}: {_show(value)}" for key, value in decision.items() if key != "action")
    took = f"It took {tested['duration'] * 1000:.1f} ms."
    reply = Reply(dict(tested), join(f"{name} decides {decision['action']} at {seam}. {took}{details}"))
    if tested["failed"]:
        reply.print(as_json)
        raise HookFailed(f"hook {name} failed at {seam}, so midwatch denies: {decision['reason']}")
    return reply


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a tool that a person typed as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"--arguments is not JSON ({problem}); write an object.", field="arguments") from None
    if not isinstance(value, dict):
        raise InvalidInput("--arguments is not a JSON object; write a field for each argument.", field="arguments")
    return value


def _show_error(hook: HookInfo) -> str:
    error = hook["last_error"]
    return f"{format_age(hook['last_error_at'])} ago: {shorten(error, ERROR_LENGTH)}" if error else ""


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
