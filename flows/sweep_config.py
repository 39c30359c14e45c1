"""The trials of a sweep: its settings times its seeds. Each is checked and named before any work."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from posttrain.errors import ParamsError, PipelineError, PosttrainError
from posttrain.isolation.library import library_command, library_environment
from posttrain.pipeline.lock.digests import read_lock
from posttrain.pipeline.lock.git import git
from posttrain.pipeline.params.params_file import GROUPS, read
from posttrain.pipeline.params.seeds import SEED
from posttrain.pipeline.params.stage_table import group_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import Params, check, did_you_mean, nearest
from posttrain.settings.plain import CUSTOM, flattened

from .graph import is_posttrain_pipeline

Overrides = Mapping[str, Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
MAX_SLUG = 48


class Range(Params):
    """A range of numbers to draw from."""

    low: float
    high: float
    scale: Literal["log", "linear"] = Field("log", description="log: every order of magnitude is equally likely")

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low >= self.high or (self.scale == "log" and self.low <= 0):
            raise ValueError(
                f"low = {self.low}, high = {self.high}: low must be below high, and above 0 on a log scale"
            )
        return self


class Random(Params):
    """Random search: the keys are drawn independently."""

    draws: int = Field(ge=1)
    seed: int = Field(0, ge=0, description="the same seed gives the same draws")
    over: dict[str, Range | list[Any]] = Field(min_length=1, description="key -> a range, or a list of values")


class Sweep(Params):
    """A file under sweeps/: every grid combination, every listed setting and every random draw, times the seeds."""

    grid: dict[str, list[Any]] = Field(default_factory=dict, description="key -> its values; every combination is run")
    settings: list[dict[str, Any]] = Field(
        default_factory=list, description="a list of settings, each a mapping of keys to values"
    )
    random: Random | None = Field(None, description="random search")
    seeds: list[int] = Field(default_factory=list, description="seeds; each setting is run once with each")
    seed_keys: list[str] = Field(
        default_factory=list,
        description="the key for the seed; default: `seed` of each run in the sweep, or of all runs if nothing is "
        "varied",
    )
    targets: list[str] = Field(
        default_factory=list, description="stages to run, with the stages they need; default: all"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_seed(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "seed" in data:  # runs have this key
            raise ValueError("seed: unknown key. Did you mean 'seeds' or 'random.seed'?")
        return data

    @model_validator(mode="after")
    def _not_empty(self) -> Sweep:
        if not (self.grid or self.settings or self.random or self.seeds):
            raise ValueError("nothing to run. Add grid, settings, random or seeds")
        lists = {key: over for key, over in (self.random.over if self.random else {}).items() if isinstance(over, list)}
        if empty := [key for key, values in {**self.grid, **lists}.items() if not values]:
            raise ValueError(f"{empty[0]} has no values. Give some, or remove the key")
        for key, values in {**self.grid, **lists, "seeds": self.seeds}.items():
            texts = [json.dumps(value, sort_keys=True) for value in values]
            if twice := [text for text in texts if texts.count(text) > 1]:
                raise ValueError(f"{key} has the value {twice[0]} twice. Give each value once")
        return self

    @property
    def swept(self) -> list[str]:
        """All keys that the sweep varies, without seeds."""
        random_keys = self.random.over if self.random else {}
        return list(dict.fromkeys([*self.grid, *(key for setting in self.settings for key in setting), *random_keys]))


@dataclass(frozen=True)
class Trial:
    """One experiment of a sweep, with its DVC name."""

    name: str
    overrides: Overrides


def read_sweep(file: Path, instead: Mapping[str, Any]) -> Sweep:
    """Return a sweep from its file. `instead` replaces some of its values."""
    data = read_yaml(file, needs="grid, settings, random or seeds (docs/results.md)")
    return check(Sweep, {**data, **instead}, where="sweep", file=str(file))


def check_sweep(data: Mapping[str, Any], place: str) -> Sweep:
    """Return a sweep from its values. `place`: the file or option with these values."""
    return check(Sweep, dict(data), where="sweep", file=place)


def checked_sweep_name(name: str) -> str:
    """Return a valid start of experiment names (SWEEP-SETTINGS). A '-' could make it match another sweep."""
    if not NAME.fullmatch(name):
        fix = "Use letters, digits and '_', and the same for file names under sweeps/"
        raise PipelineError(what=f"'{name}' is not a valid name for a sweep", where="sweep", fix=fix)
    return name


def trials(name: str, sweep: Sweep) -> list[Trial]:
    """Return every setting with every seed, without repetitions. The seeds of a setting are adjacent."""
    grid = [dict(zip(sweep.grid, values, strict=True)) for values in itertools.product(*sweep.grid.values())]
    settings = [*(grid if sweep.grid else []), *sweep.settings, *_random_settings(sweep.random)] or [{}]
    keys = sweep.seed_keys or sorted({f"{_section(key)}.seed" for key in sweep.swept}) or [SEED]
    if sweep.seeds:
        if both := [key for key in sweep.swept if key in keys or key == SEED]:
            fix = "Give the seeds once: remove the key, or the seeds (--seeds)"
            raise ParamsError(what=f"'{both[0]}' is varied, and there are seeds for it too", where="sweep", fix=fix)
        settings = [{**setting, **dict.fromkeys(keys, seed)} for setting in settings for seed in sweep.seeds]
    by_name = {trial.name: trial for trial in (Trial(_name(name, overrides), overrides) for overrides in settings)}
    return list(by_name.values())


def check_trials(trials: Sequence[Trial], where: str = "sweep") -> None:
    """Check the whole params.yaml of every trial, so that mistakes are found before any work.

    The check runs in a separate process. It imports polars, whose SIGINT handler would keep Ctrl-C from a flow that
    waits for its tasks.
    """
    request = json.dumps([[trial.name, dict(trial.overrides)] for trial in trials])
    command, env = library_command(f"{__package__}.sweep_config"), library_environment()
    done = subprocess.run(command, input=request, env=env, check=False, stdout=subprocess.PIPE, text=True)
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        what = f"checking the settings ended with exit code {done.returncode}"
        raise PipelineError(what=what, where=where, fix="See the lines above") from error
    if "error" in answer:
        told = answer["error"]
        raise ParamsError(**{**told, "where": where if told["where"] == "sweep" else told["where"]})


def check_trials_here(trials: Sequence[Trial]) -> None:
    """Check the whole params.yaml of every trial in this process."""
    from posttrain.pipeline.checks.params_schema import check_params

    root = Path.cwd()
    if not is_posttrain_pipeline(root):
        return
    params = read()
    for key in dict.fromkeys(key for trial in trials for key in trial.overrides):
        _check_key(key, params)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(CUSTOM).symlink_to(root / CUSTOM)
        for trial in trials:
            merged = params
            for key, value in trial.overrides.items():
                merged = placed(merged, key, value)
            Path(PARAMS_FILE).write_text(json.dumps(merged), encoding="utf-8")  # JSON is YAML
            try:
                check_params(root)
            except ParamsError as error:
                raise ParamsError(what=error.what, where=f"{trial.name} ({described(trial)})", fix=error.fix) from error


NO_INPUTS: Final = ("prefect.yaml", "README.md", "AGENTS.md", ".gitignore")
"""Files that no run reads."""


def check_committed(where: str, fix: str) -> None:
    """Raise if files other than DVC's outputs differ from the last commit, because remote work starts there."""
    git("rev-parse", "--verify", "HEAD")
    outputs = {out["path"] for entry in read_lock(Path()).values() for out in entry.get("outs", ())}
    changed = [
        name
        for name in git("diff", "--name-only", "--relative", "HEAD").splitlines()
        if name not in {"dvc.lock", *outputs, *NO_INPUTS} and not name.startswith(("report/", "code/"))
    ]
    if changed:
        listed = ", ".join(changed[:5]) + (" ..." if len(changed) > 5 else "")
        raise PipelineError(what=f"changed since the last commit: {listed}", where=where, fix=fix)


