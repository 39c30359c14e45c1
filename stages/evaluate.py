"""evaluate: one policy of `evaluate.policies` on held-out prompts; NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.errors import ParamsError
from posttrain.evaluate.completions import hide_quotes
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluate_samples import evaluate
from posttrain.pipeline.runs.evaluation import EvaluateParams, load_policies
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import did_you_mean


def main(label: str) -> None:
    """Writes results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    policies, params = load_policies(), load(EvaluateParams, "evaluate.settings")
    if label not in policies:
        fix = did_you_mean(label, list(policies))
        raise ParamsError(what=f"evaluate.policies has no '{label}'", where=PARAMS_FILE, fix=fix)
    with hide_quotes(params.completions):
        evaluate(f"evaluate@{label}", policies[label], params, "evaluate.settings")


if __name__ == "__main__":
    run_named_stage(main)
