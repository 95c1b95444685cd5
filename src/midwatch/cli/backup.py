"""Commands that copy the whole database: backup, restore, migrate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from midwatch.cli.command import Reply, command
from midwatch.cli.connection import check_same_database, load_settings
from midwatch.cli.options import AsJson
from midwatch.cli.output import join, note
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from collections.abc import Callable

    from midwatch.runtime.backup import CopyResult

LARGE = 1000
"""Number of rows or pages from which progress is printed."""
File = Annotated[Path, Argument(metavar="FILE", help="Backup file.")]
Force = Annotated[bool, Option("--force", help="Replace an existing file or existing data.")]
To = Annotated[str, Option("--to", metavar="URL", help="URL of an empty database: postgresql://user@host/name.")]


@command()
async def backup(file: File, force: Force = False, as_json: AsJson = False) -> Reply:
    """Back up the database to a file while tasks run. The file can be restored to SQLite or PostgreSQL."""
    from midwatch.runtime.backup import backup as write_backup

    settings = load_settings()
    await check_same_database(settings)
    copied = await write_backup(settings, file, report_progress(as_json), force=force)
    return Reply({"file": str(file), **summarise(copied)}, f"{file}: {describe_copy(copied)}")


@command()
async def restore(file: File, force: Force = False, as_json: AsJson = False) -> Reply:
    """Restore a backup into an empty database; --force replaces existing data. Stop all processes first."""
    from midwatch.runtime.backup import restore as read_backup

    copied = await read_backup(load_settings(), file, report_progress(as_json), force=force)
    text = join(
        f"Restored {describe_copy(copied)}.",
        f"The previous database was renamed to {copied.aside}." if copied.aside else None,
        "Tasks that were running at the time of the backup follow their `on_crash` rule at the next start.",
    )
    return Reply({"file": str(file), **summarise(copied)}, text)


@command()
async def migrate(to: To, as_json: AsJson = False) -> Reply:
    """Copy this home's SQLite data to an empty PostgreSQL database. Stop all processes first."""
    from midwatch.desk.shared_database import without_password
    from midwatch.runtime.backup import migrate as copy_to_postgres

    settings = load_settings()
    copied = await copy_to_postgres(settings, to, report_progress(as_json))
    database = without_password(to)
    text = join(
        f"Copied {describe_copy(copied)}.",
        f"Now set this in {settings.home / 'midwatch.toml'}, or as MIDWATCH_DB, on every machine (with the password):",
        f'  db = "{database}"',
        "The SQLite file is unchanged. Without the setting `db`, midwatch still uses the SQLite file.",
    )
    return Reply({"database": database, **summarise(copied)}, text)


def describe_copy(copied: CopyResult) -> str:
    """Return the result of a copy as text for people."""
    parts = [f"{rows} {table}" for table, rows in copied.rows.items() if rows and table != "event_head"]
    return ", ".join([*parts, f"the log up to seq {copied.last_seq}"])


def summarise(copied: CopyResult) -> dict[str, object]:
    """Return the result of a copy as JSON."""
    aside = {"aside": str(copied.aside)} if copied.aside else {}
    return {"rows": copied.rows, "last_seq": copied.last_seq, **aside}


def report_progress(quiet: bool) -> Callable[[str, int, int], None]:
    """Return a function that prints the progress of large tables and files: at most one line for each tenth."""
    noted: set[tuple[str, int]] = set()

    def report(what: str, done: int, total: int) -> None:
        if quiet or total < LARGE or (what, done * 10 // total) in noted:
            return
        noted.add((what, done * 10 // total))
        note(f"{what}: {done * 100 // total} %")

    return report
