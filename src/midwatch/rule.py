"""Rules: what is allowed or denied without asking anybody. Written in the settings and in automations, or made by the
answer "always" to a question; those are records, which anybody sees and an operator revokes.

A rule that allows errs to asking, a rule that denies errs to denying. What decides is pure but for one look at where
symbolic links lead.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.agent import Question, QuestionKind
from midwatch.clock import iso, seconds
from midwatch.commandline import CommandPattern, argv_of, parts_of
from midwatch.errors import InvalidInput
from midwatch.task import Task

Effect = Literal["allow", "deny"]
Default = Literal["ask", "allow", "deny"]

TOOLS = tuple(kind for kind in get_args(QuestionKind) if kind != "choice")
TARGETED = frozenset({"read", "edit", "delete", "move"})
"""Tools that are about files: without a path nobody knows what is asked for."""
MOST_PATTERNS = 200
LONGEST = 1000
YEAR = 366 * 86400.0


class Pattern(NamedTuple):
    """What a rule is about. All that is said must fit."""

    kind: str | None = None
    """The kind of tool."""
    command: str | None = None
    """`git status`; `git log *` with further arguments that are no options, `git log **` with any."""
    path: str | None = None
    """A glob inside the working directory: `src/**/*.py`."""
    root: str | None = None
    """The working directory it holds in; everywhere when it says none."""

    @classmethod
    def from_data(cls, data: Any, effect: Effect) -> Pattern:
        """As settings and automations write it, or InvalidInput."""
        if not isinstance(data, Mapping) or not data or set(data) - {"kind", "command", "path"}:
            raise _wrong('a rule is a table of kind, command and path, such as {command = "git log *"}.')
        made = cls(**data)
        if any(value is not None and not (isinstance(value, str) and 0 < len(value) <= LONGEST) for value in made):
            raise _wrong(f"kind, command and path are texts of up to {LONGEST} characters.")
        if made.kind is not None and made.kind not in TOOLS:
            raise _wrong(f"{made.kind!r} is no kind of tool; the kinds are: {', '.join(TOOLS)}.")
        if made.command is not None and CommandPattern.parse(made.command) is None:
            raise _wrong(f"{made.command!r} is not one plain command, with * or ** at its end if more may follow.")
        if made.path is not None:
            _check_glob(made.path, effect)
        if effect == "allow" and made.path is not None and made.kind is None:
            raise _wrong(f"say for which kind of tool {made.path!r} is allowed.")
        return made

    def data(self) -> dict[str, str]:
        """As JSON shows it, without what is not said."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def words(self) -> str:
        """In words."""
        what = f"`{self.command}`" if self.command else self.kind or "anything"
        if self.command is None and self.path is not None:
            what = f"{self.kind or 'any use'} of {self.path}"
        return what


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that an answer made."""

    noun: ClassVar[str] = "rule"

    id: str
    agent: str
    effect: Effect
    kind: str | None = None
    command: str | None = None
    path: str | None = None
    root: str | None = None
    approval_id: str | None = None
    created_at: int = 0
    created_by: str | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None

    @property
    def pattern(self) -> Pattern:
        """What it is about."""
        return Pattern(self.kind, self.command, self.path, self.root)

    @property
    def text(self) -> str:
        """In words."""
        return told(self.effect, self.pattern, self.agent)

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "id": self.id,
            "agent": self.agent,
            "effect": self.effect,
            **self.pattern._asdict(),
            "text": self.text,
            "approval_id": self.approval_id,
            "created_at": iso(self.created_at),
            "created_by": self.created_by,
            "revoked_at": iso(self.revoked_at),
            "revoked_by": self.revoked_by,
        }


class RuleStore(Protocol):
    """Port: rules. They are written through `Changes`."""

    async def get_rule(self, rule_id: str) -> Rule | None:
        """The rule, revoked ones too, or None."""
        ...

    async def list_rules(self, agent: str | None = None, *, revoked: bool = False, limit: int = 500) -> list[Rule]:
        """Newest first; those of one agent, and with `revoked` also those that hold no more."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What is written for an agent or an automation."""

    default: Default | None = None
    allow: tuple[Pattern, ...] = ()
    deny: tuple[Pattern, ...] = ()
    expires: float | None = None
    """Seconds a question waits for its answer."""

    @classmethod
    def from_data(cls, data: Any) -> Policy:
        """As settings and automations write it, or InvalidInput."""
        if not isinstance(data, Mapping) or set(data) - {"default", "allow", "deny", "expires"}:
            raise _wrong("approvals are a table of default, allow, deny and expires.")
        default, expires = data.get("default"), data.get("expires")
        if default not in (None, *get_args(Default)):
            raise _wrong("the default is ask, deny or allow.")
        if isinstance(expires, bool) or not isinstance(expires, str | int | float | None):
            raise _wrong("a question waits for a duration, such as 90m.")
        lasts = None if expires is None else seconds(expires)
        if lasts is not None and not 0 < lasts <= YEAR:
            raise _wrong("a question waits for more than 0 seconds and at most a year.")
        return cls(default, _patterns(data, "allow"), _patterns(data, "deny"), lasts)

    def data(self) -> dict[str, Any]:
        """As JSON keeps it, without what is not said."""
        rules = {"allow": [one.data() for one in self.allow], "deny": [one.data() for one in self.deny]}
        said: dict[str, Any] = {"default": self.default, **rules, "expires": self.expires}
        return {name: value for name, value in said.items() if value not in (None, [])}


