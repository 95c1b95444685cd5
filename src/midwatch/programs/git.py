"""Git: makes, compares, merges and removes worktrees through the git program.

An agent may have written every file of a worktree, and much of the repository. So git runs as `git_call` describes it,
in directories that were recorded when the worktree was planned, and the `.git` file in the worktree is ignored. The
user's index is never written, except by a merge into a clean checkout.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from midwatch.base.errors import Conflict
from midwatch.base.files import copy_regular, read_regular
from midwatch.domain.worktree import Change, CodeFile, Diff, MergeResult, Place, Stat, Worktree, find_code
from midwatch.programs.git_call import LONG, GitCalls, open_calls
from midwatch.programs.sandbox import Repository, find_repository

INDEX_LIMIT = 1_000_000_000
COPY_SECONDS = 60.0
LINK_LIMIT = 8192  # the size in bytes of a file with a path, such as `.git` and `gitdir`
MAX_WORKTREES = 10_000
SHOWN_NAMES = 3
PLAIN_DIFF = (
    "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--submodule=short",
    "--ignore-submodules=dirty",
)  # fmt: skip
STATUS = ("status", "--porcelain", "--ignore-submodules=dirty")
CHANGE = re.compile(rb":(\d+) (\d+) \S+ \S+ [A-Z]\d*\0([^\0]+)\0")
LINK = "160000"  # the mode of a repository inside of another one


class GitProgram:
    """Implements `midwatch.domain.worktree.Git`."""

    def __init__(self, program: str = "git", *, home: str | None = None, filters: Iterable[str] = ()) -> None:
        """Build the port. Git does not see midwatch's `home`, and runs only those filters that `filters` names."""
        self._program = program
        self._home = home
        self._filters = frozenset(filters)

    async def locate(self, workdir: str) -> Place:
        directory, found = await asyncio.to_thread(_find_checkout, workdir)
        calls = await self._calls(found.common, found.admin, found.top)
        head = await calls.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if head.code:
            raise Conflict(f"the repository of {workdir} has no commit yet; make the first commit with `git commit`.")
        subdir = str(directory.relative_to(found.top)).removeprefix(".")
        branch, note = await _find_branch(calls), await _list_missing(calls)
        return Place(str(found.top), str(found.common), subdir, head.text, branch, note)

    async def find_directories(self, tree: Worktree) -> tuple[str, str] | None:
        return await asyncio.to_thread(_find_directories, tree)

    async def make(self, tree: Worktree) -> None:
        await asyncio.to_thread(_remove_directories, tree)
        await self._add(tree, "--no-track", "-B", tree.branch, "--", tree.path, tree.base)

    async def mend(self, tree: Worktree) -> None:
        if not await asyncio.to_thread(Path(tree.path).exists):
            await asyncio.to_thread(_remove_directories, tree)
            calls = await self._open_repository(tree)
            tip = await _find_commit(calls, f"refs/heads/{tree.branch}")
            start = (
                ("--", tree.path, tree.branch) if tip else ("--no-track", "-B", tree.branch, "--", tree.path, tree.base)
            )
            await self._add(tree, *start)
        await asyncio.to_thread(_write_link, tree)
        await asyncio.to_thread(_make_workdir, tree)

    async def tip(self, tree: Worktree) -> str:
        return await (await self._open(tree)).text("rev-parse", "HEAD")

    async def stat(self, tree: Worktree) -> Stat:
        calls = await self._open(tree)
        async with _all_files(calls) as files:
            dirty = (await files.run(*STATUS, limit=1, seconds=LONG)).check("git status").out
            output = await files.text(*PLAIN_DIFF, "--shortstat", tree.base, "--", seconds=LONG)
        counts = [re.search(rf"(\d+) {word}", output) for word in ("file", "insertion", "deletion")]
        changed, added, removed = (int(match[1]) if match else 0 for match in counts)
        return Stat(changed, added, removed, bool(dirty))

    async def diff(self, tree: Worktree, limit: int) -> Diff:
        calls = await self._open(tree)
        async with _all_files(calls) as files:
            output = await files.run(*PLAIN_DIFF, tree.base, "--", limit=limit)
            changes = await _list_changes(files, tree.base)
        if not output.cut:
            output.check(f"the diff of {tree.branch} could not be made")
        code = _find_code(calls, changes)
        return Diff(output.out.decode("utf-8", "replace"), output.cut, code)

    async def merge(self, tree: Worktree, message: str, *, hooks: bool = False) -> MergeResult:
        if tree.target is None:
            raise Conflict(f"{tree.branch} was made while no branch was checked out; merge it with `git merge`.")
        calls = await self._open(tree)
        here = await _find_branch(calls)
        if here != tree.branch:
            raise Conflict(f"{tree.path} is not on {tree.branch} any more but on {here or 'no branch'}; merge by hand.")
        async with _all_files(calls) as files:
            changes = await _list_changes(files, tree.base)
        await _refuse_filtered(calls, [change.path for change in changes])
        await _commit(tree, calls, message)
        tip = await calls.text("rev-parse", "HEAD")
        old = await _find_commit(calls, f"refs/heads/{tree.target}")
        if old is None:
            raise Conflict(f"{tree.repository} has no branch {tree.target} any more; merge {tree.branch} by hand.")
        code = _find_code(calls, changes)
        if await _contains(calls, old, tip):
            return MergeResult(old, "nothing", code)
        forward = await _contains(calls, tip, old)
        checkout = await self._open_checkout(tree)
        if await _find_branch(checkout) == tree.target:
            await _merge_here(tree, checkout, message, hooks)
        else:
            await _move_branch(tree, checkout, tip, old, forward)
        now = await _find_commit(calls, f"refs/heads/{tree.target}")
        return MergeResult(now or tip, "fast-forward" if forward else "merge", code)

    async def losses(self, tree: Worktree) -> list[str]:
        losses, tips = [], []
        if await asyncio.to_thread(Path(tree.path).exists):
            calls = await self._open(tree)
            status = (*STATUS, "-z", "--untracked-files=all", "--no-renames")
            async with _copy_index(calls) as files:
                output = (await files.run(*status, seconds=LONG)).check("git status")
            if count := output.out.count(b"\0"):
                losses.append(f"{count} uncommitted file{'s'[: count > 1]}")
            tips = [await calls.text("rev-parse", "HEAD")]
        else:
            calls = await self._open_repository(tree)
        if branch := await _find_commit(calls, f"refs/heads/{tree.branch}"):
            tips.append(branch)
        if tips:
            others = ("--not", f"--exclude={tree.branch}", "--branches", "--remotes", "--tags")
            count = int(await calls.text("rev-list", "--count", *tips, *others, "--"))
            if count:
                losses.append(f"{count} commit{'s'[: count > 1]} that no other branch has")
        return losses

    async def remove(self, tree: Worktree) -> None:
        await asyncio.to_thread(_remove_directories, tree)
        if not tree.git_dir or not await asyncio.to_thread(Path(tree.git_dir).exists):
            return
        calls = await self._open_repository(tree)
        await asyncio.to_thread(_check_worktrees, calls.common)
        output = await calls.run("branch", "-D", "--quiet", "--", tree.branch, write=True)
        if await _find_commit(calls, f"refs/heads/{tree.branch}"):
            raise Conflict(f"branch {tree.branch} could not be removed: {output.why}. Correct this, then try again.")

    # -- internal ------------------------------------------------------------------------------------------------

    async def _calls(self, common: Path, admin: Path, work: Path | None = None) -> GitCalls:
        return await open_calls(self._program, self._home, self._filters, common, admin, work)

    async def _open(self, tree: Worktree) -> GitCalls:
        """Return the calls of git in a worktree."""
        work, admin = _work(tree), Path(tree.admin_dir)
        if not tree.git_dir or not await asyncio.to_thread(lambda: work.exists() and admin.exists()):
            raise Conflict(f"{tree.path} does not exist, or is not a worktree of {tree.repository} any more.")
        return await self._calls(Path(tree.git_dir), admin, work)

    async def _open_repository(self, tree: Worktree) -> GitCalls:
        """Return the calls of git in the repository of a worktree, which concern no checkout."""
        if not tree.git_dir:
            raise Conflict(f"the repository {tree.repository} of {tree.branch} cannot be found; restore it.")
        return await self._calls(Path(tree.git_dir), Path(tree.git_dir))

    async def _open_checkout(self, tree: Worktree) -> GitCalls:
        """Return the calls of git in the checkout that a worktree was made from."""
        _, found = await asyncio.to_thread(_find_checkout, tree.repository)
        if str(found.common) != tree.git_dir:
            raise Conflict(f"{tree.repository} belongs to another repository now; merge {tree.branch} by hand.")
        return await self._calls(found.common, found.admin, found.top)

    async def _add(self, tree: Worktree, *words: str) -> None:
        """Create the directory of a worktree, and the directory in the repository that belongs to it."""
        calls = await self._open_repository(tree)
        entries = calls.common / "worktrees"
        await asyncio.to_thread(_prepare_directories, _work(tree), entries)
        output = await calls.run("worktree", "add", *words, write=True, also=(_work(tree), entries), seconds=LONG)
        output.check(f"no worktree could be made in {tree.path}")
        if await asyncio.to_thread(_read_back_link, Path(tree.admin_dir)) != _work(tree):
            raise Conflict(f"{tree.admin_dir} does not belong to {tree.path}; look at it, remove it, then try again.")
        await asyncio.to_thread(_make_workdir, tree)


