"""The overview, processes, settings and health as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.instance import Instance
from midwatch.domain.task import Task
from midwatch.wire.approvals import ApprovalInfo
from midwatch.wire.shapes import shape_of
from midwatch.wire.tasks import TASK, Counts, TaskInfo
from midwatch.wire.usage import UsageInfo

STORE = {"kind": "sqlite", "journal": "wal", "synchronous": "FULL"}


@shape_of(
    Instance,
    running=Annotated[int, Example(0)],
    live=Annotated[bool, Example(True)],
    heartbeat_age=Annotated[float | None, Example(None)],
    leader=Annotated[bool, Example(True)],
)
class ProcessInfo(dict[str, Any]):
    """A process that runs tasks, as JSON.

    If processes hold file locks instead of sending heartbeats, `heartbeat_age` is null.
    """


class ClusterInfo(TypedDict):
    """The processes that share a store, oldest first, and facts about the store."""

    store: Annotated[dict[str, Any], Example(STORE)]
    processes: list[ProcessInfo]


class Activity(TypedDict):
    """The last event of a task, as text."""

    at: str
    text: str


@shape_of(Task, **TASK, activity=Annotated[Activity | None, Example(None)])
class RunningTask(TaskInfo):
    """A task that runs."""


class Now(TypedDict):
    """The overview: running tasks, questions, failed and recent tasks, usage."""

    as_of_seq: int
    summary: Counts
    running: list[RunningTask]
    approvals: list[ApprovalInfo]
    failed: list[TaskInfo]
    recent: list[TaskInfo]
    usage: UsageInfo


class Directories(TypedDict):
    """The subdirectories of one directory on the server's machine."""

    path: str
    parent: str | None
    directories: list[str]


class SettingsInfo(TypedDict):
    """The settings, without secrets."""

    default_agent: Annotated[str, Example("demo")]
    notify: Annotated[str | None, Example("webhook")]
    channels: Annotated[list[str], Example(["console", "webhook"])]
    limits: Annotated[dict[str, Any], Example({"slots": 64, "max_open": 1000})]
    retention: Annotated[dict[str, Any], Example({"tasks": 10000})]
    store: Annotated[dict[str, Any], Example(STORE)]


class Ready(TypedDict):
    """The reply that the server accepts tasks and the database answers."""

    status: str


class ProblemInfo(TypedDict):
    """An error. Programs look at `code`; people read `detail`."""

    type: Annotated[str, Example("about:blank")]
    title: Annotated[str, Example("Not Found")]
    status: Annotated[int, Example(404)]
    code: Annotated[str, Example("not_found")]
    detail: Annotated[str, Example("there is no task 't_x'; list them with `midwatch tasks`.")]
    field: str | None


class Health(TypedDict):
    """The status and version of the server."""

    status: str
    version: str
