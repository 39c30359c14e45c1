"""Score 1 for a completion with JSON that matches a schema (a file, in params.yaml, or in the prompt's row)."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY
from pydantic import AfterValidator, BeforeValidator, Field
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from posttrain.errors import excerpt
from posttrain.files import is_outside
from posttrain.rewards.patterns import matches, valid_pattern
from posttrain.rewards.reward import Examples, rule
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params
from posttrain.settings.plain import CUSTOM

DEEPEST: Final = 64
"""Deeper JSON is not read, so that endless recursion can only come from the schema."""
FORMATS: Final = ("date", "email", "ipv4", "ipv6", "uuid")
"""The values of `format` that are checked. Others are annotations, as in the specification."""
PROBES: Final[tuple[Any, ...]] = ({}, [], "", 0, None)
_BLOCK: Final = re.compile(r"```json[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def _as_text(value: Any) -> Any:
    """Return a schema from params.yaml as JSON text. Options are dictionary keys, so they must be hashable."""
    return json.dumps(value) if isinstance(value, dict | bool) else value


def _usable(schema: str | None) -> str | None:
    if schema is not None and (fault := _fault(_read(schema))):
        raise ValueError(fault)
    return schema


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # the option hides `BaseModel.schema`, which is deprecated

    class SchemaOptions(Params):
        """The schema, and where the JSON is."""

        schema: Annotated[
            str | None,
            BeforeValidator(_as_text, json_schema_input_type=str | dict[str, Any] | bool | None),
            AfterValidator(_usable),
        ] = Field(  # type: ignore[assignment]
            None, description="a JSON schema, or a file custom/NAME.json; null: `schema` in each prompt's info"
        )
        find: Literal["whole", "block"] = Field(
            "whole", description="whole: the completion is only JSON; block: read its last ```json block"
        )


def _cannot_score(prompt: Prompt, options: SchemaOptions) -> str | None:
    if options.schema is None and "schema" not in prompt.info:
        return "its info has no schema"
    return _fault(_schema_of(prompt, options)) or None


def _examples(prompt: Prompt, options: SchemaOptions) -> Examples:
    """Return examples: the prompt's answer is right if it is a JSON object or list; text that is not JSON is wrong."""
    wrong = ["This is no JSON."]
    try:
        value = parse_json(prompt.answer)
    except ValueError:
        return Examples(wrong=wrong)
    if not isinstance(value, dict | list):  # a number or a word may be the answer for another reward
        return Examples(wrong=wrong)
    return Examples([f"```json\n{prompt.answer}\n```" if options.find == "block" else prompt.answer], wrong)


@rule(SchemaOptions, _cannot_score, examples=_examples, isolated=True)
def valid_json(rollout: Rollout, options: SchemaOptions) -> Score:
    """Return 1 if the completion's JSON is valid against the schema."""
    schema, text = _schema_of(rollout.prompt, options), rollout.text
    if fault := _fault(schema):
        return Score(0.0, "error", fault)
    if options.find == "block":
        blocks = _BLOCK.findall(text)
        if not blocks:
            return Score(0.0, "unparseable", "it has no ```json block")
        text = blocks[-1]
    try:
        value = parse_json(text)
    except ValueError as error:
        return Score(0.0, "unparseable", f"it is not JSON ({error})")
    try:
        wrong = next(_validator(schema).iter_errors(value), None)
    except TimeoutError as error:
        return Score(0.0, "unparseable", str(error))
    except RecursionError:
        return Score(0.0, "error", "the schema refers to itself endlessly")
    return Score(1.0) if wrong is None else Score(0.0, reason=f"{wrong.json_path}: {wrong.message:.100}")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Reject deep nesting, and JSON that parsers read differently."""
    try:
        value = _JSON.decode(text.strip())
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [value]
    for _ in range(DEEPEST):
        level = [part for node in level if isinstance(node, dict | list) for part in _parts(node)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {DEEPEST}")


def _parts(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a name twice")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is not a finite number")
    return number


_JSON: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)


def _schema_of(prompt: Prompt, options: SchemaOptions) -> str:
    """Return the schema as JSON text. A prompt's schema may be an object or text."""
    if options.schema is not None:
        return _read(options.schema)
    schema = prompt.info.get("schema")
    return schema if isinstance(schema, str) else json.dumps(schema)


@lru_cache
def _read(schema: str) -> str:
    """Return a schema's text, or the text of the file that it names."""
    if not schema.startswith(f"{CUSTOM}/"):
        return schema
    if is_outside(schema, CUSTOM) or not Path(schema).is_file():
        raise ValueError(f"{schema:.80} not found in {CUSTOM}/")
    try:
        return Path(schema).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{schema:.80} is not UTF-8") from error


@lru_cache(4096)
def _fault(schema: str) -> str:
    """Return the reason why a schema cannot be used; empty if it can."""
    try:
        loaded = parse_json(schema)
        if not isinstance(loaded, dict | bool):
            raise ValueError("it is not an object")  # noqa: TRY004 - one error for what is no schema
        if not isinstance(_dialect(loaded), str):
            raise ValueError("$schema is not a text")  # noqa: TRY004
        cls = validator_for(loaded, default=Draft202012Validator)
        cls.check_schema(loaded)
        for pattern in _texts_under(loaded, "pattern"):
            valid_pattern(pattern)
        resolver = REGISTRY.resolver_with_root(_resource(loaded))
        for reference in _texts_under(loaded, "$ref"):
            resolver.lookup(reference)
        for probe in PROBES:
            next(_validator(schema).iter_errors(probe), None)
    except SchemaError as error:
        return f"the schema is wrong at {error.json_path}: {error.message:.120}"
    except Unresolvable as error:
        return (
            f"the schema does not contain its reference {excerpt(error.ref, 80)}. Put it under $defs; posttrain "
            "does not download references"
        )
    except ValueError as error:
        return f"the schema {schema[:40]!r} cannot be used ({error}). Give a mapping, or a file {CUSTOM}/NAME.json"
    except RecursionError:
        return "the schema refers to itself endlessly"
    return ""


@lru_cache(4096)
def _validator(schema: str) -> Any:
    """Return a validator that fetches nothing and limits the time of patterns."""
    loaded = json.loads(schema)
    cls = extend(validator_for(loaded, default=Draft202012Validator), {"pattern": _pattern})
    # a registry of one's own has no retrieval; the default one opens URLs
    return cls(loaded, registry=REGISTRY, format_checker=FormatChecker(FORMATS))


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if validator.is_type(instance, "string") and not matches(pattern, instance, "search"):
        yield ValidationError(f"{excerpt(instance)} does not match {excerpt(pattern)}")


def _resource(schema: Any) -> Any:
    return specification_with(_dialect(schema), default=DRAFT202012).create_resource(schema)


def _dialect(schema: Any) -> Any:
    return schema.get("$schema", "") if isinstance(schema, dict) else ""


def _texts_under(schema: Any, key: str) -> Iterator[str]:
    """Yield the texts under this key, at any depth."""
    if isinstance(schema, dict) and isinstance(schema.get(key), str):
        yield schema[key]
    if isinstance(schema, dict | list):
        for part in _parts(schema):
            yield from _texts_under(part, key)


REWARDS = {"json_schema": valid_json}
