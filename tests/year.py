"""A simulated year of automations and goals: all kinds of schedules, triggers, chains, clock changes and crashes.

The desk, the store and the clock are those of the simulated week. All chance comes from one seed.
`python tests/year.py --seed N` simulates a year and prints what became of all runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, LimitReached
from midwatch.base.home import Home
from midwatch.desk.config import Settings
from midwatch.desk.foundation import Setup
from midwatch.domain.agent import AgentTerms, TurnResult
from midwatch.loops import triggers as watching
from midwatch.programs.git_branch import News
from midwatch.runtime import followers
from signing import sign_github

from week import (  # isort: skip
    DAY, HOUR, MINUTE, SLOW_LOOPS, START, DeskProcess, InlineExecutor, ProcessClock, RandomAgent, WeekStore, World,
    end_waiting_tasks, without_logs,
)  # fmt: skip
from year_checks import YearChecker

MOST_RUNS = 100_000
ACTIONS_A_DAY = 5
WATCH_SECONDS = 2 * HOUR
"""How often files are looked at. Every second for a year would be most of the work."""
ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Auckland",
    "Africa/Cairo", "America/Santiago",
)  # fmt: skip
CRONS = (
    "30 2 * * *", "0 9 * * 1-5", "*/20 * * * *", "15 */6 * * *", "10 1,2,3 * * *", "0 0 1 * *", "0 * * * *",
    "45 23 * * 0", "5 2 * * 0", "59 1-3 * 3,4,9,10,11 *",
)  # fmt: skip
NOTICES = (
    None, "all", "result", "changes", "failures", "questions", "digest:hourly", "digest:daily", "digest:daily@07:30",
    "off",
)  # fmt: skip
CALENDAR = ["sun", "12-25", "01-01", "2024-08-10..2024-08-24"]


class YearAgent(RandomAgent):
    """An agent that often answers at once, and sometimes slowly, wrongly or not at all."""

    async def perform(self, prompt: str, turn: Any) -> Any:
        draw = 0.0 if self._world.ending else self._world.chance.random()
        if draw < 0.8:
            return TurnResult(text=self._world.chance.choice(("done", "done", "all well", "QUIET", "REACHED")))
        if draw < 0.83:
            raise AgentError("it does not work")
        return await super().perform(prompt, turn)


class QuickBranches:
    """Reads branches with git, without waiting."""

    def __init__(self, **_options: Any) -> None:
        """Ignore the options of the real reader."""

    async def find_tip(self, repository: str, branch: str | None) -> str | None:
        return run_git(repository, "rev-parse", branch or "HEAD")

    async def read_news(self, _repository: str, _old: str, _new: str) -> News:
        return News((), False)


def run_git(repository: str, *arguments: str) -> str:
    """Run git in a repository, and return what it prints."""
    about = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    command = ["git", "-C", repository, *about, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def look_seldom() -> Iterator[None]:
    """Look at files and branches seldom, and on the event loop."""

    async def call(function: Callable[[], Any], *, seconds: float | None = None) -> Any:
        return function()

    places: tuple[tuple[Any, str, Any], ...] = (
        (watching, "in_thread", call), (watching, "POLL_SECONDS", WATCH_SECONDS),
        (watching, "SLOWEST_POLL", WATCH_SECONDS), (followers, "GitBranches", QuickBranches),
    )  # fmt: skip
    old = [(place, name, getattr(place, name)) for place, name, _ in places]
    try:
        for place, name, value in places:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in old:
            setattr(place, name, value)


class Year(World):
    """Some days, a year if not said otherwise, of many automations."""

    def __init__(self, seed: int, settings: Settings, days: int, many: int) -> None:
        super().__init__(seed, settings)
        self.checker: YearChecker = YearChecker(self.connection, self.clock, START, days)
        self.checker.calendars = settings.list_calendars()
        self.days, self.many = days, many
        self.refused = self.repeated = 0
        self.opened_at = 0.0
        self.place = Path(settings.home) / "outside"
        (self.place / "repository").mkdir(parents=True, exist_ok=True)
        self.repository = str(self.place / "repository")
        run_git(self.repository, "init", "-q", "-b", "main")
        run_git(self.repository, "commit", "-q", "--allow-empty", "-m", "first")
        self.written = 0

    async def open(self) -> None:
        """Open a new process."""
        self.clock_of_life = ProcessClock(self.clock)
        self.store = WeekStore(self.connection, self.chance, self.checker.on_commit)
        crashes = ("resume", "rerun", "fail")
        agents: dict[str, Any] = {
            name: YearAgent(self, name, AgentTerms(timeout_seconds=limit, on_crash=on_crash, slots=30))  # type: ignore[arg-type]  # one of them
            for name, limit, on_crash in zip(("ann", "bob", "eve"), (2 * HOUR, HOUR, 4 * HOUR), crashes, strict=True)
        }
        about = (self.settings, self.home, self.store, agents, {"there": self.channel}, self.clock_of_life)
        self.desk = DeskProcess(Setup(*about), role="up", pace=SLOW_LOOPS)
        self.processes.append(self.desk)
        self.opened_at = self.clock.monotonic()
        await self.desk.begin()

    async def run(self) -> None:
        """Simulate the days, then continue until everything has ended."""
        await self.open()
        await self.run_until_idle()
        await self._create_records()
        end, checked = self.clock.monotonic() + self.days * DAY, 0.0
        while (remaining := end - self.clock.monotonic()) > 0:
            gap = self.chance.expovariate(ACTIONS_A_DAY / DAY)
            await self.advance(min(gap, remaining))
            if self.chance.random() < 0.3:
                await self.until_busy(end)
            await self.act()
            await self.run_until_idle()
            if self.clock.monotonic() - checked > DAY:
                checked = self.clock.monotonic()
                await self.look_back()
            if sum(self.checker._fired.values()) >= MOST_RUNS:
                break
        await self.drain()
        self.checker.check_log()
        self.check_notices()
        await self.stop()

    async def look_back(self) -> None:
        """Check everything at a moment at which the process has done all that is due."""
        await self.settle()
        self.checker.check()
        self.checker.check_due()
        self.checker.check_triggers(all_taken=True)

    async def settle(self) -> None:
        """Let the process work for a while without being killed; after a nap it has seen that the clock was set."""
        self.dies_in = None
        await self.advance(SLOW_LOOPS.nap + 10 * MINUTE)

    def check_notices(self) -> None:
        """Check that each notice was sent once, also those of digests."""
        ids = [delivery.id for delivery in self.channel.delivered]
        sent = {
            row[0] for row in self.checker.rows("SELECT coalesce(digest_id, id) FROM deliveries WHERE status = 'sent'")
        }
        assert sent <= set(ids), "a notice is marked as sent and was not"

    # -- automations -----------------------------------------------------------------------------------------------

    async def _create_records(self) -> None:
        for _ in range(self.many):
            await self.new_automation()
        for _ in range(max(1, self.many // 20)):
            await self.new_triggered()
            await self.new_diamond()
        await self.new_goal()

    def describe(self, rare: bool = True) -> dict[str, Any]:
        """Return random options of an automation."""
        chance = self.chance
        return {
            "agent": chance.choice(("ann", "bob", "eve")), "zone": chance.choice(ZONES),
            "max_runs": chance.choice((0, 0, 0, 30)), "missed": chance.choice(("skip", "once", "once_within")),
            "missed_window": chance.choice((HOUR, 12 * HOUR, 3 * DAY)), "fresh": chance.random() < 0.3,
            "quiet": chance.choice((None, "QUIET", "/^(all well|QUIET)/")), "history": chance.choice((0, 0, 3)),
            "jitter_seconds": chance.choice((0.0, 600.0)), "overlap": chance.choice((None, "skip", "queue", "replace")),
            "days_off": chance.choice(((), (), ("sat", "sun"), ("holidays",))) if rare else (),
            "quiet_hours": chance.choice(((), (), ("22:00-07:00",), ("01:00-02:30", "12:00-13:00"))) if rare else (),
            "route": chance.choice((None, "there")), "notices": chance.choice(NOTICES),
        }  # fmt: skip

    async def new_automation(self) -> None:
        chance = self.chance
        when: dict[str, Any] = chance.choice((
            {"every": chance.choice((3 * MINUTE, HOUR, 5 * HOUR, DAY)) if chance.random() < 0.1 else 7 * HOUR},
            {"cron": chance.choice(CRONS)}, {"cron": chance.choice(CRONS)},
            {"at": self.clock.now() + int(chance.uniform(HOUR, 5 * DAY) * SECOND)},
        ))  # fmt: skip
        if when.get("cron", "").startswith("*/") and chance.random() < 0.7:
            when = {"cron": "7 4,16 * * *"}
        fields = self.describe() | when
        if chance.random() < 0.1:
            fields["triggers"] = [self.choose_trigger()]
        await self.try_action(f"automation {when}", self.desk.automations.create("look {{date}}", **fields))

    def choose_trigger(self) -> dict[str, Any]:
        """Return a trigger of some kind that needs no other automation."""
        return dict(self.chance.choice((
            {"kind": "webhook", "sign": "github", "per_minute": self.chance.choice((5, 60))},
            {"kind": "event", "kinds": ["goal_completed", "goal_paused", "goal_timed_out"]},
            {"kind": "file", "paths": [f"{self.place}/*.txt"], "debounce": "2s"},
            {"kind": "git", "repository": self.repository, "branch": "main", "every": "6h"},
        )))  # fmt: skip

    async def create_part(self, triggers: list[dict[str, Any]], **fields: Any) -> str | None:
        """Create an automation of a chain, and return its id."""
        wish = self.describe(rare=self.chance.random() < 0.3) | {"triggers": triggers} | fields
        made = await self.try_action("part", self.desk.automations.create("do a part", **wish))
        return made.id if made else None

    async def new_triggered(self) -> None:
        for _ in range(4):
            await self.create_part([self.choose_trigger()])

    async def new_diamond(self) -> None:
        """Create a diamond of four automations, and a long chain after it."""
        outcomes = self.chance.choice((["ok"], ["any"], ["ok", "failed"]))
        start: dict[str, Any] = self.chance.choice(({"cron": "0 3 * * *"}, {"every": 9 * HOUR}))
        top = await self.create_part([self.choose_trigger()] if self.chance.random() < 0.3 else [], **start)
        if top is None:
            return
        sides = [await self.create_part([{"kind": "after", "automations": [top], "outcomes": outcomes}]) for _ in "ab"]
        if None in sides:
            return
        join = self.chance.choice(("all", "any"))
        last = await self.create_part([{"kind": "after", "automations": sides, "join": join, "outcomes": outcomes}])
        for _ in range(self.chance.randint(0, 4)):
            if last is not None:
                last = await self.create_part([{"kind": "after", "automations": [last], "outcomes": outcomes}])

    # -- actions ---------------------------------------------------------------------------------------------------

    async def act(self) -> None:
        """Do one random action."""
        names = [name for name, weight in YEAR_ACTIONS.items() for _ in range(weight)]
        await getattr(self, self.chance.choice(names))()

    async def new_goal(self) -> None:
        chance = self.chance
        fields: dict[str, Any] = {
            "agent": chance.choice(("ann", "bob", "eve")), "route": chance.choice((None, "there")),
            "every_seconds": chance.choice((0.0, 2 * HOUR)), "max_steps": chance.choice((3, 12)),
            "deadline_at": self.clock.now() + int(chance.uniform(HOUR, 3 * DAY) * SECOND),
        }  # fmt: skip
        await self.try_action("goal", self.desk.goals.create("reach it", **fields))

    async def change_automation(self) -> None:
        chance, automations = self.chance, self.desk.automations
        ids = [row[0] for row in self.connection.execute("SELECT id FROM automations ORDER BY id")]
        if not ids:
            return await self.new_automation()
        name = chance.choice(ids)
        patches: tuple[dict[str, Any], ...] = (
            {"every": chance.choice((3, 7)) * HOUR}, {"cron": chance.choice(CRONS[4:])}, {"title": "x"},
            {"max_runs": 0}, {"zone": chance.choice(ZONES)}, {"overlap": chance.choice(("skip", "queue", "replace"))},
            {"quiet_hours": ["20:00-05:00"]}, {"days_off": ["wed"]}, {"missed": "once"},
        )  # fmt: skip
        action, doing = chance.choice((
            ("pause", lambda: automations.pause(name)), ("stop", lambda: automations.pause(name, stop=True)),
            ("run", lambda: automations.run(name)), ("delete", lambda: automations.delete(name)),
            ("patch", lambda: automations.patch(name, chance.choice(patches))),
            ("patch", lambda: automations.patch(name, chance.choice(patches))),
        ))  # fmt: skip
        await self.try_action(f"automation {action} {name}", doing())
        return None

    async def resume_automation(self) -> None:
        """Resume some automations that rest."""
        rows = self.connection.execute("SELECT id FROM automations WHERE status <> 'active' ORDER BY id").fetchall()
        for (name,) in self.chance.sample(rows, min(3, len(rows))):
            await self.try_action(f"resume {name}", self.desk.automations.resume(name))

    async def replace_automation(self) -> None:
        """Create a new automation if there are too few that work."""
        ((active,),) = self.connection.execute("SELECT count(*) FROM automations WHERE status = 'active'")
        if active < self.many:
            await self.chance.choice((self.new_automation, self.new_triggered, self.new_diamond))()

    async def deliver(self) -> None:
        """Deliver to the webhooks: new deliveries, repeated ones, and sometimes a burst."""
        for trigger_id, secret in self.connection.execute(
            "SELECT id, secret FROM triggers WHERE kind = 'webhook' AND removed_at IS NULL ORDER BY id"
        ).fetchall():
            count = 8 if self.chance.random() < 0.2 else 1
            for number in range(count):
                delivery = (
                    f"d{self.chance.randint(0, 40)}" if self.chance.random() < 0.3 else f"n{len(self.done)}.{number}"
                )
                await self.send(trigger_id, secret, delivery)

    async def send(self, trigger_id: str, secret: str, delivery: str) -> None:
        body = json.dumps({"action": "opened", "number": len(self.done)}).encode()
        headers = {name.lower(): text for name, text in sign_github(secret, body, "issues", delivery).items()}

        async def post() -> Any:
            trigger = await self.desk.triggers.check_delivery(trigger_id, headers, body)
            try:
                return await self.desk.triggers.deliver(trigger, headers, body, json.loads(body))
            except LimitReached:
                self.refused += 1
                return None

        reply = await self.try_action(f"deliver {delivery} to {trigger_id}", post())
        if reply is None:
            return
        self.repeated += not reply.created
        assert self.checker.keys[trigger_id, delivery] == reply.firing.id, f"{delivery} fired {trigger_id} twice"

    async def write_file(self) -> None:
        self.written += 1
        (self.place / f"{self.written % 5}.txt").write_text("x" * self.written)

    async def commit(self) -> None:
        run_git(self.repository, "commit", "-q", "--allow-empty", "-m", f"commit {len(self.done)}")

    async def replay(self) -> None:
        rows = self.connection.execute("SELECT id FROM firings ORDER BY id DESC LIMIT 50").fetchall()
        if rows:
            firing_id = self.chance.choice(rows)[0]
            await self.try_action(f"replay {firing_id}", self.desk.triggers.replay(firing_id))

    async def restart(self) -> None:
        """Stop the process for minutes to days."""
        if self.dies_in is None:
            await self.stop()
            await self.advance(self.chance.choice((MINUTE, HOUR, 20 * HOUR, 6 * DAY)) * self.chance.random())
            await self.open()

    async def drain(self) -> None:
        """Let everything end: agents answer at once, and all automations are paused."""
        self.ending, self.dies_in = True, None
        await self.look_back()
        self.checker.outcomes["automation active at the end"] = self.connection.execute(
            "SELECT count(*) FROM automations WHERE status = 'active'"
        ).fetchone()[0]
        for (name,) in self.connection.execute("SELECT id FROM automations WHERE status = 'active'").fetchall():
            await self.try_action("pause all", self.desk.automations.pause(name))
        await self.advance(4 * DAY)


YEAR_ACTIONS = {
    "change_automation": 8, "resume_automation": 8, "replace_automation": 3, "deliver": 6, "write_file": 4, "commit": 1,
    "replay": 2, "cancel": 2, "retry": 2, "answer": 2, "kill": 3, "restart": 2, "jump": 2, "new_goal": 2,
    "change_goal": 3, "add_second_scheduler": 2,
}  # fmt: skip


def simulate_year(seed: int, home: Path, days: int = 366, many: int = 60) -> Year:
    """Simulate the year of a seed, or some days of it, and print its history if it fails."""
    settings = Settings(
        home=home, detect_agents=False, shutdown_grace=0.0, notify=None, default_agent="bob",
        calendars={"holidays": {"days": CALENDAR}},
    )  # fmt: skip
    Home(home).prepare()

    async def year() -> Year:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        async with end_waiting_tasks():
            world = Year(seed, settings, days, many)
            try:
                await world.run()
            except BaseException as problem:
                for line in world.done[-40:]:
                    print(line)
                problem.add_note(f"seed {seed} at {world.done[-1:]}")
                raise
            finally:
                world.abandon()
                world.connection.close()
            return world

    with without_logs(), look_seldom():
        return asyncio.run(year())


def main() -> None:
    """Simulate a year and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=int, default=366)
    parser.add_argument("--many", type=int, default=60, help="how many automations there are at least")
    wish = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        try:
            world = simulate_year(wish.seed, Path(home) / "home", wish.days, wish.many)
        except BaseException:
            traceback.print_exc()
            sys.exit(f"\nreplay it: python tests/year.py --seed {wish.seed} --days {wish.days} --many {wish.many}")
    checker = world.checker
    for name, count in sorted(checker.outcomes.items()):
        print(f"{count:8} {name}")
    runs = sum(checker._fired.values())
    print(
        f"seed {wish.seed}: {wish.days} days, {len(checker.stories)} automations, {checker.due_times} due times, "
        f"{runs} runs, {len(checker.firings)} firings, {world.refused} deliveries refused, {world.repeated} repeated, "
        f"{len(world.processes)} processes, {len(world.done)} actions, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
