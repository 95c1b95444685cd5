"""The decision by rules: may a tool be used, must a person be asked, or is it denied? Symbolic links are followed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from midwatch.domain.agent import Question
from midwatch.domain.commandline import CommandPattern
from midwatch.domain.host_name import fold_host, forms_of_host
from midwatch.domain.rule import (
    EFFECTS,
    LONGEST,
    STORED,
    TARGETED,
    Decision,
    Effect,
    Level,
    Pattern,
    Rule,
    describe_rule,
)
from midwatch.domain.tool_name import canonical, globs_of
from midwatch.services.globs import Glob, compile_step, may_meet, readings_of
from midwatch.services.rule_facts import QuestionFacts, resolve_path
from midwatch.services.rule_paths import may_use_path, names_path

LONGEST_WORD = 1000
GLOB_WORD = re.compile(r"(?=.*[A-Za-z])[\w.-]*[*?\[{].*")
"""A glob for the name of a program, such as `g?t`."""
BRACES = re.compile(r"\{[\w./-]+,[\w./,-]*\}")
"""A word that a shell makes several words of."""
NAMED_KINDS = frozenset({"other", "search", "think"})
"""Kinds of tools that an answer "always" may allow by their name, if the question has no command, file or host."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")


class Match(IntEnum):
    """Whether a pattern matches; MAYBE if this cannot be told for certain."""

    NO = 0
    MAYBE = 1
    YES = 2


class _Rule(NamedTuple):
    """A rule of a level: its effect, its pattern, what an answer names as its author, and its text for people."""

    effect: Effect
    pattern: Pattern
    by: str
    text: str


def decide(question: Question, root: str | None, levels: Sequence[Level], agent: str | None = None) -> Decision:
    """Decide on the use of a tool. The strictest effect of all levels counts; of equal ones, that of the first level.

    A question that only offers choices, without an action, is left to a person, unless a default is to deny.
    """
    return strictest(decide_by_level(question, root, levels, agent))


def decide_by_level(
    question: Question, root: str | None, levels: Sequence[Level], agent: str | None = None
) -> list[Decision]:
    """Return the decision of each level alone."""
    return _decide_all(QuestionFacts(question, root, agent), levels)


def decide_and_look_ahead(
    question: Question, root: str | None, levels: Sequence[Level], agent: str
) -> tuple[Decision, bool]:
    """Return the decision, and whether a new stored rule of the agent could allow the same in future."""
    facts = QuestionFacts(question, root, agent)
    decision = strictest(_decide_all(facts, levels))
    pattern = _narrow(facts) if decision.effect in (None, "ask") else None
    if pattern is None:
        return decision, False
    rule = Rule(id="new", agent=agent, effect="allow", **{name: getattr(pattern, name) for name in STORED})
    later = [level._replace(stored=(*level.stored, rule)) if level.source == "agent" else level for level in levels]
    return decision, all(later_decision.effect in (None, "allow") for later_decision in _decide_all(facts, later))


def _decide_all(facts: QuestionFacts, levels: Sequence[Level]) -> list[Decision]:
    plain = facts.question.kind == "choice"
    return [_decide_choice(level) if plain else _decide_level(level, facts) for level in levels]


def strictest(decisions: Sequence[Decision]) -> Decision:
    """Return the strictest of the decisions; of equal ones, the first."""
    return max(decisions, key=_strictness, default=Decision())


def _strictness(decision: Decision) -> int:
    return -1 if decision.effect is None else EFFECTS.index(decision.effect)


def _decide_choice(level: Level) -> Decision:
    return _default(level) if level.policy.default == "deny" else Decision()


