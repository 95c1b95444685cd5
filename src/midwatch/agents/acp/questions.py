"""Permission requests as questions, and answers as the agent's options. Options are known by kind, never by place."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from midwatch.agents.acp.updates import MOST_ITEMS, Json, Tool
from midwatch.domain.agent import Answer, Choice, ChoiceKind, Question, QuestionKind, Risk

CHOICE_KINDS = frozenset(get_args(ChoiceKind))
QUESTION_KINDS = frozenset(get_args(QuestionKind)) - {"choice"}
ALLOWS: tuple[ChoiceKind, ...] = ("allow_once", "allow_always")
REJECTS: tuple[ChoiceKind, ...] = ("reject_once", "reject_always")
MOST_OPTIONS = 20
LONGEST_COMMAND = 20_000
LONGEST_DIFF = 60_000
LONGEST_TEXT = 300
RISKS: Mapping[str, Risk] = {
    "read": "low", "search": "low", "think": "low", "fetch": "medium", "edit": "medium", "move": "medium",
    "execute": "medium", "delete": "high",
}  # fmt: skip
DANGEROUS = re.compile(
    r"\b(rm|rmdir|dd|mkfs\w*|shred|chown|chmod|sudo|su|doas|kill\w*|shutdown|reboot|eval)\b"
    r"|git\s+(push|reset|clean)|\|\s*(ba|z|da)?sh\b|>\s*/(?!dev/null)"
)


@dataclass(frozen=True, slots=True)
class Option:
    """One answer the agent takes."""

    id: str
    name: str
    kind: ChoiceKind


def options(listed: Any) -> tuple[Option, ...]:
    """Those that make sense; of names that repeat the first."""
    found: dict[str, Option] = {}
    for one in listed[:MOST_OPTIONS] if isinstance(listed, list) else ():
        if isinstance(one, Mapping) and one.get("kind") in CHOICE_KINDS and isinstance(one.get("optionId"), str):
            name = str(one.get("name") or one["optionId"])[:200]
            found.setdefault(name, Option(one["optionId"], name, cast(ChoiceKind, one["kind"])))
    return tuple(found.values())


def question(tool: Tool, call: Json, offered: tuple[Option, ...], root: str) -> Question:
    """What a person is asked. The yes comes first, whatever the agent's order."""
    order = (*ALLOWS, *REJECTS)
    choices = [Choice(one.name, one.kind) for one in sorted(offered, key=lambda one: order.index(one.kind))]
    if not any(choice.kind in REJECTS for choice in choices):
        no = next(name for name in ("no", "reject", "refuse") if name not in {c.name for c in choices})
        choices.append(Choice(no, "reject_once"))
    command = command_of(tool, call)
    if command is not None:
        command = "".join((*_before(call.get("rawInput") or tool.arguments, root), command))
    what = tool.wish = command or tool.label
    newest = {place(path, root): one for path, one in tool.diffs.items()}  # an agent may name one file in two ways
    diffs = "".join(str(one["patch"]) for one in newest.values())[:LONGEST_DIFF]
    lead = "" if command else next(iter(TITLE_VERB.findall(what)), "")  # the question has a verb of its own
    what = what.removeprefix(lead)
    first = what.splitlines()[0][:LONGEST_TEXT] if what.strip() else "it"
    verb, rest = VERBS.get(tool.kind, "Go on with"), "" if first == what else " …"
    paths = tuple(dict.fromkeys(place(path, root) for path in (*tool.locations, *tool.diffs)))
    kind = tool.kind if tool.kind in QUESTION_KINDS else "other"
    return Question(
        text=f"{verb} {first}{rest}?", choices=tuple(choices), kind=cast(QuestionKind, kind),
        tool=tool.name or None, command=command, paths=paths, diff=diffs or None,
        risk=_risk(kind, command, paths, root), root=root,
    )  # fmt: skip


VERBS = {
    "execute": "Run", "edit": "Change", "delete": "Delete", "move": "Move", "read": "Read", "fetch": "Fetch",
    "search": "Search", "switch_mode": "Switch to",
}  # fmt: skip


TITLE_VERB = re.compile(r"^(?:Edit|Write|Read|Delete|Move|Fetch|Search) +(?=\S)")


def command_of(tool: Tool, call: Json) -> str | None:
    """The command as the agent wrote it. A title stands for it only if it cannot have been shortened: rules are held
    against the command, and what a title leaves out must not slip through. What was told of the call before counts
    where the question does not say it again."""
    raw = call.get("rawInput") or tool.arguments
    raw = raw if isinstance(raw, Mapping) else {}
    given, more = raw.get("command") or raw.get("cmd"), raw.get("args")
    if isinstance(given, str) and given.strip() and more:
        given = [given, *(more if isinstance(more, list) else [more])]
    if isinstance(given, list) and given:
        if not call.get("rawInput") and len(given) >= MOST_ITEMS:  # only its beginning was kept
            return None
        words = [str(word) for word in given]
        shell = len(words) == 3 and re.fullmatch(r"(.*/)?(ba|z|da|k)?sh", words[0]) and re.fullmatch(r"-l?c", words[1])
        given = words[2] if shell else shlex.join(words)
    if isinstance(given, str) and given.strip():
        return given.strip() if len(given) <= LONGEST_COMMAND else None
    title = call.get("title")
    if tool.kind == "execute" and isinstance(title, str) and title.strip() and not re.search(r"…|\.\.\.", title):
        return title.strip() if len(title) < LONGEST_TITLE else None
    return None


LONGEST_TITLE = 500
DIRECTORIES = ("cwd", "workdir", "working_directory", "workingDirectory", "directory", "dir_path")


def _before(raw: Any, root: str) -> Iterator[str]:
    """What makes the same words another command, as a shell would have it: another directory, and variables."""
    raw = raw if isinstance(raw, Mapping) else {}
    for place in (raw.get(name) for name in DIRECTORIES):
        if isinstance(place, str) and place and os.path.realpath(os.path.join(root, place)) != root:  # noqa: PTH118
            yield f"cd {shlex.quote(place)} && "
    env = raw.get("env")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        yield f"{name}={shlex.quote(str(value))} "


def _risk(kind: str, command: str | None, paths: tuple[str, ...], root: str) -> Risk:
    outside = any(not inside(path, root) for path in paths)
    if kind not in ("read", "search") and outside:
        return "high"
    if command is not None and DANGEROUS.search(command):
        return "high"
    return "medium" if outside else RISKS.get(kind, "medium")


def place(path: str, root: str) -> str:
    """Where a path is that an agent names. Links and `..` stay: rules look at them."""
    return path if path.startswith(("/", "~")) else os.path.join(root, path.removeprefix("./"))  # noqa: PTH118 - as it is


def inside(path: str, root: str) -> bool:
    """Whether a path lies in the root, by its real place."""
    real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118 - an absolute path must win
    return real == root or real.startswith(root.rstrip("/") + "/")


def chosen(answer: Answer, offered: tuple[Option, ...]) -> Option | None:
    """The agent's option for an answer. "Always" is midwatch's own to remember: the agent is told "once" where it has
    that. None where it has no option that means it."""
    kinds = ALLOWS if answer.granted else REJECTS
    for kind in kinds:
        fit = [one for one in offered if one.kind == kind]
        if fit:
            return next((one for one in fit if one.name == answer.choice), fit[0])
    return None
