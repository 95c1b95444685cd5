"""Import a crontab: each line becomes an automation that a file could declare, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midwatch.base.errors import InvalidInput
from midwatch.cli import output as out
from midwatch.cli.command import Reply
from midwatch.cli.connection import connect
from midwatch.cli.declarations import describe_plan
from midwatch.cli.inputs import read_file

TITLE_LENGTH = 100
MOST_FLAWS = 20


async def import_crontab(
    file: str, given: Mapping[str, Any], *, system: bool, enable: bool, skip_bad: bool, dry_run: bool
) -> Reply:
    """Create an automation for each line of a crontab. `given` are fields that all of them get."""
    from midwatch.base.crontab import CronLine, read_crontab, write_prompt
    from midwatch.base.schedule import host_zone
    from midwatch.domain.declaration import make_name

    zone = host_zone()
    text = read_file(file, "crontab").decode("utf-8", "replace").replace("\0", "\ufffd")
    crontab = read_crontab(text, zone, system=system)
    if crontab.flaws and not skip_bad:
        shown = "; ".join(f"line {flaw.number}: {flaw.why}" for flaw in crontab.flaws[:MOST_FLAWS])
        raise InvalidInput(
            f"{file} has lines that cannot be imported, so nothing was: {shown}. Correct them, or use --skip-bad.",
            field="crontab",
        )

    def declare(line: CronLine) -> dict[str, Any]:
        table: dict[str, Any] = {"prompt": write_prompt(line), "cron": line.cron, "zone": line.zone or zone, **given}
        table["title"] = out.shorten(line.title or line.command, TITLE_LENGTH)
        if line.delay_minutes:
            table["jitter"] = f"{line.delay_minutes}m"
        return table if enable else {**table, "enabled": False}

    tables: dict[str, Any] = {}
    for line in crontab.lines:
        tables[make_name(line.title or line.command, tables)] = declare(line)
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(file).name).strip("-.") if file != "-" else ""
    name = stem if stem in ("", "crontab") else f"crontab-{stem}"[:60]
    async with connect() as desk:
        plan = await desk.client.apply({"set": name or "crontab", "automations": tables}, dry_run=dry_run)
    skipped = [f"line {flaw.number} is skipped: {flaw.why}" for flaw in crontab.flaws]
    hint = None if enable or not tables else "They are paused; `midwatch automation resume ID` starts one."
    content = {**plan, "skipped": [flaw._asdict() for flaw in crontab.flaws], "notes": list(crontab.notes)}
    return Reply(content, out.join(describe_plan(plan), *skipped, *crontab.notes, hint))
