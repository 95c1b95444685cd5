"""Risk: a hint for people who answer questions, worked out from what is asked. It decides nothing."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from midwatch.domain.agent import Question, Risk
from midwatch.domain.commandline import argv_of

ORDER: tuple[Risk, ...] = ("low", "medium", "high")
MILD: dict[str, Risk] = {"read": "low", "search": "low", "think": "low", "delete": "high"}
"""Kinds of tools that are not of medium risk."""
MIGHTY = frozenset({
    "sudo", "doas", "su", "rm", "rmdir", "shred", "dd", "mkfs", "fdisk", "mount", "umount", "shutdown", "reboot",
    "halt", "kill", "killall", "pkill", "chmod", "chown", "chgrp", "crontab", "systemctl", "launchctl", "iptables",
    "ssh", "scp", "rsync", "nc", "ncat", "telnet", "eval", "exec", "source", "env", "xargs", "nohup", "at",
})  # fmt: skip
INTERPRETERS = re.compile(r"(?:python|perl|ruby|node|deno|bun|php|lua)[\d.]*|(?:ba|z|da|k)?sh|osascript|pwsh")
INLINE = re.compile(r"-[a-z]*[ce]|--eval|--command|-")
UPLOADS = re.compile(r"-[dFT].*|--(?:data|form|upload-file|post|body|json|request|method).*|-X.*")
LOADERS = frozenset({"curl", "wget", "http", "https", "xh"})
FORCED = re.compile(r"-[a-z]*f[a-z]*|--force.*|--hard|--mirror|--delete|\+.+|-D")
FORCIBLE = frozenset({"push", "reset", "clean", "checkout", "branch"})
PUBLISHES = frozenset({"publish", "deploy", "release"})
SENDS = re.compile(r"\b(?:post|put|patch|upload|uploads|send|sends)\b", re.IGNORECASE)


def hint(asked: Question, root: str | None = None) -> Risk | None:
    """Return how much harm a yes could do: low, medium or high; the agent's own word where it fears more. None for a
    plain question of which the agent says nothing."""
    if asked.kind == "choice":
        return asked.risk
    found: Risk = MILD.get(asked.kind, "medium")
    if any(_outside(path, root) for path in asked.paths):
        found = "high"
    if asked.kind == "execute" or asked.command is not None:
        found = max(found, _of_command(asked.command), key=ORDER.index)
    if asked.kind == "fetch" and SENDS.search(f"{asked.tool or ''} {asked.text}"):
        found = "high"
    return max(found, asked.risk or "low", key=ORDER.index)


def _outside(path: str, root: str | None) -> bool:
    if root is None:
        return path.startswith(("/", "~"))
    place = os.path.normpath(Path(root) / path)
    return path.startswith("~") or not f"{place}/".startswith(f"{os.path.normpath(root)}/")


def _of_command(command: str | None) -> Risk:
    argv = argv_of(command or "")
    if argv is None:  # several commands, a redirection, or something that only a shell understands
        return "high"
    program, rest = argv[0].rpartition("/")[2], argv[1:]
    mighty = (
        program in MIGHTY
        or (INTERPRETERS.fullmatch(program) and any(INLINE.fullmatch(one) for one in rest))
        or (program in LOADERS and any(UPLOADS.fullmatch(one) for one in rest))
        or (program == "git" and FORCIBLE.intersection(rest) and any(FORCED.fullmatch(one) for one in rest))
        or (program == "find" and any(one.startswith(("-exec", "-ok", "-delete", "-fprint")) for one in rest))
        or PUBLISHES.intersection(rest)
        or any(one.startswith(("/", "~", "../")) or "/../" in one for one in rest)
    )
    return "high" if mighty else "medium"
