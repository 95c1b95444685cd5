"""Git branches: read the newest commit of a branch of a local repository, and what is new since an older commit.

Git runs as `git_call` describes it: it starts no program that an agent could have named, and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from midwatch.base.errors import Conflict
from midwatch.base.files import read_regular
from midwatch.programs.git_call import GitCalls, open_calls
from midwatch.programs.sandbox import find_repository

MOST_COMMITS = 50
SECONDS = 20.0
OUTPUT = 200_000
LONGEST_HEAD = 4096
FORMAT = "--format=%H%x00%an%x00%aI%x00%s"


class Commit(NamedTuple):
    """One commit: its id, its author, its time, and the first line of its message."""

    id: str
    author: str
    time: str
    subject: str


class News(NamedTuple):
    """The commits of a branch since an older commit, newest first. `forced` is set if the older one was taken away."""

    commits: tuple[Commit, ...]
    forced: bool


class GitBranches:
    """Reads branches of local repositories."""

    def __init__(self, program: str = "git", *, home: str | None = None, filters: Iterable[str] = ()) -> None:
        """Build the reader. Git does not see midwatch's `home`."""
        self._program = program
        self._home = home
        self._filters = frozenset(filters)

    async def find_tip(self, repository: str, branch: str | None) -> str | None:
        """Return the id of the newest commit of a branch, or of what is checked out; None if there is none."""
        calls = await self._open(repository)
        names = (f"refs/heads/{branch}", f"refs/remotes/{branch}") if branch else ("HEAD",)
        for name in names:
            output = await calls.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", seconds=SECONDS)
            if output.code == 0:
                return output.text
        return None

    async def read_news(self, repository: str, old: str, new: str) -> News:
        """Return what is new in the commit `new` since the commit `old`."""
        calls = await self._open(repository)
        known = await calls.run("merge-base", "--is-ancestor", old, new, seconds=SECONDS)
        span = (new, f"^{old}") if known.code in (0, 1) else (new,)
        most = f"--max-count={MOST_COMMITS if len(span) > 1 else 1}"
        words = ("log", "--no-show-signature", "--no-color", "-z", most, FORMAT, *span, "--")
        output = await calls.run(*words, seconds=SECONDS, limit=OUTPUT)
        output.check(f"the commits of {repository} cannot be read")
        fields = output.out.decode("utf-8", "replace").split("\0")
        rows = [fields[start : start + 4] for start in range(0, len(fields) - 3, 4)]
        return News(tuple(Commit(*row) for row in rows), known.code != 0)

    async def _open(self, repository: str) -> GitCalls:
        common, admin, work = await asyncio.to_thread(_find_directories, repository)
        return await open_calls(self._program, self._home, self._filters, common, admin, work)


def _find_directories(repository: str) -> tuple[Path, Path, Path | None]:
    """Return the directories of a checkout, or of a repository without one."""
    try:
        folder = Path(repository).resolve(strict=True)
    except (OSError, RuntimeError):
        raise Conflict(f"{repository} does not exist or cannot be read; correct the trigger.") from None
    if found := find_repository(folder):
        return found.common, found.admin, found.top
    if (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir():
        return folder, folder, None
    raise Conflict(f"{repository} is not a git repository; correct the trigger.")


def sign_refs(repository: str, branch: str | None) -> str:
    """Return a text that changes whenever the branch moves. This reads only times, so it is much quicker than git."""
    try:
        common, admin, _ = _find_directories(repository)
    except (Conflict, OSError):
        return "missing"
    head = ""
    with suppress(OSError, Conflict):
        text = read_regular(admin / "HEAD", LONGEST_HEAD).decode("utf-8", "replace") if not branch else ""
        head = text.removeprefix("ref: ").strip()
    names = [f"refs/heads/{branch}", f"refs/remotes/{branch}"] if branch else [head]
    facts = []
    for path in (
        admin / "HEAD",
        common / "packed-refs",
        common / "reftable",
        *(common / name for name in names if name),
    ):
        with suppress(OSError, ValueError):
            state = os.lstat(path)
            facts.append(f"{path}:{state.st_ino}:{state.st_size}:{state.st_mtime_ns}")
    return "|".join(facts)
