"""Command lines of agents: parse them for rules.

There are two parsers. `argv_of` is for rules that allow: it returns one plain command, or None in doubt. `parts_of` is
for rules that deny: it returns every word that some shell could find in the text.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

LONGEST = 20_000
WORD = r"""(?!=)(?:[A-Za-z0-9_@%+=:,./-] | (?<=[A-Za-z0-9])~ | '[^'\t]*' | "[^"\t$`\\!]*")+"""
"""A word that all shells read alike, for a verbose expression."""
PLAIN = re.compile(rf"{WORD} (?: [ \t]+ {WORD} )*", re.VERBOSE)
"""A command that all shells read alike: without operator, redirection, substitution, glob, tilde, brace or escape."""
SHELL = re.compile(r"(?:(?:/usr|/usr/local|/opt/homebrew)?/bin/)?(?:ba|z|da|k)?sh")
SHELL_OPTIONS = (("-c",), ("-lc",), ("-cl",), ("-l", "-c"))
"""Options with which a shell runs the text that follows."""
LINE_CONTINUATION = re.compile(r"\\\r?\n")
QUOTING = re.compile(r"['\"\\]")
COMMAND_ENDS = re.compile(r"[;&|\n\r]+")
WORD_ENDS = re.compile(r"[\s\x00-\x1f\x7f(){}<>$`]+")
PATH_STARTS = re.compile(r"[=:,@+<{]")
"""Signs within an argument after which a path may begin: `--output=/etc/x`."""
PATH_ENDS = re.compile(r"[:,;}]")
OPTION_LETTERS = re.compile(r"-[A-Za-z0-9]{0,8}")
PIECE_ENDS = re.compile(r"[^A-Za-z0-9_-]+")


def argv_of(command: str, depth: int = 2) -> tuple[str, ...] | None:
    """Return the program that a command runs, with its arguments; None if it is not certain that only one runs.

    For a shell that only runs one plain command, such as `bash -lc "git log"`, return this inner command.
    """
    text = command.strip(" \t\n")
    if len(text) > LONGEST or not text.replace("\t", " ").isprintable() or not PLAIN.fullmatch(text):
        return None
    argv = tuple(shlex.split(text))
    if not argv[0] or "=" in argv[0]:  # an assignment in front changes what the program does
        return None
    if not SHELL.fullmatch(argv[0]) or argv[1:-1] not in SHELL_OPTIONS:
        return argv
    return argv_of(argv[-1], depth - 1) if depth else None


def split_cd(command: str) -> tuple[str, str] | None:
    """Return the directory and the command of `cd directory && command`; None for any other command."""
    first, _, rest = command.strip().partition("&&")
    argv = argv_of(first) if first.startswith("cd ") else None
    if argv is None or len(argv) != 2 or not argv[1] or argv[1][0] in "-~":
        return None
    return argv[1], rest


def parts_of(command: str) -> list[list[str]]:
    """Return the words of every command that a text could contain, without quotes.

    In doubt, the result has too many commands rather than too few. Only the beginning of a very long text is read.
    """
    bare = QUOTING.sub("", LINE_CONTINUATION.sub("", command[:LONGEST]))
    return [words for part in COMMAND_ENDS.split(bare) if (words := WORD_ENDS.sub(" ", part).split())]


class CommandPattern(NamedTuple):
    """The command of a rule: its first words, and the kind of arguments that may follow."""

    words: tuple[str, ...]
    more: str = ""
    """The arguments that may follow: none if empty, no options if `*`, any arguments if `**`."""

    @staticmethod
    @lru_cache(1000)
    def parse(text: str) -> CommandPattern | None:
        """Parse a text such as `git status`, `git log *` or `git log **`.

        Return None if the text is not one plain command.
        """
        match = re.fullmatch(r"(.*?)(?:\s+(\*\*?))?", text.strip(), re.DOTALL)
        words = argv_of(match[1]) if match else None
        return None if match is None or words is None else CommandPattern(words, match[2] or "")

    def allows(self, argv: tuple[str, ...], inside: Callable[[str], bool]) -> bool:
        """Return whether `argv` is this command, and `inside` returns true for every path in the other arguments."""
        others = argv[len(self.words) :]
        if argv[: len(self.words)] != self.words or (others and not self.more):
            return False
        if self.more == "*" and any(argument.startswith("-") for argument in others):
            return False
        return all(inside(path) for argument in others for path in places(argument))

    def may_be_in(self, parts: Sequence[Sequence[str]], argv: tuple[str, ...] | None) -> bool:
        """Return whether one of the `parts` could be this command, with other words before, between or after.

        `argv` is the command if it could be parsed with certainty, or else None.
        """
        if (argv or ())[: len(self.words)] == self.words:
            return True
        pattern = self._folded_words()
        return bool(pattern) and any(_in_order(pattern, [word.casefold() for word in part]) for part in parts)

    @property
    def program(self) -> str:
        """Return the name of the program, in lower case."""
        return self.words[0].rpartition("/")[2].casefold()

    def begins(self, word: str) -> bool:
        """Return whether a word is the program of this command."""
        return word.rpartition("/")[2].casefold() == self.program

    def is_hinted_in(self, parts: Sequence[Sequence[str]]) -> bool:
        """Return whether the words of this command are pieces of the words of all `parts`, in this order.

        An example is `git -c alias.p=push p` for `git push`.
        """
        pattern = self._folded_words()
        pieces = [piece for part in parts for word in part for piece in _pieces(word.casefold())]
        return len(pattern) > 1 and _in_order(pattern, pieces)

    def _folded_words(self) -> list[str]:
        return [part.casefold() for word in self.words for part in WORD_ENDS.sub(" ", QUOTING.sub("", word)).split()]


def _in_order(wanted: list[str], words: list[str]) -> bool:
    program = wanted[0].rpartition("/")[2]
    if len(wanted) > 1 and _follow(f"{program}-{wanted[1]}", wanted[2:], words):  # `git-push` is `git push`
        return True
    return _follow(program, wanted[1:], words)


def _follow(program: str, arguments: list[str], words: list[str]) -> bool:
    following = iter(words)
    if not any(word.rpartition("/")[2] == program for word in following):
        return False
    return all(word in following for word in arguments)


def _pieces(word: str) -> Iterator[str]:
    yield word
    values = (word[start:] for start in option_ends(word))
    for piece in chain(values, PIECE_ENDS.split(word)):
        if piece != word:
            yield piece


def option_ends(argument: str) -> Sequence[int]:
    """Return where the value of a short option may begin in an argument: `-o.env`, and after others `-so.env`."""
    letters = OPTION_LETTERS.match(argument)
    return range(2, max(2, letters.end()) + 1) if letters else ()


def places(argument: str) -> Iterator[str]:
    """Yield the parts of an argument that may be a path.

    These are the whole argument, the text after a sign such as `=` or after the letters of options, and each such
    text up to the next sign.
    """
    option = option_ends(argument)
    ends = [end.start() for end in PATH_ENDS.finditer(argument)]
    for start in chain([0], (sign.end() for sign in PATH_STARTS.finditer(argument)), option):
        if argument[start:]:
            yield argument[start:]
            following = bisect_left(ends, start)
            if following < len(ends) and start < ends[following]:
                yield argument[start : ends[following]]
