"""A JSON schema of params.yaml for editors: keys, descriptions and preset names, from the models of `check`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from posttrain.pipeline.outside.evaluators import EVALUATORS
from posttrain.pipeline.outside.evaluators import GROUP as EVALUATED
from posttrain.pipeline.params.params_file import FORMAT, GROUPS
from posttrain.pipeline.params.seeds import SEED, SEED_MEANING
from posttrain.pipeline.params.slots import MODEL, slots
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.typed import ALGORITHMS, MODELS
from posttrain.pipeline.tables.sources import UserTables
from posttrain.rewards.catalog import REWARDS, Metrics, Rewards
from posttrain.rewards.reward import TERM_KEYS, WORKER_KEYS, WeightedReward
from posttrain.settings.choices import OneOf
from posttrain.settings.listing import usable
from posttrain.settings.params import SCIENTIFIC
from posttrain.settings.user_code import PATH
from posttrain.tasks.task import TASKS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
NAME: Final = "^[A-Za-z0-9][A-Za-z0-9_-]*$"
OWN: Final[JsonSchemaValue] = {"type": "string", "pattern": f"^{PATH.pattern}$"}
"""The import path of the user's own object."""
_READS_REWARDS: Final = get_args(Rewards)[1].func
_READS_METRICS: Final = get_args(Metrics)[1].func
_REWARDS: Final = "rewards"
"""The schema definition of rewards, which refers to itself."""
_TERMS: Final = [(key, field) for key, field in WeightedReward.model_fields.items() if key in TERM_KEYS | WORKER_KEYS]
_SHORT_FORM: Final = UserTables._short_form.__name__


def editor_schema() -> str:
    """Return the schema as JSON."""
    made = _Schema(ref_template="#/$defs/{model}")
    sections: dict[str, Any] = {name: _object({}) for name in GROUPS}
    models: dict[str, type[BaseModel]] = {**MODELS, "evaluate.settings": EvaluateParams}
    tasks = {name: task.params for name, entry in usable(TASKS) if (task := entry.generator)}
    evaluators = [evaluator.runs for _, evaluator in usable(EVALUATORS)]
    rows = {group: {name: of.model for name, of in table.items()} for group, table in ALGORITHMS.items()}
    every = [
        *models.values(),
        *tasks.values(),
        *evaluators,
        *(model for table in rows.values() for model in table.values()),
    ]
    every += [reward.options for _, reward in usable(REWARDS)]
    kinds: dict[Any, Any] = {model: model for model in every}
    kinds |= {
        key: Annotated[field.annotation, Field(description=field.description), *field.metadata] for key, field in _TERMS
    }
    schemas, made_defs = made.generate_definitions(
        [(key, "validation", TypeAdapter(kind).core_schema) for key, kind in kinds.items()]
    )
    defs: dict[str, JsonSchemaValue] = dict(made_defs)  # type: ignore[arg-type]
    ref = {key: schemas[key, "validation"] for key in kinds}

    def run_of(model: type[BaseModel]) -> JsonSchemaValue:
        return defs[ref[model]["$ref"].rpartition("/")[2]]

    for model in {model for table in rows.values() for model in table.values()}:  # the row has what is not an input
        run_of(model)["required"] = [key for key in run_of(model).get("required", ()) if key in slots(model)]
    for model in tasks.values():
        run_of(model)["properties"]["task"] = {"type": "string"}
    for group in (stage.group for stage in STAGES):
        section, _, name = group.partition(".")
        if group in rows:
            run = _by_key("algorithm", {row: ref[model] for row, model in rows[group].items()}, None)
        elif group == "data.tasks":
            run = _by_key("task", {task: ref[model] for task, model in tasks.items()}, OWN)
        elif group == EVALUATED:
            run = {"anyOf": [ref[model] for model in evaluators] or [{"type": "object"}]}
        else:
            run = ref[models[group]] if group in models else {"type": "string", "pattern": f"^{MODEL}$"}
        sections[section]["properties"][name] = {"type": "object", "patternProperties": {NAME: run}} | _CLOSED
    sections["evaluate"]["properties"]["settings"] = ref[EvaluateParams]
    top = {FORMAT: {"type": "integer"}, SEED: {"type": "integer", "minimum": 0, "description": SEED_MEANING}}
    defs[_REWARDS] = _rewards({key: ref[key] for key, _ in _TERMS}, run_of)
    title = {"$schema": DIALECT, "title": "params.yaml of posttrain"}
    whole = json.dumps({**title, **_object({**top, **sections}), "$defs": defs}, ensure_ascii=False)
    return whole.replace(f'"$comment": "{_REWARDS}"', f'"$ref": "#/$defs/{_REWARDS}"')


