"""Scripts of sed that run a program, or use a file that is not an argument."""

from __future__ import annotations

import re

ADDRESS = r"(?:\d+|\$|/(?:[^/\\\n]|\\.)*/[IM]*)"
PLAIN_SCRIPT = re.compile(
    rf"(?:\s*(?:{ADDRESS}(?:[,~][+~]?{ADDRESS})?)?\s*!?\s*(?:[pdDgGhHnNxlz=]|[qQ]\d*|[{{}}]|[aic][^\n]*|"
    r"[:btT]\s*\w*|[sy](?P<sign>[^\w\s\\])(?:\\.|(?!(?P=sign))[^\\\n])*(?P=sign)(?:\\.|(?!(?P=sign))[^\\\n])*(?P=sign)"
    r"[gpiIMm\d]*)?\s*(?:[;\n]|(?<=\{)|(?=\})|$))*",
    re.DOTALL,
)
"""A script of sed that runs no program, and reads and writes no other file."""
OPTION = re.compile(r"-[nErsuz]*(?:i.*|(?P<last>[efl])(?P<value>.*))?", re.DOTALL)
LONG_OPTION = re.compile(r"--(?:quiet|silent|regexp-extended|null-data|separate|posix|debug|in-place(?:=.*)?)")


def sed_hides(arguments: list[str]) -> bool:
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
            elif not LONG_OPTION.fullmatch(word):
                return True
        elif (option := OPTION.fullmatch(word)) is None:
            return True
        elif option["last"]:
            value = option["value"] or next(words, "")
            given = given or option["last"] != "l"
            scripts += [value] if option["last"] == "e" else []
    if not given or others[:1] == [""]:  # on a Mac, the word after `-i` is the end of a name
        scripts += others[: 2 if others[:1] == [""] else 1]
    return not all(map(PLAIN_SCRIPT.fullmatch, scripts))
