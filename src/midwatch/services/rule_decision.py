"""The decision by rules: may a question be answered without a person? Symbolic links in paths are followed."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from midwatch.domain.agent import Question
from midwatch.domain.commandline import CommandPattern, argv_of, parts_of, places
from midwatch.domain.rule import LONGEST, MOST_PATHS, TARGETED, Decision, Effect, Pattern, Policy, Rule, describe_rule

LONGEST_PATH = 4096
MOST_PLACES = 2000
MOST_TEXT = 50_000
"""The greatest number, and the greatest length in total, of the parts of a question that are compared as paths. A
person is asked about a question with more of them."""


class QuestionFacts:
    """A question and the facts about the question that rules are compared with. Each fact is computed only once."""

    def __init__(self, question: Question, root: str | None) -> None:
        self.question = question
        self.root = root

    @cached_property
    def real_root(self) -> str | None:
        """Return the real path of the working directory."""
        return None if self.root is None else os.path.realpath(self.root)

    @cached_property
    def argv(self) -> tuple[str, ...] | None:
        """Return the words of the command, or None if there is no command or it cannot be parsed reliably."""
        return None if self.question.command is None else argv_of(self.question.command)

    @cached_property
    def parts(self) -> list[list[str]]:
        """Return all commands that the command line may contain."""
        return parts_of(self.question.command or "")

    @cached_property
    def doubtful(self) -> bool:
        """Return whether it is unclear which actions the answer yes would allow."""
        if not self.question.certain or (self.question.command is not None and self.argv is None):
            return True
        nameless = self.question.kind in TARGETED and not self.question.paths
        unknown = self.question.kind == "execute" and self.argv is None
        return nameless or unknown or len(self.question.paths) > MOST_PATHS or not self.places.complete

    @cached_property
    def places(self) -> Places:
        """Return everything in the question that may name a file."""
        words = (place for part in self.parts for word in part for place in places(word))
        return Places.collect([*self.question.paths[:MOST_PATHS]], words)

    @cached_property
    def relative_paths(self) -> list[str] | None:
        """Return the question's paths relative to the working directory, or None if a path is outside of it."""
        paths = [resolve_path(path, self.root) for path in self.question.paths]
        return None if None in paths else [path for path in paths if path is not None]

    @cached_property
    def possible_paths(self) -> frozenset[str]:
        """Return everything in the question that may name a file, in all forms that a path may have, in lower case."""
        return frozenset(form.casefold() for path in self.places.texts for form in _forms(path, self.root))


class Places(NamedTuple):
    """The parts of a question that may name a file, each once; `complete` is false if some were left out."""

    texts: Sequence[str]
    complete: bool

    @classmethod
    def collect(cls, *sources: Iterable[str]) -> Places:
        """Collect the texts until there are too many of them."""
        texts, left, complete = dict[str, None](), MOST_TEXT, True
        for text in chain(*sources):
            if len(text) > LONGEST_PATH:
                complete = False
            elif text not in texts:
                left -= len(text)
                if left < 0 or len(texts) == MOST_PLACES:
                    return cls(list(texts), False)
                texts[text] = None
        return cls(list(texts), complete)


def decide(
    question: Question, root: str | None, policies: Sequence[tuple[str, Policy]], rules: Iterable[Rule] = ()
) -> Decision:
    """Decide on a question: first by rules that deny, then by rules that allow, then by the default of the last policy.

    A question that only offers choices, without an action, is left to a person, unless the default is to deny.
    """
    if question.kind != "choice":
        stored_rules, facts = list(rules), QuestionFacts(question, root)
        denying = [*_rank_policies(policies, "deny"), *_rank_rules(stored_rules, "deny")]
        for by, pattern, effect in denying:
            if denies(pattern, facts):
                return Decision("deny", by, effect(pattern))
        named = any(pattern.command or pattern.path for _, pattern, _ in denying)
        if (facts.doubtful and named) or (denying and not question.certain):
            return Decision("ask")  # it may contain a denied action
        for by, pattern, effect in (*_rank_policies(policies, "allow"), *_rank_rules(stored_rules, "allow")):
            if allows(pattern, facts):
                return Decision("allow", by, effect(pattern))
    by, default = next(((name, policy.default) for name, policy in reversed(policies) if policy.default), ("", "ask"))
    if default == "ask" or (default == "allow" and question.kind == "choice"):
        return Decision("ask")
    return Decision(default, f"rule:{by}", f"default: {default}")


def allows(pattern: Pattern, facts: QuestionFacts) -> bool:
    """Return whether a rule that allows this pattern allows everything that the question may mean."""
    question = facts.question
    if (
        pattern.kind not in (None, question.kind)
        or not _holds_in(pattern, facts)
        or facts.doubtful
        or facts.relative_paths is None
    ):
        return False
    if pattern.path is not None:
        glob = Glob.parse(pattern.path)
        if not facts.relative_paths or not all(glob.matches(path) for path in facts.relative_paths):
            return False
    if (
        question.command is None or pattern.command is None
    ):  # a rule about files does not apply to commands that name files
        return pattern.command is None and (
            question.command is None or (pattern.kind == "execute" and not pattern.path)
        )
    command = CommandPattern.parse(pattern.command)
    if command is None or facts.argv is None:
        return False
    return command.allows(facts.argv, lambda place: resolve_path(place, facts.root) is not None)


