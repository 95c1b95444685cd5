"""Git: makes, compares, merges and removes worktrees through the git program.

These calls run no hooks and no file monitor of the repository. An agent may have written such programs, and they would
run outside of the agent's sandbox. For the same reason git always gets the repository of a worktree explicitly, and the
`.git` file in the worktree is ignored. The user's index is never written, except by a merge into a clean checkout.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from midwatch.base.errors import Conflict
from midwatch.domain.worktree import Diff, MergeResult, Place, Stat, Worktree

QUICK, LONG = 60.0, 900.0  # timeout in seconds of a call that reads, and of one that writes many files
NAMES_LIMIT = 5_000_000
ERROR_LIMIT = 20_000
SHOWN_NAMES = 3
OPTIONS = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.quotePath=false", "color.ui=false", "gc.auto=0",
    "maintenance.auto=false", "commit.gpgSign=false", "merge.autoStash=false", "diff.ignoreSubmodules=dirty",
    "submodule.recurse=false", "advice.addEmbeddedRepo=false",
)  # fmt: skip
PLAIN_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")
STATUS = ("status", "--porcelain", "--ignore-submodules=dirty")
KEPT = re.compile(r"GIT_(AUTHOR|COMMITTER)_|GIT_SSH|GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)$")
"""Git's variables for the user's name and settings. Others are removed: they could name another repository."""
NEW_LINK = re.compile(rb"^:000000 160000 \S+ \S+ A\t(.+)$", re.M)


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


class GitProgram:
    """Implements `midwatch.domain.worktree.Git`."""

    def __init__(self, program: str = "git") -> None:
        self._program = program

    async def locate(self, workdir: str) -> Place:
        inside = await self._run(workdir, "rev-parse", "--is-inside-work-tree")
        if inside.code and "not a git repository" in inside.err:
            raise Conflict(
                f"{workdir} is not in a git repository, so no worktree can be made from it; leave the worktree out, "
                "or create a repository with `git init` and a first commit."
            )
        _check(inside, f"no worktree can be made from {workdir}")
        if inside.text != "true":
            raise Conflict(f"{workdir} has no checkout (a bare repository); name the directory of a checkout.")
        if await self._text(workdir, "rev-parse", "--show-superproject-working-tree"):
            raise Conflict(
                f"{workdir} is in a submodule, which has no worktrees of its own; name the directory of the whole "
                "repository, or leave the worktree out."
            )
        head = await self._run(workdir, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if head.code:
            raise Conflict(f"the repository of {workdir} has no commit yet; make the first commit with `git commit`.")
        top = await self._text(workdir, "rev-parse", "--show-toplevel")
        prefix = await self._text(workdir, "rev-parse", "--show-prefix")
        branch = await self._branch(workdir)
        return Place(top, prefix.rstrip("/"), head.text, branch, await self._list_missing(top))

    async def make(self, tree: Worktree) -> None:
        await self._remove_checkout(tree)
        await asyncio.to_thread(Path(tree.path).parent.mkdir, 0o700, True, True)
        command = ("worktree", "add", "--no-track", "-B", tree.branch, "--", tree.path, tree.base)
        _check(await self._run(tree.repository, *command, seconds=LONG), f"no worktree could be made in {tree.path}")
        await asyncio.to_thread(_make_workdir, tree)

    async def mend(self, tree: Worktree) -> None:
        if not await asyncio.to_thread(Path(tree.path).exists):
            tip = await self._commit_of(tree.repository, f"refs/heads/{tree.branch}")
            start = (tree.branch,) if tip else (tree.base,)
            anew = () if tip else ("--no-track", "-B", tree.branch)
            command = ("worktree", "add", "--force", *anew, "--", tree.path, *start)
            _check(await self._run(tree.repository, *command, seconds=LONG), f"{tree.path} could not be made again")
        admin = (await self._read_env(tree))["GIT_DIR"]
        await asyncio.to_thread(_write_link, tree, admin)
        await asyncio.to_thread(_make_workdir, tree)

    async def tip(self, tree: Worktree) -> str:
        return await self._text(tree.path, "rev-parse", "HEAD", env=await self._read_env(tree))

    async def stat(self, tree: Worktree) -> Stat:
        env = await self._read_env(tree)
        dirty = _check(await self._run(tree.path, *STATUS, env=env, limit=1), "git status").out
        async with self._all_files(tree, env) as git_env:
            output = await self._text(tree.path, *PLAIN_DIFF, "--shortstat", tree.base, "--", env=git_env, seconds=LONG)
        counts = [re.search(rf"(\d+) {word}", output) for word in ("file", "insertion", "deletion")]
        files, added, removed = (int(match[1]) if match else 0 for match in counts)
        return Stat(files, added, removed, bool(dirty))

    async def diff(self, tree: Worktree, limit: int) -> Diff:
        async with self._all_files(tree, await self._read_env(tree)) as git_env:
            output = await self._run(tree.path, *PLAIN_DIFF, tree.base, "--", env=git_env, limit=limit)
        if not output.cut:
            _check(output, f"the diff of {tree.branch} could not be made")
        return Diff(output.out.decode("utf-8", "replace"), output.cut)

    async def merge(self, tree: Worktree, message: str) -> MergeResult:
        if tree.target is None:
            raise Conflict(f"{tree.branch} was made while no branch was checked out; merge it with `git merge`.")
        env = await self._read_env(tree)
        here = await self._branch(tree.path, env)
        if here != tree.branch:
            raise Conflict(f"{tree.path} is not on {tree.branch} any more but on {here or 'no branch'}; merge by hand.")
        await self._commit(tree, env, message)
        tip = await self._text(tree.path, "rev-parse", "HEAD", env=env)
        old = await self._commit_of(tree.repository, f"refs/heads/{tree.target}")
        if old is None:
            raise Conflict(f"{tree.repository} has no branch {tree.target} any more; merge {tree.branch} by hand.")
        if await self._contains(tree.repository, old, tip):
            return MergeResult(old, "nothing")
        forward = await self._contains(tree.repository, tip, old)
        if await self._branch(tree.repository) == tree.target:
            await self._merge_here(tree, message)
        else:
            await self._move_branch(tree, tip, old, forward)
        now = await self._commit_of(tree.repository, f"refs/heads/{tree.target}")
        return MergeResult(now or tip, "fast-forward" if forward else "merge")

    async def losses(self, tree: Worktree) -> list[str]:
        losses, tips = [], []
        if await asyncio.to_thread(Path(tree.path).exists):
            env = await self._read_env(tree)
            status = (*STATUS, "-z", "--untracked-files=all", "--no-renames")
            output = _check(await self._run(tree.path, *status, env=env, limit=NAMES_LIMIT), "git status")
            if count := output.out.count(b"\0"):
                losses.append(f"{count} uncommitted file{'s'[: count > 1]}")
            tips = [await self._text(tree.path, "rev-parse", "HEAD", env=env)]
        if branch := await self._commit_of(tree.repository, f"refs/heads/{tree.branch}"):
            tips.append(branch)
        if tips:
            others = ("--not", f"--exclude={tree.branch}", "--branches", "--remotes", "--tags")
            count = int(await self._text(tree.repository, "rev-list", "--count", *tips, *others, "--"))
            if count:
                losses.append(f"{count} commit{'s'[: count > 1]} that no other branch has")
        return losses

    async def remove(self, tree: Worktree) -> None:
        if not await asyncio.to_thread(Path(tree.repository).exists):
            await asyncio.to_thread(_rmtree, tree.path)
            return
        await self._remove_checkout(tree)
        output = await self._run(tree.repository, "branch", "-D", "--quiet", "--", tree.branch)
        if await self._commit_of(tree.repository, f"refs/heads/{tree.branch}"):
            raise Conflict(f"branch {tree.branch} could not be removed: {output.why}. Correct this, then try again.")

    # -- internal ------------------------------------------------------------------------------------------------

    async def _list_missing(self, top: str) -> str | None:
        """Return a note that says what a new worktree lacks compared with the checkout `top`, or None."""
        status = await self._run(top, *STATUS, limit=1)
        modules = await self._run(top, "cat-file", "-e", "HEAD:.gitmodules")
        parts = ["uncommitted changes of the checkout are not in it"] if status.out else []
        return "; ".join([*parts, *([] if modules.code else ["its submodules are empty"])]) or None

    async def _remove_checkout(self, tree: Worktree) -> None:
        """Remove the directory of a worktree and the repository's entry of the worktree, even if one is missing."""
        forget = ("worktree", "remove", "--force", "--force", "--", tree.path)
        if (await self._run(tree.repository, *forget, seconds=LONG)).code == 0:
            return
        await asyncio.to_thread(_rmtree, tree.path)
        await self._run(tree.repository, *forget)

    async def _commit(self, tree: Worktree, env: Mapping[str, str], message: str) -> None:
        """Commit all changes in a worktree to the worktree's branch."""
        added = await self._run(tree.path, "add", "--all", "--", ".", env=env, seconds=LONG)
        _check(added, f"the changes in {tree.path} could not be committed")
        changed = (*PLAIN_DIFF, "--cached", "--raw", "HEAD", "--")
        raw = _check(await self._run(tree.path, *changed, env=env, limit=NAMES_LIMIT), "git diff").out
        if inner := NEW_LINK.search(raw):
            raise Conflict(
                f"{tree.path} contains another repository, {inner[1].decode(errors='replace')}; "
                "move that repository to a directory outside of the worktree, then merge again."
            )
        if raw:
            output = await self._run(
                tree.path, "commit", "--quiet", "--no-verify", "-m", message, env=env, seconds=LONG
            )
            _check(output, f"the changes in {tree.path} could not be committed")

    async def _merge_here(self, tree: Worktree, message: str) -> None:
        """Merge the worktree's branch into the user's checkout, which is on the target branch.

        After a failure the checkout is as before.
        """
        checkout = tree.repository
        if _check(await self._run(checkout, *STATUS, "--untracked-files=no", limit=1), "git status").out:
            raise Conflict(f"the checkout {checkout} has uncommitted changes; commit or stash them, then merge again.")
        merge = ("merge", "--ff", "--no-edit", "--no-stat", "-m", message, f"refs/heads/{tree.branch}")
        try:
            output = await self._run(checkout, *merge, seconds=LONG)
        except BaseException:
            await self._abort(checkout)
            raise
        if output.code == 0:
            return
        names = await self._run(checkout, "diff", "--name-only", "--diff-filter=U", "-z", limit=NAMES_LIMIT)
        await self._abort(checkout)
        files = [name.decode(errors="replace") for name in names.out.split(b"\0") if name]
        if not files:
            raise Conflict(f"{tree.branch} could not be merged into {tree.target}: {output.why}. Nothing was changed.")
        more = f" and {len(files) - SHOWN_NAMES} more" if len(files) > SHOWN_NAMES else ""
        raise Conflict(
            f"{tree.branch} conflicts with {tree.target} in {', '.join(files[:SHOWN_NAMES])}{more}; nothing was "
            f"changed. Merge it by hand in {checkout} with `git merge {tree.branch}`."
        )

    async def _abort(self, cwd: str) -> None:
        if (await self._run(cwd, "rev-parse", "--verify", "--quiet", "MERGE_HEAD")).code == 0:
            await self._run(cwd, "merge", "--abort", seconds=LONG)

    async def _move_branch(self, tree: Worktree, tip: str, old: str, forward: bool) -> None:
        """Move the target branch, which is not checked out, from the commit `old` forward to the commit `tip`.

        Raise Conflict if `forward` is False, because `old` has commits that `tip` does not contain.
        """
        listed = await self._text(tree.repository, "worktree", "list", "--porcelain")
        if f"branch refs/heads/{tree.target}" in listed.splitlines():
            raise Conflict(f"{tree.target} is checked out in another worktree; merge {tree.branch} there by hand.")
        if not forward:
            raise Conflict(
                f"{tree.target} has new commits and is not checked out in {tree.repository}; check it out there, "
                "then merge again."
            )
        moved = ("update-ref", "-m", f"merge {tree.branch}: Fast-forward", f"refs/heads/{tree.target}", tip, old)
        _check(await self._run(tree.repository, *moved), f"{tree.target} could not be moved")

    async def _branch(self, cwd: str, env: Mapping[str, str] | None = None) -> str | None:
        output = await self._run(cwd, "symbolic-ref", "--quiet", "HEAD", env=env)
        return output.text.removeprefix("refs/heads/") if output.code == 0 else None

    async def _commit_of(self, cwd: str, ref: str) -> str | None:
        output = await self._run(cwd, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return output.text if output.code == 0 else None

    async def _contains(self, cwd: str, commit: str, other: str) -> bool:
        return (await self._run(cwd, "merge-base", "--is-ancestor", other, commit)).code == 0

    async def _read_env(self, tree: Worktree) -> dict[str, str]:
        """Return the environment variables for git in a worktree.

        They name the repository, so that git ignores the `.git` file of the worktree.
        """
        output = await self._run(tree.repository, "rev-parse", "--git-common-dir")
        _check(output, f"the repository {tree.repository} of {tree.branch} cannot be used")
        common = Path(tree.repository, output.text)
        admin = await asyncio.to_thread(_find_admin, common, tree.path)
        if admin is None:
            raise Conflict(f"{tree.path} does not exist, or is not a worktree of {tree.repository} any more.")
        return {"GIT_DIR": str(admin), "GIT_COMMON_DIR": str(admin.parent.parent), "GIT_WORK_TREE": tree.path}

    @asynccontextmanager
    async def _all_files(self, tree: Worktree, env: Mapping[str, str]) -> AsyncIterator[dict[str, str]]:
        """Yield environment variables that make git use a temporary index, which also includes untracked files.

        The worktree's own index is not changed.
        """
        scratch = await asyncio.to_thread(tempfile.mkdtemp, prefix="midwatch-git-")
        try:
            index = Path(scratch, "index")
            with suppress(FileNotFoundError):
                await asyncio.to_thread(shutil.copyfile, Path(env["GIT_DIR"], "index"), index)
            git_env = {**env, "GIT_INDEX_FILE": str(index)}
            new = ("ls-files", "--others", "--exclude-standard", "-z")
            listed = await self._run(tree.path, *new, env=git_env, limit=NAMES_LIMIT, seconds=LONG)
            names = [name for name in listed.out.split(b"\0")[:-1] if not name.endswith(b"/")]
            if names:
                add = ("add", "--intent-to-add", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul")
                literal = {**git_env, "GIT_LITERAL_PATHSPECS": "1"}
                await self._run(tree.path, *add, env=literal, stdin=b"\0".join(names), seconds=LONG)
            yield git_env
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, True)

    async def _text(self, cwd: str, *words: str, env: Mapping[str, str] | None = None, seconds: float = QUICK) -> str:
        return _check(await self._run(cwd, *words, env=env, seconds=seconds), f"git {words[0]} in {cwd}").text

    async def _run(
        self,
        cwd: str,
        *words: str,
        env: Mapping[str, str] | None = None,
        seconds: float = QUICK,
        limit: int = NAMES_LIMIT,
        stdin: bytes = b"",
    ) -> GitOutput:
        """Run git with the arguments `words` in the directory `cwd`, and return its exit code and its output.

        If git writes more than `limit` bytes or runs longer than `seconds`, it is stopped.
        """
        options = [word for option in OPTIONS for word in ("-c", option)]
        argv = (self._program, "--no-pager", "--no-optional-locks", *options, "-C", cwd, *words)
        if env is None:
            await asyncio.to_thread(_check_own, cwd)
        try:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/",
                env={**environment(), **(env or {})}, start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            raise Conflict(
                f"git cannot be started ({problem.strerror}); install it, or work without a worktree."
            ) from None
        assert child.stdout and child.stderr
        try:
            async with asyncio.timeout(seconds):
                feed = asyncio.create_task(_feed(child.stdin, stdin))
                (out, cut), (err, _), _ = await asyncio.gather(
                    _read(child.stdout, limit, child.pid), _read(child.stderr, ERROR_LIMIT), feed
                )
                code = await child.wait()
        except TimeoutError:
            raise Conflict(f"`git {words[0]}` in {cwd} was stopped after {seconds:g} s; try again later.") from None
        finally:
            if child.returncode is None:
                _kill(child.pid)
                await child.wait()
        return GitOutput(code, out, err.decode("utf-8", "replace"), cut)


def _check_own(directory: str) -> None:
    """Raise Conflict if a checkout uses settings of another repository, because such settings could run programs."""
    for folder in (Path(directory), *Path(directory).parents):
        if os.path.lexists(folder / ".git"):
            if os.path.lexists(folder / ".git" / "commondir"):
                raise Conflict(
                    f"{folder}/.git/commondir makes git use the settings of another repository. git itself does not "
                    "create this file; look at its content, then remove the file."
                )
            return


def environment() -> dict[str, str]:
    """Return midwatch's environment without the variables that redirect git or let git ask the user questions."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or KEPT.match(name)}
    return {**own, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": ":", "GIT_MERGE_AUTOEDIT": "no"}


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


def _check(output: GitOutput, what: str) -> GitOutput:
    if output.code and not output.cut:
        if "tell me who you are" in output.err or "empty ident name" in output.err:
            raise Conflict("git does not know your name; set `user.name` and `user.email` with `git config --global`.")
        raise Conflict(f"{what}: {output.why}.")
    return output


def _find_admin(common: Path, path: str) -> Path | None:
    """Return the directory in the repository's `common` directory that belongs to the worktree `path`, or None."""
    worktree = Path(path).resolve()
    for file in sorted(common.resolve().glob("worktrees/*/gitdir")) if worktree.is_dir() else ():
        with suppress(OSError):
            if Path(file.read_text().strip()).parent.resolve() == worktree:
                return file.parent
    return None


def _write_link(tree: Worktree, admin: str) -> None:
    """Write the correct `.git` file of a worktree, because an agent may have changed or removed the file."""
    link, content = Path(tree.path, ".git"), f"gitdir: {admin}\n"
    if link.is_symlink() or (link.exists() and not link.is_file()):
        raise Conflict(f"{link} is not a regular file; look at it, remove it, then try again.")
    if not link.exists() or link.read_text(errors="replace").strip() != content.strip():
        link.write_text(content)


def _make_workdir(tree: Worktree) -> None:
    """Create the working directory of a worktree; git does not create a directory that has no committed file.

    Raise Conflict if the working directory is outside of the worktree, for example because of a symbolic link.
    """
    top, workdir = Path(tree.path).resolve(), Path(tree.workdir)
    if not workdir.resolve().is_relative_to(top):
        raise Conflict(f"{tree.subdir} leads out of the worktree {tree.path}; name another working directory.")
    workdir.mkdir(parents=True, exist_ok=True)


def _rmtree(path: str) -> None:
    """Remove a directory with all its files, even those that an agent has made read-only."""
    if not Path(path).exists():
        return
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = Path(folder, name)
            if not inner.is_symlink():
                inner.chmod(0o700)
    try:
        shutil.rmtree(path)
    except OSError as problem:
        raise Conflict(
            f"{problem.filename or path} cannot be removed ({problem.strerror}); remove it by hand."
        ) from None
