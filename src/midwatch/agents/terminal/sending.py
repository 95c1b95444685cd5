"""Sends a prompt to a program in a terminal.

midwatch types the prompt, waits until the screen shows it, presses Enter, and waits for a reaction. If one of these
steps fails, midwatch removes the prompt from the input box.
"""

from __future__ import annotations

import asyncio
import re

from midwatch.agents.terminal.dialog import FRAME
from midwatch.agents.terminal.live import Live
from midwatch.agents.terminal.status import Reading
from midwatch.base.errors import AgentError

PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters except tab and newline. In a prompt they could end the paste or act as keys."""
HIDDEN = re.compile(f"[{re.escape(FRAME)}\\s]+")
LONGEST_LINE = 4000  # longest line in the kernel's line mode; the end of a longer line is lost
RECOGNISED = 24
ECHO_SECONDS = 10.0
UNKNOWN_ECHO_SECONDS = 1.0  # for a program that may not echo the prompt
REACTION_SECONDS = 2.0
LAST_REACTION_SECONDS = 5.0
SILENT_REACTION_SECONDS = 13.0  # for a program without a sign that it is busy, after the first wait
EMPTY_SECONDS = 2.0


def clean(prompt: str) -> str:
    """Return the prompt without control characters and without blanks at the beginning and the end."""
    return CONTROLS.sub("", prompt.replace("\r\n", "\n").replace("\r", "\n")).strip()


async def send(live: Live, text: str) -> None:
    """Type a prompt and press Enter. If the program does not accept it, empty the input box and raise AgentError."""
    live.watch.sending = True
    try:
        await _send(live, text)
    finally:
        live.watch.sending = False


async def _send(live: Live, text: str) -> None:
    keys = _encode_keys(live, text)
    tail = _remove_blanks(text)[-RECOGNISED:]
    before, tags = _remove_blanks(live.screen.text()).count(tail), _count_tags(live)
    began = live.screen.version
    live.type(keys)

    def is_echoed(_: Reading) -> bool:
        shown = _remove_blanks(live.screen.text())
        return live.screen.version > began and (shown.count(tail) > before or _count_tags(live) > tags)

    await live.until(is_echoed, UNKNOWN_ECHO_SECONDS if live.profile.silent else ECHO_SECONDS)
    is_shown = live.running and (is_echoed(live.read()) or tail in _remove_blanks(live.screen.text()))
    if not is_shown and not live.profile.silent:
        _take_back(live)
        raise AgentError("the program did not show the prompt in its input box; check its terminal and retry")
    await asyncio.sleep(live.profile.enter_delay)
    await _enter(live, tail)


async def _enter(live: Live, tail: str) -> None:
    watch = live.watch

    def has_reacted(reading: Reading) -> bool:
        return watch.has_reacted or reading.state == "asking"

    watch.note_enter(asyncio.get_running_loop().time(), line_mode=live.child.line_mode)
    live.type("\r")
    await live.until(has_reacted, REACTION_SECONDS)
    silent = live.profile.silent
    if has_reacted(live.read()) or not (silent or _is_in_box(live, tail)):
        return
    if not silent:
        live.type("\r")  # retry once only: the program may have read Enter as a part of the text
    await live.until(has_reacted, SILENT_REACTION_SECONDS if silent else LAST_REACTION_SECONDS)
    if live.running and not has_reacted(live.read()) and (silent or _is_in_box(live, tail)):
        _take_back(live)
        raise AgentError("the program did not react to the prompt; check its terminal and retry")


def takes_lines(live: Live) -> bool:
    """Return whether the program accepts a prompt of several lines."""
    return live.screen.takes_paste and not live.child.line_mode


def _encode_keys(live: Live, text: str) -> str:
    if not text:
        raise AgentError("the prompt has no characters that can be typed; write some text")
    line_mode = live.child.line_mode
    if takes_lines(live):
        return f"{PASTE_START}{text}{PASTE_END}"
    if "\n" in text:
        raise AgentError("this program accepts only one line; write the prompt in one line")
    if line_mode and len(text.encode()) > LONGEST_LINE:
        raise AgentError(f"this program accepts lines of up to {LONGEST_LINE} bytes; write a shorter prompt")
    return text


async def empty_box(live: Live, text: str) -> None:
    """Empty the input box if it contains the prompt. Some programs put a prompt back when their work is interrupted."""
    tail = _remove_blanks(text)[-RECOGNISED:]
    if live.running and _is_in_box(live, tail):
        _take_back(live)
        await live.until(lambda _: not _is_in_box(live, tail), EMPTY_SECONDS)


def _take_back(live: Live) -> None:
    """Empty the input box."""
    if live.running:
        live.child.drop_unread()
        live.type(live.profile.clear)


def _is_in_box(live: Live, tail: str) -> bool:
    """Return whether the prompt is still in the input box."""
    shown = live.screen.text()
    places = [match.start() for match in re.finditer(live.profile.box or r"(?!)", shown, re.MULTILINE)]
    if not places:
        return False
    box = shown[places[-1] :]
    return tail in _remove_blanks(box) or bool(live.profile.pasted and re.search(live.profile.pasted, box))


def _count_tags(live: Live) -> int:
    """Return how many tags the screen shows. A tag is a short text that stands for a long prompt."""
    return len(re.findall(live.profile.pasted, live.screen.text())) if live.profile.pasted else 0


def _remove_blanks(text: str) -> str:
    return HIDDEN.sub("", text)
