"""Test sessions, notices, usage and the log on the command line, with and without a server."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from commands import run
from midwatch import Runtime
from midwatch.client import Client
from servers import PROGRAM, Server, environment, eventually

CONFIG = """
detect_agents = false
default_agent = "shell"

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]

[agents.broken]
kind = "command"
argv = ["sh", "-c", "echo out of order >&2; exit 1"]
"""
PATIENCE = 120.0


def midwatch(home: Path, *arguments: str, said: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return run(arguments, env=environment(home), cwd=home.parent, said=said, timeout=PATIENCE)


def run_json(home: Path, *arguments: str) -> dict:
    ran = midwatch(home, *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def run_refused(home: Path, status: int, *arguments: str) -> str:
    """Run a command that must fail with one line and return the line."""
    ran = midwatch(home, *arguments)
    assert (ran.returncode, ran.stdout) == (status, ""), ran.stderr
    assert ran.stderr.startswith("midwatch: ")
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.rstrip().endswith(".")
    return ran.stderr


@pytest.fixture
def offline(home: Path) -> Path:
    """Return a home without a server."""
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG)
    return home


@pytest.fixture
async def server(offline: Path) -> AsyncIterator[Server]:
    server = Server(offline, MIDWATCH_SHUTDOWN_GRACE="0")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(params=["with a server", "without a server"])
async def either(request: pytest.FixtureRequest, offline: Path) -> AsyncIterator[Path]:
    if request.param == "without a server":
        yield offline
        return
    server = Server(offline, MIDWATCH_SHUTDOWN_GRACE="0")
    await server.start()
    yield offline
    await server.stop()


# -- sessions ------------------------------------------------------------------------------------------------------


async def test_a_script_has_a_conversation(either: Path) -> None:
    assert "midwatch chat" in midwatch(either, "sessions").stdout
    key = midwatch(either, "session", "new", "--title", "The stars").stdout.strip()
    assert key.startswith("chat:s_")
    reply = midwatch(either, "session", "send", key, "echo one", "--wait")
    assert (reply.returncode, reply.stdout) == (0, "one\n")
    assert run_json(either, "session", "send", key, "echo two", "--wait")["result"] == "two"
    assert midwatch(either, "session", "send", key, "exit 3", "--wait").returncode == 1
    shown = run_json(either, "session", "show", key)
    assert (shown["title"], shown["agent"], shown["workdir"]) == ("The stars", "shell", str(either.parent))
    spoken = [(message["role"], message["text"]) for message in shown["messages"]]
    assert spoken[:4] == [("user", "echo one"), ("agent", "one"), ("user", "echo two"), ("agent", "two")]
    assert run_json(either, "session", "show", key, "--after", "2")["messages"][0]["number"] == 3
    assert "echo two" in midwatch(either, "session", "show", key).stdout
    (listed,) = run_json(either, "sessions")["sessions"]
    assert (listed["key"], listed["status"]) == (key, "idle")
    assert "The stars" in midwatch(either, "sessions").stdout
    assert run_json(either, "session", "interrupt", key) == {"interrupted": None, "mode": "abort", "resume": None}
    assert run_json(either, "session", "close", key)["status"] == "closed"
    assert "closed" in run_refused(either, 4, "session", "send", key, "echo three")


async def test_a_message_waits_for_a_server(offline: Path) -> None:
    midwatch(offline, "session", "new", "--key", "chat:a|thread:b/c")
    sent = midwatch(offline, "session", "send", "chat:a|thread:b/c", "echo later")
    assert sent.returncode == 0
    assert "midwatch up" in sent.stderr
    server = Server(offline)
    await server.start()
    try:
        async with Client.for_home(offline) as client:
            async for event in client.follow(0, kinds=["task_finished"], session_key="chat:a|thread:b/c"):
                assert event["payload"]["result"] == "later"
                break
    finally:
        await server.stop()


async def test_a_message_with_the_same_key_is_sent_once(either: Path) -> None:
    midwatch(either, "session", "new", "--key", "chat:1")
    once = ("session", "send", "chat:1", "echo once", "--wait", "--key", "k1")
    assert run_json(either, *once)["id"] == run_json(either, *once)["id"]
    assert "ASCII" in run_refused(either, 2, "session", "send", "chat:1", "echo", "--key", "schlüssel")


async def test_status_shows_a_running_turn_and_interrupt_stops_it(server: Server) -> None:
    home = server.home
    midwatch(home, "session", "new", "--key", "chat:1", "--agent", "demo")
    first = run_json(home, "session", "send", "chat:1", "demo:hang")["id"]
    second = run_json(home, "session", "send", "chat:1", "demo:ask")["id"]
    async with Client.for_home(home) as client:
        await until(client, "task_progress", first)
        assert run_json(home, "status")["sessions"] == {"busy": ["chat:1"], "asking": []}
        assert "Sessions: 1 busy" in midwatch(home, "status").stdout
        assert run_json(home, "session", "interrupt", "chat:1") == {
            "interrupted": first, "mode": "abort", "resume": None,
        }  # fmt: skip

        await until(client, "approval_requested", second)  # the waiting messages continue
        assert run_json(home, "status")["sessions"] == {"busy": [], "asking": ["chat:1"]}
        assert second in midwatch(home, "session", "interrupt", "chat:1").stdout
        await until(client, "task_finished", second)


async def until(client: Client, kind: str, task_id: str) -> None:
    """Wait for an event of a task."""
    async with asyncio.timeout(PATIENCE):
        async for _ in client.follow(0, kinds=[kind], task_id=task_id):
            return


async def test_a_watcher_misses_nothing_over_a_crash_of_the_server(server: Server) -> None:
    """The watcher gets the state and the text, and after the crash the missed events and the state again."""
    async with Client.for_home(server.home) as client, asyncio.timeout(PATIENCE):
        await client.create_session(key="chat:1", agent="demo")
        states, seqs, killed = [], [], False
        async for frame in client.watch_session("chat:1", 0):
            if "as_of_seq" in frame:
                states.append(frame)
                if len(states) == 1:
                    await client.send("chat:1", "first")
                    await client.send("chat:1", "second")
            elif frame["seq"]:
                seqs.append(frame["seq"])
            elif frame["kind"] == "message_delta" and not killed:
                killed = True
                await server.kill()
                await server.start()
                await client.send("chat:1", "third")  # the other messages may have been answered before
            if frame["kind"] == "task_finished" and frame["payload"]["result"].count("third"):
                break
        log = await client.events(session_key="chat:1")
    assert seqs == [event["seq"] for event in log["events"] if event["seq"] <= seqs[-1]]
    assert len(states) == 2
    assert states[0]["session"]["key"] == "chat:1"
    assert states[1]["messages"][0]["text"] == "first"


# -- chat ----------------------------------------------------------------------------------------------------------


async def test_piped_lines_are_answered_in_order(either: Path) -> None:
    ran = midwatch(either, "chat", "chat:1", said="echo one\n\necho two; \\\necho three")
    assert (ran.returncode, ran.stdout) == (0, "one\ntwo\nthree\n"), ran.stderr
    assert "chat:1 with shell" in ran.stderr
    failed = midwatch(either, "chat", "chat:1", said="exit 3\necho four\n")
    assert (failed.returncode, failed.stdout) == (1, "four\n")
    assert "midwatch retry" in failed.stderr


async def test_a_session_and_its_events_are_printed_as_json(either: Path) -> None:
    later = "demo:sleep=2 hello\n"  # the session is connected by then
    ran = midwatch(either, "chat", "--agent", "demo", "--title", "x", "--json", said=later)
    session, *events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (ran.returncode, ran.stderr, session["title"]) == (0, "", "x")
    seqs = [event["seq"] for event in events if event["seq"]]
    assert seqs == sorted(set(seqs))
    kinds = [event["kind"] for event in events]
    assert kinds.index("message_delta") < kinds.index("task_finished")
    assert {event["session_key"] for event in events} == {session["key"]}


async def test_a_closed_session_is_reopened_but_not_with_another_agent(either: Path) -> None:
    assert midwatch(either, "chat", "chat:1", said="echo one\n").returncode == 0
    midwatch(either, "session", "close", "chat:1")
    assert midwatch(either, "chat", "chat:1", said="echo two\n").stdout == "two\n"
    ran = midwatch(either, "chat", "chat:1", "--agent", "demo", said="hello\n")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "another key" in ran.stderr


class Terminal:
    """A program in a terminal, and a person who reads and types."""

    def __init__(self, program: subprocess.Popen[bytes], screen: int) -> None:
        self.program = program
        self._shown = b""
        self._seen = 0
        self._screen = screen
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._screen, 65536):
                self._shown += chunk
        except OSError:
            pass  # the program has ended

    @property
    def text(self) -> str:
        """Return all output so far. It comes in pieces that may end within a line break or a character."""
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    async def wait_for(self, text: str) -> None:
        """Wait until the text appears after the text waited for before."""
        assert await eventually(lambda: text in self.text[self._seen :], PATIENCE), self.text
        self._seen = self.text.index(text, self._seen) + len(text)

    async def wait_for_exit(self) -> int:
        return await asyncio.to_thread(self.program.wait, PATIENCE)

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait()
        self._reader.join()
        os.close(self._screen)


@contextmanager
def terminal(home: Path, *arguments: str) -> Iterator[Terminal]:
    screen, end = pty.openpty()
    program = subprocess.Popen(
        [PROGRAM, *arguments], env=environment(home, NO_COLOR="1"), cwd=home.parent, stdin=end, stdout=end, stderr=end,
        start_new_session=True,
    )  # fmt: skip
    os.close(end)
    terminal = Terminal(program, screen)
    try:
        yield terminal
    finally:
        terminal.close()


async def test_chat_works_in_a_terminal(either: Path) -> None:
    with terminal(either, "chat", "chat:1", "--agent", "demo") as screen:
        await screen.wait_for("Ctrl-D leaves.\n> ")
        screen.type("hello\n")
        await screen.wait_for("You asked: hello\n")
        await screen.wait_for("lists what there is.\n> ")
        screen.type("demo:ask may you\n")
        await screen.wait_for("May it? Type yes or no.")
        screen.type("yes\n")
        await screen.wait_for("and the answer was: yes.")
        await screen.wait_for("lists what there is.\n> ")
        screen.type("\x04")
        assert await screen.wait_for_exit() == 0
    assert screen.text.count("You asked: hello") == 1
    assert "goes on" not in screen.text
    with terminal(either, "chat", "chat:1") as screen:
        await screen.wait_for("You asked: hello")  # the earlier messages
        screen.program.send_signal(signal.SIGINT)
        assert await screen.wait_for_exit() == 130


async def test_run_takes_answers_in_a_terminal(either: Path) -> None:
    with terminal(either, "run", "demo:ask may you", "--agent", "demo") as screen:
        await screen.wait_for("May it? Type yes or no. After no you may write the reason.")
        screen.type("perhaps\n")
        await screen.wait_for("Type yes or no.")
        screen.type("yes\n")
        await screen.wait_for("answered: yes")
        await screen.wait_for("and the answer was: yes.")
        assert await screen.wait_for_exit() == 0
    with terminal(either, "run", "demo:ask may you", "--agent", "demo") as screen:
        await screen.wait_for("May it? Type yes or no.")
        screen.type("n, not today\n")
        await screen.wait_for("answered: no")
        await screen.wait_for("and the answer was: no.")
        assert await screen.wait_for_exit() == 0
    (question, _) = run_json(either, "approvals", "--status", "all")["approvals"]
    assert question["why"] == "not today"


async def test_run_can_be_left_while_it_asks(server: Server) -> None:
    with terminal(server.home, "run", "demo:ask may you", "--agent", "demo") as screen:
        await screen.wait_for("May it? Type yes or no.")
        screen.type("\x04")
        await screen.wait_for("The input has ended; answer from another terminal with `midwatch approve ")
        screen.program.send_signal(signal.SIGINT)
        await screen.wait_for("The task continues; see `midwatch show t_")
        assert await screen.wait_for_exit() == 130
    (question,) = run_json(server.home, "approvals")["approvals"]
    assert question["status"] == "pending"


async def test_ctrl_c_stops_the_answer_and_the_conversation_continues(either: Path) -> None:
    with terminal(either, "chat", "chat:1", "--agent", "demo") as screen:
        await screen.wait_for("> ")
        screen.type("demo:hang\n")
        await screen.wait_for("hanging until interrupted")
        screen.type("and then this\n")
        await screen.wait_for("The message is queued.")
        screen.program.send_signal(signal.SIGINT)
        await screen.wait_for("cancelled")
        await screen.wait_for("You asked: and then this\n")
        await screen.wait_for("lists what there is.\n> ")
        screen.program.send_signal(signal.SIGINT)
        assert await screen.wait_for_exit() == 130
    assert [task["status"] for task in run_json(either, "tasks")["tasks"]] == ["done", "cancelled"]


async def test_the_server_continues_after_the_user_leaves_the_chat(server: Server) -> None:
    with terminal(server.home, "chat", "chat:1", "--agent", "demo") as screen:
        await screen.wait_for("> ")
        screen.type("demo:hang\n")
        await screen.wait_for("hanging until interrupted")
        screen.type("\x04")
        assert await screen.wait_for_exit() == 0
    assert "The agent continues; come back with `midwatch chat chat:1`" in screen.text
    assert run_json(server.home, "session", "show", "chat:1")["status"] == "busy"
    with terminal(server.home, "chat", "chat:1") as screen:
        await screen.wait_for("The agent works on t_")
        screen.program.send_signal(signal.SIGINT)
        await screen.wait_for("cancelled")


async def test_leaving_a_chat_without_a_server_leaves_nothing_behind(offline: Path) -> None:
    with terminal(offline, "chat", "chat:1", "--agent", "demo") as screen:
        await screen.wait_for("> ")
        screen.type("demo:hang\n")
        await screen.wait_for("hanging until interrupted")
        screen.type("/quit\n")
        assert await screen.wait_for_exit() == 0
    assert [task["status"] for task in run_json(offline, "tasks")["tasks"]] == ["cancelled"]


LISTENING = """
from midwatch.domain.event import MessageDelta


