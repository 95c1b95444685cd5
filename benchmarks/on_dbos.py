"""Measure DBOS on SQLite: `python -m benchmarks.on_dbos SETTING DIRECTORY COUNT` prints its figures as JSON.

queue-default   as installed: rollback journal, queue polled once a second, enqueued by one thread
queue-1         at its best: WAL, queue polled 20 times a second, enqueued by one thread
queue-16        the same, enqueued by 16 threads
queue-serial    WAL, polled 1000 times a second; one workflow is enqueued and awaited, then the next
direct-64       WAL, without the queue: started in the calling process, 64 at a time
direct-serial   the same, one at a time
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROMPT = "x" * 200
GROUP = 64
POLL_SECONDS = 0.05
SERIAL_POLL_SECONDS = 0.001
"""Polling intervals at which DBOS was fastest, for many workflows and for one at a time."""


class Dbos:
    """DBOS on a SQLite file, with a workflow that does nothing."""

    def __init__(self, folder: Path, default: bool, poll: float) -> None:
        from dbos import DBOS, DBOSConfig

        self.dbos = DBOS
        self.file = folder / "dbos.db"
        if not default:  # the journal mode is stored in the file
            connection = sqlite3.connect(self.file)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.close()
        config: DBOSConfig = {
            "name": "bench", "system_database_url": f"sqlite:///{self.file}", "log_level": "ERROR"
        }  # fmt: skip
        if not default:
            config["max_executor_threads"] = GROUP
        DBOS(config=config)
        self.called = threading.Semaphore(0)

        def noop(prompt: str) -> str:
            self.called.release()
            return "ok"

        self.workflow: Callable[[str], str] = DBOS.workflow()(noop)
        DBOS.launch()
        DBOS.register_queue("bench", polling_interval_sec=poll)
        self.enqueue(1, 1)  # not measured: the queue's thread starts within a second

    def enqueue(self, count: int, threads: int) -> None:
        """Enqueue all, then wait until all are done."""
        before = self.count_done()
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda _: self.dbos.enqueue_workflow("bench", self.workflow, PROMPT), range(count)):
                pass
        for _ in range(count):
            self.called.acquire()
        while self.count_done() < before + count:
            time.sleep(0.005)

    def enqueue_one_by_one(self, count: int, poll: float) -> None:
        """Enqueue one, wait for its result, then enqueue the next."""
        for _ in range(count):
            self.dbos.enqueue_workflow("bench", self.workflow, PROMPT).get_result(polling_interval_sec=poll)

    def start(self, count: int, threads: int) -> None:
        """Start workflows in this process without the queue and wait for the results, in so many threads."""
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda _: self.dbos.start_workflow(self.workflow, PROMPT).get_result(), range(count)):
                pass

    def count_done(self) -> int:
        return int(self._ask("SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'"))

    def describe(self) -> dict[str, object]:
        """Return the modes of a new connection; DBOS changes neither."""
        return {"journal": self._ask("PRAGMA journal_mode"), "synchronous": self._ask("PRAGMA synchronous")}

    def _ask(self, question: str) -> Any:
        connection = sqlite3.connect(self.file, timeout=30)
        try:
            return connection.execute(question).fetchone()[0]
        finally:
            connection.close()


def dbos(folder: Path, setting: str, count: int) -> dict[str, object]:
    """Return the workflows per second of DBOS with the setting."""
    serial = setting == "queue-serial"
    default = setting == "queue-default"
    poll = 1.0 if default else SERIAL_POLL_SECONDS if serial else POLL_SECONDS
    peer = Dbos(folder, default=default, poll=poll)
    ways: dict[str, Callable[[int], None]] = {
        "queue-default": lambda number: peer.enqueue(number, 1),
        "queue-1": lambda number: peer.enqueue(number, 1),
        "queue-16": lambda number: peer.enqueue(number, 16),
        "queue-serial": lambda number: peer.enqueue_one_by_one(number, poll),
        "direct-64": lambda number: peer.start(number, 64),
        "direct-serial": lambda number: peer.start(number, 1),
    }
    if not default:
        ways[setting](20)
    before, began = peer.count_done(), time.perf_counter()
    ways[setting](count)
    wall = time.perf_counter() - began
    if peer.count_done() != before + count:
        raise RuntimeError(f"{peer.count_done() - before} workflows are done, not {count}")
    described = peer.describe()
    peer.dbos.destroy()
    return {"tasks_per_s": count / wall, **described}


def main() -> None:
    setting, folder, count = sys.argv[1:]
    print(json.dumps(dbos(Path(folder), setting, int(count))))


if __name__ == "__main__":
    main()
