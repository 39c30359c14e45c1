"""The commands that talk to a model, as the command line has them; it imports nothing that they need."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

MODEL = "a folder, or a model under models/, e.g. online/grpo"


def add_serving(commands: Any, add: Callable[[Any, str, str, str], argparse.ArgumentParser]) -> None:
    """Add `serve`, `chat` and `judge-agreement`; `add` makes a command with its help and an example."""
    does = "serve a model on this machine as an OpenAI-compatible endpoint, for chats and as a judge"
    served = add(commands, "serve", does, "online/grpo --port 8000")
    served.add_argument("model", metavar="MODEL", help=MODEL)
    served.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0: any free port")
    served.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads; default: 1")
    talk = add(commands, "chat", "chat with a model in the terminal", "online/grpo --temperature 0")
    talk.add_argument("model", metavar="MODEL", help=MODEL)
    likeliest = "default: 1; 0 takes the likeliest token at each step"
    talk.add_argument("--temperature", type=float, default=1.0, metavar="T", help=likeliest)
    does = "measure how far the reward `judge` agrees with labels: Cohen's kappa with its interval"
    judged = add(commands, "judge-agreement", does, "results/grpo/rollouts.parquet online.runs.grpo.reward.judge")
    table = "a table of completions with labels: NAME/feedback, or results/NAME/rollouts.parquet"
    judged.add_argument("table", metavar="TABLE", help=table)
    judged.add_argument("judge", metavar="SETTINGS", help="the judge's place in params.yaml")
    label = "the reward of the rollouts that is the label; default: correct"
    judged.add_argument("--reward", default="correct", metavar="NAME", help=label)
    most = "rows, drawn at random: each costs a request; default: 200"
    judged.add_argument("--rows", type=int, default=200, metavar="N", help=most)
    least = "verdicts of at least this count as right; default: 0.5"
    judged.add_argument("--threshold", type=float, default=0.5, metavar="X", help=least)
