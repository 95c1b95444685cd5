"""A fake coding agent program: it plays a recorded stream, or misbehaves.

`cli_agent.py PLAY...  [arguments of the real program]`. Standard library only; the prompt comes on standard input.
With `--version` it prints 0.9.1.

    play FILE CODE [ERRORS]   prints the recording line by line, ERRORS to standard error, and exits with CODE
    forget                    the same, but it does not know the conversation to resume
    talk                      answers like Claude Code: "you said PROMPT"; a prompt "fail" fails, "hang" hangs
    work FILE                 works like Claude Code on each item of the prompt that is not in FILE, and adds it
    cut FILE LINES            prints the first lines of a recording and exits with 0
    hold FILE LINES           prints the first lines of a recording and is then silent
    deaf FILE LINES           the same, and ignores SIGINT
    nag FILE LINES TEXT       prints the first lines of a recording, and then TEXT to standard error again and again
    linger FILE               prints a recording and does not exit
    flood COUNT               prints pieces of an answer as fast as possible, then a result
    garbage FILE              prints noise, half of a line, an endless line, and a recording in between
    version                   refuses its arguments
    leave FILE PIDFILE        prints a recording and leaves a process that has left the group
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(*lines: str | dict[str, Any]) -> None:
    """Print lines."""
    for line in lines:
        print(line if isinstance(line, str) else json.dumps(line), flush=True)


def read_recording(path: str) -> list[str]:
    """Return the lines of a recording."""
    return Path(path).read_text().splitlines()


def wait() -> None:
    """Wait until a signal ends the process."""
    while True:
        time.sleep(600)


def piece(text: str) -> dict[str, Any]:
    """Return a piece of an answer in the format of Claude Code."""
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return {"type": "stream_event", "event": delta, "parent_tool_use_id": None}


def result(text: str, *, failed: bool = False) -> dict[str, Any]:
    """Return the end of a turn in the format of Claude Code."""
    return {"type": "result", "subtype": "success", "is_error": failed, "result": text}


def begin(arguments: list[str], new: str = "th-1") -> None:
    """Report the id of the conversation: that of the arguments, or `new`."""
    thread = arguments[arguments.index("--resume") + 1] if "--resume" in arguments else new
    say({"type": "system", "subtype": "init", "session_id": thread})


def talk(prompt: str, arguments: list[str]) -> None:
    """Run one turn."""
    begin(arguments)
    if prompt == "hang":
        say(piece("ready"))
        wait()
    if prompt == "fail":
        say(result("told to fail", failed=True))
        sys.exit(1)
    say(piece(f"you said {prompt}"), result(f"you said {prompt}"))


def work(done: Path, items: list[str], arguments: list[str]) -> None:
    """Work on each item that is not done, with a tool each. An interrupt ends the program at once.

    The item `pause` takes until there is a file `answered` beside `done`.
    """
    begin(arguments, f"th-{os.getpid()}")
    for item in items:
        if done.exists() and item in done.read_text().split():
            continue
        used = {"type": "tool_use", "id": item, "name": "Bash", "input": {"command": item}}
        say({"type": "assistant", "message": {"content": [used]}})
        while item == "pause" and not done.with_name("answered").exists():
            time.sleep(0.01)
        with done.open("a") as file:
            file.write(f"{item}\n")
        say({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": item, "content": "ok"}]}})
    say(result("all is done"))


def garbage(path: str) -> None:
    """Print all kinds of invalid output."""
    say("    __( O)>  a banner", "", "{not json", "[1, 2]", '"a text"', "\ud800".encode("utf-8", "replace").decode())
    sys.stdout.buffer.write(b"\xff\xfe\x00 bytes\n" + b"x" * 11_000_000 + b"\n")
    say(
        '{"type": 7, "session_id": {}, "message": [1]}', '{"type": "assistant", "message": {"content": [1, null, "x"]}}'
    )
    say('{"type":"assistant","message":{"content":[{"type":"text","text":"half \\ud83d and nul \\u0000"}]}}')
    say(*read_recording(path))
    sys.stdout.write('{"type": "resu')
    sys.stdout.flush()


def leave(path: str, note: str) -> None:
    """Start a daemon in its own session that keeps standard output open."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(note).write_text(str(process.pid))
    say(*read_recording(path))


def main(play: str, *arguments: str) -> None:
    """Run the requested play."""
    if arguments and arguments[-1] == "--version":
        sys.exit(print("the-agent 0.9.1"))
    prompt = sys.stdin.read()
    if play == "play":
        sys.stderr.write(arguments[2] if len(arguments) > 2 and not arguments[2].startswith("-") else "")
        say(*read_recording(arguments[0]))
        sys.exit(int(arguments[1]))
    elif play == "forget" and "--resume" in arguments:
        sys.exit("No conversation found with session ID: th-9")
    elif play in ("talk", "forget"):
        talk(prompt, list(arguments))
    elif play == "work":
        work(Path(arguments[0]), prompt.split(":")[-1].split(), list(arguments))
    elif play in ("cut", "hold", "deaf"):
        if play == "deaf":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(*read_recording(arguments[0])[: int(arguments[1])])
        if play != "cut":
            wait()
    elif play == "nag":
        say(*read_recording(arguments[0])[: int(arguments[1])])
        while True:
            print(arguments[2], file=sys.stderr, flush=True)
            time.sleep(0.05)
    elif play == "linger":
        say(*read_recording(arguments[0]))
        wait()
    elif play == "flood":
        line = json.dumps(piece("word ")) + "\n"
        for _ in range(int(arguments[0]) // 1000):
            sys.stdout.write(line * 1000)
        say(result("enough"))
    elif play == "garbage":
        garbage(arguments[0])
    elif play == "leave":
        leave(arguments[0], arguments[1])
    elif play == "version":
        sys.exit(f"error: unknown option '{arguments[0]}'")
    os._exit(0)  # without waiting for the processes it started


if __name__ == "__main__":
    main(*sys.argv[1:])