ASK = Policy()


class Decision(NamedTuple):
    """What the rules say to a question, by whom, and by which rule in words."""

    verdict: Default
    by: str | None = None
    rule: str | None = None


class Ruling(NamedTuple):
    """What holds for one question: what the rules decide, and how long it may wait where they do not."""

    decision: Decision = Decision("ask")
    expires: float | None = None
    """Seconds, where the policy says so."""
    until: int | None = None
    """A time it must not wait beyond."""


Judge = Callable[[Task, Question], Awaitable[Ruling]]


async def nobody(task: Task, asked: Question) -> Ruling:
    """A judge who leaves everything to people."""
    return Ruling()


def decide(
    asked: Question, root: str | None, policies: Sequence[tuple[str, Policy]], rules: Iterable[Rule] = ()
) -> Decision:
    """Rules that deny come first, whoever wrote them, then those that allow, then the default of the last policy that
    has one. A plain question is a person's to answer, unless the default denies everything."""
    if asked.kind != "choice":
        kept = list(rules)
        denying = [*_written(policies, "deny"), *_stored(kept, "deny")]
        for by, pattern, text in denying:
            if denies(pattern, asked, root):
                return Decision("deny", by, text)
        if _doubtful(asked) and any(pattern.command or pattern.path for _, pattern, _ in denying):
            return Decision("ask")  # what is denied may be hidden in it
        for by, pattern, text in (*_written(policies, "allow"), *_stored(kept, "allow")):
            if allows(pattern, asked, root):
                return Decision("allow", by, text)
    by, default = next(((name, one.default) for name, one in reversed(policies) if one.default), ("", "ask"))
    if default == "ask" or (default == "allow" and asked.kind == "choice"):
        return Decision("ask")
    return Decision(default, f"rule:{by}", f"default: {default}")


def allows(pattern: Pattern, asked: Question, root: str | None) -> bool:
    """Whether a rule that allows this pattern allows what is asked, for certain."""
    if pattern.kind not in (None, asked.kind) or not _holds_in(pattern, root) or _doubtful(asked):
        return False
    inside = [located(path, root) for path in asked.paths]
    if None in inside:
        return False
    if pattern.path is not None:
        glob = _glob(pattern.path)
        if not inside or not all(glob.fullmatch(one) for one in inside if one is not None):
            return False
    if asked.command is None or pattern.command is None:  # a rule about files says nothing of commands that name them
        return pattern.command is None and (asked.command is None or (pattern.kind == "execute" and not pattern.path))
    wanted, argv = CommandPattern.parse(pattern.command), argv_of(asked.command)
    if wanted is None or argv is None:
        return False
    return wanted.allows(argv, lambda place: located(place, root) is not None)


def denies(pattern: Pattern, asked: Question, root: str | None) -> bool:
    """Whether a rule that denies this pattern could mean what is asked."""
    if pattern.kind not in (None, asked.kind) or not _holds_in(pattern, root):
        return False
    if pattern.command is not None:
        wanted = CommandPattern.parse(pattern.command)
        if asked.command is None or wanted is None or not wanted.may_be_in(asked.command):
            return False
    if pattern.path is None:
        return True
    named = [*asked.paths, *(word for part in parts_of(asked.command or "") for word in part)]
    glob = _glob(pattern.path.casefold())
    for form in (form.casefold() for path in named for form in _forms(path, root)):
        if glob.fullmatch(form) or glob.fullmatch(f"{form}/x"):  # a whole directory is what is in it, too
            return True
    return False


