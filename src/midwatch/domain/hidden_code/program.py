"""The program that a command starts, and what is known about programs by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from midwatch.domain.hidden_code.database import CONSOLES
from midwatch.domain.hidden_code.git import GIT_TEXT_COMMANDS, split_git

VERSION = (
    r"[\d.]*[dt]?(?:[.-](?:dbg|static|nox|gtk\d?|tiny|basic|athena|preview|\d[\w.]*|(?:x86_64|aarch64)[\w-]*|exe))*"
)
"""What may follow the name of a program: `python3.13t`, `vim.tiny`, `perl5.36-x86_64-linux-gnu`."""
SHELLS = re.compile(
    r"(?:(?:r?ba|z|da|k|a|c|tc|fi|mk|r|ya|lk|pdk|ok|po|sa|hu|y|o|bo)?sh|ksh93|busybox|toybox|pwsh|powershell|nu|elvish|"
    rf"xonsh){VERSION}"
)
INTERPRETERS = re.compile(
    r"(?:python|pythonw|py|pypy|ipython|perl|ruby|irb|node|nodejs|deno|bun|tsx|ts-node|php|lua|luajit|tclsh|wish|"
    r"osascript|rscript|julia|ghci|runghc|guile|racket|emacs|vim|vi|nvim|rvim|ex|ed|gdb|lldb)" + VERSION
)
WRAPPERS = frozenset({
    "sudo", "doas", "env", "nohup", "exec", "command", "builtin", "time", "timeout", "nice", "setsid", "stdbuf",
})  # fmt: skip
"""Programs that run the command in their arguments."""
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
"""A variable before a command: `A=1 make`."""
TEXT_PROGRAMS = frozenset({
    "[", "ack", "ag", "aria2c", "awk", "basename", "cat", "cd", "chmod", "chown", "cmp", "column", "comm", "cp",
    "curl", "cut", "date", "df", "diff", "dirname", "du", "echo", "egrep", "false", "fgrep", "file", "find", "gawk",
    "gh", "glab", "grep", "gsed", "head", "http", "jq", "kill", "ln", "ls", "mawk", "mkdir", "mktemp", "mv",
    "nawk", "paste", "printf", "ps", "pwd", "pytest", "readlink", "realpath", "rev", "rg", "rm", "rmdir", "sed",
    "seq", "sleep", "sort", "stat", "tac", "tail", "tee", "test", "touch", "tr", "tree", "true", "type", "uniq",
    "wc", "wget", "whereis", "which", "xh", "yq",
})  # fmt: skip
"""Programs that take any text, such as a pattern or a message, and do not run it.

Some of them run code if they get certain arguments.
"""
TEXT_COMMANDS = {
    "git": GIT_TEXT_COMMANDS,
    "go": frozenset({"test", "vet", "build", "fmt", "list"}),
    "cargo": frozenset({"test", "build", "check", "clippy", "fmt"}),
    **dict.fromkeys(["docker", "podman"], frozenset({"ps", "images", "logs", "inspect", "version", "stop", "rm"})),
    "kubectl": frozenset({"get", "describe", "logs", "top", "version"}),
}
"""The same for single commands of other programs."""


class Program(NamedTuple):
    """The program that a command starts; its name is empty if there is none."""

    name: str
    arguments: list[str]
    takes_text: bool
    """Whether it takes any text, such as a message, and runs none of it."""


def program_of(argv: Sequence[str]) -> Program:
    """Return the program behind wrappers such as `sudo`.

    Options of wrappers may have values, so there must be none.
    """
    words = list(argv)
    if words[:1] == ["command"] and words[1:2] in (["-v"], ["-V"]):
        return Program("type", words[2:], True)
    while words and base_name(words[0]) in WRAPPERS:
        words.pop(0)
        if words[:1] == ["-n"]:
            words.pop(0)
        if words and re.fullmatch(r"\d+[smh]?", words[0]):
            words.pop(0)
    if not words:
        return Program("", [], False)
    program, arguments = base_name(words[0]), words[1:]
    if program in TEXT_COMMANDS:
        rest = split_git(arguments)[1] if program == "git" else arguments
        return Program(program, arguments, not TEXT_COMMANDS[program].isdisjoint(rest[:1]))
    return Program(program, arguments, program in TEXT_PROGRAMS or program in CONSOLES)


def is_shell_or_interpreter(program: str) -> bool:
    """Return whether this is the name or the path of a shell or of an interpreter."""
    name = program.rpartition("/")[2]
    return bool(SHELLS.fullmatch(name) or INTERPRETERS.fullmatch(name))


def base_name(word: str) -> str:
    """Return the name of a program without its path, in lower case."""
    return word.rpartition("/")[2].casefold().removesuffix(".exe")
