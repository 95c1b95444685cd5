"""A temporary PostgreSQL for tests: `$MIDWATCH_TEST_PG`, or a cluster made with the programs on this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "shared_buffers": "64MB"}
"""Tests kill processes, never the machine, so nothing must reach the disk."""


def binaries() -> Path | None:
    """Return the directory with initdb and pg_ctl, newest version first."""
    program = shutil.which("pg_ctl")
    if program:
        return Path(program).parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: int(p.parts[-3]), reverse=True)
    return places[0].parent if places else None


_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port that no process listens on and that no other process gets while this process lives: other tests
    take thousands of ports between this call and the use of the port, and between two servers that use it. A bound
    socket that does not listen reserves it; a server that names the port and reuses addresses can still listen there.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _reserved.append(sock)
    port: int = sock.getsockname()[1]
    return port


class Cluster:
    """A running PostgreSQL cluster; `restart` and `stop` are for tests of lost connections."""

    def __init__(self, folder: Path, bin_: Path, user: str | None) -> None:
        self.folder = folder
        self._bin = bin_
        self._user = user
        self.port = free_port()
        self.url = f"postgresql://midwatch@127.0.0.1:{self.port}/postgres"

    def _run(self, *argv: str) -> None:
        done = subprocess.run(
            argv, user=self._user, group=None, extra_groups=[] if self._user else None, cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{argv[0]} failed: {done.stdout}{done.stderr}")

    def create(self) -> None:
        """Create the files."""
        data = str(self.folder / "data")
        self._run(str(self._bin / "initdb"), "-D", data, "-U", "midwatch", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = "".join(f" -c {name}={value}" for name, value in SETTINGS.items())
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder}{settings}"
        control = str(self._bin / "pg_ctl")
        log = str(self.folder / "log")
        self._run(control, "-D", str(self.folder / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: smart, fast, or immediate (as after a crash)."""
        self._run(str(self._bin / "pg_ctl"), "-D", str(self.folder / "data"), "-w", "-m", mode, "stop")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a cluster that is removed after the block. For root it runs as another user, as PostgreSQL requires."""
    bin_folder = binaries()
    if bin_folder is None:
        raise FileNotFoundError("PostgreSQL is not installed: install Debian's postgresql, or set MIDWATCH_TEST_PG")
    user = None
    if os.geteuid() == 0:
        user_names = {entry.pw_name for entry in pwd.getpwall()}
        user = "postgres" if "postgres" in user_names else "nobody"
    folder = Path(tempfile.mkdtemp(prefix="midwatch-pg-"))
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    new_cluster = Cluster(folder, bin_folder, user)
    try:
        new_cluster.create()
        new_cluster.start()
        yield new_cluster
        new_cluster.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
