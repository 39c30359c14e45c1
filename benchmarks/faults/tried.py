"""Bad input that somebody thought of, class by class: what no table of types and columns leads to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = tuple[str, str, str, str, dict[str, Any], str]
"""(kind, name, stage, change, its arguments, what the error must name), as cases.Case takes them."""

PARAMS, ANY = "params.yaml", ""
HUGE = "1000000000000"
ALGORITHM_RUNS = {"preference": "dpo", "online": "grpo", "distill": "gkd"}
"""The runs whose type an algorithm decides."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"

SETTINGS: tuple[tuple[str, str, str, str], ...] = (
    *(
        ("sft main", "sft/runs/main/optimizer/betas", value, PARAMS)
        for value in ("[1.0, 1.0]", "[0.9, 1.5]", "[-0.1, 0.9]")
    ),
    *(("online grpo", "online/runs/grpo/seed", seed, PARAMS) for seed in (HUGE, "4294967296")),
    ("distill gkd", "distill/runs/gkd/seed", HUGE, PARAMS),
    ("preference sdpo", "preference/runs/sdpo/parts", "1000000", PARAMS),
    ("data_samples compared", "data/samples/compared/samples", "1000000000", PARAMS),
    ("data_samples compared", "data/samples/compared/reward", "{}", PARAMS),
    ("data_samples compared", "data/samples/compared/sampling", f"{{max_tokens: {HUGE}}}", PARAMS),
    ("data_samples compared", "data/samples/compared/sampling", "{temperature: 1.0e-45}", PARAMS),
    ("completions sft", "evaluate/settings/samples", "1000000000", PARAMS),
    ("completions sft", "evaluate/settings/sampling", "{max_tokens: 500}", PARAMS),
    ("completions sft", "evaluate/settings/sampling", f"{{max_tokens: {HUGE}}}", PARAMS),
    ("completions sft", "evaluate/settings/sampling", "{temperature: 1.0e-300}", PARAMS),
    ("completions sft", "evaluate/settings/sampling", '{stop: ["\\ud800"]}', PARAMS),
    ("completions grpo", "evaluate/settings/reference", "reward/main", "models/reward/main"),
    ("completions grpo", "evaluate/settings/reference", "nothing", "models/nothing"),
    *(
        ("completions sft", "evaluate/policies", value, PARAMS)
        for value in ("null", "7", "[a]", "{sft: 7}", "{sft: none}", "{sft: ../x}", "{grpo: online/grpo}", "{a b: x}")
    ),
    ("online grpo", "online/runs/grpo/rollout/prompts", "1000000000", PARAMS),
    ("online grpo", "online/runs/grpo/rollout/group_size", "1000000000", PARAMS),
    ("online grpo", "online/runs/grpo/rollout/minibatches", "5", PARAMS),
    ("online grpo", "online/runs/grpo/rollout/sampling", "{max_tokens: 500}", PARAMS),
    ("distill gkd", "distill/runs/gkd/teacher", "sft/main", PARAMS),
    ("distill gkd", "distill/runs/gkd/teacher", "reward/main", "models/reward/main"),
    ("distill gkd", "distill/runs/gkd/context", '"\\ud800"', PARAMS),
    ("base_folders mine", "base/folders/mine/path", "models/reward/main", "models/reward/main"),
    ("base_folders mine", "base/folders/mine/path", "models", "models"),
    ("base_folders mine", "base/folders/mine/path", ".", "config.json"),
    ("base_folders mine", "base/folders/mine/path", '"a\\0b"', ANY),
    ("base_folders mine", "base/folders/mine/path", "http://x/y", "http://x/y"),
    ("base_hub theirs", "base/hub/theirs/name", "http://x/y", "http://x/y"),
    ("base_hub theirs", "base/hub/theirs", f"{{name: models/sft/main, revision: '{COMMIT}'}}", "models/sft/main"),
    ("base_hub theirs", "base/hub/theirs", '{name: a/b, revision: "../../x"}', PARAMS),
    ("base_scratch tiny", "base/scratch/tiny/window", "1000", PARAMS),
    ("base_scratch tiny", "base/scratch/tiny/shape", "{context: 16}", PARAMS),
    (
        *("base_scratch tiny", "base/scratch/tiny/shape"),
        *("{layers: 1000, width: 96000, heads: 1000}", "the model's shape"),
    ),
    ("sft main", "sft/runs/main/device", "{device: mps}", "device = 'mps'"),
    ("completions sft", "evaluate/settings/device", "{device: mps}", "device = 'mps'"),
    *(
        ("data_tasks two_step", "data/tasks/two_step", f"{{task: two_step, {more}}}", "data.tasks.two_step")
        for more in (f"n_sft: {HUGE}", "n_test: 1000000", "worked_share: 1.0, bare_share: 1.0")
    ),
    *(
        ("data_tasks two_step", "data/tasks/two_step/task", value, PARAMS)
        for value in ("zonk", "7", "[1]", "''", "null")
    ),
    *(
        ("data_hub theirs", "data/hub/theirs/chat", value, "data.hub.theirs")
        for value in ("{name: json}", f"{{name: 'no such/thing', revision: '{COMMIT}'}}", "{path: given/rows.jsonl}")
    ),
    ("sft main", "sfft", "{}", PARAMS),
    ("sft main", "sft/runs/main/start", "none", PARAMS),
    *(
        (f"{family} {run}", f"{family}/runs/{run}/start", start, names)
        for family, run in ALGORITHM_RUNS.items()
        for start, names in (("reward/main", "models/reward/main"), ("online", "models/online"), ("sft/.", PARAMS))
    ),
    *(
        (f"{family} {run}", family, value, PARAMS)
        for family, run in ALGORITHM_RUNS.items()
        for value in ("null", "7", "[a]", "{runs: null}", "{runs: 7}", "{runs: [a]}", "{zonk: 1}")
    ),
    *((f"{family} {run}", f"{family}/zonk", "1", PARAMS) for family, run in ALGORITHM_RUNS.items()),
)
"""(stage, place, value, what is named)"""

