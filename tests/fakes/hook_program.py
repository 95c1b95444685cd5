"""A hook program for tests: it behaves well, or badly in the way that its first argument names.

The second argument is a file. The program misbehaves only while this file exists, so that a test can show that a
program that was started again works. Every start appends a line to the file with the suffix `.starts`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WAY, BAD = sys.argv[1], Path(sys.argv[2])


def write(text: str) -> None:
    """Write text to the standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def reply(number: Any, result: Any, more: str = "") -> None:
    """Answer a request, and write more with the same call of the system."""
    write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n" + more)


def misbehave(number: int) -> None:
    """Do what the test asks for instead of a valid answer."""
    match WAY:
        case "hang":
            time.sleep(3600)
        case "flood":
            while True:
                write("x" * 65536)
        case "chatter":
            while True:
                write("hello\n")
        case "die":
            os._exit(3)
        case "half":
            write('{"jsonrpc": "2.0", "id": ')
            os._exit(0)
        case "other":
            reply(number + 1000, {"action": "go_on"})
        case "patch":
            reply(number, {"action": "change", "patch": {"tool": "other"}})
        case "deep":
            reply(number, {"action": "change", "patch": {"arguments": json.loads(300 * '{"x":' + "1" + 300 * "}")}})
        case "error":
            write(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -1, "message": "no idea"}}) + "\n")
        case "nothing":
            reply(number, None)
        case "closed":
            os.close(1)
            time.sleep(3600)
        case "twice":
            reply(number, {"action": "deny", "reason": "no"})
            reply(number, {"action": "go_on"})
        case "bytes":
            os.write(1, b'{"jsonrpc": "2.0", "id": \0\xff\xfe}\n')
        case "heir":  # a child keeps the output open
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(3)
        case "wait":
            while BAD.exists():
                time.sleep(0.01)
            reply(number, {"action": "go_on"})
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    """Answer all requests until the standard input ends."""
    with BAD.with_suffix(".starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message["method"]
        if method == "event" and WAY == "deaf" and BAD.exists():
            time.sleep(3600)
        elif method == "event":
            with BAD.with_suffix(".events").open("a") as events:
                events.write(message["params"]["kind"] + "\n")
        elif method == "hello":
            if BAD.exists() and WAY == "late":
                time.sleep(9)
            write("I am here.\n" * (BAD.exists() and WAY == "early"))
            reply(number, {"version": 1}, "I am gone.\n" * (BAD.exists() and WAY == "brief"))
        elif BAD.exists():
            misbehave(number)
        else:
            reply(number, {"action": "go_on"})


main()
