"""Check the first rows of the user's files and the user's rewards, within seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import BaseModel

from posttrain.data.columns import Kind, Tables
from posttrain.errors import ParamsError, PosttrainError, excerpt
from posttrain.pipeline.checks.meta_models import template_of
from posttrain.pipeline.params.params_file import load, read
from posttrain.pipeline.params.stage_table import STAGES, Settings, group_of, model_runs
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.typed import load_settings
from posttrain.pipeline.tables.first_rows import FIRST, FirstRows, drawn_rows, first_rows
from posttrain.pipeline.tables.leaks import leaks
from posttrain.pipeline.tables.readers import place_of
from posttrain.pipeline.tables.sources import sources_by_key
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.tables.user_data import ReadSource, split_tables
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rewards import catalog
from posttrain.rewards.catalog import REWARDS
from posttrain.rewards.reward import WeightedReward
from posttrain.rewards.scorable import SHOWN, Unread, refuse_unread, unread_in, why_unread
from posttrain.rewards.workers import Workers
from posttrain.rollout import FAILED, Prompt, Rollout, Score, TokenRow
from posttrain.settings.params import Params
from posttrain.settings.plain import texts_in
from posttrain.tasks.task import TASKS
from posttrain.text.chat_template import row_variables
from posttrain.text.templates import reads

DRAWN: Final = 1000
"""The number of rows of a prompt table whose answers are tried."""
EXAMPLE: Final = Prompt("example", ({"role": "user", "content": "What is 2 + 3?"},), (), "5")
"""The prompt for a reward if its run's prompts do not exist yet."""


def check_rows() -> str:
    """Reject files with unreadable first rows, and custom rewards without a valid score. Return the unread parts."""
    settings = read()
    errors, first_by_source, tables = list[str](), dict[str, FirstRows](), dict[str, pl.DataFrame]()
    for name in group_of(settings, "data.files"):
        params = load_settings("data.files", name)
        sources = sources_by_key(params)
        kinds = [kind for kind, _ in sources.values()]
        for key, (kind, source) in sources.items():
            where = f"data.files.{name}.{key}"
            try:
                first_by_source[f"{name}/{key}"] = rows = first_rows(
                    source, kind, where, Path(params.path),
                    outside_workspace=params.outside_workspace, alone=kinds.count(kind) == 1,
                )  # fmt: skip
            except PosttrainError as error:
                errors.append(str(error))
            else:
                errors += (f"{where}: {line}" for line in rows.faults)
        made, faults = _split(
            name, {key: (kind, first_by_source.get(f"{name}/{key}")) for key, (kind, _) in sources.items()}
        )
        errors += faults
        tables |= {f"{name}/{kind}": table for kind, table in made.items()}
    notes = [*_unread(settings, first_by_source), *_unread_variables(settings, first_by_source)]
    unread, said = _unread_answers(settings)
    errors, notes = [*errors, *unread], [*notes, *said]
    called, more = _call_rewards(list(_own_rewards(settings)), first_by_source)
    errors += called
    if errors:
        listed = "\n  ".join(dict.fromkeys(errors))
        what = f"the first {FIRST} rows of a file or a call of your own reward have errors; nothing was run"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Fix these:\n  {listed}")
    return "\n".join([*notes, *_unused_test_files(settings, tables, first_by_source), *_leaks(settings, tables), *more])


def _split(name: str, sources: Mapping[str, tuple[Kind, FirstRows | None]]) -> tuple[Tables, list[str]]:
    """Divide an entry's rows into splits, as the stage does. If files have more rows, disagreements are ignored."""
    reads: dict[Kind, list[ReadSource]] = {}
    for kind, rows in sources.values():
        if rows is None or rows.read is None:
            return {}, []
        reads.setdefault(kind, []).append(rows.read)
    try:
        return split_tables(reads, f"data.files.{name}"), []
    except PosttrainError as error:
        return {}, [] if any(rows is not None and rows.cut for _, rows in sources.values()) else [str(error)]


def _unused_test_files(
    settings: Settings, tables: Mapping[str, pl.DataFrame], first_by_source: Mapping[str, FirstRows]
) -> Iterator[str]:
    """Yield a note for each evaluated table that takes a share as test prompts although it has a file for tests."""
    measured = [group_of(settings, "evaluate.settings"), *group_of(settings, "evaluate.runs").values()]
    for name in dict.fromkeys(str(run.get("data")) for run in measured if isinstance(run, Mapping)):
        if not name.endswith("/prompts") or (table := tables.get(name)) is None:
            continue
        tests = table.filter(split="test")
        heldout_files = table.filter("fixed", split="heldout")["file"].unique(maintain_order=True).to_list()
        if tests["fixed"].any() or not heldout_files:
            continue
        cut = any(rows.cut for key, rows in first_by_source.items() if key == name or key.startswith(f"{name}."))
        count = "a share of the prompts" if cut else f"{tests.height} prompts taken"
        files = ", ".join(table.filter(split="train")["file"].unique(maintain_order=True).to_list())
        use = f"to use {heldout_files[0]}: splits: {{test: {Path(heldout_files[0]).stem}}}"
        key = f"data.files.{name.replace('/', '.')}"
        yield f"note: {key}: the score will be on {count} from {files} (test_share); {use}"


