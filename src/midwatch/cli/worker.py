"""Command `worker`: run tasks of a shared database, without a server."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

from midwatch.base.errors import BadConfig, InvalidInput
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import load_settings
from midwatch.cli.options import AsJson, Db
from midwatch.cli.output import join
from midwatch.cli.parameters import Option

if TYPE_CHECKING:
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime

NO_DATABASE = (
    "a worker needs PostgreSQL, but this home uses a SQLite file, for which one `midwatch up` "
    "runs everything. Name a database with --db URL or the setting db; `midwatch migrate` moves there."
)
Agents = Annotated[
    str | None, Option("--agents", metavar="A,B", help="Run only these agents. Default: all configured here.")
]
Slots = Annotated[int | None, Option("--slots", min=1, max=10_000, help="Tasks at once. Default: the setting slots.")]


@command()
def worker(db: Db = None, agents: Agents = None, slots: Slots = None, as_json: AsJson = False) -> None:
    """Run tasks of a shared PostgreSQL database until the worker is stopped."""
    import uvloop

    from midwatch.runtime.serve import write_log

    settings = load_settings(db=db, slots=slots)
    if not settings.db:
        raise BadConfig(NO_DATABASE)
    only = None if agents is None else [name.strip() for name in agents.split(",") if name.strip()]
    if only == []:
        raise InvalidInput("--agents is empty; name one or more agents, separated by commas.", field="agents")
    write_log(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_worker(settings, only, as_json))


async def run_worker(settings: Settings, only: list[str] | None, as_json: bool) -> None:
    """Run tasks until a signal arrives. Then interrupt the running tasks, so that other processes continue them."""
    from midwatch.runtime.runtime import Runtime
    from midwatch.runtime.serve import on_signals, warn_of_root

    stopping = asyncio.Event()
    on_signals(stopping)
    async with Runtime.open(settings.home, settings=settings, role="worker", only=only) as runtime:
        warn_of_root()
        describe_worker(runtime).print(as_json)
        sys.stdout.flush()
        await stopping.wait()


def describe_worker(runtime: Runtime) -> Reply:
    """Return the text that a worker prints at its start: its id, its database and its agents."""
    from midwatch.desk.shared_database import without_password

    assert runtime.settings.db is not None
    database = without_password(runtime.settings.db)
    instance = runtime.crew.instance
    text = join(
        f"midwatch worker {instance.id} takes tasks from {database}, {instance.slots} at once",
        f"Agents: {', '.join(instance.agents) or 'none'}",
        "Ctrl-C stops the worker; other processes continue its unfinished tasks.",
    )
    return Reply({**instance.snapshot(), "database": database, "home": str(runtime.home.path)}, text)
