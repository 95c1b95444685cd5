"""Arguments with which git runs another program, or stores a setting with which it does so later."""

from __future__ import annotations

import re

from midwatch.domain.hidden_code.long_option import has_running_option

FRONT_OPTION_RUNS = re.compile(r"-c.*|--config-env.*|--exec-path.*")
"""Options before the command of git, such as `-c alias.p=push`."""
OPTIONS_WITH_VALUE = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env"}
)
ARGUMENT_RUNS = re.compile(
    r"-x.*|-O.*|--.*-cmd.*|foreach|filter-branch|send-pack|http-push|remote-.*|\w+::.*", re.DOTALL
)
"""Arguments of a command of git, such as `ext::x`, with which it runs another program."""
SHORT_OPTION_RUNS = {
    "clone": re.compile(r"-[^-bcjou]*[cu].*", re.DOTALL),
    "grep": re.compile(r"-[^-efmABCO]*O.*", re.DOTALL),
    "ls-remote": re.compile(r"-u.*", re.DOTALL),
    "rebase": re.compile(r"-[a-zA-Z]*x.*", re.DOTALL),
}
"""For commands of git, short options, also after others, with which they run another program."""
CONFIG_READS = frozenset({"-l", "--list", "--get", "--get-all", "--get-regexp", "--get-urlmatch", "get", "list"})
PLAIN_SETTING = re.compile(
    r"(?:user|color|pull|push|branch|advice|rerere)\.[^!]*|init\.defaultbranch|core\.(?:autocrlf|filemode|eol)", re.I
)
"""Settings of git that never name a program."""
GIT_TEXT_COMMANDS = frozenset({
    "add", "blame", "branch", "checkout", "cherry-pick", "commit", "diff", "grep", "log", "merge", "notes", "reset",
    "restore", "rev-list", "revert", "shortlog", "show", "stash", "status", "switch", "tag",
})  # fmt: skip
"""Commands of git that take any text, such as a message, and do not run it."""
GIT_COMMANDS = GIT_TEXT_COMMANDS | frozenset({
    "am", "annotate", "apply", "archive", "bisect", "bundle", "cat-file", "check-attr", "check-ignore", "cherry",
    "clean", "clone", "commit-tree", "config", "count-objects", "describe", "diff-files", "diff-index", "diff-tree",
    "fetch", "for-each-ref", "format-patch", "fsck", "gc", "hash-object", "help", "init", "ls-files", "ls-remote",
    "ls-tree", "merge-base", "merge-file", "merge-tree", "mktree", "mv", "name-rev", "pack-refs", "prune", "pull",
    "push", "range-diff", "read-tree", "rebase", "reflog", "remote", "repack", "replace", "request-pull", "rerere",
    "rev-parse", "rm", "show-ref", "sparse-checkout", "stripspace", "submodule", "symbolic-ref", "update-index",
    "update-ref", "verify-commit", "verify-tag", "version", "whatchanged", "worktree", "write-tree",
})  # fmt: skip
"""Commands of git itself. Any other word may be an alias, or run another program."""


def split_git(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options before the command of git, and the command with its arguments."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in OPTIONS_WITH_VALUE else 1
    return arguments[:at], arguments[at:]


def git_hides(arguments: list[str]) -> bool:
    """Return whether git may run another program, or stores a setting with which it does so later."""
    front, rest = split_git(arguments)
    if rest and rest[0] not in GIT_COMMANDS:
        return True
    if any(map(FRONT_OPTION_RUNS.fullmatch, front)) or any(map(ARGUMENT_RUNS.fullmatch, rest)):
        return True
    short = SHORT_OPTION_RUNS.get("".join(rest[:1]))
    if has_running_option("git", rest) or (short and any(map(short.fullmatch, rest[1:]))):
        return True
    if rest[:1] == ["config"]:
        words = [word for word in rest[1:] if word not in ("--global", "--local", "--worktree", "--system")]
        if words[:1] and words[0] in ("set", "unset", "--unset", "--unset-all", "--add", "--replace-all"):
            words = words[1:]
        reads = words[:1] and (words[0] in CONFIG_READS or (len(words) == 1 and "." in words[0]))
        return not reads and not (words and PLAIN_SETTING.fullmatch(words[0]))
    return rest[:1] == ["bisect"] and "run" in rest