def denies(pattern: Pattern, facts: QuestionFacts) -> bool:
    """Return whether a rule that denies this pattern denies something that the question may mean."""
    if pattern.kind not in (None, facts.question.kind) or not _holds_in(pattern, facts):
        return False
    if pattern.command is not None:
        command = CommandPattern.parse(pattern.command)
        if command is None or not command.may_be_in(facts.parts, facts.argv):
            return False
    if pattern.path is None:
        return True
    glob = Glob.parse(pattern.path.casefold())
    # a directory includes everything in it
    return any(glob.matches(form) or glob.matches(f"{form}/x") for form in facts.possible_paths)


def narrow(question: Question, root: str | None) -> Pattern | None:
    """Return the pattern that allows only the command or the file of a question, in its working directory.

    Return None if no pattern is reliable.
    """
    facts = QuestionFacts(question, root)
    if facts.real_root is None or question.kind == "choice":
        return None
    if question.command is not None:
        if len(question.command) > LONGEST or facts.argv is None or any(word.startswith("*") for word in facts.argv):
            return None
        pattern = Pattern(question.kind, shlex.join(facts.argv), None, facts.real_root)
    elif question.kind in TARGETED and len(question.paths) == 1:
        inside = resolve_path(question.paths[0], root)
        if inside is None or inside == "." or len(inside) > LONGEST or re.search(r"[*?\[\]\\]", inside):
            return None
        pattern = Pattern(question.kind, None, inside, facts.real_root)
    else:
        return None
    return pattern if allows(pattern, facts) else None


def resolve_path(path: str, root: str | None) -> str | None:
    """Return the real path relative to the working directory `root`, or None if the path is outside or unclear."""
    if root is None or not path or path.startswith("~") or "://" in path or "\0" in path:
        return None
    try:
        real, base = os.path.realpath(Path(root) / path), os.path.realpath(root)
    except (OSError, ValueError):
        return None
    inside = real == base or real.startswith(f"{base.rstrip('/')}/")
    return os.path.relpath(real, base) if inside else None


def _holds_in(pattern: Pattern, facts: QuestionFacts) -> bool:
    return pattern.root is None or facts.real_root == pattern.root


Ranked = Iterator[tuple[str, Pattern, Callable[[Pattern], str]]]
"""For each rule: its name, its pattern, and a function that describes the effect of a pattern."""


def _rank_policies(policies: Sequence[tuple[str, Policy]], effect: Effect) -> Ranked:
    for name, policy in policies:
        for pattern in policy.deny if effect == "deny" else policy.allow:
            yield f"rule:{name}", pattern, lambda chosen: f"{effect} {chosen.words()}"


def _rank_rules(rules: Iterable[Rule], effect: Effect) -> Ranked:
    for rule in rules:
        if rule.effect == effect and not rule.revoked_at:
            yield f"rule:{rule.id}", rule.pattern, lambda p, agent=rule.agent: describe_rule(effect, p, agent)  # type: ignore[misc]


def _forms(path: str, root: str | None) -> Iterator[str]:
    """Yield the forms of a path that a rule is compared with: as written, normalised, and without symbolic links."""
    home = expand_home(path)
    yield path
    yield os.path.normpath(home)
    if root is None or "\0" in path:
        return
    joined = Path(root) / home
    for base, full_path in ((root, os.path.normpath(joined)), (os.path.realpath(root), os.path.realpath(joined))):
        yield full_path
        yield os.path.relpath(full_path, base)


def expand_home(path: str) -> str:
    """Return the path with `~` replaced by the user's home. If the user of `~name` is unknown, keep `~name`."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


class Glob(NamedTuple):
    """A glob for paths: `**` matches any number of directories; `*` and `?` match no slash.

    The time of a comparison is at most the length of the glob multiplied by the length of the path.
    """

    steps: tuple[re.Pattern[str] | None, ...]
    """One expression for each step of a path; None means `**`."""

    @staticmethod
    @lru_cache(256)
    def parse(glob: str) -> Glob:
        """Parse a glob such as `src/**/*.py`."""
        steps = expand_home(glob).rstrip("/").split("/")
        return Glob(tuple(None if step == "**" else _compile_step(step) for step in steps))

    def matches(self, path: str) -> bool:
        """Return whether the glob matches the whole path."""
        names = path.split("/")
        last = len(names) - 1
        reached = {0}  # the names in front of these places match the steps so far
        for step in self.steps[:-1]:
            if step is None:
                reached = _pass_directories(reached, names)
            else:
                reached = {at + 1 for at in reached if at < last and step.fullmatch(names[at])}
        end = self.steps[-1]
        if end is None:
            return any(at < last or names[at] for at in reached)
        return last in reached and end.fullmatch(names[last]) is not None


def _compile_step(step: str) -> re.Pattern[str]:
    """Return an expression for a step of a glob. Each `*` takes as little as possible and never tries again."""
    first, *others = ("".join("." if sign == "?" else re.escape(sign) for sign in part) for part in step.split("*"))
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{middle}.*{others[-1]}" if others else first, re.DOTALL)


def _pass_directories(reached: set[int], names: Sequence[str]) -> set[int]:
    """Return the places that `**` reaches from the places `reached`: behind any number of names that are not empty."""
    passed = set[int]()
    for at in reached:
        while at not in passed:
            passed.add(at)
            if at == len(names) - 1 or not names[at]:
                break
            at += 1
    return passed
