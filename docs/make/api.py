"""docs/reference/api.md from the docstrings of the public names: `python -m docs.make.api` writes it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from docs.make.api_examples import EXAMPLES
from docs.make.api_tables import arguments, attributes, divided, setting_rows, settings, shared_rows, shown, table
from posttrain import api, losses, rewards, tasks
from posttrain.numerics import fix_numerics
from posttrain.online.config import OnlineConfig

PAGE = Path("docs/reference/api.md")
SETTINGS = {
    "CompletionsConfig": "Settings:",
    "EvaluateConfig": "Settings:",
    "ScoreConfig": "Settings:",
    "SampleConfig": "Settings:",
    "SftConfig": "Settings:",
    "RewardTraining": "Settings:",
    "PreferenceTraining": "Settings (`posttrain params preference` lists the settings of each algorithm too):",
    "OnlineConfig": "Settings (`posttrain params online` lists the settings of each algorithm too):",
    "StudentConfig": "Settings in addition to the settings of `OnlineConfig`:",
}
"""Typed settings whose fields are listed, and how the list begins."""
TRAININGS = [api.SftConfig, api.RewardTraining, api.PreferenceTraining, api.OnlineConfig]
GROUP = "The default of a group is an object with settings of its own, which `posttrain params` lists."
WIDTH = 100
COMMON = {
    "algorithm": "an algorithm of docs/reference/algorithms.md, e.g. `grpo`",
    "advantages": "[B, T]",
    "anchor": "the third term keeps the chosen answer's reward above this",
    "batch_size": "rows per optimizer step",
    "beta": "how strongly the policy is held to the reference",
    "bias": "[V]: the bias of the output layer",
    "count": "number of last steps",
    "by_step": "the scores are sums over the steps of a completion",
    "cannot_score": "return why a prompt cannot be scored, or None",
    "checkpoint_every": "optimizer steps between checkpoints",
    "checkpoints": "your own store of checkpoints",
    "clip": "largest change of a value per update; None: no limit",
    "completions": "completions of `sample_completions` or `evaluate_model`",
    "config": "all settings as one typed object",
    "epochs": "passes through the rows",
    "estimator": "k1, k2 or k3",
    "evaluate_every": "optimizer steps between evaluations on `heldout`",
    "examples": "a right and a wrong completion of a prompt, which check the reward before a run",
    "folder": "a folder in the format of transformers",
    "gamma": "discount per token",
    "greedy": "take the likeliest token each time, so that the samples of a prompt are equal",
    "heldout": "prompts for the evaluations of the setting `watch` during training",
    "isolated": "run the function in worker processes with a time limit",
    "labels": "[B]: +1 desirable, -1 undesirable, 0 for the KL (kto and bco)",
    "lam": "lambda of GAE: 0 trusts the values, 1 the rewards",
    "logp": "[B, T]: log-probs under the policy",
    "mask": "[B, T]: true at the trained tokens",
    "max_tokens": "largest number of tokens of a completion",
    "model": "a model from transformers, or from `load_model`",
    "n": "completions per prompt",
    "name": "the run's name in messages",
    "noise": "the noise that was added to the samples",
    "on_step": "a function that is called with each step's number and metrics",
    "options": "the class of the reward's options",
    "output": "a folder for checkpoints, metrics and the model, as in `train_online`",
    "path": "a folder in the format of transformers",
    "prompts": "strings, lists of messages, or rows with `prompt`",
    "recorder": "your own store of metrics",
    "ref_logp": "[B, T]: log-probs under the reference",
    "reference": "the frozen model for the KL; None: a copy of the initial model",
    "reward_model": "the folder of the model behind the reward `model`",
    "rollouts": "your own store of rollouts",
    "rows": "rows as in `train_model`",
    "sampler": "your own sampler; None: the engine in the settings",
    "samples": "samples per prompt",
    "seed": "seed of the rows' order and of the samples",
    "settings": "settings that replace the defaults; `posttrain params` lists them",
    "shaping": "the reward judges form, length or style, not whether the answer is right",
    "teachers": "the teachers of `distill`: name -> folder",
    "temperature": "divides the logits; 0 is greedy",
    "tokenizer": "the tokenizer of the model",
    "tokens": "[B, T]: the tokens whose log-probs are computed",
    "top_k": "sample from the k likeliest tokens; None: from all",
    "top_p": "sample from the likeliest tokens whose probabilities sum to this",
    "weights": "the weight of each part of the reward (gdpo)",
}
"""Meanings of arguments whose function does not describe them."""
HEAD = """# posttrain in Python

<!-- Written by `python -m docs.make.api` from the docstrings; do not edit. -->

The names on this page are public, and the only ones that our pages and examples import. They change only with a line in
the changelog; anything else may change at any time.
`examples/` has programs that use them: `grpo.py`, `sft.py`, `dpo_own_trainer.py`, `grpo_loop.py`, and for models of
other kinds `diffusion_dpo.py`, `mdpo.py` and `group_preferences.py`.

