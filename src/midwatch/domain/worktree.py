"""Worktrees: for a task or a conversation, a separate directory and git branch beside the user's checkout.

A worktree is made from the repository's HEAD when the work starts, on the machine that runs the work. It is kept until
a person merges or removes it. All attempts and retries of a task, or all turns of a conversation, share one worktree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.domain.changes import Changes, Fence, Update, update_record
from midwatch.domain.event import Event, WorktreeChanged, event
from midwatch.domain.fields import Example, Hidden, JsonRecord
from midwatch.domain.listing import Listing
from midwatch.domain.task import Task, has_conversation
from midwatch.domain.worktree_note import WORKTREE_SHOWN

Status = Literal["making", "kept", "merged", "removed"]
How = Literal["fast-forward", "merge", "nothing"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "making": frozenset({"kept", "removed"}),
    "kept": frozenset({"merged", "removed"}),
    "merged": frozenset({"kept", "removed"}),
    "removed": frozenset({"making"}),
}
PRESENT: tuple[Status, ...] = ("making", "kept", "merged")
BRANCHES = "midwatch/"
MAX_DIFF = 10_000_000
"""A diff is read only up to this number of bytes."""
CODE: Mapping[str, tuple[str, ...]] = {
    "git runs it as a hook": (".githooks/", ".husky/", "lefthook*.yml", ".lefthook*.yml", ".pre-commit-*.yaml"),
    "it tells git which programs to run": (".gitattributes", ".gitmodules", ".gitconfig", ".lfsconfig"),
    "it runs on a server that builds or tests": (
        ".github/workflows/", ".github/actions/", ".gitlab-ci*.yml", ".gitlab/ci/", ".circleci/", "jenkinsfile*",
        "azure-pipelines*.yml", ".azure-pipelines/", ".travis.yml", "bitbucket-pipelines.yml", ".woodpecker/",
        ".woodpecker*.yml", ".woodpecker*.yaml", ".drone.yml", ".forgejo/", ".gitea/", ".buildkite/", "appveyor.yml",
    ),
    "it is a setting of an agent, which may run programs": (
        ".claude/", ".codex/", ".copilot/", ".cursor/", ".gemini/", ".goose/", ".opencode/", ".qwen/", ".mcp.json",
        "opencode.json", "opencode.jsonc",
    ),
    "an editor or a shell that opens the directory runs it": (
        ".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".idea/", ".devcontainer/",
        ".devcontainer.json", ".envrc", ".mise.toml", "mise.toml",
    ),
}  # fmt: skip
"""Files that run code when somebody uses them, by the reason. A directory ends with a slash and stands for its files.

A name counts in every directory, and in capital and small letters. Files that only contain instructions do not count.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree(JsonRecord):
    """The record of a worktree.

    The worktree was created from the checkout `repository`, at the commit `base`. `target` is the branch that was
    checked out in `repository`, if any; the worktree is merged into this branch. `subdir` is the working directory
    inside the worktree. `git_dir` is the directory of the whole repository, and `admin_dir` the directory in it that
    belongs to this worktree; both are empty in a record of an older version. `task_id` is the latest task that works in
    it. `files`, `added` and `removed` compare the worktree with `base`; they are None if they are not known.
    """

    noun: ClassVar[str] = "worktree"

    id: Annotated[str, Example("w_1a1deb33561a3f9a1c20b7d4")]
    status: Annotated[Status, Example("kept")]
    host: Annotated[str, Example("desk")]
    repository: Annotated[str, Example("/home/me/project")]
    path: Annotated[str, Example("/home/me/.midwatch/worktrees/3f9a1c20b7d4")]
    branch: Annotated[str, Example("midwatch/3f9a1c20b7d4")]
    base: Annotated[str, Example("371918cb96328f47269925f92f4a385369df101a")]
    target: Annotated[str | None, Example("main")]
    subdir: Hidden[str]
    git_dir: Hidden[str] = ""
    admin_dir: Hidden[str] = ""
    task_id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    session_key: str | None = None
    creator: Annotated[str | None, Example("owner")] = None
    files: Annotated[int | None, Example(3)] = None
    added: Annotated[int | None, Example(120)] = None
    removed: Annotated[int | None, Example(4)] = None
    dirty: Annotated[bool | None, Example(True)] = None
    note: str | None = None
    created_at: int = 0
    updated_at: int = 0
    revision: Hidden[int] = 0

    @property
    def workdir(self) -> str:
        """Return the directory inside the worktree in which a turn works."""
        return str(Path(self.path, self.subdir))

    def note_of_task(self) -> dict[str, Any]:
        """Return the fields of the worktree that the record of its task repeats."""
        return {name: getattr(self, name) for name in WORKTREE_SHOWN}


