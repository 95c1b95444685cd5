"""Risk: how dangerous the answer yes would be, as a hint for people. It is computed and decides nothing."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from midwatch.domain.agent import Question, Risk
from midwatch.domain.commandline import argv_of
from midwatch.domain.rule import MOST_PATHS

ORDER: tuple[Risk, ...] = ("low", "medium", "high")
RISKS: dict[str, Risk] = {"read": "low", "search": "low", "think": "low", "delete": "high"}
"""The risk of each kind of tool; kinds that are not listed have medium risk."""
DANGEROUS = frozenset({
    "sudo", "doas", "su", "rm", "rmdir", "shred", "dd", "mkfs", "fdisk", "mount", "umount", "shutdown", "reboot",
    "halt", "kill", "killall", "pkill", "chmod", "chown", "chgrp", "crontab", "systemctl", "launchctl", "iptables",
    "ssh", "scp", "rsync", "nc", "ncat", "telnet", "eval", "exec", "source", "env", "xargs", "nohup", "at",
})  # fmt: skip
INTERPRETERS = re.compile(r"(?:python|perl|ruby|node|deno|bun|php|lua)[\d.]*|(?:ba|z|da|k)?sh|osascript|pwsh")
INLINE = re.compile(r"-[a-z]*[ce]|--eval|--command|-")
UPLOADS = re.compile(r"-[dFT].*|--(?:data|form|upload-file|post|body|json|request|method).*|-X.*")
LOADERS = frozenset({"curl", "wget", "http", "https", "xh"})
FORCED = re.compile(r"-(?=[a-z]*f)[a-z]+|--force.*|--hard|--mirror|--delete|\+.+|-D")
FORCIBLE = frozenset({"push", "reset", "clean", "checkout", "branch"})
PUBLISHES = frozenset({"publish", "deploy", "release"})
SENDS = re.compile(r"\b(?:post|put|patch|upload|uploads|send|sends)\b", re.IGNORECASE)


def hint(question: Question, root: str | None = None) -> Risk | None:
    """Return how dangerous the answer yes would be: low, medium or high.

    The result is never below the risk that the agent reports. For a question that is not about a tool, it is the risk
    that the agent reports, or None.
    """
    if question.kind == "choice":
        return question.risk
    risk: Risk = RISKS.get(question.kind, "medium")
    if len(question.paths) > MOST_PATHS or any(_outside(path, root) for path in question.paths):
        risk = "high"
    if question.kind == "execute" or question.command is not None:
        risk = max(risk, _of_command(question.command), key=ORDER.index)
    if question.kind == "fetch" and SENDS.search(f"{question.tool or ''} {question.text}"):
        risk = "high"
    return max(risk, question.risk or "low", key=ORDER.index)


def _outside(path: str, root: str | None) -> bool:
    if root is None:
        return path.startswith(("/", "~"))
    full_path = os.path.normpath(Path(root) / path)
    return path.startswith("~") or not f"{full_path}/".startswith(f"{os.path.normpath(root)}/")


def _of_command(command: str | None) -> Risk:
    argv = argv_of(command or "")
    if argv is None:  # several commands, a redirection, or something that only a shell understands
        return "high"
    program, args = argv[0].rpartition("/")[2], argv[1:]
    dangerous = (
        program in DANGEROUS
        or (INTERPRETERS.fullmatch(program) and any(INLINE.fullmatch(argument) for argument in args))
        or (program in LOADERS and any(UPLOADS.fullmatch(argument) for argument in args))
        or (program == "git" and FORCIBLE.intersection(args) and any(FORCED.fullmatch(argument) for argument in args))
        or (program == "find" and any(argument.startswith(("-exec", "-ok", "-delete", "-fprint")) for argument in args))
        or PUBLISHES.intersection(args)
        or any(argument.startswith(("/", "~", "../")) or "/../" in argument for argument in args)
    )
    return "high" if dangerous else "medium"
