"""Whether the use of a tool touches the files of a rule that denies or asks."""

from __future__ import annotations

import os.path
import re
from itertools import pairwise
from pathlib import Path

from midwatch.domain.hidden_code.long_option import is_long_option
from midwatch.domain.rule import MOST_PATHS
from midwatch.services.globs import Glob, expand_home, fold_path, may_meet
from midwatch.services.rule_facts import Directory, PossibleCommand, QuestionFacts

DIRECTORY_PROGRAMS = frozenset({
    "7z", "7za", "7zr", "7zz", "aws", "az", "borg", "bsdtar", "buildah", "bwrap", "chgrp", "chmod", "chown",
    "copy_directory", "cp", "cpio", "ditto", "docker", "gcloud", "gio", "gsutil", "gunzip", "gzip", "helm", "install",
    "jar", "kubectl", "ln", "mksquashfs", "mount", "mv", "nerdctl", "pax", "podman", "rar", "rclone", "restic",
    "rimraf", "rm", "rsync", "s3cmd", "scp", "sftp", "shred", "tar", "trash", "trash-put", "twine", "zip", "zstd",
})  # fmt: skip
"""Programs that change, copy or send a whole directory."""
DIRECTORY_COMMANDS_OF_GIT = frozenset(
    {"add", "archive", "checkout", "commit", "mv", "restore", "rm", "stage", "worktree"}
)
UNNAMED_FILES_PROGRAMS = frozenset({"7z", "7za", "cpio", "http.server", "patch", "pax", "unar", "unrar", "unzip"})
"""Programs that write or show files that their words do not name."""
PACKING_PROGRAMS = frozenset({"npm", "pnpm", "yarn", "cargo", "poetry", "uv"})
PACKING_COMMANDS = frozenset({"pack", "package", "publish"})
"""Programs, and their commands that store or send all files of a project."""
FIND_ACTIONS = frozenset({"-delete", "-exec", "-execdir", "-ok", "-okdir"})
GIT_UNNAMED_FILES = {
    "add": (
        ("all", "update", "pathspec-from-file", "no-ignore-removal"), re.compile(r"-[a-zA-Z]*[Au].*|:.*|.*[*?\[].*"),
    ),
    "commit": (("all", "pathspec-from-file"), re.compile(r"-[^mFcCtu-]*a.*|:.*")),
    "reset": (("hard", "merge", "keep", "pathspec-from-file"), re.compile(r":.*")),
    "checkout": (("force", "pathspec-from-file"), re.compile(r"-[a-zA-Z]*f.*|:.*|.*[*?\[].*")),
    "restore": (("pathspec-from-file",), re.compile(r":.*|.*[*?\[].*")),
    "rm": (("pathspec-from-file",), re.compile(r":.*|.*[*?\[].*")),
    "switch": (("force", "discard-changes"), re.compile(r"-[a-zA-Z]*f.*")),
}  # fmt: skip
"""For commands of git, long options, and other arguments, with which they use files that they do not name."""
HARMLESS_STASHES = frozenset({"list", "show", "drop"})
EXTRACTS = re.compile(r"-?[a-zA-Z]*x[a-zA-Z]*|-[^-bCfFgIKLNTVX]*x.*", re.DOTALL)
"""The option of tar that writes the files of an archive."""
DIRECTORY_WORDS = re.compile(
    r"(?:^|[^a-z])(?:delete|remove|rm|move|mv|copy|cp|rename|archive|zip|tar|upload|sync|clean|wipe|backup|commit|add)"
    r"(?:$|[^a-z])"
)
"""Words in the name of a tool that may use a whole directory."""
PROCESS_PATH = re.compile(r"/proc/.*/(?:cwd|root|fd)(?:/.*)?|/dev/fd/.*")
"""Paths that lead to another file for each process."""
FILE_ADDRESS = re.compile(r"file:(?://[^/]|.*[%\[{]).*", re.IGNORECASE | re.DOTALL)
"""An address of a file with a host, or with encoded or several characters."""
PARENT_AFTER_SIGN = re.compile(r"[^*?]*+[*?].*/\.\.(?:/|\Z)", re.DOTALL)
"""A glob with the step `..` behind a sign."""
VARIABLE = re.compile(r"(?:.*/)?(?:\$\{?[A-Za-z_]\w*\}?|%[A-Za-z_]\w*%)(?:[/\\].*)?", re.DOTALL)
"""A path with a variable."""


