"""A simulated week: the real desk on a real store, a fake clock, and random events of all kinds.

All chance comes from one seed. A process ends cleanly or is abandoned: from then on none of its writes counts and none
of its timers fires, as if it had been killed, and another one is opened on the same store.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import logging
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import midwatch.base.ids
from midwatch.agents.base import message_id
from midwatch.base.clock import SECOND, Timer
from midwatch.base.errors import AgentError, MidwatchError, TransientError
from midwatch.base.home import Home
from midwatch.desk.config import Settings
from midwatch.desk.foundation import Setup
from midwatch.domain.agent import AgentTerms, TurnResult, Usage
from midwatch.domain.event import MessageUpdate, ToolExecEnd, ToolExecStart
from midwatch.domain.store import Commit
from midwatch.runtime.runtime import Pace, Runtime
from midwatch.stores.base import VerbStore
from midwatch.stores.runner import Answer, Op
from midwatch.stores.sql import SQLITE, load
from midwatch.stores.sqlite import MEMORY, SqliteStore, SqliteTx, open_database
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent
from week_checks import WeekChecker

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
START = 1_711_500_000 * SECOND
"""Some days before the clocks change in Europe."""
SLOW_LOOPS = Pace(watchdog=6 * HOUR, prune=DAY, handoffs=6 * HOUR, nap=6 * HOUR)
"""Checking twice a minute for a week would be most of the work."""
MAX_TURNS = 50_000
ACTIONS = 150
"""The number of actions of people."""


@contextmanager
def without_logs() -> Iterator[None]:
    """Disable logging and garbage collection for the duration of a week, which is short."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.enable()
        logging.disable(logging.NOTSET)


async def for_ever() -> Any:
    await asyncio.get_running_loop().create_future()


class WeekStore(SqliteStore):
    """A store without threads: a write is one transaction on the event loop, with random delays in between."""

    def __init__(
        self, connection: sqlite3.Connection, chance: random.Random, observer: Callable[[Commit], None]
    ) -> None:
        VerbStore.__init__(self, readers=1)
        self.path = MEMORY
        self.dead = False
        self._statements = load(SQLITE)
        self._connection = connection
        self._gone = False
        self._chance = chance
        self._seen = observer

    async def write(self, verb: Callable[..., Any], *args: Any) -> Any:
        await self._between()
        future = self._loop.create_future()
        self._commit([Op(verb, args, future)])
        return await future

    async def read(self, verb: Callable[..., Any], *args: Any) -> Any:
        await self._between()
        return verb(SqliteTx(self._connection, self._statements), *args)

    async def peek(self, verb: Callable[..., Any], *args: Any) -> Any:
        if self.dead:
            await for_ever()
        return verb(SqliteTx(self._connection, self._statements), *args)

    async def close(self) -> None:
        self._closed.set()

    async def _between(self) -> None:
        while not self.dead and self._chance.random() < 0.3:
            await asyncio.sleep(0)
        if self.dead:
            await for_ever()

    def _report(self, answers: list[Answer], commit: Commit | None) -> None:
        if commit is not None:
            self._seen(commit)
        self._loop.call_soon(self._hear, answers, commit)

    def _hear(self, answers: list[Answer], commit: Commit | None) -> None:
        if not self.dead:
            self._resolve(answers, commit)


class WeekClock(FakeClock):
    """A clock that is advanced to one timer after the other."""

    @property
    def next_due(self) -> float | None:
        """Return the time of the next timer, cancelled or not, on the monotonic clock."""
        return self._timers[0][0] if self._timers else None

    def tick(self, until: float) -> None:
        """Advance the clock without firing timers."""
        elapsed = max(0.0, until - self._monotonic)
        self._monotonic += elapsed
        self._now += round(elapsed * SECOND)

    def fire(self) -> bool:
        """Advance to the next timer and fire it; return whether it was not cancelled."""
        due, _, timer = heapq.heappop(self._timers)
        if timer.callback is None:
            return False
        self.tick(due)
        timer.callback()
        return True


