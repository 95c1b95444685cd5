"""A fake agent with a script: it expects some messages and answers each of them. A plain script.

`echo_agent.py terminal FILE` talks in a terminal, `echo_agent.py claude FILE` does so with a screen like claude's, and
`echo_agent.py acp FILE` speaks the Agent Client Protocol. FILE has JSON: a list of entries with `expectMessage`,
`thinkDurationMS`, `waitForFile` and `responseMessage`. An entry without an expected message is answered at once in a
terminal, and to any prompt over ACP. With the variable ECHO_NOTES, the agent appends to that file the time of each
message that it read and of each answer that it wrote.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import termios
import threading
import time
import tty
from pathlib import Path

CLEAR = "\x1b[2J\x1b[H"
SPINNER = "|/-\\"
SPIN_SECONDS = 0.2


def note(what):
    """Write down when something happened."""
    if path := os.environ.get("ECHO_NOTES"):
        with Path(path).open("a") as file:
            file.write(f"{what} {time.time()}\n")


class Terminal:
    """A conversation in a terminal. The whole screen is drawn again after each change."""

    def __init__(self, script):
        self.script = script
        self.lines = []

    def draw(self, thinking=False):
        """Draw all messages, and below them the prompt or a note that the agent thinks."""
        text = "".join(f"{line}\n" for line in self.lines)
        sys.stdout.write(CLEAR + text + ("Thinking... " if thinking else "> "))
        sys.stdout.flush()

    def think(self, seconds):
        """Turn a spinner for some time."""
        self.draw(thinking=True)
        end, turn = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(SPIN_SECONDS, left))
            sys.stdout.write(f"\rThinking {SPINNER[turn % len(SPINNER)]}")
            sys.stdout.flush()
            turn += 1
        sys.stdout.write("\r" + " " * 20 + "\r")

    def answer(self, entry):
        """Think or wait for a file if the script says so, then show the answer."""
        while "waitForFile" in entry and not Path(entry["waitForFile"]).exists():
            time.sleep(0.01)
        if seconds := entry.get("thinkDurationMS", 0) / 1000:
            self.think(seconds)
        self.lines.append(entry["responseMessage"])
        self.draw()
        note("wrote")

    def run(self):
        """Follow the script, then wait for ever."""
        self.draw()
        for entry in self.script:
            expected = entry.get("expectMessage", "").strip()
            if expected:
                said = ""
                while not said:
                    said = sys.stdin.readline().strip()
                note("read")
                if said != expected:
                    sys.exit(f"Error: expected {expected!r} but got {said!r}")
                self.lines.append(f"> {expected}")
                self.draw()
            self.answer(entry)
        threading.Event().wait()


class Claude(Terminal):
    """A conversation in a terminal whose title and input box look like those of claude."""

    busy, idle, rule = "\x1b]0;\u2802 echo\x07", "\x1b]0;\u2733 echo\x07", "\u2500" * 40
    title, typed = idle, ""

    def draw(self, thinking=False):
        """Draw all messages and the input box. The title tells whether the agent works."""
        text = "".join(f"{line}\r\n" for line in self.lines)
        spinner = "\u273b Thinking (esc to interrupt)\r\n" if thinking else ""
        box = f"{self.rule}\r\n\u276f {self.typed}\r\n{self.rule}\x1b[1A\r\x1b[{2 + len(self.typed)}C"
        sys.stdout.write(f"{self.busy if thinking else self.idle}{CLEAR}{text}{spinner}{box}")
        sys.stdout.flush()

    def read_line(self):
        """Show the keys in the input box until Enter, and return them."""
        while "\r" not in self.typed:
            keys = os.read(0, 65536).decode()
            self.typed += keys.replace("\x1b[200~", "").replace("\x1b[201~", "")
            if "\r" not in self.typed:
                self.draw()
        said, self.typed = self.typed.partition("\r")[0].strip(), ""
        return said

    def run(self):
        """Follow the script, then wait for ever."""
        tty.setraw(0, termios.TCSANOW)
        sys.stdout.write("\x1b[?2004h")
        self.draw()
        for entry in self.script:
            said = self.read_line()
            note("read")
            if said != entry["expectMessage"]:
                sys.exit(f"Error: expected {entry['expectMessage']!r} but got {said!r}")
            self.lines.append(f"\u276f {said}")
            self.draw(thinking=True)
            time.sleep(entry.get("thinkDurationMS", 0) / 1000)
            self.lines.append(f"\u25cf {entry['responseMessage']}")
            self.draw()
            note("wrote")
        threading.Event().wait()


class Protocol:
    """A conversation over the Agent Client Protocol."""

    def __init__(self, script):
        self.script = list(script)

    def write(self, **message):
        """Write a message of JSON-RPC."""
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def prompt(self, params):
        """Answer a prompt as the script says."""
        said = "".join(block.get("text", "") for block in params["prompt"]).strip()
        note("read")
        if self.script:
            entry = self.script.pop(0)
            expected = entry.get("expectMessage", "").strip()
            if expected and said != expected:
                raise ValueError(f"expected {expected!r} but got {said!r}")
            time.sleep(entry.get("thinkDurationMS", 0) / 1000)
            content = {"type": "text", "text": entry["responseMessage"]}
            update = {"sessionUpdate": "agent_message_chunk", "content": content}
            self.write(method="session/update", params={"sessionId": params["sessionId"], "update": update})
            note("wrote")
        return {"stopReason": "end_turn"}

    def run(self):
        """Answer requests until the client closes the pipe."""
        for line in sys.stdin:
            request = json.loads(line)
            method, params = request.get("method"), request.get("params")
            if "id" not in request or method is None:
                continue
            try:
                if method == "initialize":
                    result = {"protocolVersion": 1, "agentCapabilities": {}}
                elif method == "session/new":
                    result = {"sessionId": "echo"}
                elif method == "session/prompt":
                    result = self.prompt(params)
                else:
                    raise ValueError(f"unknown method {method}")
                self.write(id=request["id"], result=result)
            except ValueError as problem:
                self.write(id=request["id"], error={"code": -32603, "message": str(problem)})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    script = json.loads(Path(sys.argv[2]).read_text())
    {"terminal": Terminal, "claude": Claude, "acp": Protocol}[sys.argv[1]](script).run()
