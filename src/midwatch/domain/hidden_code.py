"""Hidden code: whether a plain command may run something that its words do not show.

A rule that denies `git push` cannot see what `python -c CODE` or `xargs git` runs. A person is asked about such a
command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

SHELLS = re.compile(r"(?:r?ba|z|da|k|a|c|tc|fi|mk|r)?sh|busybox|toybox|pwsh|powershell|nu|elvish|xonsh")
INTERPRETERS = re.compile(
    r"(?:python|pypy|ipython|perl|ruby|irb|node|nodejs|deno|bun|tsx|ts-node|php|lua|luajit|tclsh|wish|osascript|"
    r"rscript|julia|ghci|runghc|guile|racket|emacs|vim|vi|nvim|ex|ed|gdb|lldb)[\d.]*"
)
INLINE = re.compile(
    r"-[a-z]*[cerpbx].*|-[a-z]*s|\+.*|-|--(?:eval|exec|print|command|require|import|run|batch|init|loader).*",
    re.IGNORECASE,
)
"""Options with which a shell or an interpreter runs code from its arguments or from its input."""
HARMLESS = re.compile(r"--?(?:version|help|V|h|v)")
ALWAYS = frozenset({"eval", "xargs", "parallel", "trap", "alias", "at", "batch", "expect", "m4", "crontab", "fc"})
"""Programs that run what they read or compute."""
AGAIN = frozenset({
    "ssh", "su", "runuser", "sg", "watch", "script", "tmux", "screen", "flock", "docker", "podman", "kubectl",
    "nsenter", "systemd-run", "nix-shell", "mosh", "rsync", "tar", "npm", "npx", "just", "entr",
})  # fmt: skip
"""Programs that may pass an argument to a shell, which reads it once more."""
SHELL_SIGNS = re.compile(r"[\s;&|<>(){}*?\[\]\\'\"!~#%]")
EXPANDS = re.compile(r"\$[A-Za-z_{('\"@*!]|`")
"""What a shell replaces by something else; in quotes it stays, until another program reads it once more."""
AWK = re.compile(r"[gmn]?awk")
AWK_RUNS = re.compile(r"system|getline|\||@")
GIT_FRONT = re.compile(r"-c.*|--config-env.*|--exec-path.*")
"""Options before the command of git, such as `-c alias.p=push`."""
GIT_RUNS = re.compile(r"--upload-pack.*|--receive-pack.*|-x.*|--exec.*|--config.*|--open-files-in-pager.*|-O.*|foreach")
SED_RUNS = re.compile(r"(?:^|[\s;{}\d$/!,])e(?:\s|$)|\W[gpim\d]*e[gpime\d]*$", re.IGNORECASE)
MAKE_RUNS = re.compile(r"--eval.*|[A-Z_]+=.*|SHELL.*")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)


def hides_code(argv: Sequence[str]) -> bool:
    """Return whether a command may run something that its words do not show. In doubt, return True."""
    if any(EXPANDS.search(word) for word in argv):
        return True
    return any(_hides(_base(word), list(argv[at + 1 :])) for at, word in enumerate(argv))


def _hides(program: str, arguments: list[str]) -> bool:
    """Return whether `program`, if it runs with these arguments, may run something else."""
    if program in ALWAYS:
        return True
    if program == "env":
        options = [word for word in arguments if word.startswith("-") or ASSIGNMENT.fullmatch(word)]
        return any(ASSIGNMENT.fullmatch(word) or re.match(r"-\w*S|--split", word) for word in options)
    if SHELLS.fullmatch(program) or INTERPRETERS.fullmatch(program):
        return _takes_code(arguments)
    if AWK.fullmatch(program):
        return any(AWK_RUNS.search(word) for word in arguments)
    if program == "git":
        front = takewhile(lambda word: word.startswith("-") or "=" in word, arguments)
        return any(map(GIT_FRONT.fullmatch, front)) or any(map(GIT_RUNS.fullmatch, arguments))
    if program in ("make", "gmake"):
        return any(map(MAKE_RUNS.fullmatch, arguments))
    if program in ("sed", "gsed"):
        return any(SED_RUNS.search(word) for word in arguments if not word.startswith("-"))
    return program in AGAIN and any(map(SHELL_SIGNS.search, arguments))


def _takes_code(arguments: list[str]) -> bool:
    """Return whether a shell or an interpreter gets code from its arguments or its input, and not from a file."""
    for word in arguments:
        if HARMLESS.fullmatch(word):
            return False
        if word == "-m":
            return False  # a module of Python
        if INLINE.fullmatch(word):
            return True
        if not word.startswith("-"):
            return False
    return True


def _base(word: str) -> str:
    return word.rpartition("/")[2].casefold()
