"""Finds the status of a terminal agent (such as idle, busy or asking) and the evidence for the status.

The best evidence are the program's own signals: its status (OSC 7501), its title, its modes. The second best is text on
the screen. If there is neither, silence counts, but that is not certain. A silent terminal is not checked regularly:
a reading contains the time after which the status can change without new output.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Literal, NamedTuple

from midwatch.agents.terminal.dialog import Dialog, read_dialog
from midwatch.agents.terminal.process import InputState
from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.screen import Screen, Signal

State = Literal["starting", "idle", "busy", "asking", "exited"]
Evidence = Literal["program", "title", "mode", "progress", "text", "prompt", "silence", "process", "reaction"]

RESTING = ("idle", "done", "error")
LAST_ROWS = 25
DIALOG_ROWS = 200
GRACE = 5.0  # seconds after Enter in which a program counts as idle only if it was busy before
ASKING_SETTLE = 0.15
PROMPT_QUIET = 0.7
WAITING_QUIET = 0.05  # for a program at its prompt that waits for keys
START_QUIET = 0.5  # for a program that waits for keys and got no prompt yet
SIGNAL_SETTLE = 0.1  # longest silence that is required after the program itself has reported that it waits
BLOCKED_QUIET = 2.0  # seconds after which a program that is blocked shows its dialog, if it has one
LONGER = 10  # factor for the required silence: of a program that has returned to its prompt before, of an empty screen
TAKEN_SECONDS = 0.1  # seconds after Enter in which the keys may still be on their way to the program
NOTHING_QUIET = 60.0  # for a program that has read the prompt and has shown nothing since


class Reading(NamedTuple):
    """The status, the evidence for it, and whether the status is certain."""

    state: State
    evidence: Evidence
    certain: bool = True
    again: float | None = None  # seconds of silence after which the reading changes, or None


class Report(NamedTuple):
    """The status that a program reports by OSC 7501, such as `done` or `error`, and the message that it adds."""

    state: str = ""
    message: str = ""


class Watch:
    """Reads the status of one terminal."""

    def __init__(
        self, profile: Profile, screen: Screen, find_input_state: Callable[[], InputState] = lambda: "unknown"
    ) -> None:
        self._profile = profile
        self._screen = screen
        self._find_input_state = find_input_state
        self.report = Report()
        self._progress = ""
        self._paste_tells = profile.paste_tells
        self._prompt: str | None = None  # the line of the cursor before the first prompt, if there is no other sign
        self._last_output = 0.0
        self._submitted: float | None = None
        self._place = (0, "")
        self._text_at_enter: str | None = ""  # None in line mode
        self._read_at = 0.0
        self.sending = False  # whether a prompt is being typed, and the program has not accepted it yet
        self._busy_seen = False
        self._was_idle = False
        self._comes_back = False
        self.shown = ""  # the last rows at the last reading

    # -- events --------------------------------------------------------------------------------------------------

    def take_signal(self, signal: Signal) -> None:
        """Process a signal of the program. Remember that the program was busy, even if only for a moment."""
        profile = self._profile
        if signal.kind == "program":
            self.report = _read_report(signal.value)
            self._busy_seen |= self.report.state == "working"
        elif signal.kind == "progress":
            self._progress = signal.value
            self._busy_seen |= signal.value in ("1", "3")
        elif signal.kind == "title":
            self._busy_seen |= profile.find(profile.busy_title, signal.value) is not None
        elif signal.kind == "paste_off":
            if self._submitted is not None and profile.silent:
                self._paste_tells = True  # shells turn paste mode off at Enter and on at the next prompt
            self._busy_seen |= self._paste_tells

    def note_output(self, now: float) -> None:
        """Note that the program wrote something."""
        self._last_output = now

    def note_enter(self, now: float, *, line_mode: bool = False) -> None:
        """Note that midwatch presses Enter to send a prompt. In line mode, the kernel itself moves the cursor then."""
        self._submitted = now
        self._busy_seen = False
        self._place = self._cursor_line()
        self._text_at_enter = None if line_mode else self._screen.text()

    @property
    def has_reacted(self) -> bool:
        """Whether the program has reacted since midwatch pressed Enter."""
        return self._busy_seen or (self._profile.silent and self.has_changed)

    @property
    def has_changed(self) -> bool:
        """Whether the terminal has changed since Enter. In line mode, it is enough that the program took the prompt."""
        if self._text_at_enter is not None:
            return self._cursor_line() != self._place or self._screen.text() != self._text_at_enter
        if not self.shows_nothing:
            return True
        waited = self._submitted is not None and self._read_at - self._submitted >= TAKEN_SECONDS
        return waited and self._find_input_state() in ("taken", "unknown")

    @property
    def shows_nothing(self) -> bool:
        """Whether, in line mode, the program has shown nothing since Enter."""
        row, _ = self._place
        return self._text_at_enter is None and self._cursor_line() in (self._place, (row + 1, ""))

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing shows that the program has reacted since Enter, not even a sign that it was busy."""
        return not self._busy_seen and (self.shows_nothing or not self.has_changed)

    @property
    def prompt_line(self) -> str:
        """The text before the cursor if the program waits for input there; otherwise an empty text."""
        line = self._screen.line_to_cursor()
        at_prompt = self._paste_tells and self._screen.takes_paste
        return line if at_prompt or self._profile.find(self._profile.prompt, line) or line == self._prompt else ""

    def read_dialog(self) -> Dialog:
        """Return the question on the screen."""
        text, hidden = self._screen.tail(DIALOG_ROWS)
        return read_dialog(self._profile, text, self._screen.size[0], hidden)

    # -- the status ----------------------------------------------------------------------------------------------

    def read(self, now: float) -> Reading:
        """Return the current status."""
        self.shown = "\n".join(self._screen.text().rstrip().split("\n")[-LAST_ROWS:])
        self._read_at, silent = now, now - self._last_output
        if asking := self._find_asking():
            self._busy_seen = True
            settled = silent >= ASKING_SETTLE
            return Reading("asking", asking, settled, again=None if settled else ASKING_SETTLE - silent)
        if busy := self._find_busy():
            self._busy_seen = True
            return Reading("busy", busy)
        if self.sending:
            return Reading("busy", "reaction", False, again=TAKEN_SECONDS)
        if self._submitted is not None and not self.has_reacted and now - self._submitted < GRACE:
            return Reading("busy", "reaction", False, again=GRACE - (now - self._submitted))
        reading, needed = self._find_idle(silent)
        return self._require_silence(reading, needed, silent)

    def _require_silence(self, reading: Reading, needed: float, silent: float) -> Reading:
        """Return `reading` if the program has been silent for `needed` seconds.

        Otherwise return a reading with the state busy, or starting if the program was never idle.
        """
        if silent < needed:
            return Reading("busy" if self._was_idle else "starting", reading.evidence, False, again=needed - silent)
        if reading.state == "idle":
            self._was_idle = True
            self._comes_back |= reading.evidence == "prompt" and self._submitted is not None
            if not self._prompt and self._submitted is None:
                self._prompt = self._screen.line_to_cursor()
        return reading

    def _find_asking(self) -> Evidence | None:
        profile = self._profile
        if self.report.state == "blocked" and not self._is_at_prompt():
            return "program"
        if profile.find(profile.asking_title, self._screen.title):
            return "title"
        if not profile.find(profile.asking, self.shown):
            return None
        return "text" if not profile.dialogs or self.read_dialog().framed else None

    def _is_at_prompt(self) -> bool:
        """Return whether the input box is there, and no dialog: claude is also blocked when it is not signed in."""
        profile = self._profile
        if not profile.dialogs or not profile.find(profile.box, self.shown):
            return False
        return not self.read_dialog().framed

    def _find_busy(self) -> Evidence | None:
        profile = self._profile
        if self.report.state:
            return "program" if self.report.state == "working" else None
        if profile.find(profile.busy_title, self._screen.title):
            return "title"
        if self._progress in ("1", "3"):
            return "progress"
        if self._paste_tells and not self._screen.takes_paste:
            return "mode"
        return "text" if profile.find(profile.busy, self.shown) else None

    def _find_idle(self, silent: float) -> tuple[Reading, float]:
        """Return a reading with the state idle, and the seconds of silence that its evidence needs."""
        profile, screen = self._profile, self._screen
        settle = min(profile.settle, SIGNAL_SETTLE)
        visible = not profile.ready or profile.find(profile.ready, self.shown) is not None
        if visible:
            if self.report.state in RESTING:
                return Reading("idle", "program"), settle
            if self.report.state == "blocked":
                return Reading("idle", "program"), BLOCKED_QUIET
            if profile.find(profile.idle_title, screen.title):
                return Reading("idle", "title"), settle
            if self._paste_tells and screen.takes_paste:
                return Reading("idle", "mode"), settle
            if profile.ready and not profile.explicit:
                return Reading("idle", "text"), profile.settle
        line = screen.line_to_cursor()
        if profile.find(profile.prompt, line):
            return Reading("idle", "text"), profile.settle
        if self._prompt and line == self._prompt:
            return Reading("idle", "prompt", False), self._wait(WAITING_QUIET, min(PROMPT_QUIET, profile.quiet), silent)
        return Reading("idle", "silence", False), self._find_quiet(silent)

    def _find_quiet(self, silent: float) -> float:
        """Return the seconds of silence after which the program counts as idle without any sign."""
        starting, quiet = self._submitted is None, self._profile.quiet
        longest = quiet * LONGER if self._comes_back or not self._shows_prompt(starting) else quiet
        if not starting and self.shows_nothing:
            longest = max(longest, NOTHING_QUIET)
        least = min(quiet, START_QUIET) if starting else quiet
        return self._wait(least, longest, silent)

    def _shows_prompt(self, starting: bool) -> bool:
        """Return whether the screen may show a prompt. A starting program that reads no keys may only show progress."""
        if not starting or not self.shown.strip():
            return bool(self.shown.strip())
        return bool(self._screen.line_to_cursor().strip()) or self._find_input_state() != "taken"

    def _wait(self, least: float, longest: float, silent: float) -> float:
        """Return `least` if the program waits for keys, and otherwise `longest`. Until then, check it repeatedly."""
        if silent < least or self._find_input_state() == "waiting":
            return least
        return min(2 * silent, longest)

    def _cursor_line(self) -> tuple[int, str]:
        return self._screen.cursor_row, self._screen.line_to_cursor()


def _read_report(text: str) -> Report:
    """Return the state and the message in the text of OSC 7501, such as `state=blocked:kind=permission:msg=BASE64`.

    The state is empty if the program has cleared it. A program that waits for a sign-in shows its input box and no
    question, so its state is `error`.
    """
    fields = dict(part.partition("=")[::2] for part in text.split(":"))
    state = fields.get("state", "")
    if state == "blocked" and fields.get("kind") == "auth":
        state = "error"
    return Report("" if state == "clear" else state, _decode(fields.get("msg", "")))


def _decode(message: str) -> str:
    try:
        return b64decode(message + "===").decode("utf-8", "replace")
    except ValueError:
        return ""
