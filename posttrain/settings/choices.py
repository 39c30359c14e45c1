"""Settings that choose an entry of a table, with the entry's options: `NAME` or `{type: NAME, key: value}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError, ValidationInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from posttrain.errors import ParamsError, PluginError, excerpt
from posttrain.settings.listing import usable
from posttrain.settings.params import SHORT, Params, did_you_mean
from posttrain.settings.plain import merge
from posttrain.settings.plugins import or_package
from posttrain.settings.user_code import is_import_path, load_object


class Options(Params):
    """The options of one entry. `type` is the entry's name."""

    type: str


class Entry(Protocol):
    """An entry of a table: its options, and its formula as one line."""

    @property
    def options(self) -> type[Options]: ...

    @property
    def formula(self) -> str: ...


@dataclass(frozen=True)
class Option:
    """An entry that consists only of its options."""

    options: type[Options]
    formula: str


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class OneOf(Generic[E]):
    """Marks a field as a choice from a table. `own`: the classes allowed for an import path, if any."""

    table: Mapping[str, E]
    default: str
    own: tuple[type, ...] = ()

    @property
    def chosen(self) -> Any:
        """The default value for an options field."""
        return self.default

    def entry(self, name: str) -> E:
        """Return the entry with this name, from the table or the user's code."""
        if name in self.table:
            return self.table[name]
        entry: E = load_object(name, "type")
        return entry

    def plain(self, value: Any, default: str) -> Any:
        """Return the long form of a value in a file. Values in neither form are returned unchanged, for validation."""
        if isinstance(value, str):
            return {"type": value}
        return {"type": default, **value} if isinstance(value, Mapping) else value

    def merged(self, base: Any, over: Any) -> Any:
        """Return `over` on top of `base`. Another type starts from its defaults; the same type keeps other values."""
        base = self.plain(self.default if base is None else base, self.default)
        over = self.plain(over, base["type"])
        same = isinstance(over, Mapping) and over["type"] == base["type"]
        return {**base, **over} if same else over

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        serialize = core_schema.plain_serializer_function_ser_schema(
            lambda options, info: options.model_dump(mode=info.mode), info_arg=True
        )
        return core_schema.with_info_before_validator_function(self._read, handler(source), serialization=serialize)

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        """Return the typed options of a value in a file."""
        if isinstance(value, Options):
            return value
        data = self.plain(value, self.default)
        if not isinstance(data, Mapping):  # a ValueError, as pydantic reports no others
            raise ValueError(f"expected one of {', '.join(self.table)}, or {{type: NAME}}")  # noqa: TRY004
        options = self._named(data["type"], str(info.field_name)).options
        fields = options.model_fields
        wrong = {str(key): self._why_unknown(str(key), data, options, info) for key in data if key not in fields}
        for name, option in fields.items():
            if option.is_required() and name not in data:
                wrong[name] = f"missing. Write {option.description or 'a value'}"
        if wrong:
            raise _wrong(wrong)
        return options.model_validate(data)

    def _named(self, name: Any, setting: str) -> Entry:
        if name in list(self.table):
            try:
                return self.table[name]
            except PluginError as error:
                raise ValueError(str(error)) from error
        if not self.own or not is_import_path(name):
            import_path = ", or MODULE:NAME for your own" if self.own else ""
            fix = f"{did_you_mean(str(name), list(self.table))}{import_path}"
            fix = or_package(fix) if getattr(self.table, "group", None) else fix
            raise ValueError(f"unknown type {excerpt(name, 80)}. {fix}")
        try:
            loaded = load_object(name, setting)
        except ParamsError as error:
            raise ValueError(f"'{name}': {error.what}. {error.fix}") from error
        if not isinstance(loaded, self.own):
            wanted = " or ".join(kind.__name__ for kind in self.own)
            what = f"'{name}' is a {type(loaded).__name__}. It has to be a {wanted} (docs/algorithms.md)"
            raise ValueError(what)  # noqa: TRY004
        return cast("Entry", loaded)

    def _why_unknown(self, key: str, data: Mapping[Any, Any], options: type[Options], info: ValidationInfo) -> str:
        name = data["type"]
        others = [type_name for type_name, entry in usable(self.table) if key in entry.options.model_fields]
        if others:
            line = f"{info.field_name}: {{type: {others[0]}, {key}: {SHORT.repr(data[key])}}}"
            return f"not an option of type {name}. It belongs to type {', '.join(others)}. Write {line}"
        known = [option for option in options.model_fields if option != "type"]
        return f"unknown key. {did_you_mean(key, known) or f'Type {name} has no options'}"


def choices_of(model: type[BaseModel]) -> Iterator[tuple[str, OneOf[Any]]]:
    """Yield the fields of a model that choose from a table."""
    for name, info in model.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, OneOf):
                yield name, mark


def merge_settings(model: type[BaseModel], base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings merged into a preset's, mapping by mapping; choices by type."""
    merged = merge(base, over)
    for name, choice in choices_of(model):
        if name in over:
            merged[name] = choice.merged(base.get(name), over[name])
    return merged


def _wrong(reasons: Mapping[str, str]) -> ValidationError:
    """Return an error for each of these keys."""
    errors = [
        InitErrorDetails(type=PydanticCustomError("option", "{why}", {"why": why}), loc=(key,), input=None)
        for key, why in reasons.items()
    ]
    return ValidationError.from_exception_data("options", errors)
