"""lm-evaluation-harness: the evaluator of `evaluate.lm_eval`."""
