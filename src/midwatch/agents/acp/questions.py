"""Converts an agent's permission request to a question for a person, and the answer to an option of the agent.

Options are recognised by their kind, never by their position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

from midwatch.agents.acp.call_facts import TITLE_VERB, read_facts
from midwatch.agents.acp.updates import Tool
from midwatch.agents.streams.reading import get_dicts, get_text
from midwatch.agents.tool_question import LONGEST_DIFF, NO, make_absolute, rate_risk, word_question
from midwatch.domain.agent import Answer, Choice, ChoiceKind, Question, QuestionKind

CHOICE_KINDS = frozenset(get_args(ChoiceKind))
QUESTION_KINDS = frozenset(get_args(QuestionKind)) - {"choice"}
ALLOWS: tuple[ChoiceKind, ...] = ("allow_once", "allow_always")
REJECTS: tuple[ChoiceKind, ...] = ("reject_once", "reject_always")
MOST_OPTIONS = 20


@dataclass(frozen=True, slots=True)
class Option:
    """One answer that the agent accepts to its permission request."""

    id: str
    name: str
    kind: ChoiceKind


def read_options(listed: Any) -> tuple[Option, ...]:
    """Return the valid options in `listed`. If two options have the same name, only the first is returned."""
    options: dict[str, Option] = {}
    for item in get_dicts(listed)[:MOST_OPTIONS]:
        id, kind = item.get("optionId"), item.get("kind")
        if isinstance(id, str) and isinstance(kind, str) and kind in CHOICE_KINDS:
            name = " ".join((get_text(item, "name").strip() or id).split())[:200]  # in one line
            if kind in ALLOWS and NO.match(name):
                name += " (this allows it)"  # its kind counts, and people read its name
            options.setdefault(name, Option(id, name, cast(ChoiceKind, kind)))
    return tuple(options.values())


def make_question(tool: Tool, offered: tuple[Option, ...], root: str) -> Question:
    """Return the question for a person about a requested tool call. The choices that allow it come first."""
    order = (*ALLOWS, *REJECTS)
    ordered = sorted(offered, key=lambda option: order.index(option.kind))
    choices = [Choice(option.name, option.kind) for option in ordered]
    if not any(choice.kind in REJECTS for choice in choices):
        no = next(name for name in ("no", "reject", "refuse") if name not in {c.name for c in choices})
        choices.append(Choice(no, "reject_once"))
    facts = read_facts(tool, tool.request or {}, root)
    tool.wish = facts.command
    subject = tool.label
    # an agent may write the path of one file in two ways
    newest = {make_absolute(path, root): diff for path, diff in tool.diffs.items()}
    diffs = "".join(str(diff["patch"]) for diff in newest.values())[:LONGEST_DIFF]
    lead = "" if facts.command else next(iter(TITLE_VERB.findall(subject)), "")  # the question has its own verb
    kind = facts.kind if facts.kind in QUESTION_KINDS else "other"
    return Question(
        text=word_question(kind, subject.removeprefix(lead)), choices=tuple(choices),
        kind=cast(QuestionKind, kind), tool=facts.tool, command=facts.command, paths=facts.paths, diff=diffs or None,
        risk=rate_risk(kind, facts.command, facts.paths, root), root=root, texts=facts.texts, unread=facts.unread,
        certain=facts.certain, call_id=tool.id,
    )  # fmt: skip


def choose_option(answer: Answer, offered: tuple[Option, ...]) -> Option | None:
    """Return the agent's option for a person's answer, or None if no option means the same.

    midwatch itself remembers an answer "always". So the agent gets its option "once", if it offers one.
    """
    kinds = ALLOWS if answer.granted else REJECTS
    for kind in kinds:
        fit = [option for option in offered if option.kind == kind]
        if fit:
            return next((option for option in fit if option.name == answer.choice), fit[0])
    return None