def _decide_level(level: Level, facts: QuestionFacts) -> Decision:
    """Decide by the rules of one level: first those that deny, then those that ask, then those that allow.

    If it is uncertain whether a rule that denies or asks applies, ask, unless a rule allows exactly this command.
    """
    rules = list(_list_rules(level))
    uncertain: _Rule | None = None
    for effect in ("deny", "ask"):
        for rule in rules:
            if rule.effect != effect or (certainty := match(rule.pattern, facts)) is Match.NO:
                continue
            if certainty is Match.YES:
                return Decision(rule.effect, rule.by, rule.text, level.source)
            uncertain = uncertain or rule
    allowing = [rule for rule in rules if rule.effect == "allow" and allows(rule.pattern, facts)]
    if uncertain is not None:
        allowing = [rule for rule in allowing if _is_exact(rule.pattern)]
        if not allowing:
            text = f"ask, because this rule may apply: {uncertain.text}"
            return Decision("ask", uncertain.by, text, level.source)
    if allowing:
        return Decision("allow", allowing[0].by, allowing[0].text, level.source)
    return _default(level)


def _default(level: Level) -> Decision:
    default = level.policy.default
    if default is None:
        return Decision()
    return Decision(default, f"rule:{level.source}", f"default: {default}", level.source)


def _list_rules(level: Level) -> Iterator[_Rule]:
    for effect in EFFECTS:
        for pattern in level.policy.patterns(effect):
            yield _Rule(effect, pattern, f"rule:{level.source}", f"{effect} {pattern.words()}")
    for rule in level.stored:
        if not rule.revoked_at:
            text = describe_rule(rule.effect, rule.pattern, rule.agent)
            yield _Rule(rule.effect, rule.pattern, f"rule:{rule.id}", text)


def _is_exact(pattern: Pattern) -> bool:
    command = CommandPattern.parse(pattern.command) if pattern.command else None
    return command is not None and not command.more


# -- rules that allow ------------------------------------------------------------------------------------------------


def allows(pattern: Pattern, facts: QuestionFacts) -> bool:
    """Return whether a rule that allows this pattern allows everything that the question may mean."""
    question = facts.question
    if pattern.kind not in (None, question.kind) or not _is_for(pattern, facts) or facts.doubtful:
        return False
    if facts.relative_paths is None or not _allows_name(pattern, facts) or not _allows_hosts(pattern, facts):
        return False
    if pattern.path is not None:
        glob = Glob.parse(pattern.path)
        if not facts.relative_paths or not all(glob.matches(path) for path in facts.relative_paths):
            return False
    if question.command is None or pattern.command is None:
        # a rule about files does not apply to commands that name files
        runs = pattern.kind == "execute" or (pattern.tool is not None and pattern.kind is None)
        return pattern.command is None and (question.command is None or (runs and not pattern.path))
    command = CommandPattern.parse(pattern.command)
    if command is None or facts.argv is None:
        return False
    return command.allows(facts.argv, lambda place: resolve_path(place, facts.root) is not None)


def _allows_name(pattern: Pattern, facts: QuestionFacts) -> bool:
    if pattern.tool is None:
        return True
    name = facts.question.tool
    return name is not None and Glob.parse(canonical(pattern.tool)).matches(canonical(name))


def _allows_hosts(pattern: Pattern, facts: QuestionFacts) -> bool:
    if pattern.host is None:
        return True
    return bool(facts.hosts) and not facts.hidden and all(_fits_host(pattern.host, host) for host in facts.hosts)


def _is_for(pattern: Pattern, facts: QuestionFacts) -> bool:
    """Return whether a rule is for this agent and this working directory."""
    if pattern.agent is not None and not compile_step(pattern.agent.casefold()).fullmatch(
        (facts.agent or "").casefold()
    ):
        return False
    return pattern.root is None or facts.real_root == pattern.root


# -- rules that deny or ask ------------------------------------------------------------------------------------------


def match(pattern: Pattern, facts: QuestionFacts) -> Match:
    """Return whether a rule that denies or asks applies to something that the question may mean."""
    return max(_match_step(pattern, step) for step in facts.steps or (facts,))


def _match_step(pattern: Pattern, facts: QuestionFacts) -> Match:
    if not _is_for(pattern, facts):
        return Match.NO
    matches = [Match.YES]
    if pattern.kind not in (None, facts.question.kind):
        matches.append(Match.NO if facts.question.certain else Match.MAYBE)
    if pattern.tool is not None:
        matches.append(_match_tool(pattern.tool, facts))
    if pattern.command is not None:
        matches.append(_match_command(pattern.command, facts))
    if pattern.path is not None:
        matches.append(_match_path(pattern.path, facts))
    if pattern.host is not None:
        matches.append(_match_host(pattern.host, facts))
    return min(matches)


