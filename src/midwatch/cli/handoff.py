"""Commands of handoffs: to, list, show, cancel, retry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from midwatch.base.errors import HandoffError, HandoffOverdue, HandoffRefused, InvalidInput
from midwatch.cli import output as out
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, connect, find_attempt_token
from midwatch.cli.inputs import absolute_path, read_prompt
from midwatch.cli.options import AsJson, HandoffStatuses, Limit
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.wire.handoffs import HandoffInfo, HandoffPage

OPEN = frozenset({"pending", "accepted", "in_progress"})
WAIT_SECONDS = 15.0
"""Maximum seconds that one request waits for the end of a handoff. Then the command sends the request again."""
HEADERS = ("ID", "STATUS", "FROM", "TO", "AGE", "TOOK", "WHAT")

HandoffId = Annotated[str, Argument(metavar="ID", help="Id of the handoff.")]
Key = Annotated[str | None, Option("--key", help="Idempotency key: the same key and options create one handoff.")]

app = Group("Hand work to another agent.")


class Target(NamedTuple):
    """The agent that gets the work, or None, and the instructions."""

    agent: str | None
    text: str


@command(app, "to")
async def hand_over(
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[AGENT] [TEXT]",
            help="Agent (optional with --type), and instructions; - reads standard input.",
        ),
    ] = None,
    task_type: Annotated[
        str | None, Option("--type", metavar="TYPE", help="Type of work; selects the agent if none is named.")
    ] = None,
    given: Annotated[
        str | None,
        Option("--input", metavar="JSON", help="Input as JSON; instructions are then optional."),
    ] = None,
    from_task: Annotated[
        str | None, Option("--from-task", metavar="ID", help="Task to hand over, with its conversation.")
    ] = None,
    timeout: Annotated[str | None, Option("--timeout", help="Time limit: 90s, 10m.")] = None,
    retries: Annotated[int, Option("--retries", min=0, max=20, help="Number of retries after a failure.")] = 0,
    priority: Annotated[int, Option("--priority", min=-100, max=100, help="From -100 to 100; higher runs first.")] = 0,
    workdir: Annotated[
        str | None, Option("--workdir", help="Directory. Default: that of the task, or the current one.")
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait until the handoff ends and print the answer.")] = False,
    wake: Annotated[bool, Option("--wake", help="For agents: begin a turn of yours with the result.")] = False,
    key: Key = None,
    as_json: AsJson = False,
) -> Reply:
    """Hand work to an agent. With --wait, the exit status is 0 only if the handoff is completed."""
    optional_text = given is not None or from_task is not None
    target = parse_target(words or [], task_type, optional_text=optional_text)
    work = {"type": task_type or "", "input": parse_input(given), "priority": priority}
    inherits = workdir is None and (from_task is not None or find_attempt_token() is not None)
    directory = None if inherits else absolute_path(workdir or ".")
    async with connect(work=wait) as desk:
        agent, text = await find_agent(desk, target) if optional_text and target.agent is None else target
        handoff = await desk.client.hand_over(
            agent, {**work, "description": text}, source_task=from_task, timeout=timeout, max_retries=retries,
            workdir=directory, wait=WAIT_SECONDS if wait else 0, wake=wake or None, key=key,
        )  # fmt: skip
        if wait or handoff["task_id"] is None:  # an earlier handoff with this key may have been refused
            return await wait_for_end(desk, handoff, as_json)
        return describe_start(handoff, await desk.warn_without_worker("no agent works on it yet"))


def describe_start(handoff: HandoffInfo, notice: str | None = None) -> Reply:
    """Return the reply of the command after a handoff was created."""
    return Reply(handoff, f"{handoff['id']} handed to {handoff['to_agent_id']} as task {handoff['task_id']}", notice)


@command(app, "list")
async def list_handoffs(
    desk: Desk,
    status: HandoffStatuses = None,
    agent: Annotated[str | None, Option("--agent", "-a", help="Only from or to this agent.")] = None,
    root: Annotated[str | None, Option("--root", metavar="ID", help="Only handoffs that began with this task.")] = None,
    before: Annotated[str | None, Option("--before", metavar="ID", help="Only created before this handoff.")] = None,
    limit: Limit = 20,
) -> Reply:
    """List handoffs, newest first."""
    while True:
        page = await desk.client.handoffs(status=status or (), agent=agent, root=root, before=before, limit=limit)
        before = page["next"]
        if page["handoffs"] or before is None:  # a page of a rare filter may be empty although others follow
            break
    return Reply(page, lambda: print_page(page))


def print_page(page: HandoffPage) -> None:
    """Print handoffs as a table. If there are more handoffs, print on standard error how to list them."""
    out.say(out.table(HEADERS, [make_row(handoff) for handoff in page["handoffs"]], "No handoffs."))
    if page["next"]:
        out.note(f"More: midwatch handoff list --before {page['next']}")


@command(app)
async def show(desk: Desk, handoff_id: HandoffId) -> Reply:
    """Show all details of a handoff."""
    handoff = await desk.client.handoff(handoff_id)
    return Reply(handoff, lambda: out.fields(describe_handoff(handoff)))


@command(app)
async def cancel(desk: Desk, handoff_id: HandoffId) -> Reply:
    """Cancel a handoff and stop its task."""
    handoff = await desk.client.cancel_handoff(handoff_id)
    return Reply(handoff, f"{handoff['id']} is cancelled")


@command(app)
async def retry(desk: Desk, handoff_id: HandoffId, key: Key = None) -> Reply:
    """Hand the same work to the same agent again, as a new handoff."""
    return describe_start(await desk.client.retry_handoff(handoff_id, key))


# -- arguments ---------------------------------------------------------------------------------------------------------


def parse_target(words: list[str], task_type: str | None, *, optional_text: bool) -> Target:
    """Parse the agent and the instructions from the arguments. Raise InvalidInput if something is missing."""
    if len(words) == 2:
        return Target(words[0], read_prompt(words[1]))
    if len(words) == 1 and task_type:
        return Target(None, read_prompt(words[0]))
    if optional_text and len(words) == (0 if task_type else 1):
        return Target(words[0] if words else None, "")
    raise InvalidInput(
        'name the agent and the work: midwatch handoff to AGENT "text", or midwatch handoff to --type TYPE "text"; '
        "with --from-task or --input the text may be left out.",
        field="to",
    )


async def find_agent(desk: Desk, target: Target) -> Target:
    """Return the target. If its text is the name of an agent, this agent is the target, without instructions."""
    names = {agent["name"] for agent in await desk.client.agents()} if target.text else set()
    return Target(target.text, "") if target.text in names else target


def refuse_constant(word: str) -> None:
    """Raise ValueError. The JSON parser calls this for NaN and Infinity, which are not valid JSON."""
    raise ValueError(f"{word} is not a JSON number")


def parse_input(text: str | None) -> Any:
    """Parse the JSON value of --input."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"--input is not JSON ({problem}); put text in double quotes.", field="input") from None


