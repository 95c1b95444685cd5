"""Rules: they decide on the use of tools, without a person or by asking one.

Rules have levels: the desk, the agent, and the work (an automation, a goal, a session or a task). A lower level can
only be stricter. Rules are written in the settings and in requests, or are created by the answer "always" to a
question. Created rules are records, which everybody can see and an operator can revoke. In doubt, a rule that
allows does not apply, and a rule that denies or asks applies. `midwatch.services.rule_decision` applies the rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict, cast, get_args

from midwatch.base.durations import seconds
from midwatch.base.errors import InvalidInput
from midwatch.base.text import cut
from midwatch.domain.agent import Question, QuestionKind
from midwatch.domain.commandline import CommandPattern
from midwatch.domain.fields import Example, Input, JsonRecord, Show, to_json
from midwatch.domain.task import Task

StoredEffect = Literal["allow", "deny"]
"""What a stored rule does."""
Effect = Literal["allow", "ask", "deny"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""All effects; each is stricter than the one before."""
Source = Literal["desk", "agent", "automation", "goal", "session", "task"]
"""Where rules come from, the highest level first."""

TOOLS = tuple(kind for kind in get_args(QuestionKind) if kind != "choice")
TARGETED = frozenset({"read", "edit", "delete", "move"})
"""Kinds of tools that work on files; if a question names no file, it is unclear what a yes would allow."""
MOST_PATTERNS = 200
MOST_PATHS = 200
"""The greatest number of files in a question that rules check; a question with more files goes to a person."""
LONGEST = 1000
LONGEST_NAME = 60
YEAR = 366 * 86400.0


STORED = ("kind", "command", "path", "root", "tool")
"""The fields of a pattern that a stored rule has."""
FIELDS = frozenset({"tool", "agent", "kind", "path", "command", "host"})
NAMES = "`tool`, `agent`, `kind`, `path`, `command` and `host`"


