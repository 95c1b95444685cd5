"""Field types that several shapes share, and the base class for the options in a section of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from midwatch.base.durations import seconds
from midwatch.base.errors import BadConfig, InvalidInput
from midwatch.wire.flaws import explain_flaw


def _seconds(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not durations; write 90s, 10m, 1h30m or 2d")
    try:
        return seconds(value) if isinstance(value, str | int | float) else value
    except InvalidInput as problem:
        raise ValueError(str(problem)) from None


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A duration: a number of seconds, or text such as 90s, 10m, 1h30m, 2d."""


def make_texts(longest: int | None) -> Any:
    """Return the type of a field that takes a text or a list of texts, with at most `longest` characters in all."""

    def check(value: Any) -> Any:
        texts = [value] if isinstance(value, str | None) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) or value is None for text in texts):
            raise ValueError("it must be text or a list of texts")
        if longest is not None and sum(len(text or "") for text in texts) > longest:
            raise ValueError(f"the text is too long: at most {longest} characters")
        return value

    return Annotated[str | list[str] | None, BeforeValidator(check)]


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", value.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError("write a number of bytes, or a text such as 512M or 4G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


Size = Annotated[int, BeforeValidator(_size)]
"""A number of bytes, or a text such as 800K, 512M, 4G."""


class Options(BaseModel):
    """Base class of the options in one section of the settings. An unknown option is an error.

    The schema is built when options are checked: most classes are only bases of others, or belong to unused kinds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def read_section(cls, section: str, options: Mapping[str, Any]) -> Self:
        """Check the options of a section; raise BadConfig, which names the first wrong option.

        The error does not show the value of the option, because the value may be a secret.
        """
        try:
            return cls.model_validate(dict(options))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            setting = ".".join((section, *map(str, first["loc"])))
            if first["type"] == "extra_forbidden":
                names = ", ".join(cls.model_fields) or "none"
                raise BadConfig(f"{setting}: there is no such option; options of this kind: {names}.") from None
            raise BadConfig(f"{setting}: {explain_flaw(first)}.") from None
