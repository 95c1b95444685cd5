"""The home directory: the files of one desk, the locks of its processes, and the address of its server.

A process shows that it is alive by holding a file lock. The system releases the lock when the process ends, for
whatever reason. The lock does not depend on time, so a suspended process never counts as dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from midwatch.base.errors import AlreadyRunning, HomeUnusable

OWNER_RETRY_SECONDS = 1.0
"""How long a process tries to take a lock, because another process may hold the lock briefly while it checks it."""


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process.

    Child processes do not inherit the lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Return whether this object holds the lock."""
        return self._fd is not None

    def acquire(self, patience: float = 0.0) -> bool:
        """Take the lock, and return whether it was taken; try again for up to `patience` seconds."""
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
        """Release the lock. Does nothing if this object does not hold the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def is_taken(self) -> bool:
        """Return whether any process holds the lock."""
        if self._fd is not None:
            return True
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two processes may check at the same time
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The process and the address of the running server of a home directory, and where it keeps the owner's token."""

    pid: int
    url: str
    version: str
    owner_access: str = "file"


class Home:
    """Paths and locks of one home directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "midwatch.db"
        self.token_file = path / "token"
        self.run = path / "run"
        self.owner_socket = self.run / "owner.sock"
        self.work = path / "work"
        self.worktrees = path / "worktrees"
        self.log_file = path / "log" / "midwatch.log"
        self.server_file = self.run / "server.json"

    def prepare(self, owner_access: str = "file") -> None:
        """Create missing directories, readable only by their owner; raise HomeUnusable if that fails.

        The owner's token gets a file if `owner_access` is "file". Otherwise the file is removed.
        """
        try:
            for folder in (self.path, self.run, self.work, self.log_file.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK) or not os.access(self.run, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            if owner_access == "file":
                self.token()
            else:
                self.token_file.unlink(missing_ok=True)
        except OSError as problem:
            raise HomeUnusable(
                f"the home directory {self.path} cannot be used: {problem.strerror}. "
                "Make it writable, or choose another with MIDWATCH_HOME."
            ) from None

    def token(self) -> str:
        """Return the owner's token.

        The first call creates the token, in a file that only the owner of the file can read.
        """
        with suppress(FileNotFoundError):
            if token := self.token_file.read_text().strip():
                return token
            self.token_file.rename(self.token_file.with_name(".token.empty"))  # an empty token would let everybody in
        token = secrets.token_urlsafe(32)
        scratch = self.token_file.with_name(f".token.{os.getpid()}.{token[:8]}")
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(token + "\n")
        try:
            with suppress(FileExistsError):
                os.link(scratch, self.token_file)  # if two processes do this, the first one wins
        finally:
            scratch.unlink()
        return self.token_file.read_text().strip()

    def lock(self, name: str) -> Lock:
        """Return the lock with this name: `up`, `leader`, or the id of an instance."""
        return Lock(self.run / f"{name}.lock")

    def server(self) -> ServerInfo | None:
        """Return the running server of this home, or None. A file that a dead server left behind is ignored."""
        if not self.lock("up").is_taken():
            return None
        try:
            return ServerInfo(**json.loads(self.server_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None  # it is starting and has not written its address yet

    def announce(self, info: ServerInfo) -> None:
        """Write the address of this server for clients."""
        scratch = self.server_file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(asdict(info)))
        scratch.replace(self.server_file)

    def claim_up(self, patience: float = OWNER_RETRY_SECONDS) -> Lock:
        """Become the only server of this home; raise AlreadyRunning with the address if another server runs."""
        lock = self.lock("up")
        if lock.acquire(patience):
            self.server_file.unlink(missing_ok=True)
            return lock
        other = self.server()
        who = f"pid {other.pid}, {other.url}" if other else "it is starting"
        raise AlreadyRunning(
            f"a midwatch server already serves {self.path} ({who}); run `midwatch down`, or set another MIDWATCH_HOME."
        )


def boot_id() -> str:
    """Return an id that changes with each start of the machine; return "" if the system has no such id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
