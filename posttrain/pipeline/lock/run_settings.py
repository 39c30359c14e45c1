"""Settings and code of a run: names in settings that refer to code, and settings that count as code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from posttrain.pipeline.params.seeds import SEED, shared_seed
from posttrain.pipeline.params.stage_table import SCORING, STAGES, Stage, group_named, group_of
from posttrain.settings.plain import flattened, texts_in

PROMPTS: Final = "/prompts"


def settings_of(stage: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings to write into code/STAGE/RUN.json: the shared seed, or the settings of completions.

    DVC depends on a key with all that is below it, and the settings of scores are below the same keys.
    """
    kind, _, run = stage.partition("@")
    if _sampled(kind):
        return flattened(_sampled_settings(kind, run, settings))
    seed = shared_seed(settings, group_named(kind) or "", run)
    return {} if seed is None else {SEED: str(seed)}


def _sampled(kind: str) -> Stage | None:
    """Return the stage that scores the completions of this kind of stage."""
    return next((stage for stage in STAGES if kind and kind == stage.sampled_by), None)


def _sampled_settings(kind: str, run: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a run's completions, as params.yaml has them, without those of its scores."""
    scored = _sampled(kind)
    run_settings = group_of(settings, scored.group).get(run) if scored else None
    if scored and scored.shares_settings:
        run_settings = {**group_of(settings, "evaluate.settings"), "policy": run_settings}
    return (
        {key: run_settings[key] for key in run_settings if key not in SCORING}
        if isinstance(run_settings, Mapping)
        else {}
    )


def names_of(stage: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text in a run's settings, and the tasks of the prompts that it reads."""
    kind, _, run = stage.partition("@")
    tasks = {name: list(_tasks(task)) for name, task in group_of(settings, "data.tasks").items()}
    if kind == "report":
        measured = group_of(settings, "evaluate.settings")
        parts: Any = [*tasks.values(), {key: measured[key] for key in ("reward", "metrics") if key in measured}]
    elif kind == "evaluate":
        parts = group_of(settings, "evaluate.settings")
    elif _sampled(kind):
        parts = _sampled_settings(kind, run, settings)
    else:
        group = group_named(kind)  # None: a stage of another pipeline
        parts = group_of(settings, group).get(run) if group else None
    texts = list(texts_in(parts))
    yield from texts
    yield from _defaults(parts)
    derived = [stage.group for stage in STAGES if stage.derives]
    made_of = {name: made for group in derived for name, made in group_of(settings, group).items()}
    tables, seen = [text for text in texts if text.endswith(PROMPTS)], set[str]()
    while tables:
        name = tables.pop().removesuffix(PROMPTS)
        yield from tasks.get(name, ())
        if name in made_of and name not in seen:
            tables += [text for text in texts_in(made_of[name]) if text.endswith(PROMPTS)]
        seen.add(name)


def _defaults(run_settings: Any) -> Iterator[str]:
    """Yield the rewards that a run without `reward` has, and the kind of answers of a `correct` that names none."""
    runs = run_settings if isinstance(run_settings, list) else [run_settings]
    for run in (run for run in runs if isinstance(run, Mapping)):
        if "reward" not in run:
            yield from ("correct", "format", "numeric")
        if isinstance(run.get("watch"), Mapping) and "reward" not in run["watch"]:
            yield from ("correct", "numeric")
    if _names_no_kind(run_settings):
        yield "numeric"


def _names_no_kind(value: Any) -> bool:
    """Tell whether nested settings have a reward `correct` without `answer`."""
    if isinstance(value, list):
        return "correct" in value or any(_names_no_kind(inner) for inner in value)
    if not isinstance(value, Mapping):
        return False
    for name, inner in value.items():
        if str(inner.get("type", name) if isinstance(inner, Mapping) else name) == "correct":
            if not (isinstance(inner, Mapping) and "answer" in inner):
                return True
        elif _names_no_kind(inner):
            return True
    return False


def _tasks(run: Any) -> Iterator[str]:
    """Yield the task of a run of `data.tasks`, and the tasks that it mixes."""
    if isinstance(run, Mapping):
        if isinstance(run.get("task"), str):
            yield run["task"]
        for inner in run.values():
            yield from _tasks(inner)