def described(trial: Trial) -> str:
    """Return the settings of a trial as text."""
    return " ".join(f"{key}={value}" for key, value in trial.overrides.items())


def placed(settings: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return settings with the value of a dotted key replaced. A mapping replaces the whole old value too."""
    first, _, rest = key.partition(".")
    old = settings.get(first)
    return {**settings, first: placed(old if isinstance(old, Mapping) else {}, rest, value) if rest else value}


def _random_settings(search: Random | None) -> list[dict[str, Any]]:
    if search is None:
        return []
    rng = random.Random(search.seed)
    return [{key: _draw(over, rng) for key, over in search.over.items()} for _ in range(search.draws)]


def _draw(over: Range | list[Any], rng: random.Random) -> Any:
    if isinstance(over, list):
        return rng.choice(over)
    if over.scale == "linear":
        value = rng.uniform(over.low, over.high)
    else:
        value = math.exp(rng.uniform(math.log(over.low), math.log(over.high)))
    return float(f"{value:.3g}")


def _section(key: str) -> str:
    """Return the section with its own seed: a run, or evaluate.settings."""
    parts = key.split(".")
    return ".".join(parts[:2] if parts[0] == "evaluate" else parts[:3])


def _check_key(key: str, params: Mapping[str, Any]) -> None:
    """Raise if the key belongs to no run in params.yaml, because setting it would add a run."""
    parts = key.split(".")
    group = ".".join(parts[:2])
    if key.startswith("+"):
        fix = "Write it without '+', which only `dvc exp run -S` needs"
        raise ParamsError(what=f"'{key}' begins with '+'", where="sweep", fix=fix)
    if parts[0] not in (*GROUPS, SEED) and nearest(parts[0], list(GROUPS)) is None:
        whole = [known for known in flattened(params) if known.endswith(f".{key}")]
        where_it_is = f"Did you mean '{whole[0]}'?" if whole else "Write the whole key, e.g. online.runs.grpo.kl.beta"
        raise ParamsError(what=f"'{key}' is not a setting of params.yaml", where="sweep", fix=where_it_is)
    if parts[0] in GROUPS and group not in ("evaluate.settings", "evaluate.policies"):
        known = list(group_of(params, group)) if len(parts) > 1 else []
        if len(parts) < 4 or parts[2] not in known:
            fix = did_you_mean(parts[2] if len(parts) > 2 else "", known)
            raise ParamsError(what=f"'{key}' is not a setting of a run of params.yaml", where="sweep", fix=fix)


def _name(sweep: str, overrides: Overrides) -> str:
    """Return a readable name with a digest of the exact settings: equal settings give the same experiment."""
    digest = hashlib.sha256(json.dumps(overrides, sort_keys=True).encode()).hexdigest()[:6]
    last_keys = {key.rpartition(".")[2]: value for key, value in sorted(overrides.items())}
    slug = re.sub(r"\.{2,}", ".", "-".join(f"{key}{_plain(value)}" for key, value in last_keys.items()))[:MAX_SLUG]
    return f"{sweep}-{slug.strip('.-')}-{digest}"


def _plain(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", f"{value:g}" if isinstance(value, float) else str(value))


def main() -> int:
    """Check the trials on standard input. Print an error, if there is one, as a JSON object."""
    try:
        check_trials_here([Trial(name, overrides) for name, overrides in json.load(sys.stdin)])
    except PosttrainError as error:
        print(json.dumps({"error": {"what": error.what, "where": error.where, "fix": error.fix}}))
        return 1
    print("{}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
