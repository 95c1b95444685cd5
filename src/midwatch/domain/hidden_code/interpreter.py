"""Arguments with which a shell or an interpreter gets code that is not in a file."""

from __future__ import annotations

import os.path
import re

from midwatch.domain.hidden_code.program import VERSION

CODE_OPTION = re.compile(
    r"-[a-z]*[cerpbx].*|-[a-z]*s|\+.*|-|data:.*|-[Mmd].*\W.*|.*=data:.*|--(?:ex|experimental-loader)|"
    r"--(?:eval|exec|print|command|cmd|require|import|run|batch|init|loader|one-line|source).*",
    re.IGNORECASE,
)
"""Options with which a shell or an interpreter runs code from its arguments or from its input."""
PYTHON = re.compile(r"(?:python|pythonw|py|pypy)" + VERSION)
PYTHON_OPTION = re.compile(r"-[bBdEhiIOPqRsSuvVx?]*(?:(?P<last>[cmWX])(?P<value>.*))?", re.DOTALL)
PLAIN_MODULES = frozenset({
    "build", "compileall", "ensurepip", "flake8", "http.server", "isort", "json.tool", "mypy", "pip",
    "black", "py_compile", "pylint", "pyright", "pytest", "ruff", "site", "sysconfig", "tox", "unittest", "venv",
})  # fmt: skip
"""Modules of Python that do not run code from their arguments."""
UNIX_SHELL = re.compile(r"(?:ba|da|z|k|mk|a)?sh" + VERSION)
SHELL_OPTION = re.compile(r"[-+](?P<letters>[abefhklmnpruvxBCEHPTo]+)|--(?:norc|noprofile|posix|login|verbose)")
INPUT_FILE = re.compile(r"/dev/(?:stdin|fd/.*|tty)|/proc/.*/fd/.*")
"""Files that are the input of the program."""
LATE_OPTIONS = re.compile(r"(?:ipython|emacs|[nr]?vim|vi|ex|gdb|lldb|ghci|deno|bun)" + VERSION)
"""Interpreters that read options also after the name of a file."""
HELP_OPTION = re.compile(r"--?(?:version|help|V|h|v)")


def interpreter_hides(program: str, arguments: list[str]) -> bool:
    """Return whether a shell or an interpreter gets code from its arguments or its input, and not from a file.

    An option may have a value, so only the first argument is certain to be a file, unless all options are known.
    """
    if any(map(INPUT_FILE.fullmatch, map(os.path.normpath, arguments))):
        return True
    if PYTHON.fullmatch(program):
        return _python_hides(arguments)
    if UNIX_SHELL.fullmatch(program):
        return _shell_hides(arguments)
    if len(arguments) == 1 and HELP_OPTION.fullmatch(arguments[0]):
        return False
    if arguments and not arguments[0].startswith(("-", "+")) and not LATE_OPTIONS.fullmatch(program):
        return False
    if any(CODE_OPTION.fullmatch(word) or word in ("eval", "repl") for word in arguments):
        return True
    return all(word.startswith("-") for word in arguments)


def _python_hides(arguments: list[str]) -> bool:
    words = iter(arguments)
    for word in words:
        option = PYTHON_OPTION.fullmatch(word)
        if not word.startswith("-"):
            return False  # a file; what follows are its own arguments
        if HELP_OPTION.fullmatch(word) and len(arguments) == 1:
            return False
        if word == "-" or option is None or option["last"] == "c":
            return True
        if option["last"] and not option["value"]:
            value = next(words, "")
            if option["last"] == "m":
                return value not in PLAIN_MODULES
        elif option["last"] == "m":
            return option["value"] not in PLAIN_MODULES
    return True


def _shell_hides(arguments: list[str]) -> bool:
    words = iter(arguments)
    for word in words:
        if word == "--":
            return not next(words, "")
        if not word.startswith(("-", "+")):
            return False  # a file; what follows are its own arguments
        if HELP_OPTION.fullmatch(word) and len(arguments) == 1:
            return False
        option = SHELL_OPTION.fullmatch(word)
        if option is None:
            return True
        for _ in range((option["letters"] or "").lower().count("o")):
            next(words, None)
    return True
