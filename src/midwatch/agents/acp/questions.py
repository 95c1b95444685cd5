"""Converts an agent's permission request to a question for a person, and the answer to an option of the agent.

Options are recognised by their kind, never by their position.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast, get_args

from midwatch.agents.acp.updates import MOST_ITEMS, Json, Tool
from midwatch.agents.streams.reading import find_paths, get_dict, get_dicts, get_text
from midwatch.agents.tool_question import LONGEST_COMMAND, LONGEST_DIFF, make_absolute, rate_risk, word_question
from midwatch.domain.agent import Answer, Choice, ChoiceKind, Question, QuestionKind
from midwatch.domain.rule import TARGETED
from midwatch.domain.tool_call import ToolFacts, collect_texts

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
            name = str(item.get("name") or id)[:200]
            options.setdefault(name, Option(id, name, cast(ChoiceKind, kind)))
    return tuple(options.values())


def make_question(tool: Tool, call: Json, offered: tuple[Option, ...], root: str) -> Question:
    """Return the question for a person. The choices that allow the tool call come first."""
    order = (*ALLOWS, *REJECTS)
    ordered = sorted(offered, key=lambda option: order.index(option.kind))
    choices = [Choice(option.name, option.kind) for option in ordered]
    if not any(choice.kind in REJECTS for choice in choices):
        no = next(name for name in ("no", "reject", "refuse") if name not in {c.name for c in choices})
        choices.append(Choice(no, "reject_once"))
    command = find_command(tool, call)
    if command is not None:
        command = "".join((*_shell_prefix(call.get("rawInput") or tool.arguments, root), command))
    subject = tool.wish = command or tool.label
    # an agent may write the path of one file in two ways
    newest = {make_absolute(path, root): diff for path, diff in tool.diffs.items()}
    diffs = "".join(str(diff["patch"]) for diff in newest.values())[:LONGEST_DIFF]
    lead = "" if command else next(iter(TITLE_VERB.findall(subject)), "")  # the question begins with its own verb
    paths = tuple(dict.fromkeys(make_absolute(path, root) for path in (*tool.locations, *tool.diffs)))
    kind = tool.kind if tool.kind in QUESTION_KINDS else "other"
    raw = call.get("rawInput") or tool.arguments
    known = kind in TARGETED and paths
    facts: ToolFacts = {} if command else {"texts": find_paths(raw)} if known else collect_texts(raw)
    return Question(
        text=word_question(tool.kind, subject.removeprefix(lead)), choices=tuple(choices),
        kind=cast(QuestionKind, kind), tool=tool.name or find_name(tool.title), command=command, paths=paths,
        diff=diffs or None, risk=rate_risk(kind, command, paths, root), root=root,
        texts=facts.get("texts", ()), unread=facts.get("unread", False),
    )  # fmt: skip


def find_name(title: str) -> str | None:
    """Return the title of a tool call if it is the name of a tool, such as `mcp__github__push`; else None."""
    return title.strip() if re.fullmatch(r"\s*(?:mcp__)?[A-Za-z0-9]\w*(?:[./:-]\w+)*\s*", title) else None


TITLE_VERB = re.compile(r"^(?:Edit|Write|Read|Delete|Move|Fetch|Search) +(?=\S)")


def find_command(tool: Tool, call: Json) -> str | None:
    """Return the command that a tool call wants to run, as the agent wrote it, or None.

    The command may come from the title, but only if the agent cannot have shortened the title: rules are checked
    against the command. Fields that `call` does not have are taken from `tool`, which holds earlier updates.
    """
    raw = get_dict(call.get("rawInput") or tool.arguments)
    command, more = raw.get("command") or raw.get("cmd"), raw.get("args")
    if isinstance(command, str) and command.strip() and more:
        command = [command, *(more if isinstance(more, list) else [more])]
    if isinstance(command, list) and command:
        if not call.get("rawInput") and len(command) >= MOST_ITEMS:  # only the beginning of the command was kept
            return None
        words = [str(word) for word in command]
        shell = len(words) == 3 and re.fullmatch(r"(.*/)?(ba|z|da|k)?sh", words[0]) and re.fullmatch(r"-l?c", words[1])
        command = words[2] if shell else shlex.join(words)
    if isinstance(command, str) and command.strip():
        return command.strip() if len(command) <= LONGEST_COMMAND else None
    title = call.get("title")
    if tool.kind == "execute" and isinstance(title, str) and title.strip() and not re.search(r"…|\.\.\.", title):
        return title.strip() if len(title) < LONGEST_TITLE else None
    return None


LONGEST_TITLE = 500
DIRECTORIES = ("cwd", "workdir", "working_directory", "workingDirectory", "directory", "dir_path")


def _shell_prefix(raw: Any, root: str) -> Iterator[str]:
    """Yield the shell text to put before the command: `cd` to another directory, then the variables."""
    for directory in (get_text(raw, name) for name in DIRECTORIES):
        if directory and os.path.realpath(os.path.join(root, directory)) != root:  # noqa: PTH118
            yield f"cd {shlex.quote(directory)} && "
    for name, value in get_dict(raw, "env").items():
        yield f"{name}={shlex.quote(str(value))} "


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
