"""Decide by rules: whether a question is answered without a person. It looks where symbolic links lead."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from midwatch.domain.agent import Question
from midwatch.domain.commandline import CommandPattern, argv_of, parts_of, places
from midwatch.domain.rule import LONGEST, MOST_PATHS, TARGETED, Decision, Effect, Pattern, Policy, Rule, describe_rule


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
        glob = glob_regex(pattern.path)
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
    glob = glob_regex(pattern.path.casefold())
    # a whole directory is what is in it, too
    return any(glob.fullmatch(form) or glob.fullmatch(f"{form}/x") for form in look.named)


def narrow(asked: Question, root: str | None) -> Pattern | None:
    """The narrowest rule that would have answered this: the very command, or the very file; None when there is none
    that could be relied on. It holds in this working directory alone."""
    look = Look(asked, root)
    if look.place is None or asked.kind == "choice":
        return None
    if asked.command is not None:
        if len(asked.command) > LONGEST or look.argv is None or any(one.startswith("*") for one in look.argv):
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
            yield f"rule:{rule.id}", rule.pattern, lambda one, agent=rule.agent: describe_rule(effect, one, agent)  # type: ignore[misc]


def _forms(path: str, root: str | None) -> Iterator[str]:
    """Names under which a rule that denies could mean a path: as it is written, and as it really is."""
    home = expand_home(path)
    yield path
    yield os.path.normpath(home)
    if root is None or "\0" in path:
        return
    joined = Path(root) / home
    for base, place in ((root, os.path.normpath(joined)), (os.path.realpath(root), os.path.realpath(joined))):
        yield place
        yield os.path.relpath(place, base)


def expand_home(path: str) -> str:
    """`~/x` written out; what is no user's home stays as it is."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


@lru_cache(256)
def glob_regex(glob: str) -> re.Pattern[str]:
    """`**` is any number of directories, `*` and `?` stay in one."""
    steps = expand_home(glob).rstrip("/").split("/")
    made = ""
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        if step == "**":
            made += ".+" if last else "(?:[^/]+/)*"
            continue
        made += "".join({"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign)) for sign in step) + ("" if last else "/")
    return re.compile(made, re.DOTALL)