# -- calls of git in a checkout ----------------------------------------------------------------------------------


async def _list_missing(calls: GitCalls) -> str | None:
    """Return a note that says what a new worktree lacks compared with the checkout, or None."""
    status = await calls.run(*STATUS, limit=1)
    modules = await calls.run("cat-file", "-e", "HEAD:.gitmodules")
    parts = ["uncommitted changes of the checkout are not in it"] if status.out else []
    parts += [] if modules.code else ["its submodules are empty"]
    if calls.settings.filters:
        listed = await calls.run("ls-files", "-z", "--", ":/", ":(exclude,top,attr:!filter)")
        if filters := await _find_filters(calls, _names(listed.out)):
            parts.append(
                f"its files are not converted by the filter {', '.join(sorted(filters))} (setting git_filters)"
            )
    return "; ".join(parts) or None


async def _find_filters(calls: GitCalls, names: list[bytes]) -> set[str]:
    """Return the filters that are switched off and would convert one of the files."""
    if not names or not calls.settings.filters:
        return set()
    output = await calls.run("check-attr", "-z", "--stdin", "filter", stdin=b"\0".join(names) + b"\0", seconds=LONG)
    output.check("git check-attr")
    return {os.fsdecode(value) for value in output.out.split(b"\0")[2::3]} & calls.settings.filters


