"""Sandboxes: limits on what a child can read and write, set by bubblewrap or by another program that starts the child.

In a sandbox of bubblewrap, the file system is read-only. The user's home, midwatch's home, /tmp and /run look empty,
and other processes are invisible. The agent gets access to what it needs: its working directory, the state of its
program, the program itself, and the repository of the working directory. Nothing that the agent can write there names
programs which run outside of the sandbox: the repository is read-only except for what a commit in a worktree needs, and
so are the settings of the agent's program. The network is not limited, or leads nowhere, or leads to a proxy of
midwatch.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from midwatch.base.directories import expand_user
from midwatch.base.errors import BadConfig, Conflict
from midwatch.base.files import read_regular
from midwatch.programs.egress import READABLE, read_target
from midwatch.programs.state import NO_STATE, ProgramState, find_state

DEAF = 'trap "" INT TERM HUP; exec "$@"'
HEARING = ("env", "--default-signal=INT,TERM,HUP")
"""Commands before bubblewrap and before the program: bubblewrap ignores signals, and the program does not.

So the program in the sandbox gets the signals and can end cleanly. bubblewrap ends when the program has ended.
"""
APART = (
    "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL",
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys",
)  # fmt: skip
"""Options of bubblewrap that every sandbox has. Without the last one, root could change the kernel's settings."""
EMPTY = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - as mount points
RESOLVERS = ("/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf")
"""Directories in /run where some systems keep the configuration of DNS; a sandbox shows them."""
IDENTITY = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes")
"""Files of the user's home that git needs for a commit; a sandbox shows them read-only."""
GIT_SETTINGS = {"gc.auto": "0", "maintenance.auto": "false", "fetch.unpackLimit": "1000000"}
"""Settings for git in a sandbox, where git cannot write packs and cannot clean up."""
GIT_FILE_LIMIT = 10_000  # bytes of a file that names a directory
SHOWN = Path("/run/midwatch/home")  # where a sandbox shows the settings of a program, before they are copied
REPLACED = "midwatch: the working directory or its repository was replaced while the sandbox was made; try again"
OURS = "MIDWATCH_"
OBEYED = re.compile(r"PATH$|LD_|GLIBC_|GCONV_|MALLOC_|LOCPATH$|NLSPATH$|BASH|SHELLOPTS$|PS4$|ENV$|IFS$|.*\W")
"""Environment variables with which a loader or a shell runs other code."""
TRY_SECONDS = 20.0
WORKING: set[tuple[str, ...]] = set()  # the commands of bubblewrap that were tried with success
Network = Literal["open", "none", "proxy"]


class Repository(NamedTuple):
    """The directories of a git repository. In a main checkout, `common` and `admin` are the same directory."""

    top: Path
    common: Path
    admin: Path


