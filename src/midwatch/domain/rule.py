"""Rules: they answer questions without asking a person.

Rules are written in the settings and in automations, or are created by the answer "always" to a question. Created rules
are records, which everybody can see and an operator can revoke. In doubt, a rule that allows does not apply, and a rule
that denies applies. `midwatch.services.rule_decision` applies the rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.base.durations import seconds
from midwatch.base.errors import InvalidInput
from midwatch.domain.agent import Question, QuestionKind
from midwatch.domain.commandline import CommandPattern
from midwatch.domain.fields import Example, to_json
from midwatch.domain.task import Task

Effect = Literal["allow", "deny"]
Default = Literal["ask", "allow", "deny"]

TOOLS = tuple(kind for kind in get_args(QuestionKind) if kind != "choice")
TARGETED = frozenset({"read", "edit", "delete", "move"})
"""Kinds of tools that work on files; if a question names no file, it is unclear what a yes would allow."""
MOST_PATTERNS = 200
MOST_PATHS = 200
"""The greatest number of files in a question that rules check; a question with more files goes to a person."""
LONGEST = 1000
YEAR = 366 * 86400.0


class Pattern(NamedTuple):
    """The uses of a tool that a rule applies to; every field that is set must match.

    `kind` is the kind of tool. `command` is a plain command such as `git status`. With ` *` at its end, arguments that
    are no options may follow; with ` **`, any arguments may follow. `path` is a glob inside the working directory, such
    as `src/**/*.py`. `root` is the working directory, or None for all directories.
    """

    kind: str | None = None
    command: str | None = None
    path: str | None = None
    root: str | None = None

    @classmethod
    def from_data(cls, data: Any, effect: Effect) -> Pattern:
        """Read a pattern from settings or an automation, or raise InvalidInput."""
        if not isinstance(data, Mapping) or not data or set(data) - {"kind", "command", "path"}:
            raise _wrong('a rule must be a table of `kind`, `command` and `path`, such as {command = "git log *"}.')
        pattern = cls(**data)
        if any(value is not None and not (isinstance(value, str) and 0 < len(value) <= LONGEST) for value in pattern):
            raise _wrong(f"`kind`, `command` and `path` must be texts of up to {LONGEST} characters.")
        if pattern.kind is not None and pattern.kind not in TOOLS:
            raise _wrong(f"{pattern.kind!r} is not a kind of tool; the kinds are: {', '.join(TOOLS)}.")
        if pattern.command is not None and CommandPattern.parse(pattern.command) is None:
            raise _wrong(f"{pattern.command!r} is not one plain command; to allow more arguments, end it with * or **.")
        if pattern.path is not None:
            _check_glob(pattern.path, effect)
        if effect == "allow" and pattern.path is not None and pattern.kind is None:
            raise _wrong(f"a rule that allows the path {pattern.path!r} needs a kind of tool; set `kind`.")
        return pattern

    def data(self) -> dict[str, str]:
        """Return the pattern as JSON shows it, without empty fields."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def words(self) -> str:
        """Return the pattern as text for people."""
        what = f"`{self.command}`" if self.command else self.kind or "anything"
        if self.command is None and self.path is not None:
            what = f"{self.kind or 'any use'} of {self.path}"
        return what


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The record of a rule that an answer created."""

    noun: ClassVar[str] = "rule"

    id: Annotated[str, Example("r_06f2m8yq9d5h7k3n")]
    agent: Annotated[str, Example("demo")]
    effect: Annotated[Effect, Example("allow")]
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
        """Return the pattern of the rule."""
        return Pattern(self.kind, self.command, self.path, self.root)

    @property
    def text(self) -> str:
        """Return the rule as text for people."""
        return describe_rule(self.effect, self.pattern, self.agent)

    def snapshot(self) -> dict[str, Any]:
        """Return the rule as JSON shows it."""
        return {**to_json(self), "text": self.text}


class RuleStore(Protocol):
    """Port: rules. They are written as part of a step, with `Changes`."""

    async def get_rule(self, rule_id: str) -> Rule | None:
        """Return the rule, even if it is revoked, or None."""

    async def list_rules(self, agent: str | None = None, *, revoked: bool = False, limit: int = 500) -> list[Rule]:
        """Return the rules of one agent or of all agents, newest first; `revoked` includes revoked rules."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules in the settings of an agent, or in an automation."""

    default: Default | None = None
    allow: tuple[Pattern, ...] = ()
    deny: tuple[Pattern, ...] = ()
    expires: float | None = None
    """For how many seconds a question waits for an answer."""

    @classmethod
    def from_data(cls, data: Any) -> Policy:
        """Read a policy from settings or an automation, or raise InvalidInput."""
        if not isinstance(data, Mapping) or set(data) - {"default", "allow", "deny", "expires"}:
            raise _wrong("`approvals` must be a table of `default`, `allow`, `deny` and `expires`.")
        default, expires = data.get("default"), data.get("expires")
        if default not in (None, *get_args(Default)):
            raise _wrong("`default` must be ask, deny or allow.")
        if isinstance(expires, bool) or not isinstance(expires, str | int | float | None):
            raise _wrong("`expires` must be a duration, such as 90m.")
        lasts = None if expires is None else seconds(expires)
        if lasts is not None and not 0 < lasts <= YEAR:
            raise _wrong("`expires` must be above 0 seconds and at most a year.")
        return cls(default, _patterns(data, "allow"), _patterns(data, "deny"), lasts)

    def data(self) -> dict[str, Any]:
        """Return the policy as JSON stores it, without empty fields."""
        rules = {"allow": [pattern.data() for pattern in self.allow], "deny": [pattern.data() for pattern in self.deny]}
        fields: dict[str, Any] = {"default": self.default, **rules, "expires": self.expires}
        return {name: value for name, value in fields.items() if value not in (None, [])}


