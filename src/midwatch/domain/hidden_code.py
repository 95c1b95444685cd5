"""Hidden code: whether a plain command may run something that its words do not show.

A rule that denies `git push` cannot see what `python -c CODE` or `xargs git` runs. A person is asked about such a
command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

SHELLS = re.compile(r"(?:(?:r?ba|z|da|k|a|c|tc|fi|mk|r)?sh|busybox|toybox|pwsh|powershell|nu|elvish|xonsh)[\d.-]*")
INTERPRETERS = re.compile(
    r"(?:python|pypy|ipython|perl|ruby|irb|node|nodejs|deno|bun|tsx|ts-node|php|lua|luajit|tclsh|wish|osascript|"
    r"rscript|julia|ghci|runghc|guile|racket|emacs|vim|vi|nvim|ex|ed|gdb|lldb)[\d.]*"
)
INLINE = re.compile(
    r"-[a-z]*[cerpbx].*|-[a-z]*s|\+.*|-|--(?:eval|exec|print|command|require|import|run|batch|init|loader).*",
    re.IGNORECASE,
)
"""Options with which a shell or an interpreter runs code from its arguments or from its input."""
PYTHON = re.compile(r"(?:python|pypy|ipython)[\d.]*")
MODULES = frozenset({
    "build", "compileall", "coverage", "ensurepip", "flake8", "http.server", "isort", "json.tool", "mypy", "pip",
    "black", "py_compile", "pylint", "pyright", "pytest", "ruff", "site", "sysconfig", "tox", "unittest", "venv",
})  # fmt: skip
"""Modules of Python that do not run code from their arguments."""
ANYWHERE = re.compile(r"(?:ipython|emacs|n?vim|vi|ex|gdb|lldb|ghci|deno|bun)[\d.]*")
"""Interpreters that read options also after the name of a file."""
HARMLESS = re.compile(r"--?(?:version|help|V|h|v)")
ALWAYS = frozenset(
    {"eval", "xargs", "parallel", "trap", "alias", "at", "batch", "expect", "m4", "crontab", "fc", "socat"}
)
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
GIT_VALUES = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env"})
GIT_RUNS = re.compile(
    r"--upl.*|--rece.*|-x.*|--ex(?:e.*|t.*)?|--conf.*|--template.*|--open.*|-O.*|--.*-cmd.*|foreach|filter-branch|"
    r"send-pack|http-push|remote-.*|\w+::.*"
)
GIT_READS = frozenset({"-l", "--list", "--get", "--get-all", "--get-regexp", "--get-urlmatch", "get", "list"})
GIT_KEYS = re.compile(
    r"(?:user|color|pull|push|branch|advice|rerere)\.[^!]*|init\.defaultbranch|core\.(?:autocrlf|filemode|eol)", re.I
)
"""Settings of git that never name a program."""
GIT_SPEAKS = frozenset({
    "add", "blame", "branch", "checkout", "cherry-pick", "commit", "diff", "grep", "log", "merge", "notes", "reset",
    "restore", "rev-list", "revert", "shortlog", "show", "stash", "status", "switch", "tag",
})  # fmt: skip
"""Commands of git that take any text, such as a message, and do not run it."""
SED_ADDRESS = r"(?:\d+|\$|/(?:[^/\\]|\\.)*/[IM]*)"
SED_RUNS = re.compile(
    rf"(?:^|[\s;{{}}\d$/!,])e(?:\s|$)|\W[gpim\d]*e[gpime\d]*$|(?:^|[;{{}}])\s*{SED_ADDRESS}(?:[,~][+~]?{SED_ADDRESS})?\s*!?\s*e",
    re.IGNORECASE,
)
SED_OPTION = re.compile(r"--[a-z]+=|-[a-zA-Z]*?e")
OPTIONS = {
    "r": r"-e.*", "elixir": r"-e.*|--eval.*|--rpc.*", "iex": r"-.*", "erl": r"-.*", "groovy": r"-.*", "scala": r"-.*",
    "clojure": r"-.*", "clj": r"-.*", "bb": r"-.*", "swift": r"-e.*", "octave": r"--eval.*", "jshell": r".*",
    "view": r"-c.*|\+.*|--cmd.*|-S.*", "vimdiff": r"-c.*|\+.*|--cmd.*|-S.*", "gvim": r"-c.*|\+.*|--cmd.*|-S.*",
    "less": r"\+.*", "more": r"\+.*", "man": r"-[a-zA-Z]*[PH].*|--pager.*|--html.*", "dc": r"-e.*|--expression.*",
    "psql": r"-[a-zA-Z]*c.*|--command.*", "mysql": r"-[a-zA-Z]*e.*|--exec.*", "mariadb": r"-[a-zA-Z]*e.*|--exec.*",
    "strace": r".*[|!].*", "ltrace": r".*[|!].*",
    "tar": r"--(?:check|use|to-|info|new|rsh).*|-?[a-zA-Z]*[IF][a-zA-Z]*", "su": r"-[a-zA-Z]*c.*|--.*command.*",
    "runuser": r"-[a-zA-Z]*c.*|--.*command.*", "sg": r"-c.*", "zip": r"-TT.*|--unzip.*", "split": r"--filter.*",
    "sort": r"--comp.*", "tcpdump": r"-[a-zA-Z]*z.*", "rsync": r"--rsync-path.*|--rsh.*",
    "ssh": r"(?i:.*(?:command|exec)[= ].*)", "gh": r"alias|extension",
}  # fmt: skip
"""For some programs, the arguments with which they run another program."""
WRAPPERS = frozenset({"sudo", "doas", "env", "nohup", "exec", "command", "time", "timeout", "nice", "setsid", "stdbuf"})
SPEAKING = frozenset({
    "[", "ack", "ag", "aria2c", "awk", "basename", "cat", "cd", "column", "cp", "curl", "cut", "date", "diff",
    "dirname", "echo", "egrep", "fgrep", "find", "gawk", "gh", "glab", "grep", "gsed", "head", "http", "jq", "ls",
    "mawk", "mkdir", "mv", "nawk", "paste", "printf", "pytest", "rg", "rm", "sed", "sort", "tail", "test", "touch",
    "tr", "wc", "wget", "xh", "yq",
})  # fmt: skip
"""Programs that take any text, such as a pattern or a message, and do not run it; or that are looked at above."""
SHELL_RUNS = re.compile(r"[;|]|&&|^\.[a-z]+\s")
"""What a shell runs, and a command such as `.shell x` of the consoles of some databases."""
MAKE_RUNS = re.compile(r"--eval.*|[A-Z_]+=.*|SHELL.*")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)


def hides_code(argv: Sequence[str]) -> bool:
    """Return whether a command may run something that its words do not show. In doubt, return True."""
    if any(EXPANDS.search(word) for word in argv):
        return True
    if any(_hides(_base(word), list(argv[at + 1 :])) for at, word in enumerate(argv)):
        return True
    return any(map(SHELL_RUNS.search, argv)) and not _only_speaks(argv)


def _only_speaks(argv: Sequence[str]) -> bool:
    """Return whether a command takes any text as an argument and does not run it."""
    words = [_base(word) for word in argv]
    while words and (words[0] in WRAPPERS or re.fullmatch(r"-.*|\d+[smh]?", words[0])):
        words.pop(0)
    if words[:1] == ["git"]:
        return not GIT_SPEAKS.isdisjoint(_split_git(words[1:])[1][:1])
    return bool(words) and words[0] in SPEAKING


def _hides(program: str, arguments: list[str]) -> bool:
    """Return whether `program`, if it runs with these arguments, may run something else."""
    if program in ALWAYS:
        return True
    if program == "env":
        options = [word for word in arguments if word.startswith("-") or ASSIGNMENT.fullmatch(word)]
        return any(ASSIGNMENT.fullmatch(word) or re.match(r"-\w*S|--split", word) for word in options)
    if SHELLS.fullmatch(program) or INTERPRETERS.fullmatch(program):
        return _takes_code(program, arguments)
    if AWK.fullmatch(program):
        return any(AWK_RUNS.search(word) for word in arguments)
    if program == "git":
        return _git_hides(arguments)
    if program in ("make", "gmake"):
        return any(map(MAKE_RUNS.fullmatch, arguments))
    if program in ("sed", "gsed"):
        return _sed_hides(arguments)
    if program in OPTIONS and any(re.fullmatch(OPTIONS[program], word, re.DOTALL) for word in arguments):
        return True
    return program in AGAIN and any(map(SHELL_SIGNS.search, arguments))


def _takes_code(program: str, arguments: list[str]) -> bool:
    """Return whether a shell or an interpreter gets code from its arguments or its input, and not from a file.

    An option may have a value, so only the first argument is certain to be a file.
    """
    if len(arguments) == 1 and HARMLESS.fullmatch(arguments[0]):
        return False
    if arguments and not arguments[0].startswith(("-", "+")) and not ANYWHERE.fullmatch(program):
        return False
    for at, word in enumerate(arguments):
        if PYTHON.fullmatch(program) and re.match(r"-[A-Za-z]*m", word):
            return word != "-m" or MODULES.isdisjoint(arguments[at + 1 : at + 2])
        if INLINE.fullmatch(word) or word in ("eval", "repl"):
            return True
    return all(word.startswith("-") for word in arguments)


def _git_hides(arguments: list[str]) -> bool:
    """Return whether git may run another program, or stores a setting with which it does so later."""
    front, rest = _split_git(arguments)
    if any(map(GIT_FRONT.fullmatch, front)) or any(map(GIT_RUNS.fullmatch, rest)):
        return True
    if rest[:1] == ["config"]:
        words = [word for word in rest[1:] if word not in ("--global", "--local", "--worktree", "--system")]
        if words[:1] and words[0] in ("set", "unset", "--unset", "--unset-all", "--add", "--replace-all"):
            words = words[1:]
        reads = words[:1] and (words[0] in GIT_READS or (len(words) == 1 and "." in words[0]))
        return not reads and not (words and GIT_KEYS.fullmatch(words[0]))
    if rest[:1] in (["clone"], ["ls-remote"]) and any(word.startswith("-u") for word in rest):
        return True
    return rest[:1] == ["bisect"] and "run" in rest


def _split_git(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options before the command of git, and the command with its arguments."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in GIT_VALUES else 1
    return arguments[:at], arguments[at:]


def _sed_hides(arguments: list[str]) -> bool:
    for word in arguments:
        if not word.startswith("-"):
            if SED_RUNS.search(word):
                return True
        elif (option := SED_OPTION.match(word)) and SED_RUNS.search(word[option.end() :]):
            return True
    return False


def _base(word: str) -> str:
    return word.rpartition("/")[2].casefold()


# -- texts that may be commands or prose -----------------------------------------------------------------------------

TO_SHELL = re.compile(r"^(?!\s*\|).*\|\s*(?:sudo\s+)?([\w./-]+)(?:\s+-\S*)*\s*(?:$|[;&)'\"`])")
"""A line that pipes something into a program; a row of a Markdown table begins with the sign of a pipe."""
WRITTEN = re.compile(r"(?:alias\s+[\w-]+=|trap\s+['\"]|(?:eval|xargs|crontab|socat|m4)\s+\S)")
QUOTED = re.compile(r"\s(?:'[^']*'|\"[^\"]*\")(?:\s|$)")
PROSE = frozenset({"watch", "script", "screen", "just", "flock"})
VARIABLE = re.compile(r"\$[A-Za-z_{(]")
BACKTICK = re.compile(r"(?<!\S)`")
EXPLICIT = re.compile(r"\s-{1,2}[A-Za-z]")
LONGEST_TEXT = 20_000


def texts_hide_code(texts: Sequence[str]) -> bool:
    """Return whether one of the texts looks like a command that may run something that its words do not show.

    Prose is not a command, even if it names programs.
    """
    if any(_is_engine(text.strip()) for text in texts) and any(re.fullmatch(r"-[a-z]*[cer]", text) for text in texts):
        return True  # a program and its arguments, each alone
    return any(_line_hides(line) for text in texts for line in text[:LONGEST_TEXT].splitlines())


def _line_hides(line: str) -> bool:
    found = TO_SHELL.match(line)
    if found and _is_engine(found[1]):
        return True
    return any(_seems_to_hide(part) for part in {line, *re.split(r"[;&|]+", line)})


def _seems_to_hide(part: str) -> bool:
    """Return whether a part of a line begins like a command and hides code."""
    words = part.split()
    while words and (words[0] in WRAPPERS or ASSIGNMENT.fullmatch(words[0]) or re.fullmatch(r"-.*|\d+", words[0])):
        words.pop(0)
    if not words:
        return False
    if re.match(r"\$[A-Za-z_{(]", words[0]):
        return True
    text, program = " ".join(words), words[0].rpartition("/")[2]  # prose begins with a capital letter
    if WRITTEN.match(text):
        return True
    if program in PROSE or not _is_known(program):
        return False
    if VARIABLE.search(text) or (program not in SPEAKING and BACKTICK.search(text)):  # "find the `x`" is prose
        return True
    if program in AGAIN and QUOTED.search(text):
        return True
    return EXPLICIT.search(text) is not None and _hides(program, _split(text)[1:])


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _is_engine(program: str) -> bool:
    name = program.rpartition("/")[2]
    return bool(SHELLS.fullmatch(name) or INTERPRETERS.fullmatch(name))


def _is_known(program: str) -> bool:
    others = program in AGAIN or program in OPTIONS or program in ("git", "make", "sed", "env") or program in SPEAKING
    return others or _is_engine(program) or AWK.fullmatch(program) is not None
