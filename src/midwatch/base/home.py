"""The home directory: where everything of one desk is kept, who is alive in it, and how a client finds the server.

A process proves that it lives by holding a file lock. The lock ends with the process, whatever ended it; time plays no
part, so a suspended process is never taken for a dead one.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from midwatch.base.errors import AlreadyRunning, HomeUnusable

OWNER_RETRY_SECONDS = 1.0
"""A prober holds a lock for an instant; an owner that meets one tries again for this long."""


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process. Not inherited by programs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._fd is not None

    def acquire(self, patience: float = 0.0) -> bool:
        """Take it, trying again for `patience` seconds. False when somebody else holds it."""
        if self._fd is not None:
            return True
        deadline = time.monotonic() + patience
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return False
                time.sleep(0.02)
                continue
            self._fd = fd
            return True

    def release(self) -> None:
        """Let go. Harmless when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def taken(self) -> bool:
        """Whether some process holds it."""
        if self._fd is not None:
            return True
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look do not see each other
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A live server of this home."""

    pid: int
    url: str
    version: str


class Home:
    """Paths and locks of one home directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "midwatch.db"
        self.token_file = path / "token"
        self.run = path / "run"
        self.work = path / "work"
        self.worktrees = path / "worktrees"
        self.log_file = path / "log" / "midwatch.log"
        self.server_file = self.run / "server.json"

    def prepare(self) -> None:
        """Make what is missing, readable by its owner only; HomeUnusable when that cannot be done."""
        try:
            for folder in (self.path, self.run, self.work, self.log_file.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK) or not os.access(self.run, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            self.token()
        except OSError as problem:
            raise HomeUnusable(
                f"the home directory {self.path} cannot be used: {problem.strerror}. "
                "Make it writable, or choose another with MIDWATCH_HOME."
            ) from None

    def token(self) -> str:
        """The owner's token; made at the first call, in a file only its owner can read."""
        with suppress(FileNotFoundError):
            if found := self.token_file.read_text().strip():
                return found
            self.token_file.rename(self.token_file.with_name(".token.empty"))  # it would let everybody in
        made = secrets.token_urlsafe(32)
        scratch = self.token_file.with_name(f".token.{os.getpid()}.{made[:8]}")
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(made + "\n")
        try:
            with suppress(FileExistsError):
                os.link(scratch, self.token_file)  # the first of two processes wins, whole or not at all
        finally:
            scratch.unlink()
        return self.token_file.read_text().strip()

    def lock(self, name: str) -> Lock:
        """The lock called `name`: `up`, `leader`, or an instance's id."""
        return Lock(self.run / f"{name}.lock")

    def server(self) -> ServerInfo | None:
        """The live server of this home, or None. A file left by a dead one is not believed."""
        if not self.lock("up").taken():
            return None
        try:
            return ServerInfo(**json.loads(self.server_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None  # it is starting and has not said where yet

    def announce(self, info: ServerInfo) -> None:
        """Tell clients where this process serves."""
        scratch = self.server_file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({"pid": info.pid, "url": info.url, "version": info.version}))
        scratch.replace(self.server_file)

    def claim_up(self, patience: float = OWNER_RETRY_SECONDS) -> Lock:
        """Become the one server of this home, or AlreadyRunning with the other one's pid."""
        lock = self.lock("up")
        if lock.acquire(patience):
            self.server_file.unlink(missing_ok=True)
            return lock
        other = self.server()
        who = f"pid {other.pid}, {other.url}" if other else "it is starting"
        raise AlreadyRunning(
            f"a midwatch server already serves {self.path} ({who}); stop it with `midwatch down`, or set MIDWATCH_HOME."
        )


def boot_id() -> str:
    """What tells this start of the machine from earlier ones; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