async def _refuse_filtered(calls: GitCalls, names: list[str]) -> None:
    if filters := await _find_filters(calls, [os.fsencode(name) for name in names]):
        name = min(filters)
        raise Conflict(
            f"the filter {name} of git would convert changed files, but midwatch does not run it; allow it with the "
            f'setting `git_filters = ["{name}"]`, or merge by hand.'
        )


async def _list_changes(calls: GitCalls, base: str) -> list[Change]:
    """Return the files that differ from the commit `base`."""
    output = await calls.run(*PLAIN_DIFF, "--raw", "-z", base, "--", seconds=LONG)
    output.check("git diff")
    if output.cut:
        raise Conflict(f"{calls.directory} has too many changes to list; compare and merge by hand.")
    return [
        Change(os.fsdecode(path), LINK in (old.decode(), new.decode())) for old, new, path in CHANGE.findall(output.out)
    ]


def _find_code(calls: GitCalls, changes: list[Change]) -> tuple[CodeFile, ...]:
    """Return the changed files that run code; names that are not valid UTF-8 are shown as in a diff."""
    readable = [change._replace(path=os.fsencode(change.path).decode("utf-8", "replace")) for change in changes]
    return find_code(readable, calls.settings.hooks)


async def _commit(tree: Worktree, calls: GitCalls, message: str) -> None:
    """Commit all changes in a worktree to the worktree's branch."""
    added = await calls.run("add", "--all", "--", ".", write=True, seconds=LONG)
    added.check(f"the changes in {tree.path} could not be committed")
    changed = (*PLAIN_DIFF, "--cached", "--raw", "-z", "HEAD", "--")
    raw = (await calls.run(*changed)).check("git diff").out
    inner = next((path for old, new, path in CHANGE.findall(raw) if (int(old), new.decode()) == (0, LINK)), None)
    if inner is not None:
        raise Conflict(
            f"{tree.path} contains another repository, {inner.decode(errors='replace')}; "
            "move that repository to a directory outside of the worktree, then merge again."
        )
    if raw:
        output = await calls.run("commit", "--quiet", "--no-verify", "-m", message, write=True, seconds=LONG)
        output.check(f"the changes in {tree.path} could not be committed")