def _leaks(settings: Settings, tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Yield a note for each training table whose first rows are test prompts of any entry."""
    named = {text for run in model_runs(settings).values() for text in texts_in(run or {})}
    tests = {name: table for name, table in tables.items() if name.endswith("/prompts")}
    for leak in leaks({name: table for name, table in tables.items() if name in named}, tests):
        tested = tables[leak.against].filter(split="test")
        files = sorted({*tables[leak.table]["file"]} & {*tested["file"]})
        keys = " and ".join(f"data.files.{name.replace('/', '.')}" for name in (leak.table, leak.against))
        both = f". {keys} both read {', '.join(files)}" if files else ""
        yield f"note: {leak}{both}"


def _unread(settings: Settings, first_by_source: Mapping[str, FirstRows]) -> Iterator[str]:
    """Yield a line about data that `check` did not read."""
    cut = [place for rows in first_by_source.values() for place in rows.cut]
    left = [f"the rows after the first {FIRST} of {_several(cut, 'file')}"] if cut else []
    left += [f"data.hub.{name}" for name in group_of(settings, "data.hub")]
    left += [f"what data.tasks.{name} makes" for name, run in group_of(settings, "data.tasks").items() if _is_own(run)]
    if left:
        yield f"note: not read: {', '.join(left)}"


def _unread_answers(settings: Settings) -> tuple[list[str], list[str]]:
    """Return errors about runs without a reward whose answers `correct` cannot read, and notes on what was tried."""
    errors, notes = list[str](), list[str]()
    for where, run in _without_reward(settings).items():
        data = str(run.get("data", ""))
        entry = data.removesuffix("/prompts")
        if entry == data:
            continue
        is_measured, drawn = where.startswith("evaluate."), entry in group_of(settings, "data.files")
        try:
            if drawn:
                unread = _drawn_answers(entry, str(run.get("split", "test")) if is_measured else None)
                counted = f"of {unread.of:,} rows of {data}, drawn with the seed 0"
                notes.append(f"note: {where} has no reward: `correct` was tried on the answers {counted}")
            elif not table_path(data).is_file():
                continue
            else:
                unread = _stored_answers(data)
                counted = f"of {unread.of:,} rows of {table_path(data)}"
            if drawn or not is_measured:
                refuse_unread(unread, where, counted)
            if is_measured and unread.rows == unread.of:  # of training rows, or no row has an answer
                set_one = "set its reward, e.g. {correct: {answer: exact}} (docs/rewards.md)"
                notes.append(f"note: {where} has no reward, and `correct` can read no answer {counted}: {set_one}")
        except PosttrainError as error:
            errors.append(str(error))
    return errors, notes


def _without_reward(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Return the sampling runs and evaluations that set no reward and therefore use `correct`."""
    runs = {f"online.runs.{name}": run for name, run in group_of(settings, "online.runs").items()}
    others = group_of(settings, "evaluate.runs").items()
    runs |= {f"evaluate.runs.{name}": run for name, run in others if isinstance(run, Mapping) and "by" not in run}
    if group_of(settings, "evaluate.policies"):
        runs["evaluate.settings"] = group_of(settings, "evaluate.settings")
    return {where: run for where, run in runs.items() if isinstance(run, Mapping) and run.get("reward") is None}


def _stored_answers(data: str) -> Unread:
    """Return how many answers cannot be read, in training rows drawn from a table."""
    rows = read_table(table_path(data), "prompts").filter(split="train")
    return unread_in(rows.sample(min(DRAWN, rows.height), seed=0), catalog.term("correct", 1.0))


def _drawn_answers(entry: str, measured: str | None) -> Unread:
    """Return how many answers cannot be read, in rows drawn from an entry's files.

    measured: the split of an evaluation, which leaves out rows without an answer; None: training rows. If no file names
    the split, its rows are a share of the training rows.
    """
    params, drawn = load_settings("data.files", entry), list[pl.DataFrame]()
    sources = {key: source for key, (kind, source) in sources_by_key(params).items() if kind == "prompts"}
    for key, source in sources.items():
        where, root = f"data.files.{entry}.{key}", Path(params.path)
        drawn += [drawn_rows(
            source, "prompts", where, root, outside_workspace=params.outside_workspace, count=DRAWN // len(sources)
        )]  # fmt: skip
    frames = [rows.filter(split=measured or "train") for rows in drawn if rows.height]
    if not any(rows.height for rows in frames):
        frames = [rows.filter(split="train") for rows in drawn if rows.height]
    if measured:
        frames = [rows.filter(pl.col("answer").str.strip_chars() != "") for rows in frames]
    wrong = [
        f"{place_of(row['file'], row['line'])}: {excerpt(row['answer'], 60)} ({why})"
        for rows in frames
        for row in rows.iter_rows(named=True)
        if (why := why_unread(row, catalog.term("correct", 1.0))) is not None
    ]
    return Unread(len(wrong), sum(rows.height for rows in frames), wrong[:SHOWN])


def _unread_variables(settings: Settings, first_by_source: Mapping[str, FirstRows]) -> Iterator[str]:
    """Yield a line for each run whose first row sets variables that its model's template does not read."""
    groups = [stage.group for stage in STAGES if stage.makes == "model"]
    for where in (f"{group}.{name}" for group in groups for name in group_of(settings, group)):
        params = load_settings(*where.rsplit(".", 1))
        data, start = getattr(params, "data", ""), getattr(params, "start", "")
        variables = row_variables((first_by_source[data].first if data in first_by_source else None) or {})
        source = template_of(start, settings) if variables else None
        if unread := [name for name in variables if source is not None and not reads(source, name)]:
            named = f"chat_template_kwargs of {data} has {', '.join(unread)}"
            yield f"note: {where}: {named}, which the chat template of {start} does not read"


def _several(names: list[str], noun: str) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} {noun}s"


