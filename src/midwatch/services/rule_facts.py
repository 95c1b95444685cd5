"""The facts about the use of a tool that rules are compared with: its commands, files, hosts and names."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from midwatch.domain.agent import Question
from midwatch.domain.command_list import split_list
from midwatch.domain.commandline import argv_of, parts_of, places, split_cd
from midwatch.domain.hidden_code.command import hides_code
from midwatch.domain.hidden_code.git import split_git
from midwatch.domain.hidden_code.program import program_of
from midwatch.domain.hidden_code.text import seems_command, texts_hide_code
from midwatch.domain.host_name import find_host_names, find_hosts, fold_host, has_unclear_address, is_clear_host
from midwatch.domain.network_command import find_bare_names, hides_hosts, uses_network
from midwatch.domain.rule import MOST_PATHS, TARGETED
from midwatch.domain.tool_name import canonical, forms_of, is_clear_name
from midwatch.services.globs import expand_home, fold_path, readings_of

LONGEST_PATH = 4096
MOST_PLACES = 2000
MOST_TEXT = 50_000
"""The greatest number, and the greatest length in total, of the parts of a question that are compared as paths. A
person is asked about a question with more of them."""
MOST_PAIRS = 300
"""The greatest number of directories and other words that are compared as one path."""
MOST_CDS = 3
"""The greatest number of commands `cd` in a command line that are followed."""
FILE_URL = re.compile(r"\Afile:(?://[^/]*)?", re.IGNORECASE)
LINE_SIGNS = re.compile(r"[\t\r\n]")
"""Characters that browsers leave out of an address."""
PATCHED = re.compile(r"[a-z]/(.+)")
"""A path in a patch: `a/src/x`."""
GLOB_SIGN = re.compile(r"[*?\[{(\\]")


class QuestionFacts:
    """A question and the facts about the question that rules are compared with. Each fact is computed only once.

    The paths of rules begin at `root`, the working directory. Those of the question begin at `start`, if it is set.
    """

    def __init__(
        self, question: Question, root: str | None, agent: str | None = None, start: str | None = None
    ) -> None:
        self.question = question
        self.root = root
        self.agent = agent
        self.start = start or root

    @cached_property
    def steps(self) -> Sequence[QuestionFacts]:
        """Return the facts about each command of `cd directory && command` and of `a && b | c`.

        There are none for a single command, and if it is not certain what the commands do together.
        """
        steps, last = list[QuestionFacts](), self
        while len(steps) < MOST_CDS and (split := split_cd(last.question.command or "")) is not None:
            directory, rest = split
            if (there := last._enter(directory)) is None:
                break
            steps.append(last._with_command(shlex.join(["cd", directory]), last.start))
            last = last._with_command(rest, there)
        text = last.question.command or ""
        if commands := split_list(text):
            starts = {last.start}
            if ";" in text or "||" in text:  # these go on even if `cd` fails
                starts |= {step.start for step in steps}
            return [*steps, *(last._with_command(command, start) for start in starts for command in commands)]
        return [*steps, last] if steps else []

    def _with_command(self, command: str, start: str | None) -> QuestionFacts:
        return QuestionFacts(replace(self.question, command=command), self.root, self.agent, start)

    def _enter(self, directory: str) -> str | None:
        """Return the path of a directory; None if there is none, or if shells and programs do not find the same one."""
        if self.start is None or not self.is_directory(directory):
            return None
        path = os.path.join(self.start, directory)  # noqa: PTH118 - pathlib would change it
        logical = os.path.normpath(path)
        return logical if os.path.realpath(path) == os.path.realpath(logical) else None

    @cached_property
    def real_root(self) -> str | None:
        """Return the real path of the working directory."""
        return None if self.root is None else os.path.realpath(self.root)

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """Return all forms of the tool's name; none if the name is not known."""
        return forms_of(self.question.tool) if self.question.tool else frozenset()

    @cached_property
    def names_behind_server(self) -> frozenset[str]:
        """Return the names that the tool has if its name begins with that of an MCP server: `fs_read_file`.

        Only the requests of other agents may have such names.
        """
        if self.question.call_id is None or "/" in canonical(self.question.tool or ""):
            return frozenset()
        words = [name.split("_") for name in self.tool_names]
        return frozenset("_".join(name[start:]) for name in words for start in range(1, len(name)))

    @cached_property
    def clear_name(self) -> bool:
        """Return whether the name of the tool is known and has only one meaning."""
        return self.question.tool is not None and is_clear_name(self.question.tool)

    @cached_property
    def argv(self) -> tuple[str, ...] | None:
        """Return the words of the command, or None if there is no command or it cannot be parsed reliably."""
        return None if self.question.command is None else argv_of(self.question.command)

    @cached_property
    def parts(self) -> list[list[str]]:
        """Return all commands that the command line may contain."""
        return parts_of(self.question.command or "")

    @cached_property
    def commands(self) -> list[PossibleCommand]:
        """Return each command that may run. If only one program is certain to run, its arguments are no programs."""
        program, arguments, takes_text = program_of(self.argv or ())
        if program == "git":
            return [PossibleCommand(program, "".join(split_git(arguments)[1][:1]), arguments)]
        if takes_text:
            return [PossibleCommand(program, "", arguments)]
        return [PossibleCommand("", "", part) for part in self.parts]

    @cached_property
    def words(self) -> Sequence[str] | None:
        """Return the words of the command if it is certain to run only its program; then a quoted text is one word."""
        argv = self.argv or ()
        return argv if program_of(argv).takes_text and not hides_code(argv) else None

    @cached_property
    def text_parts(self) -> list[list[str]]:
        """Return all commands that the texts in the arguments of the tool may contain."""
        return [part for text in self.question.texts for part in parts_of(text)]

    @cached_property
    def doubtful(self) -> bool:
        """Return whether it is unclear which actions the answer yes would allow."""
        if not self.question.certain or (self.question.command is not None and self.argv is None):
            return True
        nameless = self.question.kind in TARGETED and not self.question.paths
        unknown = self.question.kind == "execute" and self.argv is None
        return nameless or unknown or len(self.question.paths) > MOST_PATHS or not self.places.complete

    @cached_property
    def hidden(self) -> bool:
        """Return whether the tool may run or use something that the question does not show."""
        return self.doubtful or self.question.unread or (self.argv is not None and hides_code(self.argv))

    @cached_property
    def hidden_in_texts(self) -> bool:
        """Return whether an argument of the tool looks like a command that may run something it does not show."""
        return texts_hide_code(self.question.texts)

    @cached_property
    def places(self) -> Places:
        """Return everything in the question that may name a file."""
        parts = self.parts if self.words is None else [self.words]
        words = (place for part in parts for word in part for place in places(word))
        texts = (text for text in self.question.texts if len(text) <= LONGEST_PATH and "\n" not in text)
        return Places.collect([*self.question.paths[:MOST_PATHS]], words, texts)

    @cached_property
    def relative_paths(self) -> list[str] | None:
        """Return the question's paths relative to the working directory, or None if a path is outside of it."""
        paths = [resolve_path(path, self.root) for path in self.question.paths]
        return None if None in paths else [path for path in paths if path is not None]

    @cached_property
    def possible_paths(self) -> frozenset[str]:
        """Return everything in the question that may name a file, in all forms that a path may have, in lower case."""
        return frozenset(form for path in self.places.texts for form in self.forms_of_path(path))

    @cached_property
    def mentioned_paths(self) -> frozenset[str]:
        """Return the words in the arguments of the tool that may name a file, in all forms, in lower case.

        Also return a directory and another word as one path, `git -C src add key`, and the paths of a patch.
        """
        words = Places.collect(place for part in self.text_parts for word in part for place in _read_word(word))
        return frozenset(form for path in (*words.texts, *self.pairs.texts) for form in self.forms_of_path(path))

    @cached_property
    def pairs(self) -> Places:
        """Return each directory that the question names, together with each other text."""
        texts = self.places.texts
        directories = [text for text in texts if self.is_directory(text) and os.path.normpath(text) not in (".", "/")]
        others = [text for text in texts if not text.startswith(("/", "~", "-"))]
        pairs = (f"{directory}/{text}" for directory in directories for text in others if text != directory)
        first = list(islice(pairs, MOST_PAIRS))
        return Places(first, next(pairs, None) is None)

    @cached_property
    def directories(self) -> list[Directory]:
        """Return everything in the question that may name a directory: no files."""
        return [
            Directory(frozenset(self.forms_of_path(text)), there)
            for text in self.places.texts
            if (there := self.is_directory(text)) or not self.exists(text)
        ]

    @cached_property
    def globs(self) -> Places:
        """Return the globs that other programs may read in the paths and in the texts in the arguments of the tool."""
        possible = [path for path in self.question.paths[:MOST_PATHS] if not self.exists(path)]
        for text in self.question.texts:
            possible.append(text)
            words = text.split() if len(text) <= LONGEST_PATH else []
            possible += [word for word in words if word.strip("*") or seems_command(text)]
        short = (text for text in dict.fromkeys(possible) if len(text) <= LONGEST_PATH and "\n" not in text)
        readings = (reading for text in short if GLOB_SIGN.search(text) for reading in sorted(readings_of(text)))
        first = list(islice(readings, MOST_PLACES))
        return Places(first, next(readings, None) is None)

    def forms_of_path(self, path: str) -> Iterator[str]:
        """Yield all forms of a path that a rule which denies is compared with, in lower case."""
        return (fold_path(form) for form in _forms(path, self.start, self.root, self.real_root))

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory of this name."""
        return (
            self.start is not None
            and "\0" not in path
            and os.path.isdir(  # noqa: PTH112 - it raises no error
                Path(self.start) / expand_home(path)
            )
        )

    def exists(self, path: str) -> bool:
        """Return whether there is a file of this name."""
        return self.start is not None and "\0" not in path and os.path.lexists(Path(self.start) / expand_home(path))

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Return the hosts that the tool may reach."""
        question = self.question
        hosts = {*map(fold_host, question.hosts), *find_hosts(question.command or "")}
        for text in question.texts:
            whole = text if " " in text else LINE_SIGNS.sub("", text)
            hosts |= {*find_hosts(text), *find_hosts(whole), *find_host_names([text.strip()])}
        if self.reaches_out:
            hosts |= {*find_host_names(word for part in self.parts for word in part)}
        return frozenset(hosts)

    @cached_property
    def unclear_hosts(self) -> bool:
        """Return whether programs may read the name of a host in different ways."""
        if not all(map(is_clear_host, self.hosts)):
            return True
        return any(map(has_unclear_address, self.question.texts))

    @cached_property
    def reaches_out(self) -> bool:
        """Return whether the command runs a program that reaches other machines."""
        return uses_network(self.parts, self.argv)

    @cached_property
    def guessed_hosts(self) -> frozenset[str]:
        """Return all words of commands that reach other machines. Some of them may be hosts."""
        return frozenset(find_bare_names(self.parts)) if self.reaches_out else frozenset()

    @cached_property
    def hides_hosts(self) -> bool:
        """Return whether the command may reach a host that it does not name for certain."""
        return self.reaches_out and hides_hosts(self.question.command or "", self.parts, self.argv)


