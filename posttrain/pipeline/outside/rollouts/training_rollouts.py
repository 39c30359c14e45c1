"""Write other libraries' rollouts as a table: draws and totals, checked parts, and the curve of metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import polars as pl

from posttrain.data.columns import COLUMNS, canonical, digest, with_ids
from posttrain.data.parquet import write_parquet
from posttrain.errors import DataError, ParamsError
from posttrain.files import atomic_path, write_json
from posttrain.online.rollout_log import FORMAT, SUMMARY
from posttrain.pipeline.outside.rollouts.sampled import Sampled
from posttrain.pipeline.tables.store import check_table, read_table
from posttrain.rollout import FAILED, Score
from posttrain.settings.params import did_you_mean

_PART: Final = 20_000
"""The approximate number of rows in a part. A draw is never split."""
_SCHEMA: Final = {name: dtype for name, dtype in COLUMNS["training_rollouts"].items() if name != "id"}
_SAMPLING: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": None}


class Rollouts:
    """The rollouts of a run of `external.rollouts`."""

    def __init__(self, rollouts: Sequence[Sampled], weights: Mapping[str, float], name: str, section: str) -> None:
        if not rollouts:
            what, fix = "no rollouts were found in what the command wrote", "Write or copy the files into {out}"
            raise DataError(what=what, where=f"{section}.command", fix=fix)
        self._rollouts, self._weights, self._name = rollouts, weights, name
        self._rewards = sorted({reward for sampled in rollouts for reward in sampled.scores})
        unknown = next((reward for reward in weights if reward not in self._rewards), None)
        if unknown is not None:
            what = f"no rollout has a reward '{unknown}'; there are {', '.join(self._rewards) or 'none'}"
            raise ParamsError(what=what, where=f"{section}.rewards", fix=did_you_mean(unknown, self._rewards))
        runs = [len(list(some)) for _, some in groupby(rollouts, key=lambda sampled: sampled.group)]
        self._size = math.gcd(*runs)  # a prompt that was drawn twice in a row is two draws

    def write(self, folder: Path, prompts: Path | None, vocabulary: str) -> None:
        """Write the checked parts and their summary. `prompts`: the table with the prompts."""
        known = _prompts(prompts)
        rows = [self._row(number, sampled, known) for number, sampled in enumerate(self._rollouts)]
        whole = all(row["mask"] for row in rows if row["reward"] is not None)
        each = _PART // self._size * self._size or self._size
        with atomic_path(folder) as made:
            for number, start in enumerate(range(0, len(rows), each)):
                part = rows[start : start + each]
                frame = pl.DataFrame(
                    [pl.Series(key, [row[key] for row in part], dtype=kind) for key, kind in _SCHEMA.items()]
                )
                file = f"part-{number:05d}.parquet"
                table = check_table(with_ids(frame, "training_rollouts"), "training_rollouts", folder / file)
                write_parquet(table, made / file)
            write_json(
                made / SUMMARY,
                {
                    "format": FORMAT, "run": self._name, "rollouts": "full" if whole else "without tokens",
                    "rows": len(rows), "group_size": self._size, "text_ends_at_round": None,
                    "vocabulary": vocabulary, "steps": [],
                },
            )  # fmt: skip

    def curve(self) -> list[dict[str, float]]:
        """Return the metrics of each round. Means skip rows without a value."""
        return [
            {"step": number, **self._figures(list(some))}
            for number, some in groupby(sorted(self._rollouts, key=lambda one: one.round), key=lambda one: one.round)
        ]

    def _figures(self, some: Sequence[Sampled]) -> dict[str, float]:
        scores = [self._scores(sampled) for sampled in some]
        values: dict[str, list[float | None]] = {
            "reward": [self._total(sampled) for sampled in some],
            "length": [sampled.length for sampled in some],
        }
        for name in self._rewards:
            known = (row[name] for row in scores if name in row)
            values[f"reward_{name}"] = [score.known for score in known]
        means = {key: [value for value in column if value is not None] for key, column in values.items()}
        failed = sum(any(score.status in FAILED for score in row.values()) for row in scores)
        cut = [sampled.finish == "length" for sampled in some if sampled.finish is not None]
        return {
            "rollouts": len(some),
            **{key: fmean(column) for key, column in means.items() if column},
            "failed": failed / len(some),
            **({"truncated": sum(cut) / len(cut)} if cut else {}),
        }

    def _scores(self, sampled: Sampled) -> dict[str, Score]:
        """Return the scores of a rollout.

        In a failed one, every reward has the status of its failure, as in posttrain.
        """
        if sampled.finish in ("timeout", "error"):
            return {name: Score(0.0, sampled.finish) for name in self._rewards}
        return {
            name: score if math.isfinite(score.value) else Score(0.0, "error") for name, score in sampled.scores.items()
        }

    def _total(self, sampled: Sampled) -> float | None:
        """Return the weighted sum; None if no reward judged the rollout or a counted reward failed."""
        weights = {name: (self._weights or sampled.weights).get(name, 1.0) for name in sampled.scores}
        if self._weights:
            weights = {name: self._weights.get(name, 0.0) for name in weights}
        counted = {name: score for name, score in self._scores(sampled).items() if weights.get(name)}
        if not counted or any(score.status in FAILED for score in counted.values()):
            return None
        return math.fsum(weights[name] * score.value for name, score in counted.items())

    def _row(self, number: int, sampled: Sampled, known: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        prompt = [{"role": role, "content": content} for role, content in sampled.prompt]
        asked = "\n\n".join(turn["content"] for turn in prompt if turn["role"] == "user") or prompt[-1]["content"]
        key, problem = known.get(canonical(prompt), (digest(canonical(prompt)), asked))
        tokens, logps = sampled.tokens or (None, None)
        sampling = {key: value for key, value in sampled.sampling.items() if value is not None}
        return {
            "prompt_id": key, "problem": problem, "task": sampled.task, "round": sampled.round, "attempt": 0,
            "draw": number // self._size, "sample": number % self._size, "step": sampled.step,
            "version": sampled.version or f"{self._name} round {sampled.round}", "seed": 0,
            "sampling": canonical({**_SAMPLING, "max_tokens": sampled.length, **sampling}),
            "prompt_ids": tokens.prompt if tokens else None, "completion": sampled.completion,
            "completion_ids": tokens.rest if tokens else None, "mask": tokens.mask if tokens else None,
            "logps": logps, "length": sampled.length, "logp": math.fsum(logps) if logps else None,
            "finish": sampled.finish, "reward": self._total(sampled), "outcome": None,
            "scores": [
                {"name": name, "value": score.known, "status": score.status}
                for name, score in self._scores(sampled).items()
            ],
            "advantage": sampled.advantage, "turn_rewards": [],
            "info": canonical(json.loads(json.dumps(dict(sampled.info), default=str))),
        }  # fmt: skip


def _prompts(table: Path | None) -> dict[str, tuple[str, str]]:
    """Return the id and the problem of each prompt. The key is its turns as JSON."""
    rows: Iterator[Mapping[str, Any]] = iter(())
    if table is not None:
        rows = read_table(table, "prompts").iter_rows(named=True)
    return {canonical(row["prompt"]): (row["id"], row["problem"]) for row in rows}
