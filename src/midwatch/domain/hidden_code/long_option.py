"""Long options, such as those with which programs run another program. Many programs accept the beginning of one."""

from __future__ import annotations

from collections.abc import Iterable

RUNNING_LONG_OPTIONS = {
    "ack": ("pager",),
    "ag": ("pager",),
    "dc": ("expression",),
    "env": ("split-string",),
    "git": (
        "config", "exec", "ext-diff", "extcmd", "open-files-in-pager", "receive-pack", "template", "upload-pack",
    ),
    "man": ("html", "pager"),
    "ncat": ("exec", "lua-exec", "sh-exec"),
    "octave": ("eval",),
    "rsync": ("rsh", "rsync-path"),
    "runuser": ("command", "session-command"),
    "sort": ("compress-program",),
    "split": ("filter",),
    "su": ("command", "session-command"),
    "tar": (
        "checkpoint-action", "info-script", "new-volume-script", "rmt-command", "rsh-command", "to-command",
        "use-compress-program",
    ),
    "wget": ("execute", "use-askpass"),
    "zip": ("unzip-command",),
}  # fmt: skip
"""For some programs, the long options with which they run another program."""


def has_running_option(program: str, arguments: Iterable[str]) -> bool:
    """Return whether one of the arguments is a long option, or its beginning, with which the program runs another."""
    options = RUNNING_LONG_OPTIONS.get(program, ())
    return any(is_long_option(word, options) for word in arguments)


def is_long_option(word: str, options: Iterable[str]) -> bool:
    """Return whether a word is one of the long options, or the beginning of one, with or without a value."""
    name = word.partition("=")[0]
    return name.startswith("--") and len(name) > 2 and any(f"--{option}".startswith(name) for option in options)
