"""Test reading a crontab."""

from __future__ import annotations

from midwatch.base.crontab import read_crontab, write_prompt

LINES = """\
# m h dom mon dow command
MAILTO=root
PATH = "/usr/bin:/bin"

# Nightly backup
30 2 * * *\t/bin/backup --all 2>&1
#0 5 * * 1 tar -zcf /x /home
CRON_TZ=Europe/Berlin
RANDOM_DELAY=15
@daily  date +\\%F > /tmp/x%hello%world
0 0 * * 7 a=b run
*/5 * * * 0-4
@reboot /bin/start
61 * * * * bad
TZ=Mars/Olympus
5 5 * * * never
just words
"""


def test_each_kind_of_line_is_read_or_reported() -> None:
    crontab = read_crontab(LINES, "UTC")
    assert [(line.number, line.cron, line.zone, line.title, line.delay_minutes) for line in crontab.lines] == [
        (6, "30 2 * * *", None, "Nightly backup", 0),
        (10, "@daily", "Europe/Berlin", "", 15),
        (11, "0 0 * * 7", "Europe/Berlin", "", 15),
        (16, "5 5 * * *", "Europe/Berlin", "", 15),
    ]
    assert [(flaw.number, flaw.why.split(";")[0]) for flaw in crontab.flaws] == [
        (12, "a line needs a time, which is five fields or a word such as @daily, and a command"),
        (13, "@reboot is no time"),
        (14, "cron '61 * * * *' has a bad minute"),
        (17, "a line needs a time, which is five fields or a word such as @daily, and a command"),
    ]
    assert crontab.notes == ("line 2: MAILTO has no effect here; set a route for notices instead",)
    assert crontab.lines[0].variables == {"PATH": "/usr/bin:/bin"}
    dated = crontab.lines[1]
    assert (dated.command, dated.input) == ("date +%F > /tmp/x", "hello\nworld")
    assert "    date +%F > /tmp/x" in write_prompt(dated) and "hello\nworld" in write_prompt(dated)


def test_lines_of_the_system_name_a_user_and_bad_zones_are_reported() -> None:
    crontab = read_crontab(
        "17 * * * * root cd / && run-parts x\n@hourly bob\nTZ=Mars/X\n@daily root y\n", "UTC", system=True
    )
    assert [(line.user, line.command) for line in crontab.lines] == [("root", "cd / && run-parts x")]
    assert [flaw.number for flaw in crontab.flaws] == [2, 4]
    assert "as the user root" in write_prompt(crontab.lines[0])