def names_path(path: str, facts: QuestionFacts) -> bool:
    """Return whether the question names a path that a rule's glob matches. A directory includes everything in it."""
    glob = Glob.parse(fold_path(expand_home(path)))
    return any(glob.matches(form) or glob.matches(f"{form}/x") for form in facts.possible_paths)


def may_use_path(path: str, facts: QuestionFacts) -> bool:
    """Return whether the tool may use a path that a rule's glob matches, although the question does not name it."""
    folded = fold_path(expand_home(path))
    glob, question = Glob.parse(folded), facts.question
    if facts.hidden or facts.hidden_in_texts or len(question.paths) > MOST_PATHS or not facts.pairs.complete:
        return True
    if any(glob.matches(form) or glob.matches(f"{form}/x") for form in facts.mentioned_paths):
        return True
    if any(map(_leads_elsewhere, facts.places.texts)):
        return True
    if not facts.globs.complete or any(_may_match_glob(folded, reading, facts) for reading in facts.globs.texts):
        return True
    if any(_uses_unnamed_files(folded, command) for command in facts.commands):
        return True
    return _uses_directory(folded, facts) and any(_is_above(directory, glob, folded) for directory in facts.directories)


def _leads_elsewhere(place: str) -> bool:
    """Return whether a path or an address may name another file than its words say."""
    if PROCESS_PATH.fullmatch(os.path.normpath(place)) or FILE_ADDRESS.fullmatch(place):
        return True
    return VARIABLE.fullmatch(place) is not None


def _may_match_glob(path: str, reading: str, facts: QuestionFacts) -> bool:
    """Return whether a glob in the question may match a file that the rule matches, too."""
    if PARENT_AFTER_SIGN.match(reading):
        return True
    other = fold_path(os.path.normpath(expand_home(reading)))
    for root in dict.fromkeys((facts.root, facts.real_root)):
        base = fold_path(root or "/")
        whole = str(Path(base) / other)
        if may_meet(whole, str(Path(base) / path)) or may_meet(os.path.relpath(whole, base), path):
            return True
    return may_meet(other, path)


def _uses_unnamed_files(path: str, command: PossibleCommand) -> bool:
    """Return whether a command deletes, stores, changes or resets files that it does not name."""
    words = command.words
    last_steps = [word.rpartition("/")[2] for word in words]
    names = {command.git_command, *([command.program] if command.program else last_steps)}
    if "find" in names:
        return not FIND_ACTIONS.isdisjoint(words)
    if "tar" in names and any(EXTRACTS.fullmatch(word) or is_long_option(word, ("extract", "get")) for word in words):
        return True
    if not UNNAMED_FILES_PROGRAMS.isdisjoint(names):
        return True
    if not PACKING_PROGRAMS.isdisjoint(names) and not PACKING_COMMANDS.isdisjoint(words):
        return True
    if "git" not in names or path.startswith(".git/"):  # git does not store or reset its own directory
        return False
    if not names.isdisjoint({"clean", "apply", "am"}):
        return True
    if "stash" in names:
        return any(name == "stash" and verb not in HARMLESS_STASHES for name, verb in pairwise([*last_steps, ""]))
    return any(
        is_long_option(word, long_options) or short_options.fullmatch(word)
        for verb, (long_options, short_options) in GIT_UNNAMED_FILES.items()
        if verb in names
        for word in words
    )


def _uses_directory(path: str, facts: QuestionFacts) -> bool:
    """Return whether the tool may use everything in a directory. To delete it is to delete what is in it."""
    question = facts.question
    if question.kind in ("delete", "move"):
        return True
    if question.texts and any(map(DIRECTORY_WORDS.search, facts.tool_names)):
        return True
    return any(_runs_on_directory(path, command) for command in facts.commands)


def _runs_on_directory(path: str, command: PossibleCommand) -> bool:
    """Return whether a command runs a program that changes, copies or sends a whole directory."""
    if command.program == "git":
        return command.git_command in DIRECTORY_COMMANDS_OF_GIT and not path.startswith(".git/")
    if command.program:
        return command.program in DIRECTORY_PROGRAMS
    return any(word.rpartition("/")[2] in DIRECTORY_PROGRAMS | DIRECTORY_COMMANDS_OF_GIT for word in command.words)


def _is_above(directory: Directory, glob: Glob, path: str) -> bool:
    """Return whether a directory, or what may become one, has files that the rule matches."""
    if directory.exists:
        return any(map(glob.may_match_below, directory.forms))
    fixed = re.split(r"[*?]", path)[0]
    return any(fixed.startswith(f"{form.rstrip('/')}/") or form == "." for form in directory.forms)
