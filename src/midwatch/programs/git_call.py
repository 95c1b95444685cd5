"""Calls of the git program, in which nothing runs that an agent could have written.

Three measures protect every call. Git gets all directories of the repository explicitly, so that it reads no file that
names another repository. Every program that git could start is switched off: hooks, filters, merge drivers, monitors,
editors, signing programs, protocols. And where bubblewrap works, git runs in a sandbox of its own: without network,
without the user's home and midwatch's home, and with a read-only file system except for what the call has to write.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from midwatch.base.errors import Conflict
from midwatch.programs.sandbox import APART, EMPTY, IDENTITY, WORKING

QUICK, LONG = 60.0, 900.0  # timeout in seconds of a call that reads, and of one that writes many files
TRY_SECONDS = 20.0
OUTPUT_LIMIT = 5_000_000
ERROR_LIMIT = 20_000
LIMITED = 'ulimit -d 2097152 2>/dev/null; exec "$@"'
"""Limits the memory of git to 2 GB, because a file that an agent wrote may be endless."""
CHECKED = """
[ "$(stat -Lc %d:%i -- "$GIT_COMMON_DIR" "$GIT_DIR" "${GIT_WORK_TREE:-$GIT_DIR}")" = "$1" ] || exit 97
shift; ulimit -d 2097152 2>/dev/null; exec "$@"
"""
"""The same in a sandbox. Before that, the directories in the sandbox are compared with those that midwatch has checked.

An agent could have replaced a directory by a symbolic link to a repository that it cannot read.
"""
REPLACED = 97  # the exit code of `CHECKED` for a directory that was replaced
OFF = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.pager=cat", "core.editor=:", "sequence.editor=:",
    "core.askPass=:", "core.sshCommand=false", "core.splitIndex=false", "core.quotePath=false", "credential.helper=",
    "protocol.allow=never", "commit.gpgSign=false", "tag.gpgSign=false", "merge.verifySignatures=false",
    "gpg.program=false", "gpg.ssh.program=false", "gpg.x509.program=false", "commit.verbose=false",
    "commit.status=false", "merge.autoStash=false", "submodule.recurse=false", "fetch.recurseSubmodules=false",
    "diff.ignoreSubmodules=dirty", "diff.submodule=short", "status.submoduleSummary=false", "color.ui=false",
    "gc.auto=0", "maintenance.auto=false", "advice.addEmbeddedRepo=false",
)  # fmt: skip
VARIABLES = {
    "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": ":", "GIT_SEQUENCE_EDITOR": ":", "GIT_ASKPASS": ":",
    "GIT_MERGE_AUTOEDIT": "no", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1",
}  # fmt: skip
BUILT_IN_MERGE = "git merge-file --quiet --marker-size=%L %A %O %B"
"""The command with which git merges a file as it does without a merge driver; git cannot be told to use no driver."""
OWN_NAME = re.compile(r"GIT_(AUTHOR|COMMITTER)_|GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)$")
"""Git's variables for the user's name and settings. Others are removed: they could name another repository."""
NEEDED = re.compile(r"(PATH|HOME|USER|LOGNAME|EMAIL|TZ|XDG_CONFIG_HOME|LD_LIBRARY_PATH)$")
"""The other variables that git needs. The rest may contain passwords, and a filter could read them."""
SETTINGS = ("config", "config.worktree", "commondir", "hooks", "info", "modules", "worktrees")
"""Names in the directory of a repository that make git run programs. They stay read-only while git writes."""
AS_ROOT = ("--cap-add", "CAP_DAC_OVERRIDE", "--cap-add", "CAP_FOWNER")
"""With these rights a desk that runs as root can use repositories of other users."""
BOXES: dict[str, tuple[str, ...]] = {}  # the options with which a bubblewrap program made a sandbox


class GitOutput(NamedTuple):
    """The exit code and the output of a git call. `cut` is set if the output was longer than the limit of the call."""

    code: int
    out: bytes
    err: str
    cut: bool = False

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def why(self) -> str:
        """The line of git's error output that says why the call failed."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        first = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "")
        return re.sub(r"^(fatal|error): ", "", first).rstrip(".") or f"exit code {self.code}"

    def check(self, what: str) -> GitOutput:
        """Return the output, or raise Conflict if the call failed. `what` says what was tried."""
        if self.code and not self.cut:
            if "tell me who you are" in self.err or "empty ident name" in self.err:
                raise Conflict(
                    "git does not know your name; set `user.name` and `user.email` with `git config --global`."
                )
            raise Conflict(f"{what}: {self.why}.")
        return self


