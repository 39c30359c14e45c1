"""Bad input that somebody thought of, class by class: what no table of types and columns leads to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = tuple[str, str, str, str, dict[str, Any], str]
"""(kind, name, stage, change, its arguments, what the error must name), as cases.Case takes them."""

PARAMS, ANY = "params.yaml", ""
HUGE = "1000000000000"
RUN_OF = {"preference": "dpo", "online": "grpo", "distill": "gkd"}

SETTINGS: tuple[tuple[str, str, str, str], ...] = (
    *(("sft", "sft/optimizer/betas", value, PARAMS) for value in ("[1.0, 1.0]", "[0.9, 1.5]", "[-0.1, 0.9]")),
    *(("online grpo", "online/runs/grpo/seed", seed, PARAMS) for seed in (HUGE, "4294967296")),
    ("distill gkd", "distill/runs/gkd/seed", HUGE, PARAMS),
    ("preference sdpo", "preference/runs/sdpo/parts", "1000000", PARAMS),
    ("pairs", "pairs/samples", "1000000000", PARAMS),
    ("pairs", "pairs/reward", "{}", PARAMS),
    ("pairs", "pairs/sampling", f"{{max_tokens: {HUGE}}}", PARAMS),
    ("pairs", "pairs/sampling", "{temperature: 1.0e-45}", PARAMS),
    ("evaluate sft", "evaluate/samples", "1000000000", PARAMS),
    ("evaluate sft", "evaluate/sampling", "{max_tokens: 500}", PARAMS),
    ("evaluate sft", "evaluate/sampling", f"{{max_tokens: {HUGE}}}", PARAMS),
    ("evaluate sft", "evaluate/sampling", "{temperature: 1.0e-300}", PARAMS),
    ("evaluate sft", "evaluate/sampling", '{stop: ["\\ud800"]}', PARAMS),
    ("evaluate online/grpo", "evaluate/reference", "reward", "models/reward"),
    ("evaluate online/grpo", "evaluate/reference", "nothing", "models/nothing"),
    ("online grpo", "online/runs/grpo/rollout/prompts", "1000000000", PARAMS),
    ("online grpo", "online/runs/grpo/rollout/group_size", "1000000000", PARAMS),
    ("online grpo", "online/runs/grpo/rollout/minibatches", "5", PARAMS),
    ("online grpo", "online/runs/grpo/rollout/sampling", "{max_tokens: 500}", PARAMS),
    ("distill gkd", "distill/runs/gkd/teacher", "sft", PARAMS),
    ("distill gkd", "distill/runs/gkd/teacher", "reward", "models/reward"),
    ("distill gkd", "distill/runs/gkd/context", '"\\ud800"', PARAMS),
    ("base", "base/model", "models/reward", "models/reward"),
    ("base", "base/model", "models", "models"),
    ("base", "base/model", ".", "config.json"),
    ("base", "base/model", '"a\\0b"', ANY),
    ("base", "base/model", "http://x/y", PARAMS),
    ("base", "base", "{model: models/sft, revision: x}", "models/sft"),
    ("base", "base", '{model: a/b, revision: "../../x"}', "a/b"),
    ("base", "base/window", "1000", PARAMS),
    ("base", "base/shape", "{context: 16}", PARAMS),
    ("base", "base/shape", "{layers: 1000, width: 96000, heads: 1000}", "the model's shape"),
    ("sft", "sft/device", "{device: mps}", "device = mps"),
    ("evaluate sft", "evaluate/device", "{device: mps}", "device = mps"),
    ("prepare", "prepare/two_step", f"{{n_sft: {HUGE}}}", "prepare.two_step"),
    ("prepare", "prepare/two_step", "{n_test: 1000000}", "prepare.two_step"),
    ("prepare", "prepare/two_step", "{worked_share: 1.0, bare_share: 1.0}", PARAMS),
    ("sft", "sfft", "{}", PARAMS),
    *(
        (f"{family} {run}", f"{family}/runs/{run}/start", start, names)
        for family, run in RUN_OF.items()
        for start, names in (("reward", "models/reward"), ("online", "models/online"), ("sft/.", PARAMS))
    ),
    *(
        (f"{family} {run}", family, value, PARAMS)
        for family, run in RUN_OF.items()
        for value in ("null", "7", "[a]", "{runs: null}", "{runs: 7}", "{runs: [a]}", "{zonk: 1}")
    ),
    *((f"{family} {run}", f"{family}/zonk", "1", PARAMS) for family, run in RUN_OF.items()),
)
"""(stage, place, value, what is named)"""

ANCHORS = "\n".join(
    ["a: &b0 [x,x,x,x,x,x,x,x,x]", *(f"b{i}: &b{i} [{','.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 10))]
)
"""Ten lines that stand for nine to the tenth of values."""
INNER = ANCHORS.replace("\n", "\n  ")

FILES = {
    **{f"bomb as {key}": f"sft:\n  {INNER}\n  {key}: *b9\n" for key in ("epochs", "objective", "zonk", "optimizer")},
    "bomb as section": f"prepare:\n  {INNER}\nsft: *b9\n",
    "bomb of sections": f"{ANCHORS}\nsft: *b9\n",
    "newline in value": 'sft: {epochs: "a\\nb\\nerror: all is well"}\n',
    "surrogate key": 'sft: {"\\ud800": 1}\n',
    "surrogate": 'sft: {epochs: "\\ud800"}\n',
    "escape in key": 'sft: {"\\e[31mred": 1}\n',
    "merge and slip": "base: &x {epochs: 1.0}\nsft: {<<: *x, epochz: 2}\n",
    "section in itself": "sft: &a {optimizer: {lr: *a}}\n",
}

TEMPLATES = {
    "syntax": "{% for", "empty": "", "division": "{{ 1/0 }}", "types": "{{ 1 + 'a' }}",
    "refusal": "{{ raise_exception('no') }}", "endless": "{% for i in range(1000000000) %}x{% endfor %}",
    "undefined": "{{ messages.foo.bar }}", "recursion": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "attribute": "{{ ''.__class__.__mro__ }}", "file": "{% include '/etc/passwd' %}", "power": "{{ 9**9**9 }}",
    "no stop": "{% for m in messages %}{{ m['content'] }}{% endfor %}", "index": "{{ messages[7]['content'] }}",
    "no content": "hello<|end|>",
}  # fmt: skip

KEYS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("tokenizer_config.json", "eos_token", ("null", "7", '["<|end|>"]')),
    ("tokenizer_config.json", "model_max_length", ('"x"',)),
    ("tokenizer_config.json", "chat_template", ("7", "null")),
    ("config.json", "rms_norm_eps", ("1e400", "NaN", '"x"', "null")),
    ("config.json", "rope_parameters", ('{"rope_type": "zonk"}', '{"rope_type": "default", "rope_theta": "x"}')),
    ("config.json", "rope_parameters", ('{"rope_type": "default", "rope_theta": 0}',)),
    ("config.json", "pad_token_id", ("100000", '"x"')),
    ("config.json", "attention_dropout", ('"x"',)),
    ("config.json", "head_dim", ("1000000",)),
    ("config.json", "layer_types", ('["zonk"]', "7")),
    ("config.json", "attention_bias", ("true",)),
    ("config.json", "quantization_config", ("7",)),
)

LINES = {
    "surrogate.jsonl": '{"prompt": "\\ud800", "completion": "2"}\n' * 3,
    "deep field.jsonl": '{"prompt": ' + "[" * 5000 + "]" * 5000 + ', "completion": "2"}\n',
    "words.jsonl": '{"messages": ["a", "b"]}\n',
    "lists.jsonl": '{"messages": [["user", "a"]]}\n',
    "text.jsonl": '{"messages": "hello"}\n',
    "no content.jsonl": '{"messages": [{"role": "user"}]}\n',
    "parts.jsonl": '{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}\n',
    "from.jsonl": '{"messages": [{"from": "human", "value": "x"}]}\n',
    "no turns.jsonl": '{"messages": []}\n',
    "numbers in turns.jsonl": '{"messages": [{"role": "user", "content": 7}, {"role": "assistant", "content": 8}]}\n',
    "roles.jsonl": '{"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]}\n',
    "objects.jsonl": '{"prompt": {"a": 1}, "completion": {"b": 2}}\n',
    "empty key.jsonl": '{"": 1}\n',
    "scalars.jsonl": "1\n2\n",
    "null.jsonl": "null\n",
    "mixed.json": '[{"prompt": "a", "completion": "b"}, 7]',
    "nothing.json": "[]",
    "wide.csv": ",".join(f"c{i}" for i in range(20_000)) + "\n" + ",".join("x" * 20_000) + "\n",
    "semicolon.csv": "prompt;completion\na;b\n",
    "one problem.jsonl": "".join(f'{{"prompt": "same", "completion": "{i}"}}\n' for i in range(300)),
}

GIVEN = (
    "{path: given/rows.jsonl, rename: {prompt: x, completion: x}}",
    "{path: given/rows.jsonl, rename: {prompt: completion}}",
    "{path: given/rows.jsonl, splits: {zonk: train}}",
    "{path: given/rows.jsonl, splits: {train: nope}}",
    "{path: given/rows.jsonl, limit: 1}",
    "{path: given, hub: x}",
    "{path: 'given/*.jsonl'}",
    "{hub: 'no such/thing'}",
    "{hub: json}",
)

RESULTS = {
    "results/sft/metrics.json": (
        *(f'{{"pass_at_1": {value}, "pass_at_1_low": 1, "pass_at_1_high": 1}}'
          for value in ('"x"', "null", "[1]", "true", "NaN", "1e400")),
        '{"pass_at_1": 0.1, "pass_at_1_low": 0, "pass_at_1_high": 1, "greedy": "x"}',
        "[" * 20_000,
    ),
    "metrics/reward.json": ("[]", "{", *(f'{{"heldout_accuracy": {value}}}' for value in ('"x"', "null", "NaN"))),
    "metrics/sft.json": ("7", "{", "[" * 20_000),
    "plots/sft.csv": ("step,loss\n1,x\n", "step,loss\n1,2,3,4\n", "step,loss\n" + "1," * 10_000),
}  # fmt: skip

FORGED = (
    *(("row", key, value) for key, value in (("loss", '"x"'), ("loss", "null"), ("loss", "[1]"), ("step", '"x"'))),
    *(("state", "objective", value) for value in ('{"zonk": 1.0}', '{"beta": "x"}')),
    *(("state", "step", value) for value in ("true", "1.0", "1e400")),
    *((how, f"update.0.{name}", "null") for name in ("exp_avg", "step") for how in ("nan", "integers", "foreign")),
    *((how, "update.0.exp_avg", "null") for how in ("narrow", "scalar")),
    *((how, f"random.{name}", "null") for name in ("torch", "python", "numpy") for how in ("narrow", "scalar")),
)

LINKS = (
    ("models/linked", "online/runs/grpo/start", "linked", "online grpo"),
    ("models/linked", "distill/runs/gkd/teacher", "linked", "distill gkd"),
    ("models/linked", "evaluate/reference", "linked", "evaluate sft"),
    (
        "given/rows.jsonl",
        "prepare",
        "{source: given, given: {chat: {path: given}, prompts: {path: x}}}",
        "prepare",
    ),
    ("given/model", "base/model", "given/model", "base"),
)
"""(link, parameter, value, stage)"""

ARGUMENTS = ("reward", "nothing", "../x", "sft/../base", "", ".", "a/b/c", "sft/", "/tmp", "sft\nx", "ünïcode")


def rows() -> Iterator[Row]:
    """Every case."""
    for stage, path, value, names in SETTINGS:
        place = {"path": path.split("/"), "value": value}
        yield "parameters", f"{path.replace('/', '.')} = {value}!", stage, "setting", place, names
    for name, content in FILES.items():
        yield PARAMS, name, "sft", "text", {"file": PARAMS, "content": content}, PARAMS
    for argument in ARGUMENTS:
        yield "arguments", f"evaluate {argument!r}", f"evaluate\0{argument}", "nothing", {}, ANY
    yield from _models()
    yield from _data()
    for how, key, value in FORGED:
        change = {"how": how, "key": key, "value": value}
        yield "checkpoints", f"{key} {how} {value}", "sft resumed", "checkpoint", change, ANY
    for place, path, value, stage in LINKS:
        link = {"place": place, "path": path.split("/"), "value": value}
        yield "paths", f"{place} as {path.replace('/', '.')}", stage, "linked", link, ANY


def _models() -> Iterator[Row]:
    base = "models/base"
    for name, content in TEMPLATES.items():
        given = {"folder": base, "file": "chat_template.jinja", "content": content}
        yield "model folders", f"template {name}", "sft", "loose", given, base
    for file, key, values in KEYS:
        for value in values:
            keyed = {"folder": base, "file": file, "key": key, "value": value}
            yield "model folders", f"{file} {key} = {value}!", "sft", "loose_key", keyed, base
    for value in ('"x"', "null", "[]", "1e400"):
        keyed = {"folder": "models/reward", "file": "config.json", "key": "reward_shift", "value": value}
        yield "model folders", f"reward_shift = {value}", "online grpo", "loose_key", keyed, "models/reward"
    for first, second in (("sft", "reward"), ("reward", "sft")):
        swapped = {"first": f"models/{first}", "second": f"models/{second}"}
        yield "model folders", f"{first} as {second}", "online grpo", "other_folder", swapped, f"models/{second}"
    for content in ("7", "{"):
        broken = {"folder": base, "file": "special_tokens_map.json", "content": content}
        yield "model folders", f"special tokens {content}", "sft", "loose", broken, base
    for content in ('{"../../params.yaml": "abc"}', '{"model.norm.weight": 7}', '{"config.json": null}'):
        told = {"folder": base, "file": "manifest.json", "content": content}
        yield "model folders", f"manifest {content}", "sft", "loose", told, base


def _data() -> Iterator[Row]:
    for name, content in LINES.items():
        yield "given data", name, "prepare", "given", {"file": f"given/{name}", "content": content}, f"given/{name}"
    for value in GIVEN:
        yield "given data", value, "prepare", "given_as", {"chat": value}, "prepare"
    for stage in ("online grpo", "pairs"):
        file = "data/prompts.parquet"
        yield "table content", f"{file} without answers ({stage})", stage, "no_answers", {"file": file}, file
    corpus = {"file": "data/corpus.parquet", "column": "text"}
    yield "table content", "data/corpus.parquet text no UTF-8", "base", "bad_utf8", corpus, corpus["file"]
    for file, contents in RESULTS.items():
        for number, content in enumerate(contents):
            yield "results", f"{file} {number}", "report", "text", {"file": file, "content": content}, file