class Pattern(NamedTuple):
    """The uses of a tool that a rule applies to; every field that is set must match.

    `kind` is the kind of tool. `command` is a plain command such as `git status`. With ` *` at its end, arguments that
    are no options may follow; with ` **`, any arguments may follow. `path` is a glob inside the working directory, such
    as `src/**/*.py`. `root` is the working directory, or None for all directories. `tool`, `agent` and `host` are globs
    for names: of the tool (`server/tool` for a tool of an MCP server), of the agent, and of a machine.
    """

    kind: str | None = None
    command: str | None = None
    path: str | None = None
    root: str | None = None
    tool: str | None = None
    agent: str | None = None
    host: str | None = None

    @classmethod
    def from_data(cls, data: Any, effect: Effect) -> Pattern:
        """Read a pattern from settings or a request, or raise InvalidInput."""
        if isinstance(data, Mapping) and (unknown := [str(name) for name in data if name not in FIELDS]):
            raise _wrong(f"a rule has no {cut(unknown[0], LONGEST_NAME)!r}; its fields are {NAMES}.")
        if not isinstance(data, Mapping) or not data:
            raise _wrong(f'a rule must be a table of {NAMES}, such as {{command = "git log *"}}.')
        pattern = cls(**data)
        if any(value is not None and not (isinstance(value, str) and 0 < len(value) <= LONGEST) for value in pattern):
            raise _wrong(f"{NAMES} must be texts of up to {LONGEST} characters.")
        if any("\0" in value for value in pattern if value is not None):
            raise _wrong(f"{NAMES} must not contain a NUL character.")
        if pattern.kind is not None and pattern.kind not in TOOLS:
            raise _wrong(f"{pattern.kind!r} is not a kind of tool; the kinds are: {', '.join(TOOLS)}.")
        if pattern.command is not None and CommandPattern.parse(pattern.command) is None:
            raise _wrong(f"{pattern.command!r} is not one plain command; to allow more arguments, end it with * or **.")
        if pattern.path is not None:
            _check_glob(pattern.path, effect)
        if effect == "allow" and pattern.path is not None and pattern.kind is None and pattern.tool is None:
            raise _wrong(f"a rule that allows the path {pattern.path!r} needs a kind of tool; set `kind` or `tool`.")
        return pattern

    def data(self) -> dict[str, str]:
        """Return the pattern as JSON shows it, without empty fields."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def words(self) -> str:
        """Return the pattern as text for people."""
        if self.command is not None:
            what = f"`{self.command}`"
        elif self.path is not None:
            what = f"{self.kind or 'any use'} of {self.path}"
        elif self.kind in (None, "other") and self.tool is not None:
            what = f"the tool {self.tool}"
        else:
            what = self.kind or "anything"
        named = self.tool is not None and what != f"the tool {self.tool}"
        more = ((named and self.tool, "with the tool"), (self.host, "at"), (self.agent, "by"))
        return " ".join([what, *(f"{word} {value}" for value, word in more if value)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The record of a rule that an answer created, or that a file declares."""

    noun: ClassVar[str] = "rule"

    id: Annotated[str, Example("r_06f2m8yq9d5h7k3n")]
    agent: Annotated[str, Example("demo")]
    effect: Annotated[StoredEffect, Example("allow")]
    kind: str | None = None
    command: str | None = None
    path: str | None = None
    root: str | None = None
    tool: str | None = None
    approval_id: str | None = None
    created_at: int = 0
    created_by: str | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None
    name: str | None = None
    declared_by: str | None = None
    """The set of the file that declares it; see `midwatch.domain.declaration`."""

    @property
    def pattern(self) -> Pattern:
        """Return the pattern of the rule."""
        return Pattern(self.kind, self.command, self.path, self.root, self.tool)

    @property
    def text(self) -> str:
        """Return the rule as text for people."""
        return describe_rule(self.effect, self.pattern, self.agent)

    def snapshot(self) -> dict[str, Any]:
        """Return the rule as JSON shows it."""
        return {**to_json(self), "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRule(JsonRecord):
    """A rule of the settings. `of` is the agent in whose settings it is written; None for the desk."""

    source: Annotated[Source, Example("agent")]
    of: Annotated[str | None, Example("demo")] = None
    effect: Annotated[Effect, Example("deny")]
    tool: str | None = None
    agent: str | None = None
    kind: str | None = None
    path: str | None = None
    command: Annotated[str | None, Example("git push")] = None
    host: str | None = None
    text: Annotated[str, Example("deny `git push`")]


class RuleTest(TypedDict, total=False):
    """The use of a tool, to test what the rules would decide."""

    agent: Annotated[
        str | None,
        Input("Agent that would use the tool. Default: that of the task, else default_agent.", example="demo"),
    ]
    tool: Annotated[str | None, Input("Name of the tool; server/tool for MCP.", example="run_command")]
    kind: Annotated[str | None, Input("Kind of the tool. Default: guessed from its name.")]
    path: Annotated[str | None, Input("File that it would use.")]
    command: Annotated[str | None, Input("Command that it would run.", example="git push")]
    host: Annotated[str | None, Input("Host that it would reach.")]
    workdir: Annotated[str | None, Input("Directory that relative paths begin at.")]
    task: Annotated[str | None, Input("Task whose rules apply, too.")]
    session: Annotated[str | None, Input("Session whose rules apply, too.")]


class Opinion(NamedTuple):
    """What one level of rules says."""

    source: Annotated[Source, Example("agent")]
    name: str | None
    effect: Annotated[Effect, Example("deny")]
    rule: Annotated[str | None, Example("deny `git push`")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTrial(JsonRecord):
    """The result of a test. The effect is None if no rule decides: then the tool decides whether it asks."""

    effect: Annotated[Effect | None, Example("deny")]
    text: Annotated[str, Example("denied by a rule of the agent: deny `git push`")]
    kind: Annotated[str, Example("execute")]
    source: Annotated[Source | None, Example("agent")] = None
    rule: Annotated[str | None, Example("deny `git push`")] = None
    by: Annotated[str | None, Example("rule:agent")] = None
    levels: Annotated[tuple[Opinion, ...], Show(lambda levels: [level._asdict() for level in levels])] = ()


class RuleStore(Protocol):
    """Port: rules. They are written as part of a step, with `Changes`."""

    async def get_rule(self, rule_id: str) -> Rule | None:
        """Return the rule, even if it is revoked, or None."""

    async def list_rules(self, agent: str | None = None, *, revoked: bool = False, limit: int = 500) -> list[Rule]:
        """Return the rules of one agent or of all agents, newest first; `revoked` includes revoked rules."""

    async def list_declared_rules(self, declared_by: str) -> list[Rule]:
        """Return the rules that a set declares."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of the desk, of an agent, or of work, as they are written in one table."""

    default: Effect | None = None
    allow: tuple[Pattern, ...] = ()
    ask: tuple[Pattern, ...] = ()
    deny: tuple[Pattern, ...] = ()
    expires: float | None = None
    """For how many seconds a question waits for an answer."""
    above: tuple[Mapping[str, Any], ...] = ()
    """The tables of the work that this work grew out of. Each also has `of`, the name of that work."""

    @classmethod
    def from_data(cls, data: Any) -> Policy:
        """Read a policy from settings or a request, or raise InvalidInput."""
        if not isinstance(data, Mapping) or set(data) - {"default", *EFFECTS, "expires", "above"}:
            raise _wrong("`approvals` must be a table of `default`, `allow`, `ask`, `deny` and `expires`.")
        default, expires = data.get("default"), data.get("expires")
        if default not in (None, *EFFECTS):
            raise _wrong("`default` must be ask, deny or allow.")
        if isinstance(expires, bool) or not isinstance(expires, str | int | float | None):
            raise _wrong("`expires` must be a duration, such as 90m.")
        lasts = None if expires is None else seconds(expires)
        if lasts is not None and not 0 < lasts <= YEAR:
            raise _wrong("`expires` must be above 0 seconds and at most a year.")
        above = tuple(data.get("above") or ())
        for table in above:
            cls.from_data({name: value for name, value in table.items() if name not in ("of", "above")})
        allow, ask, deny = (_patterns(data, effect) for effect in EFFECTS)
        return cls(default, allow, ask, deny, lasts, above)

    def data(self) -> dict[str, Any]:
        """Return the policy as JSON stores it, without empty fields."""
        rules: dict[str, Any] = {effect: [pattern.data() for pattern in self.patterns(effect)] for effect in EFFECTS}
        fields: dict[str, Any] = {"default": self.default, **rules, "expires": self.expires, "above": [*self.above]}
        return {name: value for name, value in fields.items() if value not in (None, [])}

    def patterns(self, effect: Effect) -> tuple[Pattern, ...]:
        """Return the patterns of all rules with this effect."""
        return {"allow": self.allow, "ask": self.ask, "deny": self.deny}[effect]


NO_RULES = Policy()


class Level(NamedTuple):
    """The rules of one level: its source, such as `agent`, its table, and its stored rules."""

    source: Source
    policy: Policy
    stored: tuple[Rule, ...] = ()
    name: str | None = None
    """The session or task that the rules come from, if it is not the one at hand."""


def check_policy(approvals: Any) -> dict[str, Any] | None:
    """Return the rules of a request as JSON stores them; None if there are none. Raise InvalidInput if one is wrong.

    Only midwatch itself sets `above`.
    """
    if approvals is None:
        return None
    if isinstance(approvals, Mapping) and "above" in approvals:
        raise _wrong("`above` cannot be set; leave it out.")
    return Policy.from_data(approvals).data() or None


def work_source(task: Task) -> Source:
    """Return the level of the rules of a task: they may be those of its automation or of its goal."""
    return "automation" if task.cause == "automation" else "goal" if task.cause == "goal" else "task"


def list_work_levels(source: Source, approvals: Mapping[str, Any] | None) -> list[Level]:
    """Return the levels of a table of work: the table itself, and those of the work that it grew out of.

    If another version has written a table that cannot be read, everything is asked.
    """
    if not approvals:
        return []
    try:
        policy = Policy.from_data(approvals)
    except (InvalidInput, AttributeError, TypeError):
        return [Level(source, Policy("ask"))]
    own = [Level(source, policy)] if set(policy.data()) - {"above"} else []
    return [_read_above(table) for table in policy.above] + own


def _read_above(table: Mapping[str, Any]) -> Level:
    kind, _, name = str(table.get("of") or "task").partition(" ")
    data = {field: value for field, value in table.items() if field != "of"}
    return Level(cast(Source, kind), Policy.from_data(data), name=name or None)


def inherit(levels: Sequence[tuple[str, Mapping[str, Any] | None]]) -> dict[str, Any] | None:
    """Return the rules of work that grows out of other work. Each level has the name of that work, and its table."""
    tables: list[Mapping[str, Any]] = []
    for name, approvals in levels:
        own = {field: value for field, value in (approvals or {}).items() if field != "above"}
        for table in (*(approvals or {}).get("above", ()), *([{"of": name, **own}] if own else [])):
            if all({**table, "of": ""} != {**known, "of": ""} for known in tables):
                tables.append(table)
    return {"above": tables} if tables else None


class Decision(NamedTuple):
    """The decision of the rules on the use of a tool; the effect None means that no rule applies.

    `by` is what decided, and `rule` is the rule as text for people.
    """

    effect: Effect | None = None
    by: str | None = None
    rule: str | None = None
    source: Source | None = None


class Ruling(NamedTuple):
    """The decision of the rules on a question, and how long the question may wait for a person."""

    decision: Decision = Decision()
    expires: float | None = None
    """For how many seconds the question waits for a person; None if no rules set this."""
    until: int | None = None
    """The time at which the question expires, if it has not expired before."""
    keeps: bool = True
    """Whether a new stored rule could allow the same in future."""


Judge = Callable[[Task, Question], Awaitable[Ruling]]


async def leave_to_people(task: Task, question: Question) -> Ruling:
    """Return a ruling that leaves the question to people, for every question."""
    return Ruling()


def describe_rule(effect: StoredEffect, pattern: Pattern, agent: str) -> str:
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
