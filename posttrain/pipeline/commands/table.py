"""The table of commands, by occasion. Each command has a line here and a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "before a run": {
        "init": "write a new project that uses the installed package, or upgrade one",
        "check": "check params.yaml, its inputs and their first rows, without running anything",
        "params": "list every parameter with its type, default and meaning, or describe an algorithm",
        "plan": "estimate the memory and disk that stages need, and show the time of their last run",
        "graph": "draw the stages of this project and their inputs, as text or as an SVG file",
        "preview": "show rows as a model's tokenizer and chat template render them, with the trained tokens in colour",
        "reward": "test a reward on rows of a table, or measure how far a judge agrees with labels",
        "laws": "test the surrogates and losses of your own module against the mathematical laws",
    },
    "running": {
        "run": "run one stage, as a project's dvc.yaml does; `dvc repro` runs all stale stages",
        "flow": "run the stages as Prefect tasks: in parallel, with retries and a record of every run",
        "server": "run Prefect's server and pages on this machine, where flows report",
        "deploy": "run the flow on a schedule or on new data, from this process or on a work pool",
        "workers": "let this host run stages for a flow on another host",
        "sweep": "run settings times seeds as DVC experiments, several at once",
        "status": "list running stages, and stages that must run again with the reason",
        "watch": "show the report's page in a browser, and update it while stages run",
        "checkpoints": "list the checkpoints of unfinished runs; resume or restart them",
        "accept": "keep the results of stages although their code changed, if you know that it computes the same",
        "track": "show runs in TensorBoard, MLflow, W&B or trackio, as they grow or afterwards",
        "replay": "train a finished run again on its stored rollouts, and compare each step with the original",
    },
    "results": {
        "show": "show results, timings or token counts; write the report",
        "compare": "find which setting is better on the same held-out prompts",
        "promote": "tag a policy's model as the current best, if a comparison shows that it is better",
        "push": "upload a policy's model to the Hugging Face Hub, with a model card, or write a GGUF file",
        "why": "show where a number comes from (rows, weights, sources), and what a source row has affected",
        "where": "find every copy of a row of data, and the runs that have read it",
        "chat": "chat with a model in the terminal",
        "serve": "serve a model on this machine as an OpenAI-compatible endpoint, for chats and as a judge",
    },
    "maintenance": {
        "repair": "fix DVC's files after a kill, a power cut, a merge or an edit, without losing results",
        "completion": "print a script that lets bash or zsh complete commands and names of runs",
        "clean": "remove outputs, entries of dvc.lock and checkpoints that belong to no run of params.yaml",
    },
}
"""Occasion -> command -> what it does."""
RENAMED: Final[Mapping[str, str]] = {
    "algorithms": "params [TOPIC]",
    "judge-agreement": "reward agreement",
    "merge": "repair merge",
    "report": "show report",
    "results": "show results",
    "sync": "repair sync",
    "timings": "show timings",
    "tokens": "show tokens",
    "upgrade": "init --upgrade",
    "verify": "repair verify",
}
"""Commands of version 0.2 -> their replacements."""
