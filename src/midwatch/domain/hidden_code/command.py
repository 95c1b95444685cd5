"""Whether a command hides code: it may run something that its words do not show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from midwatch.domain.hidden_code.database import CONSOLES, console_hides
from midwatch.domain.hidden_code.git import git_hides
from midwatch.domain.hidden_code.interpreter import interpreter_hides
from midwatch.domain.hidden_code.long_option import RUNNING_LONG_OPTIONS, has_running_option
from midwatch.domain.hidden_code.program import (
    ASSIGNMENT,
    TEXT_COMMANDS,
    TEXT_PROGRAMS,
    WRAPPERS,
    base_name,
    is_shell_or_interpreter,
    program_of,
)
from midwatch.domain.hidden_code.sed import sed_hides

RUN_INPUT = frozenset({
    "eval", "xargs", "parallel", "trap", "alias", "at", "batch", "expect", "m4", "crontab", "fc", "socat", "wsl",
    "timeit", "xdotool", "ydotool", "wtype", "rename", "prename", "file-rename", "perl-rename",
})  # fmt: skip
"""Programs that run what they read or compute."""
PASS_TO_SHELL = frozenset({
    "ssh", "su", "runuser", "sg", "watch", "script", "tmux", "screen", "flock", "docker", "podman", "kubectl",
    "nsenter", "systemd-run", "nix-shell", "mosh", "rsync", "tar", "just", "entr", "scp", "sftp", "autossh", "sshfs",
})  # fmt: skip
"""Programs that may pass an argument to a shell, which reads it once more."""
RUNNING_BUILTINS = frozenset({"compgen", "complete", "mapfile", "readarray", "bind", "enable"})
"""Commands inside a shell that run a text."""
RUNNING_ARGUMENTS = {
    "r": r"-e.*", "elixir": r"-e.*|--eval.*|--rpc.*", "iex": r"-.*", "erl": r"-.*", "groovy": r"-.*", "scala": r"-.*",
    "clojure": r"-.*", "clj": r"-.*", "bb": r"-.*", "swift": r"-e.*", "jshell": r".*",
    "view": r"-c.*|\+.*|--cmd.*|-S.*", "vimdiff": r"-c.*|\+.*|--cmd.*|-S.*", "gvim": r"-c.*|\+.*|--cmd.*|-S.*",
    "less": r"\+.*", "more": r"\+.*", "man": r"-[a-zA-Z]*[PH].*", "dc": r"-e.*",
    "nc": r"-[a-zA-Z]*[ec].*", "ncat": r"-[a-zA-Z]*[ec].*", "netcat": r"-[a-zA-Z]*[ec].*",
    "lldb": r"-[a-zA-Z]*[oOkK].*", "cargo": r"--config.*", "yarn": r"exec", "screen": r"-X",
    "yq": r"(?:--s|-s).*|.*load.*",
    "tmux": r"send.*|load-b.*|set-b.*|paste.*|if.*|run.*|pipe.*|bind.*|source.*", "rg": r"--pre.*|--hostname-bin.*",
    "fd": r"-[a-zA-Z]*[xX].*|--exec.*", "fdfind": r"-[a-zA-Z]*[xX].*|--exec.*", "find": r"-(?:exec|ok).*",
    "aria2c": r"--on-.*", "scp": r"-o.*|-S.*", "sftp": r"-o.*|-S.*|-b.*",
    "strace": r".*[|!].*", "ltrace": r".*[|!].*",
    "tar": r"-?[a-zA-Z]*[IF][a-zA-Z]*|-[^-bCfFgIKLNTVX]*[IF].*", "su": r"-[a-zA-Z]*c.*", "runuser": r"-[a-zA-Z]*c.*",
    "sg": r"-c.*", "zip": r"-TT.*", "tcpdump": r"-[a-zA-Z]*z.*",
    "ssh": r"(?i:.*(?:command|exec)[= ].*)", "glab": r"alias|config",
    "gh": r"alias|extensions?|ext|config|codespace|cs|--", "printf": r"-v.*", "wget": r"-[bcdEFhHKkLmnNpqrSVvx46]*e.*",
    "go": r"--?(?:exec|toolexec|vettool)(?:=.*)?|.*-extld.*", "pytest": r".*--[pt]x\b.*",
    "jq": r".*\b(?:import|include)\s*\".*", **dict.fromkeys(["gcc", "g++", "cc", "c++"], r"--?wrapper.*"),
    **dict.fromkeys(["awk", "gawk"], r"-[il].*|--(?:in|lo).*"),
    "test": r".*[$`].*", "[": r".*[$`].*", "cmd": r"/.*", "just": r"-c|--command|--shell.*|--set|.*=.*",
}  # fmt: skip
"""For some programs, the arguments with which they run another program. `long_option` has other options of theirs."""
ALL_COMMANDS = {"gh": frozenset({
    "api", "attestation", "auth", "browse", "cache", "gist", "issue", "label", "org", "pr", "project", "release",
    "repo", "ruleset", "run", "search", "secret", "ssh-key", "status", "variable", "workflow", "help", "version",
    "--version",
}), "glab": frozenset({
    "api", "auth", "check-update", "ci", "cluster", "deploy-key", "help", "incident", "issue", "iteration", "job",
    "label", "mr", "milestone", "release", "repo", "schedule", "securefile", "snippet", "ssh-key", "token", "user",
    "variable", "version", "--version",
})}  # fmt: skip
"""All commands of programs that have aliases. Any other word may be an alias."""
RSYNC_RUNS = re.compile(r"(?:^|\0)-[^-efBTM@\0]*e\0?+(?!ssh(?:\0|$))")
"""The option -e of rsync with another program than ssh, in its arguments with NUL between them."""
AWK = re.compile(r"[gmn]?awk")
AWK_RUNS = re.compile(r"system|getline|\||@|ARGV|SYMTAB")
AWK_PRINTS = re.compile(r"print[^;}>\"/]*+[;}>\"/]?")
"""What runs a program in a script of awk, or uses a file that is not an argument."""
MAKE_RUNS = re.compile(
    r"-|-[a-zA-Z]*f-|--(?:make)?file=-|.*/dev/(?:stdin|fd/|tty).*|"
    r"--ev.*|-[a-zA-Z]*E.*|(?:\.?SHELL|MAKE|GNUMAKE)[A-Z]*[+:?!]*=.*|[A-Za-z_.][\w.]*[+:?!]*=.*[^\w./:,=@+-].*",
    re.DOTALL,
)
"""Arguments of make with code or its input, or with a variable that has more than one word."""
SHELL_SIGNS = re.compile(r"[\s;&|<>(){}*?\[\]\\'\"!~#%]")
"""What a shell does not read as a part of a plain word."""
SHELL_RUNS = re.compile(r"[;|]|&&|\w\([^)]*['\"(]|\A(?:\(\w|\.[a-z]+\s|\\|(?=.*\s).*[*?\[{])", re.DOTALL)
"""What a shell runs or changes, and what other programs run, such as `shell('x')`, `.shell x` or `\\write`."""
EXPANSION = re.compile(r"\$[A-Za-z_{('\"@*!]|`")
"""What a shell replaces by something else; in quotes it stays, until another program reads it once more."""
UNKNOWN_CODE_OPTION = re.compile(
    r"--?(?:[eEcx]|eval|exec|execute|expr|command|cmd|call|run|script|shell|batch|preview|bind)(?:=(?P<long>.+))?|"
    r"-[a-zA-Z]?[eEcx](?P<short>.+)",
    re.DOTALL,
)
"""Options with which unknown programs may run code."""
CODE_SIGNS = re.compile(r"[\s(){}*?\[\]'\"<>~]|^data:")
"""What the code after such an option contains, and a plain word does not."""

MOST_PROGRAMS = 100
"""The greatest number of words of a command that are names of known programs."""


def hides_code(argv: Sequence[str]) -> bool:
    """Return whether a command may run something that its words do not show. In doubt, return True."""
    program, arguments, takes_text = program_of(argv)
    names = list(map(base_name, argv))
    builtin = next((name for name in names if name not in WRAPPERS and not name.startswith("-")), "")
    if builtin in RUNNING_BUILTINS:
        return True
    if takes_text:
        return _program_hides(program, arguments)
    if any(EXPANSION.search(word) or SHELL_RUNS.search(word) for word in argv):
        return True
    if _has_code_option(argv) or not RUN_INPUT.isdisjoint(names):
        return True
    programs = [(name, at) for at, name in enumerate(names) if is_known(name)]
    return len(programs) > MOST_PROGRAMS or any(_program_hides(name, list(argv[at + 1 :])) for name, at in programs)


def is_known(program: str) -> bool:
    """Return whether it is known what a program does with its arguments, apart from those that run their input."""
    named = (
        program in PASS_TO_SHELL
        or program in CONSOLES
        or program in RUNNING_ARGUMENTS
        or program in RUNNING_LONG_OPTIONS
        or program in ("make", "gmake", "sed")
        or program in TEXT_PROGRAMS
    )
    return named or is_shell_or_interpreter(program) or AWK.fullmatch(program) is not None


def _program_hides(program: str, arguments: list[str]) -> bool:
    """Return whether `program`, if it runs with these arguments, may run something else."""
    if has_running_option(program, arguments):
        return True
    if program == "env":
        return any(ASSIGNMENT.fullmatch(word) or re.match(r"-\w*S", word) for word in arguments)
    running = RUNNING_ARGUMENTS.get(program)
    if running and any(re.fullmatch(running, word, re.DOTALL) for word in arguments):
        return True
    if is_shell_or_interpreter(program):
        return interpreter_hides(program, arguments)
    if program == "rsync" and RSYNC_RUNS.search("\0".join(arguments)):
        return True
    if AWK.fullmatch(program):
        return any(AWK_RUNS.search(word) or _prints_to_file(word) for word in arguments)
    if program == "git":
        return git_hides(arguments)
    if program in ("make", "gmake"):
        return any(map(MAKE_RUNS.fullmatch, arguments))
    if program in ("sed", "gsed"):
        return sed_hides(arguments)
    if program in CONSOLES:
        return any(map(console_hides, arguments))
    if program in ALL_COMMANDS and arguments and ALL_COMMANDS[program].isdisjoint(arguments[:1]):
        return True
    if not TEXT_COMMANDS.get(program, frozenset()).isdisjoint(arguments[:1]):
        return False
    return program in PASS_TO_SHELL and any(map(SHELL_SIGNS.search, arguments))


def _prints_to_file(script: str) -> bool:
    """Return whether a script of awk may print to a file. After a text or an expression, any `>` may name the file."""
    for printed in AWK_PRINTS.finditer(script):
        if printed[0][-1] in '>"/':
            return ">" in script[printed.end() - 1 :]
    return False


def _has_code_option(argv: Sequence[str]) -> bool:
    """Return whether a word after an option such as `--eval`, or within it, looks like code."""
    for at, word in enumerate(argv):
        if option := UNKNOWN_CODE_OPTION.fullmatch(word):
            value = option["long"] or option["short"] or "".join(argv[at + 1 : at + 2])
            if CODE_SIGNS.search(value):
                return True
    return False