async def _merge_here(tree: Worktree, checkout: GitCalls, message: str, hooks: bool) -> None:
    """Merge the worktree's branch into the user's checkout, which is on the target branch.

    After a failure the checkout is as before.
    """
    folder = tree.repository
    if (await checkout.run(*STATUS, "--untracked-files=no", limit=1)).check("git status").out:
        raise Conflict(f"the checkout {folder} has uncommitted changes; commit or stash them, then merge again.")
    merge = ("merge", "--ff", "--no-edit", "--no-stat", "-m", message, f"refs/heads/{tree.branch}")
    try:
        output = await checkout.run(*merge, write=True, seconds=LONG, hooks=hooks)
    except BaseException:
        await _abort(checkout)
        raise
    if output.code == 0:
        return
    names = await checkout.run(*PLAIN_DIFF, "--name-only", "--diff-filter=U", "-z")
    await _abort(checkout)
    files = [name.decode(errors="replace") for name in _names(names.out)]
    if not files:
        hook = " A hook of the repository may have refused it." if hooks else ""
        raise Conflict(
            f"{tree.branch} could not be merged into {tree.target}: {output.why}.{hook} Nothing was changed."
        )
    more = f" and {len(files) - SHOWN_NAMES} more" if len(files) > SHOWN_NAMES else ""
    raise Conflict(
        f"{tree.branch} conflicts with {tree.target} in {', '.join(files[:SHOWN_NAMES])}{more}; nothing was "
        f"changed. Merge it by hand in {folder} with `git merge {tree.branch}`."
    )


async def _abort(calls: GitCalls) -> None:
    if (await calls.run("rev-parse", "--verify", "--quiet", "MERGE_HEAD")).code == 0:
        await calls.run("merge", "--abort", write=True, seconds=LONG)


async def _move_branch(tree: Worktree, calls: GitCalls, tip: str, old: str, forward: bool) -> None:
    """Move the target branch, which is not checked out, from the commit `old` forward to the commit `tip`.

    Raise Conflict if `forward` is False, because `old` has commits that `tip` does not contain.
    """
    await asyncio.to_thread(_check_worktrees, calls.common)
    listed = await calls.text("worktree", "list", "--porcelain")
    if f"branch refs/heads/{tree.target}" in listed.splitlines():
        raise Conflict(f"{tree.target} is checked out in another worktree; merge {tree.branch} there by hand.")
    if not forward:
        raise Conflict(
            f"{tree.target} has new commits and is not checked out in {tree.repository}; check it out there, "
            "then merge again."
        )
    moved = ("update-ref", "-m", f"merge {tree.branch}: Fast-forward", f"refs/heads/{tree.target}", tip, old)
    (await calls.run(*moved, write=True)).check(f"{tree.target} could not be moved")


async def _find_branch(calls: GitCalls) -> str | None:
    output = await calls.run("symbolic-ref", "--quiet", "HEAD")
    return output.text.removeprefix("refs/heads/") if output.code == 0 else None


async def _find_commit(calls: GitCalls, ref: str) -> str | None:
    output = await calls.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    return output.text if output.code == 0 else None


async def _contains(calls: GitCalls, commit: str, other: str) -> bool:
    return (await calls.run("merge-base", "--is-ancestor", other, commit)).code == 0


@asynccontextmanager
async def _copy_index(calls: GitCalls) -> AsyncIterator[GitCalls]:
    """Yield calls that use a copy of the checkout's index.

    The copy has the times of the index: git compares them with the times of files to notice an edit in the same second.
    """
    scratch = await asyncio.to_thread(tempfile.mkdtemp, prefix="midwatch-git-")
    try:
        index = Path(scratch, "index")
        with suppress(FileNotFoundError):
            await _copy(calls.admin / "index", index)
        yield replace(calls, index=index)
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, True)


async def _copy(source: Path, target: Path) -> None:
    try:
        async with asyncio.timeout(COPY_SECONDS):
            await asyncio.to_thread(copy_regular, source, target, INDEX_LIMIT)
    except TimeoutError:
        raise Conflict(f"{source} could not be copied within {COPY_SECONDS:g} s; try again later.") from None