class GitSettings(NamedTuple):
    """What a call needs to know of git's configuration."""

    off: tuple[str, ...] = ()
    """Settings that switch the filters and the merge drivers off."""
    filters: frozenset[str] = frozenset()
    """The names of the filters that are configured and switched off."""
    files: tuple[str, ...] = ()
    """The user's own files with settings for git."""
    hooks: str | None = None
    """The directory of the hooks, if it is not the usual one."""


NO_SETTINGS = GitSettings()


@dataclass(frozen=True, slots=True)
class GitCalls:
    """The calls of git in one checkout.

    `common` is the repository's directory, `admin` the directory in it that belongs to the checkout, and `work` the
    directory of the files. For calls that concern no checkout, `admin` is `common`, and `work` is None.
    """

    program: str
    home: str | None  # the home of midwatch
    common: Path
    admin: Path
    work: Path | None
    identities: str  # the device and inode of each of the three directories
    settings: GitSettings = NO_SETTINGS
    keeps_filters: bool = False
    index: Path | None = None  # a copy of the index, alone in a directory, which git uses instead of the index

    async def run(
        self, *words: str, write: bool = False, also: tuple[Path, ...] = (),
        seconds: float = QUICK, limit: int = OUTPUT_LIMIT, stdin: bytes = b"", hooks: bool = False,
    ) -> GitOutput:  # fmt: skip
        """Run git with the arguments `words`, and return its exit code and its output.

        With `write` git may write to the repository and to the checkout; to the paths `also` it may always write. If
        git writes more than `limit` bytes of output or runs longer than `seconds`, it is stopped. With `hooks` the
        hooks of the repository run, and git runs without a sandbox.
        """
        box = () if hooks else await self._box(write or self.keeps_filters, also)
        return await self._start(self._command(words, box, hooks), words[0], seconds, limit, stdin, hooks)

    async def text(self, *words: str, seconds: float = QUICK) -> str:
        """Run git, and return its output as text, or raise Conflict if git fails."""
        return (await self.run(*words, seconds=seconds)).check(f"git {words[0]} in {self.directory}").text

    async def read_settings(self) -> bytes:
        """Return git's configuration, as `git config` prints it. This starts no program but git.

        The call sees the user's home, because settings may include other files.
        """
        start = await asyncio.to_thread(find_box)
        shown = [path for path in (Path.home(), self.common, self.work) if path is not None]
        mounts = [word for path in shown for word in ("--ro-bind-try", str(path), str(path))]
        box = (*start[:-1], *mounts, start[-1]) if start else ()
        words = ("config", "--null", "--list", "--show-scope", "--show-origin")
        output = await self._start(self._command(words, box), "config", QUICK, OUTPUT_LIMIT)
        output.check(f"the git configuration of {self.directory} cannot be read")
        if output.cut:
            raise Conflict(f"the git configuration of {self.directory} is too large; look at it, then try again.")
        return output.out

    @property
    def directory(self) -> Path:
        """Return the directory in which git runs."""
        return self.work or self.common

    def _command(self, words: tuple[str, ...], box: tuple[str, ...], hooks: bool = False) -> tuple[str, ...]:
        names = [name for name in OFF if not (hooks and name.startswith("core.hooksPath="))]
        options = [word for name in (*names, *self.settings.off) for word in ("-c", name)]
        git = (self.program, "--no-pager", "--no-optional-locks", *options, "-C", str(self.directory), *words)
        if hooks:
            return git
        if box:
            return (*box, "/bin/sh", "-c", CHECKED, "midwatch-git", self.identities, *git)
        return ("/bin/sh", "-c", LIMITED, "midwatch-git", *git)

    def _environment(self, hooks: bool) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items()
            if OWN_NAME.match(name) or NEEDED.match(name) or (hooks and not name.startswith("GIT_"))
        }  # fmt: skip
        own = {"GIT_DIR": self.admin, "GIT_COMMON_DIR": self.common, "GIT_WORK_TREE": self.work}
        own["GIT_INDEX_FILE"] = self.index
        return {**kept, **VARIABLES, **{name: str(path) for name, path in own.items() if path is not None}}

    async def _box(self, write: bool, also: tuple[Path, ...]) -> tuple[str, ...]:
        """Return the beginning of the command line that starts git in its sandbox; it is empty without bubblewrap."""
        start = await asyncio.to_thread(find_box)
        if not start:
            return ()
        mounts = await asyncio.to_thread(lambda: [word for mount in self._mounts(write, also) for word in mount])
        return (*start[:-1], *mounts, start[-1])

    def _mounts(self, write: bool, also: tuple[Path, ...]) -> Iterator[tuple[str, ...]]:
        """Yield the mount options of bubblewrap, outer directories first: a later mount covers an earlier mount."""
        home = Path.home().resolve()
        empty = [home, *([] if self.home is None else [Path(self.home).resolve()]), *map(Path, EMPTY)]
        mounts: dict[Path, tuple[str, ...]] = {
            path: ("--tmpfs", str(path)) for path in empty if path.is_dir() and path != Path("/")
        }
        hidden = (*empty, Path("/dev/shm"))  # noqa: S108 - the sandbox has a /dev of its own
        shown = [*(home / name for name in IDENTITY), *map(Path, self.settings.files), *_find_folders(self.program)]
        read = [path for path in shown if any(path.is_relative_to(folder) and path != folder for folder in hidden)]
        places = [folder for folder in (self.work, self.common) if folder is not None]
        if write:
            read += [self.common / name for name in SETTINGS]
            if self.admin != self.common:
                places.append(self.admin)
                read += [self.admin / name for name in ("config.worktree", "commondir", "gitdir")]
        bind = "--bind" if write else "--ro-bind"
        mounts |= {path: ("--ro-bind-try", str(path), str(path)) for path in read}
        mounts |= {path: (bind, str(path), str(path)) for path in places}
        more = (*also, *([] if self.index is None else [self.index.parent]))
        mounts |= {path: ("--bind", str(path), str(path)) for path in more}
        for path in sorted(mounts, key=lambda path: len(path.parts)):
            yield mounts[path]

    async def _start(
        self, argv: tuple[str, ...], verb: str, seconds: float, limit: int,
        stdin: bytes = b"", hooks: bool = False,
    ) -> GitOutput:  # fmt: skip
        if shutil.which(self.program) is None:
            raise Conflict("git cannot be started (it is not on the PATH); install it, or work without a worktree.")
        try:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/",
                env=self._environment(hooks), start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            raise Conflict(
                f"git cannot be started ({problem.strerror}); correct this, or work without a worktree."
            ) from None
        assert child.stdout and child.stderr
        ended = False
        try:
            async with asyncio.timeout(seconds):
                feed = asyncio.create_task(_feed(child.stdin, stdin))
                (out, cut), (err, _), _ = await asyncio.gather(
                    _read(child.stdout, limit, child.pid), _read(child.stderr, ERROR_LIMIT), feed
                )
                code = await child.wait()
            ended = True
        except TimeoutError:
            raise Conflict(
                f"`git {verb}` in {self.directory} was stopped after {seconds:g} s; try again later."
            ) from None
        finally:
            if not ended:  # something in its group may run on without it, and hold its output open
                _kill(child.pid)
                await child.wait()
        if code == REPLACED:
            raise Conflict(f"a directory of the repository of {self.directory} was replaced; look at it, try again.")
        output = GitOutput(code, out, err.decode("utf-8", "replace"), cut)
        if code and err.startswith(b"bwrap: "):  # git did not run, so its exit code says nothing
            raise Conflict(f"the sandbox of git in {self.directory} cannot be made ({output.why}); try again later.")
        return output


