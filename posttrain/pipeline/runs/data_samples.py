"""A run of `data.samples`: a policy is sampled, its samples are scored, and tables are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from posttrain.data.columns import Tables
from posttrain.data.splits import training_prompts
from posttrain.files import rounded, write_json
from posttrain.measure.progress import Progress
from posttrain.measure.record import note
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.models.master_weights import frozen_on
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, needed_model
from posttrain.pipeline.runs.completion_cache import frozen_sampler
from posttrain.pipeline.runs.samples import SamplesRun, sampled_tables
from posttrain.pipeline.tables.store import check_disjoint, check_table, read_table, write_tables
from posttrain.pipeline.workspace import metrics_path, table_path
from posttrain.rewards.failures import FailureLimit, wait_above
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import check_scorable, scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rewards.unread_answers import answer_notes
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.sampler import check_capacity, encode_prompts, generate_rollouts, prompts_of
from posttrain.sampling.step_labels import labelled_steps


def sample_tables(run: str) -> None:
    """Sample a policy, and write what the run asks for of data/RUN/{pairs,feedback,chat,prompts}.parquet."""
    where = f"data.samples.{run}"
    params = load(SamplesRun, where)
    runtime = Runtime(params.device)
    note(seed=params.seed)

    model_folder, table = needed_model(params.policy, f"{where}.policy"), table_path(params.data)
    text = load_text(model_folder, params.date, params.template)
    model = frozen_on(runtime.suit(load_policy(model_folder)), runtime)

    frame = read_table(table, "prompts").filter(pl.col("split").is_in(["train", "heldout"]))
    training_prompts(frame, table)
    judged = [
        prompt.id for prompt in scorable_prompts(params.reward, prompts_of(frame.iter_rows(named=True)), str(table))
    ]
    frame = frame.filter(pl.col("id").is_in(judged))
    wanted = {"train": params.prompts, "heldout": params.heldout_prompts}
    rows = [row for split, n in wanted.items() for row in frame.filter(split=split).head(n).iter_rows(named=True)]
    prompts = encode_prompts(text, prompts_of(rows))
    count = len(prompts) * params.samples
    most = params.sampling.max_tokens * (1 if params.steps is None else 2)  # a sample, and another from its last step
    longest = params.sampling.model_copy(update={"max_tokens": most})
    check_capacity(text.context, [prompt.ids for prompt in prompts], count, longest, where)

    reward_model = model_of(params.reward_model, f"{where}.reward_model")
    context = Context(runtime, where, reward_model, text, params.sampling.max_tokens)
    reward = RewardSum(params.reward, context, wait_above(params.on_failures, params.max_failed))
    progress = Progress(f"{where}: sampling", count, "completion")
    sampled = SampledModel(model, model_folder, text, runtime)
    with frozen_sampler(
        params.engine, sampled, params.policy, longest, prompts, params.device, where,
        params.engine_args, params.engine_servers,
    ) as sampler:  # fmt: skip
        drawn = generate_rollouts(
            sampler, text, prompts, params.sampling, params.seed, samples=params.samples, advance=progress.advance
        )
        progress.close()
        gap = {}
        if "exact" not in sampler.can:
            from posttrain.sampling.agreement import sampler_gap

            gap = sampler_gap(model, drawn, params.sampling.temperature, runtime, where)
        failures = FailureLimit(reward, params.max_failed, where)
        rows, rollouts = failures.complete(rows, reward.score(drawn))
        check_scorable(params.reward, rollouts, where)
        steps = [] if params.steps is None else labelled_steps(
            sampler, text, rollouts, reward, failures, params.steps, params.sampling, params.seed, params.pass_score
        )  # fmt: skip
    tables, summary = sampled_tables(params, where, rows, rollouts, reward.totals(rollouts), steps)
    _write(run, tables, {**summary, **gap})


def _write(run: str, tables: Tables, figures: Mapping[str, float]) -> None:
    """Check the tables together, and write them with their counts and figures."""
    folder = Path("data") / run
    for kind, frame in tables.items():
        check_table(frame, kind, folder / f"{kind}.parquet")
    check_disjoint({str(kind): frame for kind, frame in tables.items()})
    write_tables(tables, folder, answer_notes(tables))
    counts = {
        f"{kind}_{split}": tables[kind].filter(split=split).height
        for kind in ("pairs", "chat", "prompts")
        for split in ("train", "heldout")
        if kind in tables
    }
    if "feedback" in tables:
        counts["feedback"] = tables["feedback"].height
    write_json(metrics_path(f"data/{run}"), {**counts, **rounded(figures)})
    print(f"{run}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
