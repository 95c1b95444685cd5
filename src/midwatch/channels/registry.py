"""The kinds of channels by name, and how to build a channel from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.foreign import ContainExit
from midwatch.base.kinds import load_kind
from midwatch.domain.channel import Channel

KINDS: dict[str, str] = {
    "apprise": "midwatch.channels.apprise:AppriseChannel",
    "console": "midwatch.channels.console:ConsoleChannel",
    "webhook": "midwatch.channels.webhook:WebhookChannel",
}


EXTRAS = {"apprise": "apprise"}  # kinds whose library is optional, and the extra that installs it


def build(name: str, kind: str, options: Mapping[str, Any]) -> Channel:
    """Build the channel that `[channels.NAME]` describes, or raise BadConfig."""
    cls = load_kind(f"channels.{name}", kind, KINDS)
    try:
        with ContainExit(f"channels.{name}: {kind}"):
            return cast(Channel, cls(name, options))
    except MidwatchError:
        raise
    except ImportError as problem:
        raise BadConfig(f"channels.{name}: {_explain_missing(kind, problem)}") from problem
    except Exception as problem:  # a class of another package: its message may contain the value of an option
        raise BadConfig(
            f"channels.{name}: {kind} failed with {type(problem).__name__}; check the channel's options."
        ) from problem


def _explain_missing(kind: str, problem: ImportError) -> str:
    if kind in EXTRAS:
        return f"{kind} needs a library that is not installed; run pip install 'midwatch[{EXTRAS[kind]}]'."
    return f"{kind} needs {problem.name or 'a library'}, which is not installed; install this library."
