"""Variables that an automation gives to the programs of its runs: checks, changes, and masks for secret values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midwatch.base.errors import InvalidInput
from midwatch.domain.requests import is_plain

MASK = "***"
"""What replies show instead of a secret value. In a change it keeps the value."""
MOST_NAMES, LONGEST_VALUE = 50, 8000
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
REFUSED = re.compile(
    r"_*MIDWATCH_.*|LD_.*|DYLD_.*|GLIBC_.*|GCONV_.*|MALLOC_.*|LOCPATH|NLSPATH|BASH.*|SHELLOPTS|PS4|ENV|IFS|PWD|"
    r"PYTHON(PATH|HOME|STARTUP|INSPECT|USERBASE)|PERL5(LIB|OPT|DB)|PERLLIB|RUBY(LIB|OPT)|NODE_(OPTIONS|PATH)|"
    r"JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|GIT_CONFIG.*",
    re.DOTALL,
)
"""Names of variables of midwatch itself, and of those that make a loader, shell or git run other code."""
SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|DSN|PRIVATE|(^|_)PAT(_|$)|"
    r"(^|_)(DATABASE|DB|PG|\w*SQL|\w*GRES|MONGO\w*|REDIS|AMQP|RABBITMQ|BROKER|WEBHOOK)_UR[IL]",
    re.IGNORECASE,
)
"""Names of secrets. The address of a database often has its password."""
SHORTEST_HIDDEN = 4
"""A secret value that is shorter is not replaced in the output of commands: too much text would match."""

Env = Mapping[str, str]


def is_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret."""
    return SECRET.search(name) is not None


def show_env(env: Env | None) -> dict[str, str] | None:
    """Return variables as replies show them: the values of secrets are masked."""
    return None if env is None else {name: MASK if is_secret(name) else value for name, value in env.items()}


def hide_env(env: Env | None) -> dict[str, str] | None:
    """Return variables as an agent sees them: all values are masked."""
    return None if env is None else dict.fromkeys(env, MASK)


def change_env(old: Env | None, changes: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the variables after a change.

    An empty value removes a variable, and `***` keeps the value of a secret. None removes all variables. A secret that
    has no value yet cannot be kept; it is left out.
    """
    if changes is None:
        return None
    after = dict(old or {})
    for name, value in changes.items():
        if value == "":
            after.pop(name, None)
        elif not (value == MASK and is_secret(name)):
            after[name] = value
    return after or None


def replace_env(old: Env | None, new: Env | None) -> dict[str, str] | None:
    """Return the change after which the variables are the new ones, and no others."""
    return {**dict.fromkeys(old or {}, ""), **new} if new else None


def restore_env(old: Env | None, imported: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the variables of an import; a masked secret keeps the value that it has here, or is left out."""
    masked = {name for name, value in (imported or {}).items() if value == MASK and is_secret(name)}
    kept = {name: value for name, value in (old or {}).items() if name in masked}
    return {**{name: value for name, value in (imported or {}).items() if name not in masked}, **kept} or None


def check_env(env: Mapping[str, Any] | None) -> None:
    """Raise InvalidInput if a name or a value cannot be used. The error never shows a value."""
    if env is None:
        return
    if len(env) > MOST_NAMES:
        raise InvalidInput(f"there are too many variables; use at most {MOST_NAMES}.", field="env")
    for name, value in env.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            why = "use letters, digits and _, at most 100, and no digit first"
            raise InvalidInput(f"`env` has a variable with an invalid name; {why}.", field="env")
        if REFUSED.fullmatch(name):
            why = "midwatch, a loader, a shell or git obeys it"
            raise InvalidInput(f"the variable {name} cannot be set here: {why}; choose another name.", field="env")
        if not isinstance(value, str) or not is_plain(value) or len(value) > LONGEST_VALUE:
            why = f"it must be text without NUL, of at most {LONGEST_VALUE} characters"
            raise InvalidInput(f"the value of the variable {name} cannot be used; {why}.", field="env")


def hide_values(text: str, env: Env) -> str:
    """Return the output of a program in which the values of secrets are replaced by `***`."""
    secrets = [value for name, value in env.items() if is_secret(name) and len(value) >= SHORTEST_HIDDEN]
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text