class DeskProcess(Runtime):
    """A desk that can be killed."""

    async def begin(self) -> None:
        """Do what opening it does, on an open store."""
        await self._start()

    async def end(self) -> None:
        """Do what closing it does."""
        await self._stop()

    def die(self) -> None:
        """Release its locks, as if its process had been killed."""
        engine: Any = self.crew.engine
        engine._life.remove()
        engine._lead.release()

    async def run_second_scheduler(self) -> None:
        """Run a second scheduler for a moment."""
        await asyncio.gather(self.crew.scheduler.look(), self.crew.scheduler.look())


class ProcessClock:
    """The clock of one process: its timers do not fire once the process is dead."""

    def __init__(self, clock: FakeClock) -> None:
        self.dead = False
        self._clock = clock
        self.now = clock.now
        self.monotonic = clock.monotonic

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return self._clock.call_later(seconds, lambda: None if self.dead else callback())

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        timer = self.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()


class RandomAgent(ScriptedAgent):
    """An agent that acts at random."""

    def __init__(self, world: World, name: str, terms: AgentTerms) -> None:
        super().__init__(name=name, terms=terms)
        self._world = world
        self._life = world.clock_of_life

    async def perform(self, prompt: str, turn: Any) -> Any:
        world, chance = self._world, self._world.chance
        mood = "ok" if world.ending else chance.choices(BEHAVIOURS, WEIGHTS)[0]
        if chance.random() < 0.3:
            await turn.emit(ToolExecStart(tool="look", tool_call_id="look"))
            if chance.random() < 0.8:
                await turn.emit(ToolExecEnd(tool="look", tool_call_id="look", duration=0.0))
        if chance.random() < 0.2:
            await turn.emit(MessageUpdate(message_id=message_id(turn), role="agent", message="well"))
        if turn.task.cause == "goal" and chance.random() < 0.4:
            await self._signal(turn)
        if mood in ("slow", "asleep"):
            await self._life.sleep(chance.uniform(MINUTE, 3 * HOUR) if mood == "slow" else 90 * DAY)
        elif mood == "ask":
            await turn.ask("May I?", expires=chance.uniform(HOUR, 8 * HOUR))
        elif mood == "fail":
            raise AgentError("it does not work")
        elif mood == "transient":
            raise TransientError("try again")
        elif mood == "crash":
            raise SystemExit("gone")
        elif mood == "silent":
            return "QUIET"
        text = chance.choice(("REACHED", "NOT REACHED: more", "done", "done", f"step {chance.random()}"))
        thread = f"th_{self.name}" if chance.random() < 0.5 else None
        return TurnResult(text=text, thread_id=thread, usage=Usage(input_tokens=10, output_tokens=5))

    async def _signal(self, turn: Any) -> None:
        goals, chance, about = self._world.desk.goals, self._world.chance, {"in_step": turn.task_id}
        if self._life.dead:
            await for_ever()
        with suppress(MidwatchError):
            if chance.random() < 0.3:
                await goals.complete(turn.task.cause_id, evidence="I looked", **about)
            else:
                length = chance.choice((0, MINUTE, HOUR, 12 * HOUR))
                await goals.delay(turn.task.cause_id, length, "the build", **about)


BEHAVIOURS = ("ok", "slow", "asleep", "ask", "fail", "transient", "crash", "silent")
WEIGHTS = (30, 30, 4, 8, 8, 8, 5, 7)