def narrow(asked: Question, root: str | None) -> Pattern | None:
    """The narrowest rule that would have answered this: the very command, or the very file; None when there is none
    that could be relied on. It holds in this working directory alone."""
    if root is None or asked.kind == "choice":
        return None
    place = os.path.realpath(root)
    if asked.command is not None:
        argv = argv_of(asked.command)
        if argv is None or any(one.startswith("*") for one in argv) or len(asked.command) > LONGEST:
            return None
        made = Pattern(asked.kind, shlex.join(argv), None, place)
    elif asked.kind in TARGETED and len(asked.paths) == 1:
        inside = located(asked.paths[0], root)
        if inside is None or inside == "." or len(inside) > LONGEST or re.search(r"[*?\[\]\\]", inside):
            return None
        made = Pattern(asked.kind, None, inside, place)
    else:
        return None
    return made if allows(made, asked, root) else None


def told(effect: Effect, pattern: Pattern, agent: str) -> str:
    """A rule in words, as the choice of an answer shows it."""
    where = f" in {pattern.root}" if pattern.root else ""
    return f"always {effect} {pattern.words()} for {agent}{where}"


def located(path: str, root: str | None) -> str | None:
    """Where a path really is, from the working directory on; None when that is outside or nobody can tell."""
    if root is None or not path or path.startswith("~") or "://" in path or "\0" in path:
        return None
    try:
        real, base = os.path.realpath(Path(root) / path), os.path.realpath(root)
    except (OSError, ValueError):
        return None
    inside = real == base or real.startswith(f"{base.rstrip('/')}/")
    return os.path.relpath(real, base) if inside else None


# -- inside --------------------------------------------------------------------------------------------------------


def _doubtful(asked: Question) -> bool:
    """Whether nobody can tell what a yes would allow."""
    if asked.command is not None:
        return argv_of(asked.command) is None
    return asked.kind == "execute" or (asked.kind in TARGETED and not asked.paths)


def _holds_in(pattern: Pattern, root: str | None) -> bool:
    return pattern.root is None or (root is not None and os.path.realpath(root) == pattern.root)


def _written(policies: Sequence[tuple[str, Policy]], effect: Effect) -> Iterator[tuple[str, Pattern, str]]:
    for name, policy in policies:
        for pattern in policy.deny if effect == "deny" else policy.allow:
            yield f"rule:{name}", pattern, f"{effect} {pattern.words()}"


def _stored(rules: Iterable[Rule], effect: Effect) -> Iterator[tuple[str, Pattern, str]]:
    return ((f"rule:{one.id}", one.pattern, one.text) for one in rules if one.effect == effect and not one.revoked_at)


def _forms(path: str, root: str | None) -> Iterator[str]:
    """Names under which a rule that denies could mean a path: as it is written, and as it really is."""
    home = _at_home(path)
    yield path
    yield os.path.normpath(home)
    if root is None or "\0" in path:
        return
    joined = Path(root) / home
    for base, place in ((root, os.path.normpath(joined)), (os.path.realpath(root), os.path.realpath(joined))):
        yield place
        yield os.path.relpath(place, base)


def _at_home(path: str) -> str:
    """`~/x` written out; what is no user's home stays as it is."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


def _check_glob(glob: str, effect: Effect) -> None:
    steps = glob.split("/")
    if ".." in steps or "." in steps or "\0" in glob:
        raise _wrong(f"the path {glob!r} is to be written without . and .. steps.")
    if effect == "allow" and (glob.startswith(("/", "~")) or "" in steps[:-1]):
        raise _wrong(f"what is allowed is inside the working directory; write {glob!r} from there on.")


@lru_cache(256)
def _glob(glob: str) -> re.Pattern[str]:
    """`**` is any number of directories, `*` and `?` stay in one."""
    steps = _at_home(glob).rstrip("/").split("/")
    made = ""
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        if step == "**":
            made += ".+" if last else "(?:[^/]+/)*"
            continue
        made += "".join({"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign)) for sign in step) + ("" if last else "/")
    return re.compile(made, re.DOTALL)


def _patterns(data: Mapping[str, Any], effect: Effect) -> tuple[Pattern, ...]:
    said = data.get(effect) or ()
    if isinstance(said, str | Mapping) or not isinstance(said, Sequence) or len(said) > MOST_PATTERNS:
        raise _wrong(f"{effect} is a list of up to {MOST_PATTERNS} rules.")
    return tuple(Pattern.from_data(one, effect) for one in said)


def _wrong(text: str) -> InvalidInput:
    return InvalidInput(text, field="approvals")
