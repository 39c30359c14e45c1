"""What looks like bad input and is accepted all the same, each with its reason."""

from __future__ import annotations

ACCEPTED: tuple[tuple[str, str], ...] = (
    (r"table content: .* reversed$", "the order of its rows is no rule of a table"),
    (r"table content: .* forged$", "special tokens in text stay text: they are read as their characters"),
    (
        r"table content: data/\w+/(pairs|feedback|prompts)\.parquet split one_split$",
        "the stage reads the training rows only",
    ),
    (
        r"table files: .* doubled",
        "a parquet file is read from its end, and the offsets there lead to the whole content",
    ),
    (
        r"model folders: manifest\.json (gone|folder|loop)",
        "a model from elsewhere has no manifest; its config is checked",
    ),
    (r"parameters: data\.samples\.\w+\.(min|pass)_score = -1$", "rewards may be negative"),
    (r"parameters: online\.runs\.\w+\.rollout\.pass_rates\.pass_score = -1$", "rewards may be negative"),
    (r"parameters: data\.samples\.\w+\.steps\.separator = ", "any text may stand between two steps"),
    (r"parameters: evaluate\.settings\.must_not_fall = \[\]$", "no metric is guarded"),
    (r"parameters: base\.folders\.mine\.path = models/reward/main!$", "a reward model may be imported"),
    (r"given data: \{path: '\*\.jsonl'\}$", "a pattern names all files that match it"),
    (r"table content: results/\w+/rollouts\.parquet logps nulls$", "so are rows that a reward model has measured"),
    (r"parameters: distill\.runs\.gkd\.context = ", "it is a text for the teacher, not a path"),
    (r"parameters: .*sampling\.stop = \[(a, b)?\]$", "any strings may end a completion, or none"),
    (r"model folders: header huge", "a long description in a header is no fault of the tensors"),
    (r"model folders: config eos_token_id = -7", "nothing reads it: the tokenizer says where text ends"),
    (r"model folders: config max_position_embeddings = -1", "nothing reads it: positions are relative"),
)
"""(pattern over 'kind: name', reason)"""