class PossibleCommand(NamedTuple):
    """A command that may run."""

    program: str
    """The program, or empty if each of the words may be one."""
    git_command: str
    """The command of git, such as `add`, if the program is git."""
    words: Sequence[str]


class Directory(NamedTuple):
    """A directory in all forms of its path, or a path that does not exist."""

    forms: frozenset[str]
    exists: bool


class Places(NamedTuple):
    """The parts of a question that may name a file, each once; `complete` is false if some were left out."""

    texts: Sequence[str]
    complete: bool

    @classmethod
    def collect(cls, *sources: Iterable[str]) -> Places:
        """Collect the texts until there are too many of them."""
        texts, left, complete = dict[str, None](), MOST_TEXT, True
        for text in chain(*sources):
            if len(text) > LONGEST_PATH:
                complete = False
            elif text not in texts:
                left -= len(text)
                if left < 0 or len(texts) == MOST_PLACES:
                    return cls(list(texts), False)
                texts[text] = None
        return cls(list(texts), complete)


def _read_word(word: str) -> Iterator[str]:
    """Yield the parts of a word that may be a path, as in a command or as in a patch."""
    yield from places(word)
    if patched := PATCHED.fullmatch(word):
        yield patched[1]


def resolve_path(path: str, root: str | None) -> str | None:
    """Return the real path relative to the working directory `root`, or None if the path is outside or unclear."""
    if root is None or not path or path.startswith("~") or "://" in path or "\0" in path:
        return None
    try:
        real, base = os.path.realpath(Path(root) / path), os.path.realpath(root)
    except (OSError, ValueError):
        return None
    inside = real == base or real.startswith(f"{base.rstrip('/')}/")
    return os.path.relpath(real, base) if inside else None


def _forms(path: str, start: str | None, root: str | None, real_root: str | None) -> Iterator[str]:
    """Yield the forms of a path that a rule is compared with: as written, normalised, and without symbolic links."""
    for text in _spellings(path):
        home = expand_home(text)
        yield text
        yield os.path.normpath(home)
        if start is None or root is None or real_root is None or "\0" in text:
            continue
        joined = Path(start) / home
        yield os.path.normpath(joined)
        yield os.path.relpath(os.path.normpath(joined), root)
        try:
            real = os.path.realpath(joined)
        except OSError:  # a link that may not be read, such as /proc/1/root
            continue
        yield real
        yield os.path.relpath(real, real_root)


def _spellings(path: str) -> Iterator[str]:
    """Yield the path, and what other programs may read it as: with other slashes, without a scheme or NUL, decoded."""
    yield path
    bare = FILE_URL.sub("", path.strip(" \t\n\r'\""), count=1).partition("\0")[0].replace("\\", "/")
    if bare not in ("", path):
        yield bare
    if "%" in path and (decoded := unquote(bare)) != bare:
        yield decoded.partition("\0")[0]
