"""docs/reference/api.md from the docstrings of the public names: `python -m docs.make.api` writes it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from docs.make.api_examples import EXAMPLES
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
    if module is api:
        yield from entry(f"{name}.fix_numerics", fix_numerics)
    for public in module.__all__:
        yield from entry(f"{name}.{public}", getattr(module, public))


def entry(name: str, value: Any) -> Iterator[str]:
    """Yield the heading, the signature, the docstring and the example of a name."""
    yield f"### {name.rpartition('.')[2]}\n"
    yield from _described(name, value)
    if name in EXAMPLES:
        yield f"Example:\n\n```python\n{EXAMPLES[name].strip()}\n```\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield _text(inspect.getdoc(value))
        if attributes := list(_attributes(value)):
            yield "\n".join(attributes) + "\n"
        for method in _methods(value):
            yield f"```python\n{_signature(f'{value.__name__}.{method.__name__}', method)}\n```\n"
            yield _text(inspect.getdoc(method))
        if value.__name__ in SETTINGS:
            yield SETTINGS[value.__name__] + "\n"
            yield "\n".join(_settings(value)) + "\n"
    elif not callable(value):
        yield f"`{value}`\n"
    else:
        yield f"```python\n{_signature(name, value)}\n```\n"
        yield _text(inspect.getdoc(value))


def _methods(value: Any) -> Iterator[Any]:
    """Yield the public methods that a user calls: how settings are made, and what a training leaves."""
    for name in ("preset", "save", "tail"):
        if name in vars(value):
            yield getattr(value, name)


def _settings(value: Any) -> Iterator[str]:
    """Yield each setting with its default and its meaning."""
    known = OnlineConfig.model_fields if value.__name__ == "StudentConfig" else {}
    for name, field in value.model_fields.items():
        if name in known:
            continue
        default = "" if field.is_required() else f" = {_plain(field.get_default(call_default_factory=True))}"
        yield f"- `{name}{default}`" + (f": {field.description}" if field.description else "")


def _plain(default: Any) -> str:
    """Write a default as a person would write it."""
    return "{...}" if isinstance(default, BaseModel) else repr(default)


def _attributes(value: Any) -> Iterator[str]:
    """Describe each attribute by the string that follows it in the source, if there is one."""
    body = ast.parse(inspect.getsource(value)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_dataclass(value):
            said = after.value if isinstance(after, ast.Expr) else None
            text = f": {inspect.cleandoc(str(said.value))}" if isinstance(said, ast.Constant) else ""
            yield f"- `{node.target.id}`{' '.join(text.split(chr(10)))}"


def _signature(name: str, value: Any) -> str:
    """One parameter per line where the signature is long."""
    signature = inspect.signature(value)
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        lines.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    short = f"{name}({', '.join(lines)}) -> {signature.return_annotation}"
    if len(short) <= 100:
        return short
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {signature.return_annotation}"


def _shown(default: Any) -> str:
    """Write a default without addresses, which differ from process to process."""
    return default.__name__ if isinstance(default, type) else "..." if callable(default) else repr(default)


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