ANCHORS = "\n".join(
    ["a: &b0 [x,x,x,x,x,x,x,x,x]", *(f"b{i}: &b{i} [{','.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 10))]
)
"""Ten lines that stand for nine to the tenth of values."""
INNER, DEEPER = (ANCHORS.replace("\n", f"\n{' ' * depth}") for depth in (2, 6))
SFT_RUN = "sft:\n  runs:\n    main:\n      "

FILES = {
    **{
        f"bomb as {key}": f"{SFT_RUN}{DEEPER}\n      {key}: *b9\n"
        for key in ("epochs", "objective", "zonk", "optimizer")
    },
    "bomb as section": f"data:\n  {INNER}\nsft: *b9\n",
    "bomb of sections": f"{ANCHORS}\nsft: *b9\n",
    "newline in value": f'{SFT_RUN}epochs: "a\\nb\\nerror: all is well"\n',
    "surrogate key": f'{SFT_RUN}"\\ud800": 1\n',
    "surrogate": f'{SFT_RUN}epochs: "\\ud800"\n',
    "escape in key": f'{SFT_RUN}"\\e[31mred": 1\n',
    "merge and slip": f"base: {{scratch: {{tiny: &x {{epochs: 1.0}}}}}}\n{SFT_RUN}<<: *x\n      epochz: 2\n",
    "run in itself": "sft: {runs: {main: &a {optimizer: {lr: *a}}}}\n",
    "section in itself": "sft: &a {runs: *a}\n",
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
    "{path: rows.jsonl, rename: {prompt: x, completion: x}}",
    "{path: rows.jsonl, rename: {prompt: completion}}",
    "{path: rows.jsonl, splits: {zonk: train}}",
    "{path: rows.jsonl, splits: {train: nope}}",
    "{path: rows.jsonl, limit: 1}",
    "{path: rows.jsonl, name: x}",
    "{path: '*.jsonl'}",
    "{name: an/example}",
)

WHOLE = (
    *("columns.jsonl", "nulls.jsonl", "one.jsonl", "empty key.jsonl", "wide.csv", "semicolon.csv"),
    "one problem.jsonl",
)
"""Files in which no row is at fault, but the table that they make."""

RESULTS = {
    "results/sft/metrics.json": (
        *(f'{{"score": {value}, "score_low": 1, "score_high": 1}}'
          for value in ('"x"', "null", "[1]", "true", "NaN", "1e400")),
        '{"score": 0.1, "score_low": 0, "score_high": 1, "greedy": "x"}',
        "[" * 20_000,
    ),
    "metrics/reward/main.json": ("[]", "{", *(f'{{"heldout_accuracy": {value}}}' for value in ('"x"', "null", "NaN"))),
    "metrics/sft/main.json": ("7", "{", "[" * 20_000),
    "plots/sft/main.csv": ("step,loss\n1,x\n", "step,loss\n1,2,3,4\n", "step,loss\n" + "1," * 10_000),
}  # fmt: skip

FORGED = (
    *(("row", key, value) for key, value in (("loss", '"x"'), ("loss", "null"), ("loss", "[1]"), ("step", '"x"'))),
    *(("state", "objective", value) for value in ('{"zonk": 1.0}', '{"beta": "x"}')),
    *(("state", "step", value) for value in ("true", "1.0", "1e400")),
    *(
        (how, f"update.policy.model.embed_tokens.weight.{name}", "null")
        for name in ("exp_avg", "step")
        for how in ("nan", "integers", "foreign")
    ),
    *((how, "update.policy.model.embed_tokens.weight.exp_avg", "null") for how in ("narrow", "scalar")),
    *((how, f"random.{name}", "null") for name in ("torch", "python", "numpy") for how in ("narrow", "scalar")),
)

LINKS = (
    ("models/linked", "online/runs/grpo/start", "linked", "online grpo"),
    ("models/linked", "distill/runs/gkd/teacher", "linked", "distill gkd"),
    ("models/linked", "evaluate/settings/reference", "linked", "completions sft"),
    ("given/rows.jsonl", "data/files/mine/chat/path", "rows.jsonl", "data_files mine"),
    ("given/model", "base/folders/mine/path", "given/model", "base_folders mine"),
)
"""(link, parameter, value, stage)"""

ARGUMENTS = ("reward", "nothing", "../x", "sft/../base", "", ".", "a/b/c", "sft/", "/tmp", "sft\nx", "ünïcode")


def place_of(file: str) -> str:
    """What an error about given data names: the file, or the parameter of the table."""
    return "data.files.mine.chat" if file in WHOLE else f"given/{file}"


def rows() -> Iterator[Row]:
    """Every case."""
    for stage, path, value, names in SETTINGS:
        place = {"path": path.split("/"), "value": value}
        yield "parameters", f"{path.replace('/', '.')} = {value}!", stage, "setting", place, names
    for name, content in FILES.items():
        yield PARAMS, name, "sft main", "text", {"file": PARAMS, "content": content}, PARAMS
    for argument in ARGUMENTS:
        yield "arguments", f"completions {argument!r}", f"completions\0{argument}", "nothing", {}, ANY
    yield from _models()
    yield from _data()
    for how, key, value in FORGED:
        change = {"how": how, "key": key, "value": value}
        yield "checkpoints", f"{key} {how} {value}", "sft main resumed", "checkpoint", change, ANY
    for place, path, value, stage in LINKS:
        link = {"place": place, "path": path.split("/"), "value": value}
        yield "paths", f"{place} as {path.replace('/', '.')}", stage, "linked", link, ANY


def _models() -> Iterator[Row]:
    base = "models/base/tiny"
    for name, content in TEMPLATES.items():
        given = {"folder": base, "file": "chat_template.jinja", "content": content}
        yield "model folders", f"template {name}", "sft main", "loose", given, base
    for file, key, values in KEYS:
        for value in values:
            keyed = {"folder": base, "file": file, "key": key, "value": value}
            yield "model folders", f"{file} {key} = {value}!", "sft main", "loose_key", keyed, base
    for value in ('"x"', "null", "[]", "1e400"):
        keyed = {"folder": "models/reward/main", "file": "config.json", "key": "reward_shift", "value": value}
        yield "model folders", f"reward_shift = {value}", "online grpo", "loose_key", keyed, "models/reward/main"
    for first, second in (("sft/main", "reward/main"), ("reward/main", "sft/main")):
        swapped = {"first": f"models/{first}", "second": f"models/{second}"}
        yield "model folders", f"{first} as {second}", "online grpo", "other_folder", swapped, f"models/{second}"
    for content in ("7", "{"):
        broken = {"folder": base, "file": "special_tokens_map.json", "content": content}
        yield "model folders", f"special tokens {content}", "sft main", "loose", broken, base
    for content in ('{"../../params.yaml": "abc"}', '{"model.norm.weight": 7}', '{"config.json": null}'):
        told = {"folder": base, "file": "manifest.json", "content": content}
        yield "model folders", f"manifest {content}", "sft main", "loose", told, base


def _data() -> Iterator[Row]:
    for name, content in LINES.items():
        change = {"file": f"given/{name}", "content": content}
        yield "given data", name, "data_files mine", "given", change, place_of(name)
    for value in GIVEN:
        yield "given data", value, "data_files mine", "given_as", {"chat": value}, "data.files.mine"
    for stage in ("online grpo", "data_samples compared"):
        file = "data/two_step/prompts.parquet"
        yield "table content", f"{file} without answers ({stage})", stage, "no_answers", {"file": file}, file
    corpus = {"file": "data/two_step/corpus.parquet", "column": "text"}
    yield "table content", f"{corpus['file']} text no UTF-8", "base_scratch tiny", "bad_utf8", corpus, corpus["file"]
    for file, contents in RESULTS.items():
        for number, content in enumerate(contents):
            yield "results", f"{file} {number}", "report", "text", {"file": file, "content": content}, file
