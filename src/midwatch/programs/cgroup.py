"""Cgroups: where cgroup v2 can be used, each child is in a cgroup of its own with everything that it starts.

A process cannot leave its cgroup by a new process group, a new session or another environment, so the kernel can end
all processes of a child at once. The kernel also measures what they use, and limits it. The tree in the cgroup of
midwatch's own process:

    midwatch-NAMESPACE-PID-START/           the programs of one midwatch process
      TASK-ATTEMPT/                         the programs of one attempt, with the limits of its agent
        PID/                                one child
    midwatch-NAMESPACE-PID-START.server/    midwatch itself, only if an agent has limits

The last cgroup is needed because the kernel refuses limits below a cgroup that contains processes itself. Where cgroups
cannot be used, children are started without them, unless their agent has limits.
"""

from __future__ import annotations

import atexit
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from midwatch.base.errors import AgentError
from midwatch.domain.agent import ProgramUsage
from midwatch.programs.guard import guard
from midwatch.programs.reaper import PROC, end_cgroup, list_cgroup, read_stat, remove_empty

SERVER = ".server"
NAME = re.compile(r"midwatch-(\d+)-(\d+)-(\d+)")
SWITCH = "run midwatch as a systemd service with Delegate=yes"
Controller = Literal["memory", "pids"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "pids")


class Unusable(Exception):
    """Raised with the reason why cgroups, or limits in cgroups, cannot be used here."""


class Limits(NamedTuple):
    """What all programs of one attempt may use together: bytes of memory, and processes and threads."""

    memory: int | None = None
    pids: int | None = None


class Cgroup:
    """The cgroup of one child, inside of the cgroup of its attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reported = 0.0

    @property
    def attempt(self) -> Path:
        """The cgroup of the attempt."""
        return self.path.parent

    async def end(self) -> None:
        """Kill all processes that are left, and remove the cgroup. The last child also removes that of the attempt."""
        await end_cgroup(self.path)
        with suppress(OSError):
            self.attempt.rmdir()

    def take_usage(self) -> ProgramUsage:
        """Return what the programs have used since the last call."""
        used = _read_figures(self.path / "cpu.stat").get("usage_usec", 0) / 1e6
        seconds, self._reported = used - self._reported, used
        peak = _read(self.attempt / "memory.peak")
        killed = _read_figures(self.attempt / "memory.events").get("oom_kill", 0)
        return ProgramUsage(max(0.0, seconds), int(peak) if peak.isdecimal() else None, killed)


class Cgroups:
    """The cgroups of the children of this process. `base` contains them; it is None before the first child."""

    def __init__(self) -> None:
        self.base: Path | None = None
        os.register_at_fork(after_in_child=self._drop)

    def place(self, agent: str, attempt: str, pid: int, limits: Limits | None) -> Cgroup | None:
        """Put a child in a cgroup of its own. Return None if that is not possible here.

        Raise AgentError if the agent has limits that cannot be set.
        """
        folder: Path | None = None
        try:
            base = self.base or self._prepare()
            base.mkdir(exist_ok=True)  # a guard that ended has removed it
            if limits is not None:
                self._enable(base, limits)
            folder = base / attempt.replace("/", "-")
            folder.mkdir(exist_ok=True)
            if limits is not None:
                set_limits(folder, limits)
            cgroup = Cgroup(folder / str(pid))
            cgroup.path.mkdir()
            (cgroup.path / "cgroup.procs").write_text(str(pid))
        except (OSError, Unusable) as problem:
            if folder is not None:
                remove_empty(folder)
            if limits is not None:
                why = problem.strerror if isinstance(problem, OSError) else problem
                raise AgentError(f"the limits of agents.{agent} cannot be set: {why}") from problem
            return None
        return cgroup

    def _prepare(self) -> Path:
        """Make the cgroup for the children of this process."""
        base = find_usable(find_own(os.getpid())) / make_name(os.getpid())
        guard.watch_cgroup(str(base))
        self.base = base
        return base

    def _enable(self, base: Path, limits: Limits) -> None:
        """Let the kernel apply limits below `base`. Move this process out of the way if the kernel needs that."""
        wanted = [name for name in CONTROLLERS if getattr(limits, name) is not None]
        for folder in (base.parent, base):
            missing = set(wanted) - set(_read(folder / "cgroup.subtree_control").split())
            if not missing:
                continue
            if folder != base:
                for name in sorted(missing):
                    if problem := find_limit_problem(folder, name, os.getpid()):
                        raise Unusable(problem)
                _step_aside(folder)
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(missing)))

    def remove(self) -> None:
        """Remove the cgroup of this process's children if it is empty."""
        if self.base is not None:
            with suppress(OSError):
                self.base.rmdir()

    def _drop(self) -> None:
        """Forget the cgroup in a fork of this process, which has no children."""
        self.base = None


cgroups = Cgroups()
atexit.register(cgroups.remove)