class Place(NamedTuple):
    """A repository, a directory inside of it, and the commit and branch that are checked out there.

    `git_dir` is the directory of the repository itself, which all its worktrees share.
    """

    repository: str
    git_dir: str
    subdir: str
    head: str
    branch: str | None
    note: str | None = None
    """A warning about files of the checkout that a worktree will not contain."""


class Stat(NamedTuple):
    """The size of the difference between a worktree and its `base` commit."""

    files: int
    added: int
    removed: int
    dirty: bool


class Change(NamedTuple):
    """A changed file, and whether it is a submodule, that is, a reference to another repository."""

    path: str
    submodule: bool = False


class CodeFile(NamedTuple):
    """A changed file that runs code when somebody uses it, and the reason."""

    path: str
    why: str


class Diff(NamedTuple):
    """The text of a diff, whether the text was cut, and the changed files that run code, also those cut away."""

    text: str
    truncated: bool
    runs_code: tuple[CodeFile, ...] = ()


class MergeResult(NamedTuple):
    """The result of a merge: the newest commit of the target branch, how it was done, and the files that run code."""

    commit: str
    how: How
    runs_code: tuple[CodeFile, ...] = ()


class Git(Protocol):
    """Port: git.

    A method that fails raises Conflict with one line about what to do. Only `merge` changes the user's checkout, index
    and branches; the other methods leave them as they were. Nothing that an agent wrote is run.
    """

    async def locate(self, workdir: str) -> Place:
        """Return the repository that contains `workdir`, and what is checked out there."""

    async def find_directories(self, tree: Worktree) -> tuple[str, str] | None:
        """Return `git_dir` and `admin_dir` for the record of a worktree that has none, or None without repository."""

    async def make(self, tree: Worktree) -> None:
        """Create the directory and the branch of a worktree.

        If an earlier call was interrupted, what it left behind is replaced.
        """

    async def mend(self, tree: Worktree) -> None:
        """Restore the directory of a worktree from its branch, if somebody removed the directory."""

    async def tip(self, tree: Worktree) -> str:
        """Return the commit that is checked out in a worktree."""

    async def stat(self, tree: Worktree) -> Stat:
        """Return how much a worktree differs from its `base` commit; new files and uncommitted changes count, too."""

    async def diff(self, tree: Worktree, limit: int) -> Diff:
        """Return the difference between a worktree and its `base` commit as text, up to `limit` bytes."""

    async def merge(self, tree: Worktree, message: str, *, hooks: bool = False) -> MergeResult:
        """Commit the changes in a worktree, and merge its branch into its target branch.

        Only with `hooks` the hooks of the repository run at the merge.
        """

    async def losses(self, tree: Worktree) -> list[str]:
        """Return descriptions of the work that would be lost if the worktree were removed; an empty list means none."""

    async def remove(self, tree: Worktree) -> None:
        """Remove the directory and the branch of a worktree, with all work in them."""


class Mutex(Protocol):
    """A lock among processes of one machine."""

    def acquire(self) -> bool:
        """Take the lock, and return whether it was taken."""

    def release(self) -> None:
        """Release the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorktreeFilter:
    """A filter of worktrees; an empty filter matches all worktrees that are not removed.

    `before` is the id of the last worktree on the page before.
    """

    statuses: tuple[Status, ...] = PRESENT
    before: str | None = None
    limit: int = 50


class WorktreeStore(Protocol):
    """Port: records of worktrees. They are written as part of a step, with `Changes`."""

    async def get_worktree(self, worktree_id: str) -> Worktree | None:
        """Return the worktree, or None."""

    async def list_worktrees(self, which: WorktreeFilter) -> Listing[Worktree]:
        """Return worktrees, newest first."""

    async def prune_worktrees(self, before: int) -> int:
        """Delete the records of worktrees that were removed before the time `before`, and return how many."""


# -- pure steps --------------------------------------------------------------------------------------------------


def short_id(worktree_id: str) -> str:
    """Return the part of a worktree's id that is used in the names of its directory and its branch."""
    return worktree_id[-12:]


