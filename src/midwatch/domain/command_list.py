"""Lists of commands, such as `a && b` and `a | b`: split them into commands that rules can read one by one.

A list is split only if this loses nothing: no command may change how the shell or a rule reads the next ones, and what
gets the output of another command must not run it. Any other list is not certain.
"""

from __future__ import annotations

import re

from midwatch.domain.commandline import LONGEST, WORD, argv_of
from midwatch.domain.hidden_code.git import split_git
from midwatch.domain.hidden_code.program import program_of

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
"""Programs that run nothing that they read from their input."""
STEADY = FILTERS | frozenset({
    "[", "basename", "black", "cargo", "cmp", "comm", "curl", "date", "df", "diff", "dirname", "du", "echo", "eslint",
    "false", "file", "find", "go", "jest", "ls", "make", "mkdir", "mypy", "node", "npm", "pip", "pip3", "pnpm",
    "poetry", "prettier", "printf", "ps", "pwd", "pyright", "pytest", "python", "python3", "readlink", "realpath",
    "rm", "rmdir", "ruff", "seq", "sleep", "stat", "test", "touch", "tox", "tree", "true", "tsc", "uv", "vitest",
    "whereis", "which", "yarn",
})  # fmt: skip
"""Programs after which the next command means the same as before.

They make no link and no other name of a file, and do not change the shell. Those that build or test run code of the
project, which could do without the next command what it does with it.
"""
STEADY_COMMANDS_OF_GIT = frozenset({
    "add", "blame", "branch", "commit", "diff", "fetch", "grep", "log", "ls-files", "push", "rev-list", "rev-parse",
    "shortlog", "show", "status", "tag",
})  # fmt: skip


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
        _is_certain(line, reads=operator == "|", is_last=at == last)
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


def _is_certain(line: str, *, reads: bool, is_last: bool) -> bool:
    """Return whether a command can be read on its own. `reads` is whether it gets the output of another command."""
    argv = argv_of(line)
    if argv is None or (reads and argv[0] not in FILTERS):
        return False
    if is_last:
        return True
    program, arguments, _ = program_of(argv)
    if program == "git":
        return not STEADY_COMMANDS_OF_GIT.isdisjoint(split_git(arguments)[1][:1])
    return program in STEADY
