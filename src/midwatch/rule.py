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
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.agent import Question, QuestionKind
from midwatch.clock import iso, seconds
from midwatch.commandline import CommandPattern, argv_of, parts_of, places
from midwatch.errors import InvalidInput
from midwatch.task import Task

Effect = Literal["allow", "deny"]
Default = Literal["ask", "allow", "deny"]

TOOLS = tuple(kind for kind in get_args(QuestionKind) if kind != "choice")
TARGETED = frozenset({"read", "edit", "delete", "move"})
"""Tools that are about files: without a path nobody knows what is asked for."""
MOST_PATTERNS = 200
MOST_PATHS = 200
"""Files of one question that are looked at; more are a person's to look through."""
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


class Look:
    """One question as rules look at it; what is found out is found out once."""

    def __init__(self, asked: Question, root: str | None) -> None:
        self.asked = asked
        self.root = root

    @cached_property
    def place(self) -> str | None:
        """Where the working directory really is."""
        return None if self.root is None else os.path.realpath(self.root)

    @cached_property
    def argv(self) -> tuple[str, ...] | None:
        """The command, if it can be read for certain."""
        return None if self.asked.command is None else argv_of(self.asked.command)

    @cached_property
    def parts(self) -> list[list[str]]:
        """All that could be in the command."""
        return parts_of(self.asked.command or "")

    @cached_property
    def doubtful(self) -> bool:
        """Whether nobody can tell what a yes would allow."""
        if self.asked.command is not None and self.argv is None:
            return True
        nameless = self.asked.kind in TARGETED and not self.asked.paths
        return nameless or len(self.asked.paths) > MOST_PATHS or (self.asked.kind == "execute" and self.argv is None)

    @cached_property
    def inside(self) -> list[str] | None:
        """The files from the working directory on; None when one of them is elsewhere."""
        found = [located(path, self.root) for path in self.asked.paths]
        return None if None in found else [one for one in found if one is not None]

    @cached_property
    def named(self) -> frozenset[str]:
        """Everything that could be the name of a file, in every form it could be meant in."""
        words = [place for part in self.parts for word in part for place in places(word)]
        paths = [*self.asked.paths[:MOST_PATHS], *words]
        return frozenset(form.casefold() for path in dict.fromkeys(paths) for form in _forms(path, self.root))


def decide(
    asked: Question, root: str | None, policies: Sequence[tuple[str, Policy]], rules: Iterable[Rule] = ()
) -> Decision:
    """Rules that deny come first, whoever wrote them, then those that allow, then the default of the last policy that
    has one. A plain question is a person's to answer, unless the default denies everything."""
    if asked.kind != "choice":
        kept, look = list(rules), Look(asked, root)
        denying = [*_written(policies, "deny"), *_stored(kept, "deny")]
        for by, pattern, effect in denying:
            if denies(pattern, look):
                return Decision("deny", by, effect(pattern))
        if look.doubtful and any(pattern.command or pattern.path for _, pattern, _ in denying):
            return Decision("ask")  # what is denied may be hidden in it
        for by, pattern, effect in (*_written(policies, "allow"), *_stored(kept, "allow")):
            if allows(pattern, look):
                return Decision("allow", by, effect(pattern))
    by, default = next(((name, one.default) for name, one in reversed(policies) if one.default), ("", "ask"))
    if default == "ask" or (default == "allow" and asked.kind == "choice"):
        return Decision("ask")
    return Decision(default, f"rule:{by}", f"default: {default}")


def allows(pattern: Pattern, look: Look) -> bool:
    """Whether a rule that allows this pattern allows what is asked, for certain."""
    asked = look.asked
    if pattern.kind not in (None, asked.kind) or not _holds_in(pattern, look) or look.doubtful or look.inside is None:
        return False
    if pattern.path is not None:
        glob = _glob(pattern.path)
        if not look.inside or not all(glob.fullmatch(one) for one in look.inside):
            return False
    if asked.command is None or pattern.command is None:  # a rule about files says nothing of commands that name them
        return pattern.command is None and (asked.command is None or (pattern.kind == "execute" and not pattern.path))
    wanted = CommandPattern.parse(pattern.command)
    if wanted is None or look.argv is None:
        return False
    return wanted.allows(look.argv, lambda place: located(place, look.root) is not None)


def denies(pattern: Pattern, look: Look) -> bool:
    """Whether a rule that denies this pattern could mean what is asked."""
    if pattern.kind not in (None, look.asked.kind) or not _holds_in(pattern, look):
        return False
    if pattern.command is not None:
        wanted = CommandPattern.parse(pattern.command)
        if wanted is None or not wanted.may_be_in(look.parts, look.argv):
            return False
    if pattern.path is None:
        return True
    glob = _glob(pattern.path.casefold())
    # a whole directory is what is in it, too
    return any(glob.fullmatch(form) or glob.fullmatch(f"{form}/x") for form in look.named)


def narrow(asked: Question, root: str | None) -> Pattern | None:
    """The narrowest rule that would have answered this: the very command, or the very file; None when there is none
    that could be relied on. It holds in this working directory alone."""
    look = Look(asked, root)
    if look.place is None or asked.kind == "choice":
        return None
    if asked.command is not None:
        if look.argv is None or any(one.startswith("*") for one in look.argv) or len(asked.command) > LONGEST:
            return None
        made = Pattern(asked.kind, shlex.join(look.argv), None, look.place)
    elif asked.kind in TARGETED and len(asked.paths) == 1:
        inside = located(asked.paths[0], root)
        if inside is None or inside == "." or len(inside) > LONGEST or re.search(r"[*?\[\]\\]", inside):
            return None
        made = Pattern(asked.kind, None, inside, look.place)
    else:
        return None
    return made if allows(made, look) else None


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


def _holds_in(pattern: Pattern, look: Look) -> bool:
    return pattern.root is None or look.place == pattern.root


Ranked = Iterator[tuple[str, Pattern, Callable[[Pattern], str]]]
"""Who says so, what, and how that is told."""


def _written(policies: Sequence[tuple[str, Policy]], effect: Effect) -> Ranked:
    for name, policy in policies:
        for pattern in policy.deny if effect == "deny" else policy.allow:
            yield f"rule:{name}", pattern, lambda one: f"{effect} {one.words()}"


def _stored(rules: Iterable[Rule], effect: Effect) -> Ranked:
    for rule in rules:
        if rule.effect == effect and not rule.revoked_at:
            yield f"rule:{rule.id}", rule.pattern, lambda one, agent=rule.agent: told(effect, one, agent)  # type: ignore[misc]


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