def find_worktree_id(task: Task) -> str | None:
    """Return the id of the worktree in which a task has to work, or None."""
    return None if task.worktree is None else str(task.worktree["id"])


def plan_worktree(task: Task, place: Place, home: str, host: str, now: int) -> Worktree:
    """Return the record for the worktree of a task; the worktree itself does not exist yet."""
    worktree_id = find_worktree_id(task)
    assert worktree_id is not None
    name = short_id(worktree_id)
    return Worktree(
        id=worktree_id, status="making", host=host, repository=place.repository, path=str(Path(home, name)),
        branch=BRANCHES + name, base=place.head, target=place.branch, subdir=place.subdir, git_dir=place.git_dir,
        admin_dir=str(Path(place.git_dir, "worktrees", name)), task_id=task.id,
        session_key=task.session_key if has_conversation(task) else None, creator=task.creator, note=place.note,
        created_at=now, updated_at=now,
    )  # fmt: skip


def change_worktree(tree: Worktree, now: int, **fields: Any) -> tuple[Worktree, Update]:
    """Return the worktree with `fields` changed, and the update that writes them.

    The store refuses the update if the record was changed meanwhile.
    """
    update = update_record(tree, now, **fields)
    return replace(tree, **update.fields), update


def note_on_task(tree: Worktree, task: Task) -> Update:
    """Return the update that copies fields of the worktree to the record of `task`."""
    return Update("task", task.id, {"worktree": tree.note_of_task()})


def occupy_worktree(tree: Worktree, task: Task, now: int, **fields: Any) -> tuple[Worktree, Changes]:
    """Return the worktree, and the step that stores that `task` works in it from now on."""
    after, update = change_worktree(tree, now, task_id=task.id, **fields)
    events = () if after.status == tree.status else (announce_worktree(after, now),)
    return after, Changes(
        fence=Fence(task.id, task.attempt), updates=(update, note_on_task(after, task)), events=events
    )


def announce_worktree(tree: Worktree, now: int, actor: str | None = None, into: str | None = None) -> Event:
    """Return the event that the status of the worktree changed."""
    payload = WorktreeChanged(
        worktree_id=tree.id, status=tree.status, branch=tree.branch, path=tree.path, files=tree.files, into=into
    )
    return event(payload, now, task_id=tree.task_id, session_key=tree.session_key, actor=actor or tree.creator)


def find_code(changes: Iterable[Change], hooks: str | None = None) -> tuple[CodeFile, ...]:
    """Return the changed files that run code when somebody uses them.

    `hooks` is the directory of the repository's hooks if it is set; relative paths start in the checkout.
    """
    reasons = list(CODE.items())
    if hooks and not hooks.startswith(("/", "~")):
        reasons.insert(0, ("git runs it as a hook", (f"{PurePosixPath(hooks)}/",)))
    found = []
    for change in changes:
        why = "it brings the files of another repository" if change.submodule else None
        why = why or next((why for why, names in reasons if any(_is_at(change.path, name) for name in names)), None)
        if why is not None:
            found.append(CodeFile(change.path, why))
    return tuple(found)


def _is_at(path: str, name: str) -> bool:
    """Return whether a part of the path has the name: its end, or a directory above if the name ends with a slash."""
    parts, wanted = path.lower().split("/"), name.lower().rstrip("/").split("/")
    if name.endswith("/"):
        starts: Iterable[int] = range(len(parts) - len(wanted))
    else:
        starts = (len(parts) - len(wanted),)
    return any(start >= 0 and all(map(fnmatchcase, parts[start : start + len(wanted)], wanted)) for start in starts)