@asynccontextmanager
async def _all_files(calls: GitCalls) -> AsyncIterator[GitCalls]:
    """Yield calls that use a temporary index, which also includes untracked files.

    The worktree's own index is not changed.
    """
    async with _copy_index(calls) as files:
        listed = await files.run("ls-files", "--others", "--exclude-standard", "-z", seconds=LONG)
        names = [name for name in _names(listed.out) if not name.endswith(b"/")]
        if names:
            add = ("add", "--intent-to-add", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul")
            also = (calls.common / "objects",)
            await files.run("--literal-pathspecs", *add, also=also, stdin=b"\0".join(names), seconds=LONG)
        yield files


def _names(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]


# -- files, in a thread ------------------------------------------------------------------------------------------


def _find_checkout(workdir: str) -> tuple[Path, Repository]:
    """Return the real path of a directory, and the repository that contains it, or raise Conflict."""
    try:
        directory = Path(workdir).resolve(strict=True)
    except OSError as problem:
        raise Conflict(f"midwatch cannot change to {workdir} ({problem.strerror}); name another directory.") from None
    found = find_repository(directory)
    if found is not None:
        return directory, found
    folders = (directory, *directory.parents)
    top = next((folder for folder in folders if os.path.lexists(folder / ".git")), None)
    if top is not None:
        if "/modules/" in _read_text(top / ".git"):
            raise Conflict(
                f"{workdir} is in a submodule, which has no worktrees of its own; name the directory of the whole "
                "repository, or leave the worktree out."
            )
        raise Conflict(
            f"{top}/.git is not the directory of a repository, and no repository lists {top} as its worktree; "
            "correct it, or leave the worktree out."
        )
    if any((folder / "HEAD").is_file() and (folder / "objects").is_dir() for folder in folders):
        raise Conflict(f"{workdir} has no checkout (a bare repository); name the directory of a checkout.")
    raise Conflict(
        f"{workdir} is not in a git repository, so no worktree can be made from it; leave the worktree out, "
        "or create a repository with `git init` and a first commit."
    )


def _find_directories(tree: Worktree) -> tuple[str, str] | None:
    """Return the repository's directory, and the one in it that belongs to the worktree, of a record without them."""
    found = find_repository(Path(tree.repository).resolve())
    if found is None:
        return None
    entries = found.common / "worktrees"
    folders = sorted(entries.iterdir())[:MAX_WORKTREES] if entries.is_dir() else ()
    admin = next((folder for folder in folders if _read_back_link(folder) == _work(tree)), None)
    return str(found.common), str(admin or entries / Path(tree.path).name)


def _read_text(path: Path) -> str:
    """Return the text of a small file, or nothing if it is no regular file."""
    try:
        return os.fsdecode(read_regular(path, LINK_LIMIT)).strip()
    except (OSError, Conflict):
        return ""


def _read_back_link(admin: Path) -> Path | None:
    """Return the directory of the worktree to which a directory of the repository belongs."""
    text = _read_text(admin / "gitdir")
    return (admin / text).parent.resolve() if text else None


def _check_worktrees(common: Path) -> None:
    """Raise Conflict if git would wait for ever when it lists the worktrees of a repository."""
    entries = common / "worktrees"
    for folder in sorted(entries.iterdir())[:MAX_WORKTREES] if entries.is_dir() else ():
        for name in ("gitdir", "HEAD", "commondir", "locked"):
            with suppress(FileNotFoundError, NotADirectoryError):
                facts = (folder / name).lstat()
                if not stat.S_ISREG(facts.st_mode) or facts.st_size > LINK_LIMIT:
                    raise Conflict(f"{folder / name} is not a small regular file; look at it, then remove it.")


def _prepare_directories(work: Path, entries: Path) -> None:
    """Create the empty directory of a worktree and the repository's directory of all worktrees."""
    work.mkdir(0o700, parents=True, exist_ok=True)
    entries.mkdir(exist_ok=True)
    if entries.is_symlink():
        raise Conflict(f"{entries} is a symbolic link; look at it, remove it, then try again.")
    _check_worktrees(entries.parent)


def _work(tree: Worktree) -> Path:
    """Return the real path of a worktree, which itself is no symbolic link."""
    return Path(tree.path).parent.resolve() / Path(tree.path).name


def _write_link(tree: Worktree) -> None:
    """Write the correct `.git` file of a worktree, because an agent may have changed or removed the file."""
    link, content = Path(tree.path, ".git"), os.fsencode(f"gitdir: {tree.admin_dir}\n")
    with suppress(FileNotFoundError):
        if read_regular(link, LINK_LIMIT) == content:
            return
    with tempfile.NamedTemporaryFile(dir=tree.path, delete=False) as file:
        file.write(content)
    Path(file.name).replace(link)


def _make_workdir(tree: Worktree) -> None:
    """Create the working directory of a worktree; git does not create a directory that has no committed file.

    Raise Conflict if the working directory is outside of the worktree, for example because of a symbolic link.
    """
    top, workdir = Path(tree.path).resolve(), Path(tree.workdir)
    if not workdir.resolve().is_relative_to(top):
        raise Conflict(f"{tree.subdir} leads out of the worktree {tree.path}; name another working directory.")
    workdir.mkdir(parents=True, exist_ok=True)


def _remove_directories(tree: Worktree) -> None:
    """Remove the directory of a worktree and the repository's directory of it, even if one is missing."""
    _rmtree(tree.path)
    if tree.admin_dir:
        _rmtree(tree.admin_dir)


def _rmtree(path: str) -> None:
    """Remove a directory with all its files, even those that an agent has made read-only."""
    if Path(path).is_symlink():
        raise Conflict(f"{path} was replaced by a symbolic link; look at it, remove it, then try again.")
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
