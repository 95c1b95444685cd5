"""The profiles of known terminal agents. Each tested program has a file of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.profiles.untested import UNTESTED

TESTED = ("claude", "codex", "gemini", "qwen", "opencode", "aider", "goose", "copilot")
"""The programs with a file of their own."""


class Profiles(Mapping[str, Profile]):
    """All profiles by name. The file of a program is imported when its profile is used, because few are used."""

    def __init__(self, others: Mapping[str, Profile]) -> None:
        self._others = others

    def __getitem__(self, name: str) -> Profile:
        if name in TESTED:
            profile: Profile = import_module(f"{__name__}.{name}").PROFILE
            return profile
        return self._others[name]

    def __contains__(self, name: object) -> bool:
        return name in TESTED or name in self._others

    def __iter__(self) -> Iterator[str]:
        return iter((*TESTED, *self._others))

    def __len__(self) -> int:
        return len(TESTED) + len(self._others)


PROFILES = Profiles({**UNTESTED, "custom": Profile(quiet=2.0, settle=0.05)})


def find_version(name: str) -> str:
    """Return the version of a tested program from which the meanings of its texts were taken."""
    version: str = import_module(f"{__name__}.{name}").VERSION
    return version
