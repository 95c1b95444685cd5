"""Test the network rules of sandboxes, with real sandboxes and real servers on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings
from midwatch.base.errors import BadConfig
from midwatch.programs import egress, sandbox
from midwatch.programs.egress import Egress, Refused, read_target
from midwatch.programs.process import Child, Output, Program
from midwatch.programs.sandbox import APART, build_sandbox
from midwatch.testing import RecordingTurn
from servers import PATIENCE, eventually

REFUSED = sandbox._try_sandbox("bwrap", *APART, "--unshare-net")
real = pytest.mark.skipif(REFUSED is not None, reason=f"bubblewrap cannot be used here: {REFUSED}")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]

LOOK = """
import http.client, json, os, socket, sys, urllib.error, urllib.request
listed, unlisted, own = sys.argv[1:4]

def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as problem:
        return f"{problem.code} {problem.read().decode()}"
    except OSError as problem:
        return type(problem).__name__

def direct(address):
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            return sock.makefile().read()
    except OSError as problem:
        return type(problem).__name__

def tunnel(address):
    proxy = os.environ.get("HTTPS_PROXY", "").removeprefix("http://")
    if not proxy:
        return "no proxy"
    connection = http.client.HTTPConnection(proxy, timeout=10)
    try:
        connection.set_tunnel(address)
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError as problem:
        return str(problem)
    finally:
        connection.close()

def resolve(name):
    try:
        return socket.getaddrinfo(name, 80)[0][4][0]
    except OSError as problem:
        return type(problem).__name__

print(json.dumps({
    "listed": get(f"http://{listed}/"), "unlisted": get(f"http://{unlisted}/"), "tunnel": tunnel(listed),
    "no tunnel": tunnel(unlisted), "direct": direct(listed), "dns": resolve("example.org"),
    "own": direct(own), "own by proxy": get(f"http://{own}/"),
}))
"""


@asynccontextmanager
async def web_server(text: str) -> AsyncIterator[str]:
    """Run a web server, and yield its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = text.encode() + (b"" if b"Proxy-" not in head and b"http://" not in head else b" with the proxy's head")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def look(folder: Path, network: Any, hosts: Iterable[str], *addresses: str) -> dict[str, str]:
    """Return what a program in a sandbox reaches."""
    turn = RecordingTurn(env={"MIDWATCH_URL": f"http://{addresses[2]}"})
    box = build_sandbox("x", "bwrap", str(folder / "home"), write=[], read=[], network=network, hosts=tuple(hosts))
    assert box is not None
    work = folder / "work"
    work.mkdir(exist_ok=True)
    argv = (sys.executable, "-c", LOOK, *addresses)
    box = box.admit_program(argv[0], "", str(work), sys.prefix, sys.base_prefix)
    program = Program(agent="x", argv=argv, workdir=str(work), sandbox=box)
    out, err = Output(), Output()
    child = await Child.spawn(program, turn, out, err)
    try:
        await child.admit(turn)
        async with asyncio.timeout(PATIENCE):
            await child.exited.wait()
    finally:
        await child.end()
    assert child.returncode == 0, err.text()
    return json.loads(out.text())


@real
async def test_a_proxy_leads_only_to_the_hosts_of_its_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with web_server("listed") as listed, web_server("unlisted") as unlisted, web_server("own") as own:
        found = await look(tmp_path, "proxy", [listed], listed, unlisted, own)
    assert found["listed"] == found["tunnel"] == "listed"
    assert found["unlisted"].startswith(f"403 midwatch: {unlisted} is not in the list agents.x.network_hosts; add it")
    assert "403" in found["no tunnel"]
    assert found["direct"] == "ConnectionRefusedError"
    assert found["dns"] == "gaierror"
    assert found["own"].endswith("\n\nown") and found["own by proxy"] == "own"
    assert caplog.text.count(f"{unlisted} is not in the list") == 1


@real
async def test_without_a_network_nothing_is_reached(tmp_path: Path) -> None:
    async with web_server("listed") as listed, web_server("unlisted") as unlisted, web_server("own") as own:
        found = await look(tmp_path, "none", (), listed, unlisted, own)
        assert (await look(tmp_path, "open", (), listed, unlisted, own))["direct"].endswith("\n\nlisted")
    assert found["direct"] == found["own"] == "ConnectionRefusedError"
    assert found["listed"] == found["own by proxy"] == "URLError"
    assert found["dns"] == "gaierror"


