"""The home directory: the files of one desk, the locks of its processes, and the address of its server.

A process shows that it is alive by holding a file lock. The system releases the lock when the process ends, for
whatever reason. The lock does not depend on time, so a suspended process never counts as dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from midwatch.base.errors import AlreadyRunning, HomeUnusable

OWNER_RETRY_SECONDS = 1.0
"""How long a process tries to take a lock, because another process may hold the lock briefly while it checks it."""
RUNS_AS_ROOT = "midwatch runs as root, so an agent without a sandbox can read and change everything on this machine"
ROOT_REMEDY = "run it as a user of its own, or set `sandbox` for all agents"


class Lock:
    """An exclusive lock on one or more files, held until `release` or the end of the process.

    If some of the files are deleted, the lock on the other files is still there. Child processes do not inherit the
    lock.
    """

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self._fds: list[int] = []

    @property
    def is_held(self) -> bool:
        """Return whether this object holds the lock."""
        return bool(self._fds)

    def acquire(self, patience: float = 0.0) -> bool:
        """Take the lock, and return whether it was taken; try again for up to `patience` seconds."""
        deadline = time.monotonic() + patience
        while not self._fds:
            if self._try():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def _try(self) -> bool:
        fds: list[int] = []
        try:
            for path in self.paths:
                path.parent.mkdir(mode=0o700, exist_ok=True)  # somebody may have deleted it
                fds.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                fcntl.flock(fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            for fd in fds:
                os.close(fd)
            if isinstance(problem, BlockingIOError):
                return False
            raise
        self._fds = fds
        return True

    def release(self) -> None:
        """Release the lock. Does nothing if this object does not hold the lock."""
        while self._fds:
            os.close(self._fds.pop())

    def remove(self) -> None:
        """Delete the files of a lock that this object holds and that nobody takes again, and release the lock."""
        for path in self.paths:
            path.unlink(missing_ok=True)
        self.release()

    def is_taken(self) -> bool:
        """Return whether any process holds the lock."""
        return self.is_held or any(map(_is_locked, self.paths))


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
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
        self.lock_folders = (self.run, path / f"{self.database.name}-locks")
        """Each lock is held in both folders, because people delete `run`. The second belongs to the database.

        The database file itself cannot be locked: closing it would release the locks that the store has on it.
        """
        self.server_files = tuple(folder / "server.json" for folder in self.lock_folders)

    def prepare(self, owner_access: str = "file") -> None:
        """Create missing directories, readable only by their owner; raise HomeUnusable if that fails.

        The owner's token gets a file if `owner_access` is "file". Otherwise the file is removed.
        """
        try:
            for folder in (self.path, *self.lock_folders, self.work, self.log_file.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not all(os.access(folder, os.W_OK | os.X_OK) for folder in (self.path, *self.lock_folders)):
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
        import secrets  # here, because most commands only read the token

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
        return Lock(*(folder / f"{name}.lock" for folder in self.lock_folders))

    def list_locks(self) -> set[str]:
        """Return the names of all locks that a process holds."""
        names = {file.stem for folder in self.lock_folders for file in folder.glob("*.lock")}
        return {name for name in names if self.lock(name).is_taken()}

    def server(self) -> ServerInfo | None:
        """Return the running server of this home, or None. A file that a dead server left behind is ignored."""
        if not self.lock("up").is_taken():
            return None
        for file in self.server_files:
            with suppress(OSError, ValueError, TypeError):
                return ServerInfo(**json.loads(file.read_text()))
        return None  # it is starting and has not written its address yet

    def announce(self, info: ServerInfo) -> None:
        """Write the address of this server for clients."""
        for file in self.server_files:
            scratch = file.with_suffix(f".{os.getpid()}")
            scratch.write_text(json.dumps(asdict(info)))
            scratch.replace(file)

    def claim_up(self, patience: float = OWNER_RETRY_SECONDS) -> Lock:
        """Become the only server of this home; raise AlreadyRunning with the address if another server runs."""
        lock = self.lock("up")
        if lock.acquire(patience):
            for file in self.server_files:
                file.unlink(missing_ok=True)
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
