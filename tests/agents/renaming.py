"""Rename what an agent's program prints, as a later version might: `renaming.py PLAN KIND PROGRAM [ARG ...]`.

PLAN is a JSON file that a test may change at any time. Without the file nothing is renamed. `fields` are names of
fields, `types` are values of a field `type`; both get the ending "_renamed". In a terminal `signs` are texts of the
screen, and the texts of the same width that take their place.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import tty
from pathlib import Path
from typing import Any

ENDING = "_renamed"
CHUNK = 65536


def read_plan(file: Path) -> dict[str, Any]:
    """Return the plan, which is empty if there is no file."""
    try:
        plan: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    return plan


def rename(value: Any, plan: dict[str, Any]) -> Any:
    """Return JSON with the fields and types of the plan renamed, at every depth."""
    if isinstance(value, list):
        return [rename(item, plan) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {}
    for name, item in value.items():
        if name == "type" and item in plan.get("types", ()):
            item = item + ENDING
        renamed[name + ENDING if name in plan.get("fields", ()) else name] = rename(item, plan)
    return renamed


def rename_line(line: bytes, kind: str, plan: dict[str, Any]) -> bytes:
    """Return a line of JSON with other names; of ACP, only what an agent tells about its work, and how a turn ended."""
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if not isinstance(value, dict):
        return line
    if kind == "headless":
        value = rename(value, plan)
    elif value.get("method") == "session/update":
        value["params"]["update"] = rename(value["params"]["update"], plan)
    elif "stopReason" in (value.get("result") or ()):
        value["result"] = rename(value["result"], plan)
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def relay_lines(file: Path, kind: str, command: list[str]) -> int:
    """Run a program that prints lines of JSON."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: process.send_signal(received))
        assert process.stdout is not None
        for line in process.stdout:
            plan = read_plan(file)
            sys.stdout.buffer.write(rename_line(line, kind, plan) if plan else line)
            sys.stdout.buffer.flush()
        return process.wait()


def relay_screen(file: Path, command: list[str]) -> int:
    """Run a program in a terminal of its own, and copy keys to it and its screen to ours."""
    size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
    pid, master = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, size)
    tty.setraw(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    while True:
        ready, _, _ = select.select([0, master], [], [])
        if 0 in ready:
            os.write(master, os.read(0, CHUNK))
        if master in ready:
            try:
                shown = os.read(master, CHUNK)
            except OSError:
                break
            for sign, other in read_plan(file).get("signs", {}).items():
                shown = shown.replace(sign.encode(), other.encode())
            os.write(1, shown)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(plan: str, kind: str, *command: str) -> int:
    """Run the program in the way of its kind."""
    if kind == "terminal":
        return relay_screen(Path(plan), list(command))
    return relay_lines(Path(plan), kind, list(command))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
