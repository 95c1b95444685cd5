"""Statements with which the console of a database runs a program."""

from __future__ import annotations

import re

CONSOLES = frozenset({"psql", "mysql", "mariadb", "sqlite", "sqlite3", "duckdb"})
PLAIN_WORD = re.compile(r"(?!\.[a-z])[\w./:@=,+-]*", re.IGNORECASE)
"""A word such as an option, a file or an address, and not a command such as `.shell`."""
STATEMENT_OPTION = re.compile(r"-c|-e|-cmd|--(?:command|execute)=")
PLAIN_STATEMENT = re.compile(
    r"\s*(?:select|explain|show|describe|desc|with|values|insert|update|delete)\b[^\\;|!`]*+;?+\s*", re.IGNORECASE
)
NAME_ENDS = re.compile(r"[^\w.$\"\]*/]+")
PLAIN_CALLS = frozenset({
    "", "abs", "and", "as", "avg", "cast", "coalesce", "count", "date", "distinct", "exists", "from", "in", "length",
    "lower", "max", "min", "not", "now", "or", "round", "select", "sum", "upper", "values", "version", "where",
})  # fmt: skip
"""Functions and words before a bracket that run nothing. Others may run a program, such as `edit`."""
STATEMENT_RUNS = re.compile(
    r"\b(?:copy|program|outfile|dumpfile|execute|load\w*)\b|"
    r"\b(?:from|join)\s*['\"][^'\"]*[./*]",
    re.IGNORECASE,
)


def console_hides(argument: str) -> bool:
    """Return whether an argument of a database console may run a program."""
    if PLAIN_WORD.fullmatch(argument):
        return False
    option = STATEMENT_OPTION.match(argument)
    text = argument[option.end() :] if option else argument
    if PLAIN_STATEMENT.fullmatch(text) is None or STATEMENT_RUNS.search(text):
        return True
    calls = (NAME_ENDS.split(piece.rstrip())[-1] for piece in text.split("(")[:-1])
    return any(call.lower() not in PLAIN_CALLS for call in calls)