def _is_own(run: Any) -> bool:
    return isinstance(run, Mapping) and TASKS.is_foreign(str(run.get("task")))


@dataclass(frozen=True)
class _Named:
    """An own reward in a run, and the prompts that the run reads."""

    where: str
    name: str
    term: WeightedReward
    data: str


def _own_rewards(settings: Settings) -> Iterator[_Named]:
    """Yield every own reward with its options once."""
    seen = set()
    for where, params in _typed(settings):
        for name, term in _terms(params):
            key = (name, term.model_dump_json())
            if REWARDS.is_foreign(term.type or name) and key not in seen:
                seen.add(key)
                yield _Named(where, name, term, str(getattr(params, "data", "")))


def _typed(settings: Settings) -> Iterator[tuple[str, Params]]:
    for stage in STAGES:
        for name in (
            group_of(settings, stage.group)
            if stage.group in ("online.runs", "distill.runs", "data.samples", "data.filters", "evaluate.runs")
            else ()
        ):
            yield f"{stage.group}.{name}", load_settings(stage.group, name)
    if group_of(settings, "evaluate.policies"):
        yield "evaluate.settings", load(EvaluateParams, "evaluate.settings")


def _terms(params: Any) -> Iterator[tuple[str, WeightedReward]]:
    """Yield every reward in a run's settings, including parts of other rewards."""
    values = (
        {name: getattr(params, name) for name in type(params).model_fields} if isinstance(params, BaseModel) else params
    )
    for name, value in values.items():
        if isinstance(value, WeightedReward):
            yield name, value
            yield from _terms(value.options)
        elif isinstance(value, BaseModel | dict):
            yield from _terms(value)


def _call_rewards(named: list[_Named], first_by_source: Mapping[str, FirstRows]) -> tuple[list[str], list[str]]:
    """Return errors of the rewards, and notes about those that were not called or failed on the made-up example."""
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda reward: _call_reward(reward, first_by_source.get(reward.data)), named))
    return [line for line, is_fault in filter(None, results) if is_fault], [
        line for line, is_fault in filter(None, results) if not is_fault
    ]


def _call_reward(named: _Named, rows: FirstRows | None) -> tuple[str, bool] | None:
    """Call a reward. Return an error or a note, and whether it is the reward's fault; None if it scored."""
    where, reward = f"{named.where}: reward '{named.name}'", named.term.reward
    if reward.isolated is not True:
        return f"note: {where} was not called: it runs in the stage's own process", False
    prompt = _prompt(rows.first) if rows and rows.first and "answer" in rows.first else EXAMPLE
    if (why := reward.cannot_score(prompt, named.term.options)) is not None:
        return f"note: {where} was not called: it does not judge the example ({why})", False
    turn = {"role": "assistant", "content": prompt.answer or "5"}
    rollout = Rollout(prompt, 0, TokenRow((), ()), (), turn["content"], "stop", (turn,))
    try:
        scores = Workers(named.name, named.term, named.term.options, named.where)([rollout])
    except PosttrainError as error:
        return str(error), True
    if len(scores) != 1:
        return f"{where}: it returned {len(scores)} scores for 1 rollout. Return one for each", True
    return _verdict(scores[0], where, rollout, made_up=prompt is EXAMPLE)


def _verdict(score: Score, where: str, rollout: Rollout, *, made_up: bool) -> tuple[str, bool] | None:
    if score.status not in FAILED:
        return None
    example = (
        "a made-up prompt"
        if made_up
        else f"the first prompt of its data ({excerpt(rollout.prompt.messages[-1]['content'])})"
    )
    said = f"{where}: called on {example} with the completion {excerpt(rollout.text, 40)}, {score.reason}"
    if made_up and score.reason.startswith("it raised"):
        return f"note: {said}. It may need what the prompts of the run have", False
    return f"{said}. Fix it; `posttrain reward test` shows more", True


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(row["id"], row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
