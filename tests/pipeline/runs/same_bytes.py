"""Trains by calls what stages train, each in a process of its own: `python -m tests.pipeline.runs.same_bytes`."""

from __future__ import annotations

import sys
from pathlib import Path

import posttrain

STAGES = {
    "sft": "{start: base/tiny, data: mine/chat, epochs: 1, batch: 4}",
    "reward": "{start: base/tiny, data: mine/pairs, feedback: none, demonstrations: none, epochs: 1, batch: 4}",
    "preference": "{start: base/tiny, data: mine/pairs, algorithm: dpo, epochs: 1, batch: 4}",
}
ROLLOUT = "rollout: {rounds: 2, prompts: 3, group_size: 4, sampling: {max_tokens: 8}}"
ONLINE = {"grpo": "", "ppo": "", "online_dpo": ""}


def params() -> str:
    """The workspace's params.yaml."""
    runs = {family: f"main: {settings}" for family, settings in STAGES.items()}
    shared = (
        f"start: base/tiny, data: mine/prompts, corpus: none, reward_model: none, reward: {{words: 1.0}}, {ROLLOUT}"
    )
    runs["online"] = ", ".join(f"{name}: {{algorithm: {name}, canaries: 0, {shared}}}" for name in ONLINE)
    runs["online"] = runs["online"].replace("words: 1.0", "'rewards_here:vowels': 1.0")
    return "\n".join(f"{family}: {{runs: {{{inner}}}}}" for family, inner in runs.items()) + "\n"


def stages() -> None:
    """Run the stages of the workspace."""
    from stages import online, preference, reward, sft

    for stage in (sft, reward, preference):
        stage.main("main")
    for name in ONLINE:
        online.main(name)


def calls() -> None:
    """Train the same by calls, from values: the rows of the tables, typed settings, the models of a folder."""
    posttrain.fix_numerics()
    import polars as pl

    def rows(kind: str) -> list[dict[str, object]]:
        return pl.read_parquet(f"data/mine/{kind}.parquet").filter(split="train").to_dicts()

    start = "models/base/tiny"
    for family, kind, config in (
        ("sft", "chat", posttrain.SftConfig(epochs=1, batch=4)),
        ("reward", "pairs", posttrain.RewardTraining(epochs=1, batch=4)),
        ("preference", "pairs", posttrain.PreferenceTraining.preset("dpo", epochs=1, batch=4)),
    ):
        models = posttrain.load_models(start, config)
        posttrain.train_model(models, None, rows(kind), config=config, output=f"out/{family}/main")
    rollout = {"rounds": 2, "prompts": 3, "group_size": 4, "sampling": {"max_tokens": 8}}
    for name in ONLINE:
        config = posttrain.OnlineConfig.preset(name, reward={"rewards_here:vowels": 1.0}, rollout=rollout, canaries=0)
        models = posttrain.load_models(start, config)
        posttrain.train_online(models, None, rows("prompts"), config=config, output=f"out/online/{name}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    {"stages": stages, "calls": calls}[sys.argv[1]]()