class World:
    """One week."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.chance = random.Random(seed)
        random.seed(seed)
        midwatch.base.ids._random.seed(seed)
        self.clock = WeekClock(START)
        self.clock_of_life = ProcessClock(self.clock)
        self.settings = settings
        self.home = Home(settings.home)
        self.connection = open_database(MEMORY)
        self.checker = WeekChecker(self.connection, self.clock)
        self.channel = RecordingChannel("there")
        self.ending = False
        self.dies_in: int | None = None
        self.done: list[str] = []
        self.processes: list[DeskProcess] = []
        """All processes: an abandoned one waits for ever and must not be collected before the end."""

    # -- processes -------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open a new process."""
        self.clock_of_life = ProcessClock(self.clock)
        self.store = WeekStore(self.connection, self.chance, self.checker.on_commit)
        terms = {
            "ann": AgentTerms(timeout_seconds=2 * HOUR, on_crash="resume", slots=3),
            "bob": AgentTerms(timeout_seconds=HOUR, on_crash="rerun", slots=2),
            "eve": AgentTerms(timeout_seconds=4 * HOUR, on_crash="fail", slots=2),
        }
        agents: dict[str, Any] = {name: RandomAgent(self, name, agent_terms) for name, agent_terms in terms.items()}
        about = (self.settings, self.home, self.store, agents, {"there": self.channel}, self.clock_of_life)
        self.desk = DeskProcess(Setup(*about), role="up", pace=SLOW_LOOPS)
        self.processes.append(self.desk)
        await self.desk.begin()

    def abandon(self) -> None:
        """Kill the process: its later actions do not count, and its locks are free."""
        self.store.dead = self.clock_of_life.dead = True
        self.desk.die()

    async def stop(self) -> None:
        """End the process cleanly."""
        self.note("stop")
        ends = asyncio.ensure_future(self.desk.end())
        await self.run_until_idle()
        assert ends.done(), "the desk does not stop"
        await ends
        self.clock_of_life.dead = True

    # -- time ------------------------------------------------------------------------------------------------------

    async def run_until_idle(self) -> None:
        """Run everything that can run, or until the moment the process is killed."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # nothing else tells that all is done
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if self.dies_in is not None:
                self.dies_in -= 1
                if self.dies_in <= 0:
                    self.dies_in = None
                    self.note("killed")
                    self.abandon()
                    await self.open()
                    continue
            if self.checker.problem is not None:
                raise self.checker.problem
            if not ready:
                return
        raise AssertionError("it never comes to rest")

    async def advance(self, seconds: float) -> None:
        """Advance the clock; due timers fire in order."""
        clock = self.clock
        end = clock.monotonic() + seconds
        await self.run_until_idle()
        while clock.next_due is not None and clock.next_due <= end:
            if clock.fire():
                await self.run_until_idle()
        clock.tick(end)
        await self.run_until_idle()

    async def until_busy(self, end: float) -> None:
        """Advance to a moment at which work is in progress, if there is one soon."""
        for _ in range(20):
            due = self.clock.next_due
            if self.desk.running or due is None or due > end:
                return
            await self.advance(max(0.0, due - self.clock.monotonic()))

    def note(self, what: str) -> None:
        """Record an action for a replay."""
        self.done.append(f"{(self.clock.monotonic() - 1000) / HOUR:7.2f}h {what}")

    # -- the week --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Simulate seven days, then continue until everything has ended."""
        await self.open()
        await self.run_until_idle()
        await self._create_records()
        end = self.clock.monotonic() + 7 * DAY
        while (remaining := end - self.clock.monotonic()) > 0:
            gap = self.chance.choice((0.0, 30.0, MINUTE, HOUR)) * self.chance.random()
            if self.chance.random() < 0.5:
                gap = self.chance.expovariate(ACTIONS / (14 * DAY))
            await self.advance(min(gap, remaining))
            if self.chance.random() < 0.5:
                await self.until_busy(end)
            await self.act()
            await self.run_until_idle()
            self.checker.check()
        await self.drain()
        self.checker.check_end(self.channel)
        await self.stop()

    async def drain(self) -> None:
        """Let everything end: people do nothing, and agents act only as requested."""
        self.ending, self.dies_in = True, None
        for automation in await self.store.list_automations(statuses=("active",), limit=200):
            await self.try_action("pause all", self.desk.automations.pause(automation.id))
        await self.advance(2.5 * DAY)

    async def try_action(self, what: str, doing: Awaitable[Any]) -> Any:
        """Do an action of a person: it succeeds, is refused, or its process is killed meanwhile."""
        task = asyncio.ensure_future(doing)
        await self.run_until_idle()
        if not task.done():
            assert self.store.dead is False
            self.note(f"{what}: unheard")
            return None
        problem = task.exception()
        self.note(f"{what}: {f'{type(problem).__name__} {problem}' if problem else 'done'}")
        if problem is not None and not isinstance(problem, MidwatchError):
            raise problem
        return None if problem else task.result()

    async def _create_records(self) -> None:
        for key, agent in (("chat:1", "ann"), ("chat:2", "eve")):
            await self.try_action("session", self.desk.sessions.create(agent=agent, key=key))
        for _ in range(self.chance.randint(2, 3)):
            await self.new_automation()
        for _ in range(self.chance.randint(1, 2)):
            await self.new_goal()

    # -- actions of people -----------------------------------------------------------------------------------------

    async def act(self) -> None:
        """Do one random action."""
        names = [name for name, weight in PERSON_ACTIONS.items() for _ in range(weight)]
        await getattr(self, self.chance.choice(names))()

    async def new_automation(self) -> None:
        chance = self.chance
        when: dict[str, Any] = chance.choice((
            {"every": chance.choice((5, 12, 24)) * HOUR}, {"cron": "30 2 * * *"}, {"cron": "0 9 * * 1-5"},
            {"at": self.clock.now() + int(chance.uniform(HOUR, 5 * DAY) * SECOND)},
        ))  # fmt: skip
        fields: dict[str, Any] = {
            "agent": chance.choice(("ann", "bob", "eve")), "zone": chance.choice(("UTC", "Europe/Berlin")),
            "max_runs": chance.choice((0, 0, 3)), "missed": chance.choice(("skip", "once", "once_within")),
            "route": chance.choice((None, "there")), "fresh": chance.random() < 0.3, "quiet": "QUIET",
            "jitter_seconds": chance.choice((0.0, 600.0)), "overlap": chance.choice(("skip", "queue", "replace")),
            "days_off": chance.choice(((), (), ("sat", "sun"))), **when,
        }  # fmt: skip
        if chance.random() < 0.4:
            fields["session_key"] = "chat:1" if fields["agent"] == "ann" else "chat:9"
        await self.try_action(f"automation {when}", self.desk.automations.create("look {{date}}", **fields))

    async def new_goal(self) -> None:
        chance = self.chance
        fields: dict[str, Any] = {
            "scope_id": chance.choice(("x", "y")), "verifier": chance.choice((None, "bob")), "route": "there",
            "max_steps": chance.choice((0, 0, 5)), "max_tokens": chance.choice((0, 0, 100)),
            "deadline_at": self.clock.now() + int(chance.uniform(HOUR, 2 * DAY) * SECOND),
        }  # fmt: skip
        fields |= chance.choice(
            ({"agent": "bob"}, {"agent": "eve"}, {"session_key": "chat:1"}, {"session_key": "chat:2"})
        )
        await self.try_action("goal", self.desk.goals.create("reach it", **fields))

    async def change_goal(self) -> None:
        chance, goals = self.chance, self.desk.goals
        known_goals = await self.store.list_goals((), 200)
        if not known_goals:
            return await self.new_goal()
        goal_id = chance.choice([goal for goal in known_goals if goal.open] * 4 + known_goals).id
        action, doing = chance.choice((
            ("pause", lambda: goals.pause(goal_id)), ("resume", lambda: goals.resume(goal_id)),
            ("resume", lambda: goals.resume(goal_id)), ("step", lambda: goals.step(goal_id)),
            ("delay", lambda: goals.delay(goal_id, chance.choice((0, 3600.0)), "a person")),
            ("complete", lambda: goals.complete(goal_id, evidence="seen")), ("clear", lambda: goals.clear(goal_id)),
            ("edit", lambda: goals.edit(goal_id, chance.choice((
                {"objective": "another"}, {"max_steps": 0, "max_tokens": 0},
                {"deadline_at": self.clock.now() + int(chance.uniform(MINUTE, DAY) * SECOND)},
            )))),
        ))  # fmt: skip
        await self.try_action(f"goal {action} {goal_id}", doing())
        return None

    async def change_automation(self) -> None:
        chance, automations = self.chance, self.desk.automations
        known_automations = await self.store.list_automations(statuses=("active", "paused", "deleted"), limit=200)
        if not known_automations:
            return await self.new_automation()
        name = chance.choice(known_automations).id
        action, doing = chance.choice((
            ("pause", lambda: automations.pause(name)), ("resume", lambda: automations.resume(name)),
            ("resume", lambda: automations.resume(name)), ("run", lambda: automations.run(name)),
            ("run", lambda: automations.run(name)), ("delete", lambda: automations.delete(name)),
            ("stop", lambda: automations.pause(name, stop=True)),
            ("patch", lambda: automations.patch(name, chance.choice((
                {"every": chance.choice((3, 7)) * HOUR}, {"cron": "15 */6 * * *"}, {"title": "x"}, {"max_runs": 9},
            )))),
        ))  # fmt: skip
        await self.try_action(f"automation {action} {name}", doing())
        return None

    async def message(self) -> None:
        key = self.chance.choice(("chat:1", "chat:1", "chat:2"))
        await self.try_action(f"message in {key}", self.desk.sessions.send(key, "hello"))

    async def submit(self) -> None:
        fields: dict[str, Any] = {"agent": self.chance.choice(("bob", "eve")), "route": "there"}
        await self.try_action("submit", self.desk.tasks.submit("do it", **fields))

    async def cancel(self) -> None:
        await self._act_on_task("cancel", ("pending", "running"), self.desk.tasks.cancel)

    async def retry(self) -> None:
        await self._act_on_task("retry", ("failed", "cancelled"), self.desk.tasks.retry)

    async def _act_on_task(self, what: str, statuses: Any, doing: Callable[[str], Awaitable[Any]]) -> None:
        marks = ", ".join(f"'{status}'" for status in statuses)
        rows = self.connection.execute(f"SELECT id FROM tasks WHERE status IN ({marks}) ORDER BY id").fetchall()
        if rows:
            task_id = self.chance.choice(rows)[0]
            await self.try_action(f"{what} {task_id}", doing(task_id))

    async def answer(self) -> None:
        for question in await self.store.list_approvals("pending"):
            choice = self.chance.choice(("yes", "no"))
            await self.try_action("answer", self.desk.approvals.answer(question.id, choice))

    async def kill(self) -> None:
        self.dies_in = self.chance.choice((self.chance.randint(1, 30), self.chance.randint(1, 1000)))
        await self.act()

    async def restart(self) -> None:
        if self.dies_in is None:
            await self.stop()
            if self.chance.random() < 0.5:
                await self.advance(self.chance.uniform(0, 20 * HOUR))
            await self.open()

    async def add_second_scheduler(self) -> None:
        """Run a second scheduler for a moment."""
        if (due := self.clock.next_due) is not None:
            self.clock.tick(due)
            await self.try_action("another leader", self.desk.run_second_scheduler())

    async def jump(self) -> None:
        by = self.chance.choice((-2 * HOUR, -MINUTE, 10 * MINUTE, 5 * HOUR, 30 * HOUR)) * self.chance.random()
        self.note(f"the clock is set by {by:.0f} s")
        self.clock.set(self.clock.now() + int(by * SECOND))


