"""Hidden code: whether a plain command may run something that its words do not show.

A rule that denies `git push` cannot see what `python -c CODE` or `xargs git` runs. A person is asked about such a
command.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Sequence

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
INLINE = re.compile(
    r"-[a-z]*[cerpbx].*|-[a-z]*s|\+.*|-|data:.*|-[Mmd].*\W.*|.*=data:.*|--(?:ex|experimental-loader)|"
    r"--(?:eval|exec|print|command|cmd|require|import|run|batch|init|loader|one-line|source).*",
    re.IGNORECASE,
)
"""Options with which a shell or an interpreter runs code from its arguments or from its input."""
PYTHON = re.compile(r"(?:python|pythonw|py|pypy)" + VERSION)
PYTHON_OPTION = re.compile(r"-[bBdEhiIOPqRsSuvVx?]*(?:(?P<last>[cmWX])(?P<value>.*))?", re.DOTALL)
MODULES = frozenset({
    "build", "compileall", "ensurepip", "flake8", "http.server", "isort", "json.tool", "mypy", "pip",
    "black", "py_compile", "pylint", "pyright", "pytest", "ruff", "site", "sysconfig", "tox", "unittest", "venv",
})  # fmt: skip
"""Modules of Python that do not run code from their arguments."""
UNIX_SHELL = re.compile(r"(?:ba|da|z|k|mk|a)?sh" + VERSION)
SHELL_OPTION = re.compile(r"[-+](?P<letters>[abefhklmnpruvxBCEHPTo]+)|--(?:norc|noprofile|posix|login|verbose)")
INPUT = re.compile(r"/dev/(?:stdin|fd/.*|tty)|/proc/.*/fd/.*")
ANYWHERE = re.compile(r"(?:ipython|emacs|[nr]?vim|vi|ex|gdb|lldb|ghci|deno|bun)" + VERSION)
"""Interpreters that read options also after the name of a file."""
HARMLESS = re.compile(r"--?(?:version|help|V|h|v)")
ALWAYS = frozenset({
    "eval", "xargs", "parallel", "trap", "alias", "at", "batch", "expect", "m4", "crontab", "fc", "socat", "wsl",
    "timeit", "xdotool", "ydotool", "wtype",
})  # fmt: skip
"""Programs that run what they read or compute."""
AGAIN = frozenset({
    "ssh", "su", "runuser", "sg", "watch", "script", "tmux", "screen", "flock", "docker", "podman", "kubectl",
    "nsenter", "systemd-run", "nix-shell", "mosh", "rsync", "tar", "just", "entr", "scp", "sftp", "autossh", "sshfs",
})  # fmt: skip
"""Programs that may pass an argument to a shell, which reads it once more."""
SHELL_SIGNS = re.compile(r"[\s;&|<>(){}*?\[\]\\'\"!~#%]")
EXPANDS = re.compile(r"\$[A-Za-z_{('\"@*!]|`")
"""What a shell replaces by something else; in quotes it stays, until another program reads it once more."""
AWK = re.compile(r"[gmn]?awk")
AWK_RUNS = re.compile(r"system|getline|\||@|ARGV|print[^;}]*>")
"""What runs a program in a script of awk, or uses a file that is not an argument."""
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
GIT_COMMANDS = GIT_SPEAKS | frozenset({
    "am", "annotate", "apply", "archive", "bisect", "bundle", "cat-file", "check-attr", "check-ignore", "cherry",
    "clean", "clone", "commit-tree", "config", "count-objects", "describe", "diff-files", "diff-index", "diff-tree",
    "fetch", "for-each-ref", "format-patch", "fsck", "gc", "hash-object", "help", "init", "ls-files", "ls-remote",
    "ls-tree", "merge-base", "merge-file", "merge-tree", "mktree", "mv", "name-rev", "pack-refs", "prune", "pull",
    "push", "range-diff", "read-tree", "rebase", "reflog", "remote", "repack", "replace", "request-pull", "rerere",
    "rev-parse", "rm", "show-ref", "sparse-checkout", "stripspace", "submodule", "symbolic-ref", "update-index",
    "update-ref", "verify-commit", "verify-tag", "version", "whatchanged", "worktree", "write-tree",
})  # fmt: skip
"""Commands of git itself. Any other word may be an alias, or run another program."""
SED_ADDRESS = r"(?:\d+|\$|/(?:[^/\\\n]|\\.)*/[IM]*)"
SED_PLAIN = re.compile(
    rf"(?:\s*(?:{SED_ADDRESS}(?:[,~][+~]?{SED_ADDRESS})?)?\s*!?\s*(?:[pdDgGhHnNxlz=]|[qQ]\d*|[{{}}]|[aic][^\n]*|"
    r"[:btT]\s*\w*|[sy](?P<sign>[^\w\s\\])(?:\\.|(?!(?P=sign))[^\\\n])*(?P=sign)(?:\\.|(?!(?P=sign))[^\\\n])*(?P=sign)"
    r"[gpiIMm\d]*)?\s*(?:[;\n]|(?<=\{)|(?=\})|$))*",
    re.DOTALL,
)
"""A script of sed that runs no program, and reads and writes no other file."""
SED_OPTION = re.compile(r"-[nErsuz]*(?:i.*|(?P<last>[efl])(?P<value>.*))?", re.DOTALL)
SED_LONG = re.compile(r"--(?:quiet|silent|regexp-extended|null-data|separate|posix|debug|in-place(?:=.*)?)")
SQL = re.compile(r"psql|mysql|mariadb|.qlite3?|duckdb")
"""Consoles of databases. The dot is a letter: the domain names no store."""
SQL_WORD = re.compile(r"(?!\.[a-z])[\w./:@=,+-]*", re.IGNORECASE)
SQL_PLAIN = re.compile(
    r"\s*(?:select|explain|show|describe|desc|with|values|insert|update|delete)\b[^\\;|!`]*;?\s*", re.IGNORECASE
)
SQL_CALL = re.compile(r"([\w.$\"\]*/]*)\s*\(")
SQL_CALLS = frozenset({
    "", "abs", "and", "as", "avg", "cast", "coalesce", "count", "date", "distinct", "exists", "from", "in", "length",
    "lower", "max", "min", "not", "now", "or", "round", "select", "sum", "upper", "values", "version", "where",
})  # fmt: skip
"""Functions and words before a bracket that run nothing. Others may run a program, such as `edit`."""
SQL_RUNS = re.compile(r"\b(?:copy|program|outfile|dumpfile|execute|load\w*)\b", re.IGNORECASE)
SQL_OPTION = re.compile(r"-c|-e|-cmd|--(?:command|execute)=")
OPTIONS = {
    "r": r"-e.*", "elixir": r"-e.*|--eval.*|--rpc.*", "iex": r"-.*", "erl": r"-.*", "groovy": r"-.*", "scala": r"-.*",
    "clojure": r"-.*", "clj": r"-.*", "bb": r"-.*", "swift": r"-e.*", "octave": r"--eval.*", "jshell": r".*",
    "view": r"-c.*|\+.*|--cmd.*|-S.*", "vimdiff": r"-c.*|\+.*|--cmd.*|-S.*", "gvim": r"-c.*|\+.*|--cmd.*|-S.*",
    "less": r"\+.*", "more": r"\+.*", "man": r"-[a-zA-Z]*[PH].*|--pager.*|--html.*", "dc": r"-e.*|--expression.*",
    "nc": r"-[a-zA-Z]*[ec].*", "ncat": r"-[a-zA-Z]*[ec].*|--(?:.*exec|lua).*", "netcat": r"-[a-zA-Z]*[ec].*",
    "lldb": r"-[a-zA-Z]*[oOkK].*", "cargo": r"--config.*", "yarn": r"exec", "screen": r"-X", "yq": r"--security.*",
    "tmux": r"send.*|load-b.*|set-b.*|paste.*|if.*|run.*|pipe.*|bind.*|source.*", "rg": r"--pre.*|--hostname-bin.*",
    "fd": r"-[a-zA-Z]*[xX].*|--exec.*", "fdfind": r"-[a-zA-Z]*[xX].*|--exec.*", "find": r"-(?:exec|ok).*",
    "ack": r"--pager.*", "ag": r"--pager.*", "aria2c": r"--on-.*", "scp": r"-o.*|-S.*", "sftp": r"-o.*|-S.*|-b.*",
    "strace": r".*[|!].*", "ltrace": r".*[|!].*",
    "tar": r"--(?:check|use|to-|info|new|rsh).*|-?[a-zA-Z]*[IF][a-zA-Z]*", "su": r"-[a-zA-Z]*c.*|--.*command.*",
    "runuser": r"-[a-zA-Z]*c.*|--.*command.*", "sg": r"-c.*", "zip": r"-TT.*|--unzip.*", "split": r"--filter.*",
    "sort": r"--comp.*", "tcpdump": r"-[a-zA-Z]*z.*", "rsync": r"--rsync-path.*|--rsh.*",
    "ssh": r"(?i:.*(?:command|exec)[= ].*)", "glab": r"alias|config",
    "gh": r"alias|extensions?|ext|config|codespace|cs|--", "printf": r"-v.*", "wget": r"--use-ask.*|-e.*|--exec.*",
    "test": r".*[$`].*", "[": r".*[$`].*", "cmd": r"/.*", "just": r"-c|--command|--shell.*|--set|.*=.*",
}  # fmt: skip
"""For some programs, the arguments with which they run another program."""
WRAPPERS = frozenset({
    "sudo", "doas", "env", "nohup", "exec", "command", "builtin", "time", "timeout", "nice", "setsid", "stdbuf",
})  # fmt: skip
BUILTINS = frozenset({"compgen", "complete", "mapfile", "readarray", "bind", "enable"})
"""Commands inside a shell that run a text."""
SPEAKING = frozenset({
    "[", "ack", "ag", "aria2c", "awk", "basename", "cat", "cd", "chmod", "chown", "cmp", "column", "comm", "cp",
    "curl", "cut", "date", "df", "diff", "dirname", "du", "echo", "egrep", "false", "fgrep", "file", "find", "gawk",
    "gh", "glab", "grep", "gsed", "head", "http", "jq", "kill", "ln", "ls", "mawk", "mkdir", "mktemp", "mv",
    "nawk", "paste", "printf", "ps", "pwd", "pytest", "readlink", "realpath", "rev", "rg", "rm", "rmdir", "sed",
    "seq", "sleep", "sort", "stat", "tac", "tail", "tee", "test", "touch", "tr", "tree", "true", "type", "uniq",
    "wc", "wget", "whereis", "which", "xh", "yq",
})  # fmt: skip
"""Programs that take any text, such as a pattern or a message, and do not run it; or that are looked at above."""
SPEAKING_VERBS = {
    "git": GIT_SPEAKS,
    "go": frozenset({"test", "vet", "build", "fmt", "list"}),
    "cargo": frozenset({"test", "build", "check", "clippy", "fmt"}),
    **dict.fromkeys(["docker", "podman"], frozenset({"ps", "images", "logs", "inspect", "version", "stop", "rm"})),
    "kubectl": frozenset({"get", "describe", "logs", "top", "version"}),
}
"""Commands of other programs that take any text and do not run it."""
NOUNS = {"gh": frozenset({
    "api", "attestation", "auth", "browse", "cache", "gist", "issue", "label", "org", "pr", "project", "release",
    "repo", "ruleset", "run", "search", "secret", "ssh-key", "status", "variable", "workflow", "help", "version",
    "--version",
}), "glab": frozenset({
    "api", "auth", "check-update", "ci", "cluster", "deploy-key", "help", "incident", "issue", "iteration", "job",
    "label", "mr", "milestone", "release", "repo", "schedule", "securefile", "snippet", "ssh-key", "token", "user",
    "variable", "version", "--version",
})}  # fmt: skip
"""Commands of these programs themselves. Any other word may be an alias."""
SHELL_RUNS = re.compile(r"[;|]|&&|^\.[a-z]+\s|\s.*[*?\[{]|[*?\[{].*\s|^\\", re.DOTALL)
"""What a shell runs or changes, and commands such as `.shell x` or `\\write` of other programs."""
CODE_OPTION = re.compile(
    r"--?(?:[eEcx]|eval|exec|execute|expr|command|cmd|call|run|script|shell|batch|preview|bind)(?:=(?P<long>.+))?|"
    r"-[a-zA-Z]?[eEcx](?P<short>.+)",
    re.DOTALL,
)
"""Options with which unknown programs may run code."""
CODE_SIGNS = re.compile(r"[\s(){}*?\[\]'\"<>~]|^data:")
MAKE_RUNS = re.compile(
    r"--ev.*|-[a-zA-Z]*E.*|(?:\.?SHELL|MAKE|GNUMAKE)[A-Z]*[+:?!]*=.*|[A-Za-z_.][\w.]*[+:?!]*=.*[^\w./:,=@+-].*",
    re.DOTALL,
)
"""Arguments of make with code, or with a variable that has more than one word."""
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)


def hides_code(argv: Sequence[str]) -> bool:
    """Return whether a command may run something that its words do not show. In doubt, return True."""
    program, arguments, speaks = start_of(argv)
    if speaks or program in BUILTINS:
        return program in BUILTINS or _hides(program, arguments)
    if any(EXPANDS.search(word) or SHELL_RUNS.search(word) for word in argv):
        return True
    return _has_code_option(argv) or any(_hides(_base(word), list(argv[at + 1 :])) for at, word in enumerate(argv))


def start_of(argv: Sequence[str]) -> tuple[str, list[str], bool]:
    """Return the program behind wrappers such as `sudo`, its arguments, and whether it takes any text and runs none.

    Options of wrappers may have values, so there must be none.
    """
    words = list(argv)
    if words[:1] == ["command"] and words[1:2] in (["-v"], ["-V"]):
        return "type", words[2:], True
    while words and _base(words[0]) in WRAPPERS:
        words.pop(0)
        if words[:1] == ["-n"]:
            words.pop(0)
        if words and re.fullmatch(r"\d+[smh]?", words[0]):
            words.pop(0)
    if not words:
        return "", [], False
    program, arguments = _base(words[0]), words[1:]
    if program in SPEAKING_VERBS:
        rest = split_git(arguments)[1] if program == "git" else arguments
        return program, arguments, not SPEAKING_VERBS[program].isdisjoint(rest[:1])
    return program, arguments, program in SPEAKING or SQL.fullmatch(program) is not None


def _has_code_option(argv: Sequence[str]) -> bool:
    """Return whether a word after an option such as `--eval`, or within it, looks like code."""
    for at, word in enumerate(argv):
        if option := CODE_OPTION.fullmatch(word):
            value = option["long"] or option["short"] or "".join(argv[at + 1 : at + 2])
            if CODE_SIGNS.search(value):
                return True
    return False


def _hides(program: str, arguments: list[str]) -> bool:
    """Return whether `program`, if it runs with these arguments, may run something else."""
    if program in ALWAYS:
        return True
    if program == "env":
        options = [word for word in arguments if word.startswith("-") or ASSIGNMENT.fullmatch(word)]
        return any(ASSIGNMENT.fullmatch(word) or re.match(r"-\w*S|--split", word) for word in options)
    if program in OPTIONS and any(re.fullmatch(OPTIONS[program], word, re.DOTALL) for word in arguments):
        return True
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
    if SQL.fullmatch(program):
        return any(map(_sql_hides, arguments))
    if program in NOUNS and arguments and NOUNS[program].isdisjoint(arguments[:1]):
        return True
    if not SPEAKING_VERBS.get(program, frozenset()).isdisjoint(arguments[:1]):
        return False
    return program in AGAIN and any(map(SHELL_SIGNS.search, arguments))


def _takes_code(program: str, arguments: list[str]) -> bool:
    """Return whether a shell or an interpreter gets code from its arguments or its input, and not from a file.

    An option may have a value, so only the first argument is certain to be a file, unless all options are known.
    """
    if any(map(INPUT.fullmatch, map(os.path.normpath, arguments))):
        return True
    if PYTHON.fullmatch(program):
        return _python_takes_code(arguments)
    if UNIX_SHELL.fullmatch(program):
        return _shell_takes_code(arguments)
    if len(arguments) == 1 and HARMLESS.fullmatch(arguments[0]):
        return False
    if arguments and not arguments[0].startswith(("-", "+")) and not ANYWHERE.fullmatch(program):
        return False
    if any(INLINE.fullmatch(word) or word in ("eval", "repl") for word in arguments):
        return True
    return all(word.startswith("-") for word in arguments)


def _python_takes_code(arguments: list[str]) -> bool:
    words = iter(arguments)
    for word in words:
        option = PYTHON_OPTION.fullmatch(word)
        if not word.startswith("-"):
            return False  # a file; what follows are its own arguments
        if HARMLESS.fullmatch(word) and len(arguments) == 1:
            return False
        if word == "-" or option is None or option["last"] == "c":
            return True
        if option["last"] and not option["value"]:
            value = next(words, "")
            if option["last"] == "m":
                return value not in MODULES
        elif option["last"] == "m":
            return option["value"] not in MODULES
    return True


def _shell_takes_code(arguments: list[str]) -> bool:
    words = iter(arguments)
    for word in words:
        if word == "--":
            return not next(words, "")
        if not word.startswith(("-", "+")):
            return False  # a file; what follows are its own arguments
        if HARMLESS.fullmatch(word) and len(arguments) == 1:
            return False
        option = SHELL_OPTION.fullmatch(word)
        if option is None:
            return True
        for _ in range((option["letters"] or "").lower().count("o")):
            next(words, None)
    return True


def _git_hides(arguments: list[str]) -> bool:
    """Return whether git may run another program, or stores a setting with which it does so later."""
    front, rest = split_git(arguments)
    if rest and rest[0] not in GIT_COMMANDS:
        return True
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
    if rest[:1] == ["rebase"] and any(re.match(r"-[a-zA-Z]*x", word) for word in rest):
        return True
    return rest[:1] == ["bisect"] and "run" in rest


def split_git(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options before the command of git, and the command with its arguments."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in GIT_VALUES else 1
    return arguments[:at], arguments[at:]


def _sed_hides(arguments: list[str]) -> bool:
    """Return whether a script of sed may run a program, or use a file that is not an argument."""
    scripts: list[str] = []
    others: list[str] = []
    given, words = False, iter(arguments)
    for word in words:
        if word == "-" or not word.startswith("-"):
            others.append(word)
        elif word.startswith("--"):
            name, _, value = word.partition("=")
            if name == "--expression":
                given = True
                scripts.append(value if "=" in word else next(words, ""))
            elif not SED_LONG.fullmatch(word):
                return True
        elif (option := SED_OPTION.fullmatch(word)) is None:
            return True
        elif option["last"]:
            value = option["value"] or next(words, "")
            given = given or option["last"] != "l"
            scripts += [value] if option["last"] == "e" else []
    if not given or others[:1] == [""]:  # on a Mac, the word after `-i` is the end of a name
        scripts += others[: 2 if others[:1] == [""] else 1]
    return not all(map(SED_PLAIN.fullmatch, scripts))


def _sql_hides(word: str) -> bool:
    """Return whether an argument of a database console may run a program."""
    if SQL_WORD.fullmatch(word):
        return False
    option = SQL_OPTION.match(word)
    text = word[option.end() :] if option else word
    if SQL_PLAIN.fullmatch(text) is None or SQL_RUNS.search(text):
        return True
    return any(call.lower() not in SQL_CALLS for call in SQL_CALL.findall(text))


def _base(word: str) -> str:
    return word.rpartition("/")[2].casefold().removesuffix(".exe")


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
    if any(re.fullmatch(r"git(?: \S+){1,3}", text) and _git_hides(text.split()[1:]) for text in texts):
        return True
    return any(_line_hides(line) for text in texts for line in text[:LONGEST_TEXT].splitlines())


def seems_command(text: str) -> bool:
    """Return whether a text begins with the name of a known program."""
    words = text.split(maxsplit=1)
    return bool(words) and _is_known(words[0].rpartition("/")[2])


def _line_hides(line: str) -> bool:
    found = TO_SHELL.match(line)
    if found and _is_engine(found[1]):
        return True
    return any(_seems_to_hide(part) for part in {line, *re.split(r"[;&|]+", line)})


def _seems_to_hide(part: str) -> bool:
    """Return whether a part of a line begins like a command and hides code."""
    words = part.split()
    if words and words[0] == "env" and EXPLICIT.search(part):
        return True
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
    return (EXPLICIT.search(text) or QUOTED.search(text)) is not None and hides_code(_split(text))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _is_engine(program: str) -> bool:
    name = program.rpartition("/")[2]
    return bool(SHELLS.fullmatch(name) or INTERPRETERS.fullmatch(name))


def _is_known(program: str) -> bool:
    others = (
        program in AGAIN
        or SQL.fullmatch(program) is not None
        or program in OPTIONS
        or program in ("git", "make", "sed", "env")
        or program in SPEAKING
    )
    return others or _is_engine(program) or AWK.fullmatch(program) is not None
