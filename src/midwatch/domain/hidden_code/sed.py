"""Scripts of sed that run a program, or use a file that is not an argument."""

from __future__ import annotations

import re

ADDRESS = r"(?:\d++|\$|/(?:[^/\\\n]|\\.)*+/[IM]*+)"
BLANKS = r"[^\S\n]*+"
DELIMITED = r"(?:(?!(?P=sign))[^\\\n]|\\.)*+(?P=sign)"
PLAIN_COMMAND = re.compile(
    rf"[\s;}}]*+(?:(?P<first>{ADDRESS})(?:[,~][+~]?(?P<last>{ADDRESS}))?+)?+{BLANKS}!?+{BLANKS}"
    rf"(?:\{{|(?:[pdDgGhHnNxlz=]|[qQ]\d*+|[aic][^\n]*+|[:btT]{BLANKS}\w*+|"
    rf"[sy](?P<sign>[^\w\s\\])(?P<pattern>{DELIMITED}){DELIMITED}[gpiIMm\d]*+)?+{BLANKS}(?:[;\n]|(?=\}})|\Z))",
    re.DOTALL,
)
"""One command of sed that runs no program, and reads and writes no other file, up to its end."""
ONE_LETTER = re.compile(r"\\.|\[[:.=]\w+[:.=]\]", re.DOTALL)
OPTION = re.compile(r"-[nErsuz]*(?:i[^*]*|(?P<last>[efl])(?P<value>.*))?", re.DOTALL)
LONG_OPTION = re.compile(r"--(?:quiet|silent|regexp-extended|null-data|separate|posix|debug|in-place(?:=[^*]*)?)")


def sed_hides(arguments: list[str]) -> bool:
    """Return whether a script of sed may run a program, or use a file that is not an argument."""
    scripts: list[str] = []
    others: list[str] = []
    has_script, words = False, iter(arguments)
    for word in words:
        if word == "-" or not word.startswith("-"):
            others.append(word)
        elif word.startswith("--"):
            name, _, value = word.partition("=")
            if name == "--expression":
                has_script = True
                scripts.append(value if "=" in word else next(words, ""))
            elif not LONG_OPTION.fullmatch(word):
                return True
        elif (option := OPTION.fullmatch(word)) is None:
            return True
        elif option["last"]:
            value = option["value"] or next(words, "")
            has_script = has_script or option["last"] != "l"
            scripts += [value] if option["last"] == "e" else []
    if not has_script or others[:1] == [""]:  # on a Mac, the word after `-i` is the end of a name
        scripts += others[: 2 if others[:1] == [""] else 1]
    return not all(map(_is_plain, scripts))


def _is_plain(script: str) -> bool:
    """Return whether all commands of a script are plain. They are read one after the other, so the time is linear."""
    at = 0
    while at < len(script):
        command = PLAIN_COMMAND.match(script, at)
        if command is None or any(map(_ends_in_set, command.group("first", "last", "pattern"))):
            return False
        at = command.end()
    return True


def _ends_in_set(expression: str | None) -> bool:
    """Return whether an expression ends inside of a set such as `[/]`. Many versions of sed read on to its end."""
    plain = re.sub(r"\[\^?\]", "[", ONE_LETTER.sub("x", expression or ""))
    return "[" in plain.rpartition("]")[2]