PERSON_ACTIONS = {
    "change_goal": 8, "change_automation": 7, "message": 6, "submit": 2, "cancel": 4, "retry": 2, "answer": 3,
    "kill": 5, "restart": 1, "jump": 2, "new_goal": 2, "new_automation": 1, "add_second_scheduler": 3,
}  # fmt: skip


class InlineExecutor(ThreadPoolExecutor):
    """Calls functions at once, without a thread. So all work is done when the event loop is idle."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function, and return its result or its error."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        return future


@asynccontextmanager
async def end_waiting_tasks() -> AsyncIterator[None]:
    """End the tasks that abandoned processes left waiting."""
    try:
        yield
    finally:
        me = asyncio.current_task()
        for _ in range(20):
            waiting_tasks = [task for task in asyncio.all_tasks() if task is not me]
            if not waiting_tasks:
                break
            for task in waiting_tasks:
                task.cancel()
            await asyncio.wait(waiting_tasks, timeout=1)


def simulate_week(seed: int, home: Path) -> None:
    """Simulate the week of a seed, and print its history if it fails."""
    settings = Settings(home=home, detect_agents=False, shutdown_grace=0.0, notify=None, default_agent="bob")
    Home(home).prepare()

    async def week() -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        async with end_waiting_tasks():
            world = World(seed, settings)
            try:
                await world.run()
            except BaseException as problem:
                for line in world.done:
                    print(line)
                problem.add_note(f"seed {seed} at {world.done[-1:]}")
                raise
            finally:
                world.abandon()
                world.connection.close()

    with without_logs():
        asyncio.run(week())
