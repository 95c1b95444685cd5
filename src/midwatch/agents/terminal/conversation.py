"""A conversation with a terminal agent. One program works on many turns and stays open between turns."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from midwatch.agents.base import GO_ON, ProgramAgent, build_prompt, cancel, last_lines, message_id
from midwatch.agents.earlier import tell_earlier
from midwatch.agents.terminal import meaning
from midwatch.agents.terminal.dialog import Dialog
from midwatch.agents.terminal.extract import extract_reply, find_added, has_other_sign, read_lines, read_output
from midwatch.agents.terminal.live import Live
from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.sending import clean, empty_box, send, takes_lines
from midwatch.agents.terminal.status import Reading
from midwatch.base.clock import SystemClock
from midwatch.base.errors import AgentError, Conflict, UsageLimit
from midwatch.domain.agent import Interrupt, ProgramOwner, Screenshot, Turn, TurnResult
from midwatch.domain.event import AgentExited, MessageDelta
from midwatch.domain.session import Session
from midwatch.programs.process import describe_exit, wait_within
from midwatch.programs.reaper import members

START_SECONDS = 120.0
QUIT_SECONDS = 0.5
STOP_SECONDS = 2.0  # seconds after which a program gets SIGINT if its own interrupt key had no effect
ANSWER_SECONDS = 15.0  # seconds after which a program that still shows the same question has not accepted the answer
PAINT_SECONDS = 2.0
LATE_SECONDS = 5.0  # seconds until a reply appears after the program has reported that it is idle
MOST_REPEATS = 20  # how often a turn may ask the same question
LONGEST_EARLIER = 8_000  # characters of the earlier conversation that are typed into a terminal
KEY_SECONDS = 0.1
SHOWN_EVERY = 0.1
READING_SHARE = 10  # reading a long reply is slow; it takes at most one part in so many of the time


class TerminalConversation:
    """One session with a program in a terminal."""

    def __init__(
        self, agent: ProgramAgent[Any], profile: Profile, exits: dict[str, AgentExited], session: Session
    ) -> None:
        self._agent = agent
        self._profile = profile
        self._exits = exits
        self._session = session
        self._thread = session.thread_id
        self._new = True  # whether the program has no record of the conversation
        self._live: Live | None = None
        self._root: str | None = None  # the directory of the program
        self._watching: asyncio.Task[None] | None = None
        self._listener: Callable[[str], None] | None = None
        self._turn: Turn | None = None
        self._interrupted: Interrupt | None = None
        self._shown_at_end: tuple[str, str] | None = None  # text of the terminal and prompt line after the last turn
        self._denied: list[str] = []  # actions of this turn that a person did not allow
        self._closed = False

    # -- the port ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the program runs and can take a prompt."""
        return self._live is not None and self._live.running

    async def turn(self, turn: Turn) -> TurnResult:
        """Send the prompt, wait until the agent is idle again, and read its reply from the terminal."""
        self._turn, self._interrupted, self._denied = turn, None, []
        try:
            await self.start(turn)
            await self._wait_until_idle(turn, START_SECONDS)
            assert self._live is not None
            return await self._work(turn, self._live)
        finally:
            self._turn = None
            if self._live is not None and self._live.running:
                self._live.child.report_usage()
            if self._closed:
                self._forget()

    async def start(self, turn: ProgramOwner) -> None:
        """Start the program if it does not run."""
        if exit_event := self._exits.pop(self._session.key, None):
            await turn.emit(exit_event)
        if self._live is None or not self._live.running:
            await self._open(turn)
        else:
            await self._live.child.serve(turn)

    async def interrupt(self, mode: Interrupt) -> None:
        """Interrupt the agent.

        With `stop`, press the agent's own interrupt key, and send SIGINT if that has no effect. With other modes, send
        a signal to the program.
        """
        live = self._live
        if self._turn is None:
            return
        self._interrupted = mode
        if live is None or not live.running:
            return
        live.news.set()
        if mode != "stop":
            live.child.interrupt(mode)
            return
        await live.type_each(live.profile.interrupt)
        await live.until(lambda reading: reading.state == "idle" or self._turn is None, STOP_SECONDS)
        if self._turn is not None and live.running and live.read().state != "idle":
            live.child.signal_foreground()

    async def close(self) -> None:
        """Press the quit keys if the agent waits for a prompt. Then end all processes of the program."""
        self._closed = True
        live = self._live
        if live is None:
            return
        if live.running and live.profile.quit and live.read().state == "idle":
            live.type(live.profile.quit)
            await wait_within(QUIT_SECONDS, live.child.exited)
        await live.end()
        if self._watching is not None:
            self._watching.cancel()
        if self._turn is None:
            self._forget()

    # -- access for people at any time ---------------------------------------------------------------------------

    def screenshot(self, *, styled: bool = False) -> Screenshot:
        """Return the current screen of the terminal. Raise Conflict if no program runs."""
        return self._running().screenshot(styled=styled)

    def late_output(self) -> str:
        """Return what the program has written since the last turn, without the input box."""
        if self._shown_at_end is None or self._live is None:
            return ""
        before, prompt = self._shown_at_end
        return find_added(before, read_output(self._live.screen.read(), prompt, self._live.profile))

    def send_keys(self, data: bytes) -> None:
        """Type keys into the terminal for a person. Raise Conflict if no program runs."""
        self._running().press(data)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal. Raise Conflict if no program runs."""
        self._running().resize(columns, rows)

    def listen(self, listener: Callable[[str], None] | None) -> None:
        """Call `listener` with the text of the screen after each change. None ends this."""
        self._listener = listener
        if self._live is not None:
            self._live.listen(listener)

    # -- start and end -------------------------------------------------------------------------------------------

    def _running(self) -> Live:
        if self._live is None or not self._live.running:
            raise Conflict(f"session {self._session.key} has no open terminal; to open it, send the session a message.")
        return self._live

    async def _open(self, turn: ProgramOwner) -> None:
        profile = self._profile
        self._forget()
        thread = turn.thread_id or self._thread
        if thread is None and turn.resumed and profile.resume_argv and profile.thread:
            raise AgentError("the turn was interrupted before its thread id was known; check its work, then retry")
        self._new = thread is None or not profile.resume_argv
        if self._new:
            argv, thread = profile.argv, str(uuid.uuid4()) if profile.thread == "uuid" else None
        else:
            argv = profile.resume_argv
        filled = tuple(part.replace("{thread}", thread or "") for part in argv)
        live = Live(profile, (profile.columns, profile.rows), self._listener)
        program = self._agent.program(filled, turn.workdir or self._session.workdir)
        self._root = _find_real_path(program.workdir)
        try:
            await live.start(program, turn)
        except BaseException:
            await live.end()
            live.free()
            raise
        self._live, self._thread = live, thread
        self._watching = asyncio.create_task(self._watch(live))

    def _forget(self) -> None:
        if self._live is not None:
            self._live.free()
            self._live = None

    async def _watch(self, live: Live) -> None:
        """If the program exits between turns, store the exit, so that the next turn can report it.

        The exit is stored as soon as the program has exited. Child processes of the program may still run.
        """
        code = await live.wait_for_exit()
        if self._turn is None and not self._closed:
            self._exits[self._session.key] = AgentExited(code=code, screen=live.screen.text())
        await live.wait_for_end()
        if self._turn is None and not self._closed and self._live is live and self._listener is not None:
            self._listener(live.screen.text())  # so the listener learns that the program has ended

    async def _report_exit(self, turn: Turn, live: Live) -> AgentError:
        """Emit the last screen and the exit code of a program that ended during a turn. Return the turn's error."""
        code = await live.wait_for_end()
        screen = live.screen.text()
        await turn.emit(AgentExited(code=code, screen=screen))
        if found := meaning.find_at_exit(live.profile, screen):
            return meaning.make_problem(live.profile, found, SystemClock().now())
        lines = last_lines(live.screen.read())
        return AgentError(f"{Path(self._profile.argv[0]).name} {describe_exit(code)}" + (f": {lines}" if lines else ""))

    # -- one turn ------------------------------------------------------------------------------------------------

    async def _tell_earlier(self, turn: Turn) -> str:
        """Return the earlier conversation for a coding agent that was started without it; "" for other programs."""
        if not self._new or self._agent.options.profile == "custom":
            return ""
        name = self._agent.name
        return await tell_earlier(turn, name, "its program was started anew", most=LONGEST_EARLIER, imported=False)

    async def _work(self, turn: Turn, live: Live) -> TurnResult:
        self._shown_at_end = None
        earlier = await self._tell_earlier(turn)
        prompt = clean(earlier + build_prompt(turn, known=self._thread is not None or bool(earlier)))
        if not takes_lines(live):
            prompt = prompt.replace(GO_ON, f"{GO_ON.strip()} ")
        live.record(True)
        first = 0 if live.profile.echo else live.screen.cursor_row

        def read_text() -> str:
            text = live.screen.read(first if first < live.screen.height else 0)
            return text if live.profile.box else text.removesuffix(live.watch.prompt_line.rstrip())

        def read_reply() -> str:
            return extract_reply(read_text(), prompt, live.profile)

        try:
            await self._send(live, prompt)  # earlier text on the screen is not part of the reply
            self._new = False
            showing = asyncio.create_task(self._show_reply(turn, live, read_reply))
            try:
                await self._keep_thread(turn, live)
                await self._wait_until_idle(turn, None)
                if live.profile.echo and not read_reply():  # the program reports idle before it has drawn its reply
                    await live.until(lambda _: bool(read_reply()), LATE_SECONDS)
                    await self._wait_until_idle(turn, None)
                if live.watch.is_unanswered:
                    raise AgentError("the program showed nothing after the prompt; look at its terminal and retry")
                await self._keep_thread(turn, live)
            finally:
                showing.cancel()
                with suppress(asyncio.CancelledError):
                    await showing
            if has_other_sign(read_text(), prompt, live.profile):
                raise AgentError(
                    "the screen was not understood: the sign before the prompt is not the one of the profile, so the "
                    "reply was not found; read it in the terminal, and check `echo` of the profile"
                )
            self._judge(live, read_lines(read_text(), prompt, live.profile))
            return TurnResult(text=read_reply(), thread_id=self._thread)
        except AgentError:
            await empty_box(live, prompt)
            raise
        finally:
            live.record(False)
            line = live.watch.prompt_line.rstrip()
            self._shown_at_end = read_output(live.screen.read(), line, live.profile), line

    async def _send(self, live: Live, prompt: str) -> None:
        """Type the prompt. If a sign-in screen or a limit has appeared meanwhile, raise its error instead."""
        try:
            await send(live, prompt)
        except AgentError:
            if found := meaning.find_on_screen(live.profile, live.watch.shown):
                raise await self._stop(live, found) from None
            raise

    def _judge(self, live: Live, lines: list[str]) -> None:
        """Raise the error of a turn whose reply ends with the message of a failure."""
        report = live.watch.report
        if found := meaning.find_in_reply(live.profile, lines, report, denied=bool(self._denied)):
            raise meaning.make_problem(live.profile, found, SystemClock().now(), self._denied)
        if self._denied and report.state == "idle":  # after an answer it would be `done`
            raise meaning.explain_stop(live.profile, self._denied)

    async def _wait_until_idle(self, turn: Turn, seconds: float | None) -> None:
        """Wait until the agent waits for a prompt. If a question appears on the screen, ask people.

        Raise AgentError if the program exits, the turn is interrupted, or the program is not ready in `seconds`.
        """
        live = self._live
        assert live is not None
        loop, waiting = asyncio.get_running_loop(), meaning.LimitWait(live.profile)

        def find_problem() -> meaning.Found | UsageLimit | None:
            shown = live.watch.shown
            found = meaning.find_on_screen(live.profile, shown)
            return found or waiting.check(shown, loop.time(), SystemClock().now())

        questions: Counter[str] = Counter()
        answered = ""  # the screen when the last question was answered, until the program works

        def is_over(reading: Reading) -> bool:
            nonlocal answered
            answered = "" if _is_working(reading) else answered
            if find_problem():
                return True
            # if the profile has a sign for idle, an empty screen means that the program has not started yet
            if reading.state == "idle":
                return not (reading.evidence == "silence" and live.profile.ready and not live.watch.shown.strip())
            return (reading.state == "asking" and reading.certain) or self._is_abandoned

        while True:
            reading = await live.until(is_over, seconds)
            if reading.state == "exited":
                raise await self._report_exit(turn, live)
            if problem := find_problem():
                raise await self._stop(live, problem)
            if self._is_abandoned or (self._interrupted and reading.state == "idle"):
                raise AgentError("the turn was interrupted.")
            if reading.state == "idle":
                self._check_known(live, reading)
                return
            if reading.state != "asking":
                shown = last_lines(live.screen.text())
                raise AgentError(f"the program was not ready for a prompt in {seconds:g} s; its screen: {shown}")
            question = await self._read_question(live)
            questions[question.text] += 1
            if questions[question.text] > MOST_REPEATS:
                raise AgentError(f"the program asks the same question again and again: {question.text}")
            if live.screen.text() == answered:
                raise self._make_refusal(live)
            answered = await self._ask(turn, live, question)

    async def _stop(self, live: Live, problem: meaning.Found | UsageLimit) -> AgentError:
        """Close the screen that tells of a failure, or stop a program that waits for too long. Return the error."""
        keys = live.profile.interrupt if isinstance(problem, UsageLimit) else problem.row.keys
        if keys:
            await live.stand_still(PAINT_SECONDS)
            await live.type_each(keys)
            await live.until(lambda reading: reading.state == "idle", ANSWER_SECONDS)
        if isinstance(problem, UsageLimit):
            return problem
        report = live.watch.report
        if report.state == "error" and report.message:
            problem = problem._replace(text=report.message)  # it tells more than the screen
        return meaning.make_problem(live.profile, problem, SystemClock().now())

    def _check_known(self, live: Live, reading: Reading) -> None:
        """Raise AgentError if the screen is unknown. It may show a question, which the key Enter would answer."""
        profile = live.profile
        if reading.evidence == "silence" and profile.ready and not profile.find(profile.ready, live.watch.shown):
            shown = last_lines(live.watch.shown)
            raise AgentError(f"the program waits, and midwatch does not know its screen; look at its terminal: {shown}")

    @property
    def _is_abandoned(self) -> bool:
        """Whether the turn was interrupted before the program was ready."""
        return self._interrupted is not None and self._live is not None and self._live.read().state == "starting"

    async def _ask(self, turn: Turn, live: Live, dialog: Dialog) -> str:
        """Wait until a person answers the question on the screen. People can answer in the inbox or in the terminal.

        Return the screen at the time of the answer, or an empty text if the program has worked since.
        """

        def is_over(reading: Reading) -> bool:
            is_other = reading.certain and not live.watch.read_dialog().is_same(dialog)
            return reading.state != "asking" or is_other

        asking = asyncio.create_task(turn.ask(dialog.question(self._root)))
        closing = asyncio.create_task(live.until(is_over))
        try:
            await asyncio.wait({asking, closing}, return_when=asyncio.FIRST_COMPLETED)
            if closing.done() or not live.watch.read_dialog().is_same(dialog):
                return ""
            answer, screen = asking.result(), live.screen.text()
            if not answer.granted:
                self._denied.append(meaning.name_action(dialog.question(self._root), answer))
            keys = live.watch.read_dialog().keys(answer)
            for number, key in enumerate(keys):
                if number:
                    await asyncio.sleep(KEY_SECONDS)  # several keys at once look like pasted text
                if closing.done():
                    break  # a person at the terminal was faster: Enter could answer another question
                live.type(key)
            if not keys and not answer.granted:
                raise AgentError(f"this question of the program was not answered: {dialog.text}")
            await asyncio.wait({closing}, timeout=ANSWER_SECONDS if keys else None)
            if not closing.done():
                raise self._make_refusal(live)
            return "" if _is_working(closing.result()) else screen
        finally:
            await cancel(asking, closing)

    @staticmethod
    def _make_refusal(live: Live) -> AgentError:
        shown = last_lines(live.screen.text())
        return AgentError(f"the program did not accept the answer, and asks the same again; its screen: {shown}")

    async def _read_question(self, live: Live) -> Dialog:
        """Return the question on the screen. Wait shortly for it, because some programs show it late."""

        def visible(reading: Reading) -> bool:
            profile, shown = live.profile, live.watch.shown
            known = not profile.asking or profile.find(profile.asking, shown) is not None
            return reading.state != "asking" or (known and reading.certain and bool(live.watch.read_dialog().options))

        await live.until(visible, PAINT_SECONDS)
        return live.watch.read_dialog()

    async def _keep_thread(self, turn: Turn, live: Live) -> None:
        """Store the thread id with which the agent can resume this conversation."""
        pattern = live.profile.thread
        if self._thread is None and pattern not in ("", "uuid"):
            self._thread = await asyncio.to_thread(_find_open_file, live.child.pgid, pattern)
        if self._thread is not None:
            await turn.keep_thread(self._thread)

    async def _show_reply(self, turn: Turn, live: Live, read_reply: Callable[[], str]) -> None:
        """Emit live events with the reply while it appears on the screen, until this is cancelled."""
        shown, version = "", 0
        loop = asyncio.get_running_loop()
        while True:
            if live.screen.version == version:
                await live.news.wait()
            began, version = loop.time(), live.screen.version
            if live.watch.has_reacted:
                text = read_reply()
                if text != shown:
                    same = _count_common(shown, text)
                    await turn.emit(MessageDelta(message_id=message_id(turn), offset=same, text=text[same:]))
                    shown = text
            await asyncio.sleep(max(SHOWN_EVERY, READING_SHARE * (loop.time() - began)))


def _is_working(reading: Reading) -> bool:
    return reading.state == "busy" and reading.certain


def _find_real_path(path: str) -> str:
    return os.path.realpath(path)


def _count_common(first: str, second: str) -> int:
    """Return how many characters at the beginning are equal in both texts."""
    if second.startswith(first):
        return len(first)
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _find_open_file(pgid: int, pattern: str) -> str | None:
    """Search the names of the files that a process group has open. Return the first group of the match, or None."""
    for pid in members(pgid):
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if match := re.search(pattern, str(link.readlink())):
                        return match[1]
    return None