def listen(prompt, turn):
    turn.emit(MessageDelta(message_id=f"{turn.task_id}.{turn.attempt}", offset=0, text="listening"))
    heard = [turn.receive() for _ in range(3)]
    return "heard: " + ", ".join(heard)
"""


async def test_typed_lines_reach_a_busy_agent(offline: Path) -> None:
    (offline / "listening.py").write_text(LISTENING)
    with (offline / "midwatch.toml").open("a") as settings:
        settings.write(f'[agents.listener]\nkind = "function"\ntarget = "listening:listen"\npath = ["{offline}"]\n')
    with terminal(offline, "chat", "chat:1", "--agent", "listener") as screen:
        await screen.wait_for("> ")
        screen.type("begin\n")
        await screen.wait_for("listening")
        screen.type("/now left a bit\n/then right a bit\n/stop that will do\n")
        await screen.wait_for("heard: left a bit, right a bit, that will do")
        await screen.wait_for("> ")
        screen.type("/exit\n")
        assert await screen.wait_for_exit() == 0
    assert [task["status"] for task in run_json(offline, "tasks")["tasks"]] == ["done"]


async def test_a_chat_survives_a_restart_of_the_server(server: Server) -> None:
    with terminal(server.home, "chat", "chat:1", "--agent", "demo") as screen:
        await screen.wait_for("> ")
        await server.kill()
        screen.type("lost\n")
        await screen.wait_for("midwatch: no server answers")
        await server.start()
        screen.type("hello again\n")
        await screen.wait_for("You asked: hello again\n")
        screen.type("\x04")
        assert await screen.wait_for_exit() == 0
    assert "lost" not in [task["prompt"] for task in run_json(server.home, "tasks")["tasks"]]


async def test_a_chat_shows_messages_of_other_users(server: Server) -> None:
    with terminal(server.home, "chat", "chat:1", "--agent", "demo") as screen:
        await screen.wait_for("> ")
        assert midwatch(server.home, "session", "send", "chat:1", "from afar").returncode == 0
        await screen.wait_for("owner says: from afar")
        await screen.wait_for("You asked: from afar\n")
        midwatch(server.home, "session", "close", "chat:1")
        assert await screen.wait_for_exit() == 0


# -- notices -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hook(*statuses: int) -> AsyncIterator[str]:
    """Serve an address that answers with these statuses, one after the other."""
    waiting = list(statuses)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % waiting.pop(0))
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"


async def test_a_failed_notice_is_sent_again(server: Server) -> None:
    home = server.home
    assert "--route" in midwatch(home, "deliveries").stdout
    async with hook(200, 400, 200) as url, Client.for_home(home) as client:
        task_id = run_json(home, "submit", "true", "--route", f"webhook:{url}", "--notices", "all")["id"]
        await until(client, "delivery_failed", task_id)
        shown = await asyncio.to_thread(midwatch, home, "deliveries", "--failed")
        (failed,) = await client.deliveries("failed")
        assert failed["id"] in shown.stdout
        assert "midwatch redeliver" in shown.stdout
        assert failed["id"] in (await asyncio.to_thread(midwatch, home, "status")).stdout
        assert (await client.delivery(failed["id"]))["error"]
        again = await asyncio.to_thread(run_json, home, "redeliver", failed["id"])
        assert (again["status"], again["attempts"]) == ("pending", 0)
        await until(client, "delivery_retried", task_id)
        async for event in client.follow(0, kinds=["delivery_sent"], task_id=task_id):
            if event["payload"]["delivery_id"] == failed["id"]:
                break
    assert run_json(home, "deliveries", "--failed") == {"deliveries": []}
    assert len(run_json(home, "deliveries", "--task", task_id)["deliveries"]) == 2
    assert "only a failed delivery" in run_refused(home, 4, "redeliver", failed["id"])


# -- usage, agents, events -----------------------------------------------------------------------------------------


async def test_usage_is_summed(either: Path) -> None:
    assert "No task has ended" in midwatch(either, "usage").stdout
    midwatch(either, "run", "true")
    midwatch(either, "run", "exit 1")
    midwatch(either, "run", "hello", "--agent", "demo")
    used = run_json(either, "usage", "--since", "7d")
    assert [(row["actor"], row["agent"], row["tasks"]) for row in used["rows"]] == [
        ("owner", "shell", 2), ("owner", "demo", 1),
    ]  # fmt: skip
    (row,) = run_json(either, "usage", "--by", "actor", "--since", "2020-01-01")["rows"]
    assert (row["actor"], row["tasks"], row["done"], row["failed"]) == ("owner", 3, 2, 1)
    assert row["input_tokens"] is None
    assert {**used["total"], "actor": "owner"} == {**row, "seconds": used["total"]["seconds"]}
    shown = midwatch(either, "usage").stdout.splitlines()
    assert [line.split()[:2] for line in shown if line.startswith("total")] == [["total", "3"]]
    assert shown[-1] == "No usage reported for 3 of 3 tasks."
    assert run_json(either, "usage", "--since", "2999-01-01")["rows"] == []


async def test_agents_test_runs_a_task(either: Path) -> None:
    works = midwatch(either, "agents", "--test", "demo")
    assert works.returncode == 0
    assert "This is the demo agent" in works.stdout
    assert run_json(either, "agents", "--test", "demo")["status"] == "done"
    broken = midwatch(either, "agents", "--test", "broken")
    assert broken.returncode == 1
    assert "out of order" in broken.stderr
    assert "midwatch agents" in run_refused(either, 3, "agents", "--test", "nobody")


async def test_the_log_is_filtered_and_read_backwards(either: Path) -> None:
    midwatch(either, "chat", "chat:1", "--agent", "demo", said="hello\n")
    midwatch(either, "run", "true")
    log = [json.loads(line) for line in midwatch(either, "events", "--json").stdout.splitlines()]

    def list_some(*arguments: str) -> list[int]:
        return [
            json.loads(line)["seq"] for line in midwatch(either, "events", *arguments, "--json").stdout.splitlines()
        ]

    assert list_some("--session", "chat:1") == [e["seq"] for e in log if e.get("session_key") == "chat:1"]
    assert list_some("--agent", "shell") == [e["seq"] for e in log if e.get("agent_id") == "shell"]
    assert list_some("--actor", "owner") == [e["seq"] for e in log if e.get("actor") == "owner"]
    assert list_some("--actor", "nobody") == []
    assert list_some("--before", "10", "--limit", "3") == [7, 8, 9]
    assert "midwatch events --before 7" in midwatch(either, "events", "--before", "10", "-n", "3").stderr
    assert list_some("--before", "3") == [1, 2]


async def test_the_answer_is_shown_while_it_is_written(server: Server) -> None:
    follower = subprocess.Popen(
        [PROGRAM, "events", "--follow", "--live", "--session", "chat:1"], env=environment(server.home),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert follower.stdout is not None
    try:
        midwatch(server.home, "session", "new", "--key", "chat:1", "--agent", "demo")
        assert "session_opened" in follower.stdout.readline()
        midwatch(server.home, "chat", "chat:1", said="hello\n")
        lines = [follower.stdout.readline()]
        while "task_finished" not in lines[-1]:
            lines.append(follower.stdout.readline())
            assert lines[-1]
        assert any("message_delta" in line and line.split()[0] == "-" for line in lines)
    finally:
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=PATIENCE)
    assert (follower.returncode, errors) == (130, "")


async def test_pruned_events_are_reported(either: Path) -> None:
    midwatch(either, "run", "true")
    midwatch(either, "run", "true")
    async with Runtime.open(either, work=False) as runtime:
        await runtime.store.prune_events(0, 3)
    ran = midwatch(either, "events", "--after", "1", "--json")
    assert ran.returncode == 0
    first = json.loads(ran.stdout.splitlines()[0])["seq"]
    assert first > 2
    assert f"Events 2 to {first - 1} were removed" in ran.stderr


BAD_INPUT = [
    (2, ("approvals", "--status", "x"), "'pending', 'granted', 'denied', 'expired', 'all'"),
    (2, ("tasks", "--before", "nope"), "the id of a task"),
    (2, ("tasks", "--status", "x"), "'pending', 'running', 'done', 'failed', 'cancelled'"),
    (2, ("events", "--kind", "task_finishd"), "did you mean task_finished"),
    (2, ("events", "--kind", "nope"), "task_finished"),
    (2, ("events", "--before", "5", "--follow"), "cannot be used with --after or --follow"),
    (2, ("usage", "--since", "yesterday"), "7d"),
    (2, ("usage", "--by", "week"), "'actor', 'agent'"),
    (2, ("show", "."), "list the records"),
    (2, ("session", "new", "--agent", "nobody"), "midwatch agents"),
    (2, ("session", "new", "--key", "bg:1"), "choose another"),
    (2, ("session", "new", "--workdir", "/no/such/place"), "/no/such/place"),
    (3, ("show", "a/b"), "midwatch tasks"),
    (3, ("show", "b\udcffd"), "midwatch tasks"),
    (3, ("cancel", "a/b"), "midwatch tasks"),
    (3, ("approve", "a/b"), "midwatch approvals"),
    (3, ("redeliver", "d_no"), "midwatch deliveries"),
    (3, ("session", "show", "a/b"), "midwatch sessions"),
    (3, ("session", "send", "chat:no", "x"), "midwatch sessions"),
    (3, ("session", "interrupt", "chat:no"), "midwatch sessions"),
    (3, ("session", "close", "chat:no"), "midwatch sessions"),
    (3, ("sessions", "--before", "chat:no"), "midwatch sessions"),
]


async def test_bad_input_prints_one_line_with_a_remedy(either: Path) -> None:
    for status, arguments, says in BAD_INPUT:
        assert says in run_refused(either, status, *arguments), arguments
