"""Sandboxes: limits on what a child can read and write, set by bubblewrap or by another program that starts the child.

In a sandbox of bubblewrap, the file system is read-only. The user's home, midwatch's home, /tmp and /run look empty,
and other processes are invisible. The agent gets access to what it needs: its working directory, the state of its
program, the program itself, and the repository of the working directory. The configuration and the hooks of the
repository stay read-only, because they name programs that run outside of the sandbox. The network is not limited.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from midwatch.base.errors import BadConfig, Conflict
from midwatch.base.files import read_regular

DEAF = 'trap "" INT TERM HUP; exec "$@"'
HEARING = ("env", "--default-signal=INT,TERM,HUP")
"""Commands before bubblewrap and before the program: bubblewrap ignores signals, and the program does not.

So the program in the sandbox gets the signals and can end cleanly. bubblewrap ends when the program has ended.
"""
APART = (
    "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL",
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
)  # fmt: skip
EMPTY = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - as mount points
RESOLVERS = ("/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf")
"""Directories in /run where some systems keep the configuration of DNS; a sandbox shows them."""
IDENTITY = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes")
"""Files of the user's home that git needs for a commit; a sandbox shows them read-only."""
STATE: Mapping[str, tuple[str, ...]] = {
    "claude": (".claude", ".claude.json", ".config/claude", ".cache/claude"),
    "codex": (".codex",),
    "copilot": (".copilot",),
    "gemini": (".gemini",),
    "goose": (".config/goose", ".local/share/goose", ".local/state/goose"),
    "opencode": (".config/opencode", ".local/share/opencode", ".local/state/opencode", ".cache/opencode"),
    "qwen": (".qwen",),
}
"""The paths in the user's home where known agent programs keep their sign-in and their conversations, by program."""
OURS = "MIDWATCH_"
OBEYED = re.compile(r"PATH$|LD_|GLIBC_|GCONV_|MALLOC_|LOCPATH$|NLSPATH$|BASH|SHELLOPTS$|PS4$|ENV$|IFS$|.*\W")
"""Environment variables with which a loader or a shell runs other code."""
TRY_SECONDS = 20.0
WORKING: set[str] = set()  # the bubblewrap programs that were tried with success


