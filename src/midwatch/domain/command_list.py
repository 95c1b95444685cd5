"""Lists of commands, such as `a && b` and `a | b`: split them into commands that rules can read one by one.

A list is split only if this loses nothing: no command may change how the shell or a rule reads the next ones, and no
command may run the output of another one. Any other list is not certain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from midwatch.domain.commandline import LONGEST, WORD, argv_of
from midwatch.domain.hidden_code.git import split_git
from midwatch.domain.hidden_code.program import SHELLS, program_of

MOST_COMMANDS = 20
TOKEN = re.compile(
    rf"""[ \t]*(?:
        (?P<redirection> (?: [12]?>{{1,2}}[ ]?/dev/null | [12]?>&[12] ) (?=[ \t;|&]|\Z) ) |
        (?P<operator> \|\| | && | [;|] ) |
        (?P<word> {WORD} ) (?=[ \t;|&]|\Z)
    )""",
    re.VERBOSE,
)
"""A redirection that writes no file, an operator, or a word that all shells read alike."""
FILTERS = frozenset({
    "awk", "cat", "column", "cut", "egrep", "fgrep", "grep", "head", "jq", "nl", "rev", "rg", "sed", "sort", "tac",
    "tail", "tee", "tr", "uniq", "wc",
})  # fmt: skip
"""Programs that do not run their input."""
READING_OPTIONS = {
    "awk": r"-[^Fv].*", "jq": r"-\w*f.*|--from.*", "sed": r"-\w*f.*", "sort": r"-[^-]*o.*|--[fo].*",
    "uniq": r"-|[^-].*", "wc": r"--f.*",
}  # fmt: skip
"""Arguments with which a filter runs its input, opens the files that its input names, or stores its input."""
STEADY = FILTERS - {"tee"} | frozenset({
    "[", "basename", "black", "cargo", "cmp", "comm", "curl", "date", "df", "diff", "dirname", "du", "echo", "eslint",
    "false", "file", "find", "go", "jest", "ls", "make", "mypy", "node", "pip", "pip3", "prettier",
    "printf", "ps", "pwd", "pyright", "pytest", "python", "python3", "readlink", "realpath", "rm", "rmdir", "ruff",
    "seq", "sleep", "stat", "test", "touch", "tree", "true", "tsc", "vitest", "whereis", "which",
})  # fmt: skip
"""Programs after which the next command means the same as before.

They make no links, and do not change the shell. Builders and test programs run code of the project, and this code can
do all its harm without a next command.
"""
STEADY_COMMANDS = {
    "git": frozenset({
        "add", "blame", "branch", "commit", "diff", "fetch", "grep", "log", "ls-files", "push", "rev-list", "rev-parse",
        "shortlog", "show", "status", "tag",
    }),
    **dict.fromkeys(["npm", "pnpm", "yarn"], frozenset({"run", "test"})),
}  # fmt: skip
"""The same for single commands of other programs. `npm install` may make links."""
PROJECT_RUNNERS = frozenset({"poetry", "uv"})
"""Programs whose command `run` runs the program that follows."""
VENV = re.compile(r"(?:-\w*m)?venv")
"""The module of Python for virtual environments. It makes the link `lib64`."""


def split_list(command: str) -> list[str]:
    """Return the commands of a list, without redirections; none if it is not certain what they do together.

    A single command without a redirection is no list.
    """
    text = command.strip(" \t\n")
    tokens = _read_tokens(text) if len(text) <= LONGEST and text.replace("\t", " ").isprintable() else None
    if tokens is None or all(kind == "word" for kind, _ in tokens):
        return []
    commands, operators = [list[str]()], [";"]
    for kind, token in tokens:
        if kind == "operator":
            operators.append(token)
            commands.append([])
        elif kind == "word":
            commands[-1].append(token)
    if operators[-1] == ";" and not commands[-1]:
        operators.pop()
        commands.pop()
    lines = [" ".join(words) for words in commands]
    last = len(lines) - 1
    certain = len(lines) <= MOST_COMMANDS and all(
        _is_certain(line, gets_input=operator == "|", is_first=at == 0, is_last=at == last)
        for at, (operator, line) in enumerate(zip(operators, lines, strict=True))
    )
    return lines if certain else []


def _read_tokens(text: str) -> list[tuple[str, str]] | None:
    """Return the tokens of a list with their kinds; None if it has anything else."""
    tokens, at = list[tuple[str, str]](), 0
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None or token.lastgroup is None:
            return None
        tokens.append((token.lastgroup, token[token.lastgroup]))
        at = token.end()
    return tokens


def _is_certain(line: str, *, gets_input: bool, is_first: bool, is_last: bool) -> bool:
    """Return whether rules can read a command alone. `gets_input` is whether its input is the output of another one."""
    argv = argv_of(line)
    if argv is None or (gets_input and not _is_filter(*argv)):
        return False
    if not is_first and SHELLS.fullmatch(program_of(argv).name):  # it may run what another command has written
        return False
    return is_last or _is_steady(argv)


def _is_filter(program: str, *arguments: str) -> bool:
    """Return whether a program neither runs nor stores its input, and opens no file that its input names."""
    refused = READING_OPTIONS.get(program, r"(?!)")
    return program in FILTERS and not any(re.fullmatch(refused, word, re.DOTALL) for word in arguments)


def _is_steady(argv: Sequence[str]) -> bool:
    """Return whether the next command means the same as before."""
    if any(map(VENV.fullmatch, argv)):
        return False
    program, arguments, _ = program_of(argv)
    if program in PROJECT_RUNNERS and arguments[:1] == ["run"]:
        program, arguments, _ = program_of(arguments[1:])
    rest = split_git(arguments)[1] if program == "git" else arguments
    return program in STEADY or not STEADY_COMMANDS.get(program, frozenset()).isdisjoint(rest[:1])
