"""Questions of agents in a terminal: show them with what they are about, and answer them with typed lines."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from midwatch.base.errors import MidwatchError
from midwatch.cli.output import clean

if TYPE_CHECKING:
    from midwatch.client import Client

ONCE = ("allow_once", "reject_once")
"""The kinds of the choices yes and no."""


class Questions:
    """The questions that wait for an answer. A typed line answers the oldest of them."""

    def __init__(self, client: Client, tell: Callable[[str], None]) -> None:
        self._client = client
        self._tell = tell
        self._open: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._asked = asyncio.Event()

    async def ask(self, approval_id: str, question: Mapping[str, Any]) -> None:
        """Show a question; `question` is its event or its record."""
        self._open[approval_id] = question["choices"]
        lines = [f"? {clean(question['question'])}"]
        if (command := question["command"]) and command not in question["question"]:
            lines.append(f"  {clean(command)}")
        lines += [f"  {clean(path)}" for path in question["paths"] if path not in question["question"]]
        with suppress(MidwatchError):  # then it is shown without its diff
            if question.get("diff_bytes"):
                lines.append(clean((await self._client.approval(approval_id))["diff"] or ""))
        if question.get("risk") == "high":
            lines.append("  risk: high")
        separator = "\n  " if len(lines) > 1 or "\n" in lines[0] else " "
        self._tell("\n".join(lines) + separator + explain_choices(question["choices"]))
        self._asked.set()

    def forget(self, approval_id: str) -> None:
        """Forget a question that was answered, here or elsewhere."""
        self._open.pop(approval_id, None)

    async def answer(self, line: str) -> bool:
        """Answer the oldest question with a typed line. Return False if no question is open or the line is no answer.

        A line that begins with a choice that denies may contain the reason after it. `yes`, `y`, `no` and `n` are also
        answers, unless several choices have this meaning.
        """
        for approval_id, choices in self._open.items():
            words = [(choice["name"], choice) for choice in choices] + short_answers(choices)
            for word, choice in sorted(words, key=lambda pair: -len(pair[0])):
                typed, rest = line[: len(word)], line[len(word) :]
                if typed.lower() != word.lower() or (rest and not rest.startswith((" ", ",", ":"))):
                    continue
                reason = rest.strip(" ,:")
                if not reason:
                    await self._client.approve(approval_id, choice=choice["name"])
                elif choice["kind"].startswith("reject"):
                    await self._client.deny(approval_id, reason)
                else:
                    continue
                return True
            return False
        return False

    async def read_answers(self) -> None:
        """Answer the questions with the lines that a person types. The first line is read after the first question."""
        await self._asked.wait()
        async with aclosing(read_lines()) as typed:
            async for line in typed:
                try:
                    if not await self.answer(line) and self._open:
                        self._tell(explain_choices(next(iter(self._open.values()))))
                except MidwatchError as problem:
                    self._tell(f"midwatch: {problem}")
        if self._open:
            commands = " or ".join(f"`midwatch {verb} {next(iter(self._open))}`" for verb in ("approve", "deny"))
            self._tell(f"The input has ended; answer from another terminal with {commands}.")


def short_answers(choices: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the words for yes and no with their choices, if one choice allows once and one denies once."""
    allowing, denying = ([choice for choice in choices if choice["kind"] == kind] for kind in ONCE)
    if len(allowing) != 1 or len(denying) != 1:
        return []
    return [("yes", allowing[0]), ("y", allowing[0]), ("no", denying[0]), ("n", denying[0])]


def explain_choices(choices: Sequence[Mapping[str, Any]]) -> str:
    """Return how to answer a question."""
    short = short_answers(choices)
    if short and all(choice["name"].lower().startswith(word) for word, choice in short):
        return "Type yes or no. After no you may write the reason."
    once = [choice["name"] for choice in choices if choice["kind"].endswith("once")]
    names = clean(" or ".join(once or [choice["name"] for choice in choices]))
    denials = [choice["name"] for choice in choices if choice["kind"].startswith("reject")]
    return f"Type {names}." + (f" After {clean(denials[0])} you may write the reason." if denials else "")


def can_answer() -> bool:
    """Return whether a person can type answers here: in a terminal, and not in the background."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True  # a terminal without job control


def forget_typed() -> None:
    """Forget what was typed and not read yet, so that it does not answer a question that was asked later."""
    with suppress(OSError, termios.error):
        termios.tcflush(0, termios.TCIFLUSH)


async def read_lines() -> AsyncGenerator[str, None]:
    """Yield the lines of standard input, without blank lines. A line that ends with a backslash continues on the next.

    A Python thread reads the lines. The program does not wait for this thread at the end, because the thread may wait
    for input forever.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        with suppress(OSError, RuntimeError):  # the terminal or the event loop is closed
            while chunk := os.read(0, 65536):
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(chunks.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    partial_line, earlier_lines, ended = b"", "", False
    while not ended:
        chunk = await chunks.get()
        ended = not chunk
        *whole, partial_line = (partial_line + (chunk or b"\n")).split(b"\n")
        for line in whole:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if text.endswith("\\"):
                earlier_lines += text[:-1] + "\n"
            elif (earlier_lines + text).strip():
                yield (earlier_lines + text).strip()
                earlier_lines = ""
