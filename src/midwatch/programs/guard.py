"""The guard: a small process that ends the process groups of midwatch's children when midwatch dies, even by SIGKILL.

Only midwatch writes to the pipe that the guard reads. A line `+pgid` adds a group to the guard's list, and a line
`-pgid` removes it. A line `=path` names the cgroup that contains the cgroups of all children. A line `/path` adds a
folder to a second list, and a line `!/path` removes it. When midwatch has ended, the guard reads end-of-file from the
pipe, sends SIGKILL to all groups that are still in its list and to all processes of the cgroup, removes the folders and
the cgroup, and exits.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from contextlib import suppress

WATCH = """
trap '' INT TERM HUP QUIT
groups= forgotten=0 cgroup=
sift() {
    left= forgotten=0
    for pgid in $groups; do
        eval "watched=\\$group$pgid"
        case $watched in yes) left="$left $pgid" ;; esac
    done
    groups=$left
}
while IFS= read -r said; do
    case $said in
    /*) set -- "$@" "$said" ;;
    !*)
        for folder do
            shift
            case $folder in "${said#!}") ;; *) set -- "$@" "$folder" ;; esac
        done ;;
    +*) groups="$groups ${said#+}"; eval "group${said#+}=yes" ;;
    =*) cgroup=${said#=} ;;
    -*) unset "group${said#-}"; forgotten=$((forgotten + 1)) ;;
    esac
    case $forgotten in 100) sift ;; esac
done
sift
for pgid in $groups; do kill -9 "-$pgid"; done
tries=0
case $cgroup in
"") ;;
*)
    echo 1 > "$cgroup/cgroup.kill"
    while read -r _ populated < "$cgroup/cgroup.events" && [ "$populated" = 1 ] && [ $tries -lt 100000 ]; do
        tries=$((tries + 1))
    done ;;
esac
tries=0
while [ $# -gt 0 ] && ! rm -rf -- "$@" && [ $tries -lt 20 ]; do tries=$((tries + 1)); sleep 0.1; done
case $cgroup in "") exit ;; esac
exec rmdir "$cgroup"/*/*/ "$cgroup"/*/ "$cgroup"
"""
# A variable for each group makes removal fast; removed groups are deleted from the list now and then. Until all groups
# are ended, the script starts no processes, because the machine may have no free process; `exec` starts none. The
# folders are the positional parameters. `rm` is tried again, because a dying process may still write.


class Guard:
    """The part of midwatch that starts the guard's process and sends process groups to it."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._folders: set[str] = set()
        self._cgroup = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._drop)

    @property
    def pid(self) -> int | None:
        """The process id of the guard, or None if no guard was started."""
        return self._process.pid if self._process else None

    def watch(self, pgid: int) -> None:
        """Add a process group to the list of the groups that the guard ends if midwatch dies."""
        with self._lock:
            self._groups.add(pgid)
            self._send(f"+{pgid}\n")

    def watch_cgroup(self, path: str) -> None:
        """Name the cgroup whose processes the guard ends if midwatch dies."""
        with self._lock:
            self._cgroup = path
            self._send(f"={path}\n")

    def watch_folder(self, path: str) -> None:
        """Add a folder to the list of the folders that the guard removes if midwatch dies."""
        if path.startswith("/") and "\n" not in path:
            with self._lock:
                self._folders.add(path)
                self._send(f"{path}\n")

    def forget_folder(self, path: str) -> None:
        """Remove a folder from the guard's list. End the guard's process if it watches nothing else."""
        with self._lock:
            self._folders.discard(path)
            if self._process is not None:
                self._send(f"!{path}\n")
            self.close()

    def forget(self, pgid: int) -> None:
        """Remove a process group that has ended from the guard's list."""
        with self._lock:
            self._groups.discard(pgid)
            if self._process is not None:
                self._send(f"-{pgid}\n")

    def close(self) -> None:
        """End the guard's process, unless the guard still watches something. The next `watch` starts a new guard."""
        with self._lock:
            if not self._groups and not self._folders:
                self._close_pipe()

    def _send(self, line: str) -> None:
        """Send a line to the guard. If the guard has died or does not read, start a new guard with all groups."""
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
            self._process.kill()  # before its pipe is closed, because it would then end the groups
            self._close_pipe()
        self._process = subprocess.Popen(
            ("/bin/sh", "-c", WATCH, "midwatch-guard"),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
            cwd="/", env={"PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        lines = f"={self._cgroup}\n" + "".join(f"+{pgid}\n" for pgid in sorted(self._groups))
        lines += "".join(f"{path}\n" for path in sorted(self._folders))
        os.write(self._process.stdin.fileno(), lines.encode())
        os.set_blocking(self._process.stdin.fileno(), False)

    def _close_pipe(self) -> None:
        """Close the pipe to the guard, so that the guard's process ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            self._process = None

    def _drop(self) -> None:
        """Forget the guard in a fork of this process: the fork must not hold the guard's pipe and has no groups."""
        self._lock = threading.RLock()
        self._groups, self._folders, self._cgroup = set(), set(), ""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # the guard is not a child of the fork, which cannot wait for it
            self._process = None


guard = Guard()
atexit.register(guard._close_pipe)
