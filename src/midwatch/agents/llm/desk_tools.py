"""Built-in tools that use midwatch itself. They call the server with the secret token of the running attempt."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import httpx2
from pydantic import Field

from midwatch.agents.llm.tools import Tool, ToolError, make
from midwatch.domain.agent import Turn

CALL_SECONDS = 30.0
SHOWN = ("id", "status", "outcome", "agent", "prompt", "result", "error", "created_at", "completed_at", "due_at")
LISTED_TEXT = 300
WORK = Annotated[str, Field(description="Everything that the agent needs to know; it does not see this conversation.")]
AGENT = Annotated[str | None, Field(description="The agent that does the task; by default the desk's default agent.")]


def desk_tools() -> list[Tool]:
    """Return the tools that submit, schedule and read tasks, and that report on the goal of the task."""
    return [
        make(submit_task), make(schedule_task), make(list_tasks, safe=True, kind="search"),
        make(get_task, safe=True, kind="search"), make(goal_complete, safe=True), make(goal_delay, safe=True),
    ]  # fmt: skip


async def submit_task(
    turn: Turn,
    prompt: WORK,
    agent: AGENT = None,
    delay: Annotated[float | str, Field(description="Time until it may start: seconds, or text such as 10m.")] = 0,
    wake: Annotated[bool, Field(description="If your turn has ended, begin a new one with the result.")] = False,
) -> Any:
    """Submit a task that runs in the background. Returns the id of the task at once.

    You get the result as soon as it is there: during this turn, or with the next message. Do not wait for it.
    """
    fields = {"prompt": prompt, "agent": agent, "delay": delay or None, "wake": wake or None}
    task = await _call(turn, "POST", "tasks", fields)
    return {name: task.get(name) for name in ("id", "status", "agent", "due_at")}


async def schedule_task(
    turn: Turn,
    prompt: WORK,
    at: Annotated[str | None, Field(description="Once: 2030-01-31T09:00, in 20m, tomorrow 09:00.")] = None,
    every: Annotated[str | None, Field(description="Repeatedly, with this interval: 90m, 1d.")] = None,
    cron: Annotated[str | None, Field(description="Repeatedly, as a cron expression: 0 9 * * 1-5.")] = None,
    zone: Annotated[str | None, Field(description="IANA time zone; by default the host's.")] = None,
    title: str = "",
    agent: AGENT = None,
    max_runs: Annotated[int, Field(ge=0, description="0 for no limit.")] = 0,
) -> Any:
    """Schedule a task once or repeatedly. Set exactly one of at, every and cron."""
    fields = {
        "prompt": prompt, "at": at, "every": every, "cron": cron, "zone": zone, "title": title or None, "agent": agent,
        "max_runs": max_runs or None,
    }  # fmt: skip
    automation = await _call(turn, "POST", "automations", fields)
    return {name: automation.get(name) for name in ("id", "title", "agent", "status", "next_run_at", "next_runs")}


async def list_tasks(
    turn: Turn,
    status: Annotated[str | None, Field(description="pending, running, done, failed or cancelled.")] = None,
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
) -> Any:
    """List the tasks of your own work, newest first: this task, its session, and the tasks that come from it."""
    answer = await _call(turn, "GET", "tasks", query={"status": status, "limit": limit})
    return [_shorten_task(task, LISTED_TEXT) for task in answer.get("tasks", ())]


async def get_task(turn: Turn, id: str) -> Any:
    """Read one task: its status, and its result when it is done."""
    return _shorten_task(await _call(turn, "GET", f"tasks/{quote(id, safe='')}"), None)


async def goal_complete(
    turn: Turn, evidence: Annotated[str, Field(description="The evidence that the goal is reached.", max_length=20_000)]
) -> Any:
    """Report that the goal of this task is reached. The report takes effect when this step has ended."""
    goal = await _call(turn, "POST", f"goals/{_read_goal(turn)}/complete", {"evidence": evidence})
    return {"id": goal.get("id"), "status": goal.get("status"), "told": True}


async def goal_delay(
    turn: Turn,
    duration: Annotated[float | str, Field(description="Seconds, or text such as 90m.")],
    reason: Annotated[str, Field(description="What the goal waits for.", max_length=2000)],
) -> Any:
    """Pause the goal of this task for some time after this step."""
    goal = await _call(turn, "POST", f"goals/{_read_goal(turn)}/delay", {"duration": duration, "reason": reason})
    return {name: goal.get(name) for name in ("id", "status", "next_run_at")}


def _read_goal(turn: Turn) -> str:
    goal = turn.env.get("MIDWATCH_GOAL")
    if not goal:
        raise ToolError("this task does not belong to a goal, so there is no goal to report on.")
    return quote(goal, safe="")


def _shorten_task(task: dict[str, Any], cut: int | None) -> dict[str, Any]:
    fields = {name: task.get(name) for name in SHOWN if task.get(name) is not None}
    if cut is None:
        return fields
    long = {name: f"{value[:cut]}…" for name, value in fields.items() if isinstance(value, str) and len(value) > cut}
    return {**fields, **long}


async def _call(
    turn: Turn, method: str, path: str, body: dict[str, Any] | None = None, query: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Send a request to the server and return its answer. Raise ToolError if the server refuses the request."""
    url, token = turn.env.get("MIDWATCH_URL"), turn.env.get("MIDWATCH_TOKEN")
    if not url or not token:
        raise ToolError("no midwatch server runs, so this tool cannot work; start a server with `midwatch up`.")
    fields = None if body is None else {name: value for name, value in body.items() if value is not None}
    params = {name: value for name, value in (query or {}).items() if value is not None}
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=CALL_SECONDS) as http:
            reply = await http.request(
                method, f"{url}/api/v1/{path}", json=fields, params=params, headers={"authorization": f"Bearer {token}"}
            )
        answer = reply.json()
    except (httpx2.HTTPError, ValueError) as problem:
        raise ToolError(f"the server does not answer ({type(problem).__name__}); try again later.") from None
    if reply.is_error or not isinstance(answer, dict):
        detail = answer.get("detail") if isinstance(answer, dict) else None
        raise ToolError(str(detail or f"the server answers with status {reply.status_code}"))
    return answer