def set_limits(folder: Path, limits: Limits) -> None:
    """Write the limits of an attempt. With a limit of memory, its programs cannot use swap instead."""
    if limits.memory is not None:
        (folder / "memory.max").write_text(str(limits.memory))
        if (folder / "memory.swap.max").exists():
            (folder / "memory.swap.max").write_text("0")
    if limits.pids is not None:
        (folder / "pids.max").write_text(str(limits.pids))


def _step_aside(own: Path) -> None:
    """Move the processes of midwatch to a cgroup of their own, because `own` must not contain processes."""
    if not (own / "cgroup.type").exists():
        return  # the root of all cgroups may contain processes
    server = own / f"{make_name(os.getpid())}{SERVER}"
    server.mkdir(exist_ok=True)
    for pid in _list_processes(own):
        with suppress(ProcessLookupError):
            (server / "cgroup.procs").write_text(str(pid))


# -- what is possible here -----------------------------------------------------------------------------------------


def find_own(pid: int) -> Path | None:
    """Return the directory of the cgroup of a process, or None if the system has no cgroup v2."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
        place = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        for mount in (PROC / "self" / "mountinfo").read_text().splitlines():
            before, _, after = mount.partition(" - ")
            root, point = before.split()[3:5]
            inside = f"{place}/".startswith(f"{root.rstrip('/')}/") and not place.startswith("/..")
            if after.startswith("cgroup2 ") and inside:
                own = Path(point, place.removeprefix(root.rstrip("/")).lstrip("/"))
                return own.parent if own.name.endswith(SERVER) else own
    except (OSError, StopIteration):
        return None
    return None


def is_in_cgroup_of_child(pid: int) -> bool:
    """Return whether a process is in the cgroup of a child of any midwatch process."""
    places = (line.removeprefix("0::") for line in _read(PROC / str(pid) / "cgroup").splitlines() if line[:3] == "0::")
    return any(NAME.fullmatch(part) for place in places for part in place.split("/"))


def find_usable(own: Path | None) -> Path:
    """Return `own` if cgroups can be made in it. Raise Unusable with the reason if not."""
    if own is None:
        raise Unusable("this system has no cgroup v2")
    if not (os.access(own, os.W_OK) and os.access(own / "cgroup.procs", os.W_OK)):
        raise Unusable(f"midwatch may not write to its cgroup {own}; {SWITCH}")
    probe = own / f"{make_name(os.getpid())}.probe"
    probe.mkdir(exist_ok=True)
    try:
        if not (probe / "cgroup.kill").exists():
            raise Unusable("the kernel has no cgroup.kill; Linux 5.14 or newer has it")
        if _read(probe / "cgroup.type") != "domain":
            raise Unusable(f"the cgroup {own} is only for threads; {SWITCH}")
    finally:
        with suppress(OSError):
            probe.rmdir()
    return own


def find_limit_problem(own: Path, name: str, pid: int) -> str | None:
    """Return why midwatch with the process id `pid` cannot set limits of one controller, or None."""
    if name not in _read(own / "cgroup.controllers").split():
        return f"the cgroup {own} has no controller {name!r}; {SWITCH}, on a system without cgroup v1"
    if name in _read(own / "cgroup.subtree_control").split() or not (own / "cgroup.type").exists():
        return None
    if strangers := [other for other in _list_processes(own) if other != 1 and not _descends(other, pid)]:
        return f"the cgroup {own} also contains processes of others, such as {strangers[0]}; {SWITCH}"
    return None


def _list_processes(own: Path) -> list[int]:
    """Return the processes in a cgroup, without those in the cgroups below it."""
    return [int(pid) for pid in _read(own / "cgroup.procs").split()]


def _descends(pid: int, ancestor: int) -> bool:
    with suppress(OSError, IndexError):
        while pid > 1 and pid != ancestor:
            pid = int(read_stat(pid)[1])
    return pid == ancestor


# -- names and leftovers -------------------------------------------------------------------------------------------


def make_name(pid: int) -> str:
    """Return the name of the cgroup of a midwatch process, which no other process ever has on this machine.

    The name contains the namespace of the process id, because a container may use the same number.
    """
    return f"midwatch-{(PROC / 'self' / 'ns' / 'pid').stat().st_ino}-{pid}-{read_stat(pid)[19].decode()}"


async def remove_leftovers() -> None:
    """Kill the programs of midwatch processes that have died, and remove their cgroups."""
    own = find_own(os.getpid())
    if own is None:
        return
    for folder in own.glob("midwatch-*"):
        found = NAME.match(folder.name)
        if found is None or found[0] == _find_name(int(found[2])) or not _is_near(found[1]):
            continue
        if not folder.name.endswith(SERVER):
            await end_cgroup(folder)
        elif not list_cgroup(folder):
            with suppress(OSError):
                folder.rmdir()


def _find_name(pid: int) -> str | None:
    try:
        return make_name(pid)
    except (OSError, IndexError):
        return None


def _is_near(namespace: str) -> bool:
    return namespace == str((PROC / "self" / "ns" / "pid").stat().st_ino)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _read_figures(file: Path) -> dict[str, int]:
    """Return the figures of a file with a name and a number in each line."""
    pairs = (line.split() for line in _read(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