_CLOSED: Final[JsonSchemaValue] = {"additionalProperties": False}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), **_CLOSED}


def _rewards(terms: Mapping[str, Any], options_of: Callable[[type[BaseModel]], Any]) -> JsonSchemaValue:
    """Return the schema of names with a weight, or with settings and the reward's options."""
    known = {}
    for name, reward in usable(REWARDS):
        shared = TERM_KEYS | (WORKER_KEYS if reward.isolated else frozenset())
        settings = {key: terms[key] for key in shared if key in terms} | {"type": {"type": "string"}}
        options = options_of(reward.options).get("properties", {})
        known[name] = {"anyOf": [{"type": "number"}, _object({**settings, **options})]}
    custom = {OWN["pattern"]: {"anyOf": [{"type": "number"}, {"type": "object"}]}}
    named: JsonSchemaValue = {"type": "object", "required": ["type"]}
    return {"type": "object", "properties": known, "patternProperties": custom, "additionalProperties": named}


def _by_key(key: str, models: Mapping[str, JsonSchemaValue], custom: JsonSchemaValue | None) -> JsonSchemaValue:
    """Return the schema of a run whose key decides its type. Names with the same type share a branch."""
    branches: dict[str, tuple[JsonSchemaValue, list[str]]] = {}
    for name, model in models.items():
        branches.setdefault(json.dumps(model), (model, []))[1].append(name)
    known: JsonSchemaValue = {"enum": list(models)}
    rules = [
        {"if": {"properties": {key: {"enum": names}}, "required": [key]}, "then": model}
        for model, names in branches.values()
    ]
    properties = {key: {"anyOf": [known, custom]} if custom else known}
    return {"type": "object", "required": [key], "properties": properties, "allOf": rules}


class _Schema(GenerateJsonSchema):
    """pydantic's schema, plus the values that our before-validators accept."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own name

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Accept choices, rewards and short forms of tables."""
        function: Any = schema["function"]["function"]
        if isinstance(choice := getattr(function, "__self__", None), OneOf):
            return self._choice(choice)
        if function is _READS_REWARDS:
            return {"$comment": _REWARDS}
        if function is _READS_METRICS:
            names: JsonSchemaValue = {"type": "array", "items": {"type": "string"}}
            return {"anyOf": [names, {"type": "object"}]}
        inner = super().function_before_schema(schema)
        if getattr(function, "__name__", "") == _SHORT_FORM:
            words: JsonSchemaValue = {"type": "string"}
            return {"anyOf": [inner, words, {"type": "array", "items": {"anyOf": [words, *_items(inner)]}}]}
        return inner

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """Return false: a key needs no title in addition to its name."""
        return False

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Accept 1e-5, which YAML 1.1 reads as a text."""
        return {"anyOf": [super().float_schema(schema), {"type": "string", "pattern": f"^{SCIENTIFIC.pattern}$"}]}

    def _choice(self, choice: OneOf[Any]) -> JsonSchemaValue:
        """Return the schema of a name or options. A preset's run may leave out the type."""
        names: JsonSchemaValue = {"enum": list(choice.table)}
        forms: list[JsonSchemaValue] = [names]
        for name, entry in choice.table.items():
            options = self._options(entry.options)
            properties = {**options.get("properties", {}), "type": {"const": name, "description": entry.formula}}
            forms.append(_object(properties))
        if choice.own:
            custom: JsonSchemaValue = {"type": "object", "properties": {"type": OWN}, "required": ["type"]}
            forms += [OWN, custom]
        return {"anyOf": forms}

    def _options(self, model: type[BaseModel]) -> JsonSchemaValue:
        """Return the properties of a model inline, without a reference."""
        made = self.generate_inner(TypeAdapter(model).core_schema)
        return self.resolve_ref_schema(made) if "$ref" in made else made


def _items(inner: JsonSchemaValue) -> list[JsonSchemaValue]:
    """Return the schemas of items in a list of tables: the form of one table."""
    return [part for part in inner.get("anyOf") or inner.get("oneOf") or () if part.get("type") != "null"]
