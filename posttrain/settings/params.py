"""Read params.yaml into the typed parameters of each module. All mistakes are reported at once."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from posttrain.errors import ParamsError
from posttrain.settings.host import HOST
from posttrain.settings.other_names import OURS
from posttrain.settings.trl_names import TRL

EXPLAINED = "docs/algorithms.md explains the keys"
LARGEST = 1e12
"""A larger number is a slip. It would overflow or never end."""
ONE, SEVERAL = "form-one", "form-several"
"""Tags of a key that takes one value or a list. They are not part of a key's name."""
SCIENTIFIC = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
HALF = re.compile("[\ud800-\udfff]")
KEY = re.compile(r"(\w+)[\w.]*(?= = |: )")
"""A key at the start of a message."""
SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxlong, SHORT.maxother = 3, 80, 80, 80
"""Shortens shown values, which a few YAML anchors may have made larger than memory."""


class Params(BaseModel):
    """Base of every settings class: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:
        """Read `1e-5` as a number. YAML 1.1, which other tools write, reads it as a text."""
        if not isinstance(value, str) or not SCIENTIFIC.fullmatch(value):
            return value
        annotation = cls.model_fields[str(info.field_name)].annotation
        return float(value) if float in (annotation, *get_args(annotation)) else value

    @field_validator("*", mode="after")
    @classmethod
    def _meant(cls, value: Any) -> Any:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(part, int | float) and abs(part) > LARGEST for part in parts):
            raise ValueError(f"{_shown(value)} is too large (the limit is {LARGEST:.0e})")
        if any(isinstance(part, str) and HALF.search(part) for part in parts):
            raise ValueError(f"{_shown(value)} contains half a character (a surrogate), which is not valid text")
        return value


M = TypeVar("M", bound=BaseModel)


def check(model: type[M], value: Any, *, where: str, file: str | None = None) -> M:
    """Return plain data as a typed model, or raise one error with every failure and its fix.

    `file`: the place of these settings; by default the place of all settings.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        fix = HOST.fix("settings", EXPLAINED)
        raise ParamsError(what=faults(error, model, value, where), where=file or HOST.settings_file, fix=fix) from error


def faults(error: ValidationError, model: type[BaseModel], value: Any, where: str) -> str:
    """Return every failure of a validation in terms of the settings, each with its fix."""
    lines = [_line(model, failure, where, value) for failure in error.errors(include_url=False)]
    return "; ".join(dict.fromkeys(lines))


PLAIN: Final = {
    "dict_type": "give NAME: VALUE pairs, e.g. {correct: 1.0}",
    "list_type": "give a list, e.g. [one, two]",
    "tuple_type": "give a list, e.g. [one, two]",
    "too_short": "give at least one",
}
"""pydantic's kinds of failures -> messages in YAML terms."""
PLAIN_WORDS: Final = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    NoneType: ("null", "null"),
}
"""Types of values -> their singular and plural in YAML terms."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a suggestion, a list of known names, or ""."""
    if near := nearest(word, known):
        return f"Did you mean '{near}'?"
    return f"Known here: {joined(sorted(known))[:1000]}" if known else ""


def joined(names: Sequence[str]) -> str:
    """Return names as a list, separated by ` | ` if a name contains a comma."""
    return (" | " if any("," in name for name in names) else ", ").join(names)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known name that a misspelt one most likely means."""
    by_case = {name.casefold(): name for name in reversed(known)}
    plain = word.casefold()
    swapped = [name for name in by_case if len(word) > 1 and sorted(name) == sorted(plain)]
    return by_case.get(next(iter(swapped or difflib.get_close_matches(plain, by_case, n=1, cutoff=0.6)), ""))


def _line(model: type[BaseModel], failure: Any, where: str, given: Any) -> str:
    path = [part for part in failure["loc"] if not str(part).startswith(("function-", ONE, SEVERAL, "[key]"))]
    dotted = ".".join([where, *(str(part) for part in path)])
    if choice := _choice(model, path):
        end, words = choice
        return f"{'.'.join([where, *map(str, path[:end])])} = {_shown(_within(given, path[:end]))}: expected {words}"
    if failure["type"] == "extra_forbidden":
        owners = _models_at(model, [str(part) for part in path[:-1]])
        if answer := _answer(model, owners, str(path[-1])):
            return f"{dotted}: unknown key. {answer}"
        if deeper := sorted({place for owner in owners for place in _deeper(owner, str(path[-1]))}):
            return f"{dotted}: unknown key. Did you mean {' or '.join(map(repr, deeper))}?"
        for up in range(len(path) - 2, -1, -1):
            if str(path[-1]) in _fields_at(model, outer := [str(part) for part in path[:up]]):
                return f"{dotted}: unknown key. It is {'.'.join([where, *outer, str(path[-1])])}"
        known = _fields_at(model, [str(part) for part in path[:-1]])
        return f"{dotted}: unknown key. {did_you_mean(str(path[-1]), known)}".rstrip()
    message = str(failure["msg"]).removeprefix("Value error, ")
    message = PLAIN.get(failure["type"], message)
    message = message[0].lower() + message[1:] if message[:2] != message[:2].upper() else message
    if failure["type"] == "string_pattern_mismatch" or (failure["type"] == "string_type" and _is_slot(model, path)):
        message = f"{_wrong_kind(model, path, failure['input'])}expected {_description(model, path)}"
    if failure["type"] == "missing" and (wanted := _description(model, path)):
        return f"{dotted} is missing. Write {wanted}"
    if failure["type"] == "model_type":
        message = f"give KEY: VALUE pairs. {did_you_mean('', _fields_at(model, list(map(str, path))))}"
    if failure["type"] in ("missing", "value_error", "option"):
        return placed(message, dotted, _fields_at(model, [str(part) for part in path]))
    return f"{dotted} = {_shown(failure['input'])}: {message}"


def placed(message: str, where: str, keys: Collection[str]) -> str:
    """Return a message with the place of the settings, or of the key at the start of the message."""
    key = KEY.match(message)
    return f"{where}.{message}" if key is not None and key[1] in keys else f"{where}: {message}"


def _choice(model: type[BaseModel], path: Sequence[Any]) -> tuple[int, str] | None:
    """Return the end of the path at a plain value of a field with several forms, and these forms as text."""
    for end in range(1, len(path)):
        for field in _fields(model, path[:end]):
            forms = [form for form in _forms(field.annotation) if form is not NoneType]
            if len(forms) > 1 and not any(_models_in(form) for form in forms):
                return end, ", or ".join(map(_words, _forms(field.annotation)))
    return None


def _forms(annotation: Any) -> Sequence[Any]:
    """Return the types of a union, or the single type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _words(annotation: Any, *, many: bool = False) -> str:
    """Return the YAML term for a plain type, or its plural."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(inner[0], many=many)
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin in (list, tuple):
        return f"{'lists' if many else 'a list'} of {_words(inner[0], many=True)}"
    return PLAIN_WORDS.get(annotation, ("NAME: VALUE pairs", "NAME: VALUE pairs"))[many]


def _within(value: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path in plain data."""
    for part in path:
        inside = isinstance(value, Mapping) and part in value
        listed = isinstance(value, list) and isinstance(part, int) and part < len(value)
        value = value[part] if inside or listed else value
    return value


