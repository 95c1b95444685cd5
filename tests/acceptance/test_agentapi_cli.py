"""Test `midwatch agentapi server` and `midwatch attach` as people start them: flags, files, signals and terminals."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from commands import run
from midwatch.base.home import Home
from midwatch.cli.attach import SessionTerminal
from midwatch.cli.connection import Desk
from midwatch.client import Client
from servers import PROGRAM, Server, environment, eventually, processes_with
from standalone import ECHO, StandaloneServer, start_standalone

# -- ends of the server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_the_server_cleanly(tmp_path: Path, number: int) -> None:
    async with start_standalone(tmp_path) as server:
        await server.wait_until_stable()
        await server.send("start a child")
        await server.wait_until_stable()
        assert re.match(r"started \d+", (await server.messages())[-1])
        reply = await server.http.post("/upload", files={"file": ("a", b"x")})
        assert Path(reply.json()["filePath"]).exists()
        assert await server.wait_for_exit(number) == 0


async def test_a_killed_server_leaves_no_files(tmp_path: Path) -> None:
    leftover, foreign = tmp_path / "midwatch-agentapi-dead", tmp_path / "midwatch-agentapi-link"
    (leftover / "data").mkdir(parents=True)
    (leftover / ".midwatch-scratch").touch()
    chosen = tmp_path / "midwatch-agentapi-home"
    chosen.mkdir()
    foreign.symlink_to(tmp_path)
    async with start_standalone(tmp_path) as server:
        assert not leftover.exists(), "the folder of a dead server stays"
        assert foreign.is_symlink() and chosen.is_dir(), "a folder with a similar name was removed"
        foreign.unlink()
        chosen.rmdir()
        async with start_standalone(tmp_path) as other:
            await other.wait_until_stable()
            await server.wait_until_stable()
            reply = await server.http.post("/upload", files={"file": ("a", b"x")})
            assert Path(reply.json()["filePath"]).exists()
            assert len(list(tmp_path.glob("midwatch-*"))) == 3
            assert await server.wait_for_exit(signal.SIGKILL) == -signal.SIGKILL
            assert await eventually(lambda: len(list(tmp_path.glob("midwatch-*"))) == 1)
            await other.send("unharmed")
            await other.wait_until_stable()


async def test_the_server_stops_when_the_agent_exits(tmp_path: Path) -> None:
    async with start_standalone(tmp_path) as server:
        await server.wait_until_stable()
        await server.send("leave 0\r", "raw")
        assert await server.wait_for_exit() == 0
        assert "====" not in server.errors.read_text()
    async with start_standalone(tmp_path) as server:
        await server.wait_until_stable()
        await server.send("leave 3\r", "raw")
        assert await server.wait_for_exit() == 1
        errors = server.errors.read_text()
        assert re.search(r"^={8}\nWelcome to echo 80\n> leave 3\n={8}$", errors, re.M), errors


async def test_the_server_stops_when_the_agent_exits_during_a_turn(tmp_path: Path) -> None:
    async with start_standalone(tmp_path) as server:
        await server.wait_until_stable()
        await server.http.post("/message", json={"content": "leave 4", "type": "user"})
        assert await server.wait_for_exit() == 1
        assert "> leave 4" in server.errors.read_text()


def run_refused(folder: Path, *arguments: str, **env: str) -> str:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("MIDWATCH_", "AGENTAPI_"))}
    command = ("agentapi", "server", "--port", "0", *arguments)
    ran = run(command, env={**variables, "TMPDIR": str(folder), **env}, cwd=folder)
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert list(folder.glob("midwatch-agentapi-*")) == []
    assert "Traceback" not in ran.stderr
    return ran.stderr.splitlines()[-1]


def test_wrong_options_print_one_line_and_exit_with_status_1(tmp_path: Path) -> None:
    assert "invalid agent type: nonsense" in run_refused(tmp_path, "--type", "nonsense", "--", "true")
    assert "--load-state requires --state-file to be set" in run_refused(tmp_path, "--load-state", "--", "true")
    assert "--save-state requires --state-file to be set" in run_refused(tmp_path, "--save-state=true", "--", "true")
    assert "'http://a' must not include http:// or https://" in run_refused(tmp_path, "-a", "http://a", "--", "true")
    assert "the list must not be empty" in run_refused(tmp_path, "-a", "", "--", "true")
    assert "'a:80' must not include a port" in run_refused(tmp_path, "--", "true", AGENTAPI_ALLOWED_HOSTS="b a:80")
    assert "--term-width" in run_refused(tmp_path, "-W", "5", "--", "true")
    wait_for_size = run_refused(tmp_path, "--", "no-such-program")
    assert (
        "program 'no-such-program' is not installed or not executable; install it, or change it after `--`"
        in wait_for_size
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert "`midwatch agentapi server --port N`" in run_refused(tmp_path, "--port", port, "--", "true")
    running = tmp_path / "pid"
    running.write_text(f"{os.getpid()}\n")
    wait_for_size = run_refused(tmp_path, "--pid-file", str(running), "--", "true")
    assert f"another instance is already running with PID {os.getpid()} (PID file: {running})" in wait_for_size
    assert running.read_text() == f"{os.getpid()}\n"


async def test_an_agent_that_exits_at_once_is_reported(tmp_path: Path) -> None:
    """Start the server as a program, as people do; the other tests fork it."""
    agent = [sys.executable, "-c", "print('no key'); raise SystemExit(2)"]
    ran = await asyncio.to_thread(
        subprocess.run, [PROGRAM, "agentapi", "server", "--port", "0", "--", *agent], cwd=tmp_path, input="",
        env={**os.environ, "TMPDIR": str(tmp_path), "AGENTAPI_TEST": str(tmp_path)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "no key" in ran.stderr
    assert await eventually(lambda: not processes_with(f"AGENTAPI_TEST={tmp_path}"))


FLOOD = "import sys\nwhile True: sys.stdout.write('flood ' * 1000)"
NOISE = "import os, sys\nwhile True: sys.stdout.buffer.write(os.urandom(4096))"
ENDLESS = "import sys\nwhile True: sys.stdout.write('\\x1b]0;' + 'x' * 9999 + '\\x1b[' + '9;' * 999)"
STUBBORN = "import signal, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)"


@pytest.mark.parametrize("program", [FLOOD, NOISE, ENDLESS, STUBBORN], ids=["flood", "noise", "endless", "stubborn"])
async def test_a_misbehaving_agent_does_no_harm(tmp_path: Path, program: str) -> None:
    async with start_standalone(tmp_path, agent=[sys.executable, "-c", program]) as server:
        async with server.http.stream("GET", "/internal/screen") as reply:
            async for line in reply.aiter_lines():
                assert len(line) < 128 * 1024
                if line.startswith("data: "):
                    break
        for path in ("/status", "/messages"):
            assert (await server.http.get(path)).status_code == 200
        assert (await server.http.post("/message", json={"content": "x", "type": "raw"})).status_code == 200
        assert await server.wait_for_exit(signal.SIGTERM) == 0


def test_the_openapi_document_is_printed() -> None:
    ran = subprocess.run([PROGRAM, "agentapi", "server", "-P", "dummy"], capture_output=True, text=True, check=True)
    wait_for_size = json.loads(ran.stdout)
    assert wait_for_size["openapi"] == "3.0.3"
    assert list(wait_for_size) == sorted(wait_for_size)


# -- files and prompts -------------------------------------------------------------------------------------------------


async def test_the_conversation_is_saved_to_a_file_and_resumed(tmp_path: Path) -> None:
    state, pid = tmp_path / "deep" / "state.json", tmp_path / "run" / "pid"
    flags = ("--state-file", str(state), "--pid-file", str(pid), "--initial-prompt", "do it")
    async with start_standalone(tmp_path, *flags) as server:
        assert pid.read_text() == f"{server.process.pid}\n"
        await wait_for_messages(server, 3)
        assert await eventually(lambda: state.exists() and '"you said do it"' in state.read_text())
        saved = state.read_text()
        await server.send("more")
        await server.wait_until_stable()
        server.process.send_signal(signal.SIGUSR1)
        assert await eventually(lambda: "you said more" in state.read_text())
        assert state.read_text() != saved
        assert await server.wait_for_exit(signal.SIGKILL) != 0
    wait_for_size = json.loads(state.read_text())
    assert list(wait_for_size) == ["version", "messages", "initial_prompt", "initial_prompt_sent"]
    assert (wait_for_size["version"], wait_for_size["initial_prompt"], wait_for_size["initial_prompt_sent"]) == (
        1,
        "do it",
        True,
    )
    async with start_standalone(tmp_path, *flags) as server:
        await server.wait_until_stable()
        await server.send("again")
        await server.wait_until_stable()
        texts = await server.messages()
        assert texts == [
            "Welcome to echo 80", "do it", "you said do it", "more", "you said more", "again", "you said again"
        ]  # fmt: skip
        assert await server.wait_for_exit(signal.SIGTERM) == 0
    assert not pid.exists()
    assert len(json.loads(state.read_text())["messages"]) == 7
    async with start_standalone(tmp_path, *flags, "--load-state=false", "--no-save-state") as server:
        await wait_for_messages(server, 3)
    assert len(json.loads(state.read_text())["messages"]) == 7


async def wait_for_messages(server: StandaloneServer, count: int) -> None:
    """Wait until there are so many messages and the agent waits for input."""
    async with asyncio.timeout(60):
        while len(await server.messages()) < count:
            await asyncio.sleep(0.02)
    await server.wait_until_stable()


async def test_a_broken_state_file_is_reported_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text("{broken")
    async with start_standalone(tmp_path, "-s", str(state)) as server:
        await server.wait_until_stable()
        async with server.http.stream("GET", "/events") as reply:
            text = ""
            async for piece in reply.aiter_text():
                text += piece
                if "agent_error" in text and text.endswith("\n\n"):
                    break
        error = json.loads(text.partition("event: agent_error\ndata: ")[2].partition("\n")[0])
        assert error["message"].startswith("Failed to restore previous session: failed to unmarshal state")
        assert (error["level"], list(error)) == ("warning", ["message", "level", "time"])
        assert text.index("status_change") < text.index("agent_error")
    assert (tmp_path / "state.json.bad-1").read_text() == "{broken"
    assert json.loads(state.read_text())["version"] == 1


async def test_the_initial_prompt_may_come_from_a_pipe(tmp_path: Path) -> None:
    async with start_standalone(tmp_path, stdin="from a pipe\n") as server:
        await wait_for_messages(server, 3)
        assert (await server.messages())[1:] == ["from a pipe", "you said from a pipe"]


async def test_a_pipe_that_stays_open_does_not_delay_the_start(tmp_path: Path) -> None:
    async with start_standalone(tmp_path, stdin=None) as server:
        await server.wait_until_stable()
        await server.send("hello")
        assert await server.wait_for_exit(signal.SIGTERM) == 0
        server.stdin.close()


async def test_flags_can_be_set_in_the_environment(tmp_path: Path) -> None:
    variables = {
        "AGENTAPI_TYPE": "goose", "AGENTAPI_TERM_WIDTH": "100", "AGENTAPI_ALLOWED_HOSTS": "127.0.0.1 a.example",
        "AGENTAPI_CHAT_BASE_PATH": "/x/chat", "AGENTAPI_INITIAL_PROMPT": "",
    }  # fmt: skip
    async with start_standalone(tmp_path, "--type", "custom", **variables) as server:
        await server.wait_until_stable()
        assert (await server.http.get("/status")).json()["agent_type"] == "custom", "a flag is stronger"
        assert await server.messages() == ["Welcome to echo 100"]
        assert (await server.http.get("/", headers={"host": "a.example"})).headers["location"] == "/x/chat/embed"
        refused = await server.http.get("/", headers={"host": "localhost"})
        assert refused.text == "Invalid host header. Allowed hosts: 127.0.0.1, a.example\n"


async def test_a_home_set_in_the_environment_keeps_the_session(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with start_standalone(tmp_path, MIDWATCH_HOME=str(home)) as server:
        await server.wait_until_stable()
        await server.send("remember")
        await server.wait_until_stable()
    ran = subprocess.run(
        [PROGRAM, "sessions", "--json"], env=environment(home), capture_output=True, text=True, check=True, timeout=120
    )
    (session,) = json.loads(ran.stdout)["sessions"]
    assert (session["agent"], session["title"]) == ("custom", "agentapi")


# -- attach ------------------------------------------------------------------------------------------------------------


class Person:
    """A person at a terminal who attaches."""

    def __init__(self, home: Path, *arguments: str, columns: int = 90, lines: int = 21) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(slave)
        self.shown = ""
        self.process = subprocess.Popen(
            [PROGRAM, "attach", *arguments], env={**environment(home), "TERM": "xterm-256color"}, stdin=slave,
            stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        self.slave = slave
        os.set_blocking(self.master, False)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self) -> str:
        try:
            while data := os.read(self.master, 65536):
                self.shown += data.decode("utf-8", "replace")
        except OSError:
            pass
        return self.shown

    async def wait_for(self, expected: str | Callable[[str], bool]) -> None:
        matches = expected if callable(expected) else (lambda shown: expected in shown)
        assert await eventually(lambda: matches(self.read()), 60), self.shown[-2000:]

    async def detach(self) -> int:
        self.type("\x1d")
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
            await asyncio.sleep(0.02)
        self.read()
        status = await asyncio.to_thread(self.process.wait, 5)
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was"
        assert self.shown.rstrip().endswith("\x1b[?1049l")
        os.close(self.master)
        os.close(self.slave)
        return status


SETTINGS = """
detect_agents = false
default_agent = "echo"
[agents.echo]
kind = "terminal"
argv = ["{python}", "-c", '''{echo}''']
prompt = "^> $"
"""


@asynccontextmanager
async def serve_echo(home: Path) -> AsyncIterator[Server]:
    """Start a server whose agent answers in a terminal."""
    home.mkdir()
    (home / "midwatch.toml").write_text(SETTINGS.format(python=sys.executable, echo=ECHO))
    server = Server(home)
    await server.start()
    try:
        yield server
    finally:
        assert await server.stop() == 0


async def test_a_terminal_attaches_to_a_session(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_echo(home) as server, server.client() as http:
        key = (await http.post("/sessions", json={})).json()["key"]
        person = Person(home, key)
        welcome = r"Welcome to echo (120|90)\b"  # the program may read the size before or after the change
        await person.wait_for(lambda shown: bool(re.search(welcome, shown)) and "Ctrl-] leaves" in shown)
        assert person.shown.startswith("\x1b[?1049h")
        person.type("hello ü\r")
        await person.wait_for("you said hello ü")
        person.type("half\x03")
        await person.wait_for("interrupted")
        person.type("size\r")
        await person.wait_for("size 90 20")
        person.resize(100, 31)
        os.kill(person.process.pid, signal.SIGWINCH)
        assert await eventually_is(http, key, (100, 30))
        person.type("size\r")
        await person.wait_for("size 100 30")
        assert await person.detach() == 0
        assert await eventually_is(http, key, (120, 40)), "it is left as it was found"
        task = (await http.post(f"/sessions/{key}/messages", json={"text": "still there"})).json()
        async with asyncio.timeout(60):
            while (wait_for_size := (await http.get(f"/tasks/{task['id']}")).json())["status"] != "done":
                await asyncio.sleep(0.05)
        assert wait_for_size["result"] == "you said still there"
        person = Person(home, key)
        await person.wait_for("you said still there")
        person.type("leave 0\r")
        await person.wait_for("The terminal is closed.")
        assert await asyncio.to_thread(person.process.wait, 60) == 0
        os.close(person.master)
        os.close(person.slave)


async def test_changes_before_the_attach_are_painted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_echo(home), Client.for_home(home) as client, asyncio.timeout(60):
        far = SessionTerminal(Desk(client, Home(home), None, None), (await client.create_session())["key"])
        await far.begin(90, 20)
        while "> " not in (await far.view()).painted:
            await asyncio.sleep(0.02)
        async with aclosing(far.changes()) as changes:
            await anext(changes)  # although nothing changes, the screen may differ from the earlier one


async def eventually_is(http: httpx2.AsyncClient, key: str, size: tuple[int, int]) -> bool:
    for _ in range(1500):
        screen = (await http.get(f"/sessions/{key}/screen")).json()
        if (screen["columns"], screen["rows"]) == size:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_terminal_attaches_to_an_agentapi_server(tmp_path: Path) -> None:
    async with start_standalone(tmp_path) as server:
        await server.wait_until_stable()
        person = Person(tmp_path / "home", "--url", str(server.http.base_url))
        await person.wait_for("Welcome to echo 80")
        person.type("hello\r")
        await person.wait_for("you said hello")
        person.type("x\x03")
        await person.wait_for("interrupted")
        assert await person.detach() == 0
        assert (await server.http.get("/status")).status_code == 200


@asynccontextmanager
async def serve_stand_in(deaf: str) -> AsyncIterator[str]:
    """Serve like coder/agentapi: the stream of screens never ends and is silent. The path `deaf` gets no answer."""
    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = re.search(r"content-length: (\d+)", head, re.I)
                await reader.readexactly(int(size[1]) if size else 0)
                path = head.split()[1]
                if path == "/internal/screen":
                    event = b'event: screen\ndata: {"screen":"Welcome\\n> "}\n\n'
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                    )
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                elif path != deaf:
                    body = b'{"transport":"pty","ok":true}\n'
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in opened:
            writer.close()


@pytest.mark.parametrize("deaf", ["/status", "/message"])
async def test_the_terminal_of_another_agentapi_server_can_be_left(tmp_path: Path, deaf: str) -> None:
    async with serve_stand_in(deaf) as url:
        person = Person(tmp_path / "home", "--url", url)
        await person.wait_for("\x1b[?1049h" if deaf == "/status" else "Welcome")
        person.type("x")
        assert await person.detach() == 0


def test_attaching_without_a_terminal_or_server_is_refused(tmp_path: Path) -> None:
    def wait_for_size(*arguments: str) -> str:
        ran = run(("attach", *arguments), env=environment(tmp_path / "home"))
        assert ran.returncode == 2
        return ran.stderr

    assert "name either a session" in wait_for_size()
    assert "name either a session" in wait_for_size("chat:1", "--url", "x")
    assert "this command needs a terminal" in wait_for_size("chat:1")
