"""The guard: a small process that ends our children's process groups when midwatch dies, even by SIGKILL.

It reads lines `+pgid` and `-pgid` from a pipe whose other end only midwatch holds. When midwatch is gone, it reads the
end of the pipe, sends SIGKILL to the groups that it still remembers, and exits.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from contextlib import suppress

WATCH = """
trap '' INT TERM HUP QUIT
groups= forgotten=0
sift() {
    left= forgotten=0
    for pgid in $groups; do
        eval "watched=\\$group$pgid"
        case $watched in yes) left="$left $pgid" ;; esac
    done
    groups=$left
}
while read -r said; do
    case $said in
    +*) groups="$groups ${said#+}"; eval "group${said#+}=yes" ;;
    -*) unset "group${said#-}"; forgotten=$((forgotten + 1)) ;;
    esac
    case $forgotten in 100) sift ;; esac
done
sift
for pgid in $groups; do kill -9 "-$pgid"; done
"""
# A variable for each group makes forgetting quick; the list is sifted now and then. It forks nothing: when it has to
# act the machine may be out of processes.


class Guard:
    """Remembers process groups in a process that outlives midwatch."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._disown)

    @property
    def pid(self) -> int | None:
        """The id of the guard's process, or None while there is none."""
        return self._process.pid if self._process else None

    def watch(self, pgid: int) -> None:
        """End this group if midwatch dies."""
        with self._lock:
            self._groups.add(pgid)
            self._tell(f"+{pgid}\n")

    def forget(self, pgid: int) -> None:
        """Forget a group that has ended."""
        with self._lock:
            self._groups.discard(pgid)
            if self._process is not None:
                self._tell(f"-{pgid}\n")

    def close(self) -> None:
        """End the guard, unless it still has groups to watch. The next child starts another guard."""
        with self._lock:
            if not self._groups:
                self._let_go()

    def _tell(self, line: str) -> None:
        """Send a line to the guard. A guard that died or does not read is replaced by one that knows all groups."""
        if self._process is None or self._process.poll() is not None:
            self._start()
            return
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode())
        except OSError:
            self._start()

    def _start(self) -> None:
        if self._process is not None:
            self._process.kill()  # before its pipe ends, which would make it end the groups
            self._let_go()
        self._process = subprocess.Popen(
            ("/bin/sh", "-c", WATCH, "midwatch-guard"),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
            cwd="/", env={"PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        known = "".join(f"+{pgid}\n" for pgid in sorted(self._groups))
        os.write(self._process.stdin.fileno(), known.encode())
        os.set_blocking(self._process.stdin.fileno(), False)

    def _let_go(self) -> None:
        """Close the pipe, so that the guard ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            self._process = None

    def _disown(self) -> None:
        """Forget the guard in a fork of this process, which must not hold its pipe and has no groups."""
        self._lock = threading.RLock()
        self._groups = set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # it is not the fork's child; nothing is to be waited for
            self._process = None


guard = Guard()
atexit.register(guard._let_go)
