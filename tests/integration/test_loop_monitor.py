"""Test the loop monitor with real servers whose event loop stands still, and with one that is only stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midwatch import Hook, HookMeta
from midwatch.running.hook_chain import HookChain
from midwatch.running.python_hook import PythonHook
from midwatch.runtime import loop_monitor
from midwatch.runtime.loop_monitor import EXIT_STATUS, LoopMonitor
from servers import PATIENCE, environment, eventually

SERVER = """
import asyncio, re, signal, sys, time
from midwatch import Settings
from midwatch.runtime.serve import serve

def stand_still():
    time.sleep(1000)

def search_for_ever():
    re.fullmatch("(a|aa)*b", "a" * 100)

def stand_still_for_a_moment():
    time.sleep(1.5)

def started(info, runtime):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, stand_still_for_a_moment)
    loop.add_signal_handler(signal.SIGUSR2, globals()[sys.argv[2]])
    print(info.url, flush=True)

serve(Settings.load(sys.argv[1], port=0, detect_agents=False, loop_limit=2), started)
"""


async def test_the_hook_that_blocks_the_loop_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Hook):
        async def before_tool(self, subject: dict[str, Any], meta: HookMeta) -> None:
            noticed.wait(PATIENCE)

    monkeypatch.setattr(loop_monitor, "REPORT_SECONDS", 0.2)
    noticed, chain = threading.Event(), HookChain([PythonHook(Slow())])
    with LoopMonitor(0, noticed.set):
        await chain.test("Slow", "before_tool", tool="push", arguments={}, text="")
    assert await eventually(lambda: ", because hook Slow blocks it" in caplog.text)


class Served:
    """A server whose loop stands still when it gets SIGUSR1 or SIGUSR2."""

    def __init__(self, process: subprocess.Popen[str], home: Path, log: Path) -> None:
        self.process, self.log = process, log
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self.token = (home / "token").read_text().strip()

    async def count(self) -> float:
        """Return how often the loop stood still."""
        async with httpx2.AsyncClient(timeout=PATIENCE) as client:
            headers = {"Authorization": f"Bearer {self.token}"}
            figures = (await client.get(f"{self.url}/api/v1/metrics", headers=headers)).text
        found = re.search(r"^midwatch_loop_standstills_total (\S+)$", figures, re.MULTILINE)
        assert found is not None
        return float(found[1])


@contextmanager
def serve(tmp_path: Path, block: str) -> Iterator[Served]:
    home, log = tmp_path / "home", tmp_path / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(home), block], env=environment(home), stdout=subprocess.PIPE,
            stderr=written, text=True,
        )  # fmt: skip
    try:
        yield Served(process, home, log)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_a_loop_that_stands_still_is_counted_and_logged_and_ends_the_process(tmp_path: Path) -> None:
    with serve(tmp_path, "stand_still") as server:
        assert await server.count() == 0
        os.kill(server.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE
        while await server.count() == 0:
            assert time.monotonic() < deadline
            os.kill(server.process.pid, signal.SIGUSR1)  # on a busy machine the thread may miss a short standstill
        assert "stand_still_for_a_moment" in server.log.read_text()
        os.kill(server.process.pid, signal.SIGUSR2)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == EXIT_STATUS
        log = server.log.read_text()
        assert "the process ends" in log and "in stand_still\n" in log and "thread MainThread" in log


async def test_code_that_lets_no_other_thread_run_ends_the_process(tmp_path: Path) -> None:
    with serve(tmp_path, "search_for_ever") as server:
        os.kill(server.process.pid, signal.SIGUSR2)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == -signal.SIGPROF
        assert "in search_for_ever" in server.log.read_text()


async def test_a_stopped_process_does_not_look_like_a_loop_that_stands_still(tmp_path: Path) -> None:
    with serve(tmp_path, "stand_still") as server:
        os.kill(server.process.pid, signal.SIGSTOP)
        await asyncio.sleep(3)  # the server is stopped for longer than its loop may stand still
        os.kill(server.process.pid, signal.SIGCONT)
        assert await server.count() == 0
        assert server.process.poll() is None and "stands still" not in server.log.read_text()


async def test_a_monitor_that_has_ended_leaves_no_thread_and_no_timer(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []
    with LoopMonitor(0.2, lambda: None, ended.append) as monitor:
        assert monitor is None
        await asyncio.sleep(0)
        time.sleep(0.5)
    assert ended == [EXIT_STATUS] and "the event loop stands still" in caplog.text
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
