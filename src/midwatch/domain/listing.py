"""Listing: one page of a list, newest first, and where the next page begins."""

from __future__ import annotations

from typing import TypeVar

R = TypeVar("R")


class Listing(list[R]):
    """Some records of a list, newest first.

    `next` is the `before` of the next page, or None after the last page. A page ends early if a filter matches few of
    the records that were looked at: then it has fewer records than requested, perhaps none, and `next` is set.
    """

    next: str | None = None
