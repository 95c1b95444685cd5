"""Tags: words by which people find tasks, automations and goals."""

from __future__ import annotations

from collections.abc import Iterable

from midwatch.base.errors import InvalidInput

MAX_TAGS, LONGEST_TAG = 20, 50


def clean_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags without blanks around them, each once. Raise InvalidInput if one is not valid."""
    cleaned = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    check_tags(cleaned)
    return cleaned


def check_tags(tags: tuple[str, ...]) -> None:
    """Raise InvalidInput if there are too many tags, or if one is too long or not printable."""
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"there are too many tags; use at most {MAX_TAGS}.", field="tags")
    if any(not tag.isprintable() or len(tag) > LONGEST_TAG for tag in tags):
        raise InvalidInput(f"a tag must have 1 to {LONGEST_TAG} printable characters.", field="tags")