class Repository(NamedTuple):
    """The directories of a git repository that a commit writes to."""

    top: Path
    common: Path
    admin: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The sandbox for the programs of one agent. If `prefix` is set, it is a command that sets all limits itself."""

    agent: str
    home: str  # the home of midwatch
    prefix: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    root: str | None = None  # the writable directory; if None, the working directory

    def admit_program(self, program: str, search: str, root: str, *more: str) -> Sandbox:
        """Return a copy of the sandbox that admits one program of the agent.

        The files of the program and `more` are readable, its state is writable, and the programs that it starts in
        `root` have the same limits.
        """
        home = _home()
        hidden = (home, *map(Path, EMPTY))
        needed = (*_find_program(program, search), *(Path(path).resolve() for path in more))
        read = (str(path) for path in needed if any(path.is_relative_to(directory) for directory in hidden))
        state = (str(home / name) for name in _list_state(program))
        return replace(self, read=(*self.read, *read), write=(*self.write, *state), root=root)

    def command(
        self, argv: tuple[str, ...], workdir: str, env: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command line that starts `argv` in the sandbox, and the environment for this command line.

        An agent may set variables that change how a loader or a shell works. Only the program in the sandbox gets such
        variables; the programs that build the sandbox do not, because they run outside of the sandbox.
        """
        inner = {name: value for name, value in env.items() if OBEYED.match(name) and os.environ.get(name) != value}
        outer = {name: value for name, value in env.items() if name not in inner}
        if "PATH" in inner:  # an agent's PATH could replace the programs that build the sandbox
            outer["PATH"] = os.environ.get("PATH", os.defpath)
        assignments = tuple(f"{name}={value}" for name, value in inner.items())
        if self.prefix:
            prefix = tuple(part.replace("{workdir}", workdir) for part in self.prefix)
            return (*prefix, *(("env", *assignments) if assignments else ()), *argv), outer
        real_dir = str(Path(workdir).resolve())
        mounts = [word for mount in self._mounts(self.root or real_dir) for word in mount]
        bwrap = (_find_bwrap() or "bwrap", *APART, *mounts, "--chdir", real_dir, "--", *HEARING, *assignments, *argv)
        return ("/bin/sh", "-c", DEAF, "midwatch-sandbox", *bwrap), outer

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return `env` without the variables of midwatch's own settings, which may contain a password."""
        own = {name: value for name, value in env.items() if not name.startswith(OURS) and name != "XDG_RUNTIME_DIR"}
        return own if self.prefix else {**own, "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own

    def problem(self, workdir: str) -> str | None:
        """Return the reason why no program can be started in the sandbox, or None."""
        setting = f"agents.{self.agent}.sandbox"
        if self.prefix:
            missing = shutil.which(self.prefix[0]) is None
            return f"program {self.prefix[0]!r} of {setting} is missing; install or replace it" if missing else None
        program = _find_bwrap()
        if program is None:
            return f'bubblewrap is missing; install it (package bubblewrap), or write {setting} = "none"'
        directory, home = Path(self.root or workdir).resolve(), _home()
        for hidden, whose in ((home, "your home"), (Path(self.home).resolve(), "midwatch's home")):
            if hidden == directory or (hidden == home and directory in home.parents):
                return f"{directory} contains {whose}, which a sandbox hides; choose another working directory"
        if why := _try_sandbox(program):
            return f'no sandbox can be made here ({why}); allow user namespaces, or write {setting} = "none"'
        return None

    def _mounts(self, root: str) -> Iterator[tuple[str, ...]]:
        """Yield the mount options of bubblewrap, outer directories first: a later mount covers an earlier mount."""
        home, own = _home(), Path(self.home).resolve()
        mounts: dict[Path, tuple[str, ...]] = {Path(path): ("--tmpfs", path) for path in EMPTY if Path(path).is_dir()}
        mounts |= {path: ("--tmpfs", str(path)) for path in (home, own)}
        for path in (*map(Path, RESOLVERS), *(home / name for name in IDENTITY), *map(_absolute, self.read)):
            mounts.setdefault(path, ("--ro-bind-try", str(path), str(path)))
        for path in map(_absolute, self.write):
            if path not in (home, own):
                mounts[path] = ("--bind-try", str(path), str(path))
        directory = Path(root).resolve()
        repository = find_repository(directory)
        if repository is not None and (repository.top == home or repository.top in home.parents):
            repository = None  # a repository of the home itself stays hidden
        if repository is not None and repository.top.is_relative_to(own):
            directory = repository.top  # an agent may write its whole worktree
        if repository is not None:  # the whole checkout, because hidden files would be committed as deleted
            mounts[repository.top] = ("--ro-bind", str(repository.top), str(repository.top))
            mounts |= _mount_git(repository)
        mounts[directory] = ("--bind", str(directory), str(directory))
        for path in sorted(mounts, key=lambda path: len(path.parts)):
            yield mounts[path]


def find_repository(directory: Path) -> Repository | None:
    """Return the repository that contains the directory, or None.

    An agent may have written the `.git` file of a worktree. So that file is used only if the repository that it names
    lists this worktree.
    """
    top = next((folder for folder in (directory, *directory.parents) if os.path.lexists(folder / ".git")), None)
    if top is None:
        return None
    link = top / ".git"
    if link.is_dir():
        return Repository(top, link, link) if link.resolve() == link else None
    try:
        admin = (top / os.fsdecode(read_regular(link, 8192)).removeprefix("gitdir:").strip()).resolve(strict=True)
        back = Path(os.fsdecode(read_regular(admin / "gitdir", 8192)).strip())
    except (OSError, ValueError, Conflict):
        return None
    common = admin.parent.parent
    believed = admin.parent.name == "worktrees" and back.parent.resolve() == top and (common / "objects").is_dir()
    return Repository(top, common, admin) if believed else None


def _mount_git(repository: Repository) -> dict[Path, tuple[str, ...]]:
    """Return the mounts for the directories of a repository that a commit writes to, by path.

    Files that name programs to run stay read-only, even if such a file does not exist yet.
    """
    common, hooks = repository.common, repository.common / "hooks"
    mounts: dict[Path, tuple[str, ...]] = {common: ("--bind", str(common), str(common))}
    files = [common / "config", common / "config.worktree", repository.admin / "config.worktree"]
    if repository.admin != common:  # these files redirect git to another config
        files += [repository.admin / "commondir", repository.admin / "gitdir"]
        for folder in (repository.admin.parent, repository.admin):  # mounts of their own cannot be moved away
            mounts[folder] = ("--bind", str(folder), str(folder))
    for file in files:
        mounts[file] = ("--ro-bind-try", str(file), str(file))
    empty = ("--tmpfs", str(hooks), "--remount-ro", str(hooks))
    mounts[hooks] = ("--ro-bind", str(hooks), str(hooks)) if hooks.is_dir() else empty
    return mounts


def _list_state(program: str) -> tuple[str, ...]:
    name = Path(program).name
    return next((paths for known, paths in STATE.items() if name == known or name.startswith(f"{known}-")), ())


def _find_program(program: str, search: str) -> Iterator[Path]:
    """Yield the directories that a program needs: its own, and the directory that contains its `bin`."""
    found_at = shutil.which(program, path=search)
    if found_at is None:
        return
    for path in (Path(found_at).absolute(), Path(found_at).resolve()):
        yield path.parent
        prefix = next((parent.parent for parent in path.parents if parent.name in ("bin", "node_modules")), None)
        if prefix is not None and prefix.name != ".local" and prefix != _home():
            yield prefix


def _home() -> Path:
    return Path.home().resolve()


def _absolute(path: str) -> Path:
    return Path(path).expanduser().resolve()


def _find_bwrap() -> str | None:
    """Find bubblewrap on midwatch's own PATH, because an agent's PATH could name another program."""
    return shutil.which("bwrap")


def _try_sandbox(program: str) -> str | None:
    """Try to make a sandbox, and return the reason why that fails, or None. Only success is remembered."""
    if program in WORKING:
        return None
    command = (program, *APART, "--", *HEARING, "true")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return type(problem).__name__
    if done.returncode == 0:
        WORKING.add(program)
        return None
    return next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")


def build_sandbox(
    agent: str, wanted: str | list[str], home: str, *, write: list[str], read: list[str]
) -> Sandbox | None:
    """Return the sandbox of an agent from its settings in `[agents.NAME]`, or None if it has no sandbox.

    Raise BadConfig for invalid settings.
    """
    if wanted != "bwrap" and (write or read):
        raise BadConfig(f'agents.{agent}: `sandbox_paths` and `sandbox_read` also need `sandbox = "bwrap"`.')
    if wanted == "none":
        return None
    if isinstance(wanted, list):
        return Sandbox(agent=agent, home=home, prefix=tuple(wanted))
    own = Path(home).resolve()
    for name, paths in (("sandbox_paths", write), ("sandbox_read", read)):
        for path in paths:
            if _absolute(path) == _home():
                raise BadConfig(f"agents.{agent}.{name}: a sandbox always hides {path!r}; name paths inside of it.")
            if _absolute(path).is_relative_to(own):
                raise BadConfig(f"agents.{agent}.{name}: a sandbox always hides midwatch's home; remove {path!r}.")
    return Sandbox(agent=agent, home=home, write=tuple(write), read=tuple(read))