def _answer(model: type[BaseModel], owners: Sequence[type[BaseModel]], theirs: str) -> str:
    """Return our name for another library's key, never by similarity; "" if no table has it."""
    places, note = TRL.get(theirs) or (OURS.get(theirs, ()), "")
    if ours := _ours(model, owners, places):
        return f"It is {' or '.join(map(repr, ours))} here" + (f" ({note})" if note else "")
    if places:
        return f"TRL's key is {' or '.join(map(repr, places))} in other runs" if theirs in TRL else ""
    return f"TRL's key has no equivalent here: {note}" if note else ""


def _ours(model: type[BaseModel], owners: Sequence[type[BaseModel]], places: Sequence[str]) -> list[str]:
    """Return our settings for another library's key: in a group, its neighbours; else their paths in the run."""
    inside = [] if model in owners else owners
    near = [leaf for place in places if _has_one(inside, leaf := place.rpartition(".")[2])]
    return near or [place for place in places if _has(model, place)]


def _has_one(owners: Sequence[type[BaseModel]], name: str) -> bool:
    return any(name in owner.model_fields for owner in owners)


def _has(model: type[BaseModel], path: str) -> bool:
    """Tell whether a model has a setting at this dotted path, including the options of choices."""
    head, _, rest = path.partition(".")
    if head not in model.model_fields or not rest:
        return head in model.model_fields
    field = model.model_fields[head]
    tables = [mark.table for mark in field.metadata if hasattr(mark, "table")]
    options = [entry.options for table in tables for entry in table.values()]
    return any(_has(inner, rest) for inner in [*_models_in(field.annotation), *options])


def _deeper(model: type[BaseModel], key: str, levels: int = 3) -> Iterator[str]:
    """Yield the paths of a key inside the settings of a model's fields."""
    for name, field in model.model_fields.items() if levels else ():
        for inner in () if get_origin(field.annotation) is dict else _models_in(field.annotation):
            if key in inner.model_fields:
                yield f"{name}.{key}"
            yield from (f"{name}.{path}" for path in _deeper(inner, key, levels - 1))


def _shown(value: Any) -> str:
    text = SHORT.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the field names of the model that lies at `path`."""
    return sorted({name for owner in _models_at(model, path) for name in owner.model_fields})


def _description(model: type[BaseModel], path: Sequence[object]) -> str:
    """Return the description of the field at `path`."""
    return next((field.description or "" for field in _fields(model, path)), "")


def _is_slot(model: type[BaseModel], path: Sequence[object]) -> bool:
    """Tell whether the field at `path` is an input slot."""
    extra = next((field.json_schema_extra for field in _fields(model, path)), None)
    return isinstance(extra, dict) and "slot" in extra


def _wrong_kind(model: type[BaseModel], path: Sequence[object], value: object) -> str:
    """Return a sentence if a slot names a table of a wrong kind; else ""."""
    extra = next((field.json_schema_extra for field in _fields(model, path)), None)
    kinds: Any = extra.get("kinds", ()) if isinstance(extra, dict) else ()
    named = re.fullmatch(r"[\w-]+/(\w+)", str(value))
    misspelt = named is not None and difflib.get_close_matches(named[1], kinds)
    return f"{named[1]} is the wrong kind of table; " if kinds and named and not misspelt else ""


def _fields(model: type[BaseModel], path: Sequence[object]) -> list[FieldInfo]:
    """Return the possible fields at `path`."""
    *above, name = map(str, path)
    return [owner.model_fields[name] for owner in _models_at(model, above) if name in owner.model_fields]


def _models_at(model: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """Return the possible models at `path`, through optional and mapping types."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        inner: list[type[BaseModel]] = []
        for owner in models:
            if part in owner.model_fields:
                field = owner.model_fields[part]
                tables = [mark.table for mark in field.metadata if hasattr(mark, "table")]
                inner += [*_models_in(field.annotation), *(e.options for table in tables for e in table.values())]
            elif part == owner.__name__:
                inner.append(owner)
        models = inner or models
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
