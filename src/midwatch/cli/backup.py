"""Commands of copies: backup, restore, migrate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midwatch.cli.connection import check_same_database, run, settings
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, note, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from midwatch.runtime.backup import Copied

TOLD_EVERY = 50_000
File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
To = Annotated[str, typer.Option("--to", metavar="URL", help="An empty PostgreSQL: postgresql://user@host/name.")]


def backup(file: File, force: Force = False, as_json: AsJson = False) -> None:
    """Write everything to a file, while work goes on. It can be restored to SQLite and to PostgreSQL."""
    from midwatch.runtime.backup import backup as back_up

    wanted = settings()

    async def act() -> Copied:
        await check_same_database(wanted)
        return await back_up(wanted, file, progress(as_json), force=force)

    made = run(act())
    if as_json:
        emit({"file": str(file), **facts(made)})
    else:
        say(f"{file}: {counted(made)}")


def restore(file: File, force: Force = False, as_json: AsJson = False) -> None:
    """Fill an empty store from a backup; --force replaces one that is not empty. No process may run."""
    from midwatch.runtime.backup import restore as put_back

    made = run(put_back(settings(), file, progress(as_json), force=force))
    if as_json:
        emit({"file": str(file), **facts(made)})
        return
    say(f"Restored {counted(made)}.")
    if made.aside:
        say(f"The database that was there is now {made.aside}.")
    say("Tasks that ran when the backup was made go on by their crash rule at the next start.")


def migrate(to: To, as_json: AsJson = False) -> None:
    """Copy everything of this home's SQLite file to an empty PostgreSQL. No process may run."""
    from midwatch.runtime.backup import migrate as move

    here = settings()
    made = run(move(here, to, progress(as_json)))
    from midwatch.desk.shared_database import without_password

    if as_json:
        emit({"database": without_password(to), **facts(made)})
        return
    say(f"Copied {counted(made)}.")
    say(f"Now say in {here.home / 'midwatch.toml'}, or as MIDWATCH_DB, on every machine (with its password):")
    say(f'  db = "{without_password(to)}"')
    say("The SQLite file was left as it is; without that setting midwatch goes on using it.")


def counted(made: Copied) -> str:
    """How much it was, for people."""
    parts = [f"{rows} {table}" for table, rows in made.rows.items() if rows and table != "event_head"]
    return ", ".join([*parts, f"the log up to seq {made.last_seq}"])


def facts(made: Copied) -> dict[str, object]:
    """The same for programs."""
    aside = {"aside": str(made.aside)} if made.aside else {}
    return {"rows": made.rows, "last_seq": made.last_seq, **aside}


def progress(quiet: bool) -> Callable[[str, int], None]:
    """Tells of large tables while they are copied."""

    def told(table: str, rows: int) -> None:
        if not quiet and rows and rows % TOLD_EVERY == 0:
            note(f"{table}: {rows} rows so far")

    return told
