"""A fake agent for the Agent Client Protocol that behaves as its prompt says. A plain script.

The prompt contains commands in double brackets, which are run in order; see the methods `do_...` below. Without any it
answers "you said ...". The prompts `fail` and `hang` do so. Arguments decide how it starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path

COMMAND = re.compile(r"\[\[(\w+)\s*(.*?)\]\]", re.DOTALL)
OPTIONS = {
    "a": {"optionId": "yes-1", "name": "Yes", "kind": "allow_once"},
    "A": {"optionId": "yes-2", "name": "Yes, always", "kind": "allow_always"},
    "r": {"optionId": "no-1", "name": "No", "kind": "reject_once"},
    "R": {"optionId": "no-2", "name": "No, never", "kind": "reject_always"},
    "x": {"optionId": "odd", "name": "Perhaps", "kind": "ask_again_tomorrow"},
    "b": {"optionId": "yes-3", "name": "Yes, and switch mode", "kind": "allow_once"},
}


def write_atomically(path, text):
    """Write a file atomically, so that a kill leaves no partial file."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    part.write_text(text)
    part.rename(path)


class Refusal(Exception):
    """An error that the agent answers with."""

    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.code, self.data = code, data


class Cancelled(Exception):
    """The client cancelled the turn."""


class Agent:
    """One process with one client and any number of sessions."""

    def __init__(self, options):
        self.options = options
        self.memory = Path(options.memory) if options.memory else None
        self.said = {}
        self.settings = {"mode": "auto", "model": "small"}
        self.cancelled = threading.Event()
        self.waiting = {}
        self.ids = itertools.count(1)
        self.lock = threading.Lock()
        self.session = None
        self.text = ""
        self.answer = {}

    # -- messages ------------------------------------------------------------------------------------------------

    def write(self, message):
        line = json.dumps({"jsonrpc": "2.0", **message})
        if "update" in str(message.get("method")) or "stopReason" in line:
            for old, new in (pair.split("=") for pair in self.options.rename):
                line = line.replace(json.dumps(old), json.dumps(new))
        self.raw(line)

    def raw(self, line):
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def ask(self, method, params, session=None):
        number, box = next(self.ids), queue.Queue()
        self.waiting[number] = box
        self.write({"id": number, "method": method, "params": {"sessionId": session or self.session, **params}})
        answer = box.get()
        if "error" in answer:
            raise Refusal(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    def update(self, what, session=None, /, **fields):
        update = {"sessionUpdate": what, **fields}
        self.write({"method": "session/update", "params": {"sessionId": session or self.session, "update": update}})

    def say(self, text):
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def serve(self):
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                self.waiting.pop(message["id"]).put(message)
            elif message["method"] == "session/cancel":
                self.cancelled.set()
            elif "id" in message:
                if message["method"] == "session/prompt":
                    self.cancelled.clear()  # here, so that a following cancel is not lost
                threading.Thread(target=self.reply, args=(message,), daemon=True).start()

    def reply(self, message):
        try:
            result = getattr(self, message["method"].replace("/", "_"))(message.get("params") or {})
        except Refusal as problem:
            error = {"code": problem.code, "message": str(problem), "data": problem.data}
            self.write({"id": message["id"], "error": error})
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        else:
            self.write({"id": message["id"], "result": result})

    # -- requests ------------------------------------------------------------------------------------------------

    def initialize(self, params):
        if self.options.start == "mute":
            time.sleep(600)
        if self.options.start.startswith("slow"):
            time.sleep(float(self.options.start[4:]))
        if self.options.start == "dies":
            sys.stderr.write("error: unknown option '--acp'\n")
            sys.stderr.flush()
            os._exit(2)
        sessions = {"resume": {}} if self.options.resumes else {}
        can = {"loadSession": not self.options.forgets, "sessionCapabilities": sessions}
        return {
            "protocolVersion": self.options.version,
            "agentCapabilities": can,
            "agentInfo": {"name": "fake", "version": "1"},
            "authMethods": [{"id": "login", "name": "Log in"}],
        }

    def session_new(self, params):
        if self.options.start == "auth":
            raise Refusal(-32000, "Authentication required")
        name = self.options.session or f"s-{uuid.uuid4().hex[:12]}"
        self.said[name] = []
        self.keep(name)
        return {"sessionId": name, **self.offers()}

    def session_load(self, params):
        name = params["sessionId"]
        if self.memory is not None:
            try:
                self.said[name] = json.loads((self.memory / f"{name}.json").read_text())
            except FileNotFoundError:
                raise Refusal(-32002, f"session not found: {name}") from None
        for text in self.said.setdefault(name, []):
            self.update("user_message_chunk", name, content={"type": "text", "text": text})
            self.update("agent_message_chunk", name, content={"type": "text", "text": f"you said {text}"})
            self.update("tool_call", name, toolCallId="old", title="an old call", status="completed")
        return self.offers()

    def session_resume(self, params):
        replay, self.update = self.update, lambda *_, **__: None
        try:
            return self.session_load(params)
        finally:
            self.update = replay

    def offers(self):
        modes = [{"id": name, "name": name.title()} for name in ("default", "auto")]
        models = [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}]
        option = {"id": "model", "category": "model", "type": "select", "currentValue": "small", "options": models}
        return {"modes": {"currentModeId": "auto", "availableModes": modes}, "configOptions": [option]}

    def session_set_mode(self, params):
        self.settings["mode"] = params["modeId"]
        return {}

    def session_set_config_option(self, params):
        self.settings[params["configId"]] = params["value"]
        return {"configOptions": []}

    def session_prompt(self, params):
        self.session, self.answer = params["sessionId"], {}
        self.blocks = params["prompt"]
        self.text = "\n".join(block["text"] for block in self.blocks if block["type"] == "text")
        self.said[self.session].append(self.text)
        self.keep(self.session)
        try:
            self.perform(self.text)
        except Cancelled:
            return {"stopReason": "cancelled"}
        return {"stopReason": "end_turn", **self.answer}

    def keep(self, name):
        if self.memory is not None:
            write_atomically(self.memory / f"{name}.json", json.dumps(self.said[name]))

    def perform(self, text):
        if text == "fail":
            raise Refusal(-32603, "Internal error", {"details": "told to fail"})
        text = re.sub(r"^>.*$", "", text, flags=re.MULTILINE)  # quoted lines are not commands
        commands = [("say", "ready"), ("hold", "ever")] if text == "hang" else COMMAND.findall(text)
        if not commands:
            self.say(f"you said {text}")
        for verb, argument in commands:
            getattr(self, f"do_{verb}")(argument.strip())

    # -- commands of a prompt ------------------------------------------------------------------------------------

    def do_say(self, argument):
        for word in re.findall(r"\S+\s*", argument):
            self.say(word)

    def do_recall(self, argument):
        quoted = (line for line in self.text.splitlines() if line.startswith(">"))
        self.say("You said: " + " | ".join((*self.said[self.session][:-1], *quoted)))

    def do_show(self, argument):
        """`show pid`, `show cwd`, `show settings`, `show blocks`, `show env NAME`"""
        what, _, name = argument.partition(" ")
        values = {"pid": os.getpid(), "cwd": str(Path.cwd()), "settings": self.settings, "blocks": self.blocks}
        self.say(json.dumps(os.environ.get(name) if what == "env" else values[what]))

    def do_think(self, argument):
        for word in re.findall(r"\S+\s*", argument):
            self.update("agent_thought_chunk", content={"type": "text", "text": word})

    def do_plan(self, argument):
        entries = [{"content": step, "status": "pending", "priority": "high"} for step in argument.split(",")]
        self.update("plan", entries=entries)

    def do_tool(self, argument):
        """Run a command without permission; its call is announced first and described later, as some agents do."""
        number = f"call-{next(self.ids)}"
        self.update("tool_call", toolCallId=number, title="Shell", kind="execute", status="pending", rawInput={})
        self.update("tool_call_update", toolCallId=number, title=argument, rawInput={"command": argument})
        self.update("tool_call_update", toolCallId=number, status="in_progress")
        self.update("tool_call_update", toolCallId=number, status="completed", rawOutput={"output": f"ran {argument}"})
        self.update("tool_call_update", toolCallId=number, status="completed")

    def do_work(self, argument):
        """`work ITEM...`: work on each item that is not in the file `done`, with a tool each, and add it.

        The item `pause` takes until there is a file `answered`.
        """
        done = self.memory / "done"
        for item in argument.split():
            if done.exists() and item in done.read_text().split():
                continue
            self.update("tool_call", toolCallId=item, title=item, kind="execute", status="in_progress")
            while item == "pause" and not done.with_name("answered").exists():
                if self.cancelled.wait(0.01):
                    raise Cancelled
            with done.open("a") as file:
                file.write(f"{item}\n")
            self.update("tool_call_update", toolCallId=item, status="completed")
        self.say("all is done")

    def do_open(self, argument):
        """Start a tool and never end it."""
        self.update("tool_call", toolCallId="open", title=argument, kind="read", status="in_progress")

    def do_ask(self, argument):
        """`ask aArRx COMMAND`: ask to run a command, with these options in this order, or `-` for none."""
        letters, command = argument.split(None, 1)
        number = f"call-{next(self.ids)}"
        call = {"toolCallId": number, "title": command, "kind": "execute", "status": "pending"}
        call["rawInput"] = {"command": ["/bin/bash", "-lc", command]}
        self.update("tool_call", **call)
        options = [OPTIONS[letter] for letter in letters if letter in OPTIONS]
        outcome = self.ask("session/request_permission", {"toolCall": call, "options": options})["outcome"]
        if self.cancelled.is_set():
            raise Cancelled
        if outcome.get("optionId", "no").startswith("yes"):
            self.update("tool_call_update", toolCallId=number, status="completed", rawOutput=f"ran {command}")
        else:
            self.update("tool_call_update", toolCallId=number, status="failed", rawOutput="not allowed")
        self.granted = outcome.get("optionId", outcome["outcome"])
        if argument.endswith("?"):
            self.say(f"chose {self.granted}")

    def do_late(self, argument):
        """Ask without an announced call and without its input, and do not report the end of a refused call."""
        call = {"toolCallId": "late", "title": argument, "kind": "execute", "status": "pending"}
        options = [OPTIONS[letter] for letter in "Aar"]
        outcome = self.ask("session/request_permission", {"toolCall": call, "options": options})["outcome"]
        if outcome.get("optionId", "no").startswith("yes"):
            self.update("tool_call_update", toolCallId="late", status="completed", title=argument, kind="execute")

    def do_leave(self, argument):
        """Ask and do not wait for the answer."""
        call = {"toolCallId": "left", "title": argument, "kind": "execute", "status": "pending"}
        number, self.waiting[-1] = -1, queue.Queue()
        params = {"sessionId": self.session, "toolCall": call, "options": [OPTIONS["a"], OPTIONS["r"]]}
        self.write({"id": number, "method": "session/request_permission", "params": params})

    def do_swap(self, argument):
        """`swap FIRST SECOND`: ask to edit a file; when the file `swap` is in the memory directory, name another."""
        first, second = argument.split()
        call = {"toolCallId": "swap", "title": "Edit", "kind": "edit", "locations": [{"path": str(Path.cwd() / first)}]}

        def change():
            self.do_hold("swap")
            self.update("tool_call_update", toolCallId="swap", locations=[{"path": str(Path.cwd() / second)}])
            self.do_think(str(Path.cwd() / second))
            self.update("tool_call", toolCallId="after", title="shows that the change has arrived", kind="think")

        threading.Thread(target=change, daemon=True).start()
        options = [OPTIONS["a"], OPTIONS["r"]]
        self.granted = self.ask("session/request_permission", {"toolCall": call, "options": options})["outcome"]
        self.say(f"chose {self.granted.get('optionId')}")

    def do_both(self, argument):
        """Ask two questions at the same time."""
        asking = [threading.Thread(target=self.do_ask, args=(f"ar {command}",)) for command in argument.split(",")]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    def do_diff(self, argument):
        path = str(Path.cwd() / argument)
        change = {"type": "diff", "path": path, "oldText": "one\ntwo\nthree\n", "newText": "one\n2\nthree\nfour\n"}
        call = {"toolCallId": "diff", "title": f"Edit {argument}", "kind": "edit", "locations": [{"path": path}]}
        self.update("tool_call", status="pending", content=[change], **call)
        options = [OPTIONS["r"], OPTIONS["a"]]
        self.ask("session/request_permission", {"toolCall": {**call, "content": [change]}, "options": options})
        self.update("tool_call_update", toolCallId="diff", status="completed", content=[change])

    def do_look(self, argument):
        """Ask to read a file."""
        call = {"toolCallId": "look", "title": "Read", "kind": "read", "locations": [{"path": argument}]}
        options = [OPTIONS["a"], OPTIONS["r"]]
        self.granted = self.ask("session/request_permission", {"toolCall": call, "options": options})["outcome"]
        self.update("tool_call_update", toolCallId="look", status="completed")

    def do_bigdiff(self, argument):
        lines = int(argument) * 1_000_000 // 40
        old = "".join(f"line {number:034}\n" for number in range(lines))
        change = {"type": "diff", "path": "/big", "oldText": old, "newText": old.replace("line", "LINE")}
        self.update("tool_call", toolCallId="big", title="Edit big", kind="edit", content=[change], rawInput={"t": old})
        self.update("tool_call_update", toolCallId="big", status="completed", content=[change])

    def do_usage(self, argument):
        tokens_in, tokens_out, cost = argument.split()
        money = {"amount": float(cost), "currency": "USD"}
        self.update("usage_update", used=10, size=1000, cost=money)
        self.answer["usage"] = {"inputTokens": int(tokens_in), "outputTokens": int(tokens_out), "totalTokens": 0}

    def do_malformed(self, argument):
        """Send lines that are no messages of the protocol, and messages with invalid content."""
        for line in ("this is no JSON", '{"half": ', "[1, 2]", "null", '{"jsonrpc": "2.0"}', "\\ud800", ""):
            self.raw(line)
        self.raw('{"jsonrpc": "2.0", "id": 99999, "result": {}}')
        self.raw('{"jsonrpc": "2.0", "id": [1], "error": "odd"}')
        self.raw('{"jsonrpc": "2.0", "id": 99999999999999999999, "method": "odd/request"}')
        self.raw('{"jsonrpc": "2.0", "method": 7, "params": []}')
        self.raw('{"jsonrpc": "2.0", "method": "session/update", "params": [1]}')
        self.write({"method": "odd/news", "params": {}})
        self.update("a_kind_of_tomorrow", content=7)
        self.update("agent_message_chunk", content="not a block")
        self.update("tool_call", title="without an id")
        self.update("plan", entries="none")
        self.update("agent_message_chunk", "another", content={"type": "text", "text": "of another session"})
        for method in ("odd/request", "terminal/odd", "session/request_permission"):
            try:
                self.ask(method, {}, "another")
            except Refusal as problem:
                self.say(f"{problem.code} ")

    def do_warn(self, argument):
        self.say("Model metadata for `fake` not found. Defaulting to fallback metadata; this can cause issues.")

    def do_flood(self, argument):
        for number in range(int(argument)):
            self.say(f"{number} ")

    def do_huge(self, argument):
        self.say("x" * int(float(argument) * 1_000_000))

    def do_hold(self, argument):
        """Wait until a file of this name is in the memory directory, or the turn is cancelled."""
        path = self.memory / argument if self.memory is not None else Path("/nowhere")
        while not path.exists():
            if self.cancelled.wait(0.01):
                raise Cancelled

    def do_deaf(self, argument):
        """Announce and ignore cancels."""
        self.say("ready")
        time.sleep(600)

    def do_silence(self, argument):
        time.sleep(float(argument))

    def do_wait(self, argument):
        """`wait SECONDS`: log a usage limit as opencode does; `wait SECONDS LIMIT`: as qwen does. Then wait."""
        argument, _, limit = argument.partition(" ")
        line = 'level=ERROR message="stream error" agent=build error.error="AI_APICallError: Rate limit exceeded."'
        if limit:
            line = f"[qwen-code] Waiting for API capacity... attempt 1, retry in {limit}s"
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
        time.sleep(float(argument))

    def do_die(self, argument):
        sys.stderr.write("Segmentation fault, as the prompt says\n")
        sys.stderr.flush()
        os._exit(int(argument))

    def do_stray(self, argument):
        """Start a process that leaves the group and keeps running."""
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.say(f"stray {child.pid} ")

    def do_error(self, argument):
        code, _, data = argument.partition(" ")
        raise Refusal(int(code), "Internal error", json.loads(data) if data else None)

    def do_limit(self, argument):
        """Report a usage limit of so many seconds the first time; afterwards do nothing."""
        mark = self.memory / "limit"
        if not mark.exists():
            reset = time.time() + float(argument)
            write_atomically(mark, str(reset))
            raise Refusal(429, "Too many requests", {"error": {"type": "rate_limit_error", "resetsAt": reset}})
        if time.time() < float(mark.read_text()):
            raise Refusal(429, "Too many requests", {"details": "too early"})

    def do_stop(self, argument):
        self.answer["stopReason"] = argument

    # -- requests to the client ----------------------------------------------------------------------------------

    def do_read(self, argument):
        """`read PATH`, `read PATH LINE LIMIT`"""
        path, *numbers = argument.split()
        request = {"path": path, **dict(zip(("line", "limit"), map(int, numbers), strict=False))}
        self.tell(lambda: self.ask("fs/read_text_file", request)["content"])

    def do_write(self, argument):
        path, content = argument.split(None, 1)
        self.tell(lambda: self.ask("fs/write_text_file", {"path": path, "content": content}) or "written")

    def do_run_in(self, argument):
        """`run_in DIRECTORY COMMAND`: run a command in another directory to its end."""
        directory, command = argument.split(None, 1)
        self.do_run(command, cwd=str(Path.cwd() / directory))

    def do_run(self, argument, **place):
        """Run a command in a terminal to its end."""

        def run():
            name = self.ask("terminal/create", {"command": argument, **place})["terminalId"]
            status = self.ask("terminal/wait_for_exit", {"terminalId": name})
            output = self.ask("terminal/output", {"terminalId": name})
            self.ask("terminal/release", {"terminalId": name})
            return json.dumps([output["output"][-100:], status["exitCode"], output["truncated"]])

        self.tell(run)

    def do_terminal(self, argument):
        """Run a command in a terminal and leave it running; `kill` ends it."""
        name, _, command = argument.partition(" ")
        request = {"command": "/bin/sh", "args": ["-c", command], "outputByteLimit": 100}
        self.terminal = self.ask("terminal/create", request)["terminalId"]
        while name not in self.ask("terminal/output", {"terminalId": self.terminal})["output"]:
            time.sleep(0.01)
        self.say(f"{name} runs ")

    def do_kill(self, argument):
        self.ask("terminal/kill", {"terminalId": self.terminal})
        status = self.ask("terminal/wait_for_exit", {"terminalId": self.terminal})
        self.say(json.dumps(status))

    def tell(self, attempt):
        try:
            self.say(str(attempt()))
        except Refusal as problem:
            self.say(f"refused: {problem} ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", help="a folder for sessions and marks")
    parser.add_argument("--session", help="the id of every new session")
    parser.add_argument("--start", default="well", help="well, mute, slowSECONDS, dies, auth")
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--forgets", action="store_true", help="cannot load a session")
    parser.add_argument("--resumes", action="store_true", help="can resume a session without telling it again")
    parser.add_argument("--rename", action="append", default=[], help="OLD=NEW: another name in updates and answers")
    Agent(parser.parse_args()).serve()


if __name__ == "__main__":
    main()