ASK = Policy()


class Decision(NamedTuple):
    """The decision of the rules on a question.

    `by` is what decided, and `rule` is the rule as text for people.
    """

    verdict: Default
    by: str | None = None
    rule: str | None = None


class Ruling(NamedTuple):
    """The decision of the rules on a question, and how long the question may wait for a person."""

    decision: Decision = Decision("ask")
    expires: float | None = None
    """For how many seconds the question waits for a person; None if the policy does not set this."""
    until: int | None = None
    """The time at which the question expires, if it has not expired before."""


Judge = Callable[[Task, Question], Awaitable[Ruling]]


async def leave_to_people(task: Task, question: Question) -> Ruling:
    """Return a ruling that leaves the question to people, for every question."""
    return Ruling()


def describe_rule(effect: Effect, pattern: Pattern, agent: str) -> str:
    """Return a rule as text for people; a choice of a question shows this text."""
    where = f" in {pattern.root}" if pattern.root else ""
    return f"always {effect} {pattern.words()} for {agent}{where}"


# -- checks --------------------------------------------------------------------------------------------------------


def _check_glob(glob: str, effect: Effect) -> None:
    steps = glob.split("/")
    if ".." in steps or "." in steps or "\0" in glob:
        raise _wrong(f"the path {glob!r} must not contain . or .. as a part; write it without them.")
    if effect == "allow" and (glob.startswith(("/", "~")) or "" in steps[:-1]):
        raise _wrong(f"a rule covers only paths inside the working directory; write {glob!r} relative to it.")


def _patterns(data: Mapping[str, Any], effect: Effect) -> tuple[Pattern, ...]:
    rules = data.get(effect) or ()
    if isinstance(rules, str | Mapping) or not isinstance(rules, Sequence) or len(rules) > MOST_PATTERNS:
        raise _wrong(f"`{effect}` must be a list of up to {MOST_PATTERNS} rules.")
    return tuple(Pattern.from_data(rule, effect) for rule in rules)


def _wrong(text: str) -> InvalidInput:
    return InvalidInput(text, field="approvals")