# -- showing handoffs --------------------------------------------------------------------------------------------------


async def wait_for_end(desk: Desk, handoff: HandoffInfo, as_json: bool) -> Reply:
    """Wait until the handoff has ended, and return its answer. Without --json, raise an error if it failed."""
    while handoff["status"] in OPEN:
        handoff = await desk.client.handoff(handoff["id"], WAIT_SECONDS)
    status = handoff["status"]
    if status != "completed" and not as_json:
        reason = handoff["reason"] or "no reason was reported"
        kind = {"expired": HandoffOverdue, "rejected": HandoffRefused}.get(status, HandoffError)
        raise kind(f"handoff {handoff['id']} to {handoff['to_agent_id']} {status}: {reason}", handoff["id"])
    return Reply(handoff, format_output(handoff), status=int(status != "completed"))


def format_value(value: object) -> str:
    """Return a string unchanged, None as an empty text, and any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else out.format_json(value)


def format_output(handoff: HandoffInfo) -> str:
    """Return the answer of a handoff as text."""
    return format_value(handoff["result"]["output"] if handoff["result"] else None)


def format_late(handoff: HandoffInfo) -> str | None:
    """Return the result that the task reported after the handoff had ended. Return None if the task was cancelled."""
    late = handoff["late"]
    if late is None or late["outcome"] == "cancelled":
        return None
    return ": ".join(str(part) for part in (late["outcome"], late["output"] or late["error"]) if part)


def format_took(handoff: HandoffInfo, missing: str = "-") -> str:
    """Return how long a handoff took as text, or `missing` if it has not ended."""
    return out.format_duration(out.measure(handoff["created_at"], handoff["completed_at"]), missing)


def make_row(handoff: HandoffInfo) -> tuple[object, ...]:
    """Return a handoff as a row of a table."""
    work = handoff["task"]
    what = work["description"] or (work["input"] if isinstance(work["input"], str) else json.dumps(work["input"]))
    return (
        *out.values(handoff, "id", "status"),
        handoff["from_agent_id"] or handoff["creator"] or "-",
        handoff["to_agent_id"] or "-",
        out.format_age(handoff["created_at"]),
        format_took(handoff),
        f"[{work['type']}] {out.shorten(what, 40)}" if work["type"] else out.shorten(what, 40),
    )


def describe_handoff(handoff: HandoffInfo) -> list[out.Field]:
    """Return the details of a handoff as names and values, for people."""
    work = handoff["task"]
    refusals = "\n".join(f"{refusal['agent']}: {refusal['reason']}" for refusal in handoff["refusals"])
    failures = "\n".join(
        f"{attempt['attempt']}: {attempt['error']}" for attempt in handoff["attempts"] if attempt["error"]
    )
    tries = f"{handoff['retry_count'] + 1} of {handoff['max_retries'] + 1}"
    return [
        *out.pick(handoff, "id", "status", "reason"),
        ("from", handoff["from_agent_id"] or handoff["creator"]),
        *out.pick(handoff, to="to_agent_id", form="form"),
        *out.pick(work, "type", what="description"),
        ("input", format_value(work["input"])),
        ("path", " → ".join([*(link["agent"] for link in handoff["chain"]), handoff["to_agent_id"]])),
        ("refused by", refusals),
        ("answer", format_output(handoff)),
        ("late", format_late(handoff)),
        *out.pick(handoff, task="task_id", out_of_task="source_task", retry_of="retry_of"),
        ("messages", len(handoff["context"]["messages"]) or None),
        ("tries", tries if handoff["task_id"] else None),
        ("failed tries", failures if handoff["retry_count"] else None),
        *out.pick(handoff, asked_by="creator", created="created_at", accepted="accepted_at", ended="completed_at"),
        ("took", format_took(handoff, "")),
        *out.pick(handoff, deadline="deadline_at"),
    ]
