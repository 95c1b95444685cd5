"""The form that a result must have: its JSON schema for the model, and the check of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from midwatch.base.errors import BadConfig

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

OUTPUT_TOOL = "final_result"
OPENING = re.compile(r"```(?:json)?[^\S\n]*\n")
CLOSING = re.compile(r"\n[^\S\n]*```")


class Output:
    """The form of a result. It is given as a JSON schema of an object, or as a pydantic model."""

    def __init__(self, agent: str, form: Mapping[str, Any] | type[BaseModel]) -> None:
        self._check: TypeAdapter[Any] | Validator
        if isinstance(form, Mapping):
            self.schema = dict(form)
            self._check = _build_validator(agent, self.schema)
        else:
            self._check = TypeAdapter(form)
            self.schema = self._check.json_schema()
        if self.schema.get("type", "object") != "object":
            raise BadConfig(f"agents.{agent}.output: must be the schema of an object; put other values in a property.")

    def check(self, text: str) -> tuple[str | None, str | None]:
        """Check an answer. Return the result as JSON and None; if the form is wrong, None and the problem."""
        try:
            value = json.loads(_unwrap(text))
        except (ValueError, RecursionError) as problem:
            return None, f"The result is not JSON ({problem}). Answer with JSON of the required form."
        if problems := self._problems(value):
            return None, f"The result does not have the required form: {problems}. Correct it."
        return json.dumps(value, ensure_ascii=False), None

    def _problems(self, value: Any) -> str:
        wrong: list[tuple[Iterable[Any], str]] = []
        if isinstance(self._check, TypeAdapter):
            try:
                self._check.validate_python(value)
            except ValidationError as problem:
                errors = problem.errors(include_url=False, include_input=False, include_context=False)
                wrong = [(error["loc"], error["msg"]) for error in errors]
        else:
            wrong = [(error.absolute_path, error.message[:200]) for error in self._check.iter_errors(value)]
        return "; ".join(f"{'.'.join(map(str, path)) or 'it'}: {message}" for path, message in wrong[:10])


def _unwrap(text: str) -> str:
    """Return the content of the first block between two lines with ```, or the whole text if there is no block."""
    start = OPENING.search(text)
    end = CLOSING.search(text, start.end()) if start else None
    return text[start.end() : end.start()] if start and end else text


def _build_validator(agent: str, schema: Mapping[str, Any]) -> Validator:
    try:
        import jsonschema
    except ImportError:
        raise BadConfig(f"agents.{agent}.output needs jsonschema; install it: pip install 'midwatch[llm]'") from None
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as problem:
        raise BadConfig(f"agents.{agent}.output: the JSON schema is not valid: {problem.message[:200]}.") from None
    validator: Validator = cls(schema)
    return validator
