"""Command `worker`: runs tasks of a shared database and serves nothing."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from midwatch.base.errors import BadConfig, InvalidInput
from midwatch.cli.connection import settings
from midwatch.cli.options import AsJson, Db
from midwatch.cli.output import emit, say

if TYPE_CHECKING:
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime

ALONE = (
    "a worker shares work through PostgreSQL, and this home keeps its tasks in a SQLite file, where one `midwatch up` "
    "runs everything. Name a database with --db URL or the setting db; `midwatch migrate` moves there."
)
Agents = Annotated[
    str | None, typer.Option("--agents", metavar="A,B", help="Only these agents. Default: all configured here.")
]
Slots = Annotated[
    int | None, typer.Option("--slots", min=1, max=10_000, help="Tasks at once. Default: the setting slots.")
]


def worker(db: Db = None, agents: Agents = None, slots: Slots = None, as_json: AsJson = False) -> None:
    """Run tasks of a shared PostgreSQL until it is stopped."""
    import uvloop

    from midwatch.runtime.serve import write_log

    wanted = settings(db=db, slots=slots)
    if not wanted.db:
        raise BadConfig(ALONE)
    only = None if agents is None else [name.strip() for name in agents.split(",") if name.strip()]
    if only == []:
        raise InvalidInput("--agents names nobody; name one or more, separated by commas.", field="agents")
    write_log(wanted)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(wanted, only, as_json))


async def work(wanted: Settings, only: list[str] | None, as_json: bool) -> None:
    """Take tasks until a signal; then end what runs and let go of the rest."""
    from midwatch.runtime.runtime import Runtime
    from midwatch.runtime.serve import on_signals

    stopping = asyncio.Event()
    on_signals(stopping)
    async with Runtime.open(wanted.home, settings=wanted, role="worker", only=only) as runtime:
        welcome(runtime, as_json)
        await stopping.wait()


def welcome(runtime: Runtime, as_json: bool) -> None:
    """Who works here, and on what."""
    from midwatch.desk.shared_database import without_password

    assert runtime.settings.db is not None
    database = without_password(runtime.settings.db)
    if as_json:
        emit({**runtime.crew.instance.snapshot(), "database": database, "home": str(runtime.home.path)})
    else:
        one = runtime.crew.instance
        say(f"midwatch worker {one.id} takes tasks from {database}, {one.slots} at once")
        say(f"Agents: {', '.join(one.agents) or 'none'}")
        say("Ctrl-C stops it; what is unfinished goes on elsewhere.")
    sys.stdout.flush()
