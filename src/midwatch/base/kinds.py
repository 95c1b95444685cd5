"""Find the class that a setting `kind` names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from midwatch.base.errors import BadConfig
from midwatch.base.foreign import ContainExit


def load_kind(section: str, kind: str, kinds: Mapping[str, str]) -> Any:
    """Return the class of a known kind or of a path `package.module:Class`, or raise BadConfig."""
    path = kinds.get(kind, kind)
    module, colon, attribute = path.partition(":")
    if not colon:
        names = ", ".join(sorted(kinds))
        raise BadConfig(f"{section}.kind: there is no kind {kind!r}; use {names}, or package.module:Class.")
    try:
        with ContainExit(f"{section}.kind: {kind!r}"):
            return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadConfig(f"{section}.kind: {kind!r} cannot be loaded ({problem}); correct the name.") from problem