def parse_settings(listed: bytes, allowed: frozenset[str]) -> GitSettings:
    """Return what a call needs to know of the configuration `listed`; the filters `allowed` are not switched off."""
    words = os.fsdecode(listed).split("\0")[:-1]
    filters, drivers, files, hooks = set(), set(), set(), None
    for scope, origin, entry in zip(words[0::3], words[1::3], words[2::3], strict=True):
        key, _, value = entry.partition("\n")
        section, _, rest = key.partition(".")
        name, dot, _ = rest.rpartition(".")
        if section == "filter" and dot:
            filters.add(name)
        elif section == "merge" and dot:
            drivers.add(name)
        elif key == "core.hookspath" and scope != "command":
            hooks = value
        if scope in ("system", "global"):
            files.add(origin.removeprefix("file:"))
            if key in ("core.excludesfile", "core.attributesfile"):
                files.add(os.path.expanduser(value))  # noqa: PTH111 - the value may be empty
    refused = filters - allowed
    if odd := next((name for name in sorted(refused | drivers) if "=" in name), None):
        raise Conflict(f"git's configuration names a filter or merge driver {odd!r}; remove it, or its equals sign.")
    off = [
        f"filter.{name}.{key}" for name in sorted(refused) for key in ("clean=", "smudge=", "process=", "required=0")
    ]
    off += [f"merge.{name}.driver={BUILT_IN_MERGE}" for name in sorted(drivers)]
    absolute = tuple(sorted(name for name in files if name.startswith("/")))
    return GitSettings(tuple(off), frozenset(refused), absolute, hooks)