@real
async def test_a_program_behind_the_proxy_keeps_its_signals_and_its_exit_code(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "midwatch.toml").write_text(
        '[agents.sh]\nargv = ["sh", "-c", "{prompt}"]\nsandbox = "bwrap"\nnetwork = "proxy"\nmax_attempts = 1\n'
    )
    work = tmp_path / "work"
    work.mkdir()
    settings = Settings.load(home, detect_agents=False, shutdown_grace=0)
    async with Runtime.open(settings=settings) as desk, asyncio.timeout(PATIENCE):
        assert "problem" not in desk.agents["sh"].describe()
        failed = await desk.tasks.submit("exit 7", agent="sh", workdir=str(work))
        assert "exit code 7" in ((await desk.tasks.wait(failed.id)).error or "")
        task = await desk.tasks.submit(
            "trap 'touch bye; exit' INT; touch begun; while :; do sleep 0.05; done", agent="sh", workdir=str(work)
        )
        assert await eventually((work / "begun").exists)
        await desk.tasks.cancel(task.id)
        assert (await desk.tasks.wait(task.id)).outcome == "cancelled"
        assert (work / "bye").exists()


# -- rules ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def way_out(*hosts: str) -> AsyncIterator[Egress]:
    out = Egress.for_agent("x", hosts, {})
    try:
        yield out
    finally:
        out.close()


async def test_an_address_of_this_machine_must_be_listed_itself() -> None:
    async with web_server("here") as here:
        port = here.partition(":")[2]
        for hosts, works in (
            ([f"localhost:{port}"], False),
            ([f"localhost:{port}", f"127.0.0.2:{port}"], False),
            ([f"localhost:{port}", here, f"[::1]:{port}"], True),
        ):
            async with way_out(*hosts) as out:
                if works:
                    _, writer = await out._connect("localhost", int(port))
                    writer.close()
                    await writer.wait_closed()
                else:
                    with pytest.raises(Refused, match=r"localhost:\d+ leads to .*, which is not in the list"):
                        await out._connect("localhost", int(port))


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("api.example.org", "api.example.org", 443, True), ("api.example.org", "api.example.org", 80, True),
        ("api.example.org", "api.example.org", 22, False), ("api.example.org", "xapi.example.org", 443, False),
        ("API.Example.org.", "api.example.org", 443, True), ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False), ("*.example.org", "badexample.org", 443, False),
        ("*.example.org:8443", "a.example.org", 8443, True), ("*.example.org:8443", "a.example.org", 443, False),
        ("[::1]:8080", "::1", 8080, True), ("[0:0::1]:8080", "::1", 8080, True), ("10.0.0.1", "10.0.0.1", 443, True),
    ],
)  # fmt: skip
def test_entries_of_the_list_match_names_and_ports(entry: str, host: str, port: int, allowed: bool) -> None:
    assert read_target(entry).admits(host, port) is allowed


@pytest.mark.parametrize(
    "text", ["", "*", "*.", "http://a", "a/b", "a:b", "a:0", "a:99999", "u@a", "a b", "a*b.org", ":80"]
)
def test_other_entries_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_target(text)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('network = "none"', "agents.x.network: 'none' also needs `sandbox = \"bwrap\"`."),
        ('network = "proxy"\nsandbox = ["firejail"]', "agents.x.network: 'proxy' also needs `sandbox = \"bwrap\"`."),
        ('sandbox = "bwrap"\nnetwork_hosts = ["a"]', 'the list also needs `network = "proxy"`.'),
        ('sandbox = "bwrap"\nnetwork = "proxy"\nnetwork_hosts = ["http://a"]', "'http://a' is not a host such as"),
        ('sandbox = "bwrap"\nnetwork = "some"', "agents.x.network"),
    ],
)
async def test_wrong_settings_are_refused(section: str, message: str, home: Path) -> None:
    home.mkdir()
    (home / "midwatch.toml").write_text(f'[agents.x]\nargv = ["true"]\n{section}\n')
    with pytest.raises(BadConfig) as refused:
        async with Runtime.open(home):
            pass
    assert message in str(refused.value)


async def send(out: Egress, data: bytes) -> bytes:
    """Send data to the proxy and return its answer."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    await out._listen(listening, out._serve_proxy)
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_only_listening_sockets_are_taken_from_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    async with way_out() as out:
        inside = socket.socket(fileno=os.dup(out.pass_fds[0]))
        out.start()
        with inside, (tmp_path / "file").open() as file, socket.create_server(("127.0.0.1", 0)) as second:
            socket.send_fds(inside, [b"."], [file.fileno(), second.fileno()])
        assert await eventually(lambda: out._outside.fileno() < 0)
        assert not out._tasks and not out._servers, "a file, and a second socket although midwatch has no server"
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_other_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_server("here") as here, way_out(here) as out:
        for request in (b"GET / HTTP/1.1\r\n\r\n", b"GET ftp://a/ HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n"):
            assert (await send(out, request)).startswith(b"HTTP/1.1 400 "), request
        assert b"403 " in await send(out, b"CONNECT example.org:22 HTTP/1.1\r\n\r\n")
        good = f"GET http://{here}/a?b HTTP/1.1\r\nHost: other\r\nProxy-Authorization: x\r\n\r\n".encode()
        assert (await send(out, good)).endswith(b"\r\n\r\nhere")
        monkeypatch.setattr(egress, "MOST_CONNECTIONS", 0)
        assert await send(out, b"") == b"", "too many connections are closed at once"