def _match_tool(tool: str, facts: QuestionFacts) -> Match:
    if not facts.tool_names:
        return Match.MAYBE
    globs = [Glob.parse(form) for form in globs_of(tool)]
    if any(glob.matches(name) for glob in globs for name in facts.tool_names):
        return Match.YES
    if any(glob.matches(name) for glob in globs for name in facts.names_behind_server):
        return Match.MAYBE
    return Match.NO if facts.clear_name else Match.MAYBE


def _match_command(text: str, facts: QuestionFacts) -> Match:
    question, command = facts.question, CommandPattern.parse(text)
    if command is None:
        return Match.MAYBE
    if question.command is not None:
        if facts.words is not None and not facts.hidden:
            return Match.YES if command.may_be_in([facts.words], facts.argv) else Match.NO
        if command.may_be_in(facts.parts, facts.argv):
            return Match.YES
        return Match.MAYBE if facts.hidden or command.is_hinted_in(facts.parts) else Match.NO
    begun = [part for part in facts.text_parts if command.begins(part[0])]
    if command.may_be_in(begun, None):
        return Match.YES
    unknown = question.kind == "execute" or question.unread or not question.certain or facts.hidden_in_texts
    if unknown or command.may_be_in(facts.text_parts, None) or _may_become(command, facts):
        return Match.MAYBE
    return Match.NO


def _may_become(command: CommandPattern, facts: QuestionFacts) -> bool:
    """Return whether the texts of a tool are this command in parts, or a shell would make this command of one."""
    short = [text for text in facts.question.texts if len(text) <= LONGEST_WORD and "\n" not in text]
    for text in short:
        if command.begins(text.strip()) and command.may_be_in([" ".join([text, *short]).split()], None):
            return True
    for text in short:
        first = "".join(text.split(maxsplit=1)[:1])
        program = first.rpartition("/")[2]
        globs = readings_of(program.casefold()) if GLOB_WORD.fullmatch(program) else ()
        runs = command.begins(first) or any(may_meet(glob, command.program) for glob in globs)
        if BRACES.match(text) or (runs and re.search(r"[*?\[{]", text)):
            return True
    return False


def _match_path(path: str, facts: QuestionFacts) -> Match:
    if names_path(path, facts):
        return Match.YES
    return Match.MAYBE if may_use_path(path, facts) else Match.NO


def _match_host(host: str, facts: QuestionFacts) -> Match:
    question = facts.question
    if any(_fits_any_form(host, name) for name in facts.hosts):
        return Match.YES
    if question.unread or facts.unclear_hosts or not question.certain or (question.kind == "fetch" and not facts.hosts):
        return Match.MAYBE
    if question.command is None:
        return Match.MAYBE if question.kind == "execute" or facts.hidden_in_texts else Match.NO
    if facts.hidden or facts.hides_hosts or any(_fits_any_form(host, name) for name in facts.guessed_hosts):
        return Match.MAYBE
    return Match.NO


def _fits_any_form(glob: str, host: str) -> bool:
    """Return whether a glob matches a host under one of its names and addresses."""
    forms = forms_of_host(host)
    return any(compile_step(name).fullmatch(form) for name in forms_of_host(glob) for form in forms)


def _fits_host(glob: str, host: str) -> bool:
    return compile_step(fold_host(glob)).fullmatch(host) is not None


# -- rules made of an answer -----------------------------------------------------------------------------------------


def narrow(question: Question, root: str | None) -> Pattern | None:
    """Return the pattern that allows only the command, the file or the tool of a question, in its working directory.

    Return None if no pattern is reliable.
    """
    return _narrow(QuestionFacts(question, root))


def _narrow(facts: QuestionFacts) -> Pattern | None:
    question, root = facts.question, facts.root
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
    elif question.kind in NAMED_KINDS and not (question.paths or question.hosts):
        if not TOOL_NAME.fullmatch(question.tool or ""):
            return None
        pattern = Pattern(question.kind, None, None, facts.real_root, question.tool)
    else:
        return None
    return pattern if allows(pattern, facts) else None