async def open_calls(
    program: str, home: str | None, filters: frozenset[str], common: Path, admin: Path, work: Path | None = None
) -> GitCalls:
    """Return the calls of git in a checkout, or raise Conflict if one of its directories was replaced."""
    identities = await asyncio.to_thread(_check_directories, common, admin, work or admin)
    plain = GitCalls(program, home, common, admin, work, identities)
    settings = parse_settings(await plain.read_settings(), filters)
    return replace(plain, settings=settings, keeps_filters=bool(filters))


def _check_directories(*directories: Path) -> str:
    """Return the identities of the directories, or raise Conflict if one is missing or leads to another directory."""
    if os.path.lexists(directories[0] / "commondir"):  # git reads the settings elsewhere, but follows it for branches
        raise Conflict(
            f"{directories[0]}/commondir makes git use another repository. git itself does not create this file; look "
            "at its content, then remove the file."
        )
    return "\n".join(map(_identify, directories))


def _identify(directory: Path) -> str:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        raise Conflict(f"{directory} cannot be opened ({problem.strerror}); restore it, then try again.") from None
    try:
        facts = os.fstat(descriptor)
        real = directory.resolve()
        same = real == directory and os.path.samestat(real.lstat(), facts)
    except OSError:
        same = False
    finally:
        os.close(descriptor)
    if not same:
        raise Conflict(f"{directory} was replaced by a symbolic link; look at it, restore it, then try again.")
    return f"{facts.st_dev}:{facts.st_ino}"


def find_box() -> tuple[str, ...]:
    """Return the command line of a sandbox that works on this machine, up to its last word `--`, or nothing.

    Only success is remembered: after that, git never runs without the sandbox. Raise Conflict if agents have a sandbox
    here and git gets none now: an agent may have used up what a sandbox needs.
    """
    program = shutil.which("bwrap")
    if program is None:
        return ()
    if program not in BOXES:  # some containers allow a sandbox, but no network of its own
        apart = (program, *APART, *(AS_ROOT if os.geteuid() == 0 else ()))
        commands = ((*apart, "--unshare-net", "--"), (*apart, "--"))
        if works := next((command for command in commands if _works(command)), None):
            BOXES[program] = works
        elif WORKING:
            raise Conflict("the sandbox of git cannot be made at the moment; try again later.")
    return BOXES.get(program, ())


def _works(command: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run((*command, "true"), capture_output=True, timeout=TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _find_folders(program: str) -> Iterator[Path]:
    """Yield the directories that the program needs, for programs that are installed in the user's home."""
    if found := shutil.which(program):
        for path in (Path(found).absolute(), Path(found).resolve()):
            yield path.parent
            if path.parent.name == "bin" and path.parent.parent.name != ".local":
                yield path.parent.parent


async def _feed(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    if pipe is not None:
        with suppress(ConnectionError, RuntimeError):  # event loops raise different errors for a closed pipe
            pipe.write(data)
            await pipe.drain()
        pipe.close()


async def _read(stream: asyncio.StreamReader, limit: int, pid: int | None = None) -> tuple[bytes, bool]:
    """Read a stream; return its first `limit` bytes and whether it had more. If it has more, kill the process `pid`."""
    data, cut = bytearray(), False
    while piece := await stream.read(65536):
        room = limit - len(data)
        data += piece[:room]
        if len(piece) > room and not cut:
            cut = True
            if pid is not None:
                _kill(pid)
    return bytes(data), cut


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