A short call names an algorithm and some settings. For adapters, vLLM or several processes make the settings first, and
load the models by them:

```python
config = posttrain.OnlineConfig.preset(
    "grpo", reward={"brief": brief}, rollout={"rounds": 20}, adapter={"type": "lora"}
)
models = posttrain.load_models("models/sft/main", config)
trained = posttrain.train_online(models, None, prompts, config=config, output="out")
```

The folder `output` keeps checkpoints. If a call is killed, the same call resumes it. A call starts anew if an
argument, the start model, the library or a reward function has changed. It does not notice edits of modules that a
reward function imports.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD, *_module("posttrain", api), *_module("posttrain.losses", losses)]
    sections += [*_module("posttrain.rewards", rewards), *_module("posttrain.tasks", tasks)]
    return "\n".join(sections)


def _module(name: str, module: ModuleType) -> Iterator[str]:
    import posttrain

    yield f"## {name}\n"
    yield _text(inspect.getdoc(posttrain if module is api else module))
    public = {one: getattr(module, one) for one in module.__all__}
    functions = [one for one, value in public.items() if not isinstance(value, type) and callable(value)]
    others = [one for one in public if one not in functions]
    first = ["fix_numerics"] if module is api else []
    yield f"Functions: {_links([*first, *functions])}.\n"
    yield f"Classes and constants: {_links(others)}.\n"
    if module is api:
        yield from entry(f"{name}.fix_numerics", fix_numerics)
    for one in functions:
        yield from entry(f"{name}.{one}", public[one])
    if module is api:
        yield "### Settings of every training\n"
        yield f"{', '.join(f'`{one.__name__}`' for one in TRAININGS)} have these settings in common. {GROUP}\n"
        yield from _table(table(("setting", "default", "meaning"), list(shared_rows(TRAININGS).values())))
    for one in others:
        yield from entry(f"{name}.{one}", public[one])


def _links(names: Sequence[str]) -> str:
    return ", ".join(f"[`{name}`](#{name.lower()})" for name in names)


def entry(name: str, value: Any) -> Iterator[str]:
    """Yield the heading, the signature, the docstring and the example of a name."""
    yield f"### {name.rpartition('.')[2]}\n"
    yield from _described(name, value)
    if name in EXAMPLES:
        yield f"Example:\n\n```python\n{EXAMPLES[name].strip()}\n```\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield _text(inspect.getdoc(value))
        yield from _table(attributes(value))
        for method in _methods(value):
            yield from _function(f"{value.__name__}.{method.__name__}", method)
        if value.__name__ in SETTINGS:
            yield SETTINGS[value.__name__] + "\n"
            yield from _table(settings(value, _known(value)))
    elif not callable(value):
        yield f"`{value}`\n"
    else:
        yield from _function(name, value)


def _function(name: str, value: Any) -> Iterator[str]:
    """Yield the call, what it does, and a table of its arguments."""
    docstring = divided(inspect.getdoc(value) or "", list(inspect.signature(value).parameters))
    rows = arguments(value, docstring.meanings, COMMON if name.count(".") < 3 else {})
    yield f"```python\n{_call(name, value, types=not rows)}\n```\n"
    yield _text(docstring.prose)
    yield from _table(rows)


def _table(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(lines) + "\n"


def _methods(value: Any) -> Iterator[Any]:
    """Yield the public methods that a user calls: they make settings, or read what a training has left."""
    for name in ("preset", "save", "tail"):
        if name in vars(value):
            yield getattr(value, name)


def _known(value: type[BaseModel]) -> dict[str, str]:
    """Rows of settings that another table has: of every training, and of the class that a class extends."""
    if value.__name__ == "StudentConfig":
        return setting_rows(OnlineConfig)
    return shared_rows(TRAININGS) if value in TRAININGS else {}


def _call(name: str, value: Any, *, types: bool) -> str:
    """Write a call with its arguments, on several lines if it is long."""
    signature = inspect.signature(value)
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) or "**" * (parameter.kind is parameter.VAR_KEYWORD)
        default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
        names.append(f"{stars}{parameter.name}{f': {parameter.annotation}{default}' if types else ''}")
    result = signature.return_annotation
    short = f"{name}({', '.join(names)}) -> {result}"
    if len(short) <= WIDTH:
        return short
    inner = [f"{one}," for one in names] if types else textwrap.wrap(", ".join(names), WIDTH - 4)
    return f"{name}(\n" + "".join(f"    {line}\n" for line in inner) + f") -> {result}"


def _text(docstring: str | None) -> str:
    """Docstring as Markdown: an indented block is code, and a first line stands alone."""
    assert docstring, "a public name has no docstring"
    parts = []
    for part in docstring.split("\n\n"):
        code = all(line.startswith("    ") for line in part.splitlines())
        parts.append(f"```python\n{inspect.cleandoc(part)}\n```" if code else part)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")
