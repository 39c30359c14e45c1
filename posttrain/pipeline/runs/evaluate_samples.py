"""One policy is sampled on prompts, its samples are scored, and its results are written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl

from posttrain.data.columns import with_ids
from posttrain.data.splits import check_enough_prompts
from posttrain.errors import ParamsError, excerpt
from posttrain.evaluate.completions import hide_quotes, hide_stderr, select_text
from posttrain.evaluate.in_context import encode_in_context, score_by_context, without_context
from posttrain.evaluate.metrics import UNREAD, evaluation_metrics, kl_to_reference, rollouts_table, summary
from posttrain.files import rounded, write_json
from posttrain.measure.progress import Progress
from posttrain.measure.record import note
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_policy, load_tokenizer
from posttrain.models.files.text import load_text
from posttrain.models.master_weights import frozen_on
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, needed_model
from posttrain.pipeline.runs.completion_cache import frozen_sampler
from posttrain.pipeline.runs.evaluation import EvaluateParams, load_policies
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rewards.failures import FailureLimit, wait_above
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import scorable_prompts, why_not_scorable
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.sampler import check_capacity, encode_prompts, generate_rollouts, prompts_of
from posttrain.settings.params import did_you_mean
from posttrain.text.chat import ChatText


def evaluate_policy(label: str) -> None:
    """Evaluate a policy of `evaluate.policies`, and write its results."""
    policies, params = load_policies(), load(EvaluateParams, "evaluate.settings")
    if label not in policies:
        fix = did_you_mean(label, list(policies))
        raise ParamsError(what=f"evaluate.policies has no '{label}'", where=PARAMS_FILE, fix=fix)
    with hide_quotes(params.completions):
        evaluate(f"evaluate@{label}", policies[label], params, "evaluate.settings")


def evaluate(name: str, policy: str, params: EvaluateParams, section: str) -> None:
    """Sample a policy, score the samples and write the results of the stage `name`, whose settings are in `section`."""
    runtime, label = Runtime(params.device), name.partition("@")[2]
    note(seed=params.seed)
    model_folder = needed_model(policy, name)
    reference = model_of(params.reference, f"{section}.reference")
    text = load_text(model_folder, params.date, params.template)
    model = frozen_on(runtime.suit(load_policy(model_folder)), runtime)
    prompts, turns = _prompts(params, section), params.context
    prompts = encode_in_context(text, prompts, turns, f"{section}.context") if turns else encode_prompts(text, prompts)
    count = len(prompts) * params.samples
    check_capacity(text.context, [prompt.ids for prompt in prompts], count, params.sampling, name)
    progress = Progress(name, count + len(prompts), "completion")
    with frozen_sampler(
        params.engine, SampledModel(model, model_folder, text, runtime), policy, params.sampling, prompts,
        params.device, section, params.engine_args, params.engine_servers, keep=params.completions == "full",
    ) as sampler:  # fmt: skip
        draw = partial(generate_rollouts, sampler, text, prompts, params.sampling, params.seed)
        drawn = [
            draw(samples=samples, greedy=greedy, advance=progress.advance)
            for samples, greedy in ((params.samples, False), (1, True))
        ]
        agrees = "exact" in sampler.can
    progress.close()
    scorer = model_of(params.reward_model, f"{section}.reward_model")
    context = Context(runtime, section, scorer, text, params.sampling.max_tokens)
    reward = RewardSum(params.terms, context, wait_above(params.on_failures, params.max_failed))
    judged = [without_context(text, rollouts) for rollouts in drawn] if turns else drawn
    sampled, greedy = (reward.score(rollouts) for rollouts in judged)
    if turns and params.samples > 1:
        sampled = score_by_context(model, drawn[0], sampled, runtime)
    FailureLimit(reward, params.max_failed, section).check([*sampled, *greedy])
    metrics = evaluation_metrics(reward, sampled, greedy, params.seed)
    if not agrees:
        from posttrain.sampling.agreement import sampler_gap

        metrics |= sampler_gap(model, drawn[0], params.sampling.temperature, runtime, name)
    if reference == model_folder and not turns:
        metrics |= {"kl_k1": 0.0, "kl_k3": 0.0}
    elif reference is not None and params.sampling.truncates:
        what = "no KL to the reference: top_p or top_k leave out tokens, which the log-probs are over"
        print(f"{name}: {what}", file=sys.stderr)
    elif reference is not None and _comparable(text, reference, name):
        few = params.kl_samples or params.samples
        rows = [(seen.row, alone.row) for seen, alone in zip(drawn[0], sampled, strict=True) if seen.sample < few]
        frozen = frozen_on(load_policy(reference), runtime)
        metrics |= kl_to_reference(model, frozen, rows, params.sampling.temperature, runtime)
    write_results(label, [(sampled, False), (greedy, True)], metrics, params, reward)


def write_results(
    label: str, measured: Sequence[tuple[Sequence[Rollout], bool]], metrics: dict[str, float], params: EvaluateParams,
    reward: RewardSum | None = None,
) -> None:  # fmt: skip
    """Write scored rollouts, each part greedy or not, and their metrics."""
    folder = Path("results") / label
    tables = [rollouts_table(label, rollouts, reward, greedy=greedy) for rollouts, greedy in measured]
    rows = with_ids(select_text(pl.concat(tables), params.completions), "rollouts")
    write_table(rows, folder / "rollouts.parquet", "rollouts")
    write_json(folder / "metrics.json", figures := rounded(metrics, 5))
    write_json(folder / "headline.json", {label: figures["score"]} if metrics.get("judged") != 0 else {})
    if not metrics["parsed"]:
        first = "" if params.completions == "none" else f"; the first is {excerpt(measured[0][0][0].text, 100)}"
        print(f"evaluate@{label}: {UNREAD}{first} (docs/rewards.md)", file=sys.stderr)
    print(summary(label, {key: value for key, value in metrics.items() if key in figures}))


def _comparable(text: ChatText, reference: Path, name: str) -> bool:
    """Return whether the reference can score the policy's tokens; a line says where it cannot."""
    if text.tokenizer.get_vocab() == load_tokenizer(reference).get_vocab():
        return True
    print(f"{name}: {reference} has another tokenizer, so the KL to it is not measured", file=sys.stderr)
    return False


