"""Patches of hooks: they are checked, and applied to the subject of a seam.

A patch is a merge patch (RFC 7396): a field that the patch does not name stays, a list is replaced as a whole. Each
seam allows only some fields. A patch with anything else is refused as a whole, so that no hook believes in a change
that was not made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midwatch.base.errors import InvalidInput
from midwatch.domain.hook import Seam

Json = dict[str, Any]

PATCHABLE: Mapping[Seam, tuple[str, ...]] = {
    "before_model": ("instructions", "messages", "settings", "tools"),
    "after_model": ("text", "tool_calls"),
    "before_tool": ("arguments",),
    "after_tool": ("text", "is_error"),
}
"""The fields of the subject that a patch may change at each seam."""
SPOKEN = frozenset({"user", "agent", "tool"})
"""Roles of messages whose text a hook may change. It may not change others: system, thought and call."""
LONGEST_PATCH = 1 << 20
DEEPEST_PATCH = 200
"""How deeply the data of a patch may be nested. The stores refuse data that is nested a little deeper."""


def copy_data(value: Any) -> Any:
    """Return a copy of JSON data. It is much faster than `copy.deepcopy`."""
    if isinstance(value, Mapping):
        return {key: copy_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_data(item) for item in value]
    return value


def apply_patch(seam: Seam, subject: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """Return the subject with the patch applied, or raise InvalidInput if the patch is not valid at this seam."""
    allowed = PATCHABLE[seam]
    if unknown := [str(name) for name in patch if name not in allowed]:
        raise InvalidInput(f"its patch names {unknown[0][:50]!r}, but at {seam} it may change: {', '.join(allowed)}.")
    _check_data(patch)
    try:
        text = json.dumps(patch, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("its patch has half of a character (a surrogate); return whole ones.") from None
    except (TypeError, ValueError):
        raise InvalidInput("its patch is not JSON; return only texts, finite numbers, lists and objects.") from None
    if (size := len(text)) > LONGEST_PATCH:
        raise InvalidInput(f"its patch has {size} characters; return at most {LONGEST_PATCH}.")
    changed: Json = merge(subject, patch)
    for name in patch:
        CHECKS[seam, name](subject[name], changed.get(name))
    if seam == "after_model" and not changed["text"].strip() and not changed["tool_calls"]:
        raise InvalidInput("its patch leaves nothing of the answer; keep a text or a tool call.")
    return changed


def _check_data(value: Any, depth: int = 0) -> None:
    """Raise InvalidInput for what looks like JSON, but what not every database and JSON library can store."""
    if depth > DEEPEST_PATCH:
        raise InvalidInput(f"its patch is nested in more than {DEEPEST_PATCH} levels; return it flatter.")
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise InvalidInput("its patch has a name that is not a text; return only texts as names.")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_data(item, depth + 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise InvalidInput("its patch has a whole number of more than 64 bits; return it as text.")


def merge(value: Any, patch: Any) -> Any:
    """Return the value with a merge patch applied. A field that is null in the patch is removed."""
    if not isinstance(patch, Mapping):
        return copy_data(patch)
    merged = dict(value) if isinstance(value, Mapping) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), change)
    return merged


def find_kept(before: Sequence[Any], after: Sequence[Any]) -> list[int] | None:
    """Return the positions in `before` of the items of `after`, or None if `after` has another item or order."""
    places, start = [], 0
    for item in after:
        place = next((place for place in range(start, len(before)) if before[place] == item), None)
        if place is None:
            return None
        places.append(place)
        start = place + 1
    return places


# -- the checks of each field --------------------------------------------------------------------------------------


def _check_instructions(before: Any, after: Any) -> None:
    if not isinstance(after, str) or not after.startswith(before):
        raise InvalidInput("its patch changes the instructions; it may only append text to them.")


def _check_messages(before: Any, after: Any) -> None:
    if not isinstance(after, list) or len(after) < len(before):
        raise InvalidInput("its patch removes messages; it may change texts, and append messages of the role user.")
    for number, message in enumerate(after):
        old = before[number] if number < len(before) else {"role": "user"}
        if not isinstance(message, dict) or not isinstance(message.get("text"), str):
            raise InvalidInput(f"message {number} of its patch has no text; return an object with `role` and `text`.")
        if {**message, "text": ""} != {**old, "text": ""}:
            raise InvalidInput(f"its patch changes more than the text of message {number}; keep its other fields.")
        if message["text"] != old.get("text") and old["role"] not in SPOKEN:
            raise InvalidInput(f"its patch changes a message of the role {old['role']}; change others only.")


def _check_settings(before: Any, after: Any) -> None:
    limits = {"temperature": (0.0, 2.0), "max_tokens": (1, math.inf)}
    if not isinstance(after, dict) or set(after) - set(limits):
        raise InvalidInput("its patch sets an unknown setting; it may set temperature and max_tokens.")
    for name, value in after.items():
        least, most = limits[name]
        number = int if name == "max_tokens" else (int, float)
        if isinstance(value, bool) or not isinstance(value, number) or not least <= value <= most:
            raise InvalidInput(f"its patch sets {name} to a value that is not valid; set a number in its range.")


def _check_tools(before: Any, after: Any) -> None:
    if not isinstance(after, list) or find_kept(before, after) is None:
        raise InvalidInput("its patch adds or moves tools; it may only remove names from `tools`.")


def _check_calls(before: Any, after: Any) -> None:
    if not isinstance(after, list) or find_kept(before, after) is None:
        raise InvalidInput("its patch changes tool calls; it may only remove calls. Change arguments at before_tool.")


def _check_arguments(before: Any, after: Any) -> None:
    if not isinstance(after, dict):
        raise InvalidInput("the arguments in its patch are not an object; return a field for each argument.")


def _check_text(before: Any, after: Any) -> None:
    if not isinstance(after, str):
        raise InvalidInput("the text in its patch is not a text; return a string.")


def _check_flag(before: Any, after: Any) -> None:
    if not isinstance(after, bool):
        raise InvalidInput("`is_error` in its patch is not true or false; correct it.")


CHECKS: Mapping[tuple[Seam, str], Callable[[Any, Any], None]] = {
    ("before_model", "instructions"): _check_instructions,
    ("before_model", "messages"): _check_messages,
    ("before_model", "settings"): _check_settings,
    ("before_model", "tools"): _check_tools,
    ("after_model", "text"): _check_text,
    ("after_model", "tool_calls"): _check_calls,
    ("before_tool", "arguments"): _check_arguments,
    ("after_tool", "text"): _check_text,
    ("after_tool", "is_error"): _check_flag,
}
"""The check of each field that a patch may change, with the value before and after."""
