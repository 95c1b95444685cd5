"""What is wrong with a value of a setting, an option or a request, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.domain.agent import NAME

SHAPES = {
    "a list": ("list_type", "tuple_type", "set_type"),
    "{table}": ("dict_type", "mapping_type", "model_type", "model_attributes_type"),
    "text": ("string_type", "string_unicode"),
    "a whole number": ("int_type", "int_parsing", "int_from_float"),
    "a number": ("float_type", "float_parsing", "finite_number"),
    "true or false": ("bool_type", "bool_parsing"),
}
HEADER = r"^[A-Za-z0-9-]{1,60}$"
WEB_ADDRESS = r"^https?://"
AUTOMATION_ID = r"^am_[0-9a-z]{1,60}$"
TIME_OF_DAY = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
PATTERNS = {
    NAME: "a name has 1 to 63 letters, digits, `_`, `.` or `-`, and begins with a letter or digit",
    HEADER: "the name of a header has 1 to 60 letters, digits or `-`",
    WEB_ADDRESS: "the address must begin with http:// or https://",
    TIME_OF_DAY: "the time must be HH:MM, such as 08:00",
    AUTOMATION_ID: "the id must be `am_` with 1 to 60 digits or lower-case letters",
}
"""What a text must be like, in words, by the regular expression that it must match."""
WORDS = {
    **{kind: f"it must be {shape}" for shape, kinds in SHAPES.items() for kind in kinds},
    "missing": "it is missing; add it",
    "extra_forbidden": "there is no such setting; correct the name, or remove it",
    "int_parsing_size": "the number is too large",
    "literal_error": "it must be one of: {expected}",
    "enum": "it must be one of: {expected}",
    "greater_than": "it must be above {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than": "it must be below {lt}",
    "less_than_equal": "it must be at most {le}",
    "too_short": "it needs more entries: at least {min_length}",
    "too_long": "it has too many entries: at most {max_length}",
    "string_too_short": "the text is too short: at least {min_length} characters",
    "string_too_long": "the text is too long: at most {max_length} characters",
}
"""What midwatch says instead of the words of pydantic, by pydantic's kind of error."""
STRUCTURED = frozenset({*SHAPES["a list"], *SHAPES["{table}"]})
"""The kinds of errors of a value that must be a list or a table."""


def explain_flaw(flaw: Mapping[str, Any], table: str = "a table") -> str:
    """Return what an error of pydantic means, without a full stop. `table` is what the format calls a JSON object."""
    context = {"table": table} | {name: _trim(value) for name, value in (flaw.get("ctx") or {}).items()}
    if flaw["type"] == "string_pattern_mismatch":
        return PATTERNS.get(flaw["ctx"]["pattern"], "the text has a wrong form")
    text: str = WORDS[flaw["type"]].format(**context) if flaw["type"] in WORDS else flaw["msg"]
    return text.removeprefix("Value error, ").rstrip(".")


def _trim(value: object) -> str:
    """Return a limit as text: a whole number without its fraction, names without quotes."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip("'").replace("' or '", ", ").replace("', '", ", ")