@dataclass(frozen=True, slots=True)
class Plan:
    """What bubblewrap mounts, by path, and which directories it must find there."""

    mounts: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    identities: dict[Path, str] = field(default_factory=dict)

    def hide(self, path: Path) -> None:
        """Put an empty directory at a path."""
        self.mounts[path] = ("--tmpfs", str(path))

    def show(self, path: Path) -> None:
        """Make a path readable, if it exists."""
        self.mounts[path] = ("--ro-bind-try", str(path), str(path))

    def bind(self, path: Path, *, at: Path | None = None, write: bool = False) -> None:
        """Mount a path of a directory that an agent may have written. Raise Conflict if a part of it is a link."""
        place = at or path
        self.mounts[place] = ("--bind" if write else "--ro-bind", str(path), str(place))
        self.identities[place] = _identify(path)

    def words(self) -> list[str]:
        """Return the options of bubblewrap, outer directories first: a later mount covers an earlier mount."""
        return [word for path in sorted(self.mounts, key=lambda path: len(path.parts)) for word in self.mounts[path]]

    def start(self, *, copied: bool) -> tuple[str, ...]:
        """Return the command that starts the program in the sandbox.

        First it checks that the mounted directories are those that midwatch has looked at, because an agent could
        replace a directory by a link in between. With `copied`, it then copies the settings of the program.
        """
        found = f'"$(stat -c %d:%i -- {shlex.join(map(str, self.identities))})"'
        wanted = shlex.quote("\n".join(self.identities.values()))
        script = f"[ {found} = {wanted} ] || {{ echo {shlex.quote(REPLACED)} >&2; exit 125; }}; "
        if copied:
            script += f"cp -R {shlex.quote(str(SHOWN))}/. {shlex.quote(str(_home()))} || exit 125; "
        return ("/bin/sh", "-c", f'{script}exec "$@"', "midwatch-start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The sandbox for the programs of one agent. If `prefix` is set, it is a command that sets all limits itself."""

    agent: str
    home: str  # the home of midwatch
    prefix: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    state: ProgramState = NO_STATE
    root: str | None = None  # the writable directory; if None, the working directory
    network: Network = "open"
    hosts: tuple[str, ...] = ()  # the hosts that the proxy connects to

    @property
    def _apart(self) -> tuple[str, ...]:
        return APART if self.network == "open" else (*APART, "--unshare-net")

    def admit_program(self, program: str, search: str, root: str, *more: str) -> Sandbox:
        """Return a copy of the sandbox that admits one program of the agent.

        The files of the program and `more` are readable, its state is writable, and the programs that it starts in
        `root` have the same limits.
        """
        home = _home()
        hidden = (home, *map(Path, EMPTY))
        more = (*more, *READABLE) if self.network == "proxy" else more
        needed = (*_find_program(program, search), *(Path(path).resolve() for path in more))
        read = (str(path) for path in needed if any(path.is_relative_to(directory) for directory in hidden))
        return replace(self, read=(*self.read, *read), state=find_state(program), root=root)

    def command(
        self, argv: tuple[str, ...], workdir: str, env: Mapping[str, str], directory: int | None = None
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command line that starts `argv` in the sandbox, and the environment for this command line.

        This reads files and may block, so call it in a thread. Raise Conflict if an agent has put a link or something
        else where the sandbox needs a directory or a file.

        An agent may set variables that change how a loader or a shell works. Only the program in the sandbox gets such
        variables; the programs that build the sandbox do not, because they run outside of the sandbox. If `directory`
        is set, it is a descriptor of the working directory, and the program starts only in this directory.
        """
        inner = {name: value for name, value in env.items() if OBEYED.match(name) and os.environ.get(name) != value}
        outer = {name: value for name, value in env.items() if name not in inner}
        if "PATH" in inner:  # an agent's PATH could replace the programs that build the sandbox
            outer["PATH"] = os.environ.get("PATH", os.defpath)
        assignments = tuple(f"{name}={value}" for name, value in inner.items())
        if self.prefix:
            prefix = tuple(part.replace("{workdir}", workdir) for part in self.prefix)
            return (*prefix, *(("env", *assignments) if assignments else ()), *argv), outer
        real_dir = Path(workdir).resolve()
        plan, copied = self._plan(Path(self.root or real_dir).resolve())
        if directory is not None:
            plan.identities[real_dir] = _describe(os.fstat(directory))
        bwrap = (_find_bwrap() or "bwrap", *self._apart, *plan.words(), "--chdir", str(real_dir), "--")
        start = (*plan.start(copied=copied), *HEARING, *assignments)
        return ("/bin/sh", "-c", DEAF, "midwatch-sandbox", *bwrap, *start, *argv), _add_git_settings(outer)

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
                return f"{directory} is or contains {whose}, which a sandbox hides; choose another working directory"
        if any(map(_is_git_directory, (directory, *directory.parents))):
            return f"{directory} is in a git directory, which a sandbox protects; choose another working directory"
        if why := _try_sandbox(program, *self._apart):
            return f'no sandbox can be made here ({why}); allow user namespaces, or write {setting} = "none"'
        return None

    def _plan(self, directory: Path) -> tuple[Plan, bool]:
        """Return the mounts of a sandbox that may write `directory`, and whether files of the home must be copied."""
        home, own = _home(), Path(self.home).resolve()
        repository = find_repository(directory)
        if repository is not None and (repository.top == home or repository.top in home.parents):
            repository = None  # a repository of the home itself stays hidden
        if repository is not None and repository.top.is_relative_to(own):
            directory = repository.top  # an agent may write its whole worktree
        plan = Plan()
        for path in (*(Path(path) for path in EMPTY if Path(path).is_dir()), home, own):
            plan.hide(path)
        written = [path for path in self._list_paths(self.write, directory) if path not in (home, own)]
        read = [path for path in self._list_paths(self.read, directory) if path not in plan.mounts]
        for path in (*map(Path, RESOLVERS), *(home / name for name in IDENTITY), *read):
            plan.show(path)
        copied = _mount_state(plan, self.state, home, (directory, *written, *read))
        if repository is not None:  # the whole checkout, because hidden files would be committed as deleted
            plan.bind(repository.top)
            if repository.common not in written:
                _mount_git(plan, repository)
        plan.bind(directory, write=True)
        for path in written:
            if path.exists():
                plan.bind(path, write=True)
        return plan, copied

    def _list_paths(self, paths: tuple[str, ...], directory: Path) -> Iterator[Path]:
        """Yield the real paths of `paths`, without links that an agent may have made to lead out of its directories."""
        writable = (directory, *map(_absolute, self.write))
        for path in paths:
            parents, real = Path(path).expanduser().absolute().parents, _absolute(path)
            above = [folder for folder in writable if any(p.resolve().is_relative_to(folder) for p in parents)]
            if all(real.is_relative_to(folder) for folder in above):
                yield real


def find_repository(directory: Path) -> Repository | None:
    """Return the repository that contains the directory, or None. This reads files, so call it in a thread.

    An agent may have written the `.git` file of a worktree. So that file is used only if the repository that it names
    is outside of the worktree and lists this worktree.
    """
    top = next((folder for folder in (directory, *directory.parents) if os.path.lexists(folder / ".git")), None)
    if top is None:
        return None
    link = top / ".git"
    if link.is_dir():
        return Repository(top, link, link) if link.resolve() == link else None
    try:
        admin = (top / _read_line(link).removeprefix("gitdir:").strip()).resolve(strict=True)
        common, back = (admin / _read_line(admin / "commondir")).resolve(), admin / _read_line(admin / "gitdir")
        listed = back.name == ".git" and back.parent.resolve() == top
    except (OSError, ValueError, RuntimeError, Conflict):  # RuntimeError: links that lead to each other
        return None
    outside = not common.is_relative_to(top) and common / "worktrees" == admin.parent
    return Repository(top, common, admin) if listed and outside and _is_git_directory(common) else None


def _read_line(file: Path) -> str:
    return os.fsdecode(read_regular(file, GIT_FILE_LIMIT)).strip()


def _is_git_directory(path: Path) -> bool:
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


def _mount_git(plan: Plan, repository: Repository) -> None:
    """Mount a repository read-only, except for what a commit in a worktree needs.

    Other worktrees are hidden. git writes its logs through links, and it reads other directories of objects and other
    versions of objects if some files tell it so. So the logs are those of the worktree, and such files are read-only.
    A commit in the main checkout would need more: an agent that can create files in `.git` can redirect git.
    """
    top, common, admin = repository
    plan.bind(common)
    if admin == common:
        return
    plan.bind(top / ".git")
    for folder in (admin / "logs", common / "logs"):
        folder.mkdir(exist_ok=True)
    for folder in (common / "objects", common / "refs", admin / "logs"):
        plan.bind(folder, write=True)
    if (common / "reftable").is_dir():  # the format of newer repositories for refs
        plan.bind(common / "reftable", write=True)
    for folder in (common / "objects" / "info", common / "objects" / "pack", common / "refs" / "replace"):
        folder.mkdir(exist_ok=True)
        plan.bind(folder)
    plan.bind(admin / "logs", at=common / "logs", write=True)
    plan.bind(admin, write=True)
    plan.hide(admin.parent)
    plan.mounts[admin] += ("--remount-ro", str(admin.parent))
    for file in (admin / "logs" / "HEAD", admin / "config.worktree"):
        with suppress(FileExistsError):
            file.touch(0o644, exist_ok=False)
    plan.bind(admin / "logs" / "HEAD", write=True)
    for name in ("commondir", "gitdir", "config.worktree"):
        plan.bind(admin / name)


def _mount_state(plan: Plan, state: ProgramState, home: Path, covered: tuple[Path, ...]) -> bool:
    """Mount the state of a program, without paths in `covered`. Return whether there are files to copy."""
    copied = False
    for name in (*state.kept, *state.private, *state.shown):
        path = home / name
        if any(path.is_relative_to(folder) for folder in covered):
            continue
        if name in state.kept or name in state.private:
            if name.endswith("/"):
                with suppress(OSError):
                    path.mkdir(0o700, parents=True, exist_ok=True)
            plan.mounts[path] = ("--bind-try", str(path), str(path))
            if name in state.private:
                plan.hide(path)
        elif name.endswith("/"):
            plan.show(path)
        elif path.is_file():
            plan.mounts[SHOWN / name] = ("--ro-bind", str(path), str(SHOWN / name))
            copied = True
    return copied


def _identify(path: Path) -> str:
    """Return the device and the number of a file or directory.

    Raise Conflict if it is a FIFO or does not exist, or if a part of its path is a link.
    """
    here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        for part in path.parts[1:]:
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        found = os.fstat(here)
    except OSError as problem:
        raise Conflict(
            f"{path} cannot be used in a sandbox ({problem.strerror}); look at it, then try again."
        ) from None
    finally:
        os.close(here)
    if stat.S_ISLNK(found.st_mode) or stat.S_ISFIFO(found.st_mode):
        raise Conflict(f"{path} is a link or a FIFO; look at it, remove it, then try again.")
    return _describe(found)


def _describe(found: os.stat_result) -> str:
    """Return the device and the number of a file, as `stat -c %d:%i` prints them."""
    return f"{found.st_dev}:{found.st_ino}"


def _add_git_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the settings for git in a sandbox, after the settings that `env` has already."""
    count = env.get("GIT_CONFIG_COUNT", "0")
    if not count.isdecimal():
        return dict(env)
    added = {"GIT_CONFIG_COUNT": str(int(count) + len(GIT_SETTINGS))}
    for number, (name, value) in enumerate(GIT_SETTINGS.items(), int(count)):
        added |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return {**env, **added}


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


def _try_sandbox(program: str, *options: str) -> str | None:
    """Try to make a sandbox, and return the reason why that fails, or None. Only success is remembered."""
    command = (program, *(options or APART), "--", *HEARING, "true")
    if command in WORKING:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return type(problem).__name__
    if done.returncode == 0:
        WORKING.add(command)
        return None
    return next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")


def build_sandbox(
    agent: str,
    wanted: str | list[str],
    home: str,
    *,
    write: list[str],
    read: list[str],
    network: Network = "open",
    hosts: Sequence[str] = (),
) -> Sandbox | None:
    """Return the sandbox of an agent from its settings in `[agents.NAME]`, or None if it has no sandbox.

    Raise BadConfig for invalid settings.
    """
    if wanted != "bwrap" and (write or read):
        raise BadConfig(f'agents.{agent}: `sandbox_paths` and `sandbox_read` also need `sandbox = "bwrap"`.')
    _check_network(agent, wanted, network, hosts)
    if wanted == "none":
        return None
    if isinstance(wanted, list):
        return Sandbox(agent=agent, home=home, prefix=tuple(wanted))
    own = Path(home).resolve()
    for name, paths in (("sandbox_paths", write), ("sandbox_read", read)):
        for path in paths:
            real = expand_user(path, f"agents.{agent}.{name}").resolve()
            if real == _home():
                raise BadConfig(f"agents.{agent}.{name}: a sandbox always hides {path!r}; name paths inside of it.")
            if real.is_relative_to(own):
                raise BadConfig(f"agents.{agent}.{name}: a sandbox always hides midwatch's home; remove {path!r}.")
    return Sandbox(agent=agent, home=home, write=tuple(write), read=tuple(read), network=network, hosts=tuple(hosts))


def _check_network(agent: str, wanted: str | list[str], network: Network, hosts: Sequence[str]) -> None:
    if network != "open" and wanted != "bwrap":
        raise BadConfig(f'agents.{agent}.network: {network!r} also needs `sandbox = "bwrap"`.')
    if hosts and network != "proxy":
        raise BadConfig(f'agents.{agent}.network_hosts: the list also needs `network = "proxy"`.')
    for host in hosts:
        try:
            read_target(host)
        except ValueError as problem:
            raise BadConfig(f"agents.{agent}.network_hosts: {problem}; correct it.") from None