def _prompts(params: EvaluateParams, section: str) -> list[Prompt]:
    """Return the first prompts of the split that the rewards can judge; all if they lack no more than answers."""
    file = table_path(params.data)
    prompts = prompts_of(read_table(file, "prompts").filter(split=params.split).iter_rows(named=True))
    if any(prompt.answer.strip() for prompt in prompts) or not (unanswered := _need_answers(params, prompts)):
        before = len(prompts)
        with hide_stderr(params.completions):
            prompts = scorable_prompts(params.reward, prompts, str(file))
        if params.completions == "none" and len(prompts) < before:
            print(f"evaluate: no reward can read {before - len(prompts)} of {before} answers", file=sys.stderr)
    else:
        named = " and ".join(f"'{name}'" for name in unanswered)
        print(f"evaluate: no prompt has an answer, so reward {named} is not measured", file=sys.stderr)
    check_enough_prompts(len(prompts), params.split, file)
    if len(prompts) < params.prompts and "prompts" in params.model_fields_set:
        known = f"{len(prompts)} prompts are all there are in split '{params.split}'"
        print(f"evaluate: {known} ({section}.prompts: {params.prompts})", file=sys.stderr)
    return prompts[: params.prompts]


def _need_answers(params: EvaluateParams, prompts: Sequence[Prompt]) -> list[str]:
    """Return the rewards that lack the answers of prompts without any; none where a reward lacks something else."""
    lacking = {
        name: {why for prompt in prompts if (why := why_not_scorable(name, term, prompt)) is not None}
        for name, term in params.reward.items()
    }
    named = [name for name, why in lacking.items() if why]
    return named if all(lacking[name] == {"empty"} for name in named) else []
